"""The registered ops on CUDA half tensors: opcheck, gradients, autocast, single kernels as ops, a routed model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    ACTIVATIONS,
    OPCHECKS,
    assert_as_good,
    assert_close_to_torch,
    production,
    rand,
    reference_matmul,
    refusal_allowed,
    serves,
)
from torch import Tensor, library, nn

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])


# Registration

Sample = Callable[[], tuple[tuple[object, ...], dict[str, object]]]
SAMPLES: dict[str, Sample] = {
    "matmul": lambda: ((rand(3, 33, 65), rand(65, 17)), {}),
    "matmul broadcast": lambda: ((rand(3, 1, 33, 65), rand(2, 17, 65).mT), {}),
    "mm": lambda: ((rand(33, 65), rand(65, 17)), {}),
    "mm float32": lambda: ((rand(33, 65), rand(65, 17)), {"out_dtype": torch.float32}),
    "bmm": lambda: ((rand(3, 65, 33).mT, rand(3, 65, 17)), {}),
    "addmm": lambda: ((rand(17), rand(33, 65), rand(65, 17)), {"beta": 0.5, "alpha": 2.0}),
    "baddbmm": lambda: ((rand(33, 17), rand(3, 33, 65), rand(3, 65, 17)), {"beta": 0.5}),
    "linear": lambda: ((rand(3, 33, 65), rand(17, 65), rand(17), 0), {}),
    "linear gelu": lambda: ((rand(3, 33, 65), rand(17, 65), rand(17), 2), {}),
    "linear_save": lambda: ((rand(3, 33, 65), rand(17, 65), rand(17), 3), {}),
}


@DTYPES
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck(sample: str, grad: bool, dtype: torch.dtype) -> None:
    args, options = SAMPLES[sample]()
    args = tuple(x.to(dtype).requires_grad_(grad) if isinstance(x, Tensor) else x for x in args)
    op = getattr(hgemm, sample.split()[0]).default
    library.opcheck(op, args, options, test_utils=OPCHECKS)


@DTYPES
@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample != "linear_save"])
def test_opcheck_of_out(sample: str, dtype: torch.dtype) -> None:
    args, options = SAMPLES[sample]()
    args = tuple(x.to(dtype) if isinstance(x, Tensor) else x for x in args)
    packet = getattr(hgemm, sample.split()[0])
    out = torch.empty_like(packet.default(*args, **options))
    # NOTE: AOT dispatch functionalizes no custom op that returns the argument it writes.
    library.opcheck(packet.out, args, {**options, "out": out}, test_utils=OPCHECKS[:3])


@DTYPES
@pytest.mark.parametrize("act", range(5))
def test_linear_save_gives_both(dtype: torch.dtype, act: int) -> None:
    """The result of linear, and the argument of its activation rounded to the result's dtype."""
    x, weight, bias = rand(3, 33, 65, dtype=dtype), rand(17, 65, dtype=dtype), rand(17, dtype=dtype)
    exact = F.linear(x.double(), weight.double(), bias.double())
    theirs = F.linear(x, weight, bias)
    serves = {c.name for c in hgemm_ops.explain(x, weight.t()).candidates if c.eligible}
    for variant in (-1, *(v.id for v in production() if v.name in serves)):
        with refusal_allowed(variant):
            out, pre = hgemm.linear_save(x, weight, bias, act, variant=variant)
            assert_close_to_torch(pre, exact, theirs)
            assert_close_to_torch(out, ACTIVATIONS[act](exact), ACTIVATIONS[act](theirs))
            wide, wide_pre = hgemm.linear_save(x, weight, bias, act, out_dtype=torch.float32, variant=variant)
            assert wide.dtype == wide_pre.dtype == torch.float32
            torch.testing.assert_close(wide, ACTIVATIONS[act](wide_pre))


# Single kernels


