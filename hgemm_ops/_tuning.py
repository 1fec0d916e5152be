"""Shapes that no table holds, timed at their first product: ``use_custom_gemm(tune=True)`` and ``HGEMM_OPS_TUNE=1``.

The dispatcher (``csrc/dispatch/tuning.h``) calls the tuner on the thread of the product, with the kernels that may be
the fastest. They and torch are timed on the product's operands, into memory of the tuner's, on the product's stream.
The times become an entry of the table, by which the product in hand is decided as any other.

- The timing has a thread of its own: no context holds there, and nothing of the product's thread reaches it (modes,
  autocast, tracing). The product's thread waits without the GIL. One shape is timed at a time.
- A sample is one call, after a write that empties the L2 and lets the host get ahead. Contenders run in rounds, in a
  new order each; a kernel's time is torch's over the median of the rounds' ratios.
- Nothing raises. What fails is one line of the log, and the shape is the model's for as long as the process lives.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from types import SimpleNamespace
from typing import TypeVar

import torch
from torch import Tensor

from hgemm_ops import _library, _native, _tables, _variants

TORCH = "torch"

#: Seconds that the runs of a shape may take. Loading a kernel, once a process, is not counted.
BUDGET = 0.02
_MOST_KERNELS = 5
_MOST_ROUNDS = 15
_WANTED_ROUNDS = 3  # for which the candidates become fewer
_FLUSH_SECONDS = 50e-6  # what emptying the L2 is taken to need; the clock knows better
_FLUSH = 2  # times the L2
_PATIENCE = 1.0  # seconds that the file of another process is waited for
_STORE_EVERY = 1.0  # seconds

#: Enqueues one call of a contender, "torch" or a kernel; the function returned waits for it and gives microseconds.
Start = Callable[[str], Callable[[], float]]


def affordable(torch_us: float, kernels_us: Sequence[float]) -> int:
    """How many of the kernels, predicted to take so long, are timed beside torch: at least one."""
    runs = 1 + _WANTED_ROUNDS  # with the one that warms up
    spent = runs * (torch_us * 1e-6 + _FLUSH_SECONDS)
    for count, us in enumerate(kernels_us):
        spent += runs * (us * 1e-6 + _FLUSH_SECONDS)
        if spent > BUDGET:
            return max(count, 1)
    return len(kernels_us)


def measure(
    start: Start, names: Sequence[str], seconds: float, clock: Callable[[], float] = time.monotonic
) -> tuple[dict[str, float], int]:
    """Microseconds of torch and each kernel, and the number of rounds: one, and more while they fit in ``seconds``."""
    shuffler = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in (TORCH, *names)}
    for name in samples:  # loads what there is to load
        start(name)()
    begin, rounds = clock(), 0
    while True:
        order = shuffler.sample(list(samples), len(samples))
        pending = [(name, start(name)) for name in order]
        for name, read in pending:
            samples[name].append(read())
        rounds += 1
        if rounds == _MOST_ROUNDS or (clock() - begin) * (rounds + 1) / rounds > seconds:
            break
    base = samples.pop(TORCH)
    torch_us = median(base)
    ours = {
        name: torch_us / median(t / us for t, us in zip(base, kernel, strict=True)) for name, kernel in samples.items()
    }
    return {TORCH: torch_us, **ours}, rounds


Line = tuple[int, str]  # of the log, with its level


class Tuner:
    """Times shapes as the dispatcher asks for them, on any thread. ``open_session`` gives None where it cannot now."""

    def __init__(
        self, open_session: Callable[[_native.Tuning], _CudaSession | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open, self._clock = open_session, clock
        self._one_at_a_time = threading.Lock()  # taken by workers alone: nobody who waits for one holds it
        self._settled: set[bytes] = set()
        self._pending: deque[tuple[_tables.Device, _tables.Entry]] = deque()  # in no file yet
        self._stored = -_STORE_EVERY
        self._done: deque[tuple[str, float]] = deque()  # who was the fastest, and the seconds it took to know
        self._warned: set[str] = set()

    def __call__(self, request: _native.Tuning) -> bool:
        """Whether the request is settled: by an entry in the table, or for good without."""
        if bytes(request.entry) in self._settled:
            return True
        lines: list[Line] = []  # logged on this thread: it may hold a handler's lock, for which a worker would wait
        try:
            session = self._open(request)
            if session is None:
                return False
            worker = threading.Thread(target=self._work, args=(request, session, lines), daemon=True)
            worker.start()
            try:
                worker.join()
            finally:
                worker.join()  # also where an interrupt ended the first: it uses the product's operands
        except Exception as error:
            self._settled.add(bytes(request.entry))
            lines.append(_failure(error))
        self._log(lines)
        return True

    def _work(self, request: _native.Tuning, session: _CudaSession, lines: list[Line]) -> None:
        with self._one_at_a_time:
            if bytes(request.entry) in self._settled:
                return  # a thread came before
            try:
                lines.append(self._tune(request, session))
            except Exception as error:
                lines.append(_failure(error))
            finally:
                self._settled.add(bytes(request.entry))
            if self._clock() - self._stored >= _STORE_EVERY:
                lines += self._store()

    def _tune(self, request: _native.Tuning, session: _CudaSession) -> Line:
        (_, torch_us), *kernels = _native.tuning_candidates(request, _MOST_KERNELS)
        kernels = kernels[: affordable(torch_us, [us for _, us in kernels])]
        names = [_variants.name_of(id_) for id_, _ in kernels]
        warm_up = (torch_us + sum(us for _, us in kernels)) * 1e-6 + (1 + len(kernels)) * _FLUSH_SECONDS
        with session.contenders(names) as start:
            begin = self._clock()
            us, rounds = measure(start, names, BUDGET - warm_up, self._clock)
            took = self._clock() - begin
        e = request.entry
        device = _tables.Device(session.device_name, e.cc, e.sm_count, e.l2_bytes)
        dtype, layout = _native.dtype_name(_native.DTYPES[e.dtype]), _native.LAYOUTS[e.a_major, e.b_major]
        rounded = {name: round(value, 3) for name, value in us.items()}
        entry = _tables.Entry(dtype, layout, e.align, e.batch, e.m, e.n, e.k, rounded)
        _tables.keep(device, entry)
        self._pending.append((device, entry))
        ranked = sorted(entry.us, key=lambda name: entry.us[name])
        self._done.append((ranked[0], took))
        times = ", ".join(f"{name} {entry.us[name]:.1f} us" for name in ranked)
        sizes = f"{e.batch}x{e.m}x{e.n}x{e.k}".removeprefix("1x")
        where = f"{dtype} {layout} {sizes} on cuda:{request.ordinal}"
        return logging.INFO, f"tuned {where} in {took * 1e3:.1f} ms, {rounds} rounds: {times}"

    def _store(self) -> list[Line]:
        """Adds what was measured to this environment's files; what cannot be stored stays in this process."""
        self._stored = self._clock()
        pending: dict[_tables.Device, list[_tables.Entry]] = {}
        for device, entry in _drained(self._pending):
            pending.setdefault(device, []).append(entry)
        lines: list[Line] = []
        for device, entries in pending.items():
            try:
                with _tables.updating(_tables.tuned_file(device), device, _PATIENCE) as table:
                    held = {entry.shape: entry for entry in (*table.entries, *entries)}
                    table.entries, table.measured = list(held.values()), dict(_tables.environment())
            except (OSError, RuntimeError, ValueError) as error:  # the second where there is no home directory
                lines.append((logging.WARNING, f"tuned shapes are kept for this process alone: {error}"))
        return lines

    def finish(self) -> None:
        """At the end of a context, or of the process: stores what is in no file, says what was done since the last."""
        lines = self._store()
        done = _drained(self._done)
        if done:
            ours, seconds = sum(name != TORCH for name, _ in done), sum(took for _, took in done)
            shapes = f"{len(done)} {'shape' if len(done) == 1 else 'shapes'}"
            text = f"tuned {shapes} in {seconds:.2f} s: a kernel of ours was the fastest in {ours}"
            lines.append((logging.INFO, text))
        self._log(lines)

    def _log(self, lines: Iterable[Line]) -> None:
        """A warning once, however often its cause comes back."""
        for level, text in lines:
            if level == logging.WARNING and text in self._warned:
                continue
            if level == logging.WARNING:
                self._warned.add(text)
            _library.logger.log(level, "%s", text)


