"""What torch promises beyond ordinary numbers: NaN, infinity, K = 0, empty and huge results, errors, determinism."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    ACTIVATIONS,
    POISON,
    assert_close_to_torch,
    half_candidates,
    poisoned_cuda_memory,
    production,
    rand,
    reference_matmul,
    refusal_allowed,
)
from torch import Tensor

import hgemm_ops

pytestmark = pytest.mark.gpu

HALF = [torch.float16, torch.bfloat16]
NAN, INF = float("nan"), float("inf")
hgemm = torch.ops.hgemm


def forced(a: Tensor, b: Tensor) -> list[int]:
    """The dispatcher's choice (-1) and every production kernel that serves ``a @ b``."""
    serves = {c.name for c in hgemm_ops.explain(a, b).candidates if c.eligible}
    return [-1, *(v.id for v in production() if v.name in serves)]


def assert_same(got: Tensor, expected: Tensor) -> None:
    """Equal shapes, dtypes and bits (but for the payload of NaN)."""
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


# NaN and infinity


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("shape", [(70, 90, 50), (64, 128, 256), (3, 200, 600)], ids=str)
def test_special_values_spread_as_in_torch(dtype: torch.dtype, value: float, shape: tuple[int, int, int]) -> None:
    """One bad element of A or B reaches its row or column, with 0 * inf and inf - inf NaN, and nothing else."""
    m, n, k = shape
    a, b = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
    a[m // 2, k - 1] = value
    b[0, n - 1] = value
    b[k - 1, : n // 2] = 0
    exact, magnitude = reference_matmul(a, b)
    for variant in forced(a, b):
        out = hgemm.mm(a, b, variant=variant)
        assert_close_to_torch(out, exact, exact.to(dtype), magnitude=magnitude)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_results_beyond_the_range_are_infinite(dtype: torch.dtype) -> None:
    limit = torch.finfo(dtype).max
    a, b = rand(40, 33, dtype=dtype), rand(33, 24, dtype=dtype)
    a[5], b[:, 7] = limit / 8, 8
    a[6] = -limit / 8
    theirs = a @ b
    assert theirs[5, 7] == INF and theirs[6, 7] == -INF
    for variant in forced(a, b):
        out = hgemm.mm(a, b, variant=variant)
        assert out[5, 7] == INF and out[6, 7] == -INF
        if dtype == torch.float16:
            with refusal_allowed(variant):
                wide = hgemm.mm(a, b, out_dtype=torch.float32, variant=variant)
                torch.testing.assert_close(wide[5, 7].item(), 33.0 * limit, rtol=1e-4, atol=0)


@pytest.mark.parametrize("act", range(5))
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_special_values_through_the_epilogue(dtype: torch.dtype, act: int) -> None:
    x, weight, bias = rand(40, 64, dtype=dtype), rand(48, 64, dtype=dtype), rand(48, dtype=dtype)
    x[3, 5], bias[1], bias[2], bias[3] = NAN, NAN, INF, -INF
    expected = ACTIVATIONS[act](F.linear(x, weight, bias))
    exact = ACTIVATIONS[act](F.linear(x.double(), weight.double(), bias.double()))
    for variant in forced(x, weight.t()):
        with refusal_allowed(variant):
            out = hgemm.linear(x, weight, bias, act, variant=variant)
            assert_close_to_torch(out, exact, expected)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_beta_zero_ignores_the_addend(dtype: torch.dtype) -> None:
    a, b = rand(5, 40, 64, dtype=dtype), rand(5, 64, 48, dtype=dtype)
    c = torch.full((5, 40, 48), NAN, device="cuda", dtype=dtype)
    exact, magnitude = reference_matmul(a, b)
    theirs = torch.bmm(a, b)
    for variant in forced(a, b):
        out = hgemm.baddbmm(c, a, b, beta=0.0, variant=variant)
        assert_close_to_torch(out, exact, theirs, magnitude=magnitude)
    for variant in forced(a[0], b[0]):
        out = hgemm.addmm(c[0], a[0], b[0], beta=0.0, variant=variant)
        assert_close_to_torch(out, exact[0], theirs[0], magnitude=magnitude[0])


def test_addend_spreads_nan_unless_beta_is_zero() -> None:
    a, b, c = rand(40, 64), rand(64, 48), rand(40, 48)
    c[7, 9] = NAN
    for variant in forced(a, b):
        with refusal_allowed(variant):
            isnan = hgemm.addmm(c, a, b, beta=0.5, variant=variant).isnan()
            assert isnan[7, 9] and isnan.sum() == 1


# K = 0 and empty results


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_no_inner_dimension(dtype: torch.dtype) -> None:
    """Sums of nothing are zero; bias, addend and activation still count. The memory behind the result is poisoned."""
    a, b, bias, c = (rand(*shape, dtype=dtype) for shape in ((70, 0), (0, 90), (90,), (70, 90)))
    batched = rand(3, 70, 0, dtype=dtype)
    for variant in forced(a, b):
        with poisoned_cuda_memory():
            assert_same(hgemm.mm(a, b, variant=variant), torch.zeros_like(c))
            assert_same(hgemm.matmul(batched, b, variant=variant), torch.zeros(3, 70, 90, device="cuda", dtype=dtype))
            assert_same(hgemm.linear(a, b.t(), bias, 1, variant=variant), bias.relu().expand(70, 90).contiguous())
            assert_same(hgemm.addmm(c, a, b, beta=0.5, alpha=3.0, variant=variant), 0.5 * c)
            assert_same(hgemm.addmm(c * NAN, a, b, beta=0.0, variant=variant), torch.zeros_like(c))
            out = torch.full_like(c, POISON)
            hgemm.mm.out(a, b, variant=variant, out=out)
            assert_same(out, torch.zeros_like(c))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0, 5), (5, 7)),
        ((4, 5), (5, 0)),
        ((0, 0), (0, 0)),
        ((0, 4, 5), (5, 7)),
        ((2, 0, 5), (2, 5, 7)),
        ((3, 1, 4, 0), (0, 0, 7)),
        ((0,), (0,)),
        ((0, 5), (5,)),
        ((0,), (0, 4)),
    ],
    ids=str,
)
def test_empty(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = rand(*a), rand(*b)
    assert_same(hgemm.matmul(x, y), torch.matmul(x, y))


# Sizes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_more_than_2_to_the_31_results(dtype: torch.dtype) -> None:
    m, n, k = 65536, 40000, 8
    needed = 4 * m * n * dtype.itemsize
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free GPU memory")
    a, b = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
    rows = torch.cat([torch.tensor([0, 1, m // 2, 53687, m - 2, m - 1]), torch.randint(m, (250,))]).cuda()
    exact, magnitude = reference_matmul(a[rows], b)
    theirs = a[rows] @ b
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    for variant in forced(a, b):
        out.fill_(POISON)
        hgemm.mm.out(a, b, variant=variant, out=out)
        assert_close_to_torch(out[rows], exact, theirs, magnitude=magnitude)
        assert not any(chunk.isnan().any() for chunk in out.split(4096)), "elements were not written"


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True], ids=["row-major", "column-major"])
def test_operand_of_more_than_2_to_the_31_elements(transposed: bool) -> None:
    m, n, k = 70000, 24, 32768
    if torch.cuda.mem_get_info()[0] < 8 * m * k:
        pytest.skip(f"needs {8 * m * k >> 30} GiB of free GPU memory")
    a = torch.empty((k, m) if transposed else (m, k), device="cuda", dtype=torch.float16).uniform_(-1, 1)
    a = a.t() if transposed else a
    b = rand(k, n)
    rows = torch.tensor([0, 1, m // 2, m - 2, m - 1], device="cuda")
    exact, magnitude = reference_matmul(a[rows], b)
    theirs = a[rows] @ b
    for variant in forced(a, b):
        assert_close_to_torch(hgemm.mm(a, b, variant=variant)[rows], exact, theirs, magnitude=k // 16384 * magnitude)


@pytest.mark.parametrize("batch", [65536, 70001])
def test_more_batches_than_a_grid_has_rows(batch: int) -> None:
    a, b = rand(batch, 5, 8), rand(batch, 8, 6)
    exact, magnitude = reference_matmul(a, b)
    theirs = torch.bmm(a, b)
    for variant in forced(a, b):
        assert_close_to_torch(hgemm.bmm(a, b, variant=variant), exact, theirs, magnitude=magnitude)


@pytest.mark.parametrize("shape", [(4200000, 3, 16), (3, 4200000, 16), (1, 1, 300000)], ids=str)
def test_extreme_shapes(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = rand(m, k), rand(k, n)
    exact, magnitude = reference_matmul(a, b)
    theirs = a @ b
    for variant in forced(a, b):
        out = hgemm.mm(a, b, variant=variant)
        assert_close_to_torch(out, exact, theirs, magnitude=max(1, k // 16384) * magnitude)


# Results


@pytest.mark.parametrize("shape", [(64, 64, 4096), (257, 300, 1000), (1, 4096, 4096), (512, 512, 512)], ids=str)
def test_runs_are_bitwise_equal(shape: tuple[int, int, int]) -> None:
    """Split-K included: partial sums are added in a fixed order, whatever order blocks finish in."""
    m, n, k = shape
    a, b = rand(m, k), rand(k, n)
    for variant in forced(a, b):
        first = hgemm.mm(a, b, variant=variant)
        for _ in range(10):
            assert torch.equal(hgemm.mm(a, b, variant=variant), first)
    for _ in range(5):
        with poisoned_cuda_memory(1 << 24):
            for variant in forced(a, b)[1:]:
                assert not hgemm.mm(a, b, variant=variant).isnan().any(), "the workspace was read before it was written"


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided", "offset"])
def test_out_in_any_layout(layout: str) -> None:
    a, b = rand(40, 64), rand(64, 48)
    memory = torch.full((20000,), POISON, device="cuda", dtype=a.dtype)
    strides, offset = {
        "contiguous": ((48, 1), 0),
        "transposed": ((1, 40), 0),
        "strided": ((290, 3), 0),
        "offset": ((48, 1), 1),
    }[layout]
    out = memory.as_strided((40, 48), strides, offset)
    exact, magnitude = reference_matmul(a, b)
    for variant in forced(a, b):
        out.fill_(POISON)
        with refusal_allowed(variant):
            result = hgemm.mm.out(a, b, variant=variant, out=out)
            assert result.data_ptr() == out.data_ptr() and result.stride() == out.stride() == strides
            assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)
    hgemm.mm.out(a, b, out=out)
    assert memory.isnan().sum() == memory.numel() - out.numel()


def test_out_that_is_also_an_operand() -> None:
    a, b, c = rand(64, 64), rand(64, 64), rand(64, 64)
    for variant in forced(a, b):
        x, y = a.clone(), c.clone()
        with refusal_allowed(variant):
            hgemm.addmm.out(y, a, b, variant=variant, out=y)
            assert_same(y, hgemm.addmm(c, a, b, variant=variant))
        hgemm.mm.out(x, b, variant=variant, out=x)
        assert_same(x, hgemm.mm(a, b, variant=variant))


def test_result_is_row_major() -> None:
    """Whatever the operands' layouts are; torch.matmul may choose others, ours does not."""
    a, b = rand(3, 64, 40).mT, rand(3, 48, 64).mT
    for out in (hgemm.bmm(a, b), hgemm.matmul(a, b), hgemm.mm(a[0], b[0]), hgemm.linear(a, b[0].mT)):
        assert out.is_contiguous()


# What is not ours


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
def test_other_dtypes_give_what_torch_gives(dtype: torch.dtype) -> None:
    a, b = torch.randn(33, 65, device="cuda", dtype=dtype), torch.randn(65, 17, device="cuda", dtype=dtype)
    c = torch.randn(33, 17, device="cuda", dtype=dtype)
    torch.testing.assert_close(hgemm.mm(a, b), torch.mm(a, b))
    torch.testing.assert_close(hgemm.matmul(a, b), torch.matmul(a, b))
    torch.testing.assert_close(hgemm.addmm(c, a, b, beta=0.5, alpha=2.0), torch.addmm(c, a, b, beta=0.5, alpha=2.0))
    torch.testing.assert_close(hgemm.linear(a, b.t(), None), F.linear(a, b.t()))
    if dtype in (torch.float32, torch.float64):
        return  # kernels take these; whether one serves the matmul is the dispatcher's business
    explanation = hgemm_ops.explain(a, b)
    assert explanation.chosen == "torch"
    assert str(dtype).removeprefix("torch.") in explanation.reason


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool], ids=str)
def test_dtypes_that_torch_refuses(dtype: torch.dtype) -> None:
    a = torch.ones(16, 16, device="cuda", dtype=dtype)
    for mm in (torch.mm, hgemm.mm):
        with pytest.raises(RuntimeError):  # or NotImplementedError, which is one
            mm(a, a)


def half(*shape: int) -> Tensor:
    return torch.ones(shape, device="cuda", dtype=torch.float16)


ERRORS: dict[str, tuple[Callable[[], object], Callable[[], object], tuple[str, ...]]] = {
    # What torch says, what we say, what our message must contain.
    "inner sizes": (
        lambda: torch.mm(half(4, 5), half(6, 3)),
        lambda: hgemm.mm(half(4, 5), half(6, 3)),
        ("hgemm::mm", "(4, 5)", "(6, 3)", "5 and 6"),
    ),
    "batch sizes": (
        lambda: torch.bmm(half(2, 4, 5), half(3, 5, 6)),
        lambda: hgemm.bmm(half(2, 4, 5), half(3, 5, 6)),
        ("hgemm::bmm", "2", "3"),
    ),
    "broadcast": (
        lambda: torch.matmul(half(2, 4, 5), half(3, 5, 6)),
        lambda: hgemm.matmul(half(2, 4, 5), half(3, 5, 6)),
        ("hgemm::matmul", "(2, 4, 5)", "(3, 5, 6)"),
    ),
    "dimensions": (
        lambda: torch.mm(half(2, 4, 5), half(5, 6)),
        lambda: hgemm.mm(half(2, 4, 5), half(5, 6)),
        ("hgemm::mm", "(2, 4, 5)", "2"),
    ),
    "features": (
        lambda: F.linear(half(4, 5), half(6, 7)),
        lambda: hgemm.linear(half(4, 5), half(6, 7)),
        ("hgemm::linear", "(4, 5)", "(6, 7)"),
    ),
    "bias": (
        lambda: F.linear(half(4, 5), half(6, 5), half(7)),
        lambda: hgemm.linear(half(4, 5), half(6, 5), half(7)),
        ("hgemm::linear", "bias", "7"),
    ),
    "addend": (
        lambda: torch.addmm(half(3, 6), half(4, 5), half(5, 6)),
        lambda: hgemm.addmm(half(3, 6), half(4, 5), half(5, 6)),
        ("hgemm::addmm", "input", "(3, 6)"),
    ),
    "dtypes": (
        lambda: torch.mm(half(4, 5), half(5, 6).bfloat16()),
        lambda: hgemm.mm(half(4, 5), half(5, 6).bfloat16()),
        ("hgemm::mm", "float16", "bfloat16"),
    ),
    "half and single": (
        lambda: torch.mm(half(4, 5), half(5, 6).float()),
        lambda: hgemm.mm(half(4, 5), half(5, 6).float()),
        ("hgemm::mm", "float16", "float32"),
    ),
    "devices": (
        lambda: torch.mm(half(4, 5), half(5, 6).cpu()),
        lambda: hgemm.mm(half(4, 5), half(5, 6).cpu()),
        ("hgemm::mm", "cuda:0", "cpu"),
    ),
    "cpu first": (
        lambda: torch.mm(half(4, 5).cpu(), half(5, 6)),
        lambda: hgemm.mm(half(4, 5).cpu(), half(5, 6)),
        ("hgemm::mm", "cuda:0", "cpu"),
    ),
    "bias device": (
        lambda: F.linear(half(4, 5), half(6, 5), half(6).cpu()),
        lambda: hgemm.linear(half(4, 5), half(6, 5), half(6).cpu()),
        ("hgemm::linear", "bias", "cuda:0", "cpu"),
    ),
    "not a tensor": (
        lambda: torch.matmul(half(4, 5), 3),  # type: ignore[arg-type]
        lambda: hgemm_ops.matmul(half(4, 5), 3),  # type: ignore[arg-type]
        ("matmul", "b", "int"),
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_have_torchs_type_and_say_what_was_given(case: str) -> None:
    theirs, ours, parts = ERRORS[case]
    with pytest.raises(Exception) as expected:
        theirs()
    with pytest.raises(expected.type) as raised:
        ours()
    message = str(raised.value)
    assert all(part in message for part in parts), message


OPTIONS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "variant by number": (lambda: hgemm.mm(half(4, 5), half(5, 6), variant=9999), RuntimeError, "variant.*9999"),
    "variant by name": (lambda: hgemm_ops.matmul(half(4, 5), half(5, 6), variant="best"), ValueError, "best"),
    "activation by number": (lambda: hgemm.linear(half(4, 5), half(6, 5), None, 5), RuntimeError, "act.*5"),
    "activation by name": (lambda: hgemm_ops.linear(half(4, 5), half(6, 5), activation="elu"), ValueError, "elu"),
    "out_dtype": (lambda: hgemm.mm(half(4, 5), half(5, 6), out_dtype=torch.bfloat16), RuntimeError, "out_dtype.*bf"),
    "dtype of out": (
        lambda: hgemm.mm.out(half(4, 5), half(5, 6), out=half(4, 6).float()),
        RuntimeError,
        "out.*float32",
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_are_checked(case: str) -> None:
    call, error, pattern = OPTIONS[case]
    with pytest.raises(error, match=pattern):
        call()


def test_a_kernel_that_cannot_serve_is_refused_with_its_reason() -> None:
    """Operands without any alignment: kernels with wide copies only cannot take them, and say so when forced."""
    a, b = rand(65, 130)[1:, 1:], rand(130, 67)[1:, 1:]
    refused = [c for c in half_candidates(a, b) if not c.eligible]
    assert refused, "every kernel takes unaligned operands: find another problem for this test"
    for candidate in refused:
        with pytest.raises(RuntimeError) as raised:
            hgemm_ops.matmul(a, b, variant=candidate.name)
        message = str(raised.value)
        assert candidate.name in message and candidate.reason in message
