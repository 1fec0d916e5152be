"""Modules that compute the linear layers of one input in one matmul, whose weights lie side by side in memory.

``fuse_projections(model)`` changes the modules that own such layers. ``unfuse_projections(model)`` undoes it. The
layers themselves, their parameters and the names of both stay what they are.
"""

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.utils import dlpack

from . import _variants
from ._api import _require_activation, _require_types
from .ops import activation, flops
from .ops.activation import ACTIVATIONS
from .ops.schema import OPS

__all__ = [
    "GatedMLP",
    "Projection",
    "ProjectionGroup",
    "fuse_projections",
    "linear_gated",
    "unfuse_projections",
]

#: Names, in transformers and diffusers, of sibling layers that get the same input.
PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("to_q", "to_k", "to_v"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wi_0", "wi_1"),
)

#: Classes in transformers whose forward is ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``.
GATED_MLPS = frozenset(
    f"{name}MLP"
    for name in (
        *("Cohere", "Cohere2", "DeepseekV2", "DeepseekV3", "Gemma", "Gemma2", "Gemma3", "Glm4Moe", "Granite", "Helium"),
        *("Llama", "Ministral", "Mistral", "Olmo", "Olmo2", "Olmo3", "Olmoe", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe"),
        *("SmolLM3", "StableLm"),
    )
)

#: The activations that ``linear_gated`` computes, by class name: those of torch, and those of transformers for the same
#: functions.
GATES = {"ReLU": "relu", "GELUActivation": "gelu", "GELUTanh": "gelu_tanh", "SiLU": "silu", "SiLUActivation": "silu"}


def linear_gated(x: Tensor, weight: Tensor, activation: str | None = "silu", *, variant: str | None = None) -> Tensor:
    """Computes a gated linear unit: ``gate, up = F.linear(x, weight).chunk(2, -1)``, then ``act(gate) * up``.

    Without gradients and with at most 64 rows on Hopper, one kernel computes all of it where one supports the operands.
    Otherwise a matmul runs, and then a kernel that applies activation and gate.

    Args:
        x: ``(..., in_features)``, with any strides and storage offset.
        weight: ``(2 * out_features, in_features)``, the rows of the gate first.
        activation, variant: as for :func:`hgemm_ops.linear`.

    Returns:
        ``(..., out_features)``.

    Raises:
        TypeError, ValueError, RuntimeError: as for :func:`hgemm_ops.linear`.
    """
    _require_types("linear_gated", {"x": x, "weight": weight})
    act = _require_activation("linear_gated", activation)
    return OPS.linear_gated.default(x, weight, act, variant=_variants.resolve(variant))


# ---- Weights that lie side by side


class _Joint:
    """The concatenated weight and bias of a group of layers, whose parameters are parts of their memory."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: list[int]) -> None:
        self.weight, self.bias, self.rows = weight, bias, rows
        biases: Sequence[Tensor | None] = [None] * len(rows) if bias is None else bias.split(rows)
        self.places = [(_place(w), _place(b)) for w, b in zip(weight.split(rows), biases, strict=True)]
        _joints_at[weight.data_ptr()] = self

    def consists_of(self, layers: Sequence[Any]) -> bool:
        """Whether the layers are plain, and their parameters lie in this memory one after another."""
        for layer, (weight, bias) in zip(layers, self.places, strict=True):
            if not _is_plain(layer):
                return False
            parameters = layer._parameters
            if _place(parameters["weight"]) != weight or _place(parameters["bias"]) != bias:
                return False
        return True

    def holds(self, parameter: Tensor) -> bool:
        """Whether the parameter lies in this memory."""
        at = parameter.data_ptr()
        return any(t is not None and t.data_ptr() <= at < t.data_ptr() + t.nbytes for t in (self.weight, self.bias))


#: By the address of the weight.
_joints_at: weakref.WeakValueDictionary[int, _Joint] = weakref.WeakValueDictionary()


class _Joints(dict[tuple[str, ...], _Joint | None]):
    """The joint parameters of a module's groups.

    A copy or a pickle of it has the names alone: the parameters that are copied or pickled with it lie elsewhere.
    """

    def __reduce__(self) -> Any:
        return _Joints, (dict.fromkeys(self),)


#: The backward copies at most so many bytes of gradients to compute their layers together.
_MOST_COPIED = 256 << 20


class _Linear(torch.autograd.Function):
    """Computes ``F.linear(x, weight, bias)`` and splits it, with gradients for x and the layers' parameters.

    ``weight`` and ``bias`` are the concatenations of ``parameters``, all weights and then all biases. The parameters
    are saved for the backward, so torch notices if one of them is written to before it. The backward computes the
    layers together, too, by a copy of their gradients side by side, or one after the other where that is too large.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int], *parameters: Tensor) -> Any:
        ctx.save_for_backward(x, *parameters)
        ctx.weight, ctx.sizes = weight, sizes
        return _split(F.linear(x, weight, bias), sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, *parameters = ctx.saved_tensors
        count = len(ctx.sizes)
        weights: Sequence[Tensor] = parameters[:count]
        if sum(grad.nbytes for grad in grads) <= _MOST_COPIED:
            # If the gradient is to be differentiated, that goes through the parameters.
            weights = [torch.cat(parameters[:count]) if torch.is_grad_enabled() else ctx.weight]
            grads = (torch.cat(grads, -1),)
        needs = ctx.needs_input_grad
        for_x: Tensor | None = None
        for_weights: Sequence[Tensor | None] = [None] * count
        for_biases: Sequence[Tensor | None] = [None] * (len(parameters) - count)
        if needs[0]:
            for_x = functools.reduce(torch.add, (g @ w.conj() for g, w in zip(grads, weights, strict=True)))
        rows = [grad.reshape(-1, grad.shape[-1]) for grad in grads]
        if any(needs[4 : 4 + count]):
            inputs = x.reshape(-1, x.shape[-1]).conj()
            for_weights = _parts([g.T @ inputs for g in rows], ctx.sizes)
        if any(needs[4 + count :]):
            for_biases = _parts([g.sum(0) for g in rows], ctx.sizes)
        return for_x, None, None, None, *for_weights, *for_biases


def _parts(gradients: list[Tensor], rows: list[int]) -> Sequence[Tensor]:
    """Returns a gradient for each layer: they are there, or are to be split by rows from that of all."""
    return gradients[0].split(rows) if len(gradients) == 1 else gradients


_linear: Callable[..., Sequence[Tensor]] = _Linear.apply


def _split(y: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """Splits the last dimension of ``y`` into tensors that may be written to in place, which views of it may not."""
    return torch.unsafe_split_with_sizes(y, sizes, -1)


def _forward_of_linear() -> Any:
    """Returns torch's ``nn.Linear.forward``; None if it has been replaced before this package was imported."""
    forward = nn.Linear.forward
    return forward if getattr(forward, "__globals__", None) is vars(nn.modules.linear) else None


#: Programs may replace the function, to quantize or to observe every layer for instance.
_FORWARD_OF_LINEAR = _forward_of_linear()


def _is_plain(layer: Any) -> bool:
    """Whether calling the layer is ``F.linear`` of its parameters and nothing else."""
    if type(layer) is not nn.Linear or nn.Linear.forward is not _FORWARD_OF_LINEAR:
        return False
    own = layer.__dict__
    return (
        type(layer._parameters.get("weight")) is nn.Parameter
        and type(layer._parameters.get("bias")) in (nn.Parameter, type(None))
        and "forward" not in own
        and own.get("_compiled_call_impl") is None
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
    )


def _place(parameter: Tensor | None) -> tuple[Any, ...] | None:
    """Says which elements of memory a parameter is."""
    if parameter is None:
        return None
    return parameter.data_ptr(), parameter.dtype, parameter.shape, parameter.stride()


def _fusible(parent: nn.Module, names: Sequence[str]) -> list[nn.Linear] | None:
    """Returns the parent's layers of these names, or None if one matmul cannot replace them."""
    layers: list[Any] = [parent._modules.get(name) for name in names]
    if not all(_is_plain(layer) for layer in layers) or len(set(layers)) < len(layers):
        return None
    kinds = {(layer.weight.shape[1:], layer.weight.dtype, layer.weight.device, layer.bias is None) for layer in layers}
    movable = all(
        p.shape[:1] == layer.weight.shape[:1]
        and p.dtype == layer.weight.dtype
        and p.device == layer.weight.device
        and p.device.type in ("cpu", "cuda", "meta")
        and p.layout == torch.strided
        and p.numel() > 0
        and not p.is_inference()
        and not (p.device.type == "cpu" and p.is_shared())  # other processes would not follow
        for layer in layers
        for p in _own(layer)
    )
    return layers if movable and len(kinds) == 1 else None


def _own(layer: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters of a plain layer, much faster than ``layer.parameters()``."""
    return [p for p in layer._parameters.values() if p is not None]


def _parameters(module: nn.Module | None) -> list[nn.Parameter]:
    return [] if module is None else list(module.parameters())


def _addresses(layers: Sequence[nn.Module]) -> list[int]:
    return [p.data_ptr() for layer in layers for p in _own(layer)]


def _concatenated(parameters: Sequence[Tensor]) -> Tensor:
    """Moves the parameters into one tensor, and returns it.

    Each parameter gets a storage that covers its own part and no more, because programs that save a model take
    parameters of one storage for tied ones. DLPack gives such a storage.
    """
    with torch.inference_mode(False):  # otherwise the parameters could not be trained any more
        joint = torch.cat([p.detach() for p in parameters])
        if type(joint) is not Tensor:
            raise RuntimeError(
                f"fuse_projections: the weights would become {type(joint).__name__}s. Call it outside of modes such as "
                "FakeTensorMode"
            )
        for p, part in zip(parameters, joint.split([p.shape[0] for p in parameters]), strict=True):
            p.data = dlpack.from_dlpack(dlpack.to_dlpack(part))  # type: ignore[attr-defined]
    return joint


# ---- Modules


class _Running(threading.local):
    """The forwards of fused modules that are running on this thread, the innermost last."""

    def __init__(self) -> None:
        self.forwards: list[_Forward] = []


_running = _Running()


class _Results:
    """What one matmul has computed for the layers of a group, and from what."""

    def __init__(self, x: Tensor, layers: Sequence[nn.Linear], results: Sequence[Tensor]) -> None:
        self.x = x
        self._version, self._grad = x._version, torch.is_grad_enabled()
        self._layers, self._values = layers, [_values(layer) for layer in layers]
        self._results: list[Tensor | None] = list(results)

    def take(self, layer: nn.Linear, index: int) -> Tensor | None:
        """Returns the result of ``layer``, if that is what it would compute for ``x`` now. Each is given out once."""
        was, now = self._values[index], _values(layer)
        if (
            self._version != self.x._version
            or self._grad != torch.is_grad_enabled()
            or self._layers[index] is not layer
            or was[0] is not now[0]
            or was[1] is not now[1]
            or was[2:] != now[2:]
        ):
            return None
        result, self._results[index] = self._results[index], None
        return result

    def is_used_up(self) -> bool:
        return self._results.count(None) == len(self._results)


def _values(layer: nn.Module) -> tuple[Any, Any, int | None, int | None]:
    """Returns the parameters of a plain layer, and their versions."""
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    return weight, bias, getattr(weight, "_version", None), getattr(bias, "_version", None)


#: Returns the hooks that torch.autograd.graph.saved_tensors_hooks has set for this thread, the innermost, or None.
#: torch has no public function that says this without calling the hooks, which would disturb a checkpoint that counts
#: the calls. None in a torch without this function.
_saved_tensors_hooks: Callable[[bool], Any] | None = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", None
)


class _Forward:
    """One forward of a fused module."""

    def __init__(self, parent: "ProjectionGroup") -> None:
        self.parent = parent
        self._hooks = _saved_tensors_hooks and _saved_tensors_hooks(False)
        self._results: dict[tuple[str, ...], _Results | None] = {}

    def project(self, names: tuple[str, ...], index: int, layer: Any, x: Any) -> Tensor | None:
        """Returns the result of ``layer`` for ``x``, or None if the layer has to compute it by itself.

        A part of the forward that is recomputed in the backward (torch.utils.checkpoint) has to save the same tensors
        again. So its layers must not depend on what other parts of the forward have computed. Where torch does not say
        whether a part is one, each layer computes its result by itself if there may be a backward.
        """
        if torch.is_grad_enabled() and (_saved_tensors_hooks is None or self._hooks != _saved_tensors_hooks(False)):
            return None
        found = self._results.get(names)
        if found is not None and found.x is x:
            result = found.take(layer, index)
            if result is not None or not found.is_used_up():
                return result
        elif found is not None and not found.is_used_up():
            return None  # a sibling has another input
        if _is_traced(x) or x.is_inference():
            return None
        found = self._results[names] = self.parent._project(names, x)
        return found.take(layer, index) if found else None


class Projection:
    """A layer of a :class:`ProjectionGroup`, as the group's forward sees it.

    It is called as the layer, and has the layer's attributes. The first layer of a group that is called computes the
    results of all. The others take theirs if they are called with the same tensor.
    """

    def __init__(self, forward: _Forward, names: tuple[str, ...], index: int, layer: nn.Module) -> None:
        self._forward, self._names, self._index, self._layer = forward, names, index, layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance
        return type(self._layer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            result = self._forward.project(self._names, self._index, self._layer, args[0])
            if result is not None:
                return result
        return self._layer(*args, **kwargs)


class _Child:
    """The attribute of a :class:`ProjectionGroup` that contains a layer of ``names``."""

    def __init__(self, names: tuple[str, ...], index: int) -> None:
        self._names, self._index = names, index

    def __get__(self, parent: "ProjectionGroup", owner: type | None = None) -> Any:
        layer = parent._modules.get(self._names[self._index])
        if layer is None:
            raise AttributeError  # then Python calls the module's __getattr__
        if torch.compiler.is_compiling() or not _running.forwards or self._names not in parent._joints:
            return layer
        forward = _running.forwards[-1]
        return Projection(forward, self._names, self._index, layer) if forward.parent is parent else layer


class ProjectionGroup(nn.Module):
    """A module of another class, ``_original``, some of whose layers are computed together.

    :func:`fuse_projections` makes subclasses of this class and the module's own, as ``fully_shard`` does. The layers
    are ``nn.Linear`` modules as before. Only while the module's forward runs, and only on the thread that runs it, the
    attributes of ``_groups`` are a :class:`Projection` each.
    """

    _recipe: tuple[Any, Any, tuple[tuple[str, ...], ...]]  #: the arguments of _fused_class
    _original: Any
    _groups: tuple[tuple[str, ...], ...] = ()
    _joints = _Joints()

    def __init_subclass__(cls, **options: Any) -> None:
        """Does nothing: to programs that register their subclasses, a fused class is the class it was made of."""

    def _run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls ``forward``, which is that of the original class."""
        if torch.compiler.is_compiling() or not self._joints:
            return forward(*args, **kwargs)
        _running.forwards.append(_Forward(self))
        try:
            return forward(*args, **kwargs)
        finally:
            _running.forwards.pop()

    def _joint(self, names: tuple[str, ...], x: Tensor) -> tuple[list[nn.Linear], _Joint] | None:
        """Returns the layers and their joint parameters if one matmul computes what the layers would for ``x`` now.

        Anything may have happened to the layers since they were fused. They may be of another class, have hooks, a
        parametrization or other parameters.
        """
        joint = self._joints.get(names)
        if joint is None:
            return None
        layers: list[Any] = [self._modules.get(name) for name in names]
        if not joint.consists_of(layers):
            self._forget(names, joint)
            return None
        return (layers, joint) if _computes(x, joint.weight) else None

    def _project(self, names: tuple[str, ...], x: Tensor) -> _Results | None:
        """Computes the results of the layers of a group for ``x`` in one matmul."""
        found = self._joint(names, x)
        if found is None:
            return None
        layers, joint = found
        if not torch.is_grad_enabled():
            return _Results(x, layers, _split(F.linear(x, joint.weight, joint.bias), joint.rows))
        weights: list[Tensor] = [layer.weight for layer in layers]
        biases: list[Tensor] = [] if joint.bias is None else [layer.bias for layer in layers]
        if len({weight.requires_grad for weight in weights}) > 1:
            return None  # the gradient of a frozen weight would be computed for nothing
        return _Results(x, layers, _linear(x, joint.weight, joint.bias, joint.rows, *weights, *biases))

    def _forget(self, names: tuple[str, ...], joint: _Joint) -> None:
        """Frees the memory of a group if no parameter lies there any more."""
        for name in names:
            for p in _parameters(self._modules.get(name)):
                if type(p) is Tensor or joint.holds(p):  # torch.func.functional_call lends tensors to a module
                    return
        self._joints.pop(names, None)

    def _join(self, names: tuple[str, ...]) -> None:
        """Moves the parameters of a group next to each other, if they can be moved."""
        self._joints = _Joints({key: value for key, value in self._joints.items() if key != names})
        layers = _fusible(self, names)
        if layers is None or layers[0].weight.device.type == "meta":  # from there they will move once more
            return
        weight = _concatenated([layer.weight for layer in layers])
        bias = _concatenated([layer.bias for layer in layers]) if layers[0].bias is not None else None
        self._joints[names] = _Joint(weight, bias, [layer.weight.shape[0] for layer in layers])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Applies ``fn``, which may give parameters a memory of their own, and joins those that have moved."""
        before = {names: _addresses(layers) for names in self._groups if (layers := _fusible(self, names))}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for names, addresses in before.items():
            layers = _fusible(self, names)
            if layers and all(now != then for now, then in zip(_addresses(layers), addresses, strict=True)):
                self._join(names)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        return (_restore, self._recipe, reduced[2]) if _has_made(type(self)) else reduced

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for names in [names for names, joint in self._joints.items() if joint is None]:
            self._join(names)

    def __prepare_scriptable__(self) -> nn.Module:
        """Returns what torch.jit.script compiles: the module without its fused forward."""
        plain = self._original.__new__(self._original)
        vars(plain).update({name: value for name, value in vars(self).items() if name != "_joints"})
        return plain

    def _get_name(self) -> str:
        return f"{type(self).__name__}, {' and '.join(map('+'.join, self._groups))} fused"


class GatedMLP(ProjectionGroup):
    """A gated MLP of transformers that computes ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``.

    Where no gradient is needed, both projections, the activation and the multiplication are one operator.
    """

    def _run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        gated = self._gated(args[0]) if len(args) == 1 and not kwargs else None
        if gated is None:
            return super()._run(forward, *args, **kwargs)
        return self.down_proj(gated)  # type: ignore[operator]

    def _gated(self, x: Any) -> Tensor | None:
        """Returns ``act_fn(gate_proj(x)) * up_proj(x)`` if one operator can compute that, and None otherwise."""
        layers: list[Any] = [self._modules.get(name) for name in GATE]
        if not (type(x) is Tensor and is_gate(self.act_fn) and all(_is_plain(layer) for layer in layers)):
            return None
        gate, up = (layer.weight for layer in layers)
        if any(layer.bias is not None for layer in layers) or _needs_gradient(x, gate, up):
            return None
        act = ACTIVATIONS.index(GATES[type(self.act_fn).__name__])
        if torch.compiler.is_compiling():  # where the weights lie is known when the compiled code runs
            exported = torch.compiler.is_exporting()
            return None if exported or not _computes(x, gate) else _gated_projections(x, gate, up, act)
        found = None if _is_traced(x) else self._joint(GATE, x)
        return found and OPS.linear_gated.default(x, found[1].weight, act)


GATE = ("gate_proj", "up_proj")


@library.custom_op("hgemm_nn::gated_projections", mutates_args=())
def _gated_projections(x: Tensor, gate: Tensor, up: Tensor, act: int) -> Tensor:
    """Computes ``linear_gated`` of the two weights, in one operator if they lie next to each other."""
    joint = _joints_at.get(gate.data_ptr())
    if joint is not None and joint.places == [(_place(gate), None), (_place(up), None)]:
        return OPS.linear_gated.default(x, joint.weight, act)
    return activation.apply(act, F.linear(x, gate)) * F.linear(x, up)


@_gated_projections.register_fake
def _(x: Tensor, gate: Tensor, up: Tensor, act: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], gate.shape[0])


def is_gate(act: Any) -> bool:
    """Whether ``linear_gated`` computes the activation."""
    hooked = isinstance(act, nn.Module) and (act._forward_hooks or act._forward_pre_hooks)
    return type(act).__name__ in GATES and not hooked


def _is_traced(x: Any) -> bool:
    """Whether ``x`` is no plain tensor: a subclass, compiled, traced, or transformed by functorch or forward mode."""
    return (
        type(x) not in (Tensor, nn.Parameter)
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def _computes(x: Tensor, weight: Tensor) -> bool:
    """Whether a matmul of ``x`` and ``weight`` raises no error, and computes in their dtype."""
    if x.dim() < 2 or x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype or x.device != weight.device:
        return False
    # Autocast keeps what it casts, but only for parameters.
    device = x.device.type
    return not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) == x.dtype


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


@functools.cache
def _fused_class(original: Any, mixin: Any, groups: tuple[tuple[str, ...], ...]) -> Any:
    """Returns the class, of ``mixin`` and ``original``, of a module whose layers of ``groups`` are fused."""

    @functools.wraps(original.forward)
    def forward(self: ProjectionGroup, *args: Any, **kwargs: Any) -> Any:
        return self._run(functools.partial(original.forward, self), *args, **kwargs)

    body = {
        **{name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")},
        **{name: _Child(names, index) for names in groups for index, name in enumerate(names)},
        "_recipe": (original, mixin, groups),
        "_original": original,
        "_groups": groups,
        "forward": forward,
    }
    return type(original)(original.__name__, (mixin, original), body)


def _has_made(kind: Any) -> bool:
    """Whether ``kind`` is a class of :func:`_fused_class`, and not one that others have derived from it."""
    return issubclass(kind, ProjectionGroup) and kind is _fused_class(*kind._recipe)


def _restore(*recipe: Any) -> Any:
    """Returns a module without contents, for copies and pickles."""
    fused = _fused_class(*recipe)
    return fused.__new__(fused)


def fuse_projections(model: nn.Module) -> list[str]:
    """Makes modules compute the linear layers of one input together.

    Query, key and value, or gate and up, are found by the names in :data:`PROJECTIONS`. Their module becomes a
    :class:`ProjectionGroup`: in each of its forwards, one matmul computes the results of all. Gated MLPs of
    transformers (:data:`GATED_MLPS`) become a :class:`GatedMLP`. The results are those of the original layers, up to
    rounding. Results of several rows are not contiguous, since they are columns of one result.

    The layers stay ``nn.Linear`` modules with parameters of their own, so state dicts, optimizers, adapters, hooks and
    parametrizations are those of the original model. The parameters are moved next to each other in memory. This is
    done once more where the model is copied (``copy.deepcopy``, ``torch.load``) and where its parameters are moved or
    converted (``.to()``, ``.half()``, ``to_empty()``). Capture CUDA graphs afterwards.

    A layer computes only its own rows where one matmul could not replace all: if a layer of the group has been
    replaced, wrapped by an adapter, hooked, parametrized, pruned or sharded, or has got a parameter that lies elsewhere
    (``load_state_dict(assign=True)``); outside of the module's forward, with another input, in a part of the forward
    that ``torch.utils.checkpoint`` recomputes by itself, in ``torch.inference_mode``, under ``torch.func``, under
    autocast that casts the weights, and under ``torch.compile``, where a :class:`GatedMLP` alone remains one operator.
    Hooks on all modules see one matmul of the parent.
    Call this function again to fuse layers that have become plain again, or whose parameters have been assigned.

    Layers that are tied, hooked, parametrized or of a subclass, or that other processes share, stay as they are, and so
    do layers whose parameters are parts of a larger tensor. A ``Parameter`` object that other models have as well stays
    one. But as after ``.to()``, other tensors do not follow: an earlier ``state_dict()``, ``p.data``, or a second
    ``Parameter`` made of these outside of ``model`` keep the old memory. Make them afterwards, or pass a module that
    contains everything that is tied.

    :func:`unfuse_projections` undoes everything. Call it before the storage of a parameter is resized, and before a
    model on a GPU is sent to another process: torch can do neither with a part of another memory.

    Args:
        model: with weights of any dtype. It is changed in place.

    Returns:
        What was fused, as "layers.0.q_proj+k_proj".
    """
    flops.register_if_loaded()
    fused = []
    owners = Counter(_memory(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    for path, parent in list(model.named_modules()):
        groups = [names for names in PROJECTIONS if _is_worth_fusing(parent, names, owners)]
        if not groups or not _become(parent, groups):
            continue
        for names in groups:
            parent._join(names)
            fused.append(_label(path, names))
    return fused


def _is_worth_fusing(parent: nn.Module, names: tuple[str, ...], owners: Counter[int]) -> bool:
    """Whether the parent's layers of these names can be fused, and are not yet."""
    layers = _fusible(parent, names)
    if layers is None:
        return False
    parameters = [p for layer in layers for p in _own(layer)]
    own: dict[int, list[nn.Parameter]] = {}
    for p in parameters:
        own.setdefault(_memory(p), []).append(p)
    if any(owners[memory] > len(parts) for memory, parts in own.items()):
        return False  # another layer has the parameter, or a part of its memory
    if any(sum(p.nbytes for p in parts) < parts[0].untyped_storage().nbytes() for parts in own.values()):
        return False  # some tensor outside of the model has the rest of the memory
    if len({p.data_ptr() or id(p) for p in parameters}) < len(parameters):
        return False  # two of these layers are tied
    return not (isinstance(parent, ProjectionGroup) and parent._joint(names, layers[0].weight.detach()[:0]))


def _memory(parameter: nn.Parameter) -> int:
    """Identifies the memory of a parameter."""
    plain = type(parameter) is nn.Parameter and parameter.layout == torch.strided
    return (parameter.untyped_storage().data_ptr() if plain else 0) or id(parameter)


def _become(parent: nn.Module, groups: Sequence[tuple[str, ...]]) -> bool:
    """Changes the class of ``parent`` to one that fuses ``groups``, and returns whether that can be done."""
    original: Any = type(parent)
    if isinstance(parent, ProjectionGroup):
        if not _has_made(type(parent)):
            return set(groups) <= set(parent._groups)
        original, groups = parent._original, list(dict.fromkeys((*parent._groups, *groups)))
    if parametrize.is_parametrized(parent) or "forward" in vars(parent):
        return False
    mixin: Any = GatedMLP if _is_gated(original, parent) else ProjectionGroup
    parent.__class__ = _fused_class(original, mixin, tuple(groups))
    return True


def _is_gated(original: Any, parent: nn.Module) -> bool:
    """Whether the forward of ``parent``, whose class is ``original``, is that of a :class:`GatedMLP`."""
    return (
        original.__name__ in GATED_MLPS
        and original.__module__.startswith("transformers.models.")
        and set(parent._modules) == {*GATE, "down_proj", "act_fn"}
        and is_gate(parent.act_fn)
    )


def unfuse_projections(model: nn.Module) -> list[str]:
    """Undoes :func:`fuse_projections`, and gives each parameter a memory of its own again.

    Returns:
        What had been fused, in the form that :func:`fuse_projections` returns.

    Raises:
        RuntimeError: a fused module has got another class since, for example by ``fully_shard``. Call this function
            before such changes.
    """
    parents = [(path, module) for path, module in model.named_modules() if isinstance(module, ProjectionGroup)]
    for path, parent in parents:
        if not _has_made(type(parent)):
            raise RuntimeError(
                f"unfuse_projections: {path or 'the model'} is a {type(parent).__name__}, which was made of the fused "
                f"{parent._original.__name__}. Undo that first, or call unfuse_projections before it."
            )
    unfused = []
    for path, parent in parents:
        for names in parent._groups:
            joint = parent._joints.get(names)
            for name in names:
                for p in _parameters(parent._modules.get(name)):
                    if joint and joint.holds(p):
                        with torch.inference_mode(False):
                            p.data = p.detach().clone()
            unfused.append(_label(path, names))
        vars(parent).pop("_joints", None)
        parent.__class__ = parent._original
    return unfused


def _label(path: str, names: Sequence[str]) -> str:
    return f"{path}.{'+'.join(names)}".removeprefix(".")
