"""``x @ x.T`` and ``x.T @ x`` are symmetric to the bit, in batches, and with a symmetric C.

Some kernels compute only one triangle of them, and store each result twice.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, POISON, GuardedBuffer, assert_close_to_torch, least_k, reference_matmul
from sm90_checks import check_equal_bits
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo, use_custom_gemm

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("without_tf32")]

hgemm = torch.ops.hgemm
#: dtype and float32 mode.
KINDS = {
    "float16": (torch.float16, "strict"),
    "bfloat16": (torch.bfloat16, "strict"),
    "float32": (torch.float32, "strict"),
    "split": (torch.float32, "split"),
}
EVERY = pytest.mark.parametrize("kind", KINDS)
# Rows and K of x: aligned and not, few rows and a long K, more tiles than fill whole waves.
SHAPES = [
    (3, 70000),
    (8, 1001),
    (16, 4099),
    (40, 1031),
    (64, 8192),
    (129, 520),
    (300, 700),
    (512, 65536),
    (1000, 4096),
    (1536, 3000),
    (2304, 2304),
    (4097, 130),
]


HOW = pytest.mark.parametrize("how", ["x @ x.T", "x.T @ x"])


def operands(how: str, *shape: int, dtype: torch.dtype, padding: int = 0) -> tuple[Tensor, Tensor]:
    """A matrix and its transpose, in the same memory: row by row, or column by column, ``padding`` elements apart."""
    *batch, rows, k = shape
    along, across = (k, rows) if how == "x @ x.T" else (rows, k)
    x = torch.full((*batch, across, along + padding), POISON, device="cuda", dtype=dtype)[..., :along]
    x.copy_(torch.randn(x.shape, device="cuda"))
    return (x, x.mT) if how == "x @ x.T" else (x.mT, x)


def asymmetric(d: Tensor) -> int:
    """The number of elements that differ from their mirror image."""
    return int((d != d.mT).sum())


@EVERY
@HOW
@pytest.mark.parametrize(("rows", "k"), SHAPES)
def test_the_dispatchers_choice(kind: str, how: str, rows: int, k: int) -> None:
    dtype, float32 = KINDS[kind]
    a, b = operands(how, rows, k, dtype=dtype)
    for numerics in ("fast", "batch_invariant"):
        with use_custom_gemm(float32=float32, numerics=numerics) as report:
            assert asymmetric(a @ b) == 0, (numerics, report.rows)
            c = torch.randn(rows, rows, device="cuda").to(dtype)
            assert asymmetric(torch.addmm(c + c.T, a, b, beta=0.5, alpha=-3.0)) == 0, (numerics, report.rows)


@EVERY
@HOW
@pytest.mark.parametrize(("batch", "rows", "k"), [(300, 5, 7), (64, 16, 72), (33, 50, 501), (5, 200, 3000)])
def test_batches(kind: str, how: str, batch: int, rows: int, k: int) -> None:
    dtype, float32 = KINDS[kind]
    a, b = operands(how, batch, rows, k, dtype=dtype)
    with use_custom_gemm(float32=float32) as report:
        assert asymmetric(torch.bmm(a, b)) == 0, report.rows
        assert asymmetric(a @ b) == 0, report.rows


@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, id=v.name) for v in hgemm_ops.variants() if not v.forced_only and v.family != "int8"],
)
def test_every_kernel(variant: VariantInfo) -> None:
    """Whatever the dispatcher takes a kernel for: one that cannot keep the promise refuses."""
    served = 0
    for dtype in variant.dtypes:
        for how in ("x @ x.T", "x.T @ x"):
            for rows, k in (*SHAPES, (2, 5), (6, 6), (4096, 136)):
                a, b = operands(how, rows, k, dtype=dtype)
                try:
                    d = hgemm.mm(a, b, variant=variant.id)
                except RuntimeError as refused:
                    assert "does not support" in str(refused)
                    continue
                served += 1
                assert asymmetric(d) == 0, (how, rows, k, dtype)
    if not served:
        pytest.skip("serves no such product here")


#: The kernels that compute one triangle, and store it twice. Those for float64 have tests of their own, because the
#: reference here is in float64 (test_gpu_dmma_float64.py).
MIRRORING = pytest.mark.parametrize(
    "variant",
    [
        pytest.param(v, id=v.name, marks=[pytest.mark.sm90] if v.min_arch == "sm_90" else [])
        for v in hgemm_ops.variants()
        if v.name.endswith("_symmetric")
        or (v.family in ("sm90_dmma", "sm90_split", "sm80_split") and torch.float64 not in v.dtypes)
    ],
)


def real_dtypes(variant: VariantInfo) -> list[torch.dtype]:
    """No kernel takes a complex matrix times its transpose."""
    return [dtype for dtype in variant.dtypes if not dtype.is_complex]


def check_in_place(variant: VariantInfo, a: Tensor, b: Tensor, row_padding: int) -> None:
    """Every element against float64 and torch's error, in memory of which nothing else is written."""
    exact, magnitude = reference_matmul(a, b)
    guard = GuardedBuffer(tuple(exact.shape), a.dtype, "cuda", row_padding=row_padding)
    hgemm.matmul.out(a, b, variant=variant.id, out=guard.tensor)
    assert_close_to_torch(guard.tensor, exact, a @ b, magnitude=magnitude)
    assert asymmetric(guard.tensor) == 0
    guard.check()


