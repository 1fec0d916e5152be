"""sm90_dmma, strict float32 by float64 sums: one rounding, every layout, alignment, epilogue, and slices of K."""

from __future__ import annotations

import pytest
import torch
from helpers import (
    ACTIVATIONS,
    POISON,
    GuardedBuffer,
    assert_close_to_torch,
    off_grid,
    poisoned_cuda_memory,
    reference_matmul,
)
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

hgemm = torch.ops.hgemm
KERNELS = [v for v in hgemm_ops.variants() if v.family == "sm90_dmma" and torch.float32 in v.dtypes]
VARIANTS = pytest.mark.parametrize("variant", KERNELS, ids=lambda v: v.name)
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# M, N and K: whole tiles, ragged ones, one row, less than a k-tile, slices of K, more tiles than an H200 has SMs.
SIZES = [
    (256, 128, 512),
    (130, 65, 333),
    (1, 7, 700),
    (33, 200, 3),
    (64, 64, 20000),
    (40, 100, 8191),
    (17, 36, 5004),
    (2005, 1030, 44),
]


def operand(rows: int, cols: int, transposed: bool = False, offset: int = 0, exact: bool = False) -> Tensor:
    """``exact``: multiples of 1/64 of at most 11 bits, whose products have float64 sums without a rounding."""
    whole = torch.randint(-1000, 1001, (rows, cols), device="cuda") / 64
    return off_grid(whole if exact else torch.randn(rows, cols, device="cuda"), transposed, offset)


@pytest.mark.parametrize("offset", [0, 1, 4], ids=lambda o: f"off{o}")
@LAYOUTS
@VARIANTS
def test_a_sum_is_rounded_once(variant: VariantInfo, layout: str, offset: int) -> None:
    for m, n, k in SIZES:
        a = operand(m, k, layout[0] == "T", offset, exact=True)
        b = operand(k, n, layout[1] == "T", offset, exact=True)
        buffer = GuardedBuffer((m, n), torch.float32, "cuda", offset=61)
        with poisoned_cuda_memory():
            hgemm.mm.out(a, b, variant=variant.id, out=buffer.tensor)
        buffer.check()
        assert torch.equal(buffer.tensor, (a.double() @ b.double()).float()), (m, n, k)


@LAYOUTS
@VARIANTS
def test_hardly_any_element_is_off_by_one(variant: VariantInfo, layout: str) -> None:
    """A float64 sum is off by some 2**-53, which changes its rounding to float32 about once in 2**25 sums."""
    for m, n, k in SIZES:
        a, b = operand(m, k, layout[0] == "T"), operand(k, n, layout[1] == "T")
        out, exact = hgemm.mm(a, b, variant=variant.id), (a.double() @ b.double()).float()
        assert int((out != exact).sum()) <= 2, (m, n, k)
        assert torch.equal(hgemm.mm(a, b, variant=variant.id), out)
        torch.testing.assert_close(out, exact, rtol=2e-7, atol=0)


