"""The ops' activations: their names, and torch's functions for what is computed beside a product."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: the values of ``act``, in order
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")

#: by the values of ``act``, of which 0 is none
FUNCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    1: torch.relu,
    2: F.gelu,
    3: lambda t: F.gelu(t, approximate="tanh"),
    4: lambda t: F.silu(t),
}


def apply(act: int, t: Tensor) -> Tensor:
    """``act(t)``; ``t`` itself for 0."""
    if not 0 <= act < len(ACTIVATIONS):
        raise RuntimeError(f"hgemm: act must be an index into {ACTIVATIONS}, got {act}")
    return FUNCTIONS[int(act)](t) if act else t


def gate(both: Tensor, act: int) -> Tensor:
    """``act(first half) * second half``, of the last dimension."""
    first, second = both.chunk(2, -1)
    return apply(act, first) * second


def backward(act: int, grad: Tensor, argument: Tensor) -> Tensor:
    """``grad * act'(argument)``; for relu the result serves as the argument too."""
    aten = torch.ops.aten
    if act == 1:
        return aten.threshold_backward(grad, argument, 0)
    if act in (2, 3):
        return aten.gelu_backward(grad, argument, approximate="none" if act == 2 else "tanh")
    if act == 4 and not torch.is_grad_enabled():
        return aten.silu_backward(grad, argument)
    if act == 4:  # as torch for a second derivative: silu_backward has none
        sigmoid = argument.sigmoid()
        return grad * (sigmoid * (1 + argument * (1 - sigmoid)))
    return grad
