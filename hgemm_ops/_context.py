"""``use_custom_gemm()``: sends the matrix products of any PyTorch code through the operators of this package.

The context is a ``TorchFunctionMode``: torch hands it every call of the torch API made on this thread, and it swaps the
matrix products. Nothing is patched, so nothing outlives the context, and ``torch.compile`` guards on it (one graph with
the context, one without). Three layers, cheapest first:

- a call seen before (same weight or line of code, shapes and dtype) costs one dictionary look-up and one increment, and
  goes from here to its kernel where nothing lies between (``_python_call.py``); where the dispatcher gives it to torch,
  and what its gradient would need, too, the torch function itself runs it, unless the operator has the shorter way
  there (``csrc/torch/cublas_gemm.h``);
- a new one is checked, named after the module it comes from, and remembered;
- every other form (keywords, ``out=``, ``einsum``, ``addbmm``, ...) is lowered to one of the operators each time.

What no kernel of ours serves runs the very torch function that was called, and the report says why.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from hgemm_ops import _fusion, _gating, _library, _native, _python_call, _sites, _variants
from hgemm_ops._lowering import LEFT_TO_TORCH, LOWERINGS, Lowered
from hgemm_ops._report import (
    Call,
    Report,
    autocasts,
    call_of,
    calls_cublas,
    lock,
    torch_serves,
    why_torch_records,
)
from hgemm_ops.ops.schema import NAMESPACE, SIGNATURES

__all__ = ["use_custom_gemm"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Torch: TypeAlias = Callable[..., Any]  # a function of the torch API
_Args: TypeAlias = tuple[Any, ...]
_Kwargs: TypeAlias = "dict[str, Any] | None"
_Key: TypeAlias = tuple[Any, ...]

_OPS = getattr(torch.ops, NAMESPACE)
_DISABLED = _library.disabled()
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_capturing = torch.cuda.is_current_stream_capturing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_getframe = sys._getframe

_HALF = (torch.float16, torch.bfloat16)
_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _Count:
    """How often a call came since the last flush."""

    __slots__ = ("call", "calls")

    def __init__(self, call: Call, calls: int = 0) -> None:
        self.call = call
        self.calls = calls


class _Direct:
    """How often the torch function ran the calls of an operator's entry, because nothing of ours would be faster.

    ``plain`` counts those whose gradient is not wanted; None where a kernel serves them, or where the operator has the
    shorter way to torch's. ``trained`` counts those whose gradient is; None where our kernels have something to gain.
    ``eager``: they have, but less than the operator takes the host, which only matters outside of CUDA graphs.
    """

    __slots__ = ("eager", "plain", "trained")

    def __init__(self, plain: _Count | None, trained: _Count | None, eager: bool = False) -> None:
        self.plain = plain
        self.trained = trained
        self.eager = eager


class _Entry(_Count):
    """A call that was seen before, and what runs it: our operator, or (None) torch, which it was left to.

    ``direct`` is None where the operator runs every call, and ``_UNDECIDED`` until the call comes a second time.
    """

    __slots__ = ("code", "direct", "op")

    def __init__(self, call: Call, op: Callable[..., Any] | None, code: CodeType) -> None:
        super().__init__(call, 1)
        self.op = op
        self.direct: _Direct | None = _UNDECIDED
        self.code = code  # its id is part of the key: alive, it cannot be reused

    def counts(self) -> tuple[_Count, ...]:
        direct = () if self.direct is None else (self.direct.plain, self.direct.trained)
        return (self, *(count for count in direct if count is not None))


_UNDECIDED = _Direct(None, None)


class _Active(threading.local):
    """The contexts entered on this thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[use_custom_gemm] = []


_active = _Active()


