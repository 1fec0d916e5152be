"""Every op, computed by torch's functions. Its shape rules and errors are therefore torch's.

These implementations run for CPU tensors, on devices without kernels of this package, and on CUDA without the shared
library. They also run for fake and meta tensors, and in forward mode, vmap and the other transforms of torch.func,
because torch can transform its own functions. Results are row-major. ``variant`` and ``float32`` have no effect here.
``numerics`` has none on the CPU; for CUDA tensors, a batch-invariant mode raises RuntimeError. Where ``csrc/torch`` has
registered an implementation, it takes precedence.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library

from . import activation, sharding
from .schema import NAMESPACE, SIGNATURES

_HALF = (torch.float16, torch.bfloat16)


def require(condition: bool, message: str) -> None:
    """Raises ``RuntimeError(message)`` unless ``condition`` is true."""
    if not condition:
        raise RuntimeError(message)


def require_variant(variant: int | None) -> None:
    """Raises RuntimeError unless ``variant`` may be the id of a kernel."""
    require(
        variant is None or variant >= -2,
        f"hgemm: variant must be -2 (torch), -1 (auto) or an index into variants(), got {variant}",
    )


def require_out_dtype(dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    """Raises RuntimeError unless a matmul of operands in ``dtype`` may have a result in ``out_dtype``."""
    require(
        out_dtype in (None, dtype) or (out_dtype == torch.float32 and dtype in _HALF),
        f"hgemm: out_dtype must be {dtype}, the inputs' dtype, or torch.float32 for float16 and bfloat16 inputs, "
        f"got {out_dtype}",
    )


def _compute(
    function: Callable[..., Tensor],
    factor: Tensor,
    *others: Tensor | None,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    numerics: int | None = None,
    float32: int | None = None,
) -> Tensor:
    """Applies ``function`` to the operands, converted to the result's dtype, and returns a row-major result.

    It first makes the checks that torch has no counterpart for. An operand of another dtype than ``factor`` is not
    converted: an addend may have the result's dtype, and torch raises an error for any other. The result is converted
    to ``out_dtype`` at the end as well, because under vmap autocast may have changed its dtype.
    """
    dtype = factor.dtype
    require_variant(variant)
    require_out_dtype(dtype, out_dtype)
    require(
        (numerics or 0) <= 0 or not factor.is_cuda,
        "hgemm: the argument numerics is not possible where torch computes the op: without kernels of this package, "
        "in forward mode and under torch.func. Try use_custom_gemm(numerics=...) there",
    )
    operands = (t.to(out_dtype or dtype) if t is not None and t.dtype == dtype else t for t in (factor, *others))
    y = function(*operands)
    return y.to(out_dtype or y.dtype).contiguous()


def _sum_with_product(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def op(input: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0, **options: Any) -> Tensor:
        return _compute(lambda a, b, c: function(c, a, b, beta=beta, alpha=alpha), a, b, input, **options)

    return op


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, act: int = 0, **options: Any) -> Tensor:
    return activation.apply(act, _compute(F.linear, x, weight, bias, **options))


def _linear_save(x: Tensor, weight: Tensor, bias: Tensor | None, act: int, **options: Any) -> tuple[Tensor, Tensor]:
    argument = _compute(F.linear, x, weight, bias, **options)
    return activation.apply(act, argument) if act else argument.clone(), argument


def _linear_gated(x: Tensor, weight: Tensor, act: int, **choice: Any) -> Tensor:
    require(
        weight.dim() == 2 and weight.size(0) % 2 == 0,
        f"hgemm::linear_gated: weight {tuple(weight.shape)} must be 2-D with an even number of rows",
    )
    return activation.gate(_compute(F.linear, x, weight, **choice), act)


def _gate(both: Tensor, act: int) -> Tensor:
    require(
        both.dim() == 2 and both.size(1) % 2 == 0,
        f"hgemm::gate: both {tuple(both.shape)} must be 2-D with an even number of columns",
    )
    return activation.gate(both, act)


#: The differentiable implementation of each op by torch's functions, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matmul": functools.partial(_compute, torch.matmul),
    "mm": functools.partial(_compute, torch.mm),
    "bmm": functools.partial(_compute, torch.bmm),
    "addmm": _sum_with_product(torch.addmm),
    "baddbmm": _sum_with_product(torch.baddbmm),
    "linear": _linear,
    "linear_save": _linear_save,
    "linear_gated": _linear_gated,
    "gate": _gate,
}


def _out(name: str) -> Callable[..., Tensor]:
    def op(*args: Any, out: Tensor, **options: Any) -> Tensor:
        result: Tensor = FUNCTIONS[name](*args, **options)
        given, wanted = ((tuple(t.shape), t.dtype, t.device) for t in (out, result))
        # NOTE: unlike torch's, `out` is never resized: compiled graphs rely on the buffer that they have planned.
        require(given == wanted, f"hgemm::{name}: out must have the result's {wanted}, got {given}")
        return out.copy_(result)

    return op


def _fake(function: Callable[..., Any]) -> Callable[..., Any]:
    def fake(*args: Any, numerics: int | None = None, **options: Any) -> Any:
        sharding.register_if_loaded()
        return function(*args, **options)

    return fake


def register_op(lib: library.Library, name: str, function: Callable[..., Any]) -> None:
    """Registers ``function``, which uses torch's functions, as the implementation of an op on ``lib``.

    It also registers it as the op's fake implementation.
    """
    lib.impl(name, function, "CompositeExplicitAutograd")
    lib.impl(name, function, "FuncTorchBatched")
    library.register_fake(f"{NAMESPACE}::{name}", _fake(function), lib=lib)


def register(lib: library.Library) -> None:
    """Registers the implementations of every op on ``lib``, and their fake implementations."""
    functions = FUNCTIONS | {f"{name}.out": _out(name) for name in SIGNATURES}
    for name, function in functions.items():
        register_op(lib, name, function)
