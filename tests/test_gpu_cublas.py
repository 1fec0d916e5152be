"""Plain products that torch serves, by the library's own call of cuBLAS (``csrc/torch/cublas_gemm.h``): torch's bits,
without torch's op, and torch's op wherever its settings or the operands are others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from hgemm_ops import _native, use_custom_gemm

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
TORCH = _native.TORCH
HALF = [torch.float16, torch.bfloat16]
SIZES = [
    *((1, 2, 2), (1, 4096, 4096), (2, 3, 5), (5, 2, 8), (17, 250, 65), (64, 64, 64), (100, 511, 256), (128, 128, 8192)),
    *((511, 513, 512), (512, 512, 512), (1000, 1001, 1002), (2048, 128, 4096)),
]


def matrix(rows: int, cols: int, *, order: str, pad: int, dtype: torch.dtype) -> Tensor:
    if order == "F":
        return torch.randn(cols, rows + pad, device="cuda", dtype=dtype)[:, :rows].t()
    return torch.randn(rows, cols + pad, device="cuda", dtype=dtype)[:, :cols]


def aten_products(fn: Callable[[], object]) -> list[str]:
    """The products of torch that a call comes to."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        fn()
    return [e.name for e in profiled.events() if e.name in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")]


def poison(like: Tensor) -> None:
    """Leaves NaN in the memory that the next result of this size is given."""
    torch.full_like(like, torch.nan)


def test_this_torch_has_the_symbols() -> None:
    assert _native.calls_cublas()


@pytest.mark.parametrize("pad", [0, 1, 8])
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("dtype", HALF)
def test_gives_torchs_bits(dtype: torch.dtype, orders: str, pad: int) -> None:
    for m, n, k in SIZES:
        a = matrix(m, k, order=orders[0], pad=pad, dtype=dtype)
        b = matrix(k, n, order=orders[1], pad=pad, dtype=dtype)
        expected = torch.mm(a, b)
        for _ in range(2):  # the second one with a plan
            poison(expected)
            out = hgemm.mm(a, b, variant=TORCH)
            assert torch.equal(out, expected), (m, n, k)
            assert out.is_contiguous()
        assert not aten_products(lambda a=a, b=b: hgemm.mm(a, b, variant=TORCH))  # type: ignore[misc]


@pytest.mark.parametrize("dtype", HALF)
def test_linear_and_matmul_of_many_dims(dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 3, 7, 96, device="cuda", dtype=dtype), torch.randn(80, 96, device="cuda", dtype=dtype)
    for inputs, w in ((x, weight), (x[:1, :1, :1], weight), (x[..., ::2], weight[:, ::2])):
        expected = F.linear(inputs, w)
        for product, factor in ((hgemm.linear, w), (hgemm.matmul, w.t())):
            poison(expected)
            out = product(inputs, factor, variant=TORCH)
            assert out.shape == expected.shape
            assert torch.equal(out, expected)
            del out
    assert not aten_products(lambda: hgemm.linear(x, weight, variant=TORCH))


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_addresses_of_any_alignment(offset: int) -> None:
    a, b = (torch.randn(128 * 128 + offset, device="cuda", dtype=torch.float16)[offset:].view(128, 128) for _ in "ab")
    for x, y in ((a, b), (a.clone(), b.clone())):  # at other addresses, the same shapes have another plan
        expected = torch.mm(x, y)
        poison(expected)
        assert torch.equal(hgemm.mm(x, y, variant=TORCH), expected)


@contextmanager
def setting(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def preferring_cublaslt() -> Iterator[None]:
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


@contextmanager
def tunable() -> Iterator[None]:
    torch.cuda.tunable.enable(True)
    torch.cuda.tunable.tuning_enable(False)
    try:
        yield
    finally:
        torch.cuda.tunable.enable(False)


MATMUL = torch.backends.cuda.matmul
SETTINGS: dict[str, tuple[Callable[[], object], torch.dtype]] = {
    "no half reductions": (lambda: setting(MATMUL, "allow_fp16_reduced_precision_reduction", False), torch.float16),
    "no bfloat16 reductions": (
        lambda: setting(MATMUL, "allow_bf16_reduced_precision_reduction", False),
        torch.bfloat16,
    ),
    "half accumulation": (lambda: setting(MATMUL, "allow_fp16_accumulation", True), torch.float16),
    "deterministic": (deterministic, torch.float16),
    "cublaslt": (preferring_cublaslt, torch.float16),
    "tunable": (tunable, torch.bfloat16),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_other_settings_are_torchs_business(name: str) -> None:
    context, dtype = SETTINGS[name]
    a, b = (torch.randn(512, 512, device="cuda", dtype=dtype) for _ in "ab")
    with context():  # type: ignore[attr-defined]
        assert aten_products(lambda: hgemm.mm(a, b, variant=TORCH)) == ["aten::mm"]
        expected = torch.mm(a, b)
        poison(expected)
        assert torch.equal(hgemm.mm(a, b, variant=TORCH), expected)
    assert not aten_products(lambda: hgemm.mm(a, b, variant=TORCH))


def test_other_operands_are_torchs_business() -> None:
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in "ab")
    calls: dict[str, Callable[[], Tensor]] = {
        "batch": lambda: hgemm.bmm(a[None].expand(3, 64, 64), b[None].expand(3, 64, 64), variant=TORCH),
        "sum": lambda: hgemm.addmm(a, a, b, variant=TORCH),
        "copy": lambda: hgemm.mm(a[:, ::2], b[::2], variant=TORCH),
        "expanded": lambda: hgemm.mm(a[:1].expand(64, 64), b, variant=TORCH),
        "one column": lambda: hgemm.mm(a, b[:, :1], variant=TORCH),
        "vector": lambda: hgemm.matmul(a, b[0], variant=TORCH),
        "float32": lambda: hgemm.mm(a.float(), b.float(), variant=TORCH),
    }
    expected = {
        "batch": torch.bmm(a[None].expand(3, 64, 64), b[None].expand(3, 64, 64)),
        "sum": torch.addmm(a, a, b),
        "copy": torch.mm(a[:, ::2], b[::2]),
        "expanded": torch.mm(a[:1].expand(64, 64), b),
        "one column": torch.mm(a, b[:, :1]),
        "vector": a @ b[0],
        "float32": torch.mm(a.float(), b.float()),
    }
    for name, call in calls.items():
        torch.testing.assert_close(call(), expected[name], msg=name)


def test_inference_mode_and_gradients() -> None:
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in "ab")
    with torch.inference_mode():
        assert hgemm.mm(a, b, variant=TORCH).is_inference()
    leaf = a.clone().requires_grad_()
    out = hgemm.mm(leaf, b, variant=TORCH)
    out.sum().backward()
    assert torch.equal(out, torch.mm(a, b))
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, torch.ones_like(a) @ b.t())


