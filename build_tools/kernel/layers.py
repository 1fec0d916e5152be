"""The layers that ``kernels.kernelize`` can map. A layer has no state: its ``forward`` replaces that of a module."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .ops.schema import OPS


class Linear(nn.Module):
    """The forward of ``torch.nn.Linear``, by the op ``linear`` of this kernel.

    Weights of classes with a ``__torch_function__``, such as quantised ones, keep torch's function.
    """

    can_torch_compile = True
    has_backward = True

    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        if torch.overrides.has_torch_function((input, self.weight, self.bias)):
            return F.linear(input, self.weight, self.bias)
        return OPS.linear.default(input, self.weight, self.bias)
