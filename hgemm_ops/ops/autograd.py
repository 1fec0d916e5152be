"""Autograd of the ops.

The kernels are registered at the Autograd key, because ``register_autograd`` supports neither forward mode nor
functorch.

* Gradients are written with torch's functions. Torch can therefore differentiate them again, and they run as torch's
  own matmuls do. They are computed in the inputs' dtype.
* In forward mode, and under the transforms of torch.func, torch computes the whole op (``aten.py``) and transforms it.
* A forced ``variant`` applies only to the forward matmul, because the gradients have other layouts and shapes.
  ``numerics`` and ``float32`` apply to the gradients, too.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, library
from torch._C import DispatchKeySet
from torch._ops import OpOverload
from torch.autograd import Function
from torch.autograd.graph import increment_version

from . import activation, aten
from .schema import OPS, OTHERS, SIGNATURES

Call = Callable[[], Any]  # the op itself, below autograd


class _Formula(NamedTuple):
    """y = act(alpha * a @ b + beta * c), with a and b at least 2-D.

    ``dims`` are the dimensions that y lacks where a or b is a vector. ``transposed`` means that b is a view of a
    row-major (n, k). ``modes`` are the modes of the gradients' matmuls.
    """

    act: int
    alpha: float
    beta: float
    dims: list[int]
    transposed: bool
    modes: dict[str, int | None]


class _Product(Function):
    """Computes y of a formula, and also the argument of act where the op returns it."""

    @staticmethod
    def forward(ctx: Any, call: Call, formula: _Formula, a: Tensor, b: Tensor, c: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.formula = formula
        ctx.matmul = functools.partial(OPS.matmul.default, **formula.modes) if formula.modes else torch.matmul
        ctx.a_shape, ctx.b_shape, ctx.dtype = a.shape, b.shape, a.dtype
        ctx.c_shape, ctx.c_dtype = (None, None) if c is None else (c.shape, c.dtype)
        result = call()
        *_, needs_a, needs_b, _ = ctx.needs_input_grad
        argument = (result if isinstance(result, Tensor) else result[1]) if formula.act else None
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, argument)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_argument: Tensor | None = None) -> tuple[Tensor | None, ...]:
        a, b, argument = ctx.saved_tensors
        act, alpha, beta, dims, transposed, _ = ctx.formula
        *_, needs_a, needs_b, needs_c = ctx.needs_input_grad
        grad_a = grad_b = grad_c = None
        if grad is not None:
            grad = activation.backward(act, grad, argument)
        if grad_argument is not None:
            grad = grad_argument if grad is None else grad + grad_argument
        if grad is None:
            return (None,) * 5
        if needs_c:
            grad_c = _scaled(grad, beta).sum_to_size(ctx.c_shape).to(ctx.c_dtype)
        grad = grad.to(ctx.dtype)
        for dim in dims:
            grad = grad.unsqueeze(dim)
        shared = len(ctx.b_shape) == 2  # then one matmul over all rows replaces a batch of them and a sum
        if shared:
            grad = _rows(grad)
        if needs_a:
            grad_a = _scaled(ctx.matmul(grad, b.mH), alpha)
            grad_a = grad_a.reshape(ctx.a_shape) if shared else grad_a.sum_to_size(ctx.a_shape)
        if needs_b:
            a = _rows(a) if shared else a
            # The gradient has the memory layout of b, so that autograd accumulates it without a copy.
            grad_b = ctx.matmul(grad.mT, a.conj()).mT if transposed else ctx.matmul(a.mH, grad)
            grad_b = _scaled(grad_b, alpha).sum_to_size(ctx.b_shape)
        return (None,) * 2 + (grad_a, grad_b, grad_c)


def _scaled(t: Tensor, factor: float) -> Tensor:
    return t if factor == 1.0 else t * factor


def _rows(t: Tensor) -> Tensor:
    """Reshapes (..., n) to (rows, n).

    It does not call ``flatten``, for which autograd's own vmap (``is_grads_batched``) has no rule.
    """
    return t if t.dim() == 2 else t.reshape(math.prod(t.shape[:-1]), t.size(-1))


# ---- How each op is recorded. The arguments are the op itself, and then those of its schema.


def _record(
    call: Call,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    act: int = 0,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transposed: bool = False,
    numerics: int | None = None,
    float32: int | None = None,
    **options: Any,
) -> Any:
    asked = {"numerics": numerics, "float32": float32 if a.dtype == torch.float32 else None}
    modes = {name: mode for name, mode in asked.items() if (mode or 0) > 0}
    dims = []
    if b.dim() == 1:
        b = b.unsqueeze(-1)
        dims.append(-1)
    if a.dim() == 1:
        a = a.unsqueeze(-2)
        dims.append(-2)
    formula = _Formula(act, alpha, beta, dims, transposed, modes)
    return _Product.apply(call, formula, a, b, c)  # type: ignore[no-untyped-call]


def _record_sum(call: Call, input: Tensor, a: Tensor, b: Tensor, **options: Any) -> Any:
    return _record(call, a, b, input, **options)


def _record_linear_save(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, act: int = 0, **options: Any
) -> Any:
    is_matrix = weight.dim() == 2
    return _record(call, x, weight.mT if is_matrix else weight, bias, act, transposed=is_matrix, **options)


def _record_linear(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, act: int = 0, **options: Any
) -> Any:
    if act > 1:  # only relu's derivative follows from its result; others need the argument as well
        return OPS.linear_save.default(x, weight, bias, act, **options)[0]
    return _record_linear_save(call, x, weight, bias, act, **options)


def _record_linear_gated(call: Call, x: Tensor, weight: Tensor, act: int, **options: Any) -> Tensor:
    return activation.gate(OPS.linear.default(x, weight, None, 0, **options), act)


def has_tangent(*args: Any) -> bool:
    """Whether forward mode differentiates with respect to any of ``args``."""
    return forward_ad._current_level >= 0 and any(
        isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in args
    )


def kernel(op: OpOverload, in_torch: Callable[..., Any], record: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the Autograd kernel of ``op``.

    It calls ``record`` where a gradient is needed, and ``in_torch`` in forward mode and under functorch.
    """

    def run(keyset: DispatchKeySet, *args: Any, **options: Any) -> Any:
        def call() -> Any:
            with torch._C._AutoDispatchBelowADInplaceOrView():  # otherwise torch's implementations would return views
                return op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, **options)

        if torch._C._are_functorch_transforms_active() or has_tangent(*args):
            return in_torch(*args, **options)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return record(call, *args, **options)
        return call()

    return run


