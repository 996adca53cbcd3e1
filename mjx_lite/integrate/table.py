"""The integrators."""

from mjx_lite.core.enums import IntegratorType
from mjx_lite.integrate import euler

# integrator -> function (m, cinert, cdof, packed M, qvel, qacc, force) -> acceleration that the velocity is advanced with
INTEGRATORS = {IntegratorType.EULER: euler.acceleration}
