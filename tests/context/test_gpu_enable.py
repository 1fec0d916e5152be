"""enable(), HGEMM_OPS_ENABLE and hgemm run: which matmuls run on our kernels. ``test_enable.py`` needs no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, ON_GPU, a_kernel, assert_close_to_torch, calls, expect_calls, pretend_installed, rand
from torch import Tensor, nn
from torch._dynamo.utils import counters

import hgemm_ops
from hgemm_ops import use_custom_gemm
from hgemm_ops._report import Report

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    yield
    hgemm_ops.disable()


def square() -> Tensor:
    return rand(256, 256)


def kernel() -> str:
    """One that runs every matmul of square matrices here."""
    a = square()
    return a_kernel((a, a), (a, a.t()), (a.t(), a))


def used(report: Report) -> dict[str, int]:
    """Calls by kernel."""
    return {name: calls(report, name) for name in dict.fromkeys(row.variant for row in report.rows)}


def test_every_thread_runs_on_our_kernels() -> None:
    a, name = square(), kernel()
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as later:
        pool.submit(lambda: a @ a).result()
        report = hgemm_ops.enable(variant=name)
        got = [a @ a, pool.submit(lambda: a @ a).result(), later.submit(lambda: a @ a).result()]
        expect_calls(report, 3, name)
        hgemm_ops.disable()
        expected = [a @ a, pool.submit(lambda: a @ a).result(), later.submit(lambda: a @ a).result()]
    expect_calls(report, 3)
    for ours, torchs in zip(got, expected, strict=True):
        assert_close_to_torch(ours, a.double() @ a.double(), torchs, magnitude=a.double().abs() @ a.double().abs())


def test_a_context_comes_before_it() -> None:
    a, name = square(), kernel()
    report = hgemm_ops.enable(variant=name)
    with use_custom_gemm(variant="torch"):
        a @ a
    a @ a
    hgemm_ops.enable(variant="torch")
    with use_custom_gemm(variant=name) as inner:
        a @ a
    assert used(report) == ({"torch": 1, name: 1} if ON_GPU else {}), str(report)
    assert used(inner) == ({name: 1} if ON_GPU else {}), str(inner)


def test_the_backward_pass_is_covered() -> None:
    a, name = square().requires_grad_(), kernel()
    report = hgemm_ops.enable(variant=name)
    (a @ a).sum().backward()
    expect_calls(report, 3, name)
    with use_custom_gemm(variant="torch"):  # reaches autograd's thread
        (a @ a).sum().backward()
    expect_calls(report, 3, name)
    expect_calls(report, 6)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.slow
def test_a_compiled_graph_looks_when_it_runs() -> None:
    a, name = square(), kernel()
    layer = nn.Linear(256, 256, bias=False).to(DEVICE, a.dtype)
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        compiled(a)
        counters.clear()
        report = hgemm_ops.enable(variant=name)
        compiled(a)
        expect_calls(report, 1, name)
        second = hgemm_ops.enable(variant="torch")
        compiled(a)
        expect_calls(second, 1, "torch")
        hgemm_ops.disable()
        compiled(a)
        expect_calls(second, 1)
        torch._dynamo.reset()
        traced_inside = torch.compile(layer, fullgraph=True)
        third = hgemm_ops.enable(variant=name)
        traced_inside(a)
        before = calls(third)
        traced_inside(a)
        expect_calls(third, before + 1)
    assert counters["stats"]["unique_graphs"] == 1  # the one traced inside


@pytest.mark.skipif(not ON_GPU, reason="CUDA graphs")
def test_a_replay_runs_what_was_captured() -> None:
    a, name = square(), kernel()
    report = hgemm_ops.enable(variant=name)
    out = a @ a
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = a @ a
    hgemm_ops.disable()
    expected = a @ a
    out.fill_(float("nan"))
    graph.replay()
    assert_close_to_torch(out, a.double() @ a.double(), expected, magnitude=a.double().abs() @ a.double().abs())
    expect_calls(report, 2, name)


PROGRAM = f"""
import multiprocessing, subprocess, sys
import torch

def work(m):
    a = torch.randn(m, 512, device="{DEVICE}").half()
    b = torch.randn(512, 512, device="{DEVICE}").half()
    assert ((a @ b).double() - a.double() @ b.double()).abs().max() < 0.1

if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(int(sys.argv[1]))
        sys.exit()
    subprocess.run([sys.executable, __file__, "301"], check=True)
    child = multiprocessing.get_context("spawn").Process(target=work, args=(302,))
    child.start()
    child.join()
    assert child.exitcode == 0
    work(303)
    raise SystemExit(5)
"""


@pytest.mark.slow
def test_a_program_and_its_children(tmp_path: Path) -> None:
    """hgemm run, without a line of code: the program, a Python child, and a child by multiprocessing's spawn."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "installed").mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HGEMM_OPS_")}
    environment = inherited | pretend_installed(tmp_path / "installed")
    name = "torch"
    if ON_GPU:
        a, b = (torch.empty(m, 512, dtype=torch.float16, device=DEVICE) for m in (301, 512))
        name = a_kernel((a, b))
    command = ["hgemm", "run", "--variant", name, "--report", str(tmp_path / "report.txt"), str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (5, "")
    found = {path.name: path.read_text() for path in tmp_path.glob("report*.txt")}
    if not ON_GPU:
        assert list(found) == ["report.txt"]
        return
    assert re.search(rf"\b303 +512 +512 +float16 .* {name} +1 ", found.pop("report.txt"))
    assert len(found) == 2 and all(re.fullmatch(r"report\.pid\d+\.txt", file) for file in found)
    assert all(re.search(rf" {name} +1 ", text) for text in found.values())
    rows = sorted(m for text in found.values() for m in re.findall(r"\b(30\d) +512 +512 +float16", text))
    assert rows == ["301", "302"]


@pytest.mark.slow
def test_without_the_variable_nothing_changes(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HGEMM_OPS_")}
    environment |= pretend_installed(tmp_path)
    code = f"""
import sys, torch
a = torch.randn(64, 64, device="{DEVICE}").half()
a @ a
assert "hgemm_ops" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
