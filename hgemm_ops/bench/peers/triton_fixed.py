"""Triton for results that do not depend on the number of rows.

The kernel has persistent blocks and one tile for every shape, and adds up K in order. thinking-machines-lab's
batch_invariant_ops puts a kernel of this kind in place of torch.mm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..suites import Case
from ..workload import Operands
from . import Call, Unavailable

#: The columns of a tile, by dtype. A tile has 128 rows, and 64 elements of K.
COLUMNS = {"float16": 256, "bfloat16": 128}
_GROUP = 8  # rows of tiles in a group, which is walked column by column


def multiply(kernel: Any, blocks: int, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """``a @ b + bias`` of matrices with any strides."""
    (m, k), n = a.shape, b.size(1)
    out = a.new_empty(m, n)
    tile = {"BM": 128, "BN": COLUMNS[str(a.dtype).removeprefix("torch.")], "BK": 64}
    kernel[(blocks,)](
        a, b, out if bias is None else bias, out, m, n, k, *a.stride(), *b.stride(), HAS_BIAS=bias is not None,
        GROUP=_GROUP, BLOCKS=blocks, **tile, num_stages=3, num_warps=8,
    )  # fmt: skip
    return out


class _Fixed:
    def __init__(self, version: str, kernel: Any, blocks: int) -> None:
        self.version, self._kernel, self._blocks = version, kernel, blocks

    def configurations(self, case: Case, operands: Operands) -> Mapping[str, Call]:
        if case.op == "add" or case.batch != 1 or case.activation != "none" or case.dtype not in COLUMNS:
            raise Unavailable("single matmuls of fp16 and bf16 without an activation only, here")

        def run(x: Operands) -> Tensor:
            try:
                return multiply(self._kernel, self._blocks, x.a, x.b, x.bias)
            except Exception as error:  # the compilers' errors have no common base class
                raise Unavailable(f"{type(error).__name__}: {str(error).splitlines()[:1]}") from None

        return {f"128x{COLUMNS[case.dtype]}x64": run}


def load() -> _Fixed:
    from torch.utils._triton import has_triton

    if not has_triton():
        raise Unavailable("finds no Triton for this machine")
    import triton

    from ._triton_fixed import product

    blocks = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return _Fixed(f"triton {triton.__version__}", product, blocks)
