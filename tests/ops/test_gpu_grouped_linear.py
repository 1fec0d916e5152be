"""``hgemm::grouped_linear`` on a GPU: bias, activation and gate in the kernel of a grouped product, or behind it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from helpers import DEVICE, ON_GPU, POISON, captured
from torch import Tensor

import hgemm_ops
from hgemm_ops import _native, use_custom_gemm
from hgemm_ops.ops import activation
from hgemm_ops.ops.grouped import rows_of_groups

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

hgemm = torch.ops.hgemm
NAMES = _native.grouped_names()
#: The kernels that take groups of rows, and torch's own.
KERNELS = pytest.mark.parametrize(
    "kernel",
    [_native.TORCH, *(i for i, name in enumerate(NAMES) if "_k_" not in name)],
    ids=lambda i: "torch" if i < 0 else NAMES[i],
)
#: The same with each dtype that a kernel takes.
TYPED_KERNELS = pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (kernel, dtype)
        for kernel in [_native.TORCH, *(i for i, name in enumerate(NAMES) if "_k_" not in name)]
        for dtype in (torch.float16, torch.bfloat16, torch.float32)
        if kernel < 0 or NAMES[kernel].startswith("simt") == (dtype == torch.float32)
    ],
    ids=lambda v: str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else "torch" if v < 0 else NAMES[v],
)
#: The rows of each group, N and K.
RAGGED = [
    ([5, 0, 70, 1, 0, 33], 256, 128),
    ([129, 257, 15, 300], 528, 200),
    ([16] * 20 + [0] * 30 + [300] + [7] * 3, 784, 264),
    ([1], 16, 8),
    ([0, 700, 0], 1008, 328),
]


def ends_of(sizes: Sequence[int]) -> Tensor:
    return torch.tensor(list(itertools.accumulate(sizes)), dtype=torch.int32, device=DEVICE)


def operands(sizes: Sequence[int], n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x, w and bias."""
    x = torch.randn(sum(sizes), k, device=DEVICE)
    w = torch.randn(len(sizes), n, k, device=DEVICE) * k**-0.5
    w = w.to(dtype).mT if order == "NK" else w.mT.contiguous().to(dtype)
    return x.to(dtype), w, torch.randn(len(sizes), n, device=DEVICE).to(dtype)


def by_torch(x: Tensor, w: Tensor, offs: Tensor, bias: Tensor | None, act: int, gated: bool, wide: bool) -> Tensor:
    """In the operands' dtype or, ``wide``, in float64."""
    if wide:
        x, w, bias = x.double(), w.double(), None if bias is None else bias.double()
    bounds = [0, *offs.tolist()]
    y = torch.cat([x[first:last] @ w[i] for i, (first, last) in enumerate(itertools.pairwise(bounds))])
    if bias is not None:
        y = y + rows_of_groups(bias, offs, len(y))
    return activation.gate(y, act) if gated else activation.apply(act, y)


def check(out: Tensor, *call: object) -> None:
    __tracebackhide__ = True
    exact, torchs = by_torch(*call, wide=True), by_torch(*call, wide=False)
    assert out.shape == exact.shape and out.dtype == torchs.dtype
    ours, theirs = ((t.double() - exact).abs() for t in (out, torchs))
    unit = torch.finfo(out.dtype).eps
    assert ours.max() <= 2 * theirs.max() + unit * exact.abs().max()
    if out.numel() < 64:
        return  # the root mean square of so few errors says no more than the largest does
    assert ours.norm() <= 1.5 * theirs.norm() + unit * exact.norm() / 4


def poison(elements: int, dtype: torch.dtype) -> None:
    """The next tensor of so many elements gets memory that holds NaN."""
    torch.full((elements,), POISON, dtype=dtype, device=DEVICE)


@TYPED_KERNELS
@pytest.mark.parametrize("order", ["NK", "KN"])
@pytest.mark.parametrize(("sizes", "n", "k"), RAGGED, ids=lambda v: str(v)[:24])
def test_bias_and_activation(kernel: int, dtype: torch.dtype, order: str, sizes: list[int], n: int, k: int) -> None:
    x, w, bias = operands(sizes, n, k, order, dtype)
    for act, added in itertools.product(range(5), (bias, None)):
        call = x, w, ends_of(sizes), added, act, False
        poison(sum(sizes) * n, dtype)
        check(hgemm.grouped_linear(*call, variant=kernel), *call)


