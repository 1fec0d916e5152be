"""Locks that a process may fork around: the child finds them free, although it has none of the other threads."""

import os
import threading


def lock() -> threading.RLock:
    """Returns a new lock. A fork waits for the thread that holds it, so that the child finds finished work.

    Locks are nested in the order in which they were made, the last one outermost. Make them where a module is imported,
    because they are never removed.
    """
    made = threading.RLock()
    os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made
