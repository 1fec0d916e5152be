"""``hgemm_ops.grouped_mm`` on a GPU, on the kernels of this package and on torch's: results, gradients, no wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    DEVICE,
    ON_GPU,
    OPCHECKS,
    POISON,
    assert_as_good,
    assert_close_to_torch,
    captured,
    poisoned_cuda_memory,
    rand,
)
from torch import Tensor, library
from torch.utils.flop_counter import FlopCounterMode

import hgemm_ops
from hgemm_ops import grouped_mm, grouped_mm_gated, use_custom_gemm

pytestmark = pytest.mark.gpu

#: The rows, the ends, N and K: few rows a group and many, sizes that no tile divides, empty groups, rows behind the
#: last end, one group.
CASES = {
    "decode": (64, (0, 3, 3, 10, 11, 11, 40, 64), 1536, 2048),
    "even": (512, tuple(range(32, 513, 32)), 256, 384),
    "ragged": (700, (1, 130, 130, 391, 700), 328, 200),
    "a rest": (300, (17, 17, 211), 136, 264),
    "one group": (257, (257,), 640, 72),
    "unaligned": (100, (31, 31, 90, 100), 147, 93),
    "no rows": (0, (0, 0), 64, 64),
}
HALF = [torch.bfloat16, torch.float16]
cases = pytest.mark.parametrize("case", CASES)
dtypes = pytest.mark.parametrize("dtype", HALF, ids=str)


def operands(case: str, dtype: torch.dtype, b_major: str = "k") -> tuple[Tensor, Tensor, Tensor]:
    rows, ends, n, k = CASES[case]
    x = rand(rows, k, dtype=dtype)
    w = rand(len(ends), n, k, dtype=dtype).mT if b_major == "k" else rand(len(ends), k, n, dtype=dtype)
    return x, w, torch.tensor(ends, dtype=torch.int32, device=DEVICE)


def by_loop(x: Tensor, w: Tensor, offs: Tensor, bias: Tensor | None = None) -> Tensor:
    """The rows up to the last end."""
    ends = offs.tolist()
    starts = [0, *ends[:-1]]
    products = [x[s:e] @ w[g] for g, (s, e) in enumerate(zip(starts, ends, strict=True))]
    if bias is not None:
        products = [y + bias[g] for g, y in enumerate(products)]
    return torch.cat(products)


def poisoned() -> AbstractContextManager[None]:
    return poisoned_cuda_memory() if ON_GPU else nullcontext()


@contextmanager
def no_wait() -> Iterator[None]:
    """Anything that waits for the device is an error."""
    if not ON_GPU:
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("b_major", ["k", "n"])
@dtypes
@cases
def test_products(case: str, dtype: torch.dtype, b_major: str) -> None:
    x, w, offs = operands(case, dtype, b_major)
    rows = int(offs[-1])
    with poisoned():
        out = grouped_mm(x, w, offs)
    exact, magnitude = by_loop(x.double(), w.double(), offs), by_loop(x.double().abs(), w.double().abs(), offs)
    assert_close_to_torch(out[:rows], exact, by_loop(x, w, offs), magnitude=magnitude)


@pytest.mark.parametrize("variant", [None, "torch"])
@dtypes
@cases
def test_gradients(case: str, dtype: torch.dtype, variant: str | None) -> None:
    """Of an expanded gradient, with a bias: as good as those of a loop of torch.mm."""
    x, w, offs = operands(case, dtype)
    bias = rand(w.size(0), w.size(2), dtype=dtype)
    rows = int(offs[-1])
    gradients = []
    for function, wide in ((grouped_mm, False), (by_loop, False), (by_loop, True)):
        parameters = [(t.double() if wide else t).detach().requires_grad_() for t in (x, w, bias)]
        options = {"variant": variant} if function is grouped_mm else {}
        with poisoned():
            out = function(parameters[0], parameters[1], offs, parameters[2], **options)[:rows]
            gradients.append(torch.autograd.grad(out.sum(), parameters))
    for ours, theirs, exact in zip(*gradients, strict=True):
        assert_as_good(ours, theirs, exact)
    assert torch.equal(gradients[0][0][rows:], torch.zeros_like(x[rows:]))


@dtypes
def test_nothing_behind_the_last_end_is_read(dtype: torch.dtype) -> None:
    x, w, offs = operands("a rest", dtype)
    bias = rand(w.size(0), w.size(2), dtype=dtype)
    rows = int(offs[-1])
    x[rows:] = POISON
    parameters = [t.requires_grad_() for t in (x, w, bias)]
    out = grouped_mm(x, w, offs, bias, activation="silu")
    assert out[:rows].isfinite().all()
    grad = torch.randn_like(out)
    grad[rows:] = POISON
    gradients = torch.autograd.grad(out, parameters, grad)
    assert all(g.isfinite().all() for g in gradients)
    assert torch.equal(gradients[0][rows:], torch.zeros_like(x[rows:]))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations(activation: str) -> None:
    x, w, offs = operands("ragged", torch.bfloat16)
    bias = rand(w.size(0), w.size(2), dtype=torch.bfloat16)
    functions = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "gelu_tanh": lambda t: F.gelu(t, approximate="tanh")}
    function = functions[activation]
    exact = by_loop(x.double(), w.double(), offs, bias.double())
    theirs = by_loop(x, w, offs, bias)
    assert_as_good(grouped_mm(x, w, offs, bias, activation=activation), function(theirs), function(exact))
    gate, up = by_loop(x.double(), w.double(), offs).chunk(2, -1)
    theirs_gate, theirs_up = by_loop(x, w, offs).chunk(2, -1)
    ours = grouped_mm_gated(x, w, offs, activation)
    assert_as_good(ours, function(theirs_gate) * theirs_up, function(gate) * up)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(5, 18), (0, 8), (300, 0), (257, 1536)])
def test_gates(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for act, function in enumerate((lambda t: t, F.relu, F.gelu, lambda t: F.gelu(t, approximate="tanh"), F.silu)):
        both = rand(*shape, dtype=dtype)
        with poisoned():
            out = torch.ops.hgemm.gate(both, act)
        (gate, up), (exact_gate, exact_up) = both.chunk(2, -1), both.double().chunk(2, -1)
        assert_as_good(out, function(gate) * up, function(exact_gate) * exact_up)
    if ON_GPU:
        for bad in (rand(5, 7), rand(5, 8).T, rand(4, 5, 8)):
            with pytest.raises(RuntimeError, match=r"both .* must be 2-D and contiguous"):
                torch.ops.hgemm.gate(bad, 1)


@pytest.mark.parametrize("form", ["3d_3d", "2d_2d", "3d_2d"])
@pytest.mark.parametrize("k", [136, 93])
def test_the_other_forms(form: str, k: int) -> None:
    ends = torch.tensor((8, 8, 50, k), dtype=torch.int32, device=DEVICE)
    a, b = (
        rand(*shape, dtype=torch.bfloat16)
        for shape in {"3d_3d": ((4, 30, k), (4, k, 67)), "2d_2d": ((30, k), (k, 67)), "3d_2d": ((4, 30, 48), (48, k))}[
            form
        ]
    )
    offs = None if form == "3d_3d" else ends
    with poisoned():
        out = grouped_mm(a, b, offs)
    exact = torch.ops.hgemm.grouped_mm(a.double().cpu(), b.double().cpu(), None if offs is None else offs.cpu())
    theirs = torch.ops.hgemm.grouped_mm(a.float().cpu(), b.float().cpu(), None if offs is None else offs.cpu())
    assert_as_good(out.cpu(), theirs.to(out.dtype), exact)


def test_the_op_asserts_nothing_on_the_device() -> None:
    """In inference mode it gets the operands as they are, and refuses what torch's kernel would end the context for."""
    if not ON_GPU:
        pytest.skip("needs the CUDA kernel")
    ends = torch.tensor((3, 8, 50, 136), dtype=torch.int32, device=DEVICE)
    a, b, c = (rand(*shape, dtype=torch.bfloat16) for shape in ((136, 64), (4, 64, 136), (64, 136)))
    with torch.inference_mode():
        for x, w in ((c.T, b), (c, a), (c, c.T), (a.T, c.T), (b.mT, c)):
            with pytest.raises(RuntimeError, match="must not be the contiguous one"):
                torch.ops.hgemm.grouped_mm(x, w, ends, variant=-2)
    torch.cuda.synchronize()
    assert_as_good(grouped_mm(c.T, b, ends), by_loop(c.T, b, ends), by_loop(c.T.double(), b.double(), ends))


