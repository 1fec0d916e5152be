"""The choice of an int8 matmul's kernel, which needs no GPU."""

from __future__ import annotations

import ctypes

import pytest
import torch
from helpers import counted, needs_library
from test_devices import MISSING, Api, product

import hgemm_ops
from hgemm_ops import Explanation, _native, _variants

pytestmark = needs_library

TORCH = _native.TORCH
K_MAJOR, MN_MAJOR = 0, 1
KERNELS = [v for v in hgemm_ops.variants() if v.family == "int8"]


def explain(m: int, n: int, k: int, layout: str = "NT", arch: str = "sm_90", variant: str | None = None) -> Explanation:
    return hgemm_ops.explain(M=m, N=n, K=k, dtype=torch.int8, layout=layout, arch=arch, variant=variant)


def choice(
    m: int, n: int, k: int, a_major: int = K_MAJOR, b_major: int = K_MAJOR, align: int = 16, arch: int = 90
) -> tuple[str, float, float]:
    """The kernel's name or "torch", and the predicted microseconds of it and of torch."""
    layout = _native.LAYOUTS[a_major, b_major]
    query = _variants.matmul_query(m, n, k, torch.int8, layout, _native.preset_facts(arch), alignment=align)
    decision = _native.explain(query)[0]
    return _variants.name_of(decision.variant), decision.us, decision.torch_us


def test_the_kernels_are_variants() -> None:
    assert len(KERNELS) >= 10
    for v in KERNELS:
        assert v.name.startswith("int8_") and v.dtypes == (torch.int8,) and v.numerics == "int32 accumulation"
        assert (v.min_arch, v.max_arch) == ("sm_90", "sm_90")
        assert v.layouts == (("NN", "TN") if v.name.endswith("_nn") else ("NN", "NT", "TN", "TT"))
        assert not hasattr(torch.ops.hgemm, v.name)  # the ops multiply floating-point matrices


def test_explain_answers_for_torch_int_mm() -> None:
    a, b = torch.empty(512, 4096, dtype=torch.int8), torch.empty(8192, 4096, dtype=torch.int8).t()
    explanation = hgemm_ops.explain(a, b, arch="sm_90")
    assert explanation.source == "model" and "us against torch's" in explanation.reason
    assert explanation.chosen == choice(512, 8192, 4096)[0] != "torch"
    able = {c.name: c.us for c in explanation.candidates if c.eligible}
    assert explanation.chosen == min(able, key=lambda name: able[name])
    assert able.keys() - {"torch"} <= {v.name for v in KERNELS}
    reasons = {c.name: c.reason for c in explanation.candidates}
    assert "supports float16, bfloat16, not int8" in reasons["sm90_wgmma_pingpong_128x128x64_c2x1x1"]
    of_half = hgemm_ops.explain(M=512, N=8192, K=4096, arch="sm_90").candidates
    assert all("supports int8, not float16" in of_half[v.id].reason for v in KERNELS)


def test_explain_says_why_torch_computes_it() -> None:
    few = explain(16, 4096, 4096)
    assert (few.chosen, few.source) == ("torch", "fallback") and "none of our kernels runs int8" in few.reason
    assert all("more than 16 rows, got 16" in few.candidates[v.id].reason for v in KERNELS)
    small = explain(3248, 256, 480, "TT")
    assert (small.chosen, small.source) == ("torch", "model") and "to beat torch's" in small.reason
    with pytest.raises(RuntimeError, match="2-D"):
        hgemm_ops.explain(M=64, N=64, K=64, batch=2, dtype=torch.int8, arch="sm_90")
    widened = hgemm_ops.explain(M=64, N=64, K=64, dtype=torch.int8, out_dtype=torch.int8, arch="sm_90")
    assert all("the result must be int32" in widened.candidates[v.id].reason for v in KERNELS)
    for options in ({"bias": True}, {"activation": "relu"}):
        fused = hgemm_ops.explain(M=64, N=64, K=64, dtype=torch.int8, arch="sm_90", **options)  # type: ignore[arg-type]
        assert fused.chosen == "torch"
        assert all("does not support batches, a bias" in fused.candidates[v.id].reason for v in KERNELS)


def test_int32_is_the_dtype_of_the_result() -> None:
    asked = {"M": 64, "N": 1024, "K": 1024, "arch": "sm_90"}
    named = hgemm_ops.explain(dtype=torch.int8, out_dtype=torch.int32, **asked)
    assert str(named) == str(hgemm_ops.explain(dtype=torch.int8, **asked))
    other = hgemm_ops.explain(dtype=torch.float16, out_dtype=torch.int32, **asked)
    assert other.chosen == "torch" and other.reason.endswith("int8, not int32")


def test_a_kernel_can_be_named() -> None:
    named = explain(64, 8192, 4096, "NN", variant="int8_wgmma_128x192_2x1")
    assert (named.chosen, named.source) == ("int8_wgmma_128x192_2x1", "forced")
    with pytest.raises(RuntimeError, match=r"int8_skinny_wgmma_64x32_s4 does not support .*Use one of: int8_wgmma_"):
        explain(512, 8192, 4096, variant="int8_skinny_wgmma_64x32_s4")
    with pytest.raises(RuntimeError, match="supports int8, not float16"):
        hgemm_ops.explain(M=64, N=8192, K=4096, arch="sm_90", variant="int8_wgmma_128x192_2x1")


@pytest.mark.parametrize("arch", [80, 86, 89, 100])
def test_only_hopper_has_int8_kernels(arch: int) -> None:
    assert choice(4096, 4096, 4096, arch=arch)[0] == "torch"


def test_large_products_are_ours() -> None:
    for b_major in (K_MAJOR, MN_MAJOR):
        name, us, torch_us = choice(4096, 4096, 4096, b_major=b_major)
        assert name != "torch" and us < torch_us


def test_torch_does_not_split_k() -> None:
    """On an H200 torch took 66.4 us here, and 40.7 and 85.7 us where our kernels took 40.1 and 74.1."""
    for m, n, k in ((191, 3584, 14336), (144, 8192, 8192), (337, 3584, 18944)):
        name, us, torch_us = choice(m, n, k)
        assert name.startswith("int8_wgmma_") and us < torch_us
    assert 50 < choice(191, 3584, 14336)[2] < 70


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


def test_the_plan_refuses_a_named_int_kernel_on_such_a_device() -> None:
    table, plan = Api.from_address(_native.lib().hgemm_gemm_api()), ctypes.create_string_buffer(4096)
    call = product(MISSING - 2, torch.int8)
    call.out_dtype = _native.DTYPES.index(torch.int32)
    with counted(KERNELS[0].id):
        assert table.plan(call, plan) == -1  # HGEMM_REFUSED
