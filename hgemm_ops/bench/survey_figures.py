"""What a survey's shapes come to: means of the choice and of the best kernel over torch, by rows and by model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import runner, zoo
from .suites import KEY, LAYOUTS, Case

_WHOLE = 16  # bytes of alignment


@dataclass(frozen=True)
class Figures:
    """Over shapes. choice, best: geometric means of torch's time over theirs. regret: how much longer the choice takes
    than the best. losses: shapes where the choice is below 0.97 of torch."""

    shapes: int
    choice: float
    best: float
    regret: float
    regret_95: float
    torchs: float
    best_is_torch: float
    losses: int
    worst: float


LOSS = 0.97
#: Rows -> the first and the last number of them.
BUCKETS = {"1 to 64": (1, 64), "65 to 256": (65, 256), "257 to 1024": (257, 1024), "1025 to 4096": (1025, 4096)}
BUCKETS["from 4097"] = (4097, 1 << 62)


def scored(
    rows: Sequence[Mapping[str, Any]], model: str | None = None
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(row, choice) of every choice that was right, of all models or one."""
    return [
        (row, choice)
        for row in rows
        for name, choice in row["chosen"].items()
        if choice["ratio"] is not None and model in (None, name)
    ]


def figures(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Figures | None:
    """None where there are no shapes."""
    if not pairs:
        return None
    choice = torch.tensor([choice["ratio"] for _, choice in pairs], dtype=torch.float64)
    # What is chosen is not slower than the best by less than nothing: where noise says so, they are equal.
    best = torch.maximum(choice, torch.tensor([row["best"] for row, _ in pairs], dtype=torch.float64))
    regret = best / choice - 1
    return Figures(
        shapes=len(pairs),
        choice=choice.log().mean().exp().item(),
        best=best.log().mean().exp().item(),
        regret=regret.mean().item(),
        regret_95=regret.quantile(0.95).item(),
        torchs=sum(choice["served_by"] == runner.TORCH for _, choice in pairs) / len(pairs),
        best_is_torch=sum(row["best_by"] == runner.TORCH for row, _ in pairs) / len(pairs),
        losses=int((choice < LOSS).sum()),
        worst=choice.min().item(),
    )


HEADINGS = ("shapes", "choice", "best", "regret", "95th", "torch", "losses", "worst")


def cells(f: Figures) -> list[str]:
    """What stands under ``HEADINGS``."""
    return [
        str(f.shapes),
        f"{f.choice:.3f}",
        f"{f.best:.3f}",
        f"{f.regret:.1%}",
        f"{f.regret_95:.1%}",
        f"{f.torchs:.0%} ({f.best_is_torch:.0%})",
        f"{f.losses} ({f.losses / f.shapes:.1%})",
        f"{f.worst:.3f}",
    ]


def lines(document: Mapping[str, Any], by_model: bool = True) -> list[list[str]]:
    """The figures of all shapes, by rows, by layout, and of the zoo by model; a name before each line."""
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
