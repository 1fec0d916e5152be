"""complex64 as real products over planes: no larger errors than torch's, in every layout, conjugated and transposed
views, with every epilogue, and on values that planes cannot hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from helpers import DEVICE, ON_GPU, POISON, GuardedBuffer, assert_as_good, assert_close_to_torch, expect_calls, least_k
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo, _native, use_custom_gemm

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("without_tf32")]

C64, C128 = torch.complex64, torch.complex128
_MARKS = {"sm80_split": (), "sm90_split": (pytest.mark.sm90,)}
VARIANTS = pytest.mark.parametrize(
    "variant", [pytest.param(v, marks=_MARKS[v.family], id=v.name) for v in hgemm_ops.variants() if v.family in _MARKS]
)
_ROUNDING = 2.0**-24  # the most that one rounding of a float32 loses, relative


def normal(*shape: int) -> Tensor:
    return torch.complex(torch.randn(shape, device=DEVICE), torch.randn(shape, device=DEVICE))


def least(variant: VariantInfo) -> int:
    """The least K: the real product has twice as many terms."""
    return max(1, least_k(variant) // 2)


@contextmanager
def forced(variant: VariantInfo) -> Iterator[None]:
    """The kernel computes every complex product, and is seen to do so."""
    with use_custom_gemm(variant=variant.name) as report:
        yield
    if ON_GPU:
        assert {row.variant for row in report.rows} == {variant.name}, str(report)


def scales(*shape: int, most: int) -> Tensor:
    return torch.exp2((torch.rand(shape, device=DEVICE) * 2 - 1) * most)


def outliers() -> tuple[Tensor, Tensor]:
    a = normal(256, 2048)
    a[:, :8] *= 200
    return a, normal(2048, 192)


def shared_range(most: int) -> tuple[Tensor, Tensor]:
    scale = scales(1, 2048, most=most)
    return normal(256, 2048) * scale, normal(2048, 192) / scale.t()


def of_parts(parts: Callable[..., Tensor], k: int) -> tuple[Tensor, Tensor]:
    return torch.complex(parts(256, k), parts(256, k)), torch.complex(parts(k, 192), parts(k, 192))


def uniform(*shape: int) -> Tensor:
    return torch.rand(shape, device=DEVICE)


CASES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    **{f"normal K={k}": lambda k=k: (normal(256, k), normal(k, 192)) for k in (64, 1000, 4096, 32768)},
    "of one sign": lambda: of_parts(uniform, 2048),
    "real": lambda: (normal(256, 1024).real.to(C64), normal(1024, 192)),
    "imaginary": lambda: (normal(256, 1024).real * 1j, normal(1024, 192).real * 1j),
    "phases": lambda: (torch.polar(uniform(256, 2048), 7 * uniform(256, 2048)), normal(2048, 192)),
    "small imaginary parts": lambda: (
        torch.complex(normal(256, 2048).real, normal(256, 2048).imag * 1e-6),
        normal(2048, 192),
    ),
    "elements 2^U(-12,12)": lambda: (normal(256, 2048) * scales(256, 2048, most=12), normal(2048, 192)),
    "elements 2^U(-60,60)": lambda: (normal(256, 2048) * scales(256, 2048, most=60), normal(2048, 192)),
    "rows 2^U(-60,60)": lambda: (normal(256, 2048) * scales(256, 1, most=60), normal(2048, 192)),
    "outlier channels": outliers,
    "a shared range of 2^U(-30,30)": lambda: shared_range(30),
    "identity": lambda: (torch.eye(256, device=DEVICE, dtype=C64) * 1j, normal(256, 192)),
    "tiny": lambda: (normal(200, 300) * 1e-36, normal(300, 200)),
    "tiny results": lambda: (normal(200, 300) * 1e-20, normal(300, 200) * 1e-20),
    "large": lambda: (normal(200, 300) * 1e37, normal(300, 200) * 1e-3),
}


def errors(out: Tensor, a: Tensor, b: Tensor) -> tuple[float, float]:
    """The largest error of a part beside |A||B|, and the root mean square of all beside the result's."""
    exact, magnitude = a.to(C128) @ b.to(C128), a.to(C128).abs() @ b.to(C128).abs()
    error = torch.view_as_real(out.to(C128) - exact).abs()
    square = torch.view_as_real(exact).square().mean()
    return (error / magnitude[..., None]).nan_to_num(0).max().item(), (error.square().mean() / square).sqrt().item()


