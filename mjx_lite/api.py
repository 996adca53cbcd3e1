"""The public functions of the engine: one-world shapes, batched by `jax.vmap`."""

from mjx_lite import forward as native
from mjx_lite.core.worlds import one_world

step = one_world(native.step)
step1 = one_world(native.step1)
step2 = one_world(native.step2)
forward = one_world(native.forward)
rollout = one_world(native.rollout)

fwd_position = one_world(native.fwd_position)
fwd_velocity = one_world(native.fwd_velocity)
fwd_actuation = one_world(native.fwd_actuation)
fwd_acceleration = one_world(native.fwd_acceleration)
kinematics = one_world(native.kinematics)
com_pos = one_world(native.com_pos)
camlight = one_world(native.camlight)
crb = one_world(native.crb)
factor_m = one_world(native.factor_m)
collision = one_world(native.collision)
make_constraint = one_world(native.make_constraint)
transmission = one_world(native.transmission)
com_vel = one_world(native.com_vel)
passive = one_world(native.passive)
rne = one_world(native.rne)
solve = one_world(native.solve)
euler = one_world(native.euler)

full_m = one_world(native.full_m)
mul_m = one_world(native.mul_m)
solve_m = one_world(native.solve_m)
constraint_jacobian = one_world(native.constraint_jacobian)
xfrc_accumulate = one_world(native.xfrc_accumulate)
integrate_pos = one_world(native.integrate_pos)
differentiate_pos = one_world(native.differentiate_pos)
reset_data = one_world(native.reset)