@pytest.mark.parametrize("variant", [v for v in hgemm_ops.variants() if v.family != "int8"], ids=lambda v: v.name)
def test_every_kernel_is_an_op(variant: VariantInfo) -> None:
    """``hgemm::<name>(a, b)`` is that kernel, forward and backward, for a size every step of the ladder takes."""
    dtype = variant.dtypes[0]
    a, b = rand(512, 512, dtype=dtype), rand(512, 512, dtype=dtype)
    if not serves(variant, a, b):
        pytest.skip(hgemm_ops.explain(a, b, float32="split").candidates[variant.id].reason)
    out = getattr(hgemm, variant.name)(a, b)
    assert torch.equal(out, hgemm.matmul(a, b, variant=variant.id))
    assert torch.equal(out, hgemm_ops.matmul(a, b, variant=variant.name))
    exact, magnitude = reference_matmul(a, b)
    if variant.numerics == "float16 accumulation":  # accumulates in half: its own bound
        magnitude = magnitude * torch.finfo(torch.float16).eps / torch.finfo(torch.float32).eps
    assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)
    leaves = a.clone().requires_grad_(), b.clone().requires_grad_()
    getattr(hgemm, variant.name)(*leaves).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


# Gradients

GRADIENTS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (hgemm.mm, torch.mm, ((70, 130), (130, 50))),
    "bmm": (hgemm.bmm, torch.bmm, ((3, 70, 130), (3, 130, 50))),
    "matmul": (hgemm.matmul, torch.matmul, ((2, 3, 70, 130), (3, 130, 50))),
    "matmul vector": (hgemm.matmul, torch.matmul, ((3, 70, 130), (130,))),
    "addmm": (
        lambda c, a, b: hgemm.addmm(c, a, b, alpha=0.5, beta=-2.0),
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.5, beta=-2.0),
        ((50,), (70, 130), (130, 50)),
    ),
    "baddbmm": (
        lambda c, a, b: hgemm.baddbmm(c, a, b, alpha=0.5, beta=-2.0),
        lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.5, beta=-2.0),
        ((3, 1, 50), (3, 70, 130), (3, 130, 50)),
    ),
    **{
        f"linear {act}": (
            lambda x, w, b, act=act: hgemm.linear(x, w, b, act),
            lambda x, w, b, act=act: ACTIVATIONS[act](F.linear(x, w, b)),
            ((3, 70, 130), (50, 130), (50,)),
        )
        for act in range(5)
    },
}


