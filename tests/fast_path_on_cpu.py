"""A pytest plugin: the ops' way past autograd, as ``test_fast_path.py`` built it for the CPU, in this whole process."""

from __future__ import annotations

import ctypes
import os

import torch

import hgemm_ops  # noqa: F401  (registers torch.ops.hgemm)
from hgemm_ops.ops import autograd

library = os.environ["HGEMM_FAST_PATH_ON_CPU"]
torch.ops.load_library(library)
start = ctypes.CDLL(library).hgemm_autograd_start
start.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
assert start(*autograd.fast_path_keys()) == 0
keep = ctypes.PyDLL(library).hgemm_autograd_keep
keep.restype, keep.argtypes = None, [ctypes.py_object, ctypes.c_char_p]
autograd.keep_exception = lambda error: keep(error, str(error).encode())
