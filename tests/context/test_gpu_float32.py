"""float32 on a GPU: which products reach the kernels that split, and in strict float32 those for a few rows, by which
way, and that they are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, DEVICE, ON_GPU, assert_as_good, assert_close_to_torch, expect_calls, rand
from test_gpu_drop_in import Inputs
from torch import Tensor

import hgemm_ops
from hgemm_ops import use_custom_gemm
from hgemm_ops._report import Report

pytestmark = [pytest.mark.gpu, pytest.mark.sm90, pytest.mark.usefixtures("without_tf32")]

hgemm = torch.ops.hgemm
M, N, K = 2048, 1536, 1024  # so large that it is no question who is faster


@pytest.fixture
def operands() -> tuple[Tensor, Tensor]:
    t = Inputs(torch.float32)
    return t(M, K), t(K, N)


def expect_split(report: Report, number: int) -> None:
    """Asserts that these products, and no others, were counted, all served by kernels that split."""
    __tracebackhide__ = True
    expect_calls(report, number)
    others = [row for row in report.rows if not row.variant.startswith("sm90_split")]
    assert not others, str(report)


def assert_right(out: Tensor, theirs: Tensor, exact: Tensor) -> None:
    __tracebackhide__ = True
    assert_close_to_torch(out, exact, theirs, magnitude=2 * K / 4)  # of U[-1, 1], times an alpha of 2


def into(out: Tensor, function: Callable[..., Tensor], *args: Tensor, **options: Any) -> Tensor:
    result = function(*args, out=out, **options)
    assert result is out
    return out


FORMS: dict[str, Callable[[Inputs], Tensor]] = {
    "matmul": lambda t: t(M, K) @ t(K, N),
    "matmul of a batch and a matrix": lambda t: t(4, M // 4, K) @ t(K, N),
    "bmm": lambda t: torch.bmm(t(3, M, K), t(3, K, N)),
    "linear": lambda t: F.linear(t(M, K), t(N, K), t(N)),
    "addmm": lambda t: torch.addmm(t(M, N), t(M, K), t(K, N), beta=0.5, alpha=-2),
    "addmm of a row": lambda t: torch.addmm(t(N), t(M, K), t(K, N), alpha=2),
    "addmm of a column": lambda t: torch.addmm(t(M, 1), t(M, K), t(K, N), beta=2),
    "addmm without the addend": lambda t: torch.addmm(t(M, N) * float("nan"), t(M, K), t(K, N), beta=0),
    "baddbmm": lambda t: torch.baddbmm(t(3, M, N), t(3, M, K), t(3, K, N), beta=2, alpha=0.5),
    "mm out": lambda t: into(t(M, N), torch.mm, t(M, K), t(K, N)),
    "bmm out": lambda t: into(t(2, M, N), torch.bmm, t(2, M, K), t(2, K, N)),
    "addmm out": lambda t: into(t(M, N), torch.addmm, t(N), t(M, K), t(K, N), beta=0.5, alpha=2),
    "relu": lambda t: torch._addmm_activation(t(N), t(M, K), t(K, N)),
    "column-major": lambda t: t.column_major(M, K) @ t.column_major(K, N),
    "sliced": lambda t: t.sliced(M, K) @ t.sliced(K, N),
    "expanded": lambda t: t.expanded(M, K) @ t(K, N),
    "without a unit stride": lambda t: t.odd(M, K) @ t.odd(K, N),
    "odd sizes": lambda t: t(M - 1, K - 1) @ t(K - 1, N + 1),
    "few rows": lambda t: F.linear(t(40, K), t(16384, K), t(16384)),
    "few columns": lambda t: torch.addmm(t(16384, 40), t(16384, K), t(K, 40), beta=0.5),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_product(name: str) -> None:
    form = FORMS[name]
    theirs, exact = form(Inputs(torch.float32)), form(Inputs(torch.float32, torch.float64))
    with use_custom_gemm(float32="split") as report:
        got = form(Inputs(torch.float32))
    expect_split(report, 1)
    assert got.stride() == theirs.stride()
    assert_right(got, theirs, exact)


def test_gradients(operands: tuple[Tensor, Tensor]) -> None:
    g = rand(M, N, dtype=torch.float32)

    def run(dtype: torch.dtype, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul) -> list[Tensor]:
        leaves = [t.to(dtype).requires_grad_() for t in operands]
        y = product(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, g.to(dtype))]

    theirs, exact = run(torch.float32), run(torch.float64)
    by_argument = lambda a, b: hgemm_ops.matmul(a, b, float32="split")  # noqa: E731
    for mode, product in (("split", torch.matmul), ("strict", by_argument)):
        with use_custom_gemm(float32=mode) as report:
            ours = run(torch.float32, product)
        if mode == "split" or ON_GPU:
            expect_split(report, 3)
        for got, other, ref in zip(ours, theirs, exact, strict=True):
            assert_right(got, other, ref)


def test_a_training_step() -> None:
    def run(dtype: torch.dtype, float32: str = "strict") -> tuple[list[Tensor], Report]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.GELU(), torch.nn.Linear(N, K)).to(DEVICE, dtype)
        x = Inputs(torch.float32, dtype)(M, K)
        with use_custom_gemm(float32=float32) as report:
            y = model(x)
            y.square().mean().backward()
        return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)], report

    (theirs, strict), (exact, _), (ours, split) = run(torch.float32), run(torch.float64), run(torch.float32, "split")
    expect_split(split, 5)  # nobody wants the gradient of x
    assert not any("split" in row.variant for row in strict.rows), strict
    for got, other, ref in zip(ours, theirs, exact, strict=True):
        assert_as_good(got, other, ref, units=4)


def test_the_ops(operands: tuple[Tensor, Tensor]) -> None:
    a, b = operands
    bias, c, w = rand(N, dtype=torch.float32), rand(M, N, dtype=torch.float32), b.t().contiguous()
    wide = [t.double() for t in (a, b, bias, c)]
    product = wide[0] @ wide[1]
    out, theirs = torch.empty(M, N, device=DEVICE), a @ b
    sum_, layer = torch.addmm(c, a, b, beta=0.5, alpha=-2), F.linear(a, w, bias)
    with use_custom_gemm() as report:
        results = [
            (hgemm.mm(a, b, float32=1), theirs, product),
            (hgemm.mm.out(a, b, float32=1, out=out), theirs, product),
            (hgemm.addmm(c, a, b, beta=0.5, alpha=-2.0, float32=1), sum_, 0.5 * wide[3] - 2 * product),
            (hgemm_ops.linear(a, w, bias, float32="split"), layer, product + wide[2]),
            (hgemm.matmul(a.view(2, -1, K), b, float32=1).view(M, N), theirs, product),
        ]
    for got, expected, exact in results:
        assert_right(got, expected, exact)
    if ON_GPU:
        assert sum(row.calls for row in report.rows if row.variant.startswith("sm90_split")) == len(results), report


@pytest.mark.parametrize("act", range(1, 5))
def test_activations_and_gates(operands: tuple[Tensor, Tensor], act: int) -> None:
    a, b = operands
    w, bias = b.t().contiguous() / 16, rand(N, dtype=torch.float32)
    exact = F.linear(a.double(), w.double(), bias.double())
    theirs = F.linear(a, w, bias)
    y, argument = hgemm.linear_save(a, w, bias, act, float32=1)
    assert_right(argument, theirs, exact)
    for got in (y, hgemm.linear(a, w, bias, act, float32=1)):
        assert_right(got, ACTIVATIONS[act](theirs), ACTIVATIONS[act](exact))
    exact_gate, exact_up = F.linear(a.double(), w.double()).chunk(2, -1)
    gate, up = F.linear(a, w).chunk(2, -1)
    gated = hgemm.linear_gated(a, w, act, float32=1)
    assert_as_good(gated, ACTIVATIONS[act](gate) * up, ACTIVATIONS[act](exact_gate) * exact_up, units=4)


def test_tf32_does_not_come_first(operands: tuple[Tensor, Tensor]) -> None:
    a, b = operands
    theirs, exact = a @ b, a.double() @ b.double()
    torch.backends.cuda.matmul.allow_tf32 = True
    with use_custom_gemm(float32="split") as report:
        got = a @ b
    expect_split(report, 1)
    assert_right(got, theirs, exact)


def test_a_kernel_may_be_named_in_any_mode() -> None:
    a, b = rand(65, 170, dtype=torch.float32), rand(170, 33, dtype=torch.float32)
    for v in (v for v in hgemm_ops.variants() if v.family == "sm90_split"):
        for got in (hgemm_ops.matmul(a, b, variant=v.name if ON_GPU else None), getattr(hgemm, v.name)(a, b)):
            assert_right(got, a @ b, a.double() @ b.double())
        with use_custom_gemm(variant=v.name) as report:
            a @ b
        expect_calls(report, 1, v.name)


def test_what_stays_torchs_bit_for_bit(operands: tuple[Tensor, Tensor]) -> None:
    a, b = operands
    t = Inputs(torch.float32)
    c, out = t(M, N), t(M, 2 * N)[:, :N]
    calls: dict[str, Callable[[], Tensor]] = {
        "a vector": lambda: torch.mv(a, b[:, 0]),
        "no product": lambda: torch.addmm(c, a, b, alpha=0),
        "gelu": lambda: torch._addmm_activation(c[0], a, b, use_gelu=True),
        "in place": lambda: c.clone().addmm_(a, b, beta=0.5),
        "out= of other strides": lambda: torch.mm(a, b, out=out),
        "float64": lambda: a.double() @ b.double(),
        "nothing": lambda: a[:, :0] @ b[:0],
    }
    for name, call in calls.items():
        expected = call().clone()
        with use_custom_gemm(float32="split") as report:
            assert torch.equal(call(), expected), name
        expect_calls(report, 0, "ours")
    expected = a @ b
    with use_custom_gemm(float32="split", variant="torch") as report:
        assert torch.equal(a @ b, expected)
    expect_calls(report, 1, "torch")
    for options in ({}, {"float32": "strict"}):
        with use_custom_gemm(**options) as report:
            assert_right(a @ b, expected, a.double() @ b.double())
        assert not any("split" in row.variant for row in report.rows), report


def test_a_few_rows_in_strict_float32() -> None:
    t = Inputs(torch.float32)
    x, w, b, c = t(4, 768), t(3072, 768), t(3072), t(4, 3072)
    calls: dict[str, Callable[[Any], Tensor]] = {
        "a layer": lambda of: F.linear(of(x), of(w), of(b)),
        "its input's gradient": lambda of: of(c) @ of(w),
        "added to": lambda of: torch.addmm(of(c), of(x), of(w).t(), beta=0.5, alpha=-2.0),
        "columns": lambda of: of(w) @ of(x).t(),
        "a matrix times a vector": lambda of: torch.mv(of(w), of(x)[0]),
    }
    for name, call in calls.items():
        theirs, exact = call(lambda z: z), call(Tensor.double)
        with use_custom_gemm() as report:
            got = call(lambda z: z)
        assert_right(got, theirs, exact)
        (row,) = report.rows
        assert row.variant.startswith(("simt_gemv", "sm90_dmma")), name


def test_the_report_says_how_to_split(operands: tuple[Tensor, Tensor]) -> None:
    a, b = operands
    with use_custom_gemm() as strict:
        a @ b
    with use_custom_gemm(float32="split") as split:
        a @ b
    if ON_GPU:
        assert strict.rows[0].reason.endswith('without float32="split"') or "predicted" in strict.rows[0].reason
        assert split.rows[0].reason == f"model: {hgemm_ops.explain(a, b, float32='split').reason}"
