"""C++ checks of headers that need no CUDA.

A check is a program that prints what is wrong, or counts of what it saw.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT

CSRC = ROOT / "csrc"
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover")

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def counts(source: str, folder: Path, *files: str) -> list[int]:
    """Compiles ``source`` in ``folder`` together with ``files`` of csrc and runs the program.

    Returns the numbers that the program prints. Its status must be 0.
    """
    path, program = folder / "check.cc", folder / "check"
    path.write_text(source)
    subprocess.run(
        ["c++", *FLAGS, f"-I{CSRC}", str(path), *(str(CSRC / file) for file in files), "-o", str(program)], check=True
    )
    run = subprocess.run([program], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return [int(word) for word in run.stdout.split()]
