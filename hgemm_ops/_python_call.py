"""The operators as functions that reach their CUDA implementation without torch's way from Python to an operator.

``csrc/torch/python_call.cc`` makes them, says for which calls they do, and looks into Python's objects for that. Where
in an object there is what it looks for is found out here, by trying; where that fails, or this torch or Python lacks
something, the functions are the operators themselves.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import c_uint64, c_void_p, py_object
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hgemm_ops import _library, _native
from hgemm_ops._key_sets import find_word
from hgemm_ops.ops.schema import SIGNATURES

_OPS = tuple(SIGNATURES)  # by the number that csrc/dispatch/canonical.h gives them
_OBJECT_WORDS = 2  # reference count and type, which are all that Python promises
# at::Tensor to PyObject, and how torch's releases differ in taking it: by rvalue, by value, by reference. In all of
# them the address of one is handed over.
_WRAP = (
    "_Z16THPVariable_WrapON2at10TensorBaseE",
    "_Z16THPVariable_WrapN2at10TensorBaseE",
    "_Z16THPVariable_WrapRKN2at10TensorBaseE",
)


def layout(library: ctypes.CDLL) -> _native.PythonLayout | None:
    """What the library is to know of Python's objects and torch's; None if that is not clear."""
    tensors = [torch.empty(1), Parameter(torch.empty(1)), torch.empty(1, dtype=torch.float16)]
    objects = [id(t) for t in tensors]
    types = find_word(library, objects, _OBJECT_WORDS, [id(type(t)) for t in tensors])
    impls = find_word(library, objects, Tensor.__basicsize__ // ctypes.sizeof(c_uint64), [t._cdata for t in tensors])
    wrap = _wrap()
    if types is None or impls is None or wrap is None:
        return None
    return _native.PythonLayout(id(Tensor), id(Parameter), id(None), wrap, types, impls)


def _wrap() -> int | None:
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_python.so"))
    except OSError:
        return None
    for name in _WRAP:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), c_void_p).value
    return None


def start(library: ctypes.CDLL, path: str) -> Callable[..., Any] | None:
    """What makes functions of the library at ``path``: ``(op, variant, static_weights, fallback)``. None where it
    cannot."""
    found = layout(library)
    if found is None or library.hgemm_python_start(found) != 0:
        return None
    make = ctypes.PyDLL(path).hgemm_python_function
    make.restype, make.argtypes = py_object, [ctypes.c_int, ctypes.c_int, ctypes.c_int, py_object]
    return make


@functools.cache
def maker() -> Callable[..., Any] | None:
    """``start`` of the package's library, once."""
    return start(_native.lib(), str(_library.path())) if _library.load() else None


def function(
    op: str, fallback: Callable[..., Any], *, variant: int = _native.AUTO, static_weights: bool = False
) -> Callable[..., Any]:
    """``fallback``, which calls the operator ``op`` with these options, or a quicker function that does.

    It takes the operands alone, by position, and is for eager code: torch.compile does not know it.
    """
    make = maker()
    return fallback if make is None else make(_OPS.index(op), variant, static_weights, fallback)
