"""Times the ladder on chosen shapes: every step is verified, and timed interleaved with torch and cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import hgemm_ops
from benchmarks.course import cublas
from benchmarks.course.rungs import FAMILIES, RUNGS
from hgemm_ops.bench import record, runner, statistics, timing, workload
from hgemm_ops.bench.suites import SUITES, Case
from hgemm_ops.ops import ladder as kernels

TORCH = runner.TORCH
CUBLAS_F32, CUBLAS_F16 = "cublas_f32acc", "cublas_f16acc"
LIBRARIES = (TORCH, CUBLAS_F32, CUBLAS_F16)
VALUES = 3  # the number of a result's first values that are shown

_MIN_ROUNDS = 5
_WARMUP_REPLAYS = 2  # the replay that is verified, and the one that tells how many rounds fit


@dataclass(frozen=True)
class Options:
    """How the ladder is timed.

    rounds: timed passes of each contender.
    seconds: a step whose passes would take longer than this has fewer of them, but at least 5.
    swizzle: the columns of a panel, for steps that walk C in panels. The default is N/4, as published.
    """

    rounds: int = 40
    seconds: float = 0.5
    swizzle: int | None = None
    seed: int = 0
    inputs: str = "normal"


@dataclass(frozen=True)
class Contender:
    """A step or a library with its result. ``swizzle`` is the columns of a panel, None for kernels without panels."""

    name: str
    label: str
    result: runner.Result
    swizzle: int | None = None
    values: tuple[float, ...] = ()
    rounds: int = 0


@dataclass(frozen=True)
class Table:
    """The contenders of a family on one shape."""

    family: str
    case: Case
    sets: int
    contenders: tuple[Contender, ...]

    def to_json(self) -> dict[str, Any]:
        """The table in the form of result files, where a contender is called a step."""
        table = asdict(self)
        table |= {"label": self.case.label, "flops": self.case.flops, "bytes": self.case.bytes}
        table["steps"] = table.pop("contenders")
        for step in table["steps"]:
            del step["label"]  # rungs.csv has it
            step["result"] = {key: value for key, value in step["result"].items() if value is not None}
        return table

    @property
    def wrong(self) -> dict[str, str]:
        """Each contender whose result was wrong, with how far off it was."""
        return {one.name: one.result.wrong for one in self.contenders if one.result.wrong}


def default_cases(family: str) -> tuple[Case, ...]:
    """One shape that fills the GPU, and three sizes for additions.

    The time of a small addition is that of the launch, then the caches decide, and then DRAM.
    """
    if family == "elementwise":
        sizes = (256, 1024, 4096)
        return tuple(
            Case(n, n, 1, op="add", dtype=dtype) for dtype in ("float16", "bfloat16", "float32") for n in sizes
        )
    return (Case(4096, 4096, 4096, dtype="float32" if family == "sgemm" else "float16"),)


def dtype_of(name: str) -> str:
    """The dtype of a step's operands."""
    taken = {step.name: step.dtype for step in kernels.steps()}
    taken |= {addition.name: addition.dtype for addition in kernels.additions()}
    return str(taken[name]).removeprefix("torch.")


def suites_of(family: str) -> tuple[str, ...]:
    """The suites in which the family computes every case."""
    return tuple(name for name, cases in SUITES.items() if all(serves(family, case) for case in cases))


def serves(family: str, case: Case) -> bool:
    """Whether the family computes this case: a plain row-major matmul of its dtype, or an addition."""
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
    """The production kernel that is timed beside the last family, where the ladder leads.

    It is the one with the shortest time in the tuning table, or else the shortest predicted time.
    """
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
    """Why each step does not take part; "" for the steps that do."""
    if case.op == "add":
        return {
            addition.name: "" if getattr(torch, case.dtype) == addition.dtype else f"takes {addition.dtype}"
            for addition in kernels.additions()
        }
    explained = {c.name: c.reason for c in hgemm_ops.explain(operands.a, operands.b).candidates}
    return {rung.name: explained.get(rung.name, "is not in this library") for rung in FAMILIES[family]}


def _rounds(bodies: dict[str, timing.Body], options: Options) -> dict[str, int]:
    """The number of rounds of each contender: as many as fit into ``options.seconds``.

    Libraries run in every round, so that each time of a step has a library's time of the same round to compare with.
    """
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
    contenders = [
        Contender(
            name=name,
            label=label[name],
            result=results[name],
            swizzle=panels.get(name),
            values=values[name],
            rounds=rounds.get(name, 0),
        )
        for name in bodies
    ]
    return Table(family, case, count, tuple(contenders))


def run(cases: Sequence[tuple[str, Case]], options: Options) -> Iterator[Table]:
    """Runs families on cases on the current CUDA device, and yields each table when it is done."""
    device = torch.device("cuda", torch.cuda.current_device())
    for family, case in cases:
        table = run_case(family, case, options, device)
        torch.cuda.empty_cache()
        yield table


def lines(table: Table, copy_gbps: float | None = None) -> Iterator[str]:
    """A table in the form of the published ones: label, first values, time, speed, and the gain over the best so far.

    Libraries come last, and the best so far counts them too. Additions are given in GB/s, with the share of a copy's
    bandwidth that they reach.
    """
    case = table.case
    yield f"{'-' * 40} M={case.m}, N={case.n}" + (f", K={case.k}" if case.op == "matmul" else f", {case.dtype}")
    width = max(len(one.label) for one in table.contenders)
    best = 0.0
    for one in table.contenders:
        result, speed = one.result, one.result.tflops if case.op == "matmul" else one.result.gbps
        head = f"{one.label:>{width}}: "
        if result.us is None or speed is None:
            yield f"{head}wrong: {result.wrong}"
            continue
        text = f"{head}[{', '.join(f'{value:<11.7g}' for value in one.values)}], time: {result.us / 1e3:.6f} ms"
        if case.op == "matmul":
            text += f", swizzle: {'NOOP' if one.swizzle is None else one.swizzle:<5}, TFLOPS: {speed:<7.2f}"
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
