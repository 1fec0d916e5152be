"""``hgemm::grouped_linear`` on a CPU, where it is a grouped matmul and torch's functions."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers import OPCHECKS
from torch import Tensor, library
from torch.utils.flop_counter import FlopCounterMode

import hgemm_ops
from hgemm_ops.ops import activation

op = torch.ops.hgemm.grouped_linear.default
ENDS = [2, 2, 7]


def operands(n: int = 32, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, w, offs and bias. The last two rows of x belong to no group."""
    torch.manual_seed(0)
    x, w, bias = torch.randn(9, 24), torch.randn(3, n, 24) / 5, torch.randn(3, n)
    return x.to(dtype), w.to(dtype).mT, torch.tensor(ENDS, dtype=torch.int32), bias.to(dtype)


def expected(x: Tensor, w: Tensor, bias: Tensor | None, act: int, gated: bool) -> Tensor:
    rows = [x[first:last] @ w[i] for i, (first, last) in enumerate(itertools.pairwise([0, *ENDS]))]
    if bias is not None:
        rows = [row + bias[i] for i, row in enumerate(rows)]
    y = torch.cat(rows)
    return activation.gate(y, act) if gated else activation.apply(act, y)


CALLS = pytest.mark.parametrize(("has_bias", "gated"), [(True, False), (False, False), (False, True)])


@CALLS
@pytest.mark.parametrize("act", range(5))
@pytest.mark.parametrize("n", [32, 48])
def test_values_and_gradients(has_bias: bool, gated: bool, act: int, n: int) -> None:
    x, w, offs, bias = operands(n)
    inputs = [t.requires_grad_() for t in ((x, w, bias) if has_bias else (x, w))]
    out = op(x, w, offs, bias if has_bias else None, act, gated)
    want = expected(x, w, bias if has_bias else None, act, gated)
    assert out.shape == (9, n // 2 if gated else n)
    torch.testing.assert_close(out[:7], want)
    ours, theirs = (torch.autograd.grad(t[:7].square().sum(), inputs, retain_graph=True) for t in (out, want))
    torch.testing.assert_close(ours, theirs)


def test_rows_of_the_result_are_padded() -> None:
    x, w, offs, bias = operands(30)
    for out in (op(x, w, offs, bias, 1, False), op(*(t.to("meta") for t in (x, w, offs, bias)), 1, False)):
        assert out.shape == (9, 30) and out.stride() == (32, 1)


@CALLS
def test_opcheck(has_bias: bool, gated: bool) -> None:
    x, w, offs, bias = operands()
    tensors = (t.requires_grad_() for t in (x, w))
    library.opcheck(op, (*tensors, offs, bias if has_bias else None, 4, gated), {}, test_utils=OPCHECKS)


def test_autocast() -> None:
    x, w, offs, bias = operands()
    with torch.autocast("cpu", torch.bfloat16):
        out = op(x, w, offs, bias, 4, False)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out[:7].float(), expected(x, w, bias, 4, False), rtol=0.03, atol=0.03)


def test_vmap() -> None:
    x, w, offs, bias = operands()
    xs = torch.stack([x, x + 1])
    out = torch.func.vmap(lambda x: op(x, w, offs, bias, 2, False))(xs)
    for got, given in zip(out, xs, strict=True):
        torch.testing.assert_close(got[:7], expected(given, w, bias, 2, False))


def test_flops() -> None:
    x, w, offs, _ = operands()
    with FlopCounterMode(display=False, custom_mapping=hgemm_ops.flop_formulas()) as counter, torch.no_grad():
        op(x, w, offs, None, 4, True)
    assert counter.get_total_flops() == 2 * 9 * 24 * 32


def test_errors() -> None:
    x, w, offs, bias = operands()
    for call, message in (
        ((x, w[0], offs, None, 0, False), "x (9, 24) must be 2-D and w (24, 32) 3-D"),
        ((x, w, offs, bias, 0, True), "a gate takes no bias"),
        ((x, w[..., :24], offs, None, 0, True), "w (3, 24, 24) must have a multiple of 16 columns"),
        ((x, w, offs, bias[:2], 0, False), "bias (2, 32) must be (groups, n)"),
        ((x, w, offs, bias.double(), 0, False), "with the dtype of x"),
        ((x, w, offs, None, 5, False), "act must be an index into"),
    ):
        with pytest.raises(RuntimeError) as error:
            op(*call)
        assert message in str(error.value)
