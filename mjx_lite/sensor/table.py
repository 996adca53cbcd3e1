"""Table of all sensor types.

Tests: tests/sensor/test_sensors.py.
"""

from mjx_lite.model.enums import ConstraintType, SensorType
from mjx_lite.sensor import acceleration, contact, distance, position, rangefinder, tactile, user, velocity
from mjx_lite.sensor.group import Sensor
from mjx_lite.sensor.position import plan_frames, plan_limits, plan_objects, plan_rows, read

SENSORS: dict[int, Sensor] = {
  # position
  SensorType.MAGNETOMETER: Sensor(plan_frames, position.magnetometer),
  SensorType.CAMPROJECTION: Sensor(plan_frames, position.camprojection),
  SensorType.RANGEFINDER: Sensor(rangefinder.plan, rangefinder.rangefinder),
  SensorType.JOINTPOS: Sensor(plan_rows("qpos", "jnt_qposadr"), read("qpos")),
  SensorType.TENDONPOS: Sensor(plan_objects, read("ten_length")),
  SensorType.ACTUATORPOS: Sensor(plan_rows("actuator_length", "actuator_outadr"), read("actuator_length")),
  SensorType.BALLQUAT: Sensor(plan_rows("qpos", "jnt_qposadr"), position.ball_quat),
  SensorType.JOINTLIMITPOS: Sensor(plan_limits(ConstraintType.LIMIT_JOINT), position.joint_limit_pos),
  SensorType.TENDONLIMITPOS: Sensor(plan_limits(ConstraintType.LIMIT_TENDON), position.tendon_limit_pos),
  SensorType.FRAMEPOS: Sensor(plan_frames, position.frame_pos),
  SensorType.FRAMEQUAT: Sensor(plan_frames, position.frame_quat),
  SensorType.FRAMEXAXIS: Sensor(plan_frames, position.frame_axis),
  SensorType.FRAMEYAXIS: Sensor(plan_frames, position.frame_axis),
  SensorType.FRAMEZAXIS: Sensor(plan_frames, position.frame_axis),
  SensorType.SUBTREECOM: Sensor(plan_objects, read("subtree_com")),
  SensorType.INSIDESITE: Sensor(position.plan_inside, position.inside_site),
  SensorType.GEOMDIST: Sensor(distance.plan, distance.dist),
  SensorType.GEOMNORMAL: Sensor(distance.plan, distance.normal),
  SensorType.GEOMFROMTO: Sensor(distance.plan, distance.fromto),
  SensorType.E_POTENTIAL: Sensor(plan_objects, position.potential),
  SensorType.E_KINETIC: Sensor(plan_objects, position.kinetic),
  SensorType.CLOCK: Sensor(plan_objects, position.clock),
  # velocity
  SensorType.VELOCIMETER: Sensor(plan_frames, velocity.velocimeter),
  SensorType.GYRO: Sensor(plan_frames, velocity.gyro),
  SensorType.JOINTVEL: Sensor(plan_rows("qvel", "jnt_dofadr"), read("qvel")),
  SensorType.TENDONVEL: Sensor(plan_objects, read("ten_velocity")),
  SensorType.ACTUATORVEL: Sensor(plan_rows("actuator_velocity", "actuator_outadr"), read("actuator_velocity")),
  SensorType.BALLANGVEL: Sensor(plan_rows("qvel", "jnt_dofadr"), read("qvel")),
  SensorType.JOINTLIMITVEL: Sensor(plan_limits(ConstraintType.LIMIT_JOINT), velocity.limit_vel),
  SensorType.TENDONLIMITVEL: Sensor(plan_limits(ConstraintType.LIMIT_TENDON), velocity.limit_vel),
  SensorType.FRAMELINVEL: Sensor(plan_frames, velocity.frame_linvel),
  SensorType.FRAMEANGVEL: Sensor(plan_frames, velocity.frame_angvel),
  SensorType.SUBTREELINVEL: Sensor(plan_objects, read("subtree_linvel")),
  SensorType.SUBTREEANGMOM: Sensor(plan_objects, read("subtree_angmom")),
  SensorType.TACTILE: Sensor(tactile.plan, tactile.tactile),
  # acceleration
  SensorType.TOUCH: Sensor(acceleration.plan_touch, acceleration.touch),
  SensorType.ACCELEROMETER: Sensor(plan_frames, acceleration.accelerometer),
  SensorType.FORCE: Sensor(plan_frames, acceleration.force),
  SensorType.TORQUE: Sensor(plan_frames, acceleration.torque),
  SensorType.ACTUATORFRC: Sensor(plan_rows("actuator_force", "actuator_outadr"), read("actuator_force")),
  SensorType.JOINTACTFRC: Sensor(plan_rows("qfrc_actuator", "jnt_dofadr"), read("qfrc_actuator")),
  SensorType.TENDONACTFRC: Sensor(acceleration.plan_tendon_actuators, acceleration.tendon_actuator_force),
  SensorType.JOINTLIMITFRC: Sensor(plan_limits(ConstraintType.LIMIT_JOINT), acceleration.limit_force),
  SensorType.TENDONLIMITFRC: Sensor(plan_limits(ConstraintType.LIMIT_TENDON), acceleration.limit_force),
  SensorType.FRAMELINACC: Sensor(plan_frames, acceleration.frame_linacc),
  SensorType.FRAMEANGACC: Sensor(plan_frames, acceleration.frame_angacc),
  # the stage that the model names
  SensorType.CONTACT: Sensor(contact.plan, contact.contact),
  SensorType.USER: Sensor(user.plan, user.user),
}

# types that read quantities computed on demand
NEEDS_SUBTREE_VEL = (SensorType.SUBTREELINVEL, SensorType.SUBTREEANGMOM)
NEEDS_RNE_POSTCONSTRAINT = (
  SensorType.ACCELEROMETER, SensorType.FORCE, SensorType.TORQUE, SensorType.FRAMELINACC, SensorType.FRAMEANGACC,
)  # fmt: skip
