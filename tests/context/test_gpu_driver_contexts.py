"""Contexts of the CUDA driver beside the primary one: green contexts, their streams, contexts of other libraries."""

from __future__ import annotations

import subprocess

import pytest
import torch
from helpers import ON_GPU, run_python

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="contexts of the CUDA driver")]

# What every script starts with. ``driver`` is the CUDA driver through ctypes. ``Green`` is a green context.
_START = """
import ctypes, sys, torch, hgemm_ops
from hgemm_ops import use_custom_gemm

class Driver:
    functions = ctypes.CDLL("libcuda.so.1")
    def __getattr__(self, name):
        function = getattr(self.functions, name)
        def call(*args):
            status = function(*args)
            assert status == 0, (name, status)
        return call
driver = Driver()
driver.cuInit(0)

def current():
    context = ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(context))
    return context.value

class Green:
    '''A green context of about this many SMs, or of the SMs that such a context leaves.'''
    def __init__(self, sms, remaining=False, flags=0):
        if not hasattr(driver.functions, "cuGreenCtxCreate"):
            print("the driver has no green contexts")
            sys.exit(0)
        every, taken, left = (ctypes.create_string_buffer(512) for _ in range(3))
        groups, desc, green, self.context, self.stream = ctypes.c_uint(1), *(ctypes.c_void_p() for _ in range(4))
        driver.cuDeviceGetDevResource(0, every, 1)
        driver.cuDevSmResourceSplitByCount(taken, ctypes.byref(groups), every, left, flags, sms)
        part = left if remaining else taken
        self.sms = int.from_bytes(part.raw[96:100], "little")
        driver.cuDevResourceGenerateDesc(ctypes.byref(desc), part, 1)
        driver.cuGreenCtxCreate(ctypes.byref(green), desc, 0, 1)
        driver.cuCtxFromGreenCtx(ctypes.byref(self.context), green)
        driver.cuGreenCtxStreamCreate(ctypes.byref(self.stream), green, 1, 0)
    def __enter__(self):
        driver.cuCtxPushCurrent_v2(self.context)
        return self
    def __exit__(self, *error):
        popped = ctypes.c_void_p()
        driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
        assert error[0] is not None or popped.value == self.context.value, "another context was current"

def rand(*shape, dtype=torch.float16):
    return torch.rand(shape, device="cuda").mul_(2).sub_(1).to(dtype)

def kernels(a, b):
    names = {v.name for v in hgemm_ops.variants() if v.family != "ladder"}
    return [c.name for c in hgemm_ops.explain(a, b).candidates if c.eligible and c.name in names]

def check(product, a, b):
    torch.testing.assert_close(product.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-1)
"""


