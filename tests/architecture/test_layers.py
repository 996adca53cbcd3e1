"""The structure of the package, read from its syntax trees."""

import ast
import inspect
import pathlib
import re

import jax
import mujoco
import pytest

import mjx_lite as mjx
from mjx_lite.batching import derivatives, worlds
from mjx_lite.model import enums, pytree

ROOT = pathlib.Path(mjx.__file__).parent
# layers from the bottom; a module may import from its own package and from those before it
ORDER = (
  "errors", "compiler", "ops", "math", "model", "batching", "collision", "tendon", "actuator", "smooth", "constraint", "solver",
  "sensor", "integrate", "plan", "pipeline", "support", "api", "io", "rollout", "derivative", "testing", "explain",
  "__init__", "viz", "envs", "control", "rl", "sysid", "cli", "__main__",
)  # fmt: skip
MAY_REPLACE = (
  "pipeline", "api.py", "rollout.py", "derivative.py", "testing", "explain.py", "io", "envs", "control", "rl", "sysid",
  "cli", "viz", "compiler", "model", "batching", "__main__.py",
)  # fmt: skip
MAY_IMPORT_MUJOCO = ("model/enums.py", "io/", "envs/base.py", "viz/", "testing/compare.py", "cli")


def modules():
  return sorted(ROOT.rglob("*.py"))


def name_of(path):
  return str(path.relative_to(ROOT))


def imports(path):
  """Modules that a file imports when it runs: not what stands under `if TYPE_CHECKING`, which only a type checker reads."""
  tree = ast.parse(path.read_text())
  tree.body = [x for x in tree.body if not (isinstance(x, ast.If) and getattr(x.test, "id", "") == "TYPE_CHECKING")]
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (a.name for a in node.names)
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        inner = ROOT.parent.joinpath(*node.module.split("."), alias.name)
        is_module = inner.is_dir() or inner.with_suffix(".py").exists()
        yield f"{node.module}.{alias.name}" if is_module else node.module


def layer_of(module):
  """Layer of `mjx_lite.x.y`, or of the package itself."""
  parts = module.split(".")
  return parts[1] if len(parts) > 1 and parts[1] in ORDER else "__init__"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_go_down(path):
  parts = path.relative_to(ROOT).parts
  own = parts[0] if len(parts) > 1 else path.stem
  for module in imports(path):
    if module and module.split(".")[0] == "mjx_lite" and module != "mjx_lite":
      layer = layer_of(module)
      assert ORDER.index(layer) <= ORDER.index(own), f"{name_of(path)} imports {module}"
    elif module == "mjx_lite":
      assert ORDER.index(own) > ORDER.index("__init__"), f"{name_of(path)} imports the package itself"


def test_modules_import_in_no_circle():
  """Imports inside a package too. A package stands for its `__init__.py`."""

  def module_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

  known = {module_of(path): path for path in modules()}
  of = {name: {x for x in imports(path) if x in known and x != name} for name, path in known.items()}
  done, path_to = set(), []

  def visit(name):
    assert name not in path_to, f"a circle of imports: {' -> '.join([*path_to[path_to.index(name) :], name])}"
    if name not in done:
      path_to.append(name)
      for other in sorted(of[name]):
        visit(other)
      path_to.pop()
      done.add(name)

  for name in known:
    visit(name)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_files_and_functions_are_short(path):
  """At most 500 lines a file and 60 a function; the docstring of a function does not count."""
  source = path.read_text()
  assert len(source.splitlines()) <= 500
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.FunctionDef):
      lines = node.end_lineno - node.lineno + 1 - len((ast.get_docstring(node, clean=False) or "").splitlines())
      assert lines <= 60, f"{name_of(path)}:{node.lineno} {node.name} has {lines} lines"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_attributes_are_set_by_their_own_module(path):
  """A module sets no attribute of a class or of a module that it imports."""
  tree = ast.parse(path.read_text())
  imported = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom | ast.Import) for a in n.names}
  for node in ast.walk(tree):
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in (x for t in targets for x in (t.elts if isinstance(t, ast.Tuple) else [t])):
      if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        assert target.value.id not in imported, f"{name_of(path)}:{node.lineno} sets {ast.unparse(target)}"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_each_module_says_where_its_tests_are(path):
  """A test file has the module's name, or the module's docstring ends in a line `Tests:` with files that exist."""
  tests = ROOT.parent / "tests"
  parts = path.relative_to(ROOT).parts
  if path.stem in ("__init__", "__main__") or any(tests.glob(f"{parts[0] if len(parts) > 1 else '**'}/**/test_{path.stem}.py")):
    return
  last = ast.get_docstring(ast.parse(path.read_text())).splitlines()[-1]
  assert last.startswith("Tests: "), f"{name_of(path)} has no test file of its name, and its docstring no line `Tests:`"
  for file in last.removeprefix("Tests: ").rstrip(".").split(", "):
    assert (ROOT.parent / file).is_file(), f"{name_of(path)}: {file} is not there"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_mujoco_and_jax_internals_stay_where_they_belong(path):
  name, found = name_of(path), set(imports(path))
  if not name.startswith(MAY_IMPORT_MUJOCO):
    assert not [x for x in found if x and x.split(".")[0] == "mujoco"], name
  internal = [x for x in found if x and x.startswith(("jax.interpreters", "jax.extend", "jax._src"))]
  if not name.startswith("compiler/") and not name.startswith(("batching/", "ops/linear.py", "ops/loops.py")):
    assert not internal, (name, internal)
  assert not [x for x in internal if x.startswith("jax._src")]


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_physics_does_not_know_the_compiler(path):
  """The number of worlds decides between algorithms in `ops/tiles.py`; no module of physics asks for it."""
  physics = ORDER[ORDER.index("batching") + 1 : ORDER.index("api")]
  if path.relative_to(ROOT).parts[0].removesuffix(".py") in physics:
    found = [x for x in imports(path) if x and x.startswith("mjx_lite.compiler")]
    assert not found, f"{name_of(path)} imports {found}"


