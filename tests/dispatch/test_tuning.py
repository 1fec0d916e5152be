"""``tune=True`` with a timer of the test: what is timed, when, how often, and how the times are used. Needs no GPU."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import counted

import hgemm_ops
from hgemm_ops import _library, _native, _override, _tables, _tuning, _variants, use_custom_gemm
from hgemm_ops._tables import Device, Entry, Table

pytestmark = pytest.mark.skipif(not _library.load(), reason=f"no native library: {_library.reason()}")

A100 = Device("NVIDIA A100", 80, 108, 41943040)
ON, OFF, UNSAID = 1, 0, _native.AUTO
TORCH_US, OURS_US = 10.0, 8.0


@dataclass
class Timer:
    """Stands in for the GPU.

    ``us`` has the time of each contender, by which a call advances the ``clock``. ``names`` and ``calls`` have one list
    for each shape: the contenders, and the contender of each sample. A sample consists of ``each`` calls.
    """

    us: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    each: int = 1
    capturing: bool = False
    error: Exception | None = None
    device_name: str = A100.name
    aside: float = 0.0
    shapes: list[_native.Tuning] = field(default_factory=list)
    names: list[list[str]] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    within: Callable[[], None] = lambda: None

    def clock(self) -> float:
        return self.now

    def open(self, request: _native.Tuning) -> Timer | None:
        if self.capturing:
            return None
        self.shapes.append(request)
        return self

    @contextlib.contextmanager
    def contenders(self, names: Sequence[str]) -> Iterator[_tuning.Start]:
        self.names.append(list(names))
        self.each = _tuning.calls_of_sample(self.us.get("torch", TORCH_US))
        self.calls.append([])
        self.within()
        yield self.start

    def start(self, name: str) -> Callable[[], float]:
        if self.error:
            raise self.error
        self.calls[-1].append(name)
        us = self.us.get(name, TORCH_US if name == "torch" else OURS_US)
        self.now += self.each * us * 1e-6
        return lambda: us


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Gives the test a cache directory of its own, without any tables. The value is the directory."""
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_tables, "_kept", {})
    _tables.ensure()
    _tables.install([])
    yield tmp_path
    monkeypatch.undo()
    _tables.reload()


_asked = contextlib.ExitStack()


def ask(own: int, shared: int = UNSAID) -> None:
    """Replaces the contexts of this thread (``own``) and of another (``shared``), which turn tuning on or off."""
    _asked.close()
    for tunes, elsewhere in ((shared, True), (own, False)):
        if tunes != UNSAID:
            _asked.enter_context(counted(_native.AUTO, _native.AUTO, _native.AUTO, tunes, elsewhere=elsewhere))


@pytest.fixture
def timer(own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Timer]:
    """A timer that the dispatcher uses, with a context of this thread active that has ``tune=True``."""
    made = Timer()
    tuner = _tuning.Tuner(made.open, made.clock)
    monkeypatch.setattr(_tuning, "tuner", lambda: tuner)
    _native.on_tuning(tuner)
    ask(ON)
    yield made
    ask(UNSAID)
    _native.lib().hgemm_set_tuner(None)


def asked(m: int, n: int, k: int, dtype: torch.dtype = torch.float16, layout: str = "NT", **more: int) -> _native.Query:
    return _variants.matmul_query(m, n, k, dtype, layout, _native.preset_facts(80), **more)


def multiply(query: _native.Query) -> None:
    """Decides on a matmul, as its call does before the kernel runs."""
    assert _native.lib().hgemm_select_ns(query, 1, 0) >= 0


def decision(query: _native.Query) -> tuple[str, str]:
    found = _native.explain(query)[0]
    return _variants.name_of(found.variant), _native.SOURCES[found.source]


