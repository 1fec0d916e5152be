"""The choice of a grouped product's kernel, which needs no GPU."""

from __future__ import annotations

import ctypes

import pytest
import torch
from helpers import needs_library
from test_devices import MISSING, Api, Operand

from hgemm_ops import _native

pytestmark = needs_library

TORCH = _native.TORCH


def choice(rows: int, groups: int, n: int, k: int, *, dtype: int = 1, b_major: int = 0, arch: int = 90) -> int:
    facts = _native.Facts()
    _native.check(_native.lib().hgemm_preset_facts(arch, facts))
    chosen: int = _native.lib().hgemm_grouped_choice(rows, groups, n, k, dtype, b_major, facts)
    return chosen


def test_names() -> None:
    names = _native.grouped_names()
    assert len(names) == len(set(names)) > 0 and all(name.startswith("sm90_wgmma_grouped_") for name in names)


@pytest.mark.parametrize(
    ("rows", "groups", "n", "kernel"),
    [
        (8, 128, 1536, "64x64_swapped"),  # eight groups at most have rows
        (1024, 128, 1536, "64x64_swapped"),
        (1025, 128, 1536, "128x128_swapped"),
        (4096, 64, 1536, "128x128_swapped"),
        (1024, 8, 28672, "128x128_1x2"),
        (2048, 8, 28672, "128x192_2x1"),
        (65536, 64, 1536, "128x256_1x2"),
        (32768, 32, 5760, "128x192_2x1"),  # 5760 columns are 30 tiles of 192, but 11.25 pairs of tiles of 256
    ],
)
def test_the_kernel_follows_the_rows_of_a_group(rows: int, groups: int, n: int, kernel: str) -> None:
    assert _native.grouped_names()[choice(rows, groups, n, 2048)] == f"sm90_wgmma_grouped_{kernel}"


@pytest.mark.parametrize(
    ("rows", "groups", "n", "k"),
    [
        (8192, 60, 2816, 2048),  # Qwen1.5-MoE, up, 2,048 tokens: 0.94 of torch's speed
        (81920, 512, 2048, 512),  # Qwen3-Next, down, 8,192 tokens: 0.73
        (65536, 128, 3072, 4096),  # Qwen3-235B, up, 8,192 tokens: 0.95
        (32768, 16, 21504, 6144),  # DBRX, up, 8,192 tokens by Zipf's law: 0.82
        (4096, 8, 4096, 14336),  # Mixtral, down, 2,048 tokens: 0.97
    ],
)
def test_torch_computes_what_it_was_measured_faster_at(rows: int, groups: int, n: int, k: int) -> None:
    assert choice(rows, groups, n, k) == TORCH
    assert choice(rows, groups, n, k, dtype=0) != TORCH  # float16: torch has no kernel


@pytest.mark.parametrize("arch", [80, 86, 89])
def test_only_hopper_has_grouped_kernels(arch: int) -> None:
    assert choice(64, 8, 256, 256, arch=arch) == TORCH


@pytest.mark.parametrize(
    "call",
    [
        {"dtype": 2},  # float32
        {"k": 260},  # rows of x and w begin at multiples of 8 bytes
        {"n": 260, "b_major": 1},
        {"groups": 1025},
        {"rows": 0},
        {"k": 0},
    ],
    ids=str,
)
def test_torch_computes_the_rest(call: dict[str, int]) -> None:
    assert choice(**{"rows": 64, "groups": 8, "n": 256, "k": 256, "dtype": 1} | call) == TORCH


class Grouped(ctypes.Structure):
    _fields_ = [
        ("a", Operand),
        ("b", Operand),
        ("offs", Operand),
        *((name, ctypes.c_int32) for name in ("offs_is_int32", "offs_is_elsewhere", "out_dtype", "ordinal")),
        *((name, ctypes.c_int32) for name in ("in_backward", "left")),
        ("stream", ctypes.c_void_p),
    ]


