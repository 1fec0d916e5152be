"""ctypes bindings of the dispatcher's C API (``csrc/dispatch/c_api.h``): structs, prototypes and error handling.

The structs mirror those of the header, which documents their fields.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import logging
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int8, c_int16, c_int32, c_int64, c_void_p
from typing import Any, NamedTuple

import torch

from . import _library

MAX_DIMS = 8
AUTO, TORCH, UNKNOWN = -1, -2, -3

#: The enums of csrc/core/problem.h and csrc/dispatch. The index of a name is its value there.
DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.int32,
)
#: The dtypes of matmuls that kernels take.
KERNEL_DTYPES = DTYPES[:5]
#: Those of tables, which have no times of the few kernels for the others, and those of grouped matmuls.
TABLE_DTYPES = GROUPED_DTYPES = DTYPES[:3]
#: Those for which torch's time is predicted at all sizes on every GPU.
PREDICTED_DTYPES = (*TABLE_DTYPES, torch.complex64)
#: Those of :func:`hgemm_ops.explain`, which also answers for torch._int_mm.
EXPLAINED_DTYPES = (*KERNEL_DTYPES, torch.int8)
SOURCES = ("forced", "table", "model", "fallback")
NUMERICS = ("fast", "batch_invariant", "batch_invariant_or_raise")
FLOAT32 = ("strict", "split")
#: The summation orders of kernels (the enum Sums).
SUMS = ("vary", "in order", "two slices", "four slices", "planes", "planes by mma.sync", "chain", "carried")
OPS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "linear")
LAYOUTS = {(0, 1): "NN", (0, 0): "NT", (1, 1): "TN", (1, 0): "TT"}  # (major of a, major of b)


def _each(ctype: Any, *names: str) -> list[tuple[str, Any]]:
    """Returns fields of one type, as ``Structure._fields_`` takes them."""
    return [(name, ctype) for name in names]


class Tensor(Structure):
    _fields_ = [
        *_each(c_int32, "ndim", "dtype"),
        *_each(c_int64 * MAX_DIMS, "sizes", "strides"),
        ("align", c_int32),
    ]


class Facts(Structure):
    _fields_ = [
        *_each(c_int32, "cc", "sm_count", "smem_optin", "smem_per_sm"),
        *_each(c_int64, "l2_bytes", "dram_gbs"),
        ("slow_float64", c_int32),
    ]


class VariantInfo(Structure):
    _fields_ = [
        *_each(c_char_p, "name", "family"),
        *_each(c_int32, "min_cc", "max_cc"),
        ("dtypes", ctypes.c_uint32),
        ("arithmetic", c_int32),
        ("tile", c_int32 * 5),
        *_each(c_int32, "smem_bytes", "splits_k", "added", "sums"),
    ]


class Query(Structure):
    _fields_ = [
        *_each(Tensor, "a", "b", "c"),
        *_each(c_int32, "op", "has_bias", "act", "out_dtype", "variant", "numerics", "float32", "same_address"),
        ("facts", Facts),
    ]


class Candidate(Structure):
    _fields_ = [
        *_each(c_int32, "variant", "eligible", "forced_only", "reserved"),
        *_each(c_double, "predicted_us", "measured_us"),
        ("reason", ctypes.c_char * 512),
    ]


class Timing(Structure):
    _fields_ = [*_each(c_int32, "variant", "reserved"), ("us", c_double)]


class TableEntry(Structure):
    _fields_ = [
        *_each(c_int32, "cc", "sm_count"),
        ("l2_bytes", c_int64),
        *_each(c_int32, "dtype", "a_major", "b_major", "align"),
        *_each(c_int64, "batch", "m", "n", "k"),
        *_each(c_int32, "first_timing", "timing_count"),
        ("dram_gbs", c_int64),
    ]


class CallKind(Structure):
    # `left` is the reason why torch ran the matmul without asking the dispatcher (HgemmLeft), 0 where it was asked.
    _fields_ = [
        *_each(c_int64, "batch", "m", "n", "k"),
        *_each(c_int32, "site", "variant"),
        *_each(c_int16, "ordinal", "cc"),
        *_each(c_int8, "dtype", "out_dtype", "a_major", "b_major", "act", "has_bias", "has_c", "align"),
        *_each(c_int8, "source", "left", "numerics", "float32"),
        *_each(c_float, "us", "torch_us", "margin"),
        ("neighbours", c_int16),
        *_each(c_int8, "measured_dtype", "remark"),
    ]


class Decision(Structure):
    _anonymous_ = ("kind",)
    _fields_ = [("kind", CallKind), ("reason", ctypes.c_char * 4096)]


class CallCount(Structure):
    _anonymous_ = ("kind",)
    _fields_ = [("kind", CallKind), ("calls", c_int64)]


class Settings(Structure):
    """The settings of a context. Without arguments, it asks for nothing in particular."""

    _fields_ = [("variant", c_int32), *_each(c_int8, "numerics", "float32", "tunes", "reserved")]

    def __init__(self, variant: int = AUTO, numerics: int = AUTO, float32: int = AUTO, tunes: int = AUTO) -> None:
        super().__init__(variant, numerics, float32, tunes)

    @property
    def as_int(self) -> int:
        """The bytes of the struct, as the library's function takes them."""
        return int.from_bytes(bytes(self), sys.byteorder)

    @classmethod
    def of(cls, as_int: int) -> Settings:
        """Returns the settings that ``as_int`` was made of."""
        return cls.from_buffer_copy(as_int.to_bytes(ctypes.sizeof(cls), sys.byteorder))