def check_mm(variant: VariantInfo, a: Tensor, b: Tensor) -> None:
    exact, magnitude = a.to(C128) @ b.to(C128), a.to(C128).abs() @ b.to(C128).abs()
    with forced(variant):
        out = torch.mm(a, b)
    assert_close_to_torch(out, exact, torch.mm(a, b), magnitude=magnitude)


@pytest.mark.parametrize("case", CASES)
@VARIANTS
def test_errors_are_at_most_torchs(variant: VariantInfo, case: str) -> None:
    torch.manual_seed(0)
    a, b = CASES[case]()
    most, rms = errors(torch.mm(a, b), a, b)
    with forced(variant):
        out = torch.mm(a, b)
    split_most, split_rms = errors(out, a, b)
    assert split_most <= most + _ROUNDING and split_rms <= rms + _ROUNDING / math.sqrt(3)


#: Views of a matrix's memory as another one. Each undoes itself.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "transposed": lambda x: x.mT,
    "conjugated": lambda x: x.conj(),
    "adjoint": lambda x: x.mH,
}


def viewed(view: str, *shape: int, padding: int = 0) -> Tensor:
    """A view with this shape, of memory whose rows have `padding` elements more, and which starts at the second."""
    *batch, rows, cols = VIEWS[view](torch.empty(shape, device="meta")).shape
    whole = torch.full((*batch, rows + 1, cols + padding), complex(math.nan, math.nan), device=DEVICE, dtype=C64)
    inner = whole[..., 1:, :cols] if padding % 2 == 0 else whole[..., 1:, 1 : cols + 1]
    inner.copy_(normal(*batch, rows, cols))
    return VIEWS[view](inner)


SIZES = ((300, 200, 260), (129, 65, 515), (257, 131, 1031), (128, 64, 64), (70, 331, 100))


@pytest.mark.parametrize("of_b", VIEWS)
@pytest.mark.parametrize("of_a", VIEWS)
@VARIANTS
def test_views_are_read_in_place(variant: VariantInfo, of_a: str, of_b: str) -> None:
    """Ragged sizes, slices whose rows are off 16 bytes, and nothing written beside the result."""
    torch.manual_seed(1)
    for i, (m, n, k) in enumerate(SIZES):
        a, b = viewed(of_a, m, k, padding=i % 4), viewed(of_b, k, n, padding=i * 3 % 4)
        assert a.is_conj() == (of_a in ("conjugated", "adjoint"))
        out = GuardedBuffer((m, n), C64, DEVICE)
        with forced(variant):
            torch.mm(a, b, out=out.tensor)
        out.check()
        exact, magnitude = a.to(C128) @ b.to(C128), a.to(C128).abs() @ b.to(C128).abs()
        assert_close_to_torch(out.tensor, exact, torch.mm(a, b), magnitude=magnitude)


@VARIANTS
def test_a_conjugated_view_takes_no_memory(variant: VariantInfo) -> None:
    a, b = normal(512, 512), normal(512, 512)

    def peak(x: Tensor, y: Tensor) -> int:
        torch.cuda.reset_peak_memory_stats()
        with forced(variant):
            torch.mm(x, y)
        return torch.cuda.max_memory_allocated()

    torch.mm(a, b)
    assert peak(a.mH, b.conj()) == peak(a.mT, b)


ADDENDS: dict[str, Callable[[], Tensor]] = {
    "a matrix": lambda: normal(300, 200),
    "a transposed matrix": lambda: normal(200, 300).mT,
    "a row": lambda: normal(200),
    "a column": lambda: normal(300, 1),
    "a value": lambda: normal(1, 1),
}


@pytest.mark.parametrize("addend", ADDENDS)
@VARIANTS
def test_addends(variant: VariantInfo, addend: str) -> None:
    torch.manual_seed(2)
    a, b, c = normal(300, 260), normal(200, 260).mH, ADDENDS[addend]()
    exact, magnitude = a.to(C128) @ b.to(C128), a.to(C128).abs() @ b.to(C128).abs()
    for beta, alpha in ((1, 1), (0.5, -2), (2 + 0j, 0.25), (0, 1)):
        addend_of_call = c * POISON if beta == 0 else c
        expected = torch.addmm(addend_of_call, a, b, beta=beta, alpha=alpha)
        with forced(variant):
            out = torch.addmm(addend_of_call, a, b, beta=beta, alpha=alpha)
        wide = (beta * c.to(C128) if beta else 0) + alpha * exact
        assert_close_to_torch(out, wide, expected, magnitude=abs(beta) * c.abs().double() + abs(alpha) * magnitude)