class use_custom_gemm(TorchFunctionMode):
    """Sends matrix products through ``torch.ops.hgemm`` while it is active; a context manager and a decorator.

    Example::

        with use_custom_gemm() as report:
            y = model(x)
        print(report)

        step = use_custom_gemm(variant="torch")
        @step
        def train_step(batch): ...
        print(step.report)

    Routed: ``F.linear`` (so ``nn.Linear``), ``torch.matmul``, ``mm``, ``bmm``, ``addmm``, ``baddbmm``, ``addbmm``,
    ``mv``, ``addmv``, ``dot``, ``vdot``, ``inner``, ``torch.linalg.matmul``, ``@``, their Tensor methods and ``out=``
    forms, ``torch.einsum`` of two operands where it is a (batched) matrix product, and whatever these are reached
    through, ``F.multi_head_attention_forward`` and ``backward()`` included. The gradients of a routed call are
    computed by our operators wherever ``backward()`` runs. Only where the dispatcher gives the call and both products
    of its gradient to torch does torch record it and, outside of CUDA graphs, where the three are so small that eager
    code waits for the host. Results, shapes and errors are torch's.

    Left to torch, with the reason in the report: dtypes other than float16 and bfloat16 on a GPU (unless autocast makes
    them so), sparse, nested and quantized tensors, subclasses that override torch functions, in-place forms. On the
    CPU every real floating dtype takes the same route and ends in torch's kernels.

    One object may be entered again, also while it is active (recursion); its report goes on counting. Contexts nest:
    the innermost one routes (and its ``variant`` holds), each enclosing report counts its calls too.

    Notes:
        - The context belongs to the thread that entered it. Threads started inside it are not routed: enter it there
          (the same object may serve several threads). Threads that autograd runs ``backward()`` on do inherit it.
        - Calls below the torch API are not seen: ``torch.ops.aten.*``, and products inside C++ composites such as
          ``scaled_dot_product_attention``, convolutions and ``nn.LSTM``.
        - Non-reentrant checkpointing recomputes the forward during backward and fails, under any function mode, if only
          one of the two runs inside the context: call ``backward()`` inside as well.
        - In a function under ``torch.compile``, ``with use_custom_gemm()`` routes but does not count. Compiled graphs
          that run inside the context count, under the layer whose weight they multiply by or as "(compiled graph)".
          Replays of CUDA graphs are no calls.
        - A line of code is known by its first call of each shape and dtype: should later ones differ in strides, their
          layout and kernel are reported as the first one's.

    Args:
        variant: forces one kernel by name (see ``hgemm_ops.variants()``) or ``"torch"``; by default each call is given
            the fastest. A kernel that cannot serve a call raises RuntimeError with the reasons.
        fuse_projections: one product for layers that are called with the same input one after the other, of models
            that ``hgemm_ops.fuse_projections(model)`` has prepared. For inference under ``torch.no_grad()``, eager and
            in CUDA graphs; where a gradient is wanted, in inference mode, under autocast and in compiled code every
            layer runs by itself. A fused layer's result is a view of the group's: with more than one row it is not
            contiguous, so ``view(-1)`` of it raises where ``reshape`` copies. A write to the input between the calls of
            a group is noticed unless it goes past torch (memory that was shared with NumPy before).
        static_weights: promises that nothing still running on the current stream writes a weight when a layer starts,
            so that kernels for few rows may read weights early (see :func:`hgemm_ops.matmul`). Holds for products whose
            second factor is an ``nn.Parameter``, as in ``nn.Linear``, and not for what autocast casts. For inference:
            **results are wrong without an error** where the kernel right before a layer writes its weight.
    """

    def __init__(
        self, *, variant: str | None = None, fuse_projections: bool = False, static_weights: bool = False
    ) -> None:
        forced = _variants.resolve(variant)
        self._variant = None if forced == _native.AUTO else forced
        self._static_weights = static_weights
        self._pending = _fusion.Pending() if fuse_projections and not _is_dynamo_compiling() else None
        self.report = Report()
        if not _is_dynamo_compiling():
            self.report._collect = self._collect
            self._seen: dict[_Key, _Entry] = {}
            self._retired: list[_Entry] = []  # no longer in _seen
            self._nested = 0  # how often it is active inside of another, which would route torch's function again
            self._weights: dict[int, _Weight] = {}
            self._lines: dict[tuple[CodeType, int], str] = {}
            with lock:
                _contexts.add(self)

    def __enter__(self) -> Report:
        if _DISABLED:
            return self.report
        if not _is_dynamo_compiling():
            for context in _active.stack:
                context._flush()  # what they counted so far was outside of this one
            with lock:
                self._nested += bool(_active.stack)
            _active.stack.append(self)
            if self._pending is not None:
                self._pending.clear()
            self.report._start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self.report

    def __exit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        if _DISABLED:
            return
        super().__exit__(exc_type, exc_val, exc_tb)  # type: ignore[no-untyped-call]
        if not _is_dynamo_compiling():
            if len(_active.stack) > 1:
                self._flush()
                with lock:
                    self._nested -= 1
            _active.stack.pop()
            if self._pending is not None:
                self._pending.clear()
            self.report._stop()

    def __call__(self, function: _Function) -> _Function:
        """Decorates ``function`` to run inside this context."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if _is_dynamo_compiling():
            return self._trace(func, types, args, kwargs or {})
        route = _ROUTES.get(func)
        if route is None:  # every other function of torch: an empty dictionary would cost it 100 ns
            return func(*args) if kwargs is None else func(*args, **kwargs)
        if not isinstance(route, str):
            return route(self, func, types, args, kwargs)
        # The hot path. Its keys hold what decides whether a call is served, and where it comes from, and nothing else:
        # each attribute of a tensor costs 50 to 100 ns.
        key: _Key | None = None
        frame: FrameType | None = None
        if not (kwargs or types):
            if route is _LINEAR and self._pending is not None and len(args) in (2, 3):
                fused = self._fused(self._pending, *args)
                if fused is not None:
                    return fused
            try:
                if route is _LINEAR:
                    a = args[0]
                    b = args[1]
                elif route is _PAIR:
                    a, b = args
                else:
                    _, a, b = args
                if type(b) is Parameter:
                    key = (route, id(b), a.shape, a.dtype)
                else:
                    frame = _getframe(1)
                    key = (route, id(frame.f_code), frame.f_lasti, a.shape, b.shape, a.dtype)
                entry = self._seen.get(key)
            # Another form of the call, a nested tensor (no shape), symbolic sizes (no hash).
            except (AttributeError, RuntimeError, TypeError, ValueError):
                key = entry = None
            if entry is not None:
                op = entry.op
                if op is not None:
                    direct = entry.direct
                    if direct is not None:
                        if direct is _UNDECIDED:
                            direct = self._decide(entry)
                        if direct is not None:
                            # An operator's gradient is routed, torch's is not; and tracers are to find the operator.
                            if not (_is_grad_enabled() and _requires_grad(args)):
                                count = direct.plain
                            else:
                                count = None if direct.eager and _is_capturing() else direct.trained
                            if count is not None and not _dispatch_modes() and not self._nested:
                                count.calls += 1
                                return func(*args)
                    entry.calls += 1
                    return op(*args)
                if not autocasts(a.device.type):
                    entry.calls += 1
                    return func(*args)
        return self._general(func, types, args, kwargs, key, frame)

    def _hgemm_multiply(self, op: OpOverload, a: Tensor, b: Tensor) -> Tensor:
        """A product of a gradient (``ops/autograd.py``), with torch functions off: counted, and run as this context
        wants it."""
        key: _Key = (op, id(b) if type(b) is Parameter else None, a.shape, b.shape, a.dtype)
        try:
            entry = self._seen.get(key)
        except TypeError:  # symbolic sizes: traced, not run
            traced: Tensor = op(a, b, **self._with_variant({}))
            return traced
        if entry is None or entry.op is None:
            result: Tensor = op(a, b, **self._with_variant({}))
            self._record_gradient(op, a, b, key)
            return result
        direct = entry.direct
        if direct is _UNDECIDED:
            direct = self._decide(entry)
        plain = None if direct is None else direct.plain
        if plain is not None and not _is_grad_enabled() and not _dispatch_modes():
            plain.calls += 1
            return torch.matmul(a, b)
        entry.calls += 1
        result = entry.op(a, b)
        return result

    def _record_gradient(self, op: OpOverload, a: Tensor, b: Tensor, key: _Key) -> None:
        if torch.compiler.is_compiling() or isinstance(a, FakeTensor):
            return
        frame = _getframe(2)  # of the gradient's formula
        product = Lowered(op._opname, a, b)
        call = call_of(self._site(product, key, frame), product.op, product, variant=self._variant)
        options = self._with_variant({})
        run = functools.partial(op._op, **options) if options else op._op
        self._remember(key, None, _Entry(call, run, frame.f_code))

    def _trace(self, func: _Torch, types: Sequence[type], args: _Args, kwargs: dict[str, Any]) -> Any:
        """``__torch_function__`` as dynamo sees it: the same routes, nothing counted.

        NOTE: its dictionaries do not find Python methods of Tensor that were looked up on an intermediate result.
        """
        if _DISABLED:
            return func(*args, **kwargs)
        if func is Tensor.__rmatmul__:
            func, args = torch.matmul, (args[1], args[0])
        elif func is Tensor.unflatten:
            func = torch.unflatten  # cannot be traced, as a method, once a mode has handled it (torch 2.13)
        if _overriding(types) is None:
            if func is F.multi_head_attention_forward:
                return _attention(self, func, types, args, kwargs)
            if func in _OWN:
                return func(*args, **self._with_variant(kwargs))
            if func in LOWERINGS:
                lowered = _lower(func, types, args, kwargs)
                if isinstance(lowered, Lowered):
                    return self._run(lowered)
        return func(*args, **kwargs)

    def _with_variant(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of an operator, with this context's kernel unless they name one."""
        if self._variant is None or options.get("variant", _native.AUTO) != _native.AUTO:
            return options
        return {**options, "variant": self._variant}

    def _options(self, options: dict[str, Any], b: Tensor) -> dict[str, Any]:
        """The options of the operator for a routed product with the second factor ``b``."""
        options = self._with_variant(options)
        if self._static_weights and type(b) is Parameter:
            return {**options, "static_weights": True}
        return options

    def _general(
        self,
        func: _Torch,
        types: Sequence[type],
        args: _Args,
        kwargs: _Kwargs,
        key: _Key | None = None,
        frame: FrameType | None = None,
    ) -> Any:
        """Any call of a function that has a lowering."""
        kwargs = kwargs or {}
        lowered = _lower(func, types, args, kwargs)
        result = func(*args, **kwargs) if isinstance(lowered, str) else self._run(lowered)
        self._record(func, lowered, args, kwargs, key, frame)
        return result

    def _run(self, lowered: Lowered) -> Tensor:
        op = getattr(_OPS, lowered.op)
        options = self._options(lowered.options, lowered.b)
        if lowered.out is not None:
            op.out(*lowered.arguments(), **options, out=lowered.out)
            return lowered.out
        result: Tensor = op.default(*lowered.arguments(), **options)
        return result if lowered.finish is None else lowered.finish(result)

    def _fused(self, pending: _fusion.Pending, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """The result of a layer of a fused group; None where the call stands for itself."""
        group = _fusion.group_of(weight)
        if group is None or not group.serves(x, weight, bias):
            return None
        result = pending.take(group, x, weight, bias)
        if result is not None:
            return result
        joint = group.joint(x)
        if joint is None:
            return None
        options = {"static_weights": True} if self._static_weights else {}
        product = Lowered("linear", x, joint.weight, joint.bias, options)
        pending.hold(group, x, self._run(product), joint.sizes)
        self._count_fused(group, product)
        return pending.take(group, x, weight, bias)

    def _hgemm_gated(self, unit: _gating.GatedForward, x: Any) -> Tensor | None:
        """What goes into the last layer of a gated unit of a fused group; None where each layer stands for itself."""
        if self._pending is None:
            return None
        layers = unit.layers()
        group = None if layers is None else _fusion.group_of(layers[0].weight)
        if layers is None or group is None:
            return None
        gate, up = layers
        if [id(weight) for weight, _ in group.parameters()] != [id(gate.weight), id(up.weight)]:
            return None
        if gate._parameters.get("bias") is not None or not group.serves(x, gate.weight, None):
            return None
        joint = group.joint(x)
        if joint is None or joint.sizes[0] != joint.sizes[1]:
            return None
        options = self._with_variant({"static_weights": True} if self._static_weights else {})
        _pop_mode()
        try:
            result: Tensor = _OPS.linear_gated.default(x, joint.weight, unit.unit.act, **options)
        finally:
            _push_mode(self)
        self._count_fused(group, Lowered("linear", x, joint.weight), "linear_gated")
        return result

    def _count_fused(self, group: _fusion.Group, product: Lowered, op: str = "linear") -> None:
        key = (group, op, product.a.shape, product.a.dtype)
        entry = self._seen.get(key)
        if entry is None:
            frame = _caller()
            names = [_sites.of_parameter(frame, weight) for weight, _ in group.parameters() if weight is not None]
            call = call_of(_fusion.joint_name(names), op, product, variant=self._variant)
            self._remember(key, None, _Entry(call, None, frame.f_code))
        else:
            entry.calls += 1

    def _record(
        self,
        func: _Torch,
        lowered: Lowered | str,
        args: _Args,
        kwargs: dict[str, Any],
        key: _Key | None = None,
        frame: FrameType | None = None,
    ) -> None:
        """Counts a call that did not take the short way; with its ``key``, the next one does."""
        frame = frame or _caller()
        product = lowered if isinstance(lowered, Lowered) else _describe(func, args, kwargs)
        if key is None:
            key = (func, id(frame.f_code), frame.f_lasti)
            if product is not None:
                weight = id(product.b) if type(product.b) is Parameter else None
                key += (weight, product.a.shape, product.b.shape, product.a.dtype)
        try:
            entry = self._seen.get(key)
        except TypeError:
            return  # symbolic sizes: traced, not run
        if entry is not None and (entry.op is not None) == isinstance(lowered, Lowered):
            entry.calls += 1
            return
        if torch.compiler.is_compiling() or any(isinstance(t, FakeTensor) for t in _tensors(args, kwargs)):
            return  # traced as well
        site = self._site(product, key, frame)
        if isinstance(lowered, Lowered):
            call = call_of(site, lowered.op, lowered, variant=self._variant)
            op = getattr(_OPS, lowered.op).default._op  # without the Python frame of OpOverload.__call__
            options = self._options({}, lowered.b)
            if options:
                op = functools.partial(op, **options)
            if lowered.a.is_cuda:
                op = _python_call.function(lowered.op, op, **options)
        else:
            call = call_of(site, getattr(func, "__name__", str(func)), product, left=lowered)
            op = None
        self._remember(key, entry, _Entry(call, op, frame.f_code))

    def _remember(self, key: _Key, stale: _Entry | None, entry: _Entry) -> None:
        """Makes ``entry`` the one of ``key`` in place of ``stale``. What another thread put there meanwhile, and counts
        with already, is kept until it is flushed."""
        with lock:
            self.report._add(entry.call, 0)  # rows come in the order of first calls
            found = self._seen.get(key)
            if found is not None and found is not stale and (found.op is None) == (entry.op is None):
                found.calls += 1
                return
            if found is not None:
                self._retired.append(found)  # autocast was switched since
            self._seen[key] = entry

    def _decide(self, entry: _Entry) -> _Direct | None:
        """Asks the dispatcher who serves a call that has come a second time."""
        call, direct = entry.call, None
        why = torch_serves(call)
        plain = _Count(replace(call, left=why)) if why and not calls_cublas(call) else None
        why_trained, eager = why_torch_records(call, why)
        trained = _Count(replace(call, left=f"{why_trained}; {_GRADIENT_TOO}")) if why_trained else None
        if plain is not None or trained is not None:
            direct = _Direct(plain, trained, eager)
        with lock:
            if entry.direct is _UNDECIDED:  # else another thread counts with its answer already
                entry.direct = direct
            return entry.direct

    def _site(self, product: Lowered | None, key: _Key, frame: FrameType) -> str:
        if product is not None and type(product.b) is Parameter:
            weight = self._weights.get(id(product.b))
            if weight is None:
                forget = functools.partial(_forget, weakref.ref(self), id(product.b))
                weight = _Weight(weakref.ref(product.b, forget), _sites.of_parameter(frame, product.b))
                weight = self._weights.setdefault(id(product.b), weight)
            weight.keys.append(key)
            return f"{weight.site} {BACKWARD}" if _is_gradient(frame) else weight.site
        line = (frame.f_code, frame.f_lasti)
        site = self._lines.get(line)
        if site is None:
            site = self._lines[line] = BACKWARD if _is_gradient(frame) else _sites.of_line(frame)
        return site

    def _flush(self) -> None:
        """Credits what was counted since the last time to this report and to those of the enclosing contexts."""
        stack = _active.stack
        depth = max((i for i, context in enumerate(stack) if context is self), default=0)
        reports = {id(context.report): context.report for context in (self, *stack[:depth])}
        with lock:
            retired, self._retired = self._retired, []
            for entry in (*retired, *self._seen.values()):
                for count in entry.counts():
                    n = count.calls
                    if n:
                        count.calls -= n
                        for report in reports.values():
                            report._add(count.call, n)

    def _collect(self) -> None:
        """Everything counted so far, for a report that is being read."""
        for context in (*_active.stack, self):
            context._flush()


# Every context, whose entries keep decisions of the dispatcher.
_contexts: weakref.WeakSet[use_custom_gemm] = weakref.WeakSet()


def _forget_decisions() -> None:
    """A call that was given to torch may be a kernel's now: every call is new again."""
    with lock:
        for context in _contexts:
            context._retired.extend(context._seen.values())
            context._seen.clear()


_native.on_new_table(_forget_decisions)


class _Weight:
    """A parameter that products were seen with, and the keys of ``_seen`` that end with its life."""

    def __init__(self, reference: weakref.ref[Tensor], site: str) -> None:
        self.reference = reference
        self.site = site
        self.keys: list[_Key] = []


def _forget(context: weakref.ref[use_custom_gemm], weight: int, _: object) -> None:
    """A weight is gone: its id may come back as another's."""
    self = context()
    if self is not None:
        for key in self._weights.pop(weight).keys:
            entry = self._seen.pop(key, None)
            if entry is not None:
                self._retired.append(entry)


_GRADIENT_TOO = "torch computes its gradient, too, whose products are not listed"

#: The site of the products of a gradient.
BACKWARD = "(backward)"

# Frames between a call of the torch API and __torch_function__.
_BETWEEN = frozenset(
    (
        __name__,
        "torch._ops",
        "torch._tensor",
        "torch.functional",
        "torch.overrides",
        "hgemm_ops._api",
        "hgemm_ops._fusion",
    )
)


def _caller() -> FrameType:
    """The frame that called the torch API."""
    frame = _getframe(1)
    while frame.f_globals.get("__name__") in _BETWEEN and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_gradient(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("hgemm_ops.ops.")


def _requires_grad(tensors: Iterable[Tensor | None]) -> bool:
    for t in tensors:  # noqa: SIM110 (any() costs a generator)
        if t is not None and t.requires_grad:
            return True
    return False


def _tensors(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):  # einsum's operands
            yield from (t for t in arg if isinstance(t, Tensor))


def _lower(func: _Torch, types: Sequence[type], args: _Args, kwargs: dict[str, Any]) -> Lowered | str:
    """The call as one of our operators, or why it is torch's."""
    overriding = _overriding(types)
    if overriding is not None:
        return f"{overriding.__name__} overrides torch functions"
    tensors = list(_tensors(args, kwargs))
    for t in tensors:
        why = _why_torch(t)
        if why:
            return why
    if any(t.dtype != tensors[0].dtype for t in tensors) and not autocasts(tensors[0].device.type):
        return "mixed dtypes"
    try:
        lowered = LOWERINGS[func](*args, **kwargs)
    except TypeError:
        return "arguments of another form"
    if not isinstance(lowered, str) and lowered.out is not None:
        return _why_not_into(lowered, lowered.out) or lowered
    return lowered


def _overriding(types: Sequence[type]) -> type | None:
    """A subclass that handles torch functions itself. C++ lists only these; Python functions list Tensor as well."""
    return next((t for t in types if t is not Tensor), None)


def _why_torch(t: Tensor) -> str:
    if t.is_nested:
        return "nested tensor"
    if t.layout is not torch.strided:
        return f"layout {t.layout}"
    if t.dtype not in _REAL:
        return f"dtype {t.dtype}"
    device = t.device.type
    if device == "cuda":
        if t.dtype not in _HALF and not autocasts(device):
            return f"dtype {t.dtype}"
    elif device not in ("cpu", "meta"):
        return f"device {device}"
    return ""


def _why_not_into(lowered: Lowered, out: Tensor) -> str:
    a, b = lowered.a, lowered.b
    if lowered.op == "linear":
        shape = (*a.shape[:-1], *b.shape[:-1])
    else:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if lowered.op == "matmul" else a.shape[:-2]
        shape = (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ()))
    if tuple(out.shape) != shape or out.dtype != a.dtype or out.device != a.device:
        return "out= to be resized or converted"
    return "" if out.is_contiguous() else "out= that is not contiguous"


def _describe(func: _Torch, args: _Args, kwargs: dict[str, Any]) -> Lowered | None:
    """The product of a call that was left to torch, if it is one."""
    if func not in LOWERINGS:
        return None
    try:
        if any(t.is_nested or t.layout is not torch.strided for t in _tensors(args, kwargs)):
            return None
        lowered = LOWERINGS[func](*args, **kwargs)
    except (TypeError, AttributeError, RuntimeError):
        return None
    return None if isinstance(lowered, str) else lowered


# Routes: what __torch_function__ does with each function. (context, func, types, args, kwargs) -> result
_Route: TypeAlias = Callable[["use_custom_gemm", _Torch, Sequence[type], _Args, _Kwargs], Any]

# On the hot path: f(x, weight[, bias]), f(a, b) and f(input, a, b). Functions of one kind agree wherever they take the
# same operands, so that their calls may share a key.
_LINEAR, _PAIR, _SUM = "linear", "pair", "sum"


def _other(context: use_custom_gemm, func: _Torch, types: Sequence[type], args: _Args, kwargs: _Kwargs) -> Any:
    """Every other function that has a lowering."""
    return context._general(func, types, args, kwargs)


def _left(why: str) -> _Route:
    """A function that is torch's."""

    def route(context: use_custom_gemm, func: _Torch, types: Sequence[type], args: _Args, kwargs: _Kwargs) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        context._record(func, why, args, kwargs)
        return result

    return route


def _escape(context: use_custom_gemm, func: _Torch, types: Sequence[type], args: _Args, kwargs: _Kwargs) -> Any:
    """A function past which a tensor may be written to: no result may wait for the next call any more."""
    if context._pending is not None:
        context._pending.clear()
    return func(*args, **(kwargs or {}))


def _own(name: str) -> _Route:
    """Our operator itself, called by the user or by the tangent of another."""

    def route(context: use_custom_gemm, func: _Torch, types: Sequence[type], args: _Args, kwargs: _Kwargs) -> Any:
        kwargs = context._with_variant(kwargs or {})
        result = func(*args, **kwargs)
        if not (types or _is_routed(_getframe(2))):
            product = _product(name, *args, **kwargs)
            if product is not None:
                context._record(func, product, args, kwargs)
        return result

    return route


def _is_routed(frame: FrameType | None) -> bool:
    """Whether the operator was called by an inner context, which counts the call for the enclosing ones."""
    while frame is not None and frame.f_globals.get("__name__") == "torch._ops":
        frame = frame.f_back
    return frame is not None and frame.f_globals is globals()


def _product(name: str, *args: Any, **kwargs: Any) -> Lowered | None:
    """What a call of our operator computes."""
    if name == "linear" and len(args) >= 2:
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        act = args[3] if len(args) > 3 else kwargs.get("act", 0)
        return Lowered("linear", args[0], args[1], bias, {**kwargs, "act": act})
    if name == "linear_gated" and len(args) >= 2:
        return Lowered("linear", args[0], args[1])
    if len(args) == 2:
        return Lowered(name, *args, options=kwargs)
    if len(args) == 3:
        return Lowered(name, args[1], args[2], args[0], kwargs)
    return None


def _reentered(func: _Torch) -> _Route:
    """A Python function of torch that is to run under the context.

    While a mode handles a function it is off, so what the body calls would not be routed; and with the mode on, the
    body would first of all hand itself to the mode again. So a copy runs whose has_torch_function() is always False.
    """
    assert isinstance(func, FunctionType)
    scope = dict(func.__globals__)
    for check in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        scope[check] = _never
    del scope["__name__"]  # by it dynamo would find the module and, there, the real has_torch_function
    copy = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__

    def route(context: use_custom_gemm, func: _Torch, types: Sequence[type], args: _Args, kwargs: _Kwargs) -> Any:
        kwargs = kwargs or {}
        if _overriding(types) is not None:
            return func(*args, **kwargs)
        _push_mode(context)
        try:
            return copy(*args, **kwargs)
        finally:
            _pop_mode()

    return route


def _never(*_: object) -> bool:
    return False


_attention = _reentered(F.multi_head_attention_forward)

# Our operators in every form that can be called -> the name of what they compute.
_OWN: dict[_Torch, str] = {
    op: name.removesuffix("_save")
    for name in (*SIGNATURES, "linear_save", "linear_gated")
    for packet in (getattr(_OPS, name),)
    for op in (packet, *(getattr(packet, overload) for overload in packet.overloads()))
}


def _routes() -> dict[_Torch, _Route | str]:
    routes: dict[_Torch, _Route | str] = dict.fromkeys(LOWERINGS, _other)
    routes[F.linear] = _LINEAR
    for kind, names in ((_PAIR, ("matmul", "mm", "bmm")), (_SUM, ("addmm", "baddbmm"))):
        for name in names:
            routes[getattr(torch, name)] = routes[getattr(Tensor, name)] = kind
    routes[torch.linalg.matmul] = routes[Tensor.__matmul__] = _PAIR
    routes.update((func, _left(why)) for func, why in LEFT_TO_TORCH.items())
    routes.update((func, _escape) for func in _fusion.ESCAPES)
    routes.update((op, _own(name)) for op, name in _OWN.items())
    routes.update((func, _reentered(func)) for func in (Tensor.backward, torch.autograd.backward, torch.autograd.grad))
    routes[F.multi_head_attention_forward] = _attention
    return routes


_ROUTES = _routes()
