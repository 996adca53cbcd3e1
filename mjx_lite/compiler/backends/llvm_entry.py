"""The entry of a kernel on CPU: a handler of XLA's FFI that divides blocks of worlds among threads, which run the kernel.

The handler asks XLA's thread pool to run tasks, and takes part in the work itself. Each thread takes the next block of worlds
until no block is left. The handler returns when all blocks are done. It waits for no task that has not begun: a task that
begins late finds no block, and touches only the job. So neither two programs that share the pool nor a pool whose threads are
gone after a fork can stop the handler. A job is memory that the threads share. The last thread that leaves a job frees it.

Offsets into XLA's structs are those of `xla/ffi/api/c_api.h`.

Tests: tests/compiler/test_llvm.py.
"""

import os
from collections.abc import Iterable, Sequence

from mjx_lite.compiler.backends.llvm_memory import Memory, Rows, nbytes

_FFI = 0, 3  # version of XLA's FFI, major and minor
_CHUNK = 4  # rows that are transposed together
# offsets in a job: the first world that no thread has taken, the number of worlds done, the threads that may still use the job,
# the threads that have begun, the number of worlds, and the addresses of the memory, of the arguments and of the results
_NEXT, _DONE, _USERS, _BEGUN, _WORLDS, _MEMORY, _ARRAYS = range(0, 56, 8)

_WORDS = """%g_words = mul i64 %g, 8
%eight = getelementptr i8, ptr %memory, i64 %g_words
"""

_join = "\n".join


def has_threads(memory: Memory) -> bool:
  """Return whether threads share the worlds of a kernel: not those of one world, nor without POSIX's `sched_yield`."""
  return memory.lanes > 1 and os.name == "posix"


def entry(memory: Memory, calls: Sequence[str]) -> str:
  """Return the assembly of the handler that XLA calls, and of the functions that it needs.

  For each block of worlds a thread transposes the inputs into the rows of its memory, runs `calls` for each group of lanes, and
  transposes the results back. The handler's last result is memory for as many threads as fit.

  Args:
    memory: layout of the memory of one thread.
    calls: lines that call the kernel's functions in order.
  """
  outs, used = len(memory.written), len(memory.used)
  movers = [_mover(name, size, memory.block) for name in ("take", "give") for size in sorted(memory.bases)]
  parts = [*movers, _work(memory, calls), *((_task(memory), _schedule()) if has_threads(memory) else ())]
  return f"""{_join(parts)}
define ptr @step(ptr %frame) {{
{_version()}
begin:
%args_at = getelementptr i8, ptr %frame, i64 72
%args = load ptr, ptr %args_at
%rets_at = getelementptr i8, ptr %frame, i64 112
%rets = load ptr, ptr %rets_at
{_join(_addresses(used, outs))}
%dims_at = getelementptr i8, ptr %f0, i64 40
%dims = load ptr, ptr %dims_at
%worlds = {"load i64, ptr %dims" if memory.lanes > 1 else "add i64 0, 1"}
{_threads(memory, used, outs) if has_threads(memory) else "br label %serial"}
serial:
%own_job = alloca [{_ARRAYS // 8 + used + outs} x i64]
{_join(_job("own_job", used, outs, "1"))}
call void @work(ptr %own_job, ptr %h{outs})
ret ptr null
}}
"""


def _job(name: str, used: int, outs: int, users: str) -> list[str]:
  """Return the lines that fill a job, for a number of users."""
  values = [(_NEXT, "i64 0"), (_DONE, "i64 0"), (_USERS, f"i64 {users}"), (_BEGUN, "i64 0"), (_WORLDS, "i64 %worlds")]
  arrays = [f"ptr %h{outs}", *(f"ptr %d{k}" for k in range(used)), *(f"ptr %h{k}" for k in range(outs))]
  values += [(_MEMORY + 8 * k, x) for k, x in enumerate(arrays)]
  return [f"%{name}{at} = getelementptr i8, ptr %{name}, i64 {at}\nstore {x}, ptr %{name}{at}" for at, x in values]


