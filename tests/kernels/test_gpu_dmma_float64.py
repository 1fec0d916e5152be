"""sm90_dmma on float64 operands: every layout and alignment, epilogues, slices of K, x @ x.T."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import POISON, GuardedBuffer, assert_close_to_torch, off_grid, poisoned_cuda_memory
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

hgemm = torch.ops.hgemm
KERNELS = [v for v in hgemm_ops.variants() if v.family == "sm90_dmma" and torch.float64 in v.dtypes]
VARIANTS = pytest.mark.parametrize("variant", KERNELS, ids=lambda v: v.name)
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# M, N and K: whole tiles, ragged ones, one row, less than a k-tile, slices of K in a cluster and in the workspace, more
# tiles than an H200 has SMs.
SIZES = [
    (256, 128, 512),
    (130, 65, 333),
    (1, 7, 700),
    (33, 200, 3),
    (64, 64, 20000),
    (40, 100, 8191),
    (18, 36, 5004),
    (2005, 1030, 44),
]


def operand(rows: int, cols: int, transposed: bool = False, offset: int = 0, exact: bool = True) -> Tensor:
    """``exact``: whole numbers of at most 20 bits, whose products have float64 sums without a rounding."""
    whole = torch.randint(-(2**19), 2**19, (rows, cols), device="cuda").double()
    return off_grid(whole if exact else torch.randn_like(whole), transposed, offset)


def reference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``a @ b``, with sums of 64 bits that are rounded to float64 at the end, and ``|a| @ |b|``."""
    wide_a, wide_b = (x.cpu().numpy().astype(np.longdouble) for x in (a, b))
    exact = np.matmul(wide_a, wide_b).astype(np.float64)
    return torch.from_numpy(exact).cuda(), a.abs() @ b.abs()


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """Of whole numbers, on the CPU."""
    return (a.cpu() @ b.cpu()).cuda()


@pytest.mark.parametrize("offset", [0, 1, 2], ids=lambda o: f"off{o}")
@LAYOUTS
@VARIANTS
def test_sums_of_whole_numbers_are_exact(variant: VariantInfo, layout: str, offset: int) -> None:
    for m, n, k in SIZES:
        a, b = operand(m, k, layout[0] == "T", offset), operand(k, n, layout[1] == "T", offset)
        buffer = GuardedBuffer((m, n), torch.float64, "cuda", offset=61)
        with poisoned_cuda_memory():
            hgemm.mm.out(a, b, variant=variant.id, out=buffer.tensor)
        buffer.check()
        assert torch.equal(buffer.tensor, exact_product(a, b)), (m, n, k)


@LAYOUTS
@VARIANTS
def test_errors_are_those_of_torch(variant: VariantInfo, layout: str) -> None:
    for m, n, k in ((130, 65, 333), (64, 64, 4000), (33, 36, 5004)):
        a = operand(m, k, layout[0] == "T", exact=False)
        b = operand(k, n, layout[1] == "T", exact=False)
        exact, magnitude = reference(a, b)
        out = hgemm.mm(a, b, variant=variant.id)
        assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)
        assert torch.equal(hgemm.mm(a, b, variant=variant.id), out)


