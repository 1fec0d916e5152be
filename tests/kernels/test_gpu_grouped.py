"""Grouped matmuls on a GPU: every kernel against float64 group by group, and the door of aten::_grouped_mm."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

import pytest
import torch
from helpers import DEVICE, ON_GPU, POISON, assert_close_to_torch, captured
from torch import Tensor

from hgemm_ops import _native, explain_grouped, use_custom_gemm

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

hgemm = torch.ops.hgemm
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
NAMES = _native.grouped_names()
#: The kernels for Hopper whose groups are ranges of rows, and those whose groups are ranges of K.
BY_ROWS = [i for i, name in enumerate(NAMES) if name.startswith("sm90") and "_k_" not in name]
BY_K = [i for i, name in enumerate(NAMES) if name.startswith("sm90") and "_k_" in name]
KERNELS = pytest.mark.parametrize("kernel", BY_ROWS, ids=lambda i: NAMES[i])
K_KERNELS = pytest.mark.parametrize("kernel", BY_K, ids=lambda i: NAMES[i])
#: "NK": (E, N, K) in memory, as layers have it. "KN": (E, K, N).
ORDERS = pytest.mark.parametrize("order", ["NK", "KN"])

#: The rows of each group, N and K.
RAGGED = [
    ([5, 0, 70, 1, 0, 33], 256, 128),
    ([0, 0, 3], 40, 72),
    ([129, 257, 15, 300], 520, 200),
    ([1], 8, 8),
    ([64, 128, 256], 264, 1032),
    ([16] * 20 + [0] * 30 + [1000] + [7] * 3, 776, 264),
    ([2] * 1024, 64, 64),
    ([0, 700, 0], 1000, 328),
]


def ends_of(sizes: Sequence[int]) -> Tensor:
    return torch.tensor(list(itertools.accumulate(sizes)), dtype=torch.int32, device=DEVICE)


def rand(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.rand(shape, device=DEVICE).mul_(2).sub_(1).to(dtype)


def weights(groups: int, n: int, k: int, order: str, dtype: torch.dtype) -> Tensor:
    """(groups, k, n), with rows or columns at multiples of 16 bytes."""
    if order == "NK":
        return rand(groups, n, -(-k // 8) * 8, dtype=dtype)[..., :k].mT
    return rand(groups, k, -(-n // 8) * 8, dtype=dtype)[..., :n]


def check(out: Tensor, x: Tensor, w: Tensor, sizes: Sequence[int]) -> None:
    __tracebackhide__ = True
    first = 0
    for group, size in enumerate(sizes):
        rows = slice(first, first + size)
        a, b = x[rows].double(), w[group].double()
        if size:
            assert_close_to_torch(out[rows], a @ b, x[rows] @ w[group], magnitude=a.abs() @ b.abs())
        first += size


def poison_the_allocator(elements: int, dtype: torch.dtype) -> None:
    """The next tensor, if it has so many elements, gets memory that holds NaN."""
    torch.full((elements,), POISON, dtype=dtype, device=DEVICE)


@KERNELS
@HALF
@ORDERS
@pytest.mark.parametrize(("sizes", "n", "k"), RAGGED, ids=lambda v: str(v)[:24])
def test_every_group_is_its_own_product(
    kernel: int, dtype: torch.dtype, order: str, sizes: list[int], n: int, k: int
) -> None:
    x, w, offs = rand(sum(sizes), k, dtype=dtype), weights(len(sizes), n, k, order, dtype), ends_of(sizes)
    poison_the_allocator(sum(sizes) * n, dtype)
    out = hgemm.grouped_mm(x, w, offs, variant=kernel)
    assert out.shape == (sum(sizes), n) and out.dtype == dtype
    check(out, x, w, sizes)


@KERNELS
@HALF
@pytest.mark.parametrize("n", [36, 8, 1, 130, 263])
def test_rows_of_the_result_are_padded_as_torchs(kernel: int, dtype: torch.dtype, n: int) -> None:
    sizes = [70, 3, 0, 200]
    x, w = rand(sum(sizes), 136, dtype=dtype), weights(4, n, 136, "NK", dtype)
    out = hgemm.grouped_mm(x, w, ends_of(sizes), variant=kernel)
    assert out.stride() == (-(-n // 8) * 8, 1)
    check(out, x, w, sizes)


@KERNELS
@pytest.mark.parametrize("tail", [1, 15, 200])
def test_rows_behind_the_last_end_are_not_written(kernel: int, tail: int) -> None:
    sizes = [17, 0, 129]
    rows = sum(sizes) + tail
    x, w = rand(rows, 256, dtype=torch.bfloat16), weights(3, 512, 256, "NK", torch.bfloat16)
    offs = ends_of(sizes)
    poison_the_allocator(rows * 512, torch.bfloat16)  # the memory of the result, which is the next to be allocated
    out = hgemm.grouped_mm(x, w, offs, variant=kernel)
    check(out, x, w, sizes)
    assert out[sum(sizes) :].isnan().all()


@KERNELS
def test_nan_stays_in_its_row(kernel: int) -> None:
    sizes = [30, 50, 3, 61]
    x, w = rand(sum(sizes), 192, dtype=torch.bfloat16), weights(4, 256, 192, "NK", torch.bfloat16)
    for row in (0, 30, 82, 143):
        x[row] = float("nan")
    out = hgemm.grouped_mm(x, w, ends_of(sizes), variant=kernel)
    expected = torch.zeros(sum(sizes), dtype=torch.bool, device=DEVICE)
    expected[[0, 30, 82, 143]] = True
    assert torch.equal(out.isnan().any(1), expected) and torch.equal(out.isnan().all(1), expected)


@pytest.mark.parametrize("ends", [[-5, 70, 200], [50, 20, 90], [300, 100, 90], [2**30, 2**31 - 1, -(2**31)]], ids=str)
@KERNELS
def test_wrong_ends_write_nothing_outside(kernel: int, ends: list[int]) -> None:
    """The result is not defined, but memory around it must stay as it is."""
    x, w = rand(90, 128, dtype=torch.bfloat16), weights(3, 256, 128, "NK", torch.bfloat16)
    out = hgemm.grouped_mm(x, w, torch.tensor(ends, dtype=torch.int32, device=DEVICE), variant=kernel)
    around = torch.full((64, 256), 7.0, dtype=torch.bfloat16, device=DEVICE)
    torch.cuda.synchronize()
    assert out.shape == (90, 256) and (around == 7).all()


@HALF
@ORDERS
def test_a_rows_bits_do_not_depend_on_other_groups(dtype: torch.dtype, order: str) -> None:
    w = weights(6, 520, 1032, order, dtype)
    x = rand(300, 1032, dtype=dtype)
    alone = hgemm.grouped_mm(x, w, ends_of([0, 0, 300, 0, 0, 0]))
    if not ON_GPU:
        return
    for kernel in BY_ROWS:
        for before, after in ((0, 0), (1, 0), (77, 500), (4000, 3)):
            sizes = [before, 0, 300, after, 0, 9]
            company = torch.cat([rand(before, 1032, dtype=dtype), x, rand(after + 9, 1032, dtype=dtype)])
            out = hgemm.grouped_mm(company, w, ends_of(sizes), variant=kernel)[before : before + 300]
            assert torch.equal(out.view(torch.int16), alone.view(torch.int16)), (kernel, before, after)


def test_bits_are_those_of_a_batch_invariant_matmul() -> None:
    x, w = rand(200, 768, dtype=torch.bfloat16), weights(2, 512, 768, "NK", torch.bfloat16)
    with use_custom_gemm(numerics="batch_invariant"):
        grouped = torch._grouped_mm(x, w, offs=ends_of([120, 80]))
        single = torch.cat([x[:120] @ w[0], x[120:] @ w[1]])
    assert torch.equal(grouped.view(torch.int16), single.view(torch.int16))


@HALF
def test_the_door_serves_a_layer_and_counts_it(dtype: torch.dtype) -> None:
    x, w, offs = rand(100, 128, dtype=dtype), weights(4, 256, 128, "NK", dtype), ends_of([20, 0, 79, 1])
    with use_custom_gemm() as report:
        out = torch._grouped_mm(x, w, offs=offs)
    (row,) = report.rows
    assert (row.op, row.m, row.n, row.k, row.calls) == ("grouped", 100, 256, 128, 1)
    assert row.variant in NAMES if ON_GPU else row.variant == "torch"
    check(out, x, w, [20, 0, 79, 1])
    assert "grouped" in str(report)


def test_without_a_context_torch_runs() -> None:
    x, w, offs = rand(100, 128, dtype=torch.bfloat16), weights(4, 256, 128, "NK", torch.bfloat16), ends_of([25] * 4)
    with use_custom_gemm() as report:
        pass
    torch._grouped_mm(x, w, offs=offs)
    assert len(report.rows) == 0


def check_k(out: Tensor, a: Tensor, b: Tensor, sizes: Sequence[int]) -> None:
    """``out[g] == a[:, k of g] @ b[k of g]``."""
    __tracebackhide__ = True
    first = 0
    for group, size in enumerate(sizes):
        left, right = a[:, first : first + size], b[first : first + size]
        reference = left.double() @ right.double()
        magnitude = left.double().abs() @ right.double().abs()
        assert_close_to_torch(out[group], reference, left @ right, magnitude=magnitude)
        first += size


@K_KERNELS
@HALF
@pytest.mark.parametrize(
    ("sizes", "m", "n"),
    [
        ([64, 128], 128, 128),
        ([5, 0, 70, 1, 0, 33, 64, 0], 256, 264),
        ([300, 0, 129], 520, 136),
        ([63, 65, 127, 1, 1, 1000], 384, 640),
        ([1] * 500, 72, 40),
        ([0, 9, 0], 8, 8),
        ([2000, 7], 1032, 904),
        ([0, 0, 0], 72, 64),
        ([0] * 40 + [700] + [0] * 30, 520, 392),  # pieces of zeros of two sizes
        ([900, 0, 3000, 17, 600, 448], 1536, 1032),  # work tiles in the order of their k-tiles, four for each cluster
    ],
    ids=lambda v: str(v)[:24],
)
def test_groups_of_k(kernel: int, dtype: torch.dtype, sizes: list[int], m: int, n: int) -> None:
    """Rows before, between and behind groups hold NaN and infinity in some columns: none may leak into a neighbour."""
    rows = sum(sizes) + 9
    x, gradient = rand(rows, m, dtype=dtype), rand(rows, n, dtype=dtype)
    x[-9:], gradient[-9:] = POISON, float("inf")
    offs = ends_of(sizes)
    poison_the_allocator(len(sizes) * m * n, dtype)
    out = hgemm.grouped_mm(x.t(), gradient, offs, variant=kernel)
    assert out.shape == (len(sizes), m, n) and out.is_contiguous()
    check_k(out, x.t(), gradient, sizes)


@K_KERNELS
@pytest.mark.parametrize("group", range(4))
def test_nan_stays_in_its_group_of_k(kernel: int, group: int) -> None:
    sizes, x = [30, 50, 3, 61], rand(144, 128, dtype=torch.bfloat16)
    gradient = rand(144, 128, dtype=torch.bfloat16)
    first = sum(sizes[:group])
    x[first : first + sizes[group]], gradient[first] = float("nan"), float("inf")
    out = hgemm.grouped_mm(x.t(), gradient, ends_of(sizes), variant=kernel)
    assert out.isnan().flatten(1).any(1).tolist() == [i == group for i in range(4)]


@K_KERNELS
def test_padded_rows_of_a_three_dimensional_result(kernel: int) -> None:
    x, gradient = rand(100, 64, dtype=torch.bfloat16), rand(100, 40, dtype=torch.bfloat16)[:, :36]
    sizes = [0, 40, 0, 60, 0]
    poison_the_allocator(5 * 64 * 40, torch.bfloat16)
    out = hgemm.grouped_mm(x.t(), gradient, ends_of(sizes), variant=kernel)
    assert out.shape == (5, 64, 36) and out.stride() == (64 * 40, 40, 1)
    check_k(out, x.t(), gradient, sizes)


@K_KERNELS
def test_a_graph_follows_the_groups_of_k(kernel: int) -> None:
    x, gradient = rand(300, 136, dtype=torch.bfloat16), rand(300, 72, dtype=torch.bfloat16)
    offs = ends_of([50] * 6)
    out, replay = captured(lambda: hgemm.grouped_mm(x.t(), gradient, offs, variant=kernel))
    for sizes in ([50] * 6, [0, 0, 0, 300, 0, 0], [1, 0, 2, 0, 0, 97], [0] * 6):
        offs.copy_(ends_of(sizes))
        replay()
        check_k(out, x.t(), gradient, sizes)


def in_order(rows: int, columns: int, order: str, dtype: torch.dtype) -> Tensor:
    """A matrix that is stored by rows ("N") or by columns ("T")."""
    if order == "N":
        return rand(rows, -(-columns // 8) * 8, dtype=dtype)[:, :columns]
    return rand(columns, -(-rows // 8) * 8, dtype=dtype)[:, :rows].t()


CALLS = pytest.mark.parametrize("call", ["door", "op"])


def grouped_mm(call: str, a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    if call == "op":
        return hgemm.grouped_mm(a, b, offs)
    with use_custom_gemm() as report:
        out = torch._grouped_mm(a, b, offs=offs)
    (row,) = report.rows
    assert (row.op, row.m, row.n, row.k) == ("grouped", a.size(-2), b.size(-1), a.size(-1))
    assert row.variant in NAMES or not ON_GPU
    return out


# In these forms and orders a group may start at any address, where torch's kernel ends the CUDA context.


@HALF
@CALLS
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_groups_of_k_in_any_order(dtype: torch.dtype, call: str, order: str) -> None:
    sizes = [33, 0, 95, 7]
    a, b = in_order(68, 135, order[0], dtype), in_order(135, 132, order[1], dtype)
    out = grouped_mm(call, a, b, ends_of(sizes))
    assert out.shape == (4, 68, 132) and out.stride() == (68 * 136, 136, 1)
    check_k(out, a, b, sizes)


@HALF
@CALLS
@pytest.mark.parametrize("order", ["NK", "KN"])
def test_rows_that_are_stored_by_columns(dtype: torch.dtype, call: str, order: str) -> None:
    sizes = [33, 0, 95, 7]
    x, w = in_order(135, 100, "T", dtype), weights(4, 136, 100, order, dtype)
    out = grouped_mm(call, x, w, ends_of(sizes))
    assert out.stride() == (136, 1)
    check(out, x, w, sizes)


@HALF
@CALLS
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_groups_of_columns(dtype: torch.dtype, call: str, order: str) -> None:
    sizes = [33, 0, 95, 7]
    a = weights(4, 72, 100, "NK" if order[0] == "N" else "KN", dtype).mT
    b = in_order(100, 135, order[1], dtype)
    out = grouped_mm(call, a, b, ends_of(sizes))
    assert out.shape == (72, 135) and out.stride() == (136, 1)
    check(out.t(), b.t(), a.mT, sizes)


@pytest.mark.parametrize("n", [64, 36])
def test_three_dimensions_are_a_batched_matmul(n: int) -> None:
    a, b = rand(5, 40, 64, dtype=torch.bfloat16), rand(5, 64, -(-n // 8) * 8, dtype=torch.bfloat16)[..., :n]
    reference = torch._grouped_mm(a, b)
    with use_custom_gemm():
        out = torch._grouped_mm(a, b)
    direct = hgemm.grouped_mm(a, b)
    for got in (out, direct):
        assert got.stride() == reference.stride()
        magnitude = a.double().abs() @ b.double().abs()
        assert_close_to_torch(got, a.double() @ b.double(), reference, magnitude=magnitude)


@pytest.mark.parametrize("what", ["x starts at 2 bytes", "rows of x at 8 bytes", "x by columns"])
def test_what_the_kernels_cannot_read_goes_to_torch(what: str) -> None:
    w, offs = weights(2, 64, 64, "NK", torch.float16), ends_of([20, 30])
    x = rand(50, 64, dtype=torch.float16)
    if what == "x starts at 2 bytes":
        x = rand(50 * 64 + 1, dtype=torch.float16)[1:].view(50, 64)
    elif what == "rows of x at 8 bytes":
        x = rand(50, 68, dtype=torch.float16)[:, :64]
    else:
        x = rand(64, 56, dtype=torch.float16)[:, :50].t()
    outcomes = []
    for context in (False, True):
        try:
            if context:
                with use_custom_gemm():
                    outcomes.append(torch._grouped_mm(x, w, offs=offs))
            else:
                outcomes.append(torch._grouped_mm(x, w, offs=offs))
        except RuntimeError as error:
            outcomes.append(str(error).splitlines()[0])
    if isinstance(outcomes[0], str):
        assert outcomes[1] == outcomes[0]
    else:
        check(outcomes[1], x, w, [20, 30])


def test_errors_are_torchs() -> None:
    x, w = rand(50, 64, dtype=torch.bfloat16), weights(2, 64, 64, "NK", torch.bfloat16)
    offs = ends_of([20, 30])
    calls = [
        lambda: torch._grouped_mm(x, w, offs=offs.long()),
        lambda: torch._grouped_mm(x, w),
        lambda: torch._grouped_mm(x, w, offs=offs[None]),
        lambda: torch._grouped_mm(x, w.half(), offs=offs),
        lambda: torch._grouped_mm(x[0], w, offs=offs),
        lambda: torch._grouped_mm(x, w, offs=offs, bias=rand(64, dtype=torch.bfloat16)),
        lambda: torch._grouped_mm(x, w, offs=offs, out_dtype=torch.float32),
    ]
    for call in calls:
        with pytest.raises(RuntimeError) as torchs:
            call()
        with use_custom_gemm(), pytest.raises(RuntimeError) as ours:
            call()
        assert str(ours.value).splitlines()[0] == str(torchs.value).splitlines()[0]


def test_sizes_that_do_not_fit_are_errors_of_the_host() -> None:
    x, w = rand(50, 64, dtype=torch.bfloat16), weights(2, 64, 64, "NK", torch.bfloat16)
    with use_custom_gemm():
        with pytest.raises(RuntimeError, match=r"offs has 3 elements, but b \(2, 64, 64\) has 2 groups"):
            torch._grouped_mm(x, w, offs=ends_of([20, 20, 10]))
        with pytest.raises(RuntimeError, match="last dimension of a and the last but one of b must match"):
            torch._grouped_mm(rand(50, 72, dtype=torch.bfloat16), w, offs=ends_of([20, 30]))
        with pytest.raises(RuntimeError, match="must match"):
            torch._grouped_mm(x.t(), rand(48, 64, dtype=torch.bfloat16), offs=ends_of([20, 30]))
        with pytest.raises(RuntimeError, match="offs must be contiguous"):
            torch._grouped_mm(x, w, offs=torch.zeros(4, dtype=torch.int32, device=DEVICE)[::2])
        if ON_GPU:
            with pytest.raises(RuntimeError, match="offs must be on the device"):
                torch._grouped_mm(x, w, offs=ends_of([20, 30]).cpu())
    torch.cuda.synchronize()


@HALF
@KERNELS
def test_a_graph_follows_the_groups(dtype: torch.dtype, kernel: int) -> None:
    """The host reads nothing of ``offs``: a captured call computes what its values are at each replay."""
    x, w, offs = rand(200, 256, dtype=dtype), weights(5, 256, 256, "NK", dtype), ends_of([40] * 5)

    def twice() -> tuple[Tensor, Tensor]:
        first = hgemm.grouped_mm(x, w, offs, variant=kernel)
        return first, hgemm.grouped_mm(first, w, offs, variant=kernel)

    (first, second), replay = captured(twice)
    for sizes in ([40] * 5, [200, 0, 0, 0, 0], [0, 1, 2, 3, 194], [0, 0, 0, 99, 101]):
        offs.copy_(ends_of(sizes))
        replay()
        check(first, x, w, sizes)
        check(second, first, w, sizes)


#: Sizes at which two kernels for many rows are launched: rows, groups, N, K. In 132 SMs 192x128 in 1x2 has two waves of
#: work tiles, and 128x128 in 1x2 four, if all groups have 160 rows. If ten groups have 256 rows, both have three.
TILES = (2560, 16, 2048, 2048)
#: Sizes at which two kernels are launched, one of which finds that the other computes the product.
PAIRS = [(1024, 64, 2048, 1024), (2048, 128, 1536, 1040), (512, 16, 5128, 1032), TILES]


@HALF
@ORDERS
@pytest.mark.parametrize(("rows", "groups", "n", "k"), PAIRS, ids=str)
def test_either_of_two_kernels_computes_a_product(
    dtype: torch.dtype, order: str, rows: int, groups: int, n: int, k: int
) -> None:
    x, w = rand(rows, k, dtype=dtype), weights(groups, n, k, order, dtype)
    if ON_GPU:
        assert "; sm90_wgmma_grouped" in explain_grouped(x, w, groups=groups).reason
    mean = rows // groups
    spreads = [
        [mean] * groups,
        [0] * (groups // 2) + [rows] + [0] * (groups - groups // 2 - 1),
        [7] + [0] * (groups - 3) + [rows - 10, 0],  # two groups, and rows that no group has
        [rows // 2 + 1, 0, rows // 2 - 1] + [0] * (groups - 3),
        [rows // 10] * 10 + [0] * (groups - 10),
        [0] * groups,
    ]
    offs, results = ends_of(spreads[0]), []
    with use_custom_gemm():
        (out, again), replay = captured(lambda: [torch._grouped_mm(x, w, offs=offs) for _ in range(2)])
    for sizes in spreads:
        offs.copy_(ends_of(sizes))
        replay()
        check(out, x, w, sizes)
        assert out[sum(sizes) :].isnan().all()
        assert torch.equal(out.view(torch.int16), again.view(torch.int16))
        results.append(out.clone())
    alone = torch.cat([hgemm.grouped_mm(x, w, ends_of(spreads[1]), variant=kernel) for kernel in BY_ROWS])
    assert all(torch.equal(part, results[1]) for part in alone.view(len(BY_ROWS), rows, n))


@HALF
def test_either_of_two_kernels_computes_gradients(dtype: torch.dtype) -> None:
    rows, groups, m, n = 3200, 8, 2048, 2040
    x, gradient = rand(rows, m, dtype=dtype), rand(rows, n, dtype=dtype)
    if ON_GPU:
        assert "if few groups have rows" in explain_grouped(x.t(), gradient, groups=groups).reason
    spreads = [
        [400] * groups,
        [0, 0, 0, rows, 0, 0, 0, 0],
        [1, 1599, 0, 900, 0, 0, 700, 0],
        [0, 1600, 0, 33, 1, 0, 0, 0],
        [0] * groups,
    ]
    offs = ends_of(spreads[0])
    with use_custom_gemm():
        (out, again), replay = captured(lambda: [hgemm.grouped_mm(x.t(), gradient, offs) for _ in range(2)])
    for sizes in spreads:
        offs.copy_(ends_of(sizes))
        replay()
        check_k(out, x.t(), gradient, sizes)
        assert torch.equal(out.view(torch.int16), again.view(torch.int16))


def longest_kernel(call: Callable[[], Tensor]) -> str:
    """The name of the kernel of a call that takes most time."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return str(max(kernels, key=lambda e: e.time_range.elapsed_us()).name)


