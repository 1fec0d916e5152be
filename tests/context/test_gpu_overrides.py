"""Other packages override torch's matmuls at our key: before us and after us, from Python and from C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from helpers import ON_GPU, run_python

from hgemm_ops import _aten_build

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="overrides at the CUDA key")]

# What every script starts with: one call of each operator that we override, in half and in double. Double is torch's
# in every context. ``expect(n)`` checks that the other package's kernels were called n times for each of ``NAMES``.
_START = """
import collections, threading, torch, hgemm_ops
from torch import library
from hgemm_ops import use_custom_gemm

M, N, K = 64, 96, 128
seen = collections.Counter()
lock = threading.Lock()
NAMES = ["mm", "mm.out", "bmm", "bmm.out", "addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_",
         "addmv", "addmv.out", "addmv_", "_addmm_activation", "_addmm_activation.out", "dot", "vdot"]
WITH_DTYPE = ["mm.dtype", "mm.dtype_out", "bmm.dtype", "bmm.dtype_out", "addmm.dtype", "addmm.dtype_out",
              "baddbmm.dtype", "baddbmm.dtype_out"]

def op(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")

def arguments(name, dtype):
    base = name.split(".")[0].rstrip("_").removeprefix("_")
    torch.manual_seed(0)
    t = lambda *shape: torch.randn(shape, device="cuda").to(dtype)
    A, B, C = t(3, M, K), t(3, K, N), t(3, M, N)
    args = {"mm": [A[0], B[0]], "bmm": [A, B], "addmm": [C[0], A[0], B[0]], "baddbmm": [C, A, B],
            "addmv": [C[0, :, 0].contiguous(), A[0], B[0, :, 0].contiguous()], "addmm_activation": [C[0], A[0], B[0]],
            "dot": [A[0, 0], A[0, 1]], "vdot": [A[0, 0], A[0, 1]]}[base]
    if ".dtype" in name:
        args.append(torch.float32)
    kwargs = {}
    if base.startswith(("add", "badd")):
        kwargs = {"beta": 2, "alpha": 3}
    if name.endswith("out"):
        kwargs["out"] = torch.empty_like(C if base in ("bmm", "baddbmm") else C[0] if base != "addmv" else args[0],
                                         dtype=torch.float32 if ".dtype" in name else dtype)
    return args, kwargs

def run(dtype=torch.float16):
    results = {}
    for name in NAMES + (WITH_DTYPE if dtype == torch.float16 else []):
        args, kwargs = arguments(name, dtype)
        results[name] = op(name)(*args, **kwargs)
        if "out" in kwargs:
            assert results[name] is kwargs["out"], name
        if name.endswith("_"):
            assert results[name] is args[0], name
    return results

def same(results, expected):
    for name, result in results.items():
        assert torch.equal(result, expected[name]), name

def close(results, expected):
    for name, result in results.items():
        torch.testing.assert_close(result.float(), expected[name].float(), rtol=1e-2, atol=1e-1, msg=name)

def expect(n, names=NAMES + WITH_DTYPE):
    assert dict(seen) == ({name: n for name in names} if n else {}), (n, seen)
    seen.clear()

def in_threads(work):
    failures = []
    def guarded():
        try:
            work()
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=guarded) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not failures, failures

exact, exact_double = run(), run(torch.double)
"""

# A package that overrides all of them, and computes by the kernels that it found.
_PACKAGE = """
def override(names):
    package = library.Library("aten", "IMPL")
    for name in names:
        found = library.get_kernel("aten::" + name, "CUDA")
        def kernel(keys, *args, name=name, found=found, **kwargs):
            with lock:
                seen[name] += 1
            return found.call_boxed(keys, *args, **kwargs)
        package.impl(name, kernel, "CUDA", with_keyset=True)
    return package
