"""The ladder's steps on chosen shapes: verified, interleaved with what libraries do, in the order of the course."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import hgemm_ops
from hgemm_ops.ops import ladder as kernels

from . import cublas, record, runner, statistics, timing, workload
from .rungs import FAMILIES, RUNGS
from .suites import ELEMENT_BYTES, SUITES, Case

TORCH = runner.TORCH
CUBLAS_F32, CUBLAS_F16 = "cublas_f32acc", "cublas_f16acc"
LIBRARIES = (TORCH, CUBLAS_F32, CUBLAS_F16)
VALUES = 3  # of a result's first that are shown

_MIN_ROUNDS = 5
_WARMUP_REPLAYS = 2  # the one that is verified, and the one that says how many rounds fit


@dataclass(frozen=True)
class Options:
    """rounds: timed passes of each contender, fewer (at least 5) where they would take longer than ``seconds``.
    swizzle: columns of a panel for the steps that walk C in panels; by default N/4, as published."""

    rounds: int = 40
    seconds: float = 0.5
    swizzle: int | None = None
    seed: int = 0
    inputs: str = "normal"


@dataclass(frozen=True)
class Step:
    """One line: a step of the ladder or a library. ``swizzle``: columns of a panel, None where there are no panels."""

    name: str
    label: str
    result: runner.Result
    swizzle: int | None = None
    values: tuple[float, ...] = ()
    rounds: int = 0


@dataclass(frozen=True)
class Table:
    """A family on one shape."""

    family: str
    case: Case
    sets: int
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, Any]:
        table = asdict(self)
        table |= {"label": self.case.label, "flops": self.case.flops, "bytes": self.case.bytes}
        for step in table["steps"]:
            step["result"] = {key: value for key, value in step["result"].items() if value is not None}
        return table

    @property
    def wrong(self) -> dict[str, str]:
        return {step.name: step.result.wrong for step in self.steps if step.result.wrong}


def default_cases(family: str) -> tuple[Case, ...]:
    """A shape that fills the chip; of the additions three: where launches, caches and memory decide."""
    if family == "elementwise":
        sizes = (256, 1024, 4096)
        return tuple(Case(n, n, 1, op="add", dtype=dtype) for dtype in ELEMENT_BYTES for n in sizes)
    return (Case(4096, 4096, 4096, dtype="float32" if family == "sgemm" else "float16"),)


def dtype_of(name: str) -> str:
    """The dtype of a step's operands."""
    taken = {step.name: step.dtype for step in kernels.steps()}
    taken |= {addition.name: addition.dtype for addition in kernels.additions()}
    return str(taken[name]).removeprefix("torch.")


def suites_of(family: str) -> tuple[str, ...]:
    """The suites whose cases the family serves."""
    return tuple(name for name, cases in SUITES.items() if all(serves(family, case) for case in cases))


def serves(family: str, case: Case) -> bool:
    """Whether a case is what a family computes: plain row-major products of its dtype, or sums."""
    if family == "elementwise":
        return case.op == "add"
    plain = case.op == "matmul" and case.layout == "NN" and case.batch == 1 and not case.padding
    return plain and case.dtype == ("float32" if family == "sgemm" else "float16")


def _library_calls(case: Case) -> dict[str, runner.Call]:
    calls = {TORCH: workload.torch_call(case)}
    if case.op == "matmul":
        calls[CUBLAS_F32] = lambda x: cublas.matmul(x.a, x.b)
        if case.dtype == "float16":
            calls[CUBLAS_F16] = lambda x: cublas.matmul(x.a, x.b, half_accumulation=True)
    return calls


def _production(family: str, case: Case, operands: workload.Operands) -> dict[str, runner.Call]:
    """Where the ladder leads: beside its last family, the dispatcher's own kernel, by its table or else its model."""
    if family != "wgmma":
        return {}
    candidates = hgemm_ops.explain(operands.a, operands.b).candidates
    kernels = [c for c in candidates if c.eligible and c.family not in ("ladder", TORCH)]
    timed = [(c.measured_us, c.name) for c in kernels if c.measured_us is not None]
    modelled = [(c.predicted_us, c.name) for c in kernels if c.predicted_us is not None]
    return {name: workload.hgemm_call(case, name) for _, name in sorted(timed or modelled)[:1]}


