"""The op ``hgemm::grouped_mm``: products of the groups of a batch, whose ends lie in a tensor on the device. And
``hgemm::grouped_linear``: one with bias and activation, or with a gate.

It has the forms of ``torch.nn.functional.grouped_mm``. ``offs`` are the ends of the groups, one for each matrix of the
3-D operand:

======================  =======================  ==========================  ===========================
a                       b                        groups along                result
======================  =======================  ==========================  ===========================
(rows, k)               (groups, k, n)           the rows of a               (rows, n)
(groups, m, k)          (groups, k, n)           (``offs`` is None)          (groups, m, n)
(m, k)                  (k, n)                   k                           (groups, m, n)
(groups, m, k)          (k, columns)             the columns of b            (m, columns)
======================  =======================  ==========================  ===========================

Rows of the result start on multiples of 16 bytes, as those of torch's operator do. ``csrc/torch`` has the kernel for
CUDA. This module has the rest: the op by torch's functions, fake tensors, autograd and autocast.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library
from torch._C import DispatchKeySet
from torch._ops import OpOverload
from torch.autograd import Function

from . import activation, aten, autograd, keys, sharding
from .aten import require
from .autograd import has_tangent
from .schema import NAMESPACE, OPS

_NAME = "grouped_mm"


def _check(
    a: Tensor, b: Tensor, offs: Tensor | None, *, out_dtype: torch.dtype | None = None, variant: int | None = None
) -> tuple[list[int], torch.dtype]:
    """Returns the shape and the dtype of the result. RuntimeError, with torch's words, if there is none."""
    shapes = f"got a {tuple(a.shape)} and b {tuple(b.shape)}"
    for name, t in (("a", a), ("b", b)):
        require(t.dim() in (2, 3), f"hgemm::grouped_mm: mat_{name} has to be 2 or 3d, {shapes}")
    require(
        a.dtype == b.dtype,
        f"hgemm::grouped_mm: expected a and b to have the same dtype, but got {a.dtype} and {b.dtype}",
    )
    require(
        (offs is None) == (a.dim() == b.dim() == 3),
        "hgemm::grouped_mm: Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d: "
        f"{shapes}, offs {None if offs is None else tuple(offs.shape)}",
    )
    require(
        a.size(-1) == b.size(-2), f"hgemm::grouped_mm: contraction dimension of mat_a and mat_b must match, {shapes}"
    )
    groups = (a if a.dim() == 3 else b).size(0)
    if offs is None:
        require(a.size(0) == b.size(0), f"hgemm::grouped_mm: batched dimension has to match, {shapes}")
    else:
        require(offs.dim() == 1, f"hgemm::grouped_mm: offs has to be 1D, got {tuple(offs.shape)}")
        require(offs.dtype == torch.int32, f"hgemm::grouped_mm: Offsets have to be int32, got {offs.dtype}")
        if a.dim() == b.dim() == 2:
            groups = offs.size(0)
        require(
            offs.size(0) == groups,
            f"hgemm::grouped_mm: matrix batch sizes have to match: {offs.size(0)} ends in offs, {shapes}",
        )
    devices = {t.device for t in (a, b, offs) if t is not None}
    require(
        len(devices) == 1,
        "hgemm::grouped_mm: Expected all tensors to be on the same device, got "
        + " and ".join(sorted(str(device) for device in devices)),
    )
    aten.require_variant(variant)
    aten.require_out_dtype(a.dtype, out_dtype)
    batch = [groups] if a.dim() == b.dim() else []
    return [*batch, a.size(-2), b.size(-1)], out_dtype or a.dtype


