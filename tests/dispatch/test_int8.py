"""The choice of an int8 product's kernel, which needs no GPU."""

from __future__ import annotations

import ctypes

import pytest
import torch
from helpers import counted, needs_library
from test_devices import MISSING, Api, product

from hgemm_ops import _native, _variants

pytestmark = needs_library

TORCH = _native.TORCH
K_MAJOR, MN_MAJOR = 0, 1


def choice(
    m: int, n: int, k: int, a_major: int = K_MAJOR, b_major: int = K_MAJOR, align: int = 16, arch: int = 90
) -> tuple[str, float, float]:
    """The kernel's name or "torch", and the predicted microseconds of it and of torch."""
    facts, us = _native.Facts(), (ctypes.c_double * 2)()
    _native.check(_native.lib().hgemm_preset_facts(arch, facts))
    index = _native.lib().hgemm_int8_choice(m, n, k, a_major, b_major, align, facts, us)
    return "torch" if index == TORCH else _native.int8_names()[index], us[0], us[1]


def test_names() -> None:
    names = _native.int8_names()
    assert len(names) == len(set(names)) > 0 and all(name.startswith("int8_") for name in names)
    assert [_variants.name_of(_native.FIRST_INT8 + i) for i in range(len(names))] == list(names)
    assert not set(names) & set(_variants.names())  # no call can name one


@pytest.mark.parametrize("arch", [80, 86, 89, 100])
def test_only_hopper_has_int8_kernels(arch: int) -> None:
    assert choice(4096, 4096, 4096, arch=arch)[0] == "torch"


def test_large_products_are_ours() -> None:
    for b_major in (K_MAJOR, MN_MAJOR):
        name, us, torch_us = choice(4096, 4096, 4096, b_major=b_major)
        assert name != "torch" and us < torch_us


@pytest.mark.parametrize("m", [17, 32, 64])
def test_kernels_for_a_short_side_take_few_rows(m: int) -> None:
    assert choice(m, 8192, 8192)[0].startswith("int8_skinny_")
    assert choice(m, 8192, 8192, b_major=MN_MAJOR)[0].endswith("_nn")
    assert choice(2 * m, 8192, 8192, b_major=MN_MAJOR)[0].endswith("_nn")
    assert choice(8192, m // 8 * 8, 8192)[0].startswith("int8_skinny_")


@pytest.mark.parametrize(
    ("sizes", "majors", "align"),
    [
        ((4096, 4096, 4100), (K_MAJOR, MN_MAJOR), 16),  # K is no multiple of 8
        ((4096, 4100, 4096), (K_MAJOR, MN_MAJOR), 16),
        ((4096, 4096, 0), (K_MAJOR, MN_MAJOR), 16),
        ((4096, 4096, 131072), (K_MAJOR, MN_MAJOR), 16),  # sums may overflow
        ((4096, 4096, 4096), (K_MAJOR, MN_MAJOR), 2),  # cuBLAS refuses it
    ],
)
def test_torch_computes_what_no_kernel_takes(sizes: tuple[int, int, int], majors: tuple[int, int], align: int) -> None:
    assert choice(*sizes, *majors, align)[0] == "torch"


def test_copies_cost_time() -> None:
    plain, moved = choice(4096, 4096, 4096)[1], choice(4096, 4096, 4096, b_major=MN_MAJOR)[1]
    both = choice(4096, 4096, 4096, a_major=MN_MAJOR, b_major=MN_MAJOR)[1]
    assert plain + 5 < moved < both - 5
    assert choice(4096, 4096, 4104)[1] > plain + 5  # rows start at multiples of 8 bytes


@pytest.mark.parametrize("settings", [(), (0,), (_native.AUTO, _native.NUMERICS.index("batch_invariant_or_raise"))])
def test_the_plan_leaves_a_device_without_kernels_to_torch(settings: tuple[int, ...]) -> None:
    """A kernel that the context names takes other dtypes, and int8 sums are exact whatever their order is."""
    table, plan = Api.from_address(_native.lib().hgemm_gemm_api()), ctypes.create_string_buffer(4096)
    call = product(MISSING - 2, torch.int8)
    call.out_dtype = _native.DTYPES.index(torch.int32)
    with counted(*settings) as tally:
        assert table.plan(call, plan) == 0  # HGEMM_TORCH
        (row,) = tally.rows()
    assert (_native.DTYPES[row.dtype], row.variant, row.calls) == (torch.int8, TORCH, 1)
    assert _native.NUMERICS[row.numerics] == "fast"
