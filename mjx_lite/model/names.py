"""Names of model elements, for a Model and for a mujoco.MjModel alike.

Tests: tests/io/test_io.py.
"""

from typing import Any

from mjx_lite.model.enums import ObjType

# object type -> field with the addresses of its names
_ADDRESS = {
  ObjType.BODY: "name_bodyadr", ObjType.XBODY: "name_bodyadr", ObjType.JOINT: "name_jntadr",
  ObjType.GEOM: "name_geomadr", ObjType.SITE: "name_siteadr", ObjType.CAMERA: "name_camadr",
  ObjType.LIGHT: "name_lightadr", ObjType.FLEX: "name_flexadr", ObjType.MESH: "name_meshadr",
  ObjType.HFIELD: "name_hfieldadr", ObjType.TEXTURE: "name_texadr", ObjType.MATERIAL: "name_matadr",
  ObjType.PAIR: "name_pairadr", ObjType.EXCLUDE: "name_excludeadr", ObjType.EQUALITY: "name_eqadr",
  ObjType.TENDON: "name_tendonadr", ObjType.ACTUATOR: "name_actuatoradr", ObjType.SENSOR: "name_sensoradr",
  ObjType.NUMERIC: "name_numericadr", ObjType.TEXT: "name_textadr", ObjType.TUPLE: "name_tupleadr",
  ObjType.KEY: "name_keyadr",
}  # fmt: skip


def _names(m: Any, kind: int) -> list[str]:
  blob = m.names
  return [blob[a : blob.index(b"\0", a)].decode() for a in getattr(m, _ADDRESS[ObjType(int(kind))])]


def id2name(m: Any, typ: int, i: int) -> str | None:
  """Return the name of an element; None if it has no name or i is out of range. Source: `mj_id2name`.

  Args:
    m: the model, a Model or a mujoco.MjModel.
    typ: kind of element, an `ObjType`.
    i: index of the element.
  """
  names = _names(m, typ)
  return (names[i] or None) if 0 <= i < len(names) else None


def name2id(m: Any, typ: int, name: str) -> int:
  """Return the index of a named element; -1 if there is none. Source: `mj_name2id`.

  Args:
    m: the model, a Model or a mujoco.MjModel.
    typ: kind of element, an `ObjType`.
    name: name of the element.
  """
  names = _names(m, typ)
  return names.index(name) if name and name in names else -1