def check(script: str, seconds: int = 120) -> None:
    """Runs the script. One that hangs fails."""
    __tracebackhide__ = True
    try:
        done = run_python(_START + script, timeout=seconds, HGEMM_OPS_LOG="INFO")
    except subprocess.TimeoutExpired as expired:
        pytest.fail(f"hangs: {expired.stdout!r}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("sms", [8, 64])
def test_torchs_green_contexts(sms: int) -> None:
    from torch.cuda import green_contexts

    if not green_contexts.SUPPORTED:
        pytest.skip("this torch has no green contexts")
    check(f"""
from torch.cuda.green_contexts import GreenContext
try:
    green = GreenContext.create(num_sms={sms}, device_id=0)
except RuntimeError as error:
    print("not here:", error)
    sys.exit(0)
shapes = [(64, 64, 64), (1, 4096, 4096), (16, 4096, 1024), (257, 333, 129), (1024, 1024, 1024), (2048, 4096, 2048)]
pairs = [(rand(m, k), rand(k, n)) for m, n, k in shapes]
batch = rand(40, 64, 64)
torch.cuda.synchronize()
for _ in range(2):
    green.set_context()
    inside = current()
    with use_custom_gemm() as report:  # the first product of the process is one of these
        products = [a @ b for a, b in pairs]
        square = batch @ batch
        wide = pairs[0][0].float() @ pairs[0][1].float()
    ops = [torch.ops.hgemm.matmul(a, b) for a, b in pairs]
    torch.cuda.current_stream().synchronize()
    assert current() == inside
    green.pop_context()  # asserts that the green context is the current one
    for product, op, (a, b) in zip(products, ops, pairs, strict=True):
        check(product, a, b)
        check(op, a, b)
    check(square, batch, batch)
    assert any(row.variant != "torch" for row in report.rows), report
print(report)
""")


_EVERY_KERNEL = """
served = refused = 0
shapes = [(64, 128, 4096), (1024, 1536, 1024)]
for m, n, k in shapes:
    a, w = rand(m, k), rand(n, k)
    for x, y in ((a, w.t()), (a, rand(k, n))):
        expected = x.float() @ y.float()
        names = kernels(x, y)
        torch.cuda.synchronize()
        for name in names:
            print(name, flush=True)
            with green:
                try:
                    product = hgemm_ops.matmul(x, y, variant=name)
                except RuntimeError as error:  # one that is only for more SMs
                    assert f"hgemm: {name} does not support" in str(error), str(error)
                    refused += 1
                    continue
                hgemm_ops.matmul(x, y, variant=name)
                torch.cuda.current_stream().synchronize()
            torch.testing.assert_close(product.float(), expected, rtol=2e-2, atol=2e-1)
            served += 1
print(served, "served,", refused, "refused, of", green.sms, "SMs")
assert served > refused
"""


@pytest.mark.parametrize("sms", [8, 48])
def test_every_kernel_in_a_green_context(sms: int) -> None:
    check(f"green = Green({sms})\n" + _EVERY_KERNEL)


def test_every_kernel_on_the_sms_that_are_left() -> None:
    """The driver promises less about these SMs: clusters may not fit."""
    check("green = Green(96, remaining=True)\n" + _EVERY_KERNEL)


def test_every_kernel_on_sms_of_any_place() -> None:
    """Without the driver's promise that a cluster fits."""
    check("green = Green(2, flags=1)\n" + _EVERY_KERNEL)


def test_a_stream_of_a_green_context() -> None:
    """It is used while the primary context is current, and has the SMs of its own context."""
    check("""
green = Green(16)
stream = torch.cuda.ExternalStream(green.stream.value)
a, b = rand(2048, 2048), rand(2048, 2048)
with use_custom_gemm():
    a @ b
before = current()
names = kernels(a, b)
torch.cuda.synchronize()
products = []
with torch.cuda.stream(stream):
    for name in names:
        try:
            products.append(hgemm_ops.matmul(a, b, variant=name))
        except RuntimeError as error:  # one that is only for more SMs
            assert f"hgemm: {name} does not support" in str(error), str(error)
    assert len(products) > len(names) / 2
    with use_custom_gemm():
        products.append(a @ b)
    graph = torch.cuda.CUDAGraph()
    with use_custom_gemm(), torch.cuda.graph(graph, stream=stream):
        captured = a @ b
    graph.replay()
stream.synchronize()
for product in (*products, captured):
    check(product, a, b)
assert current() == before

# The dispatcher counts with the stream's SMs: it decides anew, and predicts that they take longer.
import logging
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("hgemm_ops").addHandler(handler)
c, d = rand(3000, 3000), rand(3000, 3000)
with use_custom_gemm():
    c @ d
    with torch.cuda.stream(stream):
        c @ d
    c @ d
torch.cuda.synchronize()
times = [float(line.split(", torch ")[1].split(" us")[0]) for line in lines if "3000x3000x3000" in line]
assert len(times) == 2 and times[1] > 3 * times[0], lines
""")


def test_an_early_product_in_a_green_context() -> None:
    """The first product of the process looks at the device, and leaves the context as it is."""
    check("""
a, b = rand(512, 512), rand(512, 512)
with Green(8), use_custom_gemm(variant=None):
    inside = current()
    product = a @ b
    torch.ops.hgemm.mm(a, b)
    torch.cuda.current_stream().synchronize()
    assert current() == inside
check(product, a, b)
""")


def test_other_threads_keep_the_primary_context() -> None:
    check("""
import threading
a, b = rand(1024, 1024), rand(1024, 1024)
green, results = Green(16), []
torch.cuda.synchronize()

def work():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), use_custom_gemm():
        for _ in range(50):
            product = a @ b
    stream.synchronize()
    results.append(product)

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
with use_custom_gemm(), green:
    for _ in range(50):
        product = a @ b
    torch.cuda.current_stream().synchronize()
for thread in threads: thread.join()
assert len(results) == 2
for each in (*results, product):
    check(each, a, b)
""")


def test_backward_in_a_green_context() -> None:
    check("""
a, b = rand(512, 512).requires_grad_(), rand(512, 512).requires_grad_()
torch.cuda.synchronize()
with use_custom_gemm(), Green(16):
    inside = current()
    (a @ b).sum().backward()
    torch.cuda.synchronize()
    assert current() == inside
check(a.grad, torch.ones(512, 512, device="cuda"), b.detach().t())
""")


def test_the_primary_context_pushed_by_another_library() -> None:
    check("""
a, b = rand(512, 512), rand(512, 512)
primary, popped = ctypes.c_void_p(), ctypes.c_void_p()
driver.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 0)
driver.cuCtxPushCurrent_v2(primary)
with use_custom_gemm():
    product = a @ b
driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
assert popped.value == primary.value
check(product, a, b)
""")


# A context that another library created is current. Torch allocates in it, so its memory is used in it alone.
_FOREIGN = """
foreign = ctypes.c_void_p()
if PRIMARY_FIRST:
    warm = rand(512, 512)
    with use_custom_gemm(variant=None if OURS else "torch"):
        warm @ warm
    torch.cuda.synchronize()
driver.cuCtxCreate_v2(ctypes.byref(foreign), 0, 0)

def products():
    a, b = (torch.rand(512, 512, device="cuda").half() for _ in range(2))
    results = []
    for name in (kernels(a, b) if OURS else ["torch"]):
        results.append(hgemm_ops.matmul(a, b, variant=name))
    with use_custom_gemm(variant=None if OURS else "torch"):
        results.append(a @ b)
    torch.cuda.synchronize()
    for result in results:
        check(result, a, b)

try:
    products()
except RuntimeError as error:
    print("RuntimeError", str(error).splitlines()[0])
else:
    print("no error")
print("the same context" if current() == foreign.value else "another context")
"""


@pytest.mark.parametrize("primary_first", [True, False])
def test_a_context_of_another_library(primary_first: bool) -> None:
    """It stays, and products run or fail as torch's own do."""
    outcomes = []
    for ours in (False, True):
        done = run_python(f"OURS, PRIMARY_FIRST = {ours}, {primary_first}\n" + _START + _FOREIGN, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        outcomes.append(done.stdout)
    assert outcomes[1] == outcomes[0]
    assert not primary_first or "the same context" in outcomes[1]  # torch itself makes a primary context where none is
