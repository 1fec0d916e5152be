"""torch.func transforms of the ops, alone and nested, against the same transform of torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import Names
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import hgemm_ops  # noqa: F401  (registers torch.ops.hgemm)

hgemm = torch.ops.hgemm

Pair = tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]]
# name -> (our function, torch's, shapes)
FUNCTIONS: dict[str, Pair] = {
    "mm": (hgemm.mm, torch.mm, ((3, 4), (4, 2))),
    "bmm": (hgemm.bmm, torch.bmm, ((2, 3, 4), (2, 4, 2))),
    "matmul vectors": (hgemm.matmul, torch.matmul, ((4,), (4,))),
    "matmul vector matrix": (hgemm.matmul, torch.matmul, ((4,), (4, 2))),
    "matmul batch vector": (hgemm.matmul, torch.matmul, ((2, 3, 4), (4,))),
    "matmul vector batch": (hgemm.matmul, torch.matmul, ((4,), (2, 4, 3))),
    "matmul shared": (hgemm.matmul, torch.matmul, ((2, 3, 4), (4, 2))),
    "matmul broadcast": (hgemm.matmul, torch.matmul, ((3, 4), (2, 2, 4, 2))),
    "gram": (lambda x: hgemm.mm(x, x.mT), lambda x: x @ x.mT, ((3, 4),)),
    "batched gram": (lambda x: hgemm.matmul(x.mT, x), lambda x: x.mT @ x, ((2, 3, 2),)),
    "self attention": (
        lambda x, w: hgemm.matmul(hgemm.linear(x, w, None, 4), x.mT),
        lambda x, w: F.silu(F.linear(x, w)) @ x.mT,
        ((3, 4), (4, 4)),
    ),
    "addmm": (
        lambda c, a, b: hgemm.addmm(c, a, b, alpha=0.5, beta=2.0),
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.5, beta=2.0),
        ((2,), (3, 4), (4, 2)),
    ),
    "addmm of one": (
        lambda x: hgemm.addmm(x, x, x, alpha=0.5),
        lambda x: torch.addmm(x, x, x, alpha=0.5),
        ((3, 3),),
    ),
    "baddbmm": (hgemm.baddbmm, torch.baddbmm, ((1, 3, 1), (2, 3, 4), (2, 4, 2))),
    "linear": (hgemm.linear, F.linear, ((2, 3, 4), (2, 4), (2,))),
    "linear vector": (hgemm.linear, F.linear, ((4,), (2, 4), (2,))),
    "linear vector weight": (hgemm.linear, F.linear, ((3, 4), (4,))),
    "linear relu": (lambda x, w: hgemm.linear(x, w, None, 1), lambda x, w: F.linear(x, w).relu(), ((3, 4), (2, 4))),
    "linear gelu": (
        lambda x, w, b: hgemm.linear(x, w, b, 2),
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        ((3, 4), (2, 4), (2,)),
    ),
    "linear silu": (lambda x, w: hgemm.linear(x, w, None, 4), lambda x, w: F.silu(F.linear(x, w)), ((4,), (2, 4))),
    "linear_save": (
        lambda x, w, b: sum(hgemm.linear_save(x, w, b, 3)),
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh") + F.linear(x, w, b),
        ((3, 4), (2, 4), (2,)),
    ),
    "linear_gated": (
        lambda x, w: hgemm.linear_gated(x, w, 2),
        lambda x, w: F.gelu(F.linear(x, w[:2])) * F.linear(x, w[2:]),
        ((3, 4), (4, 4)),
    ),
}


def inputs(shapes: tuple[tuple[int, ...], ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)


def scalar(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: function(*args).sin().sum()


TRANSFORMS: dict[str, Callable[[Callable[..., Tensor], int], Callable[..., Any]]] = {
    "grad": lambda f, n: grad(scalar(f), tuple(range(n))),
    "jacrev": lambda f, n: jacrev(f, tuple(range(n))),
    "jacfwd": lambda f, n: jacfwd(f, tuple(range(n))),
    "hessian": lambda f, n: hessian(scalar(f), tuple(range(n))),
    "jacrev(jacrev)": lambda f, n: jacrev(jacrev(scalar(f))),
    "jacrev(jacfwd)": lambda f, n: jacrev(jacfwd(scalar(f))),
    "jacfwd(jacfwd)": lambda f, n: jacfwd(jacfwd(scalar(f))),
    "grad(grad)": lambda f, n: grad(lambda *args: grad(scalar(f))(*args).sin().sum()),
    "vjp": lambda f, n: lambda *args: vjp(f, *args)[1](f(*args).cos()),
    "jvp": lambda f, n: lambda *args: jvp(f, args, tuple(a.cos() for a in args)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transform(name: str, transform: str) -> None:
    ours, theirs, shapes = FUNCTIONS[name]
    make, args = TRANSFORMS[transform], inputs(shapes)
    torch.testing.assert_close(make(ours, len(args))(*args), make(theirs, len(args))(*args))


def batchings(count: int) -> list[tuple[int | None, ...]]:
    """Every choice of which of ``count`` arguments are batched; those that are, at the front or the back."""
    choices: list[tuple[int | None, ...]] = []
    for mask in range(1, 2**count):
        for dim in (0, -1):
            choices.append(tuple(dim if mask >> i & 1 else None for i in range(count)))
    return choices


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap(name: str) -> None:
    ours, theirs, shapes = FUNCTIONS[name]
    for in_dims in batchings(len(shapes)):
        args = tuple(
            t if dim is None else torch.stack([t, t.sin(), t.cos()], dim=dim)
            for t, dim in zip(inputs(shapes), in_dims, strict=True)
        )
        torch.testing.assert_close(vmap(ours, in_dims)(*args), vmap(theirs, in_dims)(*args))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_of_grad_and_grad_of_vmap(name: str) -> None:
    ours, theirs, shapes = FUNCTIONS[name]
    args = tuple(torch.stack([t, t.cos()]) for t in inputs(shapes))
    everything = tuple(range(len(args)))

    def per_sample(f: Callable[..., Tensor]) -> Any:
        return vmap(grad(scalar(f), everything))(*args)

    def through(f: Callable[..., Tensor]) -> Any:
        return grad(lambda *batched: vmap(f)(*batched).sin().sum(), everything)(*args)

    torch.testing.assert_close(per_sample(ours), per_sample(theirs))
    torch.testing.assert_close(through(ours), through(theirs))


def test_nested_vmap() -> None:
    a, b = torch.randn(5, 6, 3, 4), torch.randn(6, 4, 2)
    out = vmap(vmap(hgemm.mm), in_dims=(0, None))(a, b)
    torch.testing.assert_close(out, a @ b)


def test_batched_weights_are_batched_products() -> None:
    """Per-sample gradients of our ops are what they are of torch's: no loop over samples."""
    x, w = torch.randn(5, 3, 4), torch.randn(2, 4)
    with Names() as names:
        vmap(grad(lambda w, x: hgemm.linear(x, w, None, 2).sum()), (None, 0))(w, x)
    assert [name for name in names.seen if "mm" in name] == ["aten.mm.default", "aten.bmm.default"]


