"""Files that several processes write and read at once."""

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace(path: Path, text: str, suffix: str = ".new") -> None:
    """Puts ``text`` in the place of ``path``, at once: who reads it finds the old file or the new one, also where this
    process is killed. Writers that may meet there need a lock, or a ``suffix`` each, of the file that is renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + suffix)
    with open(new, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@contextmanager
def locked(path: Path, patience: float = math.inf) -> Iterator[None]:
    """Other processes wait before this block, for ``patience`` seconds at most; then TimeoutError. The lock is a file
    beside ``path``; the system takes it back from a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(f"{path}: another process has held its lock for {patience} s") from None
                time.sleep(0.005)
        yield
