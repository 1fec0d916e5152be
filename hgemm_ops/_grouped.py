"""The functions ``hgemm_ops.grouped_mm`` and ``hgemm_ops.grouped_mm_gated``: the experts of a mixture of experts."""

import functools

import torch
from torch import Tensor

from . import _native
from ._api import _require_activation, _require_types
from .ops import activation as _activation
from .ops.aten import require, require_out_dtype
from .ops.grouped import arranged, rows_of_groups
from .ops.schema import OPS

__all__ = ["grouped_mm", "grouped_mm_gated"]


def grouped_mm(
    x: Tensor,
    w: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    variant: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes the matmuls of groups: ``act(x[start:end] @ w[group] + bias[group])`` for the rows of each group.

    Equivalent to ``F.grouped_mm(x, w, offs=offs)``, followed by the addition of each row's bias and by the activation.
    The groups of a mixture of experts are the experts: ``x`` are the tokens, sorted by expert. The host does not read
    ``offs`` where a kernel of this package or torch's bfloat16 kernel runs. A CUDA graph can then capture the call.

    There are four forms, as torch has them:

    - ``x (rows, k)``, ``w (groups, k, n)``: the groups are rows of ``x``, and ``offs`` are their ends. Group 0 has the
      rows from 0 to ``offs[0]``, group 1 those from ``offs[0]`` to ``offs[1]``. Groups may be empty. The result is
      ``(rows, n)``.
    - ``x (groups, m, k)``, ``w (groups, k, n)``: a batch of matmuls, without ``offs``. The result is
      ``(groups, m, n)``.
    - ``x (m, k)``, ``w (k, n)``: ``offs`` are the ends of groups along k. The result is ``(groups, m, n)``, one matmul
      for each group. The gradients of weights have this form.
    - ``x (groups, m, k)``, ``w (k, columns)``: ``offs`` are the ends of groups along the columns. The result is
      ``(m, columns)``.

    Args:
        x: as above, with any strides and storage offset.
        w: as above, with the dtype and device of ``x``. The weights of ``nn.Linear`` layers, ``(groups, n, k)``, are
            passed as ``weight.mT``, without a copy.
        offs: ``(groups,)``, int32, on the device of ``x``: the ends of the groups, in non-decreasing order and at most
            the size of the dimension. None where ``x`` and ``w`` are 3-D.
        bias: ``(groups, n)``, with the dtype and device of ``x``, where ``w`` is 3-D.
        activation: as for :func:`hgemm_ops.linear`.
        variant: the name of a kernel for grouped matmuls, or ``"torch"`` for torch's own. The gradients choose their
            own kernels.
        out_dtype: as for :func:`hgemm_ops.matmul`.

    Returns:
        As above, row-major, with rows that start on multiples of 16 bytes. Rows or columns behind the last end are
        undefined, and have a gradient of zero: neither NaN there nor the incoming gradient there reaches another
        tensor.

    Raises:
        TypeError: an argument that must be a tensor is none, or ``out_dtype`` is not a dtype.
        RuntimeError: the shapes, dtypes or devices do not match, ``offs`` is missing or superfluous, or the kernel
            ``variant`` cannot run these operands.
        ValueError: ``activation`` or ``variant`` is unknown.
    """
    tensors = {"x": x, "w": w, "offs": offs, "bias": bias}
    optional = ("offs", "bias")
    _require_types("grouped_mm", {k: t for k, t in tensors.items() if t is not None or k not in optional}, out_dtype)
    act = _require_activation("grouped_mm", activation)
    if bias is not None:
        require(
            w.dim() == 3 and bias.shape == (w.size(0), w.size(2)),
            f"hgemm_ops.grouped_mm: bias must be (groups, n) for w (groups, k, n), "
            f"got bias {tuple(bias.shape)} and w {tuple(w.shape)}",
        )
        require(
            bias.dtype == x.dtype or torch.is_autocast_enabled(x.device.type),
            f"hgemm_ops.grouped_mm: bias must have the dtype of x, got {bias.dtype} and {x.dtype}",
        )
    if (bias is not None or act) and out_dtype in (None, _dtype(x)) and offs is not None and _is_linear(x, w):
        bias = None if bias is None else bias.contiguous()
        return _linear(x, w, offs, bias, act, False, _resolve(variant))
    y = _product(x, w, offs, out_dtype, _resolve(variant))
    if bias is not None:
        bias = bias.to(y.dtype)
        y = y + (bias.unsqueeze(1) if offs is None else rows_of_groups(bias, offs, y.size(0)))
    return _activation.apply(act, y)


def grouped_mm_gated(
    x: Tensor,
    w: Tensor,
    offs: Tensor | None = None,
    activation: str | None = "silu",
    *,
    variant: str | None = None,
) -> Tensor:
    """Computes a gated linear unit for each group: ``gate, up = grouped_mm(x, w, offs).chunk(2, -1)``, then
    ``act(gate) * up``.

    Args:
        x: as for :func:`grouped_mm`.
        w: ``(groups, k, 2 * n)``, the columns of the gate first. Parameters ``(groups, 2 * n, k)``, in the layout of
            :func:`hgemm_ops.linear_gated`, are passed as ``weight.mT``.
        offs: as for :func:`grouped_mm`.
        activation, variant: as for :func:`grouped_mm`.

    Returns:
        ``(rows, n)``, or ``(groups, m, n)`` where ``x`` is 3-D.

    Raises:
        TypeError, ValueError, RuntimeError: as for :func:`grouped_mm`.
    """
    tensors = {"x": x, "w": w} | ({} if offs is None else {"offs": offs})
    _require_types("grouped_mm_gated", tensors)
    act = _require_activation("grouped_mm_gated", activation)
    require(
        w.dim() == 3 and w.size(2) % 2 == 0,
        f"hgemm_ops.grouped_mm_gated: w {tuple(w.shape)} must be 3-D with an even number of columns",
    )
    if offs is not None and w.size(2) % 16 == 0 and _is_linear(x, w):
        return _linear(x, w, offs, None, act, True, _resolve(variant))
    both = _product(x, w, offs, None, _resolve(variant))
    # Compiled code computes the gate itself, in the kernel of what comes after it.
    if both.dim() == 2 and both.is_contiguous() and not torch.compiler.is_compiling():
        return OPS.gate.default(both, act)
    return _activation.gate(both, act)


def _is_linear(x: Tensor, w: Tensor) -> bool:
    """Whether ``hgemm::grouped_linear`` takes the operands. Compiled code adds and activates in kernels of its own."""
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    is_taken = x.is_cuda and x.dim() == 2 and w.dim() == 3 and _dtype(x) == _dtype(w) and _dtype(x) in dtypes
    return is_taken and not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def _linear(x: Tensor, w: Tensor, offs: Tensor, bias: Tensor | None, act: int, gated: bool, variant: int) -> Tensor:
    def product(x: Tensor, w: Tensor, offs: Tensor | None) -> Tensor:
        return OPS.grouped_linear.default(x, w, offs, bias, act, gated, variant=variant)

    x, w = (t.to(_dtype(t)) for t in (x, w))
    return arranged(product, x, w, offs)


def _product(x: Tensor, w: Tensor, offs: Tensor | None, out_dtype: torch.dtype | None, variant: int) -> Tensor:
    op = functools.partial(OPS.grouped_mm.default, variant=variant)
    if x.is_cuda and out_dtype not in (None, _dtype(x)):
        # No kernel of grouped matmuls has a wider result, so it gets wider operands.
        require_out_dtype(_dtype(x), out_dtype)
        x, w = (t.to(_dtype(t)) for t in (x, w))
        require(x.dtype == w.dtype, f"hgemm_ops.grouped_mm: x and w must have one dtype, got {x.dtype} and {w.dtype}")
        with torch.autocast(x.device.type, enabled=False):
            return _product(x.to(out_dtype), w.to(out_dtype), offs, None, variant)
    # torch.compile of release 2.11 cannot trace is_inference_mode_enabled, so that is asked last.
    if x.is_cuda and not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        x, w = (t.to(_dtype(t)) for t in (x, w))
        return arranged(op, x, w, offs)  # which the op's Autograd kernel does otherwise
    return op(x, w, offs, out_dtype=None if x.is_cuda else out_dtype)


def _resolve(variant: str | None) -> int:
    """Returns the number that the op takes for the name of a kernel. ValueError if there is no such kernel."""
    if variant is None or variant == "auto":
        return _native.AUTO
    if variant == "torch":
        return _native.TORCH
    names = _native.grouped_names()
    if variant not in names:
        known = ", ".join(("auto", "torch", *names))
        raise ValueError(f"variant: unknown kernel {variant!r}; for grouped matmuls there are {known}")
    return names.index(variant)


def _dtype(t: Tensor) -> torch.dtype:
    """Returns the dtype that a product of ``t`` is computed in."""
    kind = t.device.type
    casts = torch.is_autocast_enabled(kind) and t.is_floating_point() and t.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if casts else t.dtype
