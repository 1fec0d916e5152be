"""One op per kernel: ``torch.ops.hgemm.<variant>(a, b)`` is torch.matmul through that kernel alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hgemm_ops.ops.schema import define_variant


def _forced(index: int) -> Callable[[Tensor, Tensor], Tensor]:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.hgemm.matmul.default(a, b, variant=index)

    return kernel


def define_variants(lib: torch.library.Library, names: Sequence[str]) -> None:
    """Defines the op of every kernel; a kernel's position in ``names`` is the ``variant`` that the other ops take.

    Composite: gradients, vmap, fake tensors and autocast are those of ``hgemm::matmul``.
    """
    for index, name in enumerate(names):
        define_variant(lib, name)
        lib.impl(name, _forced(index), "CompositeImplicitAutograd")
