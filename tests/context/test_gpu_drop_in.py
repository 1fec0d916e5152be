"""Nobody can tell whether use_custom_gemm() is active but by the clock: results, errors, subclasses, modes, tools."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, ON_GPU, Names, assert_as_good, calls, expect_calls
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hgemm_ops import use_custom_gemm

pytestmark = pytest.mark.gpu

HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
NAN = float("nan")


class Inputs:
    """Draws tensors: the same values from every object, rounded to ``dtype`` and given as ``wide`` if that is set."""

    def __init__(self, dtype: torch.dtype, wide: torch.dtype | None = None) -> None:
        self.dtype, self.wide = dtype, wide or dtype
        self._generator = torch.Generator().manual_seed(0)
        #: For products whose result is asked for in float32, and tensors of its dtype.
        self.out = {} if wide else {"out_dtype": torch.float32}
        self.out_dtype = wide or torch.float32

    def __call__(self, *shape: int) -> Tensor:
        values = torch.rand(shape, generator=self._generator).mul_(2).sub_(1)
        return values.to(self.dtype).to(DEVICE, self.wide)

    def odd(self, *shape: int) -> Tensor:
        """Without a unit stride, off every alignment, inside a larger storage."""
        spread = [*shape[:-2], *(3 * size + 2 for size in shape[-2:])]
        return self(*spread)[(..., *(slice(1, 1 + 3 * size, 3) for size in shape[-2:]))]

    def sliced(self, *shape: int) -> Tensor:
        return self(*shape[:-1], shape[-1] + 5)[..., 3:-2]

    def column_major(self, *shape: int) -> Tensor:
        return self(*shape[:-2], shape[-1], shape[-2]).mT

    def expanded(self, *shape: int) -> Tensor:
        """Every row is the same memory."""
        return self(*shape[:-2], 1, shape[-1]).expand(shape)


Form = Callable[[Inputs], Any]


def results(form: Form, inputs: Inputs) -> list[Tensor]:
    return [leaf.detach() for leaf in tree_leaves(form(inputs)) if isinstance(leaf, Tensor)]


def outcome(fn: Callable[[], Any]) -> Any:
    """What it gives; the type and the message of what it raises."""
    try:
        return fn()
    except Exception as error:
        return type(error), str(error)


def check(form: Form, dtype: torch.dtype = torch.float16) -> None:
    """In the context ``form`` gives what it gives outside, as exactly, in tensors of the same kind."""
    __tracebackhide__ = True
    theirs = outcome(lambda: results(form, Inputs(dtype)))
    with use_custom_gemm():
        ours = outcome(lambda: results(form, Inputs(dtype)))
    if isinstance(theirs, tuple) or isinstance(ours, tuple):
        assert ours == theirs
        return
    exact = results(form, Inputs(dtype, torch.float64))
    for got, other, ref in zip(ours, theirs, exact, strict=True):
        assert got.stride() == other.stride() and got.device == other.device
        assert_as_good(got, other, ref)


def assert_same_outcome(fn: Callable[[], Any]) -> None:
    """Bit by bit."""
    __tracebackhide__ = True
    expected = outcome(fn)
    with use_custom_gemm():
        got = outcome(fn)
    if isinstance(expected, tuple) and isinstance(expected[0], type):
        assert got == expected
    else:
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


# Products in all their forms

M, N, K = 72, 96, 136

FORMS: dict[str, Form] = {
    "mm": lambda t: torch.mm(t(M, K), t(K, N)),
    "matmul": lambda t: t(2, 3, M, K) @ t(3, K, N),
    "matmul of a vector": lambda t: t(3, M, K) @ t(K),
    "bmm": lambda t: torch.bmm(t(3, M, K), t(3, K, N)),
    "addmm": lambda t: torch.addmm(t(M, N), t(M, K), t(K, N), beta=0.5, alpha=-2),
    "addmm of a row": lambda t: torch.addmm(t(N), t(M, K), t(K, N)),
    "addmm of a column": lambda t: torch.addmm(t(M, 1), t(M, K), t(K, N), beta=2),
    "addmm of a number": lambda t: torch.addmm(t(1)[0], t(M, K), t(K, N)),
    "baddbmm": lambda t: torch.baddbmm(t(3, M, N), t(3, M, K), t(3, K, N), beta=2, alpha=0.5),
    "baddbmm of a row": lambda t: torch.baddbmm(t(N), t(3, M, K), t(3, K, N)),
    "addbmm": lambda t: torch.addbmm(t(M, N), t(3, M, K), t(3, K, N), beta=0.5, alpha=2),
    "mv": lambda t: torch.mv(t(M, K), t(K)),
    "addmv": lambda t: torch.addmv(t(M), t(M, K), t(K), beta=0.5, alpha=2),
    "addmv of a number": lambda t: torch.addmv(t(1)[0], t(M, K), t(K), beta=2),
    "addmv of a strided vector": lambda t: torch.addmv(t(M, 2)[:, 1], t(M, K), t(K, 3)[:, 2]),
    "dot": lambda t: torch.dot(t(K), t(K)),
    "dot of strided vectors": lambda t: torch.dot(t(K, 2)[:, 0], t(K, 3)[:, 2]),
    "vdot": lambda t: torch.vdot(t(K), t(K)),
    "inner": lambda t: torch.inner(t(2, M, K), t(N, K)),
    "inner of vectors": lambda t: torch.inner(t(K), t(K)),
    "linear": lambda t: F.linear(t(2, M, K), t(N, K), t(N)),
    "linear without a bias": lambda t: F.linear(t(M, K), t(N, K)),
    "linear with a bias of two dimensions": lambda t: F.linear(t(M, K), t(N, K), t(M, N)),
    "linear of a vector with a bias of two dimensions": lambda t: F.linear(t(K), t(N, K), t(1, N)),
    "linear with a bias of one row": lambda t: F.linear(t(M, K), t(N, K), t(1, N)),
    "linear of one row": lambda t: F.linear(t(K), t(N, K), t(N)),
    "einsum": lambda t: torch.einsum("bmhk,bnhk->bhmn", t(2, M, 3, K), t(2, N, 3, K)),
    "multi_dot": lambda t: torch.linalg.multi_dot([t(M, K), t(K, N), t(N, 8)]),
    "tensordot": lambda t: torch.tensordot(t(M, 8, 17), t(17, 8, N), dims=([1, 2], [1, 0])),
    "outer product": lambda t: torch.bmm(t(3, M, 1), t(3, 1, N)),
    # CUDA alone has them in other dtypes
    "mm in float32": lambda t: torch.mm(t(M, K), t(K, N), **t.out),
    "bmm in float32": lambda t: torch.bmm(t(3, M, K), t(3, K, N), **t.out),
    "addmm in float32": lambda t: torch.addmm(t(M, N).to(t.out_dtype), t(M, K), t(K, N), **t.out),
    "addmm of half in float32": lambda t: torch.addmm(t(M, N), t(M, K), t(K, N), **t.out),
    "baddbmm in float32": lambda t: torch.baddbmm(
        t(3, M, N).to(t.out_dtype), t(3, M, K), t(3, K, N), **t.out
    ),
    "relu": lambda t: torch._addmm_activation(t(N), t(M, K), t(K, N)),
    "relu of a matrix": lambda t: torch._addmm_activation(t(M, N), t(M, K), t(K, N), beta=0.5, alpha=2),
    "gelu": lambda t: torch._addmm_activation(t(N), t(M, K), t(K, N), use_gelu=True),
    # out=
    "mm out": lambda t: torch.mm(t(M, K), t(K, N), out=t(M, N)),
    "mm out column-major": lambda t: torch.mm(t(M, K), t(K, N), out=t.column_major(M, N)),
    "mm out sliced": lambda t: torch.mm(t(M, K), t(K, N), out=t.sliced(M, N)),
    "mm out odd": lambda t: torch.mm(t(M, K), t(K, N), out=t.odd(M, N)),
    "mm out misaligned": lambda t: torch.mm(t(M, K), t(K, N), out=t(M * N + 1)[1:].view(M, N)),
    "mm out resized": lambda t: torch.mm(t(M, K), t(K, N), out=t(0)),
    "matmul out": lambda t: torch.matmul(t(2, M, K), t(K, N), out=t(2, M, N)),
    "bmm out": lambda t: torch.bmm(t(3, M, K), t(3, K, N), out=t(3, M, N)),
    "bmm out strided": lambda t: torch.bmm(t(3, M, K), t(3, K, N), out=t(M, 3, N).transpose(0, 1)),
    "bmm out resized": lambda t: torch.bmm(t(3, M, K), t(3, K, N), out=t(0)),
    "addmm out": lambda t: torch.addmm(t(N), t(M, K), t(K, N), beta=2, out=t(M, N)),
    "addmm out is the addend": lambda t: (lambda c: torch.addmm(c, t(M, K), t(K, N), beta=2, out=c))(t(M, N)),
    "addmm out sliced": lambda t: torch.addmm(t(N), t(M, K), t(K, N), out=t.sliced(M, N)),
    "baddbmm out": lambda t: torch.baddbmm(t(N), t(3, M, K), t(3, K, N), out=t(3, M, N)),
    "addbmm out": lambda t: torch.addbmm(t(M, N), t(3, M, K), t(3, K, N), out=t(M, N)),
    "mv out": lambda t: torch.mv(t(M, K), t(K), out=t(M)),
    "addmv out": lambda t: torch.addmv(t(M), t(M, K), t(K), beta=2, out=t(M)),
    "addmv out strided": lambda t: torch.addmv(t(M), t(M, K), t(K), out=t(M, 3)[:, 1]),
    "dot out": lambda t: torch.dot(t(K), t(K), out=t(1)[0]),
    "relu out": lambda t: torch.ops.aten._addmm_activation.out(t(N), t(M, K), t(K, N), out=t(M, N)),
    "mm in float32 out": lambda t: torch.mm(
        t(M, K), t(K, N), **t.out, out=t(M, N).to(t.out_dtype)
    ),
    "bmm in float32 out": lambda t: torch.bmm(
        t(3, M, K), t(3, K, N), **t.out, out=t(3, M, N).to(t.out_dtype)
    ),
    # In place
    "addmm_": lambda t: t(M, N).addmm_(t(M, K), t(K, N), beta=0.5, alpha=2),
    "addmm_ of a view": lambda t: t.sliced(M, N).addmm_(t(M, K), t(K, N)),
    "addmm_ column-major": lambda t: t.column_major(M, N).addmm_(t(M, K), t(K, N)),
    "baddbmm_": lambda t: t(3, M, N).baddbmm_(t(3, M, K), t(3, K, N), beta=2),
    "baddbmm_ strided": lambda t: t(M, 3, N).transpose(0, 1).baddbmm_(t(3, M, K), t(3, K, N)),
    "addbmm_": lambda t: t(M, N).addbmm_(t(3, M, K), t(3, K, N), beta=2),
    "addmv_": lambda t: t(M).addmv_(t(M, K), t(K), beta=2),
    "addmv_ strided": lambda t: t(M, 2)[:, 1].addmv_(t(M, K), t(K)),
    "@=": lambda t: t(M, K).__imatmul__(t(K, K)) if hasattr(Tensor, "__imatmul__") else t(M, K) @ t(K, K),
    # Nothing to sum up, nothing to give
    "K = 0": lambda t: [t(M, 0) @ t(0, N), torch.bmm(t(3, M, 0), t(3, 0, N)), t(M, 0) @ t(0), torch.dot(t(0), t(0))],
    "addmm of K = 0": lambda t: [torch.addmm(t(N), t(M, 0), t(0, N), beta=0.5), t(M, N).addmm_(t(M, 0), t(0, N))],
    "baddbmm of K = 0": lambda t: torch.baddbmm(t(3, M, N), t(3, M, 0), t(3, 0, N), beta=2),
    "linear of K = 0": lambda t: F.linear(t(M, 0), t(N, 0), t(N)),
    "addmv of K = 0": lambda t: torch.addmv(t(M), t(M, 0), t(0), beta=2),
    "empty": lambda t: [t(0, K) @ t(K, N), t(M, K) @ t(K, 0), t(0, M, K) @ t(0, K, N)],
    "empty linear": lambda t: [F.linear(t(0, K), t(N, K), t(N)), F.linear(t(M, K), t(0, K), t(0))],
    "empty addmm": lambda t: [torch.addmm(t(N), t(0, K), t(K, N)), torch.addmm(t(M, 0), t(M, K), t(K, 0))],
    "ones": lambda t: [t(1, 1) @ t(1, 1), t(1, K) @ t(K, 1), t(M, 1) @ t(1, N), t(1) @ t(1, 1)],
    # NaN that is not looked at, and one that is
    "alpha = 0": lambda t: torch.addmm(t(M, N), t(M, K) * NAN, t(K, N), alpha=0),
    "alpha = 0 of a batch": lambda t: torch.baddbmm(t(3, M, N), t(3, M, K) * NAN, t(3, K, N), alpha=0),
    "alpha = 0 of a vector": lambda t: torch.addmv(t(M), t(M, K) * NAN, t(K), alpha=0),
    "alpha = 0 in place": lambda t: t(M, N).addmm_(t(M, K), t(K, N) * NAN, alpha=0),
    "alpha = beta = 0": lambda t: torch.addmm(t(M, N) * NAN, t(M, K) * NAN, t(K, N), alpha=0, beta=0),
    "beta = 0": lambda t: torch.addmm(t(M, N) * NAN, t(M, K), t(K, N), beta=0),
    "beta = 0 of a row": lambda t: torch.addmm(t(N) * NAN, t(M, K), t(K, N), beta=0),
    "beta = 0 of a batch": lambda t: torch.baddbmm(t(3, M, N) * NAN, t(3, M, K), t(3, K, N), beta=0),
    "beta = 0 of a vector": lambda t: torch.addmv(t(M) * NAN, t(M, K), t(K), beta=0),
    "beta = 0 in place": lambda t: (t(M, N) * NAN).addmm_(t(M, K), t(K, N), beta=0),
    "beta = NaN": lambda t: torch.addmm(t(M, N), t(M, K), t(K, N), beta=NAN),
    "NaN in a row": lambda t: (t(M, K) * t(M, 1).masked_fill(torch.arange(M, device=DEVICE)[:, None] == 3, NAN))
    @ t(K, N),
    # Tensors that are not what their memory says
    "lazy negation": lambda t: torch._neg_view(t(M, K)) @ torch._neg_view(t(K, N)),
    "zeros without memory": lambda t: torch._efficientzerotensor((M, K), dtype=t.wide, device=DEVICE) @ t(K, N),
}  # fmt: skip
OF_CUDA = frozenset(name for name in FORMS if "float32" in name)


@HALF
@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, dtype: torch.dtype) -> None:
    if name in OF_CUDA and not ON_GPU:
        pytest.skip("a product with another dtype on CUDA")
    check(FORMS[name], dtype)


@pytest.mark.parametrize("name", [name for name in FORMS if name.endswith(("m_", "v_", "out")) and name not in OF_CUDA])
def test_versions_of_what_is_written(name: str) -> None:
    """Autograd counts the writes to a tensor."""
    theirs = FORMS[name](Inputs(torch.float16))
    with use_custom_gemm():
        ours = FORMS[name](Inputs(torch.float16))
    assert ours._version == theirs._version > 0


LAYOUTS = ("odd", "sliced", "column_major", "expanded")


@HALF
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("sizes", [(3, 257, 311, 640), (1, 1, 300, 500), (2, 300, 1, 77)], ids=str)
def test_layouts(sizes: tuple[int, ...], left: str, right: str, dtype: torch.dtype) -> None:
    batch, m, n, k = sizes

    def products(t: Inputs) -> list[Tensor]:
        a, b = getattr(t, left)(batch, m, k), getattr(t, right)(batch, k, n)
        c = getattr(t, left)(batch, m, n)
        return [
            torch.bmm(a, b),
            a[0] @ b[0],
            a @ b[0],
            torch.baddbmm(c, a, b, beta=0.5),
            torch.addmm(c[0], a[0], b[0], alpha=2),
            F.linear(a, b[0].t(), c[0, 0]),
            torch.mv(a[0], b[0, :, 0]),
        ]

    check(products, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128], ids=str)
def test_other_dtypes_are_torchs_bit_for_bit(dtype: torch.dtype) -> None:
    t = Inputs(torch.float32, dtype)
    a, b, c, u, v = t(M, K), t(K, N), t(M, N), t(K), t(K)
    for fn in (
        lambda: a @ b,
        lambda: a[None].expand(3, M, K) @ b,
        lambda: torch.addmm(c, a, b, beta=0.5, alpha=2),
        lambda: torch.baddbmm(c, a[None], b[None]),
        lambda: F.linear(a, b.mT.contiguous(), c[0]),
        lambda: torch.mv(a, v),
        lambda: torch.dot(u, v),
        lambda: torch.vdot(u, v),
        lambda: c.clone().addmm_(a, b, alpha=0),
        lambda: torch.mm(a, b, out=torch.empty_like(c)),
        lambda: a.conj() @ b.conj() if a.is_complex() else a @ b,
        lambda: torch.mm(a.half(), b),
    ):
        assert_same_outcome(fn)
        with use_custom_gemm() as report:
            outcome(fn)
        assert calls(report, "ours") == 0


@pytest.mark.parametrize(
    ("m", "n", "k"), [(M, N, K), (64, 64, 64), (64, 64, 32768), (70, 90, 20001), (33, 500, 9000)], ids=str
)
def test_strict_float32(m: int, n: int, k: int) -> None:
    """Whoever computes them, the results are as exact as torch's."""
    products: list[Form] = [
        lambda t: t(m, k) @ t(k, n),
        lambda t: torch.addmm(t(m, n), t.column_major(m, k), t(k, n), beta=0.5, alpha=2),
        lambda t: F.linear(t.sliced(m, k), t(n, k), t(n)),
    ]
    for form in products:
        check(form, torch.float32)