def test_float32_output_under_vmap() -> None:
    a, b = torch.randn(3, 2, 4).bfloat16(), torch.randn(4, 5).bfloat16()
    out = vmap(lambda a: hgemm.matmul(a, b, out_dtype=torch.float32))(a)
    torch.testing.assert_close(out, a.float() @ b.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert vmap(lambda a: hgemm.matmul(a, b, out_dtype=torch.float32))(a).dtype == torch.float32


def test_per_sample_gradients_of_a_module() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return hgemm.linear(hgemm.linear(x, self.up.weight, self.up.bias, 3), self.down.weight, self.down.bias)

    model, x = Model(), torch.randn(6, 4)
    params = {k: v.detach() for k, v in model.named_parameters()}
    got = vmap(grad(lambda p, sample: functional_call(model, p, (sample,)).sum()), (None, 0))(params, x)
    for i, sample in enumerate(x):
        model.zero_grad()
        model(sample).sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(got[name][i], parameter.grad)


def test_no_grad_inside_and_outside_of_grad() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 2)

    def detached(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = hgemm.mm(x, b).sum()
        return (scale * hgemm.mm(x, b)).sum()

    expected = (a @ b).sum() * b.sum(1).expand_as(a)
    torch.testing.assert_close(grad(detached)(a), expected)
    with torch.no_grad():
        torch.testing.assert_close(grad(detached)(a), expected)


def test_outer_tape_records_through_grad() -> None:
    """Plain autograd around functorch: the gradient of a functorch gradient."""
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2)
    norm = grad(lambda x: hgemm.mm(x, b).sin().sum())(a).square().sum()
    expected = grad(lambda x: torch.mm(x, b).sin().sum())(a).square().sum()
    torch.testing.assert_close(torch.autograd.grad(norm, a), torch.autograd.grad(expected, a))
