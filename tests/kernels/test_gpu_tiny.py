"""tiny_batch: every size up to 32, vectors, layout, alignment and epilogue, batches longer than a grid has rows,
operands that a batch shares, and the ways by which torch's functions reach it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    ACTIVATIONS,
    POISON,
    GuardedBuffer,
    assert_as_good,
    assert_close_to_torch,
    calls,
    check_a_chain_of_products,
    rand,
    reference_matmul,
    widened,
)
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo, use_custom_gemm

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
KERNELS = [v for v in hgemm_ops.variants() if v.family == "tiny_batch"]
VARIANTS = pytest.mark.parametrize("variant", KERNELS, ids=lambda v: v.name)
WIDE = (torch.float64, torch.complex64)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, *WIDE], ids=str)
#: Every kernel with each of its types.
KINDS = pytest.mark.parametrize(
    ("variant", "dtype"), [pytest.param(v, dtype, id=f"{v.name}-{dtype}") for v in KERNELS for dtype in v.dtypes]
)
LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
# Of the kernel for all sizes: cubes, edges of its tile on each side, one row, column or k, the largest.
SIZES = [
    (1, 1, 1),
    (4, 4, 4),
    (5, 5, 5),
    (7, 7, 7),
    (8, 8, 8),
    (16, 16, 16),
    (17, 17, 17),
    (31, 31, 31),
    (32, 32, 32),
    (1, 32, 8),
    (32, 1, 7),
    (6, 1, 6),
    (9, 20, 1),
    (2, 8, 5),
    (13, 4, 32),
    (17, 23, 31),
    (12, 28, 2),
    (1, 64, 64),  # vectors times larger matrices
    (1, 200, 20),
    (1, 3, 256),
    (65, 1, 33),
    (256, 1, 16),
]


def sizes_of(variant: VariantInfo, dtype: torch.dtype = torch.float32) -> list[tuple[int, int, int]]:
    size = variant.tile[0]
    if not variant.name.endswith("t4x4"):
        return [(size, size, size)]
    most_k = 256 if dtype.itemsize == 2 else 32
    return [
        (m, n, k)
        for m, n, k in SIZES
        if max(m, n, k) <= 32 or (k <= most_k and max(m, n) * k * dtype.itemsize <= 16384)
    ]


def matrices(
    batch: int, rows: int, cols: int, order: str, dtype: torch.dtype, row_gap: int = 0, gap: int = 0, offset: int = 0
) -> Tensor:
    """(batch, rows, cols), row-major (N) or column-major (T), ``row_gap`` elements after each row of memory and ``gap``
    after each matrix, all of them NaN, ``offset`` behind a multiple of 16 bytes. The storage ends with the last
    element."""
    lines, length = (rows, cols) if order == "N" else (cols, rows)
    ld = length + row_gap
    step = lines * ld + gap
    extent = (batch - 1) * step + (lines - 1) * ld + length
    storage = torch.full((64 + offset + extent,), POISON, device="cuda", dtype=dtype)
    strides = (step, ld, 1) if order == "N" else (step, 1, ld)
    view = storage.as_strided((batch, rows, cols), strides, 64 + offset)
    view.copy_(rand(batch, rows, cols, dtype=dtype))
    return view


def check(variant: VariantInfo, a: Tensor, b: Tensor, row_padding: int = 0, offset: int = 64) -> Tensor:
    """Forced into a result that lies in NaN, twice."""
    __tracebackhide__ = True
    exact, magnitude = reference_matmul(a, b)
    buffer = GuardedBuffer(tuple(exact.shape), a.dtype, "cuda", row_padding=row_padding, offset=offset)
    hgemm.bmm.out(a, b, variant=variant.id, out=buffer.tensor)
    again = hgemm.bmm(a, b, variant=variant.id)
    buffer.check()
    assert_close_to_torch(buffer.tensor, exact, torch.bmm(a, b), magnitude=magnitude)
    torch.testing.assert_close(again, buffer.tensor, rtol=0, atol=0, equal_nan=True)
    return again


@pytest.mark.parametrize("batch", [1, 7, 1000, 4099])
@LAYOUTS
@KINDS
def test_sizes(variant: VariantInfo, dtype: torch.dtype, layout: str, batch: int) -> None:
    for m, n, k in sizes_of(variant, dtype):
        check(variant, matrices(batch, m, k, layout[0], dtype), matrices(batch, k, n, layout[1], dtype))


@LAYOUTS
@KINDS
def test_every_alignment(variant: VariantInfo, dtype: torch.dtype, layout: str) -> None:
    """Rows apart, matrices apart, any start, of the operands and of the result."""
    places = [(0, 0, 1), (0, 0, 3), (1, 0, 0), (3, 5, 7), (0, 1, 0), (4, 4, 4), (8, 8, 0), (0, 2, 2)]
    for m, n, k in sizes_of(variant, dtype):
        for (gap_a, step_a, offset_a), (gap_b, step_b, offset_b) in zip(places, places[3:] + places[:3], strict=True):
            a = matrices(133, m, k, layout[0], dtype, gap_a, step_a, offset_a)
            b = matrices(133, k, n, layout[1], dtype, gap_b, step_b, offset_b)
            check(variant, a, b, row_padding=gap_b, offset=61 + offset_a)


@KINDS
def test_every_number_of_rows_columns_and_k(variant: VariantInfo, dtype: torch.dtype) -> None:
    if not variant.name.endswith("t4x4"):
        pytest.skip("takes one size")
    for extent in range(1, 33):
        for m, n, k in ((extent, 6, 5), (6, extent, 5), (6, 5, extent), (extent, extent, extent)):
            check(variant, matrices(37, m, k, "N", dtype), matrices(37, k, n, "N", dtype))


@KINDS
def test_shared_and_strided_batches(variant: VariantInfo, dtype: torch.dtype) -> None:
    """One matrix for the batch, for all inner or for all outer batches; heads between rows, whose two batch strides are
    no one stride; matrices that overlap."""
    for m, n, k in sizes_of(variant, dtype):
        for order in ("N", "T"):
            a = matrices(30 * 41, m, k, order, dtype).unflatten(0, (30, 41))
            b = matrices(30 * 41, k, n, order, dtype).unflatten(0, (30, 41))
            for x, y in ((a[0, 0], b), (a[:, :1], b), (a, b[:1]), (a[:1], b), (a[:, :1], b[:1]), (a[0, :1], b[:, :1])):
                exact, magnitude = reference_matmul(x, y)
                out = hgemm.matmul(x, y, variant=variant.id)
                assert_close_to_torch(out, exact, torch.matmul(x, y), magnitude=magnitude)
        q, key = (rand(7, rows, 11, k, dtype=dtype).transpose(1, 2) for rows in (m, n))
        exact, magnitude = reference_matmul(q, key.mT)
        assert_close_to_torch(hgemm.matmul(q, key.mT, variant=variant.id), exact, q @ key.mT, magnitude=magnitude)
        a = rand(3000 + m * k, dtype=dtype).as_strided((1000, m, k), (3, k, 1))
        check(variant, a, matrices(1000, k, n, "T", dtype))


@pytest.mark.parametrize("batch", [65_537, (1 << 21) + 3])
@KINDS
def test_long_batches(variant: VariantInfo, dtype: torch.dtype, batch: int) -> None:
    m, n, k = (3, 5, 2) if variant.name.endswith("t4x4") else sizes_of(variant, dtype)[0]
    check(variant, matrices(batch, m, k, "N", dtype), matrices(batch, k, n, "T", dtype))


@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
@KINDS
def test_epilogue(variant: VariantInfo, dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    if dtype in WIDE and out_dtype is not None:
        pytest.skip("has results of its own type alone")
    for (m, n, k), gap in itertools.product(sizes_of(variant, dtype), (0, 3)):
        a, b = matrices(301, m, k, "N", dtype, gap), matrices(301, k, n, "T", dtype, gap)
        c = matrices(301, m, n, "N", dtype, gap)
        exact, magnitude = reference_matmul(a, b)
        out = hgemm.bmm(a, b, out_dtype=out_dtype, variant=variant.id)
        assert out.dtype == (out_dtype or dtype)
        assert_close_to_torch(out.to(dtype), exact, torch.bmm(a, b), magnitude=magnitude)
        for addend in (c, c[:1], c[:, :, :1], c[0, 0], c.mT.contiguous().mT):
            theirs = torch.baddbmm(addend, a, b, beta=0.5, alpha=2.0)
            out = hgemm.baddbmm(addend, a, b, beta=0.5, alpha=2.0, out_dtype=out_dtype, variant=variant.id)
            size = 2 * magnitude + widened(addend).abs()
            assert_close_to_torch(out.to(dtype), 0.5 * widened(addend) + 2 * exact, theirs, magnitude=size)
        out = hgemm.baddbmm(torch.full_like(c, POISON), a, b, beta=0, variant=variant.id)
        assert_close_to_torch(out, exact, torch.bmm(a, b), magnitude=magnitude)


@KINDS
def test_bias_and_activation(variant: VariantInfo, dtype: torch.dtype) -> None:
    for m, n, k in sizes_of(variant, dtype):
        x, weight, bias = (rand(*shape, dtype=dtype) for shape in ((m, k), (n, k), (n,)))
        product, magnitude = reference_matmul(x, weight.t())
        size, wide, theirs = magnitude + widened(bias).abs(), product + widened(bias), F.linear(x, weight, bias)
        if dtype in WIDE:
            out = hgemm.linear(x, weight, bias, variant=variant.id)
            assert_close_to_torch(out, wide, theirs, magnitude=size)
            with pytest.raises(RuntimeError, match=r"activations are computed in float32, which .* does not allow"):
                hgemm.linear(x, weight, bias, 1, variant=variant.id)
            continue
        for act, function in ACTIVATIONS.items():
            y, pre = hgemm.linear_save(x, weight, bias, act, variant=variant.id)
            assert_close_to_torch(pre, wide, theirs, magnitude=size)
            assert_close_to_torch(y, function(wide), function(theirs), magnitude=size)


@KINDS
def test_no_k_gives_the_epilogue_of_zero(variant: VariantInfo, dtype: torch.dtype) -> None:
    if not variant.name.endswith("t4x4"):
        pytest.skip("takes one size")
    for m, n in ((3, 3), (32, 17), (8, 8)):
        a, b, c = (rand(1001, *shape, dtype=dtype) for shape in ((m, 0), (0, n), (m, n)))
        assert torch.equal(hgemm.bmm(a, b, variant=variant.id), torch.zeros_like(c))
        assert torch.equal(hgemm.baddbmm(c, a, b, beta=2, variant=variant.id), 2 * c)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@KINDS
def test_special_values_stay_in_their_product(variant: VariantInfo, dtype: torch.dtype, value: float) -> None:
    for m, n, k in sizes_of(variant, dtype):
        a, b = matrices(41, m, k, "N", dtype), matrices(41, k, n, "N", dtype)
        a[7, m // 2, k - 1] = b[11, 0, 0] = b[40, k - 1, n - 1] = value
        if not dtype.is_complex:
            check(variant, a, b)
            continue
        # Whether a part of a complex product is infinite or NaN depends on the order of multiplications.
        out, theirs = hgemm.bmm(a, b, variant=variant.id), torch.bmm(a, b)
        finite, zero = theirs.isfinite(), torch.zeros_like(out)
        assert torch.equal(out.isfinite(), finite) and not bool(finite.all())
        exact, magnitude = reference_matmul(a, b)
        magnitude = magnitude.where(finite, zero.real)
        assert_close_to_torch(
            out.where(finite, zero), exact.where(finite, zero), theirs.where(finite, zero), magnitude=magnitude
        )


@DTYPES
def test_all_kernels_give_the_same_bits_wherever_a_product_lies(dtype: torch.dtype) -> None:
    """Layouts, neighbours, the rest of the matrix and the length of the batch have no say."""
    for size in range(2, 7):
        a, b = rand(1003, size, size, dtype=dtype), rand(1003, size, size, dtype=dtype)
        able = [v for v in KERNELS if dtype in v.dtypes and (v.tile[0] == size or v.name.endswith("t4x4"))]
        results = [hgemm.bmm(a, b, variant=v.id) for v in able]
        for transposed_a, transposed_b in itertools.product((False, True), repeat=2):
            x = a.mT.contiguous().mT if transposed_a else a
            y = b.mT.contiguous().mT if transposed_b else b
            results += [hgemm.bmm(x, y, variant=v.id) for v in able]
        parts = list(zip(a.split(17), b.split(17), strict=True))
        results += [torch.cat([hgemm.bmm(x, y, variant=v.id) for x, y in parts]) for v in able]
        assert len(able) == (1 if dtype in WIDE and size > 4 else 2)
        for out in results[1:]:
            assert torch.equal(out, results[0])
    tile = next(v for v in KERNELS if v.name.endswith("t4x4"))
    a, b = rand(501, 19, 27, dtype=dtype), rand(501, 27, 30, dtype=dtype)
    whole = hgemm.bmm(a, b, variant=tile.id)
    for m, n in ((1, 30), (5, 7), (19, 4)):
        part = hgemm.bmm(a[:, :m], b[:, :, -n:], variant=tile.id)
        assert torch.equal(part, whole[:, :m, -n:])


@DTYPES
def test_torchs_functions_reach_it(dtype: torch.dtype) -> None:
    a, b, c = (rand(2000, 5, 5, dtype=dtype) for _ in range(3))
    weight = rand(5, 5, dtype=dtype)
    functions = {
        "bmm": lambda: torch.bmm(a, b),
        "matmul": lambda: a @ b,
        "einsum": lambda: torch.einsum("bij,bjk->bik", a, b),
        "einsum, transposed": lambda: torch.einsum("bij,bkj->bik", a, b),
        "baddbmm": lambda: torch.baddbmm(c, a, b, beta=0.5),
        "vmap": lambda: torch.func.vmap(torch.matmul)(a, b),
        "vmap, shared": lambda: torch.func.vmap(lambda x: weight @ x)(a),
    }
    for name, function in functions.items():
        theirs = function()
        exact, magnitude = reference_matmul(
            *{"vmap, shared": (weight, a), "einsum, transposed": (a, b.mT)}.get(name, (a, b))
        )
        if name == "baddbmm":
            exact, magnitude = exact + 0.5 * widened(c), magnitude + widened(c).abs()
        with hgemm_ops.use_custom_gemm() as report:
            out = function()
        assert_close_to_torch(out, exact, theirs, magnitude=magnitude)
        ours = sum(calls(report, v.name) for v in KERNELS)
        if name != "vmap, shared":  # which torch may fold into one product
            assert ours == 1, f"{name}: {report}"


@DTYPES
def test_gradients_are_tiny_batches_too(dtype: torch.dtype) -> None:
    def run(a: Tensor, b: Tensor) -> list[Tensor]:
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        out = torch.bmm(a, b)
        seed = torch.linspace(-1, 1, out.numel(), device="cuda").to(dtype).view(out.shape).to(out.dtype)
        return [out.detach(), *torch.autograd.grad(out, (a, b), seed)]

    for m, n, k in ((3, 3, 3), (7, 5, 6), (4, 4, 4)):
        a, b = rand(3000, m, k, dtype=dtype), rand(3000, k, n, dtype=dtype)
        theirs, exact = run(a, b), run(widened(a), widened(b))
        with hgemm_ops.use_custom_gemm() as report:
            ours = run(a, b)
        for got, other, ref in zip(ours, theirs, exact, strict=True):
            assert_as_good(got, other, ref, units=4)
        assert sum(calls(report, v.name) for v in KERNELS) == 3, str(report)


@VARIANTS
def test_a_chain_of_products(variant: VariantInfo) -> None:
    """Kernels overlap their predecessors' ends, whose results they read."""
    size = variant.tile[0]
    factors = [rand(20_000, size, size) * (3 / size) ** 0.5 for _ in range(6)]  # sums neither grow nor vanish
    check_a_chain_of_products(variant.id, factors)


