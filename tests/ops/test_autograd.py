"""Gradients of the ops: against finite differences in float64 (both orders, both modes), and against torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from helpers import ACTIVATIONS, assert_close_to_torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import hgemm_ops  # noqa: F401  (registers torch.ops.hgemm)

hgemm = torch.ops.hgemm


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


# Small: gradcheck perturbs every element.
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mm": (hgemm.mm, ((3, 4), (4, 2))),
    "bmm": (hgemm.bmm, ((2, 3, 4), (2, 4, 2))),
    "matmul 1x1": (hgemm.matmul, ((4,), (4,))),
    "matmul 1x2": (hgemm.matmul, ((4,), (4, 2))),
    "matmul 2x1": (hgemm.matmul, ((3, 4), (4,))),
    "matmul 2x2": (hgemm.matmul, ((3, 4), (4, 2))),
    "matmul 3x1": (hgemm.matmul, ((2, 3, 4), (4,))),
    "matmul 1x3": (hgemm.matmul, ((4,), (2, 4, 2))),
    "matmul 3x2": (hgemm.matmul, ((2, 3, 4), (4, 2))),
    "matmul 2x3": (hgemm.matmul, ((3, 4), (2, 4, 2))),
    "matmul 3x4": (hgemm.matmul, ((2, 3, 4), (2, 1, 4, 2))),
    "matmul 4x3 broadcast": (hgemm.matmul, ((2, 1, 3, 2), (2, 2, 2))),
    "matmul empty batch": (hgemm.matmul, ((0, 3, 4), (4, 2))),
    "matmul empty inner": (hgemm.matmul, ((3, 0), (0, 2))),
    "addmm": (lambda c, a, b: hgemm.addmm(c, a, b, alpha=0.5, beta=-2.0), ((3, 2), (3, 4), (4, 2))),
    "addmm row": (hgemm.addmm, ((2,), (3, 4), (4, 2))),
    "addmm scalar": (hgemm.addmm, ((), (3, 4), (4, 2))),
    "baddbmm": (lambda c, a, b: hgemm.baddbmm(c, a, b, alpha=0.5, beta=-2.0), ((2, 1, 2), (2, 3, 4), (2, 4, 2))),
    "linear 1": (hgemm.linear, ((4,), (2, 4), (2,))),
    "linear 2": (hgemm.linear, ((3, 4), (2, 4))),
    "linear 3": (hgemm.linear, ((2, 3, 4), (2, 4), (2,))),
    "linear broadcast bias": (hgemm.linear, ((2, 3, 4), (2, 4), (1,))),
    "linear row bias": (hgemm.linear, ((3, 4), (2, 4), (1, 2))),
    "linear bias of rows": (lambda x, w, b: hgemm.linear(x, w, b, 2), ((2, 3, 4), (2, 4), (3, 2))),
    "linear vector weight": (hgemm.linear, ((2, 3, 4), (4,), ())),
    "linear relu": (lambda x, w, b: hgemm.linear(x, w, b, 1), ((2, 3, 4), (2, 4), (2,))),
    "linear gelu": (lambda x, w, b: hgemm.linear(x, w, b, 2), ((3, 4), (2, 4), (2,))),
    "linear gelu_tanh": (lambda x, w, b: hgemm.linear(x, w, b, 3), ((2, 3, 4), (2, 4), (2,))),
    "linear silu": (lambda x, w, b: hgemm.linear(x, w, b, 4), ((3, 4), (2, 4), (2,))),
    "linear silu vector weight": (lambda x, w: hgemm.linear(x, w, None, 4), ((3, 4), (4,))),
    "linear_save": (lambda x, w, b: hgemm.linear_save(x, w, b, 2), ((3, 4), (2, 4), (2,))),
    "linear_gated": (lambda x, w: hgemm.linear_gated(x, w, 4), ((2, 3, 4), (6, 4))),
    "linear_gated vector": (lambda x, w: hgemm.linear_gated(x, w, 0), ((4,), (6, 4))),
    "linear_save no bias": (lambda x, w: hgemm.linear_save(x, w, None, 4), ((2, 2, 3), (2, 3))),
}


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case: str) -> None:
    function, shapes = CASES[case]
    inputs = tuple(leaf(*shape) for shape in shapes)
    batched_forward = len(shapes[0]) > 1  # torch's own product of a vector and a matrix fails there too
    assert gradcheck(
        function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=batched_forward
    )


@pytest.mark.parametrize("case", CASES)
def test_gradgradcheck(case: str) -> None:
    function, shapes = CASES[case]
    inputs = tuple(leaf(*shape) for shape in shapes)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True)


def test_complex_gradients() -> None:
    inputs = (leaf(2, 3, dtype=torch.complex128), leaf(3, 2, dtype=torch.complex128))
    assert gradcheck(hgemm.matmul, inputs) and gradcheck(hgemm.mm, inputs)
    assert gradcheck(hgemm.linear, (inputs[0], leaf(2, 3, dtype=torch.complex128)))


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_linear_gradients_are_as_good_as_torchs(dtype: torch.dtype, act: int) -> None:
    values = [torch.randn(s) for s in ((2, 17, 40), (24, 40), (24,), (2, 17, 24))]
    *leaves, seed = (v.to(dtype) for v in values)

    def grads(function: Callable[..., Tensor], wide: bool) -> tuple[Tensor, ...]:
        inputs = [v.double() if wide else v.clone() for v in leaves]
        for v in inputs:
            v.requires_grad_()
        out = function(*inputs)
        return (out.detach(), *torch.autograd.grad(out, inputs, seed.to(out.dtype)))

    def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return ACTIVATIONS[act](F.linear(x, w, b))

    ours = grads(lambda x, w, b: hgemm.linear(x, w, b, act), wide=False)
    theirs, exact = grads(reference, wide=False), grads(reference, wide=True)
    for got, torch_got, ref in zip(ours, theirs, exact, strict=True):
        assert got.dtype == dtype
        assert_close_to_torch(got, ref, torch_got, magnitude=64.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b, c, **o: hgemm.matmul(a, b, **o),
        lambda a, b, c, **o: hgemm.mm(a, b, **o),
        lambda a, b, c, **o: hgemm.addmm(c, a, b, alpha=0.5, **o),
        lambda a, b, c, **o: hgemm.linear(a, b.mT, c, **o),
        lambda a, b, c, **o: hgemm.linear(a, b.mT, c, 2, **o),
    ],
    ids=["matmul", "mm", "addmm", "linear", "gelu"],
)
def test_float32_output_has_gradients_in_the_input_dtype(call: Callable[..., Tensor]) -> None:
    def inputs() -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        return tuple(leaf(*shape, dtype=torch.bfloat16) for shape in ((6, 8), (8, 5), (5,)))

    wide, narrow = inputs(), inputs()
    out = call(*wide, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    out.sum().backward()
    call(*narrow).sum().backward()
    for w, n in zip(wide, narrow, strict=True):
        assert (w.grad is None) == (n.grad is None)
        if w.grad is not None:
            assert w.grad.dtype == torch.bfloat16
            # Not equal: what the activation's derivative sees is rounded in one and not in the other.
            torch.testing.assert_close(w.grad, n.grad, rtol=2**-6, atol=2**-6)
    with fwAD.dual_level():
        dual = fwAD.make_dual(wide[0].detach(), torch.ones(6, 8, dtype=torch.bfloat16))
        assert fwAD.unpack_dual(call(dual, *wide[1:], out_dtype=torch.float32)).tangent.dtype == torch.float32


def test_float32_addend_of_a_half_product_gets_a_float32_gradient() -> None:
    c, a, b = leaf(3, 5, dtype=torch.float32), leaf(3, 4, dtype=torch.bfloat16), leaf(4, 5, dtype=torch.bfloat16)
    hgemm.addmm(c, a, b, out_dtype=torch.float32, beta=3.0).sum().backward()
    assert torch.equal(c.grad, torch.full((3, 5), 3.0)) and a.grad.dtype == torch.bfloat16


class Calls(TorchDispatchMode):
    """Records the ops that reach a backend, with their keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((str(func), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def products(calls: Calls) -> list[str]:
    return [name for name, _ in calls.seen if name.startswith("hgemm") or "mm" in name or "sum" in name]


def test_the_forward_is_the_op_and_the_gradients_are_torchs() -> None:
    a, b = leaf(3, 4), leaf(4, 2)
    with Calls() as calls:
        hgemm.mm(a, b, variant=-2).sum().backward()
    assert [options for name, options in calls.seen if name == "hgemm.mm.default"] == [{"variant": -2}]
    assert products(calls) == ["hgemm.mm.default", "aten.sum.default", "aten.mm.default", "aten.mm.default"]
    with Calls() as calls:
        hgemm.linear(a, b.mT, None, 2)
    assert products(calls) == ["hgemm.linear_save.default"]
    with Calls() as calls, torch.no_grad():
        hgemm.linear(a, b.mT, None, 2)
    assert products(calls) == ["hgemm.linear.default"]


@pytest.mark.parametrize("frozen", ["a", "b"])
@pytest.mark.parametrize("op", ["mm", "matmul", "linear"])
def test_only_what_is_wanted_is_saved_and_computed(op: str, frozen: str) -> None:
    a, b = leaf(3, 4), leaf(4, 4)
    (a if frozen == "a" else b).requires_grad_(False)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        out = getattr(hgemm, op)(a, b)
    assert saved == [(a if frozen == "a" else b).data_ptr()]
    with Calls() as calls:
        out.backward(torch.ones_like(out))
    assert products(calls) == ["aten.mm.default"]
    assert (a.grad is None) == (frozen == "a") and (b.grad is None) == (frozen == "b")


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)], ids=str)
def test_the_gradient_of_a_weight_is_not_copied(shape: tuple[int, ...]) -> None:
    """It comes in the weight's memory layout, so that it becomes ``weight.grad`` as it is."""
    x, w = torch.randn(shape), leaf(5, 4, dtype=torch.float32)
    with Calls() as calls:
        hgemm.linear(x, w).sum().backward()
    assert w.grad is not None and w.grad.is_contiguous()
    assert not [name for name, _ in calls.seen if "clone" in name or "copy" in name]


