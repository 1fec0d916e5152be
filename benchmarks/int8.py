"""Times int8 matmuls, torch._int_mm: torch and the dispatcher's choice, with ``--kernels`` also every kernel.

All run in CUDA graphs over rotating buffers, interleaved; ``over torch`` is the median of paired ratios. The shapes are
linear layers of models (N and K) with 17 to 16,384 rows, drawn from a seed, which the result file holds. B is stored as
a linear layer stores its weight (NT), or row-major (NN); TN and TT have a column-major A. Every result is compared with
the exact one.

Writes ``results/<gpu>/int8.json``.
"""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from hgemm_ops import explain, use_custom_gemm, variants
from hgemm_ops.bench import record

RESULTS = Path(__file__).parent / "results"
#: N and K of layers: Llama 3 8B and 70B, Qwen 2.5 7B, Mistral, Gemma 2 9B, ViT-L, BERT.
LAYERS = [
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (10240, 8192), (57344, 8192), (8192, 28672),
    (3584, 3584), (4608, 3584), (37888, 3584), (3584, 18944), (5120, 5120), (13824, 5120), (3584, 14336), (1024, 1024),
    (3072, 1024), (4096, 1024), (1024, 4096), (768, 768), (3072, 768), (768, 3072), (1280, 5120), (2048, 2048),
]  # fmt: skip
#: M, N and K that the issue names, in both layouts, before those that are drawn.
NAMED = [(4096, 4096, 4096), (512, 4096, 4096), (32, 4096, 4096)]
ROUNDS = 7
SAMPLE_US = 1500.0


def drawn(count: int, seed: int) -> list[tuple[int, int, int]]:
    """M, N and K: rows by the logarithm, a third of them a power of two."""
    generator = random.Random(seed)
    shapes = []
    for _ in range(count):
        n, k = generator.choice(LAYERS)
        m = round(2 ** generator.uniform(4.1, 14))
        if generator.random() < 1 / 3:
            m = max(32, 1 << (m.bit_length() - 1))
        shapes.append((max(m, 17), n, k))
    return shapes


def graph_of(
    sets: list[tuple[Tensor, Tensor, Tensor]], calls: int, ours: bool, kernel: str | None = None
) -> tuple[torch.cuda.CUDAGraph, str]:
    stream, name = torch.cuda.Stream(), "torch"
    graph = torch.cuda.CUDAGraph()

    def run(count: int) -> None:
        for i in range(count):
            a, b, out = sets[i % len(sets)]
            torch._int_mm(a, b, out=out)

    stream.wait_stream(torch.cuda.current_stream())
    if ours:
        with use_custom_gemm(variant=kernel) as report, torch.cuda.stream(stream):
            run(1)
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                run(calls)
        name = report.rows[0].variant
    else:
        with torch.cuda.stream(stream):
            run(1)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            run(calls)
    return graph, name


def timed(graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]], rounds: int) -> dict[str, list[float]]:
    """Microseconds per call of each graph, round by round, in an order that rotates."""
    names = list(graphs)
    us: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            graph, calls = graphs[name]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= 0:  # the first one warms up
                us[name].append(start.elapsed_time(end) * 1e3 / calls)
    return us


def measure(m: int, n: int, k: int, layout: str, rounds: int, kernels: bool) -> dict[str, Any]:
    sets = []
    for _ in range(max(2, min(24, 160_000_000 // (m * k + n * k + 4 * m * n) + 1))):  # past the L2
        a = torch.randint(-128, 128, (m, k) if layout[0] == "N" else (k, m), dtype=torch.int8, device="cuda")
        b = torch.randint(-128, 128, (k, n) if layout[1] == "N" else (n, k), dtype=torch.int8, device="cuda")
        a, b = a if layout[0] == "N" else a.t(), b if layout[1] == "N" else b.t()
        sets.append((a, b, torch.empty(m, n, dtype=torch.int32, device="cuda")))
    bound_us = 2e-6 * m * n * k / 1500 + 5
    calls = max(len(sets), round(SAMPLE_US / bound_us))
    of_torch = calls if layout == "NT" else max(3, calls // 8)  # torch's kernel is slow
    graphs = {"torch": (graph_of(sets, of_torch, ours=False)[0], of_torch)}
    a, b, out = sets[0]
    rows = slice(0, m, max(1, m // 64))
    exact = (a[rows].double() @ b.double()).int()
    chosen = {}

    def add(side: str, kernel: str | None = None) -> None:
        out.fill_(-1)
        graph, chosen[side] = graph_of(sets, calls, ours=True, kernel=kernel)
        graph.replay()
        assert torch.equal(out[rows], exact), (m, n, k, layout, chosen[side])
        graphs[side] = graph, calls

    add("ours")
    able = {c.name for c in explain(a, b).candidates if c.eligible}
    for name in (v.name for v in variants() if kernels and v.family == "int8" and v.name in able):
        add(name, name)
    us = timed(graphs, rounds)
    return {
        "m": m,
        "n": n,
        "k": k,
        "layout": layout,
        "torch_us": statistics.median(us["torch"]),
        "ours_us": statistics.median(us["ours"]),
        "over_torch": statistics.median(t / o for t, o in zip(us["torch"], us["ours"], strict=True)),
        "kernel": chosen["ours"],
        "kernels_us": {name: statistics.median(times) for name, times in us.items() if name not in ("torch", "ours")},
    }


def line_of(row: dict[str, Any]) -> str:
    best = min(row["kernels_us"].items(), key=lambda item: item[1], default=("", 0.0))
    return (
        f"{row['layout']} {row['m']:5}x{row['n']:5}x{row['k']:5}: torch {row['torch_us']:8.1f} us, ours "
        f"{row['ours_us']:7.1f}, over torch {row['over_torch']:6.2f}, {row['kernel']}"
        + (f", best {best[0]} {best[1]:.1f}" if best[0] else "")
    )


@click.command(help=__doc__)
@click.option("--count", default=40, show_default=True, help="Shapes that are drawn.")
@click.option("--seed", default=0, show_default=True)
@click.option("--layouts", default="NT,NN", show_default=True)
@click.option("--kernels", is_flag=True, help="Time every kernel as well.")
@click.option("--rounds", default=ROUNDS, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="The result file.")
def main(count: int, seed: int, layouts: str, kernels: bool, rounds: int, output: Path | None) -> None:
    output = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "int8")
    rows: list[dict[str, Any]] = []
    for layout in layouts.split(","):
        for m, n, k in NAMED + drawn(count, seed):
            rows.append(measure(m, n, k, layout, rounds, kernels))
            click.echo(line_of(rows[-1]))
    for layout in layouts.split(","):
        of_layout = [row["over_torch"] for row in rows if row["layout"] == layout]
        click.echo(f"{layout}: geomean {statistics.geometric_mean(of_layout):.3f}, worst {min(of_layout):.3f}")
    record.save(record.document(int8={"seed": seed, "rows": rows}), output)


if __name__ == "__main__":
    main()
