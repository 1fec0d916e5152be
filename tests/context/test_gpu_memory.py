"""How much memory products take, and what happens where there is none: slabs, fallbacks, torch's current allocator."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_close_to_torch, least_k, reference_matmul
from torch import Tensor

import hgemm_ops
from hgemm_ops import _native, use_custom_gemm

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
MIB = 1 << 20
MOST_WORKSPACE = 256 * MIB


@contextlib.contextmanager
def most_workspace(limit: int) -> Iterator[None]:
    """Products take at most so many bytes of workspace, so that small ones are cut into slabs as well."""
    _native.lib().hgemm_set_most_workspace(limit)
    try:
        yield
    finally:
        _native.lib().hgemm_set_most_workspace(-1)


@contextlib.contextmanager
def memory_left(left: int) -> Iterator[None]:
    """torch's allocator may take only ``left`` more bytes from the device, and has hardly any that it holds already."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    assert held < 24 * MIB, f"{held >> 20} MiB are held beside tensors"
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + left) / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def warm_up() -> None:
    """cuBLAS allocates its workspace at the first product on a stream."""
    for dtype in (torch.float16, torch.float32):
        a = torch.ones(256, 256, dtype=dtype, device="cuda")
        _ = a @ a, torch.addmm(a, a, a), torch.bmm(a[None], a[None]), F.linear(a, a, a[0])


def peak_of(call: Callable[[], object]) -> int:
    """The bytes that were asked of torch's allocator at most at a time during the call, beyond those before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"]) - before


PADDED = [v for v in hgemm_ops.variants() if v.name.endswith("_pad") and "edged" not in v.name]
PLANES = [v for v in hgemm_ops.variants() if v.family in ("sm90_split", "sm80_split")]


def sums_in_order(variant: hgemm_ops.VariantInfo) -> bool:
    """Whether a kernel of planes has the summation order that batch_invariant promises on this GPU."""
    return variant.sums == ("planes" if torch.cuda.get_device_capability()[0] == 9 else "planes by mma.sync")


def filled(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Values of N(0, 1), in memory that is not a part of a larger block."""
    return torch.empty(shape, dtype=dtype, device="cuda").normal_()


def operand(rows: int, cols: int, transposed: bool, dtype: torch.dtype, batch: tuple[int, ...] = ()) -> Tensor:
    return filled(*batch, cols, rows, dtype=dtype).mT if transposed else filled(*batch, rows, cols, dtype=dtype)


def takes(variant: hgemm_ops.VariantInfo, a: Tensor, b: Tensor) -> bool:
    candidates = hgemm_ops.explain(a, b, float32="split").candidates
    return next(c.eligible for c in candidates if c.name == variant.name)


PROBLEMS: list[tuple[tuple[int, ...], tuple[int, ...], int, int, int]] = [
    ((), (), 1031, 517, 257),
    ((), (), 515, 1501, 1031),
    ((5,), (5,), 257, 131, 515),
    ((3, 1), (1, 4), 131, 77, 67),
    ((7,), (7,), 33, 41, 17),
    ((), (), 2053, 1, 131),
    ((), (), 1, 2053, 131),
]


