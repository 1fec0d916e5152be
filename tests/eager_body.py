"""A stand-in for ``timing.Body`` without a GPU: calls in place of a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from hgemm_ops.bench import timing, workload

B = TypeVar("B", bound="EagerBody")


@dataclass(frozen=True)
class EagerBody:
    """A body that runs on the CPU when it is replayed; whoever derives from it says how long that takes."""

    call: Any
    sets: list[workload.Operands]
    outputs: list[torch.Tensor]

    @classmethod
    def capture(cls: type[B], call: Any, sets: list[workload.Operands]) -> B:
        return cls(call, sets, [x.a.new_zeros(*x.a.shape[:-1], x.b.shape[-1]) for x in sets])

    poison = timing.Body.poison

    def replay(self) -> None:
        for output, x in zip(self.outputs, self.sets, strict=True):
            result = self.call(x)
            output[: len(result)] = result  # a call may leave rows out
