"""The steps of the ladder in the order of the course, from ``csrc/ladder/rungs.csv``.

A step is a kernel of ``csrc/ladder/variants.inc``. A test checks that every step has exactly one row.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).resolve().parents[2] / "csrc" / "ladder" / "rungs.csv"


@dataclass(frozen=True)
class Rung:
    """A row of ``rungs.csv``: a step of the ladder.

    after: the step that this one changes, None for the first of a family.
    label: its name in printed tables.
    adds: what it changes.
    loses: where it gains less than expected, the reason that a profile shows.
    """

    family: str
    name: str
    after: str | None
    label: str
    adds: str
    loses: str = ""


def _read() -> dict[str, Rung]:
    with _FILE.open(newline="") as file:
        rows = [
            Rung(row["family"], row["name"], row["after"] or None, row["label"], row["adds"], row["loses"])
            for row in csv.DictReader(file)
        ]
    return {rung.name: rung for rung in rows}


#: Every step of the ladder by its name.
RUNGS = _read()
#: The steps of each family.
FAMILIES = {
    family: tuple(rung for rung in RUNGS.values() if rung.family == family)
    for family in dict.fromkeys(rung.family for rung in RUNGS.values())
}
