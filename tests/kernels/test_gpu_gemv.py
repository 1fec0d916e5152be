"""gemv where its slices of K are added up by whichever block comes last: the same bits however launches meet."""

from __future__ import annotations

import pytest
import torch
from helpers import POISON, assert_close_to_torch, poisoned_cuda_memory, rand, reference_matmul
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
GEMV = [v for v in hgemm_ops.variants() if v.family == "gemv"]
VARIANTS = pytest.mark.parametrize("variant", GEMV, ids=lambda v: v.name)
# N, K and the layout of W; few rows or columns and a long K, so that blocks share them.
DEEP = [
    (1, 1 << 20, "NT"),
    (3, 70001, "NT"),
    (24, 40000, "NN"),
    (65, 20000, "NN"),
    (57, 9001, "NN"),
    (200, 33000, "NT"),
]


def factors(variant: VariantInfo, n: int, k: int, layout: str) -> tuple[Tensor, Tensor]:
    m = variant.tile[1]
    return rand(m, k), rand(k, n) if layout == "NN" else rand(n, k).t()


def problems(variant: VariantInfo) -> list[tuple[Tensor, Tensor]]:
    return [factors(variant, *shape) for shape in DEEP]


@pytest.mark.parametrize("swapped", [False, True], ids=["row", "column"])
@pytest.mark.parametrize("shape", DEEP, ids=str)
@VARIANTS
def test_slices_are_added_up(variant: VariantInfo, shape: tuple[int, int, str], swapped: bool) -> None:
    a, b = factors(variant, *shape)
    if swapped:
        a, b = b.t(), a.t()
    with poisoned_cuda_memory():
        out = hgemm.mm(a, b, variant=variant.id)
    exact, magnitude = reference_matmul(a, b)
    assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)
    for _ in range(20):
        assert torch.equal(hgemm.mm(a, b, variant=variant.id), out)


@VARIANTS
def test_every_offset_of_rows(variant: VariantInfo) -> None:
    """All 64 ways in which W and x can lie off the grid, with NaN all around them."""
    m, n, k = variant.tile[1], 75, 1003
    for layout in ("NT", "NN"):
        for shift in range(8):
            rows, cols = (n, k) if layout == "NT" else (k, n)
            storage = torch.full((rows, cols + 9), POISON, device="cuda", dtype=torch.half)
            w = storage[:, shift : shift + cols]
            w.copy_(rand(rows, cols))
            row = torch.full((m, k + 9), POISON, device="cuda", dtype=torch.half)
            for x_shift in range(8):
                x = row.fill_(POISON)[:, x_shift : x_shift + k]
                x.copy_(rand(m, k))
                b = w.t() if layout == "NT" else w
                exact, magnitude = reference_matmul(x, b)
                assert_close_to_torch(hgemm.mm(x, b, variant=variant.id), exact, x @ b, magnitude=magnitude)


@VARIANTS
def test_launches_back_to_back(variant: VariantInfo) -> None:
    """Each may start before the one ahead has ended, and finds its counters at zero all the same."""
    calls = problems(variant)
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    torch.cuda.synchronize()
    results = [[hgemm.mm(a, b, variant=variant.id) for a, b in calls] for _ in range(200)]
    torch.cuda.synchronize()
    assert all(torch.equal(out, want) for outs in results for out, want in zip(outs, expected, strict=True))


def capture(variant: VariantInfo, calls: list[tuple[Tensor, Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    return graph, outs


@VARIANTS
def test_replays_beside_other_launches(variant: VariantInfo) -> None:
    """Two graphs, captured on one stream, and eager calls, on three streams at once."""
    calls = problems(variant)
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    graphs = [capture(variant, calls * 4) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    for _ in range(30):
        for _, outs in graphs:
            for out in outs:
                out.fill_(POISON)
        torch.cuda.synchronize()
        eager = []
        for stream, (graph, _) in zip(streams, graphs, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            for a, b in calls * 4:
                eager.append(hgemm.mm(a, b, variant=variant.id))
        torch.cuda.synchronize()
        for outs in (eager, graphs[0][1], graphs[1][1]):
            assert all(map(torch.equal, outs, expected * 4))


def test_more_captured_launches_than_counters() -> None:
    """Those without counters take longer and give the same bits; a graph that goes returns its own."""
    variant = GEMV[0]
    calls = problems(variant)[1:3]
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    for _ in range(3):
        graph, outs = capture(variant, calls * 600)
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, outs, expected * 600))
        del graph, outs
