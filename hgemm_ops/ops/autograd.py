"""Autograd: first and second order, forward mode and functorch, all written with the ops themselves.

These kernels sit at the Autograd key. torch's ``register_autograd`` would be shorter, but under functorch it
raises (grad, jacrev) or drops tangents (jvp), and it costs 4 µs a call where no gradient is wanted.

Rules of the gradients:

* They are computed in the inputs' dtype. With ``out_dtype=torch.float32`` the float32 gradient is rounded to the half
  dtype first, then multiplied.
* Their GEMMs let the dispatcher choose. A forced ``variant`` is that of the forward product alone: its gradients have
  other layouts and shapes, which the variant may not serve. A context manager's choice still applies.
* ``linear`` keeps its result for relu. For the other activations the forward runs ``linear_save``, whose second result,
  the activation's argument, is a differentiable output of the graph node: second derivatives flow through it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, library
from torch._C import DispatchKeySet
from torch._functorch.utils import enable_single_level_autograd_function
from torch._ops import OpOverload
from torch.autograd import Function
from torch.autograd.graph import increment_version

from hgemm_ops.ops import activation, aten
from hgemm_ops.ops.schema import AUTOGRAD_PREFIX, NAMESPACE, SIGNATURES

Ctx = Any  # torch.autograd.function.FunctionCtx, to which the functions below add attributes
Options = dict[str, Any]  # keyword-only arguments that differ from their defaults
Grads = tuple[Tensor | None, ...]
Saved = tuple[Any, ...]  # tensors, None where one was not kept
Kernel = Callable[..., Any]
Multiply = Callable[[OpOverload, Tensor, Tensor], Tensor]

_OPS = getattr(torch.ops, NAMESPACE)
_AFTER_AUTOGRAD = torch._C._after_autograd_keyset
_AFTER_INPLACE = torch._C._after_ADInplaceOrView_keyset
_BelowAutograd = torch._C._AutoDispatchBelowADInplaceOrView
_functorch_active = torch._C._are_functorch_transforms_active
_grad_enabled = torch.is_grad_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_count_function_modes, _function_mode_at = torch._C._len_torch_function_stack, torch._C._get_function_stack_at

# Every Function below takes (op, keyset, options, a, b, ...), where a and b are the factors of the product.
_SKIPPED = (None, None, None)  # the gradients of op, keyset and options


def _run_below(op: OpOverload, keyset: DispatchKeySet, options: Options, *args: Any) -> Any:
    """The op itself, from inside Function.forward."""
    redispatch, keyset = op._handle.redispatch_boxed, keyset & _AFTER_INPLACE
    with _BelowAutograd():
        if not _functorch_active():
            return redispatch(keyset, *args, **options)
        # Function.forward turned gradients off, but the outer functorch levels still record theirs.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return redispatch(keyset, *args, **options)


def _applier(function: type[Function]) -> Callable[..., Any]:
    """``function.apply`` for use inside a dispatcher kernel.

    The dispatcher runs the kernel once per functorch level, on that level's tensors, so the function is applied to this
    level alone; ``Function.apply`` would begin again at the top of the interpreter stack.
    """
    apply = super(Function, function).apply  # type: ignore[misc]

    def run(*args: Any) -> Any:
        if _functorch_active():
            with enable_single_level_autograd_function():
                return apply(*args)
        return apply(*args)

    return run


def _save(ctx: Ctx, a: Tensor, b: Tensor, *others: Tensor | None) -> None:
    """Saves the factors of a product, each only if the other one's gradient is wanted, and ``others``."""
    needs_a, needs_b = ctx.needs_input_grad[3:5]
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None, *others)
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(a, b, *others)


