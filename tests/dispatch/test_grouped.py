"""The choice of a grouped matmul's kernel, which needs no GPU."""

from __future__ import annotations

import ctypes

import pytest
import torch
from helpers import needs_library
from test_devices import MISSING, Api, Operand
from torch._subclasses import FakeTensorMode

from hgemm_ops import _native, explain_grouped

pytestmark = needs_library


def choice(
    rows: int,
    groups: int,
    n: int,
    k: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    order: str = "NT",
    arch: int = 90,
    pitch: int = 1,
    gbps: int = 0,
    **fields: int,
) -> str:
    """The kernel of (rows, k) @ (groups, k, n). Rows of the operands have a multiple of ``pitch`` elements.

    ``gbps``: the bandwidth of the device's memory; 0 is that of the chip.
    """

    def stored(*shape: int, order: str) -> torch.Tensor:
        *outer, height, width = shape if order == "N" else (*shape[:-2], shape[-1], shape[-2])
        t = torch.empty(*outer, height, -(-width // pitch) * pitch, dtype=dtype, device="meta")[..., :width]
        return t if order == "N" else t.mT

    a, b = stored(rows, k, order=order[0]), stored(groups, k, n, order=order[1])
    views = [_native.view(t.shape, t.stride(), dtype, 16) for t in (a, b)]
    query = _native.GroupedQuery(*views, groups, **{"numerics": -1, "float32": -1, "as_torch": 1} | fields)
    facts = _native.preset_facts(arch)
    facts.dram_gbs = gbps
    index = _native.lib().hgemm_grouped_choice(query, facts, ctypes.byref(ctypes.c_char_p()))
    assert index != _native.UNKNOWN
    return "torch" if index == _native.TORCH else _native.grouped_names()[index]


def test_names() -> None:
    names = _native.grouped_names()
    assert len(names) == len(set(names)) > 0 and all("_grouped_" in name for name in names)


@pytest.mark.parametrize(
    ("rows", "groups", "n", "k", "kernel"),
    [
        (8, 128, 1536, 2048, "64x64_swapped"),  # eight groups at most have rows
        (2048, 128, 1536, 2048, "64x64_swapped"),
        (2049, 128, 1536, 2048, "128x128_swapped"),
        (3072, 64, 1536, 2048, "128x128_swapped"),
        (3080, 64, 1536, 2048, "128x128_1x2"),
        (2048, 8, 28672, 2048, "128x128_1x2"),
        (2056, 8, 28672, 2048, "128x256_1x2"),
        (1024, 8, 28672, 4096, "128x128_1x2"),
        (1032, 8, 28672, 4096, "128x256_2x1"),
        (65536, 64, 1536, 2048, "128x256_1x2"),
        (32768, 32, 5760, 2880, "128x192_2x1"),  # 5760 columns are 30 tiles of 192, but 11.25 pairs of tiles of 256
        (32768, 32, 2880, 4096, "128x192_2x1"),  # and 2880 are 15 of 192, but 11.25 tiles of 256
    ],
)
def test_the_kernel_follows_the_rows_of_a_group_and_k(rows: int, groups: int, n: int, k: int, kernel: str) -> None:
    assert choice(rows, groups, n, k) == f"sm90_wgmma_grouped_{kernel}"


@pytest.mark.parametrize(
    ("rows", "groups", "n", "k", "other"),
    [
        (1024, 128, 2816, 4096, "128x192_2x1"),  # GLM-4.5-Air, up, 128 tokens: 704 tiles of 64x64 in one expert
        (1024, 128, 2048, 768, "128x128_1x2"),
        (512, 16, 5120, 8192, "128x192_2x1"),  # Llama 4 Scout, down, 512 tokens: 160 tiles of 128x128
        (64, 64, 2048, 1024, ""),  # one tile has all rows
        (128, 128, 3072, 4096, ""),  # 96 tiles of 64x64 are one wave
        (8192, 128, 2816, 4096, ""),
    ],
)
def test_another_kernel_is_launched_for_few_groups_with_rows(
    rows: int, groups: int, n: int, k: int, other: str
) -> None:
    reason = explain_grouped(rows=rows, groups=groups, N=n, K=k, arch="sm_90").reason
    assert ("if few groups have rows" in reason) == bool(other) and other in reason


@pytest.mark.parametrize(
    ("rows", "groups", "n", "k", "other"),
    [
        (8192, 48, 4096, 7168, "192x128_1x2"),  # Kimi-K2/8, up, 1,024 tokens: 171 rows a group, two thirds of 256
        (8192, 60, 2816, 2048, "192x128_1x2"),  # Qwen1.5-MoE, up, 2,048 tokens: 137
        (4096, 16, 4096, 14336, "128x256_1x2"),  # Jamba, down, 2,048 tokens: 256, where ragged groups waste half a tile
        (32768, 128, 2880, 2880, "128x192_2x1"),  # gpt-oss-120b, down, 8,192 tokens: 2880 columns are 15 tiles of 192
        (2560, 16, 2048, 2048, "192x128_1x2"),
        (2560, 16, 1024, 2048, ""),  # saves less than 10 us
        (2048, 16, 2048, 2048, ""),  # 128 rows
        (8192, 16, 6144, 10752, ""),  # DBRX, down, 2,048 tokens: 512 rows are whole tiles of 256
    ],
)
def test_another_kernel_is_launched_for_other_tiles(rows: int, groups: int, n: int, k: int, other: str) -> None:
    reason = explain_grouped(rows=rows, groups=groups, N=n, K=k, arch="sm_90").reason
    assert ("if its tiles take less time" in reason) == bool(other) and other in reason


def gradient_choice(tokens: int, groups: int, m: int, n: int, gbps: int = 0) -> str:
    """The kernel of the gradients of (groups, m, n) weights."""
    views = [_native.view(t.shape, t.stride(), torch.bfloat16, 16) for t in (meta(tokens, m).mT, meta(tokens, n))]
    query = _native.GroupedQuery(*views, groups, numerics=-1, float32=-1, as_torch=1)
    facts = _native.preset_facts(90)
    facts.dram_gbs = gbps
    index = _native.lib().hgemm_grouped_choice(query, facts, ctypes.byref(ctypes.c_char_p()))
    return "torch" if index == _native.TORCH else _native.grouped_names()[index].removeprefix("sm90_wgmma_grouped_k_")


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    ("tokens", "groups", "m", "n", "kernel"),
    [
        (4, 128, 5760, 2880, "128x192_2x1"),
        (48, 64, 3072, 2560, "192x128_1x2"),
        (1024, 64, 4096, 7168, "192x128_1x2"),
        (65536, 64, 4096, 7168, "128x192_2x1"),
        (1024, 32, 5760, 2880, "128x192_2x1"),  # 2880 columns are 15 times 192, but 11.25 times 256
        (65536, 40, 1536, 512, "192x128_1x2"),  # 512 columns are 2 times 256, but 2.7 times 192
    ],
)
def test_the_kernel_of_gradients_follows_the_tiles(tokens: int, groups: int, m: int, n: int, kernel: str) -> None:
    assert gradient_choice(tokens, groups, m, n) == kernel


def test_another_kernel_is_launched_for_one_group_with_all_k() -> None:
    def reason(tokens: int, m: int, n: int) -> str:
        return explain_grouped(meta(tokens, m).bfloat16().mT, meta(tokens, n).bfloat16(), 64, arch="sm_90").reason

    # OLMoE: one expert has 88 work tiles of 256x192, or 64 of 256x256, for 66 clusters.
    assert "sm90_wgmma_grouped_k_128x256_2x1 if few groups" in reason(65536, 2048, 2048)
    assert "if few groups" not in reason(512, 2048, 2048)  # too few k
    assert "if few groups" not in reason(65536, 2048, 2816)  # 121 of 192x256, or 88 of 256x256


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
def test_torch_computes_what_it_was_measured_faster_at_on_an_h100(rows: int, groups: int, n: int, k: int) -> None:
    assert choice(rows, groups, n, k, gbps=3350) == "torch"
    assert choice(rows, groups, n, k, gbps=3350, dtype=torch.float16) != "torch"  # torch has no kernel
    assert choice(rows, groups, n, k) != "torch"  # on an H200


def test_gradients_on_an_h100() -> None:
    assert gradient_choice(8192, 64, 5120, 3584, gbps=3350) == "torch"
    assert gradient_choice(16384, 64, 5120, 3584, gbps=3350) != "torch"


@pytest.mark.parametrize("arch", [80, 86, 89, 100])
@pytest.mark.parametrize("order", ["NT", "NN"])
def test_every_architecture_has_grouped_kernels(arch: int, order: str) -> None:
    few, many = (choice(rows, 128, 768, 2048, arch=arch, order=order, dtype=torch.float16) for rows in (512, 16384))
    assert (few, many) == ("sm80_mma_grouped_32x128", "sm80_mma_grouped_128x128")


@pytest.mark.parametrize(("rows", "kernel"), [(2048, "16x128"), (4096, "32x128"), (16384, "64x128")])
@pytest.mark.parametrize("arch", [80, 90])
def test_float32_has_kernels(arch: int, rows: int, kernel: str) -> None:
    assert choice(rows, 128, 768, 2048, arch=arch, dtype=torch.float32) == f"simt_grouped_{kernel}"


def test_torch_computes_groups_that_fill_the_device_alone() -> None:
    """A loop of matmuls loses nothing then, and torch's kernels are faster."""
    for dtype in (torch.float16, torch.float32):
        assert choice(16384, 8, 28672, 4096, arch=80, dtype=dtype) == "torch"
        assert choice(16384, 8, 28672, 4096, arch=80, dtype=dtype, numerics=1) != "torch"


@pytest.mark.parametrize(
    ("arch", "n", "kernel"),
    [
        (90, 3000, "simt_grouped_16x128"),  # by the H200's bandwidth, one group's matrix is read in 5.3 us
        (80, 920, "torch"),  # the A100's: 5.4 us
        (80, 800, "simt_grouped_16x128"),  # 4.7 us
    ],
)
def test_chips_without_measured_times_need_a_margin(arch: int, n: int, kernel: str) -> None:
    """Torch's loop must be slower by more than on a chip where it was timed."""
    assert choice(64, 8, n, 2048, arch=arch, dtype=torch.float32) == kernel


@pytest.mark.parametrize(
    ("order", "rows", "kernel"),
    [
        ("TN", 65536, "sm90_wgmma_grouped"),  # a copy of 256 MiB
        ("TN", 65544, "sm80_mma_grouped_32x128"),
        ("NN", 65544, "sm90_wgmma_grouped"),  # no copy
        ("TT", 65544, "sm90_wgmma_grouped"),  # which no kernel takes where they lie
    ],
)
def test_operands_that_are_too_large_to_copy_are_read_where_they_lie(order: str, rows: int, kernel: str) -> None:
    assert choice(rows, 128, 1536, 2048, order=order, dtype=torch.float16).startswith(kernel)


def test_float32_modes() -> None:
    """TF32 is torch's. Planes have no kernel for grouped matmuls, so that "split" gets the strict one."""
    names = [choice(64, 8, 256, 256, dtype=torch.float32, float32=mode) for mode in range(3)]
    assert names == ["simt_grouped_16x128", "simt_grouped_16x128", "torch"]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("order", ["NT", "NN", "TN", "TT"])
def test_operands_that_torch_refuses(arch: int, order: str) -> None:
    """Torch gets them, to raise its error; the op computes them where they lie. 260 elements are no multiple of 16
    bytes."""
    sizes = {"rows": 63, "groups": 8, "n": 270, "k": 262, "arch": arch, "order": order}
    assert choice(**sizes) == "torch"
    in_place = "sm80_mma_grouped_32x128" if order != "TT" else "torch"
    assert choice(**sizes, as_torch=0) == in_place
    aligned = choice(**sizes, pitch=8)
    assert aligned.startswith("sm90" if arch == 90 else in_place)


@pytest.mark.parametrize("call", [{"rows": 0}, {"k": 0}, {"n": 0}], ids=str)
def test_torch_computes_what_is_empty(call: dict[str, int]) -> None:
    assert choice(**{"rows": 64, "groups": 8, "n": 256, "k": 256} | call) == "torch"


def test_any_number_of_groups() -> None:
    """The kernels for Hopper take 1,024. Torch has a kernel of its own for bfloat16 there."""
    assert choice(4096, 1025, 64, 64, dtype=torch.float16) == "sm80_mma_grouped_32x128"
    assert choice(4096, 1025, 64, 64) == "torch" == choice(4096, 1025, 64, 64, dtype=torch.float64)


def test_explanations() -> None:
    sizes = {"rows": 4096, "groups": 128, "N": 1536, "K": 2048}
    explained = explain_grouped(**sizes, arch="sm_90")
    assert explained.chosen == "sm90_wgmma_grouped_128x128_swapped" and explained.source == "model"
    assert "by the rows of a group" in explained.reason and "bfloat16 (4096, 2048)" in explained.problem
    why = {c.name: c.reason for c in explained.candidates}
    assert why[explained.chosen] == why["torch"] == "" and why["simt_grouped_64x128"] == "does not take bfloat16"
    assert "groups of rows" in why["sm90_wgmma_grouped_k_128x192_2x1"]
    assert explained.chosen in str(explained) and "needs sm_90" in explain_grouped(**sizes, arch="sm_80").table(True)

    x, w = torch.empty(64, 100, dtype=torch.bfloat16), torch.empty(8, 96, 100, dtype=torch.bfloat16).mT
    unaligned = explain_grouped(x, w, arch="sm_90")
    assert unaligned.chosen == "torch" and "16 bytes" in unaligned.reason
    assert explain_grouped(x.T, x, 8, arch="sm_80").chosen == "torch"
    y = x[:, :96].contiguous()
    assert explain_grouped(y.T, y, 8, arch="sm_90").chosen == "sm90_wgmma_grouped_k_192x128_1x2"
    assert explain_grouped(y.T, y, 8, arch="sm_80").chosen.startswith("sm80_mma_grouped")
    strict = explain_grouped(x.float(), w.float(), arch="sm_90")
    assert strict.chosen == "simt_grouped_16x128"
    assert "float64" in explain_grouped(x.double(), w.double()).reason
    with pytest.raises(ValueError, match="the number of groups"):
        explain_grouped(x.T, x)
    with pytest.raises(ValueError, match="one dtype"):
        explain_grouped(x, w.half())
    with pytest.raises(ValueError, match="layout"):
        explain_grouped(**sizes, layout="XY")
    with pytest.raises(ValueError, match="groups must not be negative, got -1"):
        explain_grouped(rows=4096, groups=-1, N=1536, K=2048)
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype, got 'bfloat16'"):
        explain_grouped(**sizes, dtype="bfloat16")
    with FakeTensorMode():  # such a mode turns new tensors into fake ones, which no kernel takes
        assert explain_grouped(**sizes, arch="sm_90").chosen == explained.chosen
    with pytest.raises(ValueError, match="either x and w or"):
        explain_grouped(rows=5)
    with pytest.raises(TypeError, match="two tensors"):
        explain_grouped(x)


class Grouped(ctypes.Structure):
    _fields_ = [
        ("a", Operand),
        ("b", Operand),
        ("offs", Operand),
        *((name, ctypes.c_int32) for name in ("offs_is_int32", "offs_is_elsewhere", "out_dtype", "ordinal")),
        *((name, ctypes.c_int32) for name in ("allows_tf32", "in_backward", "left")),
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
