"""``tune=True`` on a GPU: results, memory, streams, graphs while shapes are timed; what a later process has of it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import GuardedBuffer, assert_close_to_torch, reference_matmul
from torch import Tensor, nn

import hgemm_ops
from hgemm_ops import _native, _override, _tables, _tuning, use_custom_gemm

pytestmark = pytest.mark.gpu

BUSY_CYCLES = 200_000_000  # 0.1 to 0.2 s


@pytest.fixture(autouse=True)
def tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_tuning.Tuner]:
    """A tuner that has seen no shape, with no table and a cache directory of the test's own."""
    _override.start()  # which may have to be compiled, into a cache of its own
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_tables, "_kept", {})
    _tables.ensure()
    _tables.install([])
    fresh = _tuning.Tuner(_tuning._open)
    monkeypatch.setattr(_tuning, "tuner", lambda: fresh)
    _native.on_tuning(fresh)
    _native.on_grouped_tuning(fresh)
    yield fresh
    torch.cuda.synchronize()
    _native.lib().hgemm_set_tuner(None)
    _native.lib().hgemm_set_grouped_tuner(None)
    monkeypatch.undo()
    _tables.reload()


def rand(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.rand(shape, device="cuda").mul_(2).sub_(1).to(dtype)


def tuned() -> list[_tables.Entry]:
    """What this process has timed, in that order."""
    return [entry for entries in _tables._kept.values() for entry in entries]


def expect(out: Tensor, a: Tensor, b: Tensor) -> None:
    exact, magnitude = reference_matmul(a, b)
    assert_close_to_torch(out, exact, torch.matmul(a, b), magnitude=magnitude)


OPERANDS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "NN": lambda: (rand(512, 768), rand(768, 1024)),
    "NT": lambda: (rand(512, 768), rand(1024, 768).mT),
    "TN": lambda: (rand(768, 512).mT, rand(768, 1024)),
    "TT": lambda: (rand(768, 512).mT, rand(1024, 768).mT),
    "bfloat16": lambda: (rand(512, 768, dtype=torch.bfloat16), rand(1024, 768, dtype=torch.bfloat16).mT),
    "few rows": lambda: (rand(4, 4096), rand(4096, 4096).mT),
    "one row": lambda: (rand(1, 4096), rand(4096, 4096).mT),
    "ragged": lambda: (rand(301, 333), rand(333, 517)),
    "off alignment": lambda: (rand(300 * 512 + 1)[1:].view(300, 512), rand(512, 256)),
    "wider rows": lambda: (rand(300, 1024)[:, :512], rand(512, 256)),
    "batch": lambda: (rand(12, 64, 96), rand(12, 96, 72)),
    "one for all": lambda: (rand(8, 128, 256), rand(256, 128).expand(8, 256, 128)),
    "heads": lambda: (rand(2, 96, 4, 64).transpose(1, 2), rand(2, 96, 4, 64).permute(0, 2, 3, 1)),
    "large": lambda: (rand(4096, 4096), rand(4096, 4096).mT),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_results_are_right_while_and_after_a_shape_is_timed(
    name: str, record_property: Callable[[str, Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = OPERANDS[name]()
    before = a.clone(), b.clone()
    with caplog.at_level(logging.INFO, "hgemm_ops"), use_custom_gemm(tune=True) as report:
        first, second = a @ b, a @ b
    assert [r.getMessage() for r in caplog.records if r.levelno > logging.INFO] == []
    for out in (first, second):
        expect(out, a, b)
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])
    (entry,) = tuned()
    record_property("tuned", next(r.getMessage() for r in caplog.records if r.getMessage().startswith("tuned ")))
    assert entry.us["torch"] > 0 and len(entry.us) > 1
    (row,) = report.rows
    assert row.calls == 2 and row.reason.startswith("table: ")


def test_the_operators_are_tuned_as_well() -> None:
    """An operand that is copied first has a stand-in; two dimensions of the batch may not merge."""
    x, w, bias = rand(384, 1024)[:, ::2], rand(768, 512), rand(768)
    q, k = rand(2, 96, 4, 64).transpose(1, 2), rand(2, 96, 4, 64).permute(0, 2, 3, 1)
    with use_custom_gemm(tune=True):
        out = hgemm_ops.linear(x, w, bias, activation="relu")
        heads = torch.ops.hgemm.matmul(q, k)
    exact = (x.double() @ w.double().mT + bias.double()).relu()
    assert_close_to_torch(out, exact, nn.functional.linear(x, w, bias).relu(), magnitude=512.0)
    expect(heads, q, k)
    assert [(entry.batch, entry.m, entry.n, entry.k) for entry in tuned()] == [(1, 384, 768, 512), (8, 96, 96, 64)]


@pytest.mark.parametrize("offset", [64, 65])
def test_nothing_but_the_result_is_written(offset: int) -> None:
    """The user's own result is: once, by the kernel that was chosen."""
    a, b = rand(300, 512), rand(512, 256)
    buffer = GuardedBuffer((300, 256), torch.float16, "cuda", offset=offset)
    with use_custom_gemm(tune=True):
        torch.mm(a, b, out=buffer.tensor)
    buffer.check()
    expect(buffer.tensor, a, b)
    (entry,) = tuned()
    assert entry.align == (16 if offset == 64 else 2)


def test_an_addend_that_is_overwritten_counts_once() -> None:
    c, a, b = rand(256, 264), rand(256, 512), rand(512, 264)
    exact = c.double() + a.double() @ b.double()
    theirs = torch.addmm(c, a, b)
    out = rand(256, 264)
    with use_custom_gemm(tune=True):
        torch.addmm(c, a, b, out=out)
    assert_close_to_torch(out, exact, theirs, magnitude=512.0)
    assert len(tuned()) == 1


def test_gradients_are_tuned_on_autograds_threads() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda().half()
    x = rand(384, 512)
    with use_custom_gemm(tune=True):
        model(x).float().square().mean().backward()
    assert len(tuned()) >= 4  # two forward, three backward, of which two may be alike
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_it_waits_for_the_products_stream_alone() -> None:
    """The operands arrive late on a side stream."""
    a, b = rand(512, 640), rand(640, 768)
    late = torch.zeros_like(a)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), use_custom_gemm(tune=True):
        torch.cuda._sleep(BUSY_CYCLES)
        late.copy_(a)
        out = late @ b
        assert torch.cuda.current_stream() == side
    side.synchronize()
    expect(out, a, b)
    (entry,) = tuned()
    assert entry.us["torch"] < 10_000  # not the time of what came before


def test_nothing_is_timed_while_a_graph_is_captured() -> None:
    a, b = rand(512, 648), rand(648, 768)
    torch.mm(a, b)
    graph = torch.cuda.CUDAGraph()
    with use_custom_gemm(tune=True):
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = a @ b
        assert tuned() == []
        a @ b
        assert len(tuned()) == 1
    a.copy_(rand(512, 648))
    graph.replay()
    expect(out, a, b)


def test_the_callers_state_is_left_alone() -> None:
    """Its random numbers, device, stream, modes and context."""
    a, b = rand(512, 656), rand(656, 768)
    torch.cuda.manual_seed(1)
    expected = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(1)
    with use_custom_gemm(tune=True) as report, torch.autocast("cuda", torch.float16), torch.no_grad():
        a @ b
        assert torch.is_autocast_enabled("cuda") and not torch.is_grad_enabled()
        a @ b
    assert torch.equal(torch.rand(4, device="cuda"), expected)
    assert sum(row.calls for row in report.rows) == 2  # and none of the timing's


def test_threads_at_one_shape_time_it_once() -> None:
    a, b = rand(512, 664), rand(664, 768)
    results: list[Tensor] = []
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(a @ b)
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    with use_custom_gemm(tune=True):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert len(tuned()) == 1 and len(results) == 4
    for out in results:
        expect(out, a, b)


def test_a_failure_is_a_line_and_the_product_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: _tuning._CudaSession, matrix: tuple[int, int]) -> Tensor:
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(_tuning._CudaSession, "_result", refuse)
    a, b = rand(512, 672), rand(672, 768)
    with caplog.at_level(logging.WARNING, "hgemm_ops"), use_custom_gemm(tune=True):
        first, second = a @ b, a @ b
    expect(first, a, b)
    expect(second, a, b)
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == "tuning failed, so the cost model chooses the kernel: OutOfMemoryError: no room" and tuned() == []


