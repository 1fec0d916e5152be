"""``tune=True`` of grouped matmuls with a timer of the test: what is timed, and how the times are kept. Needs no GPU.

``grouped.cc`` checks when the dispatcher asks for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from helpers import needs_library

from hgemm_ops import _native, _tables, _tuning, explain_grouped
from hgemm_ops._tables import Device, GroupedEntry, Table

pytestmark = needs_library

ENTRY = GroupedEntry("bfloat16", "rows", "NT", 128, 16384, 1536, 2048, {"torch": 300.0})


class Timer:
    """Stands in for the GPU: ``us`` has the time of each contender, ``names`` those that were timed."""

    device_name = "NVIDIA H200"
    aside = 0.0

    def __init__(self) -> None:
        self.us: dict[str, float] = {}
        self.names: list[list[str]] = []
        self.now = 0.0

    def open(self, request: _native.GroupedTuning) -> Timer:
        return self

    @contextlib.contextmanager
    def contenders(self, names: Sequence[str]) -> Iterator[_tuning.Start]:
        self.names.append(list(names))
        yield self.start

    def start(self, name: str) -> Callable[[], float]:
        self.now += 1e-3
        return lambda: self.us.get(name, 300.0)


@pytest.fixture
def facts() -> _native.Facts:
    return _native.preset_facts(90)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory of the test's own, and no tables."""
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_tables, "_kept_grouped", {})
    _tables.ensure()
    _tables.install([])
    yield tmp_path
    monkeypatch.undo()
    _tables.reload()


def request_of(facts: _native.Facts, entry: GroupedEntry) -> _native.GroupedTuning:
    """The request that the dispatcher makes for (m, k) @ (groups, k, n) with weights (groups, n, k)."""
    x, w = torch.empty(entry.m, entry.k, device="meta"), torch.empty(entry.groups, entry.n, entry.k, device="meta").mT
    dtype = getattr(torch, entry.dtype)
    words = (_tables._DTYPES[entry.dtype], _tables.DIVIDED.index(entry.divided), *_tables._MAJORS[entry.layout])
    key = (facts.cc, facts.sm_count, facts.l2_bytes, *words, entry.groups, entry.m, entry.n, entry.k)
    request = _native.GroupedTuning(
        a=_native.view(x.shape, x.stride(), dtype, 0), b=_native.view(w.shape, w.stride(), dtype, 0)
    )
    request.key[:] = key
    request.ordinal = -1
    return request


def explained(entry: GroupedEntry = ENTRY) -> tuple[str, str]:
    found = explain_grouped(
        rows=entry.m, N=entry.n, K=entry.k, groups=entry.groups, dtype=getattr(torch, entry.dtype), arch="sm_90"
    )
    return found.chosen, found.source


def test_the_choice_and_its_neighbours_are_timed_and_kept(
    own: Path, facts: _native.Facts, caplog: pytest.LogCaptureFixture
) -> None:
    before = explain_grouped(rows=16384, N=1536, K=2048, groups=128, arch="sm_90").chosen
    timer = Timer()
    tuner = _tuning.Tuner(timer.open, lambda: timer.now)
    request = request_of(facts, ENTRY)
    names = _tuning.grouped_candidates(request)
    assert before in names and 2 <= len(names) <= 3 and all("_k_" not in name for name in names)
    other = next(name for name in names if name != before)
    timer.us = {other: 100.0}
    with caplog.at_level(logging.INFO, "hgemm_ops"):
        assert tuner(request)
        assert tuner(request)
    assert timer.names == [names]
    assert explained() == (other, "table")
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("tuned bfloat16 NT 16384x1536x2048 in 128 groups of rows on cuda:-1 in ")
    assert f": {other} 100.0 us, " in line
    tuner.finish()
    (file,) = (own / "tables" / "tuned").rglob("*.json")
    (kept,) = Table.read(file).grouped
    assert kept.shape == ENTRY.shape and kept.us == {"torch": 300.0} | {
        name: 100.0 if name == other else 300.0 for name in names
    }
    _tables.install([])
    assert explained() == (before, "model")
    _tables.reload()
    assert explained() == (other, "table")


def test_ours_has_to_lead_by_the_margin_of_a_table(own: Path, facts: _native.Facts) -> None:
    device = Device("NVIDIA H200", facts.cc, facts.sm_count, facts.l2_bytes)
    ours = _tuning.grouped_candidates(request_of(facts, ENTRY))[0]
    for us, chosen in ((299.0, "torch"), (296.0, ours), (400.0, "torch")):
        _tables.install(
            [Table(device, [], grouped=[GroupedEntry(*ENTRY.shape, {"torch": 300.0, ours: us, "gone": 1.0})])]
        )
        assert explained() == (chosen, "table")


def test_where_torch_is_chosen_every_kernel_of_the_family_is_timed(own: Path, facts: _native.Facts) -> None:
    gradient = GroupedEntry("float32", "rows", "NT", 8, 16384, 28672, 4096, {})
    names = _tuning.grouped_candidates(request_of(facts, gradient))
    assert names == [name for name in _native.grouped_names() if name.startswith("simt")]


def test_a_file_keeps_its_products(tmp_path: Path) -> None:
    device, path = Device("NVIDIA H200", 90, 132, 62914560), tmp_path / "t.json"
    _tables.write(Table(device, [], grouped=[ENTRY]), path)
    assert Table.read(path).grouped == [ENTRY] and Table.read(path).grouped[0].us == ENTRY.us
    data = json.loads(path.read_text())
    bad = [
        {**asdict(ENTRY), **change}
        for change in ({"divided": "n"}, {"m": 0}, {"us": {}}, {"us": {"torch": 0}}, {"x": 1})
    ]
    path.write_text(json.dumps({**data, "grouped": [*data["grouped"], *bad]}))
    table = Table.read(path)
    assert table.grouped == [ENTRY]
    assert table.skipped == f"{path}: 5 of 6 grouped matmuls are not valid, the first is number 2; they are skipped"


def test_a_failure_leaves_the_choice_to_the_model(
    own: Path, facts: _native.Facts, caplog: pytest.LogCaptureFixture
) -> None:
    timer = Timer()
    before = explained()

    def fail(name: str) -> Callable[[], float]:
        raise RuntimeError("no room")

    timer.start = fail  # type: ignore[method-assign]
    tuner = _tuning.Tuner(timer.open, lambda: timer.now)
    assert tuner(request_of(facts, ENTRY))
    assert [r.getMessage() for r in caplog.records] == [
        "tuning failed, so the cost model chooses the kernel: RuntimeError: no room"
    ]
    assert explained() == before
