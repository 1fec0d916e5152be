"""What contexts count, and what reading a report costs."""

from __future__ import annotations

import ctypes
import itertools
import random
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import needs_library, run_python

from hgemm_ops import _advice, _native, _tables, _variants
from hgemm_ops._report import Report, Row

pytestmark = needs_library


def query(m: int, n: int, k: int, layout: str = "NT", dtype: torch.dtype = torch.float16, **fields: int) -> Any:
    batch, align = fields.pop("batch", 1), fields.pop("align", 16)
    made = _variants.matmul_query(m, n, k, dtype, layout, _native.preset_facts(90), batch, align)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def decide(asked: Any) -> None:
    assert _native.lib().hgemm_select_ns(asked, 1, 0) >= 0


def torchs(m: int) -> Any:
    """A product that is left to torch because torch is named. Such a decision is the fastest."""
    return query(m, 8, 8, variant=_native.TORCH)


@pytest.fixture
def counting() -> Iterator[_native.Context]:
    _tables.ensure()
    context = _native.Context(_native.Settings())
    context.enter()
    yield context
    context.exit()


def report_of(context: _native.Context) -> Report:
    report = Report()
    report._capsule = context.capsule
    return report


# ---- reasons


ASKED = {
    "kernel": query(4096, 4096, 4096),
    "torch is faster": query(100, 100, 8192),
    "unaligned": query(4097, 33, 129, "NN"),
    "of an address": query(256, 256, 256, align=2),
    "batch": query(64, 64, 64, "TN", batch=12),
    "epilogue": query(512, 512, 512, has_bias=1, act=2, out_dtype=2),
    "bfloat16": query(300, 4096, 4096, dtype=torch.bfloat16),
    "strict float32": query(512, 512, 512, dtype=torch.float32),
    "float32 with a batch": query(512, 512, 512, "TT", torch.float32, batch=3, has_bias=1),
    "split float32": query(4096, 4096, 4096, dtype=torch.float32, float32=1),
    "TF32": query(512, 512, 512, dtype=torch.float32, float32=2),
    "unaligned TF32": query(511, 513, 77, "NN", torch.float32, align=4, float32=2),
    "float64": query(64, 64, 64, dtype=torch.float64),
    "complex": query(65, 3, 7, dtype=torch.complex64, numerics=1),
    "batch-invariant": query(128, 4096, 1024, numerics=1),
    "batch-invariant float32": query(128, 4096, 1024, dtype=torch.float32, numerics=1),
    "named": query(4096, 4096, 4096, variant=0),
    "torch is named": torchs(8),
    "nothing to add up": query(8, 8, 0),
}


@pytest.mark.parametrize("name", ASKED)
def test_reasons_are_those_of_explain(counting: _native.Context, name: str) -> None:
    """They are made of what the counter keeps, and nothing is decided again."""
    decision, _ = _native.explain(ASKED[name])
    assert decision.variant != _native.UNKNOWN
    decide(ASKED[name])
    (row,) = report_of(counting).rows
    assert row.variant == _variants.name_of(decision.variant)
    assert row.reason == f"{_native.SOURCES[decision.source]}: {decision.reason.decode()}"


@pytest.mark.parametrize("cc", [80, 90])
def test_reasons_from_tables(counting: _native.Context, cc: int) -> None:
    """Of a measured shape in either half type, and on a chip that is not learned, of its neighbours."""
    facts = _native.preset_facts(cc)
    entry = _native.TableEntry(cc, facts.sm_count, facts.l2_bytes, 0, 0, 0, 16, 1, 512, 512, 512, 0, 2)
    name = next(v for v in range(_native.lib().hgemm_variant_count()) if b"sm80_mma" in _native.variant_infos()[v].name)
    try:
        _native.set_table([entry], [_native.Timing(_native.TORCH, 0, 30.0), _native.Timing(name, 0, 20.0)])
        asked = [query(m, 512, 512, dtype=dtype) for m in (512, 520) for dtype in (torch.float16, torch.bfloat16)]
        for each in asked:
            each.facts = facts
            decide(each)
        rows = report_of(counting).rows
        expected = [_native.explain(each)[0] for each in asked]
        assert [row.reason for row in rows] == [f"{_native.SOURCES[d.source]}: {d.reason.decode()}" for d in expected]
        assert sum("(times of float16)" in row.reason for row in rows) >= 1
        assert any("similar shape" in row.reason for row in rows) == (cc == 80)
    finally:
        _tables.reload()


