"""CUTLASS, from the headers in the ``nvidia-cutlass`` wheel: three Hopper kernels, each with three raster swizzles.

The source is ``cutlass_gemm.cu`` in this directory. nvcc compiles it into the cache directory when a kernel is used
first. Each kernel takes half a minute.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hgemm_ops import _compiled, _library

from ..suites import Case
from ..workload import Operands
from . import Call, Unavailable

SWIZZLES = (1, 4, 8)
_SOURCE = Path(__file__).with_name("cutlass_gemm.cu")
_FLAGS = (
    "-shared", "-Xcompiler=-fPIC", "-cudart=static", "-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr",
    "-gencode=arch=compute_90a,code=sm_90a",
)  # fmt: skip
_ELEMENTS = {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}


@dataclass(frozen=True)
class Tile:
    """A tile (m, n, 64) on a cluster of 2x1, and its schedule: pingpong or cooperative."""

    m: int
    n: int
    pingpong: bool

    @property
    def name(self) -> str:
        return f"{'pingpong' if self.pingpong else 'cooperative'} {self.m}x{self.n}x64"


TILES = (Tile(128, 192, True), Tile(128, 128, True), Tile(128, 256, False))


def macros(tile: Tile, dtype: str, layout: str) -> tuple[str, ...]:
    """The flags that select a kernel in the source."""
    return (
        f"-DPEER_ELEMENT={_ELEMENTS[dtype]}",
        f"-DPEER_M={tile.m}",
        f"-DPEER_N={tile.n}",
        f"-DPEER_PINGPONG={str(tile.pingpong).lower()}",
        f"-DPEER_B_TRANSPOSED={str(layout[1] == 'T').lower()}",
    )


def _nvcc() -> str:
    from torch.utils.cpp_extension import CUDA_HOME

    homes = [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME"), CUDA_HOME) if home]
    found = shutil.which("nvcc", path=os.pathsep.join([*map(str, homes), os.environ.get("PATH", "")]))
    if not found:
        raise Unavailable("needs nvcc to compile its kernels: set CUDA_HOME or PATH")
    return found


class _Cutlass:
    def __init__(self, version: str, include: Path) -> None:
        self.version = version
        self._include = include
        self._functions: dict[tuple[str, ...], Any] = {}

    def _name(self, arguments: tuple[str, ...]) -> str:
        """The name of the kernel with these macros, a hash of all that goes into it."""
        content = "\0".join([self.version, _SOURCE.read_text(), *_FLAGS, *arguments])
        return f"cutlass-{hashlib.sha256(content.encode()).hexdigest()[:16]}.so"

    def load(self, arguments: tuple[str, ...]) -> ctypes.CDLL:
        """The kernel with these macros, compiled unless an earlier run did."""

        def compiled(directory: Path, when: str) -> Path:
            made = directory / "kernel.so"
            _library.logger.info("compiling a kernel of CUTLASS, %s", when)
            command = [_nvcc(), *_FLAGS, f"-I{self._include}", *arguments, str(_SOURCE), "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode:
                raise Unavailable(f"nvcc failed: {result.stderr.strip().splitlines()[-1:]}")
            return made

        # Several kernels are compiled at the same time, which do not wait for each other.
        return _compiled.load("peers", self._name(arguments), compiled, ctypes.CDLL, patience=0)

    def _function(self, arguments: tuple[str, ...]) -> Any:
        if arguments not in self._functions:
            function = self.load(arguments).peer_gemm
            function.argtypes = [*[c_void_p] * 3, *[c_int] * 4, *[c_int64] * 4, c_int, c_int, c_void_p]
            self._functions[arguments] = function
        return self._functions[arguments]

    def configurations(self, case: Case, operands: Operands) -> Mapping[str, Call]:
        if case.op == "add" or case.fused:
            raise Unavailable("plain matmuls only")
        if case.dtype not in _ELEMENTS or case.layout not in ("NN", "NT"):
            raise Unavailable(f"fp16 and bf16, NN and NT only, not {case.dtype} {case.layout}")
        if case.align < 16:
            raise Unavailable(f"TMA needs rows aligned to 16 bytes, these are to {case.align}")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(self._function, [macros(tile, case.dtype, case.layout) for tile in TILES])
            functions = dict(zip(TILES, found, strict=True))
        return {
            f"{tile.name} swizzle {swizzle}": _call(function, case, swizzle)
            for tile, function in functions.items()
            for swizzle in SWIZZLES
        }


def _call(function: Any, case: Case, swizzle: int) -> Call:
    rows_b, columns_b = (case.n, case.k) if case.layout[1] == "T" else (case.k, case.n)
    lda, ldb = case.k + case.padding, columns_b + case.padding

    def run(x: Operands) -> torch.Tensor:
        out = x.a.new_empty((*x.a.shape[:-1], case.n))
        sm_count = torch.cuda.get_device_properties(x.a.device).multi_processor_count
        stream = torch.cuda.current_stream(x.a.device).cuda_stream
        status = function(
            x.a.data_ptr(), x.b.data_ptr(), out.data_ptr(), case.m, case.n, case.k, case.batch, lda, ldb,
            case.m * lda, rows_b * ldb, swizzle, sm_count, stream,
        )  # fmt: skip
        if status:
            raise Unavailable(f"does not take the case: cutlass::Status {status}")
        return out

    return run


def load() -> _Cutlass:
    try:
        version = importlib.metadata.version("nvidia-cutlass")
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable("nvidia-cutlass is not installed: pip install 'hgemm_ops[peers]'") from None
    package = importlib.util.find_spec("cutlass_library")
    include = Path(package.origin).parent / "source" / "include" if package and package.origin else None
    if include is None or not (include / "cutlass" / "cutlass.h").is_file():
        raise Unavailable(f"nvidia-cutlass {version} has no headers")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise Unavailable("its kernels here are for Hopper (sm_90a)")
    return _Cutlass(version, include)
