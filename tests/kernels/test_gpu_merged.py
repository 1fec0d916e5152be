"""Batches whose matrices share B, by the kernels that compute rows of several matrices in one tile.

A in every memory order that they take, ragged numbers of rows and of matrices, and every epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, POISON, GuardedBuffer, assert_close_to_torch, reference_matmul, serves
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo, use_custom_gemm

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

hgemm = torch.ops.hgemm
MERGING = pytest.mark.parametrize(
    "variant", [pytest.param(v, id=v.name) for v in hgemm_ops.variants() if v.name.endswith("_merged")]
)
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
# Batch, M, N and K: less than a tile, boxes that fill tiles badly, more rows than a tile has, several waves of tiles,
# and more k-tiles than the ring has stages.
SHAPES = [
    (2, 3, 64, 64),
    (7, 17, 72, 72),
    (100, 17, 264, 136),
    (33, 100, 136, 200),
    (3, 190, 200, 520),
    (129, 1, 128, 1032),
    (5, 65, 1000, 1000),
    (64, 27, 2048, 512),
    (1000, 6, 520, 264),
    (16, 300, 1536, 64),
]


def filled(shape: tuple[int, ...]) -> Tensor:
    """U[-1, 1], because sums of long K have errors in proportion to their terms."""
    return torch.rand(shape, device="cuda") * 2 - 1


def batch_of_rows(order: str, batch: int, m: int, k: int, dtype: torch.dtype) -> Tensor:
    """A (batch, m, k) in the middle of poison.

    "permuted": the rows of all matrices are those of one, a matrix after the other in each row. "sliced": some rows and
    columns of larger matrices. "permuted and sliced": both. "two dimensions": (2, batch, m, k), sliced.
    """
    if order == "two dimensions":
        storage = torch.full((2, batch + 1, m + 2, k + 8), POISON, dtype=dtype, device="cuda")
        view = storage[:, :batch, :m, :k]
    elif order == "sliced":
        view = torch.full((batch, m + 2, k + 8), POISON, dtype=dtype, device="cuda")[:, :m, :k]
    elif order == "permuted":
        view = torch.full((m + 1, batch, k), POISON, dtype=dtype, device="cuda")[:m].transpose(0, 1)
    else:
        view = torch.full((m, batch + 1, k + 16), POISON, dtype=dtype, device="cuda")[:, :batch, :k].transpose(0, 1)
    view.copy_(filled(view.shape))
    return view


def shared_matrix(layout: str, k: int, n: int, dtype: torch.dtype) -> Tensor:
    b = filled((k, n) if layout == "NN" else (n, k)).to(dtype)
    return b if layout == "NN" else b.T


ORDERS = ("permuted", "sliced", "permuted and sliced", "two dimensions")


def problems(variant: VariantInfo, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Those that the kernel takes, which saves tiles."""
    torch.manual_seed(0)
    served = 0
    for (batch, m, n, k), order, layout in product(SHAPES, ORDERS, ("NN", "NT")):
        a, b = batch_of_rows(order, batch, m, k, dtype), shared_matrix(layout, k, n, dtype)
        if serves(variant, a, b):
            served += 1
            yield a, b
    assert served > len(SHAPES) * len(ORDERS)  # of twice as many


@MERGING
@DTYPES
def test_every_memory_order(variant: VariantInfo, dtype: torch.dtype) -> None:
    for a, b in problems(variant, dtype):
        exact, magnitude = reference_matmul(a, b)
        for padding, out_dtype in ((0, dtype), (8, dtype), (5, dtype), (0, torch.float32)):
            guard = GuardedBuffer(tuple(exact.shape), out_dtype, "cuda", row_padding=padding)
            hgemm.matmul.out(a, b, out_dtype=out_dtype, variant=variant.id, out=guard.tensor)
            theirs = torch.matmul(a, b) if out_dtype == dtype else torch.matmul(a.float(), b.float())
            assert_close_to_torch(guard.tensor, exact, theirs, magnitude=magnitude)
            guard.check()


