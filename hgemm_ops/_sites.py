"""Names for call sites: the module a product belongs to, as ``model.layers.0.mlp.up_proj``. Never on the hot path."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from types import FrameType

from torch import Tensor, nn

# root -> id of each of its modules -> name
_names: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()


def of_parameter(frame: FrameType, parameter: Tensor) -> str:
    """The module that holds ``parameter``: the one running, or else whichever of the model's."""
    modules = list(_modules(frame))
    if not modules:
        return of_line(frame)
    inner, root = modules[0], modules[-1]
    if not any(p is parameter for p in inner.parameters(recurse=False)):
        for name, p in root.named_parameters():
            if p is parameter:
                return name.rpartition(".")[0] or type(root).__name__
    return _name(root, inner)


def of_line(frame: FrameType) -> str:
    """``LlamaAttention modeling_llama.py:215``; outside of modules ``step train.py:12``."""
    if frame.f_code.co_filename.startswith("<eval_with_key>"):  # what torch.fx generates
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
                yield first
        frame = frame.f_back


def _name(root: nn.Module, module: nn.Module) -> str:
    names = _names.get(root)
    if names is None or id(module) not in names:
        names = _names[root] = {id(m): name for name, m in root.named_modules()}
    # The root itself has no name, and a module may run without being registered anywhere.
    return names.get(id(module)) or type(module).__name__
