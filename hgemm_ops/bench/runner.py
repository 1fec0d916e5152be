"""Runs the cases of a suite: verifies every contender, and times our kernels interleaved with torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import hgemm_ops
from hgemm_ops import _variants
from hgemm_ops.ops import ladder

from . import lean, peers, record, statistics, timing, workload
from .suites import Case

TORCH = "torch"
TORCH_FUSED = "torch._addmm_activation"
DISPATCHED = "hgemm"  # what the dispatcher picks
FAST = "hgemm:fast"  # what it picks in fast numerics, timed where another mode is the default
ALL = "all"
STREAM = lean.STREAM
PEER = "peer:"  # prefix of a peer's name

_SELECTION_ROUNDS = 8
_DUEL_ROUNDS = 5  # rounds with one kernel before the duel of the next one
_PREFIXES = 64  # points along k at which half_rounding() computes the partial sums

Call = Callable[[workload.Operands], torch.Tensor]


@dataclass(frozen=True)
class Options:
    """How to run a case.

    variants: the kernels to time beside the dispatcher's choice. "all" is every eligible kernel that the dispatcher may
        choose.
    candidates: limits "all" to this many kernels, those with the shortest predicted times, and the dispatcher's choice.
    dispatched: whether to time the dispatcher's choice.
    peers: which of ``peers.NAMES`` to time beside them.
    duels: how many of the fastest kernels are timed again, each alone with torch, as the dispatcher's choice will run.
        While many contenders run, the GPU has another clock, which can favour other kernels.
    most_sets: the largest number of operand sets in the rotation, even if they then stay in L2.
    soak: seconds of large matmuls before the first case, so that the GPU is as warm for it as for the last one.
    warmup: seconds for which the contenders of a case run before they are timed.
    """

    variants: tuple[str, ...] = ()
    candidates: int | None = None
    dispatched: bool = True
    peers: tuple[str, ...] = ()
    duels: int = 0
    most_sets: int | None = None
    soak: float = 0.0
    warmup: float = 0.0
    rounds: int = 40
    seed: int = 0
    inputs: str = "normal"


@dataclass(frozen=True)
class Result:
    """The result of one contender. It was measured, ``refused`` (it cannot run the case) or ``wrong``, with the reason.

    us: median microseconds per call.
    ratio: the speed over torch; 2 is twice as fast.
    gbps: the rate at which the least possible memory traffic was moved.
    error: the error against float64 in the 2-norm, relative. ``largest_error`` is the same in the maximum norm.
    configuration: of a peer, the configuration that was timed.
    ours: of a peer or FAST, the speed of the dispatcher's choice over its speed.
    of_stream: the time of only reading the weights over this contender's time.
    peak_bytes: what a call takes from torch's allocator at its peak: its result, copies of operands and workspace.
    """

    us: float | None = None
    ratio: statistics.Interval | None = None
    tflops: float | None = None
    gbps: float | None = None
    error: float | None = None
    largest_error: float | None = None
    refused: str | None = None
    wrong: str | None = None
    configuration: str | None = None
    ours: statistics.Interval | None = None
    of_stream: statistics.Interval | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Row:
    case: Case
    sets: int
    served_by: str | None  # the kernel behind DISPATCHED, or "torch"
    source: str | None  # what made that choice: table, model, ...
    results: dict[str, Result] = field(default_factory=dict)

    @property
    def wrong(self) -> dict[str, str]:
        """Each contender whose result was wrong, with how far off it was."""
        return {name: result.wrong for name, result in self.results.items() if result.wrong}

    @property
    def best_peer(self) -> str | None:
        """The fastest of the peers that were timed, by its name in ``results``; None where no peer was timed."""
        timed = {name: result.us for name, result in self.results.items() if name.startswith(PEER) and result.us}
        return min(timed, key=lambda name: timed[name]) if timed else None

    def to_json(self) -> dict[str, Any]:
        row = asdict(self)
        row |= {"label": self.case.label, "flops": self.case.flops, "bytes": self.case.bytes, "align": self.case.align}
        row["results"] = {
            name: {key: value for key, value in result.items() if value is not None}
            for name, result in row["results"].items()
        }
        return row


def error_limits(case: Case, torch_errors: tuple[float, float], accumulates_in_half: bool) -> tuple[float, float]:
    """The largest errors that a contender may have: twice torch's own error, and what rounding explains.

    The reference is rounded to float64. So the error of a float64 result counts as that of a sum of k roundings, which
    walk at random, at least.

    Kernels that accumulate in float16 run only where they are asked for. Their error in the 2-norm may grow with the
    square root of k, as a random walk of roundings does. Their largest error has no limit here, because
    ``half_rounding`` bounds each element.
    """
    eps = torch.finfo(getattr(torch, case.dtype)).eps
    if case.dtype == "float64":
        walk = eps * case.k**0.5
        return 2 * max(torch_errors[0], walk), 2 * max(torch_errors[1], walk)
    two_norm = 2 * torch_errors[0] + torch.finfo(torch.float32).eps
    if accumulates_in_half:
        # For sums that walk at random, independent roundings have a 2-norm of at most eps sqrt(k / 24).
        return max(two_norm, 0.25 * eps * case.k**0.5), math.inf
    return two_norm, 2 * torch_errors[1] + eps


def half_rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Bounds the error of each element of ``a @ b`` whose sum was accumulated in float16, in the order of k.

    Rounding a partial sum s errs by at most u |s|, u = 2**-11, with a variance of at most (u s)**2 / 3. The roundings
    are independent. So their sum in one element has a variance of u**2 / 3 times the sum of its squared partial sums,
    which are computed here in float64, at ``_PREFIXES`` points along k. The bound is six standard deviations, which one
    normal variable in 5e8 exceeds, and the rounding of the result.

    A single limit for all elements would be too wide for most of them. Where a sum walks five times as far as the
    others, as the farthest of a million does, its error is five times as large.
    """
    u = torch.finfo(torch.float16).eps / 2
    k = a.size(-1)
    partial = torch.zeros(*a.shape[:-1], b.size(-1), dtype=torch.float64, device=a.device)
    squares = torch.zeros_like(partial)
    step = -(-k // _PREFIXES)
    for first in range(0, k, step):
        columns = slice(first, first + step)
        partial += a[..., columns].double() @ b[..., columns, :].double()
        squares += partial.square() * (min(first + step, k) - first)
    subnormal = torch.finfo(torch.float16).smallest_normal * u
    return 6 * u * (squares / 3).sqrt() + u * partial.abs() + subnormal


@dataclass
class _Contenders:
    calls: dict[str, Call]
    refused: dict[str, str] = field(default_factory=dict)
    served_by: str | None = None
    source: str | None = None


def _contenders(case: Case, operands: workload.Operands, options: Options) -> _Contenders:
    found = _Contenders({TORCH: workload.torch_call(case)})
    if fused := workload.torch_fused_call(case):
        found.calls[TORCH_FUSED] = fused
    forced_only = set()
    if case.op == "add":
        reasons = {
            addition.name: "" if getattr(torch, case.dtype) == addition.dtype else f"does not take {case.dtype}"
            for addition in ladder.additions()
        }
    elif case.op == "chain":
        chosen = [hgemm_ops.explain(operands.a.new_empty(case.m, w.size(1)), w.mT) for w in operands.chain]
        found.served_by = "+".join(dict.fromkeys(explanation.chosen for explanation in chosen))
        found.source = "+".join(dict.fromkeys(explanation.source for explanation in chosen))
        found.calls[DISPATCHED] = workload.chain_call()
        found.refused = dict.fromkeys(set(options.variants) - {ALL}, "is one kernel, not a chain of them")
        return found
    else:
        explanation = hgemm_ops.explain(
            operands.a, operands.b, bias=operands.bias is not None, activation=case.activation
        )
        # By predicted time. Candidates without a prediction come last.
        by_model = sorted(
            explanation.candidates, key=lambda c: c.predicted_us if c.predicted_us is not None else float("inf")
        )
        reasons = {c.name: "" if c.eligible else c.reason for c in by_model if c.name != TORCH}
        forced_only = {c.name for c in explanation.candidates if c.forced_only}
        if options.dispatched:
            found.calls[DISPATCHED] = workload.hgemm_call(case, None)
            if _variants.standing_numerics() != "fast":
                found.calls[FAST] = workload.hgemm_call(case, None, "fast")
            found.served_by, found.source = explanation.chosen, explanation.source
    everything = options.variants == (ALL,)
    names = options.variants
    if everything:
        names = tuple(name for name, reason in reasons.items() if not reason and name not in forced_only)
        # The choice is kept: a tuning table written from these times must not lose a kernel that the model underrates.
        names = tuple(
            n for i, n in enumerate(names) if i < (options.candidates or len(names)) or n == explanation.chosen
        )
    for name in names:
        if reason := reasons.get(name, "is no kernel for this operation"):
            found.refused[name] = reason
        else:
            found.calls[name] = workload.hgemm_call(case, name)
    return found


def verify(
    case: Case, sets: Sequence[workload.Operands], bodies: Mapping[str, timing.Body], half: Collection[str] = ()
) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """Checks the graphs that will be timed against float64. Each one is replayed over poisoned results.

    ``half`` names contenders that accumulate in float16, beside our kernels that do.

    Returns:
        The worst errors of each contender, and for each contender whose result was wrong, the reason in words.
    """
    accumulates_in_half = {v.name for v in hgemm_ops.variants() if v.numerics == "float16 accumulation"}
    half = bodies.keys() & accumulates_in_half.union(half)
    for body in bodies.values():
        body.poison()
        body.replay()
    found: dict[str, list[torch.Tensor]] = {name: [] for name in bodies}
    excess = dict.fromkeys(half, 0.0)  # the largest ratio of an error to its bound
    for i, operands in enumerate(sets):
        expected = workload.reference(case, operands)
        for name, body in bodies.items():
            found[name].append(timing.errors(body.outputs[i], expected))
        if half:
            bound = half_rounding(operands.a, operands.b)
            for name in half:
                error = (bodies[name].outputs[i].double() - expected).abs()
                excess[name] = max(excess[name], (error / bound).nan_to_num(nan=math.inf).max().item())
    errors = {name: timing.worst(rows) for name, rows in found.items()}
    wrong = {}
    for name, (two_norm, largest) in errors.items():
        limits = error_limits(case, errors[TORCH], name in half)
        if not (two_norm <= limits[0] and largest <= limits[1]):  # true for NaN as well
            wrong[name] = f"errors {two_norm:.2e} and {largest:.2e}, allowed {limits[0]:.2e} and {limits[1]:.2e}"
        elif name in half and not excess[name] <= 1:
            wrong[name] = f"an element is off by {excess[name]:.2f} times what rounding in float16 explains"
    return errors, wrong


def _choose(case: Case, sets: Sequence[workload.Operands], peer: str, options: Options) -> tuple[str, Call]:
    """Finds the fastest right configuration of a peer, and returns its name and its call.

    A few rounds decide, whose times are not kept.

    Raises:
        peers.Unavailable: the peer has no configuration for the case.
    """
    calls, failure = {}, "offers no configuration"
    for name, call in peers.load(peer).configurations(case, sets[0]).items():
        try:
            call(sets[0])
        except peers.Unavailable as reason:
            failure = str(reason)
        else:
            calls[name] = call
    if not calls:
        raise peers.Unavailable(failure)
    if len(calls) == 1:
        return next(iter(calls.items()))
    bodies = {name: timing.Body.capture(call, sets) for name, call in calls.items()}
    base = {TORCH: timing.Body.capture(workload.torch_call(case), sets[:1])}
    _, wrong = verify(case, sets[:1], base | bodies)
    # If none is right, the fastest goes on to the verification of all contenders, which reports it.
    right = {name: body for name, body in bodies.items() if name not in wrong} or bodies
    times = timing.time_bodies(right, _SELECTION_ROUNDS, options.seed)
    fastest = min(times, key=lambda name: statistics.median(times[name]))
    return fastest, calls[fastest]


def duel(
    bodies: Mapping[str, timing.Body], ratios: Mapping[str, statistics.Interval], options: Options
) -> dict[str, statistics.Interval]:
    """Corrects the ``ratios`` to torch by timing the best kernels again, each alone with torch.

    These kernels take turns, a few rounds each, so that a change in the course of a run affects all of them. Some
    ratios change by 4 % in this way. The ratios of the other kernels are reduced by the largest loss among these.
    """
    best = sorted(ratios, key=lambda name: -ratios[name].value)[: options.duels]
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in best}
    for first in range(0, options.rounds, _DUEL_ROUNDS):
        rounds = min(_DUEL_ROUNDS, options.rounds - first)
        for name, samples in times.items():
            found = timing.time_bodies({TORCH: bodies[TORCH], name: bodies[name]}, rounds, options.seed + first)
            samples[0].extend(found[TORCH])
            samples[1].extend(found[name])
    alone = {name: statistics.paired_ratio(*samples) for name, samples in times.items()}
    loss = min((alone[name].value / ratios[name].value for name in best), default=1.0)
    return {name: alone.get(name) or ratio.scaled(min(loss, 1.0)) for name, ratio in ratios.items()}


