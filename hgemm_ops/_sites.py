"""Finds the module that each matmul belongs to, such as ``model.layers.0.mlp.up_proj``, by hooks on all modules."""

import os
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from . import _forks, _native

# The attribute in which torch.compile(module) keeps the module. It is left out of names.
_COMPILED = "_orig_mod"

#: The names of the library's sites, by number. The library itself defines the first two: no site, and autograd.
_names: list[str] = ["", "(backward)"]
_numbers: dict[str, int] = {}
_MOST_NAMES = 65536  # bounds the memory where a program makes new modules and classes without end

# For each outermost module: the names of its modules.
_of_modules: weakref.WeakKeyDictionary[nn.Module, weakref.WeakKeyDictionary[nn.Module, str]] = (
    weakref.WeakKeyDictionary()
)


class _Running(threading.local):
    """The modules whose forward is running on this thread.

    ``before`` has, for each of them, the site that was current when it started. ``root`` is the outermost module.
    """

    root: nn.Module | None = None

    def __init__(self) -> None:
        self.before: list[int] = []


_running = _Running()
_lock = _forks.lock()
_users: list[tuple[object, int]] = []  # who has called start(), with the thread, and not stop()
_hooks: list[RemovableHandle] = []


def name_of(site: int) -> str:
    """Returns the name of a site: "" if no module was running, "(backward)" for the matmuls of autograd."""
    return _names[site]


def start(user: object, thread: int = 0) -> None:
    """Starts counting matmuls by site, until :func:`stop` has been called as often as this function.

    If ``thread`` is not 0, a child of a fork that does not have this thread has stopped, too.
    """
    with _lock:
        _users.append((user, thread))
        if not _hooks:
            _hooks.append(register_module_forward_pre_hook(_enter))
            _hooks.append(register_module_forward_hook(_leave, always_call=True))
            _native.lib().hgemm_sites_enable(True)


def stop(user: object) -> None:
    """Ends the last call of :func:`start` by this user on this thread, else on another thread.

    In a child of a fork there may be none: a generator that another thread has driven goes on there. While this
    function runs, the garbage collector may call it on this thread, to close a generator that is inside of a context.
    """
    with _lock:
        calls = [call for call in tuple(_users) if call[0] is user]
        own = (user, threading.get_ident())
        if calls:
            _users.remove(own if own in calls else calls[-1])
            _stop_if_unused()


def _stop_if_unused() -> None:
    """Removes the hooks if nobody needs them any more. The caller holds the lock."""
    if not _users:
        _native.lib().hgemm_sites_enable(False)
        while _hooks:
            _hooks.pop().remove()


def _after_fork() -> None:
    """Runs in the child of a fork, where the library has ended the contexts of other threads."""
    _users[:] = [(user, thread) for user, thread in _users if thread in (0, threading.get_ident())]
    if _hooks:
        _stop_if_unused()


os.register_at_fork(after_in_child=_after_fork)


def _enter(module: nn.Module, args: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if not _running.before:
        _running.root = module
    _running.before.append(_native.lib().hgemm_site_set(_number(_name(module))))


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    if torch.compiler.is_compiling() or not _running.before:  # empty if the hooks are newer than this forward
        return
    _native.lib().hgemm_site_set(_running.before.pop())
    if not _running.before:
        _running.root = None


def _number(name: str) -> int:
    """Returns the number of the site with this name, and adds it if it is new; 0 if there is no place for another."""
    number = _numbers.get(name)
    if number is None:
        if len(_names) >= _MOST_NAMES:
            return 0
        with _lock:
            number = _numbers.setdefault(name, len(_names))
            if number == len(_names):
                _names.append(name)
    return number


def _name(module: nn.Module) -> str:
    """Returns the dotted name of a module below the outermost module that is running."""
    root = _running.root
    assert root is not None
    names = _of_modules.get(root)
    if names is None or module not in names:
        names = _of_modules[root] = weakref.WeakKeyDictionary({m: name for name, m in root.named_modules()})
    # The root itself has no name, and a module may run without being registered anywhere.
    name = ".".join(part for part in names.get(module, "").split(".") if part != _COMPILED)
    return name or type(module).__name__