def _work(memory: Memory, calls: Sequence[str]) -> str:
  """Return the function that a thread runs: it takes one block of worlds after another from a job, until no block is left."""
  outs, used = len(memory.written), len(memory.used)
  names = [*(f"d{k}" for k in range(used)), *(f"h{k}" for k in range(outs))]
  arrays = [f"%{x}_at = getelementptr ptr, ptr %shared, i64 {k}\n%{x} = load ptr, ptr %{x}_at" for k, x in enumerate(names)]
  return f"""define internal void @work(ptr %job, ptr %memory) #0 {{
%flag = alloca i32
%shared = getelementptr i8, ptr %job, i64 {_ARRAYS}
{_join(arrays)}
%next_at = getelementptr i8, ptr %job, i64 {_NEXT}
%done_at = getelementptr i8, ptr %job, i64 {_DONE}
%worlds_at = getelementptr i8, ptr %job, i64 {_WORLDS}
%worlds = load i64, ptr %worlds_at
%own = getelementptr i8, ptr %memory, i64 {memory.first_slot}
br label %next
next:
%w = atomicrmw add ptr %next_at, i64 {memory.block} monotonic
%is_left = icmp ult i64 %w, %worlds
br i1 %is_left, label %block, label %return
block:
%ahead_of = sub i64 %worlds, %w
%n = call i64 @llvm.umin.i64(i64 %ahead_of, i64 {memory.block})
{_join(_moves("take", "d", memory.read.values()))}
br label %group
group:
%g = phi i64 [0, %block], [%g_next, %grouped]
%g_next = add i64 %g, {memory.lanes}
{_WORDS if memory.word == 8 else ""}%g_bytes = mul i64 %g, 4
%four = getelementptr i8, ptr %memory, i64 %g_bytes
%one = getelementptr i8, ptr %memory, i64 %g
{_join(calls)}
br label %grouped
grouped:
%is_group = icmp ult i64 %g_next, %n
br i1 %is_group, label %group, label %give
give:
{_join(_moves("give", "h", memory.written))}
%done = atomicrmw add ptr %done_at, i64 %n release
br label %next
return:
ret void
}}"""


def _task(memory: Memory) -> str:
  """Return the functions of a thread's part in a job: the work in memory of its own, and the end of its use of the job."""
  return f"""declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
define internal void @part_of(ptr %job) {{
%begun_at = getelementptr i8, ptr %job, i64 {_BEGUN}
%k = atomicrmw add ptr %begun_at, i64 1 monotonic
%offset = mul i64 %k, {memory.size}
%memory_at = getelementptr i8, ptr %job, i64 {_MEMORY}
%memory = load ptr, ptr %memory_at
%own = getelementptr i8, ptr %memory, i64 %offset
call void @work(ptr %job, ptr %own)
ret void
}}
define internal void @leave(ptr %job) {{
%users_at = getelementptr i8, ptr %job, i64 {_USERS}
%users = atomicrmw sub ptr %users_at, i64 1 acq_rel
%is_last = icmp eq i64 %users, 1
br i1 %is_last, label %last, label %return
last:
call void @free(ptr %job)
br label %return
return:
ret void
}}
define internal void @task(ptr %job) {{
call void @part_of(ptr %job)
call void @leave(ptr %job)
ret void
}}"""


