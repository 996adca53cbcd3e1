"""Models by chance, of whatever MuJoCo has that goes together: what no scene thought of combining."""

import mujoco
import numpy as np

FLAGS = (
  "eulerdamp", "limit", "frictionloss", "equality", "refsafe", "filterparent", "clampctrl", "gravity", "spring", "damper",
)  # fmt: skip
OF_SITE = ("accelerometer", "velocimeter", "gyro", "force", "torque", "magnetometer", "touch")
OF_FRAME = ("framepos", "framequat", "framexaxis", "framelinvel", "frameangvel", "framelinacc", "frameangacc")
OF_JOINT = ("jointpos", "jointvel", "jointactuatorfrc", "jointlimitpos", "jointlimitvel", "jointlimitfrc")
OF_SUBTREE = ("subtreecom", "subtreelinvel", "subtreeangmom")


def random_model(seed: int) -> mujoco.MjModel:
  """The model of a seed: the first of the XML texts by chance that MuJoCo compiles, and whose rows all have an effect."""
  rng = np.random.default_rng(seed)
  while True:
    try:
      model = mujoco.MjModel.from_xml_string(Writer(rng).text())
    except ValueError:  # such as the limit sensor of a joint without limits
      continue
    if acts_on_every_row(model, mujoco.MjData(model)):
      return model


def acts_on_every_row(model, data):
  """Whether none of the rows is without effect, such as of a tendon that nothing moves.

  C gives such a row a stiffness of 1e15, which makes a force of the position's round-off.
  """
  mujoco.mj_forward(model, data)
  jacobian = np.zeros((model.nv, data.nefc))
  for dof, row in zip(np.eye(model.nv), jacobian, strict=True):
    mujoco.mj_mulJacVec(model, data, row, dof)
  return np.abs(jacobian).sum(axis=0).min(initial=1) > 1e-12


def tag(element: str, inner: str = "", /, **attributes: str | None) -> str:
  """Its XML; attributes that are None are left out."""
  written = " ".join(f'{key}="{value}"' for key, value in attributes.items() if value is not None)
  return f"<{element} {written}>{inner}</{element}>"


