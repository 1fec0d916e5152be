"""One op per kernel: ``torch.ops.hgemm.<variant>(a, b)`` is torch.matmul through that kernel alone.

The ladder's first rungs add instead: ``a + b`` of two tensors of one shape and dtype, on CUDA through the kernel of
that name (``csrc/ladder/elementwise.cc``), elsewhere, and where a gradient is wanted, through torch. The result is
row-major; operands that are not are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, library

from hgemm_ops.ops import autograd
from hgemm_ops.ops.aten import require
from hgemm_ops.ops.schema import NAMESPACE, TAGS

NO_LADDER = "is a step of the ladder, whose library was not built: install with HGEMM_LADDER=1"


@dataclass(frozen=True)
class Kernel:
    """What the op of a kernel is made from.

    id: the ``variant`` that the other ops take.
    rung_of: the one dtype of a kernel of the ladder, which takes plain row-major matrices; None for the others.
    swizzles: the op has a ``swizzle_stride``.
    row_bytes: what a rung wants the address of every row to be a multiple of.
    """

    name: str
    id: int
    rung_of: torch.dtype | None = None
    swizzles: bool = False
    row_bytes: int = 1


def _plain(t: Tensor, row_bytes: int) -> Tensor:
    """``t``, or a copy: row-major, its rows starting on ``row_bytes``."""
    if t.dim() == 0:
        return t  # for the op to refuse
    columns, chunk = t.size(-1), max(1, row_bytes // t.element_size())
    pitch = t.stride(-2) if t.dim() > 1 and t.size(-2) > 1 else -(-columns // chunk) * chunk
    starts_on_chunks = pitch % chunk == 0 and t.storage_offset() % chunk == 0
    if (columns <= 1 or t.stride(-1) == 1) and pitch >= columns and starts_on_chunks:
        return t
    if columns % chunk == 0:
        return t.clone(memory_format=torch.contiguous_format)
    return torch.nn.functional.pad(t, (0, -columns % chunk))[..., :columns]


def _op(kernel: Kernel) -> Callable[..., Tensor]:
    def operands(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if kernel.rung_of is None:
            return a, b
        for name, t in {"a": a, "b": b}.items():
            require(t.dtype == kernel.rung_of, f"hgemm::{kernel.name}: {name} must be {kernel.rung_of}, got {t.dtype}")
        return _plain(a, kernel.row_bytes), _plain(b, kernel.row_bytes)

    def op(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.hgemm.matmul.default(*operands(a, b), variant=kernel.id)

    def swizzling_op(a: Tensor, b: Tensor, swizzle_stride: int = 0) -> Tensor:
        a, b = operands(a, b)
        return torch.ops.hgemm.matmul_swizzled.default(a, b, variant=kernel.id, swizzle_stride=swizzle_stride)

    return swizzling_op if kernel.swizzles else op


def define_kernels(lib: library.Library, kernels: Sequence[Kernel]) -> None:
    """Defines the op of every kernel.

    Composite: gradients, vmap, fake tensors and autocast are those of ``hgemm::matmul``. A rung's op copies operands
    that are not row-major; forced by ``variant=`` it refuses them.
    """
    for kernel in kernels:
        swizzle = ", int swizzle_stride=0" if kernel.swizzles else ""
        lib.define(f"{kernel.name}(Tensor a, Tensor b{swizzle}) -> Tensor", tags=TAGS)
        lib.impl(kernel.name, _op(kernel), "CompositeImplicitAutograd")


def define_missing(lib: library.Library, names: Sequence[str]) -> None:
    """Defines ops that say of the steps of a ladder that was not built what to do."""
    for name in names:

        def op(a: Tensor, b: Tensor, swizzle_stride: int = 0, name: str = name) -> Tensor:
            raise RuntimeError(f"hgemm::{name} {NO_LADDER}")

        lib.define(f"{name}(Tensor a, Tensor b, int swizzle_stride=0) -> Tensor", tags=TAGS)
        lib.impl(name, op, "CompositeImplicitAutograd")


@dataclass(frozen=True)
class Addition:
    """A kernel that adds tensors of one dtype."""

    name: str
    dtype: torch.dtype


def _by_torch(addition: Addition) -> Callable[[Tensor, Tensor], Tensor]:
    def add(a: Tensor, b: Tensor) -> Tensor:
        prefix, dtype = f"hgemm::{addition.name}: a", addition.dtype
        require(a.dtype == b.dtype == dtype, f"{prefix} and b must be {dtype}, got {a.dtype} and {b.dtype}")
        require(a.shape == b.shape, f"{prefix} {tuple(a.shape)} and b {tuple(b.shape)} must have one shape")
        return torch.add(a, b).contiguous()

    return add


def define_additions(lib: library.Library, additions: Sequence[Addition]) -> None:
    """Defines the op of every addition, with everything of it but the CUDA kernel."""
    for addition in additions:
        name, add = addition.name, _by_torch(addition)
        lib.define(f"{name}(Tensor a, Tensor b) -> Tensor", tags=TAGS)
        op = getattr(torch.ops.hgemm, name).default
        kernel = autograd.kernel(op, add, lambda call, a, b, add=add: add(a, b))
        lib.impl(name, add, "CompositeExplicitAutograd")
        lib.impl(name, add, "FuncTorchBatched")
        lib.impl(name, kernel, "Autograd", with_keyset=True)
        library.register_fake(f"{NAMESPACE}::{name}", add, lib=lib)