@TYPED_KERNELS
@pytest.mark.parametrize("order", ["NK", "KN"])
@pytest.mark.parametrize(("sizes", "n", "k"), RAGGED, ids=lambda v: str(v)[:24])
def test_gate(kernel: int, dtype: torch.dtype, order: str, sizes: list[int], n: int, k: int) -> None:
    x, w, _ = operands(sizes, n, k, order, dtype)
    for act in range(5):
        call = x, w, ends_of(sizes), None, act, True
        poison(sum(sizes) * n // 2, dtype)
        check(hgemm.grouped_linear(*call, variant=kernel), *call)


@pytest.mark.parametrize(
    "sizes", [[16] * 64, [0] * 9 + [1024] + [0] * 54, [0, 400, 0, 624] + [0] * 60], ids=["even", "one", "two"]
)
def test_either_of_two_kernels_finishes_the_product(sizes: list[int]) -> None:
    """At these sizes two kernels are launched, one of which finds that the other computes the product."""
    x, w, bias = operands(sizes, 2048, 1024, "NK", torch.bfloat16)
    for added, act, gated in ((bias, 4, False), (None, 4, True)):
        call = x, w, ends_of(sizes), added, act, gated
        check(hgemm.grouped_linear(*call), *call)


@KERNELS
def test_rows_behind_the_last_end_are_not_written(kernel: int) -> None:
    dtype = torch.float32 if kernel >= 0 and NAMES[kernel].startswith("simt") else torch.bfloat16
    sizes, rows, n = [17, 0, 129], 160, 256
    x, w, bias = operands([*sizes, rows - sum(sizes)], n, 128, "NK", dtype)
    w, bias, offs = w[:3], bias[:3], ends_of(sizes)
    for added, gated in ((bias, False), (None, True)):
        whole = hgemm.grouped_linear(x, w, offs, added, 4, gated, variant=kernel)
        check(whole[: sum(sizes)], x[: sum(sizes)], w, offs, added, 4, gated)
        if ON_GPU and kernel >= 0 and NAMES[kernel].startswith("sm90"):
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):  # all memory that the call gets was poisoned
                poison(4 * rows * n, dtype)
                again = hgemm.grouped_linear(x, w, offs, added, 4, gated, variant=kernel)
            assert again[sum(sizes) :].isnan().all()


def test_the_function_takes_one_kernel_and_equals_the_passes() -> None:
    sizes = [40, 0, 9, 200, 3]
    x, w, bias = operands(sizes, 512, 256, "NK", torch.bfloat16)
    offs = ends_of(sizes)
    for call, parts in (
        (lambda: hgemm_ops.grouped_mm(x, w, offs, bias, activation="silu"), (bias, 4, False)),
        (lambda: hgemm_ops.grouped_mm_gated(x, w, offs), (None, 4, True)),
    ):
        with use_custom_gemm() as report:
            out = call()
        check(out, x, w, offs, *parts)
        rows = [(row.op, row.m, row.n, row.k, row.calls) for row in report.rows]
        assert rows == ([("grouped", sum(sizes), 512, 256, 1)] if ON_GPU else [])
        with torch.inference_mode():
            assert torch.equal(call(), out)
        if ON_GPU:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                call()
            kernels = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            assert len(kernels) == 1, kernels


@pytest.mark.parametrize("gated", [False, True])
def test_gradients_are_those_of_the_passes(gated: bool) -> None:
    sizes = [24, 0, 9, 31]
    x, w, bias = operands(sizes, 128, 64, "NK", torch.bfloat16)
    offs = ends_of(sizes)
    grads = []
    for call in (
        lambda a, b, c: hgemm.grouped_linear(a, b, offs, None if gated else c, 4, gated),
        lambda a, b, c: by_torch(a, b, offs, None if gated else c, 4, gated, wide=False),
    ):
        inputs = [t.detach().clone().requires_grad_() for t in (x, w.mT.contiguous().mT, bias)]
        out = call(*inputs)
        out.backward(torch.ones_like(out))
        grads.append([t.grad for t in inputs[: 2 if gated else 3]])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.1)


def test_a_cuda_graph_replays_the_gate() -> None:
    if not ON_GPU:
        pytest.skip("needs a GPU")
    sizes = [3, 0, 1, 60]
    x, w, _ = operands(sizes, 256, 128, "NK", torch.bfloat16)
    offs = ends_of(sizes)
    with use_custom_gemm():
        expected = hgemm_ops.grouped_mm_gated(x, w, offs)
        out, replay = captured(lambda: hgemm_ops.grouped_mm_gated(x, w, offs))
    replay()
    assert torch.equal(out, expected)
