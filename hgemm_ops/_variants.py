"""The kernels of the library: what there is, and the id behind a name."""

import functools
import itertools
import os
from dataclasses import dataclass

import torch

from hgemm_ops import _library, _native, ops

#: No kernel gives up on newer architectures than this; beyond it a limit means "none".
_NEWEST = 999


#: Why there is no kernel of a name, by name: kernels of libraries that could be there but were not built.
NOT_BUILT: dict[str, str] = {}


@dataclass(frozen=True)
class VariantInfo:
    """One kernel. ``tile`` is (BM, BN, BK, stages, threads); ``max_arch`` is None where any newer chip runs it;
    ``forced_only``: it never runs unless it is asked for.

    ``sums``: kernels whose sums are "in order" give the same bits for an element, whatever else they compute; those of
    "two slices" and of "four slices" of K likewise, and in float32 those of "planes" and of "planes by mma.sync";
    others "vary"."""

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
    return tuple(dtype for bit, dtype in enumerate(_native.KERNEL_DTYPES) if info.dtypes >> bit & 1)


#: By value of the enum Arithmetic in csrc/core/problem.h.
_ARITHMETIC = ("float32 accumulation", "float16 accumulation", "float32 as three bfloat16 planes")

# Square, with a row, small, tiny, off every alignment, and with rows of A and B alone off it.
_SIZES = ((4096, 4096, 4096), (1, 4096, 4096), (128, 128, 4096), (16, 16, 64), (4097, 4097, 4097), (4096, 4096, 4097))


def _layouts() -> list[set[str]]:
    """The layouts each kernel serves for at least one of a few sizes: kernels declare a predicate, not a list."""
    served: list[set[str]] = [set() for _ in range(_native.lib().hgemm_variant_count())]
    chips = map(_native.preset_facts, _native.chips())
    cases = itertools.product(chips, _native.KERNEL_DTYPES, _SIZES, _native.LAYOUTS.values())
    for facts, dtype, (m, n, k), layout in cases:
        if m == 1 and layout[0] == "T":
            continue  # a single row lies as its transpose does
        query = matmul_query(m, n, k, dtype, layout, facts)
        query.float32 = _native.FLOAT32.index("split")
        for c in _native.explain(query)[1][:-1]:
            if c.eligible:
                served[c.variant].add(layout)
    return served


def matmul_query(
    m: int, n: int, k: int, dtype: torch.dtype, layout: str, facts: _native.Facts, batch: int = 1, alignment: int = 16
) -> _native.Query:
    """The question a contiguous (batch of) m x k times k x n asks."""
    strides_a = (k, 1) if layout[0] == "N" else (1, m)
    strides_b = (n, 1) if layout[1] == "N" else (1, k)
    a = _native.view((batch, m, k), (m * k, *strides_a), dtype, alignment)
    b = _native.view((batch, k, n), (k * n, *strides_b), dtype, alignment)
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
    """Every kernel in the library, in the order of their ids; empty where no library was built."""
    return list(_infos())


@functools.cache
def names() -> tuple[str, ...]:
    """Every kernel's name, by id."""
    return tuple(info.name.decode() for info in _native.variant_infos())


@functools.cache
def ids() -> dict[str, int]:
    """Every kernel's id, and that of torch's, by name."""
    return {"torch": _native.TORCH} | {name: id_ for id_, name in enumerate(names())}


def family_of(id_: int) -> str:
    """The family of an id; "torch" of torch's."""
    return "torch" if id_ == _native.TORCH else _native.variant_infos()[id_].family.decode()


def is_forced_only(id_: int) -> bool:
    """Whether a kernel never runs unless it is asked for; False of torch's."""
    return id_ != _native.TORCH and bool(_native.variant_infos()[id_].added)


def define_ops() -> None:
    """Gives every kernel of the loaded library its op. To be called once, after other libraries have added theirs and
    have given them their ops."""
    for id_, (name, info) in enumerate(zip(names(), _native.variant_infos(), strict=True)):
        if not info.added:
            ops.variants.define_kernel(ops.LIB, name, id_)


def name_of(id_: int) -> str:
    """The name of an id, "auto" and "torch" included."""
    return {_native.AUTO: "auto", _native.TORCH: "torch"}.get(id_) or names()[id_]


def resolve(name: str | None) -> int:
    """The id of a kernel's name: -1 for None or "auto", -2 for "torch". ValueError, with the names, for others."""
    if name is None or name == "auto":
        return _native.AUTO
    if name == "torch":
        return _native.TORCH
    if not isinstance(name, str):
        raise TypeError(f"variant: expected a name or None, got {type(name).__name__}")
    if name in ids():
        return ids()[name]
    if name in NOT_BUILT:
        raise ValueError(f"variant: {name!r} {NOT_BUILT[name]}")
    missing = "" if _library.load() else f" (no native library: {_library.reason()})"
    raise ValueError(f"variant: unknown kernel {name!r}; there are {', '.join(('auto', *ids()))}{missing}")


def resolve_mode(argument: str, modes: tuple[str, ...], name: str | None) -> int:
    """The number of a mode; -1 for None. ValueError, with the names, for others."""
    if name is None:
        return _native.AUTO
    if name not in modes:
        raise ValueError(f"{argument}: expected {', '.join(modes)} or None, got {name!r}")
    return modes.index(name)


def resolve_choice(
    variant: str | None = None, numerics: str | None = None, float32: str | None = None
) -> dict[str, int]:
    """The arguments with which a caller chooses among kernels, as the ops take them."""
    return {
        "variant": resolve(variant),
        "numerics": resolve_mode("numerics", _native.NUMERICS, numerics),
        "float32": resolve_mode("float32", _native.FLOAT32, float32),
    }


def standing_numerics() -> str:
    """What a call that asks for nothing gets, now and on this thread."""
    return _native.NUMERICS[_native.lib().hgemm_standing_numerics()] if _library.load() else "fast"


def apply_environment() -> None:
    """Makes ``HGEMM_OPS_VARIANT``, ``HGEMM_OPS_NUMERICS`` and ``HGEMM_OPS_FLOAT32`` what the ops take when neither an
    argument nor the context manager says otherwise."""
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
