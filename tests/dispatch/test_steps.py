"""Runs C++ programs that are linked with the build's objects.

``steps.cc`` calls the steps of a decision and of a plan one by one. ``grouped.cc`` checks plans of grouped matmuls,
and ``caches.cc`` the caches of decisions.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT

from benchmarks.select_cost import link, unseen

pytestmark = [
    pytest.mark.skipif(
        not (ROOT / "build/native/dispatch/plan.cc.o").is_file(), reason="the library was not built here"
    ),
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
]


def run(program: Path, *arguments: str) -> None:
    ran = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr or f"ended with {ran.returncode}"


@pytest.mark.parametrize("source", ["steps.cc", "grouped.cc", "caches.cc"])
def test_every_step(tmp_path: Path, source: str) -> None:
    link(Path(__file__).with_name(source), tmp_path / "steps", flags=())
    run(tmp_path / "steps")


def test_threads_do_not_race(tmp_path: Path) -> None:
    """ThreadSanitizer sees what the sources of decisions and their caches do."""
    probe = tmp_path / "probe.cc"
    probe.write_text("int main() {}")
    sanitizer = "-fsanitize=thread"
    if subprocess.run(["c++", sanitizer, "-no-pie", probe, "-o", tmp_path / "probe"], capture_output=True).returncode:
        pytest.skip("the compiler has no ThreadSanitizer")
    fresh = ("dispatch/choose.cc", "dispatch/decision_cache.cc")
    link(Path(__file__).with_name("caches.cc"), tmp_path / "threads", flags=("-O1", sanitizer), fresh=fresh)
    run(tmp_path / "threads", "threads")


def test_the_cost_of_decisions_is_measured() -> None:
    (times, other), (choices, others) = unseen([ROOT, ROOT], shapes=1000, rounds=1, compared=1000)
    assert times.keys() == other.keys() >= {"contenders", "select", "plan of a new shape"}
    assert all(value > 0 for name, value in times.items() if name != "bytes for a shape")
    assert choices == others and len(choices) == 1000
