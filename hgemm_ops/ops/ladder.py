"""The ladder (``csrc/ladder``): kernels for learning and comparing, in a library of their own, ``_ladder.so``.

Every step is an op. A step that multiplies is ``torch.ops.hgemm.<step>(a, b)``: torch.matmul on that kernel alone. Its
kernel takes row-major matrices of one dtype, and its op copies operands that are not row-major. Some steps walk over
the result in panels: ``torch.ops.hgemm.<step>(a, b, swizzle_stride=0)``. ``swizzle_stride`` is the width of a panel in
columns; with 0 the step chooses it.

The first steps of the course compute ``a + b`` for two row-major tensors of one shape and dtype. On CUDA the kernel
with the step's name runs (``csrc/ladder/elementwise.cc``). On other devices, and where a gradient is needed, torch
computes the sum.

The rest of the package calls only ``define_ops`` of this module. Kernels of the ladder run only when they are named. If
the library was not built, the ops exist and raise an error that says so.
"""

import ctypes
import functools
import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, library

from .. import _library, _native, _override, _variants
from . import LIB, aten, autograd, keys
from .aten import require
from .schema import NAMESPACE, OPS, TAGS

_NOT_BUILT = "is a step of the ladder, whose library was not built: install with HGEMM_LADDER=1"

#: The op for kernels that walk over the result in panels of ``swizzle_stride`` columns. With 0, the kernel chooses.
_SWIZZLED = "matmul_swizzled"
_INT32_MAX = 2**31 - 1


class Step(NamedTuple):
    """A kernel that multiplies.

    ``variant`` is its id. The address of every row of its operands must be a multiple of ``row_bytes``.
    """

    name: str
    variant: int
    dtype: torch.dtype
    swizzles: bool
    row_bytes: int


class Addition(NamedTuple):
    """A kernel that adds two tensors of one dtype. It is not a variant of a matmul."""

    name: str
    dtype: torch.dtype


# ---- The library


@functools.cache
def _load() -> tuple[ctypes.CDLL, int] | None:
    """Returns the library and the id of its first kernel; None if it was not built or cannot be loaded.

    The first call appends its kernels to those of ``_C.so``.
    """
    path = _library.PATH.with_name("_ladder.so")
    if not _library.load() or not path.is_file():
        return None
    first = _native.lib().hgemm_variant_count()
    try:
        loaded = ctypes.CDLL(str(path))
        _native.check(loaded.hgemm_ladder_install(ctypes.cast(_native.lib().hgemm_add_variants, ctypes.c_void_p)))
        _native.on_allocation_failed(_override.allocate_function, loaded)
    except (AttributeError, OSError, RuntimeError) as error:
        _library.logger.warning("%s cannot be loaded: %s", path, error)
        return None
    return loaded, first


def is_built() -> bool:
    """Whether the ladder's kernels are available."""
    return _load() is not None


@functools.cache
def steps() -> tuple[Step, ...]:
    """Returns the kernels that multiply, in the order of their ids."""
    found = _load()
    if found is None:
        return ()
    loaded, first = found
    return tuple(
        Step(
            name=info.name.decode(),
            variant=first + index,
            dtype=next(dtype for bit, dtype in enumerate(_native.DTYPES) if info.dtypes >> bit & 1),
            swizzles=bool(loaded.hgemm_ladder_swizzles(index)),
            row_bytes=16 if info.min_cc >= 90 else 1,
        )
        for index, info in enumerate(_native.variant_infos()[first:])
    )


@functools.cache
def additions() -> tuple[Addition, ...]:
    """Returns the kernels that add."""
    found = _load()
    if found is None:
        return ()
    loaded, _ = found
    name = ctypes.c_char_p()
    added: list[Addition] = []
    while (dtype := loaded.hgemm_ladder_addition(len(added), ctypes.byref(name))) >= 0:
        added.append(Addition((name.value or b"").decode(), _native.DTYPES[dtype]))
    return tuple(added)


def _declared() -> list[str]:
    """Returns the names of all steps, from the list that the library is compiled from."""
    package = Path(__file__).resolve().parents[1]
    for csrc in (package / "_csrc", package.parent / "csrc"):
        if (declarations := csrc / "ladder" / "variants.inc").is_file():
            pattern = r"^[A-Z][A-Z0-9_]*\((\w+), (?:F16|BF16|F32),"
            return re.findall(pattern, declarations.read_text(), re.MULTILINE)
    return []


# ---- Ops


