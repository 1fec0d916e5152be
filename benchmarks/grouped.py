"""Times torch._grouped_mm of published mixtures of experts, with and without use_custom_gemm().

A case is a layer of a model (``up``: gate and up projections in one, ``down``, or ``gradient``: that of up's weights),
a number of tokens, and how the tokens spread over the experts: ``even``, ``zipf``, or ``one`` expert that takes all.
Both sides run interleaved over rotating weights and experts, in CUDA graphs where torch's call can be captured.

A row has the times in microseconds (medians of five rounds), torch's time over ours (the median of paired ratios), the
kernel that was chosen, and the error against float64 over the norm of the result. ``bound`` is the larger of two times:
that of the memory traffic at the bandwidth of a copy (the weights of the experts that have tokens, the tokens and the
result), and that of the operations at the speed of one product of 8192 x 8192 x 8192 in torch.

With ``--kernels`` the chosen kernel and its neighbours in the list are timed by name, whoever was chosen, and ``us`` of
a row has their times. What the dispatcher would have gained or lost by another choice can then be computed from the
file.

With ``--peers`` other ways to compute the same matmul run in the same rounds (``grouped_peers.py``). ``peers`` of a row
has for each of them its time (``us``), torch's time over its time (``ratio``), its time over ours (``ours``: above 1
where we are faster), its ``configuration``, and its ``error``. A peer that
cannot run has only ``failed``, and a peer with a wrong result only ``wrong``: the reason in words. The file is written
after each case.

Writes ``results/<gpu>/grouped.json.xz``, or with ``--peers`` ``results/<gpu>/grouped-peers.json``.
"""

from __future__ import annotations

import functools
import gc
import itertools
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own path has its directory alone

import hgemm_ops  # noqa: E402
from benchmarks import grouped_peers  # noqa: E402
from benchmarks.grouped_peers import Operands, Peer, Unavailable  # noqa: E402
from hgemm_ops import use_custom_gemm  # noqa: E402
from hgemm_ops.bench import record, runner  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
DEVICE = "cuda"
ROUNDS = 5
ROTATION_BYTES = 300_000_000  # past the L2
_MOST_ROWS = (16, 48, 256)  # an expert's, for which the first kernels for Hopper are made, and the others for more
_GROWTH = 1 << 29  # elements
_MOST_RESERVED = 16e9  # bytes that torch's allocator keeps from one case to the next
_PART = 128  # rows of an expert's result that are compared with float64

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


_values: dict[tuple[torch.dtype, int], Tensor] = {}


