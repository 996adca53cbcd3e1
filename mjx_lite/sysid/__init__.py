"""System identification: `fit` estimates parameters of a Model from measured trajectories; `body_inertia` stays physical."""

from mjx_lite.sysid.fit import fit
from mjx_lite.sysid.params import Param, body_inertia, field, kp, kv, mass
from mjx_lite.sysid.problem import Trajectory
from mjx_lite.sysid.result import Fit, NotIdentified

__all__ = ["Fit", "NotIdentified", "Param", "Trajectory", "body_inertia", "field", "fit", "kp", "kv", "mass"]