def run_case(case: Case, options: Options, device: torch.device) -> Row:
    """Verifies and times the contenders of one case."""
    generator = torch.Generator(device).manual_seed(options.seed)
    count = timing.set_count(case.bytes, timing.rotation_bytes(device))
    if options.most_sets is not None:
        count = min(count, options.most_sets)
    sets = [workload.make_operands(case, generator, options.inputs) for _ in range(count)]
    contenders = _contenders(case, sets[0], options)
    results = {name: Result(refused=reason) for name, reason in contenders.refused.items()}

    configurations = {}
    for peer in options.peers:
        if case.op == "chain":
            results[PEER + peer] = Result(refused="single matmuls only")
            continue
        try:
            configurations[PEER + peer], contenders.calls[PEER + peer] = _choose(case, sets, peer, options)
        except peers.Unavailable as why:
            results[PEER + peer] = Result(refused=str(why))

    peaks = {name: timing.peak_bytes(call, sets[0], device) for name, call in contenders.calls.items()}
    bodies = {name: timing.Body.capture(call, sets) for name, call in contenders.calls.items()}
    errors, wrong = verify(case, sets, bodies)
    for name, reason in wrong.items():
        results[name] = Result(wrong=reason, configuration=configurations.get(name))
        del bodies[name]

    if stream := workload.stream_call(case, device):
        bodies[STREAM] = timing.Body.capture(stream, sets)
    times = timing.time_bodies(bodies, options.rounds, options.seed, options.warmup)
    streamed = times.pop(STREAM, None)
    ratios = {
        name: statistics.paired_ratio(times[TORCH], samples)
        for name, samples in times.items()
        if name != TORCH and TORCH in times
    }
    if options.duels:
        ratios = duel(bodies, ratios, options)
    if streamed:
        us = statistics.median(streamed)
        results[STREAM] = Result(us=us, gbps=case.weight_bytes / us * 1e-3)
    for name, samples in times.items():
        us = statistics.median(samples)
        results[name] = Result(
            us=us,
            ratio=ratios.get(name),
            tflops=case.flops / us * 1e-6,
            gbps=case.bytes / us * 1e-3,
            error=errors[name][0],
            largest_error=errors[name][1],
            configuration=configurations.get(name),
            ours=statistics.paired_ratio(samples, times[DISPATCHED])
            if (name in configurations or name == FAST) and DISPATCHED in times
            else None,
            of_stream=statistics.paired_ratio(streamed, samples) if streamed else None,
            peak_bytes=peaks[name],
        )
    return Row(case, count, contenders.served_by, contenders.source, results)