@pytest.mark.parametrize(
    ("sizes", "rows_of_a_tile"), [([160] * 16, 192), ([256] * 10 + [0] * 6, 128), ([0] * 15 + [2560], 192)], ids=str
)
def test_the_kernel_with_the_faster_tiles_computes_a_product(sizes: list[int], rows_of_a_tile: int) -> None:
    if not ON_GPU or torch.cuda.get_device_properties(DEVICE).multi_processor_count != 132:
        pytest.skip("needs a GPU with 132 SMs")
    rows, groups, n, k = TILES
    x, w, offs = rand(rows, k, dtype=torch.bfloat16), weights(groups, n, k, "NK", torch.bfloat16), ends_of(sizes)
    assert "192x128_1x2 if its tiles take less time" in explain_grouped(x, w, groups=groups).reason
    name = longest_kernel(lambda: hgemm.grouped_mm(x, w, offs))
    assert re.search(rf"{rows_of_a_tile}\D{{1,10}}128\D", name), name  # the rows and columns in Config


@HALF
@ORDERS
def test_bits_are_the_same_on_both_sides_of_the_choice(dtype: torch.dtype, order: str) -> None:
    """The other groups decide which of two kernels computes a row, but not its bits."""
    rows, groups, n, k = TILES
    w, x = weights(groups, n, k, order, dtype), rand(160, k, dtype=dtype)
    alone = hgemm.grouped_mm(x, w, ends_of([0] * 5 + [160] + [0] * 10), variant=0)
    for sizes in (
        [160] * 16,  # 192x128 computes these
        [256] * 5 + [160] + [256] * 4 + [96] + [0] * 5,  # 128x128
        [1000] + [0] * 4 + [160] + [0] * 9 + [1400],  # 192x128
        [0] * 5 + [160] + [240] * 10,  # 128x128
    ):
        first = sum(sizes[:5])
        others = rand(rows - 160, k, dtype=dtype)
        company = torch.cat([others[:first], x, others[first:]])
        with use_custom_gemm(numerics="batch_invariant"):
            out = torch._grouped_mm(company, w, offs=ends_of(sizes))
        assert torch.equal(out[first : first + 160].view(torch.int16), alone.view(torch.int16)), sizes
        check(out, company, w, sizes)


