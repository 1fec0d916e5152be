"""use_custom_gemm in eager mode, on the CPU path: what is routed, what is left, and that results do not tell."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hgemm_ops import _context, _library, _native, _report, _variants, use_custom_gemm
from hgemm_ops._report import Report

Fn = Callable[..., Any]


class Operators(TorchDispatchMode):
    """Lists the calls of our operators that reach the dispatcher, whatever the report says: (name, options)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[str, Any]]] = []

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "hgemm":
            self.calls.append((str(func).removeprefix("hgemm.").removesuffix(".default"), kwargs))
        return func(*args, **kwargs)


@contextlib.contextmanager
def operators() -> Iterator[Operators]:
    with Operators() as mode:
        yield mode


def total(report: Report) -> int:
    return sum(row.calls for row in report.rows)


def tensors(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    shapes = {
        "a": (3, 4), "b": (4, 5), "c": (3, 5), "v": (4,), "u": (4,), "w": (5, 4), "bias": (5,), "row": (3,),
        "x": (2, 3, 4), "y": (2, 4, 5), "z": (2, 3, 5), "heads": (2, 6, 3, 4), "keys": (2, 6, 4, 7), "s": (),
    }  # fmt: skip
    return {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}


ROUTED: dict[str, tuple[str, Fn]] = {
    "torch.matmul": ("matmul", lambda t: torch.matmul(t["x"], t["b"])),
    "torch.matmul keywords": ("matmul", lambda t: torch.matmul(input=t["x"], other=t["b"])),
    "torch.linalg.matmul": ("matmul", lambda t: torch.linalg.matmul(t["heads"], t["keys"])),
    "Tensor.matmul": ("matmul", lambda t: t["a"].matmul(t["v"])),
    "@": ("matmul", lambda t: t["v"] @ t["y"]),
    "@=": ("matmul", lambda t: _imatmul(t["a"], t["b"])),
    "Tensor.__matmul__": ("matmul", lambda t: t["a"].__matmul__(t["b"])),
    "Tensor.__rmatmul__": ("matmul", lambda t: t["b"].__rmatmul__(t["a"])),
    "torch.mm": ("mm", lambda t: torch.mm(t["a"], t["b"])),
    "torch.mm keyword": ("mm", lambda t: torch.mm(t["a"], mat2=t["b"])),
    "Tensor.mm": ("mm", lambda t: t["a"].mm(t["b"])),
    "torch.bmm": ("bmm", lambda t: torch.bmm(t["x"], t["y"])),
    "Tensor.bmm": ("bmm", lambda t: t["x"].bmm(t["y"])),
    "torch.addmm": ("addmm", lambda t: torch.addmm(t["bias"], t["a"], t["b"])),
    "torch.addmm scaled": ("addmm", lambda t: torch.addmm(t["c"], t["a"], t["b"], beta=2, alpha=0.5)),
    "Tensor.addmm": ("addmm", lambda t: t["c"].addmm(t["a"], t["b"], beta=0)),
    "torch.baddbmm": ("baddbmm", lambda t: torch.baddbmm(t["z"], t["x"], t["y"])),
    "Tensor.baddbmm": ("baddbmm", lambda t: t["z"].baddbmm(t["x"], t["y"], alpha=3)),
    "torch.addbmm": ("addmm", lambda t: torch.addbmm(t["c"], t["x"], t["y"], beta=0.5, alpha=2)),
    "Tensor.addbmm": ("addmm", lambda t: t["c"].addbmm(t["x"], t["y"])),
    "torch.mv": ("matmul", lambda t: torch.mv(t["a"], t["v"])),
    "Tensor.mv": ("matmul", lambda t: t["a"].mv(t["v"])),
    "torch.addmv": ("addmm", lambda t: torch.addmv(t["row"], t["a"], t["v"], beta=2)),
    "torch.addmv scalar input": ("addmm", lambda t: t["s"].addmv(t["a"], t["v"], alpha=2)),
    "torch.dot": ("matmul", lambda t: torch.dot(t["u"], t["v"])),
    "Tensor.dot": ("matmul", lambda t: t["u"].dot(t["v"])),
    "torch.vdot": ("matmul", lambda t: torch.vdot(t["u"], t["v"])),
    "torch.inner vectors": ("matmul", lambda t: torch.inner(t["u"], t["v"])),
    "torch.inner": ("linear", lambda t: torch.inner(t["x"], t["w"])),
    "F.linear": ("linear", lambda t: F.linear(t["x"], t["w"], t["bias"])),
    "F.linear keywords": ("linear", lambda t: F.linear(t["a"], weight=t["w"], bias=None)),
    "F.linear 1-D weight": ("linear", lambda t: F.linear(t["x"], t["v"])),
}  # fmt: skip


def _imatmul(a: Tensor, b: Tensor) -> Tensor:
    a @= b
    return a


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("form", ROUTED)
def test_routed_forms(form: str, dtype: torch.dtype) -> None:
    op, fn = ROUTED[form]
    expected = fn(tensors(dtype=dtype))
    with operators() as seen, use_custom_gemm() as report:
        first = fn(tensors(dtype=dtype))
        again = fn(tensors(dtype=dtype))  # the same call sites: the hot path
    tolerance = {"atol": 0.1, "rtol": 0.02} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(first, expected, **tolerance)
    torch.testing.assert_close(again, expected, **tolerance)
    assert seen.names == [op, op]
    assert [(row.op, row.calls, row.dtype) for row in report.rows] == [(op, 2, str(dtype).removeprefix("torch."))]


@pytest.mark.parametrize("form", ROUTED)
def test_gradients_are_torchs_and_routed(form: str) -> None:
    def run() -> tuple[Tensor, dict[str, Tensor | None]]:
        t = {name: tensor.requires_grad_() for name, tensor in tensors(dtype=torch.float64).items()}
        y = ROUTED[form][1](t)
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
        return y, {name: tensor.grad for name, tensor in t.items() if tensor.is_leaf}

    expected, expected_grads = run()
    with operators() as seen, use_custom_gemm():
        y, grads = run()
    torch.testing.assert_close(y, expected)
    for name, grad in expected_grads.items():
        assert (grads[name] is None) == (grad is None), name
        if grad is not None:
            torch.testing.assert_close(grads[name], grad)
    assert len(seen.names) >= 3  # the product, and the gradients of both factors


@pytest.mark.parametrize(
    ("equation", "shape_a", "shape_b"),
    [
        ("ij,jk->ik", (3, 4), (4, 5)),
        ("ij,jk", (3, 4), (4, 5)),
        ("ij,kj->ki", (3, 4), (5, 4)),
        (" b i d , b j d -> b i j ", (2, 3, 4), (2, 5, 4)),
        ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
        ("bihd,bjhd->bhij", (2, 4, 3, 5), (2, 6, 3, 5)),
        ("abij,abjk->kbia", (2, 3, 4, 5), (2, 3, 5, 6)),
        ("i,i->", (4,), (4,)),
        ("i,ij->j", (4,), (4, 5)),
        ("xyij,ijz->zxy", (2, 3, 4, 5), (4, 5, 6)),
        ("Ba,aC", (3, 4), (4, 5)),
        ("ij,jk->ik", (0, 4), (4, 5)),
        ("ij,jk->ik", (3, 0), (0, 5)),
    ],
)
def test_einsum_that_is_a_product(equation: str, shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> None:
    a, b = torch.randn(shape_a, dtype=torch.float64), torch.randn(shape_b, dtype=torch.float64)
    expected = torch.einsum(equation, a, b)
    with operators() as seen, use_custom_gemm():
        result = torch.einsum(equation, a, b)
        as_list = torch.einsum(equation, [a, b])
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(as_list, expected)
    assert seen.names == ["matmul", "matmul"]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("i,j->ij", [(3,), (4,)]),  # nothing to reduce
        ("ij,ij->ij", [(3, 4), (3, 4)]),
        ("ii,ij->j", [(3, 3), (3, 4)]),  # diagonal
        ("ij,jk->i", [(3, 4), (4, 5)]),  # a label that one operand alone sums over
        ("...ij,jk->...ik", [(2, 3, 4), (4, 5)]),
        ("bij,bjk->bik", [(1, 3, 4), (2, 4, 5)]),  # a label of size 1 broadcasts
        ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
        ("ij->ji", [(3, 4)]),
    ],
)
def test_einsum_that_is_not(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [torch.randn(shape) for shape in shapes]
    expected = torch.einsum(equation, *operands)
    with operators() as seen, use_custom_gemm() as report:
        result = torch.einsum(equation, *operands)
    torch.testing.assert_close(result, expected)
    assert seen.names == []
    assert [(row.op, row.variant) for row in report.rows] == [("einsum", "torch")]
    assert report.rows[0].reason.startswith("einsum")


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b, out: torch.mm(a, b, out=out),
        lambda a, b, out: torch.matmul(a, b, out=out),
        lambda a, b, out: torch.addmm(torch.ones(5), a, b, beta=2, out=out),
        lambda a, b, out: torch.addbmm(torch.ones(3, 5), a[None], b[None], out=out),
    ],
)
def test_out(fn: Fn) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    expected = fn(a, b, torch.empty(3, 5))
    out = torch.full((3, 5), float("nan"))
    with operators() as seen, use_custom_gemm():
        result = fn(a, b, out)
    assert result is out
    torch.testing.assert_close(out, expected)
    assert [name.partition(".")[2] for name in seen.names] == ["out"]


