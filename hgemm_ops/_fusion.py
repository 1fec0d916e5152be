"""Linear layers that multiply the same input: weights one behind another in memory, one product for all of them.

``linear_group`` is the function; ``fuse_weights_`` and ``fuse_projections`` give the layers of a model such weights,
and ``use_custom_gemm(fuse_projections=True)`` finds the calls. There the first layer of a group computes for all, and
the others' results wait for their calls. Whatever might make such a result another than the call's own (an input that
was written to, another stream, a wanted gradient, a weight that moved) has the layer computed by itself.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn import Parameter

from hgemm_ops import _gating, _variants
from hgemm_ops._api import _is_static, _require_activation, _require_tensor, linear

__all__ = ["fuse_projections", "fuse_weights_", "linear_gated", "linear_group", "unfuse_weights_"]

_log = logging.getLogger("hgemm_ops")

#: Names of sibling layers that are given the same input, as transformers and diffusers spell them.
PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("to_q", "to_k", "to_v"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wi_0", "wi_1"),
)

_HALF = (torch.float16, torch.bfloat16)
# In a row without all results taken: the layers of that group do not get the same input after all.
_MOST_MISSES = 3

_is_grad_enabled = torch.is_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_active = torch._C._are_functorch_transforms_active


def linear_group(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    *,
    variant: str | None = None,
    static_weights: bool = False,
) -> tuple[Tensor, ...]:
    """Several linear layers of one input: ``tuple(F.linear(x, w, b) for w, b in zip(weights, biases))``.

    One product computes them all if the weights lie one behind another in memory, in this order: rows of one buffer, as
    :func:`fuse_weights_` arranges them, and the biases too. No weight is copied. The results are then views of one
    buffer: they overlap nowhere, but with more than one row of ``x`` they are not contiguous. Separate products
    compute them otherwise, and where a gradient is wanted, under autocast, ``torch.compile`` and functorch transforms,
    and for tensor subclasses.

    Args:
        x: ``(..., in_features)``. Any strides and storage offset.
        weights: ``(out_features, in_features)`` each.
        biases: ``(out_features,)`` or None for each weight.
        variant: as for :func:`hgemm_ops.matmul`.
        static_weights: as for :func:`hgemm_ops.matmul`, of every weight.

    Returns:
        A tensor ``(..., out_features)`` per weight.

    Raises:
        TypeError: ``x``, a weight or a bias is not a tensor.
        ValueError: there is no weight, the biases are not as many as the weights, or no kernel is named ``variant``.
        RuntimeError: as for :func:`hgemm_ops.linear`.
    """
    _require_tensor("linear_group", "x", x)
    if not weights:
        raise ValueError("hgemm_ops.linear_group: weights must not be empty")
    every_bias: Sequence[Tensor | None] = [None] * len(weights) if biases is None else biases
    if len(every_bias) != len(weights):
        raise ValueError(
            f"hgemm_ops.linear_group: biases must be one per weight, got {len(every_bias)} for {len(weights)} weights"
        )
    for i, (weight, bias) in enumerate(zip(weights, every_bias, strict=True)):
        _require_tensor("linear_group", f"weights[{i}]", weight)
        if bias is not None:
            _require_tensor("linear_group", f"biases[{i}]", bias)
    forced = _variants.resolve(variant)
    joint = _joint_for(x, weights, every_bias) if len(weights) > 1 else None
    op = torch.ops.hgemm.linear.default
    if joint is None:
        return tuple(
            op(x, w, b, variant=forced, static_weights=_is_static(w, static_weights))
            for w, b in zip(weights, every_bias, strict=True)
        )
    y = op(x, joint.weight, joint.bias, variant=forced, static_weights=_is_static(joint.weight, static_weights))
    return _split(y, joint.sizes)


def linear_gated(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    activation: str | None = "silu",
    *,
    variant: str | None = None,
    static_weights: bool = False,
) -> Tensor:
    """Gated linear unit: ``act(F.linear(x, gate)) * F.linear(x, up)``.

    One operator computes it if ``gate`` and ``up`` lie one behind the other in memory, in this order, as
    :func:`fuse_weights_` arranges them. Where the kernel that the dispatcher picks for their product can (those for at
    most 64 rows on Hopper), both products, activation and multiplication are one launch, of float32 sums; elsewhere a
    second one gates the product. Otherwise, and where :func:`linear_group` computes its layers separately, two
    products, the first with the activation, and a multiplication.

    Args:
        x: ``(..., in_features)``. Any strides and storage offset.
        gate: ``(out_features, in_features)``.
        up: ``(out_features, in_features)``.
        activation: as for :func:`hgemm_ops.linear`.
        variant: as for :func:`hgemm_ops.matmul`.
        static_weights: as for :func:`hgemm_ops.matmul`, of both weights.

    Returns:
        ``(..., out_features)``.

    Raises:
        TypeError: ``x`` or a weight is not a tensor.
        ValueError: unknown ``activation`` or ``variant``.
        RuntimeError: as for :func:`hgemm_ops.linear`.
    """
    for name, value in (("x", x), ("gate", gate), ("up", up)):
        _require_tensor("linear_gated", name, value)
    act = _require_activation("linear_gated", activation)
    joint = _joint_for(x, (gate, up), (None, None)) if gate.shape == up.shape else None
    if joint is None:
        gated = linear(x, gate, activation=activation, variant=variant, static_weights=static_weights)
        return gated * linear(x, up, variant=variant, static_weights=static_weights)
    static = _is_static(joint.weight, static_weights)
    result: Tensor = torch.ops.hgemm.linear_gated.default(
        x, joint.weight, act, variant=_variants.resolve(variant), static_weights=static
    )
    return result


class Joint(NamedTuple):
    """Layers as one: ``weight`` (sum of out_features, in_features), ``bias``, and the layers' out_features."""

    weight: Tensor
    bias: Tensor | None
    sizes: list[int]