def predictions(query: _native.Query) -> list[tuple[float, int]]:
    """Predicted microseconds and id of the kernels that the dispatcher chooses among, the fastest first."""
    return sorted(
        (c.predicted_us, c.variant)
        for c in _native.explain(query)[1][:-1]
        if c.eligible and not c.forced_only
        if hgemm_ops.variants()[c.variant].numerics == "float32 accumulation"
    )


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


# What is timed, and what the times are for


def test_the_first_product_of_a_shape_is_timed_and_decided_by_its_times(
    timer: Timer, caplog: pytest.LogCaptureFixture
) -> None:
    query = asked(512, 1024, 768)
    assert decision(query) == ("torch", "model")  # the chip has no measured times
    (_, _), (_, second) = predictions(query)[:2]
    timer.us = {_variants.name_of(second): 7.0}
    with caplog.at_level(logging.INFO, "hgemm_ops"):
        multiply(query)
    assert decision(query) == (_variants.name_of(second), "table")
    (line,) = lines(caplog, logging.INFO)
    assert line.startswith("tuned float16 NT 512x1024x768 on cuda:-1 in 19.1 ms, 14 rounds: ")
    assert f" {_variants.name_of(second)} 7.0 us, " in line and line.endswith(", torch 10.0 us")
    for _ in range(3):
        multiply(query)
    assert len(timer.shapes) == 1


def test_ours_has_to_lead_by_the_margin_of_a_table(timer: Timer) -> None:
    for ours, chosen in ((TORCH_US * 0.995, "torch"), (TORCH_US * 0.985, "ours"), (TORCH_US * 1.5, "torch")):
        query = asked(512, 1024, 800 + 8 * len(timer.shapes))
        multiply_with(timer, query, ours)
        name, source = decision(query)
        assert ("torch" if name == "torch" else "ours", source) == (chosen, "table")


def multiply_with(timer: Timer, query: _native.Query, ours: float) -> None:
    timer.us = dict.fromkeys(_variants.names(), ours)
    multiply(query)


def test_candidates_are_the_kernels_predicted_to_be_the_fastest(timer: Timer) -> None:
    for m in (1, 16, 100, 512, 4096):
        query = asked(m, 2048, 2056)
        able, torch_us = predictions(query), _native.explain(query)[1][-1].predicted_us
        multiply(query)
        names = timer.names[-1]
        assert names == [_variants.name_of(id_) for _, id_ in able[: len(names)]]
        likely = [us for us, _ in able[:7] if us <= 2 * able[0][0]]
        assert len(names) == _tuning.affordable(torch_us, likely)
        assert _native.tuning_candidates(timer.shapes[-1], 0) == [(_native.TORCH, pytest.approx(torch_us))]


def test_the_kernel_that_would_be_chosen_is_a_candidate(timer: Timer) -> None:
    """It is, however slow the model predicts it to be: measured shapes nearby count for more."""
    query = asked(512, 2048, 2112)
    slow = _variants.name_of(predictions(query)[-1][1])
    near = Entry("float16", "NT", 16, 1, 512, 2048, 2048, {"torch": 100.0, slow: 1.0})
    _tables.install([Table(A100, [near])])
    assert decision(query) == (slow, "model")
    multiply(query)
    assert timer.names[0][0] == slow and 1 < len(timer.names[0]) <= 7


def test_a_known_shape_is_not_timed(timer: Timer) -> None:
    entry = Entry("float16", "NT", 16, 1, 512, 512, 512, {"torch": 9.0})
    _tables.install([Table(A100, [entry])])
    multiply(asked(512, 512, 512))
    assert timer.shapes == []
    multiply(asked(512, 512, 512, torch.bfloat16))  # without times of its own, float16's would apply
    assert [request.entry.dtype for request in timer.shapes] == [1]
    assert decision(asked(512, 512, 512, torch.bfloat16))[1] == "table"


