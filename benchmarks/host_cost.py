"""Measures what an eager call costs the host: the nanoseconds until it returns.

There are three matmuls, and the dispatcher decides on each. ``a @ b`` is the smallest square one that it leaves to
torch. ``x @ y`` is the smallest one that it gives to a kernel of ours. ``u @ v`` is the smallest one that it gives to a
kernel with tensor maps. Launches queue up, so a round must have fewer calls than the queue holds.

Shapes that were never seen cost more: a matmul with a new number of rows, and the same matmuls once more, each among
thousands.

Contenders run interleaved as in every other benchmark (``hgemm_ops.bench.timing``), and are timed by the host's clock.
Costs over a baseline are medians of paired differences. The baseline is the call outside of any context, with the
override of torch's matmuls installed. The cost of the override itself is measured in separate processes, before and
after it is installed. Writes ``results/<gpu>/host_cost.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
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
UNSEEN = ((64, 64, 8000), (1024, 1024, 4000))  # N, K, and rows up to
SIZES = (16, 64, 256, 512, 1000, 1024, 2048, 4096)

# Where a call runs.
ROUTED = "use_custom_gemm()"


@dataclass(frozen=True)
class Call:
    """One contender: a statement over ``a``, ``b`` (or ``x``, ``y``, or ``u``, ``v``) and where it runs.

    gradients: "off" (no_grad), "on" (grad mode, no input requires a gradient) or "required" (an input does).
    inside: ROUTED, or "" outside of any context.
    baseline: the statement whose cost is compared, outside of any context and with the same gradients.
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
    """The median nanoseconds of each call, and of its difference from its baseline."""
    by_name = {call.name: call for call in contenders}
    timers = {call.name: timeit.Timer(call.statement, globals=dict(names)) for call in contenders}
    leaves: list[Tensor] = [names[name] for name in ("a", "x", "u") if name in names]

    def run(name: str) -> Callable[[], float]:
        call = by_name[name]
        synchronize()  # empties the queue; with a full queue a launch waits for the device
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


# Prints the nanoseconds of torch.mm of two small matrices and of torch.add, without and with a required gradient,
# before the override is installed and afterwards. Arguments: rounds, calls in a round, and whether it is installed at
# all.
_PROCESS = """
import json, sys, timeit, statistics, torch, hgemm_ops

rounds, calls, placed = map(int, sys.argv[1:])
x, y = (torch.randn(16, 16, device="cuda", dtype=torch.float16) for _ in range(2))
timers = [
    timeit.Timer(statement, "torch.cuda.synchronize()", globals=globals())
    for statement in ("torch.mm(x, y)", "torch.add(x, y)")
]

def phase():
    costs = []
    for wanted in (False, True):
        y.requires_grad_(wanted)
        samples = [[timer.timeit(calls) / calls * 1e9 for timer in timers] for _ in range(rounds)]
        costs.append([statistics.median(one) for one in zip(*samples)])
    return costs

phase()
before = phase()
if placed:
    with hgemm_ops.use_custom_gemm():
        pass
print(json.dumps([before, phase()]))
"""


def inactive(processes: int, rounds: int, calls_per_round: int) -> dict[str, Any]:
    """What torch.mm costs more once the override is installed, while no context is active.

    This is the change of its time within a process, less the change of torch.add's time, which nothing overrides.
    ``control_ns`` is the same in processes in which nothing is installed.
    """
    found: dict[bool, list[Any]] = {True: [], False: []}
    for _ in range(processes):
        for placed, runs in found.items():
            command = [sys.executable, "-c", _PROCESS, str(rounds), str(calls_per_round), str(int(placed))]
            runs.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))

    def changes(placed: bool) -> dict[str, Any]:
        extra = {}
        for i, name in enumerate(("off", "required")):
            pairs = [(before[i], after[i]) for before, after in found[placed]]
            values = [(mm2 - mm1) - (add2 - add1) for (mm1, add1), (mm2, add2) in pairs]
            extra[name] = asdict(statistics.median_interval(values))
        return extra

    return {"before_and_after_ns": found[True], "over_before_ns": changes(True), "control_ns": changes(False)}


