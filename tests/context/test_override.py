"""The cache of compiled overrides: who compiles one, and whose is loaded."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ROOT

from hgemm_ops import _files, _library, _override

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

#: Compiles an empty library wherever csrc/aten was to be compiled to, and notes that in a file.
COMPILER = """#!/bin/sh
echo compiled >> {log}
sleep {seconds}
while [ "$1" != -o ]; do shift; done
echo 'extern "C" int made_by_the_test = 1;' | exec c++ -shared -fPIC -x c++ - -o "$2"
"""


class Cache:
    """An empty cache directory, a compiler that is quick, and how often it ran."""

    def __init__(self, directory: Path, seconds: float = 0) -> None:
        self.path, self._log = directory / "of a user" / "cache", directory / "compiler.log"
        self.compiler = directory / "compiler"
        self.compiler.write_text(COMPILER.format(log=self._log, seconds=seconds))
        self.compiler.chmod(0o700)
        self.temporary = directory / "tmp"
        self.temporary.mkdir()

    @property
    def folder(self) -> Path:
        return self.path / "aten"

    @property
    def compiled(self) -> Path:
        return self.folder / _override._name()

    @property
    def runs(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0

    def plant(self) -> Path:
        """Puts a file there that does not load."""
        self.folder.mkdir(mode=0o700, parents=True)
        self.compiled.write_text("somebody else's")
        self.compiled.chmod(0o700)
        return self.compiled


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    made = Cache(tmp_path)
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(made.path))
    monkeypatch.setenv("CXX", str(made.compiler))
    monkeypatch.setattr("tempfile.tempdir", str(made.temporary))
    return made


def load() -> None:
    assert _override._compiled().made_by_the_test


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_compiled_once_into_a_folder_of_this_user_alone(
    cache: Cache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o002)
    try:
        load()
    finally:
        os.umask(before)
    assert {mode(path) for path in (cache.path.parent, cache.path, cache.folder, cache.compiled)} == {0o700}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "once" in caplog.messages[0]
    load()
    assert cache.runs == 1 and len(caplog.records) == 1
    assert list(cache.folder.iterdir()) == [cache.compiled] and not list(cache.temporary.iterdir())


def to_somebody_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root's rights, everybody's files become somebody else's."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        mine = os.geteuid()
        monkeypatch.setattr("os.geteuid", lambda: mine + 1)


def link(cache: Cache) -> None:
    elsewhere = cache.path / "elsewhere.so"
    cache.compiled.rename(elsewhere)
    cache.compiled.symlink_to(elsewhere)


def pipe(cache: Cache) -> None:
    cache.compiled.unlink()
    os.mkfifo(cache.compiled, 0o600)


#: How a library that was planted is not to be trusted, and what the log says about it.
UNTRUSTED: dict[str, tuple[Callable[[Cache, pytest.MonkeyPatch], None], str]] = {
    "a folder for everybody": (lambda cache, _: cache.folder.chmod(0o777), "whose mode is 777"),
    "a folder with the sticky bit": (lambda cache, _: cache.folder.chmod(0o1777), "whose mode is 1777"),
    "a folder for the group": (lambda cache, _: cache.folder.chmod(0o770), "whose mode is 770"),
    "a file for everybody": (lambda cache, _: cache.compiled.chmod(0o606), "whose mode is 606"),
    "a file for the group": (lambda cache, _: cache.compiled.chmod(0o775), "whose mode is 775"),
    "somebody else's folder": (lambda cache, patch: to_somebody_else(cache.folder, patch), "belongs to user"),
    "somebody else's file": (lambda cache, patch: to_somebody_else(cache.compiled, patch), "belongs to user"),
    "a symbolic link": (lambda cache, _: link(cache), "is a symbolic link"),
    "a pipe": (lambda cache, _: pipe(cache), "is not a regular file"),
    "a file that does not load": (lambda cache, _: None, ""),
}


@pytest.mark.parametrize("name", UNTRUSTED)
def test_what_others_may_have_written_is_not_loaded(
    cache: Cache, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = cache.plant()
    spoil, why = UNTRUSTED[name]
    spoil(cache, monkeypatch)
    before = os.lstat(planted)
    load()
    assert cache.runs == 1
    (message,) = caplog.messages
    assert "for this process alone" in message and why in message
    assert os.lstat(planted)[:8] == before[:8], "it is left as it was"
    assert list(cache.folder.iterdir()) == [planted] and not list(cache.temporary.iterdir())


def test_a_folder_that_cannot_be_made(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    cache.path.parent.write_text("a file")
    load()
    assert cache.runs == 1
    assert "for this process alone" in caplog.text and "Not a directory" in caplog.text


def test_the_cache_directory_may_be_a_link(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    """Home directories often are."""
    real = cache.path.parent / "real"
    real.mkdir(parents=True)
    cache.path.symlink_to(real)
    load()
    load()
    assert cache.runs == 1 and len(caplog.records) == 1


def test_what_was_checked_is_what_is_loaded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    require = _files._require_private

    def exchange(descriptor: int, name: str) -> None:
        require(descriptor, name)
        if name == cache.compiled.name:
            other = cache.path / "other.so"
            other.write_text("somebody else's")
            other.replace(cache.compiled)

    monkeypatch.setattr(_files, "_require_private", exchange)
    load()
    assert cache.runs == 1


def test_of_several_processes_one_compiles(tmp_path: Path) -> None:
    cache = Cache(tmp_path, seconds=1)
    environment = {
        **os.environ, "HGEMM_OPS_CACHE_DIR": str(cache.path), "CXX": str(cache.compiler), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    code = "from hgemm_ops import _override; assert _override._compiled().made_by_the_test"
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(300) for process in started] == [0, 0, 0]
    assert cache.runs == 1


def test_of_several_threads_one_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second registration would take the first one for torch's kernels."""
    starts: list[int] = []

    def load() -> bool:
        starts.append(1)
        time.sleep(0.05)
        return False

    def forget() -> None:
        _override.reason.cache_clear()
        _override._try_to_start.cache_clear()

    monkeypatch.setattr(_library, "load", load)
    monkeypatch.setattr(_library, "reason", lambda: "of the test")
    forget()
    try:
        threads = [threading.Thread(target=_override.start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(starts) == 1 and _override.reason() == "no native library: of the test"
    finally:
        forget()