def test_the_jax_extension_interface_is_there():
  """Each symbol of jax's extension interface that the compiler and the world axis use."""
  assert jax.extend.core.Primitive and jax.extend.core.jaxpr_as_fun
  assert jax.extend.core.ClosedJaxpr and jax.extend.core.Jaxpr and jax.extend.core.Literal and jax.extend.core.jaxprs_in_params
  ad = derivatives.ad
  assert ad.Zero and ad.primitive_jvps is not None and ad.primitive_transposes is not None and ad.is_undefined_primal
  assert ad.deflinear2
  assert worlds.batching.primitive_batchers is not None
  assert worlds.mlir.register_lowering and worlds.mlir.lower_fun
  assert jax.core.ShapedArray


def test_only_the_forward_module_writes_data():
  """`replace` on Data happens in pipeline/, in what calls whole steps, and in io/ only."""
  for path in modules():
    if name_of(path).split("/")[0] in MAY_REPLACE:
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace":
        raise AssertionError(f"{name_of(path)}:{node.lineno} calls replace")


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_primitive_is_named_in_one_module(path):
  """A name in a string is an import that the layers do not show."""
  owners = ("ops/linear.py", "math/tree.py", "batching/worlds.py", "compiler/")
  if not name_of(path).startswith(owners):
    assert not re.search(r"""["']mjx_(?!lite)""", path.read_text())


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_docstrings(path):
  tree = ast.parse(path.read_text())
  assert ast.get_docstring(tree), f"{name_of(path)} has no docstring"
  for node in tree.body:
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
      assert ast.get_docstring(node), f"{name_of(path)}:{node.lineno} {node.name} has no docstring"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_whole_numbers_of_numpy_are_not_missed(path):
  """`isinstance(x, int)` is False for NumPy's integers: it stands with `np.integer`, or is written otherwise."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
      names = {x.id for x in ast.walk(node.args[1]) if isinstance(x, ast.Name)}
      attributes = {x.attr for x in ast.walk(node.args[1]) if isinstance(x, ast.Attribute)}
      for plain, numpys in (("int", "integer"), ("float", "floating"), ("bool", "bool_")):
        assert plain not in names or numpys in attributes, f"{name_of(path)}:{node.lineno}"


def test_public_names():
  assert sorted(mjx.__all__) == sorted(set(mjx.__all__))
  for name in mjx.__all__:
    assert hasattr(mjx, name), name
    assert inspect.getdoc(getattr(mjx, name)), name


def test_call_forms_of_mjx_exist():
  """Names of `mujoco.mjx` that this version covers; the others are listed, so that the list can only shrink."""
  source = (pathlib.Path(mujoco.__file__).parent / "mjx" / "__init__.py").read_text()
  theirs = {a.asname or a.name for n in ast.parse(source).body if isinstance(n, ast.ImportFrom) for a in n.names} - {"*"}
  missing = {
    "benchmark", "create_render_context", "get_depth", "get_rgb", "get_segmentation", "is_sparse", "refit_bvh", "render",
    "render_with_segmentation",
  }  # fmt: skip
  assert theirs - set(mjx.__all__) == missing


def test_enums_are_mujocos():
  for ours, theirs, prefix in (
    (enums.DisableBit, mujoco.mjtDisableBit, "mjDSBL_"),
    (enums.JointType, mujoco.mjtJoint, "mjJNT_"),
    (enums.SensorType, mujoco.mjtSensor, "mjSENS_"),
    (enums.State, mujoco.mjtState, "mjSTATE_"),
  ):
    for member in ours:
      assert int(getattr(theirs, prefix + member.name)) == int(member)
  assert (enums.MINVAL, enums.MAXVAL, enums.MINIMP, enums.MAXIMP, enums.MINMU) == (1e-15, 1e10, 1e-4, 0.9999, 1e-5)


def test_data_fields_have_the_declared_shapes():
  m = mjx.put_model(mujoco.MjModel.from_xml_path(str(ROOT / "models" / "humanoid.xml")))
  d = mjx.make_data(m, keep="all")
  for some in (d, mjx.make_data(m), mjx.make_data(m, keep=("qLD", "cacc"))):
    out = jax.eval_shape(mjx.step, m, some)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(out)] == [(x.shape, x.dtype) for x in jax.tree.leaves(some)]
    assert jax.tree.structure(out) == jax.tree.structure(some)
  for cls, value in ((mjx.Data, d), (mjx.Contact, d.contact), (mjx.Model, m)):
    for name, spec in pytree.specs(cls).items():
      assert getattr(value, name).ndim == len(spec["shape"]), name
