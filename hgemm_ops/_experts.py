"""The experts of transformers' mixtures of experts, by :func:`hgemm_ops.grouped_mm`."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._grouped import grouped_mm, grouped_mm_gated
from .nn import GATES, is_gate
from .ops import flops

__all__ = ["use_for_experts"]


def use_for_experts(name: str = "hgemm") -> None:
    """Registers the grouped matmuls of this package as an implementation of experts in transformers.

    A model takes it by its name: ``from_pretrained(..., experts_implementation="hgemm")``, or
    ``model.set_experts_implementation("hgemm")``. It computes what transformers' ``"grouped_mm"`` does, with these
    differences:

    - Under ``torch.autocast`` the matmuls run in autocast's dtype. transformers' run in the weights'.
    - float16 and float32 do not wait for the device where a kernel of this package runs.
    - Gradients are deterministic: those of the tokens are gathered and not added up by an index.

    Args:
        name: the value of ``experts_implementation`` that selects it. If there is an implementation of this name, it is
            replaced.

    Raises:
        ImportError: transformers is not installed, or is older than version 5.
    """
    try:
        import transformers
    except ImportError:
        raise ImportError(
            "hgemm_ops.use_for_experts needs transformers 5 or newer, which is not installed: "
            'pip install "transformers>=5"'
        ) from None
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:
        raise ImportError(
            "hgemm_ops.use_for_experts needs transformers 5 or newer, whose models take a function for their experts: "
            f"transformers {transformers.__version__} is installed"
        ) from None
    flops.register_if_loaded()
    ALL_EXPERTS_FUNCTIONS.register(name, experts_forward)


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Computes the experts of a module that transformers' ``use_experts_implementation`` decorates.

    Args:
        self: the module. Its attributes say how its weights lie (``is_transposed``), and whether there are biases, a
            gate and a norm after the experts.
        hidden_states: (tokens, hidden).
        top_k_index: (tokens, k), the experts of each token. Numbers from ``self.num_experts`` on stand for experts of
            other ranks; they contribute nothing.
        top_k_weights: (tokens, k).
    """
    tokens, k = top_k_index.shape
    experts, order = torch.sort(top_k_index.reshape(-1), stable=True)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(tokens * k, device=order.device))
    numbers = torch.arange(self.num_experts, dtype=experts.dtype, device=experts.device)
    offs = torch.searchsorted(experts, numbers, right=True, out_int32=True)
    # Rows of other ranks' experts lie behind the last end, and are undefined in the result of a grouped matmul. An
    # older transformers does not say whether there are any.
    elsewhere = (experts >= self.num_experts).unsqueeze(1) if getattr(self, "_is_expert_parallel", True) else None

    def defined(t: Tensor) -> Tensor:
        return t if elsewhere is None else t.masked_fill(elsewhere, 0)

    def parameters(name: str) -> tuple[Tensor, Tensor | None]:
        weight = getattr(self, name)
        return weight if self.is_transposed else weight.mT, getattr(self, f"{name}_bias") if self.has_bias else None

    has_gate = getattr(self, "has_gate", True)
    weight, bias = parameters("gate_up_proj" if has_gate else "up_proj")
    x = _take_rows(hidden_states, order, inverse, k)
    if not torch.is_autocast_enabled(x.device.type):
        x = x.to(weight.dtype)
    if has_gate and bias is None and (activation := _activation(self)):
        y = defined(grouped_mm_gated(x, weight, offs, activation))
    else:
        y = defined(grouped_mm(x, weight, offs, bias))
        y = self._apply_gate(y) if has_gate else self.act_fn(y)
    weight, bias = parameters("down_proj")
    y = defined(grouped_mm(y, weight, offs, bias))
    if getattr(self, "has_post_expert_norm", False):
        y = self.post_expert_norm(y)
    y = y * _take_rows(top_k_weights.reshape(-1, 1), order, inverse, 1)
    return _take_rows(y, inverse, order, 1).view(tokens, k, y.size(1)).sum(1).to(hidden_states.dtype)


def _activation(module: Any) -> str | None:
    """Returns the activation with which :func:`grouped_mm_gated` computes the gate of the module, if there is one."""
    from transformers.integrations import moe

    if type(module)._apply_gate is not getattr(moe, "_default_apply_gate", None) or not is_gate(module.act_fn):
        return None
    return GATES[type(module.act_fn).__name__]


def _take_rows(t: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
    """Returns the rows of ``t``, each ``copies`` times, in the order that ``order`` gives and ``inverse`` undoes."""
    return _TakeRows.apply(t, order, inverse, copies)  # type: ignore[no-untyped-call]


class _TakeRows(Function):
    """Its gradient gathers rows. That of an index adds them up, in any order or after a sort."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(order, inverse)
        ctx.copies = copies
        return t.index_select(0, order if copies == 1 else order // copies)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        order, inverse = ctx.saved_tensors
        grad = _take_rows(grad, inverse, order, 1)
        if ctx.copies > 1:
            grad = grad.view(grad.size(0) // ctx.copies, ctx.copies, grad.size(1)).sum(1)
        return grad, None, None, None
