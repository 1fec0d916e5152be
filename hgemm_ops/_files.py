"""Files that several processes read and write at the same time."""

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace(path: Path, text: str, suffix: str = ".new") -> None:
    """Replaces the file ``path`` by ``text`` atomically.

    A reader finds either the old file or the new one, even if this process is killed. The text is first written to a
    temporary file, named ``path`` plus ``suffix``, and then renamed. Processes that may write ``path`` at the same time
    need a lock, or a different ``suffix`` each.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + suffix)
    with open(new, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@contextmanager
def locked(path: Path, patience: float = math.inf) -> Iterator[None]:
    """Holds an exclusive lock while the block runs, so that other processes wait before theirs.

    The lock is a file beside ``path``. The operating system releases it if the process dies. TimeoutError if another
    process still holds it after ``patience`` seconds.
    """
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