def _tangent_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A jvp staticmethod from ``rule(ctx, saved tensors, tangents)``.

    Function.jvp is called with forward mode off, but the outer functorch levels still record their tangents: on again,
    for them, with the saved tensors stripped of their tangents at this level.
    """

    def jvp(ctx: Ctx, *tangents: Tensor | None) -> Any:
        if not _functorch_active():
            return rule(ctx, ctx.saved_tensors, tangents)
        with forward_ad._set_fwd_grad_enabled(True):
            saved = tuple(None if t is None else forward_ad.unpack_dual(t).primal for t in ctx.saved_tensors)
            return rule(ctx, saved, tangents)

    return jvp


def _sum(*terms: Tensor | None) -> Tensor | None:
    total: Tensor | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total


def _scale(t: Tensor, factor: float) -> Tensor:
    return t if factor == 1.0 else t * factor


def _rows(t: Tensor) -> Tensor:
    """(..., n) -> (rows, n)."""
    return t if t.dim() == 2 else t.reshape(math.prod(t.shape[:-1]), t.size(-1))


def _apply(op: OpOverload, a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = op(a, b)
    return product


def _multiply() -> Multiply:
    """How this thread wants a gradient's products computed: as the innermost ``use_custom_gemm()`` says, which counts
    them and may force a kernel, or by the operator itself."""
    for i in reversed(range(_count_function_modes())):
        multiply: Multiply | None = getattr(_function_mode_at(i), "_hgemm_multiply", None)
        if multiply is not None:
            return multiply
    return _apply


def _gradient_rule(rule: Callable[..., Grads]) -> Callable[..., Grads]:
    """A backward staticmethod from ``rule(ctx, saved tensors, multiply, *grads)``.

    Like torch's own, written in C++, it is no business of function modes: each would see a dozen calls. What recomputes
    saved tensors (checkpointing) is.
    """

    def backward(ctx: Ctx, *grads: Tensor | None) -> Grads:
        if _is_dynamo_compiling():  # by compiled autograd
            return rule(ctx, ctx.saved_tensors, _apply, *grads)
        multiply, saved = _multiply(), ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            return rule(ctx, saved, multiply, *grads)

    return backward


def _to_dtype(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t if t.dtype == dtype else t.to(dtype)


def _to_size(t: Tensor, shape: torch.Size) -> Tensor:
    return t if t.shape == shape else t.sum_to_size(shape)


class _Product(Function):
    """mm and bmm: y = a @ b."""

    @staticmethod
    def forward(ctx: Ctx, op: OpOverload, keyset: DispatchKeySet, options: Options, a: Tensor, b: Tensor) -> Tensor:
        ctx.op, ctx.dtype, ctx.out_dtype = op, a.dtype, options.get("out_dtype")
        _save(ctx, a, b)
        return _run_below(op, keyset, options, a, b)

    @staticmethod
    @_gradient_rule
    def backward(ctx: Ctx, saved: Saved, multiply: Multiply, grad: Tensor) -> Grads:
        a, b = saved
        needs_a, needs_b = ctx.needs_input_grad[3:5]
        grad = _to_dtype(grad, ctx.dtype)
        return (
            *_SKIPPED,
            multiply(ctx.op, grad, b.mH) if needs_a else None,
            multiply(ctx.op, a.mH, grad) if needs_b else None,
        )

    @staticmethod
    @_tangent_rule
    def jvp(ctx: Ctx, saved: Saved, tangents: Saved) -> Tensor | None:
        a, b = saved
        da, db = tangents[3:5]
        return _sum(
            None if da is None else ctx.op(da, b, out_dtype=ctx.out_dtype),
            None if db is None else ctx.op(a, db, out_dtype=ctx.out_dtype),
        )


class _Sum(Function):
    """The ladder's elementwise additions: y = a + b of one shape and dtype."""

    @staticmethod
    def forward(ctx: Ctx, op: OpOverload, keyset: DispatchKeySet, options: Options, a: Tensor, b: Tensor) -> Tensor:
        return _run_below(op, keyset, options, a, b)

    @staticmethod
    def backward(ctx: Ctx, grad: Tensor) -> Grads:
        return (*_SKIPPED, grad, grad)

    @staticmethod
    @_tangent_rule
    def jvp(ctx: Ctx, saved: Saved, tangents: Saved) -> Tensor | None:
        tangent = _sum(*tangents[3:5])
        return None if tangent is None else tangent.contiguous()


