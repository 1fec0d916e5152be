"""enable() and disable(): where their settings apply, without a GPU. ``test_gpu_enable.py`` has their effect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers import needs_library
from torch import nn
from torch._dynamo.utils import counters

import hgemm_ops
from hgemm_ops import _context, _devices, _native, _override, _sites, _tables, _tuning, _variants, use_custom_gemm

pytestmark = needs_library


@pytest.fixture(autouse=True)
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The override of torch's matmuls starts, as it does on a machine with a GPU."""
    monkeypatch.setattr(_override, "start", lambda: True)
    yield
    hgemm_ops.disable()


def modes() -> tuple[str, str]:
    """The numerics and the float32 mode of a matmul on this thread."""
    library = _native.lib()
    return _native.NUMERICS[library.hgemm_standing_numerics()], _native.FLOAT32[library.hgemm_standing_float32()]


def decide(m: int) -> None:
    """Has a matmul decided and counted on this thread."""
    query = _variants.matmul_query(m, 8, 8, torch.float16, "NT", _native.preset_facts(90))
    assert _native.lib().hgemm_select_ns(query, 1, 0) >= 0


def on_a_new_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


NONE, INVARIANT, SPLIT = ("fast", "strict"), ("batch_invariant", "strict"), ("fast", "split")


def test_every_thread_has_the_settings() -> None:
    with ThreadPoolExecutor(1) as pool:  # its thread runs before
        assert pool.submit(modes).result() == NONE
        hgemm_ops.enable(numerics="batch_invariant")
        assert modes() == pool.submit(modes).result() == on_a_new_thread(modes) == INVARIANT
        on_a_new_thread(lambda: hgemm_ops.enable(float32="split"))  # replaces them, from any thread
        assert modes() == pool.submit(modes).result() == on_a_new_thread(modes) == SPLIT
        on_a_new_thread(hgemm_ops.disable)
        assert modes() == pool.submit(modes).result() == on_a_new_thread(modes) == NONE
    hgemm_ops.disable()  # nothing is left to end
    assert modes() == NONE


def test_a_context_is_inside_of_it() -> None:
    hgemm_ops.enable(numerics="batch_invariant")
    with use_custom_gemm(numerics="fast", float32="split"):
        assert modes() == on_a_new_thread(modes) == SPLIT
    assert modes() == on_a_new_thread(modes) == INVARIANT
    with use_custom_gemm():  # sets neither
        assert modes() == INVARIANT
        hgemm_ops.enable(float32="split")
        assert modes() == SPLIT
        hgemm_ops.disable()
        assert modes() == NONE
    hgemm_ops.enable(numerics="batch_invariant")
    with use_custom_gemm(numerics="fast"):
        hgemm_ops.disable()
    assert modes() == NONE


def test_a_thread_of_a_context_keeps_the_settings_of_the_context() -> None:
    entered, leave, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        with use_custom_gemm(numerics="fast"):
            entered.set()
            assert leave.wait(60)
            seen.append(modes())
        seen.append(modes())

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    hgemm_ops.enable(numerics="batch_invariant")
    leave.set()
    thread.join()
    assert seen == [NONE, INVARIANT]


def test_a_decorated_body_that_is_suspended_leaves_the_settings_of_the_process() -> None:
    hgemm_ops.enable(numerics="batch_invariant")

    @use_custom_gemm(numerics="fast")
    def steps() -> Iterator[tuple[str, str]]:
        while True:
            yield modes()

    generator = steps()
    assert [next(generator), modes(), next(generator), modes()] == [NONE, INVARIANT, NONE, INVARIANT]


def test_the_report_counts_all_threads() -> None:
    report = hgemm_ops.enable()
    decide(31)
    on_a_new_thread(lambda: decide(32))
    with use_custom_gemm() as inner:
        decide(33)
    hgemm_ops.disable()
    decide(34)
    assert [row.m for row in report.rows] == [31, 32, 33]
    assert [row.m for row in inner.rows] == [33]


def test_a_second_call_has_a_new_report() -> None:
    first = hgemm_ops.enable(variant="torch")
    decide(35)
    second = hgemm_ops.enable()
    decide(36)
    assert [row.m for row in first.rows] == [35] and first.rows[0].reason.startswith("forced: ")
    assert [row.m for row in second.rows] == [36] and not second.rows[0].reason.startswith("forced")


def test_sites_and_tuning_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[str] = []

    class Tuner:
        def finish(self) -> None:
            finished.append("tuner")

    monkeypatch.setattr(_tuning, "tuner", Tuner)
    before = len(_sites._users)
    hgemm_ops.enable(sites=True, tune=True)
    assert (len(_sites._users), finished) == (before + 1, [])
    hgemm_ops.enable(sites=True)
    assert (len(_sites._users), finished) == (before + 1, ["tuner"])
    hgemm_ops.disable()
    hgemm_ops.disable()
    assert (len(_sites._users), finished) == (before, ["tuner"])


