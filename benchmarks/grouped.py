"""Times torch._grouped_mm of published mixtures of experts, with and without use_custom_gemm().

A case is a layer of a model (``up``: gate and up projections in one, ``down``, or ``gradient``: that of up's weights),
a number of tokens, and how the tokens spread over the experts: ``even``, ``zipf``, or ``one`` expert that takes all.
Both sides run interleaved over rotating weights and experts, in CUDA graphs where torch's call can be captured.

A row has the times in microseconds (medians of five rounds), torch's time over ours (the median of paired ratios), the
kernel that was chosen, and the error against float64 over the norm of the result. ``bound`` is the larger of two times:
that of the memory traffic at the bandwidth of a copy (the weights of the experts that have tokens, the tokens and the
result), and that of the operations at the speed of one product of 8192 x 8192 x 8192 in torch.

Writes ``results/<gpu>/grouped.json.xz``.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from hgemm_ops import use_custom_gemm
from hgemm_ops.bench import record, runner

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5
ROTATION_BYTES = 300_000_000  # past the L2

#: Experts, experts of a token, hidden size, size of an expert. A model with /8 is one GPU's share of the experts of
#: eight, with the tokens of all.
MODELS = {
    "mixtral-8x7b": (8, 2, 4096, 14336),
    "mixtral-8x22b": (8, 2, 6144, 16384),
    "qwen1.5-moe-a2.7b": (60, 4, 2048, 1408),
    "qwen2-57b-a14b": (64, 8, 3584, 2560),
    "qwen3-30b-a3b": (128, 8, 2048, 768),
    "qwen3-235b-a22b": (128, 8, 4096, 1536),
    "qwen3-next-80b-a3b": (512, 10, 2048, 512),
    "gpt-oss-20b": (32, 4, 2880, 2880),
    "gpt-oss-120b": (128, 4, 2880, 2880),
    "deepseek-v2-lite": (64, 6, 2048, 1408),
    "deepseek-v3/8": (32, 8, 7168, 2048),
    "kimi-k2/8": (48, 8, 7168, 2048),
    "olmoe-1b-7b": (64, 8, 2048, 1024),
    "phi-3.5-moe": (16, 2, 4096, 6400),
    "dbrx": (16, 4, 6144, 10752),
    "jamba-mini": (16, 2, 4096, 14336),
    "llama-4-scout": (16, 1, 5120, 8192),
    "glm-4.5-air": (128, 8, 4096, 1408),
    "ernie-4.5-21b-a3b": (64, 6, 2560, 1536),
    "granite-3.0-3b-a800m": (40, 8, 1536, 512),
}
LAYERS = ("up", "down", "gradient")
SPREADS = ("even", "zipf", "one")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class Case:
    model: str
    layer: str
    tokens: int
    spread: str
    dtype: str

    @property
    def experts(self) -> int:
        return MODELS[self.model][0]

    @property
    def sizes(self) -> tuple[int, int]:
        """N and K of a row's product with an expert's weights."""
        _, _, hidden, inner = MODELS[self.model]
        return (hidden, inner) if self.layer == "down" else (2 * inner, hidden)

    def rows(self) -> list[int]:
        """The rows of each expert."""
        experts, top, *_ = MODELS[self.model]
        total = self.tokens * top
        if self.spread == "even":
            return [total // experts + (i < total % experts) for i in range(experts)]
        if self.spread == "one":
            return [total if i == experts // 2 else 0 for i in range(experts)]
        shares = (1.0 / torch.arange(1, experts + 1))[torch.randperm(experts)]
        drawn = torch.multinomial(shares.expand(self.tokens, experts), top).flatten()
        return torch.bincount(drawn, minlength=experts).tolist()


Call = Callable[[], Tensor]


def calls_of(case: Case, rows: Sequence[int]) -> tuple[list[Call], Callable[[Tensor], float]]:
    """One call for each set of operands, and a function that returns the error of the first one's result.

    The sets differ in their weights, or in which experts have tokens.
    """
    dtype = getattr(torch, case.dtype)
    (n, k), total, experts = case.sizes, sum(rows), case.experts
    touched = [i for i, count in enumerate(rows) if count]
    copies = 1 if case.layer == "gradient" else max(1, min(4, ROTATION_BYTES // (2 * experts * n * k)))
    shifts = [i * max(1, len(touched)) % experts for i in range(max(1, min(8, experts // max(1, len(touched)))))]

    def ends(shift: int) -> Tensor:
        counts = torch.tensor(rows, device="cuda").roll(shift)
        return torch.cumsum(counts, 0, dtype=torch.int32)

    x = torch.randn(total, k, device="cuda", dtype=dtype)
    if case.layer == "gradient":
        d = torch.randn(total, n, device="cuda", dtype=dtype)
        offs = ends(0)

        def error_of_gradient(out: Tensor) -> float:
            first, squares, norm = 0, 0.0, 0.0
            for expert, count in enumerate(rows):
                if expert in touched[:4]:
                    exact = d[first : first + count].double().t() @ x[first : first + count].double()
                    squares += ((out[expert].double() - exact).norm() ** 2).item()
                    norm += (exact.norm() ** 2).item()
                first += count
            return (squares / norm) ** 0.5

        return [lambda: torch._grouped_mm(d.t(), x, offs=offs)], error_of_gradient

    weights = [torch.randn(experts, n, k, device="cuda", dtype=dtype).mT for _ in range(copies)]

    def call(w: Tensor, offs: Tensor) -> Call:
        return lambda: torch._grouped_mm(x, w, offs=offs)

    def error(out: Tensor) -> float:
        first, squares, norm = 0, 0.0, 0.0
        for expert, count in enumerate(rows):
            if expert in touched[:4]:
                exact = x[first : first + count].double() @ weights[0][expert].double()
                squares += ((out[first : first + count].double() - exact).norm() ** 2).item()
                norm += (exact.norm() ** 2).item()
            first += count
        return (squares / norm) ** 0.5

    return [call(w, ends(shift)) for shift, w in itertools.product(shifts, weights)], error


def bound_us(case: Case, rows: Sequence[int], gbps: float, tflops: float) -> float:
    (n, k), total = case.sizes, sum(rows)
    matrices = case.experts if case.layer == "gradient" else sum(count > 0 for count in rows)
    return max(2 * (matrices * n * k + total * (n + k)) / gbps * 1e-3, 2 * total * n * k / tflops * 1e-6)


def measure(case: Case, gbps: float, tflops: float) -> dict[str, Any]:
    """Times one case, and checks both results."""
    rows = case.rows()
    calls, error_of = calls_of(case, rows)
    bound = bound_us(case, rows, gbps, tflops)
    launches = len(calls) * max(1, min(8, int(200 / bound / len(calls)) + 1))
    captures = case.dtype == "bfloat16"  # torch's loop over the groups of other dtypes waits for the device
    stream, kernel = torch.cuda.Stream(), "torch"
    runs: dict[str, Callable[[], None]] = {}
    errors: dict[str, float] = {}

    def side_of(side: str) -> AbstractContextManager[Any]:
        return use_custom_gemm() if side == "ours" else nullcontext()

    def run(side: str) -> None:
        with side_of(side):
            for i in range(launches):
                calls[i % len(calls)]()

    for side in ("torch", "ours"):
        with torch.cuda.stream(stream), side_of(side) as report:
            errors[side] = error_of(calls[0]())
        stream.synchronize()
        if report is not None:
            kernel = ",".join(sorted({row.variant for row in report.rows if row.op == "grouped"}))
        if captures or side == "ours":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                run(side)
            runs[side] = graph.replay
        else:
            runs[side] = lambda: run("torch")
    assert errors["ours"] <= 2 * errors["torch"] + 2 * torch.finfo(getattr(torch, case.dtype)).eps, (case, errors)
    for replay in runs.values():
        replay()
    torch.cuda.synchronize()
    us: dict[str, list[float]] = {"torch": [], "ours": []}
    for turn in range(ROUNDS):
        for side in ("torch", "ours") if turn % 2 == 0 else ("ours", "torch"):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            runs[side]()
            end.record()
            end.synchronize()
            us[side].append(start.elapsed_time(end) * 1e3 / launches)
    ratio = statistics.median(t / o for t, o in zip(us["torch"], us["ours"], strict=True))
    n, k = case.sizes
    sizes = {"experts": case.experts, "n": n, "k": k, "rows": sum(rows), "touched": sum(count > 0 for count in rows)}
    times = {"bound": bound, **{side: statistics.median(of) for side, of in us.items()}, "ratio": ratio}
    return {**asdict(case), **sizes, **times, "kernel": kernel, "errors": errors}


def line_of(row: dict[str, Any]) -> str:
    tflops = 2 * row["rows"] * row["n"] * row["k"] / row["ours"] * 1e-6
    return (
        f"{row['model']:20} {row['layer']:8} {row['tokens']:5} {row['spread']:4} {row['rows']:6} rows: "
        f"torch {row['torch']:8.1f}, ours {row['ours']:8.1f}, ratio {row['ratio']:5.2f}, "
        f"of the bound {row['bound'] / row['ours']:.2f}, {tflops:4.0f} TFLOP/s, {row['kernel']}"
    )


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields a line per layer, dtype, tokens and spread: geometric means over the models, and the worst case."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["layer"], row["dtype"], row["tokens"], row["spread"]].append(row)
    for (layer, dtype, tokens, spread), group in sorted(groups.items()):
        ratio, share = (
            statistics.geometric_mean([row[above] / row["ours"] for row in group]) for above in ("torch", "bound")
        )
        yield (
            f"{layer:8} {dtype:8} {tokens:5} tokens {spread:4} {len(group):3} models: torch / ours {ratio:5.2f}, "
            f"worst {min(row['ratio'] for row in group):.2f}, of the bound {share:.2f}"
        )


def dense_tflops() -> float:
    """The speed of one product of 8192 x 8192 x 8192 in torch, in the steady state."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        torch.mm(a, b)
    start.record()
    for _ in range(10):
        torch.mm(a, b)
    end.record()
    end.synchronize()
    return 10 * 2 * 8192**3 / start.elapsed_time(end) * 1e-9


