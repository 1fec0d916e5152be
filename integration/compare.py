"""How far a result is from the reference, and the bound: at most twice as far as torch's own, plus one rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

#: An error may be this many times torch's.
FACTOR = 2.0
# Elements compared at a time: the float64 copies of a Llama embedding gradient would take 4 GiB each.
_CHUNK = 1 << 25


@dataclass(frozen=True)
class Error:
    """Root-mean-square and largest error of a tensor, each relative to the same norm of the reference."""

    rms: float
    max: float


@dataclass(frozen=True)
class Comparison:
    """One tensor of both sides against the reference."""

    name: str
    torch: Error
    ours: Error
    unit: float  # the rounding unit of the result's type

    @property
    def ratio(self) -> float:
        """Our RMS error over torch's; 1 where both are below a hundredth of a rounding (a loss is a mean)."""
        negligible = self.unit / 100
        if self.ours.rms <= negligible and self.torch.rms <= negligible:
            return 1.0
        return self.ours.rms / self.torch.rms if self.torch.rms else math.inf

    @property
    def ok(self) -> bool:
        # A NaN in ours makes both comparisons false.
        return (
            self.ours.rms <= FACTOR * self.torch.rms + self.unit
            and self.ours.max <= FACTOR * self.torch.max + self.unit
        )


def rounding_unit(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of ``dtype``: the relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


def error(result: Tensor, reference: Tensor, floor: float = 0.0) -> Error:
    """The error of ``result``; norms of the reference below ``floor`` count as ``floor``."""
    if result.shape != reference.shape:
        raise ValueError(f"result {tuple(result.shape)} and reference {tuple(reference.shape)} must have one shape")
    zero = torch.zeros((), dtype=torch.float64, device=reference.device)
    error_square, error_peak, square, peak = zero, zero, zero, zero
    flat = (tensor.detach().flatten() for tensor in (result, reference))
    chunks = zip(*(torch.split(tensor, _CHUNK) for tensor in flat), strict=True)
    for given, exact in chunks:
        exact = exact.double()
        delta = given.double() - exact
        error_square = error_square + delta.square().sum()
        square = square + exact.square().sum()
        error_peak = torch.maximum(error_peak, delta.abs().amax())  # propagates NaN
        peak = torch.maximum(peak, exact.abs().amax())
    count = reference.numel()
    rms, scale = math.sqrt(error_square.item() / count), max(math.sqrt(square.item() / count), floor)
    largest, peak_scale = error_peak.item(), max(peak.item(), floor)
    return Error(rms / scale if scale else rms, largest / peak_scale if peak_scale else largest)


def compare(
    torch_side: Mapping[str, Tensor], our_side: Mapping[str, Tensor], reference: Mapping[str, Tensor], unit: float
) -> list[Comparison]:
    """Every tensor of both sides against the reference; the three must hold the same names.

    Some gradients vanish (the bias of an attention key shifts every score of a row alike, and softmax ignores it), and
    what is left of them is rounding of terms that cancel: their norm counts as at least one rounding of the typical
    gradient's, so that noise is not compared with zero.
    """
    sides = (torch_side, our_side, reference)
    lacking = {name for side in sides for name in side if not all(name in other for other in sides)}
    if lacking:
        raise ValueError(f"not every side holds {', '.join(sorted(lacking))}")
    gradients = [tensor for name, tensor in reference.items() if name.startswith("grad ")]
    floor = unit * max((gradient.square().mean().sqrt().item() for gradient in gradients), default=0.0)
    return [
        Comparison(
            name,
            error(torch_side[name], exact, floor if name.startswith("grad ") else 0.0),
            error(our_side[name], exact, floor if name.startswith("grad ") else 0.0),
            unit,
        )
        for name, exact in reference.items()
    ]


def disagreement(torch_tokens: Tensor, our_tokens: Tensor, exact: Tensor, allowed: float) -> tuple[bool, str]:
    """Judges greedy generations (batch, steps) that may differ where two tokens are nearly equal.

    ``exact``: the reference's logits (batch, steps, vocabulary) along our tokens. Up to the first difference of a row
    both sides read the same tokens, so there the reference's gap between the two choices has to be within ``allowed``,
    the sum of both sides' logit errors; what follows depends on that choice. Returns the verdict and an explanation.
    """
    notes, legitimate = [], True
    for row in range(our_tokens.shape[0]):
        steps = (torch_tokens[row] != our_tokens[row]).nonzero()
        if not len(steps):
            continue
        step = int(steps[0])
        ours, theirs = exact[row, step, our_tokens[row, step]], exact[row, step, torch_tokens[row, step]]
        gap = abs(float(ours - theirs))
        legitimate &= gap <= allowed
        notes.append(f"row {row} differs from step {step}: logits {gap:.2g} apart, errors {allowed:.2g}")
    return legitimate, "; ".join(notes) or "same tokens"
