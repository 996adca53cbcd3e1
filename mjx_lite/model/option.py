"""Options and statistics of a model, with MuJoCo's names.

Tests: tests/pipeline/test_pipeline.py, tests/model/test_shapes.py.
"""

from typing import Any

import jax

from mjx_lite import errors
from mjx_lite.model import describe, enums, fit
from mjx_lite.model.pytree import Replaceable, array, pytree, specs, static

_DISABLE, _ENABLE = enums.DisableBit, enums.EnableBit
_REACH = 30.0  # range in units of `contact_reach`: at larger distances a contact's weight is round-off


@pytree
class Option(Replaceable):
  """mjOption, and options for derivatives of contacts. Numbers are traced; options that select an algorithm are static."""

  timestep: jax.Array = array(unit="s")
  impratio: jax.Array = array()
  tolerance: jax.Array = array()
  ls_tolerance: jax.Array = array()
  noslip_tolerance: jax.Array = array()
  ccd_tolerance: jax.Array = array()
  gravity: jax.Array = array(3, unit="m/s^2")
  wind: jax.Array = array(3, unit="m/s")
  magnetic: jax.Array = array(3)
  density: jax.Array = array(unit="kg/m^3")
  viscosity: jax.Array = array(unit="Pa s")
  contact_reach: jax.Array = array(unit="m")  # not MuJoCo's; see `put_model`
  o_margin: jax.Array = array(unit="m")
  o_solref: jax.Array = array(2)
  o_solimp: jax.Array = array(5)
  o_friction: jax.Array = array(5)
  integrator: int = static()
  cone: int = static()
  jacobian: int = static()
  solver: int = static()
  iterations: int = static()
  ls_iterations: int = static()
  noslip_iterations: int = static()
  ccd_iterations: int = static()
  sdf_iterations: int = static()
  sdf_initpoints: int = static()
  disableflags: int = static()
  enableflags: int = static()
  disableactuator: int = static()
  contact_gradient: str = static()  # not MuJoCo's; see `put_model`

  def __repr__(self) -> str:
    return describe.parts(self)

  def replace(self, **changes: Any) -> "Option":
    """Return a copy with some options changed.

    Raises:
      ValueError: the last axes of an array are not the option's shape.
    """
    declared = specs(Option)
    for name, value in changes.items():
      if name in declared:
        fit.check_change(f"Model.opt.{name}", value, declared[name]["shape"], getattr(self, name))
    return super().replace(**changes)

  def __getattr__(self, name: str) -> Any:
    advice = f": {errors.OPTION_NAMES[name]}." if name in errors.OPTION_NAMES else "."
    raise AttributeError(f"Option has no field '{name}'{advice}")

  def _on(self, bit: int) -> bool:
    return not self.disableflags & bit

  @property
  def gradient_reach(self) -> jax.Array | float:
    """Distance beyond its margin up to which a contact has derivatives [m]."""
    return 0.0 if self.contact_gradient == "exact" else _REACH * self.contact_reach

  # resolved flags: the only place where bits are tested
  use_constraint = property(lambda self: self._on(_DISABLE.CONSTRAINT))
  use_equality = property(lambda self: self._on(_DISABLE.EQUALITY))
  use_frictionloss = property(lambda self: self._on(_DISABLE.FRICTIONLOSS))
  use_limit = property(lambda self: self._on(_DISABLE.LIMIT))
  use_contact = property(lambda self: self._on(_DISABLE.CONTACT) and self.use_constraint)
  use_spring = property(lambda self: self._on(_DISABLE.SPRING))
  use_damper = property(lambda self: self._on(_DISABLE.DAMPER))
  use_passive = property(lambda self: self.use_spring or self.use_damper)
  use_gravity = property(lambda self: self._on(_DISABLE.GRAVITY))
  use_clampctrl = property(lambda self: self._on(_DISABLE.CLAMPCTRL))
  use_warmstart = property(lambda self: self._on(_DISABLE.WARMSTART))
  use_filterparent = property(lambda self: self._on(_DISABLE.FILTERPARENT))
  use_actuation = property(lambda self: self._on(_DISABLE.ACTUATION))
  use_refsafe = property(lambda self: self._on(_DISABLE.REFSAFE))
  use_eulerdamp = property(lambda self: self._on(_DISABLE.EULERDAMP) and self.use_damper)
  use_autoreset = property(lambda self: self._on(_DISABLE.AUTORESET))
  use_sensor = property(lambda self: self._on(_DISABLE.SENSOR))
  use_override = property(lambda self: bool(self.enableflags & _ENABLE.OVERRIDE))
  use_diagexact = property(lambda self: bool(self.enableflags & _ENABLE.DIAGEXACT))
  use_energy = property(lambda self: bool(self.enableflags & _ENABLE.ENERGY))
  use_fwdinv = property(lambda self: bool(self.enableflags & _ENABLE.FWDINV))
  is_discrete = property(lambda self: self.integrator == enums.IntegratorType.DISCRETE)
  use_invdiscrete = property(lambda self: bool(self.enableflags & _ENABLE.INVDISCRETE))


@pytree
class Statistic(Replaceable):
  """mjStatistic."""

  def __repr__(self) -> str:
    return describe.parts(self)

  meaninertia: jax.Array = array(unit="kg m^2")
  meanmass: jax.Array = array(unit="kg")
  meansize: jax.Array = array(unit="m")
  extent: jax.Array = array(unit="m")
  center: jax.Array = array(3, unit="m")
