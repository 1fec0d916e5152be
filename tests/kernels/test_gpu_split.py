"""float32 as planes of 16 bits: no larger errors than strict float32's, on values that planes find hard too, and where
planes cannot hold a value what float32 gives."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import POISON, GuardedBuffer, least_k, serves
from torch import Tensor

import hgemm_ops
from benchmarks.float32_errors import normal, scales, uniform
from hgemm_ops import VariantInfo

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("without_tf32")]

hgemm = torch.ops.hgemm
_MARKS = {"sm80_split": (), "sm90_split": (pytest.mark.sm90,), "sm90_split_skinny": (pytest.mark.sm90,)}
FAMILIES = {family: [v for v in hgemm_ops.variants() if v.family == family] for family in _MARKS}
_ALL = [pytest.param(v, marks=_MARKS[family], id=v.name) for family, kernels in FAMILIES.items() for v in kernels]
VARIANTS = pytest.mark.parametrize("variant", _ALL)
#: Three bfloat16 planes an operand and six products of them, or two float16 planes and three products.
OF_SIX = pytest.mark.parametrize("variant", [p for p in _ALL if p.values[0].sums != "vary"])
OF_THREE = pytest.mark.parametrize("variant", [p for p in _ALL if least_k(p.values[0]) > 1])
_ROUNDING = 2.0**-24  # the most that one rounding of a float32 loses, relative


def needs(variant: VariantInfo, a: Tensor, b: Tensor) -> None:
    """Skips the test where the kernel does not take the operands: those of few rows read one of them by TMA."""
    if variant.family == "sm90_split_skinny" and not serves(variant, a, b):
        pytest.skip(f"{variant.name} does not take {tuple(a.stride())} and {tuple(b.stride())}")


def errors(out: Tensor, a: Tensor, b: Tensor) -> tuple[float, float]:
    """The largest error beside |A||B|, and its root mean square beside the result's."""
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = (out.double() - exact).abs()
    return (error / magnitude).nan_to_num(0).max().item(), (error.square().mean() / exact.square().mean()).sqrt().item()


def hilbert() -> tuple[Tensor, Tensor]:
    i = torch.arange(512, device="cuda").float()
    matrix = 1 / (i[:, None] + i + 1)
    return matrix, matrix


def cancelling(k: int = 500) -> tuple[Tensor, Tensor]:
    a, b = normal(300, k), normal(k, 200)
    return torch.cat([a, -a], 1), torch.cat([b, b * (1 + 2.0**-20)])


