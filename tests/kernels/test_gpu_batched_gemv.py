"""batched_gemv: batches of vectors by matrices of every size, memory order, alignment and epilogue."""

from __future__ import annotations

import pytest
import torch
from helpers import ACTIVATIONS, POISON, assert_close_to_torch, poisoned_cuda_memory, rand, reference_matmul
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
KERNELS = [v for v in hgemm_ops.variants() if v.family == "batched_gemv"]
VARIANTS = pytest.mark.parametrize("variant", KERNELS, ids=lambda v: v.name)
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
# Batch, N and K: lanes without work, tiles beyond the end, K shared by warps, rows that are no whole chunks.
SIZES = [
    (3, 8, 2),
    (300, 56, 48),
    (70, 40, 856),
    (16, 24, 4096),
    (2, 1592, 1104),
    (5000, 24, 24),
    (40, 130, 98),
    (90, 81, 203),
]


def matrices(batch: int, rows: int, cols: int, dtype: torch.dtype, gap: int = 0, offset: int = 0) -> Tensor:
    """A batch of row-major matrices, with NaN before them and between their rows."""
    pitch = cols + gap
    storage = torch.full((offset + batch * rows * pitch,), POISON, device="cuda", dtype=dtype)
    view = storage[offset:].view(batch, rows, pitch)[..., :cols]
    view.copy_(rand(batch, rows, cols, dtype=dtype))
    return view


def assert_product(variant: VariantInfo, a: Tensor, b: Tensor) -> None:
    __tracebackhide__ = True
    with poisoned_cuda_memory():
        out = hgemm.bmm(a, b, variant=variant.id)
        again = hgemm.bmm(a, b, variant=variant.id)
    exact, magnitude = reference_matmul(a, b)
    assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)
    assert torch.equal(out, again)


@pytest.mark.parametrize(("gap", "offset"), [(0, 0), (8, 0), (2, 2), (3, 1)])
@pytest.mark.parametrize("k_major", [False, True], ids=["NN", "NT"])
@DTYPES
@VARIANTS
def test_products(variant: VariantInfo, dtype: torch.dtype, k_major: bool, gap: int, offset: int) -> None:
    chunk = 16 // dtype.itemsize
    for batch, n, k in SIZES:
        x = matrices(batch, 1, k, dtype, gap, offset)
        w = matrices(batch, n, k, dtype, gap, offset).mT if k_major else matrices(batch, k, n, dtype, gap, offset)
        is_whole = (k if k_major else n) % chunk == gap % chunk == offset == 0
        if not is_whole and not (k_major and dtype == torch.float32):
            with pytest.raises(RuntimeError, match="whole aligned 16-byte chunks"):
                hgemm.bmm(x, w, variant=variant.id)
            continue
        assert_product(variant, x, w)
        assert_product(variant, w.mT, x.mT)


@DTYPES
@VARIANTS
def test_vectors_with_gaps_and_shared_operands(variant: VariantInfo, dtype: torch.dtype) -> None:
    x = matrices(12, 104, 3, dtype)[..., 1:2].mT
    w = matrices(12, 104, 200, dtype)
    for a, b in ((x, w), (x[:1].expand_as(x), w), (x, w[:1].expand_as(w))):
        assert_product(variant, a, b)


@DTYPES
@VARIANTS
def test_two_batch_dimensions(variant: VariantInfo, dtype: torch.dtype) -> None:
    q = rand(3, 1, 5, 64, dtype=dtype).transpose(1, 2)
    keys = rand(3, 200, 5, 64, dtype=dtype).transpose(1, 2)
    exact, magnitude = reference_matmul(q, keys.mT)
    with hgemm_ops.use_custom_gemm(variant=variant.name):
        out = q @ keys.mT
    assert_close_to_torch(out, exact, q @ keys.mT, magnitude=magnitude)


@DTYPES
@VARIANTS
def test_epilogue(variant: VariantInfo, dtype: torch.dtype) -> None:
    x, w, c = rand(9, 1, 96, dtype=dtype), rand(9, 96, 72, dtype=dtype), rand(9, 1, 72, dtype=dtype)
    exact, magnitude = reference_matmul(x, w)
    out = hgemm.baddbmm(c, x, w, beta=-0.5, alpha=2.0, variant=variant.id)
    theirs = torch.baddbmm(c, x, w, beta=-0.5, alpha=2.0)
    assert_close_to_torch(out, 2 * exact - 0.5 * c.double(), theirs, magnitude=2 * magnitude + c.double().abs())
    bias = rand(72, dtype=dtype)
    exact, magnitude = reference_matmul(x[0], w[0])
    for act, function in ACTIVATIONS.items():
        out, pre = hgemm.linear_save(x[0], w[0].mT, bias, act, variant=variant.id)
        wide, theirs = exact + bias.double(), torch.nn.functional.linear(x[0], w[0].mT, bias)
        size = magnitude + bias.double().abs()
        assert_close_to_torch(pre, wide, theirs, magnitude=size)
        assert_close_to_torch(out, function(wide), function(theirs), magnitude=size, units=1.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@VARIANTS
def test_special_values_stay_in_their_rows(variant: VariantInfo, value: float) -> None:
    for n, k, dtype in ((67, 101, torch.float32), (72, 104, torch.float16)):
        x, w = rand(20, 1, k, dtype=dtype), rand(20, n, k, dtype=dtype).mT
        w[3, 0, 0] = w[3, k - 1, n - 1] = x[5, 0, k - 1] = value
        for b in (w, w.contiguous()) if n % 8 == 0 else (w,):
            torch.testing.assert_close(hgemm.bmm(x, b, variant=variant.id), x @ b, rtol=1e-2, atol=1e-2, equal_nan=True)