def _by_torch(a: Tensor, b: Tensor, offs: Tensor | None = None, **options: Any) -> Tensor:
    """Computes the op by ``torch.matmul``, a group after the other. It reads ``offs``, which waits for the device.

    Rows and columns behind the last end are zero.
    """
    shape, dtype = _check(a, b, offs, **options)
    a, b = a.to(dtype), b.to(dtype)
    if offs is None:
        return _pitched(torch.bmm(a, b))
    if a.dim() == b.dim():
        products = [a[:, part] @ b[part] for part in _parts(offs, a.size(1))]
        return _pitched(torch.stack(products) if products else a.new_zeros(shape))
    dim = 0 if a.dim() == 2 else 1
    parts = _parts(offs, shape[dim])
    if a.dim() == 2:
        products = [a[part] @ b[group] for group, part in enumerate(parts)]
    else:
        products = [a[group] @ b[:, part] for group, part in enumerate(parts)]
    shape[dim] -= parts[-1].stop if parts else 0
    return _pitched(torch.cat([*products, a.new_zeros(shape)], dim))


def _parts(offs: Tensor, size: int) -> list[slice]:
    """Returns the indices of each group. An end beyond ``size``, or before the end of the last group, is moved."""
    parts, start = [], 0
    for end in offs.tolist():
        end = min(max(start, end), size)
        parts.append(slice(start, end))
        start = end
    return parts


def _pitched(t: Tensor) -> Tensor:
    """Returns ``t``, or a copy, as a row-major tensor whose rows start on multiples of 16 bytes."""
    columns, chunk = t.size(-1), max(1, 16 // t.element_size())
    return _copied(t) if columns % chunk else t.contiguous()


def _without_kernels(a: Tensor, b: Tensor, offs: Tensor | None = None, **options: Any) -> Tensor:
    """Computes the op on devices that ``csrc/torch`` has no kernel for, and on CUDA without the shared library."""
    _, dtype = _check(a, b, offs, **options)
    if a.is_cuda and a.dtype == dtype == torch.bfloat16:
        return arranged(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), a, b, offs)
    return _by_torch(a, b, offs, **options)


def arranged(
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor], a: Tensor, b: Tensor, offs: Tensor | None
) -> Tensor:
    """Calls ``product`` with operands that kernels take in place of ``a`` and ``b``: copies, where that is necessary.

    Strides are multiples of 16 bytes. Of an operand that is divided into groups, the other dimension has stride 1:
    otherwise a group would start anywhere, and torch's kernel would end the CUDA context by an assertion. Where there
    is no memory for the copies, ``product`` gets the operands as they are: some kernels take them.
    """
    try:
        match a.dim(), b.dim():
            case 2, 3:
                x, w = _row_major(a), _aligned(b)
            case 2, 2:
                x, w = _row_major(a.mT).mT, _row_major(b)
            case 3, 2:  # the result is divided along its columns, too: the same product, transposed
                _check(a, b, offs)
                return _pitched(arranged(product, b.mT, a.mT, offs).mT)
            case 3, 3:
                x, w = _aligned(a), _aligned(b)
            case _:  # an error, which the product raises
                x, w = a, b
    except torch.OutOfMemoryError:
        x, w = a, b
    return product(x, w, offs)


