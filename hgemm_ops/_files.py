"""Files that several processes read and write at the same time, and files that nobody else may have written.

The second kind is for code. Tuning tables need no such care: they are JSON, and every entry of them is checked.
"""

import contextlib
import errno
import fcntl
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace(path: Path, text: str, suffix: str = ".new") -> None:
    """Replaces the file ``path`` by ``text`` atomically.

    A reader finds either the old file or the new one, even if this process is killed. The text is first written to a
    temporary file, named ``path`` plus ``suffix``, and then renamed. Processes that may write ``path`` at the same time
    need a lock, or a different ``suffix`` each. A device, a pipe or a stream of this process is not replaced: the text
    is written to it. Of a symbolic link, the file that it points to is replaced.
    """
    if is_stream(path):
        # /dev/stdout is not opened by name: if a file is behind it, the new descriptor has an offset of its own, and
        # what this process, its parent or its children print later is written over the text.
        descriptor = _descriptor(path)
        with open(path if descriptor is None else os.dup(descriptor), "w", encoding="utf-8") as stream:
            stream.write(text)
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + suffix)
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe, or a name of a stream of this process, such as /dev/stderr.

    The stream may be redirected to a regular file, which belongs to whoever started this process, or it may be closed.
    """
    return _descriptor(path) is not None or (path.exists() and not (path.is_file() or path.is_dir()))


def _descriptor(path: Path) -> int | None:
    """Returns the file descriptor of this process that a path names, as /dev/stderr does; None if it names none."""
    if number := re.fullmatch(r"(?:/dev/fd|/proc/self/fd)/(\d+)", str(path)):
        return int(number[1])
    return {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))


@contextmanager
def locked(path: Path, patience: float = math.inf) -> Iterator[None]:
    """Holds an exclusive lock while the block runs, so that other processes wait before theirs.

    The lock is a file beside ``path``. The operating system releases it if the process dies. TimeoutError if another
    process still holds it after ``patience`` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        if not _lock(lock.fileno(), patience):
            raise TimeoutError(f"{path}: another process has held its lock for {patience} s")
        yield


def _lock(descriptor: int, patience: float) -> bool:
    """Waits for an exclusive lock of an open file. Returns False if another process keeps it for ``patience`` seconds.

    It ends when the file is closed.
    """
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)


def _require_private(descriptor: int, name: str) -> None:
    """Raises PermissionError if anybody but this user and root owns an open file or folder or may write it."""
    status = os.fstat(descriptor)
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{name} belongs to user {status.st_uid}, not to user {os.geteuid()} or root")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):  # an access list that lets others write shows up here, too
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(f"other users may write {name}, whose mode is {mode:o}: run chmod go-w on it")


def open_private_folder(path: Path) -> int:
    """Opens a folder that nobody but this user and root may write, and returns its descriptor.

    Missing directories are made, with mode 700. The folders above it do not count: who may write these may put another
    folder in the place of this one, but it would belong to them, and files are opened and made through the descriptor.

    Raises:
        PermissionError: the folder belongs to somebody else, or others may write it.
        OSError: it cannot be made or opened.
    """
    for directory in (*reversed(path.parents), path):
        if not directory.exists():
            with contextlib.suppress(FileExistsError):  # another process has made it meanwhile
                directory.mkdir(mode=0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _require_private(folder, str(path))
    except BaseException:
        os.close(folder)
        raise
    return folder


def open_private(name: str, folder: int) -> int:
    """Opens a file in an open folder that nobody but this user and root may write, and returns its descriptor.

    Raises:
        FileNotFoundError: there is no such file.
        PermissionError: the file belongs to somebody else, or others may write it, or it is not a regular file. A
            symbolic link is none, wherever it points.
    """
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermissionError(f"{name} is a symbolic link") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise PermissionError(f"{name} is not a regular file")
        _require_private(file, name)
    except BaseException:
        os.close(file)
        raise
    return file


def copy_into_folder(source: Path, folder: int, name: str) -> None:
    """Copies a file into an open folder, atomically and with mode 700."""
    temporary = f".{name}.{secrets.token_hex(8)}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode=0o700, dir_fd=folder)
    try:
        with open(file, "wb") as output:
            output.write(source.read_bytes())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise


@contextmanager
def locked_folder(folder: int, patience: float) -> Iterator[None]:
    """Holds an exclusive lock of an open folder while the block runs, if it can be had within ``patience`` seconds.

    Without the lock, which not every file system has, the block runs all the same: it only saves work.
    """
    with contextlib.suppress(OSError):
        _lock(folder, patience)
    yield