# ---- reports of many shapes


class Counted:
    """The library, with its calls counted."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._library = _native.lib()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._library, name)


def test_reading_a_report_takes_few_calls_of_the_library(
    counting: _native.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    for m in range(1, 10_001):
        decide(torchs(m))
    report, library = report_of(counting), Counted()
    monkeypatch.setattr(_native, "lib", lambda: library)
    assert len(report.rows) == 10_000
    assert report.rows[9_999].m == report.rows[-1].m == 10_000
    assert set(library.calls) <= {"hgemm_context_rows", "hgemm_reasons"}
    for read in (lambda: list(report.rows), report.to_dict, report.__str__):
        library.calls.clear()
        read()
        assert library.calls.total() <= 2 + 3, library.calls
        assert set(library.calls) == {"hgemm_context_rows", "hgemm_reasons"}


def test_rows_are_a_sequence_that_does_not_change(counting: _native.Context) -> None:
    assert report_of(counting).rows == []
    for m in (1, 2, 3, 4, 5, 2):
        decide(torchs(m))
    rows = report_of(counting).rows
    decide(torchs(6))
    assert [row.m for row in rows] == [1, 2, 3, 4, 5]
    assert [row.calls for row in rows] == [1, 2, 1, 1, 1]
    assert rows == list(rows) == report_of(counting).rows[:5] != report_of(counting).rows
    assert [row.m for row in rows[::-2]] == [5, 3, 1] and rows[-1] is not rows[-1] == rows[4]
    assert all(isinstance(row, Row) for row in rows) and repr(rows) == repr(list(rows))
    with pytest.raises(IndexError):
        rows[5]


def test_rows_that_look_alike_are_one(counting: _native.Context) -> None:
    """They differ in alignment or in the result's dtype. The library's own rows, which tuning reads, stay apart."""
    for align, out_dtype in itertools.product((2, 16), (0, 2)):
        decide(query(64, 64, 64, align=align, out_dtype=out_dtype, variant=_native.TORCH))
    assert [row.calls for row in counting.rows()] == [1] * 4
    assert [row.calls for row in report_of(counting).rows] == [4]
    decide(query(64, 64, 64, has_bias=1, variant=_native.TORCH))
    assert [(row.op, row.calls) for row in report_of(counting).rows] == [("mm", 4), ("addmm", 1)]


@pytest.mark.slow
def test_the_memory_of_a_report() -> None:
    """Of 60,000 shapes: the counters and the rows take at most 200 bytes a shape, and go with the context."""
    code = """
        import pathlib
        import torch
        from hgemm_ops import _native, _report, _variants

        def resident():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

        def decide(shapes):
            query = _variants.matmul_query(8, 8, 8, torch.float16, "NT", _native.preset_facts(90))
            query.variant = _native.TORCH
            for n in range(1, shapes + 1):
                query.b.sizes[2] = n
                _native.lib().hgemm_select_ns(query, 1, 0)

        def context(shapes):
            made = _native.Context(_native.Settings())
            made.enter()
            decide(shapes)
            made.exit()
            return made

        context(2000)
        before = resident()
        report = _report.Report()
        report._capsule = context(60_000).capsule
        rows = report.rows
        held = resident() - before
        assert len(rows) == 60_000
        del report, rows
        for _ in range(10):
            context(20_000)
        print(held // 60_000, resident() - before)
    """
    done = run_python(textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    per_shape, left = map(int, done.stdout.split())
    assert per_shape <= 200
    assert left < 10 << 20, "what 60,000 shapes take at a time, and not what 260,000 do"


# ---- whose calls they are


@pytest.mark.parametrize("seed", range(5))
def test_contexts_in_any_order(seed: int) -> None:
    """Each has the calls that were made while it was active, in the order of the first ones, whatever else was."""
    rng = random.Random(seed)
    made: list[tuple[_native.Context, list[int]]] = []
    entered: list[int] = []  # the places of active contexts, once for each entry
    gone: set[int] = set()
    for _ in range(1500):
        step = rng.random()
        if step < 0.15:
            made.append((_native.Context(_native.Settings()), []))
        elif step < 0.35 and len(gone) < len(made):
            place = rng.choice([i for i in range(len(made)) if i not in gone])
            made[place][0].enter()
            entered.append(place)
        elif step < 0.55 and entered:
            place = entered.pop(rng.choice((-1, -1, -1, rng.randrange(len(entered)))))
            assert made[place][0].exit()
        elif step < 0.6 and (idle := [i for i in range(len(made)) if i not in gone and i not in entered]):
            place = rng.choice(idle)
            gone.add(place)
            made[place] = (None, [])  # type: ignore[assignment]
        else:
            m = rng.randrange(1, 12)
            decide(torchs(m))
            for place in set(entered):
                made[place][1].append(m)
        for place in rng.sample(range(len(made)), min(2, len(made))):
            if place not in gone:
                context, calls = made[place]
                assert [(row.m, row.calls) for row in context.rows()] == list(Counter(calls).items())
    for place in entered:
        assert made[place][0].exit()
    assert all(context is None or not context.exit() for context, _ in made)


def test_a_long_context_adds_up_those_within_it(counting: _native.Context) -> None:
    for i in range(200):
        context = _native.Context(_native.Settings())
        context.enter()
        decide(torchs(1 + i % 3))
        context.exit()
        assert [(row.m, row.calls) for row in context.rows()] == [(1 + i % 3, 1)]
        decide(torchs(7))
    assert {row.m: row.calls for row in counting.rows()} == {1: 67, 2: 67, 3: 66, 7: 200}


def test_threads_count_while_contexts_come_and_go(counting: _native.Context) -> None:
    stop, made = threading.Event(), [0, 0]

    def work(place: int) -> None:
        while not stop.is_set():
            for m in range(1, 20):
                decide(torchs(m))
                made[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        context = _native.Context(_native.Settings())
        context.enter()
        decide(torchs(30))
        context.exit()
        assert {row.m: row.calls for row in context.rows()}[30] == 1
    stop.set()
    for thread in threads:
        thread.join()
    calls = {row.m: row.calls for row in counting.rows()}
    assert calls.pop(30) == 300
    assert sum(calls.values()) == sum(made)


@pytest.mark.slow
def test_forks_while_a_thread_counts() -> None:
    """No child finds a lock that the thread held."""
    code = """
        import os, signal, threading
        import torch
        from hgemm_ops import _native, _variants

        def work():
            query = _variants.matmul_query(8, 8, 8, torch.float16, "NT", _native.preset_facts(90))
            query.variant = _native.TORCH
            size = 0
            while not stop.is_set():
                query.b.sizes[2] = size = size + 1
                _native.lib().hgemm_select_ns(query, 1, 0)

        counting = _native.Context(_native.Settings())
        counting.enter()
        stop = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        failed = 0
        for _ in range(25):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                inner = _native.Context(_native.Settings())
                inner.enter()
                inner.exit()
                counting.rows()
                os._exit(0)
            failed += os.waitpid(child, 0)[1] != 0
            if failed:
                break
        stop.set()
        thread.join()
        print(failed)
    """
    done = run_python(textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"


def test_the_fields_of_a_count() -> None:
    """``unpacked`` has them in the order of the struct's."""
    counts = (_native.CallCount * 1)()
    names = [name for name, _ in _native.CallKind._fields_] + ["calls"]
    for place, name in enumerate(names):
        setattr(counts[0], name, place)
    assert list(*_native.unpacked(counts)) == list(range(len(names)))
    assert ctypes.sizeof(counts) == 80


def test_more_kinds_than_are_counted_apart(counting: _native.Context) -> None:
    """The further ones are one row, which does not say that torch ran them."""
    kinds = 65536
    for m in range(1, kinds + 4):
        decide(torchs(m))
    decide(torchs(1))
    report = report_of(counting)
    *rows, others = report.rows
    assert len(rows) == kinds and (rows[0].m, rows[0].calls) == (1, 2) and rows[-1].m == kinds
    assert (others.variant, others.calls, others.flops, others.op, others.dtype) == ("unknown", 3, 0, "", "")
    assert others.reason == "beyond 65,536 kinds, matmuls are counted together, whatever kernel runs them"
    totals = report.to_dict()
    assert (totals["unknown_calls"], totals["kernel_calls"]) == (3, 0)
    assert sum(totals["torch_calls"].values()) == kinds + 1 == totals["calls"] - 3
    assert "\nunknown: 3 of 65540 calls (0.0%), whose FLOPs do not count here\n" in str(report)
    assert all(product["m"] for product in report._products())
    (kind,) = (kind for kind in report.counts() if kind.variant == _native.UNKNOWN)
    line = _advice._advise(kind, lambda ordinal: _native.preset_facts(90), others.reason)
    assert (line.matmul, line.torch_us) == ("all others", 0)
