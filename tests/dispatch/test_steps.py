"""Runs C++ programs that are linked with the build's objects.

``steps.cc`` calls the steps of a decision and of a plan one by one. ``grouped.cc`` checks plans of grouped products.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT

OBJECTS = ROOT / "build" / "native"


@pytest.mark.skipif(not (OBJECTS / "dispatch" / "plan.cc.o").is_file(), reason="the library was not built here")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("source", ["steps.cc", "grouped.cc"])
def test_every_step(tmp_path: Path, source: str) -> None:
    sources = [s.relative_to(ROOT / "csrc") for s in (ROOT / "csrc").rglob("*.cc")]
    wanted = [s for s in sources if s.parts[0] in ("core", "dispatch", "kernels", "tile") and s.name != "devices.cc"]
    program = tmp_path / "steps"
    # Kernels are in other objects, which need CUDA's runtime. Nothing is launched, so the symbols may be unresolved.
    flags = ["-std=c++20", "-Wall", "-Wextra", f"-I{ROOT / 'csrc'}", "-DHGEMM_NO_DEVICE_CODE"]
    link = ["-no-pie", "-Wl,--unresolved-symbols=ignore-all"]
    objects = [OBJECTS / f"{s}.o" for s in wanted]
    compiled = subprocess.run(
        ["c++", *flags, "-Wno-unused-parameter", Path(__file__).with_name(source), *objects, *link, "-o", program],
        capture_output=True,
        text=True,
    )
    assert compiled.returncode == 0, compiled.stderr
    ran = subprocess.run([program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr or f"ended with {ran.returncode}"
