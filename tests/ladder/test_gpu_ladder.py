"""Every step of the ladder on a GPU.

Two kinds of inputs. Small integers whose sums of absolute values stay within what the accumulator counts exactly (2048
in half, 2**24 in float32) have one right answer in any order of summation, so the result must be equal bit for bit:
one term too few, or a tile of another buffer, shows. Normal inputs exercise the rounding, under a bound.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from helpers import (
    GuardedBuffer,
    assert_close_to_torch,
    assert_half_accumulated,
    poisoned_cuda_memory,
    reference_matmul,
)
from torch import Tensor

import hgemm_ops
from benchmarks.course.rungs import RUNGS
from hgemm_ops import VariantInfo
from hgemm_ops.bench.suites import SUITES
from hgemm_ops.ops import ladder

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
HALF_COUNTS = 2048  # half holds every integer up to here
DTYPES = {"sgemm": torch.float32, "hgemm": torch.float16, "wmma": torch.float16, "mma": torch.float16}
DTYPES["wgmma"] = torch.float16
FAMILIES = [pytest.param(f, marks=pytest.mark.sm90) if f == "wgmma" else f for f in DTYPES]


def steps(family: str) -> list[VariantInfo]:
    return [v for v in hgemm_ops.variants() if v.family == "ladder" and RUNGS[v.name].family == family]


def in_half(v: VariantInfo) -> bool:
    return v.numerics == "float16 accumulation"


def runs(v: VariantInfo) -> bool:
    major, minor = torch.cuda.get_device_capability()
    return int(v.min_arch.removeprefix("sm_")) <= 10 * major + minor and (v.max_arch is None or major == 9)


# ---- inputs

Fill = Callable[[Tensor], Tensor]


def integers(k: int) -> Fill:
    """Integers of which k products sum up to at most HALF_COUNTS in absolute values: fewer of them the larger k is."""
    largest = 2 if 4 * k <= HALF_COUNTS else 1
    # The sum of k products of which each is 1 with probability p**2 stays eight deviations below 2048.
    share = min(1.0, ((HALF_COUNTS - 8 * HALF_COUNTS**0.5) / k) ** 0.5) if largest == 1 else 1.0

    def fill(x: Tensor) -> Tensor:
        values = torch.randint(-largest, largest + 1, x.shape, device=x.device, dtype=torch.int8)
        if share < 1:
            values *= torch.rand(x.shape, device=x.device) < share
        return x.copy_(values)

    return fill


def normal(x: Tensor) -> Tensor:
    return x.normal_()


def operand(rows: int, cols: int, dtype: torch.dtype, form: str, fill: Fill) -> Tensor:
    """A matrix in one of the ways tensors lie in memory, with NaN all around it."""
    if form == "transposed":
        return fill(GuardedBuffer((cols, rows), dtype, "cuda").tensor).mT
    if form == "expanded":
        return fill(GuardedBuffer((1, cols), dtype, "cuda").tensor).expand(rows, cols)
    if form == "stepped":
        return fill(GuardedBuffer((rows, 2 * cols), dtype, "cuda").tensor[:, ::2])
    offset, padding = {"plain": (64, 0), "sliced": (64, 24), "odd rows": (64, 3), "misaligned": (61, 8)}[form]
    return fill(GuardedBuffer((rows, cols), dtype, "cuda", offset=offset, row_padding=padding).tensor)


FORMS = ("plain", "sliced", "odd rows", "misaligned", "transposed", "expanded", "stepped")


def check_exact(out: Tensor, a: Tensor, b: Tensor, what: str) -> None:
    counted = a.abs().double() @ b.abs().double()
    assert counted.max() <= HALF_COUNTS if counted.numel() else True, "the test's inputs do not sum up exactly"
    exact = a.double() @ b.double()
    wrong = out.double() != exact
    if bool(wrong.any()):
        where = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {out.numel()} are wrong, first at {where}: {out[where]}, not {exact[where]}"
        )


def check_rounding(v: VariantInfo, out: Tensor, a: Tensor, b: Tensor) -> None:
    if in_half(v):
        assert_half_accumulated(out, a, b)
    else:
        exact, magnitude = reference_matmul(a, b)
        assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)


# ---- every step on ragged shapes


def ragged(seed: str, count: int) -> Iterator[tuple[int, int, int]]:
    """Shapes around the edges of tiles, of vectors and of slices of K, and anywhere up to a few tiles."""
    draw = random.Random(seed)
    yield from ((1, 1, 1), (1, 129, 1), (257, 1, 17), (128, 128, 1), (3, 5, 7))
    yield from ((129, 257, slices * bk + rest) for slices in (1, 2, 3, 5) for bk, rest in ((8, 0), (16, 0), (32, 5)))
    for _ in range(count - 17):
        near = draw.choice((1, 8, 16, 32, 64, 128, 256))
        yield (
            max(1, draw.choice((near, draw.randint(1, 400))) + draw.randint(-2, 2)),
            max(1, draw.choice((near, draw.randint(1, 400))) + draw.randint(-9, 9)),
            draw.choice((draw.randint(1, 40), draw.randint(1, 300), 16 * draw.randint(1, 20))),
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_shapes(family: str) -> None:
    """200 shapes, operands lying in every way in turn, exact and rounded inputs, results in poisoned memory."""
    forms = random.Random(family)
    kernels = [v for v in steps(family) if runs(v)]
    assert kernels
    with poisoned_cuda_memory():
        for i, (m, n, k) in enumerate(ragged(family, 200)):
            form_a, form_b = forms.choice(FORMS), forms.choice(FORMS)
            fill = integers(k) if i % 3 else normal
            a, b = operand(m, k, DTYPES[family], form_a, fill), operand(k, n, DTYPES[family], form_b, fill)
            for v in kernels:
                out = getattr(hgemm, v.name)(a, b)
                assert out.shape == (m, n) and out.is_contiguous() and out.dtype == a.dtype
                what = f"{v.name} {m}x{n}x{k} {form_a} A, {form_b} B"
                if i % 3:
                    check_exact(out, a, b, what)
                    continue
                try:
                    check_rounding(v, out, a, b)
                except AssertionError as error:
                    raise AssertionError(f"{what}: {error}") from None


# ---- every step on the shapes of the published tables


def published() -> list[object]:
    """Suite and families of steps that the tables list for it."""
    groups = {
        "seeds-small": ("hgemm", "wmma", "mma", "wgmma"),
        "seeds-large": ("hgemm", "wmma", "mma", "wgmma"),
        "seeds-sgemm": ("sgemm",),
    }
    cases = [(case, families) for suite, families in groups.items() for case in SUITES[suite]]
    unique = {(c.m, c.n, c.k, families[0]): (c.m, c.n, c.k, families) for c, families in cases}
    return [pytest.param(*values, id="x".join(map(str, key))) for key, values in unique.items()]


@pytest.mark.parametrize(("m", "n", "k", "families"), published())
def test_published_shapes(m: int, n: int, k: int, families: tuple[str, ...]) -> None:
    """Equal to torch's product, which in float32 sums these integers up exactly as well."""
    dtype = DTYPES[families[0]]
    a, b = (integers(k)(torch.empty(shape, dtype=dtype, device="cuda")) for shape in ((m, k), (k, n)))
    counted = a[:512].abs().float() @ b[:, :512].abs().float()
    assert counted.max() <= HALF_COUNTS and counted.std() > 0
    exact = a @ b
    for v in (v for family in families for v in steps(family) if runs(v)):
        if 2 * m * n * k > 1e12 and min(v.tile[:2]) <= 32:
            continue  # a second each; what they do at this size they do at the smaller ones
        out = getattr(hgemm, v.name)(a, b)
        if not torch.equal(out, exact):
            wrong = out != exact
            raise AssertionError(f"{v.name}: {int(wrong.sum())} of {out.numel()} wrong, first {wrong.nonzero()[0]}")
        del out