def _schedule() -> str:
  """Return the functions that call XLA's thread pool: its number of threads, 1 without a pool, and whether it takes a task."""
  forget = """br i1 %is_error, label %failed, label %fine
failed:
%destroy_at = getelementptr i8, ptr %api, i64 64
%destroy = load ptr, ptr %destroy_at
%destroyed = alloca [3 x i64]
store [3 x i64] [i64 24, i64 0, i64 0], ptr %destroyed
%error_at = getelementptr i8, ptr %destroyed, i64 16
store ptr %error, ptr %error_at
call void %destroy(ptr %destroyed)"""
  return f"""define internal i64 @threads(ptr %api, ptr %context) {{
%count = alloca i64
%asked = alloca [4 x i64]
store [4 x i64] [i64 32, i64 0, i64 0, i64 0], ptr %asked
%context_at = getelementptr i8, ptr %asked, i64 16
store ptr %context, ptr %context_at
%count_at = getelementptr i8, ptr %asked, i64 24
store ptr %count, ptr %count_at
%number_at = getelementptr i8, ptr %api, i64 144
%number = load ptr, ptr %number_at
%error = call ptr %number(ptr %asked)
%is_error = icmp ne ptr %error, null
{forget}
ret i64 1
fine:
%threads = load i64, ptr %count
ret i64 %threads
}}
define internal i1 @schedule(ptr %api, ptr %context, ptr %job) {{
%asked = alloca [5 x i64]
store [5 x i64] [i64 40, i64 0, i64 0, i64 0, i64 0], ptr %asked
%context_at = getelementptr i8, ptr %asked, i64 16
store ptr %context, ptr %context_at
%task_at = getelementptr i8, ptr %asked, i64 24
store ptr @task, ptr %task_at
%job_at = getelementptr i8, ptr %asked, i64 32
store ptr %job, ptr %job_at
%schedule_at = getelementptr i8, ptr %api, i64 136
%schedule = load ptr, ptr %schedule_at
%error = call ptr %schedule(ptr %asked)
%is_error = icmp ne ptr %error, null
{forget}
ret i1 false
fine:
ret i1 true
}}"""


def _threads(memory: Memory, used: int, outs: int) -> str:
  """Return the handler's code for more threads than one; it goes to `serial` if memory or pool are for one thread only.

  The memory of n threads is n times as long as that of one.
  """
  return f"""%bytes_at = getelementptr i8, ptr %f{outs}, i64 40
%bytes_dims = load ptr, ptr %bytes_at
%bytes = load i64, ptr %bytes_dims
%room = udiv i64 %bytes, {memory.size}
%is_roomy = icmp ugt i64 %room, 1
br i1 %is_roomy, label %pool, label %serial
pool:
%api_at = getelementptr i8, ptr %frame, i64 16
%api = load ptr, ptr %api_at
%context_at = getelementptr i8, ptr %frame, i64 24
%context = load ptr, ptr %context_at
%pool_threads = call i64 @threads(ptr %api, ptr %context)
%threads = call i64 @llvm.umin.i64(i64 %pool_threads, i64 %room)
%are_many = icmp ugt i64 %threads, 1
br i1 %are_many, label %parallel, label %serial
parallel:
%job = call ptr @malloc(i64 {_ARRAYS + 8 * (used + outs)})
{_join(_job("job", used, outs, "%threads"))}
br label %ask
ask:
%k = phi i64 [1, %parallel], [%k_next, %asked]
%k_next = add i64 %k, 1
%is_taken = call i1 @schedule(ptr %api, ptr %context, ptr %job)
br i1 %is_taken, label %asked, label %refused
refused:
call void @leave(ptr %job)
br label %asked
asked:
%are_more = icmp ult i64 %k_next, %threads
br i1 %are_more, label %ask, label %own_part
own_part:
call void @part_of(ptr %job)
br label %check
check:
%done = load atomic i64, ptr %job{_DONE} acquire, align 8
%is_done = icmp eq i64 %done, %worlds
br i1 %is_done, label %leave, label %wait
wait:
%yielded = call i32 @sched_yield()
br label %check
leave:
call void @leave(ptr %job)
ret ptr null"""


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
              f"%c{k} = getelementptr i8, ptr %b{k}, i64 24", f"%d{k} = load ptr, ptr %c{k}"]  # fmt: skip
  for k in range(outs + 1):
    lines += [f"%e{k} = getelementptr ptr, ptr %rets, i64 {k}", f"%f{k} = load ptr, ptr %e{k}",
              f"%g{k} = getelementptr i8, ptr %f{k}, i64 24", f"%h{k} = load ptr, ptr %g{k}"]  # fmt: skip
  return lines


