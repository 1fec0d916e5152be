"""Times products whose operands' copies exceed the workspace: in slabs, and in one slab as large as need be.

Prints, for each shape, the kernel and the microseconds of both, and the ratio of the second to the first: 1 means that
slabs cost nothing. Rounds are interleaved, and the ratio is the median over rounds.
"""

from __future__ import annotations

import math
from statistics import median

import click
import torch

import hgemm_ops
from hgemm_ops import _native

# (m, n, k, dtype, layout)
SHAPES = (
    (8193, 8193, 8193, "float16", "NN"),
    (8193, 8193, 8193, "float16", "NT"),
    (65536, 4097, 4097, "float16", "NN"),
    (131072, 8191, 1024, "float16", "NN"),
    (50001, 20001, 333, "float16", "NT"),
    (32768, 50257, 4097, "float16", "NT"),
    (16383, 16383, 4095, "float16", "TN"),
    (1001, 512, 262144, "float16", "TN"),
    (150, 32502, 14463, "float16", "NT"),
    (185, 16635, 14903, "float16", "NN"),
    (8192, 8192, 8192, "float32", "NN"),
    (8192, 8192, 8192, "float32", "NT"),
    (8192, 8192, 8192, "float32", "TN"),
    (8192, 50304, 768, "float32", "NT"),
    (768, 50304, 8192, "float32", "TN"),
    (2048, 14336, 4096, "float32", "NT"),
    (3000, 5000, 7000, "float32", "NN"),
    (16384, 8192, 8192, "float32", "NT"),
    (4096, 11008, 16384, "float32", "TN"),
    (512, 512, 262144, "float32", "TN"),
)
_UNLIMITED = 1 << 40


def _operand(rows: int, cols: int, dtype: torch.dtype, transposed: bool) -> torch.Tensor:
    if transposed:
        return _operand(cols, rows, dtype, False).t()
    return torch.randn(rows, cols, device="cuda", dtype=dtype)


def _graph(a: torch.Tensor, b: torch.Tensor, limit: int) -> tuple[torch.cuda.CUDAGraph, str]:
    _native.lib().hgemm_set_most_workspace(limit)
    try:
        with hgemm_ops.use_custom_gemm(float32="split") as report:
            a @ b
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                a @ b
    finally:
        _native.lib().hgemm_set_most_workspace(-1)
    return graph, report.rows[0].variant


def _us(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


@click.command(help=__doc__)
@click.option("--rounds", default=9, show_default=True)
def main(rounds: int) -> None:
    ratios = []
    for m, n, k, dtype, layout in SHAPES:
        kind = getattr(torch, dtype)
        a, b = _operand(m, k, kind, layout[0] == "T"), _operand(k, n, kind, layout[1] == "T")
        slabs, name = _graph(a, b, -1)
        whole, whole_name = _graph(a, b, _UNLIMITED)
        plain = torch.cuda.CUDAGraph()
        a @ b
        with torch.cuda.graph(plain):
            a @ b
        times: list[tuple[float, float, float]] = []
        for _ in range(rounds + 2):
            times.append((_us(slabs), _us(whole), _us(plain)))
        times = times[2:]
        ratio = median(w / s for s, w, _ in times)
        ratios.append(ratio)
        us = [median(x) for x in zip(*times, strict=True)]
        kernels = f"slabs {us[0]:.0f} us ({name}), whole {us[1]:.0f} us ({whole_name}), torch {us[2]:.0f} us"
        print(f"{m}x{n}x{k} {dtype} {layout}: {kernels}: {ratio:.3f}", flush=True)
        del a, b, slabs, whole, plain
        torch.cuda.empty_cache()
    print(f"geomean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.4f}, worst {min(ratios):.3f}")


if __name__ == "__main__":
    main()
