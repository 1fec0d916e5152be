"""Times untuned shapes at their first matmul: ``use_custom_gemm(tune=True)`` and ``HGEMM_OPS_TUNE=1``.

The dispatcher (``csrc/dispatch/tuning.h``) calls the tuner on the thread of the matmul, and names the kernels that may
be the fastest. The tuner times them and torch on the matmul's operands and on copies of them. Results go to memory of
the tuner's own. The times become an entry of the tuning table, by which the dispatcher then decides this matmul and all
later ones.

- The timing runs on a thread of its own. No context is active there, and nothing of the matmul's thread reaches it,
  such as dispatch modes, autocast or tracing. The matmul's thread waits without the GIL. One shape is timed at a time.
- A sample is the replay of a CUDA graph. The graph has several calls, each on operands of its own. Before a sample, a
  read of twice the L2 evicts the operands. A sample therefore includes no launch from the host, and no operand is in
  the L2.
- Contenders run in rounds, each round in a new order. A kernel's time is torch's median time divided by the median,
  over the rounds, of torch's time over the kernel's.
- Tuning never raises. A failure is one line of the log, and the cost model decides the shape for as long as the process
  lives.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from . import _forks, _library, _native, _tables, _variants
from .ops.schema import OPS

TORCH = "torch"

#: Seconds that timing one shape may take. Loading a kernel, which happens once per process, does not count.
BUDGET = 0.02
_MOST_KERNELS = 7
_MOST_ROUNDS = 15
_WANTED_ROUNDS = 3  # candidates are dropped until so many rounds fit the budget
_MOST_CALLS = 48  # in a sample
_SAMPLE_US = 300.0  # a sample gets no further call once its calls take so long
_FLUSH_SECONDS = 50e-6  # an estimate of the time to evict the L2, to plan with; the clock ends the rounds
_CAPTURE_SECONDS = 400e-6  # an estimate of the time to capture a graph
_LAUNCH_US = 20.0  # how much longer a call from the host may take than a call in a graph
_FLUSH = 2  # the size of the read that evicts the L2, in L2 sizes
_LINE = 128  # bytes of a cache line
_OPERANDS = 1.5  # L2 sizes that all operands and results of a sample may take, unless one call needs more
_PATIENCE = 1.0  # seconds to wait while another process has the file locked
_STORE_EVERY = 1.0  # seconds between writes of the file

#: Enqueues a sample of a contender, which is "torch" or a kernel. The function that it returns waits for the sample,
#: and returns microseconds per call.
Start = Callable[[str], Callable[[], float]]


def calls_of_sample(torch_us: float) -> int:
    """Returns how many calls a sample of a matmul has, for which torch takes ``torch_us``."""
    return min(_MOST_CALLS, 1 + int(_SAMPLE_US / torch_us))


def affordable(torch_us: float, kernels_us: Sequence[float]) -> int:
    """Returns how many of the kernels fit the budget beside torch, by their predicted times: at least one."""
    runs = 1 + _WANTED_ROUNDS  # one warms up
    calls = calls_of_sample(torch_us)

    def seconds(us: float) -> float:
        return _CAPTURE_SECONDS + runs * (calls * us * 1e-6 + _FLUSH_SECONDS)

    spent = seconds(torch_us)
    for count, us in enumerate(kernels_us):
        spent += seconds(us)
        if spent > BUDGET:
            return max(count, 1)
    return len(kernels_us)


def measure(
    start: Start, names: Sequence[str], until: float, clock: Callable[[], float] = time.monotonic
) -> tuple[dict[str, float], int]:
    """Times torch and the kernels. Returns the microseconds of each, and the number of rounds.

    There is always one round. Another one follows if it is expected to end by ``until``.
    """
    shuffler = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in (TORCH, *names)}
    rounds = 0
    for name in samples:  # warms up: a first sample takes longer
        start(name)()
    first = clock()
    while True:
        order = shuffler.sample(list(samples), len(samples))
        pending = [(name, start(name)) for name in order]
        for name, read in pending:
            samples[name].append(read())
        rounds += 1
        now = clock()
        if rounds == _MOST_ROUNDS or now + (now - first) / rounds > until:
            break
    base = samples.pop(TORCH)
    torch_us = median(base)
    ours = {
        name: torch_us / median(t / us for t, us in zip(base, kernel, strict=True)) for name, kernel in samples.items()
    }
    return {TORCH: torch_us, **ours}, rounds


Line = tuple[int, str]  # a line of the log: level and text


_Request = _native.Tuning | _native.GroupedTuning


def grouped_candidates(request: _native.GroupedTuning) -> list[str]:
    """Returns the grouped kernels to time: the dispatcher's choice and its neighbours in the list of its family.

    If that choice is torch, they are all kernels of the first family that takes the operands.
    """
    key, names, library = request.key, _native.grouped_names(), _native.lib()
    facts = _native.device_facts(request.ordinal) if request.ordinal >= 0 else _native.preset_facts(key[0])
    for tensor in (request.a, request.b):
        tensor.align = 16  # else the call would not be timed
    query = _native.GroupedQuery(request.a, request.b, key[7], 0, 0, as_torch=1)
    chosen = library.hgemm_grouped_choice(query, facts, ctypes.byref(ctypes.c_char_p()))
    able = _able(query, facts)
    if chosen in able:
        return [names[i] for i in able if abs(i - chosen) <= 1 and _family(names[i]) == _family(names[chosen])]
    return [names[i] for i in able if _family(names[i]) == _family(names[able[0]])]


def time_grouped(
    request: _native.GroupedTuning,
    session: _CudaSession,
    names: Sequence[str],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[_tables.Device, _tables.GroupedEntry, float, int]:
    """Times torch and the kernels ``names`` for ``seconds``. Returns the entry, the seconds it took, and the rounds."""
    begin = clock()
    with session.contenders(names) as start:
        begin += session.aside
        us, rounds = measure(start, names, begin + seconds, clock)
    cc, sm_count, l2_bytes, dtype, divided, a_major, b_major, groups, m, n, k = request.key
    entry = _tables.GroupedEntry(
        dtype=_native.dtype_name(_native.DTYPES[dtype]),
        divided=_tables.DIVIDED[divided],
        layout=_native.LAYOUTS[a_major, b_major],
        groups=groups,
        m=m,
        n=n,
        k=k,
        us={name: round(value, 3) for name, value in us.items()},
    )
    return _tables.Device(session.device_name, cc, sm_count, l2_bytes), entry, clock() - begin, rounds


def tune_grouped(
    rows: int, n: int, k: int, groups: int, dtype: torch.dtype, layout: str, seconds: float
) -> tuple[_tables.Device, _tables.GroupedEntry]:
    """Times (rows, k) @ (groups, k, n) on the current GPU, with random values and rows spread evenly over the groups.

    Every kernel that takes the product is timed.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    x, w = (
        torch.randn(shape if order == "N" else (*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device=device)
        for shape, order in (((rows, k), layout[0]), ((groups, k, n), layout[1]))
    )
    x, w = (t if order == "N" else t.mT for t, order in zip((x, w), layout, strict=True))
    offs = torch.arange(1, groups + 1, device=device).mul(rows).div(groups, rounding_mode="floor").to(torch.int32)
    facts, dtypes = _native.device_facts(device.index), tuple(_native.DTYPES)
    request = _native.GroupedTuning(
        a=_native.view(x.shape, x.stride(), dtype, 16),
        b=_native.view(w.shape, w.stride(), dtype, 16),
        a_data=x.data_ptr(),
        b_data=w.data_ptr(),
        ends=offs.data_ptr(),
        ordinal=device.index,
    )
    majors = next(majors for majors, of in _native.LAYOUTS.items() if of == layout)
    request.key[:] = facts.cc, facts.sm_count, facts.l2_bytes, dtypes.index(dtype), 0, *majors, groups, rows, n, k
    query = _native.GroupedQuery(request.a, request.b, groups, 0, 0, as_torch=1)
    names = [_native.grouped_names()[index] for index in _able(query, facts)]
    session = _GroupedSession(request, torch.cuda.current_stream())
    found, entry, *_ = time_grouped(request, session, names, seconds)
    return found, entry


def _family(name: str) -> str:
    return name.partition("_grouped")[0]


def _able(query: _native.GroupedQuery, facts: _native.Facts) -> list[int]:
    """Returns the indices of the grouped kernels that can compute the product."""
    refusal = _native.lib().hgemm_grouped_refusal
    return [index for index in range(len(_native.grouped_names())) if refusal(index, query, facts) == b""]


_lock = _forks.lock()  # has one shape timed at a time


class Tuner:
    """Times shapes when the dispatcher asks for them, on any thread.

    ``open_session`` returns None if a shape cannot be timed now.
    """

    def __init__(
        self, open_session: Callable[[Any], _CudaSession | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open, self._clock = open_session, clock
        # _lock protects all attributes below. A thread that waits for a worker does not hold it.
        self._settled: set[bytes] = set()
        self._pending: list[tuple[_tables.Device, _tables.Entry | _tables.GroupedEntry]] = []  # not in a file yet
        self._stored = -_STORE_EVERY
        self._done: list[tuple[str, float]] = []  # the fastest contender of each shape, and the seconds taken
        self._warned: set[str] = set()

    def __call__(self, request: _Request) -> bool:
        """Times the shape. Returns True if the dispatcher need not ask again, which includes failures."""
        if bytes(request.entry) in self._settled:
            return True
        # This thread may hold the lock of a log handler, so that a worker that logs would wait for it forever: the
        # worker only collects its lines.
        lines: list[Line] = []
        try:
            session = self._open(request)
            if session is None:
                return False
            worker = threading.Thread(target=self._work, args=(request, session, lines), daemon=True)
            worker.start()
            try:
                worker.join()
            finally:
                worker.join()  # waits even if an interrupt ended the first join: the worker uses the matmul's operands
        except Exception as error:
            self._settled.add(bytes(request.entry))
            lines.append(_failure(error))
        self._log(lines)
        return True

    def _work(self, request: _Request, session: _CudaSession, lines: list[Line]) -> None:
        """Runs on the worker thread."""
        with _lock:
            if bytes(request.entry) in self._settled:
                return  # another thread has timed it meanwhile
            try:
                if isinstance(request, _native.GroupedTuning):
                    lines.append(self._tune_grouped(request, session))
                else:
                    lines.append(self._tune(request, session))
            except Exception as error:
                lines.append(_failure(error))
            finally:
                self._settled.add(bytes(request.entry))
            if self._clock() - self._stored >= _STORE_EVERY:
                lines += self._store()

    def _tune(self, request: _native.Tuning, session: _CudaSession) -> Line:
        """Times one shape and adds it to the dispatcher's table. Returns the line for the log."""
        (_, torch_us), *kernels = _native.tuning_candidates(request, _MOST_KERNELS)
        kernels = kernels[: affordable(torch_us, [us for _, us in kernels])]
        names = [_variants.name_of(id_) for id_, _ in kernels]
        begin = self._clock()
        with session.contenders(names) as start:
            begin += session.aside
            us, rounds = measure(start, names, begin + BUDGET, self._clock)
        took = self._clock() - begin
        e = request.entry
        device = _tables.Device(session.device_name, e.cc, e.sm_count, e.l2_bytes, e.dram_gbs)
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

    def _tune_grouped(self, request: _native.GroupedTuning, session: _CudaSession) -> Line:
        """Times a grouped matmul of new sizes and adds it to the dispatcher's table. Returns the line for the log."""
        device, entry, took, rounds = time_grouped(request, session, grouped_candidates(request), BUDGET, self._clock)
        _tables.keep_grouped(device, entry)
        self._pending.append((device, entry))
        ranked = sorted(entry.us, key=lambda name: entry.us[name])
        self._done.append((ranked[0], took))
        times = ", ".join(f"{name} {entry.us[name]:.1f} us" for name in ranked)
        where = f"{entry.dtype} {entry.layout} {entry.label} on cuda:{request.ordinal}"
        return logging.INFO, f"tuned {where} in {took * 1e3:.1f} ms, {rounds} rounds: {times}"

    def _store(self) -> list[Line]:
        """Adds the new times to the files of this environment.

        Times that cannot be stored stay in this process alone.
        """
        self._stored = self._clock()
        pending, self._pending = self._pending, []
        lines: list[Line] = []
        for device in dict.fromkeys(device for device, _ in pending):
            entries = [entry for of, entry in pending if of == device]
            try:
                with _tables.updating(_tables.tuned_file(device), device, _PATIENCE) as table:
                    held = {entry.shape: entry for entry in (*table.entries, *table.grouped, *entries)}
                    table.entries = [e for e in held.values() if isinstance(e, _tables.Entry)]
                    table.grouped = [e for e in held.values() if isinstance(e, _tables.GroupedEntry)]
                    table.measured = dict(_tables.environment())
            except (OSError, RuntimeError, ValueError) as error:  # RuntimeError if there is no home directory
                text = f"cannot write the tuning cache, so these timings are lost at exit: {error}"
                lines.append((logging.WARNING, text))
        return lines

    def finish(self) -> None:
        """Stores the times that are in no file yet, and logs a summary since the last call.

        It is called at the end of a context and at the end of the process.
        """
        with _lock:
            lines = self._store()
            done, self._done = self._done, []
        if done:
            ours, seconds = sum(name != TORCH for name, _ in done), sum(took for _, took in done)
            shapes = f"{len(done)} {'shape' if len(done) == 1 else 'shapes'}"
            text = f"tuned {shapes} in {seconds:.2f} s: one of our kernels was the fastest for {ours}"
            lines.append((logging.INFO, text))
        self._log(lines)

    def _log(self, lines: Iterable[Line]) -> None:
        """Logs the lines; a warning only once, however often its cause returns."""
        for level, text in lines:
            if level == logging.WARNING and text in self._warned:
                continue
            if level == logging.WARNING:
                self._warned.add(text)
            _library.logger.log(level, "%s", text)


def _failure(error: Exception) -> Line:
    return logging.WARNING, f"tuning failed, so the cost model chooses the kernel: {type(error).__name__}: {error}"


# ---- Timing on a GPU


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream for all shapes of a device. Torch keeps a cuBLAS workspace for each stream that a matmul ran
    on."""
    return torch.cuda.Stream(device)


def _extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _foreign(
    address: int | None, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns a tensor in memory of the device that is another tensor's."""
    # Torch takes foreign memory by this interface: here as integers of the elements' size.
    kind = {"shape": (_extent(sizes, strides),), "typestr": f"<i{dtype.itemsize}", "version": 3}
    memory = SimpleNamespace(__cuda_array_interface__={"data": (address, False), **kind})
    return torch.as_tensor(memory, device=device).view(dtype).as_strided(tuple(sizes), tuple(strides))


def _timed(flush: Tensor, enqueue: Callable[[], None]) -> Callable[[], float]:
    """Evicts the L2 and calls ``enqueue``. Returns a function that waits, and returns the microseconds it took."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.max()
    begin.record()
    enqueue()
    end.record()

    def microseconds() -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    return microseconds


class _CudaSession:
    """One matmul, timed on the tuner's stream after the work that was before the matmul on its own stream.

    ``aside`` is the time in seconds that ``contenders`` spent on other work than timing the shape: waiting for the
    matmul's stream, and loading kernels.
    """

    def __init__(self, request: _native.Tuning, stream: torch.cuda.Stream) -> None:
        self.device_name = torch.cuda.get_device_name(request.ordinal)
        self._request, self._stream, self.aside = request, stream, 0.0
        self._device = torch.device("cuda", request.ordinal)
        self._dtype = _native.DTYPES[request.entry.dtype]
        # A request always has two batch dimensions: how many of them the matmul does not have.
        self._absent = 0 if request.batch[0] > 1 else 1 if request.batch[1] > 1 else 2

    @classmethod
    def open(cls, request: Any) -> _CudaSession | None:
        """Opens a session, on the thread of the matmul. Returns None while its stream is being captured."""
        if request.ordinal < 0:
            return None
        with torch.cuda.device(request.ordinal):
            if torch.cuda.is_current_stream_capturing():
                return None
            return cls(request, torch.cuda.current_stream())

    @contextlib.contextmanager
    def contenders(self, names: Sequence[str]) -> Iterator[Start]:
        """Yields a function that starts samples of torch and of the kernels, all of which are loaded."""
        request, entry, library = self._request, self._request.entry, _native.lib()
        library.hgemm_context_leave_all()
        stream = _stream_of(self._device)
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(stream):
            begin = time.monotonic()
            self._stream.synchronize()
            self.aside = time.monotonic() - begin
            a = self._operand(request.a, (entry.m, entry.k), request.a_strides)
            b = self._operand(request.b, (entry.k, entry.n), request.b_strides)
            out = self._result((entry.m, entry.n))
            ids = {name: _variants.resolve(name) for name in names}
            most = max(library.hgemm_tuning_workspace(request, id_) for id_ in ids.values())
            scratch = torch.empty(most, dtype=torch.uint8, device=self._device)
            flush = torch.zeros(max(1, _FLUSH * entry.l2_bytes // 4), dtype=torch.int32, device=self._device)
            multiply: Callable[..., Tensor] = (torch.mm, torch.bmm, torch.matmul)[out.dim() - 2]

            def call(name: str, a: Tensor, b: Tensor, out: Tensor) -> None:
                if name == TORCH:
                    multiply(a, b, out=out)
                    return
                addresses = (a.data_ptr(), b.data_ptr(), out.data_ptr(), scratch.data_ptr(), stream.cuda_stream)
                failure = library.hgemm_tuning_launch(request, ids[name], *addresses)
                if failure is not None:
                    raise RuntimeError(f"{name} failed to launch: {failure.decode()}")

            timed = functools.partial(_timed, flush)
            begin = time.monotonic()
            for name in (*names, TORCH):  # the first call of a kernel loads it
                call(name, a, b, out)
            stream.synchronize()
            self.aside += time.monotonic() - begin
            alone = min(timed(lambda: call(TORCH, a, b, out))() for _ in range(2))
            calls = calls_of_sample(max(1.0, alone - _LAUNCH_US))
            bytes_of_call = sum(x.untyped_storage().nbytes() for x in (a, b, out))
            sets = [(a, b, out)]
            with contextlib.suppress(torch.cuda.OutOfMemoryError):  # then the sample has fewer calls
                for _ in range(1, min(calls, int(_OPERANDS * entry.l2_bytes / bytes_of_call))):
                    sets.append((self._copy(a), self._copy(b), self._result((entry.m, entry.n))))
            pool = torch.cuda.graph_pool_handle()

            @functools.cache
            def sample(name: str) -> torch.cuda.CUDAGraph:
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool, capture_error_mode="thread_local")  # other threads may go on calling CUDA
                try:
                    for operands in sets:
                        call(name, *operands)
                finally:
                    graph.capture_end()
                return graph

            def start(name: str) -> Callable[[], float]:
                read = timed(sample(name).replay)
                return lambda: read() / len(sets)

            yield start

    def _sizes(self, matrix: tuple[int, int]) -> tuple[int, ...]:
        """Returns the sizes of a matrix with the batch dimensions that the matmul has."""
        return (*self._request.batch, *matrix)[self._absent :]

    def _operand(self, address: int | None, matrix: tuple[int, int], strides_of: Sequence[int]) -> Tensor:
        """Returns the matmul's own operand. If it would be a copy that is yet to be made, returns values of N(0, 1)
        instead."""
        sizes, strides = self._sizes(matrix), tuple(strides_of)[self._absent :]
        if address:
            return _foreign(address, sizes, strides, self._dtype, self._device)
        generator = torch.Generator(self._device).manual_seed(0)  # leaves the state of the user's generator alone
        values = torch.randn(_extent(sizes, strides), dtype=self._dtype, device=self._device, generator=generator)
        return values.as_strided(sizes, strides)

    def _copy(self, x: Tensor) -> Tensor:
        """Returns a copy with the same gaps between rows and the same alignment."""
        flat = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,))
        return self._aligned(flat.numel(), x.data_ptr()).copy_(flat).as_strided(x.shape, x.stride())

    def _result(self, matrix: tuple[int, int]) -> Tensor:
        """Returns memory for a result, with the alignment of the matmul's own."""
        sizes = self._sizes(matrix)
        return self._aligned(math.prod(sizes), self._request.d or 0).view(sizes)

    def _aligned(self, count: int, address: int) -> Tensor:
        """Returns ``count`` elements in new memory, at the same offset within a cache line as ``address``."""
        offset = address % _LINE // self._dtype.itemsize
        return torch.empty(offset + count, dtype=self._dtype, device=self._device)[offset:]


class _GroupedSession(_CudaSession):
    """One grouped matmul, timed on its own operands and ends. A sample is one call from the host.

    The read that evicts the L2 runs before each call, for longer than a launch takes. Torch's calls that wait for the
    device are timed with that wait.
    """

    def __init__(self, request: _native.GroupedTuning, stream: torch.cuda.Stream) -> None:
        self.device_name = torch.cuda.get_device_name(request.ordinal)
        self._product, self._stream, self.aside = request, stream, 0.0
        self._device = torch.device("cuda", request.ordinal)

    @contextlib.contextmanager
    def contenders(self, names: Sequence[str]) -> Iterator[Start]:
        request = self._product
        _native.lib().hgemm_context_leave_all()
        stream = _stream_of(self._device)
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(stream):
            begin = time.monotonic()
            self._stream.synchronize()
            a, b = (
                _foreign(address, t.sizes[: t.ndim], t.strides[: t.ndim], _native.DTYPES[t.dtype], self._device)
                for address, t in ((request.a_data, request.a), (request.b_data, request.b))
            )
            offs = _foreign(request.ends, (request.key[7],), (1,), torch.int32, self._device)
            ids = {name: index for index, name in enumerate(_native.grouped_names())}
            flush = torch.zeros(max(1, _FLUSH * request.key[2] // 4), dtype=torch.int32, device=self._device)

            def call(name: str) -> None:
                if name == TORCH:
                    torch._grouped_mm(a, b, offs=offs)
                else:
                    OPS.grouped_mm.default(a, b, offs, variant=ids[name])

            def start(name: str) -> Callable[[], float]:
                return _timed(flush, lambda: call(name))

            for name in (*names, TORCH):  # the first call of a kernel loads it
                call(name)
            stream.synchronize()
            self.aside = time.monotonic() - begin
            yield start


# ---- The tuner of the process


@functools.cache
def by_default() -> bool:
    """Returns what ``HGEMM_OPS_TUNE`` said at import."""
    return _library.flag("HGEMM_OPS_TUNE")


def _open(request: _Request) -> _CudaSession | None:
    return (_GroupedSession if isinstance(request, _native.GroupedTuning) else _CudaSession).open(request)


@functools.cache
def tuner() -> Tuner:
    """Returns the tuner of the process. The first call registers it with the dispatcher."""
    made = Tuner(_open)
    # Where torch.compile is in use, it must not trace what the tuner does.
    call = torch.compiler.disable(made.__call__) if "torch._dynamo" in sys.modules else made
    _native.on_tuning(call)
    _native.on_grouped_tuning(call)
    atexit.register(made.finish)
    return made


def apply_environment() -> None:
    """Turns tuning on where no context says otherwise, if ``HGEMM_OPS_TUNE`` asks for it."""
    if by_default() and _library.load():
        _native.lib().hgemm_tuning_default(1)
        tuner()