def _moves(name: str, data: str, arrays: Iterable[Rows]) -> list[str]:
  """Return the calls that move a block between arrays, at the addresses `%{data}0` and on, and their rows in the memory."""
  return [
    f"%{name}{x.buffer} = getelementptr i8, ptr %memory, i64 {x.first}\n"
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
  is_chunked = size > 1 and block % _CHUNK == 0
  return f"""define internal void @{name}{size}(ptr %block, ptr %array, i64 %rows, i64 %w, i64 %n, i64 %stride) #0 {{
%before = mul i64 %w, %stride
%begin = getelementptr {t}, ptr %array, i64 %before
%most = sub i64 %n, 1
{_chunks(is_take, size, block) if is_chunked else "br label %world"}
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
  """Writer of lines of code, with a name for each value, for numbers of some bytes."""

  def __init__(self, size: int):
    self.size, self.type = size, f"i{8 * size}"
    self.lines: list[str] = []

  def new(self, text: str) -> str:
    """Add a line with a value, and return the value's name."""
    self.lines.append(f"%v{len(self.lines)} = {text}")
    return f"%v{len(self.lines) - 1}"

  def shuffled(self, a: str, b: str, n: int, order: Iterable[int]) -> str:
    """Return the vector of the numbers at the positions `order` in the concatenation of two vectors of n numbers."""
    positions = [f"i32 {k}" for k in order]
    t = f"<{n} x {self.type}>"
    return self.new(f"shufflevector {t} {a}, {t} {b}, <{len(positions)} x i32> <{', '.join(positions)}>")

  def joined(self, parts: list[str], n: int) -> str:
    """Return the concatenation of vectors of n numbers; the number of vectors is a power of two."""
    while len(parts) > 1:
      parts = [self.shuffled(a, b, n, range(2 * n)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
      n *= 2
    return parts[0]


def _chunks(is_take: bool, size: int, block: int) -> str:
  """Return the code of `_mover` for a full block of 4 or 8 bytes: `_CHUNK` rows at a time, the last rows possibly twice."""
  code = _Lines(size)
  worlds = [code.new(f"getelementptr {code.type}, ptr %begin, i64 %chunk_row")]
  for _ in range(block - 1):
    worlds.append(code.new(f"getelementptr {code.type}, ptr {worlds[-1]}, i64 %stride"))
  first = code.new(f"mul i64 %chunk_row, {block}")
  rows = []
  for k in range(_CHUNK):
    start = code.new(f"add i64 {first}, {k * block}")
    rows.append(code.new(f"getelementptr {code.type}, ptr %block, i64 {start}"))
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
  numbers = [code.new(f"load <{_CHUNK} x {code.type}>, ptr {x}, align {code.size}") for x in worlds]
  n = _CHUNK**2  # numbers of _CHUNK worlds
  groups = [code.joined(numbers[k : k + _CHUNK], _CHUNK) for k in range(0, block, _CHUNK)]
  for i, row in enumerate(rows):
    pairs = [code.shuffled(a, b, n, range(i, 2 * n, _CHUNK)) for a, b in zip(groups[::2], groups[1::2], strict=True)]
    code.lines.append(f"store <{block} x {code.type}> {code.joined(pairs, 2 * _CHUNK)}, ptr {row}, align {code.size}")


def _give_chunk(code: _Lines, worlds: Sequence[str], rows: Sequence[str]) -> None:
  """Write the code that transposes `_CHUNK` rows back: the inverse of `_take_chunk`."""
  block = len(worlds)
  a, b, c, d = (code.new(f"load <{block} x {code.type}>, ptr {x}, align {code.size}") for x in rows)
  halves = range(block // 2), range(block // 2, block)
  pairs = [
    [code.shuffled(x, y, block, [i for k in half for i in (k, k + block)]) for half in halves] for x, y in ((a, b), (c, d))
  ]
  for k, world in enumerate(worlds):
    half, i = divmod(2 * k, block)
    x = code.shuffled(pairs[0][half], pairs[1][half], block, (i, i + 1, i + block, i + block + 1))
    code.lines.append(f"store <{_CHUNK} x {code.type}> {x}, ptr {world}, align {code.size}")