def _plain(t: Tensor, row_bytes: int) -> Tensor:
    """Returns ``t``, or a copy, as a row-major tensor whose rows start on multiples of ``row_bytes``."""
    if t.dim() == 0:
        return t  # the op refuses it
    columns, chunk = t.size(-1), max(1, row_bytes // t.element_size())
    pitch = t.stride(-2) if t.dim() > 1 and t.size(-2) > 1 else -(-columns // chunk) * chunk
    starts_on_chunks = pitch % chunk == 0 and t.storage_offset() % chunk == 0
    if (columns <= 1 or t.stride(-1) == 1) and pitch >= columns and starts_on_chunks:
        return t
    if columns % chunk == 0:
        return t.clone(memory_format=torch.contiguous_format)
    return torch.nn.functional.pad(t, (0, -columns % chunk))[..., :columns]


def _define_step(lib: library.Library, step: Step) -> None:
    """Defines the op of a step.

    It is composite: its gradients, vmap, fake tensors and autocast are those of ``hgemm::matmul`` or of
    ``hgemm::matmul_swizzled``. The op copies operands that are not row-major, whereas ``variant=`` refuses them.
    """

    def operands(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        for argument, t in {"a": a, "b": b}.items():
            require(t.dtype == step.dtype, f"hgemm::{step.name}: {argument} must be {step.dtype}, got {t.dtype}")
        return _plain(a, step.row_bytes), _plain(b, step.row_bytes)

    def op(a: Tensor, b: Tensor) -> Tensor:
        return OPS.matmul.default(*operands(a, b), variant=step.variant)

    def swizzling_op(a: Tensor, b: Tensor, swizzle_stride: int = 0) -> Tensor:
        a, b = operands(a, b)
        return OPS.matmul_swizzled.default(a, b, variant=step.variant, swizzle_stride=swizzle_stride)

    swizzle = ", int swizzle_stride=0" if step.swizzles else ""
    lib.define(f"{step.name}(Tensor a, Tensor b{swizzle}) -> Tensor", tags=TAGS)
    lib.impl(step.name, swizzling_op if step.swizzles else op, "CompositeImplicitAutograd")


def _define_swizzled(lib: library.Library, loaded: ctypes.CDLL) -> None:
    """Defines ``hgemm::matmul_swizzled``.

    It is an op of its own because matmul has no argument for the width of a panel, which must reach the kernel from
    compiled graphs and from below autograd.
    """

    def check(swizzle_stride: int) -> None:
        require(
            0 <= swizzle_stride <= _INT32_MAX,
            f"hgemm: swizzle_stride must be a number of columns, or 0 for the kernel's own, got {swizzle_stride}",
        )

    def in_torch(a: Tensor, b: Tensor, *, variant: int, swizzle_stride: int) -> Tensor:
        check(swizzle_stride)
        product: Tensor = aten.FUNCTIONS["matmul"](a, b, variant=variant)
        return product

    def on_cuda(a: Tensor, b: Tensor, *, variant: int, swizzle_stride: int) -> Tensor:
        check(swizzle_stride)
        # The stride is a thread-local variable of the library. It is enough to set it around the call, because the call
        # launches the kernel on this thread.
        before = loaded.hgemm_ladder_set_swizzle_stride(swizzle_stride)
        try:
            product: Tensor = OPS.matmul.default(a, b, variant=variant)
            return product
        finally:
            loaded.hgemm_ladder_set_swizzle_stride(before)

    lib.define(f"{_SWIZZLED}(Tensor a, Tensor b, *, int variant, int swizzle_stride) -> Tensor", tags=TAGS)
    aten.register_op(lib, _SWIZZLED, in_torch)
    autograd.register_op(lib, _SWIZZLED, in_torch)
    keys.register_autocast(lib, _SWIZZLED)
    lib.impl(_SWIZZLED, on_cuda, "CUDA")


def _define_addition(lib: library.Library, name: str, dtype: torch.dtype) -> None:
    """Defines the op of an addition, and everything of it except the CUDA kernel."""

    def add(a: Tensor, b: Tensor) -> Tensor:
        prefix = f"hgemm::{name}: a"
        require(a.dtype == b.dtype == dtype, f"{prefix} and b must be {dtype}, got {a.dtype} and {b.dtype}")
        require(a.shape == b.shape, f"{prefix} {tuple(a.shape)} and b {tuple(b.shape)} must have one shape")
        return torch.add(a, b).contiguous()

    lib.define(f"{name}(Tensor a, Tensor b) -> Tensor", tags=TAGS)
    lib.impl(name, add, "CompositeExplicitAutograd")
    lib.impl(name, add, "FuncTorchBatched")
    autograd.register_op(lib, name, add, lambda call, a, b: add(a, b))
    library.register_fake(f"{NAMESPACE}::{name}", add, lib=lib)


def _define_missing(lib: library.Library, name: str) -> None:
    """Defines an op that raises an error: its step was not built."""

    def op(a: Tensor, b: Tensor, swizzle_stride: int = 0) -> Tensor:
        raise RuntimeError(f"hgemm::{name} {_NOT_BUILT}")

    lib.define(f"{name}(Tensor a, Tensor b, int swizzle_stride=0) -> Tensor", tags=TAGS)
    lib.impl(name, op, "CompositeImplicitAutograd")


@functools.cache
def define_ops() -> None:
    """Adds the ladder's kernels to those of ``_C.so``, which must be loaded, and defines the op of every step.

    Call it before anything asks which kernels there are; later calls do nothing.
    """
    found = _load()
    if found is None:
        for name in _declared():
            _variants.NOT_BUILT[name] = _NOT_BUILT
            _define_missing(LIB, name)
        return
    _define_swizzled(LIB, found[0])
    for step in steps():
        _define_step(LIB, step)
    for addition in additions():
        _define_addition(LIB, addition.name, addition.dtype)