def test_tensors_on_the_cpu_are_untouched() -> None:
    a, b = torch.randn(M, K).half(), torch.randn(K, N).half()
    expected = a @ b
    with use_custom_gemm() as report:
        assert torch.equal(a @ b, expected)
        torch.mm(a, b, out=torch.empty(M, N, dtype=torch.float16))
    assert report.rows == []


def test_an_output_that_overlaps_an_operand_is_left_to_torch() -> None:
    """torch does not say what comes of it; that it is torch's own is all that can be promised."""
    t = Inputs(torch.float16)
    memory = t(2 * M * M)
    a, b = memory[: M * M].view(M, M), t(M, M)
    with use_custom_gemm() as report:
        torch.mm(a, b, out=a)
        torch.mm(a, b, out=memory[M : M + M * M].view(M, M))
        a.addmm_(a, b)
    expect_calls(report, 3, "torch")
    expect_calls(report, 0, "ours")


# Mistakes

MISTAKES: dict[str, Callable[[Inputs], Any]] = {
    "mm inner": lambda t: torch.mm(t(4, 5), t(6, 3)),
    "mm rank": lambda t: torch.mm(t(2, 4, 5), t(5, 6)),
    "mm dtypes": lambda t: torch.mm(t(4, 5), t(5, 6).double()),
    "mm half dtypes": lambda t: torch.mm(t(4, 5).half(), t(5, 6).bfloat16()),
    "mm integers": lambda t: torch.mm(t(4, 5), torch.ones(5, 6, dtype=torch.int64, device=DEVICE)),
    "mm of integers": lambda t: torch.mm(t(4, 5).int(), t(5, 6).int()),
    "mm of booleans": lambda t: torch.mm(t(4, 5).bool(), t(5, 6).bool()),
    "mm number": lambda t: torch.mm(t(4, 5), 3),  # type: ignore[arg-type]
    "mm none": lambda t: torch.mm(t(4, 5), None),  # type: ignore[arg-type]
    "mm devices": lambda t: torch.mm(t(4, 5), t(5, 6).cpu()),
    "mm devices, CPU first": lambda t: torch.mm(t(4, 5).cpu(), t(5, 6)),
    "mm out dtype": lambda t: torch.mm(t(4, 5), t(5, 6), out=t(4, 6).double()),
    "mm out integers": lambda t: torch.mm(t(4, 5), t(5, 6), out=t(4, 6).int()),
    "mm out device": lambda t: torch.mm(t(4, 5), t(5, 6), out=t(4, 6).to("meta")),
    "mm out gradient": lambda t: torch.mm(t(4, 5).requires_grad_(), t(5, 6), out=t(4, 6)),
    "mm out expanded": lambda t: torch.mm(t(4, 5), t(5, 6), out=t(1, 6).expand(4, 6)),
    "mm out_dtype": lambda t: torch.mm(t(4, 5), t(5, 6), out_dtype=torch.float64),
    "mm out_dtype out": lambda t: torch.mm(t(4, 5), t(5, 6), out_dtype=torch.float32, out=t(4, 6)),
    "matmul inner": lambda t: torch.matmul(t(2, 4, 5), t(6, 3)),
    "matmul batch": lambda t: torch.matmul(t(2, 4, 5), t(3, 5, 6)),
    "matmul scalar": lambda t: torch.matmul(t(4, 5), t(4)[0]),
    "@ list": lambda t: t(4, 5) @ [1, 2],  # type: ignore[operator]
    "bmm batch": lambda t: torch.bmm(t(2, 4, 5), t(3, 5, 6)),
    "bmm inner": lambda t: torch.bmm(t(2, 4, 5), t(2, 6, 5)),
    "bmm rank": lambda t: torch.bmm(t(4, 5), t(5, 6)),
    "bmm dtypes": lambda t: torch.bmm(t(2, 4, 5), t(2, 5, 6).float()),
    "addmm addend": lambda t: torch.addmm(t(3, 6), t(4, 5), t(5, 6)),
    "addmm addend rank": lambda t: torch.addmm(t(2, 4, 6), t(4, 5), t(5, 6)),
    "addmm addend dtype": lambda t: torch.addmm(t(4, 6).float(), t(4, 5), t(5, 6)),
    "addmm addend device": lambda t: torch.addmm(t(4, 6).cpu(), t(4, 5), t(5, 6)),
    "addmm keyword": lambda t: torch.addmm(t(4, 6), t(4, 5), t(5, 6), gamma=1),  # type: ignore[call-overload]
    "addmm alpha": lambda t: torch.addmm(t(4, 6), t(4, 5), t(5, 6), alpha=1j),
    "addmm_ expanded": lambda t: t(1, 6).expand(4, 6).addmm_(t(4, 5), t(5, 6)),
    "addmm_ shape": lambda t: t(6).addmm_(t(4, 5), t(5, 6)),
    "addmm_ leaf": lambda t: t(4, 6).requires_grad_().addmm_(t(4, 5), t(5, 6)),
    "baddbmm addend": lambda t: torch.baddbmm(t(4, 4, 6), t(2, 4, 5), t(2, 5, 6)),
    "baddbmm dtypes": lambda t: torch.baddbmm(t(2, 4, 6), t(2, 4, 5), t(2, 5, 6).double()),
    "addbmm batch": lambda t: torch.addbmm(t(4, 6), t(2, 4, 5), t(3, 5, 6)),
    "linear features": lambda t: F.linear(t(4, 5), t(6, 7)),
    "linear bias": lambda t: F.linear(t(4, 5), t(6, 5), t(7)),
    "linear bias rank": lambda t: F.linear(t(2, 4, 5), t(6, 5), t(2, 4, 6)),
    "linear bias dtype": lambda t: F.linear(t(4, 5), t(6, 5), t(6).double()),
    "linear bias device": lambda t: F.linear(t(4, 5), t(6, 5), t(6).cpu()),
    "linear weight": lambda t: F.linear(t(4, 5), [1.0]),  # type: ignore[arg-type]
    "mv inner": lambda t: torch.mv(t(4, 5), t(6)),
    "mv rank": lambda t: torch.mv(t(4, 5), t(5, 1)),
    "mv dtypes": lambda t: torch.mv(t(4, 5), t(5).double()),
    "addmv addend": lambda t: torch.addmv(t(3), t(4, 5), t(5)),
    "dot sizes": lambda t: torch.dot(t(4), t(5)),
    "dot rank": lambda t: torch.dot(t(4, 1), t(4)),
    "dot dtypes": lambda t: torch.dot(t(4), t(4).float()),
    "vdot dtypes": lambda t: torch.vdot(t(4), t(4).float()),
    "einsum sizes": lambda t: torch.einsum("ik,kj->ij", t(4, 5), t(6, 3)),
    "einsum letters": lambda t: torch.einsum("ik,kj->il", t(4, 5), t(5, 3)),
    "backward": lambda t: (t(4, 5).requires_grad_() @ t(5, 6)).backward(),
    "forward mode with out": lambda t: forward_mode(t, lambda a, b: torch.mm(a, b, out=t(4, 6))),
    "forward mode with out of an addend": lambda t: forward_mode(t, lambda a, b: torch.addmm(t(6), a, b, out=t(4, 6))),
    "vmap with out": lambda t: vmap(lambda a: torch.mm(a, t(5, 6), out=t(4, 6)))(t(2, 4, 5)),
}  # fmt: skip