@pytest.mark.parametrize("variant", [*PADDED, *PLANES], ids=lambda v: v.name)
def test_slabs_give_the_bits_of_the_whole_product(variant: hgemm_ops.VariantInfo) -> None:
    dtype, tried = variant.dtypes[0], 0
    # Fast numerics may cut K in other places. All other kernels sum as they would in the whole product.
    numerics = "batch_invariant" if sums_in_order(variant) else "fast"
    cuts_k = "streamk" in variant.name or least_k(variant) > 1
    for a_batch, b_batch, m, n, k in PROBLEMS:
        for layout in range(4):
            a, b = operand(m, k, layout // 2 == 1, dtype, a_batch), operand(k, n, layout % 2 == 1, dtype, b_batch)

            def call(a: Tensor = a, b: Tensor = b) -> Tensor:
                return hgemm_ops.matmul(a, b, variant=variant.name, numerics=numerics)

            if not takes(variant, a, b):
                continue
            whole = call()
            exact, magnitude = reference_matmul(a, b)
            for limit in (40 * MIB, 1 << 20, 300_000, 50_000, 20_000):
                with most_workspace(limit):
                    if not takes(variant, a, b):
                        continue
                    tried += 1
                    peak = peak_of(call)
                    out = call()
                assert peak <= whole.nbytes + limit + 1024, (a_batch, m, n, k, layout, limit)
                assert_close_to_torch(out, exact, torch.matmul(a, b), magnitude=magnitude)
                assert cuts_k or torch.equal(out, whole), (a_batch, b_batch, m, n, k, layout, limit)
    assert tried > (0 if cuts_k else 12)


@pytest.mark.parametrize("variant", PLANES, ids=lambda v: v.name)
@pytest.mark.parametrize("transposed", [False, True])
def test_slabs_of_x_by_its_transpose(variant: hgemm_ops.VariantInfo, transposed: bool) -> None:
    """Both triangles have the same bits, whatever slabs and parts of K they come in, with a symmetric C too."""
    tried = 0
    for batch, n, k in (((), 1031, 515), ((), 264, 4096), ((3,), 300, 131), ((), 2056, 1000), ((), 130, 40000)):
        x = operand(n, k, transposed, torch.float32, batch)
        exact, magnitude = reference_matmul(x, x.mT)
        c = filled(n, n, dtype=torch.float32)
        c = c + c.T
        numerics = "batch_invariant" if sums_in_order(variant) else "fast"
        whole = hgemm_ops.matmul(x, x.mT, variant=variant.name, numerics=numerics)
        for limit in (100 * MIB, 40 * MIB, 1 << 20, 300_000, 100_000):
            with most_workspace(limit):
                if not takes(variant, x, x.mT):
                    continue
                tried += 1
                in_order = hgemm_ops.matmul(x, x.mT, variant=variant.name, numerics=numerics)
                fast = hgemm_ops.matmul(x, x.mT, variant=variant.name)
                added = torch.ops.hgemm.addmm(c, x, x.mT, variant=variant.id) if not batch else fast
            assert numerics == "fast" or torch.equal(in_order, whole), (batch, n, k, limit)
            assert torch.equal(fast, fast.mT) and torch.equal(added, added.mT), (batch, n, k, limit)
            assert_close_to_torch(fast, exact, torch.matmul(x, x.mT), magnitude=magnitude)
            if not batch:
                sums = magnitude + c.double().abs()
                assert_close_to_torch(added, exact + c.double(), torch.addmm(c, x, x.mT), magnitude=sums)
    assert tried > 12


@pytest.mark.parametrize("variant", PLANES, ids=lambda v: v.name)
@pytest.mark.parametrize(
    ("layout", "m", "n", "k"),
    [(0, 512, 520, 40000), (1, 257, 255, 40001), (2, 130, 70, 99999), (3, 64, 1001, 30000)],
    ids=str,
)
def test_planes_of_parts_of_k(variant: hgemm_ops.VariantInfo, layout: int, m: int, n: int, k: int) -> None:
    """Where few rows and columns have a long K, fast numerics cut K, and add to the result of the part before."""
    a = operand(m, k, layout // 2 == 1, torch.float32)
    b = operand(k, n, layout % 2 == 1, torch.float32)
    bias, c = filled(n, dtype=torch.float32), filled(m, n, dtype=torch.float32)
    with most_workspace(80 * MIB):
        assert takes(variant, a, b)
        out = hgemm.matmul(a, b, variant=variant.id)
        fused, saved = hgemm.linear_save(a, b.mT, bias, 2, variant=variant.id)
        added = hgemm.addmm(c, a, b, beta=0.5, alpha=2.0, variant=variant.id)
    exact, magnitude = reference_matmul(a, b)
    magnitude = magnitude * max(1.0, (k / 36_000) ** 0.5)
    assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)
    assert_close_to_torch(saved, exact + bias, F.linear(a, b.mT, bias), magnitude=magnitude)
    assert torch.allclose(fused, F.gelu(saved))
    theirs = torch.addmm(c, a, b, beta=0.5, alpha=2.0)
    assert_close_to_torch(added, 2 * exact + 0.5 * c.double(), theirs, magnitude=2 * magnitude)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(v, id=v.name, marks=[pytest.mark.sm90] if v.min_arch == "sm_90" else [])
        for v in PLANES
        if "split3" in v.name
    ],
)
def test_slabs_of_what_two_planes_do_not_hold(variant: hgemm_ops.VariantInfo) -> None:
    """The kernel over three planes, which then computes the product again, runs in slabs of its own."""
    for k in (1024, 4096):
        a, ones = filled(1500, k, dtype=torch.float32), torch.eye(k, device="cuda")
        bias = filled(k, dtype=torch.float32)
        for limit in (80 * MIB, 20 * MIB, 2 * MIB):
            with most_workspace(limit):
                assert takes(variant, a, ones), (k, limit)
                assert torch.equal(hgemm.matmul(a, ones, variant=variant.id), a), (k, limit)
                fused, saved = hgemm.linear_save(a, ones, bias, 1, variant=variant.id)
                assert torch.equal(saved, a + bias) and torch.equal(fused, saved.relu()), (k, limit)


