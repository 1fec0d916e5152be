"""A pytest plugin: the ops' way past autograd, as ``test_fast_path.py`` built it for the CPU, in this whole process."""

from __future__ import annotations

import ctypes
import os

import torch

import hgemm_ops  # noqa: F401  (registers torch.ops.hgemm)
from hgemm_ops import _key_sets, _native, _python_call
from hgemm_ops.ops import autograd

path = os.environ["HGEMM_FAST_PATH_ON_CPU"]
torch.ops.load_library(path)
library = ctypes.CDLL(path)
_native.declare(library, ["hgemm_autograd_start", "hgemm_thread_keys", "hgemm_find_word", "hgemm_python_start"])
assert library.hgemm_autograd_start(_key_sets.key_sets(library, torch._C.DispatchKey.CPU)) == 0
make = _python_call.start(library, path)
assert make is not None
_python_call.maker = lambda: make  # type: ignore[assignment]
calls_without_dispatcher = library.calls_without_dispatcher
keep = ctypes.PyDLL(path).hgemm_autograd_keep
keep.restype, keep.argtypes = None, [ctypes.py_object, ctypes.c_char_p]
autograd.keep_exception = lambda error: keep(error, str(error).encode())
