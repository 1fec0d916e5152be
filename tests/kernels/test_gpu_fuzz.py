"""Random problems through every production kernel: sizes from 1 to 700, any layout and alignment, batches, epilogues.

Each kernel that ``explain`` calls eligible is forced, and the dispatcher's own choice runs too, by our ops and by
torch's functions inside ``use_custom_gemm()``. Operands lie in memory full of NaN, so that a read outside them shows;
results are written into memory full of NaN, so that an element left out and a write outside them show. Every element is
held to twice torch's own error against float64 plus one rounding unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    ACTIVATIONS,
    DEVICE,
    ON_GPU,
    POISON,
    GuardedBuffer,
    assert_as_good,
    assert_close_to_torch,
    calls,
    less_accurate,
    production,
    refusal_allowed,
    serving,
)
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo


@pytest.fixture(autouse=True)
def sums_in_float32() -> Iterator[None]:
    """torch adds partial sums in float32, so that its error is one of rounding on every route.

    By default it may add them in 16 bits. Which of its routes do depends on the addresses of operands and result.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    yield
    matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = before


DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
AUTO = -1


def fuzz(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def with_unit_stride(x: Tensor) -> Tensor:
    return x if x.dim() < 2 or 1 in (*x.stride()[-2:], *x.shape[-2:]) else x.contiguous()


def eligible(a: Tensor, b: Tensor) -> list[tuple[str, int]]:
    """Every production kernel that ``explain`` says can serve ``a @ b``, then the dispatcher's own choice. In the
    context an operand without unit stride is copied, as torch would, before anybody asks whether batches merge."""
    able = serving(a, b) & serving(with_unit_stride(a), with_unit_stride(b))
    return [*((v.name, v.id) for v in production() if v.name in able), ("auto", AUTO)]


class Checked:
    """Checks the results of one problem, each kernel's against ``theirs``, torch's own.

    The dispatcher's choice is a kernel, whose result was held to that already and comes again bit by bit, or torch,
    which takes one of ``routes`` to it: see ``less_accurate``.
    """

    def __init__(self, exact: Tensor, magnitude: Tensor, theirs: Tensor, *routes: Tensor) -> None:
        self._exact, self._magnitude, self._theirs, self._routes = exact, magnitude, theirs, routes
        self._kernels: list[Tensor] = []

    def __call__(self, out: Tensor, variant: int) -> None:
        if variant == AUTO and any(torch.equal(out, kernel) for kernel in self._kernels):
            return
        theirs = less_accurate(self._exact, self._theirs, *self._routes) if variant == AUTO else self._theirs
        assert_close_to_torch(out, self._exact, theirs, magnitude=self._magnitude)
        self._kernels.append(out)


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: dimensions from the innermost out, the stride of the innermost, padding after each
    of its rows, elements before the first, and which dimensions of extent > 1 are expanded (stride 0)."""

    order: tuple[int, ...]
    step: int
    padding: int
    offset: int
    expanded: frozenset[int]


@dataclass(frozen=True)
class Operand:
    shape: tuple[int, ...]
    layout: Layout

    def make(self, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """A tensor of U[-1, 1] values surrounded by NaN."""
        shape = [1 if dim in self.layout.expanded else size for dim, size in enumerate(self.shape)]
        strides, step = [0] * len(shape), self.layout.step
        for level, dim in enumerate(self.layout.order):
            strides[dim] = step
            step = step * shape[dim] + (self.layout.padding if level == 0 else 0)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        storage = torch.full((self.layout.offset + extent + 16,), POISON, dtype=dtype, device=DEVICE)
        view = storage.as_strided(shape, strides, self.layout.offset)
        view.copy_(torch.rand(shape, generator=generator, device=DEVICE) * 2 - 1)
        return view.expand(self.shape)


@dataclass(frozen=True)
class Output:
    """Where ``out=`` goes: padding after each row and elements before the first, beyond an aligned guard."""

    padding: int
    offset: int
    float32: bool

    def buffer(self, shape: torch.Size, dtype: torch.dtype) -> GuardedBuffer:
        return GuardedBuffer(tuple(shape), dtype, DEVICE, offset=64 + self.offset, row_padding=self.padding)


# Around the tile sizes of kernels and the vectors they copy.
EDGES = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 384, 511, 513, 700]
sizes = st.one_of(st.sampled_from(EDGES), st.integers(1, 700), st.integers(1, 87).map(lambda n: 8 * n))
# M, N and K; one in eight as small as tiny_batch takes them, one in eight a whole product of it.
extents = st.sampled_from(["any"] * 6 + ["tiny", "cube"]).flatmap(
    lambda kind: {
        "any": st.tuples(sizes, sizes, sizes),
        "tiny": st.tuples(*[st.integers(1, 32)] * 3),
        "cube": st.integers(2, 6).map(lambda size: (size, size, size)),
    }[kind]
)
batches = st.sampled_from([0, 0, 1, 1, 2, 2, 2]).flatmap(lambda n: st.tuples(*[st.integers(1, 4)] * n))
offsets = st.sampled_from([0, 0, 0, 8, 1, 2, 4])
outputs = st.builds(Output, padding=st.sampled_from([0, 0, 0, 0, 8, 5]), offset=offsets, float32=st.booleans())
FEATURES = (
    "misaligned base",
    "misaligned rows",
    "sliced",
    "expanded",
    "no unit stride",
    "row-major",
    "column-major",
    "batch innermost",
    "heads between rows",
    "0 batch dimensions",
    "1 batch dimensions",
    "2 batch dimensions",
    "vector",
    "broadcast batch",
    "ragged K",
    "whole K",
    "float32 result",
    "sliced result",
    "misaligned result",
)
seeds = st.integers(0, 2**31)


@st.composite
def operands(draw: st.DrawFn, shape: tuple[int, ...]) -> Operand:
    """``shape`` in any layout: row-major, column-major, or its dimensions in any order, batch innermost included."""
    ndim = len(shape)
    row_major = tuple(reversed(range(ndim)))
    orders = [st.just(row_major), st.permutations(row_major).map(tuple)]
    if ndim >= 2:
        orders.append(st.just((ndim - 2, ndim - 1, *row_major[2:])))
    if ndim == 4:
        orders.append(st.just((3, 1, 2, 0)))  # (B, H, S, D) as a view of (B, S, H, D)
    layout = Layout(
        order=draw(st.one_of(orders)),
        step=draw(st.sampled_from([1, 1, 1, 1, 2])),
        padding=draw(st.sampled_from([0, 0, 0, 8, 1, 2, 4, 7])),
        offset=draw(offsets),
        expanded=frozenset(dim for dim in range(ndim - 2) if draw(st.sampled_from([False, False, False, True]))),
    )
    return Operand(shape, layout)


@st.composite
def broadcast(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to ``shape``: leading dimensions dropped, others replaced by 1."""
    kept = shape[draw(st.one_of(st.just(0), st.integers(0, len(shape)))) :]
    return tuple(1 if draw(st.sampled_from([False, False, True])) else size for size in kept)


@dataclass(frozen=True)
class Product:
    a: Operand
    b: Operand
    out: Output
    seed: int


@st.composite
def products(draw: st.DrawFn) -> Product:
    m, n, k = draw(extents)
    batch = draw(batches)
    a, b = (*draw(broadcast(batch)), m, k), (*draw(broadcast(batch)), k, n)
    vector = draw(st.sampled_from([None] * 10 + ["a", "b"]))
    if vector == "a":
        a = (k,)
    elif vector == "b":
        b = (k,)
    return Product(draw(operands(a)), draw(operands(b)), draw(outputs), draw(seeds))


def torch_product(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    """torch's own ``a @ b`` in ``out_dtype``."""
    if out_dtype == a.dtype:
        return torch.matmul(a, b)
    row, column = a.dim() == 1, b.dim() == 1
    a, b = a.unsqueeze(0) if row else a, b.unsqueeze(1) if column else b
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    shape = (*batch, a.size(-2), b.size(-1))
    c = torch.bmm(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), out_dtype=out_dtype).view(shape)
    c = c.squeeze(-1) if column else c
    return c.squeeze(-1 if column else -2) if row else c


@pytest.mark.gpu
@DTYPES
@fuzz(300)
@given(case=products())
def test_matmul(case: Product, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(case.seed)
    a, b = case.a.make(dtype, generator), case.b.make(dtype, generator)
    out_dtype = torch.float32 if case.out.float32 else dtype
    theirs = torch_product(a, b, out_dtype)
    wide_a, wide_b = a.double(), b.double()
    exact, magnitude = wide_a @ wide_b, wide_a.abs() @ wide_b.abs()
    check = Checked(exact, magnitude, theirs)
    for name, variant in eligible(a, b):
        note(f"variant {name}")
        guard = case.out.buffer(exact.shape, out_dtype)
        with refusal_allowed(variant):
            torch.ops.hgemm.matmul.out(a, b, out_dtype=out_dtype, variant=variant, out=guard.tensor)
            check(guard.tensor, variant)
        guard.check()


@dataclass(frozen=True)
class Linear:
    x: Operand
    weight: Operand
    bias: Operand | None
    act: int
    out: Output
    seed: int


@st.composite
def linears(draw: st.DrawFn) -> Linear:
    m, n, k = draw(extents)
    batch = draw(batches)
    return Linear(
        x=draw(operands((*batch, m, k))),
        weight=draw(operands((n, k))),
        bias=draw(st.one_of(st.none(), operands((n,)))),
        act=draw(st.sampled_from(sorted(ACTIVATIONS))),
        out=draw(outputs),
        seed=draw(seeds),
    )


@pytest.mark.gpu
@DTYPES
@fuzz(200)
@given(case=linears())
def test_linear(case: Linear, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(case.seed)
    x, weight = case.x.make(dtype, generator), case.weight.make(dtype, generator)
    bias = None if case.bias is None else case.bias.make(dtype, generator)
    act = ACTIVATIONS[case.act]
    out_dtype = torch.float32 if case.out.float32 else dtype
    exact, magnitude = x.double() @ weight.double().t(), x.double().abs() @ weight.double().abs().t()
    if bias is not None:
        exact, magnitude = exact + bias.double(), magnitude + bias.double().abs()
    exact = act(exact)
    product = torch_product(x, weight.t(), out_dtype)
    in_two_steps = act(product if bias is None else product + bias)
    fused = in_two_steps if case.out.float32 else act(F.linear(x, weight, bias))
    check = Checked(exact, magnitude, fused, in_two_steps)
    for name, variant in eligible(x, weight.t()):
        note(f"variant {name}")
        guard = case.out.buffer(exact.shape, out_dtype)
        with refusal_allowed(variant):
            torch.ops.hgemm.linear.out(
                x, weight, bias, case.act, out_dtype=out_dtype, variant=variant, out=guard.tensor
            )
            check(guard.tensor, variant)
        guard.check()


@dataclass(frozen=True)
class Sum:
    c: Operand
    a: Operand
    b: Operand
    alpha: float
    beta: float
    out: Output
    seed: int


@st.composite
def sums(draw: st.DrawFn) -> Sum:
    """beta * C + alpha * A @ B, with or without one batch dimension; C takes every form that broadcasts."""
    m, n, k = draw(extents)
    batch = draw(st.sampled_from([(), (1,), (2,), (5,)]))
    return Sum(
        c=draw(broadcast((*batch, m, n)).flatmap(operands)),
        a=draw(operands((*batch, m, k))),
        b=draw(operands((*batch, k, n))),
        alpha=draw(st.sampled_from([1.0, 1.0, -0.5, 0.0, 2.5])),
        beta=draw(st.sampled_from([1.0, 1.0, 0.5, 0.0, -2.0])),
        out=draw(outputs),
        seed=draw(seeds),
    )


@pytest.mark.gpu
@DTYPES
@fuzz(200)
@given(case=sums())
def test_addmm_and_baddbmm(case: Sum, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(case.seed)
    c, a, b = (operand.make(dtype, generator) for operand in (case.c, case.a, case.b))
    alpha, beta = case.alpha, case.beta
    out_dtype = torch.float32 if case.out.float32 else dtype
    in_two_steps = alpha * torch_product(a, b, out_dtype) + beta * c.to(out_dtype)
    whole_c = c.expand(in_two_steps.shape).contiguous()  # a row of C may go through cuBLASLt's bias instead
    if case.out.float32:
        fused = plain = in_two_steps
    elif a.dim() == 2:
        fused, plain = (torch.addmm(x, a, b, alpha=alpha, beta=beta) for x in (c, whole_c))
    else:
        fused, plain = (torch.baddbmm(x, a, b, alpha=alpha, beta=beta) for x in (c, whole_c))
    exact = alpha * (a.double() @ b.double()) + beta * c.double()
    magnitude = abs(alpha) * (a.double().abs() @ b.double().abs()) + abs(beta) * c.double().abs()
    op = torch.ops.hgemm.addmm.out if a.dim() == 2 else torch.ops.hgemm.baddbmm.out
    check = Checked(exact, magnitude, fused, plain, in_two_steps)
    for name, variant in eligible(a, b):
        note(f"variant {name}")
        guard = case.out.buffer(exact.shape, out_dtype)
        with refusal_allowed(variant):
            op(c, a, b, alpha=alpha, beta=beta, out_dtype=out_dtype, variant=variant, out=guard.tensor)
            check(guard.tensor, variant)
        guard.check()


@dataclass(frozen=True)
class Call:
    """One of torch's products of exactly these shapes; where its result goes: "new", "out" or "in place"."""

    sum: Sum
    goes: str
    added: bool


@st.composite
def torch_calls(draw: st.DrawFn) -> Call:
    return Call(draw(sums()), draw(st.sampled_from(["new", "out", "in place"])), draw(st.booleans()))


@pytest.mark.gpu
@DTYPES
@fuzz(150)
@given(case=torch_calls())
def test_torchs_functions_in_the_context(case: Call, dtype: torch.dtype) -> None:
    """mm, bmm, addmm and baddbmm, by every kernel that can and as dispatched, in all their forms."""
    operands, goes = case.sum, case.goes
    generator = torch.Generator(DEVICE).manual_seed(operands.seed)
    c, a, b = (operand.make(dtype, generator) for operand in (operands.c, operands.a, operands.b))
    shape = (*a.shape[:-1], b.size(-1))
    added = case.added or goes == "in place"
    c = c.expand(shape).contiguous() if goes == "in place" else c
    alpha, beta = (operands.alpha, operands.beta) if added else (1.0, 0.0)
    wide = {"out_dtype": torch.float32} if operands.out.float32 and not added and ON_GPU else {}
    fn: Callable[..., Tensor]
    if added:
        add = torch.addmm if a.dim() == 2 else torch.baddbmm
        fn = partial(add, c, a, b, alpha=alpha, beta=beta)
    else:
        fn = partial(torch.mm if a.dim() == 2 else torch.bmm, a, b, **wide)

    def call(out: Tensor) -> Tensor:
        if goes == "new":
            return fn()
        if goes == "out":
            return fn(out=out)
        return getattr(out.copy_(c), "addmm_" if a.dim() == 2 else "baddbmm_")(a, b, alpha=alpha, beta=beta)

    theirs = fn()
    in_two_steps = alpha * torch_product(a, b, theirs.dtype) + (beta * c if added else 0)
    whole_c = fn.func(c.expand(shape).contiguous(), a, b, alpha=alpha, beta=beta) if added else theirs
    exact, magnitude = alpha * (a.double() @ b.double()), abs(alpha) * (a.double().abs() @ b.double().abs())
    if added and beta:
        exact, magnitude = exact + beta * c.double(), magnitude + abs(beta) * c.double().abs()
    worst = less_accurate(exact, theirs, whole_c, in_two_steps)
    for name, variant in eligible(a, b):
        note(f"variant {name}, {goes}")
        guard = operands.out.buffer(torch.Size(shape), theirs.dtype)
        with refusal_allowed(variant), hgemm_ops.use_custom_gemm(variant=name) as report:
            out = call(guard.tensor)
            assert goes == "new" or out.data_ptr() == guard.tensor.data_ptr()
            assert out.stride() == (theirs if goes == "new" else guard.tensor).stride()
            assert_close_to_torch(out, exact, worst, magnitude=magnitude)
            assert calls(report) == (1 if ON_GPU else 0), str(report)
            assert name == "auto" or {row.variant for row in report.rows} <= {name, "torch"}
        guard.check()


@pytest.mark.gpu
@DTYPES
@fuzz(150)
@given(case=products())
def test_matmul_in_the_context(case: Product, dtype: torch.dtype) -> None:
    """torch.matmul folds, expands and copies before it calls a product; its gradients are products as well."""
    generator = torch.Generator(DEVICE).manual_seed(case.seed)
    a, b = (x.make(dtype, generator).requires_grad_() for x in (case.a, case.b))

    def run(a: Tensor, b: Tensor, context: Any) -> list[Tensor]:
        with context:
            out = torch.matmul(a, b)
            seed = torch.linspace(-1, 1, out.numel(), device=DEVICE).to(dtype).view(out.shape).to(out.dtype)
            return [out.detach(), *torch.autograd.grad(out, (a, b), seed)]

    theirs = run(a, b, nullcontext())
    exact = run(a.detach().double().requires_grad_(), b.detach().double().requires_grad_(), nullcontext())
    context = hgemm_ops.use_custom_gemm()
    for got, other, ref in zip(run(a, b, context), theirs, exact, strict=True):
        assert_as_good(got, other, ref, units=4)
    assert calls(context.report) >= 2 or not ON_GPU  # of the gradients of a vector, one is an outer product


@pytest.mark.gpu
@pytest.mark.parametrize("variant", production(), ids=lambda v: v.name)
def test_every_kernel_serves_some_of_these(variant: VariantInfo) -> None:
    """No kernel passes the tests above by never being eligible: deep, skinny, square, tiny problems, every layout."""
    dtype = variant.dtypes[0]
    served = 0
    sizes = [(64, 64, 700), (8, 640, 512), (640, 8, 512), (257, 130, 640), (700, 700, 64), (1, 1000, 1000), (16, 9, 80)]
    sizes.append((130, 258, 1030))  # deep enough, and off 16 bytes, for stream-K with a padded copy
    sizes += [(24, 17000, 72), (17000, 24, 72), (24, 17000, 67)]  # long enough for edged kernels
    sizes += [(size, size, size) for size in range(2, 7)]
    pairs = []
    for m, n, k in sizes:
        for a_rows, b_rows in [((m, k), (k, n)), ((m, k), (n, k)), ((k, m), (k, n)), ((k, m), (n, k))]:
            a, b = (torch.randn(rows, device=DEVICE, dtype=dtype) for rows in (a_rows, b_rows))
            pairs.append((a if a_rows == (m, k) else a.t(), b if b_rows == (k, n) else b.t()))
    x = torch.randn(264, 72, device=DEVICE, dtype=dtype)
    pairs += [(x, x.t()), (x.t(), x)]  # all that some kernels run
    # A batch that shares b, and whose rows alternate in memory: kernels that merge rows run this.
    rows, shared = (torch.randn(size, device=DEVICE, dtype=dtype) for size in ((24, 16, 256), (256, 256)))
    pairs.append((rows.transpose(0, 1), shared))
    for a, b in pairs:
        if (variant.name, variant.id) not in eligible(a, b):
            continue
        served += 1
        exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        out = torch.ops.hgemm.matmul(a, b, variant=variant.id)
        assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)
    assert served > 0


def features(operand: Operand) -> set[str]:
    """What is out of the ordinary about an operand."""
    layout, ndim = operand.layout, len(operand.shape)
    found = set()
    if layout.offset % 8:
        found.add("misaligned base")
    if layout.padding:
        found.add("sliced")
        if layout.padding % 8:
            found.add("misaligned rows")
    if layout.expanded:
        found.add("expanded")
    if ndim >= 2 and layout.step > 1:
        found.add("no unit stride")
    if ndim >= 2 and layout.step == 1:
        found.add({ndim - 1: "row-major", ndim - 2: "column-major"}.get(layout.order[0], "batch innermost"))
    if ndim == 4 and layout.order == (3, 1, 2, 0):
        found.add("heads between rows")
    return found


def test_the_problems_cover_what_they_should() -> None:
    """A strategy that never draws, say, a misaligned operand would weaken the tests above unnoticed."""
    seen: Counter[str] = Counter()

    @fuzz(300)
    @given(case=products())
    def draw(case: Product) -> None:
        ndims = len(case.a.shape), len(case.b.shape)
        seen.update(features(case.a) | features(case.b))
        seen[f"{max(ndims) - 2} batch dimensions" if min(ndims) > 1 else "vector"] += 1
        seen["broadcast batch"] += min(ndims) > 1 and case.a.shape[:-2] != case.b.shape[:-2]
        seen["ragged K"] += case.a.shape[-1] % 8 != 0
        seen["whole K"] += case.a.shape[-1] % 8 == 0
        seen["float32 result"] += case.out.float32
        seen["sliced result"] += case.out.padding > 0
        seen["misaligned result"] += case.out.offset % 8 != 0

    draw()
    rare = {name: seen[name] for name in FEATURES if seen[name] < 10}
    assert not rare, f"of 300 problems, too few have: {rare}"