def test_epilogues_of_slabs() -> None:
    x, w = filled(1031, 515), filled(517, 515)
    bias, c = filled(517), filled(1031, 517)
    names = ("sm90_wgmma_pingpong_128x128x64_c1x1x1_pad", "sm80_mma_128x128x64_w64x64_s3_pad")
    kernels = [v.id for v in PADDED if v.name in names and takes(v, x, w.t())]
    assert kernels
    for variant in kernels:
        calls: list[Callable[[], Tensor]] = [
            *(partial(hgemm.linear, x, w, bias, act, variant=variant) for act in range(5)),
            partial(hgemm.addmm, c, x, w.t(), beta=0.5, alpha=2.0, variant=variant),
            partial(hgemm.addmm, c[:, :1], x, w.t(), variant=variant),
            partial(hgemm.addmm, c[:1], x, w.t(), beta=3.0, variant=variant),
            partial(hgemm.mm, x, w.t(), out_dtype=torch.float32, variant=variant),
        ]
        for number, call in enumerate(calls):
            whole = call()
            with most_workspace(400_000):
                assert torch.equal(call(), whole), (variant, number)
        both = hgemm.linear_save(x, w, bias, 2, variant=variant)
        with most_workspace(400_000):
            assert all(map(torch.equal, hgemm.linear_save(x, w, bias, 2, variant=variant), both))


BIG = [
    # (m, n, k, dtype): the inputs of public reports, and others up to 2^33 bytes of operands.
    (65536, 4097, 4097, torch.float16),
    (131072, 8191, 1024, torch.float16),
    (50001, 20001, 333, torch.float16),
    (8193, 8193, 8193, torch.bfloat16),
    (1_200_000, 512, 1001, torch.float16),
    (1001, 512, 1_200_000, torch.float16),  # a weight's gradient
    (16384, 8192, 8192, torch.float32),
    (4097, 50257, 4095, torch.float32),
    (300_000, 512, 1000, torch.float32),
]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("m", "n", "k", "dtype"), BIG, ids=str)
def test_workspace_is_bounded(m: int, n: int, k: int, dtype: torch.dtype, transposed: bool) -> None:
    warm_up()
    a, b = operand(m, k, transposed, dtype), operand(k, n, not transposed, dtype)
    theirs = peak_of(lambda: a @ b)
    with use_custom_gemm(float32="split") as report:
        ours = peak_of(lambda: a @ b)
        out = a @ b
    print(m, n, k, dtype, transposed, theirs >> 20, ours >> 20, report.rows[0].variant)
    assert ours - theirs <= MOST_WORKSPACE
    rows, cols = torch.randint(m, (50,), device="cuda"), torch.randint(n, (50,), device="cuda")
    exact, magnitude = reference_matmul(a[rows], b[:, cols])
    # The tolerance of tests/helpers.py covers sums over K up to 36,000.
    magnitude = magnitude * max(1.0, (k / 36_000) ** 0.5)
    assert_close_to_torch(out[rows][:, cols], exact, (a @ b)[rows][:, cols], magnitude=magnitude)


@pytest.mark.fresh_process
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [(65536, 4097, 4097, torch.float16), (16384, 4097, 4099, torch.float16), (8192, 4096, 8192, torch.float32)],
    ids=str,
)
def test_without_memory_for_the_workspace(m: int, n: int, k: int, dtype: torch.dtype, captured: bool) -> None:
    """The result fits and nothing else: torch computes the product, and the report says why."""
    warm_up()
    a, b = operand(m, k, False, dtype), operand(k, n, False, dtype)
    expected = a @ b
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        warm_up()
        torch.cuda.synchronize()
    # A capture allocates cuBLAS's workspace in its own pool.
    left = expected.nbytes + (76 if captured else 12) * MIB
    with use_custom_gemm(float32="split") as report, memory_left(left):
        if captured:
            with torch.cuda.graph(graph, stream=side):
                out = a @ b
            graph.replay()
        else:
            out = a @ b
    assert torch.equal(out, expected)
    (row,) = report.rows
    assert row.variant == "torch" and row.calls == 1
    assert "not enough memory" in row.reason


