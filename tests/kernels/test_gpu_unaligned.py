"""Rows that start anywhere: results that TMA cannot write, and the ends of rows that ``skinny_mma`` loads in chunks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, GuardedBuffer, assert_close_to_torch, reference_matmul, refusal_allowed, serves
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
WGMMA = pytest.mark.parametrize(
    "variant", [v for v in hgemm_ops.variants() if v.name.startswith("sm90_wgmma")], ids=lambda v: v.name
)
SKINNY = pytest.mark.parametrize(
    "variant", [v for v in hgemm_ops.variants() if v.name.startswith("skinny_mma")], ids=lambda v: v.name
)
ROWS = 1130  # of tiles of any height, the last one with few
# Whole pieces of 64 columns and 1 to 9 more; pieces that overlap (96, 160, 200 columns a tile) and end in the middle.
WIDTHS = (9, 65, 66, 67, 68, 70, 71, 72, 73, 97, 129, 161, 193, 201, 257, 263)


def rand(rows: int, cols: int, dtype: torch.dtype = torch.float16, offset: int = 0) -> Tensor:
    """A matrix that starts ``offset`` elements behind a multiple of 16 bytes."""
    x = torch.rand(rows * cols + offset, device="cuda").mul_(2).sub_(1).to(dtype)
    return x[offset:].view(rows, cols)


@pytest.mark.sm90
@WGMMA
def test_results_that_start_and_end_anywhere(variant: VariantInfo) -> None:
    k = 1031 if variant.name.endswith("_pad") else 1032
    a = rand(ROWS, k)
    problems = [(i, rand(n, k)) for i, n in enumerate(WIDTHS)]
    # Some have no registers to write other rows than TMA's; stream-K splits only what is no whole number of waves.
    problems = [(i, weight) for i, weight in problems if serves(variant, a, weight.t())]
    if all(weight.size(0) % 8 == 0 for _, weight in problems):
        pytest.skip(hgemm_ops.explain(a, rand(65, k).t()).candidates[variant.id].reason)
    assert len(problems) == len(WIDTHS) or "_streamk" in variant.name
    for i, weight in problems:
        exact, magnitude = reference_matmul(a, weight.t())
        theirs = a @ weight.t()
        for offset in (64 + i % 8, 64 + (3 * i + 5) % 8):
            out = GuardedBuffer((ROWS, weight.size(0)), a.dtype, "cuda", offset=offset)
            hgemm.mm.out(a, weight.t(), variant=variant.id, out=out.tensor)
            out.check()
            assert_close_to_torch(out.tensor, exact, theirs, magnitude=magnitude)


@pytest.mark.sm90
@WGMMA
@pytest.mark.parametrize("n", [66, 130, 199])
def test_biases_and_activations_of_such_results(variant: VariantInfo, n: int) -> None:
    k = 1031 if variant.name.endswith("_pad") else 1032
    x, weight, bias = rand(ROWS, k), rand(n, k), rand(1, n)[0]
    if not serves(variant, x, weight.t()):
        pytest.skip(hgemm_ops.explain(x, weight.t()).candidates[variant.id].reason)
    exact, magnitude = reference_matmul(x, weight.t())
    exact, magnitude = exact + bias.double(), magnitude + bias.double().abs()
    theirs = F.linear(x, weight, bias)
    served = 0
    for act, activate in ACTIVATIONS.items():
        out = GuardedBuffer((ROWS, n), x.dtype, "cuda", offset=65)
        with refusal_allowed(variant.id):
            hgemm.linear.out(x, weight, bias, act, variant=variant.id, out=out.tensor)
            out.check()
            assert_close_to_torch(out.tensor, activate(exact), activate(theirs), magnitude=magnitude)
            served += 1
    # Tiles that are no whole pieces, and clusters of four along M and N, have the first two, and these for pairs of
    # columns.
    plain = variant.tile[1] % 64 or "_c2x2x1" in variant.name
    assert served == ((2 if n % 2 == 0 else 0) if plain else 5)


@SKINNY
@pytest.mark.parametrize("k", [1, 7, 8, 9, 15, 63, 64, 65, 71, 72, 73, 79, 127, 135, 521, 1031, 4097])
def test_ends_of_rows(variant: VariantInfo, k: int) -> None:
    """Every length around whole units, every place of both operands; what lies beside a row is NaN."""
    cols = variant.tile[1]
    for place in range(8):
        guards = [
            GuardedBuffer((rows, k), torch.bfloat16, "cuda", offset=64 + start, row_padding=padding)
            for rows, start, padding in ((cols, place, 1), (139, (5 * place + 3) % 8, place))
        ]
        for guard in guards:
            guard.tensor.copy_(rand(*guard.tensor.shape, torch.bfloat16))
        x, weight = (guard.tensor for guard in guards)
        for a in (x, x.t().contiguous().t()):  # k side by side, or not
            if a is not x and "in_order" in variant.name:  # which takes the former alone
                assert not serves(variant, a, weight.t()) or k == 1
                continue
            out = hgemm.linear(a, weight, variant=variant.id)
            exact, magnitude = reference_matmul(a, weight.t())
            assert_close_to_torch(out, exact, F.linear(a, weight), magnitude=magnitude)
            assert torch.equal(out, hgemm.linear(a, weight, variant=variant.id))
