"""How the ops run: streams, threads, devices, CUDA graphs, torch.compile; no waiting, no cudaMalloc."""

from __future__ import annotations

import random
import threading

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    SHAPES,
    assert_as_good,
    assert_close_to_torch,
    limited_kernels,
    production,
    rand,
    reference_matmul,
    serves,
    unserved,
)
from torch import Tensor, nn

import hgemm_ops
from hgemm_ops import VariantInfo

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
AUTO = -1
# Long enough to outlast the host's side of any test here; about 0.1 to 0.2 s.
BUSY_CYCLES = 200_000_000


VARIANTS = pytest.mark.parametrize("variant", [None, *production()], ids=lambda v: v.name if v else "auto")


def factors(variant: VariantInfo | None, device: str = "cuda") -> tuple[int, Tensor, Tensor]:
    """The variant's id and operands that it serves."""
    dtype = torch.float16 if variant is None else variant.dtypes[0]
    for m, n, k in SHAPES:
        a = rand(m, k, dtype=dtype, device=device)
        for b in (rand(k, n, dtype=dtype, device=device), rand(n, k, dtype=dtype, device=device).t()):
            if variant is None:
                return AUTO, a, b
            if serves(variant, a, b):
                return variant.id, a, b
    pytest.skip(f"{variant.name if variant else None} serves none of {SHAPES} on this GPU")


def serving(a: Tensor, b: Tensor) -> list[int]:
    """Every production kernel that serves ``a @ b``, and the dispatcher's choice unless that is torch: cuBLAS promises
    equal bits only for one stream at a time."""
    explanation = hgemm_ops.explain(a, b)
    serves = {c.name for c in explanation.candidates if c.eligible}
    ids = [v.id for v in production() if v.name in serves]
    return ids if explanation.chosen == "torch" else [AUTO, *ids]


def assert_right(out: Tensor, a: Tensor, b: Tensor) -> None:
    exact, magnitude = reference_matmul(a, b)
    assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)


def test_every_kernel_is_served() -> None:
    """By these tests; ``test_dispatch.py`` asks it of every architecture without a GPU."""
    missing = unserved()
    assert not missing, f"no problem for {', '.join(missing)}"


# Streams and threads


@VARIANTS
def test_runs_on_the_current_stream(variant: VariantInfo | None) -> None:
    """On a side stream the inputs arrive late: a kernel on any other stream would read them too early."""
    id_, a, b = factors(variant)
    hgemm.mm(a, b, variant=id_)
    late_a, late_b = torch.zeros_like(a), torch.zeros_like(b)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY_CYCLES)
        late_a.copy_(a)
        late_b.copy_(b)
        out = hgemm.mm(late_a, late_b, variant=id_)
    side.synchronize()
    assert_right(out, a, b)


@VARIANTS
def test_does_not_wait_for_the_device(variant: VariantInfo | None) -> None:
    """The op returns while the stream is still busy with what came before; torch's own check finds no sync either."""
    id_, a, b = factors(variant)
    hgemm.mm(a, b, variant=id_)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(BUSY_CYCLES)
        busy = torch.cuda.Event()
        busy.record()
        out = hgemm.mm(a, b, variant=id_)
        returned_early = not busy.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert returned_early, "the call waited for the stream"
    assert_right(out, a, b)


@VARIANTS
def test_repeated_calls_allocate_nothing_from_the_driver(variant: VariantInfo | None) -> None:
    """torch's allocator counts what it takes from the driver itself; all else is an error while a graph is captured:
    cudaMalloc and cudaFree, on any stream, whoever calls them."""
    id_, a, b = factors(variant)
    for _ in range(3):
        hgemm.mm(a, b, variant=id_)
    torch.cuda.synchronize()

    def reserved() -> tuple[int, ...]:
        stats = torch.cuda.memory_stats()
        keys = ("num_device_alloc", "num_alloc_retries", "segment.all.allocated", "allocated_bytes.all.current")
        return tuple(stats[key] for key in keys)

    before = reserved()
    for _ in range(100):
        hgemm.mm(a, b, variant=id_)
    torch.cuda.synchronize()
    assert reserved() == before
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="global"):
        hgemm.mm(a, b, variant=id_)