class _Matmul(Function):
    """matmul: y = a @ b of any ranks, broadcasting."""

    @staticmethod
    def forward(ctx: Ctx, op: OpOverload, keyset: DispatchKeySet, options: Options, a: Tensor, b: Tensor) -> Tensor:
        ctx.dtype, ctx.out_dtype = a.dtype, options.get("out_dtype")
        ctx.a_shape, ctx.b_shape = a.shape, b.shape
        _save(ctx, a, b)
        return _run_below(op, keyset, options, a, b)

    @staticmethod
    @_gradient_rule
    def backward(ctx: Ctx, saved: Saved, multiply: Multiply, grad: Tensor) -> Grads:
        a, b = saved
        needs_a, needs_b = ctx.needs_input_grad[3:5]
        a_is_vector, b_is_vector = len(ctx.a_shape) == 1, len(ctx.b_shape) == 1
        grad = _to_dtype(grad, ctx.dtype)
        if b_is_vector:
            grad = grad.unsqueeze(-1)
        if a_is_vector:
            grad = grad.unsqueeze(-2)
        grad_a = grad_b = None
        if needs_a:
            grad_a = multiply(_OPS.matmul.default, grad, (b.unsqueeze(-1) if b_is_vector else b).mH)
            grad_a = _to_size(grad_a.squeeze(-2) if a_is_vector else grad_a, ctx.a_shape)
        if needs_b:
            a = a.unsqueeze(0) if a_is_vector else a
            if len(ctx.b_shape) <= 2:
                # One GEMM over all rows, instead of a batch of products that is then summed.
                grad_b = multiply(_OPS.mm.default, _rows(a).mH, _rows(grad))
            else:
                grad_b = multiply(_OPS.matmul.default, a.mH, grad)
            grad_b = _to_size(grad_b.squeeze(-1) if b_is_vector else grad_b, ctx.b_shape)
        return (*_SKIPPED, grad_a, grad_b)

    @staticmethod
    @_tangent_rule
    def jvp(ctx: Ctx, saved: Saved, tangents: Saved) -> Tensor | None:
        a, b = saved
        da, db = tangents[3:5]
        return _sum(
            None if da is None else _OPS.matmul.default(da, b, out_dtype=ctx.out_dtype),
            None if db is None else _OPS.matmul.default(a, db, out_dtype=ctx.out_dtype),
        )


class _AddProduct(Function):
    """addmm and baddbmm: y = beta * input + alpha * a @ b; ``product`` is mm or bmm."""

    @staticmethod
    def forward(
        ctx: Ctx, op: OpOverload, keyset: DispatchKeySet, options: Options, a: Tensor, b: Tensor, input: Tensor
    ) -> Tensor:
        ctx.product = _OPS.mm.default if a.dim() == 2 else _OPS.bmm.default
        ctx.alpha, ctx.beta = options.get("alpha", 1.0), options.get("beta", 1.0)
        ctx.dtype, ctx.out_dtype = a.dtype, options.get("out_dtype")
        ctx.input_shape, ctx.input_dtype = input.shape, input.dtype
        _save(ctx, a, b)
        y = _run_below(op, keyset, options, input, a, b)
        ctx.shape, ctx.result_dtype = y.shape, y.dtype
        return y

    @staticmethod
    @_gradient_rule
    def backward(ctx: Ctx, saved: Saved, multiply: Multiply, grad: Tensor) -> Grads:
        a, b = saved
        needs_a, needs_b, needs_input = ctx.needs_input_grad[3:6]
        factor = _to_dtype(grad, ctx.dtype)
        grad_input = None
        if needs_input:
            grad_input = _to_dtype(_to_size(_scale(grad, ctx.beta), ctx.input_shape), ctx.input_dtype)
        return (
            *_SKIPPED,
            _scale(multiply(ctx.product, factor, b.mH), ctx.alpha) if needs_a else None,
            _scale(multiply(ctx.product, a.mH, factor), ctx.alpha) if needs_b else None,
            grad_input,
        )

    @staticmethod
    @_tangent_rule
    def jvp(ctx: Ctx, saved: Saved, tangents: Saved) -> Tensor | None:
        a, b = saved
        da, db, dinput = tangents[3:6]
        return _sum(
            None if da is None else _scale(ctx.product(da, b, out_dtype=ctx.out_dtype), ctx.alpha),
            None if db is None else _scale(ctx.product(a, db, out_dtype=ctx.out_dtype), ctx.alpha),
            None if dinput is None else _scale(dinput.to(ctx.result_dtype), ctx.beta).expand(ctx.shape).contiguous(),
        )


