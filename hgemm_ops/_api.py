"""The functions ``hgemm_ops.matmul`` and ``hgemm_ops.linear``: the ops with names in place of numbers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from hgemm_ops import _variants
from hgemm_ops.ops.activation import ACTIVATIONS

__all__ = ["linear", "matmul"]

_ACT = {name: index for index, name in enumerate(ACTIVATIONS)} | {None: 0}


def _require_types(function: str, tensors: Mapping[str, object], out_dtype: object = None) -> None:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"hgemm_ops.{function}: {name} must be a torch.Tensor, got {type(value).__name__}")
    if not (out_dtype is None or isinstance(out_dtype, torch.dtype)):
        raise TypeError(f"hgemm_ops.{function}: out_dtype must be a torch.dtype or None, got {out_dtype!r}")


def _require_activation(function: str, activation: object) -> int:
    if activation not in _ACT:
        raise ValueError(
            f"hgemm_ops.{function}: activation must be one of {', '.join(ACTIVATIONS)} or None, got {activation!r}"
        )
    return _ACT[activation]


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    variant: str | None = None,
    numerics: str | None = None,
    float32: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Matrix product with the semantics of :func:`torch.matmul`, through this package's kernels.

    Equivalent to ``torch.matmul(a, b)``; with ``out_dtype=torch.float32`` to ``torch.matmul(a.float(), b.float())``,
    without the conversions of the inputs.

    Args:
        a: ``(..., m, k)``, or ``(k,)``. Any strides and storage offset; no copy is made while one of the last two
            dimensions has stride 1.
        b: ``(..., k, n)``, or ``(k,)``; same dtype and device as ``a``. Batch dimensions broadcast.
        variant: the name of a kernel (see :func:`hgemm_ops.variants`), ``"torch"`` for torch's own, or None to let the
            context manager, the environment or the dispatcher choose. It is for float16 and bfloat16 CUDA tensors;
            everything else always runs through torch. The gradients choose their own kernels.
        numerics: ``"fast"``, ``"batch_invariant"`` or ``"batch_invariant_or_raise"``, as for
            :class:`hgemm_ops.use_custom_gemm`, also of the gradients; None for what the context manager or the
            environment says. It is for CUDA tensors; those of the CPU are torch's.
        float32: ``"strict"`` or ``"split"``, as for :class:`hgemm_ops.use_custom_gemm`, also of the gradients; None for
            what the context manager or the environment says. With ``"split"``, float32 CUDA tensors may be multiplied
            as three bfloat16 matrices each: the error against float64 is at most strict's plus one rounding.
        out_dtype: dtype of the result: that of the inputs (None), or float32 for float16 and bfloat16 inputs. Gradients
            are computed in the inputs' dtype.

    Returns:
        ``(..., m, n)``, without ``m`` or ``n`` where ``a`` or ``b`` is 1-D; row-major. With ``k = 0``, zeros.

    Raises:
        TypeError: ``a`` or ``b`` is not a tensor, or ``out_dtype`` not a dtype.
        RuntimeError: shapes, dtypes or devices do not match, ``out_dtype`` is another dtype, ``variant`` cannot
            serve these operands (the message lists why), or ``numerics`` cannot be held for them.
        ValueError: no kernel has the name ``variant``, or ``numerics`` or ``float32`` is none of its modes.
    """
    _require_types("matmul", {"a": a, "b": b}, out_dtype)
    choice = _variants.resolve_choice(variant, numerics, float32)
    return torch.ops.hgemm.matmul.default(a, b, out_dtype=out_dtype, **choice)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    variant: str | None = None,
    numerics: str | None = None,
    float32: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Linear layer with an optional activation in the same kernel: ``act(x @ weight.T + bias)``.

    Equivalent to ``F.linear(x, weight, bias)``, then ``F.relu``, ``F.gelu``, ``F.gelu(approximate="tanh")`` or
    ``F.silu``; on a GPU the activation sees the float32 sum, before it is rounded to the result's dtype.

    Args:
        x: ``(..., in_features)``. Any strides and storage offset.
        weight: ``(out_features, in_features)``, or ``(in_features,)`` for one feature; same dtype and device as ``x``.
        bias: ``(out_features,)``, or one value for all; same dtype and device as ``x``.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"none"`` or None.
        variant, numerics, float32: as for :func:`matmul`.
        out_dtype: as for :func:`matmul`.

    Returns:
        ``(..., out_features)``, without the last dimension where ``weight`` is 1-D; row-major.

    Raises:
        TypeError: ``x``, ``weight`` or ``bias`` is not a tensor, or ``out_dtype`` not a dtype.
        RuntimeError: as for :func:`matmul`.
        ValueError: unknown ``activation``, ``variant``, ``numerics`` or ``float32``.
    """
    _require_types("linear", {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias}), out_dtype)
    act = _require_activation("linear", activation)
    choice = _variants.resolve_choice(variant, numerics, float32)
    return torch.ops.hgemm.linear.default(x, weight, bias, act, out_dtype=out_dtype, **choice)
