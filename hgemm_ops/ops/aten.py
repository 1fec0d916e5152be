"""Every op through ATen: the path of CPU tensors, of devices without a kernel of ours, and of CUDA without the .so.

Registered as CompositeExplicitAutograd, so that the CUDA kernels of ``csrc/torch`` take precedence where they exist.
``variant`` and ``static_weights`` are for CUDA kernels and are ignored here. Results are row-major and never views.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, library

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


def _product(name: str) -> Callable[..., Tensor]:
    """An op with the arguments of torch's function of this name."""
    check, function = getattr(checks, name), getattr(torch, name)

    @_below_autograd
    def op(
        a: Tensor,
        b: Tensor,
        *,
        out_dtype: torch.dtype | None = None,
        variant: int | None = None,
        static_weights: bool | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        result = check(a, b, out_dtype=out_dtype, variant=variant)
        _check_out(name, out, a.device, result)
        return _finish(function(a.to(result[1]), b.to(result[1]), out=out), out)

    return op


def _sum_with_product(name: str) -> Callable[..., Tensor]:
    """As above, for ``beta * input + alpha * a @ b``."""
    check, function = getattr(checks, name), getattr(torch, name)

    @_below_autograd
    def op(
        input: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        beta: float = 1.0,
        alpha: float = 1.0,
        out_dtype: torch.dtype | None = None,
        variant: int | None = None,
        static_weights: bool | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        result = check(input, a, b, out_dtype=out_dtype, variant=variant)
        _check_out(name, out, a.device, result)
        operands = (t.to(result[1]) for t in (input, a, b))
        return _finish(function(*operands, beta=beta, alpha=alpha, out=out), out)

    return op


matmul, mm, bmm = _product("matmul"), _product("mm"), _product("bmm")
addmm, baddbmm = _sum_with_product("addmm"), _sum_with_product("baddbmm")


def matmul_swizzled(a: Tensor, b: Tensor, *, variant: int, swizzle_stride: int) -> Tensor:
    checks.matmul_swizzled(a, b, variant=variant, swizzle_stride=swizzle_stride)
    return matmul(a, b)


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
    static_weights: bool | None = None,
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
    static_weights: bool | None = None,
) -> tuple[Tensor, Tensor]:
    _, dtype = checks.linear(x, weight, bias, act, out_dtype=out_dtype, variant=variant, op="linear_save")
    pre = _pre_activation(x, weight, bias, dtype, None)
    return _activate_(pre.clone(), act), pre


@_below_autograd
def linear_gated(
    x: Tensor, weight: Tensor, act: int, *, variant: int | None = None, static_weights: bool | None = None
) -> Tensor:
    _, dtype = checks.linear_gated(x, weight, act, variant=variant)
    gate, up = _pre_activation(x, weight, None, dtype, None).chunk(2, -1)
    return _activate_(gate.contiguous(), act).mul_(up)


def register(lib: library.Library) -> None:
    """Registers the implementations of every op on ``lib``."""
    functions = {"matmul": matmul, "mm": mm, "bmm": bmm, "addmm": addmm, "baddbmm": baddbmm, "linear": linear}
    for name, function in functions.items():
        lib.impl(name, function, "CompositeExplicitAutograd")
        lib.impl(f"{name}.out", function, "CompositeExplicitAutograd")
    lib.impl("linear_save", linear_save, "CompositeExplicitAutograd")
    lib.impl("linear_gated", linear_gated, "CompositeExplicitAutograd")
    lib.impl("matmul_swizzled", matmul_swizzled, "CompositeExplicitAutograd")