@VARIANTS
def test_epilogue(variant: VariantInfo) -> None:
    # D aligned and not, without and with slices of K
    for m, n, k in ((70, 200, 40), (70, 201, 40), (70, 200, 1500), (70, 201, 1500), (33, 36, 9000)):
        a, b, c, bias = operand(m, k), operand(n, k), operand(m, n), operand(1, n)[0]
        exact = exact_product(a, b.t())
        assert torch.equal(hgemm.linear(a, b, bias, 0, variant=variant.id), exact + bias)
        for added in (c, operand(n, m).t(), c[:1].expand(m, n), c[:, :1].expand(m, n)):
            out = hgemm.addmm(added, a, b.t(), beta=-0.5, alpha=2.0, variant=variant.id)
            assert torch.equal(out, 2 * exact - 0.5 * added)
        out = hgemm.addmm(torch.full_like(c, POISON), a, b.t(), beta=0, variant=variant.id)
        assert torch.equal(out, exact)
        # Factors that float32 does not have
        scaled = hgemm.addmm(c, a, b.t(), beta=1 / 3, alpha=0.1, variant=variant.id)
        torch.testing.assert_close(scaled, torch.addmm(c, a, b.t(), beta=1 / 3, alpha=0.1), rtol=1e-14, atol=1e-3)
    a, b, c = (operand(3 * rows, cols).view(3, rows, cols) for rows, cols in ((70, 40), (40, 201), (70, 201)))
    expected = torch.stack([exact_product(x, y) for x, y in zip(a, b, strict=True)]) + c
    assert torch.equal(hgemm.baddbmm(c, a, b, variant=variant.id), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@LAYOUTS
@VARIANTS
def test_special_values(variant: VariantInfo, layout: str, value: float) -> None:
    for m, n, k in ((70, 131, 1001), (64, 132, 6004)):
        a, b = operand(m, k, layout[0] == "T"), operand(k, n, layout[1] == "T")
        a[m // 2, k - 1] = b[0, 0] = b[k - 1, n - 1] = value
        torch.testing.assert_close(hgemm.mm(a, b, variant=variant.id), a @ b, rtol=1e-13, atol=0, equal_nan=True)


@VARIANTS
def test_nothing_is_flushed(variant: VariantInfo) -> None:
    tiny = torch.full((40, 50), 2.0**-1074, device="cuda", dtype=torch.float64)
    ones = torch.ones(50, 36, device="cuda", dtype=torch.float64)
    assert torch.equal(hgemm.mm(tiny, ones, variant=variant.id), torch.full_like(tiny[:, :36], 50 * 2.0**-1074))


@LAYOUTS
@VARIANTS
def test_batches(variant: VariantInfo, layout: str) -> None:
    for m, n, k in ((70, 90, 50), (33, 128, 700), (64, 64, 4000)):
        a = operand(3 * m, k).view(3, m, k) if layout[0] == "N" else operand(3 * k, m).view(3, k, m).mT
        b = operand(3 * k, n).view(3, k, n) if layout[1] == "N" else operand(3 * n, k).view(3, n, k).mT
        for x, y in ((a, b), (a[:1].expand_as(a), b), (a, b[:1].expand_as(b))):
            expected = torch.stack([exact_product(p, q) for p, q in zip(x, y, strict=True)])
            assert torch.equal(hgemm.bmm(x, y, variant=variant.id), expected)


@pytest.mark.parametrize("transposed", [False, True], ids=["x @ x.T", "x.T @ x"])
@VARIANTS
def test_a_product_by_its_own_transpose(variant: VariantInfo, transposed: bool) -> None:
    for n, k in ((1030, 60), (513, 700), (200, 9001), (64, 20000)):
        for batch in (1, 3):
            x = operand(batch * n, k).view(batch, n, k)
            a = operand(batch * k, n).view(batch, k, n).mT if transposed else x
            expected = torch.stack([exact_product(y, y.mT) for y in a])
            buffer = GuardedBuffer((batch, n, n), torch.float64, "cuda", offset=61)
            hgemm.bmm.out(a, a.mT, variant=variant.id, out=buffer.tensor)
            buffer.check()
            assert torch.equal(buffer.tensor, expected), (n, k, batch)


@VARIANTS
def test_without_k(variant: VariantInfo) -> None:
    a, b = (torch.empty(rows, 0, device="cuda", dtype=torch.float64) for rows in (35, 90))
    bias = torch.randn(90, device="cuda", dtype=torch.float64)
    assert torch.equal(hgemm.linear(a, b, bias, 0, variant=variant.id), bias.expand(35, 90))


@VARIANTS
def test_launches_back_to_back(variant: VariantInfo) -> None:
    """Each may start before the one ahead has ended, and may get its workspace."""
    calls = [(operand(m, k), operand(n, k).t()) for m, n, k in ((64, 64, 20000), (200, 64, 4000), (64, 1000, 600))]
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    results = [[hgemm.mm(a, b, variant=variant.id) for a, b in calls] for _ in range(100)]
    assert all(torch.equal(out, want) for outs in results for out, want in zip(outs, expected, strict=True))


@VARIANTS
def test_activations_are_refused(variant: VariantInfo) -> None:
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.float64) for _ in range(2))
    with pytest.raises(RuntimeError, match="float64"):
        hgemm.linear(a, b, None, 1, variant=variant.id)
