"""What an eager call costs the host: nanoseconds until it returns, for tensors so small that nothing else counts.

Contenders run interleaved like every other benchmark (``hgemm_ops._bench.timing``), by the host's clock; costs over a
baseline are medians of paired differences. Writes ``results/<gpu>/host_cost.json``.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F

import hgemm_ops
from hgemm_ops._bench import record, statistics, timing

RESULTS = Path(__file__).parent / "results"
SIZE = 16


@dataclass(frozen=True)
class Call:
    """One contender: a statement over ``a``, ``b`` and where it runs.

    gradients: "off" (no_grad), "on" (grad mode, no input requires a gradient) or "required" (an input does).
    routed: inside ``use_custom_gemm()``.
    baseline: the statement, outside the context and with the same gradients, whose cost to compare with.
    """

    statement: str
    baseline: str | None = None
    gradients: str = "off"
    routed: bool = False

    @property
    def name(self) -> str:
        where = ", in use_custom_gemm()" if self.routed else ""
        return f"{self.statement}, gradients {self.gradients}{where}"


def calls() -> list[Call]:
    found = []
    for gradients in ("off", "on", "required"):
        for statement in ("torch.matmul(a, b)", "torch.mm(a, b)", "F.linear(a, b)", "torch.add(a, b)"):
            found.append(Call(statement, None, gradients))
            found.append(Call(statement, statement, gradients, routed=True))
        for op in ("matmul", "mm"):
            for overload in ("", ".default"):
                found.append(Call(f"torch.ops.hgemm.{op}{overload}(a, b)", f"torch.{op}(a, b)", gradients))
            found.append(Call(f"torch.ops.hgemm.{op}.default(a, b, variant=kernel)", f"torch.{op}(a, b)", gradients))
        found.append(Call("torch.ops.hgemm.linear.default(a, b)", "F.linear(a, b)", gradients))
        found.append(Call("hgemm_ops.matmul(a, b)", "torch.matmul(a, b)", gradients))
    return found


def measure(
    contenders: Sequence[Call],
    names: Mapping[str, Any],
    *,
    rounds: int,
    calls_per_round: int,
    context: Callable[[], AbstractContextManager[Any]],
    synchronize: Callable[[], None],
) -> list[dict[str, Any]]:
    """Median nanoseconds of each call, and over its baseline."""
    by_name = {call.name: call for call in contenders}
    timers = {call.name: timeit.Timer(call.statement, globals=dict(names)) for call in contenders}
    a: torch.Tensor = names["a"]

    def run(name: str) -> Callable[[], float]:
        call = by_name[name]
        synchronize()  # an empty queue: a full one would make a launch wait for the device
        a.requires_grad_(call.gradients == "required")
        with torch.set_grad_enabled(call.gradients != "off"), context() if call.routed else nullcontext():
            nanoseconds = timers[name].timeit(calls_per_round) / calls_per_round * 1e9
        return lambda: nanoseconds

    timing.interleave(list(by_name), 3, 1, run)  # warm-up
    samples = timing.interleave(list(by_name), rounds, 0, run)
    a.requires_grad_(False)
    rows = []
    for name, call in by_name.items():
        row: dict[str, Any] = {**asdict(call), "ns": asdict(statistics.median_interval(samples[name]))}
        if call.baseline is not None:
            base = samples[Call(call.baseline, None, call.gradients).name]
            extra = [ours - theirs for ours, theirs in zip(samples[name], base, strict=True)]
            row["over_baseline_ns"] = asdict(statistics.median_interval(extra))
        rows.append(row)
    return rows


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--rounds", type=click.IntRange(min=5), default=60, show_default=True)
@click.option("--calls", "calls_per_round", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(device: str, rounds: int, calls_per_round: int, output: Path | None) -> None:
    on_gpu = device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise click.ClickException("no CUDA GPU; --device cpu measures the CPU path")
    if not on_gpu and output is None:
        raise click.UsageError("--device cpu needs --output: results/ holds GPUs")
    a, b = (torch.randn(SIZE, SIZE, dtype=torch.float16, device=device) for _ in range(2))
    explanation = hgemm_ops.explain(a, b)
    eligible = [c.name for c in explanation.candidates if c.eligible and c.name != "torch"]
    names = {"torch": torch, "F": F, "hgemm_ops": hgemm_ops, "a": a, "b": b}
    contenders = calls()
    if eligible:
        names["kernel"] = next(v.id for v in hgemm_ops.variants() if v.name == eligible[0])
    else:
        contenders = [call for call in contenders if "kernel" not in call.statement]
    routed = hgemm_ops.use_custom_gemm()  # one object, entered again and again: the cost of calls it has seen before
    rows = measure(
        contenders,
        names,
        rounds=rounds,
        calls_per_round=calls_per_round,
        context=lambda: routed,
        synchronize=torch.cuda.synchronize if on_gpu else lambda: None,
    )
    document = record.document(
        device=device,
        shape=[SIZE, SIZE, SIZE],
        served_by=explanation.chosen,
        kernel=eligible[0] if eligible else None,
        protocol={"rounds": rounds, "calls_per_round": calls_per_round},
        calls=rows,
    )
    record.save(document, output or RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "host_cost.json")
    for row in rows:
        extra = f"{row['over_baseline_ns']['value']:+8.0f}" if "over_baseline_ns" in row else ""
        where = "routed" if row["routed"] else ""
        click.echo(
            f"{row['ns']['value']:8.0f} ns {extra:>8}  {row['statement']}  gradients {row['gradients']}  {where}"
        )


if __name__ == "__main__":
    main()
