"""The data to which the dispatcher's model is fitted (``benchmarks/fit_model.py``).

For random shapes it has the microseconds of torch and of every kernel that was worth timing. A file is compressed text:
a line of JSON that says what it was measured on, then a table with tabs between the columns.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .suites import KEY, Case

_MEASURED_ON = ("gpu", "torch", "csrc")
_DEVICE = ("sm_count", "l2_bytes", "dram_gbs")
_MODE = "float32"  # how float32 was multiplied; not in files of strict float32
TORCH = "torch"


@dataclass(frozen=True)
class Shape:
    """A shape and its times.

    kind: how it was drawn; "random" for the shapes of ``sampling.unscored``.
    us: the microseconds of torch and of each kernel that was timed.
    """

    kind: str
    case: Case
    us: dict[str, float]


def read(path: Path) -> tuple[dict[str, Any], list[Shape]]:
    """The first line of a file, which says what it was measured on, and its shapes."""
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
    """Writes a file. A reader finds either the old file or the whole new one."""
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
    """What ``read`` gives for a file; no shapes where there is no file.

    Raises:
        ValueError: the file was measured on another GPU, with another torch, with other sources, or in another mode of
            float32.
    """
    here = {name: environment[name] for name in (*_MEASURED_ON, *_DEVICE, _MODE) if name in environment}
    head, held = read(path) if path.exists() else (here, [])
    if differing := [name for name in (*_MEASURED_ON, _MODE) if head.get(name) != here.get(name)]:
        there, now = ({name: facts.get(name) for name in differing} for facts in (head, here))
        raise ValueError(f"{path} was measured with {there}, this is {now}")
    return head, held


def merge(times: Mapping[Case, dict[str, float]], environment: dict[str, Any], path: Path) -> int:
    """Adds random shapes to a file. A shape that the file already has is replaced.

    Args:
        times: for each shape, the microseconds of torch and of every kernel that was timed.
        environment: what they were measured on, as ``record.environment`` gives it, with "float32" for a mode that is
            not strict.

    Returns:
        The number of shapes that the file then has.

    Raises:
        ValueError: the file was measured on something else, as ``check`` says.
    """
    head, held = check(environment, path)
    shapes = {shape.case: shape for shape in held}
    for case, us in times.items():
        shapes[case] = Shape("random", case, us)
    write(head, list(shapes.values()), path)
    return len(shapes)
