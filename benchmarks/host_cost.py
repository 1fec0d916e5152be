"""What an eager call costs the host: nanoseconds until it returns.

Three products, all as the dispatcher decides: ``a @ b`` is the smallest square one that it leaves to torch, ``x @ y``
the smallest that it gives to a kernel of ours, ``u @ v`` the smallest to one that is given tensor maps (launches queue
up, so a round must stay below what the queue holds).

Contenders run interleaved like every other benchmark (``hgemm_ops.bench.timing``), by the host's clock; costs over a
baseline are medians of paired differences. The baseline is the call outside of any context, with the override of
torch's products in place; what that costs takes processes of their own, with it and without, in turns.
Writes ``results/<gpu>/host_cost.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from torch import Tensor

import hgemm_ops
from hgemm_ops.bench import record, statistics, timing

RESULTS = Path(__file__).parent / "results"
WITH_TENSOR_MAPS = ("sm90_wgmma", "skinny_wgmma")
SIZES = (16, 64, 256, 512, 1000, 1024, 2048, 4096)

# Where a call runs.
ROUTED = "use_custom_gemm()"


@dataclass(frozen=True)
class Call:
    """One contender: a statement over ``a``, ``b`` (or ``x``, ``y``, or ``u``, ``v``) and where it runs.

    gradients: "off" (no_grad), "on" (grad mode, no input requires a gradient) or "required" (an input does).
    inside: ROUTED, or nothing.
    baseline: the statement, outside any context and with the same gradients, whose cost to compare with.
    """

    statement: str
    baseline: str | None = None
    gradients: str = "off"
    inside: str = ""

    @property
    def name(self) -> str:
        where = f", in {self.inside}" if self.inside else ""
        return f"{self.statement}, gradients {self.gradients}{where}"


def calls(operands: Sequence[str] = ("a, b", "x, y")) -> list[Call]:
    found = []
    for gradients in ("off", "on", "required"):
        for ab in operands:
            for function in ("torch.mm", "torch.matmul", "F.linear", "torch.add"):
                statement = f"{function}({ab})"
                found.append(Call(statement, None, gradients))
                found.append(Call(statement, statement, gradients, ROUTED))
            found.append(Call(f"torch.ops.hgemm.matmul({ab})", f"torch.matmul({ab})", gradients))
    return found


def measure(
    contenders: Sequence[Call],
    names: Mapping[str, Any],
    *,
    rounds: int,
    calls_per_round: int,
    contexts: Mapping[str, AbstractContextManager[Any]],
    synchronize: Callable[[], None],
) -> list[dict[str, Any]]:
    """Median nanoseconds of each call, and over its baseline."""
    by_name = {call.name: call for call in contenders}
    timers = {call.name: timeit.Timer(call.statement, globals=dict(names)) for call in contenders}
    leaves: list[Tensor] = [names[name] for name in ("a", "x", "u") if name in names]

    def run(name: str) -> Callable[[], float]:
        call = by_name[name]
        synchronize()  # an empty queue: a full one would make a launch wait for the device
        for leaf in leaves:
            leaf.requires_grad_(call.gradients == "required")
        context = contexts[call.inside] if call.inside else nullcontext()
        with torch.set_grad_enabled(call.gradients != "off"), context:
            nanoseconds = timers[name].timeit(calls_per_round) / calls_per_round * 1e9
        return lambda: nanoseconds

    timing.interleave(list(by_name), 3, 1, run)  # warm-up
    samples = timing.interleave(list(by_name), rounds, 0, run)
    for leaf in leaves:
        leaf.requires_grad_(False)
    rows = []
    for name, call in by_name.items():
        row: dict[str, Any] = {**asdict(call), "ns": asdict(statistics.median_interval(samples[name]))}
        if call.baseline is not None:
            base = samples[Call(call.baseline, None, call.gradients).name]
            extra = [ours - theirs for ours, theirs in zip(samples[name], base, strict=True)]
            row["over_baseline_ns"] = asdict(statistics.median_interval(extra))
        rows.append(row)
    return rows


# Prints nanoseconds of torch.mm of two small matrices, without and with a gradient wanted; argument: with the override.
_PROCESS = """
import json, sys, timeit, torch, hgemm_ops
if sys.argv[1] == "installed":
    with hgemm_ops.use_custom_gemm():
        torch.mm(*(torch.ones(16, 16, device="cuda", dtype=torch.float16) for _ in range(2)))
