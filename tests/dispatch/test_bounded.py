"""The memory that a process keeps for calls, modules and tables is bounded, however many it sees."""

from __future__ import annotations

import textwrap

import pytest
from helpers import needs_library, run_python

from hgemm_ops import _sites


def numbers(code: str) -> list[int]:
    """The integers that ``code`` prints, run in a process of its own."""
    done = run_python(textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    return list(map(int, done.stdout.split()))


def test_names_of_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sites, "_names", ["", "(backward)"])
    monkeypatch.setattr(_sites, "_numbers", {})
    monkeypatch.setattr(_sites, "_MOST_NAMES", 5)
    assert [_sites._number(f"layer{i}") for i in range(5)] == [2, 3, 4, 0, 0]
    assert [_sites._number(f"layer{i}") for i in range(5)] == [2, 3, 4, 0, 0]
    assert len(_sites._names) == len(_sites._numbers) + 2 == 5


@needs_library
@pytest.mark.slow
def test_kinds_of_products() -> None:
    """Of 70,000 shapes, 65,536 get a counter each, and the rest share one."""
    found = numbers(
        """
        import torch
        from hgemm_ops import _native, _variants

        lib, facts = _native.lib(), _native.preset_facts(90)
        tally = _native.Context(_native.Settings())
        tally.enter()
        query = _variants.matmul_query(8, 8, 8, torch.float16, "NT", facts)
        for n in range(1, 70001):
            query.b.sizes[2] = n
            lib.hgemm_select_ns(query, 1, 0)
        rows = tally.rows()
        print(len(rows), sum(row.calls for row in rows), max(row.calls for row in rows if row.m == 0))
        """
    )
    kinds, calls, shared = found
    assert (kinds, calls, shared) == (65537, 70000, 70000 - 65536)


@needs_library
@pytest.mark.slow
def test_replaced_tables_are_freed() -> None:
    """A hundred tables of 2,000 shapes, each replaced by the next, leave no more memory behind than one."""
    found = numbers(
        """
        import pathlib
        from hgemm_ops import _native

        def resident():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

        timings = [_native.Timing(_native.TORCH, 0, 9.0)]
        entries = [
            _native.TableEntry(90, 132, 1 << 20, 0, 0, 0, 16, 1, m, n, 64, 0, 1)
            for m in range(1, 101) for n in range(1, 21)
        ]
        _native.set_table(entries, timings)
        before = resident()
        for _ in range(100):
            _native.set_table(entries, timings)
        print(before, resident())
        """
    )
    before, after = found
    assert after - before < 20 << 20
