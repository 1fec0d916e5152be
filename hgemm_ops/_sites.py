"""Names for products: the module that they belong to, as ``model.layers.0.mlp.up_proj``, by hooks on all modules."""

import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from hgemm_ops import _native

# Where torch.compile(module) keeps the module: no part of a name that people know it by.
_COMPILED = "_orig_mod"

#: The names of the library's sites, by number. The first two are its own: none, and autograd.
_names: list[str] = ["", "(backward)"]
_numbers: dict[str, int] = {}
_MOST_NAMES = 65536  # classes and modules that are made without end must not fill the memory

# root -> each of its modules -> name
_of_modules: weakref.WeakKeyDictionary[nn.Module, weakref.WeakKeyDictionary[nn.Module, str]] = (
    weakref.WeakKeyDictionary()
)


class _Running(threading.local):
    """The modules whose forward runs on this thread: the site before each, and the outermost."""

    root: nn.Module | None = None

    def __init__(self) -> None:
        self.before: list[int] = []


_running = _Running()
_lock = threading.Lock()
_users = 0
_hooks: list[RemovableHandle] = []


def name_of(site: int) -> str:
    """The module's name; "" where no module ran, "(backward)" for the gradient's products."""
    return _names[site]


def start() -> None:
    """Has products counted by site until as many calls of :func:`stop`."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _hooks.append(register_module_forward_pre_hook(_enter))
            _hooks.append(register_module_forward_hook(_leave, always_call=True))
            _native.lib().hgemm_sites_enable(True)


def stop() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _native.lib().hgemm_sites_enable(False)
            while _hooks:
                _hooks.pop().remove()


def _enter(module: nn.Module, args: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if not _running.before:
        _running.root = module
    _running.before.append(_native.lib().hgemm_site_set(_number(_name(module))))


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    if torch.compiler.is_compiling() or not _running.before:  # or hooked since it was entered
        return
    _native.lib().hgemm_site_set(_running.before.pop())
    if not _running.before:
        _running.root = None


def _number(name: str) -> int:
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
    root = _running.root
    assert root is not None
    names = _of_modules.get(root)
    if names is None or module not in names:
        names = _of_modules[root] = weakref.WeakKeyDictionary({m: name for name, m in root.named_modules()})
    # The root itself has no name, and a module may run without being registered anywhere.
    name = ".".join(part for part in names.get(module, "").split(".") if part != _COMPILED)
    return name or type(module).__name__
