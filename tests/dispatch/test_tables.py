"""Table files that are broken, missing, read while they are written, or written by processes that die."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest
from helpers import H200, needs_library, run_python

import hgemm_ops
from hgemm_ops import _files, _library, _native, _tables
from hgemm_ops._tables import Device, Entry, Table, updating, write
from hgemm_ops.cli import tune
from hgemm_ops.cli.tune import read

GOOD: dict[str, Any] = asdict(Entry("float16", "NT", 16, 1, 72, 72, 72, {"torch": 9.0}))
DEEP = "[" * 100_000 + "]" * 100_000


def text(*entries: Any, device: Any = None, **changes: Any) -> str:
    data = {"schema": 1, "device": asdict(H200) if device is None else device, "measured": {}, "entries": [*entries]}
    return json.dumps(data | changes)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the user's own tables, which only this test uses."""
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path))
    directory = _tables.user_dir()
    directory.mkdir(parents=True)
    yield directory
    monkeypatch.undo()
    if _library.load():
        _tables.reload()


# ---- What is not valid

BROKEN = {
    "not json": "not json",
    "no members": "{}",
    "a list": "[]",
    "deep": DEEP,
    "deep entry": text().replace("[]", DEEP),
    "not unicode": b"\xff\xfe\x00",
    "another schema": text(schema=99),
    "no device": text(device={"name": "", "cc": 90}),
    "no SMs": text(device=asdict(H200) | {"sm_count": 0}),
    "negative L2": text(device=asdict(H200) | {"l2_bytes": -1}),
    "negative memory": text(device=asdict(H200) | {"dram_gbs": -1}),
    "a device of text": text(device=asdict(H200) | {"cc": "90"}),
    "a device of fractions": text(device=asdict(H200) | {"sm_count": 1.5}),
    "a device of NaN": text(device=asdict(H200) | {"sm_count": math.nan}),
    "a huge device": text(device=asdict(H200) | {"cc": 10**30}),
    "a nameless device": text(device=asdict(H200) | {"name": None}),
    "entries that are a number": text(entries=3),
    "kernels without names": text(kernels=[None]),
    "kernels that are a number": text(kernels=3),
}

