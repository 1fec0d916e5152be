"""Modules that compute the linear layers of one input in one matmul, by keeping their weights in one parameter.

``fuse_projections(model)`` replaces a model's layers by such modules. ``unfuse_projections(model)`` restores the
layers.
"""

import copy
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hgemm_ops import _variants
from hgemm_ops._api import _require_activation, _require_types
from hgemm_ops.ops.activation import ACTIVATIONS

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
    return torch.ops.hgemm.linear_gated.default(x, weight, act, variant=_variants.resolve(variant))


def _is_traced(*tensors: Tensor) -> bool:
    """Whether the tensors are compiled, transformed by functorch, or instances of a subclass."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(type(t) not in (Tensor, nn.Parameter) for t in tensors)
    )


# ---- Modules


class _Results(threading.local):
    """The results that projections have computed for their siblings.

    There is one dictionary, by group, for each parent module whose forward is running on this thread.
    """

    def __init__(self) -> None:
        self.of_parents: list[dict[ProjectionGroup, tuple[Tensor, tuple[int, int, bool], tuple[Tensor, ...]]]] = []


_results = _Results()


def _begin(module: nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling():
        _results.of_parents.append({})


def _end(module: nn.Module, args: Any, output: Any) -> None:
    if not torch.compiler.is_compiling() and _results.of_parents:
        _results.of_parents.pop()


class ProjectionGroup(nn.Module):
    """The weights of several linear layers with one input, concatenated in one parameter.

    Args:
        layers: with the same in_features, dtype and device, and either all or none with a bias. Their values are
            copied.

    Attributes:
        weight: ``(sum of out_features, in_features)``.
        bias: ``(sum of out_features,)``, or None.
        sizes: the out_features of each layer.
    """

    bias: nn.Parameter | None

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.sizes = [layer.out_features for layer in layers]
        wanted = layers[0].weight.requires_grad
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]), wanted)
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.register_parameter("bias", nn.Parameter(torch.cat(biases), wanted) if biases else None)

    def rows(self, index: int) -> slice:
        """Returns the rows of ``weight`` and ``bias`` that belong to the layer ``index``."""
        start = sum(self.sizes[:index])
        return slice(start, start + self.sizes[index])

    def project(self, x: Tensor, index: int) -> Tensor:
        """Returns the result of the layer ``index`` for ``x``.

        The first layer that is called in a forward of the parent computes the results of all layers. The others take
        theirs if they are called with the same tensor.
        """
        if _is_traced(x) or x.is_inference() or not _results.of_parents:  # then nothing is kept for siblings
            rows = self.rows(index)
            return F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])
        memo = _results.of_parents[-1]
        versions = (x._version, self.weight._version, torch.is_grad_enabled())
        found = memo.get(self)
        if found is None or found[0] is not x or found[1] != versions:
            y = F.linear(x, self.weight, self.bias)
            found = memo[self] = (x, versions, torch.unsafe_split_with_sizes(y, self.sizes, -1))
        return found[2][index]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Saves nothing: the projections save their rows, under the names of their layers."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads nothing: the projections load their rows."""


class Projection(nn.Module):
    """One layer of a :class:`ProjectionGroup`: ``F.linear(x, self.weight, self.bias)``.

    ``weight`` and ``bias`` are views of the group's parameters. A state dict has them under these names.
    """

    def __init__(self, group: ProjectionGroup, index: int) -> None:
        super().__init__()
        self.group = group
        self.index = index
        self.in_features, self.out_features = group.weight.shape[1], group.sizes[index]

    @property
    def weight(self) -> Tensor:
        return self.group.weight[self.group.rows(self.index)]

    @property
    def bias(self) -> Tensor | None:
        return None if self.group.bias is None else self.group.bias[self.group.rows(self.index)]

    def forward(self, x: Tensor) -> Tensor:
        return self.group.project(x, self.index)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _values(self) -> dict[str, Tensor]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, value in self._values().items():
            destination[prefix + name] = value if keep_vars else value.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        in_place = {**local_metadata, "assign_to_params_buffers": False}  # an assigned tensor would not be a view
        self.linear()._load_from_state_dict(state_dict, prefix, in_place, *rest)

    def linear(self) -> nn.Linear:
        """Returns an ``nn.Linear`` layer that shares the group's memory."""
        layer = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        for name, value in self._values().items():
            setattr(layer, name, nn.Parameter(value.detach(), self.group.weight.requires_grad))
        return layer.train(self.training)


class GatedMLP(nn.Module):
    """Computes ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``.

    Both projections, the activation and the multiplication are one operator. The module shares the layers of the module
    that it replaces.
    """

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self._modules.update(mlp._modules)
        self._original = (mlp,)  # in a tuple, so that it is not registered as a child

    def forward(self, x: Tensor) -> Tensor:
        group: ProjectionGroup = self.gate_proj.group  # type: ignore[union-attr, assignment]
        act = ACTIVATIONS.index(GATES[type(self.act_fn).__name__])
        return self.down_proj(torch.ops.hgemm.linear_gated.default(x, group.weight, act))  # type: ignore[operator]