def _panels(name: str, case: Case, options: Options) -> int | None:
    swizzles = any(step.name == name and step.swizzles for step in kernels.steps())
    return (options.swizzle or max(1, case.n // 4)) if swizzles else None


def _step_call(name: str, panels: int | None) -> runner.Call:
    op = getattr(torch.ops.hgemm, name).default
    return lambda x: op(x.a, x.b) if panels is None else op(x.a, x.b, panels)


def _refusals(family: str, case: Case, operands: workload.Operands) -> dict[str, str]:
    """Why a step does not take part; "" where it does."""
    if case.op == "add":
        return {
            addition.name: "" if getattr(torch, case.dtype) == addition.dtype else f"takes {addition.dtype}"
            for addition in kernels.additions()
        }
    explained = {c.name: c.reason for c in hgemm_ops.explain(operands.a, operands.b).candidates}
    return {rung.name: explained.get(rung.name, "is not in this library") for rung in FAMILIES[family]}


def _rounds(bodies: dict[str, timing.Body], options: Options) -> dict[str, int]:
    """As many as fit the time of each; the libraries run in all of them, so that every ratio has its pair."""
    found = {}
    for name, body in bodies.items():
        seconds = body.start()() * len(body.outputs) * 1e-6
        fit = min(options.rounds, max(_MIN_ROUNDS, int(options.seconds / seconds)))
        found[name] = options.rounds if name in LIBRARIES else fit
    return found


def run_case(family: str, case: Case, options: Options, device: torch.device) -> Table:
    """Verifies and times every step of a family, and the libraries, on one shape."""
    generator = torch.Generator(device).manual_seed(options.seed)
    count = timing.set_count(case.bytes, timing.rotation_bytes(device))
    sets = [workload.make_operands(case, generator, options.inputs) for _ in range(count)]
    refusals = _refusals(family, case, sets[0])
    names = [rung.name for rung in FAMILIES[family] if not refusals.get(rung.name, "is not in this library")]
    panels = {name: _panels(name, case, options) for name in names}
    calls = {name: _step_call(name, panels[name]) for name in names}
    calls |= _production(family, case, sets[0]) | _library_calls(case)

    bodies = {name: timing.Body.capture(call, sets) for name, call in calls.items()}
    errors, wrong = runner.verify(case, sets, bodies, half=[CUBLAS_F16])
    results = {name: runner.Result(wrong=why) for name, why in wrong.items()}
    values = {name: tuple(body.outputs[0].flatten()[:VALUES].tolist()) for name, body in bodies.items()}
    right = {name: body for name, body in bodies.items() if name not in results}
    rounds = _rounds(right, options)
    times = timing.interleave(list(right), rounds, options.seed, lambda name: right[name].start())
    for name, samples in times.items():
        us = statistics.median(samples)
        base = times.get(TORCH, [])[: len(samples)]
        results[name] = runner.Result(
            us=us,
            ratio=statistics.paired_ratio(base, samples) if base and name != TORCH else None,
            tflops=case.flops / us * 1e-6,
            gbps=case.bytes / us * 1e-3,
            error=errors[name][0],
            largest_error=errors[name][1],
        )
    label = {name: RUNGS[name].label if name in RUNGS else name for name in bodies}
    steps = [
        Step(name, label[name], results[name], panels.get(name), values[name], rounds.get(name, 0)) for name in bodies
    ]
    return Table(family, case, count, tuple(steps))


def run(cases: Sequence[tuple[str, Case]], options: Options) -> Iterator[Table]:
    """Runs families on cases on the current CUDA device, giving each table back as it is done."""
    device = torch.device("cuda", torch.cuda.current_device())
    for family, case in cases:
        table = run_case(family, case, options, device)
        torch.cuda.empty_cache()
        yield table


def lines(table: Table, copy_gbps: float | None = None) -> Iterator[str]:
    """A table in the form of the published ones: label, first values, time, and speed with what it adds to the best.

    Libraries come last and raise the best too. Sums are given in GB/s, with their share of a copy's rate.
    """
    case = table.case
    yield f"{'-' * 40} M={case.m}, N={case.n}" + (f", K={case.k}" if case.op == "matmul" else f", {case.dtype}")
    width = max(len(step.label) for step in table.steps)
    best = 0.0
    for step in table.steps:
        result, speed = step.result, step.result.tflops if case.op == "matmul" else step.result.gbps
        head = f"{step.label:>{width}}: "
        if result.us is None or speed is None:
            yield f"{head}wrong: {result.wrong}"
            continue
        text = f"{head}[{', '.join(f'{value:<11.7g}' for value in step.values)}], time: {result.us / 1e3:.6f} ms"
        if case.op == "matmul":
            text += f", swizzle: {'NOOP' if step.swizzle is None else step.swizzle:<5}, TFLOPS: {speed:<7.2f}"
        else:
            text += f", GB/s: {speed:<6.0f}" + (f" ({speed / copy_gbps:.0%} of a copy)" if copy_gbps else "")
        if speed > best:
            text += f" (+{(speed - best) / best if best else 0:.2%})"
            best = speed
        yield text.rstrip()


def document(tables: Sequence[Table], options: Options, copy: float) -> dict[str, Any]:
    """The tables' result file, for ``record.save``."""
    return record.document(
        protocol={
            "rounds": options.rounds,
            "seconds": options.seconds,
            "warmup_replays": _WARMUP_REPLAYS,
            "rotation_bytes": timing.rotation_bytes(torch.device("cuda", torch.cuda.current_device())),
            "inputs": options.inputs,
            "seed": options.seed,
        },
        copy_gbps=copy,
        ladder=[table.to_json() for table in tables],
    )