def test_bias_alone_saves_nothing() -> None:
    x, w, b = torch.randn(3, 4), torch.randn(2, 4), torch.randn(2, requires_grad=True)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = hgemm.linear(x, w, b)
    out.sum().backward()
    assert not saved and torch.equal(b.grad, torch.full((2,), 3.0))


def test_shared_weight_gradient_is_one_product() -> None:
    x, w = leaf(5, 7, 3, 4).detach(), leaf(4, 2)
    out = hgemm.matmul(x, w)
    with Calls() as calls:
        out.backward(torch.randn_like(out))
    assert products(calls) == ["aten.mm.default"], "no batch of products that is then summed"


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("nan", [0, 1, 2])
def test_zero_factors_as_torch(nan: int, alpha: float, beta: float) -> None:
    def run(op: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        operands = [torch.randn(shape) for shape in ((3, 2), (3, 4), (4, 2))]
        operands[nan][0, 0] = float("nan")
        for t in operands:
            t.requires_grad_()
        out = op(*operands, alpha=alpha, beta=beta)
        return (out.detach(), *torch.autograd.grad(out.sum(), operands))

    torch.testing.assert_close(run(hgemm.addmm), run(torch.addmm), equal_nan=True)


def test_subclass_of_tensor() -> None:
    """A wrapper with ``__torch_dispatch__`` alone sees the ops, and its gradients are wrappers."""
    from torch.testing._internal.two_tensor import TwoTensor

    x, w = torch.randn(3, 4), torch.randn(2, 4)
    wrapped = TwoTensor(w, 2 * w).requires_grad_()
    out = hgemm.linear(x, wrapped, None, 1)
    assert isinstance(out, TwoTensor)
    torch.testing.assert_close((out.a, out.b), (F.linear(x, w).relu(), F.linear(x, 2 * w).relu()))
    out.sum().backward()
    assert isinstance(wrapped.grad, TwoTensor)
    torch.testing.assert_close(wrapped.grad.a, (F.linear(x, w) > 0).float().mT @ x)


def test_no_graph_where_none_is_wanted() -> None:
    a, b = leaf(3, 4), leaf(4, 2)
    with torch.no_grad():
        assert hgemm.mm(a, b).grad_fn is None
    with torch.inference_mode():
        assert hgemm.linear(a, b.mT, None, 2).is_inference()
    assert hgemm.mm(a.detach(), b.detach()).grad_fn is None
    assert hgemm.mm(a, b).grad_fn is not None


def test_results_may_be_modified_in_place() -> None:
    x, w, b = leaf(2, 3, 4), leaf(5, 4), leaf(5)
    out = hgemm.linear(x, w, b)
    out.mul_(2.0)
    out.sum().backward()
    torch.testing.assert_close(b.grad, torch.full((5,), 12.0, dtype=torch.float64))
    with torch.no_grad():
        hidden = hgemm.linear(x, w, b)
    hidden.add_(leaf(2, 3, 5)).sum().backward()


def test_modified_input_is_noticed() -> None:
    a, b = leaf(3, 4), leaf(4, 2)
    out = hgemm.mm(a, b)
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_written_out_is_noticed() -> None:
    a, b, w = leaf(3, 4), torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    result = hgemm.mm(a, w)
    hgemm.mm.out(torch.eye(4, dtype=torch.float64), b, out=w)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_second_result_of_linear_save_alone() -> None:
    x, w = leaf(3, 4), leaf(2, 4)
    _, pre = hgemm.linear_save(x, w, None, 2)
    grads = torch.autograd.grad(pre.square().sum(), (x, w))
    expected = torch.autograd.grad(F.linear(x, w).square().sum(), (x, w))
    torch.testing.assert_close(grads, expected)


def test_relu_gradient_of_nan_and_zero() -> None:
    x = torch.tensor([[float("nan")], [0.0], [2.0]], requires_grad=True)
    y = x.detach().clone().requires_grad_()
    weight = torch.ones(1, 1)
    hgemm.linear(x, weight, None, 1).sum().backward()
    F.linear(y, weight).relu().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, equal_nan=True)