def test_wider_results() -> None:
    x, w, offs = operands("ragged", torch.bfloat16)
    out = grouped_mm(x, w, offs, out_dtype=torch.float32)
    assert_as_good(out, by_loop(x.float(), w.float(), offs), by_loop(x.double(), w.double(), offs))
    with torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(grouped_mm(x.float(), w.float(), offs, out_dtype=torch.float32), out)


@pytest.mark.parametrize("case", ["decode", "ragged", "unaligned"])
def test_float32(case: str, without_tf32: None) -> None:
    x, w, offs = operands(case, torch.float32)
    parameters = [t.requires_grad_() for t in (x, w)]
    out = grouped_mm(x, w, offs)
    exact = [t.detach().double().requires_grad_() for t in parameters]
    wide = by_loop(*exact, offs)
    assert_as_good(out.detach(), by_loop(x, w, offs).detach(), wide.detach())
    for ours, other in zip(
        torch.autograd.grad(out.sum(), parameters), torch.autograd.grad(wide.sum(), exact), strict=True
    ):
        torch.testing.assert_close(ours.double(), other, rtol=1e-4, atol=1e-4)


def test_autocast() -> None:
    x, w, offs = operands("decode", torch.float32)
    bias = rand(w.size(0), w.size(2), dtype=torch.float32)
    parameters = [t.requires_grad_() for t in (x, w, bias)]
    with torch.autocast(DEVICE, torch.bfloat16):
        out = grouped_mm(*parameters[:2], offs, parameters[2])
    low = [t.detach().bfloat16() for t in parameters]
    assert torch.equal(out, grouped_mm(*low[:2], offs, low[2]))
    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(grouped_mm(x, w, offs, bias), out)
        uneven = grouped_mm(x[:, :100], w[:, :100], offs)  # rows start on 16 bytes in float32, but not in bfloat16
    assert torch.equal(uneven, grouped_mm(low[0][:, :100], low[1][:, :100], offs))
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(out.sum(), parameters))