def of_depth(make: Callable[..., Tensor], k: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (make(256, k), make(k, 256))


def scaled(rows: int, cols: int, most: int, both: bool = False) -> Callable[[], tuple[Tensor, Tensor]]:
    """(512, 1024) and (1024, 512), scaled by a matrix of (rows, cols), or by two of them."""
    return lambda: (
        normal(512, 1024) * scales(rows, cols, most=most),
        normal(1024, 512) * (scales(cols, rows, most=most) if both else 1),
    )


def outliers() -> tuple[Tensor, Tensor]:
    a = normal(512, 4096)
    a[:, :8] *= 200
    return a, normal(4096, 384)


def shared_range(most: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """A range along K that A and B share out: their product has none of it."""

    def make() -> tuple[Tensor, Tensor]:
        scale = scales(1, 4096, most=most)
        return normal(512, 4096) * scale, normal(4096, 384) / scale.t()

    return make


def probabilities(spread: float, causal: bool = False) -> Callable[[], tuple[Tensor, Tensor]]:
    def make() -> tuple[Tensor, Tensor]:
        logits = normal(512, 512) * spread
        hidden = torch.ones(512, 512, device="cuda", dtype=torch.bool).triu(1) if causal else logits.isnan()
        return logits.masked_fill(hidden, -math.inf).softmax(1), normal(512, 128)

    return make


def sparse(k: int, terms: int) -> tuple[Tensor, Tensor]:
    return normal(512, k) * (uniform(512, k) < terms / k), normal(k, 384)


#: What training multiplies.
ORDINARY: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "normal": lambda: (normal(512, 4096), normal(4096, 384)),
    "elements 2^U(-12,12)": lambda: (normal(512, 4096) * scales(512, 4096, most=12), normal(4096, 384)),
    "outlier channels": outliers,
    "probabilities": probabilities(3.0),
    "causal probabilities": probabilities(2.0, causal=True),
    "gelu": lambda: (F.gelu(normal(512, 4096)), normal(4096, 384)),
    "relu": lambda: (F.relu(normal(512, 4096)), normal(4096, 384)),
    "cancelling halves": lambda: cancelling(2048),
    "256 of 4096": lambda: sparse(4096, 256),
    "a row of zeros": lambda: (normal(300, 500) * (torch.arange(300, device="cuda")[:, None] != 7), normal(500, 200)),
}
#: What two float16 planes cannot hold, or only with an error that float32 does not have.
HARD: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "a shared range of 2^U(-30,30)": shared_range(30),
    "a shared range of 2^U(-60,60)": shared_range(60),
    "identity": lambda: (torch.eye(512, device="cuda"), normal(512, 384)),
    "by identity": lambda: (normal(512, 512), torch.eye(512, device="cuda")),
    "one of 4096": lambda: (torch.eye(4096, device="cuda")[torch.randperm(4096)[:512]], normal(4096, 384)),
    "of one sign": lambda: (uniform(512, 4096), uniform(4096, 384)),
    "Hilbert": hilbert,
    "16 of 4096": lambda: sparse(4096, 16),
    "very large": lambda: (normal(512, 512) * 1e25, normal(512, 384)),
    "very small": lambda: (normal(512, 512) * 1e-30, normal(512, 384)),
}
CASES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    **{f"N(0,1) K={k}": of_depth(normal, k) for k in (1, 16, 67, 256, 4096, 65536)},
    **{f"U(0,1) K={k}": of_depth(uniform, k) for k in (16, 256, 4096, 65536)},
    **{f"rows 2^U(-{most},{most})": scaled(512, 1, most) for most in (20, 60)},
    **{f"K 2^U(-{most},{most})": scaled(1, 1024, most) for most in (20, 60)},
    **{f"elements 2^U(-{most},{most})": scaled(512, 1024, most) for most in (20, 60)},
    **{f"both 2^U(-{most},{most})": scaled(512, 1024, most, both=True) for most in (20, 60)},
    "Hilbert": hilbert,
    "cancelling": cancelling,
    "tiny": lambda: (normal(200, 300) * 1e-36, normal(300, 200)),
    "denormal": lambda: (normal(200, 300) * 1e-40, normal(300, 200) * 10),
    "tiny results": lambda: (normal(200, 300) * 1e-20, normal(300, 200) * 1e-20),
    "large": lambda: (normal(200, 300) * 1e37, normal(300, 200) * 1e-3),
    **ORDINARY,
    **HARD,
}


@pytest.mark.parametrize("case", CASES)
@VARIANTS
def test_errors_are_at_most_those_of_strict_float32(variant: VariantInfo, case: str) -> None:
    torch.manual_seed(0)
    a, b = CASES[case]()
    if a.shape[1] < least_k(variant):
        with pytest.raises(RuntimeError, match="K must be at least 128"):
            hgemm.mm(a, b, variant=variant.id)
        return
    most, rms = errors(torch.mm(a, b), a, b)
    split_most, split_rms = errors(hgemm.mm(a, b, variant=variant.id), a, b)
    assert split_most <= most + _ROUNDING and split_rms <= rms + _ROUNDING / math.sqrt(3)