@VARIANTS
def test_epilogue(variant: VariantInfo) -> None:
    # D aligned and not, without and with slices of K
    for m, n, k in ((70, 200, 40), (70, 201, 40), (70, 200, 1500), (70, 201, 1500), (33, 36, 9000)):
        a, b, c, bias = operand(m, k), operand(n, k), operand(m, n), operand(1, n)[0]
        exact, magnitude = reference_matmul(a, b.t())
        for act, function in ACTIVATIONS.items():
            out, pre = hgemm.linear_save(a, b, bias, act, variant=variant.id)
            size = magnitude + bias.double().abs()
            wide, theirs = exact + bias.double(), torch.nn.functional.linear(a, b, bias)
            assert_close_to_torch(pre, wide, theirs, magnitude=size)
            assert_close_to_torch(out, function(wide), function(theirs), magnitude=size)
            assert torch.equal(hgemm.linear(a, b, bias, act, variant=variant.id), out)
        for added in (c, operand(n, m).t(), c[:1].expand(m, n), c[:, :1].expand(m, n)):
            out = hgemm.addmm(added, a, b.t(), beta=-0.5, alpha=2.0, variant=variant.id)
            theirs, wide = torch.addmm(added, a, b.t(), beta=-0.5, alpha=2.0), added.double()
            assert_close_to_torch(out, 2 * exact - 0.5 * wide, theirs, magnitude=2 * magnitude + wide.abs())
        out = hgemm.addmm(torch.full_like(c, POISON), a, b.t(), beta=0, variant=variant.id)
        assert torch.equal(out, hgemm.mm(a, b.t(), variant=variant.id))
        scaled = hgemm.addmm(c, a, b.t(), beta=0, alpha=3.0, variant=variant.id)
        assert torch.equal(scaled, out * 3)
    a, b, c = (torch.randn(3, *sizes, device="cuda") for sizes in ((70, 40), (40, 201), (70, 201)))
    exact, magnitude = reference_matmul(a, b)
    out, theirs = hgemm.baddbmm(c, a, b, variant=variant.id), torch.baddbmm(c, a, b)
    assert_close_to_torch(out, exact + c.double(), theirs, magnitude=magnitude + c.double().abs())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@LAYOUTS
@VARIANTS
def test_special_values(variant: VariantInfo, layout: str, value: float) -> None:
    for m, n, k in ((70, 131, 1001), (64, 132, 6004)):
        a, b = operand(m, k, layout[0] == "T"), operand(k, n, layout[1] == "T")
        a[m // 2, k - 1] = b[0, 0] = b[k - 1, n - 1] = value
        exact, magnitude = reference_matmul(a, b)
        assert_close_to_torch(hgemm.mm(a, b, variant=variant.id), exact, a @ b, magnitude=magnitude)


@VARIANTS
def test_nothing_is_flushed_and_intermediate_sums_do_not_overflow(variant: VariantInfo) -> None:
    tiny = torch.full((40, 50), 1e-42, device="cuda")
    ones = torch.ones(50, 36, device="cuda")
    assert torch.equal(hgemm.mm(tiny, ones, variant=variant.id), (tiny.double() @ ones.double()).float())
    large = torch.full((40, 64), 3e38, device="cuda")
    large[:, 32:] = -3e38
    signs = torch.ones(64, 36, device="cuda")
    assert torch.equal(hgemm.mm(large, signs, variant=variant.id), torch.zeros(40, 36, device="cuda"))


@LAYOUTS
@VARIANTS
def test_batches(variant: VariantInfo, layout: str) -> None:
    for m, n, k in ((70, 90, 50), (33, 128, 700), (64, 64, 4000)):
        a = operand(3 * m, k).view(3, m, k) if layout[0] == "N" else operand(3 * k, m).view(3, k, m).mT
        b = operand(3 * k, n).view(3, k, n) if layout[1] == "N" else operand(3 * n, k).view(3, n, k).mT
        for x, y in ((a, b), (a[:1].expand_as(a), b), (a, b[:1].expand_as(b))):
            exact, magnitude = reference_matmul(x, y)
            assert_close_to_torch(hgemm.bmm(x, y, variant=variant.id), exact, x @ y, magnitude=magnitude)


@VARIANTS
def test_without_k(variant: VariantInfo) -> None:
    a, b, bias = torch.empty(35, 0, device="cuda"), torch.empty(90, 0, device="cuda"), torch.randn(90, device="cuda")
    assert torch.equal(hgemm.linear(a, b, bias, 0, variant=variant.id), bias.expand(35, 90))


@VARIANTS
def test_launches_back_to_back(variant: VariantInfo) -> None:
    """Each may start before the one ahead has ended, and may get its workspace."""
    calls = [(operand(m, k), operand(n, k).t()) for m, n, k in ((64, 64, 20000), (200, 64, 4000), (64, 1000, 600))]
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    results = [[hgemm.mm(a, b, variant=variant.id) for a, b in calls] for _ in range(100)]
    assert all(torch.equal(out, want) for outs in results for out, want in zip(outs, expected, strict=True))
