"""How the native library canonicalizes an op's operands: the GEMM that kernels see, and the errors. Needs no GPU."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import counted, needs_library
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hgemm_ops import _native

pytestmark = needs_library

# In the order of HgemmQuery.op.
OPS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "linear")
K, MN = 0, 1  # which index of an operand is contiguous


def view(t: Tensor) -> _native.Tensor:
    return _native.view(t.shape, t.stride(), t.dtype, _native.alignment(t.data_ptr()))


def query(op: str, a: Tensor, b: Tensor, c: Tensor | None = None) -> _native.Query:
    return _native.Query(
        a=view(a),
        b=view(b),
        c=_native.NO_TENSOR if c is None else view(c),
        op=OPS.index(op),
        out_dtype=-1,
        variant=_native.TORCH,
        facts=_native.preset_facts(90),
    )


def canonical(op: str, a: Tensor, b: Tensor) -> _native.Decision:
    return _native.explain(query(op, a, b))[0]


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float16)


# name -> (op, a, b, ((batch, m, n, k), (major of a, major of b), alignment in bytes))
CASES: dict[str, tuple[str, Tensor, Tensor, tuple[tuple[int, int, int, int], tuple[int, int], int]]] = {
    "rows fold into m": ("matmul", half(3, 4, 5, 64), half(64, 8), ((1, 60, 8, 64), (K, MN), 16)),
    "rows of a linear layer": ("linear", half(3, 4, 64), half(8, 64), ((1, 12, 8, 64), (K, K), 16)),
    "single rows fold": ("linear", half(7, 1, 64), half(8, 64), ((1, 7, 8, 64), (K, K), 16)),
    "rows with a gap do not": ("matmul", half(3, 5, 64)[:, :4], half(64, 8), ((3, 4, 8, 64), (K, MN), 16)),
    "rows of a permuted input": (
        "bmm",
        half(3, 40, 64).transpose(0, 1),
        half(72, 64).t().expand(40, 64, 72),
        ((3, 40, 72, 64), (K, K), 16),
    ),
    "rows of small matrices stay": (
        "bmm",
        half(3, 40, 64).transpose(0, 1),
        half(64, 64).t().expand(40, 64, 64),
        ((40, 3, 64, 64), (K, K), 16),
    ),
    "rows of a short batch stay": (
        "bmm",
        half(40, 3, 64).transpose(0, 1),
        half(64, 72).expand(3, 64, 72),
        ((3, 40, 72, 64), (K, MN), 16),
    ),
    "rows whose columns are apart stay": (
        "bmm",
        half(40, 64, 4).mT,
        half(64, 72).expand(40, 64, 72),
        ((40, 4, 72, 64), (MN, MN), 8),
    ),
    "attention": (
        "matmul",
        half(2, 6, 4, 64).transpose(1, 2),
        half(2, 6, 4, 64).transpose(1, 2).mT,
        ((8, 6, 6, 64), (K, K), 4),  # rows of the result have 12 bytes
    ),
    "broadcast on both sides": ("matmul", half(3, 1, 4, 8), half(5, 8, 16), ((15, 4, 16, 8), (K, MN), 16)),
    "transposed": ("mm", half(8, 16).t(), half(24, 8).t(), ((1, 16, 24, 8), (MN, K), 16)),
    "column vector": ("matmul", half(16, 8), half(8), ((1, 16, 1, 8), (K, K), 2)),
    "row vector": ("matmul", half(8), half(8, 16), ((1, 1, 16, 8), (K, MN), 16)),
    "odd row vector": ("matmul", half(7), half(7, 16), ((1, 1, 16, 7), (K, MN), 16)),
    "strided row vector": ("matmul", half(8, 24)[:, 0], half(8, 16), ((1, 1, 16, 8), (MN, MN), 16)),
    "outer product": ("mm", half(16, 1), half(1, 24), ((1, 16, 24, 1), (MN, MN), 16)),
    "no unit stride: copied": ("mm", half(16, 32)[::2, ::2], half(16, 8), ((1, 8, 8, 16), (K, MN), 16)),
    "offset": ("mm", half(257)[1:].view(16, 16), half(16, 16), ((1, 16, 16, 16), (K, MN), 2)),
    "odd leading stride": ("mm", half(16, 17)[:, :16], half(16, 16), ((1, 16, 16, 16), (K, MN), 2)),
    "three uneven batch dimensions: copied": (
        "matmul",
        half(2, 1, 3, 1, 8, 16),
        half(1, 4, 1, 5, 16, 8),
        ((120, 8, 8, 16), (K, MN), 16),
    ),
    "no reduction": ("mm", half(16, 0), half(0, 8), ((1, 16, 8, 0), (MN, MN), 16)),
    "seven batch dimensions": ("matmul", half(*[2] * 6, 8, 16), half(*[2] * 6, 16, 8), ((64, 8, 8, 16), (K, MN), 16)),
}


@pytest.mark.parametrize("case", CASES)
def test_problem(case: str) -> None:
    op, a, b, (sizes, majors, align) = CASES[case]
    d = canonical(op, a, b)
    assert (d.batch, d.m, d.n, d.k) == sizes
    assert (d.a_major, d.b_major) == majors
    assert d.align == align


@pytest.mark.parametrize("rows", [8, 16])
def test_torch_is_judged_by_the_matrices_that_it_gets(rows: int) -> None:
    """F.linear of a permuted input: torch multiplies 512 small matrices, a kernel few large ones."""
    x, w = half(rows, 512, 1024).transpose(0, 1), half(2048, 1024).t().expand(512, 1024, 2048)
    asked = query("bmm", x, w)
    asked.variant = _native.AUTO
    permuted, _ = _native.explain(asked)
    asked = query("mm", half(rows * 512, 1024), half(2048, 1024).t())
    asked.variant = _native.AUTO
    flat, _ = _native.explain(asked)
    assert permuted.variant >= 0 and permuted.torch_us > 2 * flat.torch_us


@pytest.mark.parametrize(
    ("c", "has_bias"),
    [(half(8), 1), (half(1, 8), 1), (half(8)[:1], 0), (half(16)[::2], 0), (half(16, 8), 0), (half(16, 1), 0)],
    ids=["row", "matrix of one row", "scalar", "strided row", "matrix", "column"],
)
def test_an_addend_of_one_contiguous_row_is_a_bias(c: Tensor, has_bias: int) -> None:
    with counted() as tally:
        _native.lib().hgemm_select_ns(query("addmm", half(16, 32), half(32, 8), c), 1, 1)
    (row,) = tally.rows()
    assert (row.has_bias, row.has_c) == (has_bias, 1 - has_bias)


shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@settings(max_examples=300, deadline=None)
@given(op=st.sampled_from(["matmul", "mm", "bmm", "linear"]), a=shapes, b=shapes)
def test_refuses_what_torch_refuses(op: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    function = torch.nn.functional.linear if op == "linear" else getattr(torch, op)
    try:
        shape = function(half(*a), half(*b)).shape
    except RuntimeError:
        with pytest.raises(RuntimeError, match=rf"^hgemm::{op}: "):
            canonical(op, half(*a), half(*b))
    else:
        d = canonical(op, half(*a), half(*b))
        assert d.batch * d.m * d.n == math.prod(shape)
