"""The kernels for a short side where they differ from others: more tiles than the GPU has room for at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import POISON, GuardedBuffer, assert_close_to_torch, rand, reference_matmul, serves
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
SKINNY = [v for v in hgemm_ops.variants() if v.family in ("skinny", "sm90_skinny", "gemv")]
VARIANTS = pytest.mark.parametrize("variant", SKINNY, ids=lambda v: v.name)


def width(variant: VariantInfo) -> int:
    """The most rows of the short operand. A kernel that takes several tiles of them gets two: it takes more than 64."""
    return 2 * variant.tile[1] if variant.name.endswith("_tiled") else variant.tile[1]


# Rows of the long operand: above 132 tiles of any height, in even and uneven waves, with a last tile of few rows.
@pytest.mark.parametrize("rows", [8456, 17000, 35001])
@pytest.mark.parametrize("k", [8, 136, 1032])
@pytest.mark.parametrize("layout", ["NT", "NN", "swapped", "TN", "TT", "TN, sliced"])
@VARIANTS
def test_more_tiles_than_blocks(variant: VariantInfo, layout: str, k: int, rows: int) -> None:
    cols = max(1, width(variant) * 7 // 8)  # the last columns of the instruction are nobody's
    if layout == "swapped":
        a, b = rand(rows, k), rand(cols, k).t()
    else:
        a = rand(cols, k)
        if layout[0] == "T":  # the columns of a matrix, all or some
            a = rand(k, max(8, width(variant))).t()[: cols if layout.endswith("sliced") else width(variant)]
        b = rand(k, rows) if layout[1] == "N" else rand(rows, k).t()
    if not serves(variant, a, b):
        pytest.skip(f"{variant.name} does not serve these rows of {layout}")
    out = GuardedBuffer((a.size(0), b.size(1)), torch.float16, "cuda")
    hgemm.mm.out(a, b, variant=variant.id, out=out.tensor)
    out.check()
    exact, magnitude = reference_matmul(a, b)
    assert_close_to_torch(out.tensor, exact, a @ b, magnitude=magnitude)
    for _ in range(3):
        assert torch.equal(hgemm.mm(a, b, variant=variant.id), out.tensor)


@VARIANTS
def test_epilogue_of_every_tile(variant: VariantInfo) -> None:
    x, weight, bias = rand(width(variant), 264), rand(20000, 264), rand(20000)
    y, pre = hgemm.linear_save(x, weight, bias, 2, variant=variant.id)
    product, magnitude = reference_matmul(x, weight.t())
    exact, theirs = product + bias.double(), F.linear(x, weight, bias)
    assert_close_to_torch(pre, exact, theirs, magnitude=magnitude)
    assert_close_to_torch(y, F.gelu(exact), F.gelu(theirs), magnitude=magnitude)


@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@VARIANTS
def test_results_at_any_address_have_the_same_bits(variant: VariantInfo, swapped: bool) -> None:
    few, many = rand(max(1, width(variant) * 7 // 8), 264), rand(5003, 264)
    x, weight = (many, few) if swapped else (few, many)
    if not serves(variant, x, weight.t()):
        pytest.skip(f"{variant.name} does not serve these rows")
    rows, n = x.size(0), weight.size(0)
    for bias, ld in itertools.product((None, rand(n)), (n + 9, n + 10, n + 11, n + 12)):
        whole = torch.full((rows, -(-n // 8) * 8 + 8), POISON, device="cuda", dtype=torch.float16)
        aligned = whole[:, :n]
        hgemm.linear.out(x, weight, bias, variant=variant.id, out=aligned)
        product, magnitude = reference_matmul(x, weight.t())
        exact = product if bias is None else product + bias.double()
        magnitude = magnitude if bias is None else magnitude + bias.double().abs()
        assert_close_to_torch(aligned, exact, F.linear(x, weight, bias), magnitude=magnitude)
        around = torch.full((rows, ld), POISON, device="cuda", dtype=torch.float16)
        hgemm.linear.out(x, weight, bias, variant=variant.id, out=around[:, 3 : n + 3])
        expected = torch.full_like(around, POISON)
        expected[:, 3 : n + 3] = aligned
        assert torch.equal(around.view(torch.int16), expected.view(torch.int16))


def graph_of(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


@VARIANTS
def test_a_chain_of_layers(variant: VariantInfo) -> None:
    """Every layer's input is written by the kernel right before it."""
    sizes = [1024, 4096, 1032, 1024, 12000, 1024]
    weights = [rand(n, k) / k**0.5 for k, n in itertools.pairwise(sizes)]
    x = rand(width(variant), sizes[0])

    def chain() -> Tensor:
        y = x
        for weight in weights * 8:
            y = hgemm.linear(y, weight, None, 1, variant=variant.id)
        return y

    graph, out = graph_of(chain)
    for _ in range(20):
        x.copy_(rand(*x.shape))
        out.fill_(POISON)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, chain())


@VARIANTS
def test_weights_that_the_kernel_before_writes(variant: VariantInfo) -> None:
    """What a kernel has of W early, it has in L2, where the writes of others arrive."""
    x, factor = rand(width(variant), 1024), rand(64, 1024)
    factors = [rand(4096, 64) / 8 for _ in range(16)]

    def step() -> Tensor:
        return torch.stack([hgemm.linear(x, hgemm.mm(f, factor), variant=variant.id) for f in factors])

    graph, out = graph_of(step)
    for _ in range(10):
        for f in factors:
            f.copy_(rand(*f.shape) / 8)
        graph.replay()
        torch.cuda.synchronize()
        for f, y in zip(factors, out, strict=True):
            weight = hgemm.mm(f, factor)
            torch.cuda.synchronize()
            assert torch.equal(y, hgemm.linear(x, weight, variant=variant.id))