"""


def check(script: str, **values: str) -> None:
    __tracebackhide__ = True
    done = run_python("".join(f"{name} = {value!r}\n" for name, value in values.items()) + _START + script)
    assert done.returncode == 0, done.stderr


def test_torch_says_where_its_own_kernels_come_from() -> None:
    """earlier.h tells torch's kernels by this text, and calls them directly."""
    check("""
for name in NAMES + WITH_DTYPE:
    text = repr(library.get_kernel("aten::" + name, "CUDA"))
    assert "aten/src/ATen/RegisterCUDA" in text or (name == "bmm" and "/torch/_native/" in text), text
""")


def test_a_package_before_us_in_python() -> None:
    check(
        _PACKAGE
        + """
package = override(NAMES + WITH_DTYPE)
same(run(), exact)
expect(1)

with use_custom_gemm():
    pass
for _ in range(2):
    same(run(), exact)  # no context: as before
    expect(1)
    same(run(torch.double), exact_double)
    expect(1, NAMES)

with use_custom_gemm(variant="torch"):  # all of it is left to the package
    same(run(), exact)
    expect(1)
    with use_custom_gemm(variant="torch"):
        same(run(), exact)
        expect(1)

with use_custom_gemm() as report:
    same(run(torch.double), exact_double)
    expect(1, NAMES)
    close(run(), exact)
    seen.clear()

# Which kernel, if it must be ours: the package is not asked.
names = [v.name for v in hgemm_ops.variants() if v.family != "ladder"]
a, b = arguments("mm", torch.float16)[0]
ours = next(c.name for c in hgemm_ops.explain(a, b).candidates if c.eligible and c.name in names)
with use_custom_gemm(variant=ours):
    product = a @ b
    expect(0)
    with use_custom_gemm(variant="torch"):
        assert torch.equal(a @ b, exact["mm"])
        expect(1, ["mm"])
    assert torch.equal(a @ b, product)
    expect(0)
assert torch.equal(a @ b, exact["mm"])
expect(1, ["mm"])

def work():
    for _ in range(20):
        with use_custom_gemm(variant="torch"):  # a context of its own: those of other threads do not hold here
            assert torch.equal(a @ b, exact["mm"])
            with use_custom_gemm(variant=ours):
                assert torch.equal(a @ b, product)
in_threads(work)
expect(80, ["mm"])

# Gradients reach the package, too.
x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
(x @ w).sum().backward()
assert seen["mm"] == 3, seen
seen.clear()

package._destroy()
for _ in range(2):
    same(run(), exact)
    expect(0)
with use_custom_gemm(variant="torch"):
    same(run(), exact)
with use_custom_gemm(variant=ours):
    assert torch.equal(a @ b, product)
expect(0)
"""
    )


def test_errors_of_a_package_before_us() -> None:
    check("""
def fails(a, b):
    raise KeyError("of the package")
package = library.Library("aten", "IMPL")
package.impl("mm", fails, "CUDA")
a, b = arguments("mm", torch.float64)[0]
for context in (use_custom_gemm(), use_custom_gemm(variant="torch")):
    with context:
        try:
            a @ b
        except KeyError as error:
            assert error.args == ("of the package",)
        else:
            raise SystemExit("no error")
""")


def test_a_package_before_us_that_makes_other_products() -> None:
    """It computes mm by bmm, which we may serve, and in another dtype by mm again."""
    check("""
def mm(a, b):
    seen["mm"] += 1
    if a.dtype == torch.float64:
        return (a.half() @ b.half()).double()
    return torch.bmm(a[None], b[None])[0]
package = library.Library("aten", "IMPL")
package.impl("mm", mm, "CUDA")
a, b = arguments("mm", torch.float64)[0]
with use_custom_gemm(variant="torch") as report:
    torch.testing.assert_close(a @ b, exact_double["mm"], rtol=1e-2, atol=1e-1)
    expect(2, ["mm"])
assert sum(row.calls for row in report.rows) == 3, report
""")