@VARIANTS
def test_errors_of_random_products(variant: VariantInfo) -> None:
    """250 of each kernel: sizes from 1 to 2,000, any layout, slices of larger matrices."""
    generator = torch.Generator().manual_seed(1)

    def size(most: int) -> int:
        return round(math.exp(torch.rand((), generator=generator).item() * math.log(most)))

    def operand(rows: int, cols: int) -> Tensor:
        row, col = size(9) - 1, size(9) - 1
        whole = torch.full((rows + row + 3, cols + col + 5), POISON, device="cuda")
        view = whole[row : row + rows, col : col + cols]
        view.copy_(normal(rows, cols))
        return view

    torch.manual_seed(1)
    found: list[tuple[float, float, float, float]] = []
    for number in range(250):
        m, n, k = size(2000), size(2000), max(size(2000), least_k(variant))
        a = operand(m, k) if number % 2 else operand(k, m).t()
        b = operand(k, n) if number % 4 < 2 else operand(n, k).t()
        if variant.family == "sm90_split_skinny" and not serves(variant, a, b):
            continue
        out = GuardedBuffer((m, n), torch.float32, "cuda")
        hgemm.mm.out(a, b, variant=variant.id, out=out.tensor)
        out.check()
        most, rms = errors(torch.mm(a, b), a, b)
        split_most, split_rms = errors(out.tensor, a, b)
        found.append((split_most, most, split_rms, rms))
        if least_k(variant) == 1:
            assert split_most <= most + _ROUNDING and split_rms <= rms + _ROUNDING / math.sqrt(3), (m, n, k)
        else:  # of a few results, strict's may all happen to be exact
            assert split_most <= 8 * _ROUNDING, (m, n, k)
    split_most, most, split_rms, rms = torch.tensor(found).median(0).values.tolist()
    assert split_most <= most + _ROUNDING and split_rms <= rms + _ROUNDING / math.sqrt(3)


@pytest.mark.parametrize("family", [pytest.param("sm90_split", marks=pytest.mark.sm90)])
def test_kernels_of_a_family_give_the_same_bits(family: str) -> None:
    """In the order of batch-invariant numerics. In fast numerics each kernel has slices of K of its own."""
    options = {"numerics": "batch_invariant", "float32": "split"}
    for k in (1, 63, 1031, 4100):
        a, b = normal(300, k), normal(k, 270)
        kernels = [v for v in FAMILIES[family] if least_k(v) == 1]
        first, *others = (hgemm_ops.matmul(a, b, variant=v.name, **options) for v in kernels)
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("offset", [0, 1], ids=["rows on 16 bytes", "rows off 16 bytes"])
@pytest.mark.parametrize("variant", [p for p in _ALL if p.values[0].family != "sm90_split_skinny"])
def test_the_memory_order_of_operands_does_not_show(variant: VariantInfo, offset: int) -> None:
    """The planes, and so the bits of the results, are the same in all four layouts."""

    def placed(x: Tensor) -> Tensor:
        rows, cols = x.shape
        view = torch.full((rows + 1, cols + 4 + offset), POISON, device="cuda")[1:, offset : offset + cols]
        return view.copy_(x)

    a, b = normal(300, 700), normal(700, 260)
    expected = hgemm.mm(a, b, variant=variant.id)
    for x in (placed(a), placed(a.t()).t()):
        for y in (placed(b), placed(b.t()).t()):
            assert torch.equal(hgemm.mm(x, y, variant=variant.id), expected), (x.stride(), y.stride())


@OF_SIX
def test_rows_do_not_depend_on_others(variant: VariantInfo) -> None:
    """Neither on their values, which may be NaN, nor, where K is too short for slices, on how many there are."""
    a, b = normal(301, 700), normal(700, 260)
    expected = hgemm.mm(a, b, variant=variant.id)
    for rows in (1, 7, 64, 129):
        assert torch.equal(hgemm.mm(a[:rows], b, variant=variant.id), expected[:rows])
    others = a.clone()
    others[5, 7], others[9, 3], others[20, 1], others[30] = math.inf, math.nan, 3.4e38, others[30] * 1e-37
    columns = b.clone()
    columns[3, 50] = -math.inf
    out = hgemm.mm(others, columns, variant=variant.id)
    same = torch.ones_like(out, dtype=torch.bool)
    same[[5, 9, 20, 30]] = False
    same[:, 50] = False
    assert torch.equal(out[same], expected[same])


LAYOUTS = pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])


def stored(m: int, n: int, k: int, layout: str) -> tuple[Tensor, Tensor]:
    """Random operands that lie in memory as they are (N) or transposed (T)."""
    a = normal(m, k) if layout[0] == "N" else normal(k, m).t()
    b = normal(k, n) if layout[1] == "N" else normal(n, k).t()
    return a, b