@VARIANTS
def test_batches(variant: VariantInfo) -> None:
    torch.manual_seed(3)
    c = normal(5, 130, 70)
    one = normal(1, 130, 200)
    for a, b in (
        (normal(5, 130, 200), normal(5, 200, 70)),
        (normal(5, 200, 130).mH, normal(5, 70, 200).mT),
        (one.expand(5, 130, 200), normal(200, 5, 70).transpose(0, 1).conj()),
    ):
        exact, magnitude = a.to(C128) @ b.to(C128), a.to(C128).abs() @ b.to(C128).abs()
        with forced(variant):
            product, sum_ = torch.bmm(a, b), torch.baddbmm(c, a, b, beta=0.5, alpha=2)
        assert_close_to_torch(product, exact, torch.bmm(a, b), magnitude=magnitude)
        expected = torch.baddbmm(c, a, b, beta=0.5, alpha=2)
        wide = 0.5 * c.to(C128) + 2 * exact
        assert_close_to_torch(sum_, wide, expected, magnitude=2 * magnitude + c.abs().double())


@pytest.mark.parametrize(("sizes", "limit"), [((700, 600, 1031), 3_000_000), ((300, 200, 40000), 100 << 20)], ids=str)
@VARIANTS
def test_slabs(variant: VariantInfo, sizes: tuple[int, int, int], limit: int) -> None:
    """Of rows and columns, and of K."""
    torch.manual_seed(7)
    m, n, k = sizes
    a, b, c = normal(k, m).mH, normal(n, k).mT, normal(n)
    exact, magnitude = a.to(C128) @ b.to(C128), a.to(C128).abs() @ b.to(C128).abs()
    expected = torch.addmm(c, a, b, alpha=0.5)
    _native.lib().hgemm_set_most_workspace(limit)
    try:
        with forced(variant):
            out = torch.addmm(c, a, b, alpha=0.5)
    finally:
        _native.lib().hgemm_set_most_workspace(-1)
    assert_close_to_torch(out, c.to(C128) + 0.5 * exact, expected, magnitude=magnitude + c.abs().double())


@VARIANTS
def test_long_sums_of_few_tiles(variant: VariantInfo) -> None:
    """sm90_split cuts K into slices."""
    torch.manual_seed(4)
    check_mm(variant, normal(8200, 260).mH, normal(8200, 130))
    check_mm(variant, normal(260, 8200), normal(130, 8200).mH)


@VARIANTS
def test_operands_without_a_unit_stride(variant: VariantInfo) -> None:
    a, b = normal(260, 3, 200, 2)[:, 1, :, 1], normal(200, 140, 3)[..., 2].conj()
    check_mm(variant, a, b)


@VARIANTS
def test_special_values(variant: VariantInfo) -> None:
    """Parts are NaN or infinite as real products of the parts are, and elsewhere as accurate as torch's.

    torch multiplies the result by alpha as a complex number, which makes NaN of infinities.
    """
    torch.manual_seed(5)
    a, b = normal(200, 300), normal(300, 150)
    a[3, 5], a[20, 7], a[190, 0] = math.nan, complex(math.inf, 1.0), complex(1.0, -math.inf)
    b[4, 9], b[17, 100] = complex(0.5, math.nan), -math.inf
    a[100:110] *= 1e-30
    a[120] = 1e-40
    a[130:140] *= 1e36
    for x, y in ((a, b), (a.conj(), b)):
        u, v = torch.view_as_real(x.resolve_conj()).double(), torch.view_as_real(y).double()
        real = u[..., 0] @ v[..., 0] - u[..., 1] @ v[..., 1]
        imaginary = u[..., 0] @ v[..., 1] + u[..., 1] @ v[..., 0]
        exact = torch.stack((real, imaginary), -1).float()  # which has float32's infinities
        with forced(variant):
            out = torch.mm(x, y)
        parts, theirs = torch.view_as_real(out), torch.mm(x, y)
        finite = exact.isfinite()
        assert torch.equal(parts.isfinite(), finite) and torch.equal(parts.isnan(), exact.isnan())
        assert torch.equal(parts[exact.isinf()], exact[exact.isinf()])
        both = finite.all(-1)
        assert torch.equal(theirs.isfinite(), both)
        magnitude = (x.abs().double() @ y.abs().double()).nan_to_num(0, posinf=0)
        wide = torch.complex(real, imaginary)
        zero = torch.zeros_like(out)
        assert_close_to_torch(
            torch.where(both, out, zero),
            torch.where(both, wide, zero),
            torch.where(both, theirs, zero),
            magnitude=magnitude,
        )