def _activation_backward(act: int, grad: Tensor, pre: Tensor) -> Tensor:
    """grad * act'(pre); for relu, ``pre`` may be the result as well. Elementwise, so it maps tangents too."""
    aten = torch.ops.aten
    if act == 1:
        return aten.threshold_backward.default(grad, pre, 0)
    if act == 2:
        return aten.gelu_backward.default(grad, pre)
    if act == 3:
        return aten.gelu_backward.default(grad, pre, approximate="tanh")
    if act == 4:
        if not _grad_enabled() and forward_ad._current_level < 0:
            return aten.silu_backward.default(grad, pre)
        sigmoid = pre.sigmoid()  # as torch for a second derivative: silu_backward has none
        return grad * (sigmoid * (1 + pre * (1 - sigmoid)))
    return grad


def _linear_setup(ctx: Ctx, options: Options, x: Tensor, weight: Tensor, bias: Tensor | None, act: int) -> None:
    ctx.act, ctx.dtype, ctx.out_dtype = act, x.dtype, options.get("out_dtype")
    ctx.weight_is_vector = weight.dim() == 1
    ctx.bias_shape = None if bias is None else bias.shape


def _linear_grads(ctx: Ctx, multiply: Multiply, grad: Tensor, x: Tensor | None, weight: Tensor | None) -> Grads:
    """Gradients of x @ weight.T + bias."""
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad[3:6]
    grad = _to_dtype(grad, ctx.dtype)
    grad_x = grad_weight = grad_bias = None
    if needs_bias:
        grad_bias = _to_size(grad, ctx.bias_shape)
    if ctx.weight_is_vector:
        grad = grad.unsqueeze(-1)
    if needs_x:
        assert weight is not None
        grad_x = multiply(_OPS.matmul.default, grad, (weight.unsqueeze(0) if ctx.weight_is_vector else weight).conj())
    if needs_weight:
        assert x is not None
        grad_weight = multiply(_OPS.mm.default, _rows(grad).mT, _rows(x).conj())
        grad_weight = grad_weight.squeeze(0) if ctx.weight_is_vector else grad_weight
    return (*_SKIPPED, grad_x, grad_weight, grad_bias, None)


def _linear_tangent(ctx: Ctx, x: Tensor, weight: Tensor, tangents: Saved) -> Tensor | None:
    """Tangent of x @ weight.T + bias."""
    dx, dweight, dbias = tangents[3:6]
    return _sum(
        None if dx is None else _OPS.linear.default(dx, weight, out_dtype=ctx.out_dtype),
        None if dweight is None else _OPS.linear.default(x, dweight, out_dtype=ctx.out_dtype),
        None if dbias is None else dbias.to(ctx.result_dtype).expand(ctx.shape).contiguous(),
    )


class _Linear(Function):
    """linear without an activation, or with relu."""

    @staticmethod
    def forward(
        ctx: Ctx,
        op: OpOverload,
        keyset: DispatchKeySet,
        options: Options,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        act: int,
    ) -> Tensor:
        _linear_setup(ctx, options, x, weight, bias, act)
        y = _run_below(op, keyset, options, x, weight, bias, act)
        ctx.shape, ctx.result_dtype = y.shape, y.dtype
        _save(ctx, x, weight, y if act else None)
        return y

    @staticmethod
    @_gradient_rule
    def backward(ctx: Ctx, saved: Saved, multiply: Multiply, grad: Tensor) -> Grads:
        x, weight, y = saved
        return _linear_grads(ctx, multiply, _activation_backward(ctx.act, grad, y), x, weight)

    @staticmethod
    @_tangent_rule
    def jvp(ctx: Ctx, saved: Saved, tangents: Saved) -> Tensor | None:
        x, weight, y = saved
        tangent = _linear_tangent(ctx, x, weight, tangents)
        return None if tangent is None else _activation_backward(ctx.act, tangent, y)