def listed(text: str | None, every: Sequence[Any]) -> list[Any]:
    if text is None:
        return list(every)
    wanted = [type(every[0])(part) for part in text.split(",")]
    if unknown := [part for part in wanted if part not in every]:
        raise click.BadParameter(f"{unknown[0]}: expected some of {', '.join(map(str, every))}")
    return wanted


@click.command(help=__doc__)
@click.option("--models", help="Names, with commas between them.  [default: all]")
@click.option("--layers", help=f"Some of {', '.join(LAYERS)}.  [default: all]")
@click.option("--tokens", help="Numbers of tokens.  [default: powers of two from 1 to 16384]")
@click.option("--spreads", help=f"Some of {', '.join(SPREADS)}.  [default: all]")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16"]), default="bfloat16", show_default=True)
@click.option("--seconds", type=float, help="Start no case after so long.")
@click.option("--verbose", is_flag=True, help="Print every row.")
@click.option("--output", type=click.Path(path_type=Path), help="The result file.")
def main(
    models: str | None,
    layers: str | None,
    tokens: str | None,
    spreads: str | None,
    dtype: str,
    seconds: float | None,
    verbose: bool,
    output: Path | None,
) -> None:
    torch.manual_seed(0)
    cases = itertools.product(
        listed(models, list(MODELS)), listed(layers, LAYERS), listed(tokens, TOKENS), listed(spreads, SPREADS)
    )
    output = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "grouped")
    gbps, tflops, start = runner.copy_gbps(), dense_tflops(), time.monotonic()
    click.echo(f"copy {gbps:.0f} GB/s, dense {tflops:.0f} TFLOP/s")
    rows = []
    for model, layer, count, spread in cases:
        if seconds is not None and time.monotonic() > start + seconds:
            break
        rows.append(measure(Case(model, layer, count, spread, dtype), gbps, tflops))
        if verbose:
            click.echo(line_of(rows[-1]))
        torch.cuda.empty_cache()
    for line in summary(rows):
        click.echo(line)
    record.save(record.document(grouped={"copy_gbps": gbps, "dense_tflops": tflops, "rows": rows}), output)


if __name__ == "__main__":
    main()