def test_streams_threads_and_graphs() -> None:
    """128 x 128 x 8192 is split along K, with a workspace of its own in every call."""
    a, b = (torch.randn(128, 8192, device="cuda", dtype=torch.float16) for _ in "ab")
    wide = torch.randn(512, 8192, device="cuda", dtype=torch.float16)
    expected, expected_wide = torch.mm(a, b.t()), torch.mm(wide, b.t())
    torch.cuda.synchronize()

    def work(_: int) -> bool:
        right = True
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                for factor, product in ((a, expected), (wide, expected_wide)):
                    poison(product)
                    right &= torch.equal(hgemm.mm(factor, b.t(), variant=TORCH), product)
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))

    hgemm.mm(a, b.t(), variant=TORCH)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hgemm.mm(a, b.t(), variant=TORCH)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, expected)


def test_more_products_than_plans() -> None:
    b = torch.randn(64, 600, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        for n in range(2, 600):
            expected = torch.mm(b[:32, :64], b[:, :n])
            poison(expected)
            assert torch.equal(hgemm.mm(b[:32, :64], b[:, :n], variant=TORCH), expected)


def test_the_context_takes_the_short_way() -> None:
    """Without a gradient; with one, torch's function, whose gradient costs the host less."""
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in "ab")
    with use_custom_gemm(variant="torch") as report:
        for _ in range(3):
            out = a @ b
        assert not aten_products(lambda: a @ b)
    assert torch.equal(out, torch.mm(a, b))
    assert {(row.variant, row.op) for row in report.rows} == {("torch", "matmul")}
    assert sum(row.calls for row in report.rows) == 4


@pytest.mark.multi_gpu
def test_second_device() -> None:
    a, b = (torch.randn(128, 8192, device="cuda:1", dtype=torch.float16) for _ in "ab")
    assert torch.equal(hgemm.mm(a, b.t(), variant=TORCH), torch.mm(a, b.t()))
    assert torch.equal(hgemm.mm(a.to("cuda:0"), b.to("cuda:0").t(), variant=TORCH).cpu(), torch.mm(a, b.t()).cpu())
