"""Which experts a mixture of experts has chosen for each token, and a run of another model that chooses the same.

Choices are no continuous function: where two experts are nearly equal for a token, rounding alone decides. So the
reference of a result has to take the experts that the result was computed with, or it is another function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Routing(TorchFunctionMode):
    """Records the results of ``torch.topk``, by which the routers of transformers choose, in ``chosen``.

    With ``follow``, indices of that form, every call takes the next of these in place of the largest values.
    """

    def __init__(self, follow: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self._follow = None if follow is None else list(reversed(follow))
        self.chosen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.topk:
            return func(*args, **kwargs)
        if self._follow is None:
            result = func(*args, **kwargs)
        else:
            indices = self._follow.pop()
            result = torch.return_types.topk((args[0].gather(-1, indices), indices))
        self.chosen.append(result.indices)
        return result


def in_one_pass(chosen: Sequence[Tensor], layers: int, batch: int, tokens: int) -> list[Tensor]:
    """Returns the choices of a generation, pass by pass, as those of one pass over its first ``tokens`` tokens."""
    by_layer = [[indices.view(batch, -1, indices.size(-1)) for indices in chosen[i::layers]] for i in range(layers)]
    return [torch.cat(passes, 1)[:, :tokens].flatten(0, 1) for passes in by_layer]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether two runs have chosen the same experts."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