# ---- what steps share with other kernels


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forced_step_is_its_op(family: str) -> None:
    dtype = DTYPES[family]
    a, b = (torch.randn(shape, device="cuda").to(dtype) for shape in ((136, 72), (72, 264)))
    for v in (v for v in steps(family) if runs(v)):
        out = getattr(hgemm, v.name)(a, b)
        assert torch.equal(out, hgemm.matmul(a, b, variant=v.id))
        assert torch.equal(out, hgemm_ops.matmul(a, b, variant=v.name))
        assert torch.equal(out, getattr(hgemm, v.name)(a, b)), "not the same bits twice"
        assert torch.equal(hgemm.addmm(torch.zeros(264, device="cuda", dtype=dtype), a, b, beta=0.0, variant=v.id), out)
        with pytest.raises(RuntimeError, match="A and B must be row-major"):
            hgemm.matmul(a, b.mT.contiguous().mT, variant=v.id)
        with pytest.raises(RuntimeError, match="not supported"):
            hgemm.addmm(torch.zeros(264, device="cuda", dtype=dtype), a, b, beta=0.0, alpha=2.0, variant=v.id)
        with pytest.raises(RuntimeError, match="does not support batches, got 2 matrices"):
            getattr(hgemm, v.name)(a.expand(2, *a.shape), b.expand(2, *b.shape))
    other = torch.float16 if dtype == torch.float32 else torch.bfloat16
    with pytest.raises(RuntimeError, match=f"a must be {dtype}, got {other}"):
        getattr(hgemm, steps(family)[0].name)(a.to(other), b.to(other))


