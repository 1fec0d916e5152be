"""Fake implementations: the checks and the result's metadata, for torch.compile, export and meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, library

from hgemm_ops.ops import checks, sharding
from hgemm_ops.ops.schema import NAMESPACE

Check = Callable[..., checks.Result]

#: op name -> its check, and the position of the argument that gives the result's device
_OPS: dict[str, tuple[Check, int]] = {
    "matmul": (checks.matmul, 0),
    "mm": (checks.mm, 0),
    "bmm": (checks.bmm, 0),
    "addmm": (checks.addmm, 1),
    "baddbmm": (checks.baddbmm, 1),
    "linear": (checks.linear, 0),
}


def _functional(check: Check, like: int) -> Callable[..., Tensor]:
    def fake(*args: Any, **options: Any) -> Tensor:
        sharding.register_if_loaded()
        shape, dtype = check(*args, **options)
        return args[like].new_empty(shape, dtype=dtype)

    return fake


def _out(op: str, check: Check, like: int) -> Callable[..., Tensor]:
    def fake(*args: Any, out: Tensor, **options: Any) -> Tensor:
        checks.out(op, out, args[like].device, check(*args, **options))
        return out

    return fake


def _linear_save(x: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    sharding.register_if_loaded()
    shape, dtype = checks.linear(x, *args, op="linear_save", **options)
    return x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


def register(lib: library.Library) -> None:
    """Registers the fake implementations of every op on ``lib``."""
    for op, (check, like) in _OPS.items():
        library.register_fake(f"{NAMESPACE}::{op}", _functional(check, like), lib=lib)
        library.register_fake(f"{NAMESPACE}::{op}.out", _out(op, check, like), lib=lib)
    library.register_fake(f"{NAMESPACE}::linear_save", _linear_save, lib=lib)
    library.register_fake(f"{NAMESPACE}::linear_gated", _functional(checks.linear_gated, 0), lib=lib)
    library.register_fake(f"{NAMESPACE}::matmul_swizzled", _functional(checks.matmul_swizzled, 0), lib=lib)