@pytest.mark.parametrize("case", ["decode", "ragged", "unaligned", "a rest"])
def test_a_training_step_does_not_wait_and_is_deterministic(case: str) -> None:
    x, w, offs = operands(case, torch.bfloat16)
    bias = rand(w.size(0), w.size(2), dtype=torch.bfloat16)
    parameters = [t.requires_grad_() for t in (x, w, bias)]
    rows = int(offs[-1])

    def step() -> tuple[Tensor, ...]:
        out = grouped_mm(x, w, offs, bias, activation="silu")[:rows]
        return out, *torch.autograd.grad(out.sum(), parameters)

    first = step()
    with no_wait():
        second = step()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("case", ["decode", "ragged"])
def test_a_cuda_graph_with_other_ends(case: str) -> None:
    """The ends are read when the graph is replayed."""
    if not ON_GPU:
        pytest.skip("needs CUDA graphs")
    x, w, offs = operands(case, torch.bfloat16)
    bias = rand(w.size(0), w.size(2), dtype=torch.bfloat16)

    def call() -> tuple[Tensor, Tensor]:
        return grouped_mm_gated(x, w, offs), grouped_mm(x, w, offs, bias, activation="gelu")

    outs, replay = captured(call)
    for ends in (offs.tolist(), [0] * (len(offs) - 1) + [x.size(0)], [x.size(0)] * len(offs)):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        replay()
        assert all(torch.equal(a, b) for a, b in zip(outs, call(), strict=True))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool, fresh_dynamo: None) -> None:
    def function(x: Tensor, w: Tensor, offs: Tensor, bias: Tensor) -> Tensor:
        y = grouped_mm(x, w.mT, offs, bias, activation="silu")
        return grouped_mm(y, w, offs)

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    for case in ("ragged", "unaligned"):
        x, w, offs = operands(case, torch.bfloat16)
        bias = rand(w.size(0), w.size(2), dtype=torch.bfloat16)
        parameters = [t.requires_grad_() for t in (x, w.mT.detach(), bias)]
        results = []
        for run in (function, compiled):
            out = run(parameters[0], parameters[1], offs, parameters[2])
            results.append((out, *torch.autograd.grad(out, parameters, torch.ones_like(out))))
        for ours, eager in zip(*results, strict=True):
            torch.testing.assert_close(ours, eager, rtol=2**-6, atol=2**-6 * float(eager.abs().max()))


