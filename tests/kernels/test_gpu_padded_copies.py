"""Operands that go through a padded copy: every chunk of it once, and nothing read from beside them."""

from __future__ import annotations

import pytest
import torch
from helpers import GuardedBuffer, assert_close_to_torch, poisoned_cuda_memory, reference_matmul
from torch import Tensor

import hgemm_ops

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
# Rows of a copy as they are, and with gaps behind every 176 columns.
NAMES = ("sm80_mma_128x128x64_w64x64_s3_pad", "sm90_wgmma_pingpong_128x128x64_c1x1x1_pad")
GAPS = "sm90_wgmma_pingpong_128x176x64_c1x2x1_pad"
VARIANTS = {v.name: v for v in hgemm_ops.variants()}


def variants(*names: str) -> pytest.MarkDecorator:
    """By name, so that a test of a kernel that is gone fails instead of being left out."""
    marks = {name: [pytest.mark.sm90] if name.startswith("sm90") else [] for name in names}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in marks.items()])


def operand(batch: tuple[int, ...], rows: int, cols: int, transposed: bool, place: int) -> Tensor:
    """Between NaNs, ``place`` elements behind a multiple of 16 bytes, and as many behind each of its rows."""
    if transposed:
        return operand(batch, cols, rows, False, place).mT
    tensor = GuardedBuffer((*batch, rows, cols), torch.float16, "cuda", offset=64 + place, row_padding=place).tensor
    return tensor.copy_(torch.rand(tensor.shape, device="cuda") * 2 - 1)


def check(name: str, a: Tensor, b: Tensor) -> None:
    with poisoned_cuda_memory():
        out = hgemm.matmul(a, b, variant=VARIANTS[name].id)
    exact, magnitude = reference_matmul(a, b)
    theirs = torch.matmul(a.contiguous(), b)  # cuBLAS takes no rows 2^31 elements apart
    assert_close_to_torch(out, exact, theirs, magnitude=magnitude)


@variants(*NAMES, GAPS)
@pytest.mark.parametrize("layout", range(4), ids=["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (70, 90, 33),  # a chunk a thread
        (3001, 1501, 1031),  # four
        (3, 131, 16411),  # long rows
        (40001, 73, 9),  # and rows of two chunks, of which a block has many
        (129, 353, 1),
    ],
    ids=str,
)
def test_every_chunk_once(name: str, m: int, n: int, k: int, layout: int) -> None:
    for place in (1, 6):
        check(name, operand((), m, k, layout // 2 == 1, place), operand((), k, n, layout % 2 == 1, 8 - place))


@variants(*NAMES, GAPS)
@pytest.mark.parametrize("layout", range(4), ids=["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("a_batch", "b_batch", "m", "n", "k"),
    [
        ((300,), (300,), 33, 41, 17),  # several matrices a block
        ((7000,), (7000,), 17, 9, 23),  # and four chunks a thread
        ((5, 7), (5, 7), 129, 65, 70),
        ((5, 1), (1, 7), 37, 45, 19),  # each copied once
        ((3,), (), 129, 177, 131),
    ],
    ids=str,
)
def test_batches(
    name: str, a_batch: tuple[int, ...], b_batch: tuple[int, ...], m: int, n: int, k: int, layout: int
) -> None:
    check(name, operand(a_batch, m, k, layout // 2 == 1, 3), operand(b_batch, k, n, layout % 2 == 1, 5))


@variants(*NAMES)
@pytest.mark.parametrize("rows", [2, 300])
def test_rows_that_are_all_the_same(name: str, rows: int) -> None:
    check(name, operand((), 1, 1031, False, 1).expand(rows, -1), operand((), 1031, 65, False, 1))


@variants(*NAMES)
@pytest.mark.parametrize("ld", [2**30 + 5, 2**31 - 1, 2**31 + 3])
def test_rows_far_apart(name: str, ld: int) -> None:
    if torch.cuda.mem_get_info()[0] < 6 * ld:
        pytest.skip(f"needs {6 * ld >> 30} GiB of free memory")
    a = torch.empty(2 * ld + 2100, device="cuda", dtype=torch.float16).as_strided((3, 2100), (ld, 1))
    check(name, a.copy_(torch.rand(a.shape, device="cuda") * 2 - 1), operand((), 2100, 72, False, 0))
