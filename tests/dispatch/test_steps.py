"""Runs ``steps.cc``, which calls the steps of a decision and of a plan one by one, linked with the build's objects."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT

OBJECTS = ROOT / "build" / "native"


@pytest.mark.skipif(not (OBJECTS / "dispatch" / "plan.cc.o").is_file(), reason="the library was not built here")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_every_step(tmp_path: Path) -> None:
    sources = [s.relative_to(ROOT / "csrc") for s in (ROOT / "csrc").rglob("*.cc")]
    wanted = [s for s in sources if s.parts[0] in ("core", "dispatch", "kernels", "tile") and s.name != "devices.cc"]
    program = tmp_path / "steps"
    # Kernels are in other objects, which need CUDA's runtime. Nothing is launched, so the symbols may be unresolved.
    flags = ["-std=c++20", "-Wall", "-Wextra", f"-I{ROOT / 'csrc'}", "-DHGEMM_NO_DEVICE_CODE"]
    link = ["-no-pie", "-Wl,--unresolved-symbols=ignore-all"]
    objects = [OBJECTS / f"{source}.o" for source in wanted]
    compiled = subprocess.run(
        ["c++", *flags, "-Wno-unused-parameter", Path(__file__).with_name("steps.cc"), *objects, *link, "-o", program],
        capture_output=True,
        text=True,
    )
    assert compiled.returncode == 0, compiled.stderr
    ran = subprocess.run([program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr or f"ended with {ran.returncode}"
