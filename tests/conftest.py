"""Marks, seeds and fixtures shared by every test. Numeric helpers live in ``helpers.py``."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Inductor's FX cache does not see op registrations: a stale entry would hide a broken one. torch reads this variable
# when it is imported.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")  # compiles sooner
# The processes of xdist share the cores. If each had threads for all cores, tiny matmuls would take ten times as long.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
# Tests import ``helpers`` and, from the checkout, ``benchmarks``, ``integration`` and ``build_tools``, whatever
# pytest's import mode and working directory.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
import torch
from hypothesis import settings

# Every run has the same examples, so that a failure belongs to the change that caused it. HYPOTHESIS_PROFILE=default
# explores.
settings.register_profile("fixed", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

MARKS = {
    "gpu": "needs a CUDA GPU",
    "sm90": "needs a Hopper GPU (compute capability 9.x)",
    "multi_gpu": "needs two CUDA GPUs",
    "fresh_process": "runs in a process of its own, where torch's allocator holds nothing yet",
    "slow": "takes more than a few seconds (processes, inductor); deselect with -m 'not slow'",
}


@cache
def missing(mark: str) -> str | None:
    """What this machine lacks for tests with this mark; None if it lacks nothing."""
    if mark not in ("gpu", "sm90", "multi_gpu"):
        return None
    if os.environ.get("HGEMM_TEST_DEVICE") == "cpu" and mark != "sm90":  # helpers.py: a run that tries the tests
        return None
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    major, minor = torch.cuda.get_device_capability()
    if mark == "sm90" and major != 9:
        return f"needs compute capability 9.x, this is {major}.{minor}"
    if mark == "multi_gpu" and torch.cuda.device_count() < 2:
        return "needs two CUDA GPUs, there is one"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is marked ``fresh_process`` by another pytest, and fails with that one's output."""
    if pyfuncitem.get_closest_marker("fresh_process") is None or "HGEMM_TEST_FRESH" in os.environ:
        return None
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    run = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env={**environ, "HGEMM_TEST_FRESH": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    return True


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in MARKS:
            if item.get_closest_marker(mark) and (reason := missing(mark)):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """An empty torch.compile cache before and after the test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def without_tf32() -> Iterator[None]:
    """torch computes float32 products in float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
