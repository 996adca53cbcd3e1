"""Programs of numbers: how they are shown, and what a wrong one is told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import straight

from mjx_lite.compiler import scalars

pytestmark = pytest.mark.usefixtures("single_precision")


def _program(function, *shapes):
  closed = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
  p = scalars.Program()
  p.run(closed, [p.inputs(k, s, np.float32, True) for k, s in enumerate(shapes)])
  return p


def test_a_program_is_shown_line_by_line():
  p = _program(lambda x: jnp.sqrt(x[0] * 2 + x[1]), (2, 1))
  assert str(p).splitlines() == [
    "%0: f = load [Load(buffer=0, row=0, per_world=True)]",
    "%1: f = load [Load(buffer=0, row=1, per_world=True)]",
    "%2: f = const [2.0]",
    "%3: f = mul %0 %2",
    "%4: f = add %1 %3",
    "%5: f = sqrt %4",
  ]


@pytest.mark.parametrize("name", straight.FUNCTIONS)
def test_programs_of_all_operations_are_sound(name):
  p = _program(straight.FUNCTIONS[name], (6, 1))
  p.verify()
  assert len(str(p).splitlines()) == len(p.op)


@pytest.mark.parametrize("change, message", [
  (lambda p: p.args.__setitem__(3, (0, 5)), "number 3, mul, has an operand that comes later"),
  (lambda p: p.payload.pop(2), "number 2, const, has further data None"),
  (lambda p: p.kind.__setitem__(5, "x"), "number 5, sqrt, has the kind 'x'"),
  (lambda p: p.kind.__setitem__(0, "i"), r"number 3, mul, has operands of the kinds \['i', 'f'\]"),
])  # fmt: skip
def test_a_wrong_program_is_refused(change, message):
  p = _program(lambda x: jnp.sqrt(x[0] * 2 + x[1]), (2, 1))
  p.verify()
  change(p)
  with pytest.raises(ValueError, match=message):
    p.verify()