def gradient(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """What a weight's gradient is made of: K is long, and slow in both operands."""
    return stored(m, n, k, "TN")


@pytest.mark.parametrize(
    "shape", [(128, 64, 1024), (300, 200, 4100), (129, 65, 1031), (768, 770, 8200), (2000, 1100, 5000), (3, 5, 20000)]
)
@LAYOUTS
@VARIANTS
def test_few_tiles_and_a_long_k(variant: VariantInfo, layout: str, shape: tuple[int, int, int]) -> None:
    """sm90_split cuts K into slices."""
    torch.manual_seed(2)
    a, b = stored(*shape, layout)
    needs(variant, a, b)
    for epilogue in ({}, {"alpha": -0.5, "beta": 2.0}):
        c = normal(*shape[:2])
        out = GuardedBuffer(shape[:2], torch.float32, "cuda")
        expected = torch.addmm(c, a, b, **epilogue) if epilogue else torch.mm(a, b)
        exact = c.double() * epilogue.get("beta", 0) + epilogue.get("alpha", 1) * (a.double() @ b.double())
        magnitude = c.double().abs() * epilogue.get("beta", 0) + a.double().abs() @ b.double().abs()
        for _ in range(3):  # counters are zero each time
            out.tensor.fill_(math.nan)
            if epilogue:
                hgemm.addmm.out(c, a, b, **epilogue, variant=variant.id, out=out.tensor)
            else:
                hgemm.mm.out(a, b, variant=variant.id, out=out.tensor)
            out.check()
        most, own = (((x.double() - exact).abs() / magnitude).max().item() for x in (expected, out.tensor))
        assert own <= most + _ROUNDING
        again = hgemm.addmm(c, a, b, **epilogue, variant=variant.id) if epilogue else hgemm.mm(a, b, variant=variant.id)
        assert torch.equal(out.tensor, again)


#: What keeps three products from being accurate, in a part of the result: changes of ``a`` and ``b``.
SPOILED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "nothing": lambda a, b: None,
    "rows of few terms": lambda a, b: a[:128, 16:].zero_(),
    "of one sign": lambda a, b: (a[-100:].abs_(), b[:, -70:].abs_()),
    "everything of one sign": lambda a, b: (a.abs_(), b.abs_()),
    "a shared range": lambda a, b: (
        a[-40:].mul_(scale := scales(1, a.shape[1], most=40)),
        b[:, :30].div_(scale.t()),
    ),
    "not finite": lambda a, b: (a[3, 7:9].fill_(math.inf), b[-1, -3:-2].fill_(math.nan)),
    "denormal": lambda a, b: (a[5:7].mul_(1e-40), b[:, 9:10].mul_(1e-37)),
}


@LAYOUTS
@pytest.mark.parametrize("spoiled", SPOILED)
@OF_THREE
def test_three_products_that_are_not_accurate_everywhere(variant: VariantInfo, spoiled: str, layout: str) -> None:
    """K of five or six segments, too: the pass has clusters of eight blocks then, of which some have no segment. The
    longest K is cut into slices by kernels of both kinds."""
    torch.manual_seed(3)
    for m, n, k in ((512, 512, 1300), (300, 200, 2100), (129, 65, 1031), (1000, 1001, 1003), (257, 190, 5000)):
        a, b = normal(m, k), normal(k, n)
        SPOILED[spoiled](a, b)
        a = a if layout[0] == "N" else a.t().contiguous().t()
        b = b if layout[1] == "N" else b.t().contiguous().t()
        out = GuardedBuffer((m, n), torch.float32, "cuda")
        hgemm.mm.out(a, b, variant=variant.id, out=out.tensor)
        out.check()
        expected, exact = torch.mm(a, b), a.double() @ b.double()
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(out.tensor), kind(expected))
        strict, own = ((x.double() - exact).abs() for x in (expected, out.tensor))
        magnitude = a.double().abs() @ b.double().abs()
        ordinary = expected.isfinite() & (magnitude > torch.finfo(torch.float32).tiny)
        assert (own / magnitude)[ordinary].max() <= (strict / magnitude)[ordinary].max() + _ROUNDING, (m, n, k)
        if (small := expected.isfinite() & ~ordinary).any():
            least = 2.0**-149
            assert own[small].max() <= strict[small].max() + least, (m, n, k)
        assert torch.equal(out.tensor.nan_to_num(0), hgemm.mm(a, b, variant=variant.id).nan_to_num(0))


