"""The kernels of the library: their descriptions, and the ids behind their names."""

import difflib
import functools
import itertools
import os
from dataclasses import dataclass

import torch

from . import _library, _native, ops

#: A kernel whose limit is a newer architecture than this has no limit.
_NEWEST = 999


#: For each kernel of a library that was not built: the reason that an error message gives.
NOT_BUILT: dict[str, str] = {}


@dataclass(frozen=True)
class VariantInfo:
    """One kernel.

    ``tile`` is (BM, BN, BK, stages, threads). ``max_arch`` is None if every newer chip runs the kernel. ``numerics``
    says in what precision it accumulates. A ``forced_only`` kernel runs only when it is named.

    ``sums`` is the summation order. Two kernels with the same order give the same bits for an element, whatever else
    they compute: "in order", "carried", "two slices" and "four slices" (of K), "chain", and in float32 "planes" and
    "planes by mma.sync".
    The bits of kernels with "vary" may depend on M, the batch, the alignment or the device. A kernel keeps to its order
    only where ``numerics`` is batch-invariant.
    """

    name: str
    id: int
    family: str
    min_arch: str
    max_arch: str | None
    dtypes: tuple[torch.dtype, ...]
    layouts: tuple[str, ...]
    numerics: str
    tile: tuple[int, int, int, int, int]
    forced_only: bool = False
    sums: str = _native.SUMS[0]


def _dtypes(info: _native.VariantInfo) -> tuple[torch.dtype, ...]:
    return tuple(dtype for bit, dtype in enumerate(_native.DTYPES) if info.dtypes >> bit & 1)


#: By value of the enum Arithmetic in csrc/core/problem.h.
_ARITHMETIC = (
    "float32 accumulation",
    "float16 accumulation",
    "float32 as three bfloat16 planes",
    "float32 as two float16 planes",
    "int32 accumulation",
    "float64 accumulation",
)

# A square, a single row, a small and a tiny matmul, one without any alignment, and one in which only the rows of A and
# B are not aligned. The cubes are all that some kernels of tiny_batch take.
_SIZES = (
    (4096, 4096, 4096),
    (1, 4096, 4096),
    (128, 128, 4096),
    (16, 16, 64),
    (65, 65, 65),
    (4097, 4097, 4097),
    (4096, 4096, 4097),
    *((size, size, size) for size in range(2, 7)),
)
# Of int8, a square and a few rows, which are more than torch._int_mm refuses.
_INT8_SIZES = ((4096, 4096, 4096), (32, 4096, 4096))
# And a batch whose matrices share B, as (batch, M, N, K).
_SHARED_SIZES = (16, 24, 256, 256)


def _layouts() -> list[set[str]]:
    """Returns the layouts that each kernel can run, for at least one of a few sizes.

    Kernels declare a predicate and no list of layouts, so this function tries them.
    """
    taken: list[set[str]] = [set() for _ in range(_native.lib().hgemm_variant_count())]
    chips = map(_native.preset_facts, _native.chips())
    sizes = [(dtype, size) for dtype in _native.KERNEL_DTYPES for size in _SIZES]
    sizes += [(torch.int8, size) for size in _INT8_SIZES]
    for facts, (dtype, (m, n, k)), layout in itertools.product(chips, sizes, _native.LAYOUTS.values()):
        if m == 1 and layout[0] == "T":
            continue  # a contiguous single row is also its own transpose
        query = matmul_query(m, n, k, dtype, layout, facts)
        query.float32 = _native.FLOAT32.index("split")
        for query.same_address in (False, True) if m == n and layout in ("NT", "TN") else (False,):  # x @ x.T, x.T @ x
            for c in _native.explain(query)[1][:-1]:
                if c.eligible:
                    taken[c.variant].add(layout)
    for facts, layout in itertools.product(map(_native.preset_facts, _native.chips()), ("NN", "NT")):
        for c in _native.explain(shared_query(*_SHARED_SIZES, torch.float16, layout, facts))[1][:-1]:
            if c.eligible:
                taken[c.variant].add(layout)
    return taken


def matmul_query(
    m: int, n: int, k: int, dtype: torch.dtype, layout: str, facts: _native.Facts, batch: int = 1, alignment: int = 16
) -> _native.Query:
    """Returns the query for contiguous matrices, ``batch`` times (m, k) @ (k, n)."""
    strides_a = (k, 1) if layout[0] == "N" else (1, m)
    strides_b = (n, 1) if layout[1] == "N" else (1, k)
    first = 1 if batch == 1 and dtype == torch.int8 else 0  # torch._int_mm takes no batch
    a = _native.view((batch, m, k)[first:], (m * k, *strides_a)[first:], dtype, alignment)
    b = _native.view((batch, k, n)[first:], (k * n, *strides_b)[first:], dtype, alignment)
    return _native.query(a, b, facts)


def shared_query(
    batch: int, m: int, n: int, k: int, dtype: torch.dtype, layout: str, facts: _native.Facts
) -> _native.Query:
    """Returns the query for ``x.transpose(0, 1) @ b``, where x (m, batch, k) is contiguous, and b or its transpose."""
    a = _native.view((batch, m, k), (k, batch * k, 1), dtype, 16)
    b = _native.view((k, n), (n, 1) if layout[1] == "N" else (1, k), dtype, 16)
    return _native.query(a, b, facts)