def run(cases: Sequence[Case], options: Options) -> Iterator[Row]:
    """Runs cases on the current CUDA device, and yields each row when it is done."""
    device = torch.device("cuda", torch.cuda.current_device())
    timing.soak(options.soak, device)
    for case in cases:
        row = run_case(case, options, device)
        torch.cuda.empty_cache()  # frees graphs' own memory pools, which the next case cannot use
        yield row


def copy_gbps(rounds: int = 20) -> float:
    """GB/s of a large device-to-device copy, bytes read plus bytes written: the roof for memory-bound kernels.

    A kernel copies the data. A plain copy would become a memcpy node of the graph, which reaches two thirds of the
    rate.
    """
    source = torch.randn(1 << 29, device="cuda")
    body = timing.Body.capture(torch.neg, [source, source])
    (samples,) = timing.time_bodies({"copy": body}, rounds, 0).values()
    return 2 * source.nbytes / statistics.median(samples) * 1e-3


def document(suite: str, rows: Sequence[Row], options: Options, copy: float) -> dict[str, Any]:
    """A suite's result file, for ``record.save``."""
    return record.document(
        suite=suite,
        protocol={
            "rounds": options.rounds,
            "warmup_replays": timing.WARMUP_REPLAYS,
            "warmup_seconds": options.warmup,
            "soak_seconds": options.soak,
            "rotation_bytes": timing.rotation_bytes(torch.device("cuda", torch.cuda.current_device())),
            "inputs": options.inputs,
            "seed": options.seed,
            "numerics": _variants.standing_numerics(),
            "float32": workload.standing_float32(),
            "peers": peers.versions(options.peers),
        },
        copy_gbps=copy,
        rows=[row.to_json() for row in rows],
    )
