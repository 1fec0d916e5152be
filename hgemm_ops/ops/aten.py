"""Every op through ATen: the path of CPU tensors, of devices without a kernel of ours, and of CUDA without the .so.

Registered as CompositeExplicitAutograd, so that the CUDA kernels of ``csrc/torch`` take precedence where they exist.
``variant`` chooses among CUDA kernels and is ignored here. Results are row-major and never views.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from hgemm_ops.ops import checks

F = TypeVar("F", bound=Callable[..., object])


def _below_autograd(function: F) -> F:
    """Runs an implementation below autograd, as ATen's kernels do: its result must not be recorded as a view."""

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def _activate_(y: Tensor, act: int) -> Tensor:
    if act == 1:
        return y.relu_()
    if act == 2:
        return torch.ops.aten.gelu_(y)
    if act == 3:
        return torch.ops.aten.gelu_(y, approximate="tanh")
    if act == 4:
        return torch.ops.aten.silu_(y)
    return y


def _finish(y: Tensor, out: Tensor | None) -> Tensor:
    return y.contiguous() if out is None else out


def _check_out(op: str, out: Tensor | None, device: torch.device, result: checks.Result) -> None:
    if out is not None:
        checks.out(op, out, device, result)


@_below_autograd
def matmul(
    a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None, variant: int | None = None, out: Tensor | None = None
) -> Tensor:
    result = checks.matmul(a, b, out_dtype=out_dtype, variant=variant)
    _check_out("matmul", out, a.device, result)
    dtype = result[1]
    return _finish(torch.matmul(a.to(dtype), b.to(dtype), out=out), out)


@_below_autograd
def mm(
    a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None, variant: int | None = None, out: Tensor | None = None
) -> Tensor:
    result = checks.mm(a, b, out_dtype=out_dtype, variant=variant)
    _check_out("mm", out, a.device, result)
    dtype = result[1]
    return _finish(torch.mm(a.to(dtype), b.to(dtype), out=out), out)


@_below_autograd
def bmm(
    a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None, variant: int | None = None, out: Tensor | None = None
) -> Tensor:
    result = checks.bmm(a, b, out_dtype=out_dtype, variant=variant)
    _check_out("bmm", out, a.device, result)
    dtype = result[1]
    return _finish(torch.bmm(a.to(dtype), b.to(dtype), out=out), out)


@_below_autograd
def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    result = checks.addmm(input, mat1, mat2, out_dtype=out_dtype, variant=variant)
    _check_out("addmm", out, mat1.device, result)
    dtype = result[1]
    y = torch.addmm(input.to(dtype), mat1.to(dtype), mat2.to(dtype), beta=beta, alpha=alpha, out=out)
    return _finish(y, out)


@_below_autograd
def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    result = checks.baddbmm(input, batch1, batch2, out_dtype=out_dtype, variant=variant)
    _check_out("baddbmm", out, batch1.device, result)
    dtype = result[1]
    y = torch.baddbmm(input.to(dtype), batch1.to(dtype), batch2.to(dtype), beta=beta, alpha=alpha, out=out)
    return _finish(y, out)


def _pre_activation(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.to(dtype)
    if out is not None:
        return torch.ops.aten.linear.out(x.to(dtype), weight.to(dtype), bias, out=out)
    return torch.nn.functional.linear(x.to(dtype), weight.to(dtype), bias).contiguous()


@_below_autograd
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    act: int = 0,
    *,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    result = checks.linear(x, weight, bias, act, out_dtype=out_dtype, variant=variant)
    _check_out("linear", out, x.device, result)
    return _activate_(_pre_activation(x, weight, bias, result[1], out), act)


@_below_autograd
def linear_save(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: int,
    *,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
) -> tuple[Tensor, Tensor]:
    _, dtype = checks.linear(x, weight, bias, act, out_dtype=out_dtype, variant=variant, op="linear_save")
    pre = _pre_activation(x, weight, bias, dtype, None)
    return _activate_(pre.clone(), act), pre


def register(lib: torch.library.Library) -> None:
    """Registers the implementations of every op on ``lib``."""
    for function in (matmul, mm, bmm, addmm, baddbmm, linear):
        lib.impl(function.__name__, function, "CompositeExplicitAutograd")
        lib.impl(f"{function.__name__}.out", function, "CompositeExplicitAutograd")
    lib.impl("linear_save", linear_save, "CompositeExplicitAutograd")