@pytest.mark.parametrize(
    ("sizes", "spread"), [(PAIRS[0], [1024] + [0] * 63), (TILES, [256] * 10 + [0] * 6)], ids=["few groups", "tiles"]
)
def test_a_kernel_behind_a_pair_waits_for_both(sizes: tuple[int, int, int, int], spread: list[int]) -> None:
    """Each launch starts early, and the second of a pair reads the groups before the first has ended."""
    rows, groups, n, k = sizes
    w = [weights(groups, a, b, "NK", torch.bfloat16) / 8 for a, b in ((n, k), (k, n))]
    x, uneven = rand(rows, k, dtype=torch.bfloat16), torch.tensor(spread, device=DEVICE)
    for step in range(40):
        counts = uneven if step % 2 else uneven * 0 + rows // groups
        uneven = uneven.roll(1)
        expected = x
        offs = torch.cumsum(counts, 0, dtype=torch.int32)
        for of in w:
            expected = hgemm.grouped_mm(expected, of, offs.clone(), variant=0)
            torch.cuda.synchronize()
        with use_custom_gemm():
            offs = torch.cumsum(counts, 0, dtype=torch.int32)
            got = torch._grouped_mm(torch._grouped_mm(x, w[0], offs=offs), w[1], offs=offs)
        assert torch.equal(got, expected), step


