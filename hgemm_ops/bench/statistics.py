"""Medians, paired ratios and their bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

__all__ = ["Interval", "geometric_mean", "median", "median_interval", "paired_ratio"]

_RESAMPLES = 2000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        return Interval(self.value * factor, self.low * factor, self.high * factor)


def median_interval(samples: Sequence[float]) -> Interval:
    """The median of ``samples`` with its percentile bootstrap interval. Deterministic.

    Raises:
        ValueError: ``samples`` is empty.
    """
    if not samples:
        raise ValueError("median_interval: samples must not be empty")
    values = torch.tensor(samples, dtype=torch.float64)
    picks = torch.randint(len(samples), (_RESAMPLES, len(samples)), generator=torch.Generator().manual_seed(0))
    medians = values[picks].quantile(0.5, dim=1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = medians.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(median(samples), low, high)


def paired_ratio(baseline: Sequence[float], other: Sequence[float]) -> Interval:
    """How many times as fast ``other`` is: the median over rounds of that round's ``baseline / other``.

    Both times of a pair were taken within one round, at the same temperature and clock. These drift by more than the
    difference between two good kernels, and a ratio of two medians would contain the drift.

    Raises:
        ValueError: the numbers of times differ.
    """
    if len(baseline) != len(other):
        raise ValueError(f"paired_ratio: the times must pair up, got {len(baseline)} and {len(other)}")
    return median_interval([b / o for b, o in zip(baseline, other, strict=True)])


def geometric_mean(values: Sequence[float]) -> float:
    return torch.tensor(values, dtype=torch.float64).log().mean().exp().item()
