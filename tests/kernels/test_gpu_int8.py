"""Int8 matmuls on a GPU, by torch._int_mm: every kernel is exact, and everything else is torch's."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, run_python
from torch import Tensor, nn

import hgemm_ops
from hgemm_ops import _native, use_custom_gemm

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

NAMES = [v.name for v in hgemm_ops.variants() if v.family == "int8"]
KERNELS = pytest.mark.parametrize("kernel", NAMES)
#: The memory orders of A and B, as reports name them: T is an operand that is stored transposed.
LAYOUT_NAMES = ["NT", "NN", "TN", "TT"]
LAYOUTS = pytest.mark.parametrize("layout", LAYOUT_NAMES)
MIB = 1 << 20
POISON = -1234567

#: M, N and K. Kernels for a short side take those with at most 128 rows or columns. Few tiles and a long K have slices.
SHAPES = [
    (17, 8, 8),
    (32, 4096, 64),
    (17, 144, 4096),
    (20, 272, 136),
    (64, 528, 1000),
    (33, 1000, 264),
    (300, 40, 8008),
    (100, 1040, 520),
    (65, 528, 4104),
    (100, 4096, 4104),
    (128, 272, 8200),
    (129, 264, 4104),
    (200, 4096, 16),
    (1000, 1016, 1032),
    (2049, 24, 648),
    (2048, 2048, 512),
]


def rand(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, device=DEVICE)


def operands(m: int, n: int, k: int, layout: str) -> tuple[Tensor, Tensor]:
    a = rand(m, k) if layout[0] == "N" else rand(k, m).t()
    b = rand(k, n) if layout[1] == "N" else rand(n, k).t()
    return a, b


def exact(a: Tensor, b: Tensor) -> Tensor:
    """The product, by float64 sums of integers, which are exact."""
    return (a.double() @ b.double()).int()


def takes(kernel: str, layout: str) -> bool:
    """Whether the kernel takes operands in these memory orders."""
    return layout[1] == "N" or not kernel.endswith("_nn")


def product(a: Tensor, b: Tensor, out: Tensor | None = None, kernel: str | None = None) -> tuple[Tensor, str]:
    """The product, by a kernel or by the dispatcher's choice, and what computed it."""
    with use_custom_gemm(variant=kernel) as report:
        result = torch._int_mm(a, b) if out is None else torch._int_mm(a, b, out=out)
    (row,) = report.rows
    assert (row.op, row.m, row.n, row.k, row.dtype) == ("mm", a.shape[0], b.shape[1], a.shape[1], "int8")
    return result, row.variant


def check(a: Tensor, b: Tensor, kernel: str | None) -> bool:
    """Compares the kernel's product, or that of the dispatcher's choice, with the exact one, in poisoned and guarded
    memory. Returns whether a kernel of ours ran: a named one refuses what it does not take, and writes nothing."""
    __tracebackhide__ = True
    m, n = a.shape[0], b.shape[1]
    memory = torch.full((m * n + 128,), POISON, dtype=torch.int32, device=DEVICE)
    try:
        _, name = product(a, b, memory[64 : 64 + m * n].view(m, n), kernel)
    except RuntimeError as error:
        if kernel is None:  # torch's, of a layout or an alignment that cuBLAS does not support
            assert "CUBLAS_STATUS" in str(error)
        else:
            assert f"{kernel} does not support" in str(error)
            assert bool((memory == POISON).all())
        return False
    assert name == (kernel or hgemm_ops.explain(a, b).chosen)
    assert torch.equal(memory[64 : 64 + m * n].view(m, n), exact(a, b))
    assert bool((memory[:64] == POISON).all() and (memory[64 + m * n :] == POISON).all())
    return name != "torch"


def outcome(call: Callable[[], Tensor]) -> tuple[str, str]:
    try:
        result = call()
    except (RuntimeError, IndexError, NotImplementedError) as error:
        return type(error).__name__, str(error).partition("\n")[0]
    return "", f"{result.dtype} {tuple(result.shape)} {result.stride()}"