class _LinearSave(Function):
    """linear_save: (act(pre), pre), pre = x @ weight.T + bias."""

    @staticmethod
    def forward(
        ctx: Ctx,
        op: OpOverload,
        keyset: DispatchKeySet,
        options: Options,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        act: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        _linear_setup(ctx, options, x, weight, bias, act)
        y, pre = _run_below(op, keyset, options, x, weight, bias, act)
        ctx.shape, ctx.result_dtype = pre.shape, pre.dtype
        _save(ctx, x, weight, pre)
        return y, pre

    @staticmethod
    @_gradient_rule
    def backward(ctx: Ctx, saved: Saved, multiply: Multiply, grad_y: Tensor | None, grad_pre: Tensor | None) -> Grads:
        x, weight, pre = saved
        grad = _sum(None if grad_y is None else _activation_backward(ctx.act, grad_y, pre), grad_pre)
        return (None,) * 7 if grad is None else _linear_grads(ctx, multiply, grad, x, weight)

    @staticmethod
    @_tangent_rule
    def jvp(ctx: Ctx, saved: Saved, tangents: Saved) -> tuple[Tensor | None, Tensor | None]:
        x, weight, pre = saved
        tangent = _linear_tangent(ctx, x, weight, tangents)
        return (None if tangent is None else _activation_backward(ctx.act, tangent, pre)), tangent


# The kernels. Where no gradient is wanted they pass the call on with as little Python as there can be: requires_grad is
# asked only in grad mode, functorch not at all (a level whose tensors need no gradient passes on like any other), and
# the handle redispatches without OpOverload's frame around it.


def _kernel(op: OpOverload, record: Callable[..., Any]) -> Kernel:
    """``record(keyset, options, *args)`` runs a call whose gradient is wanted."""
    redispatch, through_torch = op._handle.redispatch_boxed, getattr(aten, op._opname, None)

    def kernel(keyset: DispatchKeySet, *args: Any, **options: Any) -> Any:
        if (_grad_enabled() and _requires_grad(args)) or forward_ad._current_level >= 0:
            return record(keyset, options, *args)
        try:
            return redispatch(keyset & _AFTER_AUTOGRAD, *args, **options)
        except RuntimeError as error:
            # The stable ABI leaves of torch's exceptions only a RuntimeError. torch, asked again, raises its own:
            # NotImplementedError for an integer dtype, OutOfMemoryError, ...
            if through_torch is None or not str(error).startswith("hgemm: torch failed"):
                raise
            return through_torch(*args, **options)

    return kernel


def _requires_grad(args: Iterable[Any]) -> bool:
    for arg in args:  # noqa: SIM110 (any() costs a generator)
        if isinstance(arg, Tensor) and arg.requires_grad:
            return True
    return False


def _function_kernel(op: OpOverload, function: type[Function]) -> Kernel:
    """For a Function that takes the arguments in the op's order."""
    return _kernel(op, functools.partial(_applier(function), op))


def sum_kernel(op: OpOverload) -> Kernel:
    """The Autograd kernel of an elementwise addition (``elementwise.py``)."""
    return _function_kernel(op, _Sum)


def _add_product_kernel(op: OpOverload) -> Kernel:
    apply = _applier(_AddProduct)

    def record(keyset: DispatchKeySet, options: Options, input: Tensor, a: Tensor, b: Tensor) -> Any:
        return apply(op, keyset, options, a, b, input)

    return _kernel(op, record)


def _linear_kernel(op: OpOverload) -> Kernel:
    apply, apply_save, linear_save = _applier(_Linear), _applier(_LinearSave), _OPS.linear_save.default

    def record(
        keyset: DispatchKeySet, options: Options, x: Tensor, weight: Tensor, bias: Tensor | None = None, act: int = 0
    ) -> Any:
        if act > 1:
            return apply_save(linear_save, keyset, options, x, weight, bias, act)[0]
        return apply(op, keyset, options, x, weight, bias, act)

    return _kernel(op, record)


def _linear_gated_kernel(op: OpOverload) -> Kernel:
    """Where a gradient is wanted: the product, whose halves that needs, and torch's activation and multiplication."""

    def record(keyset: DispatchKeySet, options: Options, x: Tensor, weight: Tensor, act: int) -> Tensor:
        return activation.gate(_OPS.linear.default(x, weight, None, 0, **options), act)

    return _kernel(op, record)


def _out_kernel(op: OpOverload) -> Kernel:
    """As torch's: an out= overload has no gradient, and says so."""

    def kernel(keyset: DispatchKeySet, *args: Any, out: Tensor, **options: Any) -> Tensor:
        if _grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in (*args, out)):
            raise RuntimeError(
                f"{op}: functions with out=... arguments don't support automatic differentiation, "
                "but one of the arguments requires grad."
            )
        return op.redispatch(keyset & _AFTER_AUTOGRAD, *args, out=out, **options)

    return kernel


