"""One op per kernel: ``torch.ops.hgemm.<variant>(a, b)`` is torch.matmul through that kernel alone.

The ladder's first rungs add instead: ``a + b`` of two tensors of one shape and dtype, on CUDA through the kernel of
that name (``csrc/ladder/elementwise.cc``), elsewhere, and where a gradient is wanted, through torch. The result is
row-major; operands that are not are copied first.
"""

import torch
from torch import Tensor, library

from hgemm_ops.ops import autograd
from hgemm_ops.ops.aten import require
from hgemm_ops.ops.schema import NAMESPACE, TAGS

NO_LADDER = "is a step of the ladder, whose library was not built: install with HGEMM_LADDER=1"


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


def define_kernel(
    lib: library.Library,
    name: str,
    variant: int,
    rung_of: torch.dtype | None = None,
    swizzles: bool = False,
    row_bytes: int = 1,
) -> None:
    """Defines the op of a kernel. Composite: gradients, vmap, fake tensors and autocast are those of ``hgemm::matmul``.

    Args:
        variant: its id.
        rung_of: the one dtype of a kernel of the ladder, which takes plain row-major matrices; None for the others. A
            rung's op copies operands that are not row-major; forced by ``variant=`` it refuses them.
        swizzles: the op has a ``swizzle_stride``.
        row_bytes: what a rung wants the address of every row to be a multiple of.
    """

    def operands(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if rung_of is None:
            return a, b
        for argument, t in {"a": a, "b": b}.items():
            require(t.dtype == rung_of, f"hgemm::{name}: {argument} must be {rung_of}, got {t.dtype}")
        return _plain(a, row_bytes), _plain(b, row_bytes)

    def op(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.hgemm.matmul.default(*operands(a, b), variant=variant)

    def swizzling_op(a: Tensor, b: Tensor, swizzle_stride: int = 0) -> Tensor:
        a, b = operands(a, b)
        return torch.ops.hgemm.matmul_swizzled.default(a, b, variant=variant, swizzle_stride=swizzle_stride)

    swizzle = ", int swizzle_stride=0" if swizzles else ""
    lib.define(f"{name}(Tensor a, Tensor b{swizzle}) -> Tensor", tags=TAGS)
    lib.impl(name, swizzling_op if swizzles else op, "CompositeImplicitAutograd")


def define_missing(lib: library.Library, name: str) -> None:
    """Defines an op that says of a step of a ladder that was not built what to do."""

    def op(a: Tensor, b: Tensor, swizzle_stride: int = 0) -> Tensor:
        raise RuntimeError(f"hgemm::{name} {NO_LADDER}")

    lib.define(f"{name}(Tensor a, Tensor b, int swizzle_stride=0) -> Tensor", tags=TAGS)
    lib.impl(name, op, "CompositeImplicitAutograd")


def define_addition(lib: library.Library, name: str, dtype: torch.dtype) -> None:
    """Defines the op of an addition, with everything of it but the CUDA kernel."""

    def add(a: Tensor, b: Tensor) -> Tensor:
        prefix = f"hgemm::{name}: a"
        require(a.dtype == b.dtype == dtype, f"{prefix} and b must be {dtype}, got {a.dtype} and {b.dtype}")
        require(a.shape == b.shape, f"{prefix} {tuple(a.shape)} and b {tuple(b.shape)} must have one shape")
        return torch.add(a, b).contiguous()

    lib.define(f"{name}(Tensor a, Tensor b) -> Tensor", tags=TAGS)
    kernel = autograd.kernel(getattr(torch.ops.hgemm, name).default, add, lambda call, a, b: add(a, b))
    lib.impl(name, add, "CompositeExplicitAutograd")
    lib.impl(name, add, "FuncTorchBatched")
    lib.impl(name, kernel, "Autograd", with_keyset=True)
    library.register_fake(f"{NAMESPACE}::{name}", add, lib=lib)
