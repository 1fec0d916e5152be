"""Compares a result with the reference. Its error may be at most twice torch's own, plus one rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

#: An error may be this many times torch's.
FACTOR = 2.0
# Tensors are compared in chunks of so many elements. Otherwise the float64 copies of a Llama embedding gradient would
# take 4 GiB each.
_CHUNK = 1 << 25


@dataclass(frozen=True)
class Error:
    """The root-mean-square and the largest error of a tensor, each relative to the same norm of the reference."""

    rms: float
    max: float


@dataclass(frozen=True)
class Comparison:
    """One tensor of both sides, compared with the reference."""

    name: str
    torch: Error
    ours: Error
    unit: float  # the rounding unit of the result's type

    @property
    def ratio(self) -> float:
        """Our RMS error over torch's.

        It is 1 if both are below a hundredth of a rounding, as they may be for a loss, which is a mean.
        """
        negligible = self.unit / 100
        if self.ours.rms <= negligible and self.torch.rms <= negligible:
            return 1.0
        return self.ours.rms / self.torch.rms if self.torch.rms else math.inf

    @property
    def problem(self) -> str:
        """Both errors, for a message about a result that is not ``ok``."""
        return (
            f"{self.name}: error rms {self.ours.rms:.3g} max {self.ours.max:.3g}, "
            f"torch's rms {self.torch.rms:.3g} max {self.torch.max:.3g}"
        )

    @property
    def ok(self) -> bool:
        # A NaN in our result makes both comparisons false.
        return (
            self.ours.rms <= FACTOR * self.torch.rms + self.unit
            and self.ours.max <= FACTOR * self.torch.max + self.unit
        )


def rounding_unit(dtype: torch.dtype) -> float:
    """Returns half the distance from 1 to the next number of ``dtype``: the relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


def error(result: Tensor, reference: Tensor, floor: float = 0.0) -> Error:
    """Returns the error of ``result``. A norm of the reference below ``floor`` counts as ``floor``."""
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
    torch_side: Mapping[str, Tensor],
    our_side: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    unit: float,
    our_reference: Mapping[str, Tensor] | None = None,
) -> list[Comparison]:
    """Compares every tensor of both sides with the reference. All must have the same names.

    ``our_reference``: that of our side, if it is another than torch's.

    Some gradients are zero in exact arithmetic. The bias of an attention key, for example, adds the same to every score
    of a row, which softmax ignores. Such a gradient consists of the rounding errors of terms that cancel. The norm of a
    gradient therefore counts as at least one rounding of the largest gradient's norm, so that noise is not compared
    with zero.
    """
    our_reference = our_reference or reference
    sides = (torch_side, our_side, reference, our_reference)
    lacking = {name for side in sides for name in side if not all(name in other for other in sides)}
    if lacking:
        raise ValueError(f"not every side holds {', '.join(sorted(lacking))}")
    gradients = [tensor for name, tensor in reference.items() if name.startswith("grad ")]
    floor = unit * max((gradient.square().mean().sqrt().item() for gradient in gradients), default=0.0)
    return [
        Comparison(
            name,
            error(torch_side[name], exact, floor if name.startswith("grad ") else 0.0),
            error(our_side[name], our_reference[name], floor if name.startswith("grad ") else 0.0),
            unit,
        )
        for name, exact in reference.items()
    ]


def disagreement(
    torch_tokens: Tensor, our_tokens: Tensor, exact_torch: Tensor, exact_ours: Tensor, allowed: float
) -> tuple[bool, str]:
    """Compares greedy generations (batch, steps). They may differ where two tokens are nearly equal.

    ``exact_torch`` and ``exact_ours`` are the reference's logits (batch, steps, vocabulary) along the tokens of either
    side, and with the experts that the side has chosen. Up to the first difference in a row, both sides have read the
    same tokens. At that step each side's reference may prefer the other side's token by at most ``allowed``, the sum of
    both sides' logit errors. All later steps depend on that choice and are not compared.

    Returns:
        Whether the difference is allowed, and an explanation.
    """
    notes, legitimate = [], True
    for row in range(our_tokens.shape[0]):
        steps = (torch_tokens[row] != our_tokens[row]).nonzero()
        if not len(steps):
            continue
        step = int(steps[0])
        theirs, ours = torch_tokens[row, step], our_tokens[row, step]
        gap = max(
            float(exact[row, step, other] - exact[row, step, chosen])
            for exact, chosen, other in ((exact_torch, theirs, ours), (exact_ours, ours, theirs))
        )
        legitimate &= gap <= allowed
        notes.append(f"row {row} differs from step {step}: logits {gap:.2g} apart, errors {allowed:.2g}")
    return legitimate, "; ".join(notes) or "same tokens"
