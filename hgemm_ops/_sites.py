"""Names for call sites: the module a product belongs to, as ``model.layers.0.mlp.up_proj``. Never on the hot path."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from types import FrameType

from torch import Tensor, nn

# Where torch.compile(module) keeps the module: no part of a name that people know it by.
_COMPILED = "_orig_mod"

# root -> each of its modules -> name
_names: weakref.WeakKeyDictionary[nn.Module, weakref.WeakKeyDictionary[nn.Module, str]] = weakref.WeakKeyDictionary()


def of_parameter(frame: FrameType, parameter: Tensor) -> str:
    """The module that holds ``parameter``: the one running, or else whichever of the model's."""
    modules = list(_modules(frame))
    if not modules:
        return of_line(frame)
    inner, root = modules[0], modules[-1]
    if any(p is parameter for p in inner.parameters(recurse=False)):
        return _name(root, inner)
    for name, p in root.named_parameters():
        if p is parameter:
            return _unwrapped(name.rpartition(".")[0]) or type(root).__name__
    return of_line(frame)


def of_line(frame: FrameType) -> str:
    """``LlamaAttention modeling_llama.py:215``; outside of modules ``step train.py:12``."""
    generated = frame.f_code.co_filename.startswith("<eval_with_key>")  # by torch.fx
    if generated or str(frame.f_globals.get("__name__")).startswith("torch._inductor."):
        return "(compiled graph)"
    module = next(_modules(frame), None)
    owner = frame.f_code.co_name if module is None else type(module).__name__
    return f"{owner} {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _modules(frame: FrameType | None) -> Iterator[nn.Module]:
    """The modules whose methods are running, innermost first."""
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module):
                yield first._modules.get(_COMPILED) or first
        frame = frame.f_back


def _name(root: nn.Module, module: nn.Module) -> str:
    names = _names.get(root)
    if names is None or module not in names:
        names = _names[root] = weakref.WeakKeyDictionary({m: name for name, m in root.named_modules()})
    # The root itself has no name, and a module may run without being registered anywhere.
    return _unwrapped(names.get(module, "")) or type(module).__name__


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != _COMPILED)
