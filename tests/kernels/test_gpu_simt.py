"""simt_skinny and simt_gemv, strict float32 with a short side: every number of rows, alignment, epilogue and slices."""

from __future__ import annotations

import pytest
import torch
from helpers import ACTIVATIONS, POISON, GuardedBuffer, assert_close_to_torch, poisoned_cuda_memory, reference_matmul
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
KERNELS = [v for v in hgemm_ops.variants() if v.family in ("simt_skinny", "simt_gemv")]
VARIANTS = pytest.mark.parametrize("variant", KERNELS, ids=lambda v: v.name)
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# N and K: whole tiles, ragged ones, slices of K, one column, hardly any k, more tiles than an H200 has SMs.
SIZES = [(256, 512), (130, 333), (65, 4100), (1027, 260), (1, 700), (200, 3), (36, 5004), (9004, 44), (20000, 72)]


def operand(rows: int, cols: int, transposed: bool, offset: int = 0) -> Tensor:
    """``offset`` elements off the grid, rows a little apart, with NaN in between, unless that is 0."""
    r, c = (cols, rows) if transposed else (rows, cols)
    step = c + (3 if offset else 0)
    view = torch.full((offset + r * step + 8,), POISON, device="cuda").as_strided((r, c), (step, 1), offset)
    view.copy_(torch.randn(r, c, device="cuda"))
    return view.t() if transposed else view


def is_able(variant: VariantInfo, a: Tensor, b: Tensor) -> bool:
    """simt_gemv takes what consists of aligned 16-byte chunks, the short operand's along K."""
    short, long = (a, b.t()) if a.size(0) <= b.size(1) else (b.t(), a)
    return variant.family == "simt_skinny" or (
        all(chunks_along(x, 1) or (x is long and chunks_along(x, 0)) for x in (short, long)) and a.size(1) % 4 == 0
    )


def chunks_along(x: Tensor, axis: int) -> bool:
    pitch = x.stride(1 - axis) if x.size(1 - axis) > 1 else 0
    return x.stride(axis) == 1 and pitch % 4 == 0 and x.size(axis) % 4 == 0 and x.data_ptr() % 16 == 0


def assert_product(variant: VariantInfo, a: Tensor, b: Tensor) -> None:
    __tracebackhide__ = True
    if not is_able(variant, a, b):
        with pytest.raises(RuntimeError, match=r"must be 16-byte aligned|must be contiguous along K"):
            hgemm.mm(a, b, variant=variant.id)
        return
    buffer = GuardedBuffer((a.size(-2), b.size(-1)), torch.float32, "cuda", offset=61)
    with poisoned_cuda_memory():
        hgemm.mm.out(a, b, variant=variant.id, out=buffer.tensor)
        again = hgemm.mm(a, b, variant=variant.id)
    buffer.check()
    exact, magnitude = reference_matmul(a, b)
    assert_close_to_torch(buffer.tensor, exact, a @ b, magnitude=magnitude)
    torch.testing.assert_close(again, buffer.tensor, rtol=0, atol=0, equal_nan=True)


def rows_of(variant: VariantInfo) -> list[int]:
    most = variant.tile[1]
    return sorted({most, max(1, most - 1), most // 2 + 1})


@pytest.mark.parametrize("offset", [0, 1, 4], ids=lambda o: f"off{o}")
@LAYOUTS
@VARIANTS
def test_products(variant: VariantInfo, layout: str, offset: int) -> None:
    for n, k in SIZES:
        for m in rows_of(variant):
            a, b = operand(m, k, layout[0] == "T", offset), operand(k, n, layout[1] == "T", offset)
            assert_product(variant, a, b)
            assert_product(variant, b.t(), a.t())


@VARIANTS
def test_every_number_of_rows(variant: VariantInfo) -> None:
    w = operand(300, 1000, False)
    for m in range(1, variant.tile[1] + 1):
        assert_product(variant, operand(m, 1000, False), w.t())


@VARIANTS
def test_epilogue(variant: VariantInfo) -> None:
    m, n, k = variant.tile[1], 200, 1500
    a, b, c, bias = operand(m, k, False), operand(n, k, False), operand(m, n, False), operand(1, n, False)[0]
    exact, magnitude = reference_matmul(a, b.t())
    for act, function in ACTIVATIONS.items():
        out, pre = hgemm.linear_save(a, b, bias, act, variant=variant.id)
        size = magnitude + bias.double().abs()
        wide, theirs = exact + bias.double(), torch.nn.functional.linear(a, b, bias)
        assert_close_to_torch(pre, wide, theirs, magnitude=size)
        assert_close_to_torch(out, function(wide), function(theirs), magnitude=size)
    out = hgemm.addmm(c, a, b.t(), beta=-0.5, alpha=2.0, variant=variant.id)
    theirs = torch.addmm(c, a, b.t(), beta=-0.5, alpha=2.0)
    assert_close_to_torch(out, 2 * exact - 0.5 * c.double(), theirs, magnitude=2 * magnitude + c.double().abs())
    out = hgemm.addmm(torch.full_like(c, POISON), a, b.t(), beta=0, variant=variant.id)
    assert_close_to_torch(out, exact, a @ b.t(), magnitude=magnitude)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("layout", ["NN", "NT"])
@VARIANTS
def test_special_values(variant: VariantInfo, layout: str, value: float) -> None:
    m = variant.tile[1]
    for n, k in ((131, 1001), (132, 1004)):
        a, b = operand(m, k, False), operand(k, n, layout[1] == "T")
        a[m // 2, k - 1] = b[0, 0] = b[k - 1, n - 1] = value
        assert_product(variant, a, b)


@pytest.mark.parametrize("layout", ["NN", "NT"])
@VARIANTS
def test_batches(variant: VariantInfo, layout: str) -> None:
    most, n, k = variant.tile[1], 140, 700
    m = max(1, most // 3)
    x = torch.randn(3, m, k, device="cuda")
    w = torch.randn(3, n, k, device="cuda").mT if layout == "NT" else torch.randn(3, k, n, device="cuda")
    shares_w = [(x, w[:1].expand_as(w))] if 3 * m <= most else []  # one product of 3 m rows
    for a, b in ((x, w), (x[:1].expand_as(x), w), *shares_w, (w.mT, x.mT)):
        exact, magnitude = reference_matmul(a, b)
        assert_close_to_torch(hgemm.bmm(a, b, variant=variant.id), exact, a @ b, magnitude=magnitude)


@pytest.mark.parametrize("variant", [v for v in KERNELS if v.family == "simt_skinny"], ids=lambda v: v.name)
def test_without_k(variant: VariantInfo) -> None:
    a, b, bias = torch.empty(1, 0, device="cuda"), torch.empty(90, 0, device="cuda"), torch.randn(90, device="cuda")
    assert torch.equal(hgemm.linear(a, b, bias, 0, variant=variant.id), bias[None])


@VARIANTS
def test_launches_back_to_back(variant: VariantInfo) -> None:
    """Each may start before the one ahead has ended, and finds its counters at zero all the same."""
    calls = [(operand(1, k, False), operand(n, k, False).t()) for n, k in ((64, 20000), (200, 4000), (4000, 600))]
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    results = [[hgemm.mm(a, b, variant=variant.id) for a, b in calls] for _ in range(200)]
    assert all(torch.equal(out, want) for outs in results for out, want in zip(outs, expected, strict=True))