x, y = (torch.randn(16, 16, device="cuda", dtype=torch.float16) for _ in range(2))
costs = []
for wanted in (False, True):
    y.requires_grad_(wanted)
    timer = timeit.Timer("torch.mm(x, y)", "torch.cuda.synchronize()", globals=globals())
    costs.append(sorted(timer.repeat(60, 300))[6] / 300 * 1e9)
print(json.dumps(costs))
"""


def inactive(processes: int) -> dict[str, Any]:
    """What torch.mm costs more where the override is in place and no context holds, in pairs of processes."""
    pairs = []
    for turn in range(processes):
        order = ("plain", "installed") if turn % 2 else ("installed", "plain")
        found = {}
        for which in order:
            run = subprocess.run([sys.executable, "-c", _PROCESS, which], capture_output=True, text=True, check=True)
            found[which] = json.loads(run.stdout)
        pairs.append(found)
    extra = {
        name: [pair["installed"][i] - pair["plain"][i] for pair in pairs] for i, name in enumerate(("off", "required"))
    }
    return {
        "plain_ns": [pair["plain"] for pair in pairs],
        "over_plain_ns": {name: asdict(statistics.median_interval(values)) for name, values in extra.items()},
    }


@click.command(help=__doc__)
@click.option("--processes", type=click.IntRange(min=0), default=5, show_default=True, help="Pairs of them.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--rounds", type=click.IntRange(min=5), default=30, show_default=True)
@click.option("--calls", "calls_per_round", type=click.IntRange(min=1, max=500), default=200, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(processes: int, device: str, rounds: int, calls_per_round: int, output: Path | None) -> None:
    on_gpu = device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise click.ClickException("no CUDA GPU; --device cpu measures the CPU path")
    if not on_gpu and output is None:
        raise click.UsageError("--device cpu needs --output: results/ holds GPUs")
    names: dict[str, Any] = {"torch": torch, "F": F, "hgemm_ops": hgemm_ops}
    products = {}
    for pair in (square(size, device) for size in SIZES):
        found = product(*pair)
        ours = ("u", "v") if found["by"].startswith(WITH_TENSOR_MAPS) else ("x", "y")
        operands = ("a", "b") if found["by"] == "torch" else ours
        if operands[0] not in names:
            names.update(zip(operands, pair, strict=True))
            products[", ".join(operands)] = found
    rows = measure(
        calls(list(products)),
        names,
        rounds=rounds,
        calls_per_round=calls_per_round,
        contexts={ROUTED: hgemm_ops.use_custom_gemm()},
        synchronize=torch.cuda.synchronize if on_gpu else lambda: None,
    )
    document = record.document(
        device=device,
        products=products,
        protocol={"rounds": rounds, "calls_per_round": calls_per_round},
        calls=rows,
        inactive=inactive(processes) if on_gpu and processes else None,
    )
    record.save(document, output or RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "host_cost.json")
    for row in rows:
        extra = f"{row['over_baseline_ns']['value']:+8.0f}" if "over_baseline_ns" in row else ""
        where = f"in {row['inside']}" if row["inside"] else ""
        click.echo(
            f"{row['ns']['value']:8.0f} ns {extra:>8}  {row['statement']}  gradients {row['gradients']}  {where}"
        )
    if document["inactive"]:
        click.echo(f"in place, no context: {document['inactive']['over_plain_ns']}")


def square(size: int, device: str) -> tuple[Tensor, Tensor]:
    a, b = (torch.randn(size, size, dtype=torch.float16, device=device) for _ in range(2))
    return a, b


def product(a: Tensor, b: Tensor) -> dict[str, Any]:
    """What a result file says of one."""
    return {"shape": [a.size(0), b.size(1), a.size(1)], "by": hgemm_ops.explain(a, b).chosen}


if __name__ == "__main__":
    main()
