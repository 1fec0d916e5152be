"""The time of several sides: interleaved rounds, CUDA events (a clock on a CPU), the median of paired ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from hgemm_ops.bench.statistics import paired_ratio
from hgemm_ops.bench.timing import interleave

#: Runs the body so many times.
Side = Callable[[int], object]

# Eager steps scatter by several percent from round to round.
_ROUNDS = 25
_ROUND_MS = 30.0
_MOST_ITERATIONS = 50


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one body on each side (medians), and how many times faster ours is: with the 95 % interval."""

    torch_ms: float
    ours_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    rounds: int
    iterations: int


def start(side: Side, iterations: int, gpu: bool = True) -> Callable[[], float]:
    if not gpu:
        seconds = time.perf_counter()
        side(iterations)
        seconds = time.perf_counter() - seconds
        return lambda: 1e3 * seconds / iterations
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # An eager model may be bound by the host: work still queued would hide what a side costs there.
    torch.cuda.synchronize()
    begin.record()
    side(iterations)
    end.record()

    def milliseconds() -> float:
        end.synchronize()
        elapsed: float = begin.elapsed_time(end)
        return elapsed / iterations

    return milliseconds


def timed(sides: Mapping[str, Side], *, rounds: int, iterations: int, gpu: bool = True) -> dict[str, list[float]]:
    """Milliseconds of one body, by side and round, all sides in every round; each first runs one untimed round."""
    for side in sides.values():
        side(iterations)
    return interleave(list(sides), rounds, 0, lambda name: start(sides[name], iterations, gpu))


def paired(torch_side: Side, our_side: Side, *, rounds: int = _ROUNDS, iterations: int | None = None) -> Timing:
    """Times the sides round by round.

    ``iterations`` a round; by default as many as fill 30 ms. Each side first runs one untimed round.
    """
    sides = {"torch": torch_side, "ours": our_side}
    if iterations is None:
        for side in sides.values():
            side(2)
        slowest = max(start(side, 2)() for side in sides.values())
        iterations = min(_MOST_ITERATIONS, max(1, round(_ROUND_MS / slowest)))
    times = timed(sides, rounds=rounds, iterations=iterations)
    ratio = paired_ratio(times["torch"], times["ours"])
    medians = median(times["torch"]), median(times["ours"])
    return Timing(*medians, ratio.value, ratio.low, ratio.high, rounds, iterations)