def gradients(fn: Callable[..., Tensor], inputs: list[Tensor], seed: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = fn(*leaves)
    return torch.autograd.grad(out, leaves, seed.to(out.dtype))


@DTYPES
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients(case: str, dtype: torch.dtype) -> None:
    ours, theirs, shapes = GRADIENTS[case]
    inputs = [rand(*shape, dtype=dtype) for shape in shapes]
    wide = [x.double() for x in inputs]
    seed = rand(*theirs(*wide).shape, dtype=dtype)
    for got, other, exact in zip(
        gradients(ours, inputs, seed), gradients(theirs, inputs, seed), gradients(theirs, wide, seed), strict=True
    ):
        assert_as_good(got, other, exact)


@DTYPES
def test_second_order_gradients(dtype: torch.dtype) -> None:
    def penalty(fn: Callable[..., Tensor], x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        x, w = (t.detach().clone().requires_grad_() for t in (x, w))
        (gx,) = torch.autograd.grad(fn(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad(gx.square().sum() / 64, (x, w))

    x, w = rand(40, 72, dtype=dtype), rand(56, 72, dtype=dtype) / 8

    def torch_silu(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(F.linear(x, w))

    ours = penalty(lambda x, w: hgemm.linear(x, w, None, 4), x, w)
    theirs, exact = penalty(torch_silu, x, w), penalty(torch_silu, x.double(), w.double())
    for got, other, ref in zip(ours, theirs, exact, strict=True):
        assert_as_good(got, other, ref)


def test_gradients_of_expanded_and_transposed_inputs() -> None:
    x = rand(1, 64).requires_grad_()
    w = rand(48, 64).requires_grad_()
    out = hgemm.matmul(x.expand(40, 64), w.t())
    seed = rand(40, 48)
    got = torch.autograd.grad(out, (x, w), seed)
    theirs = torch.autograd.grad(x.expand(40, 64) @ w.t(), (x, w), seed)
    wide_x, wide_w = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    exact = torch.autograd.grad(wide_x.expand(40, 64) @ wide_w.t(), (wide_x, wide_w), seed.double())
    for a, b, c in zip(got, theirs, exact, strict=True):
        assert_as_good(a, b, c)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("batch", "rows", "k", "n"), [(200, 3, 72, 80), (130, 65, 67, 33), (9, 2, 64, 128)])
def test_a_b_that_all_matrices_share(batch: int, rows: int, k: int, n: int, dtype: torch.dtype) -> None:
    """Rows and batch of a permuted input are exchanged, and the result has the caller's order."""
    x, w = rand(rows, batch, k, dtype=dtype).transpose(0, 1), rand(n, k, dtype=dtype)
    c, bias = rand(batch, rows, n, dtype=dtype), rand(n, dtype=dtype)
    b = w.t().expand(batch, k, n)
    exact, magnitude = reference_matmul(x, b)
    assert_close_to_torch(hgemm.bmm(x, b), exact, torch.bmm(x, b), magnitude=magnitude)
    # A kernel may refuse so few rows in each matrix, although it takes the rows of all matrices together.
    apart = w.expand(batch, n, k).clone().transpose(1, 2)
    for kernel in hgemm_ops.variants():
        if serves(kernel, x, w.t()) and serves(kernel, x, apart):
            with refusal_allowed(kernel.id):
                out = hgemm.baddbmm(c, x, b, beta=0.5, alpha=2.0, variant=kernel.id)
                theirs = torch.baddbmm(c, x, b, beta=0.5, alpha=2.0)
                size = 2 * magnitude + c.double().abs()
                assert_close_to_torch(out, 2 * exact + 0.5 * c.double(), theirs, magnitude=size)
    out, pre = hgemm.linear_save(x, w, bias, 1)
    wide, theirs, size = exact + bias.double(), F.linear(x, w, bias), magnitude + bias.double().abs()
    assert_close_to_torch(pre, wide, theirs, magnitude=size)
    assert_close_to_torch(out, wide.relu(), theirs.relu(), magnitude=size)


# Autocast


@DTYPES
def test_autocast(dtype: torch.dtype) -> None:
    """float32 parameters and inputs run in the autocast dtype, bitwise as if they had been cast by hand."""
    x, weight, bias = (torch.randn(shape, device="cuda") for shape in ((40, 72), (56, 72), (56,)))
    with torch.autocast("cuda", dtype=dtype):
        linear, mm = hgemm.linear(x, weight, bias, 2), hgemm.mm(x, weight.t())
    half = [t.to(dtype) for t in (x, weight, bias)]
    assert torch.equal(linear, hgemm.linear(*half, 2))
    assert torch.equal(mm, hgemm.mm(half[0], half[1].t()))


@DTYPES
def test_autocast_backward(dtype: torch.dtype) -> None:
    x, weight = torch.randn(40, 72, device="cuda"), torch.randn(56, 72, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=dtype):
        hgemm.linear(x, weight).sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    expected = x.double().sum(0).expand(56, 72)
    assert (weight.grad - expected).abs().max() <= 2 * torch.finfo(dtype).eps * expected.abs().max()


# A model


class Block(nn.Module):
    """Attention and an MLP: linear layers, matmuls of activations, multi_head_attention_forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(256, 4, batch_first=True)
        self.norm = nn.LayerNorm(256)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.gate = nn.Parameter(torch.randn(256, 64) / 16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=True)[0]
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return (x @ self.gate) @ self.gate.t()


def train(module: nn.Module, x: Tensor) -> list[Tensor]:
    module.zero_grad()
    y = module(x)
    (y.float().square().sum() / 4096).backward()
    return [y.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


@DTYPES
@pytest.mark.parametrize("variant", [None, "first kernel"])
def test_model_under_the_context_manager(variant: str | None, dtype: torch.dtype) -> None:
    kernel = next((v.name for v in production()), None)
    if variant and kernel is None:
        pytest.skip("no production kernel was built")
    module, exact_module = Block().cuda().to(dtype), Block().cuda().double()
    exact_module.load_state_dict(module.state_dict())
    x = rand(8, 128, 256, dtype=dtype)
    with hgemm_ops.use_custom_gemm(variant=kernel if variant else None, sites=True) as report:
        ours = train(module, x)
    theirs, exact = train(module, x), train(exact_module, x.double())
    for got, other, ref in zip(ours, theirs, exact, strict=True):
        assert_as_good(got, other, ref)

    names = {v.name for v in hgemm_ops.variants()} | {"torch"}
    assert report.rows and {row.variant for row in report.rows} <= names, str(report)
    sites = " ".join(row.site for row in report.rows)
    assert all(name in sites for name in ("up", "down")), sites
    if variant:
        forward = [row for row in report.rows if row.site.endswith(("up", "down"))]
        assert forward and all(row.variant == kernel for row in forward), str(report)