def _failure(error: Exception) -> Line:
    return logging.WARNING, f"tuning failed, the model decides: {type(error).__name__}: {error}"


T = TypeVar("T")


def _drained(items: deque[T]) -> list[T]:
    """Takes out what is there, whoever adds or takes at the same time."""
    taken: list[T] = []
    with contextlib.suppress(IndexError):
        while True:
            taken.append(items.popleft())
    return taken


# On a GPU.


class _CudaSession:
    """One product on its stream. Operands that would be copies still to be made have stand-ins, N(0, 1)."""

    def __init__(self, request: _native.Tuning, stream: torch.cuda.Stream) -> None:
        self.device_name = torch.cuda.get_device_name(request.ordinal)
        self._request, self._stream = request, stream
        self._device = torch.device("cuda", request.ordinal)
        self._dtype = _native.DTYPES[request.entry.dtype]
        # Batch dimensions that the product does not have, of the two that a request has.
        self._absent = 0 if request.batch[0] > 1 else 1 if request.batch[1] > 1 else 2

    @classmethod
    def open(cls, request: _native.Tuning) -> _CudaSession | None:
        """On the thread of the product. None while its stream is captured."""
        if request.ordinal < 0:
            return None
        with torch.cuda.device(request.ordinal):
            if torch.cuda.is_current_stream_capturing():
                return None
            return cls(request, torch.cuda.current_stream())

    @contextlib.contextmanager
    def contenders(self, names: Sequence[str]) -> Iterator[Start]:
        """Ready to start, with nothing before them."""
        request, entry, library = self._request, self._request.entry, _native.lib()
        library.hgemm_context_leave_all()
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            a = self._operand(request.a, (entry.m, entry.k), request.a_strides)
            b = self._operand(request.b, (entry.k, entry.n), request.b_strides)
            out = self._result((entry.m, entry.n))
            ids = {name: _variants.resolve(name) for name in names}
            scratch = self._bytes(max(library.hgemm_tuning_workspace(request, id_) for id_ in ids.values()))
            flush = self._bytes(_FLUSH * entry.l2_bytes)
            multiply: Callable[..., Tensor] = (torch.mm, torch.bmm, torch.matmul)[out.dim() - 2]

            def call(name: str) -> None:
                if name == TORCH:
                    multiply(a, b, out=out)
                    return
                addresses = (a.data_ptr(), b.data_ptr(), out.data_ptr(), scratch.data_ptr(), self._stream.cuda_stream)
                failure = library.hgemm_tuning_launch(request, ids[name], *addresses)
                if failure is not None:
                    raise RuntimeError(f"{name} failed to launch: {failure.decode()}")

            def start(name: str) -> Callable[[], float]:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                flush.zero_()
                begin.record()
                call(name)
                end.record()

                def microseconds() -> float:
                    end.synchronize()
                    return float(begin.elapsed_time(end)) * 1e3

                return microseconds

            self._stream.synchronize()  # what came before is not the shape's time
            yield start

    def _sizes(self, matrix: tuple[int, int]) -> tuple[int, ...]:
        return (*self._request.batch, *matrix)[self._absent :]

    def _bytes(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self._device)

    def _operand(self, address: int | None, matrix: tuple[int, int], strides_of: Sequence[int]) -> Tensor:
        sizes, strides = self._sizes(matrix), tuple(strides_of)[self._absent :]
        if address:  # as torch takes somebody else's memory: integers as wide as the elements
            width = self._dtype.itemsize
            interface = {
                "data": (address, False),
                "shape": sizes,
                "strides": tuple(stride * width for stride in strides),
                "typestr": f"<i{width}",
                "version": 3,
            }
            memory = SimpleNamespace(__cuda_array_interface__=interface)
            return torch.as_tensor(memory, device=self._device).view(self._dtype)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        generator = torch.Generator(self._device).manual_seed(0)  # not the user's, which goes on as if nothing were
        values = torch.randn(extent, dtype=self._dtype, device=self._device, generator=generator)
        return values.as_strided(sizes, strides)

    def _result(self, matrix: tuple[int, int]) -> Tensor:
        """As aligned as the product's own."""
        sizes = self._sizes(matrix)
        offset = (self._request.d or 0) % 16 // self._dtype.itemsize
        return torch.empty(offset + math.prod(sizes), dtype=self._dtype, device=self._device)[offset:].view(sizes)


# What the process has.


@functools.cache
def by_default() -> bool:
    """What ``HGEMM_OPS_TUNE`` said at import."""
    return _library.flag("HGEMM_OPS_TUNE")


@functools.cache
def tuner() -> Tuner:
    """The process's, which the dispatcher asks from now on."""
    made = Tuner(_CudaSession.open)
    # torch.compile's tracing, where it is in use, stays out of what happens within a product.
    _native.on_tuning(torch.compiler.disable(made.__call__) if "torch._dynamo" in sys.modules else made)
    atexit.register(made.finish)
    return made


def apply_environment() -> None:
    """Has products be tuned where no context says otherwise, if ``HGEMM_OPS_TUNE`` asks for it."""
    if by_default() and _library.load():
        _native.lib().hgemm_tuning_default(1)
        tuner()