class Writer:
  """Writes one model; what is named by others is known before they are written."""

  def __init__(self, rng: np.random.Generator):
    self.rng = rng
    self.joints: dict[str, str] = {}  # type by name
    self.bodies, self.sites, self.geoms, self.wraps = [], ["world"], [], []  # geoms: those that collide
    self.tendons, self.actuators = [], []

  def chance(self, p: float) -> bool:
    return bool(self.rng.random() < p)

  def among(self, *x):
    return x[self.rng.integers(len(x))]

  def several(self, x, least: int, most: int) -> list[str]:
    return [str(k) for k in self.rng.choice(x, self.rng.integers(least, min(most, len(x)) + 1), replace=False)]

  def some(self, p: float, text: str) -> str | None:
    return text if self.chance(p) else None

  def numbers(self, n: int, scale: float = 1.0) -> str:
    return " ".join(f"{x:.4g}" for x in scale * self.rng.normal(size=n))

  def between(self, *bounds: float) -> str:
    """A number between each two."""
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return " ".join(f"{self.rng.uniform(low, high):.4g}" for low, high in pairs)

  def scalars(self) -> list[str]:
    return [name for name, kind in self.joints.items() if kind in ("hinge", "slide")]

  def soft(self, of: str = "") -> dict[str, str | None]:
    """solref, in either of its forms, and solimp."""
    ref = self.among(self.between(0.01, 0.05, 0.5, 1.2), self.between(-900, -100, -40, -5))
    imp = self.between(0.5, 0.9, 0.9, 0.98, 0.001, 0.05, 0.2, 0.8) + self.among(" 1", " 2", " 3")
    return {f"solref{of}": self.some(0.3, ref), f"solimp{of}": self.some(0.3, imp)}

  def text(self) -> str:
    flags = {name: self.some(0.06, "disable") for name in FLAGS} | {"energy": self.some(0.3, "enable")}
    option = tag(
      "option", tag("flag", **flags), timestep=self.among("0.001", "0.002", "0.005"), cone=self.among("pyramidal", "elliptic"),
      integrator=self.among("Euler", "implicit", "implicitfast"), impratio=self.some(0.3, self.between(1, 5)),
      wind=self.some(0.3, self.numbers(3)), density=self.some(0.3, self.between(0, 200)),
      viscosity=self.some(0.3, self.between(0, 0.1)), gravity=self.some(0.3, self.numbers(3, 5)),
      magnetic=self.some(0.3, self.numbers(3)),
    )  # fmt: skip
    floor = tag("geom", name="floor", type="plane", size="5 5 .1", pos="0 0 -.4", **self.surface())
    bodies = "".join(self.body(0) for _ in range(self.rng.integers(1, 4)))
    world = tag("worldbody", floor + tag("site", name="world", pos=self.numbers(3, 0.3)) + bodies)
    writers = {
      "contact": self.contacts, "equality": self.equalities, "tendon": self.all_tendons, "actuator": self.actuation,
      "sensor": self.sensors,
    }  # fmt: skip
    return tag("mujoco", option + world + "".join(tag(name, write()) for name, write in writers.items()))

  def body(self, depth: int) -> str:
    name = f"b{len(self.bodies)}"
    self.bodies.append(name)
    inner = self.dofs(name, depth) + "".join(self.geom(f"{name}g{k}") for k in range(self.rng.integers(1, 3)))
    if self.chance(0.7):
      self.sites.append(f"{name}s")
      inner += tag("site", name=f"{name}s", pos=self.numbers(3, 0.1), euler=self.numbers(3, 40))
    if self.chance(0.15):
      inner += tag("camera", pos=self.numbers(3, 0.1), mode=self.among("fixed", "track", "trackcom"))
    if depth < 4:
      inner += "".join(self.body(depth + 1) for _ in range(self.among(0, 0, 1, 1, 2) if depth else self.among(1, 2)))
    place = self.numbers(3, 0.2 if depth else 0.5)
    return tag("body", inner, name=name, pos=place, euler=self.numbers(3, 30), gravcomp=self.some(0.2, self.between(0, 1.2)))

  def dofs(self, body: str, depth: int) -> str:
    inside = ("hinge", "hinge", "slide", "ball", "slide hinge", "slide hinge hinge", "")
    kinds = self.among(*inside) if depth else self.among("free", "hinge", "ball", "")
    return "".join(self.joint(f"{body}j{k}", kind) for k, kind in enumerate(kinds.split()))

  def joint(self, name: str, kind: str) -> str:
    self.joints[name] = kind
    if kind == "free":
      return tag("freejoint", name=name)
    bounds = {"ball": (0, 0, 20, 100), "slide": (-0.3, -0.02, 0.02, 0.3), "hinge": (-60, -10, 10, 60)}[kind]
    own = {}
    if kind != "ball":
      ref, springref = self.some(0.2, self.between(-0.2, 0.2)), self.some(0.3, self.between(-0.3, 0.3))
      own = dict(axis=self.numbers(3), ref=ref, springref=springref)
    return tag(
      "joint", name=name, type=kind, pos=self.numbers(3, 0.05), range=self.some(0.3, self.between(*bounds)),
      margin=self.between(0, 0.1), stiffness=self.some(0.3, self.between(0, 20)), damping=self.some(0.3, self.between(0, 1)),
      armature=self.some(0.3, self.between(0, 0.1)), frictionloss=self.some(0.3, self.between(0, 0.5)),
      actuatorgravcomp=self.some(0.3, "true"), **own, **self.soft("limit"), **self.soft("friction"),
    )  # fmt: skip

  def surface(self) -> dict[str, str | None]:
    return self.soft() | dict(
      condim=self.some(0.4, self.among("1", "3", "4", "6")), priority=self.some(0.2, "1"),
      friction=self.some(0.4, self.between(0.1, 1.2, 0.001, 0.02, 0.0001, 0.01)), solmix=self.some(0.4, self.between(0.2, 2)),
      margin=self.some(0.4, self.between(0.005, 0.03)), gap=self.some(0.2, self.between(0, 0.01)),
    )  # fmt: skip

  def geom(self, name: str) -> str:
    kind = self.among("sphere", "capsule", "box", "box", "ellipsoid", "cylinder")
    length = {"sphere": 1, "capsule": 2, "cylinder": 2}.get(kind, 3)
    # C searches for contacts of these two no more precisely than to its tolerance
    mask = "0" if kind in ("ellipsoid", "cylinder") or self.chance(0.3) else None
    if mask is None:
      self.geoms.append(name)
    if kind in ("sphere", "cylinder"):
      self.wraps.append(name)
    return tag(
      "geom", name=name, type=kind, size=self.between(*(0.03, 0.12) * length), pos=self.numbers(3, 0.1),
      euler=self.numbers(3, 40), contype=mask, conaffinity=mask, fluidshape=self.some(0.15, "ellipsoid"), **self.surface(),
    )  # fmt: skip

  def contacts(self) -> str:
    out = ""
    if len(self.bodies) > 1 and self.chance(0.3):
      one, two = self.several(self.bodies, 2, 2)
      out += tag("exclude", body1=one, body2=two)
    if len(self.geoms) > 1 and self.chance(0.4):
      one, two = self.several(self.geoms, 2, 2)
      out += tag("pair", geom1=one, geom2=two, condim=self.among("1", "3", "4", "6"))
    return out

  def equalities(self) -> str:
    out, joints = "", self.scalars()
    for _ in range(self.among(0, 0, 1, 2)):
      kind, more = self.among("connect", "weld", "joint", "sites"), self.soft() | {"active": self.some(0.1, "false")}
      if kind == "joint" and joints:
        one, *two = self.several(joints, 1, 2)
        out += tag("joint", joint1=one, joint2=two[0] if two else None, polycoef=self.numbers(5, 0.2), **more)
      elif kind == "sites" and len(self.sites) > 2:
        one, two = self.several(self.sites, 2, 2)
        out += tag(self.among("connect", "weld"), site1=one, site2=two, **more)
      elif kind in ("connect", "weld") and len(self.bodies) > 1:
        one, two = self.several(self.bodies, 2, 2)
        more |= {"anchor": self.numbers(3, 0.1)} if kind == "connect" else {"torquescale": self.between(0.5, 2)}
        out += tag(kind, body1=one, body2=self.some(0.7, two), **more)
    return out

  def all_tendons(self) -> str:
    return "".join(self.tendon(f"t{k}") for k in range(self.among(0, 0, 1, 2, 3)))

  def tendon(self, name: str) -> str:
    joints = self.scalars()
    if joints and self.chance(0.5):
      kind = "fixed"
      inner = "".join(tag("joint", joint=j, coef=self.numbers(1)) for j in self.several(joints, 1, 3))
    elif len(self.sites) > 2:
      kind, inner = "spatial", ""
      for k, site in enumerate(self.several(self.sites, 2, 4)):
        if k and self.wraps and self.chance(0.5):
          inner += tag("geom", geom=self.among(*self.wraps))
        elif k > 1 and self.chance(0.15):
          inner += tag("pulley", divisor="2") + tag("site", site=self.among(*self.sites))
        inner += tag("site", site=site)
    else:
      return ""
    self.tendons.append(name)
    return tag(
      kind, inner, name=name, stiffness=self.some(0.3, self.between(1, 30)), damping=self.some(0.3, self.between(0, 1)),
      frictionloss=self.some(0.3, self.between(0, 1)), range=self.some(0.3, self.between(-0.5, 0, 0.01, 0.5)),
      springlength=self.some(0.3, self.between(0, 0.3)), armature=self.some(0.2, self.between(0, 0.1)), **self.soft("limit"),
    )  # fmt: skip

  def actuation(self) -> str:
    return "".join(self.actuator(f"a{k}") for k in range(self.rng.integers(0, 6)))

  def actuator(self, name: str) -> str:
    how = self.among("joint", "joint", "jointinparent", "tendon", "site", "refsite")
    if how in ("joint", "jointinparent") and self.joints:
      joint = self.among(*self.joints)
      target = {how: joint, "gear": self.numbers(6)}
      scalar = self.joints[joint] in ("hinge", "slide")
    elif how == "tendon" and self.tendons:
      target, scalar = {"tendon": self.among(*self.tendons), "gear": self.numbers(1)}, True
    else:
      one, *two = self.several(self.sites, 1, 2)
      target, scalar = {"site": one, "refsite": two[0] if two else None, "gear": self.numbers(6)}, False
    limits = {"ctrlrange": self.some(0.4, "-.7 .8"), "forcerange": self.some(0.4, self.between(-3, -0.5, 0.5, 3))}
    kind = self.among("motor", "position", "velocity", "general", "intvelocity", "damper", "cylinder", *["muscle"] * scalar)
    dyn = self.among("none", "integrator", "filter", "filterexact")
    own = {
      "motor": lambda: {},
      "position": lambda: dict(
        kp=self.between(0, 5), kv=self.some(0.4, self.between(0, 1)), timeconst=self.some(0.3, self.between(0.02, 0.2))
      ),
      "velocity": lambda: dict(kv=self.between(0, 2)),
      "intvelocity": lambda: dict(kp=self.between(0, 5), actrange="-1 1"),
      "damper": lambda: dict(kv=self.between(0, 2), ctrlrange="0 1"),
      "cylinder": lambda: dict(timeconst=self.between(0.05, 0.3), area=self.between(0.1, 2), bias=self.numbers(3)),
      "muscle": lambda: dict(force=self.between(1, 10), lengthrange="-1 1", tausmooth=self.some(0.3, "0.2")),
      "general": lambda: dict(
        dyntype=dyn, dynprm=self.between(0.02, 0.2), gaintype=self.among("fixed", "affine"), gainprm=self.numbers(3),
        biastype=self.among("none", "affine"), biasprm=self.numbers(3),
        actrange=self.some(0.4, "-1 1") if dyn != "none" else None, actearly=self.some(0.3, "true") if dyn != "none" else None,
      ),
    }[kind]()  # fmt: skip
    self.actuators.append(name)
    return tag(kind, name=name, **target | limits | own)

  def sensors(self) -> str:
    return "".join(self.sensor() for _ in range(self.rng.integers(0, 8)))

  def sensor(self) -> str:
    joints, balls = self.scalars(), [name for name, kind in self.joints.items() if kind == "ball"]
    cutoff = self.some(0.2, self.between(0.1, 2))
    match self.among("site", "frame", "relative", "joint", "ball", "actuator", "tendon", "subtree", "clock"):
      case "site":
        return tag(self.among(*OF_SITE), site=self.among(*self.sites), cutoff=cutoff)
      case "frame":
        of = {"body": self.bodies, "xbody": self.bodies, "site": self.sites, "geom": ["floor", *self.geoms]}
        kind, names = self.among(*of.items())
        return tag(self.among(*OF_FRAME), objtype=kind, objname=self.among(*names))
      case "relative":
        site, body = self.among(*self.sites), self.among(*self.bodies)
        return tag(self.among(*OF_FRAME[:5]), objtype="site", objname=site, reftype="body", refname=body)
      case "joint" if joints:
        return tag(self.among(*OF_JOINT), joint=self.among(*joints), cutoff=cutoff)
      case "ball" if balls:
        return tag(self.among("ballquat", "ballangvel"), joint=self.among(*balls))
      case "actuator" if self.actuators:
        return tag(self.among("actuatorpos", "actuatorvel", "actuatorfrc"), actuator=self.among(*self.actuators), cutoff=cutoff)
      case "tendon" if self.tendons:
        return tag(self.among("tendonpos", "tendonvel", "tendonactuatorfrc"), tendon=self.among(*self.tendons), cutoff=cutoff)
      case "subtree":
        return tag(self.among(*OF_SUBTREE), body=self.among(*self.bodies))
    return tag("clock") + tag("e_potential") + tag("e_kinetic")