def assert_as_plain(call: Callable[[], Tensor]) -> None:
    """Torch computes the call, or refuses it."""
    __tracebackhide__ = True
    plain = outcome(call)
    with use_custom_gemm() as report:
        assert outcome(call) == plain
    assert {row.variant for row in report.rows} <= {"torch"}


@KERNELS
@LAYOUTS
def test_every_kernel_is_exact(kernel: str, layout: str) -> None:
    rows = 1 if layout[0] == "N" else 4  # cuBLAS refuses operands whose rows do not start at multiples of 4 bytes
    ran = [check(*operands(-(-m // rows) * rows, n, k, layout), kernel) for m, n, k in SHAPES]
    if takes(kernel, layout):
        assert all(ran) or ("skinny" in kernel and sum(ran) >= 3)
    else:
        assert not any(ran)


@KERNELS
@LAYOUTS
def test_slices_of_larger_tensors(kernel: str, layout: str) -> None:
    """Rows start at multiples of 16, 8, 4, 2 or 1 bytes, and so does the first one."""
    m, n, k = (24, 144, 264) if "skinny" in kernel else (200, 144, 264)
    for step in (16, 8, 4, 2, 1):
        a, b = operands(m + step, n + step, k + step, layout)
        a, b = a[step:, step:], b[step:, step:]
        if step >= 4:
            assert check(a, b, kernel) == (takes(kernel, layout) and (step == 16 or not kernel.endswith("_nn")))
        else:  # cuBLAS refuses such operands
            assert not check(a, b, kernel)
            assert_as_plain(lambda a=a, b=b: torch._int_mm(a, b))


@KERNELS
def test_operands_without_a_unit_stride_and_expanded_ones(kernel: str) -> None:
    a, b = rand(24, 2 * 136)[:, ::2], rand(2 * 136, 3 * 80)[::2, ::3]
    assert check(a, b, kernel)
    check(rand(1, 136).expand(24, 136), rand(136, 72), kernel)
    check(rand(24, 136), rand(136, 1).expand(136, 72), kernel)


@pytest.mark.parametrize("layout", ["NT", "NN"])
def test_no_sum_of_ours_overflows(layout: str) -> None:
    """From this K on a sum may be 2**31 or more. Torch's kernels saturate it, and ours would wrap around."""
    k = (1 << 17) - 8
    a = torch.full((32, k + 8), -128, dtype=torch.int8, device=DEVICE)
    b = torch.full((32, k + 8) if layout == "NT" else (k + 8, 32), -128, dtype=torch.int8, device=DEVICE)
    b = b.t() if layout == "NT" else b
    result, name = product(a[:, :k], b[:k])
    assert name != "torch" and bool((result == k << 14).all())
    plain = torch._int_mm(a, b)
    result, name = product(a, b)
    assert name == "torch" and torch.equal(result, plain)


@KERNELS
@LAYOUTS
def test_slabs(kernel: str, layout: str) -> None:
    m, n, k = (24, 1000, 1032) if "skinny" in kernel else (1000, 520, 1032)
    a, b = operands(m, n, k, layout)
    _native.lib().hgemm_set_most_workspace(300_000)
    try:
        assert check(a, b, kernel) == (takes(kernel, layout) and (n % 16 == 0 or not kernel.endswith("_nn")))
    finally:
        _native.lib().hgemm_set_most_workspace(-1)


@pytest.mark.parametrize("seed", range(8))
def test_random_products(seed: int) -> None:
    """Random sizes, orders, slices and kernels, eight products a seed."""
    generator, ran = random.Random(seed), 0
    for _ in range(8):
        m = max(20, 4 * round(2 ** generator.uniform(2.1, 8)))
        n, k = (8 * round(2 ** generator.uniform(0, 9)) for _ in range(2))
        before, behind = generator.choice([0, 0, 8, 16]), generator.choice([0, 8, 24])
        a, b = operands(m + before + behind, n + before + behind, k + before + behind, generator.choice(LAYOUT_NAMES))
        rows, columns, depth = (slice(before, before + size) for size in (m, n, k))
        ran += check(a[rows, depth], b[depth, columns], generator.choice([None, *NAMES]))
    assert ran


def test_the_choice_is_exact_as_well() -> None:
    ours = 0
    for layout in ("NT", "NN"):
        for m, n, k in [*SHAPES, (4096, 4096, 4096), (512, 4096, 4096), (32, 4096, 4096), (65, 4096, 11008)]:
            a, b = operands(m, n, k, layout)
            ours += check(a, b, None)
    assert ours >= 15


WRONG: dict[str, Callable[[], Tensor]] = {
    "16 rows": lambda: torch._int_mm(rand(16, 64), rand(64, 64)),
    "K of 12": lambda: torch._int_mm(rand(32, 12), rand(12, 64)),
    "N of 12": lambda: torch._int_mm(rand(32, 64), rand(64, 12)),
    "no K": lambda: torch._int_mm(rand(32, 0), rand(0, 64)),
    "no N": lambda: torch._int_mm(rand(32, 64), rand(64, 0)),
    "K differs": lambda: torch._int_mm(rand(32, 64), rand(72, 64)),
    "vector": lambda: torch._int_mm(rand(64), rand(64, 64)),
    "batch": lambda: torch._int_mm(rand(2, 32, 64), rand(2, 64, 64)),
    "half a": lambda: torch._int_mm(rand(32, 64).half(), rand(64, 64)),
    "half b": lambda: torch._int_mm(rand(32, 64), rand(64, 64).half()),
    "b on the CPU": lambda: torch._int_mm(rand(32, 64), rand(64, 64).cpu()),
    "int64 out": lambda: torch._int_mm(rand(32, 64), rand(64, 64), out=torch.empty(32, 64).long().cuda()),
    "smaller out": lambda: torch._int_mm(rand(32, 64), rand(64, 64), out=torch.empty(32, 32).int().cuda()),
    "empty out": lambda: torch._int_mm(rand(32, 64), rand(64, 64), out=torch.empty(0).int().cuda()),
    "strided out": lambda: torch._int_mm(rand(32, 64), rand(64, 64), out=torch.empty(64, 32).int().cuda().t()),
    "mm of int8": lambda: torch.mm(rand(32, 64), rand(64, 64)),
    "mm to int32": lambda: torch.mm(rand(32, 64), rand(64, 64), out_dtype=torch.int32),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_torch_refuses_it_refuses_here(case: str) -> None:
    assert_as_plain(WRONG[case])


def test_out_is_written_in_place_and_overlap_is_torchs() -> None:
    a, b = operands(512, 512, 512, "NN")
    out = torch.full((512, 512), POISON, dtype=torch.int32, device=DEVICE)
    result, _ = product(a, b, out)
    assert result is out and torch.equal(out, exact(a, b))
    odd = torch.empty(512 * 512 + 1, dtype=torch.int32, device=DEVICE)[1:].view(512, 512)
    assert_as_plain(lambda: torch._int_mm(a, b, out=odd))  # rows start at multiples of 4 bytes
    shared = torch.empty(512, 512, dtype=torch.int32, device=DEVICE)
    inside = shared.view(torch.int8)[:, :512]
    inside.copy_(a)
    with use_custom_gemm() as report:
        torch._int_mm(inside, b, out=shared)
    assert [row.variant for row in report.rows] == ["torch"]


def test_inactive_and_torch_by_name() -> None:
    a, b = operands(512, 512, 512, "NN")
    want = exact(a, b)
    assert torch.equal(torch._int_mm(a, b), want)
    with use_custom_gemm(variant="torch") as report:
        assert torch.equal(torch._int_mm(a, b), want)
    assert [row.variant for row in report.rows] == ["torch"]
    with use_custom_gemm(numerics="batch_invariant") as report:
        assert torch.equal(torch._int_mm(a, b), want)
    assert [row.variant for row in report.rows] != ["torch"]


def test_a_named_kernel_takes_no_other_dtype_and_explains_itself() -> None:
    a, b = rand(32, 64), rand(64, 64)
    expected = exact(a, b)
    with use_custom_gemm(variant=NAMES[0]), pytest.raises(RuntimeError, match="supports int8, not float16"):
        a.half() @ b.half()
    with use_custom_gemm(variant=NAMES[0]) as report:
        assert torch.equal(torch._int_mm(a, b), expected)
        a.float() @ b.float()
    assert [row.dtype for row in report.rows] == ["int8", "float32"]
    assert report.rows[0].variant == NAMES[0] != report.rows[1].variant
    assert report.rows[0].reason == f"forced: {NAMES[0]} was requested"


def test_a_graph_captures_the_first_call() -> None:
    for layout, m in (("NT", 512), ("NN", 512), ("NN", 40)):
        a, b = operands(m, 1024, 1024, layout)
        graph = torch.cuda.CUDAGraph()
        with use_custom_gemm() as report, torch.cuda.graph(graph):
            out = torch._int_mm(a, b)
        assert [row.variant for row in report.rows] != ["torch"]
        for _ in range(3):
            a.copy_(rand(*a.shape))
            out.fill_(POISON)
            graph.replay()
            assert torch.equal(out, exact(a, b))


class Int8Linear(nn.Module):
    """A linear layer in the form of torchao's dynamic quantisation: a scale for each row of x and of the weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(1, keepdim=True).float() / 127
        self.register_buffer("weight", (weight / scale).round().clamp(-128, 127).to(torch.int8))
        self.register_buffer("scale", scale.t().to(weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).float() / 127
        quantised = (x / scale).round().clamp(-128, 127).to(torch.int8)
        sums = torch._int_mm(quantised.flatten(0, -2), self.weight.t()).view(*x.shape[:-1], -1)
        return (sums * scale).to(x.dtype) * self.scale


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_quantised_model_runs_on_int8_kernels(compiled: bool) -> None:
    weights = [torch.randn(2048, 1024, device=DEVICE), torch.randn(1024, 2048, device=DEVICE)]
    model = nn.Sequential(Int8Linear(weights[0].bfloat16()), nn.ReLU(), Int8Linear(weights[1].bfloat16()))
    x = torch.randn(4, 128, 1024, device=DEVICE, dtype=torch.bfloat16)
    run = torch.compile(model, fullgraph=True) if compiled else model
    plain = run(x)
    with use_custom_gemm() as report:
        ours = run(x)
    assert torch.equal(ours, plain)
    assert {(row.dtype, row.variant.partition("_")[0]) for row in report.rows} == {("int8", "int8")}
    assert sum(row.calls for row in report.rows) == 2


def test_a_stream_of_its_own_and_threads_of_work_behind_it() -> None:
    a, b = operands(1024, 1024, 2048, "NN")
    want, stream = exact(a, b), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), use_custom_gemm():
        outs = [torch._int_mm(a, b) for _ in range(20)]
    stream.synchronize()
    assert all(torch.equal(out, want) for out in outs)


def test_torch_computes_what_there_is_no_memory_for() -> None:
    """The transposed copy of B takes 64 MiB, the result 8 MiB."""
    code = """
import torch
from hgemm_ops import use_custom_gemm
a = torch.ones(256, 8192, dtype=torch.int8, device="cuda")
b = torch.ones(8192, 8192, dtype=torch.int8, device="cuda")
torch._int_mm(a, b)
torch.cuda.synchronize()
torch.cuda.empty_cache()
total = torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (24 << 20)) / total)
with use_custom_gemm() as report:
    out = torch._int_mm(a, b)
(row,) = report.rows
assert row.variant == "torch" and "memory" in row.reason, row
assert bool((out == 8192).all())
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_workspace_is_bounded() -> None:
    a, b = operands(64, 65536, 8192, "NN")  # the transposed copy of B would take 512 MiB
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result, name = product(a, b)
    torch.cuda.synchronize()
    assert name != "torch"
    assert torch.cuda.max_memory_allocated() - before <= 257 * MIB + result.numel() * 4
    assert torch.equal(result[:, ::64], exact(a, b[:, ::64]))