@pytest.mark.slow
def test_a_second_process_times_nothing(tmp_path: Path) -> None:
    code = """
import torch, hgemm_ops
a, b = torch.randn(72, 1368, device="cuda").half(), torch.randn(1368, 2056, device="cuda").half()
with hgemm_ops.use_custom_gemm() as report:
    a @ b
print(report.rows[0].reason.split(":")[0])
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HGEMM_OPS_")}
    environment |= {"HGEMM_OPS_CACHE_DIR": str(tmp_path), "HGEMM_OPS_TUNE": "1", "HGEMM_OPS_LOG": "info"}
    tunings = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "table"
        tunings.append(len(re.findall(r"tuned \w+ \w\w 72x2056x1368", done.stderr)))
    assert tunings == [1, 0]
    environment["HGEMM_OPS_TUNE"] = "0"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "table"  # what was measured holds for whoever does not measure


def grouped_operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    offs = torch.tensor([40, 40, 100, 300], dtype=torch.int32, device="cuda")
    x, w = torch.randn(300, 256, device="cuda"), torch.randn(4, 512, 256, device="cuda")
    return x.to(dtype), w.to(dtype).mT, offs


@pytest.mark.sm90
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "f16", "f32"])
def test_a_grouped_product_is_tuned_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tables, "_kept_grouped", {})
    x, w, offs = grouped_operands(dtype)
    with use_custom_gemm(tune=True) as report:
        results = [torch._grouped_mm(x, w, offs=offs) for _ in range(3)]
    ((entry,),) = _tables._kept_grouped.values()
    assert entry.shape[1:] == ("rows", "NT", 4, 300, 512, 256) and len(entry.us) > 1
    fastest = min(entry.us, key=lambda name: entry.us[name])
    (row,) = report.rows
    assert row.reason == "table: the fastest of the times measured at these sizes" and row.calls == 3
    assert row.variant in (fastest, "torch")
    exact = torch.cat(
        [
            x[first:last].double() @ w[i].double()
            for i, (first, last) in enumerate(((0, 40), (40, 40), (40, 100), (100, 300)))
        ]
    )
    for result in results:
        assert (result.double() - exact).norm() <= 0.01 * exact.norm()
    explained = hgemm_ops.explain_grouped(x, w)
    assert (explained.chosen, explained.source) == (row.variant, "table")
    _native.lib().hgemm_grouped_times_clear()


@pytest.mark.sm90
def test_a_grouped_product_in_a_graph_is_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tables, "_kept_grouped", {})
    x, w, offs = grouped_operands(torch.bfloat16)
    with use_custom_gemm(tune=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch._grouped_mm(x, w, offs=offs)
    graph.replay()
    assert _tables._kept_grouped == {}
    exact = x[100:].double() @ w[3].double()
    assert (out[100:].double() - exact).norm() <= 0.01 * exact.norm()
