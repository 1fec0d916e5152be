"""The ladder stands apart: only its own files name it. A library adds its kernels by ``hgemm_add_variants``, and the
package makes one call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import ROOT

SUFFIXES = {".cc", ".cu", ".cuh", ".h", ".inc", ".py"}
NAMES = re.compile(r"ladder|\brungs?\b|swizzle_stride", re.IGNORECASE)

#: Files and directories that may name the ladder, and why.
MAY_NAME_IT = {
    "csrc/ladder/": "the ladder",
    "hgemm_ops/ops/ladder.py": "loads the ladder's library and defines its ops",
    "hgemm_ops/__init__.py": "makes the one call that adds the ladder",
    "hgemm_ops/cli/__init__.py": "lists the commands by name",
    "hgemm_ops/bench/": "times the additions of the ladder in a suite, and keeps results of its course",
}


def sources() -> list[Path]:
    return sorted(f for room in ("csrc", "hgemm_ops") for f in (ROOT / room).rglob("*") if f.suffix in SUFFIXES)


def naming_lines(file: Path) -> list[str]:
    lines = file.read_text().splitlines()
    return [f"{file.relative_to(ROOT)}:{i}: {line.strip()}" for i, line in enumerate(lines, 1) if NAMES.search(line)]


def test_nothing_else_names_the_ladder() -> None:
    outside = [f for f in sources() if not str(f.relative_to(ROOT)).startswith(tuple(MAY_NAME_IT))]
    assert len(outside) > 100
    found = [line for file in outside for line in naming_lines(file)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", MAY_NAME_IT)
def test_every_exception_is_needed(path: str) -> None:
    files = [f for f in sources() if str(f.relative_to(ROOT)).startswith(path)]
    assert any(naming_lines(file) for file in files)


def test_the_package_makes_one_call() -> None:
    imported, called = naming_lines(ROOT / "hgemm_ops" / "__init__.py")
    assert imported.endswith("from .ops import ladder as _ladder")
    assert "_ladder.define_ops()" in called
