"""Clusters whose blocks send each other sums, of slices of K, or load each other's operands: right results, and equal
bits on two streams.

What arrives late, twice or in another block's memory shows once in many launches, if at all: so there are many.
"""

from __future__ import annotations

import pytest
import torch
from helpers import assert_close_to_torch, poisoned_cuda_memory, reference_matmul
from torch import Tensor

import hgemm_ops

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

hgemm = torch.ops.hgemm
#: M, N, K that these kernels split: two, four and eight slices, tiles of fewer rows than a block has, ragged sizes.
#: Then clusters of 2x2 and 4x1, several of whose blocks lie beyond C, and more of them than run at the same time.
CASES = [
    ("skinny_wgmma_64x8", 8, 1024, 8192),
    ("skinny_wgmma_64x8", 5, 1000, 8184),
    ("skinny_wgmma_64x8", 1, 4096, 4096),
    ("skinny_wgmma_64x16", 16, 4096, 4096),
    ("skinny_wgmma_64x16", 16, 512, 14336),
    ("skinny_wgmma_64x32", 32, 2048, 4096),
    ("skinny_wgmma_64x64", 64, 2048, 8192),
    ("skinny_wgmma_64x64", 64, 512, 8192),
    ("skinny_wgmma_64x64", 33, 1024, 4096),
    ("skinny_wgmma_128x32", 20, 4096, 4096),
    ("skinny_wgmma_128x64", 48, 4096, 4096),
    ("sm90_wgmma_cooperative_128x64x64_c1x1x2", 128, 4096, 4096),
    ("sm90_wgmma_cooperative_128x64x64_c1x1x2", 300, 2000, 2040),
    ("sm90_wgmma_cooperative_128x128x64_c1x1x4", 500, 520, 8192),
    ("sm90_wgmma_pingpong_64x64x64_c2x2x1", 200, 72, 1032),
    ("sm90_wgmma_pingpong_64x64x64_c2x2x1", 1000, 1208, 520),
    ("sm90_wgmma_pingpong_128x128x64_c2x2x1", 640, 3000, 1032),
    ("sm90_wgmma_pingpong_64x80x64_c4x1x1_swapped", 80, 1000, 2040),
    ("sm90_wgmma_pingpong_64x96x64_c4x1x1_swapped", 190, 9000, 520),
    ("sm90_wgmma_pingpong_64x128x64_c4x1x1_swapped", 129, 264, 1032),
    ("sm90_wgmma_pingpong_64x176x64_c4x1x1_swapped", 170, 4096, 1024),
    ("sm90_wgmma_pingpong_64x200x64_c4x1x1_swapped", 197, 4104, 1032),
    ("sm90_wgmma_pingpong_128x64x64_c4x1x1_swapped", 60, 2056, 2040),
]
cases = pytest.mark.parametrize("name, m, n, k", CASES, ids=lambda value: str(value))


def operands(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    return torch.randn(m, k, device="cuda").half(), torch.randn(n, k, device="cuda").half().t()


def id_of(name: str) -> int:
    return next(v.id for v in hgemm_ops.variants() if v.name == name)


@cases
def test_results(name: str, m: int, n: int, k: int) -> None:
    a, b = operands(m, n, k)
    with poisoned_cuda_memory():
        out = hgemm.mm(a, b, variant=id_of(name))
    exact, magnitude = reference_matmul(a, b)
    assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)


@cases
def test_equal_bits_in_two_graphs_at_once(name: str, m: int, n: int, k: int) -> None:
    """4000 launches over results of the replay before, filled with NaN."""
    a, b = operands(m, n, k)
    variant = id_of(name)
    expected = hgemm.mm(a, b, variant=variant)
    graphs = []
    for _ in range(2):
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        outs = [torch.empty_like(expected) for _ in range(40)]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            for out in outs:
                out.fill_(float("nan"))
            for out in outs:
                hgemm.mm.out(a, b, variant=variant, out=out)
            wrong = torch.stack([(out != expected).any() for out in outs]).sum()
        graphs.append((stream, graph, wrong, outs))  # a graph does not keep what it writes to
    counts = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(50):
        for (stream, graph, wrong, _), count in zip(graphs, counts, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                count += wrong
    torch.cuda.synchronize()
    assert [int(count) for count in counts] == [0, 0]
