"""float32 results of batch-invariant products of 16-bit operands: the error over K, and the bits where K has slices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hgemm_ops

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
DEPTHS = (512, 1024, 2048, 2049, 4100, 8192, 16384, 65536)
INPUTS: dict[str, Callable[..., Tensor]] = {"N(0,1)": torch.randn, "U(0,1)": torch.rand}


def same_bits(got: Tensor, expected: Tensor) -> bool:
    return torch.equal(got.view(torch.int32), expected.view(torch.int32))


def kernels(a: Tensor, b: Tensor) -> list[str]:
    """Those of the class that serve a product."""
    found = hgemm_ops.explain(a, b, numerics="batch_invariant", out_dtype=torch.float32)
    return [c.name for c in found.candidates if c.eligible and not c.forced_only]


@HALF
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("k", DEPTHS)
@pytest.mark.parametrize(("m", "n"), [(512, 512), (16, 512), (128, 2048)])
def test_errors_are_at_most_twice_torchs(dtype: torch.dtype, inputs: str, k: int, m: int, n: int) -> None:
    a, b = (INPUTS[inputs](size, device="cuda").to(dtype) for size in ((m, k), (k, n)))
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()

    def errors(out: Tensor) -> tuple[float, float]:
        share = (out.double() - exact) / magnitude
        return share.abs().max().item(), share.square().mean().sqrt().item()

    most, rms = errors(hgemm_ops.matmul(a, b, numerics="batch_invariant", out_dtype=torch.float32))
    torchs_most, torchs_rms = errors(torch.mm(a, b, out_dtype=torch.float32))
    rounding = 2.0**-24  # what storing a float32 loses at most
    assert rms <= 2 * torchs_rms + 0.1 * rounding and most <= 2 * torchs_most + rounding


@HALF
@pytest.mark.parametrize(("n", "k"), [(256, 2049), (264, 5000), (67, 8191), (4096, 4096)])
def test_kernels_of_the_class_agree(dtype: torch.dtype, n: int, k: int) -> None:
    x, w = torch.randn(700, k, device="cuda").to(dtype), torch.randn(k, n, device="cuda").to(dtype)
    expected = hgemm_ops.matmul(x, w, numerics="batch_invariant", out_dtype=torch.float32)
    seen = set()
    for b in (w, w.t().contiguous().t()):
        for m in (1, 8, 16, 33, 64, 130, 700):
            for a in (x[:m], x[:m].t().contiguous().t()):
                for kernel in kernels(a, b):
                    seen.add(kernel)
                    got = hgemm_ops.matmul(a, b, variant=kernel, numerics="batch_invariant", out_dtype=torch.float32)
                    assert same_bits(got, expected[:m]), (kernel, m)
    assert len(seen) > 3, seen


@HALF
def test_rows_and_batches(dtype: torch.dtype) -> None:
    """The bits of a row depend neither on its place, nor on the others, nor on the batch."""
    x, w = torch.randn(6, 40, 5000, device="cuda").to(dtype), torch.randn(6, 5000, 72, device="cuda").to(dtype)
    options = {"numerics": "batch_invariant", "out_dtype": torch.float32}
    every = hgemm_ops.matmul(x, w, **options)
    for i in range(6):
        assert same_bits(hgemm_ops.matmul(x[i], w[i], **options), every[i])
        assert same_bits(hgemm_ops.matmul(x[i, 7:9], w[i], **options), every[i, 7:9])
    order = torch.randperm(40, device="cuda")
    assert same_bits(hgemm_ops.matmul(x[2, order], w[2], **options), every[2, order])


@HALF
@pytest.mark.parametrize("k", [2049, 5000])
def test_epilogues(dtype: torch.dtype, k: int) -> None:
    """alpha, beta, bias, an activation and the argument of an activation, each of which one slice applies."""
    a, b = torch.randn(50, k, device="cuda").to(dtype), torch.randn(k, 80, device="cuda").to(dtype)
    bias = torch.randn(80, device="cuda").to(dtype)
    exact = a.double() @ b.double()
    for c in (torch.randn(50, 80, device="cuda"), torch.randn(50, 80, device="cuda").to(dtype), bias):
        out = hgemm.addmm(c, a, b, beta=0.5, alpha=-2.0, numerics=1, out_dtype=torch.float32)
        torch.testing.assert_close(out.double(), -2 * exact + 0.5 * c.double(), rtol=1e-5, atol=2e-3)
    out, before = hgemm.linear_save(a, b.t(), bias, 4, numerics=1, out_dtype=torch.float32)
    torch.testing.assert_close(before.double(), exact + bias, rtol=1e-5, atol=2e-3)
    torch.testing.assert_close(out, F.silu(before), rtol=1e-5, atol=1e-5)
    nan = torch.full((50, 80), float("nan"), device="cuda")
    ignored = hgemm.addmm(nan, a, b, beta=0.0, numerics=1, out_dtype=torch.float32)
    assert same_bits(ignored, hgemm.mm(a, b, numerics=1, out_dtype=torch.float32))
    a[3, 7], a[4, k - 1], b[k // 2, 5] = float("inf"), float("nan"), float("-inf")
    out, expected = hgemm.mm(a, b, numerics=1, out_dtype=torch.float32), torch.mm(a, b, out_dtype=torch.float32)
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(out), kind(expected))