def _out_kernel(op: OpOverload) -> Callable[..., Tensor]:
    """Returns the Autograd kernel of an out= overload. Like torch's, it has no gradient and raises if one is needed."""

    def run(keyset: DispatchKeySet, *args: Any, out: Tensor, **options: Any) -> Tensor:
        if has_tangent(*args, out):
            raise NotImplementedError(f"{op}: functions with out=... arguments don't support forward mode")
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args, out):
            raise RuntimeError(
                f"{op}: functions with out=... arguments don't support automatic differentiation, "
                "but one of the arguments requires grad."
            )
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, out=out, **options)

    return run


def _out_version_kernel(op: OpOverload) -> Callable[..., Tensor]:
    """Returns the kernel that tells autograd that ``out`` was written to."""

    def run(keyset: DispatchKeySet, *args: Any, out: Tensor, **options: Any) -> Tensor:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, out=out, **options)
        increment_version(out)
        return out

    return run


def register_op(
    lib: library.Library, name: str, function: Callable[..., Any], record: Callable[..., Any] = _record
) -> None:
    """Registers the Autograd kernel of an op on ``lib``.

    ``function`` is the op by torch's functions. ``record`` records it for the backward, by default as a matmul of its
    two arguments.
    """
    lib.impl(name, kernel(getattr(OPS, name).default, function, record), "Autograd", with_keyset=True)


_RECORDS: dict[str, Callable[..., Any]] = {
    "addmm": _record_sum,
    "baddbmm": _record_sum,
    "linear": _record_linear,
    "linear_save": _record_linear_save,
    "linear_gated": _record_linear_gated,
    "gate": lambda call, both, act: activation.gate(both, act),
}


def register(lib: library.Library) -> None:
    """Registers the Autograd kernels of every op on ``lib``."""
    for name in (*SIGNATURES, *OTHERS):
        register_op(lib, name, aten.FUNCTIONS[name], _RECORDS.get(name, _record))
    for name in SIGNATURES:
        op = getattr(OPS, name).out
        lib.impl(f"{name}.out", _out_kernel(op), "Autograd", with_keyset=True)
        lib.impl(f"{name}.out", _out_version_kernel(op), "ADInplaceOrView", with_keyset=True)