@VARIANTS
def test_other_sizes_are_refused_with_the_limit(variant: VariantInfo) -> None:
    limit = "at most 32" if variant.name.endswith("t4x4") else str(variant.tile[0])
    for m, n, k in ((33, 2, 2), (2, 33, 2), (2, 2, 33)):
        with pytest.raises(RuntimeError, match=rf"M, N and K must be {limit}, got {m}, {n} and {k}"):
            hgemm.bmm(rand(2, m, k), rand(2, k, n), variant=variant.id)


def test_float64_sums_are_float64() -> None:
    """Against exact sums, with elements of 53 bits."""
    beta, alpha = 1 / 3, 1 / 7
    for m, n, k in ((2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 8, 7), (8, 8, 8)):
        a, b, c = (
            torch.rand(1000, *shape, dtype=torch.float64, device="cuda") * 2 - 1 for shape in ((m, k), (k, n), (m, n))
        )
        with use_custom_gemm() as report:
            out, added = torch.bmm(a, b), torch.baddbmm(c, a, b, beta=beta, alpha=alpha)
        assert sum(calls(report, v.name) for v in KERNELS) == 2, str(report)
        theirs, theirs_added = torch.bmm(a, b), torch.baddbmm(c, a, b, beta=beta, alpha=alpha)
        some = slice(990, 1000)
        products, sums = [], []
        for x, y, z in zip(a[some].tolist(), b[some].tolist(), c[some].tolist(), strict=True):
            for i, j in itertools.product(range(m), range(n)):
                total = sum((Fraction(x[i][q]) * Fraction(y[q][j]) for q in range(k)), Fraction(0))
                products.append(float(total))
                sums.append(float(Fraction(beta) * Fraction(z[i][j]) + Fraction(alpha) * total))
        exact, exact_added = (torch.tensor(x, device="cuda", dtype=a.dtype).view(-1, m, n) for x in (products, sums))
        magnitude = (a.abs() @ b.abs())[some]
        assert_close_to_torch(out[some], exact, theirs[some], magnitude=magnitude)
        magnitude = magnitude * alpha + c[some].abs() * beta
        assert_close_to_torch(added[some], exact_added, theirs_added[some], magnitude=magnitude)


CONJUGATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "conj": lambda x: x.conj(),
    "mH": lambda x: x.mT.contiguous().mH,
    "twice": lambda x: x.conj().conj(),
    "no unit stride": lambda x: x.repeat_interleave(2, -1).repeat_interleave(2, -2)[..., ::2, ::2].conj(),
    "shared": lambda x: x[:1].conj().expand(x.shape),
    "resolved": lambda x: x.conj().resolve_conj(),
}


@pytest.mark.parametrize("of_b", CONJUGATIONS)
@pytest.mark.parametrize("of_a", CONJUGATIONS)
def test_conjugated_operands_are_read_in_place(of_a: str, of_b: str) -> None:
    for m, n, k in ((2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 8, 7)):
        a, b, c = (rand(2000, *shape, dtype=torch.complex64) for shape in ((m, k), (k, n), (m, n)))
        x, y = CONJUGATIONS[of_a](a), CONJUGATIONS[of_b](b)
        exact, magnitude = reference_matmul(x, y)
        scaled, size = 0.5 * widened(c) - 2 * exact, 2 * magnitude + widened(c).abs()
        with use_custom_gemm() as report:
            out = torch.bmm(x, y)
            added = torch.baddbmm(c, x, y, beta=0.5, alpha=-2)
            into = torch.bmm(x, y, out=torch.full_like(c, POISON))
            of_scalars = torch.baddbmm(c, x, y, beta=0.5j, alpha=1 - 2j)
            of_conjugate = torch.baddbmm(c.conj(), x, y)
        assert sum(calls(report, v.name) for v in KERNELS) == 3, str(report)
        assert_close_to_torch(out, exact, torch.bmm(x, y), magnitude=magnitude)
        assert torch.equal(into, out)
        assert_close_to_torch(added, scaled, torch.baddbmm(c, x, y, beta=0.5, alpha=-2), magnitude=size)
        torch.testing.assert_close(of_scalars, torch.baddbmm(c, x, y, beta=0.5j, alpha=1 - 2j))
        torch.testing.assert_close(of_conjugate, torch.baddbmm(c.conj(), x, y))