def test_float32_is_torchs_unless_a_step_is_asked_for() -> None:
    a, b = torch.randn(130, 70, device="cuda"), torch.randn(70, 90, device="cuda")
    assert torch.equal(hgemm.matmul(a, b), a @ b)
    half = steps("hgemm")[0]
    assert torch.equal(hgemm.matmul(a, b, variant=half.id), a @ b)


@pytest.mark.parametrize("family", FAMILIES)
def test_swizzle_only_reorders(family: str) -> None:
    dtype = DTYPES[family]
    a, b = (torch.randn(shape, device="cuda").to(dtype) for shape in ((700, 90), (90, 1100)))
    swizzles = {step.name for step in ladder.steps() if step.swizzles}
    for v in (v for v in steps(family) if v.name in swizzles and runs(v)):
        op = getattr(hgemm, v.name)
        expected = op(a, b)
        with poisoned_cuda_memory(1 << 24):
            for stride in (1, 100, 128, 256, 1000, 1100, 1 << 20, (1 << 31) - 1):
                assert torch.equal(op(a, b, stride), expected), f"{v.name} with panels of {stride}"
        leaves = a.clone().requires_grad_(), b.clone().requires_grad_()
        op(*leaves, 256).sum().backward()
        assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_and_graphs(family: str) -> None:
    """On the current stream, and capturable."""
    dtype = DTYPES[family]
    a, b = (integers(72)(torch.empty(shape, device="cuda", dtype=dtype)) for shape in ((200, 72), (72, 136)))
    for v in (v for v in steps(family) if runs(v)):
        op = getattr(hgemm, v.name)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            late = a.clone()
            torch.cuda._sleep(1_000_000)
            late += 0  # what a kernel on another stream would not wait for
            out = op(late, b)
        torch.cuda.default_stream().wait_stream(stream)
        check_exact(out, a, b, f"{v.name} on a stream")
        with torch.cuda.graph(graph):
            captured = op(a, b)
        captured.fill_(float("nan"))
        graph.replay()
        check_exact(captured, a, b, f"{v.name} in a graph")


# ---- elementwise additions

ADDITIONS = ladder.additions()


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.name)
def test_additions(addition: ladder.Addition) -> None:
    """Bit for bit torch's sum: one rounding."""
    op, dtype = getattr(hgemm, addition.name), addition.dtype
    sizes = [(m, n) for m in (256, 512, 1024, 2048, 4096) for n in (256, 512, 1024, 2048, 4096)]
    draw = random.Random(addition.name)
    ones = [(count,) for count in (0, 1, 2, 3, 7, 8, 9, 255, 256, 257, 4095, 1 << 20)]
    ones += [(draw.randint(1, 100_000),) for _ in range(200)]
    with poisoned_cuda_memory():
        for shape in sizes + ones:
            a, b = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
            assert torch.equal(op(a, b), a + b), shape
    for count in (1, 5, 1000, 4099):
        for offset_a, offset_b in ((0, 1), (1, 1), (3, 2), (8, 4)):
            a = GuardedBuffer((count,), dtype, "cuda", offset=64 + offset_a).tensor.normal_()
            b = GuardedBuffer((count,), dtype, "cuda", offset=64 + offset_b).tensor.normal_()
            assert torch.equal(op(a, b), a + b), (count, offset_a, offset_b)
    a, b = (torch.randn(33, 70, device="cuda").to(dtype) for _ in range(2))
    for x, y in (
        (a.mT, b.mT),
        (a[:, ::2], b[:, 1::2]),
        (a[:1].expand(5, 70), b[3:8]),
        (a.unsqueeze(1), b.unsqueeze(1)),
    ):
        assert torch.equal(op(x, y), x + y) and op(x, y).is_contiguous()
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 6e4, 6e4, 1.0], device="cuda").to(
        dtype
    )
    torch.testing.assert_close(op(special, special.roll(5)), special + special.roll(5), equal_nan=True, rtol=0, atol=0)
    leaf = a.clone().requires_grad_()
    op(leaf, b).sum().backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, torch.ones_like(leaf))
    with pytest.raises(RuntimeError, match=f"hgemm::{addition.name}: a and b must be"):
        op(a, b.double())
    with pytest.raises(RuntimeError, match="must have one shape"):
        op(a, b[:1])


def test_large_additions() -> None:
    """Counts that 32 bits do not hold."""
    for addition in ADDITIONS:
        count = (1 << 32) + 5
        if torch.cuda.mem_get_info()[0] < 4 * count * 4:
            pytest.skip("not enough memory")
        a = torch.full((1,), 1.5, device="cuda", dtype=addition.dtype).expand(count).contiguous()
        assert bool((getattr(hgemm, addition.name)(a, a) == 3).all())
        del a
        torch.cuda.empty_cache()