def forward_mode(t: Inputs, fn: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    with forward_ad.dual_level():
        a = forward_ad.make_dual(t(4, 5), t(4, 5))
        return forward_ad.unpack_dual(fn(a, t(5, 6))).tangent


@pytest.mark.filterwarnings("ignore:.*out.*resized")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_have_torchs_message(name: str) -> None:
    assert_same_outcome(lambda: MISTAKES[name](Inputs(torch.float16)))


def test_errors_leave_no_trace() -> None:
    t = Inputs(torch.float16)
    with use_custom_gemm() as report:
        for name, mistake in MISTAKES.items():
            if name.startswith(("mm inner", "mm dtypes", "addmm addend", "dot sizes")):
                outcome(lambda mistake=mistake: mistake(t))
        assert calls(report, "ours") == 0
        check(FORMS["mm"])


# Autocast

UNDER_AUTOCAST = (
    *("mm", "matmul", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "inner", "inner of vectors"),
    *("linear", "linear without a bias", "einsum", "multi_dot", "tensordot", "addmm_", "mm out", "addmv_", "relu"),
    *("linear with a bias of two dimensions", "baddbmm_", "dot out"),
)


@HALF
@pytest.mark.parametrize("name", UNDER_AUTOCAST)
def test_autocast_casts_what_torch_casts(name: str, dtype: torch.dtype) -> None:
    def run() -> Any:
        with torch.autocast(DEVICE, dtype):
            return FORMS[name](Inputs(torch.float32))

    expected = outcome(run)
    with use_custom_gemm():
        got = outcome(run)
    if isinstance(expected, Tensor):
        assert_as_good(got, expected, FORMS[name](Inputs(torch.float32, torch.float64)))
    else:
        assert got == expected


def test_dots_stay_float32_under_autocast() -> None:
    t = Inputs(torch.float32)
    with use_custom_gemm(), torch.autocast(DEVICE, torch.float16):
        for fn in (torch.dot, torch.vdot, torch.inner):
            assert fn(t(K), t(K)).dtype == (torch.float32 if ON_GPU else fn(t(K), t(K)).dtype)


# Gradients and transforms


def two_layers(t: Inputs) -> tuple[Tensor, ...]:
    return tuple(x / 8 for x in (t(24, 40), t(56, 40), t(56), t(32, 56)))


def network(x: Tensor, w: Tensor, bias: Tensor, v: Tensor) -> Tensor:
    return F.linear(torch.tanh(F.linear(x, w, bias)), v) @ x[:8, :32].mT


TRANSFORMS: dict[str, Callable[[tuple[Tensor, ...]], Any]] = {
    "grad": lambda a: grad(lambda *a: network(*a).float().square().sum(), (0, 1, 2, 3))(*a),
    "vjp": lambda a: vjp(network, *a)[1](network(*a)),
    "jvp": lambda a: jvp(network, a, tuple(x.cos() for x in a)),
    "jacrev": lambda a: jacrev(network, 2)(*a),
    "jacfwd": lambda a: jacfwd(network, 2)(*a),
    "hessian": lambda a: hessian(lambda b: network(a[0], a[1], b, a[3]).float().square().sum())(a[2]),
    "vmap": lambda a: vmap(network, (None, 0, 0, None))(a[0], *(torch.stack([x, x.cos()]) for x in a[1:3]), a[3]),
    "vmap at the back": lambda a: vmap(network, (-1, None, -1, -1), -1)(
        torch.stack([a[0], a[0].cos()], -1), a[1], *(torch.stack([x, x.sin()], -1) for x in a[2:])
    ),
    "per-sample gradients": lambda a: vmap(
        grad(lambda w, x: network(x[None].expand(24, 40), w, a[2], a[3]).float().square().sum()), (None, 0)
    )(a[1], a[0]),
    "grad of grad": lambda a: grad(
        lambda x: grad(lambda x: network(x, *a[1:]).float().square().sum())(x).float().square().sum()
    )(a[0]),
    "forward over reverse": lambda a: jvp(
        grad(lambda x: network(x, *a[1:]).float().square().sum()), (a[0],), (a[0].cos(),)
    ),
}


@HALF
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, dtype: torch.dtype) -> None:
    """Of several layers, whose roundings add up."""
    args = two_layers(Inputs(dtype))
    theirs, exact = (tree_leaves(TRANSFORMS[name](x)) for x in (args, tuple(x.double() for x in args)))
    with use_custom_gemm() as report:
        ours = tree_leaves(TRANSFORMS[name](args))
    for got, other, ref in zip(ours, theirs, exact, strict=True):
        assert_as_good(got, other, ref.to(torch.float64), units=8)
    assert calls(report) > 0 or not ON_GPU


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def mlp(dtype: torch.dtype = torch.float16) -> Mlp:
    torch.manual_seed(0)
    return Mlp().half().to(DEVICE, dtype)