class Tuning(Structure):
    _fields_ = [
        ("entry", TableEntry),
        *_each(c_int32, "ordinal", "reserved"),
        ("batch", c_int64 * 2),
        *_each(c_void_p, "a", "b", "d"),
        *_each(c_int64 * 4, "a_strides", "b_strides"),
        ("state", ctypes.c_uint64 * 64),
    ]


class GroupedQuery(Structure):
    _fields_ = [
        *_each(Tensor, "a", "b"),
        ("groups", c_int64),
        *_each(c_int32, "numerics", "float32", "as_torch", "reserved"),
    ]


class GroupedTuning(Structure):
    _fields_ = [
        ("key", c_int64 * 11),
        *_each(Tensor, "a", "b"),
        *_each(c_void_p, "a_data", "b_data", "ends"),
        *_each(c_int32, "ordinal", "reserved"),
    ]

    @property
    def entry(self) -> Any:
        """The key of the product, as ``Tuning.entry`` is that of its matmul."""
        return self.key


#: In the order of c_api.h. The library's hgemm_abi() returns their sizes, for comparison.
_STRUCTS = (
    Tensor, Facts, VariantInfo, Query, Candidate, Timing, TableEntry, CallKind, Decision, CallCount, Settings, Tuning,
    GroupedQuery, GroupedTuning,
)  # fmt: skip
_LogFn = ctypes.CFUNCTYPE(None, c_char_p)
_FirstUseFn = ctypes.CFUNCTYPE(None)
_TunerFn = ctypes.CFUNCTYPE(c_int, POINTER(Tuning))
_GroupedTunerFn = ctypes.CFUNCTYPE(c_int, POINTER(GroupedTuning))
_FindFn = ctypes.CFUNCTYPE(c_void_p)

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "hgemm_abi": (c_int, [POINTER(c_int32), c_int]),
    "hgemm_last_error": (c_char_p, []),
    "hgemm_register_ops": (c_char_p, [c_char_p]),
    "hgemm_variant_count": (c_int, []),
    "hgemm_variant_info": (c_int, [c_int, POINTER(VariantInfo)]),
    "hgemm_find_variant": (c_int, [c_char_p]),
    "hgemm_grouped_name": (c_char_p, [c_int]),
    "hgemm_grouped_choice": (c_int, [POINTER(GroupedQuery), POINTER(Facts), POINTER(c_char_p)]),
    "hgemm_grouped_refusal": (c_char_p, [c_int, POINTER(GroupedQuery), POINTER(Facts)]),
    "hgemm_has_device_code": (c_int, []),
    "hgemm_chips": (c_int, [POINTER(c_int32), c_int]),
    "hgemm_preset_facts": (c_int, [c_int, POINTER(Facts)]),
    "hgemm_device_facts": (c_int, [c_int, POINTER(Facts)]),
    "hgemm_device_fault": (c_char_p, [c_int]),
    "hgemm_fault_of": (c_char_p, [c_char_p, c_int, c_int]),
    "hgemm_set_warning": (None, [c_void_p]),
    "hgemm_read": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "hgemm_explain": (c_int, [POINTER(Query), POINTER(Decision), POINTER(Candidate)]),
    "hgemm_features": (c_int, [POINTER(Query), c_int, c_double, POINTER(c_float), c_int]),
    "hgemm_select_ns": (c_double, [POINTER(Query), c_int, c_int]),
    "hgemm_table_set": (c_int, [POINTER(TableEntry), c_int, POINTER(Timing), c_int]),
    "hgemm_table_add": (c_int, [POINTER(TableEntry), POINTER(Timing), c_int]),
    "hgemm_table_size": (c_int, [POINTER(Facts)]),
    "hgemm_set_default_variant": (c_int, [c_int]),
    "hgemm_default_variant": (c_int, []),
    "hgemm_set_default_numerics": (c_int, [c_int]),
    "hgemm_set_default_float32": (c_int, [c_int]),
    "hgemm_set_most_workspace": (None, [c_int64]),
    "hgemm_set_allocation_failed": (None, [c_void_p]),
    "hgemm_set_log": (None, [c_void_p]),
    "hgemm_set_first_use": (None, [c_void_p]),
    "hgemm_context_set_process": (None, [c_void_p]),
    "hgemm_span_new": (c_void_p, [c_void_p]),
    "hgemm_span_resume": (None, [c_void_p]),
    "hgemm_span_suspend": (None, [c_void_p]),
    "hgemm_span_delete": (None, [c_void_p]),
    "hgemm_context_rows": (c_int, [c_void_p, c_int, POINTER(CallCount), c_int]),
    "hgemm_reasons": (c_int64, [POINTER(CallCount), c_int, c_void_p, c_int64]),
    "hgemm_standing_numerics": (c_int, []),
    "hgemm_standing_float32": (c_int, []),
    "hgemm_left_reason": (c_char_p, [c_int]),
    "hgemm_context_leave_all": (None, []),
    "hgemm_tuning_default": (None, [c_int]),
    "hgemm_set_tuner": (None, [c_void_p]),
    "hgemm_set_grouped_tuner": (None, [c_void_p]),
    "hgemm_grouped_times_add": (c_int, [POINTER(c_int64), POINTER(Timing), c_int]),
    "hgemm_grouped_times_clear": (None, []),
    "hgemm_tuning_candidates": (c_int, [POINTER(Tuning), POINTER(Timing), c_int]),
    "hgemm_tuning_workspace": (c_int64, [POINTER(Tuning), c_int]),
    "hgemm_tuning_launch": (c_char_p, [POINTER(Tuning), c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "hgemm_sites_enable": (None, [c_int]),
    "hgemm_site_set": (c_int, [c_int]),
    "hgemm_gemm_api": (c_void_p, []),
}


def declare(library: ctypes.CDLL, names: Iterable[str]) -> None:
    """Gives functions of a library their prototypes. The library has this API, or a part of it."""
    for name in names:
        function = getattr(library, name)
        function.restype, function.argtypes = _PROTOTYPES[name]


@functools.cache
def lib() -> ctypes.CDLL:
    """Returns the loaded library with its prototypes. RuntimeError if it cannot be loaded."""
    if not _library.load():
        raise RuntimeError(f"hgemm_ops: no native library: {_library.reason()}")
    library = ctypes.CDLL(str(_library.PATH))
    declare(library, _PROTOTYPES)
    sizes = (c_int32 * len(_STRUCTS))()
    count = library.hgemm_abi(sizes, len(_STRUCTS))
    mirrored = [ctypes.sizeof(struct) for struct in _STRUCTS]
    if count != len(_STRUCTS) or list(sizes) != mirrored:
        raise RuntimeError(
            f"hgemm_ops: {_library.PATH} belongs to another version of this package: "
            f"struct sizes {list(sizes)}, expected {mirrored}"
        )
    return library


def check(status: int, error: type[Exception] = RuntimeError) -> None:
    """Raises ``error`` with the library's message if ``status`` is not 0."""
    if status != 0:
        raise error(lib().hgemm_last_error().decode())


@functools.cache
def register_ops(namespace: str) -> None:
    """Registers the CUDA implementations of the ops as those of ``torch.ops.<namespace>``. RuntimeError if it fails."""
    error: bytes | None = lib().hgemm_register_ops(namespace.encode())
    if error is not None:
        raise RuntimeError(error.decode())


@functools.cache
def variant_infos() -> tuple[VariantInfo, ...]:
    """Returns the description of every kernel, by id. It is empty if there is no library."""
    if not _library.load():
        return ()
    infos = (VariantInfo * lib().hgemm_variant_count())()
    for id_, info in enumerate(infos):
        check(lib().hgemm_variant_info(id_, info))
    return tuple(infos)


#: The ids of the kernels of grouped matmuls in reports begin here.
FIRST_GROUPED = 1 << 16
#: What a counted call has in place of an activation if it is a grouped matmul.
GROUPED_ACT = -1


@functools.cache
def grouped_names() -> tuple[str, ...]:
    """Returns the names of the kernels of grouped matmuls, by index. It is empty if there is no library."""
    if not _library.load():
        return ()
    names = map(lib().hgemm_grouped_name, itertools.count())
    return tuple(name.decode() for name in itertools.takewhile(bool, names))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def chips() -> tuple[int, ...]:
    """Returns the compute capabilities of the chips that a decision can be made for. It is empty if there is no
    library."""
    if not _library.load():
        return ()
    ccs = (c_int32 * lib().hgemm_chips(None, 0))()
    lib().hgemm_chips(ccs, len(ccs))
    return tuple(ccs)


def preset_facts(cc: int) -> Facts:
    """Returns the facts of one of these chips. ValueError for any other chip."""
    facts = Facts()
    check(lib().hgemm_preset_facts(cc, facts), ValueError)
    return facts


def device_facts(ordinal: int) -> Facts:
    facts = Facts()
    check(lib().hgemm_device_facts(ordinal, facts))
    return facts


def device_fault(ordinal: int) -> str:
    """Returns why this library cannot run on a device, and what to do about it; "" if it can."""
    return lib().hgemm_device_fault(ordinal).decode()


def fault_of_arch(cc: int) -> str:
    """Returns why this library cannot run on devices of a compute capability; "" if it can. It asks no driver."""
    return lib().hgemm_fault_of(None, cc, 0).decode()


def alignment(address: int) -> int:
    """Returns the largest power of two, at most 16, that divides an address."""
    return min(address & -address, 16) if address else 16


def view(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, align: int = 16) -> Tensor:
    """Returns a strided view as the library takes it. ValueError if it has more than ``MAX_DIMS`` dimensions."""
    if len(sizes) > MAX_DIMS:
        raise ValueError(f"explain: tensors must have at most {MAX_DIMS} dimensions, got {len(sizes)}")
    pad = [0] * (MAX_DIMS - len(sizes))
    dims = c_int64 * MAX_DIMS
    return Tensor(len(sizes), DTYPES.index(dtype), dims(*sizes, *pad), dims(*strides, *pad), align)


NO_TENSOR = Tensor(ndim=-1)


def query(a: Tensor, b: Tensor, facts: Facts) -> Query:
    """Returns the query for ``a @ b``, without epilogue. Of int8 matrices it is one for ``torch._int_mm(a, b)``."""
    op = OPS.index("mm" if DTYPES[a.dtype] == torch.int8 else "matmul")
    return Query(a=a, b=b, c=NO_TENSOR, op=op, out_dtype=-1, variant=AUTO, facts=facts)


def explain(query: Query) -> tuple[Decision, list[Candidate]]:
    """Returns the decision and every candidate, torch last. RuntimeError if the op would refuse the operands."""
    candidates = (Candidate * (lib().hgemm_variant_count() + 1))()
    decision = Decision()
    check(lib().hgemm_explain(query, decision, candidates))
    return decision, list(candidates)


def set_table(entries: Sequence[TableEntry], timings: Sequence[Timing]) -> str:
    """Replaces the tuning table. Returns why entries were skipped, or "" if none was."""
    arrays = (TableEntry * len(entries))(*entries), len(entries), (Timing * len(timings))(*timings), len(timings)
    skipped: int = lib().hgemm_table_set(*arrays)
    return f"{skipped} entries skipped: {lib().hgemm_last_error().decode()}" if skipped else ""


def add_to_table(entry: TableEntry, timings: Sequence[Timing]) -> None:
    """Adds an entry to the tuning table, and replaces the one of the same matmul if there is one.

    RuntimeError if no matmul can have such an entry.
    """
    check(lib().hgemm_table_add(entry, (Timing * len(timings))(*timings), len(timings)))


class _Method(Structure):
    """A PyMethodDef of Python's stable ABI."""

    _fields_ = [("name", c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", c_char_p)]


_METH_O = 8  # the function has one argument


class ContextCalls(NamedTuple):
    """The calls around each context, as built-in functions: through ctypes they would take ten times as long.

    ``new`` takes ``Settings.as_int`` and returns a capsule, which the others take. ``exit`` ends this thread's last
    entry of the context, else another thread's, and returns False if there was none.
    """

    new: Callable[[int], Any]
    enter: Callable[[Any], bool]
    exit: Callable[[Any], bool]


@functools.cache
def context_calls() -> ContextCalls:
    """Returns these functions. The first call loads the library."""
    make = ctypes.pythonapi["PyCFunction_NewEx"]  # an object of our own: the attribute is shared with other packages
    make.restype, make.argtypes = ctypes.py_object, [POINTER(_Method), ctypes.py_object, c_void_p]

    def function(name: str) -> Any:
        address = ctypes.cast(getattr(lib(), f"hgemm_builtin_context_{name}"), c_void_p)
        method = _Method(name.encode(), address, _METH_O)
        return make(method, method, None)  # as the function's `self`, its definition lives as long as the function

    return ContextCalls(*map(function, ContextCalls._fields))


@functools.cache
def _pointer_of() -> Any:
    function = ctypes.pythonapi["PyCapsule_GetPointer"]
    function.restype, function.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    return function


class Context:
    """A context of the library: its settings, and the matmuls that are counted while it is active."""

    def __init__(self, settings: Settings) -> None:
        self.capsule = context_calls().new(settings.as_int)

    @classmethod
    def of(cls, capsule: Any) -> Context:
        """Returns the context of a capsule that ``ContextCalls.new`` has made."""
        context = cls.__new__(cls)
        context.capsule = capsule
        return context

    @property
    def _handle(self) -> int:
        handle: int = _pointer_of()(self.capsule, b"hgemm_context")
        return handle

    def enter(self) -> None:
        context_calls().enter(self.capsule)

    def exit(self) -> bool:
        """Ends this thread's last entry of the context, else another thread's. Returns False if there was none."""
        return context_calls().exit(self.capsule)

    def set_process(self) -> None:
        """Makes this the context of the process: the outermost one on every thread."""
        lib().hgemm_context_set_process(self._handle)

    def span(self) -> Span:
        """Returns a new span of the context, suspended."""
        return Span(self._handle)

    def rows(self, as_shown: bool = False) -> ctypes.Array[CallCount]:
        """Returns every kind of matmul that was counted at least once, in the order of their first calls.

        With ``as_shown``, kinds that a report shows alike are one, with the sum of their calls.
        """
        capacity = 0
        while True:
            counts = (CallCount * capacity)()
            needed: int = lib().hgemm_context_rows(self._handle, as_shown, counts, capacity)
            if needed <= capacity:
                return counts if needed == capacity else (CallCount * needed).from_buffer_copy(counts)
            capacity = needed


def set_no_process() -> None:
    """Ends the context of the process. Without one, nothing happens."""
    lib().hgemm_context_set_process(None)


_COUNT_FIELDS = struct.Struct("=4q2i2h12b3fh2bq")  # a CallCount's
assert _COUNT_FIELDS.size == ctypes.sizeof(CallCount)


def unpacked(counts: ctypes.Array[CallCount]) -> Iterator[tuple[Any, ...]]:
    """Returns the fields of each kind of matmul, in the order of ``CallCount``."""
    return _COUNT_FIELDS.iter_unpack(counts)


def reasons(counts: ctypes.Array[CallCount]) -> list[str]:
    """Returns why the kernel of each kind of matmul was chosen."""
    capacity = 128 * len(counts)
    while True:
        text = (ctypes.c_char * capacity)()
        needed: int = lib().hgemm_reasons(counts, len(counts), text, capacity)
        if needed <= capacity:
            return text.raw[:needed].decode().split("\0")[:-1]
        capacity = needed


class Span:
    """Code that runs piece by piece inside a context, as the body of a generator does.

    While it is suspended, neither the context nor any context that the code itself has entered and not left is active
    because of it.
    """

    def __init__(self, context: int) -> None:
        library = lib()
        self._handle = library.hgemm_span_new(context)
        self._resume, self._suspend = library.hgemm_span_resume, library.hgemm_span_suspend
        self._delete = library.hgemm_span_delete

    def __del__(self) -> None:
        self._delete(self._handle)

    def resume(self) -> None:
        self._resume(self._handle)

    def suspend(self) -> None:
        self._suspend(self._handle)


# The callbacks that the library may call. ctypes requires that somebody keeps them alive. The library must not call
# them after the interpreter has exited.
_callbacks: list[Any] = []


def _hold(setter: str, callback: Any, library: ctypes.CDLL | None = None) -> None:
    """Registers ``callback`` with a library, this package's if None, and removes it when the interpreter exits.

    ``setter`` is the name of the library's function that registers it.
    """
    _callbacks.append(callback)
    register = getattr(library or lib(), setter)
    register(callback)
    atexit.register(register, None)


def on_first_use(action: Callable[[], None]) -> None:
    """Runs ``action`` once, within the first decision that an op asks for."""
    _hold("hgemm_set_first_use", _FirstUseFn(action))


def on_allocation_failed(find_allocate: Callable[[], int | None], library: ctypes.CDLL | None = None) -> None:
    """Registers a function that returns the address of ``hgemm_aten_allocate`` in ``csrc/aten``, or None.

    The ops of ``library``, this package's if None, call it where they cannot allocate a tensor, to raise
    torch.OutOfMemoryError.
    """
    _hold("hgemm_set_allocation_failed", _FindFn(find_allocate), library)


def on_tuning(tuner: Callable[[Tuning], bool]) -> None:
    """Registers ``tuner``, which times untuned shapes where tuning is on.

    It is given a copy of the request, which it may keep. It returns False if it cannot time the shape now; the
    dispatcher then asks again at the next call.
    """
    _hold("hgemm_set_tuner", _TunerFn(lambda tuning: int(not tuner(Tuning.from_buffer_copy(tuning.contents)))))


def on_grouped_tuning(tuner: Callable[[GroupedTuning], bool]) -> None:
    """Registers ``tuner``, which times grouped matmuls of new sizes where tuning is on, as :func:`on_tuning`."""
    call = _GroupedTunerFn(lambda tuning: int(not tuner(GroupedTuning.from_buffer_copy(tuning.contents))))
    _hold("hgemm_set_grouped_tuner", call)


def add_grouped_times(key: Sequence[int], timings: Sequence[Timing]) -> None:
    """Adds the times of a grouped matmul to the table. RuntimeError if one is impossible."""
    check(lib().hgemm_grouped_times_add((c_int64 * 11)(*key), (Timing * len(timings))(*timings), len(timings)))


def tuning_candidates(tuning: Tuning, most: int) -> list[tuple[int, float]]:
    """Returns the ids and predicted microseconds of torch and of the kernels that may be the fastest.

    Torch is the first. The list has at most ``most`` kernels.
    """
    timings = (Timing * (1 + most))()
    count: int = lib().hgemm_tuning_candidates(tuning, timings, len(timings))
    if count < 0:
        raise RuntimeError("hgemm: cannot list the candidates of a matmul")
    return [(timing.variant, timing.us) for timing in timings[:count]]


def log() -> None:
    """Logs a WARNING for each device in use that this library cannot run on, and an INFO line for each new decision.

    While the level INFO is off, no callback is registered for decisions, so they cost nothing.
    """
    _hold("hgemm_set_warning", _LogFn(lambda line: _library.logger.warning("%s", line.decode())))
    if _library.logger.isEnabledFor(logging.INFO):
        _hold("hgemm_set_log", _LogFn(lambda line: _library.logger.info("%s", line.decode())))