def _out_version_kernel(op: OpOverload) -> Kernel:
    """Tells autograd that ``out`` was written to."""

    def kernel(keyset: DispatchKeySet, *args: Any, out: Tensor, **options: Any) -> Tensor:
        with _BelowAutograd():
            op.redispatch(keyset & _AFTER_INPLACE, *args, out=out, **options)
        increment_version(out)
        return out

    return kernel


# On CUDA, where the shared library is loaded, its kernel comes first. It leaves these the calls that want a gradient,
# and those that dispatch modes or tensor subclasses are to see (csrc/torch/autograd_fast_path.cc).


def _behind_the_library(kernel: Kernel) -> Kernel:
    """``kernel`` for a call from the shared library, whose way back drops exceptions."""

    def wrapper(*args: Any, **options: Any) -> Any:
        try:
            return kernel(*args, **options)
        except BaseException as error:
            keep_exception(error)
            raise

    return wrapper


def keep_exception(error: BaseException) -> None:
    """Leaves an exception with the shared library, which raises it again."""
    from hgemm_ops import _native  # only here: the ops exist without the library

    _native.keep_exception(error)


def register(lib: library.Library) -> None:
    """Registers the Autograd kernels of every op on ``lib``."""
    kernels = {
        "matmul": _function_kernel(_OPS.matmul.default, _Matmul),
        "matmul_swizzled": _function_kernel(_OPS.matmul_swizzled.default, _Matmul),
        "mm": _function_kernel(_OPS.mm.default, _Product),
        "bmm": _function_kernel(_OPS.bmm.default, _Product),
        "addmm": _add_product_kernel(_OPS.addmm.default),
        "baddbmm": _add_product_kernel(_OPS.baddbmm.default),
        "linear": _linear_kernel(_OPS.linear.default),
        "linear_save": _kernel(
            _OPS.linear_save.default, functools.partial(_applier(_LinearSave), _OPS.linear_save.default)
        ),
        "linear_gated": _linear_gated_kernel(_OPS.linear_gated.default),
    }
    for name, kernel in kernels.items():
        lib.impl(name, kernel, "Autograd", with_keyset=True)
    for name in SIGNATURES:
        lib.impl(f"{AUTOGRAD_PREFIX}{name}", _behind_the_library(kernels[name]), "Autograd", with_keyset=True)
        op = getattr(_OPS, name).out
        lib.impl(f"{name}.out", _out_kernel(op), "Autograd", with_keyset=True)
        lib.impl(f"{name}.out", _out_version_kernel(op), "ADInplaceOrView", with_keyset=True)
