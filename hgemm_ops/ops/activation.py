"""The activations of the ops: their names, and torch's functions for them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: The names of the values of ``act``, in order.
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")

#: The function of each value of ``act`` except 0, which means no activation.
FUNCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    1: torch.relu,
    2: F.gelu,
    3: lambda t: F.gelu(t, approximate="tanh"),
    4: lambda t: F.silu(t),
}


def apply(act: int, t: Tensor) -> Tensor:
    """Returns ``act(t)``; for 0 it returns ``t`` itself. RuntimeError if there is no such activation."""
    if not 0 <= act < len(ACTIVATIONS):
        raise RuntimeError(f"hgemm: act must be an index into {ACTIVATIONS}, got {act}")
    return FUNCTIONS[int(act)](t) if act else t


def gate(both: Tensor, act: int) -> Tensor:
    """Splits the last dimension of ``both`` in two, and returns ``act(first) * second``."""
    first, second = both.chunk(2, -1)
    return apply(act, first) * second


def backward(act: int, grad: Tensor, argument: Tensor) -> Tensor:
    """Returns ``grad * act'(argument)``. For relu, ``argument`` may also be the result of the activation."""
    aten = torch.ops.aten
    if act == 1:
        return aten.threshold_backward(grad, argument, 0)
    if act in (2, 3):
        return aten.gelu_backward(grad, argument, approximate="none" if act == 2 else "tanh")
    if act == 4 and not torch.is_grad_enabled():
        return aten.silu_backward(grad, argument)
    if act == 4:  # silu_backward has no derivative: for a second derivative, torch computes it like this, too
        sigmoid = argument.sigmoid()
        return grad * (sigmoid * (1 + argument * (1 - sigmoid)))
    return grad
