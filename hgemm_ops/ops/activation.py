"""The operators' activations, as torch's functions: for what is computed beside a product, or differentiated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: by the values of ``act``, of which 0 is none
FUNCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    1: torch.relu,
    2: torch.nn.functional.gelu,
    3: lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    4: lambda t: torch.nn.functional.silu(t),
}


def gate(both: Tensor, act: int) -> Tensor:
    """``act(first half) * second half``, of the last dimension."""
    first, second = both.chunk(2, -1)
    return (FUNCTIONS[act](first) if act else first) * second