@MIRRORING
@HOW
def test_one_triangle_gives_both(variant: VariantInfo, how: str) -> None:
    """All sizes at which tiles, panels of tiles and the diagonal meet; rows of x and D with a stride of their own."""
    torch.manual_seed(0)
    served = 0
    sizes = (*range(1, 300, 23), 8, 64, 72, 120, 128, 136, 248, 256, 264, 392, 512, 515, 1031, 1032, 1288, 2056, 2312)
    for i, rows in enumerate(sizes):
        dtype, k, padding = (
            real_dtypes(variant)[i % len(real_dtypes(variant))],
            max((8, 72, 520, 1032)[i % 4], least_k(variant)),
            i % 3 * 8,
        )
        a, b = operands(how, rows, k, dtype=dtype, padding=padding)
        if variant.name.endswith("_symmetric") and rows % 8:
            reason = hgemm_ops.explain(a, b).candidates[variant.id].reason
            assert f"N a multiple of 8 (got {rows})" in reason, reason
            continue
        check_in_place(variant, a, b, padding)
        served += 1
    assert served > len(sizes) // 2


@MIRRORING
@HOW
def test_long_and_odd_sums(variant: VariantInfo, how: str) -> None:
    """Few tiles of a long K, of which split kernels slice some, and a K that ends inside of a k-tile."""
    for rows, k in ((136, 16384), (520, 8200), (1288, 4104), (2824, 1000)):
        a, b = operands(how, rows, k, dtype=real_dtypes(variant)[-1])
        check_in_place(variant, a, b, 8)


@MIRRORING
@HOW
def test_batches_of_one_triangle(variant: VariantInfo, how: str) -> None:
    for shape in ((3, 264, 136), (2, 3, 136, 520), (5, 1032, 72)):
        *of_rows, k = shape
        a, b = operands(how, *of_rows, max(k, least_k(variant)), dtype=variant.dtypes[0], padding=8)
        exact, magnitude = reference_matmul(a, b)
        out = hgemm.matmul(a, b, variant=variant.id)
        assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)
        assert asymmetric(out) == 0