def test_a_package_after_us_in_python() -> None:
    check(
        _PACKAGE
        + """
a, b = arguments("mm", torch.float16)[0]
with use_custom_gemm() as report:
    pass
assert "another package" not in str(report)
package = override(NAMES + WITH_DTYPE)  # what it finds is ours
for context in (use_custom_gemm(variant="torch"), use_custom_gemm()):
    with context as report:
        close(run(), exact)
        expect(1)
    with context, context:
        close(run(), exact)
        expect(1)
assert "aten::mm, registered at" in str(report), report
same(run(), exact)
expect(1)

linear = library.Library("aten", "IMPL")
linear.impl("linear", lambda x, w, bias=None: torch.mm(x, w.t()), "CUDA")
assert "aten::linear, registered at" in str(report), report
linear._destroy()
package._destroy()  # torch refuses a second override from Python
sevens = library.Library("aten", "IMPL")
sevens.impl("mm", lambda a, b: a.new_full((len(a), b.shape[1]), 7), "CUDA")
with use_custom_gemm():
    assert (a @ b == 7).all()
assert (a @ b == 7).all()
sevens._destroy()

same(run(), exact)
names = [v.name for v in hgemm_ops.variants() if v.family != "ladder"]
ours = next(c.name for c in hgemm_ops.explain(a, b).candidates if c.eligible and c.name in names)
with use_custom_gemm(variant=ours) as report:
    a @ b
assert [(row.variant, row.calls) for row in report.rows] == [(ours, 1)], report
assert "another package" not in str(report)
expect(0)
"""
    )


_CPP = """
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>
#include <memory>
#define EXPORT extern "C" __attribute__((visibility("default")))
int count = 0;
at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  ++count;
  return at::full({a.size(0), b.size(1)}, 7, a.options());
}
at::Tensor& mm_out(const at::Tensor&, const at::Tensor&, at::Tensor& out) {
  ++count;
  return out.fill_(7);
}
at::Tensor addmm(const at::Tensor& c, const at::Tensor&, const at::Tensor&, const at::Scalar& beta, const at::Scalar&) {
  ++count;
  return at::mul(c, beta);
}
std::unique_ptr<torch::Library> package;
EXPORT void add() {
  package = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  package->impl("mm", TORCH_FN(mm)).impl("mm.out", TORCH_FN(mm_out)).impl("addmm", TORCH_FN(addmm));
}
EXPORT void remove_it() { package.reset(); }
EXPORT int calls() { return count; }
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_a_package_in_cpp(tmp_path: Path) -> None:
    source = tmp_path / _aten_build.SOURCES[0]
    source.parent.mkdir()
    source.write_text(_CPP)
    made = tmp_path / "package.so"
    command = _aten_build.command(["c++"], tmp_path, Path(torch.__file__).parent, made)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check(
        """
import ctypes
package = ctypes.PyDLL(LIBRARY)
names = [v.name for v in hgemm_ops.variants() if v.family != "ladder"]
a, b = arguments("mm", torch.float16)[0]
c, _, _ = arguments("addmm", torch.float16)[0]
ours = next(x.name for x in hgemm_ops.explain(a, b).candidates if x.eligible and x.name in names)

def theirs():
    before = package.calls()
    assert (a @ b == 7).all()
    assert (torch.mm(a, b, out=torch.empty_like(c)) == 7).all()
    assert torch.equal(torch.addmm(c, a, b, beta=2), c * 2)
    assert package.calls() == before + 3

package.add()
theirs()
with use_custom_gemm():
    pass
theirs()
with use_custom_gemm(variant="torch"):
    theirs()
    with use_custom_gemm(variant=ours):
        before = package.calls()
        torch.testing.assert_close(a @ b, exact["mm"], rtol=1e-2, atol=1e-1)
        assert package.calls() == before
    theirs()
in_threads(lambda: [torch.mm(a, b) for _ in range(20)])
package.remove_it()
same(run(), exact)
package.add()  # once more: after us now
for context in (use_custom_gemm(variant=ours), use_custom_gemm(variant="torch")):
    with context:
        theirs()
theirs()
package.remove_it()
same(run(), exact)
with use_custom_gemm(variant=ours) as report:
    a @ b
assert [(row.variant, row.calls) for row in report.rows] == [(ours, 1)], report
""",
        LIBRARY=str(made),
    )
