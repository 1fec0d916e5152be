"""``linear_gated`` on a GPU: by every kernel that gates by itself, and in two launches by those that do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, POISON, assert_close_to_torch, poisoned_cuda_memory, rand, reference_matmul
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import hgemm_ops
from hgemm_ops import VariantInfo, fuse_projections, use_custom_gemm

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
HALF = (torch.float16, torch.bfloat16)
GATING = [v for v in hgemm_ops.variants() if v.name.startswith("skinny_wgmma") and not v.name.endswith("_tiled")]
OTHERS = [
    v
    for v in hgemm_ops.variants()
    if v.family in ("gemv", "sm80_mma") or v.name.startswith("skinny_mma") or v.name.endswith("_tiled")
]
# Rows of both halves: one tile and less, tiles with slices of K, whole and ragged waves of several tiles a block, and
# halves that are no whole number of eight rows.
ROWS = (16, 48, 272, 2048, 12304, 28672, 37888, 74, 1026)


def check(out: Tensor, x: Tensor, weight: Tensor, act: int) -> None:
    halves = [reference_matmul(x, half.t()) for half in weight.chunk(2)]
    (gate, gate_size), (up, up_size) = halves
    exact = ACTIVATIONS[act](gate) * up
    theirs = ACTIVATIONS[act](F.linear(x, weight.chunk(2)[0])) * F.linear(x, weight.chunk(2)[1])
    magnitude = 1.2 * gate_size * up.abs() + ACTIVATIONS[act](gate).abs() * up_size
    assert_close_to_torch(out, exact, theirs, magnitude=magnitude)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("m", [48, 64, 100, 128, 200])
def test_errors_are_torchs_where_a_part_nearly_cancels(m: int, dtype: torch.dtype) -> None:
    """Up to 64 rows one kernel gates sums in float32, beyond them the parts are rounded, as torch's are, and then
    multiplied. An error relative to the product alone has no bound: where a part is near 0 its sum is off by more than
    that, torch's as well. Of 131,072 products in half some thirty are off by 4e-3 or more.
    """
    x, weight = rand(m, 512, dtype=dtype), rand(8192, 512, dtype=dtype)
    halves = weight.chunk(2)
    (gate, gate_size), (up, up_size) = (reference_matmul(x, half.t()) for half in halves)
    exact, theirs = gate * up, F.linear(x, halves[0]) * F.linear(x, halves[1])
    magnitude = gate_size * up.abs() + gate.abs() * up_size
    out = hgemm.linear_gated(x, weight, 0)
    assert_close_to_torch(out, exact, theirs, magnitude=magnitude, units=1.5)
    error, torchs = (out.double() - exact).abs(), (theirs.double() - exact).abs()
    assert error.square().mean().sqrt() <= 1.02 * torchs.square().mean().sqrt()
    far, torchs_far = (int((e > 4e-3 * exact.abs()).sum()) for e in (error, torchs))
    assert far <= 1.1 * torchs_far + 40, f"{far} products are off by more than 4e-3, {torchs_far} of torch's"


def kernels(function: Callable[[], object]) -> list[str]:
    function()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        function()
        torch.cuda.synchronize()
    return [e.name for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]


@pytest.mark.sm90
@pytest.mark.parametrize("act", range(5))
@pytest.mark.parametrize("variant", GATING, ids=lambda v: v.name)
def test_kernels_that_gate(variant: VariantInfo, act: int) -> None:
    dtypes, cols = itertools.cycle(HALF), itertools.cycle((variant.tile[1], 1, variant.tile[1] * 5 // 8))
    for rows, k in itertools.product(ROWS, (8, 136, 1096)):
        dtype = next(dtypes)
        x, weight = rand(next(cols), k, dtype=dtype), rand(rows, k, dtype=dtype)
        with poisoned_cuda_memory(1 << 24):
            out = hgemm.linear_gated(x, weight, act, variant=variant.id)
        check(out, x, weight, act)


@pytest.mark.sm90
@pytest.mark.parametrize("variant", GATING, ids=lambda v: v.name)
def test_gating_is_one_launch(variant: VariantInfo) -> None:
    x = rand(variant.tile[1], 1024)
    for rows, launches in ((4096, 1), (28672, 1), (74, 2)):
        weight = rand(rows, 1024)
        names = kernels(lambda weight=weight: hgemm.linear_gated(x, weight, 4, variant=variant.id))  # type: ignore[misc]
        assert len(names) == launches, names


@pytest.mark.parametrize("variant", OTHERS, ids=lambda v: v.name)
def test_kernels_that_do_not(variant: VariantInfo) -> None:
    for rows, k, dtype in ((48, 136, torch.float16), (74, 65, torch.bfloat16), (2048, 264, torch.float16)):
        for m in (1, 7, 130):
            x, weight = rand(m, k, dtype=dtype), rand(rows, k, dtype=dtype)
            if hgemm_ops.explain(x, weight.t()).candidates[variant.id].eligible:
                check(hgemm.linear_gated(x, weight, 4, variant=variant.id), x, weight, 4)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("act", range(5))
@pytest.mark.parametrize("forced", [-2, -1])
def test_as_dispatched(dtype: torch.dtype, act: int, forced: int) -> None:
    for shape, rows, k in (((3, 1, 64), 96, 64), ((1,), 8, 1), ((5, 130), 66, 130), ((300, 520), 1040, 520)):
        x, weight = rand(*shape, dtype=dtype), rand(rows, k, dtype=dtype)
        with poisoned_cuda_memory(1 << 24):
            out = hgemm.linear_gated(x, weight, act, variant=forced)
        assert out.shape == (*x.shape[:-1], rows // 2)
        assert out.is_contiguous()
        check(out.flatten(0, -2) if out.dim() > 1 else out[None], x.reshape(-1, k), weight, act)


def test_strides_and_empty_sizes() -> None:
    wide = rand(64, 300)
    for x, weight in (
        (rand(5, 400)[:, 100:228], wide[:, :128]),
        (rand(128, 5).t(), wide[:, 4:132]),
        (rand(1, 128).expand(6, 128), rand(128, 48).t()),
        (rand(6, 2, 128).transpose(0, 1), rand(64, 128)),
    ):
        out = hgemm.linear_gated(x, weight, 2)
        check(out.reshape(-1, out.size(-1)), x.reshape(-1, 128), weight, 2)
    assert hgemm.linear_gated(rand(0, 64), rand(48, 64), 4).shape == (0, 24)
    assert hgemm.linear_gated(rand(3, 64), rand(0, 64), 4).shape == (3, 0)
    assert not hgemm.linear_gated(rand(3, 0), rand(48, 0), 4).any()


def test_nan_and_infinity() -> None:
    x, weight = rand(4, 256), rand(64, 256)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    out = hgemm.linear_gated(x, weight, 4)
    gate, up = F.linear(x, weight).chunk(2, -1)
    assert torch.equal(out.isnan(), (F.silu(gate) * up).isnan())


@torch.no_grad()
def test_a_fused_model_in_a_graph() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaMLP

    config = transformers.LlamaConfig(hidden_size=1024, intermediate_size=4096, num_attention_heads=8)
    model = nn.Sequential(LlamaMLP(config), LlamaMLP(config)).half().cuda()
    x = rand(4, 1024)
    plain = model(x)
    assert fuse_projections(model) == ["0.gate_proj+up_proj", "1.gate_proj+up_proj"]
    with use_custom_gemm() as report:
        assert len([name for name in kernels(lambda: model(x)) if "hgemm" in name]) == 4
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x)
    assert {row.variant for row in report.rows} <= {v.name for v in hgemm_ops.variants()}
    graph.replay()
    assert (out - plain).abs().max() <= 0.01 * plain.abs().max()
    for _ in range(5):
        x.copy_(rand(4, 1024))
        with use_custom_gemm():
            expected = model(x)
        out.fill_(POISON)
        graph.replay()
        assert torch.equal(out, expected)