@MIRRORING
@HOW
def test_epilogues_of_one_triangle(variant: VariantInfo, how: str) -> None:
    """alpha and an activation, and where the kernel has them a bias, C, also in place, and a saved pre-activation."""
    # The last ones: slices of K in a cluster, and in the workspace.
    for rows, k in ((264, 72), (1032, 136), (1031, 200), (515, 1032), (200, 4104)):
        a, b = operands(how, rows, max(k, least_k(variant)), dtype=variant.dtypes[0])
        exact, magnitude = reference_matmul(a, b)
        if variant.name.endswith("_symmetric"):
            if rows % 8 == 0:
                zero = torch.zeros(rows, rows, device="cuda", dtype=a.dtype)
                out = hgemm.linear(a, a, None, 1, variant=variant.id)
                assert_close_to_torch(out, F.relu(exact), F.relu(a @ b), magnitude=magnitude)
                assert asymmetric(out) == 0
                out = hgemm.addmm(zero, a, b, beta=0.0, alpha=-2.5, variant=variant.id)
                theirs = torch.addmm(zero, a, b, beta=0.0, alpha=-2.5)
                assert_close_to_torch(out, -2.5 * exact, theirs, magnitude=2.5 * magnitude)
                assert asymmetric(out) == 0
            continue
        c = torch.randn(rows, rows, device="cuda")
        c = c + c.T
        theirs = torch.addmm(c, a, b, beta=0.5, alpha=-2.5)
        sums = 2.5 * magnitude + c.double().abs() / 2
        out = hgemm.addmm(c, a, b, beta=0.5, alpha=-2.5, variant=variant.id)
        assert_close_to_torch(out, -2.5 * exact + c.double() / 2, theirs, magnitude=sums)
        assert asymmetric(out) == 0
        in_place = c.clone()
        hgemm.addmm.out(in_place, a, b, beta=0.5, alpha=-2.5, variant=variant.id, out=in_place)
        assert torch.equal(in_place, out)
        skew = torch.randn(rows, rows, device="cuda")
        out = hgemm.addmm(skew, a, b, beta=0.5, alpha=-2.5, variant=variant.id)
        theirs = torch.addmm(skew, a, b, beta=0.5, alpha=-2.5)
        sums = 2.5 * magnitude + skew.double().abs() / 2
        assert_close_to_torch(out, -2.5 * exact + skew.double() / 2, theirs, magnitude=sums)
        bias = torch.randn(rows, device="cuda")
        biased, theirs = exact + bias.double(), F.linear(a, a, bias)
        for act, activate in ACTIVATIONS.items():
            out, pre = hgemm.linear_save(a, a, bias, act, variant=variant.id)
            assert_close_to_torch(pre, biased, theirs, magnitude=magnitude + bias.double().abs())
            assert_close_to_torch(out, activate(biased), activate(theirs), magnitude=magnitude + bias.double().abs())


@MIRRORING
@HOW
def test_special_values_of_one_triangle(variant: VariantInfo, how: str) -> None:
    """NaN and infinities reach row and column of their row of x, and in float32 what planes cannot hold does."""
    for rows in (392, 1032):  # in strict float32 all of the small D is computed
        a, b = operands(how, rows, 136, dtype=variant.dtypes[0])
        a[3, 5], a[200, 7], a[391, 0] = float("nan"), float("inf"), -float("inf")
        if a.dtype == torch.float32:
            a[100:120] *= 1e-30
            a[300:310] = 1e-40
        exact, magnitude = reference_matmul(a, b)
        out = hgemm.mm(a, b, variant=variant.id)
        assert_close_to_torch(out, exact, a @ b, magnitude=magnitude.nan_to_num(0, posinf=0))
        assert bool(((out == out.T) | out.isnan() & out.T.isnan()).all())


@MIRRORING
@HOW
def test_equal_bits_of_one_triangle(variant: VariantInfo, how: str) -> None:
    """Launch upon launch on two streams, each starting while the one before still runs."""
    shapes = ((264, 72), (1032, 2056), (520, 16384), (2312, 136))
    least = least_k(variant)
    check_equal_bits(variant, [operands(how, n, max(k, least), dtype=variant.dtypes[0]) for n, k in shapes])


@pytest.mark.sm90
@HOW
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_both_triangles_have_the_bits_of_other_kernels_in_order(how: str, dtype: torch.dtype) -> None:
    """A mirrored element is the sum of the same products in the same order, whichever kernel of the class adds them."""
    ordinary = next(v for v in hgemm_ops.variants() if v.name == "sm90_wgmma_pingpong_128x128x64_c2x1x1")
    a, b = operands(how, 1288, 1032, dtype=dtype)
    expected = hgemm.mm(a, b.clone(), variant=ordinary.id)
    for variant in hgemm_ops.variants():
        if variant.name.endswith("_symmetric"):
            assert variant.sums == ordinary.sums == "in order"
            assert torch.equal(hgemm.mm(a, b, variant=variant.id), expected), variant.name
    with use_custom_gemm(numerics="batch_invariant"):
        assert torch.equal(a @ b, expected)
        assert torch.equal(a[64:200] @ b, expected[64:200])


@pytest.mark.sm90
@HOW
def test_the_context_serves_large_ones_by_such_a_kernel(how: str) -> None:
    a, b = operands(how, 4096, 4096, dtype=torch.bfloat16)
    with use_custom_gemm() as report:
        assert asymmetric(a @ b) == 0
    assert [row.variant.endswith("_symmetric") for row in report.rows] == [True], report
    with use_custom_gemm() as report:
        torch.mm(a, b.clone())
    assert [row.variant.endswith("_symmetric") for row in report.rows] == [False], report
