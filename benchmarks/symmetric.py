"""Times x @ x.T and x.T @ x: torch, the dispatcher's choice, and our choice for an ordinary product of the same shape.

All three run in CUDA graphs over rotating buffers, interleaved. ``over torch`` and ``over ordinary`` are medians of
paired ratios. The ordinary product multiplies x by a copy of its transpose, which is in other memory. Then it times a
step of torch.optim.Muon on square matrices, with and without use_custom_gemm().

Writes ``results/<gpu>/symmetric.json``.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from hgemm_ops import use_custom_gemm
from hgemm_ops.bench import record

RESULTS = Path(__file__).parent / "results"
SIZES, DEPTHS = (1024, 1536, 2048, 3072, 4096, 6144, 8192), (1024, 4096, 16384)
MUON_SIZES = (2048, 4096, 8192)
ROUNDS = 7
SAMPLE_US = 3000.0
SIDES = ("torch", "ours", "ordinary")
#: About how many floating-point operations a second torch reaches, by kind. It sets how many calls a sample has.
RATES = {"bfloat16": 600e12, "float16": 600e12, "float32": 50e12, "split": 50e12}


def timed(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int, calls: int) -> dict[str, list[float]]:
    """Microseconds per call of each graph, round by round, in an order that rotates."""
    names = list(graphs)
    for name in names:
        graphs[name].replay()
    torch.cuda.synchronize()
    us: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            us[name].append(start.elapsed_time(end) * 1e3 / calls)
    return us


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def context_of(side: str, float32: str) -> AbstractContextManager[Any]:
    return nullcontext() if side == "torch" else use_custom_gemm(float32=float32)


def measure(kind: str, how: str, n: int, k: int, rounds: int) -> dict[str, Any]:
    """Times one product. ``kind`` is a dtype, or "split"."""
    dtype, float32 = (torch.float32, "split") if kind == "split" else (getattr(torch, kind), "strict")
    bytes_of_set = (2 * n * k + n * n) * dtype.itemsize
    sets = []
    for _ in range(max(2, min(8, int(200e6 // bytes_of_set) + 1))):  # past the L2
        x = torch.randn((n, k) if how == "x @ x.T" else (k, n), device="cuda").to(dtype)
        a, b = (x, x.mT) if how == "x @ x.T" else (x.mT, x)
        other = x.clone()
        sets.append((a, b, other.mT if how == "x @ x.T" else other, torch.empty(n, n, device="cuda", dtype=dtype)))
    calls = len(sets) * max(1, int(SAMPLE_US * 1e-6 * RATES[kind] / (2.0 * n * n * k)) // len(sets))
    stream = torch.cuda.Stream()
    graphs, kernels, errors = {}, {}, {}
    a, b, other, out = sets[0]
    exact = a[:256].double() @ b.double()
    for side in SIDES:
        with context_of(side, float32) as report:
            with torch.cuda.stream(stream):
                out.fill_(math.nan)
                torch.mm(a, other if side == "ordinary" else b, out=out)
            stream.synchronize()
            errors[side] = ((out[:256].double() - exact).norm() / exact.norm()).item()
            assert side != "ours" or torch.equal(out, out.T), (kind, how, n, k)
            kernels[side] = report.rows[0].variant if report is not None else "torch"
            graphs[side] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[side], stream=stream):
                for i in range(calls):
                    a_, b_, other_, out_ = sets[i % len(sets)]
                    torch.mm(a_, other_ if side == "ordinary" else b_, out=out_)
    assert errors["ours"] <= 2 * errors["torch"] + 2 * torch.finfo(dtype).eps, (kind, how, n, k, errors)
    us = timed(graphs, rounds, calls)
    return {
        "kind": kind,
        "how": how,
        "n": n,
        "k": k,
        **{f"{side}_us": statistics.median(us[side]) for side in SIDES},
        "over_torch": ratio(us["torch"], us["ours"]),
        "over_ordinary": ratio(us["ordinary"], us["ours"]),
        "kernels": kernels,
        "errors": errors,
    }


def measure_muon(n: int, rounds: int) -> dict[str, Any]:
    """Times a step of torch.optim.Muon on two bfloat16 matrices of n x n."""
    weights = [torch.nn.Parameter(torch.randn(n, n, device="cuda", dtype=torch.bfloat16) / n**0.5) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    us: dict[str, list[float]] = {"torch": [], "ours": []}
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for side in us:
        own: list[Tensor] = copy.deepcopy(weights)
        for weight, of in zip(own, weights, strict=True):
            weight.grad = of.grad
        optimizers[side] = torch.optim.Muon(own, lr=1e-3)
        with context_of(side, "strict"):
            for _ in range(2):
                optimizers[side].step()
    for turn in range(rounds):
        for side in ("torch", "ours") if turn % 2 == 0 else ("ours", "torch"):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with context_of(side, "strict"):
                torch.cuda.synchronize()
                start.record()
                optimizers[side].step()
                end.record()
            end.synchronize()
            us[side].append(start.elapsed_time(end) * 1e3)
    times = {f"{side}_us": statistics.median(us[side]) for side in us}
    return {"kind": "Muon", "n": n, **times, "over_torch": ratio(us["torch"], us["ours"])}


def line_of(row: dict[str, Any]) -> str:
    if row["kind"] == "Muon":
        return f"Muon {row['n']:5}: torch {row['torch_us']:9.1f} us, over torch {row['over_torch']:.3f}"
    return (
        f"{row['kind']:8} {row['how']} {row['n']:5} k {row['k']:5}: torch {row['torch_us']:8.1f} us, "
        f"over torch {row['over_torch']:.2f}, over ordinary {row['over_ordinary']:.2f}, {row['kernels']['ours']}"
    )


@click.command(help=__doc__)
@click.option("--kinds", default=",".join(RATES), show_default=True, help="Of products, with commas between.")
@click.option("--sizes", default=",".join(map(str, SIZES)), show_default=True, help="Rows of the result.")
@click.option("--depths", default=",".join(map(str, DEPTHS)), show_default=True, help="K.")
@click.option("--muon/--no-muon", default=True, show_default=True)
@click.option("--rounds", default=ROUNDS, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="The result file.")
def main(kinds: str, sizes: str, depths: str, muon: bool, rounds: int, output: Path | None) -> None:
    output = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "symmetric")
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        click.echo(line_of(row))

    for kind, n, k in itertools.product(kinds.split(","), map(int, sizes.split(",")), map(int, depths.split(","))):
        for how in ("x @ x.T", "x.T @ x"):
            add(measure(kind, how, n, k, rounds))
    for kind in kinds.split(","):
        of_kind = [row for row in rows if row["kind"] == kind]
        means = (statistics.geometric_mean([row[name] for row in of_kind]) for name in ("over_torch", "over_ordinary"))
        click.echo("{}: geomean over torch {:.3f}, over ordinary {:.3f}".format(kind, *means))
    for n in MUON_SIZES if muon else ():
        add(measure_muon(n, rounds))
    record.save(record.document(symmetric={"rows": rows}), output)


if __name__ == "__main__":
    main()
