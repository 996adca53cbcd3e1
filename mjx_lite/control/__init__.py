"""Control on the simulator's exact derivatives and on its batches: LQR, iLQR, gradient shooting, planning by sampling."""

from mjx_lite.control.dynamics import Cost, difference, dynamics, hold, linearize, moved, simulate
from mjx_lite.control.ilqr import Ilqr, ilqr
from mjx_lite.control.lqr import Lqr, feedback, lqr
from mjx_lite.control.sampling import METHODS, Plan, improve, interpolate, shift
from mjx_lite.control.shooting import Shot, shoot

__all__ = [
  "METHODS", "Cost", "Ilqr", "Lqr", "Plan", "Shot", "difference", "dynamics", "feedback", "hold", "ilqr", "improve",
  "interpolate", "linearize", "lqr", "moved", "shift", "shoot", "simulate",
]  # fmt: skip
