"""The ladder's first rungs: ``torch.ops.hgemm.<name>(a, b)`` is ``a + b`` of two tensors of one shape and dtype.

On CUDA through the kernel of that name (``csrc/torch/elementwise.cc``), elsewhere through torch. The result is
row-major; operands that are not are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, library

from hgemm_ops.ops import autograd
from hgemm_ops.ops.checks import require
from hgemm_ops.ops.schema import NAMESPACE, TAGS


@dataclass(frozen=True)
class Addition:
    """A kernel that adds tensors of one dtype."""

    name: str
    dtype: torch.dtype


def _check(addition: Addition, a: Tensor, b: Tensor) -> None:
    prefix = f"hgemm::{addition.name}: "
    require(a.device == b.device, lambda: f"{prefix}a ({a.device}) and b ({b.device}) must be on one device")
    require(
        a.dtype == addition.dtype and b.dtype == addition.dtype,
        lambda: f"{prefix}a and b must be {addition.dtype}, got {a.dtype} and {b.dtype}",
    )

    def shapes() -> str:
        return f"{prefix}a {tuple(a.shape)} and b {tuple(b.shape)} must have one shape"

    require(a.dim() == b.dim(), shapes)
    for x, y in zip(a.shape, b.shape, strict=True):
        require(x == y, shapes)


def _aten(addition: Addition) -> Callable[[Tensor, Tensor], Tensor]:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        _check(addition, a, b)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return torch.add(a, b).contiguous()

    return kernel


def _fake(addition: Addition) -> Callable[[Tensor, Tensor], Tensor]:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        _check(addition, a, b)
        return a.new_empty(a.shape)

    return kernel


def _vmap(op: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, int]]:
    def rule(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        def front(t: Tensor, dim: int | None) -> Tensor:
            return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

        return op(front(a, in_dims[0]), front(b, in_dims[1])), 0

    return rule


def define_additions(lib: library.Library, additions: Sequence[Addition]) -> None:
    """Defines the op of every addition, with everything of it but the CUDA kernel."""
    for addition in additions:
        lib.define(f"{addition.name}(Tensor a, Tensor b) -> Tensor", tags=TAGS)
        op = getattr(getattr(torch.ops, NAMESPACE), addition.name).default
        lib.impl(addition.name, _aten(addition), "CompositeExplicitAutograd")
        lib.impl(addition.name, autograd.sum_kernel(op), "Autograd", with_keyset=True)
        library.register_fake(f"{NAMESPACE}::{addition.name}", _fake(addition), lib=lib)
        library.register_vmap(f"{NAMESPACE}::{addition.name}", _vmap(op), lib=lib)