def test_out_that_torch_would_resize_or_refuse() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with operators() as seen, use_custom_gemm() as report:
        resized = torch.mm(a, b, out=torch.empty(0))
        strided = torch.mm(a, b, out=torch.empty(5, 3).T)
        with pytest.raises(RuntimeError, match="automatic differentiation"):
            torch.mm(a.requires_grad_(), b, out=torch.empty(3, 5))
    torch.testing.assert_close(resized, torch.mm(a, b).detach())
    torch.testing.assert_close(strided, torch.mm(a, b).detach())
    assert seen.names == []
    assert sorted(row.reason for row in report.rows) == [
        "out= that is not contiguous",
        "out= to be resized or converted",
    ]


class Overriding(Tensor):
    """Answers every torch function with its name, as quantized weights take F.linear into their own hands."""

    @classmethod
    def __torch_function__(cls, func: Fn, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.linear, torch.mm):
            return func.__name__
        return super().__torch_function__(func, types, args, kwargs)


def _ones(rows: int, columns: int, dtype: str) -> Tensor:
    return torch.ones(rows, columns, dtype=getattr(torch, dtype))


def _overriding() -> Tensor:
    return torch.ones(3, 3).as_subclass(Overriding)


LEFT: dict[str, tuple[str, Fn]] = {
    "integers": ("dtype torch.int64", lambda: _ones(2, 3, "int64") @ _ones(3, 2, "int64")),
    "complex": ("dtype torch.complex64", lambda: _ones(2, 3, "cfloat") @ _ones(3, 2, "cfloat")),
    "sparse": ("layout torch.sparse_coo", lambda: torch.mm(torch.eye(3).to_sparse(), torch.ones(3, 2))),
    "sparse weight": ("layout torch.sparse_csr", lambda: F.linear(torch.ones(2, 3), torch.eye(3).to_sparse_csr())),
    "nested": (
        "nested tensor",
        lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]).matmul(
            torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(3, 2)])
        ).unbind(),
    ),
    "subclass": ("Overriding overrides torch functions", lambda: F.linear(torch.ones(2, 3), _overriding())),
    "in place": ("in place", lambda: torch.ones(2, 2).addmm_(torch.ones(2, 3), torch.ones(3, 2))),
    "deprecated form": ("deprecated signature", lambda: torch.addmm(2, torch.ones(2), *[torch.ones(2, 2)] * 2)),
    "convolution": ("convolution", lambda: F.conv1d(torch.ones(1, 2, 5), torch.ones(3, 2, 2))),
    "attention": ("fused attention", lambda: F.scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4)] * 3)),
    "multi_dot": ("composite of torch", lambda: torch.linalg.multi_dot([torch.ones(2, 2)] * 3)),
    "inner of matrices with 3-D": (
        "operands that torch rejects or that are not one matrix product",
        lambda: torch.inner(torch.ones(2, 3), torch.ones(2, 2, 3)),
    ),
    "alias of a keyword": ("arguments of another form", lambda: torch.matmul(torch.ones(2, 3), x2=torch.ones(3, 2))),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*(Sparse|nested|prototype|deprecated).*")