@LAYOUTS
@pytest.mark.sm90
def test_slices_of_k_are_not_for_batch_invariance(layout: str) -> None:
    """How many slices there are depends on the number of rows."""
    a, b = stored(900, 300, 6000, layout)
    options = {"numerics": "batch_invariant", "float32": "split"}
    expected = hgemm_ops.matmul(a, b, **options)
    for rows in (1, 64, 129):
        assert torch.equal(hgemm_ops.matmul(a[:rows], b, **options), expected[:rows])
    for kernel in FAMILIES["sm90_split"]:
        if least_k(kernel) > 1:
            with pytest.raises(RuntimeError, match="another summation order"):
                hgemm_ops.matmul(a, b, variant=kernel.name, **options)
            continue
        for rows in (1, 64, 129):
            assert torch.equal(hgemm_ops.matmul(a[:rows], b, variant=kernel.name, **options), expected[:rows])
        sliced = hgemm.mm(a, b, variant=kernel.id)
        assert bool(((sliced - expected).abs() <= torch.finfo(torch.float32).eps * (a.abs() @ b.abs())).all())
        assert not torch.equal(sliced, expected)


@VARIANTS
def test_what_planes_cannot_hold_of_a_gradient_is_as_in_float32(variant: VariantInfo) -> None:
    a, b = gradient(200, 150, 4100)
    a[5, 7], a[9, 4003], a[20, 1], a[21, 4002], b[2003, 50] = math.inf, math.nan, 3.4028e38, -3.4e38, -math.inf
    a[30] *= 1e-38
    a[31, :1000] *= 1e-38
    expected, out = torch.mm(a, b), hgemm.mm(a, b, variant=variant.id)
    exact = a.double() @ b.double()
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(out), kind(expected))
    finite = expected.isfinite()
    magnitude = (a.double().abs() @ b.double().abs())[finite]
    most, own = (((x[finite].double() - exact[finite]).abs() / magnitude).max().item() for x in (expected, out))
    assert own <= most + _ROUNDING