@VARIANTS
def test_short_sums(variant: VariantInfo) -> None:
    for k in range(least(variant), least(variant) + 40, 13):
        a, b = normal(130, k), normal(70, k).mH
        exact, magnitude = a.to(C128) @ b.to(C128), a.to(C128).abs() @ b.to(C128).abs()
        with forced(variant):
            out = torch.mm(a, b)
        assert_close_to_torch(out, exact, torch.mm(a, b), magnitude=magnitude)


@pytest.mark.sm90
def test_the_context_takes_large_products() -> None:
    """And their gradients, whose factors are conjugate transposes, but only where float32="split" asks for it."""
    torch.manual_seed(6)

    def run(dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(6)
        leaves = [normal(1024, 1536).to(dtype).requires_grad_(), normal(1536, 1280).to(dtype).requires_grad_()]
        y = leaves[0] @ leaves[1]
        return [y.detach(), *torch.autograd.grad(y, leaves, normal(1024, 1280).to(dtype))]

    theirs, exact = run(C64), run(C128)
    for mode, ours in (("strict", 0), ("split", 3)):
        with use_custom_gemm(float32=mode) as report:
            results = run(C64)
        expect_calls(report, 3)
        expect_calls(report, ours, "ours")
        for got, other, ref in zip(results, theirs, exact, strict=True):
            assert_as_good(got, other, ref)
        if mode == "strict" and ON_GPU:
            assert all('without float32="split"' in row.reason for row in report.rows), str(report)


@pytest.mark.sm90
def test_what_is_left_to_torch() -> None:
    a, b, c = normal(1024, 1024), normal(1024, 1024), normal(1024, 1024)
    for name, function in {
        "a complex alpha": lambda: torch.addmm(c, a, b, alpha=1j),
        "a conjugated addend": lambda: torch.addmm(c.conj(), a, b),
        "x @ x.T": lambda: a @ a.mT,
        "a vector": lambda: torch.mv(a, b[0]),
        "vdot": lambda: torch.vdot(a[0], b[0]),
        "in place": lambda: c.clone().addmm_(a, b),
    }.items():
        expected = function()
        with use_custom_gemm(float32="split") as report:
            out = function()
        assert torch.equal(out, expected), name
        expect_calls(report, 0, "ours")


@pytest.mark.sm90
def test_compiled() -> None:
    a, b = normal(1024, 1024), normal(1024, 1024)
    with use_custom_gemm(float32="split") as report:
        out = torch.compile(lambda x, y: x.mH @ y + 1, backend="aot_eager")(a, b)
    expect_calls(report, 1, "ours")
    assert_as_good(out, a.mH @ b + 1, a.mH.to(C128) @ b.to(C128) + 1)


@pytest.mark.sm90
def test_the_ops() -> None:
    a, b, c = normal(1024, 768), normal(768, 640), normal(1024, 640)
    exact = a.to(C128) @ b.to(C128)
    with use_custom_gemm() as report:
        results = [
            (torch.ops.hgemm.mm(a, b, float32=1), a @ b, exact),
            (torch.ops.hgemm.mm(a, b.conj(), float32=1), a @ b.conj(), a.to(C128) @ b.to(C128).conj()),
            (hgemm_ops.matmul(a, b, float32="split"), a @ b, exact),
            (
                torch.ops.hgemm.addmm(c, a, b, beta=0.5, alpha=-2.0, float32=1),
                torch.addmm(c, a, b, beta=0.5, alpha=-2),
                0.5 * c.to(C128) - 2 * exact,
            ),
        ]
    expect_calls(report, 4, "ours")
    for got, theirs, ref in results:
        assert_as_good(got, theirs, ref)