def step(model: nn.Module, x: Tensor, run: Callable[[Tensor], Tensor], context: Any, backward: bool) -> list[Tensor]:
    """Output and gradients; the backward pass in ``context`` as well, or outside."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    with context:
        out = run(x)
        loss = out.float().square().sum() / 8
        if backward:
            loss.backward()
    if not backward:
        loss.backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("backward_inside", [True, False])
@pytest.mark.parametrize("kind", ["plain", "checkpoint", "re-entrant checkpoint", "saved on the CPU"])
def test_training(kind: str, backward_inside: bool) -> None:
    def run(model: nn.Module, context: Any) -> list[Tensor]:
        def forward(x: Tensor) -> Tensor:
            if kind == "saved on the CPU":
                with torch.autograd.graph.save_on_cpu():
                    return model(x)
            return model(x) if kind == "plain" else checkpoint(model, x, use_reentrant=kind.startswith("re"))

        t = Inputs(torch.float16, next(model.parameters()).dtype)
        return step(model, t(48, 64), forward, context, backward_inside)

    theirs, exact = (run(mlp(dtype), contextlib.nullcontext()) for dtype in (torch.float16, torch.float64))
    context = use_custom_gemm()
    for _ in range(2):
        for got, other, ref in zip(run(mlp(), context), theirs, exact, strict=True):
            assert_as_good(got, other, ref, units=2)
    again = {"checkpoint": 1, "re-entrant checkpoint": 2}.get(kind, 0)  # the last layer's result is of no use
    expect_calls(context.report, 2 * (2 + (again + 4 if backward_inside else 0)))


def test_second_order_gradients() -> None:
    def penalty(dtype: torch.dtype) -> tuple[Tensor, ...]:
        t = Inputs(torch.float16, dtype)
        x, w = t(40, 72).requires_grad_(), (t(56, 72) / 8).requires_grad_()
        (gradient,) = torch.autograd.grad(F.silu(F.linear(x, w)).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum() / 64, (x, w))

    theirs, exact = penalty(torch.float16), penalty(torch.float64)
    with use_custom_gemm():
        ours = penalty(torch.float16)
    for got, other, ref in zip(ours, theirs, exact, strict=True):
        assert_as_good(got, other, ref, units=2)


# Subclasses


class Wrapper(Tensor):
    """Has ``__torch_dispatch__`` alone: what it holds computes, and the names of what was asked are kept."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    seen: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        wrapper = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        wrapper.inner = inner
        return wrapper

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Wrapper({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        args, kwargs = tree_map(lambda x: x.inner if isinstance(x, Wrapper) else x, (args, kwargs or {}))
        return tree_map(lambda x: cls(x) if isinstance(x, Tensor) else x, func(*args, **kwargs))


def test_a_subclass_with_torch_dispatch_alone() -> None:
    def run(t: Inputs) -> list[Tensor]:
        x, w, bias = (Wrapper(y).requires_grad_() for y in (t(2, M, K), t(N, K), t(N)))
        out = F.linear(x, w, bias)
        out = out @ w + torch.addmm(bias[:1], x[0], w.t()).sum()
        assert isinstance(out, Wrapper)
        out.sum().backward()
        assert isinstance(w.grad, Wrapper)
        return [out.inner, x.grad.inner, w.grad.inner, bias.grad.inner]  # type: ignore[union-attr]

    Wrapper.seen = []
    theirs, exact = run(Inputs(torch.float16)), run(Inputs(torch.float16, torch.float64))
    expected, Wrapper.seen = Wrapper.seen[: len(Wrapper.seen) // 2], []
    with use_custom_gemm() as report:
        ours = run(Inputs(torch.float16))
    assert Wrapper.seen == expected
    assert calls(report) > 0 or not ON_GPU
    for got, other, ref in zip(ours, theirs, exact, strict=True):
        assert_as_good(got, other, ref, units=2)


class Int8Weight(Tensor):
    """A weight as torchao has them: eight bits and a scale for each row; products see it dequantized."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor) -> Int8Weight:
        self = Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=scale.dtype, device=data.device
        )
        self.data_, self.scale = data, scale
        return self

    @classmethod
    def quantize(cls, weight: Tensor) -> Int8Weight:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantize(self) -> Tensor:
        return self.data_.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.t.default):
            return cls(*(func(x) for x in (args[0].data_, args[0].scale)))
        if func in (aten.mm.default, aten.addmm.default):
            args = tree_map(lambda x: x.dequantize() if isinstance(x, Int8Weight) else x, args)
            return func(*args, **(kwargs or {}))
        raise NotImplementedError(func)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Int8Weight({self.dequantize()})"


@pytest.mark.parametrize("bias", [True, False])
def test_a_quantized_weight(bias: bool) -> None:
    layer, x = nn.Linear(K, N, bias=bias).half().to(DEVICE), Inputs(torch.float16)(2, M, K).requires_grad_()
    weight = Int8Weight.quantize(layer.weight.detach())
    layer.weight = nn.Parameter(weight, requires_grad=False)

    def run() -> list[Tensor]:
        out = layer(x)
        return [out.detach(), *torch.autograd.grad(out.sum(), x)]

    theirs = run()
    with use_custom_gemm() as report:
        ours = run()
    wide = weight.dequantize().double()
    exact = F.linear(x.detach().double(), wide, layer.bias.detach().double() if bias else None)
    for got, other, ref in zip(ours, theirs, (exact, wide.sum(0).expand_as(x)), strict=True):
        assert_as_good(got, other, ref)
    assert type(layer.weight.data) is Int8Weight
    expect_calls(report, 2)


@pytest.mark.filterwarnings("ignore:.*semi-?structured.*", "ignore:.*[Ss]parse.*")
@pytest.mark.skipif(not ON_GPU, reason="a sparse tensor core")
def test_a_semi_structured_sparse_weight() -> None:
    t = Inputs(torch.float16)
    mask = torch.tensor([0, 0, 1, 1], device=DEVICE).tile(128, 32).bool()
    weight, x = t(128, 128) * mask, t(64, 128)
    layer = nn.Linear(128, 128).half().to(DEVICE)
    try:
        layer.weight = nn.Parameter(torch.sparse.to_sparse_semi_structured(weight))
        theirs = layer(x)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"torch itself cannot: {error}")
    with use_custom_gemm() as report:
        ours = layer(x)
    assert torch.equal(ours, theirs)
    assert calls(report, "ours") == 0


@pytest.mark.filterwarnings("ignore:.*[Ss]parse.*")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_operands(layout: str) -> None:
    t = Inputs(torch.float32)
    sparse, dense = F.dropout(t(M, K), 0.7), t(K, N)
    sparse = sparse.to_sparse() if layout == "coo" else sparse.to_sparse_csr()
    c = t(M, N)
    for fn in (
        lambda: torch.mm(sparse, dense),
        lambda: torch.addmm(c, sparse, dense),
        lambda: F.linear(dense.t(), sparse),
    ):
        expected = fn()
        with use_custom_gemm():
            torch.testing.assert_close(fn(), expected)


def test_parameters_that_are_swapped() -> None:
    """torch.utils.swap_tensors refuses tensors that anybody else holds."""
    model, x = mlp(), Inputs(torch.float16)(48, 64)
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with use_custom_gemm(sites=True):
            model(x).sum().backward()
            torch.utils.swap_tensors(model.up.weight, nn.Parameter(model.up.weight.detach() * 2))
            first = model(x).detach()
            model.zero_grad()
            model.to(torch.bfloat16).to(torch.float16).to(DEVICE)
            model.load_state_dict(model.state_dict(), assign=False)
            second = model(x)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    assert_as_good(second, first, model.double()(x.double()), units=8)


# Modes and tools


def train(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    out = model(x)
    (out @ out.mT).float().sum().backward()


def aten_names(fn: Callable[[], object]) -> list[str]:
    with Names() as names:
        fn()
    return names.seen


def flops(fn: Callable[[], object]) -> object:
    with FlopCounterMode(display=False) as counter:
        fn()
    return counter.get_flop_counts()


#: What these call inside is their own business.
KERNELS = {f"aten::{name}{kind}" for name in ("mm", "bmm", "addmm", "baddbmm", "addmv", "dot") for kind in ("", "_")}


def profiled(fn: Callable[[], object]) -> Counter[str]:
    """How often each of torch's ops was seen."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        fn()
    seen: Counter[str] = Counter()
    for event in profiler.events():
        parent = event.cpu_parent
        while parent is not None and parent.name not in KERNELS:
            parent = parent.cpu_parent
        seen[event.name] += parent is None and event.name.startswith(("aten::", "hgemm::"))
    return +seen


def saved(fn: Callable[[], object]) -> list[torch.Size]:
    shapes: list[torch.Size] = []

    def pack(x: Tensor) -> Tensor:
        shapes.append(x.shape)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        fn()
    return shapes


@pytest.mark.parametrize("look", [aten_names, flops, profiled, saved], ids=lambda f: f.__name__)
def test_tools_see_what_they_see_without_us(look: Callable[[Callable[[], object]], object]) -> None:
    model, t = mlp(), Inputs(torch.float16)
    x, vector = t(48, 64), t(64)
    for fn in (
        lambda: train(model, x),
        lambda: torch.mm(x, x.t()),
        lambda: torch.mm(x, x.t(), out=torch.empty(48, 48, device=DEVICE, dtype=torch.float16)),
        lambda: torch.dot(torch.mv(x, vector), torch.mv(x, vector)),
        lambda: torch.empty(48, 48, device=DEVICE, dtype=torch.float16).fill_(1).addmm_(x, x.t()),
    ):
        fn()
        expected = look(fn)
        with use_custom_gemm():
            fn()
            assert look(fn) == expected


def test_the_profiler_shows_a_product_once() -> None:
    a = Inputs(torch.float16)(128, 128)
    with use_custom_gemm():
        for name, fn in {"aten::mm": lambda: a @ a, "aten::addmm": lambda: torch.addmm(a, a, a)}.items():
            seen = profiled(fn)
            assert seen[name] == 1
            assert set(seen) <= {name, "aten::matmul"}


def test_other_modes() -> None:
    x = Inputs(torch.float16)(48, 64)
    with use_custom_gemm(), torch.device("meta"):
        assert (torch.ones(3, 4) @ torch.ones(4, 5)).shape == (3, 5)
    with use_custom_gemm(), torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert (fake @ fake.t()).shape == (48, 48)
    with use_custom_gemm(), torch.inference_mode():
        assert (x @ x.t()).is_inference()
    model = mlp()
    parameters = {name: p.detach() * 2 for name, p in model.named_parameters()}
    theirs = functional_call(model, parameters, x)
    with use_custom_gemm():
        ours = functional_call(model, parameters, x)
    exact = functional_call(mlp(torch.float64), {n: p.double() for n, p in parameters.items()}, x.double())
    assert_as_good(ours, theirs, exact, units=2)


@pytest.mark.filterwarnings("ignore:.*[Nn]amed tensors")
@pytest.mark.skipif(not hasattr(Tensor, "refine_names"), reason="torch has named tensors no longer")
def test_named_tensors() -> None:
    t = Inputs(torch.float16)
    a, b = t(8, 16).refine_names("m", "k"), t(16, 24).refine_names("k", "n")
    assert_same_outcome(lambda: torch.mm(a, b).rename(None))
    with use_custom_gemm():
        assert torch.mm(a, b).names == ("m", "n")