def _fusible(parent: nn.Module, names: Sequence[str]) -> list[nn.Linear] | None:
    """Returns the parent's layers of these names, or None if one matmul cannot replace them."""
    layers = [parent._modules.get(name) for name in names]
    if any(type(layer) is not nn.Linear for layer in layers):
        return None
    found: list[nn.Linear] = layers  # type: ignore[assignment]
    kinds = {
        (layer.in_features, layer.weight.dtype, layer.weight.device, layer.weight.requires_grad, layer.bias is None)
        for layer in found
    }
    # A layer with hooks, a parametrization or a forward of its own does more than multiply by its weight.
    plain = all(
        type(layer.weight) is nn.Parameter
        and "forward" not in vars(layer)
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
        for layer in found
    )
    return found if plain and len(kinds) == 1 and len(set(found)) == len(found) else None


def fuse_projections(model: nn.Module) -> list[str]:
    """Replaces the linear layers of one input by modules that compute them together.

    Query, key and value, or gate and up, are found by the names in :data:`PROJECTIONS`. They become :class:`Projection`
    modules that share a :class:`ProjectionGroup`. In one forward of their parent, the first of them computes the
    results of all. Gated MLPs of transformers (:data:`GATED_MLPS`) become a :class:`GatedMLP`. Each layer computes only
    its own rows if it is called outside of its parent's forward, with another input, in ``torch.inference_mode``, under
    ``torch.func`` or under ``torch.compile``. The results are those of the original layers, up to rounding. State dicts
    keep their names and shapes.

    The group's parameters replace those of the layers: make an optimizer, a CUDA graph or a DDP wrapper afterwards.
    Layers that are tied, hooked, parametrized or of a subclass stay as they are. :func:`unfuse_projections` restores
    the layers.

    Args:
        model: with weights of any dtype on any device. It is changed in place.

    Returns:
        What was fused, as "layers.0.q_proj+k_proj".
    """
    fused = []
    owners = Counter(parameter for module in model.modules() for parameter in module._parameters.values())
    for path, parent in list(model.named_modules()):
        for names in PROJECTIONS:
            layers = _fusible(parent, names)
            if layers is None or any(owners[parameter] > 1 for layer in layers for parameter in layer.parameters()):
                continue
            group = ProjectionGroup(layers).train(parent.training)
            for i, name in enumerate(names):
                setattr(parent, name, Projection(group, i).train(parent.training))
            if path and names == ("gate_proj", "up_proj") and _is_gated(parent, group):
                model.set_submodule(path, GatedMLP(parent).train(parent.training))
            elif _begin not in parent._forward_pre_hooks.values():
                parent.register_forward_pre_hook(_begin)
                parent.register_forward_hook(_end, always_call=True)
            fused.append(f"{path}.{'+'.join(names)}".removeprefix("."))
    return fused


def _is_gated(parent: nn.Module, group: ProjectionGroup) -> bool:
    """Whether a :class:`GatedMLP` can replace ``parent``, whose gate and up projections are in ``group``."""
    kind = type(parent)
    return (
        kind.__name__ in GATED_MLPS
        and kind.__module__.startswith("transformers.models.")
        and group.bias is None
        and set(parent._modules) == {"gate_proj", "up_proj", "down_proj", "act_fn"}
        and type(parent.act_fn).__name__ in GATES
    )


def unfuse_projections(model: nn.Module) -> list[str]:
    """Restores plain ``nn.Linear`` layers, with the current values of the weights.

    Returns:
        What had been fused, in the form that :func:`fuse_projections` returns.
    """
    unfused = []
    for path, parent in list(model.named_modules()):
        for by_name in _groups(parent):
            for name in by_name:
                layer = copy.deepcopy(by_name[name].linear())
                setattr(parent, name, layer)
                if isinstance(parent, GatedMLP):
                    setattr(parent._original[0], name, layer)
            if isinstance(parent, GatedMLP):
                model.set_submodule(path, parent._original[0].train(parent.training))
            for hooks, hook in ((parent._forward_pre_hooks, _begin), (parent._forward_hooks, _end)):
                for key in [key for key, value in hooks.items() if value is hook]:
                    del hooks[key]
            unfused.append(f"{path}.{'+'.join(by_name)}".removeprefix("."))
    return unfused


def _groups(parent: nn.Module) -> Iterable[dict[str, Projection]]:
    """Returns the projections among the children of ``parent``, by name, for each group."""
    by_group: dict[ProjectionGroup, dict[str, Projection]] = {}
    for name, child in parent.named_children():
        if isinstance(child, Projection):
            by_group.setdefault(child.group, {})[name] = child
    return by_group.values()
