"""A stand-in for XLA's FFI: calls the handler of a kernel with arrays and with a thread pool of its own."""

import ctypes
import threading

import numpy as np

_WORD = ctypes.c_uint64


def _address(x):
  return ctypes.addressof(x)


class Pool:
  """A thread pool, as a handler sees it.

  Attributes:
    threads: the number of threads that the handler is told; None for no pool, which is an error.
    mode: what happens to a task: "threads", it runs in a thread of its own; "inline", before `Schedule` returns; "late", after
      the handler has returned; "refused", the call returns an error.
    tasks: the tasks, as functions.
    errors: number of errors that the handler has destroyed.
  """

  def __init__(self, threads, mode):
    self.threads, self.mode, self.tasks, self.errors, self._running = threads, mode, [], 0, []
    call = ctypes.CFUNCTYPE(_WORD, _WORD)
    self._calls = [call(self._schedule), call(self._number), call(self._destroy)]
    self.api, self._error = (_WORD * 32)(), _WORD()
    for offset, function in zip((136, 144, 64), self._calls, strict=True):
      self.api[offset // 8] = ctypes.cast(function, ctypes.c_void_p).value

  def _number(self, args):
    if self.threads is None:
      return _address(self._error)
    _WORD.from_address((_WORD * 4).from_address(args)[3]).value = self.threads
    return 0

  def _schedule(self, args):
    if self.mode == "refused":
      return _address(self._error)
    task, data = (_WORD * 5).from_address(args)[3:5]
    function = ctypes.CFUNCTYPE(None, _WORD)(task)
    self.tasks.append(lambda: function(data))
    if self.mode == "threads":
      self._running.append(threading.Thread(target=self.tasks[-1]))
      self._running[-1].start()
    elif self.mode == "inline":
      self.tasks[-1]()
    return 0

  def _destroy(self, args):
    assert (_WORD * 3).from_address(args)[2] == _address(self._error)
    self.errors += 1
    return 0

  def call(self, handler, arrays, results):
    """Call a handler at an address with NumPy arrays, and write the results."""
    alive = []

    def buffers(xs):
      made = (_WORD * len(xs))()
      for k, x in enumerate(xs):
        dims, buffer = (_WORD * max(1, x.ndim))(*x.shape), (_WORD * 6)()
        buffer[3], buffer[5] = x.ctypes.data, _address(dims)
        made[k] = _address(buffer)
        alive.extend((dims, buffer))
      alive.append(made)
      return _address(made)

    frame = (_WORD * 20)()
    frame[2], frame[9], frame[14] = _address(self.api), buffers(arrays), buffers(results)
    assert not ctypes.CFUNCTYPE(_WORD, _WORD)(handler)(_address(frame))
    for thread in self._running:
      thread.join()


def empty(shape, dtype):
  """An array whose numbers are not those of a correct result."""
  return np.full(shape, 77, dtype)