def test_dots_of_complex_vectors_are_torchs_where_a_kernel_is_named() -> None:
    """vdot conjugates its first vector, which the kernel has to know."""
    a, b = rand(8, dtype=torch.complex64), rand(8, dtype=torch.complex64)
    for variant in (None, "tiny_batch_t4x4"):
        with use_custom_gemm(variant=variant):
            for x, y in itertools.product((a, a.conj()), (b, b.conj())):
                for function in (torch.dot, torch.vdot):
                    torch.testing.assert_close(widened(function(x, y)), function(widened(x), widened(y)))
    assert not torch.isclose(torch.dot(a, b), torch.vdot(a, b))


def test_hermitian_products_are_hermitian_to_the_bit() -> None:
    for rows, k in ((2, 2), (3, 3), (4, 4), (5, 7), (8, 8)):
        x = rand(2000, rows, k, dtype=torch.complex64)
        with use_custom_gemm() as report:
            of_rows, of_columns, symmetric = x @ x.mH, x.mH @ x, x @ x.mT
        assert sum(calls(report, v.name) for v in KERNELS) == 3, str(report)
        for d in (of_rows, of_columns):
            assert torch.equal(d.real, d.mT.real) and torch.equal(d.imag, -d.mT.imag)
        assert torch.equal(symmetric, symmetric.mT)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_a_shared_operand_leaves_a_batch_of_wide_elements(dtype: torch.dtype) -> None:
    """Of other types torch's rules make one product of it."""
    for m, n, k in ((3, 3, 3), (8, 5, 8), (1, 8, 6), (8, 1, 8)):
        a, b = rand(5000, m, k, dtype=dtype), rand(k, n, dtype=dtype).expand(5000, k, n)
        exact, magnitude = reference_matmul(a, b)
        with use_custom_gemm() as report:
            out = torch.bmm(a, b)
        assert sum(calls(report, v.name) for v in KERNELS) == 1, str(report)
        assert_close_to_torch(out, exact, torch.bmm(a, b), magnitude=magnitude)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_random_calls_of_wide_types(dtype: torch.dtype, seed: int) -> None:
    """Layouts, gaps, shared and conjugated operands, addends and out=, by torch's functions in a context."""
    source = random.Random(seed)
    served = 0
    for _ in range(25):
        most = source.choice((4, 8, 32))
        m, n, k = (source.randint(1, most) for _ in range(3))
        batch = source.choice((source.randint(1, 999), source.randint(1000, 3000)))

        def operand(rows: int, cols: int, batch: int = batch) -> Tensor:
            gaps = [source.choice((0, 0, 1, 2, 5)) for _ in range(3)]
            x = matrices(batch, rows, cols, source.choice("NT"), dtype, *gaps)
            if source.random() < 0.2:
                x = x[:1].expand(x.shape)
            return x.conj() if dtype.is_complex and source.random() < 0.4 else x

        a, b = operand(m, k), operand(k, n)
        exact, size = reference_matmul(a, b)
        if source.random() < 0.4:
            alpha, beta = source.choice((1, -2.5, 1 / 3)), source.choice((0, 1, 0.75))
            c = source.choice((rand(batch, m, n, dtype=dtype), rand(n, dtype=dtype), rand(1, m, 1, dtype=dtype)))
            exact, size = beta * widened(c) + alpha * exact, abs(beta) * widened(c).abs() + abs(alpha) * size
            call = partial(torch.baddbmm, c, a, b, alpha=alpha, beta=beta)
        else:
            call = partial(torch.bmm, a, b)
        out = torch.full((batch, m, n), POISON, device="cuda", dtype=dtype) if source.random() < 0.3 else None
        theirs = call()
        with use_custom_gemm() as report:
            ours = call(out=out)
        served += sum(calls(report, v.name) for v in KERNELS)
        assert_close_to_torch(ours, exact, theirs, magnitude=size, units=2)
    assert served >= 4
