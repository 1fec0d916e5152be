"""Builds the override of torch's products for several torches, for a wheel that holds them all.

    python csrc/aten/build_all.py 2.10.0 2.11.0 2.12.0 2.13.0
    pip wheel . --no-deps --no-build-isolation -w dist

Each torch is installed, without what it depends on, into a directory that is thrown away: its headers and the names of
its libraries are all that the compilation needs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "hgemm_ops"))  # not the package: it imports torch
import _aten_build  # noqa: E402


def build(version: str) -> Path:
    """Compiles the library for one torch into the package and returns its path."""
    output = ROOT / "hgemm_ops" / f"{_aten_build.stem(version)}.so"
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory]
        subprocess.run([*pip, f"torch=={version}"], check=True)
        cxx = shlex.split(os.environ.get("CXX", "c++"))
        command = _aten_build.command(cxx, ROOT / "csrc", Path(directory) / "torch", output)
        subprocess.run(command, check=True)
    return output


if __name__ == "__main__":
    for version in sys.argv[1:]:
        print(build(version))
