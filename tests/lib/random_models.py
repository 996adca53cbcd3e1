"""Models by chance, of whatever MuJoCo has that goes together: what no scene thought of combining."""

import mujoco
import numpy as np

FLAGS = (
  "eulerdamp", "limit", "frictionloss", "equality", "refsafe", "filterparent", "clampctrl", "gravity", "spring", "damper",
)  # fmt: skip
SITE_SENSORS = ("accelerometer", "velocimeter", "gyro", "force", "torque", "magnetometer", "touch")
FRAME_SENSORS = ("framepos", "framequat", "framexaxis", "framelinvel", "frameangvel", "framelinacc", "frameangacc")
JOINT_SENSORS = ("jointpos", "jointvel", "jointactuatorfrc", "jointlimitpos", "jointlimitvel", "jointlimitfrc")
SUBTREE_SENSORS = ("subtreecom", "subtreelinvel", "subtreeangmom")


def random_model(seed: int, *, rich: bool = False) -> mujoco.MjModel:
  """The model of a seed: the first of the XML texts by chance that MuJoCo compiles, and whose rows all have an effect.

  Rich ones have what is rarer besides: other integrators, meshes, histories, polynomials, yield, adhesion, more kinds of
  actuators and sensors, bodies that are moved by hand.
  """
  rng = np.random.default_rng(seed)
  while True:
    try:
      model = mujoco.MjModel.from_xml_string(Writer(rng, rich).text())
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

  def __init__(self, rng: np.random.Generator, rich: bool):
    self.rng, self.rich = rng, rich
    self.joints: dict[str, str] = {}  # type by name
    self.bodies, self.sites, self.geoms, self.wraps = [], ["world"], [], []  # geoms: those that collide
    self.tendons, self.actuators = [], []

  def chance(self, p: float) -> bool:
    return bool(self.rng.random() < p)

  def pick(self, *x):
    return x[self.rng.integers(len(x))]

  def sample(self, x, least: int, most: int) -> list[str]:
    return [str(k) for k in self.rng.choice(x, self.rng.integers(least, min(most, len(x)) + 1), replace=False)]

  def maybe(self, p: float, text: str) -> str | None:
    return text if self.chance(p) else None

  def rarely(self, p: float, *x: str) -> str | None:
    """One of some texts, or none; nothing is drawn for a model that is not rich."""
    return self.pick(*x) if self.rich and self.chance(p) else None

  def numbers(self, n: int, scale: float = 1.0) -> str:
    return " ".join(f"{x:.4g}" for x in scale * self.rng.normal(size=n))

  def between(self, *bounds: float) -> str:
    """A number between each two."""
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return " ".join(f"{self.rng.uniform(low, high):.4g}" for low, high in pairs)

  def law(self, p: float, low: float, high: float) -> str | None:
    """Stiffness or damping, a polynomial in some rich models."""
    first = self.between(low, high)
    higher = self.numbers(2, 0.01 * high) if self.rich and self.chance(0.3) else ""
    return self.maybe(p, f"{first} {higher}".strip())

  def history(self, sensor: bool = False) -> dict[str, str | None]:
    if not self.rich or self.chance(0.6):
      return {}
    interval = self.maybe(0.4, self.between(0.003, 0.01, -0.003, 0)) if sensor else None
    delay = self.maybe(0.8, self.between(0, 0.02))
    return dict(nsample=self.pick("2", "4", "7"), interp=self.pick("zoh", "linear", "cubic"), delay=delay, interval=interval)

  def scalars(self) -> list[str]:
    return [name for name, kind in self.joints.items() if kind in ("hinge", "slide")]

  def soft(self, suffix: str = "") -> dict[str, str | None]:
    """solref, in either of its forms, and solimp."""
    ref = self.pick(self.between(0.01, 0.05, 0.5, 1.2), self.between(-900, -100, -40, -5))
    imp = self.between(0.5, 0.9, 0.9, 0.98, 0.001, 0.05, 0.2, 0.8) + self.pick(" 1", " 2", " 3")
    return {f"solref{suffix}": self.maybe(0.3, ref), f"solimp{suffix}": self.maybe(0.3, imp)}

  def text(self) -> str:
    flags = {name: self.maybe(0.06, "disable") for name in FLAGS} | {"energy": self.maybe(0.3, "enable")}
    option = tag(
      "option", tag("flag", **flags), timestep=self.pick("0.001", "0.002", "0.005"), cone=self.pick("pyramidal", "elliptic"),
      integrator=self.pick("Euler", "implicit", "implicitfast", *["RK4", "discrete"] * self.rich),
      impratio=self.maybe(0.3, self.between(1, 5)),
      wind=self.maybe(0.3, self.numbers(3)), density=self.maybe(0.3, self.between(0, 200)),
      viscosity=self.maybe(0.3, self.between(0, 0.1)), gravity=self.maybe(0.3, self.numbers(3, 5)),
      magnetic=self.maybe(0.3, self.numbers(3)),
    )  # fmt: skip
    mask = "3" if self.rich else None  # 2 for meshes
    floor = tag("geom", name="floor", type="plane", size="5 5 .1", pos="0 0 -.4", contype=mask, **self.surface())
    hulls, guide, eye = "", "", ""
    if self.rich:
      hulls = "".join(tag("mesh", name=f"hull{k}", vertex=self.numbers(18 + 9 * k, 0.06)) for k in range(3))
      eye = tag("camera", name="eye", pos="0 -2 1", xyaxes="1 0 0 0 .3 1", resolution="64 48")
      if self.chance(0.3):
        self.sites.append("guide")
        guide = tag("body", tag("site", name="guide"), name="guide", mocap="true", pos=self.numbers(3, 0.3))
    bodies = guide + "".join(self.body(0) for _ in range(self.rng.integers(1, 4)))
    world = tag("worldbody", floor + tag("site", name="world", pos=self.numbers(3, 0.3)) + eye + bodies)
    writers = {
      "contact": self.contacts, "equality": self.equalities, "tendon": self.all_tendons, "actuator": self.actuation,
      "sensor": self.sensors,
    }  # fmt: skip
    order = sorted(writers, key=lambda name: name != "tendon") if self.rich else writers  # then equalities know the tendons
    return tag("mujoco", option + tag("asset", hulls) + world + "".join(tag(name, writers[name]()) for name in order))

  def body(self, depth: int) -> str:
    name = f"b{len(self.bodies)}"
    self.bodies.append(name)
    inner = self.dofs(name, depth) + "".join(self.geom(f"{name}g{k}") for k in range(self.rng.integers(1, 3)))
    if self.chance(0.7):
      self.sites.append(f"{name}s")
      inner += tag("site", name=f"{name}s", pos=self.numbers(3, 0.1), euler=self.numbers(3, 40))
    if self.chance(0.15):
      inner += tag("camera", pos=self.numbers(3, 0.1), mode=self.pick("fixed", "track", "trackcom"))
    if depth < 4:
      inner += "".join(self.body(depth + 1) for _ in range(self.pick(0, 0, 1, 1, 2) if depth else self.pick(1, 2)))
    pos = self.numbers(3, 0.2 if depth else 0.5)
    return tag("body", inner, name=name, pos=pos, euler=self.numbers(3, 30), gravcomp=self.maybe(0.2, self.between(0, 1.2)))

  def dofs(self, body: str, depth: int) -> str:
    inside = ("hinge", "hinge", "slide", "ball", "slide hinge", "slide hinge hinge", "")
    kinds = self.pick(*inside) if depth else self.pick("free", "hinge", "ball", "")
    return "".join(self.joint(f"{body}j{k}", kind) for k, kind in enumerate(kinds.split()))

  def joint(self, name: str, kind: str) -> str:
    self.joints[name] = kind
    if kind == "free":
      return tag("freejoint", name=name)
    bounds = {"ball": (0, 0, 20, 100), "slide": (-0.3, -0.02, 0.02, 0.3), "hinge": (-60, -10, 10, 60)}[kind]
    own = {}
    if kind != "ball":
      ref, springref = self.maybe(0.2, self.between(-0.2, 0.2)), self.maybe(0.3, self.between(-0.3, 0.3))
      own = dict(axis=self.numbers(3), ref=ref, springref=springref)
    return tag(
      "joint", name=name, type=kind, pos=self.numbers(3, 0.05), range=self.maybe(0.3, self.between(*bounds)),
      margin=self.between(0, 0.1), stiffness=self.law(0.3, 0, 20), damping=self.law(0.3, 0, 1),
      armature=self.maybe(0.3, self.between(0, 0.1)), frictionloss=self.maybe(0.3, self.between(0, 0.5)),
      actuatorgravcomp=self.maybe(0.3, "true"), **own, **self.soft("limit"), **self.soft("friction"),
      springyield=self.rarely(0.2, "3", "0.05"),
    )  # fmt: skip

  def surface(self) -> dict[str, str | None]:
    return self.soft() | dict(
      condim=self.maybe(0.4, self.pick("1", "3", "4", "6")), priority=self.maybe(0.2, "1"),
      friction=self.maybe(0.4, self.between(0.1, 1.2, 0.001, 0.02, 0.0001, 0.01)), solmix=self.maybe(0.4, self.between(0.2, 2)),
      margin=self.maybe(0.4, self.between(0.005, 0.03)), gap=self.maybe(0.2, self.between(0, 0.01)),
      adhesion=self.rarely(0.2, "0.1", "1"), surfacevel=self.rarely(0.1, "0.1 -0.2 0 0 0 1"),
    )  # fmt: skip

  def geom(self, name: str) -> str:
    kind = self.pick("sphere", "capsule", "box", "box", "ellipsoid", "cylinder", *["mesh", "mesh"] * self.rich)
    length = {"sphere": 1, "capsule": 2, "cylinder": 2}.get(kind, 3)
    # C searches for contacts of these no more precisely than to its tolerance, but for those of meshes and the floor
    mask = "0" if kind in ("ellipsoid", "cylinder", "mesh") or self.chance(0.3) else None
    if mask is None:
      self.geoms.append(name)
    if kind in ("sphere", "cylinder"):
      self.wraps.append(name)
    return tag(
      "geom", name=name, type=kind, size=self.between(*(0.03, 0.12) * length), pos=self.numbers(3, 0.1),
      euler=self.numbers(3, 40), contype=mask, conaffinity="2" if kind == "mesh" else mask,
      fluidshape=self.maybe(0.15, "ellipsoid"), **self.surface(),
      mesh=self.pick("hull0", "hull1", "hull2") if kind == "mesh" else None,
    )  # fmt: skip

  def contacts(self) -> str:
    out = ""
    if len(self.bodies) > 1 and self.chance(0.3):
      one, two = self.sample(self.bodies, 2, 2)
      out += tag("exclude", body1=one, body2=two)
    if len(self.geoms) > 1 and self.chance(0.4):
      one, two = self.sample(self.geoms, 2, 2)
      out += tag("pair", geom1=one, geom2=two, condim=self.pick("1", "3", "4", "6"))
    return out

  def equalities(self) -> str:
    out, joints = "", self.scalars()
    for _ in range(self.pick(0, 0, 1, 2)):
      kind = self.pick("connect", "weld", "joint", "sites", *["tendon", "guide"] * self.rich)
      more = self.soft() | {"active": self.maybe(0.1, "false")}
      if kind == "joint" and joints:
        one, *two = self.sample(joints, 1, 2)
        out += tag("joint", joint1=one, joint2=two[0] if two else None, polycoef=self.numbers(5, 0.2), **more)
      elif kind == "sites" and len(self.sites) > 2:
        one, two = self.sample(self.sites, 2, 2)
        out += tag(self.pick("connect", "weld"), site1=one, site2=two, **more)
      elif kind == "tendon" and self.tendons:
        one, *two = self.sample(self.tendons, 1, 2)
        out += tag("tendon", tendon1=one, tendon2=two[0] if two else None, polycoef=self.numbers(5, 0.2), **more)
      elif kind == "guide" and "guide" in self.sites:
        out += tag(self.pick("connect", "weld"), site1="guide", site2=self.pick(*self.sites), **more)
      elif kind in ("connect", "weld") and len(self.bodies) > 1:
        one, two = self.sample(self.bodies, 2, 2)
        more |= {"anchor": self.numbers(3, 0.1)} if kind == "connect" else {"torquescale": self.between(0.5, 2)}
        out += tag(kind, body1=one, body2=self.maybe(0.7, two), **more)
    return out

  def all_tendons(self) -> str:
    return "".join(self.tendon(f"t{k}") for k in range(self.pick(0, 0, 1, 2, 3)))

  def tendon(self, name: str) -> str:
    joints = self.scalars()
    if joints and self.chance(0.5):
      kind = "fixed"
      inner = "".join(tag("joint", joint=j, coef=self.numbers(1)) for j in self.sample(joints, 1, 3))
    elif len(self.sites) > 2:
      kind, inner = "spatial", ""
      for k, site in enumerate(self.sample(self.sites, 2, 4)):
        if k and self.wraps and self.chance(0.5):
          inner += tag("geom", geom=self.pick(*self.wraps))
        elif k > 1 and self.chance(0.15):
          inner += tag("pulley", divisor="2") + tag("site", site=self.pick(*self.sites))
        inner += tag("site", site=site)
    else:
      return ""
    self.tendons.append(name)
    return tag(
      kind, inner, name=name, stiffness=self.law(0.3, 1, 30), damping=self.law(0.3, 0, 1),
      frictionloss=self.maybe(0.3, self.between(0, 1)), range=self.maybe(0.3, self.between(-0.5, 0, 0.01, 0.5)),
      springlength=self.maybe(0.3, self.between(0, 0.3)), armature=self.maybe(0.2, self.between(0, 0.1)), **self.soft("limit"),
      springyield=self.rarely(0.2, "0.01"),
    )  # fmt: skip

  def actuation(self) -> str:
    return "".join(self.actuator(f"a{k}") for k in range(self.rng.integers(0, 6)))

  def actuator(self, name: str) -> str:
    transmission = self.pick("joint", "joint", "jointinparent", "tendon", "site", "refsite")
    if transmission in ("joint", "jointinparent") and self.joints:
      joint = self.pick(*self.joints)
      target = {transmission: joint, "gear": self.numbers(6)}
      scalar = self.joints[joint] in ("hinge", "slide")
    elif transmission == "tendon" and self.tendons:
      target, scalar = {"tendon": self.pick(*self.tendons), "gear": self.numbers(1)}, True
    else:
      one, *two = self.sample(self.sites, 1, 2)
      target, scalar = {"site": one, "refsite": two[0] if two else None, "gear": self.numbers(6)}, False
    limits = {"ctrlrange": self.maybe(0.4, "-.7 .8"), "forcerange": self.maybe(0.4, self.between(-3, -0.5, 0.5, 3))}
    kinds = "motor", "position", "velocity", "general", "intvelocity", "damper", "cylinder"
    kind = self.pick(*kinds, *["muscle"] * scalar, *["pid", "dcmotor", "adhesion"] * self.rich)
    dyn = self.pick("none", "integrator", "filter", "filterexact")
    own = {
      "motor": lambda: {},
      "position": lambda: dict(
        kp=self.between(0, 5), kv=self.maybe(0.4, self.between(0, 1)), timeconst=self.maybe(0.3, self.between(0.02, 0.2))
      ),
      "velocity": lambda: dict(kv=self.between(0, 2)),
      "intvelocity": lambda: dict(kp=self.between(0, 5), actrange="-1 1"),
      "damper": lambda: dict(kv=self.between(0, 2), ctrlrange="0 1"),
      "cylinder": lambda: dict(timeconst=self.between(0.05, 0.3), area=self.between(0.1, 2), bias=self.numbers(3)),
      "muscle": lambda: dict(force=self.between(1, 10), lengthrange="-1 1", tausmooth=self.maybe(0.3, "0.2")),
      "pid": lambda: dict(
        kp=self.between(0, 5), kv=self.maybe(0.4, self.between(0, 1)), ki=self.maybe(0.5, self.between(0, 5)),
        imax=self.maybe(0.3, "0.1"), slewmax=self.maybe(0.3, "3"), input=self.pick("pos", "pos vel", "vel", "ff", "pos vel ff"),
      ),
      "dcmotor": lambda: dict(
        resistance=self.between(0.5, 3), motorconst=self.between(0.1, 0.4), inductance=self.maybe(0.3, "0 0.01"),
        cogging=self.maybe(0.3, "0.1 6 0.3"), lugre=self.maybe(0.3, "40 0.3 0.05 0.1 0.08"),
        thermal=self.maybe(0.3, "5 0.02 0 0.004 25 40"),
      ),
      "adhesion": lambda: dict(gain=self.between(0, 2), ctrlrange="0 1"),
      "general": lambda: dict(
        dyntype=dyn, dynprm=self.between(0.02, 0.2), gaintype=self.pick("fixed", "affine"), gainprm=self.numbers(3),
        biastype=self.pick("none", "affine"), biasprm=self.numbers(3),
        actrange=self.maybe(0.4, "-1 1") if dyn != "none" else None,
        actearly=self.maybe(0.3, "true") if dyn != "none" else None,
      ),
    }[kind]()  # fmt: skip
    self.actuators.append(name)
    if kind == "adhesion":
      target = {"body": self.pick(*self.bodies)}
    return tag(kind, name=name, **target | limits | own | self.history())

  def sensors(self) -> str:
    return "".join(self.sensor() for _ in range(self.rng.integers(0, 8)))

  def sensor(self) -> str:
    joints, balls = self.scalars(), [name for name, kind in self.joints.items() if kind == "ball"]
    cutoff, past = self.maybe(0.2, self.between(0.1, 2)), self.history(sensor=True)
    more = ["ray", "distance", "contact", "inside", "camera"] * self.rich
    limited = {"cutoff": cutoff, **past}
    match self.pick("site", "frame", "relative", "joint", "ball", "actuator", "tendon", "subtree", "clock", *more):
      case "site":
        return tag(self.pick(*SITE_SENSORS), site=self.pick(*self.sites), **limited)
      case "frame":
        names_by_type = {"body": self.bodies, "xbody": self.bodies, "site": self.sites, "geom": ["floor", *self.geoms]}
        kind, names = self.pick(*names_by_type.items())
        return tag(self.pick(*FRAME_SENSORS), objtype=kind, objname=self.pick(*names), **past)
      case "relative":
        site, body = self.pick(*self.sites), self.pick(*self.bodies)
        return tag(self.pick(*FRAME_SENSORS[:5]), objtype="site", objname=site, reftype="body", refname=body, **past)
      case "joint" if joints:
        return tag(self.pick(*JOINT_SENSORS), joint=self.pick(*joints), **limited)
      case "ball" if balls:
        return tag(self.pick("ballquat", "ballangvel"), joint=self.pick(*balls), **past)
      case "actuator" if self.actuators:
        return tag(self.pick("actuatorpos", "actuatorvel", "actuatorfrc"), actuator=self.pick(*self.actuators), **limited)
      case "tendon" if self.tendons:
        return tag(self.pick("tendonpos", "tendonvel", "tendonactuatorfrc"), tendon=self.pick(*self.tendons), **limited)
      case "subtree":
        return tag(self.pick(*SUBTREE_SENSORS), body=self.pick(*self.bodies), **past)
      case "ray":
        return tag("rangefinder", site=self.pick(*self.sites), data=self.maybe(0.5, "dist dir normal"), **past)
      case "distance" if len(self.geoms) > 1:
        one, two = self.sample(self.geoms, 2, 2)
        return tag(self.pick("distance", "normal", "fromto"), geom1=one, geom2=two, cutoff="0.5", **past)
      case "contact":
        what = {"body1": self.pick(*self.bodies)} if self.chance(0.5) else {"geom1": "floor"}
        reduce = self.maybe(0.6, self.pick("mindist", "maxforce", "netforce"))
        data = "found force torque dist pos normal tangent"
        return tag("contact", data=data, num=self.pick("1", "3"), reduce=reduce, **what, **past)
      case "inside":
        return tag("insidesite", site=self.pick(*self.sites), objtype="body", objname=self.pick(*self.bodies), **past)
      case "camera":
        return tag("camprojection", site=self.pick(*self.sites), camera="eye", **past)
    return tag("clock") + tag("e_potential") + tag("e_kinetic")