@VARIANTS
def test_what_planes_cannot_hold_is_as_in_float32(variant: VariantInfo) -> None:
    a, b = normal(200, 300), normal(300, 150)
    a[5, 7], a[9, 3], a[20, 1], a[21, 2], b[3, 50] = math.inf, math.nan, 3.4028e38, -3.4e38, -math.inf
    expected, out = torch.mm(a, b), hgemm.mm(a, b, variant=variant.id)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.isposinf(), expected.isposinf()) and torch.equal(out.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    torch.testing.assert_close(out[finite], expected[finite], rtol=1e-5, atol=1e-4)
    zero = hgemm.mm(torch.zeros_like(a), torch.ones_like(b), variant=variant.id)
    assert torch.equal(zero, torch.zeros_like(zero))


@pytest.mark.parametrize("batch", [(5,), (3, 4)])
@VARIANTS
def test_batches_and_what_they_share(variant: VariantInfo, batch: tuple[int, ...]) -> None:
    k = max(92, least_k(variant))
    a, b = normal(*batch, 70, k), normal(*batch, 110, k).mT
    for x, y in ((a, b), (a[:1].expand_as(a), b), (a, b[:1].expand_as(b))):
        out = hgemm.matmul(x, y, variant=variant.id)
        if least_k(variant) == 1:
            exact = x.double() @ y.double()
            assert ((out.double() - exact).abs() <= 4e-6 * (1 + exact.abs())).all()
        most, rms = errors(torch.matmul(x, y), x, y)
        split_most, split_rms = errors(out, x, y)
        assert split_most <= most + _ROUNDING and split_rms <= rms + _ROUNDING / math.sqrt(3)


@pytest.mark.parametrize(
    "shape", [(130, 150, 64), (129, 151, 67), (1, 3, 1), (37, 148, 67), (201, 45, 84), (129, 76, 2048)]
)
@VARIANTS
def test_epilogues(variant: VariantInfo, shape: tuple[int, int, int]) -> None:
    """Also behind slices of K, which the longest K has."""
    m, n, k = shape
    k += least_k(variant) - 1
    a, b, bias = normal(m, k), normal(k, n), normal(n)
    needs(variant, a, b)
    exact = a.double() @ b.double()
    for c in (normal(m, n), normal(n), normal(m, 1), normal(n, m).t()):
        out = hgemm.addmm(c, a, b, beta=0.5, alpha=-2.0, variant=variant.id)
        torch.testing.assert_close(out.double(), -2 * exact + 0.5 * c.double(), rtol=1e-5, atol=1e-4)
    out, before = hgemm.linear_save(a, b.t(), bias, 2, variant=variant.id)
    torch.testing.assert_close(before.double(), exact + bias, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out.double(), F.gelu(exact + bias), rtol=1e-5, atol=1e-4)
    nan = torch.full((m, n), math.nan, device="cuda")
    assert hgemm.addmm(nan, a, b, beta=0.0, variant=variant.id).isfinite().all()
    zeros = torch.zeros_like(a)
    for alpha in (1.0, -1.0):  # at D's edge and inside of it
        out = hgemm.addmm(nan, zeros, b, beta=0.0, alpha=alpha, variant=variant.id)
        assert torch.equal(out.signbit(), torch.full_like(out, alpha < 0, dtype=torch.bool)), alpha


def six_for(variant: VariantInfo) -> VariantInfo:
    """The kernel of six products that runs where the three of ``variant`` are not accurate."""
    return next(v for v in FAMILIES[variant.family] if least_k(v) == 1 and v.tile[:2] == variant.tile[:2])


@pytest.mark.parametrize("case", [*ORDINARY, *HARD])
@OF_THREE
def test_the_device_decides_how_many_products(variant: VariantInfo, case: str) -> None:
    torch.manual_seed(3)
    a, b = (ORDINARY | HARD)[case]()
    out, six = (hgemm.mm(a, b, variant=v.id) for v in (variant, six_for(variant)))
    assert torch.equal(out, six) == (case in HARD)


@OF_THREE
def test_one_element_decides(variant: VariantInfo) -> None:
    """What float16 planes cannot hold of one row, or of one element that another row of B brings out."""
    a, b = normal(300, 700), normal(700, 260)
    six = six_for(variant)
    for value in (math.inf, -math.inf, math.nan, 3.4e38):
        for x in (a, b):
            kept = x[3].clone()
            x[3] = 0
            x[3, 5] = value
            out, expected = hgemm.mm(a, b, variant=variant.id), hgemm.mm(a, b, variant=six.id)
            assert torch.equal(out.nan_to_num(7), expected.nan_to_num(7)), value
            x[3] = kept
    a[:, 0], a[7], b[:, 9], b[0, 9] = 1e9, 0, 0, 0
    a[7, 0], a[7, 1:20], b[1:20, 9] = 1e9, 1e-3, 1.0  # D[7, 9] is the sum of the small ones
    exact = a.double() @ b.double()
    out, expected = hgemm.mm(a, b, variant=variant.id), hgemm.mm(a, b, variant=six.id)
    assert torch.equal(out, expected) and abs(out[7, 9].item() / exact[7, 9].item() - 1) < 1e-6


@OF_THREE
def test_a_result_in_place_of_c(variant: VariantInfo) -> None:
    """D is written over C once, whatever the device decides."""
    for make in (ORDINARY["normal"], HARD["a shared range of 2^U(-30,30)"]):
        a, b = make()
        c = normal(512, 384)
        out = c.clone()
        hgemm.addmm.out(out, a, b, beta=0.5, alpha=-2.0, variant=variant.id, out=out)
        exact, magnitude = 0.5 * c.double() - 2 * (a.double() @ b.double()), 2 * (a.double().abs() @ b.double().abs())
        assert ((out.double() - exact).abs() <= 6e-7 * (magnitude + c.double().abs())).all()


@OF_THREE
def test_a_graph_decides_each_time(variant: VariantInfo) -> None:
    a, b = normal(512, 1024), normal(1024, 384)
    out, graph = hgemm.mm(a, b, variant=variant.id), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        hgemm.mm.out(a, b, variant=variant.id, out=out)
    for most in (0, 60, 0, 30):
        scale = scales(1, 1024, most=most)
        a.copy_(normal(512, 1024) * scale)
        b.copy_(normal(1024, 384) / scale.t())
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, hgemm.mm(a, b, variant=variant.id))
        assert errors(out, a, b)[0] < 4e-7