def test_forward_mode_outside_functorch() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    da, db = torch.randn_like(a), torch.randn_like(b)
    with fwAD.dual_level(), torch.no_grad():
        out = hgemm.matmul(fwAD.make_dual(a, da), fwAD.make_dual(b, db))
        torch.testing.assert_close(fwAD.unpack_dual(out).tangent, da @ b + a @ db)
        plain = hgemm.matmul(a, b)
        assert fwAD.unpack_dual(plain).tangent is None


def test_forward_mode_refuses_out_as_torch() -> None:
    a, b, out = torch.randn(3, 4), torch.randn(4, 2), torch.empty(3, 2)
    for function in (lambda x: torch.mm(x, b, out=out), lambda x: hgemm.mm.out(x, b, out=out)):
        with fwAD.dual_level(), pytest.raises(NotImplementedError):
            function(fwAD.make_dual(a, a))


def test_reverse_over_forward() -> None:
    """d/da of the tangent of gelu(a @ w.T), with plain dual numbers."""
    a, w, da = leaf(3, 4), leaf(2, 4), torch.randn(3, 4, dtype=torch.float64)

    def tangent(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        with fwAD.dual_level():
            t = fwAD.unpack_dual(function(fwAD.make_dual(a, da))).tangent
            return torch.autograd.grad(t.sum(), (a, w))

    torch.testing.assert_close(
        tangent(lambda x: hgemm.linear(x, w, None, 2)), tangent(lambda x: F.gelu(F.linear(x, w)))
    )
