"""Layers that share an input as one product: modules that hold their weights together.

``fuse_projections(model)`` puts the modules in, ``unfuse_projections(model)`` takes them out again.
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

#: Classes of transformers whose forward is ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``.
GATED_MLPS = frozenset(
    f"{name}MLP"
    for name in (
        *("Cohere", "Cohere2", "DeepseekV2", "DeepseekV3", "Gemma", "Gemma2", "Gemma3", "Glm4Moe", "Granite", "Helium"),
        *("Llama", "Ministral", "Mistral", "Olmo", "Olmo2", "Olmo3", "Olmoe", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe"),
        *("SmolLM3", "StableLm"),
    )
)

#: Classes of activations that ``linear_gated`` computes, by name: torch's, and transformers' of the same function.
GATES = {"ReLU": "relu", "GELUActivation": "gelu", "GELUTanh": "gelu_tanh", "SiLU": "silu", "SiLUActivation": "silu"}


def linear_gated(x: Tensor, weight: Tensor, activation: str | None = "silu", *, variant: str | None = None) -> Tensor:
    """Gated linear unit: ``gate, up = F.linear(x, weight).chunk(2, -1)``, then ``act(gate) * up``.

    Where no gradient is wanted, one launch with the kernels that can (those for at most 64 rows on Hopper), else a
    product and one that gates it.

    Args:
        x: ``(..., in_features)``. Any strides and storage offset.
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
    """Whether what is done with ``tensors`` is compiled, transformed, or a subclass's business."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(type(t) not in (Tensor, nn.Parameter) for t in tensors)
    )


# Modules


class _Results(threading.local):
    """What projections computed for their siblings: for each parent whose forward runs on this thread, by group."""

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
    """Linear layers of one input, their weights one behind another in one parameter.

    Args:
        layers: of one in_features, dtype and device, all or none with a bias. Their values are copied.

    Attributes:
        weight: ``(sum of out_features, in_features)``.
        bias: ``(sum of out_features,)``, or None.
        sizes: the layers' out_features.
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
        """Where the layer ``index`` lies in ``weight`` and ``bias``."""
        start = sum(self.sizes[:index])
        return slice(start, start + self.sizes[index])

    def project(self, x: Tensor, index: int) -> Tensor:
        """The layer ``index`` of ``x``. In one forward of the layers' parent the first that is called computes all, and
        the others, called with the same tensor, take theirs."""
        if _is_traced(x) or x.is_inference() or not _results.of_parents:  # no sibling may take a result of x
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
        """The projections save the rows, under the names of their layers."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The projections load them."""


class Projection(nn.Module):
    """One layer of a :class:`ProjectionGroup`: ``F.linear(x, self.weight, self.bias)``.

    ``weight`` and ``bias`` are views of the group's; a state dict has them under these names.
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
        in_place = {**local_metadata, "assign_to_params_buffers": False}  # what is assigned would be no view
        self.linear()._load_from_state_dict(state_dict, prefix, in_place, *rest)

    def linear(self) -> nn.Linear:
        """A plain layer on the group's memory."""
        layer = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        for name, value in self._values().items():
            setattr(layer, name, nn.Parameter(value.detach(), self.group.weight.requires_grad))
        return layer.train(self.training)


class GatedMLP(nn.Module):
    """``down_proj(act_fn(gate_proj(x)) * up_proj(x))``, gate, up, activation and product as one operator. Shares the
    layers of the module it stands for."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self._modules.update(mlp._modules)
        self._original = (mlp,)  # not a child

    def forward(self, x: Tensor) -> Tensor:
        group: ProjectionGroup = self.gate_proj.group  # type: ignore[union-attr, assignment]
        act = ACTIVATIONS.index(GATES[type(self.act_fn).__name__])
        return self.down_proj(torch.ops.hgemm.linear_gated.default(x, group.weight, act))  # type: ignore[operator]


def _fusible(parent: nn.Module, names: Sequence[str]) -> list[nn.Linear] | None:
    """The parent's layers of these names, where one product may stand for them."""
    layers = [parent._modules.get(name) for name in names]
    if any(type(layer) is not nn.Linear for layer in layers):
        return None
    found: list[nn.Linear] = layers  # type: ignore[assignment]
    kinds = {
        (layer.in_features, layer.weight.dtype, layer.weight.device, layer.weight.requires_grad, layer.bias is None)
        for layer in found
    }
    # Hooks, parametrizations, own forwards: the layer is more than its weight.
    plain = all(
        type(layer.weight) is nn.Parameter
        and "forward" not in vars(layer)
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
        for layer in found
    )
    return found if plain and len(kinds) == 1 and len(set(found)) == len(found) else None


def fuse_projections(model: nn.Module) -> list[str]:
    """Swaps in modules that compute layers of one input together; returns what they are, as "layers.0.q_proj+k_proj".

    Query, key and value, or gate and up, told by the names of :data:`PROJECTIONS`, become :class:`Projection` modules
    that share a :class:`ProjectionGroup`: in one forward of their parent, the first one computes all. Gated MLPs of
    transformers (:data:`GATED_MLPS`) become a :class:`GatedMLP`. Outside of their parent's forward, with another
    input, in ``torch.inference_mode``, under ``torch.func`` and ``torch.compile``, each layer computes its own rows.
    Results are those of the layers, up to rounding; state dicts have the same names and shapes.

    The layers' parameters are replaced by the group's: make an optimizer, a CUDA graph or a DDP wrapper afterwards.
    Layers that are tied, hooked, parametrized or of a subclass stay. Undone by :func:`unfuse_projections`.

    Args:
        model: with weights of any dtype on any device.
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
    kind = type(parent)
    return (
        kind.__name__ in GATED_MLPS
        and kind.__module__.startswith("transformers.models.")
        and group.bias is None
        and set(parent._modules) == {"gate_proj", "up_proj", "down_proj", "act_fn"}
        and type(parent.act_fn).__name__ in GATES
    )


def unfuse_projections(model: nn.Module) -> list[str]:
    """Puts plain ``nn.Linear`` layers back, with the values of now; returns what :func:`fuse_projections` had."""
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
    """Each group's projections among the children of ``parent``, by name."""
    by_group: dict[ProjectionGroup, dict[str, Projection]] = {}
    for name, child in parent.named_children():
        if isinstance(child, Projection):
            by_group.setdefault(child.group, {})[name] = child
    return by_group.values()
