"""``swap_linear``: layers that call our operator themselves, for eager code where a context would cost too much."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hgemm_ops.ops.schema import NAMESPACE

__all__ = ["Linear", "swap_linear", "unswap_linear"]

_linear = getattr(torch.ops, NAMESPACE).linear.default


class Linear(nn.Linear):
    """``nn.Linear`` through ``torch.ops.hgemm.linear``: the same parameters, state and results.

    Shapes, dtypes and errors are those of :func:`hgemm_ops.linear`; the equivalent PyTorch line is
    ``F.linear(input, self.weight, self.bias)``.
    """

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = _linear(input, self.weight, self.bias)
        return result


def _change(model: nn.Module, old: type[nn.Linear], new: type[nn.Linear]) -> list[str]:
    names = []
    for name, module in model.named_modules():
        if type(module) is old and "forward" not in vars(module):
            module.__class__ = new
            names.append(name)
    return names


def swap_linear(model: nn.Module) -> list[str]:
    """Makes every ``nn.Linear`` of ``model`` a :class:`Linear`, in place; returns the names of these layers.

    The other way to send a model through our kernels, for inference where the host is the limit (eager code, few
    rows): torch hands ``use_custom_gemm()`` every call of its API and every look at a tensor's attributes, while here a
    layer's call costs what :func:`hgemm_ops.linear` does, and the rest nothing. It serves linear layers alone, and
    there is no report. In training, layers whose three products are torch's cost less in the context, which leaves them
    to torch.

    Parameters, buffers, hooks, ``state_dict`` and ``isinstance(layer, nn.Linear)`` stay as they are. Subclasses of
    ``nn.Linear`` and layers whose ``forward`` was replaced keep theirs. A copy or pickle of a swapped layer is swapped;
    ``unswap_linear`` takes it back. Works under torch.compile and in CUDA graphs.

    Args:
        model: with weights of any dtype on any device; what no kernel of ours serves runs torch's.
    """
    return _change(model, nn.Linear, Linear)


def unswap_linear(model: nn.Module) -> list[str]:
    """Undoes ``swap_linear``; returns the names of the layers that are ``nn.Linear`` again."""
    return _change(model, Linear, nn.Linear)