def tensor(shape: Sequence[int], dtype: torch.dtype, seed: int, first: int = 0) -> Tensor:
    """A tensor of random numbers, from number ``first`` of those of ``seed`` on. All cases share their memory."""
    last = first + math.prod(shape)
    held = _values.get((dtype, seed))
    if held is None or held.numel() < last:
        _values.pop((dtype, seed), None)
        generator = torch.Generator(DEVICE).manual_seed(seed)
        count = -(-last // _GROWTH) * _GROWTH
        held = _values[dtype, seed] = torch.randn(count, device=DEVICE, dtype=dtype, generator=generator)
    return held[first:last].view(shape)


def multiply(x: Operands, kernel: int | None = None) -> Tensor:
    """The product by the grouped kernel of this index; None is aten::_grouped_mm."""
    if kernel is None:
        return torch._grouped_mm(x.a, x.b, offs=x.ends)
    return torch.ops.hgemm.grouped_mm(x.a, x.b, x.ends, variant=kernel)  # type: ignore[no-any-return]


def error_of(out: Tensor, exact: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The error of parts of a result over their norm, each beside its value in float64."""
    squares, norm = 0.0, 0.0
    for part, value in exact:
        squares += ((part.double() - value).norm() ** 2).item()
        norm += (value.norm() ** 2).item()
    return (squares / norm) ** 0.5


def sets_of(case: Case, rows: Sequence[int]) -> tuple[list[Operands], Callable[[Tensor], float]]:
    """The sets of operands, and a function that returns the error of the first one's result.

    The sets differ in their weights, or in which experts have tokens. The error is that of a part of four experts'
    results, the first and the last expert that have tokens among them.
    """
    dtype = getattr(torch, case.dtype)
    (n, k), total, experts = case.sizes, sum(rows), case.experts
    touched = [i for i, count in enumerate(rows) if count]
    compared = sorted({touched[i * (len(touched) - 1) // 3] for i in range(4)})
    copies = 1 if case.layer == "gradient" else max(1, min(4, ROTATION_BYTES // (2 * experts * n * k)))
    shifts = [i * max(1, len(touched)) % experts for i in range(max(1, min(8, experts // max(1, len(touched)))))]
    firsts = [0, *itertools.accumulate(rows)]

    def operands(a: Tensor, b: Tensor, shift: int) -> Operands:
        counts = (*rows[experts - shift :], *rows[: experts - shift])
        ends = torch.tensor([*itertools.accumulate(counts)], dtype=torch.int32, device=DEVICE)
        return Operands(a, b, ends, counts)

    x = tensor((total, k), dtype, 1)
    if case.layer == "gradient":
        d = tensor((total, n), dtype, 2)

        def error_of_gradient(out: Tensor) -> float:
            parts = [(expert, slice(firsts[expert], firsts[expert + 1])) for expert in compared]
            return error_of(
                out, ((out[expert, :_PART], d[of, :_PART].double().t() @ x[of].double()) for expert, of in parts)
            )

        return [operands(d.t(), x, 0)], error_of_gradient

    weights = [tensor((experts, n, k), dtype, 2, i * experts * n * k).mT for i in range(copies)]

    def error(out: Tensor) -> float:
        parts = [
            (expert, slice(max(firsts[expert], firsts[expert + 1] - _PART), firsts[expert + 1])) for expert in compared
        ]
        return error_of(out, ((out[of], x[of].double() @ weights[0][expert].double()) for expert, of in parts))

    return [operands(x, w, shift) for shift, w in itertools.product(shifts, weights)], error


def bound_us(case: Case, rows: Sequence[int], gbps: float, tflops: float) -> float:
    (n, k), total = case.sizes, sum(rows)
    matrices = case.experts if case.layer == "gradient" else sum(count > 0 for count in rows)
    return max(2 * (matrices * n * k + total * (n + k)) / gbps * 1e-3, 2 * total * n * k / tflops * 1e-6)


def neighbours(case: Case, total: int, every: Sequence[str]) -> list[str]:
    """The kernel for Hopper that is made for so many rows an expert, and those beside it in the list of all kernels."""
    of_rows = case.layer != "gradient"
    names = [name for name in every if name.startswith("sm90") and ("_k_" not in name) == of_rows]
    if not of_rows:
        return names
    at = sum(total / min(total, case.experts) > most for most in _MOST_ROWS)
    return names[max(0, at - 1) : at + 2 if at < len(_MOST_ROWS) else None]


class Broken(Exception):
    """A peer has left the GPU in a state in which nothing more can be measured; the text says which one, and how."""


def checked(call: Callable[[Operands], Tensor], x: Operands, error: Callable[[Tensor], float]) -> float:
    """The error of a result. Its memory is then filled with NaN, since the next result will most likely be there."""
    out = call(x)
    found = error(out)
    out.fill_(math.nan)
    return found


def captured(run: Callable[[], None], stream: torch.cuda.Stream) -> Callable[[], None]:
    """Returns a function that replays what ``run`` launches."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):  # torch.cuda.graph() would first give all cached memory back to the driver
        graph.capture_begin()
        try:
            run()
        finally:
            graph.capture_end()
    return graph.replay


def timed(run: Callable[[], None]) -> float:
    """Microseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def failure(name: str, problem: Exception) -> dict[str, str]:
    """What a row says of a peer that failed.

    Raises:
        Broken: the GPU does not work after it.
    """
    lines = str(problem).splitlines() or [""]
    reason = lines[0] if isinstance(problem, Unavailable) else f"{type(problem).__name__}: {lines[0]}"
    try:
        torch.cuda.synchronize()
    except Exception:
        raise Broken(f"{name}: {reason}") from problem
    return {"failed": reason}


def prepared(
    peer: Peer, sets: Sequence[Operands], error: Callable[[Tensor], float], most: float, stream: torch.cuda.Stream
) -> tuple[dict[str, Any], Callable[[Operands], Tensor] | None]:
    """What a row says of a peer before it is timed, and its call; no call if its result is wrong.

    Raises:
        Unavailable: the peer does not take these operands.
    """
    name, call = peer.prepare(sets[0])
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), torch.no_grad():
        err = checked(call, sets[0], error)
    stream.synchronize()
    if not err <= most:
        return {"wrong": f"{name}: error {err:.1e}, allowed {most:.1e}"}, None
    return {"configuration": name, "error": err}, call


def measure(
    case: Case, gbps: float, tflops: float, by_kernel: bool = False, peers: Mapping[str, Peer | str] | None = None
) -> dict[str, Any]:
    """Times one case, and checks the results of torch, of the dispatcher's choice and of the peers.

    Raises:
        Broken: nothing more can be measured in this process.
    """
    rows = case.rows()
    sets, error = sets_of(case, rows)
    bound = bound_us(case, rows, gbps, tflops)
    launches = len(sets) * max(1, min(8, int(200 / bound / len(sets)) + 1))
    captures = case.dtype == "bfloat16"  # torch's loop over the groups of other dtypes waits for the device
    stream = torch.cuda.Stream()
    explanation = hgemm_ops.explain_grouped(sets[0].a, sets[0].b, groups=case.experts)
    chosen = explanation.chosen
    every = [candidate.name for candidate in explanation.candidates]  # in the order of the ops' argument `variant`
    kernels = neighbours(case, sum(rows), every) if by_kernel else []
    if by_kernel and chosen not in ("torch", *kernels):
        kernels.append(chosen)
    calls: dict[str, Callable[[Operands], Tensor]] = {"torch": multiply, "ours": multiply}
    calls |= {name: functools.partial(multiply, kernel=every.index(name)) for name in kernels}
    torch.cuda.synchronize()  # the operands are made on another stream
    runs: dict[str, Callable[[], None]] = {}
    errors: dict[str, float] = {}

    def run(side: str) -> None:
        with use_custom_gemm() if side == "ours" else nullcontext(), torch.no_grad():
            for i in range(launches):
                calls[side](sets[i % len(sets)])

    for side in ("torch", "ours"):
        with torch.cuda.stream(stream), use_custom_gemm() if side == "ours" else nullcontext() as report:
            errors[side] = checked(multiply, sets[0], error)
        if report is not None:
            assert {row.variant for row in report.rows if row.op == "grouped"} == {chosen}, (case, chosen)
    with torch.cuda.stream(stream):
        for name in kernels:  # a kernel is loaded by its first call, which cannot be captured
            errors[name] = checked(calls[name], sets[0], error)
    stream.synchronize()
    most = 2 * errors["torch"] + 2 * torch.finfo(getattr(torch, case.dtype)).eps
    assert all(err <= most for err in errors.values()), (case, errors)
    sides = ["torch", *kernels] if by_kernel else ["torch", "ours"]
    for side in sides:
        if captures or side != "torch":
            runs[side] = captured(functools.partial(run, side), stream)
        else:
            runs[side] = functools.partial(run, side)
    beside: dict[str, dict[str, Any]] = {}
    for name, peer in (peers or {}).items():
        side = runner.PEER + name
        try:
            if isinstance(peer, str):
                raise Unavailable(peer)
            beside[name], call = prepared(peer, sets, error, most, stream)
            gc.collect()  # what a compiler leaves behind must not be freed during a capture
            if call is not None:
                calls[side] = call
                runs[side] = captured(functools.partial(run, side), stream)
                sides.append(side)
        except Exception as problem:  # the compilers' errors have no common base class
            beside[name] = failure(name, problem)
    for replay in runs.values():
        replay()
    torch.cuda.synchronize()
    us: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(ROUNDS if bound < 1000 else ROUNDS // 2 + 1):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            us[side].append(timed(runs[side]) / launches)

    def speed(side: str, over: str) -> float:
        return statistics.median(slow / fast for slow, fast in zip(us[over], us[side], strict=True))

    speeds = {side: speed(side, "torch") for side in sides}
    torch_us, ours = statistics.median(us["torch"]), chosen if by_kernel else "ours"
    n, k = case.sizes
    sizes = {"experts": case.experts, "n": n, "k": k, "rows": sum(rows), "touched": sum(count > 0 for count in rows)}
    times = {"bound": bound, "torch": torch_us, "ours": torch_us / speeds[ours], "ratio": speeds[ours]}
    more: dict[str, Any] = {"us": {name: torch_us / speeds[name] for name in kernels}} if by_kernel else {}
    for name, found in beside.items():
        if (side := runner.PEER + name) in speeds:
            found |= {"us": torch_us / speeds[side], "ratio": speeds[side], "ours": speed(ours, side)}
    if peers:
        more["peers"] = beside
    return {**asdict(case), **sizes, **times, "kernel": chosen, "errors": errors, **more}


def line_of(row: dict[str, Any]) -> str:
    tflops = 2 * row["rows"] * row["n"] * row["k"] / row["ours"] * 1e-6
    return (
        f"{row['model']:20} {row['layer']:8} {row['tokens']:5} {row['spread']:4} {row['rows']:6} rows: "
        f"torch {row['torch']:8.1f}, ours {row['ours']:8.1f}, ratio {row['ratio']:5.2f}, "
        f"of the bound {row['bound'] / row['ours']:.2f}, {tflops:4.0f} TFLOP/s, {row['kernel']}"
        + "".join(f"; {name} {peer_words(peer)}" for name, peer in row.get("peers", {}).items())
    )


def peer_words(peer: Mapping[str, Any]) -> str:
    """What a peer did: its time and what it ran, or why it has none."""
    if "us" in peer:
        return f"{peer['us']:.1f} ({peer['configuration']}), ours {peer['ours']:.2f} times as fast"
    return " ".join(f"{how}: {why}" for how, why in peer.items())


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
@click.option("--seconds", type=float, help="Start no case after so long. The cases are then in a random order.")
@click.option("--kernels", is_flag=True, help="Time the kernels beside the chosen one, too.")
@click.option("--peers", help=f"Some of {', '.join(grouped_peers.NAMES)}.  [default: none]")
@click.option("--verbose", is_flag=True, help="Print every row.")
@click.option("--output", type=click.Path(path_type=Path), help="The result file.")
def main(
    models: str | None,
    layers: str | None,
    tokens: str | None,
    spreads: str | None,
    dtype: str,
    seconds: float | None,
    kernels: bool,
    peers: str | None,
    verbose: bool,
    output: Path | None,
) -> None:
    torch.manual_seed(0)
    cases = list(
        itertools.product(
            listed(models, list(MODELS)), listed(layers, LAYERS), listed(tokens, TOKENS), listed(spreads, SPREADS)
        )
    )
    names = listed(peers, grouped_peers.NAMES) if peers else []
    if seconds is not None:
        random.Random(0).shuffle(cases)
    if names:  # a peer's kernels are compiled for the sizes of a case, so its spreads follow each other
        place = {case[:3]: i for i, case in reversed(list(enumerate(cases)))}
        cases.sort(key=lambda case: (place[case[:3]], SPREADS.index(case[3])))
    gpu = RESULTS / record.gpu_slug(torch.cuda.get_device_name())
    output = output or record.path(gpu, "grouped-peers" if names else "grouped")
    found = {name: grouped_peers.load(name) for name in names}
    gbps, tflops, start = runner.copy_gbps(), dense_tflops(), time.monotonic()
    click.echo(f"copy {gbps:.0f} GB/s, dense {tflops:.0f} TFLOP/s")
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {"copy_gbps": gbps, "dense_tflops": tflops}
    if names:
        about["peers"] = {name: f"unavailable: {p}" if isinstance(p, str) else p.version for name, p in found.items()}
    document = record.document(grouped=about | {"rows": rows})  # now, since no GPU may work any more at the end
    for model, layer, count, spread in cases:
        if seconds is not None and time.monotonic() > start + seconds:
            break
        case = Case(model, layer, count, spread, dtype)
        try:
            rows.append(measure(case, gbps, tflops, kernels, found))
        except Exception as reason:
            if not names:
                raise
            document["grouped"]["broken"] = f"{reason}, at {case}"
            break
        if names:  # a compiler may crash, or take so long that the run is ended
            record.save(document, output)
        if verbose:
            click.echo(line_of(rows[-1]))
        if torch.cuda.memory_reserved() > _MOST_RESERVED:
            torch.cuda.empty_cache()
    for line in summary(rows):
        click.echo(line)
    record.save(document, output)
    if "broken" in document["grouped"]:
        raise click.ClickException(document["grouped"]["broken"])


if __name__ == "__main__":
    main()
