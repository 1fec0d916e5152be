"""``x @ x.T`` and ``x.T @ x`` are symmetric to the bit, in batches, and with a symmetric C.

Kernels that split float32 are left out: they add up the products of planes in an order that depends on the side.
"""

from __future__ import annotations

import pytest
import torch
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


def operands(how: str, *shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A matrix and its transpose, in the same memory: row by row, or column by column."""
    x = torch.randn(shape, device="cuda").to(dtype)
    if how == "x.T @ x":
        x = x.mT.contiguous().mT
    return x, x.mT


def asymmetric(d: Tensor) -> int:
    """The number of elements that differ from their mirror image."""
    return int((d != d.mT).sum())


@EVERY
@pytest.mark.parametrize("how", ["x @ x.T", "x.T @ x"])
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
@pytest.mark.parametrize("how", ["x @ x.T", "x.T @ x"])
@pytest.mark.parametrize(("batch", "rows", "k"), [(300, 5, 7), (64, 16, 72), (33, 50, 501), (5, 200, 3000)])
def test_batches(kind: str, how: str, batch: int, rows: int, k: int) -> None:
    dtype, float32 = KINDS[kind]
    a, b = operands(how, batch, rows, k, dtype=dtype)
    with use_custom_gemm(float32=float32) as report:
        assert asymmetric(torch.bmm(a, b)) == 0, report.rows
        assert asymmetric(a @ b) == 0, report.rows


@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, id=v.name) for v in hgemm_ops.variants() if not v.forced_only and "split" not in v.family],
)
def test_every_kernel(variant: VariantInfo) -> None:
    """Whatever the dispatcher takes a kernel for: one that cannot keep the promise refuses."""
    served = 0
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        if dtype not in variant.dtypes:
            continue
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
