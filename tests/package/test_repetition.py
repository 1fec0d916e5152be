"""How much of the code is written twice: lines that lie in a window of six that stands somewhere else as well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers import ROOT

WINDOW = 6
MOST = 0.15
CODE = {".py", ".cc", ".cu", ".cuh", ".h", ".inc"}


def code_lines(text: str) -> list[str]:
    """What a reader has to read: no blank lines, whole-line comments, imports or lone brackets; white space folded."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    skipped = ("//", "#include", "import ", "from ", "# ")
    return [line for line in lines if line.strip("{}()[];,") and not line.startswith(skipped)]


def repeated_share(texts: Mapping[str, str]) -> float:
    """The share of code lines in a window that occurs more than once."""
    files = {name: code_lines(text) for name, text in texts.items()}
    places = defaultdict(list)
    for name, lines in files.items():
        for start in range(len(lines) - WINDOW + 1):
            places[tuple(lines[start : start + WINDOW])].append((name, start))
    repeated = {
        (name, start + i) for found in places.values() if len(found) > 1 for name, start in found for i in range(WINDOW)
    }
    return len(repeated) / max(1, sum(map(len, files.values())))


def test_a_window_that_stands_twice_counts() -> None:
    block = "\n".join(f"x{i} = {i};" for i in range(WINDOW))
    assert repeated_share({"a": block, "b": block}) == 1
    assert repeated_share({"a": block, "b": block.replace("x3", "y3")}) == 0
    assert repeated_share({"a": f"{block}\n// a comment\n\n{{\n{block}"}) == 1


@pytest.mark.parametrize("room", ["csrc", "hgemm_ops"])
def test_hardly_anything_is_written_twice(room: str) -> None:
    paths: list[Path] = [path for path in (ROOT / room).rglob("*") if path.suffix in CODE]
    assert len(paths) > 20
    assert repeated_share({str(path): path.read_text() for path in paths}) < MOST