@pytest.mark.parametrize("form", LEFT)
def test_left_to_torch(form: str) -> None:
    reason, fn = LEFT[form]
    expected = fn()
    with operators() as seen, use_custom_gemm() as report:
        results = [fn() for _ in range(3)]
    for result in results:
        if isinstance(expected, str):
            assert result == expected
        else:
            torch.testing.assert_close(result, expected)
    assert seen.names == []
    assert [(row.reason, row.variant, row.calls) for row in report.rows] == [(reason, "torch", 3)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: torch.mm(torch.ones(2, 3, 4), torch.ones(4, 3)),
        lambda: torch.bmm(torch.ones(2, 3), torch.ones(3, 2)),
        lambda: torch.ones(2, 3) @ torch.ones(4, 2),
        lambda: torch.ones(()) @ torch.ones(4, 2),
        lambda: torch.ones(2, 3) @ torch.ones(3, 2, dtype=torch.float64),
        lambda: torch.ones(2, 3) @ torch.ones(3, 2, dtype=torch.int32),
        lambda: torch.ones(2, 3) @ 2,
        lambda: torch.ones(2, 3).__rmatmul__("text"),
        lambda: torch.matmul(torch.ones(2, 3), None),
        lambda: torch.matmul(torch.ones(2, 3)),
        lambda: torch.addmm(torch.ones(7), torch.ones(2, 3), torch.ones(3, 2)),
        lambda: torch.baddbmm(torch.ones(2, 2, 2), torch.ones(2, 2, 3), torch.ones(3, 3, 2)),
        lambda: torch.addbmm(torch.ones(2, 2), torch.ones(2, 2, 3), torch.ones(3, 3, 2)),
        lambda: torch.mv(torch.ones(2, 3), torch.ones(2)),
        lambda: torch.mv(torch.ones(2, 3), torch.ones(3, 1)),
        lambda: torch.addmv(torch.ones(2, 2), torch.ones(2, 3), torch.ones(3)),
        lambda: torch.dot(torch.ones(3), torch.ones(4)),
        lambda: torch.dot(torch.ones(3, 1), torch.ones(3)),
        lambda: torch.einsum("ij,jk->ik", torch.ones(2, 3), torch.ones(4, 2)),
        lambda: torch.einsum("ij,jk->ik", torch.ones(2, 3), torch.ones(3)),
        lambda: torch.einsum("ij,jk->il", torch.ones(2, 3), torch.ones(3, 2)),
        lambda: F.linear(torch.ones(2, 3), torch.ones(2, 4)),
        lambda: F.linear(torch.ones(2, 3), torch.ones(2, 3), torch.ones(4)),
        lambda: F.linear(torch.ones(2, 3), torch.ones(2, 3), 1.0),
    ],
)
def test_errors_are_of_torchs_type(fn: Fn) -> None:
    outcome: Any
    try:
        outcome = fn()
    except Exception as error:
        outcome = type(error)
    with use_custom_gemm() as report:
        if isinstance(outcome, type):
            with pytest.raises(outcome) as raised:
                fn()
            assert type(raised.value) is outcome
        else:
            assert fn() is outcome  # NotImplemented
    assert all(row.variant == "torch" for row in report.rows)