@pytest.mark.parametrize("case", ["even", "ragged", "one group", "no rows"])
def test_opcheck(case: str) -> None:
    x, w, offs = operands(case, torch.bfloat16)
    for b in (w, w.contiguous()):
        op = torch.ops.hgemm.grouped_mm.default
        library.opcheck(op, (x.requires_grad_(), b.requires_grad_(), offs), {}, test_utils=OPCHECKS, atol=0.1, rtol=0.1)


def test_strides_are_those_of_fake_tensors() -> None:
    """A compiled graph relies on them."""
    for case in ("ragged", "unaligned"):
        x, w, offs = operands(case, torch.bfloat16)
        for a, b, ends in ((x, w, offs), (w.mT, x.mT, offs), (x.T, x, offs), (w.mT, w, None)):
            real = torch.ops.hgemm.grouped_mm(a, b, ends)
            fake = torch.ops.hgemm.grouped_mm(*(None if t is None else t.to("meta") for t in (a, b, ends)))
            assert (real.shape, real.stride()) == (fake.shape, fake.stride())


@pytest.mark.parametrize("case", ["decode", "unaligned", "no rows"])
@dtypes
def test_layouts_and_inference_mode(case: str, dtype: torch.dtype) -> None:
    x, w, offs = operands(case, dtype)
    exact, theirs = by_loop(x.double(), w.double(), offs), by_loop(x, w, offs)
    for a in (x, x.T.contiguous().T, torch.cat([x, x], 1)[:, x.size(1) :]):
        for b in (w, w.contiguous(), torch.stack([w, w], -1)[..., 0]):
            assert_as_good(grouped_mm(a, b, offs), theirs, exact)
            with torch.inference_mode():
                assert_as_good(grouped_mm(a.clone(), b, offs), theirs, exact)


def test_the_report_and_flops() -> None:
    x, w, offs = operands("decode", torch.bfloat16)
    with use_custom_gemm() as report, FlopCounterMode(display=False) as counter:
        grouped_mm(x, w, offs)
    assert counter.get_total_flops() == 2 * x.size(0) * w.size(1) * w.size(2)
    if ON_GPU:
        (row,) = report.rows
        assert (row.op, row.calls, row.m, row.n, row.k) == ("grouped", 1, x.size(0), w.size(2), w.size(1))


def test_errors_are_found_on_the_host() -> None:
    """The device is usable afterwards."""
    x, w, offs = operands("even", torch.bfloat16)
    for bad in (
        (x[:, :200], w, offs),
        (x, w[:3], offs),
        (x, w, offs[:3]),
        (x, w, offs.long()),
        (x, w, None),
        *([(x, w, offs.cpu())] * ON_GPU),
        (x, w.half(), offs),
    ):
        with pytest.raises(RuntimeError):
            hgemm_ops.grouped_mm(*bad)
    assert_as_good(grouped_mm(x, w, offs), by_loop(x, w, offs), by_loop(x.double(), w.double(), offs))