def test_only_where_it_is_asked_for(timer: Timer) -> None:
    lib = _native.lib()
    query = asked(512, 512, 504)
    for own, shared, default, times in ((0, 1, 1, 0), (-1, 0, 1, 0), (-1, -1, 0, 0), (1, 0, 0, 1)):
        lib.hgemm_tuning_default(default)
        ask(own, shared)
        multiply(query)
        lib.hgemm_tuning_default(0)
        assert len(timer.shapes) == times, (own, shared, default)
    for setting in ((-1, 1), (-1, -1)):
        lib.hgemm_tuning_default(setting == (-1, -1))
        ask(*setting)
        multiply(asked(512, 512, 520 + 8 * len(timer.shapes)))
        lib.hgemm_tuning_default(0)
    assert len(timer.shapes) == 3


def test_never_where_a_kernel_is_named(timer: Timer) -> None:
    query = asked(512, 512, 496)
    for variant in (_native.TORCH, 0):
        query.variant = variant
        multiply(query)
        with counted(variant, _native.AUTO, _native.AUTO, ON):
            multiply(asked(512, 512, 496))
        _native.lib().hgemm_set_default_variant(variant)
        multiply(asked(512, 512, 496))
        _native.lib().hgemm_set_default_variant(_native.AUTO)
    assert timer.shapes == []


def strided(query: _native.Query, ld: int) -> _native.Query:
    """Sets the row pitch of A to ``ld`` elements."""
    query.a.strides[1], query.a.strides[0] = ld, ld * query.a.sizes[1]
    return query


def test_what_no_entry_can_stand_for_is_left_to_the_model(timer: Timer) -> None:
    empty, wide = asked(512, 0, 64), asked(512, 512, 64)
    wide.out_dtype = 2
    unlike = strided(
        asked(64, 512, 128), 136
    )  # its rows do not start on whole lines of memory; contiguous rows of this size would
    for query in (empty, asked(512, 512, 0), wide, unlike, asked(2048, 2048, 2048, torch.float32)):
        multiply(query)
    assert timer.shapes == []
    alike = strided(asked(64, 512, 128), 192)
    multiply(alike)
    assert (timer.shapes[0].a_strides[2], decision(alike)[1]) == (192, "table")


def test_an_epilogue_is_decided_by_the_plain_product(timer: Timer) -> None:
    query = asked(512, 1024, 1160)
    query.has_bias, query.act = 1, 1
    multiply(query)
    assert len(timer.shapes) == 1
    assert decision(query)[1] == decision(asked(512, 1024, 1160))[1] == "table"
    multiply(asked(512, 1024, 1160))
    assert len(timer.shapes) == 1


def test_a_request_describes_the_operands(timer: Timer) -> None:
    query = asked(96, 40, 72, layout="TN", batch=3, alignment=4)
    multiply(query)
    request = timer.shapes[0]
    entry = request.entry
    assert (entry.cc, entry.sm_count, entry.l2_bytes) == (A100.cc, A100.sm_count, A100.l2_bytes)
    assert (entry.batch, entry.m, entry.n, entry.k, entry.align) == (3, 96, 40, 72, 4)
    assert _native.LAYOUTS[entry.a_major, entry.b_major] == "TN"
    assert list(request.batch) == [1, 3]
    assert list(request.a_strides) == [0, 96 * 72, 1, 96] and list(request.b_strides) == [0, 72 * 40, 40, 1]
    assert (request.a, request.b) == (4, 4)


# How long it takes