def test_nesting_counts_in_every_report() -> None:
    a = torch.randn(3, 3)
    outer = use_custom_gemm()
    with operators() as seen:
        with outer as outer_report:
            torch.mm(a, a)
            with use_custom_gemm() as inner_report:
                torch.mm(a, a)
                torch.ops.hgemm.mm(a, a)
                assert (total(outer_report), total(inner_report)) == (3, 2)
                with outer:  # again the same: counted once
                    torch.mm(a, a)
                assert (total(outer_report), total(inner_report)) == (4, 3)
            torch.mm(a, a)
        torch.mm(a, a)
    assert (total(outer_report), total(inner_report)) == (5, 3)
    assert seen.names == ["mm"] * 5


def test_nested_contexts_see_one_operator_call_each() -> None:
    x, layer = torch.randn(2, 3), nn.Linear(3, 4)
    with use_custom_gemm() as outer, use_custom_gemm() as middle, use_custom_gemm() as inner, operators() as seen:
        for _ in range(3):
            layer(x)
    assert [total(report) for report in (outer, middle, inner)] == [3, 3, 3]
    assert seen.names == ["linear"] * 3


def test_exceptions_leave_the_context() -> None:
    context = use_custom_gemm()
    a = torch.ones(2, 2)
    with pytest.raises(ZeroDivisionError), context:
        torch.mm(a, a)
        raise ZeroDivisionError
    with operators() as seen:
        torch.mm(a, a)
    assert seen.names == []
    assert total(context.report) == 1


def test_an_error_inside_backward_leaves_the_context_as_it_was() -> None:
    a = torch.ones(2, 2, requires_grad=True)
    with operators() as seen, use_custom_gemm():
        with pytest.raises(RuntimeError, match="scalar"):
            torch.mm(a, a).backward()
        torch.mm(a, a)
    assert seen.names == ["mm", "mm"]


def test_one_object_counts_on() -> None:
    context, a = use_custom_gemm(), torch.ones(2, 2)
    for _ in range(2):
        with context as report:
            torch.mm(a, a)
    assert report is context.report
    assert total(report) == 2


