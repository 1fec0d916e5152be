"""The ops on CPU tensors: torch's results on every shape, layout and dtype, row-major and never views."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, GuardedBuffer, assert_close_to_torch, reference_matmul
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hgemm_ops

hgemm = torch.ops.hgemm
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MATMUL_SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((4, 5), (5, 3)),
    ((2, 4, 5), (5,)),
    ((5,), (2, 5, 3)),
    ((2, 4, 5), (5, 3)),
    ((4, 5), (2, 5, 3)),
    ((2, 4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((7, 1, 2, 4, 5), (3, 1, 5, 6)),
    ((2, 4, 5), (7, 1, 2, 5, 6)),
    ((0, 5), (5, 3)),
    ((4, 5), (5, 0)),
    ((4, 0), (0, 3)),
    ((0,), (0,)),
    ((0, 4, 5), (5, 3)),
    ((2, 0, 4, 5), (1, 5, 3)),
    ((3, 4, 0), (3, 0, 2)),
]


def tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(-5, 6, shape, dtype=dtype)


def assert_fresh(out: Tensor, *inputs: Tensor) -> None:
    """Row-major, not a view, and not sharing memory with an input."""
    assert out.is_contiguous()
    assert not out._is_view()
    for t in inputs:
        assert out.numel() == 0 or out.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()


@pytest.mark.parametrize(("a_shape", "b_shape"), MATMUL_SHAPES)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64], ids=str)
def test_matmul(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = tensor(a_shape, dtype), tensor(b_shape, dtype)
    out, expected = hgemm.matmul(a, b), torch.matmul(a, b)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert_fresh(out, a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["matmul", "mm", "bmm", "addmm", "baddbmm", "nn.functional.linear"])
def test_torchs_own_samples(name: str, dtype: torch.dtype) -> None:
    """Results and gradients of the inputs with which torch tests its functions."""
    pytest.importorskip("expecttest", reason="torch's op_db needs expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (op for op in op_db if op.name == name and not op.variant_test_name)
    op = getattr(hgemm, name.split(".")[-1])
    for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
        args = (sample.input, *sample.args)
        leaves = [arg for arg in args if isinstance(arg, Tensor)]
        results = []
        for function in (op, info.op):
            out = function(*args, **sample.kwargs)
            results.append((out, *torch.autograd.grad(out.sum(), leaves, allow_unused=True)))
        for ours, torchs in zip(*results, strict=True):
            # A gradient may be summed in another order, in which torch 2.10 rounds small elements otherwise.
            step = 2 * torch.finfo(dtype).eps
            scale = torchs.abs().max().item() if torchs.numel() else 0.0
            torch.testing.assert_close(ours, torchs, rtol=step, atol=step * max(scale, 1.0))


def views(t: Tensor) -> dict[str, Tensor]:
    """The values of ``t`` behind every kind of strides."""
    rows, columns = t.shape[-2:]
    wide = torch.full((*t.shape[:-2], rows + 3, 2 * columns + 3), float("nan"), dtype=t.dtype)
    wide[..., 3:, 3::2] = t
    return {
        "contiguous": t,
        "transposed": t.mT.contiguous().mT,
        "offset, no unit stride": wide[..., 3:, 3::2],
        "batch last": t.movedim(0, -1).contiguous().movedim(-1, 0),
        "flipped sign bit": torch._neg_view(-t),
    }


@pytest.mark.parametrize(("a_view", "b_view"), list(itertools.product(views(torch.zeros(1, 1, 1)), repeat=2)))
@pytest.mark.parametrize("op", ["matmul", "bmm"])
def test_strides(op: str, a_view: str, b_view: str) -> None:
    a, b = tensor((3, 4, 5)), tensor((3, 5, 6))
    out = getattr(hgemm, op)(views(a)[a_view], views(b)[b_view])
    torch.testing.assert_close(out, a @ b)
    assert_fresh(out)


def test_expanded_operands() -> None:
    a, b = tensor((1, 4, 5)).expand(3, 4, 5), tensor((5, 1)).expand(5, 6)
    torch.testing.assert_close(hgemm.matmul(a, b), a.clone() @ b.clone())
    torch.testing.assert_close(hgemm.bmm(a, b.expand(3, 5, 6)), a.clone() @ b.clone())


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    batch=st.sampled_from([(), (1,), (3,), (2, 2)]),
    m=st.integers(1, 40),
    n=st.integers(1, 40),
    k=st.integers(1, 300),
    wide=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_error_against_float64(
    dtype: torch.dtype, batch: tuple[int, ...], m: int, n: int, k: int, wide: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(*batch, m, k, generator=generator).to(dtype)
    b = torch.randn(k, n, generator=generator).to(dtype)
    ref, magnitude = reference_matmul(a, b)
    if wide:
        out, theirs = hgemm.matmul(a, b, out_dtype=torch.float32), a.float() @ b.float()
    else:
        out, theirs = hgemm.matmul(a, b), a @ b
    assert_close_to_torch(out, ref, theirs, magnitude=magnitude)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.complex64], ids=str)
def test_mm_and_bmm(dtype: torch.dtype) -> None:
    a, b = tensor((3, 4, 5), dtype), tensor((3, 5, 6), dtype)
    for out, expected in ((hgemm.mm(a[0], b[0]), torch.mm(a[0], b[0])), (hgemm.bmm(a, b), torch.bmm(a, b))):
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
        assert_fresh(out, a, b)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, -2.0), (2, 0), (0, 3)])
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (4, 1), (6,), (1,), ()], ids=str)
def test_addmm_and_baddbmm(shape: tuple[int, ...], alpha: float, beta: float) -> None:
    c, a, b = tensor(shape), tensor((3, 4, 5)), tensor((3, 5, 6))
    if beta == 0:
        c = torch.full(shape, float("nan"))  # not read, as in torch
    torch.testing.assert_close(
        hgemm.addmm(c, a[0], b[0], alpha=alpha, beta=beta), torch.addmm(c, a[0], b[0], alpha=alpha, beta=beta)
    )
    out = hgemm.baddbmm(c, a, b, alpha=alpha, beta=beta)
    torch.testing.assert_close(out, torch.baddbmm(c, a, b, alpha=alpha, beta=beta))
    assert_fresh(out, c, a, b)


def test_integer_addmm() -> None:
    c, a, b = (tensor(shape, torch.int64) for shape in ((4, 6), (4, 5), (5, 6)))
    assert torch.equal(hgemm.addmm(c, a, b, alpha=2, beta=3), torch.addmm(c, a, b, alpha=2, beta=3))


def test_zero_inner_size() -> None:
    bias = tensor((3,))
    assert torch.equal(hgemm.mm(tensor((4, 0)), tensor((0, 3))), torch.zeros(4, 3))
    assert torch.equal(hgemm.linear(tensor((4, 0)), tensor((3, 0)), bias), bias.expand(4, 3))
    assert torch.equal(hgemm.addmm(bias, tensor((4, 0)), tensor((0, 3)), beta=2), 2 * bias.expand(4, 3))


LINEAR_SHAPES = [
    ((4, 5), (3, 5), (1, 3)),
    ((4, 5), (3, 5), (4, 3)),
    ((4, 5), (3, 5), (4, 1)),
    ((2, 4, 5), (3, 5), (1, 3)),
    ((2, 4, 5), (3, 5), (4, 3)),
    ((2, 4, 5), (3, 5), (2, 4, 3)),
    ((5,), (3, 5), (3,)),
    ((4, 5), (3, 5), (3,)),
    ((4, 5), (3, 5), None),
    ((2, 4, 5), (3, 5), (3,)),
    ((2, 4, 5), (3, 5), (1,)),
    ((4, 5), (3, 5), ()),
    ((2, 1, 4, 5), (3, 5), None),
    ((4, 5), (5,), None),
    ((2, 4, 5), (5,), ()),
    ((0, 5), (3, 5), (3,)),
    ((2, 0, 5), (3, 5), (3,)),
    ((4, 5), (0, 5), (0,)),
]


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize(("x_shape", "w_shape", "bias_shape"), LINEAR_SHAPES)
def test_linear(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], bias_shape: tuple[int, ...] | None, act: int
) -> None:
    x, weight = tensor(x_shape), tensor(w_shape)
    bias = None if bias_shape is None else tensor(bias_shape)
    pre = F.linear(x, weight, bias)
    out = hgemm.linear(x, weight, bias, act)
    torch.testing.assert_close(out, ACTIVATIONS[act](pre))
    assert_fresh(out, x, weight)
    saved = hgemm.linear_save(x, weight, bias, act)
    torch.testing.assert_close(saved, (ACTIVATIONS[act](pre), pre))
    assert_fresh(saved[0], x, weight, saved[1])


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("x_shape", [(5,), (3, 5), (2, 3, 5), (0, 5), (3, 0)])
@pytest.mark.parametrize("rows", [0, 2, 14])
def test_linear_gated(x_shape: tuple[int, ...], rows: int, act: int) -> None:
    x, weight = tensor(x_shape), tensor((rows, x_shape[-1]))
    gate, up = F.linear(x, weight).chunk(2, -1) if rows else (F.linear(x, weight),) * 2
    out = hgemm.linear_gated(x, weight, act)
    torch.testing.assert_close(out, ACTIVATIONS[act](gate) * up)
    assert_fresh(out, x, weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["matmul", "mm", "addmm", "linear"])
def test_float32_output_keeps_what_half_would_round(op: str, dtype: torch.dtype) -> None:
    a, b, c = tensor((7, 33), dtype), tensor((33, 9), dtype), tensor((9,), dtype)
    call, expected = {
        "matmul": (lambda **o: hgemm.matmul(a, b, **o), a.float() @ b.float()),
        "mm": (lambda **o: hgemm.mm(a, b, **o), a.float() @ b.float()),
        "addmm": (lambda **o: hgemm.addmm(c, a, b, **o), torch.addmm(c.float(), a.float(), b.float())),
        "linear": (lambda **o: hgemm.linear(a, b.T, c, 1, **o), F.linear(a.float(), b.T.float(), c.float()).relu()),
    }[op]
    out = call(out_dtype=torch.float32)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected)
    assert not torch.equal(out, call().float())
    assert call(out_dtype=dtype).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_addmm_takes_an_addend_of_the_result_dtype(dtype: torch.dtype) -> None:
    c, a, b = tensor((4, 6), dtype), tensor((4, 5), torch.bfloat16), tensor((5, 6), torch.bfloat16)
    out = hgemm.addmm(c, a, b, out_dtype=torch.float32)
    torch.testing.assert_close(out, torch.addmm(c.float(), a.float(), b.float()))


def out_cases() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    a, b, c = tensor((3, 4, 5)), tensor((3, 5, 6)), tensor((6,))
    return {
        "matmul": (hgemm.matmul, (a, b[0])),
        "mm": (hgemm.mm, (a[0], b[0])),
        "bmm": (hgemm.bmm, (a, b)),
        "addmm": (hgemm.addmm, (c, a[0], b[0])),
        "baddbmm": (hgemm.baddbmm, (c, a, b)),
        "linear": (hgemm.linear, (a, b[0].T.contiguous(), c)),
    }


@pytest.mark.parametrize("op", out_cases())
def test_out_overload(op: str) -> None:
    function, args = out_cases()[op]
    expected = function(*args)
    guarded = GuardedBuffer(tuple(expected.shape), expected.dtype, row_padding=3)
    version = guarded.tensor._version
    assert function.out(*args, out=guarded.tensor) is guarded.tensor
    torch.testing.assert_close(guarded.tensor, expected)
    guarded.check()
    assert guarded.tensor._version > version, "autograd must see the write"


def test_out_overload_with_activation_and_float32() -> None:
    x, weight = tensor((4, 5), torch.bfloat16), tensor((3, 5), torch.bfloat16)
    out = torch.empty(4, 3)
    hgemm.linear.out(x, weight, None, 2, out_dtype=torch.float32, out=out)
    torch.testing.assert_close(out, F.gelu(F.linear(x.float(), weight.float())))


def test_nan_and_inf_propagate() -> None:
    a, b = tensor((4, 5)), tensor((5, 6))
    a[1, 2], b[3, 4] = float("nan"), float("inf")
    torch.testing.assert_close(hgemm.matmul(a, b), a @ b, equal_nan=True)
    torch.testing.assert_close(hgemm.linear(a, b.T, None, 1), (a @ b).relu(), equal_nan=True)


def test_other_tensor_kinds_go_to_torch() -> None:
    a, b = tensor((4, 5)), tensor((5, 6))
    torch.testing.assert_close(hgemm.mm(a.to_sparse(), b), a @ b)
    assert hgemm.mm(a.to("meta"), b.to("meta")).shape == (4, 6)
    conjugated = tensor((5, 4), torch.complex64)
    torch.testing.assert_close(hgemm.mm(conjugated.mH, conjugated), conjugated.mH.clone() @ conjugated)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_go_to_torch(layout: torch.layout) -> None:
    parts = [torch.randn(n, 8, requires_grad=True) for n in (3, 5)]
    x, w, bias = torch.nested.as_nested_tensor(parts, layout=layout), torch.randn(4, 8), torch.randn(4)
    pairs = [(hgemm_ops.linear(x, w, bias, activation="relu"), F.linear(x, w, bias).relu())]
    if layout == torch.jagged:  # torch has no such matmul for the other layout
        pairs.append((hgemm_ops.matmul(x, w.T), torch.matmul(x, w.T)))
    for ours, theirs in pairs:
        assert ours.layout == layout
        for part, expected in zip(ours.unbind(), theirs.unbind(), strict=True):
            torch.testing.assert_close(part, expected)
    sum(part.sum() for part in pairs[0][0].unbind()).backward()  # type: ignore[union-attr]
    assert parts[0].grad is not None


def test_public_functions() -> None:
    a, b, bias = tensor((2, 4, 5), torch.bfloat16), tensor((5, 6), torch.bfloat16), tensor((6,), torch.bfloat16)
    torch.testing.assert_close(hgemm_ops.matmul(a, b), a @ b)
    torch.testing.assert_close(hgemm_ops.matmul(a, b, variant="torch"), a @ b)
    assert hgemm_ops.matmul(a, b, out_dtype=torch.float32).dtype == torch.float32
    for name, act in (("relu", 1), ("gelu", 2), ("gelu_tanh", 3), ("silu", 4), ("none", 0), (None, 0)):
        expected = ACTIVATIONS[act](F.linear(a, b.T, bias))
        torch.testing.assert_close(hgemm_ops.linear(a, b.T, bias, activation=name), expected)
    wide = hgemm_ops.linear(a, b.T, bias, activation="silu", variant="auto", out_dtype=torch.float32)
    torch.testing.assert_close(wide, F.silu(F.linear(a.float(), b.T.float(), bias.float())))
