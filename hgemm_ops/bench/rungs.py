"""The steps of the ladder in the order of the course, from ``rungs.csv``: what each adds to which.

A step is a kernel of ``csrc/ladder/variants.inc``; tests check that every one of them is here, once.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rung:
    """A step. ``after``: the one it changes; ``label``: its name in printed tables; ``adds``: what it changes;
    ``loses``: why it gains less than expected where it does, as a profile shows."""

    family: str
    name: str
    after: str | None
    label: str
    adds: str
    loses: str = ""


def _read() -> dict[str, Rung]:
    with Path(__file__).with_name("rungs.csv").open(newline="") as file:
        rows = [
            Rung(row["family"], row["name"], row["after"] or None, row["label"], row["adds"], row["loses"])
            for row in csv.DictReader(file)
        ]
    return {rung.name: rung for rung in rows}


#: name -> the step
RUNGS = _read()
#: family -> its steps
FAMILIES = {
    family: tuple(rung for rung in RUNGS.values() if rung.family == family)
    for family in dict.fromkeys(rung.family for rung in RUNGS.values())
}