def _row_major(t: Tensor) -> Tensor:
    chunk = max(1, 16 // t.element_size())
    *outer, columns = t.stride()
    takes = columns == 1 and outer[-1] >= t.size(-1)
    return t if takes and not any(s % chunk for s in (*outer, t.storage_offset())) else _copied(t)


def _aligned(t: Tensor) -> Tensor:
    return _row_major(t.mT).mT if t.stride(-2) == 1 and t.stride(-1) != 1 else _row_major(t)


def _copied(t: Tensor) -> Tensor:
    columns, chunk = t.size(-1), max(1, 16 // t.element_size())
    if columns % chunk:
        return F.pad(t, (0, -columns % chunk))[..., :columns]
    return t.clone(memory_format=torch.contiguous_format)


def _fake(a: Tensor, b: Tensor, offs: Tensor | None = None, **options: Any) -> Tensor:
    sharding.register_if_loaded()
    shape, dtype = _check(a, b, offs, **options)
    return _pitched(a.new_empty(shape, dtype=dtype))


# ---- Autograd


class _Product(Function):
    """A grouped matmul whose gradients are grouped matmuls with the same ends."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[], Tensor], a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
        ctx.set_materialize_grads(False)
        needs_a, needs_b = ctx.needs_input_grad[1:3]
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, offs)
        ctx.dtype, ctx.dims = a.dtype, (a.dim(), b.dim())
        ctx.columns_first = _columns_first(a), _columns_first(b)
        return call()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 4
        a, b, offs = ctx.saved_tensors
        needs_a, needs_b = ctx.needs_input_grad[1:3]
        grad = grad.to(ctx.dtype)
        grad_a = grad_b = None
        a_dim, b_dim = ctx.dims
        if needs_a:
            grad_a = _product(grad, b.mH, offs, ctx.columns_first[0])
            if a_dim == 2:
                grad_a = _without_rest(grad_a, offs, 0 if b_dim == 3 else 1)
        if needs_b:
            grad_b = _product(a.mH, grad, offs, ctx.columns_first[1])
            if b_dim == 2:
                grad_b = _without_rest(grad_b, offs, 1 if a_dim == 3 else 0)
        return None, grad_a, grad_b, None


def _columns_first(t: Tensor) -> bool:
    """Whether ``t`` is the transposed view of a row-major tensor, as the weights of linear layers are.

    Its gradient then gets the same layout, so that autograd accumulates it without a copy.
    """
    return t.stride(-2) == 1 and t.stride(-1) != 1


def _product(a: Tensor, b: Tensor, offs: Tensor | None, columns_first: bool) -> Tensor:
    if columns_first:
        return OPS.grouped_mm.default(b.mT, a.mT, offs).mT
    return OPS.grouped_mm.default(a, b, offs)


def _without_rest(t: Tensor, offs: Tensor, dim: int) -> Tensor:
    """Sets what lies behind the last end, which no kernel has written, to zero."""
    index = offs.new_ones(t.size(dim)).cumsum(0)  # counted from 1; a DTensor where offs is one
    behind = (index > offs[-1] if offs.numel() else index > 0).unsqueeze(1 - dim)
    in_place = type(t) is Tensor and not torch.is_grad_enabled()
    return t.masked_fill_(behind, 0) if in_place else t.masked_fill(behind, 0)


def _has_kernels(a: Tensor) -> bool:
    return a.is_cuda


def _kernel(op: OpOverload) -> Callable[..., Tensor]:
    """Returns the Autograd kernel. It arranges the operands of CUDA kernels, so that autograd sees the copies."""
    run = autograd.kernel(op, _by_torch, _record)

    def kernel(keyset: DispatchKeySet, a: Tensor, b: Tensor, offs: Tensor | None = None, **options: Any) -> Tensor:
        def product(a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
            result: Tensor = run(keyset, a, b, offs, **options)
            return result

        if _has_kernels(a) and not torch._C._are_functorch_transforms_active():
            return arranged(product, a, b, offs)
        return product(a, b, offs)

    return kernel


def _record(call: Callable[[], Tensor], a: Tensor, b: Tensor, offs: Tensor | None = None, **options: Any) -> Tensor:
    return _Product.apply(call, a, b, offs)  # type: ignore[no-untyped-call]


# ---- A value for each group, and for each row


def rows_of_groups(values: Tensor, offs: Tensor, rows: int) -> Tensor:
    """Returns the values (groups, n) by row: (rows, n), zero behind the last end. The host does not read ``offs``."""
    if not torch.compiler.is_compiling() and (torch._C._are_functorch_transforms_active() or has_tangent(values)):
        return _rows_of_groups(values, offs, rows)  # torch can transform its own functions
    return _RowsOfGroups.apply(values, offs, rows)  # type: ignore[no-untyped-call]


def _rows_of_groups(values: Tensor, offs: Tensor, rows: int) -> Tensor:
    index = torch.arange(rows, dtype=offs.dtype, device=offs.device)
    with_zeros = F.pad(values, (0, 0, 0, 1))  # one more group, for the rows behind the last end
    return with_zeros.index_select(0, torch.searchsorted(offs, index, right=True))


class _RowsOfGroups(Function):
    """Its gradient is a grouped matmul: a sum in float32, in the same order each time, and without atomics."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offs: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(offs)
        return _rows_of_groups(values, offs, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return sums_of_groups(grad, *ctx.saved_tensors), None, None


def sums_of_groups(values: Tensor, offs: Tensor) -> Tensor:
    """Returns the sums of the rows (rows, n) of each group: (groups, n). The host does not read ``offs``."""
    # Eight equal rows have a stride of 16 bytes or a multiple of it, which every kernel takes.
    ones = values.new_ones(values.size(0), 8).mT
    return OPS.grouped_mm.default(ones, values, offs)[:, 0]


# ---- The product with bias and activation, or with a gate


def _linear(
    x: Tensor, w: Tensor, offs: Tensor, bias: Tensor | None, act: int, gated: bool, *, variant: int | None = None
) -> Tensor:
    """Computes ``hgemm::grouped_linear`` by the grouped matmul and torch's functions."""
    sharding.register_if_loaded()
    require(
        x.dim() == 2 and w.dim() == 3,
        f"hgemm::grouped_linear: x {tuple(x.shape)} must be 2-D and w {tuple(w.shape)} 3-D",
    )
    require(
        not gated or (bias is None and w.size(2) % 16 == 0),
        f"hgemm::grouped_linear: a gate takes no bias, and w {tuple(w.shape)} must have a multiple of 16 columns",
    )
    y = OPS.grouped_mm.default(x, w, offs, variant=variant)
    if bias is not None:
        require(
            bias.shape == (w.size(0), w.size(2)) and bias.dtype == x.dtype,
            f"hgemm::grouped_linear: bias {tuple(bias.shape)} must be (groups, n), with the dtype of x",
        )
        y = y + rows_of_groups(bias, offs, y.size(0))
    y = activation.gate(y, act) if gated else activation.apply(act, y)
    return _pitched(y)


class _ProductWithBias(Function):
    """A product with bias, which has the same bits with a gradient as without. Its gradients are grouped matmuls."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[], Tensor], x: Tensor, w: Tensor, offs: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = _Product.forward(ctx, call, x, w, offs)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        for_bias = None
        if grad is not None and ctx.needs_input_grad[4]:
            for_bias = sums_of_groups(grad.to(ctx.dtype), ctx.saved_tensors[2])
        return *_Product.backward(ctx, grad), for_bias


def _record_linear(
    call: Callable[[], Tensor],
    x: Tensor,
    w: Tensor,
    offs: Tensor,
    bias: Tensor | None,
    act: int,
    gated: bool,
    **options: Any,
) -> Tensor:
    if bias is None or act or gated:
        return _linear(x, w, offs, bias, act, gated, **options)  # its backward needs the argument of the activation
    return _ProductWithBias.apply(call, x, w, offs, bias)  # type: ignore[no-untyped-call]


def register(lib: library.Library) -> None:
    """Registers every implementation of the ops on ``lib``, except the CUDA kernels."""
    aten.register_op(lib, "grouped_linear", _linear)
    autograd.register_op(lib, "grouped_linear", _linear, _record_linear)
    keys.register_autocast(lib, "grouped_linear")
    lib.impl(_NAME, _without_kernels, "CompositeExplicitAutograd")
    lib.impl(_NAME, _by_torch, "FuncTorchBatched")
    library.register_fake(f"{NAMESPACE}::{_NAME}", _fake, lib=lib)
    lib.impl(_NAME, _kernel(OPS.grouped_mm.default), "Autograd", with_keyset=True)
    keys.register_autocast(lib, _NAME)
