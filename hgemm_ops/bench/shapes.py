"""The data of the dispatcher's model (``benchmarks/fit_model.py``): microseconds of torch and of every kernel worth
trying, at random shapes. A file is a line of JSON, with what it was measured on, then a table with tabs, compressed."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .suites import KEY, Case

if TYPE_CHECKING:
    from .survey import Row

_MEASURED_ON = ("gpu", "torch", "csrc")
_DEVICE = ("sm_count", "l2_bytes", "dram_gbs")
TORCH = "torch"


@dataclass(frozen=True)
class Shape:
    """kind: how it was drawn, "random" for sampling.unscored's. us: of torch and the kernels that were timed."""

    kind: str
    case: Case
    us: dict[str, float]


def read(path: Path) -> tuple[dict[str, Any], list[Shape]]:
    """What the shapes of a file were measured on, and the shapes."""
    with lzma.open(path, "rt") as file:
        head = json.loads(next(file))
        columns = next(file).rstrip("\n").split("\t")
        shapes = []
        for line in file:
            kind, dtype, layout, *rest = line.rstrip("\n").split("\t")
            batch, m, n, k = map(int, rest[:4])
            us = {name: float(text) for name, text in zip(columns[7:], rest[4:], strict=True) if text}
            shapes.append(Shape(kind, Case(m, n, k, batch=batch, layout=layout, dtype=dtype), us))
    return head, shapes


def write(head: dict[str, Any], shapes: Sequence[Shape], path: Path) -> None:
    """Replaces the file at once."""
    names = [TORCH, *sorted({name for shape in shapes for name in shape.us} - {TORCH})]
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    with lzma.open(new, "wt", preset=9) as file:
        file.write(json.dumps({**head, "shapes": len(shapes)}) + "\n")
        file.write("\t".join(("kind", *KEY, *names)) + "\n")
        for shape in shapes:
            times = (f"{shape.us[name]:.4g}" if name in shape.us else "" for name in names)
            file.write("\t".join((shape.kind, *(str(getattr(shape.case, name)) for name in KEY), *times)) + "\n")
    os.replace(new, path)


def check(environment: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[Shape]]:
    """What a file holds, nothing where there is none. ValueError where it was measured on another GPU, with another
    torch or other sources."""
    here = {name: environment[name] for name in (*_MEASURED_ON, *_DEVICE) if name in environment}
    head, held = read(path) if path.exists() else (here, [])
    if differing := [name for name in _MEASURED_ON if head[name] != here[name]]:
        there, now = ({name: facts[name] for name in differing} for facts in (head, here))
        raise ValueError(f"{path} was measured with {there}, this is {now}")
    return head, held


def merge(rows: Sequence[Row], environment: dict[str, Any], path: Path) -> int:
    """Adds measured shapes to a file, in the place of the same ones; returns how many it holds then. ValueError as
    ``check``."""
    head, held = check(environment, path)
    shapes = {shape.case: shape for shape in held}
    for row in rows:
        shapes[row.planned.case] = Shape("random", row.planned.case, row.measured.us)
    write(head, list(shapes.values()), path)
    return len(shapes)
