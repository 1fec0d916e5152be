"""QuACK's GEMM (CuTe DSL), from the ``quack-kernels`` wheel where it is installed. Written for version 0.6.5."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..suites import Case
from ..workload import Operands
from . import Call, Unavailable


@dataclass(frozen=True)
class Config:
    m: int
    n: int
    cluster: tuple[int, int]
    pingpong: bool

    @property
    def name(self) -> str:
        schedule = "pingpong" if self.pingpong else "cooperative"
        return f"{schedule} {self.m}x{self.n} cluster {self.cluster[0]}x{self.cluster[1]}"


CONFIGS = (
    Config(128, 128, (2, 1), True),
    Config(128, 160, (2, 1), True),
    Config(128, 192, (2, 1), True),
    Config(128, 192, (1, 2), True),
    Config(128, 208, (2, 1), True),
    Config(192, 128, (2, 1), True),
    Config(128, 256, (2, 1), False),
    Config(256, 128, (2, 1), False),
    Config(256, 192, (2, 1), False),
)


class _Quack:
    def __init__(self, version: str, gemm: Any) -> None:
        self.version = version
        self._gemm = gemm

    def _call(self, config: Config) -> Call:
        def run(x: Operands) -> torch.Tensor:
            out = x.a.new_empty((*x.a.shape[:-1], x.b.shape[-1]))
            try:
                self._gemm(
                    x.a, x.b.mT, out, None, None, config.m, config.n, *config.cluster,
                    pingpong=config.pingpong, max_swizzle_size=8,
                )  # fmt: skip
            except Exception as error:  # the compilers' errors have no common base class
                raise Unavailable(f"{config.name}: {type(error).__name__}: {str(error).splitlines()[:1]}") from None
            return out

        return run

    def configurations(self, case: Case, operands: Operands) -> Mapping[str, Call]:
        if case.op == "add" or case.fused:
            raise Unavailable("plain matmuls only, here")
        if case.dtype not in ("float16", "bfloat16"):
            raise Unavailable(f"fp16 and bf16 only, here, not {case.dtype}")
        if case.align < 16:
            raise Unavailable(f"TMA needs rows aligned to 16 bytes, these are to {case.align}")
        return {config.name: self._call(config) for config in CONFIGS}


def load() -> _Quack:
    try:
        version = importlib.metadata.version("quack-kernels")
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable("quack-kernels is not installed: pip install quack-kernels") from None
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise Unavailable("its configurations here are for Hopper")
    try:
        from quack.gemm import gemm
    except Exception as error:  # importing it loads compilers and drivers
        raise Unavailable(f"cannot import quack {version}: {type(error).__name__}: {error}") from None
    return _Quack(version, gemm)