@functools.cache
def _infos() -> tuple[VariantInfo, ...]:
    if not _library.load():
        return ()
    return tuple(
        VariantInfo(
            name=info.name.decode(),
            id=id_,
            family=info.family.decode(),
            min_arch=f"sm_{info.min_cc}",
            max_arch=None if info.max_cc > _NEWEST else f"sm_{info.max_cc}",
            dtypes=_dtypes(info),
            layouts=tuple(sorted(layouts)),
            numerics=_ARITHMETIC[info.arithmetic],
            tile=tuple(info.tile),
            forced_only=is_forced_only(id_),
            sums=_native.SUMS[info.sums],
        )
        for id_, (info, layouts) in enumerate(zip(_native.variant_infos(), _layouts(), strict=True))
    )


def variants() -> list[VariantInfo]:
    """Returns every kernel in the library, in the order of their ids. The list is empty if no library was built."""
    return list(_infos())


@functools.cache
def names() -> tuple[str, ...]:
    """Returns the name of every kernel, by id."""
    return tuple(info.name.decode() for info in _native.variant_infos())


@functools.cache
def ids() -> dict[str, int]:
    """Returns the id of every kernel, and of "torch", by name."""
    return {"torch": _native.TORCH} | {name: id_ for id_, name in enumerate(names())}


def family_of(id_: int) -> str:
    """Returns the family of the kernel with this id; "torch" for torch."""
    return "torch" if id_ == _native.TORCH else _native.variant_infos()[id_].family.decode()


def splits_float32(name: str) -> bool:
    """Whether a kernel multiplies float32 as planes of 16 bits. False for torch, and if no kernel has the name."""
    id_ = ids().get(name, _native.TORCH)
    return id_ != _native.TORCH and "planes" in _ARITHMETIC[_native.variant_infos()[id_].arithmetic]


def is_forced_only(id_: int) -> bool:
    """Whether a kernel runs only when it is named. False for torch."""
    return id_ != _native.TORCH and bool(_native.variant_infos()[id_].added)


@functools.cache
def define_ops() -> None:
    """Defines an op for every kernel of the loaded library that takes a floating-point dtype, once.

    Call it after other libraries have added their kernels and have defined the ops of those.
    """
    for id_, (name, info) in enumerate(zip(names(), _native.variant_infos(), strict=True)):
        if not info.added and any(dtype.is_floating_point for dtype in _dtypes(info)):
            ops.variants.define_kernel(ops.LIB, name, id_)


@functools.cache
def name_of(id_: int) -> str:
    """Returns the name of an id, which may be that of a grouped matmul in a report.

    "auto", "torch" and "unknown" are names, too.
    """
    if id_ >= _native.FIRST_GROUPED:
        return _native.grouped_names()[id_ - _native.FIRST_GROUPED]
    others = {_native.AUTO: "auto", _native.TORCH: "torch", _native.UNKNOWN: "unknown"}
    return others.get(id_) or names()[id_]


def resolve(name: str | None) -> int:
    """Returns the id of a kernel's name: -1 for None and "auto", -2 for "torch".

    Raises:
        ValueError: there is no such kernel. The message has the names that are most like it.
        TypeError: ``name`` is not a string.
    """
    if name is None or name == "auto":
        return _native.AUTO
    if name == "torch":
        return _native.TORCH
    if not isinstance(name, str):
        raise TypeError(f"variant: expected the name of a kernel or None, got {type(name).__name__}")
    if name in ids():
        return ids()[name]
    if name in NOT_BUILT:
        raise ValueError(f"variant: {name!r} {NOT_BUILT[name]}")
    missing = "" if _library.load() else f" (no native library: {_library.reason()})"
    alike = difflib.get_close_matches(name, names(), 5, 0.5)
    others = f" and {len(names()) - len(alike)} others that hgemm_ops.variants() lists" if names() else ""
    available = ", ".join(("auto", "torch", *alike))
    raise ValueError(f"variant: unknown kernel {name!r}; available: {available}{others}{missing}")


def resolve_mode(argument: str, modes: tuple[str, ...], name: str | None) -> int:
    """Returns the number of a mode, -1 for None. ValueError, with the names of the modes, for others."""
    if name is None:
        return _native.AUTO
    if name not in modes:
        raise ValueError(f"{argument}: expected {', '.join(modes)} or None, got {name!r}")
    return modes.index(name)


def resolve_choice(
    variant: str | None = None, numerics: str | None = None, float32: str | None = None
) -> dict[str, int]:
    """Returns the arguments ``variant``, ``numerics`` and ``float32`` as the ops take them: as numbers."""
    return {
        "variant": resolve(variant),
        "numerics": resolve_mode("numerics", _native.NUMERICS, numerics),
        "float32": resolve_mode("float32", _native.FLOAT32, float32),
    }


def standing_numerics() -> str:
    """Returns the default ``numerics`` of a call on this thread: the context's if one is active, else the
    environment's."""
    return _native.NUMERICS[_native.lib().hgemm_standing_numerics()] if _library.load() else "fast"


def apply_environment() -> None:
    """Sets the defaults of ``variant``, ``numerics`` and ``float32`` to the values of ``HGEMM_OPS_VARIANT``,
    ``HGEMM_OPS_NUMERICS`` and ``HGEMM_OPS_FLOAT32``.

    An argument or the context manager overrides them. ValueError if a value is not valid.
    """
    for argument in ("variant", "numerics", "float32"):
        variable = f"HGEMM_OPS_{argument.upper()}"
        value = os.environ.get(variable)
        if not value:
            continue
        if not _library.load():
            if not _library.flag("HGEMM_OPS_DISABLE"):
                _library.logger.warning("%s=%s has no effect: %s", variable, value, _library.reason())
            continue
        try:
            number = resolve_choice(**{argument: value})[argument]
        except ValueError as error:
            raise ValueError(f"{variable}: {error}") from None
        _native.check(getattr(_native.lib(), f"hgemm_set_default_{argument}")(number))