def _joint_for(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Joint | None:
    """The layers as one for ``x``, where one product may stand for theirs."""
    given = (x, *weights, *(bias for bias in biases if bias is not None))
    if torch.compiler.is_compiling() or not _is_plain(*given) or _wants_gradient(given):
        return None
    if any(t.layout is not torch.strided for t in given):
        return None
    with torch._C.DisableTorchFunction():
        return _joint(weights, biases) if _fits(x, weights[0]) else None


def _is_plain(*tensors: Tensor) -> bool:
    """Whether nothing traces, transforms or converts what is done with ``tensors``, none of which is a subclass."""
    return not (
        any(type(t) is not Tensor and type(t) is not Parameter for t in tensors)
        or _dispatch_modes()
        or _functorch_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or torch.is_autocast_enabled(tensors[0].device.type)
    )


def _wants_gradient(tensors: Iterable[Tensor]) -> bool:
    if _is_grad_enabled():
        for t in tensors:  # any() costs a generator
            if t.requires_grad:
                return True
    return False


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the product of the two is no error."""
    return (
        x.dim() > 0
        and weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and x.dtype is weight.dtype
        and x.device == weight.device
        and not x.is_nested
    )


def _joint(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Joint | None:
    """The layers as one; None where their weights or biases do not lie one behind another."""
    weight = _stacked(weights)
    if weight is None or weight.dim() != 2:
        return None
    given = [bias for bias in biases if bias is not None]
    bias = _stacked(given) if given else None
    if given and (bias is None or bias.dim() != 1 or len(given) != len(weights)):
        return None
    sizes = [w.shape[0] for w in weights]
    if given and [b.shape[0] for b in given] != sizes:
        return None
    return Joint(weight, bias, sizes)


def _stacked(tensors: Sequence[Tensor]) -> Tensor | None:
    """``torch.cat(tensors)`` without a copy; None where they do not lie one behind another in memory."""
    first = tensors[0]
    dtype, shape, strides = first.dtype, first.shape[1:], first.stride()
    if not dtype.is_floating_point or not strides or strides[-1] != 1:
        return None
    start = end = first.data_ptr()
    rows, row_bytes = 0, strides[0] * dtype.itemsize
    for t in tensors:
        size = t.shape
        if t.data_ptr() != end or t.stride() != strides or size[1:] != shape or t.dtype is not dtype or t.is_neg():
            return None
        rows += size[0]
        end += size[0] * row_bytes
    # Neighbours by chance lie in storages of their own.
    storage = first.untyped_storage()
    if end == start or end > storage.data_ptr() + storage.nbytes():
        return None
    return first.as_strided((rows, *shape), strides)


def _split(y: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """The layers' results. Below autograd, so that each counts the writes to it for itself, as separate results do."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return tuple(torch.ops.aten.split_with_sizes.default(y, sizes, -1))


# Weights in one buffer


class Group:
    """Layers whose weights lie one behind another; remembers the parameters, keeps none alive."""

    def __init__(self, weights: Sequence[Parameter], biases: Sequence[Parameter | None]) -> None:
        self._weights = [weakref.ref(weight) for weight in weights]
        self._biases = [None if bias is None else weakref.ref(bias) for bias in biases]
        self._bias_of = {id(weight): bias for weight, bias in zip(weights, self._biases, strict=True)}
        self.misses = 0

    def parameters(self) -> Iterator[tuple[Parameter | None, Parameter | None]]:
        """Weight and bias of every layer; None for what is gone or not there."""
        for weight, bias in zip(self._weights, self._biases, strict=True):
            yield weight(), None if bias is None else bias()

    def serves(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether the call of one layer may be served by the group's product, as far as this call's arguments say."""
        if self.misses >= _MOST_MISSES or type(x) is not Tensor or not _is_plain(x) or x.is_inference():
            return False
        if x.is_cuda:
            if x.dtype not in _HALF:
                return False
        elif x.device.type != "cpu":
            return False
        own = self._bias_of[id(weight)]
        if bias is not (None if own is None else own()):
            return False
        return not _wants_gradient((x, weight) if bias is None else (x, weight, bias))

    def joint(self, x: Tensor) -> Joint | None:
        """The layers as one for ``x``; None where they no longer lie behind one another."""
        parameters = list(self.parameters())
        weights = [weight for weight, _ in parameters if weight is not None]
        biases = [bias for _, bias in parameters]
        lost = any(ref is not None and bias is None for ref, bias in zip(self._biases, biases, strict=True))
        if lost or len(weights) != len(parameters) or not _fits(x, weights[0]):
            return None
        return _joint(weights, biases)


# id(weight) -> the group it belongs to
_groups: dict[int, Group] = {}


def group_of(weight: Tensor) -> Group | None:
    return _groups.get(id(weight))


def fuse_weights_(modules: Iterable[nn.Module]) -> None:
    """Moves the weights of linear layers into one buffer, one behind another, and their biases into another.

    For layers that are called with the same input (query, key and value; gate and up):
    :func:`hgemm_ops.linear_group` then computes them in one product, and so does
    ``use_custom_gemm(fuse_projections=True)`` where the model calls them one after the other.

    The parameters stay the same objects with the same values, gradients and optimizer state; only their memory moves
    (``parameter.data``), so state dicts, training and every other use of the layers are as before. Whatever moves a
    parameter again (``model.to()``, ``parameter.data = ...``) ends the fusion, without harm. Needs the memory of the
    group once more for a moment. Undone by :func:`unfuse_weights_`.

    Args:
        modules: two or more with a ``weight`` (out_features, in_features) each and, all or none, a ``bias``; of one
            dtype, device and in_features.

    Raises:
        TypeError: a weight or bias is not a plain :class:`torch.nn.Parameter` (quantized, parametrized, sharded).
        ValueError: the layers do not match, one is given twice, or a parameter shares its memory with another tensor,
            which would stop seeing what is written to it.
    """
    layers = list(modules)
    weights = [_parameter(module, "weight") for module in layers]
    given = [getattr(module, "bias", None) is not None for module in layers]
    if len(weights) < 2:
        raise ValueError(f"hgemm_ops.fuse_weights_: modules must be two or more, got {len(weights)}")
    if any(given) and not all(given):
        raise ValueError(f"hgemm_ops.fuse_weights_: all modules or none must have a bias, got {given}")
    biases = [_parameter(module, "bias") for module in layers] if all(given) else []
    _require_alike("weight", weights, (*weights[0].shape[1:],), 2)
    if biases:
        _require_alike("bias", [*biases, weights[0][:, 0]], (), 1)
    shared = Counter(map(id, (*weights, *biases)))
    if max(shared.values()) > 1:
        raise ValueError("hgemm_ops.fuse_weights_: modules must not share a weight or bias")
    for parameters in (weights, biases):
        _require_own_memory(parameters)
    for parameters in (weights, biases):
        if parameters and _stacked(parameters) is None:
            _move(parameters, torch.cat([p.detach() for p in parameters]).split([p.shape[0] for p in parameters]))
    group = Group(weights, biases or [None] * len(weights))
    for weight in weights:
        if id(weight) not in _groups:
            weakref.finalize(weight, _groups.pop, id(weight), None).atexit = False
        _groups[id(weight)] = group


def unfuse_weights_(modules: Iterable[nn.Module]) -> None:
    """Gives every parameter that :func:`fuse_weights_` moved memory of its own again; ignores other modules.

    ``unfuse_weights_(model.modules())`` undoes :func:`fuse_projections`.
    """
    for module in modules:
        _gating.remove(module)
        weight = module._parameters.get("weight")
        if weight is not None and _groups.pop(id(weight), None) is not None:
            parameters = [p for p in (weight, module._parameters.get("bias")) if p is not None]
            _move(parameters, [p.detach().clone() for p in parameters])


def fuse_projections(model: nn.Module, names: Iterable[Sequence[str]] = PROJECTIONS) -> list[str]:
    """:func:`fuse_weights_` for all sibling layers of ``model`` that are given the same input, known by their names.

    ::

        hgemm_ops.fuse_projections(model)
        with use_custom_gemm(fuse_projections=True):
            model(x)

    A module that does nothing but ``down(act(gate(x)) * up(x))``, as the MLP of most language models, also gets a
    ``forward`` of ours, by which the context computes all but the last layer as :func:`linear_gated`. Modules with
    hooks on these layers, and other activations than the operators have, run as they are.

    Layers that :func:`fuse_weights_` refuses, tied weights and layers that are no :class:`torch.nn.Linear` stay as they
    are. A group whose layers turn out to get different inputs (cross attention) costs some wasted products and is then
    left alone.

    Args:
        model: anything with ``nn.Linear`` layers.
        names: the attributes of one module that form a group, for each kind of group.

    Returns:
        The fused groups: ``["model.layers.0.self_attn.q_proj+k_proj+v_proj", ...]``.
    """
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    fused = []
    kinds = [tuple(kind) for kind in names]
    for path, module in model.named_modules():
        for kind in kinds:
            layers = [module._modules.get(name) for name in kind]
            linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
            if len(linear) != len(kind):
                continue
            site = joint_name([f"{path}.{name}" if path else name for name in kind])
            if any(uses[id(p)] > 1 for layer in linear for p in layer.parameters(recurse=False)):
                _log.debug("%s: not fused, a parameter is tied to another layer's", site)
                continue
            try:
                fuse_weights_(linear)
            except (TypeError, ValueError) as refused:
                _log.debug("%s: not fused, %s", site, refused)
                continue
            if len(kind) == 2:
                _gating.install(module, *kind)
            fused.append(site)
    return fused


def joint_name(names: Sequence[str]) -> str:
    """``["a.b.q", "a.b.k"]`` -> ``"a.b.q+k"``."""
    parents = {name.rpartition(".")[0] for name in names}
    if len(parents) > 1:
        return "+".join(names)
    return names[0] + "".join("+" + name.rpartition(".")[2] for name in names[1:])


def _parameter(module: nn.Module, name: str) -> Parameter:
    parameter = module._parameters.get(name)
    if type(parameter) is not Parameter:
        found = type(getattr(module, name, None)).__name__
        raise TypeError(f"hgemm_ops.fuse_weights_: {name} of {module} must be a torch.nn.Parameter of it, got {found}")
    return parameter


def _require_alike(name: str, tensors: Sequence[Tensor], row: tuple[int, ...], dim: int) -> None:
    first = tensors[0]
    for t in tensors:
        if (
            t.dim() != dim
            or tuple(t.shape[1:]) != row
            or t.dtype is not first.dtype
            or t.device != first.device
            or t.layout is not torch.strided
            or not t.is_floating_point()
            or t.is_meta
            or t.is_inference()
            or not t.numel()
        ):
            shown = ", ".join(f"{tuple(t.shape)} {t.dtype} on {t.device}" for t in tensors)
            raise ValueError(
                f"hgemm_ops.fuse_weights_: every {name} must be a {dim}-D floating-point tensor outside of inference "
                f"mode that holds something, of one dtype, device and in_features, got {shown}"
            )


def _require_own_memory(parameters: Sequence[Parameter]) -> None:
    """Refuses parameters that others see the memory of, unless it is each other's already."""
    if not parameters or _stacked(parameters) is not None:
        return
    alone = _uses(torch.empty(1))
    for p in parameters:
        if _uses(p) > alone or (not p.is_cuda and p.is_shared()):
            raise ValueError(
                f"hgemm_ops.fuse_weights_: a parameter {tuple(p.shape)} shares its memory with another tensor"
            )


def _uses(t: Tensor) -> int:
    """How many tensors share the memory of ``t``, and a constant."""
    return int(torch._C._storage_Use_Count(t.untyped_storage()._cdata))


def _move(parameters: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for parameter, target in zip(parameters, targets, strict=True):
        parameter.data = target


# Calls in use_custom_gemm(fuse_projections=True)


class _Result(NamedTuple):
    y: Tensor
    versions: tuple[int, ...]  # of weight and bias


class _Pending(NamedTuple):
    """Results that wait for the calls of their layers, and for which input they hold."""

    group: Group
    x: weakref.ref[Tensor]
    state: tuple[int, torch.Size, int]
    results: dict[int, _Result]  # by id(weight)


class Pending(threading.local):
    """The results that a context holds for the thread's next calls: those of one group at a time."""

    _held: _Pending | None = None

    def clear(self) -> None:
        self._held = None

    def take(self, group: Group, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """The result of a layer whose call is the one it was computed for; once."""
        held = self._held
        if held is None or held.group is not group or held.x() is not x or held.state != _state(x):
            return None
        result = held.results.pop(id(weight), None)
        if result is None or result.versions != _versions(weight, bias):
            return None
        if not held.results:
            group.misses, self._held = 0, None
        return result.y

    def hold(self, group: Group, x: Tensor, y: Tensor, sizes: list[int]) -> None:
        """Keeps ``y``, the group's product for ``x``, for the calls of its layers."""
        held = self._held
        if held is not None:
            held.group.misses += 1
            if held.group.misses == _MOST_MISSES:
                _log.info("layers of one group were not given one input %d times: no longer fused", _MOST_MISSES)
        parameters = group.parameters()
        results = {
            id(weight): _Result(part, _versions(weight, bias))
            for (weight, bias), part in zip(parameters, _split(y, sizes), strict=True)
            if weight is not None
        }
        self._held = _Pending(group, weakref.ref(x), _state(x), results)


def _state(x: Tensor) -> tuple[int, torch.Size, int]:
    """What tells whether ``x`` still is what it was: what was written, its shape, and the stream this is known on."""
    stream = torch._C._cuda_getCurrentRawStream(x.device.index) if x.is_cuda else 0
    return x._version, x.shape, stream


def _versions(weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    return (weight._version,) if bias is None else (weight._version, bias._version)


#: Functions that hand out a tensor's memory, or exchange it, past the count of writes to it.
ESCAPES = (
    Tensor.data.__get__,  # type: ignore[attr-defined]
    Tensor.data.__set__,  # type: ignore[attr-defined]
    Tensor.data_ptr,
    Tensor.untyped_storage,
    Tensor.numpy,
    Tensor.__array__,
    Tensor.__dlpack__,
    Tensor.set_,
)
