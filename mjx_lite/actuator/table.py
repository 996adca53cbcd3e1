"""The laws of the actuators.

Tests: tests/actuator/test_actuator_trajectories.py, tests/actuator/test_servos.py.
"""

from mjx_lite.actuator import dcmotor, laws, muscle, pid, so3
from mjx_lite.model.enums import BiasType, DynType, GainType

# function (m, group, state) -> pairs (addresses in act, rates of change)
DYNAMICS = {
  DynType.NONE: laws.no_rate,
  DynType.INTEGRATOR: laws.integrator,
  DynType.FILTER: laws.filter_,
  DynType.FILTEREXACT: laws.filter_,
  DynType.MUSCLE: muscle.dynamics,
  DynType.DCMOTOR: dcmotor.dynamics,
  DynType.PID: pid.dynamics,
  DynType.USER: laws.user_rates,
}

# function (m, group, act, act_dot, velocity) -> pairs (addresses in act, next act); kinds without one take an Euler step
NEXT = {DynType.FILTEREXACT: laws.filterexact_next, DynType.DCMOTOR: dcmotor.next_}

# function (m, group, state) -> force that the input makes, of the group's outputs
GAINS = {
  GainType.FIXED: laws.fixed,
  GainType.AFFINE: laws.affine_gain,
  GainType.MUSCLE: muscle.gain,
  GainType.DCMOTOR: dcmotor.gain,
  GainType.SO3: so3.gain,
  GainType.PID: pid.gain,
  GainType.USER: laws.user_gain,
}

# function (m, group, state) -> force without input, of the group's outputs
BIASES = {
  BiasType.NONE: laws.no_force,
  BiasType.AFFINE: laws.affine_bias,
  BiasType.MUSCLE: muscle.bias,
  BiasType.DCMOTOR: dcmotor.bias,
  BiasType.SO3: so3.bias,
  BiasType.USER: laws.user_bias,
}
