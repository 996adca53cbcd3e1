"""The entry of a kernel on CPU: a handler of XLA's FFI that moves blocks of worlds and calls the kernel's functions.

Offsets into XLA's structs are those of `xla/ffi/api/c_api.h`.

Tests: tests/compiler/test_llvm.py.
"""

from collections.abc import Iterable, Sequence

from mjx_lite.compiler.backends.llvm_memory import Memory, Rows, nbytes

_FFI = 0, 3  # version of XLA's FFI, major and minor
_CHUNK = 4  # rows that are transposed together

_join = "\n".join


def entry(memory: Memory, calls: Sequence[str]) -> str:
  """Return the assembly of the handler that XLA calls, and of the functions that move worlds.

  For each block of worlds the handler transposes the inputs into the memory's rows, runs `calls` for each group of lanes, and
  transposes the results back.

  Args:
    memory: layout of the kernel's memory, which is the handler's last result.
    calls: lines that call the kernel's functions in order.
  """
  outs, used = len(memory.written), len(memory.used)
  movers = [_mover(name, size, memory.block) for name in ("take", "give") for size in (1, 4)]
  return f"""{_join(movers)}
define ptr @step(ptr %frame) {{
{_version()}
begin:
%flag = alloca i32
%shared = alloca [{used + 1} x ptr]
%args_at = getelementptr i8, ptr %frame, i64 72
%args = load ptr, ptr %args_at
%rets_at = getelementptr i8, ptr %frame, i64 112
%rets = load ptr, ptr %rets_at
{_join(_addresses(used, outs))}
%dims_at = getelementptr i8, ptr %f0, i64 40
%dims = load ptr, ptr %dims_at
%worlds = {"load i64, ptr %dims" if memory.lanes > 1 else "add i64 0, 1"}
%own = getelementptr i8, ptr %h{outs}, i64 {memory.first_slot}
br label %block
block:
%w = phi i64 [0, %begin], [%next, %end]
%next = add i64 %w, {memory.block}
%ahead_of = sub i64 %worlds, %w
%n = call i64 @llvm.umin.i64(i64 %ahead_of, i64 {memory.block})
{_join(_moves("take", "d", memory.read.values(), outs))}
br label %group
group:
%g = phi i64 [0, %block], [%g_next, %grouped]
%g_next = add i64 %g, {memory.lanes}
%g_bytes = mul i64 %g, 4
%four = getelementptr i8, ptr %h{outs}, i64 %g_bytes
%one = getelementptr i8, ptr %h{outs}, i64 %g
{_join(calls)}
br label %grouped
grouped:
%is_group = icmp ult i64 %g_next, %n
br i1 %is_group, label %group, label %give
give:
{_join(_moves("give", "h", memory.written, outs))}
br label %end
end:
%is_block = icmp ult i64 %next, %worlds
br i1 %is_block, label %block, label %return
return:
ret ptr null
}}
"""


def _version() -> str:
  """Return the code that answers XLA's question for the version of the handler's interface; otherwise it goes to `begin`."""
  return f"""%ahead = getelementptr i8, ptr %frame, i64 8
%extension = load ptr, ptr %ahead
%is_asked = icmp ne ptr %extension, null
br i1 %is_asked, label %version, label %begin
version:
%what = getelementptr i8, ptr %extension, i64 24
%meta = load ptr, ptr %what
%major = getelementptr i8, ptr %meta, i64 24
%minor = getelementptr i8, ptr %meta, i64 28
store i32 {_FFI[0]}, ptr %major
store i32 {_FFI[1]}, ptr %minor
ret ptr null"""


def _addresses(used: int, outs: int) -> list[str]:
  """Return the lines that load the addresses of the arguments (`%d`), and of the results and the memory (`%h`)."""
  lines = []
  for k in range(used):  # 24 is `data` of XLA_FFI_Buffer
    lines += [f"%a{k} = getelementptr ptr, ptr %args, i64 {k}", f"%b{k} = load ptr, ptr %a{k}",
              f"%c{k} = getelementptr i8, ptr %b{k}, i64 24", f"%d{k} = load ptr, ptr %c{k}",
              f"%s{k} = getelementptr ptr, ptr %shared, i64 {k}", f"store ptr %d{k}, ptr %s{k}"]  # fmt: skip
  for k in range(outs + 1):
    lines += [f"%e{k} = getelementptr ptr, ptr %rets, i64 {k}", f"%f{k} = load ptr, ptr %e{k}",
              f"%g{k} = getelementptr i8, ptr %f{k}, i64 24", f"%h{k} = load ptr, ptr %g{k}"]  # fmt: skip
  return lines


def _moves(name: str, data: str, arrays: Iterable[Rows], outs: int) -> list[str]:
  """Return the calls that move a block between arrays, at the addresses `%{data}0` and on, and their rows in the memory."""
  return [
    f"%{name}{x.buffer} = getelementptr i8, ptr %h{outs}, i64 {x.first}\n"
    f"call void @{name}{nbytes(x.kind)}(ptr %{name}{x.buffer}, ptr %{data}{x.buffer}, i64 {x.nrow}, "
    f"i64 %w, i64 %n, i64 {x.stride})"
    for x in arrays
    if x.nrow
  ]