BAD_ENTRIES = {
    "nothing": {},
    "null": None,
    "a number": 3,
    "a list": [1, 2],
    "unknown member": GOOD | {"x": 1},
    "unknown dtype": GOOD | {"dtype": "int8"},
    "unhashable dtype": GOOD | {"dtype": []},
    "unknown layout": GOOD | {"layout": "XX"},
    "alignment 16.0": GOOD | {"align": 16.0},
    "alignment 3": GOOD | {"align": 3},
    "m = 0": GOOD | {"m": 0},
    "m < 0": GOOD | {"m": -4},
    "m of text": GOOD | {"m": "4"},
    "m true": GOOD | {"m": True},
    "m a fraction": GOOD | {"m": 4.0},
    "m beyond 64 bits": GOOD | {"m": 2**80},
    "batch = 0": GOOD | {"batch": 0},
    "time 0": GOOD | {"us": {"torch": 0}},
    "time < 0": GOOD | {"us": {"torch": -1.0}},
    "time NaN": GOOD | {"us": {"torch": math.nan}},
    "time infinite": GOOD | {"us": {"torch": math.inf}},
    "time beyond a double": GOOD | {"us": {"torch": 10**400}},
    "time of text": GOOD | {"us": {"torch": "9.0"}},
    "time null": GOOD | {"us": {"torch": None}},
    "no time of torch": GOOD | {"us": {"sm80_mma": 1.0}},
    "times that are a list": GOOD | {"us": ["torch"]},
    "times of no kernel": GOOD | {"us": {"torch": 9.0, "7": 8.0}},
    "no times": {name: value for name, value in GOOD.items() if name != "us"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_and_skipped(name: str, own: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = BROKEN[name]
    path = own / "broken.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"broken\.json: not a tuning table"):
        Table.read(path)
    with caplog.at_level(logging.WARNING, "hgemm_ops"):
        tables, broken = _tables.read_all()
        if _library.load():
            _tables.reload()
            assert [record.getMessage() for record in caplog.records] == broken
    assert len(tables) == len(list(_tables.shipped_dir().glob("*.json")))
    assert len(broken) == 1 and "broken.json" in broken[0]


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_bad_entry_is_skipped_and_the_others_kept(name: str, own: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = own / "mine.json"
    other = GOOD | {"k": 80}
    path.write_text(text(GOOD, BAD_ENTRIES[name], BAD_ENTRIES[name], other))
    table = Table.read(path)
    assert [asdict(entry) for entry in table.entries] == [GOOD, other]
    assert table.skipped == f"{path}: 2 of 4 entries are not valid, the first is number 2; they are skipped"
    if not _library.load():
        return
    with caplog.at_level(logging.WARNING, "hgemm_ops"):
        _tables.reload()
    assert [record.getMessage() for record in caplog.records] == [table.skipped]
    assert hgemm_ops.explain(M=72, N=72, K=80, layout="NT", arch="sm_90").source == "table"


def native_entry(**changes: Any) -> _native.TableEntry:
    fields: dict[str, Any] = {"cc": 90, "sm_count": 132, "l2_bytes": 1 << 20, "dtype": 0, "a_major": 0, "b_major": 0}
    fields |= {"align": 16, "batch": 1, "m": 72, "n": 72, "k": 72, "first_timing": 0, "timing_count": 1}
    return _native.TableEntry(**(fields | changes))


@needs_library
@pytest.mark.parametrize(
    ("changes", "us", "fault"),
    [
        ({"sm_count": 0}, 1.0, "is of an impossible device"),  # once divided by zero, which ended the process
        ({"cc": 0}, 1.0, "is of an impossible device"),
        ({"l2_bytes": 0}, 1.0, "is of an impossible device"),
        ({"dram_gbs": -1}, 1.0, "is of an impossible device"),
        ({"m": 0}, 1.0, "has an impossible size"),
        ({"n": 1 << 31}, 1.0, "has an impossible size"),
        ({"m": 1 << 30, "n": 1 << 30}, 1.0, "has an impossible size"),
        ({"align": 3}, 1.0, "has an impossible alignment"),
        ({"dtype": 3}, 1.0, "has an unknown dtype"),
        ({"a_major": 2}, 1.0, "has an unknown layout"),
        ({"b_major": -1}, 1.0, "has an unknown layout"),
        ({"first_timing": 2}, 1.0, "refers to timings that do not exist"),
        ({"first_timing": 2**31 - 1, "timing_count": 2**31 - 1}, 1.0, "refers to timings that do not exist"),
        ({}, 0.0, "has a time outside of 0.001 to 1e9 us"),
        ({}, math.nan, "has a time outside of 0.001 to 1e9 us"),
        ({}, math.inf, "has a time outside of 0.001 to 1e9 us"),
    ],
)
def test_the_library_skips_what_no_product_can_have(own: Path, changes: dict[str, Any], us: float, fault: str) -> None:
    timings = [_native.Timing(_native.TORCH, 0, 9.0), _native.Timing(_native.TORCH, 0, us)]
    bad = native_entry(**({"first_timing": 1} | changes))
    assert _native.set_table([native_entry(), bad, bad], timings) == f"2 entries skipped: entry 1 {fault}"
    assert _native.lib().hgemm_table_size(_native.Facts(cc=90, sm_count=132, l2_bytes=1 << 20)) == 1
    assert _native.set_table([native_entry()], timings) == ""


@needs_library
def test_the_library_takes_every_kernel_at_any_size(own: Path) -> None:
    """Predictions must not divide by zero, not even for kernels that are not eligible."""
    generator = random.Random(0)
    sizes = [1, 7, 8, 64, 65, 4096, 2**15 + 1, 2**20, 2**22]
    kernels = [_native.TORCH, *range(_native.lib().hgemm_variant_count())]
    timings = [_native.Timing(kernel, 0, 10.0) for kernel in kernels]
    entries = []
    for _ in range(2000):
        m, n, k = (generator.choice(sizes) for _ in range(3))
        cc, sms = generator.choice([10, 75, 80, 86, 90, 100, 120]), generator.choice([1, 2, 3, 16, 132, 10**6])
        layout = {"a_major": generator.randint(0, 1), "b_major": generator.randint(0, 1)}
        align, dtype = generator.choice([2, 4, 8, 16]), generator.randint(0, 2)
        shape = {"batch": 1, "m": m, "n": n, "k": k, "align": align, "dtype": dtype, **layout}
        entries.append(native_entry(cc=cc, sm_count=sms, timing_count=len(timings), **shape))
    assert _native.set_table(entries, timings) == ""


# ---- Directories


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(116, "Stale file handle")])
def test_a_directory_that_cannot_be_read_is_named(own: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def refuse(self: Path) -> Iterator[Path]:
        if self == own:
            raise error
        return iter([self / name for name in os.listdir(self)])

    monkeypatch.setattr(Path, "iterdir", refuse)
    tables, broken = _tables.read_all()
    assert tables and broken == [f"tables: {error}"]


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").write_text("")
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path))
    tables, broken = _tables.read_all()
    assert tables and len(broken) == 1 and "Not a directory" in broken[0]


def test_what_only_looks_like_a_table_is_left_alone(own: Path) -> None:
    (own / "directory.json").mkdir()
    os.mkfifo(own / "pipe.json")  # a reader of it would block
    (own / "gone.json").symlink_to("nowhere")
    assert _tables.read_all()[1] == []


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", "~/cache")
    assert _tables.user_dir() == tmp_path / "cache" / "tables"


def test_no_home_directory(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HGEMM_OPS_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    tables, broken = _tables.read_all()
    assert tables and broken == ["tables: there is no home directory: set HGEMM_OPS_CACHE_DIR"]
    with pytest.raises(click.ClickException) as refusal:
        tune._output(None, _tables.user_dir)
    assert str(refusal.value) == "there is no home directory: set HGEMM_OPS_CACHE_DIR, or give --output"
    if _library.load():
        with caplog.at_level(logging.WARNING, "hgemm_ops"):
            assert _tables.reload() > 0
        assert len(caplog.records) == 1
        assert hgemm_ops.explain(M=72, N=72, K=72, arch="sm_90").chosen


# ---- Writing


def many(count: int, us: float) -> Table:
    return Table(H200, [Entry("float16", "NT", 16, 1, 64, 64, 1 + i, {"torch": us}) for i in range(count)])


def is_whole(table: Table) -> bool:
    return len(table.entries) == 200 and len({entry.us["torch"] for entry in table.entries}) == 1


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        _files.replace(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_file_behind_a_symbolic_link_is_replaced(tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("new", "newer"):
        _files.replace(link, text)
        assert link.is_symlink() and (tmp_path / "file").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_stream_goes_on_behind_the_text(tmp_path: Path) -> None:
    """A shell or a launcher writes on into the file to which it has redirected the stream."""
    with open(tmp_path / "log", "wb", buffering=0) as log:
        name = Path(f"/dev/fd/{log.fileno()}")
        log.write(b"before\n")
        _files.replace(name, "text\n")
        log.write(b"after\n")
    assert (tmp_path / "log").read_text() == "before\ntext\nafter\n"
    assert _files.is_stream(name)  # a closed stream is no file that could be replaced
    with pytest.raises(OSError, match="Bad file descriptor"):
        _files.replace(name, "text\n")


def test_files_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from hgemm_ops import _files; _files.replace(Path({!r}), '\\u00d72')"
    done = run_python(code.format(str(tmp_path / "x")), PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x").read_text("utf-8") == "\N{MULTIPLICATION SIGN}2"


def test_readers_never_see_half_a_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write(many(200, 1.0), path)
    done = threading.Event()
    seen: list[Table] = []

    def look() -> None:
        while not done.is_set():
            seen.append(Table.read(path))

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for i in range(100):
            write(many(200, 1.0 + i), path)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert len(seen) > 20 and all(map(is_whole, seen))


def forked(work: Callable[[], None]) -> int:
    """Forks a process that only does ``work``, and returns its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def test_killed_writers_leave_a_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write(many(200, 1.0), path)

    def rewrite_forever() -> None:
        while True:
            with updating(path, H200) as table:
                table.entries = many(200, table.entries[0].us["torch"] + 1).entries

    generator = random.Random(0)
    kills = 0
    while kills < 100 or Table.read(path).entries[0].us["torch"] <= 20:  # on a busy machine most die before they write
        child = forked(rewrite_forever)
        time.sleep(generator.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert is_whole(Table.read(path))
        kills += 1
    assert len(list(tmp_path.iterdir())) <= 3  # the table, its lock, and an unfinished new table


def test_processes_that_tune_at_once_keep_each_others_entries(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"

    def add(m: int) -> Callable[[], None]:
        def work() -> None:
            for k in range(1, 26):
                with updating(path, H200) as table:
                    table.entries.append(Entry("float16", "NT", 16, 1, m, 64, k, {"torch": 1.0}))

        return work

    children = [forked(add(m)) for m in (1, 2, 3, 4)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert {(e.m, e.k) for e in Table.read(path).entries} == {(m, k) for m in (1, 2, 3, 4) for k in range(1, 26)}


def test_a_failing_block_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write(many(1, 1.0), path)
    with pytest.raises(KeyError), updating(path, H200) as table:
        table.entries.clear()
        raise KeyError
    assert len(Table.read(path).entries) == 1


def test_tuning_refuses_what_it_would_destroy(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{")
    with pytest.raises(click.ClickException, match=r"not a tuning table.*move it away"):
        read(path, H200)
    write(Table(Device("NVIDIA H100", 90, 132, 50 << 20), []), path)
    with pytest.raises(click.ClickException, match=r"another GPU, NVIDIA H100.*move it away"):
        read(path, H200)
    with pytest.raises(ValueError, match="another GPU, NVIDIA H100"), updating(path, H200):
        raise AssertionError("not reached")


def test_shipped_tables_are_whole() -> None:
    shipped = sorted(_tables.shipped_dir().glob("*.json"))
    assert shipped
    for path in shipped:
        table = Table.read(path)
        assert path.stem == table.device.slug and table.skipped == ""
        shapes = [e.shape for e in table.entries]
        assert len(shapes) == len(set(shapes))


@pytest.mark.slow
@needs_library
def test_nothing_raises_out_of_an_import_or_a_product(tmp_path: Path) -> None:
    """One process with all the broken files, and without a home directory."""
    directory = tmp_path / "tables"
    directory.mkdir()
    for i, content in enumerate(BROKEN.values()):
        (directory / f"broken{i}.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    (directory / "bad.json").write_text(text(GOOD, *BAD_ENTRIES.values()))
    code = """
import torch, hgemm_ops
with hgemm_ops.use_custom_gemm():
    torch.ones(8, 8).half() @ torch.ones(8, 8).half()
torch.ops.hgemm.matmul(torch.ones(8, 8), torch.ones(8, 8))
hgemm_ops.explain(M=72, N=72, K=72, arch="sm_90")
"""
    run = run_python(code, HGEMM_OPS_CACHE_DIR=str(tmp_path), HGEMM_OPS_LOG="warning")
    assert run.returncode == 0, run.stderr
    lines = run.stderr.splitlines()
    assert len(lines) == len(BROKEN) + 1 and all(str(directory) in line for line in lines), run.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_a_directory_that_cannot_be_entered_is_named(own: Path) -> None:
    (own / "mine.json").write_text(text(GOOD))
    (own / "tuned").mkdir()
    own.chmod(0o400)
    try:
        tables, broken = _tables.read_all()
    finally:
        own.chmod(0o700)
    assert tables and len(broken) == 1 and "Permission denied" in broken[0]