def test_contenders_run_in_turns(timer: Timer) -> None:
    multiply(asked(512, 1024, 1024))
    (calls,) = timer.calls
    each = len(timer.names[0]) + 1
    rounds = [calls[i : i + each] for i in range(0, len(calls), each)]
    assert len(rounds) == 1 + 14 and all(sorted(r) == sorted(rounds[0]) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 5  # in a new order each time


def test_a_kernels_time_is_by_the_ratios_of_rounds() -> None:
    drift = iter([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0])  # of the clock rate, from round to round

    def start(name: str) -> Callable[[], float]:
        factor = next(drift)
        return lambda: factor * {"torch": 10.0, "ours": 5.0}[name]

    ticks = iter([0.0, 1.0, 2.0, 3.0])
    us, rounds = _tuning.measure(start, ["ours"], 3.0, lambda: next(ticks))
    assert rounds == 3 and us == {"torch": 20.0, "ours": 10.0}


@pytest.mark.parametrize(
    ("us", "calls", "kernels", "rounds"),
    [
        (1, 48, 8, 15),
        (10, 31, 8, 6),
        (100, 4, 8, 4),
        (500, 1, 6, 4),
        (1000, 1, 3, 3),
        (5000, 1, 1, 1),
        (50_000, 1, 1, 1),
    ],
)
def test_the_budget_holds(timer: Timer, us: float, calls: int, kernels: int, rounds: int) -> None:
    """Tuning stays within its budget, unless torch and one kernel with two samples each already exceed it."""
    assert _tuning.calls_of_sample(us) == calls
    assert _tuning.affordable(us, [us] * 8) == kernels
    begin, timer.each = timer.now, calls
    timer.us = dict.fromkeys(("torch", *_variants.names()), us)
    timer.calls.append([])
    assert (
        _tuning.measure(timer.start, list(_variants.names()[:kernels]), begin + _tuning.BUDGET, timer.clock)[1]
        == rounds
    )
    assert timer.now - begin <= max(_tuning.BUDGET, 4 * us * 1e-6) + 1e-9


def test_a_shape_that_is_slower_than_predicted_gets_fewer_rounds(timer: Timer) -> None:
    timer.us = dict.fromkeys(("torch", *_variants.names()), 1500.0)
    multiply(asked(512, 1024, 968))
    each = len(timer.names[0]) + 1
    assert len(timer.calls[0]) == (1 + 1) * each  # the clock ends the rounds: two need 20 ms


# When timing is impossible, or fails


def test_nothing_is_timed_while_a_graph_is_captured(timer: Timer) -> None:
    timer.capturing = True
    query = asked(512, 512, 1032)
    for _ in range(3):
        multiply(query)
    assert timer.shapes == [] and decision(query)[1] == "model"
    timer.capturing = False
    multiply(query)
    assert len(timer.shapes) == 1 and decision(query)[1] == "table"


def test_capture_is_asked_for_on_the_device_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that times on a GPU makes the matmul's device the current one, and then asks."""
    devices: list[int] = []
    monkeypatch.setattr(torch.cuda, "device", lambda ordinal: contextlib.nullcontext(devices.append(ordinal)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert _tuning._CudaSession.open(_native.Tuning(ordinal=3)) is None
    assert devices == [3]
    assert _tuning._CudaSession.open(_native.Tuning(ordinal=-1)) is None


def refuse(request: _native.Tuning) -> None:
    raise RuntimeError("no session")


def test_a_failure_is_one_line_and_the_models_choice(timer: Timer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hgemm_ops"):
        timer.error = RuntimeError("out of everything")
        for k in (1096, 1104):  # two shapes that fail for the same reason
            for _ in range(2):
                multiply(asked(512, 512, k))
            ask(OFF)  # the cache has another key then
            multiply(asked(512, 512, k))
            ask(ON)
            _tables.install([])  # invalidates the cache
            multiply(asked(512, 512, k))
            assert decision(asked(512, 512, k))[1] == "model"
        timer.error, timer.us = None, {"torch": 0.0}
        multiply(asked(512, 512, 1112))  # an impossible time
    assert len(timer.shapes) == 3
    assert lines(caplog, logging.INFO) == []
    first, second = lines(caplog, logging.WARNING)
    assert first == "tuning failed, so the cost model chooses the kernel: RuntimeError: out of everything"
    assert second.startswith("tuning failed, so the cost model chooses the kernel: ")
    timer.us = {}
    multiply(asked(512, 512, 1120))
    assert decision(asked(512, 512, 1120))[1] == "table"


def test_a_failure_before_the_timing_is_one_as_well(timer: Timer, caplog: pytest.LogCaptureFixture) -> None:
    _native.on_tuning(_tuning.Tuner(refuse))
    with caplog.at_level(logging.WARNING, "hgemm_ops"):
        for _ in range(2):
            multiply(asked(512, 512, 1128))
    assert lines(caplog, logging.WARNING) == [
        "tuning failed, so the cost model chooses the kernel: RuntimeError: no session"
    ]


# Threads


def run_threads(work: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a deadlock"


def test_threads_that_meet_at_a_shape_time_it_once(timer: Timer) -> None:
    gate = threading.Barrier(4)
    timer.within = lambda: threading.Event().wait(0.05)  # gives the other threads time to arrive

    def work() -> None:
        gate.wait()
        multiply(asked(512, 512, 1160))

    run_threads(work, 4)
    assert len(timer.calls) == 1 and decision(asked(512, 512, 1160))[1] == "table"


def test_one_shape_is_timed_at_a_time(timer: Timer) -> None:
    inside, most, gate, sizes = [0], [0], threading.Barrier(3), iter((1168, 1176, 1184))

    def within() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.02)
        inside[0] -= 1

    def work() -> None:
        query = asked(512, 512, next(sizes))
        gate.wait()
        multiply(query)
        assert decision(query)[1] == "table"

    timer.within = within
    run_threads(work, 3)
    assert len(timer.calls) == 3 and most == [1]


def test_the_timing_thread_is_outside_of_every_context(timer: Timer) -> None:
    """Torch computes its matmuls, uncounted and untuned, while a context is active on all other threads."""
    lib = _native.lib()

    def within() -> None:
        lib.hgemm_context_leave_all()  # as the session on a GPU does
        multiply(asked(256, 256, 264))

    timer.within = within
    with counted() as tally:
        ask(ON, ON)
        multiply(asked(512, 512, 1192))
        assert [(row.k, row.calls) for row in tally.rows()] == [(1192, 1)]
    assert len(timer.shapes) == 1


def test_a_products_thread_may_hold_the_lock_of_a_log_handler(timer: Timer) -> None:
    class Multiplying(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            if record.getMessage() == "go":
                multiply(asked(512, 512, 1200))

    seen: list[str] = []
    handler = Multiplying()
    _library.logger.addHandler(handler)
    level = _library.logger.level
    _library.logger.setLevel(logging.INFO)
    try:
        run_threads(lambda: _library.logger.info("go"), 1)
    finally:
        _library.logger.setLevel(level)
        _library.logger.removeHandler(handler)
    assert seen[0] == "go" and seen[1].startswith("tuned float16 NT 512x512x1200")


# On disk


def run_python(code: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HGEMM_OPS_")}
    done = subprocess.run([sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_later_process_has_the_entry(timer: Timer, own: Path) -> None:
    multiply(asked(512, 1024, 1240))
    (path,) = own.glob("tables/tuned/*/*.json")
    assert path == _tables.tuned_file(A100)
    document = json.loads(path.read_text())
    assert document["measured"] == _tables.environment() and document["device"]["name"] == A100.name
    code = """
import hgemm_ops
e = hgemm_ops.explain(M=512, N=1024, K=1240, layout="NT", arch="sm_80")
print(e.source, e.chosen)
"""
    chosen = decision(asked(512, 1024, 1240))[0]
    assert run_python(code, HGEMM_OPS_CACHE_DIR=str(own)) == f"table {chosen}"


@pytest.mark.parametrize("changed", ["driver", "cuda", "torch", "hgemm_ops"])
def test_another_environment_measures_anew(timer: Timer, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    query = asked(512, 1024, 1248)
    multiply(query)
    known = _tables.environment()
    here = _tables.tuned_file(A100)
    monkeypatch.setattr(_tables, "_kept", {})  # as in another process
    _tables.reload()
    assert here in _tables.files() and decision(query)[1] == "table"
    monkeypatch.setattr(_tables, "environment", lambda: known | {changed: "another"})
    _tables.reload()
    assert here not in _tables.files() and decision(query)[1] == "model"


def test_another_gpu_of_the_name_has_a_file_of_its_own(timer: Timer) -> None:
    multiply(asked(512, 1024, 1256))
    half = asked(512, 1024, 1256)
    half.facts.sm_count //= 2
    _tables.reload()  # the cache distinguishes devices only by their number
    multiply(half)
    _tuning.tuner().finish()
    tables = [Table.read(path) for path in _tables.tuned_dir().glob("*.json")]
    assert sorted(table.device.sm_count for table in tables) == [54, 108]
    assert all(len(table.entries) == 1 for table in tables)


def test_entries_of_other_processes_stay(timer: Timer) -> None:
    theirs = Entry("float16", "NT", 16, 1, 64, 64, 64, {"torch": 3.0})
    _tables.write(Table(A100, [theirs]), _tables.tuned_file(A100))
    for k in (1264, 1272):
        multiply(asked(512, 1024, k))
    _tuning.tuner().finish()
    assert [entry.k for entry in Table.read(_tables.tuned_file(A100)).entries] == [64, 1264, 1272]


def test_files_are_written_now_and_then_and_at_the_end(timer: Timer, caplog: pytest.LogCaptureFixture) -> None:
    def stored() -> int:
        return len(Table.read(_tables.tuned_file(A100)).entries)

    with caplog.at_level(logging.INFO, "hgemm_ops"):
        for i, (later, expected) in enumerate(((0.0, 1), (0.2, 1), (0.2, 1), (1.0, 4), (0.2, 4))):
            timer.now += later
            multiply(asked(512, 1024, 1280 + 8 * i))
            assert stored() == expected
        _tuning.tuner().finish()
        assert stored() == 5
        _tuning.tuner().finish()  # nothing is new, so nothing is logged
    summary = lines(caplog, logging.INFO)[5:]
    assert summary == ["tuned 5 shapes in 0.10 s: one of our kernels was the fastest for 5"]


def test_what_cannot_be_stored_stays_in_the_process(timer: Timer, own: Path, caplog: pytest.LogCaptureFixture) -> None:
    (own / "tables").write_text("")  # in the place of the directory
    query = asked(512, 1024, 1320)
    with caplog.at_level(logging.WARNING, "hgemm_ops"):
        multiply(query)
        timer.now += 2
        multiply(asked(512, 1024, 1328))
    (line,) = lines(caplog, logging.WARNING)
    assert line.startswith("cannot write the tuning cache, so these timings are lost at exit: ")
    _tables.reload()
    assert decision(query)[1] == "table" and len(timer.shapes) == 2


def test_a_process_that_holds_the_lock_is_not_waited_for(
    timer: Timer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_tuning, "_PATIENCE", 0.05)
    path = _tables.tuned_file(A100)
    path.parent.mkdir(parents=True)
    with open(f"{path}.lock", "w") as lock, caplog.at_level(logging.WARNING, "hgemm_ops"):
        fcntl.flock(lock, fcntl.LOCK_EX)
        multiply(asked(512, 1024, 1336))
    assert "another process has held its lock for 0.05 s" in lines(caplog, logging.WARNING)[0]
    assert decision(asked(512, 1024, 1336))[1] == "table" and not path.exists()


def test_a_broken_file_is_named_and_left_alone(timer: Timer, caplog: pytest.LogCaptureFixture) -> None:
    path = _tables.tuned_file(A100)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with caplog.at_level(logging.WARNING, "hgemm_ops"):
        multiply(asked(512, 1024, 1344))
    assert "not a tuning table" in lines(caplog, logging.WARNING)[0] and path.read_text() == "{"
    assert decision(asked(512, 1024, 1344))[1] == "table"


def test_a_careful_measurement_beats_one_in_passing(timer: Timer) -> None:
    multiply(asked(512, 1024, 1352))
    careful = Entry("float16", "NT", 16, 1, 512, 1024, 1352, {"torch": 5.0})
    _tables.write(Table(A100, [careful]), _tables.user_dir() / f"{A100.slug}.json")
    _tables.reload()
    assert decision(asked(512, 1024, 1352)) == ("torch", "table")


# Contexts and the environment


@pytest.fixture
def context(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> Timer:
    """Makes contexts work without a GPU. The value is the timer."""
    monkeypatch.setattr(_override, "start", lambda: True)
    ask(UNSAID)
    return timer


def tunes(timer: Timer) -> bool:
    """Whether the call of a new shape would be timed now."""
    before = len(timer.shapes)
    multiply(asked(264, 256 + 8 * next(_sizes), 512))
    return len(timer.shapes) > before


_sizes = iter(range(1000))


def test_the_innermost_context_says_whether(context: Timer) -> None:
    assert not tunes(context)
    with use_custom_gemm(tune=True):
        assert tunes(context)
        with use_custom_gemm(tune=False):
            assert not tunes(context)
        with use_custom_gemm():
            assert not tunes(context)
        assert tunes(context)
        with use_custom_gemm(tune=True, variant="torch"):
            assert not tunes(context)
    assert not tunes(context)


def test_it_holds_for_threads_that_have_entered_no_context(context: Timer) -> None:
    seen: list[bool] = []

    def work() -> None:
        seen.append(tunes(context))
        with use_custom_gemm(tune=False):
            seen.append(tunes(context))
        seen.append(tunes(context))

    with use_custom_gemm(tune=True):
        run_threads(work, 1)
    run_threads(work, 1)
    assert seen == [True, False, True, False, False, False]


def test_the_context_beats_the_environment(context: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tuning, "by_default", lambda: True)
    _native.lib().hgemm_tuning_default(1)
    try:
        assert tunes(context)  # calls of the operators, outside of any context
        with use_custom_gemm():
            assert tunes(context)
        with use_custom_gemm(tune=False):
            assert not tunes(context)
    finally:
        _native.lib().hgemm_tuning_default(0)


def test_a_context_ends_with_its_summary_on_disk(context: Timer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hgemm_ops"), use_custom_gemm(tune=True):
        tunes(context)
        tunes(context)
    assert lines(caplog, logging.INFO)[-1].startswith("tuned 2 shapes in ")
    assert len(Table.read(_tables.tuned_file(A100)).entries) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("value", "expected"), [("1", "True 1"), ("0", "False 0"), ("", "False 0")])
def test_the_environment_is_read_at_import(own: Path, value: str, expected: str) -> None:
    code = """
import contextlib, torch, hgemm_ops
from hgemm_ops import _native, _tuning, _variants
asked = []
if _tuning.by_default():
    _native.on_tuning(lambda request: asked.append(1) or True)
query = _variants.matmul_query(264, 256, 512, torch.float16, "NT", _native.preset_facts(80))
_native.lib().hgemm_select_ns(query, 1, 0)
print(_tuning.by_default(), len(asked))
"""
    assert run_python(code, HGEMM_OPS_CACHE_DIR=str(own), HGEMM_OPS_TUNE=value) == expected


def test_a_known_shape_asks_nobody(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision comes from the thread's cache, and after that is invalidated from the table."""
    query = asked(512, 1024, 1360)
    multiply(query)
    calls: list[Any] = []
    _native.on_tuning(lambda request: bool(calls.append(request)) or True)
    assert _native.lib().hgemm_select_ns(query, 1, 1000) > 0
    _tables.reload()
    multiply(query)
    assert calls == []