def unseen(n: int, k: int, rows: int, device: str, synchronize: Callable[[], None]) -> list[dict[str, Any]]:
    """What torch.mm of 1 to ``rows`` rows costs, each number of rows for the first time and once more.

    The odd numbers run in a context, and the even ones outside of any. They are told apart by who serves them in the
    context; an even number counts with the odd one before it.
    """
    a = torch.randn(rows + 1, k, dtype=torch.float16, device=device)
    b = torch.randn(k, n, dtype=torch.float16, device=device)

    def calls(numbers: Sequence[int]) -> list[int]:
        costs = []
        views = [a[:m] for m in numbers]
        for place, view in enumerate(views):
            if place % 100 == 0:
                synchronize()  # with a full queue a launch waits for the device
            begin = time.perf_counter_ns()
            torch.mm(view, b)
            costs.append(time.perf_counter_ns() - begin)
        return costs

    odd = range(1, rows, 2)
    even = [m + 1 for m in odd]
    calls([rows + 1])
    with hgemm_ops.use_custom_gemm():
        calls([rows + 1])
        new = calls(odd)
        known = calls(odd)
    torch_new, torch_known = calls(even), calls(odd)
    by = ["torch" if hgemm_ops.explain(a[:m], b).chosen == "torch" else "ours" for m in odd]
    found = []
    for who in sorted(set(by)):
        costs = {"new_ns": new, "known_ns": known, "torch_new_ns": torch_new, "torch_known_ns": torch_known}
        of = {
            name: [float(ns) for ns, by_m in zip(all_ns, by, strict=True) if by_m == who]
            for name, all_ns in costs.items()
        }
        medians = {name: asdict(statistics.median_interval(values)) for name, values in of.items()}
        found.append({"n": n, "k": k, "rows": rows, "by": who, "shapes": by.count(who), **medians})
    return found


def entering(rounds: int, calls_per_round: int, *, again: bool = False) -> dict[str, Any]:
    """Nanoseconds to make, enter and leave a context, as around each step of a loop.

    With ``again``: to enter and leave one and the same context again and again.
    """
    make = hgemm_ops.use_custom_gemm
    statement = "with context:\n    pass" if again else "with make():\n    pass"
    timer = timeit.Timer(statement, globals={"context": make()} if again else {"make": make})
    costs = [timer.timeit(calls_per_round) / calls_per_round * 1e9 for _ in range(rounds)]
    return asdict(statistics.median_interval(costs))


@click.command(help=__doc__)
@click.option("--processes", type=click.IntRange(min=0), default=5, show_default=True, help="For what is paid outside.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--rounds", type=click.IntRange(min=5), default=200, show_default=True)
@click.option("--calls", "calls_per_round", type=click.IntRange(min=1, max=500), default=50, show_default=True)
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
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    rows = measure(
        calls(list(products)),
        names,
        rounds=rounds,
        calls_per_round=calls_per_round,
        contexts={ROUTED: hgemm_ops.use_custom_gemm()},
        synchronize=synchronize,
    )
    document = record.document(
        device=device,
        products=products,
        protocol={"rounds": rounds, "calls_per_round": calls_per_round},
        calls=rows,
        context_ns=entering(rounds, calls_per_round),
        context_again_ns=entering(rounds, calls_per_round, again=True),
        unseen=[row for size in UNSEEN for row in unseen(*size, device=device, synchronize=synchronize)],
        context_after_ns=entering(rounds, calls_per_round),
        inactive=inactive(processes, rounds, calls_per_round) if on_gpu and processes else None,
    )
    record.save(document, output or RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "host_cost.json")
    for row in rows:
        extra = f"{row['over_baseline_ns']['value']:+8.0f}" if "over_baseline_ns" in row else ""
        where = f"in {row['inside']}" if row["inside"] else ""
        click.echo(
            f"{row['ns']['value']:8.0f} ns {extra:>8}  {row['statement']}  gradients {row['gradients']}  {where}"
        )
    click.echo(
        f"a context made, entered and left: {document['context_ns']}; after these: {document['context_after_ns']}"
    )
    click.echo(f"the same context entered and left again: {document['context_again_ns']}")
    for row in document["unseen"]:
        click.echo(f"1 to {row['rows']} rows by {row['n']}x{row['k']}, run by {row['by']}:")
        for name in ("new_ns", "known_ns", "torch_new_ns", "torch_known_ns"):
            click.echo(f"{row[name]['value']:8.0f} ns  {name}")
    if document["inactive"]:
        click.echo(f"in place, no context: {document['inactive']['over_before_ns']}")


def square(size: int, device: str) -> tuple[Tensor, Tensor]:
    a, b = (torch.randn(size, size, dtype=torch.float16, device=device) for _ in range(2))
    return a, b


def product(a: Tensor, b: Tensor) -> dict[str, Any]:
    """The shape of a matmul and the kernel that the dispatcher chooses for it."""
    return {"shape": [a.size(0), b.size(1), a.size(1)], "by": hgemm_ops.explain(a, b).chosen}


if __name__ == "__main__":
    main()