def test_four_threads_at_once() -> None:
    """Each with its own stream and shapes, bitwise equal to the same calls made alone."""
    problems = []
    for m, n, k in SHAPES:
        a, b = rand(m, k), rand(k, n)
        problems += [(a, b, id_, hgemm.mm(a, b, variant=id_)) for id_ in serving(a, b)]
    torch.cuda.synchronize()
    start = threading.Barrier(4)
    failures: list[str] = []

    def work(index: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                start.wait()
                for _ in range(10):
                    results = [hgemm.mm(a, b, variant=id_) for a, b, id_, _ in problems[index:] + problems[:index]]
                    expected = [out for *_, out in problems[index:] + problems[:index]]
                    torch.cuda.current_stream().synchronize()
                    if not all(map(torch.equal, results, expected)):
                        failures.append(f"thread {index}: a result differs")
        except Exception as error:
            failures.append(f"thread {index}: {error!r}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@VARIANTS
def test_first_cuda_call_of_a_thread(variant: VariantInfo | None) -> None:
    """A thread has no CUDA context of its own before its first call of the runtime, which may be ours: memory comes
    from torch's cache then, as in the threads that torch starts for backward."""
    id_, a, b = factors(variant)
    expected = hgemm.mm(a, b, variant=id_)
    out = torch.full_like(expected, float("nan"))
    hgemm.mm.out(a, b, variant=id_, out=out.clone())  # fills the cache
    torch.cuda.synchronize()
    errors: list[Exception] = []

    def work() -> None:
        try:
            hgemm.mm.out(a, b, variant=id_, out=out)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors, errors
    torch.cuda.synchronize()
    if variant is None:
        assert_right(out, a, b)
    else:
        assert torch.equal(out, expected)


def test_a_thousand_launches_on_two_streams() -> None:
    """Changing shapes, nothing in between: workspaces of calls in flight must not meet."""
    problems = [(rand(m, k), rand(k, n)) for m, n, k in SHAPES]
    calls = [(a, b, id_) for a, b in problems for id_ in serving(a, b)]
    random.shuffle(calls)
    expected = [hgemm.mm(a, b, variant=id_) for a, b, id_ in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results = []
    for i in range(1000):
        with torch.cuda.stream(streams[i % 2]):
            a, b, id_ = calls[i % len(calls)]
            results.append(hgemm.mm(a, b, variant=id_))
    torch.cuda.synchronize()
    wrong = [i for i, out in enumerate(results) if not torch.equal(out, expected[i % len(calls)])]
    assert not wrong, f"{len(wrong)} of 1000 launches differ, the first is call {wrong[0]}"


# CUDA graphs and torch.compile


@VARIANTS
def test_cuda_graph_replays_with_new_inputs(variant: VariantInfo | None) -> None:
    id_, a, b = factors(variant)
    takes_act = id_ not in limited_kernels() and a.dtype != torch.float64
    bias, act = (rand(b.size(1), dtype=a.dtype), 2) if takes_act else (None, 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        hgemm.linear(a, b.t(), bias, act, variant=id_)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hgemm.linear(a, b.t(), bias, act, variant=id_)
    for _ in range(3):
        for tensor in (a, b) if bias is None else (a, b, bias):
            tensor.copy_(rand(*tensor.shape))
        out.fill_(float("nan"))
        graph.replay()
        product, magnitude = reference_matmul(a, b)
        theirs = F.linear(a, b.t(), bias)
        if bias is not None:
            product, theirs = F.gelu(product + bias.double()), F.gelu(theirs)
        assert_close_to_torch(out, product, theirs, magnitude=magnitude)
        if variant is not None:
            assert torch.equal(out, hgemm.linear(a, b.t(), bias, act, variant=id_))


def test_first_call_of_a_shape_may_be_captured() -> None:
    """Choosing a kernel for a new shape neither measures nor synchronises, so it may happen during capture."""
    a, b = rand(91, 203), rand(203, 77)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hgemm.mm(a, b)
    graph.replay()
    assert_right(out, a, b)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compile_modes(mode: str) -> None:
    module = Mlp().cuda().half()
    exact_module = Mlp().cuda().double()
    exact_module.load_state_dict(module.state_dict())
    fn = torch.compile(lambda x: hgemm.linear(module(x), module.up.weight, None, 4), mode=mode, fullgraph=True)
    for _ in range(4):  # reduce-overhead warms up, records, then replays
        x = rand(48, 128)
        with torch.no_grad():
            with hgemm_ops.use_custom_gemm():
                out = fn(x)
            exact = F.silu(F.linear(exact_module(x.double()), exact_module.up.weight))
            theirs = F.silu(F.linear(module(x), module.up.weight))
        assert_as_good(out, theirs, exact)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_training_step(mode: str) -> None:
    module = Mlp().cuda().half()
    exact_module = Mlp().cuda().double()
    exact_module.load_state_dict(module.state_dict())
    fn = torch.compile(lambda x: module(x).square().sum() / 64, mode=mode, fullgraph=True)
    for _ in range(4):
        x = rand(48, 128)
        module.zero_grad()
        with hgemm_ops.use_custom_gemm():
            fn(x).backward()
        ours = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        (module(x).square().sum() / 64).backward()
        exact_module.zero_grad()
        (exact_module(x.double()).square().sum() / 64).backward()
        for got, parameter, exact in zip(ours, module.parameters(), exact_module.parameters(), strict=True):
            assert_as_good(got, parameter.grad, exact.grad)


# Devices


@pytest.mark.multi_gpu
@VARIANTS
def test_runs_where_the_tensors_are(variant: VariantInfo | None) -> None:
    """The current device is the first GPU, the tensors are on the second, and the other way round."""
    for device, current in (("cuda:1", 0), ("cuda:0", 1)):
        id_, a, b = factors(variant, device)
        with torch.cuda.device(current):
            out = hgemm.mm(a, b, variant=id_)
            assert torch.cuda.current_device() == current
        assert out.device == torch.device(device)
        assert_right(out, a, b)


@pytest.mark.multi_gpu
def test_runs_on_the_stream_of_its_device() -> None:
    """The side stream is current on the second GPU only, where the inputs arrive late."""
    a, b = rand(128, 256, device="cuda:1"), rand(256, 128, device="cuda:1")
    hgemm.mm(a, b)
    late = torch.zeros_like(a)
    side = torch.cuda.Stream("cuda:1")
    side.wait_stream(torch.cuda.current_stream("cuda:1"))
    with torch.cuda.stream(side), torch.cuda.device(1):
        torch.cuda._sleep(BUSY_CYCLES)
        late.copy_(a)
        with torch.cuda.device(0):
            out = hgemm.mm(late, b)
    side.synchronize()
    assert_right(out, a, b)


@pytest.mark.multi_gpu
def test_operands_on_two_gpus_are_refused() -> None:
    a, b = rand(4, 5, device="cuda:0"), rand(5, 6, device="cuda:1")
    with pytest.raises(RuntimeError, match=r"cuda:0.*cuda:1"):
        hgemm.mm(a, b)