class Plan(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("groups", "rows", "columns", "pitch")),
        *((name, ctypes.c_int32) for name in ("is_bmm", "copies_a", "copies_b", "is_transposed")),
        ("state", ctypes.c_uint64 * 64),
    ]


def operand(*shape: int, order: str = "C") -> Operand:
    tensor = torch.empty(shape, device="meta")
    strides = (tensor.mT.contiguous().mT if order == "F" else tensor).stride()
    return Operand(None, (ctypes.c_int64 * 8)(*shape), (ctypes.c_int64 * 8)(*strides), len(shape), 1)


def plan(a: Operand, b: Operand, offs: Operand | None, **fields: int) -> tuple[int, str, Plan]:
    """Plans a call on a device that does not exist: what is checked before a kernel is chosen."""
    table = Api.from_address(_native.lib().hgemm_gemm_api())
    assert table.sizes[3:5] == [ctypes.sizeof(Grouped), ctypes.sizeof(Plan)]
    given = {"offs_is_int32": 1, "out_dtype": 1, "ordinal": MISSING - 1} | fields
    grouped = Grouped(a=a, b=b, offs=offs or Operand(ndim=-1), **given)
    planned = Plan()
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Grouped), ctypes.POINTER(Plan))
    outcome = prototype(table.plan_grouped)(grouped, planned)
    return outcome, table.error().decode(), planned


REFUSED, LEFT_TO_TORCH = -1, 0


@pytest.mark.parametrize(
    ("a", "b", "groups", "text"),
    [
        ((50, 64), (2, 72, 64), 2, "a (50, 64) and b (2, 72, 64): the last dimension of a and the last but one of b"),
        ((50, 64), (2, 64, 64), 3, "offs has 3 elements, but b (2, 64, 64) has 2 groups"),
        ((3, 50, 64), (64, 128), 2, "offs has 2 elements, but a (3, 50, 64) has 3 groups"),
        ((64, 50), (48, 64), 2, "the last dimension of a and the last but one of b must match"),
        ((3, 50, 64), (3, 72, 64), None, "the last dimension of a and the last but one of b must match"),
    ],
)
def test_sizes_are_checked_on_the_host(a: tuple[int, ...], b: tuple[int, ...], groups: int | None, text: str) -> None:
    outcome, message, _ = plan(operand(*a), operand(*b), None if groups is None else operand(groups))
    assert outcome == REFUSED and text in message


def test_offs_are_checked_on_the_host() -> None:
    a, b, offs = operand(50, 64), operand(2, 64, 64), operand(2)
    assert plan(a, b, offs)[0] == LEFT_TO_TORCH
    assert "on the device of a and b" in plan(a, b, offs, offs_is_elsewhere=1)[1]
    offs.strides[0] = 2
    assert "contiguous" in plan(a, b, offs)[1]


@pytest.mark.parametrize(
    ("a", "b", "offs", "fields"),
    [
        ((50, 64), (2, 72, 64), None, {}),
        ((64,), (2, 72, 64), (2,), {}),
        ((2, 50, 64), (2, 64, 64), (2,), {}),
        ((50, 64), (2, 72, 64), (2, 1), {}),
        ((50, 64), (2, 72, 64), (3,), {"offs_is_int32": 0}),
    ],
    ids=["no offs", "a vector", "offs of a batch", "offs of two dimensions", "offs of another dtype"],
)
def test_torch_raises_its_own_errors(
    a: tuple[int, ...], b: tuple[int, ...], offs: tuple[int, ...] | None, fields: dict[str, int]
) -> None:
    assert plan(operand(*a), operand(*b), offs and operand(*offs), **fields)[0] == LEFT_TO_TORCH


@pytest.mark.parametrize(("n", "is_bmm"), [(64, 1), (36, 0)])
def test_three_dimensions_are_a_batched_matmul_where_no_row_is_padded(n: int, is_bmm: int) -> None:
    outcome, _, planned = plan(operand(3, 50, 64), operand(3, 64, n), None)
    assert (outcome, planned.is_bmm) == (LEFT_TO_TORCH, is_bmm)