@pytest.mark.parametrize("has_gpu", [True, False])
def test_what_cannot_start_changes_nothing(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hgemm_ops.enable(float32="split")
    monkeypatch.setattr(_override, "start", lambda: False)
    monkeypatch.setattr(_override, "reason", lambda: "there is no compiler")
    monkeypatch.setattr(_devices, "may_exist", lambda: has_gpu)
    with pytest.raises(ValueError, match="no_such_kernel"):
        hgemm_ops.enable(variant="no_such_kernel")
    if has_gpu:
        with pytest.raises(RuntimeError, match=r"'batch_invariant' .*: there is no compiler"):
            hgemm_ops.enable(numerics="batch_invariant")
        assert modes() == SPLIT
    decide(37)
    assert [row.m for row in before.rows] == [37]
    report = hgemm_ops.enable()
    assert str(report) == "no matmuls were counted: there is no compiler"
    assert modes() == NONE


def test_a_forked_process_is_enabled() -> None:
    hgemm_ops.enable(numerics="batch_invariant")
    child = os.fork()
    if child == 0:
        good = modes() == on_a_new_thread(modes) == INVARIANT
        hgemm_ops.disable()
        os._exit(0 if good and modes() == NONE else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_has_left_the_contexts_of_other_threads() -> None:
    """Those threads do not exist there, and could never leave them."""
    entered, go = threading.Event(), threading.Event()

    def work() -> None:
        with use_custom_gemm(numerics="batch_invariant"), use_custom_gemm():
            entered.set()
            go.wait()

    other = threading.Thread(target=work)
    other.start()
    entered.wait()
    first = os.fork()
    if first == 0:
        good = False
        try:
            good = modes() == on_a_new_thread(modes) == NONE
            with use_custom_gemm(float32="split"):
                good = good and on_a_new_thread(modes) == SPLIT
        finally:
            os._exit(0 if good else 1)
    assert modes() == INVARIANT
    go.set()
    other.join()
    with use_custom_gemm(numerics="batch_invariant"):
        second = os.fork()
        if second == 0:
            good = False
            try:
                good = modes() == on_a_new_thread(modes) == INVARIANT  # the thread's own
            finally:
                os._exit(0 if good else 1)
        assert os.waitpid(second, 0)[1] == 0
    assert os.waitpid(first, 0)[1] == 0 and modes() == NONE


def in_a_child(work: Callable[[], bool]) -> bool:
    """Whether ``work`` returns True in the child of a fork, within ten seconds."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            signal.alarm(10)
            good = work()
        finally:
            os._exit(0 if good else 1)
    return os.waitpid(child, 0)[1] == 0


def hooks() -> int:
    """The number of hooks on all modules."""
    module = nn.modules.module
    return len(module._global_forward_hooks) + len(module._global_forward_pre_hooks)


def test_a_forked_process_has_the_hooks_of_its_own_contexts_alone() -> None:
    """Module names are asked for by this thread, by another one, or by the whole process."""

    def of_my_own() -> bool:
        with use_custom_gemm(sites=True):
            return hooks() == 2

    shared = use_custom_gemm(sites=True)
    entered, go = threading.Event(), threading.Event()

    def work() -> None:
        with shared, use_custom_gemm(sites=True):
            entered.set()
            go.wait()

    other = threading.Thread(target=work)
    other.start()
    entered.wait()
    try:
        assert in_a_child(lambda: hooks() == 0 and of_my_own() and hooks() == 0)
        assert hooks() == 2
        with shared:
            assert in_a_child(lambda: hooks() == 2 and not shared.__exit__(None, None, None) and hooks() == 0)
        hgemm_ops.enable(sites=True)
        assert in_a_child(lambda: hooks() == 2 and not hgemm_ops.disable() and hooks() == 0)
        hgemm_ops.disable()
        assert hooks() == 2
    finally:
        go.set()
        other.join()
    assert hooks() == 0


def test_the_end_of_an_entry_is_interrupted_by_another_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the garbage collector, which closes a generator that is inside of a context."""
    _sites.start("first")
    _sites.start("second")
    others = ["first"]

    def interrupted() -> int:
        if others:
            _sites.stop(others.pop())
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(threading, "get_ident", interrupted)
        _sites.stop("second")
    assert not _sites._users and hooks() == 0


def test_a_forked_process_ends_what_another_thread_has_begun() -> None:
    """A generator that another thread has driven, and that is suspended inside of a context, goes on in the child."""

    @use_custom_gemm()
    def steps() -> Iterator[None]:
        with use_custom_gemm(sites=True):
            yield
        yield

    generator = steps()
    on_a_new_thread(lambda: next(generator))
    assert in_a_child(lambda: next(generator) is None and hooks() == 0)
    next(generator)
    assert hooks() == 0


@pytest.mark.parametrize("lock", [_sites._lock, _context._lock, _override._starting, _tuning._lock, _tables._lock])
def test_a_forked_process_waits_for_no_thread_that_it_does_not_have(lock: Any) -> None:
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    threading.Timer(0.2, go.set).start()
    assert in_a_child(lambda: lock.acquire(timeout=5))
    other.join()


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_graphs_are_not_compiled_again() -> None:
    counters.clear()
    layer, x = nn.Linear(4, 5), torch.ones(2, 4)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    expected = compiled(x)
    for work in (hgemm_ops.enable, lambda: hgemm_ops.enable(float32="split"), hgemm_ops.disable):
        work()
        assert torch.equal(compiled(x), expected)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_compiled_function_may_call_it() -> None:
    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        hgemm_ops.enable(numerics="batch_invariant")
        return x + 1

    @torch.compile(backend="eager")
    def end(x: torch.Tensor) -> torch.Tensor:
        hgemm_ops.disable()
        return x + 1

    for _ in range(2):
        assert step(torch.ones(2)).sum() == 4 and modes() == INVARIANT
        assert end(torch.ones(2)).sum() == 4 and modes() == NONE


@pytest.mark.slow
def test_disabled_by_the_environment() -> None:
    code = """
import hgemm_ops
report = hgemm_ops.enable(sites=True)
assert "HGEMM_OPS_DISABLE" in str(report), report
hgemm_ops.disable()
"""
    environment = {**os.environ, "HGEMM_OPS_DISABLE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
