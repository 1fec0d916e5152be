"""Calls cublasGemmEx directly, with float32 or float16 accumulation, for the ladder's tables.

torch chooses the accumulator by a global flag only. The library is the one that torch has loaded.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_float, c_int, c_size_t, c_uint16, c_void_p
from typing import Any

import torch
from torch import Tensor

# cublas_api.h and library_types.h
_OP_N = 0
_R_32F, _R_16F = 0, 2
_COMPUTE_16F, _COMPUTE_32F = 64, 68
_GEMM_DEFAULT = -1

_WORKSPACE_BYTES = 32 << 20  # what cuBLAS recommends for Hopper


@functools.cache
def _library() -> ctypes.CDLL:
    assert torch.version.cuda is not None
    library = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.partition('.')[0]}")
    library.cublasCreate_v2.argtypes = [c_void_p]
    library.cublasSetStream_v2.argtypes = [c_void_p, c_void_p]
    library.cublasSetWorkspace_v2.argtypes = [c_void_p, c_void_p, c_size_t]
    sizes: list[Any] = [c_int] * 3
    matrix: list[Any] = [c_void_p, c_int, c_int]  # address, type, leading dimension
    product = [c_void_p, c_int, c_int, *sizes, c_void_p, *matrix, *matrix, c_void_p, *matrix, c_int, c_int]
    library.cublasGemmEx.argtypes = product
    return library


def _check(status: int, call: str) -> None:
    if status != 0:
        raise RuntimeError(f"{call} failed with status {status}")


@functools.cache
def _handle(device: int) -> tuple[c_void_p, Tensor]:
    handle = c_void_p()
    _check(_library().cublasCreate_v2(byref(handle)), "cublasCreate")
    return handle, torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=torch.device("cuda", device))


def matmul(a: Tensor, b: Tensor, *, half_accumulation: bool = False) -> Tensor:
    """``a @ b`` of contiguous float16 or float32 matrices on the current stream; float32 without TF32."""
    (m, k), n = a.shape, b.size(1)
    out = a.new_empty(m, n)
    half = a.dtype == torch.float16
    if not (a.is_contiguous() and b.is_contiguous() and a.dtype == b.dtype and (half or a.dtype == torch.float32)):
        raise ValueError("cublas.matmul: a and b must be contiguous and both float16 or both float32")
    handle, workspace = _handle(a.device.index)
    library, stream = _library(), torch.cuda.current_stream(a.device).cuda_stream
    _check(library.cublasSetStream_v2(handle, stream), "cublasSetStream")
    # Setting the stream resets the workspace, so it is set afterwards. Without one a captured call would allocate.
    _check(library.cublasSetWorkspace_v2(handle, workspace.data_ptr(), _WORKSPACE_BYTES), "cublasSetWorkspace")
    dtype = _R_16F if half else _R_32F
    # Scalars have the type of the accumulator; 0x3c00 is 1.0 in float16.
    one, zero = (c_uint16(0x3C00), c_uint16(0)) if half_accumulation else (c_float(1), c_float(0))
    # cuBLAS takes the matrices as column-major, which is their transpose: C^T = B^T A^T.
    status = library.cublasGemmEx(
        *(handle, _OP_N, _OP_N, n, m, k, byref(one)),
        *(b.data_ptr(), dtype, n, a.data_ptr(), dtype, k, byref(zero), out.data_ptr(), dtype, n),
        *(_COMPUTE_16F if half_accumulation else _COMPUTE_32F, _GEMM_DEFAULT),
    )
    _check(status, "cublasGemmEx")
    return out