def test_decorator() -> None:
    context = use_custom_gemm()

    @context
    def power(a: Tensor, n: int) -> Tensor:
        """Recursive, so that the context is entered while it is active."""
        return a if n == 1 else torch.mm(a, power(a, n - 1))

    a = torch.randn(3, 3)
    with operators() as seen:
        result = power(a, 4)
        torch.mm(a, a)
    torch.testing.assert_close(result, torch.linalg.matrix_power(a, 4))
    assert seen.names == ["mm"] * 3
    assert total(context.report) == 3
    assert power.__name__ == "power"


def test_another_thread_is_not_routed() -> None:
    a = torch.ones(2, 2)
    names: list[list[str]] = []

    def work() -> None:
        with operators() as seen:
            torch.mm(a, a)
        names.append(seen.names)

    with use_custom_gemm() as report:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert names == [[]]
    assert total(report) == 0


def test_one_object_in_four_threads() -> None:
    a, interval = torch.ones(2, 2), sys.getswitchinterval()

    def counted() -> list[tuple[str, int]]:
        context, start = use_custom_gemm(), threading.Barrier(4)

        def work() -> None:
            start.wait()
            for _ in range(50):
                with context:
                    torch.mm(a, a)
                    a @ a

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted((row.op, row.calls) for row in context.report.rows)

    sys.setswitchinterval(1e-6)  # threads meet in the first call of each
    try:
        assert [counted() for _ in range(30)] == [[("matmul", 200), ("mm", 200)]] * 30
    finally:
        sys.setswitchinterval(interval)


def test_variant_reaches_every_operator() -> None:
    a = torch.randn(3, 3, requires_grad=True)
    layer = nn.Linear(3, 3)
    with operators() as seen, use_custom_gemm(variant="torch"):
        for _ in range(2):
            torch.mm(a, layer(a))
            torch.einsum("ij,jk", a, a)
            torch.ops.hgemm.matmul(a, a)
        torch.ops.hgemm.mm(a, a, variant=-2)
        torch.mm(a, a).sum().backward()
    assert len(seen.calls) == 12
    assert all(options["variant"] == -2 for _, options in seen.calls)


def test_variant_of_an_outer_context_holds_where_the_inner_has_none() -> None:
    a = torch.randn(3, 3)
    with operators() as seen, use_custom_gemm(variant="torch"), use_custom_gemm():
        torch.mm(a, a)
        torch.mm(a, a)
    assert [options.get("variant") for _, options in seen.calls] == [-2, -2]


def test_unknown_variant() -> None:
    with pytest.raises(ValueError, match="no_such_kernel"):
        use_custom_gemm(variant="no_such_kernel")


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant: bool) -> None:
    mlp = Mlp()

    def gradients() -> list[Tensor]:
        mlp.zero_grad()
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        checkpoint(mlp, x, use_reentrant=use_reentrant).sum().backward()
        return [x.grad, *(p.grad.clone() for p in mlp.parameters())]

    expected = gradients()
    with operators() as seen, use_custom_gemm() as report:
        result = gradients()
    torch.testing.assert_close(result, expected)
    assert seen.names.count("linear") == 4  # forward and recomputed
    assert {row.site: row.calls for row in report.rows if row.op == "linear"} == {"up": 2, "down": 2}


@pytest.mark.parametrize("inside", [True, False])
def test_gradients_of_routed_calls_are_routed(inside: bool) -> None:
    mlp, x = Mlp(), torch.randn(3, 4)
    with operators() as seen, use_custom_gemm() as report:
        loss = mlp(x).sum()
        if inside:
            torch.autograd.grad(loss, mlp.parameters())
    if not inside:
        with operators() as seen:
            torch.autograd.grad(loss, mlp.parameters())
    gradients = [name for name in seen.names if name != "linear"]
    assert sorted(gradients) == ["matmul", "mm", "mm"]
    assert sum("(backward)" in row.site for row in report.rows) == (3 if inside else 0)


@pytest.mark.parametrize("training", [True, False])
def test_attention_and_encoder_layers(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    x = torch.randn(2, 3, 8)
    with torch.set_grad_enabled(training):
        expected = layer(x)
        with operators() as seen, use_custom_gemm() as report:
            result = layer(x)
    torch.testing.assert_close(result, expected)
    assert seen.names.count("linear") == 4
    assert {"self_attn", "self_attn.out_proj", "linear1", "linear2"} <= {row.site for row in report.rows}


def test_module_that_needs_weights_of_attention() -> None:
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    expected = attention(x, x, x)
    with operators() as seen, use_custom_gemm():
        result = attention(x, x, x)
    torch.testing.assert_close(result, expected)
    assert sorted(seen.names) == ["bmm", "bmm", "linear", "linear"]


def test_autocast() -> None:
    layer, x = nn.Linear(4, 5), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x) @ x.T[:, :2].repeat(2, 1)[:5].float()
        with use_custom_gemm() as report:
            result = layer(x) @ x.T[:, :2].repeat(2, 1)[:5].float()
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected)
    assert [(row.op, row.dtype) for row in report.rows] == [("linear", "bfloat16"), ("matmul", "bfloat16")]