@pytest.mark.fresh_process
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("left", [2, 20, 60])
def test_a_promise_is_held_without_memory(dtype: torch.dtype, left: int) -> None:
    """Torch must not compute the product, so a kernel with less or no workspace does, and the bits are the same."""
    warm_up()
    a, b = filled(16001, 2047, dtype=dtype), filled(2047, 2049, dtype=dtype)
    with use_custom_gemm(numerics="batch_invariant", float32="split") as report:
        expected = a @ b
        (before,) = report.rows
    limit = expected.nbytes + left * MIB
    with use_custom_gemm(numerics="batch_invariant", float32="split") as report, memory_left(limit):
        out = a @ b
    print(dtype, left, before.variant, report.rows[0].variant)
    assert torch.equal(out, expected)
    assert [row.calls for row in report.rows] == [1] and report.rows[0].variant != "torch"


@pytest.mark.fresh_process
def test_out_of_memory_is_torchs_error() -> None:
    warm_up()
    x, w = filled(20000, 1024), filled(20000, 1024)
    c = filled(20000)
    batch = filled(4, 20000, 64)
    strided = filled(20000, 2048)[:, ::2]
    wide_x, wide_w = x.double(), w.double().t()
    calls: dict[str, Callable[[], object]] = {
        "override": lambda: x @ w.t(),
        "mm": lambda: hgemm.mm(x, w.t()),
        "strided": lambda: hgemm.mm(strided, w.t()),
        "matmul": lambda: hgemm_ops.matmul(x, w.t()),
        "linear": lambda: hgemm_ops.linear(x, w, c),
        "linear_save": lambda: hgemm.linear_save(x, w, c, 2),
        "linear_gated": lambda: hgemm.linear_gated(x, w, 4),
        "bmm": lambda: hgemm.bmm(batch, batch.mT),
        "addmm": lambda: hgemm.addmm(c, x, w.t()),
        "out_dtype": lambda: hgemm.mm(x, w.t(), out_dtype=torch.float32),
        "torch's": lambda: hgemm.mm(wide_x, wide_w),
    }
    with use_custom_gemm():
        for name, call in calls.items():
            with memory_left(100 * MIB), pytest.raises(torch.OutOfMemoryError, match="out of memory") as raised:
                call()
            print(name, str(raised.value)[:60])
            del raised
            gc.collect()
    assert (x[:64] @ w[:64].t()).isfinite().all()


@pytest.mark.fresh_process
@pytest.mark.parametrize("door", ["override", "op", "function"])
def test_a_grouped_product_without_memory_for_copies(door: str) -> None:
    """The result fits, and the copy of an operand does not: a kernel reads the operand where it lies."""
    warm_up()
    x, w = filled(1024, 65536).t(), filled(4, 1024, 64)
    offs = torch.tensor([10000, 20000, 50000, 65536], dtype=torch.int32, device="cuda")
    expected = torch._grouped_mm(x, w, offs)
    call = {
        "override": lambda: torch._grouped_mm(x, w, offs),
        "op": lambda: hgemm.grouped_mm(x, w, offs),
        "function": lambda: hgemm_ops.grouped_mm(x, w, offs),
    }[door]
    in_place = contextlib.nullcontext() if door == "function" else torch.inference_mode()
    with in_place, use_custom_gemm() as report, memory_left(3 * expected.nbytes + 12 * MIB):
        got = call()
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=0.1)
    assert [(row.variant, row.calls) for row in report.rows] == [("sm80_mma_grouped_32x128", 1)], report


@pytest.mark.fresh_process
def test_a_grouped_product_without_memory_for_its_result() -> None:
    """Torch has none either, and says so."""
    warm_up()
    x, w = filled(65536, 64), filled(4, 1024, 64).mT
    offs = torch.tensor([10000, 20000, 50000, 65536], dtype=torch.int32, device="cuda")
    hgemm.grouped_mm(x, w, offs)
    with use_custom_gemm(), memory_left(24 * MIB):
        for call in (torch._grouped_mm, hgemm.grouped_mm):
            with pytest.raises(torch.OutOfMemoryError):
                call(x, w, offs)
    hgemm.grouped_mm(x, w, offs)


