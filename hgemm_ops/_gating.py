"""Gated linear units inside models: ``down(act(gate(x)) * up(x))``, all but ``down`` as one kernel.

``install`` recognises a module that computes this and gives it a ``forward`` that asks the thread's innermost function
mode first. Outside of ``use_custom_gemm(fuse_projections=True)``, and wherever that declines, the class's own
``forward`` runs.
"""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch.overrides import _get_current_function_mode

from hgemm_ops.ops.activation import FUNCTIONS

_is_compiling = torch.compiler.is_compiling


class Unit(NamedTuple):
    """The names of a module's layers. The activation has a name and type if it is one of them, and is ``act`` to the
    operators."""

    gate: str
    up: str
    down: str
    act: int
    activation: str | None = None
    activation_type: type[nn.Module] | None = None


class GatedForward:
    """Stands for ``module.forward``. Knows the module, which holds it, weakly, so that both go with its last use."""

    def __init__(self, module: nn.Module, unit: Unit) -> None:
        self._module = weakref.ref(module)
        self.unit = unit

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = cast(nn.Module, self._module())
        if len(args) == 1 and not kwargs and not _is_compiling():
            # A hook of use_custom_gemm(): what goes into the last layer, or None where each layer is to run by itself.
            gated = getattr(_get_current_function_mode(), "_hgemm_gated", None)
            hidden = None if gated is None else gated(self, args[0])
            if hidden is not None:
                return getattr(module, self.unit.down)(hidden)
        return type(module).forward(module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._own_forward())

    @property
    def __code__(self) -> CodeType:
        return self._own_forward().__code__

    def _own_forward(self) -> MethodType:
        module = cast(nn.Module, self._module())
        return MethodType(type(module).forward, module)

    def __deepcopy__(self, memo: dict[int, Any]) -> GatedForward:
        module = cast(nn.Module, self._module())
        return GatedForward(memo.get(id(module), module), self.unit)

    def __reduce__(self) -> tuple[type[GatedForward], tuple[Any, Unit]]:
        return GatedForward, (self._module(), self.unit)

    def layers(self) -> tuple[nn.Linear, nn.Linear] | None:
        """Gate and up, if nothing but the module's own forward would see that they are not called."""
        modules = cast(nn.Module, self._module())._modules
        gate, up = modules.get(self.unit.gate), modules.get(self.unit.up)
        if type(gate) is not nn.Linear or type(up) is not nn.Linear or _is_watched(gate) or _is_watched(up):
            return None
        if self.unit.activation is not None:
            activation = modules.get(self.unit.activation)
            if type(activation) is not self.unit.activation_type or _is_watched(activation):
                return None
        return gate, up


def install(module: nn.Module, gate: str, up: str) -> bool:
    """Has ``module`` ask the contexts, if all it computes is ``down(act(gate(x)) * up(x))``."""
    unit = _match(module, gate, up)
    if unit is None or "forward" in module.__dict__:
        return False
    module.forward = GatedForward(module, unit)
    return True


def remove(module: nn.Module) -> None:
    """Undoes ``install``."""
    if isinstance(module.__dict__.get("forward"), GatedForward):
        del module.forward


def _is_watched(module: nn.Module) -> bool:
    """Whether a call of ``module`` is seen by anything else."""
    everywhere = nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
        or everywhere._global_backward_hooks
        or everywhere._global_backward_pre_hooks
        or "forward" in module.__dict__
    )


class _Tracer(fx.Tracer):
    """Records the calls of submodules, whatever they are, and what is done with their results."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _match(module: nn.Module, gate: str, up: str) -> Unit | None:
    tracer = _Tracer()
    try:
        nodes = list(tracer.trace(module).nodes)
    except Exception:  # forward depends on values, takes no tensor, ...: it is something else
        return None
    finally:
        vars(tracer).clear()  # it is part of a cycle, and holds the module
    if len(nodes) != 7 or nodes[0].op != "placeholder" or nodes[-1].op != "output":
        return None
    x, down = nodes[0], nodes[-1].args[0]
    if not _calls_linear(module, down):
        return None
    product = cast(fx.Node, down).args[0]
    if not (isinstance(product, fx.Node) and product.target in (operator.mul, torch.mul, "mul")):
        return None
    if product.kwargs or len(product.args) != 2:
        return None
    for activated, plain in (product.args, product.args[::-1]):
        if not (isinstance(activated, fx.Node) and isinstance(plain, fx.Node) and len(activated.args) == 1):
            continue
        gated = activated.args[0]
        if not (isinstance(gated, fx.Node) and _is_call(gated, gate, x) and _is_call(plain, up, x)):
            continue
        function = _function(module, activated)
        act = None if function is None else _activation(function)
        if act is not None:
            unit = Unit(gate, up, str(cast(fx.Node, down).target), act)
            if activated.op != "call_module":
                return unit
            name = str(activated.target)
            return unit._replace(activation=name, activation_type=type(module.get_submodule(name)))
    return None


def _is_call(node: fx.Node, name: str, x: fx.Node) -> bool:
    return node.op == "call_module" and node.target == name and node.args == (x,) and not node.kwargs


def _calls_linear(module: nn.Module, node: object) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.op == "call_module"
        and type(module._modules.get(str(node.target))) is nn.Linear
        and len(node.args) == 1
        and not node.kwargs
    )


def _function(module: nn.Module, node: fx.Node) -> Callable[[Tensor], Any] | None:
    """What a node does with its one argument."""
    if node.op == "call_module" and not node.kwargs:
        layer = module._modules.get(str(node.target))
        stateless = layer is not None and not [*layer.parameters(), *layer.buffers()]
        return layer if stateless else None
    if node.op == "call_function":
        target = cast(Callable[..., Any], node.target)
        return lambda t: target(t, **node.kwargs)
    return None


def _activation(function: Callable[[Tensor], Any]) -> int | None:
    """The activation that ``function`` is, told by its values."""
    probe = torch.linspace(-9, 9, 61, dtype=torch.float64, device="cpu")
    with torch.no_grad():
        try:
            y = function(probe.clone())
        except Exception:  # asks for another dtype, device, shape: none that is known
            return None
        for act, known in FUNCTIONS.items():
            if isinstance(y, Tensor) and torch.equal(y, known(probe)):
                return act
    return None
