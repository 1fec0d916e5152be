"""The kernels for many small products where they differ from others: batches that are no multiple of what a block works
on, or more than a grid has rows, and operands whose batch stride is zero or puts every problem on another alignment."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    POISON,
    GuardedBuffer,
    assert_close_to_torch,
    check_a_chain_of_products,
    rand,
    reference_matmul,
)
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
ALL = [v for v in hgemm_ops.variants() if v.family == "batched_mma"]
IN_PLACE = [v for v in ALL if "in_place" in v.name]  # they take unaligned matrices without gaps, and nothing else
BATCHED = [v for v in ALL if v not in IN_PLACE]
VARIANTS = pytest.mark.parametrize("variant", BATCHED, ids=lambda v: v.name)
LAYOUTS = ("NN", "NT", "TN", "TT")


def operand(
    batch: int, rows: int, cols: int, order: str, dtype: torch.dtype, *, row_gap: int = 0, gap: int = 0, offset: int = 0
) -> Tensor:
    """(batch, rows, cols), row-major (N) or column-major (T), ``row_gap`` elements after each row of memory and ``gap``
    after each matrix, all of them NaN, ``offset`` behind a multiple of 16 bytes."""
    inner, outer = (cols, rows) if order == "N" else (rows, cols)
    ld = inner + row_gap
    step = outer * ld + gap
    storage = torch.full((64 + offset + batch * step,), POISON, device="cuda", dtype=dtype)
    strides = (step, ld, 1) if order == "N" else (step, 1, ld)
    view = storage.as_strided((batch, rows, cols), strides, 64 + offset)
    view.copy_(rand(batch, rows, cols, dtype=dtype))
    return view


def check(variant: VariantInfo, a: Tensor, b: Tensor) -> None:
    """Forced into a result that lies in NaN, twice."""
    exact, magnitude = reference_matmul(a, b)
    out = GuardedBuffer(tuple(exact.shape), a.dtype, "cuda")
    hgemm.bmm.out(a, b, variant=variant.id, out=out.tensor)
    out.check()
    assert_close_to_torch(out.tensor, exact, torch.bmm(a, b), magnitude=magnitude)
    assert torch.equal(hgemm.bmm(a, b, variant=variant.id), out.tensor)


# One problem, a block's last problems missing, a wave and a part of one, more than blockIdx.y and .z can count.
@pytest.mark.parametrize("batch", [1, 5, 131, 4099, 66001])
@pytest.mark.parametrize("layout", LAYOUTS)
@VARIANTS
def test_batches(variant: VariantInfo, layout: str, batch: int) -> None:
    m, n = variant.tile[:2]
    if batch > 65535:
        m, n = m // 2, n // 2
    for dtype, k in zip(variant.dtypes, (72, 32), strict=True):
        a, b = operand(batch, m, k, layout[0], dtype), operand(batch, k, n, layout[1], dtype)
        check(variant, a, b)


@pytest.mark.parametrize("k", [1, 2, 15, 16, 31, 64, 65, 200, 1031])
@pytest.mark.parametrize("layout", LAYOUTS)
@VARIANTS
def test_every_size_and_alignment(variant: VariantInfo, layout: str, k: int) -> None:
    bm, bn = variant.tile[:2]
    dtypes = itertools.cycle(variant.dtypes)
    for m, n in [(bm, bn), (bm - 8, bn - 8), (bm - 1, bn // 2 + 1), (1, bn), (bm, 1), (1, 1), (4, 3)]:
        # In phase with 16 bytes; with 4; each row, or each problem, or all of them off whole words.
        for row_gap, gap, offset in [(0, 0, 0), (-k % 8, 8, 0), (2, 4, 2), (1, 0, 0), (0, 1, 0), (0, 2, 1), (3, 5, 7)]:
            dtype = next(dtypes)
            a = operand(9, m, k, layout[0], dtype, row_gap=row_gap, gap=gap, offset=offset)
            b = operand(9, k, n, layout[1], dtype, row_gap=row_gap, gap=gap, offset=offset)
            check(variant, a, b)


@pytest.mark.parametrize("ragged", [False, True])
@VARIANTS
def test_broadcast_batches(variant: VariantInfo, ragged: bool) -> None:
    """An operand of one matrix, of one for all inner batches, and of one for all outer batches. (Where B is
    the same for all inner batches their rows are one product's.)"""
    m, n = (size - ragged for size in variant.tile[:2])
    a, b = rand(40, 30, m, 24 + ragged), rand(40, 30, 24 + ragged, n)
    for x, y in [(a, b), (a[0, 0], b), (a[:, :1], b), (a, b[:1]), (a[:1], b), (a[:, :1], b[:1])]:
        exact, magnitude = reference_matmul(x, y)
        out = hgemm.matmul(x, y, variant=variant.id)
        assert_close_to_torch(out, exact, torch.matmul(x, y), magnitude=magnitude)


@VARIANTS
def test_heads_between_rows(variant: VariantInfo) -> None:
    """Two batch strides that are no one stride."""
    m, n = variant.tile[:2]
    q, k = rand(7, m, 11, 40).transpose(1, 2), rand(7, n, 11, 40).transpose(1, 2)
    exact, magnitude = reference_matmul(q, k.mT)
    assert_close_to_torch(hgemm.matmul(q, k.mT, variant=variant.id), exact, q @ k.mT, magnitude=magnitude)


def strides_of(arrangement: str, outer: int, inner: int, rows: int, cols: int, gap: int) -> tuple[int, int, int]:
    """Of the outer and the inner batch and of a row of memory."""
    step = rows * cols + gap
    return {
        "in order": (inner * step, step, cols),
        "inner batch first": (step, outer * step, cols),
        "one for all outer": (0, step, cols),
        "one for all inner": (step, 0, cols),
        "one for all": (0, 0, cols),
        "between rows": (inner * cols, cols, outer * inner * cols + gap),
        "overlapping": (3, 1, 2),
        "of one row": (inner * cols, cols, 0),
    }[arrangement]


def scattered(
    batch: tuple[int, int], rows: int, cols: int, order: str, arrangement: str, gap: int, offset: int, behind: int
) -> Tensor:
    """(*batch, rows, cols), ``offset`` elements into a storage that ends ``behind`` elements after the last one of the
    matrices and holds NaN wherever none of theirs lies."""
    lines, length = (rows, cols) if order == "N" else (cols, rows)
    outer_stride, inner_stride, ld = strides_of(arrangement, *batch, lines, length, gap)
    shape = (*batch, rows, cols)
    strides = (outer_stride, inner_stride, ld, 1) if order == "N" else (outer_stride, inner_stride, 1, ld)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    storage = torch.full((offset + extent + behind,), POISON, device="cuda", dtype=torch.float16)
    where = torch.arange(offset + extent, device="cuda").as_strided(shape, strides, offset).unique()
    storage[where] = rand(where.numel())
    return storage.as_strided(shape, strides, offset)


@pytest.mark.parametrize(
    "arrangement",
    [
        "in order",
        "inner batch first",
        "one for all outer",
        "one for all inner",
        "one for all",
        "between rows",
        "overlapping",
        "of one row",
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
@VARIANTS
def test_where_an_operand_ends(variant: VariantInfo, layout: str, arrangement: str) -> None:
    """Unaligned matrices that end, as their operand does, in the middle of a word or with one: what shares a word with
    an element, another matrix's or NaN or nothing at all, reaches no result."""
    bm, bn, bk = variant.tile[:3]
    # Few problems, and more than run at a time; offset, elements behind and gap.
    places = itertools.cycle(itertools.product(((3, 5), (61, 67)), (0, 1), (0, 64), (1, 2)))
    for m, n, k in [(bm - 1, bn - 1, 31), (bm - 3, bn // 2 - 1, bk + 1), (bm - 2, bn - 4, 7)]:
        for of_a, of_b in [(arrangement, arrangement), (arrangement, "in order"), ("in order", arrangement)]:
            for _ in range(3):
                batch, offset, behind, gap = next(places)
                a = scattered(batch, m, k, layout[0], of_a, gap, offset, behind)
                b = scattered(batch, k, n, layout[1], of_b, gap, offset, behind)
                exact, magnitude = reference_matmul(a, b)
                out = hgemm.matmul(a, b, variant=variant.id)
                assert_close_to_torch(out, exact, torch.matmul(a, b), magnitude=magnitude)


@pytest.mark.parametrize("layout", LAYOUTS)
@VARIANTS
def test_matrices_without_gaps(variant: VariantInfo, layout: str) -> None:
    """Operands and results that begin and end anywhere in memory, between NaN: one matrix, fewer than blocks, more."""
    bm, bn = variant.tile[:2]
    dtypes, offsets = itertools.cycle(variant.dtypes), itertools.cycle(range(8))
    for m, n, k in [(bm - 1, bn - 1, 63), (bm - 1, bn // 2 + 1, 17), (bm // 2 + 1, bn, 31), (1, bn - 1, 64), (3, 5, 1)]:
        for batch in (1, 7, 3001):
            dtype, offset = next(dtypes), next(offsets)
            a = operand(batch, m, k, layout[0], dtype, offset=offset)
            b = operand(batch, k, n, layout[1], dtype, offset=next(offsets))
            memory = torch.full((8 + offset + batch * m * n + 8,), POISON, device="cuda", dtype=dtype)
            before, out, behind = memory.split((8 + offset, batch * m * n, 8))
            hgemm.bmm.out(a, b, variant=variant.id, out=out.view(batch, m, n))
            exact, magnitude = reference_matmul(a, b)
            assert_close_to_torch(out.view(batch, m, n), exact, torch.bmm(a, b), magnitude=magnitude)
            assert before.isnan().all() and behind.isnan().all()


# Rows of X in whole groups of 64 and in others; one sub-tile and many; the most that each kernel takes.
IN_PLACE_SIZES = [
    (127, 127, 127),
    (129, 19, 71),
    (161, 191, 51),
    (25, 113, 71),
    (11, 139, 19),
    (135, 11, 27),
    (65, 65, 65),
    (63, 33, 129),
    (64, 127, 97),
    (100, 77, 51),
    (102, 90, 34),
    (183, 183, 183),
    (256, 9, 17),
    (3, 255, 9),
    (9, 7, 250),
    (1, 77, 1),
    (1, 1, 3),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", IN_PLACE, ids=lambda v: v.name)
def test_tiles_in_place_of_matrices(variant: VariantInfo, layout: str) -> None:
    """As above, for M, N and K that differ more, and for an operand that is one matrix."""
    dtypes, offsets = itertools.cycle(variant.dtypes), itertools.cycle(range(8))
    taken = 0
    for m, n, k in IN_PLACE_SIZES:
        for batch in (1, 7, 601):
            dtype, offset = next(dtypes), next(offsets)
            a = operand(batch, m, k, layout[0], dtype, offset=offset)
            b = operand(batch, k, n, layout[1], dtype, offset=next(offsets))
            if batch == 7:
                b = b[:1].expand(batch, k, n)
            memory = torch.full((8 + offset + batch * m * n + 8,), POISON, device="cuda", dtype=dtype)
            before, out, behind = memory.split((8 + offset, batch * m * n, 8))
            try:
                hgemm.bmm.out(a, b, variant=variant.id, out=out.view(batch, m, n))
            except RuntimeError as error:
                # Too large; one product of many rows, if B is one matrix; rows whose pitch means nothing.
                refusals = ("an operand has", "of shared memory", "M, N and K must be", "without gaps")
                assert any(refusal in str(error) for refusal in refusals), error
                continue
            taken += 1
            exact, magnitude = reference_matmul(a, b)
            assert_close_to_torch(out.view(batch, m, n), exact, torch.bmm(a, b), magnitude=magnitude)
            assert before.isnan().all() and behind.isnan().all()
    assert taken > 20


@pytest.mark.parametrize("alpha_first", [False, True])
@pytest.mark.parametrize("variant", [*IN_PLACE, None], ids=lambda v: v.name if v else "chosen")
@pytest.mark.parametrize("size", [97, 63])
def test_a_decision_holds_for_every_alpha(size: int, variant: VariantInfo | None, alpha_first: bool) -> None:
    """A scaled product takes the decision that is kept for the product, and the other way round."""
    options = {} if variant is None else {"variant": variant.id}
    a, b, c = (rand(3001 if size == 63 else 1024, size, size) for _ in range(3))
    exact, magnitude = reference_matmul(a, b)
    for alpha in (0.125, 1.0) if alpha_first else (1.0, 0.125):
        out = hgemm.baddbmm(c, a, b, beta=0.0, alpha=alpha, **options) if alpha != 1 else hgemm.bmm(a, b, **options)
        theirs = torch.baddbmm(c, a, b, beta=0.0, alpha=alpha)
        assert_close_to_torch(out, alpha * exact, theirs, magnitude=alpha * magnitude)


@pytest.mark.parametrize("odd", [0, 1])
@VARIANTS
def test_epilogue_of_every_problem(variant: VariantInfo, odd: int) -> None:
    m, n = (size - odd for size in variant.tile[:2])
    a, b, c = rand(301, m, 40), rand(301, 40, n), rand(301, m, n)
    exact, magnitude = reference_matmul(a, b)
    for addend in (c, c[:1], c[:, :, :1], c[0, 0]):
        theirs = torch.baddbmm(addend, a, b, beta=0.5, alpha=2.0)
        for out_dtype in (torch.float16, torch.float32):
            out = hgemm.baddbmm(addend, a, b, beta=0.5, alpha=2.0, out_dtype=out_dtype, variant=variant.id)
            assert_close_to_torch(
                out.half(), 0.5 * addend.double() + 2 * exact, theirs, magnitude=2 * magnitude + addend.double().abs()
            )
    x, weight, bias = rand(m, 200), rand(n, 200), rand(n)
    y, pre = hgemm.linear_save(x, weight, bias, 2, variant=variant.id)
    product, magnitude = reference_matmul(x, weight.t())
    theirs = F.linear(x, weight, bias)
    assert_close_to_torch(pre, product + bias.double(), theirs, magnitude=magnitude)
    assert_close_to_torch(y, F.gelu(product + bias.double()), F.gelu(theirs), magnitude=magnitude)


@VARIANTS
def test_a_chain_of_products(variant: VariantInfo) -> None:
    """Kernels overlap their predecessors' ends, whose results they read."""
    size = min(variant.tile[:2])
    factors = [rand(1500, size, size) * (3 / size) ** 0.5 for _ in range(6)]  # sums neither grow nor vanish
    check_a_chain_of_products(variant.id, factors)


@VARIANTS
def test_larger_matrices_are_refused_with_the_limit(variant: VariantInfo) -> None:
    bm, bn = variant.tile[:2]
    for m, n in [(bm + 1, bn), (bm, bn + 1)]:
        with pytest.raises(RuntimeError, match=rf"at most {bm} and {bn}, got {m} and {n}"):
            hgemm.bmm(rand(2, m, 8), rand(2, 8, n), variant=variant.id)
