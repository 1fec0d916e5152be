"""Under torch.autocast the ops compute in its dtype, whichever that is, and give torch's result dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hgemm_ops  # noqa: F401  (registers torch.ops.hgemm)

hgemm = torch.ops.hgemm
HALF = [torch.bfloat16, torch.float16]

A, B, C, BIAS = (3, 4, 5), (3, 5, 6), (4, 6), (6,)
Call = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
CASES: dict[str, tuple[Call, Call]] = {
    "matmul": (lambda a, b, c, d: hgemm.matmul(a, b), lambda a, b, c, d: torch.matmul(a, b)),
    "mm": (lambda a, b, c, d: hgemm.mm(a[0], b[0]), lambda a, b, c, d: torch.mm(a[0], b[0])),
    "bmm": (lambda a, b, c, d: hgemm.bmm(a, b), lambda a, b, c, d: torch.bmm(a, b)),
    "addmm": (lambda a, b, c, d: hgemm.addmm(c, a[0], b[0]), lambda a, b, c, d: torch.addmm(c, a[0], b[0])),
    "baddbmm": (lambda a, b, c, d: hgemm.baddbmm(c, a, b), lambda a, b, c, d: torch.baddbmm(c, a, b)),
    "linear": (lambda a, b, c, d: hgemm.linear(a, b[0].T, d), lambda a, b, c, d: F.linear(a, b[0].T, d)),
    "linear gelu": (
        lambda a, b, c, d: hgemm.linear(a, b[0].T, d, 2),
        lambda a, b, c, d: F.gelu(F.linear(a, b[0].T, d)),
    ),
    "linear_gated": (
        lambda a, b, c, d: hgemm.linear_gated(a, torch.cat([b[0].T, b[0].T]), 4),
        lambda a, b, c, d: F.silu(F.linear(a, b[0].T)) * F.linear(a, b[0].T),
    ),
    "linear_save": (
        lambda a, b, c, d: hgemm.linear_save(a, b[0].T, d, 2)[1],
        lambda a, b, c, d: F.linear(a, b[0].T, d),
    ),
}


def operands() -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape) for shape in (A, B, C, BIAS))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_computes_in_the_autocast_dtype(case: str, dtype: torch.dtype) -> None:
    ours, theirs = CASES[case]
    args = operands()
    with torch.autocast("cpu", dtype=dtype):
        out, expected = ours(*args), theirs(*args)
    assert out.dtype == expected.dtype == dtype
    torch.testing.assert_close(out, expected)


def test_nested_disabled_and_mixed() -> None:
    a, b, *_ = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hgemm.matmul(a, b.bfloat16()).dtype == torch.bfloat16, "mixed inputs are brought to one dtype"
        with torch.autocast("cpu", dtype=torch.float16):
            assert hgemm.matmul(a, b).dtype == torch.float16
        with torch.autocast("cpu", enabled=False):
            assert hgemm.matmul(a, b).dtype == torch.float32
    assert hgemm.matmul(a, b).dtype == torch.float32


def test_float64_and_integers_stay() -> None:
    a, b, *_ = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hgemm.matmul(a.double(), b.double()).dtype == torch.float64
        assert hgemm.matmul(a.int(), b.int()).dtype == torch.int32
        with pytest.raises(RuntimeError, match="Double"):
            hgemm.matmul(a.double(), b)


def test_float32_output() -> None:
    a, b, *_ = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = hgemm.matmul(a, b, out_dtype=torch.float32)
    torch.testing.assert_close(out, a.bfloat16().float() @ b.bfloat16().float())


def test_other_devices_are_left_alone() -> None:
    """A CUDA autocast region does not touch CPU tensors, with or without a GPU."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
    a, b, *_ = operands()
    with torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set() | key, torch._C._dispatch_tls_local_exclude_set() - key
    ):
        assert hgemm.matmul(a, b).dtype == torch.float32


@pytest.mark.parametrize("case", ["matmul", "addmm", "linear", "linear gelu"])
def test_gradients_have_the_parameters_dtype(case: str) -> None:
    ours, theirs = CASES[case]

    def grads(call: Call) -> tuple[Tensor | None, ...]:
        torch.manual_seed(1)
        args = tuple(t.requires_grad_() for t in operands())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(*args)
        out.float().square().sum().backward()
        return tuple(t.grad for t in args)

    for got, expected in zip(grads(ours), grads(theirs), strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert got.dtype == torch.float32
            torch.testing.assert_close(got, expected, rtol=2**-5, atol=2**-4)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_compiled(dtype: torch.dtype, fresh_dynamo: None) -> None:
    a, b, *_ = operands()

    def inside(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return hgemm.matmul(a, b)

    expected = inside(a, b)
    torch.testing.assert_close(torch.compile(inside, fullgraph=True, backend="aot_eager")(a, b), expected)
    outside = torch.compile(lambda a, b: hgemm.matmul(a, b), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(outside(a, b), expected)
