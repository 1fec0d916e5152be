"""What is special about edged kernels: tiles of two shapes in one C, and the step from one to the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import GuardedBuffer, assert_close_to_torch, poisoned_cuda_memory, reference_matmul, refusal_allowed
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

hgemm = torch.ops.hgemm
VARIANTS = pytest.mark.parametrize(
    "variant", [v for v in hgemm_ops.variants() if "_edged" in v.name], ids=lambda v: v.name
)
ACTIVATIONS = (lambda x: x, F.relu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu)  # by their numbers
# With the edges of an H200. K is shorter than the steps under which a tile is stored, as short as they are, longer.
SHAPES = [
    (24, 17000, 72),  # two, each of one tile, most of whose rows lie outside
    (304, 9000, 512),  # one
    (768, 8192, 520),  # two, the lower tiles of one outside; no columns left over
    (2560, 4104, 1032),  # ten in two columns, of which the second has eight columns left
    (4360, 4000, 1096),  # nine in one column of 32
]


def rand(rows: int, cols: int, transposed: bool = False, dtype: torch.dtype = torch.float16) -> Tensor:
    x = torch.rand((cols, rows) if transposed else (rows, cols), device="cuda").mul_(2).sub_(1).to(dtype)
    return x.t() if transposed else x


def serves(variant: VariantInfo, a: Tensor, b: Tensor) -> bool:
    return hgemm_ops.explain(a, b).candidates[variant.id].eligible


def problems(variant: VariantInfo) -> list[tuple[Tensor, Tensor]]:
    """Every shape, upright or lying, in every layout that the kernel serves; dtypes in turn."""
    dtypes = (torch.float16, torch.bfloat16)
    pad = int(variant.name.endswith("_pad"))
    found = []
    for i, (rows, cols, k) in enumerate(SHAPES):
        m, n = (cols, rows) if variant.name.endswith("_swapped") else (rows, cols)
        for layout in range(4):
            a = rand(m, k + pad, layout % 2 == 1, dtypes[(i + layout) % 2])
            b = rand(k + pad, n, layout // 2 == 1, dtypes[(i + layout) % 2])
            if serves(variant, a, b):
                found.append((a, b))
    assert len(found) == 2 * len(SHAPES), f"{variant.name} serves {len(found)} of these"
    return found


@VARIANTS
def test_tiles_of_both_shapes(variant: VariantInfo) -> None:
    for a, b in problems(variant):
        with poisoned_cuda_memory():
            out = hgemm.mm(a, b, variant=variant.id)
        exact, magnitude = reference_matmul(a, b)
        assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)


@VARIANTS
def test_epilogues(variant: VariantInfo) -> None:
    """Each in both shapes, also where the tile before is stored under an edge; those that a kernel has no code for it
    refuses."""
    refused = 0
    for a, b in problems(variant):
        exact, magnitude = reference_matmul(a, b)
        bias, c = rand(1, b.size(1), dtype=a.dtype)[0], rand(*exact.shape, dtype=a.dtype)
        biased, theirs = exact + bias.double(), F.linear(a, b.t(), bias)
        sums = magnitude + bias.double().abs()
        refused += 1
        with refusal_allowed(variant.id):
            for act, activate in enumerate(ACTIVATIONS):
                out = hgemm.linear(a, b.t(), bias, act, variant=variant.id)
                assert_close_to_torch(out, activate(biased), activate(theirs), magnitude=sums)
            out, pre = hgemm.linear_save(a, b.t(), bias, 2, variant=variant.id)
            assert_close_to_torch(pre, biased, theirs, magnitude=sums)
            assert_close_to_torch(out, F.gelu(biased), F.gelu(theirs), magnitude=sums)

            out = hgemm.addmm(c, a, b, beta=-0.5, alpha=2.0, variant=variant.id)
            theirs = torch.addmm(c, a, b, beta=-0.5, alpha=2.0)
            exact2, sums2 = 2 * exact - c.double() / 2, 2 * magnitude + c.double().abs() / 2
            assert_close_to_torch(out, exact2, theirs, magnitude=sums2)
            out = hgemm.mm(a, b, out_dtype=torch.float32, variant=variant.id)
            theirs = torch.bmm(a[None], b[None], out_dtype=torch.float32)[0]
            assert_close_to_torch(out, exact, theirs, magnitude=magnitude)
            guard = GuardedBuffer(tuple(exact.shape), a.dtype, "cuda", offset=65, row_padding=5)
            hgemm.matmul.out(a, b, variant=variant.id, out=guard.tensor)
            assert_close_to_torch(guard.tensor, exact, a @ b, magnitude=magnitude)
            guard.check()
            refused -= 1
        guard = GuardedBuffer(tuple(exact.shape), a.dtype, "cuda", offset=64, row_padding=8)
        hgemm.matmul.out(a, b, variant=variant.id, out=guard.tensor)
        assert_close_to_torch(guard.tensor, exact, a @ b, magnitude=magnitude)
        guard.check()
    assert refused == (2 * len(SHAPES) if variant.name.endswith("_swapped") else 0)


@VARIANTS
def test_equal_bits_on_two_streams(variant: VariantInfo) -> None:
    """Launch upon launch, each starting while the one before still runs, of one shape after the other."""
    calls = problems(variant)
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    wrong = []
    for _ in range(20):
        results = []
        for i in range(len(calls)):
            for stream, at in ((streams[0], i), (streams[1], -1 - i)):
                with torch.cuda.stream(stream):
                    results.append((hgemm.mm(*calls[at], variant=variant.id), expected[at]))
        torch.cuda.synchronize()
        wrong += [tuple(theirs.shape) for ours, theirs in results if not torch.equal(ours, theirs)]
    assert not wrong, f"{len(wrong)} launches differ, of {set(wrong)}"


@VARIANTS
def test_where_nothing_is_gained_it_is_refused(variant: VariantInfo) -> None:
    pad = int(variant.name.endswith("_pad"))
    a, b = rand(512, 512 + pad), rand(512 + pad, 512, True)
    assert "no smaller tiles" in hgemm_ops.explain(a, b).candidates[variant.id].reason
    x = a.expand(2, -1, -1)
    assert "one matrix" in hgemm_ops.explain(x, b.expand(2, -1, -1)).candidates[variant.id].reason
