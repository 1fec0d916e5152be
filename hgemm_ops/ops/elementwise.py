"""The ladder's first rungs: ``torch.ops.hgemm.<name>(a, b)`` is ``a + b`` of two tensors of one shape and dtype.

On CUDA through the kernel of that name (``csrc/ladder/elementwise.cc``), elsewhere, and where a gradient is wanted,
through torch. The result is row-major; operands that are not are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, library

from hgemm_ops.ops import autograd
from hgemm_ops.ops.aten import require
from hgemm_ops.ops.schema import NAMESPACE, TAGS


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
        op = getattr(getattr(torch.ops, NAMESPACE), name).default
        kernel = autograd.kernel(op, add, lambda call, a, b, add=add: add(a, b))
        lib.impl(name, add, "CompositeExplicitAutograd")
        lib.impl(name, add, "FuncTorchBatched")
        lib.impl(name, kernel, "Autograd", with_keyset=True)
        library.register_fake(f"{NAMESPACE}::{name}", add, lib=lib)