def test_what_is_routed_on_a_gpu() -> None:
    half, single = torch.float16, torch.float32

    def routed(dtype: torch.dtype) -> list[str]:
        a, w = torch.empty(3, 4, device="cuda", dtype=dtype), torch.empty(5, 4, device="cuda", dtype=dtype)
        with operators() as seen:
            for _ in range(2):
                F.linear(a, w)
            torch.mm(a, w.T)
        return seen.names

    with FakeTensorMode(), use_custom_gemm():
        assert routed(half) == routed(torch.bfloat16) == ["linear", "linear", "mm"]
        assert routed(single) == routed(torch.float64) == []
        torch.set_autocast_enabled("cuda", True)
        try:
            assert routed(single) == ["linear", "linear", "mm"]
        finally:
            torch.set_autocast_enabled("cuda", False)
        assert routed(single) == []


def test_autocast_that_is_switched_at_one_call_site() -> None:
    layer, x = nn.Linear(4, 5), torch.randn(3, 4)
    with use_custom_gemm() as report:
        for enabled in (False, True, False):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                assert layer(x).dtype == (torch.bfloat16 if enabled else torch.float32)
    assert total(report) == 3


def test_meta_tensors() -> None:
    with operators() as seen, use_custom_gemm():
        assert F.linear(torch.empty(2, 3, device="meta"), torch.empty(4, 3, device="meta")).shape == (2, 4)
    assert seen.names == ["linear"]


def test_functorch() -> None:
    a, b, batch = torch.randn(3, 4), torch.randn(4, 5), torch.randn(6, 3, 4)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).sin().sum()

    def everything() -> list[Tensor]:
        return [
            torch.func.vmap(torch.matmul, (0, None))(batch, b),
            torch.func.grad(loss)(a, b),
            torch.func.vmap(torch.func.grad(loss), (0, None))(batch, b),
            torch.func.jvp(lambda a: loss(a, b), (a,), (batch[0],))[1],
            torch.func.jacrev(lambda a: a @ b)(a),
        ]

    expected = everything()
    with operators() as seen, use_custom_gemm():
        result = everything()
    torch.testing.assert_close(result, expected)
    assert "matmul" in seen.names


def test_make_fx_traces_the_operators_and_counts_nothing() -> None:
    with use_custom_gemm() as report:
        for tracing_mode in ("fake", "symbolic"):
            graph = make_fx(lambda x, w: F.linear(x @ w, w), tracing_mode=tracing_mode)(
                torch.randn(3, 4), torch.randn(4, 4)
            )
            targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
            assert targets == ["hgemm.matmul.default", "hgemm.linear.default"]
    assert report.rows == []


def test_other_modes_beside_it() -> None:
    a = torch.randn(3, 3)
    with operators() as seen, torch.device("cpu"), use_custom_gemm() as report, torch.device("cpu"):
        torch.mm(a, torch.ones(3, 3))
    assert seen.names == ["mm"]
    assert total(report) == 1


def test_functional_call_with_other_parameters() -> None:
    mlp, x = Mlp(), torch.randn(3, 4)
    parameters = {name: torch.randn_like(p) for name, p in mlp.named_parameters()}
    expected = torch.func.functional_call(mlp, parameters, x)
    with operators() as seen, use_custom_gemm() as report:
        torch.testing.assert_close(torch.func.functional_call(mlp, parameters, x), expected)
    assert seen.names == ["linear", "linear"]
    assert total(report) == 2


def test_no_tensor_outlives_its_owner() -> None:
    context = use_custom_gemm()
    with context:
        layer, x = nn.Linear(3, 4), torch.randn(2, 3)
        layer(x)
        x @ layer.weight.T
    dead = [weakref.ref(layer.weight), weakref.ref(x)]
    del layer, x
    gc.collect()
    assert [ref() for ref in dead] == [None, None]
    assert total(context.report) == 2


