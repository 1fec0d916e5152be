"""What is special about edged kernels: tiles of two shapes in one C, and the step from one to the other."""

from __future__ import annotations

import pytest
import torch
from helpers import serves
from sm90_checks import (
    PLAIN,
    Factors,
    check_epilogues,
    check_equal_bits,
    check_product,
    check_product_in,
    rand,
)

import hgemm_ops
from hgemm_ops import VariantInfo
from hgemm_ops.ops import activation

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

VARIANTS = pytest.mark.parametrize(
    "variant", [v for v in hgemm_ops.variants() if "_edged" in v.name], ids=lambda v: v.name
)
# With the edges of an H200. K is shorter than the steps under which a tile is stored, as short as they are, longer.
SHAPES = [
    (24, 17000, 72),  # two, each of one tile, most of whose rows lie outside
    (304, 9000, 512),  # one
    (768, 8192, 520),  # two, the lower tiles of one outside; no columns left over
    (2560, 4104, 1032),  # ten in two columns, of which the second has eight columns left
    (4360, 4000, 1096),  # nine in one column of 32
]


def problems(variant: VariantInfo) -> list[Factors]:
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
        check_product(variant, a, b)


@VARIANTS
def test_epilogues(variant: VariantInfo) -> None:
    """Each in both shapes, also where the tile before is stored under an edge; a kernel that has no code for one
    refuses it: all but bias, relu and, in the layout of linear layers, the other activations."""
    for a, b in problems(variant):
        is_linear = a.stride(1) == 1 and b.stride(0) == 1
        plain = PLAIN.union(activation.ACTIVATIONS if is_linear else ())
        assert check_epilogues(variant, a, b) == (set() if variant.name.endswith("_swapped") else plain)
        check_product_in(variant, a, b, offset=64, row_padding=8)


@VARIANTS
def test_equal_bits_on_two_streams(variant: VariantInfo) -> None:
    """Launch upon launch, each starting while the one before still runs, of one shape after the other."""
    check_equal_bits(variant, problems(variant))


@VARIANTS
def test_where_nothing_is_gained_it_is_refused(variant: VariantInfo) -> None:
    pad = int(variant.name.endswith("_pad"))
    a, b = rand(512, 512 + pad), rand(512 + pad, 512, True)
    assert "no use for narrower tiles" in hgemm_ops.explain(a, b).candidates[variant.id].reason
    x = a.expand(2, -1, -1)
    assert "does not support batches" in hgemm_ops.explain(x, b.expand(2, -1, -1)).candidates[variant.id].reason
