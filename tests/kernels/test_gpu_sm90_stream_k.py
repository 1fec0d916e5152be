"""What is special about stream-K: tails of every kind, equal bits whatever runs beside it, flags that are cleared."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_close_to_torch, reference_matmul, serves
from sm90_checks import EPILOGUES, Factors, check_epilogues, check_equal_bits, check_product, rand

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

hgemm = torch.ops.hgemm
VARIANTS = pytest.mark.parametrize(
    "variant", [v for v in hgemm_ops.variants() if "_streamk" in v.name], ids=lambda v: v.name
)
# One tile in many parts; a few tiles, each in several; just less and just more than a wave of 132 tiles of 128 x 128;
# several waves. K ends inside a step, or is so short that few borders lie inside a tile; the last has only ragged rows.
SHAPES = [
    (64, 64, 8192),
    (200, 520, 4104),
    (384, 1032, 1992),
    (700, 904, 2056),
    (1400, 1400, 1048),
    (1664, 1416, 1032),
    (1672, 2056, 1096),
    (2056, 4104, 1160),
    (1001, 2049, 1031),
]


def problems(variant: VariantInfo) -> list[Factors]:
    """Every shape that the kernel serves; its layout and dtype change from one to the next."""
    dtypes = (torch.float16, torch.bfloat16)
    found = []
    for i, (m, n, k) in enumerate(SHAPES):
        for pad in (0, 1):  # rows on 16 bytes, or not
            layout = 2 * i + pad
            a = rand(m, k + pad, layout % 2 == 1, dtypes[i % 2])
            b = rand(k + pad, n, layout // 2 % 2 == 1, dtypes[i % 2])
            if serves(variant, a, b):
                found.append((a, b))
    assert len(found) >= 4, f"{variant.name} serves {len(found)} of these"
    return found


@VARIANTS
def test_tails_of_every_kind(variant: VariantInfo) -> None:
    for a, b in problems(variant):
        check_product(variant, a, b)


@VARIANTS
def test_epilogues(variant: VariantInfo) -> None:
    """The cluster that ends a tile finishes it: what is left of a tile is never touched by bias, C or activation."""
    for a, b in problems(variant):
        assert check_epilogues(variant, a, b) == EPILOGUES


@VARIANTS
@pytest.mark.parametrize("batch", [4, 23])
def test_batches(variant: VariantInfo, batch: int) -> None:
    """Less than a wave, and more; one A for all."""
    k = 1161 if variant.name.endswith("_pad") else 1160
    a, b = rand(batch * 300, k).view(batch, 300, k), rand(batch * k, 520).view(batch, k, 520)
    for x in (a, a[:1].expand(batch, 300, k)):
        exact, magnitude = reference_matmul(x, b)
        assert_close_to_torch(hgemm.bmm(x, b, variant=variant.id), exact, x @ b, magnitude=magnitude)


@VARIANTS
def test_equal_bits_beside_other_kernels(variant: VariantInfo) -> None:
    """Among kernels of torch that take SMs away: other blocks wait, and at other times."""
    check_equal_bits(variant, problems(variant), noise=rand(2048, 2048))


@VARIANTS
def test_replays_of_a_graph(variant: VariantInfo) -> None:
    """Every replay has the same tag and finds the flags of the one before; so do launches that share their memory."""
    calls = problems(variant)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    for _ in range(3):
        for a, b in calls:
            a.copy_(torch.rand_like(a))
            b.copy_(torch.rand_like(b))
        expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
        for _ in range(10):
            for out in results:
                out.fill_(float("nan"))
            graph.replay()
            assert all(map(torch.equal, results, expected))


@VARIANTS
def test_stages_hold_what_they_are_read_for(variant: VariantInfo) -> None:
    """Thousands of launches, since the order in which loads arrive is right in nearly all. At this size, when the next
    tile did not wait for partial sums of the last, it multiplied by them in one launch in 5,000, and when stages were
    handed back without a fence, some sums were gone in one in 50,000."""
    pad = 0 if variant.name.endswith("_pad") else 4
    pairs = [(rand(4100, 4100 + pad), rand(4100 + pad, 4100 + pad, True)) for _ in range(6)]
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in pairs]
    assert all(torch.allclose(ours, a @ b, atol=0.5, rtol=0.05) for ours, (a, b) in zip(expected, pairs, strict=True))
    results = [torch.empty_like(t) for t in expected]
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in results:
            out.fill_(float("nan"))
        for (a, b), out in zip(pairs, results, strict=True):
            hgemm.matmul.out(a, b, variant=variant.id, out=out)
        for out, right in zip(results, expected, strict=True):
            different += (out != right).sum()
    for _ in range(500):
        graph.replay()
    assert different.item() == 0


@VARIANTS
def test_whole_waves_are_refused(variant: VariantInfo) -> None:
    waves = torch.cuda.get_device_properties(0).multi_processor_count
    a, b = rand(128 * waves, 1024), rand(1024, 3072, True)
    if variant.name.endswith("_pad"):
        a, b = rand(128 * waves, 1025), rand(1025, 3072, True)
    assert "no use for stream-K" in hgemm_ops.explain(a, b).candidates[variant.id].reason