def test_a_new_weight_at_an_old_address_is_another_site() -> None:
    class Left(nn.Linear): ...

    class Right(nn.Linear): ...

    x = torch.randn(2, 3)
    with use_custom_gemm() as report:
        for _ in range(20):  # each freed before the next is made: addresses come back
            Left(3, 4)(x)
            Right(3, 4)(x)
    assert {row.site: row.calls for row in report.rows} == {"Left": 20, "Right": 20}


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> list[_context.Call]:
    """Makes the dispatcher give everything to torch; lists what it was asked."""
    asked: list[_context.Call] = []

    def torch_serves(call: _context.Call) -> str:
        asked.append(call)
        return "table: torch is faster"

    monkeypatch.setattr(_context, "torch_serves", torch_serves)
    return asked


def reasons(report: Report) -> dict[str, int]:
    return {row.reason.split(":")[0]: row.calls for row in report.rows}


def test_torch_runs_what_is_torchs(torchs: list[_context.Call]) -> None:
    a, w = torch.randn(3, 3), nn.Parameter(torch.randn(3, 3), requires_grad=False)
    with use_custom_gemm() as report:
        for _ in range(4):
            results = (torch.mm(a, a), F.linear(a, w), torch.addmm(a, a, w), F.linear(a, w, a[0]))
    for result, expected in zip(results, (a @ a, a @ w.T, a + a @ w, a @ w.T + a[0]), strict=True):
        torch.testing.assert_close(result, expected)
    assert len(torchs) == 3  # asked once of each; with and without a bias, one weight is one call
    assert total(report) == 16
    assert reasons(report) == {"table": 3, "kernels run on CUDA devices, not on cpu": 1}
    assert {row.calls for row in report.rows if row.op == "linear"} == {1, 7}


@pytest.mark.parametrize("wants", ["a", "w", "bias"])
def test_a_gradient_is_routed_whoever_serves_the_forward(torchs: list[_context.Call], wants: str) -> None:
    t = {"a": torch.randn(2, 3), "w": torch.randn(4, 3), "bias": torch.randn(4)}
    t[wants].requires_grad_()
    with use_custom_gemm() as report:
        for _ in range(3):
            assert "Linear" in F.linear(*t.values()).grad_fn.name()  # type: ignore[union-attr]
        with torch.no_grad():
            F.linear(*t.values())
    assert set(reasons(report)) == {"kernels run on CUDA devices, not on cpu"}  # another line, seen once


def test_torch_records_what_is_torchs_with_its_gradient(
    torchs: list[_context.Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_report, "torch_serves_gradient", lambda call: True)
    x, w = torch.randn(2, 3), nn.Parameter(torch.randn(4, 3))
    with use_custom_gemm() as report:
        nodes = [F.linear(x, w).grad_fn.name() for _ in range(3)]  # type: ignore[union-attr]
        F.linear(x, w).sum().backward()
    assert nodes[1:] == [F.linear(x, w).grad_fn.name()] * 2 != nodes[:2]  # type: ignore[union-attr]
    torch.testing.assert_close(w.grad, x.sum(0).expand(4, 3))
    assert reasons(report) == {"table": 3, "kernels run on CUDA devices, not on cpu": 1}
    assert [row.calls for row in report.rows if "its gradient, too" in row.reason] == [3]
    with torch.no_grad(), use_custom_gemm() as report:
        for _ in range(3):
            F.linear(x, w)
    assert not any("its gradient, too" in row.reason for row in report.rows)


def test_torch_records_what_the_host_limits_but_not_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_report, "host_is_the_limit", lambda call: "the host is the limit: small")
    capturing = [False]
    monkeypatch.setattr(_context, "_is_capturing", lambda: capturing[0])
    x, w = torch.randn(2, 3), nn.Parameter(torch.randn(4, 3))
    nodes = []
    with use_custom_gemm() as report:
        for capturing[0] in (False, False, True, False):
            nodes.append(F.linear(x, w).grad_fn.name())  # type: ignore[union-attr]
        with operators() as seen:
            F.linear(x, w)
        with torch.no_grad():
            for _ in range(2):
                F.linear(x, w)
    torchs_node = F.linear(x, w).grad_fn.name()  # type: ignore[union-attr]
    assert [node == torchs_node for node in nodes] == [False, True, False, True]
    assert seen.names == ["linear"]
    assert reasons(report) == {"the host is the limit": 2, "kernels run on CUDA devices, not on cpu": 5}