@MERGING
@DTYPES
def test_sums_with_c(variant: VariantInfo, dtype: torch.dtype) -> None:
    """C of the result's shape, permuted, and broadcast over rows or the batch."""
    for a, b in problems(variant, dtype):
        if a.dim() != 3:
            continue
        batch, m, n = (*a.shape[:2], b.size(1))
        exact, magnitude = reference_matmul(a, b)
        for c in (
            filled((batch, m, n)),
            filled((m, batch, n)).transpose(0, 1),
            filled((batch, 1, n)),
            filled((m, n)),
        ):
            c = c.to(dtype)
            out = hgemm.baddbmm(c, a, b.expand(batch, *b.shape), beta=0.5, alpha=-2.0, variant=variant.id)
            theirs = torch.baddbmm(c, a, b.expand(batch, *b.shape), beta=0.5, alpha=-2.0)
            reference = 0.5 * c.double() - 2.0 * exact
            assert_close_to_torch(out, reference, theirs, magnitude=2 * magnitude + c.double().abs())


@MERGING
@DTYPES
def test_bias_and_activations(variant: VariantInfo, dtype: torch.dtype) -> None:
    for a, b in problems(variant, dtype):
        exact, magnitude = reference_matmul(a, b)
        bias = filled((b.size(1),)).to(dtype)
        before = exact + bias.double()
        for act, function in ACTIVATIONS.items():
            out = hgemm.linear(a, b.T, bias, act, variant=variant.id)
            theirs = function(F.linear(a, b.T, bias).float()).to(dtype)
            assert_close_to_torch(out, function(before), theirs, magnitude=magnitude + 1, units=2)
        out, saved = hgemm.linear_save(a, b.T, bias, 2, variant=variant.id)
        assert_close_to_torch(saved, before, F.linear(a, b.T, bias), magnitude=magnitude + 1)
        assert_close_to_torch(out, F.gelu(before), F.gelu(F.linear(a, b.T, bias)), magnitude=magnitude + 1, units=2)


@MERGING
@DTYPES
def test_bits_are_those_of_a_matrix_alone(variant: VariantInfo, dtype: torch.dtype) -> None:
    """A row's bits depend neither on the other rows nor on where it lies in a tile."""
    for a, b in problems(variant, dtype):
        out = hgemm_ops.matmul(a, b, variant=variant.name, numerics="batch_invariant")
        matrices, results = a.reshape(-1, *a.shape[-2:]), out.reshape(-1, *out.shape[-2:])
        for index in {0, len(matrices) // 2, len(matrices) - 1}:
            alone = hgemm_ops.matmul(matrices[index], b, variant="sm90_wgmma_pingpong_128x128x64_c1x1x1")
            assert torch.equal(results[index], alone)


@MERGING
def test_zeros_times_infinity_stay_in_their_rows(variant: VariantInfo) -> None:
    for a, b in problems(variant, torch.float16):
        a[..., 0, 0] = torch.inf
        out = hgemm.matmul(a, b, variant=variant.id)
        assert out[..., 1:, :].isfinite().all() and not out[..., 0, :].isfinite().any()


@DTYPES
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_takes_a_permuted_input(dtype: torch.dtype, bias: bool) -> None:
    """torch expands the weight over the batch, where the input needs no gradient."""
    torch.manual_seed(0)
    x, w = filled((27, 64, 4096)).to(dtype).transpose(0, 1), filled((8192, 4096)).to(dtype)
    b = filled((8192,)).to(dtype) if bias else None
    exact, magnitude = reference_matmul(x, w.T)
    with torch.no_grad():
        theirs = F.linear(x, w, b)
        with use_custom_gemm() as report:
            ours = F.linear(x, w, b)
    assert [row.variant.endswith("_merged") for row in report.rows] == [True], report
    assert ours.stride() == theirs.stride()
    assert_close_to_torch(ours, exact + (b.double() if b is not None else 0), theirs, magnitude=magnitude + 1)


def test_calls_that_overlap(  # by programmatic dependent launch
) -> None:
    """A chain of layers in a CUDA graph gives the bits of layers one by one."""
    torch.manual_seed(0)
    weights = [filled((512, 512)).half() / 16 for _ in range(6)]
    first = filled((17, 100, 512)).half()

    def layers(wait: bool) -> Tensor:
        y = first
        for i, w in enumerate(weights):
            y = hgemm_ops.linear(y.transpose(0, 1), w, variant=names[i % len(names)])
            if wait:
                torch.cuda.synchronize()
        return y

    names = [v.name for v in hgemm_ops.variants() if v.name.endswith("_merged")]
    expected = layers(wait=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = layers(wait=False)
    for _ in range(3):
        graph.replay()
        assert torch.equal(result, expected)