def _mover(name: str, size: int, block: int) -> str:
  """Return a function that transposes a block's worlds from an array (worlds, n) to rows of the kernel's memory, or back.

  It moves the first `%rows` of the `%stride` numbers of each world. Lanes without a world get the last world's numbers.
  """
  is_take, t = name == "take", f"i{8 * size}"
  source, target = ("there", "here") if is_take else ("here", "there")
  is_chunked = size == 4 and block % _CHUNK == 0
  return f"""define internal void @{name}{size}(ptr %block, ptr %array, i64 %rows, i64 %w, i64 %n, i64 %stride) #0 {{
%before = mul i64 %w, %stride
%begin = getelementptr {t}, ptr %array, i64 %before
%most = sub i64 %n, 1
{_chunks(is_take, block) if is_chunked else "br label %world"}
world:
%j = phi i64 [0, {"%choice" if is_chunked else "%0"}], [%j_next, %world_end]
%j_next = add i64 %j, 1
%k = call i64 @llvm.umin.i64(i64 %j, i64 %most)
%k_before = mul i64 %k, %stride
%world_there = getelementptr {t}, ptr %begin, i64 %k_before
%world_here = getelementptr {t}, ptr %block, i64 %j
br label %row
row:
%r = phi i64 [0, %world], [%r_next, %row]
%r_next = add i64 %r, 1
%r_here = mul i64 %r, {block}
%here = getelementptr {t}, ptr %world_here, i64 %r_here
%there = getelementptr {t}, ptr %world_there, i64 %r
%x = load {t}, ptr %{source}
store {t} %x, ptr %{target}
%is_row = icmp ult i64 %r_next, %rows
br i1 %is_row, label %row, label %world_end
world_end:
%is_world = icmp ult i64 %j_next, {block if is_take else "%n"}
br i1 %is_world, label %world, label %return
return:
ret void
}}"""


class _Lines:
  """Writer of lines of code, with a name for each value."""

  def __init__(self):
    self.lines: list[str] = []

  def new(self, text: str) -> str:
    """Add a line with a value, and return the value's name."""
    self.lines.append(f"%v{len(self.lines)} = {text}")
    return f"%v{len(self.lines) - 1}"

  def shuffled(self, a: str, b: str, n: int, order: Iterable[int]) -> str:
    """Return the vector of the numbers at the positions `order` in the concatenation of two vectors of n numbers."""
    positions = [f"i32 {k}" for k in order]
    return self.new(f"shufflevector <{n} x i32> {a}, <{n} x i32> {b}, <{len(positions)} x i32> <{', '.join(positions)}>")

  def joined(self, parts: list[str], n: int) -> str:
    """Return the concatenation of vectors of n numbers; the number of vectors is a power of two."""
    while len(parts) > 1:
      parts = [self.shuffled(a, b, n, range(2 * n)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
      n *= 2
    return parts[0]


def _chunks(is_take: bool, block: int) -> str:
  """Return the code of `_mover` for a full block of 4-byte numbers: `_CHUNK` rows at a time, the last rows possibly twice."""
  code = _Lines()
  worlds = [code.new("getelementptr i32, ptr %begin, i64 %chunk_row")]
  for _ in range(block - 1):
    worlds.append(code.new(f"getelementptr i32, ptr {worlds[-1]}, i64 %stride"))
  first = code.new(f"mul i64 %chunk_row, {block}")
  rows = [code.new(f"getelementptr i32, ptr %block, i64 {code.new(f'add i64 {first}, {k * block}')}") for k in range(_CHUNK)]
  (_take_chunk if is_take else _give_chunk)(code, worlds, rows)
  return f"""br label %choice
choice:
%is_full = icmp eq i64 %n, {block}
%is_long = icmp uge i64 %rows, {_CHUNK}
%is_both = and i1 %is_full, %is_long
%last = sub i64 %rows, {_CHUNK}
br i1 %is_both, label %chunk, label %world
chunk:
%from = phi i64 [0, %choice], [%to, %chunk]
%to = add i64 %from, {_CHUNK}
%chunk_row = call i64 @llvm.umin.i64(i64 %from, i64 %last)
{_join(code.lines)}
%is_chunk = icmp ult i64 %to, %rows
br i1 %is_chunk, label %chunk, label %return"""


def _take_chunk(code: _Lines, worlds: Sequence[str], rows: Sequence[str]) -> None:
  """Write the code that transposes `_CHUNK` numbers of each world, at the addresses `worlds`, to rows at `rows`."""
  block = len(worlds)
  numbers = [code.new(f"load <{_CHUNK} x i32>, ptr {x}, align 4") for x in worlds]
  n = _CHUNK**2  # numbers of _CHUNK worlds
  groups = [code.joined(numbers[k : k + _CHUNK], _CHUNK) for k in range(0, block, _CHUNK)]
  for i, row in enumerate(rows):
    pairs = [code.shuffled(a, b, n, range(i, 2 * n, _CHUNK)) for a, b in zip(groups[::2], groups[1::2], strict=True)]
    code.lines.append(f"store <{block} x i32> {code.joined(pairs, 2 * _CHUNK)}, ptr {row}, align 4")


def _give_chunk(code: _Lines, worlds: Sequence[str], rows: Sequence[str]) -> None:
  """Write the code that transposes `_CHUNK` rows back: the inverse of `_take_chunk`."""
  block = len(worlds)
  a, b, c, d = (code.new(f"load <{block} x i32>, ptr {x}, align 4") for x in rows)
  halves = range(block // 2), range(block // 2, block)
  pairs = [
    [code.shuffled(x, y, block, [i for k in half for i in (k, k + block)]) for half in halves] for x, y in ((a, b), (c, d))
  ]
  for k, world in enumerate(worlds):
    half, i = divmod(2 * k, block)
    x = code.shuffled(pairs[0][half], pairs[1][half], block, (i, i + 1, i + block, i + block + 1))
    code.lines.append(f"store <{_CHUNK} x i32> {x}, ptr {world}, align 4")
