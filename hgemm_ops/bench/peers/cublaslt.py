"""cuBLASLt: the best of the heuristic's first 16 algorithms. torch takes the first.

It is called through ctypes, from the library that torch itself has loaded. The values of enumerations are from
``cublasLt.h`` (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api), and are part of its ABI.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from typing import Any

import torch

from ..suites import Case
from ..workload import Operands
from . import Call, Unavailable

HEURISTICS = 16
_WORKSPACE_BYTES = 32 << 20  # as much as torch gives it on Hopper

_DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType_t
_COMPUTE_32F = 68
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MAX_WORKSPACE, _REDUCTION_SCHEMES = 1, 3  # cublasLtMatmulPreferenceAttributes_t
# cublasLtEpilogue_t by (bias, activation); its GELU is the tanh form.
_EPILOGUES = {
    (False, "none"): 1,
    (False, "relu"): 2,
    (False, "gelu_tanh"): 32,
    (True, "none"): 4,
    (True, "relu"): 6,
    (True, "gelu_tanh"): 36,
}


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class _Library:
    """The cuBLASLt functions that are used. A status other than 0 raises ``Unavailable``."""

    def __init__(self, path: str) -> None:
        self._functions = ctypes.CDLL(path)
        self._functions.cublasLtGetVersion.restype = c_size_t
        self.version = str(self._functions.cublasLtGetVersion())

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._functions, name)

        def checked(*arguments: Any) -> None:
            if status := function(*arguments):
                raise Unavailable(f"{name} returned status {status}")

        return checked

    def create(self, kind: str, *arguments: Any) -> c_void_p:
        """A new object of ``cublasLt<kind>``."""
        created = c_void_p()
        getattr(self, f"cublasLt{kind}Create")(byref(created), *arguments)
        return created

    def set(self, kind: str, target: c_void_p, attribute: int, value: Any) -> None:
        """Sets an attribute of a ``cublasLt<kind>`` to a ctypes value."""
        getattr(self, f"cublasLt{kind}SetAttribute")(target, attribute, byref(value), c_size_t(ctypes.sizeof(value)))


class _Product:
    """One case, described to the library. cuBLASLt is column-major, so it computes D^T = B^T A^T.

    The descriptors take a few hundred bytes for each case, and live as long as the process.
    """

    def __init__(
        self, library: _Library, handle: c_void_p, workspace: torch.Tensor, case: Case, bias: torch.Tensor | None
    ) -> None:
        self._library, self._handle, self._workspace, self._case = library, handle, workspace, case
        data_type = _DATA_TYPES[case.dtype]
        self._matmul = library.create("MatmulDesc", c_int(_COMPUTE_32F), c_int(_DATA_TYPES["float32"]))
        transposed = {name: order == "T" for name, order in zip("ab", case.layout, strict=True)}
        for attribute, name in ((_TRANSPOSE_A, "b"), (_TRANSPOSE_B, "a")):
            library.set("MatmulDesc", self._matmul, attribute, c_int32(transposed[name]))
        epilogue = _EPILOGUES[case.bias, case.activation]
        library.set("MatmulDesc", self._matmul, _EPILOGUE, c_int32(epilogue))
        self._set_bias(bias)  # the heuristic looks at the alignment of the bias

        def layout(rows: int, columns: int, padding: int) -> c_void_p:
            """Describes a matrix that is stored row by row. To cuBLASLt it is a column-major matrix."""
            leading = columns + padding
            made = library.create("MatrixLayout", c_int(data_type), c_uint64(columns), c_uint64(rows), c_int64(leading))
            library.set("MatrixLayout", made, _BATCH_COUNT, c_int32(case.batch))
            library.set("MatrixLayout", made, _BATCH_STRIDE, c_int64(rows * leading))
            return made

        stored_a = (case.k, case.m) if transposed["a"] else (case.m, case.k)
        stored_b = (case.n, case.k) if transposed["b"] else (case.k, case.n)
        self._a, self._b = layout(*stored_a, case.padding), layout(*stored_b, case.padding)
        self._d = layout(case.m, case.n, 0)

    def _set_bias(self, bias: torch.Tensor | None) -> None:
        if bias is not None:
            self._library.set("MatmulDesc", self._matmul, _BIAS_POINTER, c_void_p(bias.data_ptr()))

    def heuristics(self, split_k: bool = True) -> list[_Heuristic]:
        preference = self._library.create("MatmulPreference")
        if not split_k:
            self._library.set("MatmulPreference", preference, _REDUCTION_SCHEMES, c_uint32(0))
        self._library.set("MatmulPreference", preference, _MAX_WORKSPACE, c_uint64(self._workspace.nbytes))
        results, count = (_Heuristic * HEURISTICS)(), c_int()
        self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._matmul, self._b, self._a, self._d, self._d, preference, c_int(HEURISTICS), results,
            byref(count),
        )  # fmt: skip
        return [found for found in results[: count.value] if found.state == 0]

    def call(self, heuristic: _Heuristic) -> Call:
        library, case, one, zero = self._library, self._case, c_float(1), c_float(0)

        def run(x: Operands) -> torch.Tensor:
            out = x.a.new_empty((*x.a.shape[:-1], case.n))
            self._set_bias(x.bias)
            stream = torch.cuda.current_stream(x.a.device).cuda_stream
            library.cublasLtMatmul(
                self._handle, self._matmul, byref(one), c_void_p(x.b.data_ptr()), self._b, c_void_p(x.a.data_ptr()),
                self._a, byref(zero), c_void_p(out.data_ptr()), self._d, c_void_p(out.data_ptr()), self._d,
                heuristic.algorithm, c_void_p(self._workspace.data_ptr()), c_size_t(self._workspace.nbytes),
                c_void_p(stream),
            )  # fmt: skip
            return out

        return run


class _CublasLt:
    def __init__(self, library: _Library) -> None:
        self.version = library.version
        self._library, self._handle = library, library.create("")
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def _product(self, case: Case, operands: Operands) -> _Product:
        if case.op == "add":
            raise Unavailable("multiplies matrices only")
        if (case.bias, case.activation) not in _EPILOGUES:
            raise Unavailable(f"has no epilogue for {case.activation}")
        return _Product(self._library, self._handle, self._workspace, case, operands.bias)

    def configurations(self, case: Case, operands: Operands) -> Mapping[str, Call]:
        product = self._product(case, operands)
        return {f"heuristic {i}": product.call(found) for i, found in enumerate(product.heuristics(), 1)}


class Fixed(_CublasLt):
    """Uses one algorithm for any number of rows, which does not split K.

    It is the first one that the heuristic gives for ``ROWS`` rows.
    """

    ROWS = 4096

    def configurations(self, case: Case, operands: Operands) -> Mapping[str, Call]:
        found = self._product(replace(case, m=self.ROWS), operands).heuristics(split_k=False)
        return {f"of {self.ROWS} rows": self._product(case, operands).call(first) for first in found[:1]}


def load(kind: type[_CublasLt] = _CublasLt) -> _CublasLt:
    if torch.version.cuda is None or not torch.cuda.is_available():
        raise Unavailable("needs a torch built for CUDA, and a GPU")
    torch.cuda.synchronize()  # creates the CUDA context, which the next line needs
    torch.cuda.current_blas_handle()  # loads the library, from wherever this torch has it
    name = f"libcublasLt.so.{torch.version.cuda.split('.')[0]}"
    try:
        return kind(_Library(name))
    except OSError as error:
        raise Unavailable(f"cannot load {name}: {error}") from None
