"""Times several sides: interleaved rounds, CUDA events (a clock on a CPU), and the median of paired ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from hgemm_ops.bench.statistics import paired_ratio
from hgemm_ops.bench.timing import interleave

#: Runs the body as many times as its argument says.
Side = Callable[[int], object]

# The times of eager steps vary by several percent from round to round.
_ROUNDS = 25
_ROUND_MS = 30.0
_MOST_ITERATIONS = 50


@dataclass(frozen=True)
class Timing:
    """The median milliseconds of one body on each side, and our speed over torch with its 95 % interval."""

    torch_ms: float
    ours_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    rounds: int
    iterations: int


def start(side: Side, iterations: int, gpu: bool = True) -> Callable[[], float]:
    """Runs a side. Returns a function that waits for its end and returns the milliseconds of one body."""
    if not gpu:
        seconds = time.perf_counter()
        side(iterations)
        seconds = time.perf_counter() - seconds
        return lambda: 1e3 * seconds / iterations
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # An eager model may be limited by the host. Work that is still queued would hide the host time of a side.
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
    """Returns the milliseconds of one body, by side and round. Every round runs all sides.

    Each side first runs one untimed round.
    """
    for side in sides.values():
        side(iterations)
    return interleave(list(sides), rounds, 0, lambda name: start(sides[name], iterations, gpu))


def paired(torch_side: Side, our_side: Side, *, rounds: int = _ROUNDS, iterations: int | None = None) -> Timing:
    """Times the two sides round by round.

    ``iterations`` is the number of bodies per round, by default as many as fill 30 ms. Each side first runs one untimed
    round.
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
