"""Sums up a survey: the mean speed of the choice and of the best kernel over torch, by rows, layout and model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import runner, zoo
from .suites import KEY, LAYOUTS, Case

_WHOLE = 16  # bytes: operands with less alignment count as unaligned


@dataclass(frozen=True)
class Figures:
    """Figures over a set of shapes.

    choice, best: the geometric mean speed over torch of the dispatcher's choice, and of the fastest of all, torch
        included.
    slowdown, slowdown_95: how much longer the choice takes than the best, in the mean and at the 95th percentile.
    torchs, best_is_torch: the share of shapes where the choice, or the best, is torch.
    losses: the number of shapes where the choice is slower than ``LOSS`` of torch's speed.
    worst: the lowest speed of a choice over torch.
    """

    shapes: int
    choice: float
    best: float
    slowdown: float
    slowdown_95: float
    torchs: float
    best_is_torch: float
    losses: int
    worst: float


LOSS = 0.97
#: Ranges of M: the first and the last number of rows of each.
BUCKETS = {"1 to 64": (1, 64), "65 to 256": (65, 256), "257 to 1024": (257, 1024), "1025 to 4096": (1025, 4096)}
BUCKETS["from 4097"] = (4097, 1 << 62)


def scored(
    rows: Sequence[Mapping[str, Any]], model: str | None = None
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each row with each choice that was right, of all models or of one."""
    return [
        (row, choice)
        for row in rows
        for name, choice in row["chosen"].items()
        if choice["ratio"] is not None and model in (None, name)
    ]


def figures(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Figures | None:
    """The figures of these rows and choices; None where there are none."""
    if not pairs:
        return None
    choice = torch.tensor([choice["ratio"] for _, choice in pairs], dtype=torch.float64)
    # By noise the choice may look faster than the best. Then they are taken to be equal.
    best = torch.maximum(choice, torch.tensor([row["best"] for row, _ in pairs], dtype=torch.float64))
    slowdown = best / choice - 1
    return Figures(
        shapes=len(pairs),
        choice=choice.log().mean().exp().item(),
        best=best.log().mean().exp().item(),
        slowdown=slowdown.mean().item(),
        slowdown_95=slowdown.quantile(0.95).item(),
        torchs=sum(choice["served_by"] == runner.TORCH for _, choice in pairs) / len(pairs),
        best_is_torch=sum(row["best_by"] == runner.TORCH for row, _ in pairs) / len(pairs),
        losses=int((choice < LOSS).sum()),
        worst=choice.min().item(),
    )


HEADINGS = ("shapes", "choice", "best", "slowdown", "95th", "torch", "losses", "worst")


def cells(f: Figures) -> list[str]:
    """The texts of the columns ``HEADINGS``."""
    return [
        str(f.shapes),
        f"{f.choice:.3f}",
        f"{f.best:.3f}",
        f"{f.slowdown:.1%}",
        f"{f.slowdown_95:.1%}",
        f"{f.torchs:.0%} ({f.best_is_torch:.0%})",
        f"{f.losses} ({f.losses / f.shapes:.1%})",
        f"{f.worst:.3f}",
    ]


def lines(document: Mapping[str, Any], by_model: bool = True) -> list[list[str]]:
    """A line for all shapes, each range of rows, each layout, and each model of the zoo: its name and its figures."""
    shapes = document["shapes"]
    every = scored(shapes)
    parts = {"all": every}
    for name, (low, high) in BUCKETS.items():
        parts[f"M {name}"] = [pair for pair in every if pair[0]["batch"] == 1 and low <= pair[0]["m"] <= high]
    for layout in LAYOUTS:
        for name, most in (("", math.inf), (", M or N up to 64", 64)):
            parts[f"{layout}{name}"] = [
                pair
                for pair in every
                if pair[0]["batch"] == 1 and pair[0]["layout"] == layout and min(pair[0]["m"], pair[0]["n"]) <= most
            ]
    parts["M and N from 65, up to 66 tiles of 128x128, K from 4096"] = [
        pair
        for pair in every
        if pair[0]["batch"] == 1
        and min(pair[0]["m"], pair[0]["n"]) > 64
        and math.ceil(pair[0]["m"] / 128) * math.ceil(pair[0]["n"] / 128) <= 66
        and pair[0]["k"] >= 4096
    ]
    parts["batched"] = [pair for pair in every if pair[0]["batch"] > 1]
    parts["unaligned"] = [pair for pair in every if pair[0]["align"] < _WHOLE]
    if by_model:
        models = dict.fromkeys(name for row in shapes for name in row["chosen"] if name)
        parts |= {name: scored(shapes, name) for name in zoo.MODELS if name in models}
    found = ((name, figures(pairs)) for name, pairs in parts.items())
    return [[name, *cells(f)] for name, f in found if f]


def label(row: Mapping[str, Any]) -> str:
    """``float16 NT 16x4096x4096``."""
    return f"{row['dtype']} {Case(**{name: row[name] for name in KEY}).label}"