def test_ends_may_come_from_the_kernel_before() -> None:
    """A launch starts early, beside the end of its predecessor, but must not read ``offs`` before that has ended."""
    x, w = rand(4096, 256, dtype=torch.bfloat16), weights(8, 256, 256, "NK", torch.bfloat16)
    counts = torch.tensor([4096 - 7, 1, 1, 1, 1, 1, 1, 1], device=DEVICE)
    for kernel in BY_ROWS:
        for _ in range(20):
            counts = counts.roll(1)
            offs = torch.cumsum(counts, 0, dtype=torch.int32)
            out = hgemm.grouped_mm(x, w, offs, variant=kernel)
            expected = hgemm.grouped_mm(x, w, offs.clone(), variant=0)
            assert torch.equal(out, expected)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients(frozen: bool) -> None:
    x = rand(96, 64, dtype=torch.bfloat16).requires_grad_()
    w = weights(3, 128, 64, "NK", torch.bfloat16).detach().requires_grad_(not frozen)
    offs, gradient = ends_of([32, 0, 64]), rand(96, 128, dtype=torch.bfloat16)
    torch._grouped_mm(x, w, offs=offs).backward(gradient)
    expected = x.grad, w.grad
    x.grad = w.grad = None
    with use_custom_gemm():
        torch._grouped_mm(x, w, offs=offs).backward(gradient)
    for got, reference in zip((x.grad, w.grad), expected, strict=True):
        if reference is not None:
            torch.testing.assert_close(got, reference)