def test_only_small_products_wait_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    if not _library.load():
        pytest.skip("asks the dispatcher")
    monkeypatch.setattr(_report, "_device_facts", lambda ordinal: _native.preset_facts(90))

    def limit(m: int, n: int, k: int, **changes: Any) -> str:
        call = _report.Call(
            site="",
            op="linear",
            dtype=torch.float16,
            device=torch.device("cuda", 0),
            a=_report.Operand((m, k), (k, 1), 16),
            b=_report.Operand((n, k), (k, 1), 16),
            kind="linear",
        )
        return _report.host_is_the_limit(replace(call, **changes))

    assert limit(1024, 768, 768).startswith("the host is the limit: with its gradient ")
    assert limit(4096, 3072, 768)
    assert limit(8192, 4096, 4096) == limit(2048, 28672, 4096) == ""
    assert limit(1024, 768, 768, device=torch.device("cpu")) == ""
    assert limit(1024, 768, 768, activation=1) == ""  # no operator of torch's
    forced = _variants.resolve("sm80_mma_128x128x64_w64x64_s3")
    assert limit(1024, 768, 768, variant=forced) == ""


@pytest.mark.parametrize(
    ("func", "shapes"),
    [
        (F.linear, [(5, 3), (4, 3)]),
        (F.linear, [(2, 5, 3), (4, 3), (4,)]),
        (torch.matmul, [(2, 5, 3), (3, 4)]),
        (torch.matmul, [(2, 5, 3), (2, 3, 4)]),
        (torch.mm, [(5, 3), (3, 4)]),
        (torch.bmm, [(2, 5, 3), (2, 3, 4)]),
        (torch.addmm, [(5, 4), (5, 3), (3, 4)]),
    ],
)
def test_products_of_a_gradient_are_known_before(
    torchs: list[_context.Call], func: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]]
) -> None:
    operands = [torch.randn(shape, requires_grad=True) for shape in shapes]
    with use_custom_gemm() as report:
        for _ in range(2):
            out = func(*operands)
        torch.autograd.grad(out, operands, torch.ones(out.shape))
    seen = [row for row in report.rows if "(backward)" in row.site]
    found = {(row.batch, row.m, row.n, row.k, row.layout) for row in seen}
    expected = {_report._resolve(call)[0] for call in _report._gradient_products(torchs[0])}
    assert len(seen) == 2
    assert found == {(row.batch, row.m, row.n, row.k, row.layout) for row in expected}


def test_a_gradient_of_vectors_or_broadcast_factors_is_not_torchs_unseen(torchs: list[_context.Call]) -> None:
    for shapes in (((3,), (3, 4)), ((5, 3), (3,)), ((2, 5, 3), (1, 3, 4)), ((5, 3), (2, 3, 4))):
        a, b = (torch.randn(shape) for shape in shapes)
        with use_custom_gemm():
            for _ in range(2):
                torch.matmul(a, b)
        assert not _report._gradient_products(torchs[-1])
        assert not _report.torch_serves_gradient(torchs[-1])
    assert len(torchs) == 4


def test_where_operators_are_looked_for_they_are_found(torchs: list[_context.Call]) -> None:
    def thrice() -> None:
        for _ in range(3):
            torch.mm(a, a)

    a = torch.randn(3, 3)
    with use_custom_gemm() as outer:
        thrice()
        with operators() as seen:
            thrice()
        assert seen.names == ["mm"] * 3
        with use_custom_gemm() as inner:
            thrice()
        thrice()
    assert (total(outer), total(inner)) == (12, 3)
    assert set(reasons(inner)) == {"kernels run on CUDA devices, not on cpu"}


def test_a_new_table_asks_again(torchs: list[_context.Call], monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.randn(3, 3)
    with use_custom_gemm() as report:
        for attempt in range(6):
            torch.mm(a, a)
            if attempt == 2:
                _context._forget_decisions()
                monkeypatch.setattr(_context, "torch_serves", lambda call: "")
    assert len(torchs) == 1
    assert reasons(report) == {"table": 2, "kernels run on CUDA devices, not on cpu": 4}


def test_disabled_by_the_environment() -> None:
    code = """
import torch
from hgemm_ops import use_custom_gemm
from torch.overrides import _get_current_function_mode_stack as stack
a = torch.ones(2, 2)
with use_custom_gemm() as report:
    torch.mm(a, a)
    assert stack() == [], stack()
    traced = torch.compile(lambda x: x @ x, backend="eager", fullgraph=True)(a)
assert report.rows == []
assert "HGEMM_OPS_DISABLE" in str(report), report
"""
    environment = {**os.environ, "HGEMM_OPS_DISABLE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
