"""The functions ``hgemm_ops.matmul`` and ``hgemm_ops.linear``.

They call the ops of ``torch.ops.hgemm``, and take names of kernels, modes and activations where the ops take numbers.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from . import _variants
from .ops import aten
from .ops.activation import ACTIVATIONS
from .ops.schema import OPS

__all__ = ["linear", "matmul"]

_ACT = {name: index for index, name in enumerate(ACTIVATIONS)} | {None: 0}


def _require_types(function: str, tensors: Mapping[str, object], out_dtype: object = None) -> None:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"hgemm_ops.{function}: {name} must be a torch.Tensor, got {type(value).__name__}")
    if not (out_dtype is None or isinstance(out_dtype, torch.dtype)):
        raise TypeError(f"hgemm_ops.{function}: out_dtype must be a torch.dtype or None, got {out_dtype!r}")


def _require_activation(function: str, activation: object) -> int:
    """Returns the number that the ops take for an activation's name. ValueError if there is no such activation."""
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
    """Computes a matmul with the semantics of :func:`torch.matmul` on the kernels of this package.

    Equivalent to ``torch.matmul(a, b)``. With ``out_dtype=torch.float32`` it is equivalent to
    ``torch.matmul(a.float(), b.float())``, without converting the inputs.

    Args:
        a: ``(..., m, k)`` or ``(k,)``, with any strides and storage offset. An operand is copied if neither of its last
            two dimensions has stride 1, or if the batch dimensions do not merge into two.
        b: ``(..., k, n)`` or ``(k,)``, with the dtype and device of ``a``. Batch dimensions broadcast.
        variant: the name of a kernel (see :func:`hgemm_ops.variants`), or ``"torch"`` for torch's own. None lets the
            context manager, the environment or the dispatcher choose. A named kernel applies to CUDA tensors of float16
            and bfloat16, and to those of float32 if the kernel takes float32. Torch computes all others. The gradients
            choose their own kernels.
        numerics: ``"fast"``, ``"batch_invariant"`` or ``"batch_invariant_or_raise"``, as for
            :class:`hgemm_ops.use_custom_gemm`. The gradients are computed in the same mode. None takes the mode of the
            context manager or the environment. The mode applies to CUDA tensors; torch computes tensors on the CPU.
        float32: ``"strict"`` or ``"split"``, as for :class:`hgemm_ops.use_custom_gemm`. The gradients are computed in
            the same mode. With ``"split"``, a matmul of float32 CUDA tensors may run on tensor cores, with each operand
            as the sum of two float16 or three bfloat16 matrices. The error against float64 is then at most that of
            ``"strict"`` plus one rounding. None means ``"split"`` where the context manager or the environment asks for
            it. Otherwise torch computes float32, with TF32 if its flags allow that, unless a kernel is named.
        out_dtype: the dtype of the result. None means the dtype of the inputs; float32 is allowed for float16 and
            bfloat16 inputs. Gradients are computed in the inputs' dtype.

    Returns:
        ``(..., m, n)``, row-major, without ``m`` or ``n`` where ``a`` or ``b`` is 1-D. With ``k = 0`` it is all zeros.

    Raises:
        TypeError: ``a`` or ``b`` is not a tensor, or ``out_dtype`` is not a dtype.
        RuntimeError: the shapes, dtypes or devices do not match; ``out_dtype`` is not allowed for these inputs; the
            kernel ``variant`` cannot run these operands (the message says why); or ``numerics`` cannot be guaranteed
            for them.
        ValueError: no kernel has the name ``variant``, or ``numerics`` or ``float32`` is not one of the modes.
    """
    _require_types("matmul", {"a": a, "b": b}, out_dtype)
    choice = _variants.resolve_choice(variant, numerics, float32)
    try:
        return OPS.matmul.default(a, b, out_dtype=out_dtype, **choice)
    except RuntimeError:
        if not (a.is_nested or b.is_nested):  # asked only here, because every call would pay for it
            raise
    return aten.FUNCTIONS["matmul"](a, b, out_dtype=out_dtype, **choice)


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
    """Computes a linear layer and an optional activation: ``act(x @ weight.T + bias)``.

    Equivalent to ``F.linear(x, weight, bias)``, followed by ``F.relu``, ``F.gelu``, ``F.gelu(approximate="tanh")`` or
    ``F.silu``. The kernels of this package apply bias and activation to the float32 accumulator, before they round to
    the result's dtype. Where torch computes the matmul, the activation is applied to torch's rounded result.

    Args:
        x: ``(..., in_features)``, with any strides and storage offset.
        weight: ``(out_features, in_features)``, or ``(in_features,)`` for one feature, with the dtype and device of
            ``x``.
        bias: ``(out_features,)``, or one value for all features, with the dtype and device of ``x``.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"none"`` or None.
        variant, numerics, float32: as for :func:`matmul`.
        out_dtype: as for :func:`matmul`.

    Returns:
        ``(..., out_features)``, row-major, without the last dimension where ``weight`` is 1-D.

    Raises:
        TypeError: ``x``, ``weight`` or ``bias`` is not a tensor, or ``out_dtype`` is not a dtype.
        RuntimeError: as for :func:`matmul`.
        ValueError: ``activation``, ``variant``, ``numerics`` or ``float32`` is unknown.
    """
    _require_types("linear", {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias}), out_dtype)
    act = _require_activation("linear", activation)
    choice = _variants.resolve_choice(variant, numerics, float32)
    try:
        return OPS.linear.default(x, weight, bias, act, out_dtype=out_dtype, **choice)
    except RuntimeError:
        if not x.is_nested:
            raise
    return aten.FUNCTIONS["linear"](x, weight, bias, act, out_dtype=out_dtype, **choice)