def test_more_tiles_than_a_table_has() -> None:
    """A cluster's table has 256 work tiles; a launch with more starts more clusters. Checks a column of every tile."""
    sizes, columns = [1900, 2200], 36864
    x, w = rand(sum(sizes), 64, dtype=torch.bfloat16), weights(2, columns, 64, "NK", torch.bfloat16)
    assert sum(-(-size // 64) for size in sizes) * columns // 64 > 132 * 256
    out = hgemm.grouped_mm(x, w, ends_of(sizes), variant=0)
    some = torch.arange(5, columns, 64, device=DEVICE)
    check(out[:, some], x, w[..., some], sizes)


@pytest.mark.parametrize("kernel", BY_ROWS, ids=lambda i: NAMES[i])
def test_many_tiles_of_a_block(kernel: int) -> None:
    """Blocks compute several tiles one after the other, and a cooperative kernel stores one under the next."""
    sizes = [1000, 0, 777, 129, 1, 900, 300, 64]
    x, w = rand(sum(sizes), 1032, dtype=torch.bfloat16), weights(8, 8200, 1032, "NK", torch.bfloat16)
    offs = ends_of(sizes)
    poison_the_allocator(sum(sizes) * 8200, torch.bfloat16)
    check(hgemm.grouped_mm(x, w, offs, variant=kernel), x, w, sizes)
