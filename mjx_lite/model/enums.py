"""MuJoCo's enumerations under MJX's names.

Every integer is read from the installed `mujoco` package and never written here, because MuJoCo renumbered several
enumerations between versions (mjtDisableBit, mjtState, mjtDyn, ...).

Tests: tests/architecture/test_layers.py.
"""

import enum
from typing import Any

import mujoco


def _read(name: str, source: Any, prefix: str, base: type = enum.IntEnum) -> Any:
  """Return a Python enum with the members of a mujoco enum, without their common prefix."""
  members = {k.removeprefix(prefix): int(v) for k, v in source.__members__.items() if k.startswith(prefix)}
  return base(name, members, module=__name__)


DisableBit = _read("DisableBit", mujoco.mjtDisableBit, "mjDSBL_", enum.IntFlag)
EnableBit = _read("EnableBit", mujoco.mjtEnableBit, "mjENBL_", enum.IntFlag)
JointType = _read("JointType", mujoco.mjtJoint, "mjJNT_")
GeomType = _read("GeomType", mujoco.mjtGeom, "mjGEOM_")
IntegratorType = _read("IntegratorType", mujoco.mjtIntegrator, "mjINT_")
ConeType = _read("ConeType", mujoco.mjtCone, "mjCONE_")
JacobianType = _read("JacobianType", mujoco.mjtJacobian, "mjJAC_")
SolverType = _read("SolverType", mujoco.mjtSolver, "mjSOL_")
EqType = _read("EqType", mujoco.mjtEq, "mjEQ_")
TrnType = _read("TrnType", mujoco.mjtTrn, "mjTRN_")
DynType = _read("DynType", mujoco.mjtDyn, "mjDYN_")
GainType = _read("GainType", mujoco.mjtGain, "mjGAIN_")
BiasType = _read("BiasType", mujoco.mjtBias, "mjBIAS_")
CtrlInput = _read("CtrlInput", mujoco.mjtCtrlInput, "mjINPUT_")
CtrlChart = _read("CtrlChart", mujoco.mjtCtrlChart, "mjCHART_")
WrapType = _read("WrapType", mujoco.mjtWrap, "mjWRAP_")
CamLightType = _read("CamLightType", mujoco.mjtCamLight, "mjCAMLIGHT_")
ConstraintType = _read("ConstraintType", mujoco.mjtConstraint, "mjCNSTR_")
ConstraintState = _read("ConstraintState", mujoco.mjtConstraintState, "mjCNSTRSTATE_")
SensorType = _read("SensorType", mujoco.mjtSensor, "mjSENS_")
DataType = _read("DataType", mujoco.mjtDataType, "mjDATATYPE_")
Stage = _read("Stage", mujoco.mjtStage, "mjSTAGE_")
ConDataField = _read("ConDataField", mujoco.mjtConDataField, "mjCONDATA_")
RayDataField = _read("RayDataField", mujoco.mjtRayDataField, "mjRAYDATA_")
Projection = _read("Projection", mujoco.mjtProjection, "mjPROJ_")
ObjType = _read("ObjType", mujoco.mjtObj, "mjOBJ_")
State = _read("State", mujoco.mjtState, "mjSTATE_", enum.IntFlag)

# numeric constants of mjmodel.h
MINVAL = float(mujoco.mjMINVAL)
MAXVAL = float(mujoco.mjMAXVAL) if hasattr(mujoco, "mjMAXVAL") else 1e10
MINIMP = float(mujoco.mjMINIMP) if hasattr(mujoco, "mjMINIMP") else 1e-4
MAXIMP = float(mujoco.mjMAXIMP) if hasattr(mujoco, "mjMAXIMP") else 0.9999
MINMU = float(mujoco.mjMINMU) if hasattr(mujoco, "mjMINMU") else 1e-5
MAXCONPAIR = int(getattr(mujoco, "mjMAXCONPAIR", 50))  # largest number of contacts of two geoms