@pytest.mark.fresh_process
@pytest.mark.parametrize("variant", PADDED[:2], ids=lambda v: v.name)
def test_a_named_kernel_takes_thinner_slabs(variant: hgemm_ops.VariantInfo) -> None:
    a, b = filled(16384, 4097), filled(4097, 1025)
    expected = hgemm.mm(a, b, variant=variant.id)
    with memory_left(expected.nbytes + 60 * MIB):
        assert torch.equal(hgemm.mm(a, b, variant=variant.id), expected)
    with memory_left(expected.nbytes // 2), pytest.raises(torch.OutOfMemoryError):
        hgemm.mm(a, b, variant=variant.id)


ALLOCATOR = r"""
#include <stddef.h>
typedef void* stream;
int cudaMalloc(void**, size_t);
int cudaFree(void*);
int cudaDeviceSynchronize(void);
static size_t calls = 0, largest = 0;
void* allocate(size_t size, int device, stream s) {
  void* p = 0;
  if (cudaMalloc(&p, size)) return 0;
  ++calls;
  if (size > largest) largest = size;
  return p;
}
void release(void* p, size_t size, int device, stream s) { cudaDeviceSynchronize(); cudaFree(p); }
size_t count(void) { return calls; }
size_t largest_of(void) { return largest; }
"""

OTHER_ALLOCATOR = """
import ctypes, sys, torch
path, mode = sys.argv[1:]
torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(path, "allocate", "release"))
import hgemm_ops
library = ctypes.CDLL(path)
for name in ("count", "largest_of"):
    getattr(library, name).restype = ctypes.c_size_t
a, b = torch.randn(1031, 4097, device="cuda").half(), torch.randn(4097, 1025, device="cuda").half()
x, w = torch.randn(1000, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
expected, wide = a @ b, x @ w
numerics = "batch_invariant" if mode == "promise" else None
with hgemm_ops.use_custom_gemm(float32="split", tune=mode == "tune", numerics=numerics) as report:
    before = library.count()
    found, split = a @ b, x @ w
    print("allocations", library.count() - before, "largest", library.largest_of())
    grown = torch.ops.hgemm.linear(a, b.t(), None, 2)
    (a.requires_grad_() @ b).sum().backward()
torch.cuda.synchronize()
print(report)
assert torch.allclose(found.float(), expected.float(), rtol=1e-2, atol=0.5)
assert torch.allclose(split, wide, rtol=1e-3, atol=1e-2)
assert all(row.variant != "torch" or mode == "tune" for row in report.rows), report
"""


@pytest.fixture(scope="module")
def other_allocator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("allocator")
    (folder / "allocator.c").write_text(ALLOCATOR)
    library = folder / "allocator.so"
    flags = ["-shared", "-fPIC", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run(["cc", *flags, folder / "allocator.c", "-o", library], check=True)
    return library


@pytest.mark.parametrize("mode", ["plain", "tune", "promise"])
def test_another_allocator(mode: str, other_allocator: Path) -> None:
    """The way of RMM and others: a pluggable allocator from the beginning, which need not cache."""
    run = subprocess.run(
        [sys.executable, "-c", OTHER_ALLOCATOR, other_allocator, mode], capture_output=True, text=True, timeout=200
    )
    print(run.stdout, run.stderr)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "tuning failed" not in run.stderr
    assert "allocations 4" in run.stdout or mode != "plain", run.stdout


def test_a_memory_pool_serves_results_and_workspaces() -> None:
    a, b = filled(2049, 4097), filled(4097, 2049)
    with use_custom_gemm():
        expected = a @ b
        torch.cuda.synchronize()
        for call in (lambda: a @ b, lambda: hgemm.mm(a, b)):
            torch.cuda.empty_cache()
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                out = call()
                torch.cuda.synchronize()
            segments = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool.id)]
            assert sum(s["total_size"] for s in segments) >= out.nbytes + a.nbytes + b.nbytes
            assert torch.equal(out, expected)
            del out


def test_a_graphs_private_pool_serves_workspaces() -> None:
    a, b = filled(2049, 4097), filled(4097, 2049)
    with use_custom_gemm():
        expected = a @ b
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = a @ b
            again = hgemm.mm(a, b)
        torch.cuda.empty_cache()
        noise = [torch.full((1 << 24,), float("nan"), device="cuda", dtype=torch.float16) for _ in range(8)]
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected) and torch.equal(again, expected)
        assert all(x.isnan().all() for x in noise)


def test_expandable_segments() -> None:
    code = (
        "import torch, hgemm_ops\n"
        "a = torch.randn(2049, 4097, device='cuda').half(); b = torch.randn(4097, 2049, device='cuda').half()\n"
        "with hgemm_ops.use_custom_gemm() as report:\n"
        "    found = a @ b, torch.ops.hgemm.mm(a, b)\n"
        "assert all(torch.allclose(x.float(), (a @ b).float(), rtol=1e-2, atol=0.5) for x in found)\n"
        "assert all(row.variant != 'torch' for row in report.rows)\n"
    )
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
