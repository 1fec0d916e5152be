"""Helpers that tests share: tolerance relative to torch's own error, poisoned memory, problems, processes."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hgemm_ops
from hgemm_ops import _library, _native
from hgemm_ops._report import Report
from hgemm_ops._tables import Device

#: The checkout. Some of what is tested is not installed.
ROOT = Path(__file__).resolve().parent.parent
#: Where tests of ``use_custom_gemm()`` run. "cpu" tries the tests themselves: there torch runs every matmul, and no
#: report counts any.
DEVICE = os.environ.get("HGEMM_TEST_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"

# Written under and around results before an op runs. NaN payloads spread through any arithmetic that reads them.
POISON = float("nan")
_Tensors = TypeVar("_Tensors")
# The error of a sum in float32, in units of eps(float32) times the sum of absolute values. Tensor cores add 16 products
# at a time and truncate: after each of K / 16 steps the partial sum loses eps / 2 of itself on average, always towards
# zero.
# For terms of random sign, partial sums grow like sqrt(k / K) of sqrt(K) terms. The loss is K / 16 * 1/2 * 2/3 /
# sqrt(K) = sqrt(K) / 48 units, which is four units at K = 36,000. For terms of one sign it is K / 64 units, four at K =
# 256, so such inputs are kept short.
# Only float32 results come near this bound. In float16 and bfloat16 results the rounding of the store is most of the
# error.
ACCUMULATION = 4.0
#: M, N and K of small problems. Every kernel can run at least one of them, or x @ x.T, or a batch whose matrices share
#: B, which ``unserved`` checks.
SHAPES = [
    (64, 64, 2048),
    (257, 130, 96),
    (1, 1024, 512),
    (300, 24, 700),
    (128, 256, 64),
    (33, 65, 17),
    (65, 81, 97),
    (16, 16, 72),
    (9, 15, 67),
    (40, 72, 1031),
    (24, 17000, 72),  # the last three are for edged kernels
    (17000, 24, 72),
    (24, 17000, 67),
    *((size, size, size) for size in range(2, 7)),  # and these for those of tiny_batch that take nothing else
]
#: The checks that opcheck makes.
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
H200 = Device("NVIDIA H200", 90, 132, 62914560)
# The reasons for which a kernel can run no problem at all.
NOT_HERE = re.compile(r"needs sm_\d+ or (newer|older)|bytes of shared memory|no code for sm_90a")
#: The activations by the values of ``act``. Their names are in ``hgemm_ops.ops.activation.ACTIVATIONS``.
ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {
    0: lambda x: x,
    1: F.relu,
    2: F.gelu,
    3: lambda x: F.gelu(x, approximate="tanh"),
    4: F.silu,
}


needs_library = pytest.mark.skipif(not _library.load(), reason=f"no native library: {_library.reason()}")


def rand(*shape: int, dtype: torch.dtype = torch.float16, device: str = DEVICE) -> Tensor:
    """U[-1, 1], rounded to ``dtype``; both parts of complex numbers."""
    if dtype.is_complex:
        return torch.view_as_complex(rand(*shape, 2, dtype=torch.float32, device=device)).to(dtype)
    return torch.rand(shape, device=device).mul_(2).sub_(1).to(dtype)


def off_grid(values: Tensor, transposed: bool = False, offset: int = 0) -> Tensor:
    """A copy of a matrix that begins ``offset`` elements into its storage. Unless that is 0, rows in memory are three
    elements apart, with NaN in between. ``transposed``: rows in memory are columns of the matrix."""
    stored = values.t() if transposed else values
    rows, columns = stored.shape
    step = columns + (3 if offset else 0)
    storage = torch.full((offset + rows * step + 8,), POISON, dtype=values.dtype, device=values.device)
    view = storage.as_strided((rows, columns), (step, 1), offset)
    view.copy_(stored)
    return view.t() if transposed else view


def run_python(code: str, timeout: float | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new process, for at most ``timeout`` seconds.

    Its only HGEMM_OPS_* variables are the ones in ``environment``.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HGEMM_OPS_")}
    command, env = [sys.executable, "-c", code], inherited | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)


def pretend_installed(folder: Path) -> dict[str, str]:
    """Writes the metadata of an installed package to ``folder``, with the entry points of the checkout, and the command
    ``hgemm``.

    Returns the environment variables with which processes find them.
    """
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"hgemm_ops-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hgemm_ops\nVersion: {project['version']}\n")
    groups = project["entry-points"] | {"console_scripts": project["scripts"]}
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    module, function = project["scripts"]["hgemm"].split(":")
    command = folder / "hgemm"
    command.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
    command.chmod(0o755)
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder), *sys.path]),
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
    }


def production() -> list[hgemm_ops.VariantInfo]:
    """The kernels of floating-point matmuls that the dispatcher chooses among."""
    return [v for v in hgemm_ops.variants() if v.family not in ("ladder", "int8")]


def serving(a: Tensor, b: Tensor) -> set[str]:
    """The names of the kernels that can run ``a @ b``, and of torch."""
    return {c.name for c in hgemm_ops.explain(a, b, float32="split").candidates if c.eligible}


def half_candidates(a: Tensor, b: Tensor) -> list[hgemm_ops.Candidate]:
    """The candidates for ``a @ b`` that take float16, as ``explain`` gives them."""
    names = {v.name for v in hgemm_ops.variants() if torch.float16 in v.dtypes}
    return [c for c in hgemm_ops.explain(a, b).candidates if c.name in names]


def serves(variant: hgemm_ops.VariantInfo, a: Tensor, b: Tensor) -> bool:
    return variant.name in serving(a, b)


def unserved(arch: str | None = None) -> list[str]:
    """The names of the kernels that run on this GPU, or on ``arch``, and can run none of ``SHAPES``, nor ``x @ x.T``,
    nor a batch of rows of ``x`` by one matrix."""
    x = torch.empty(64, 72, dtype=torch.float16, device="cpu" if arch else DEVICE)
    symmetric = hgemm_ops.explain(x, x.T, arch=arch).candidates
    merged = hgemm_ops.explain(x.view(8, 8, 72).transpose(0, 1), x.T, arch=arch).candidates
    names = {v.name for v in production()} - {c.name for c in (*symmetric, *merged) if c.eligible}
    for m, n, k in SHAPES:
        for layout, dtype in product(("NN", "NT"), (torch.float16, torch.float32, torch.float64)):
            candidates = hgemm_ops.explain(
                M=m, N=n, K=k, layout=layout, arch=arch, dtype=dtype, float32="split"
            ).candidates
            names -= {c.name for c in candidates if c.eligible or NOT_HERE.search(c.reason)}
    return sorted(names)


def assert_close_to_torch(
    out: Tensor,
    ref64: Tensor,
    torch_out: Tensor,
    *,
    magnitude: Tensor | float | None = None,
    factor: float = 2.0,
    units: float = 1.0,
) -> None:
    """Asserts, element by element, ``|out - ref64| <= factor * |torch_out - ref64| + one rounding unit``.

    Args:
        out: the result under test.
        ref64: the same result in float64 (complex128 for complex), from the same (already rounded) inputs.
        torch_out: torch's own result in ``out.dtype``.
        magnitude: ``|a| @ |b|`` in float64 (a tensor or a bound), the size of the sums that were accumulated. Where
            terms cancel, the error is in proportion to this and not to ``ref64``. Default: the largest ``|ref64|``.
        factor: how much worse than torch an element may be.
        units: how many times ``eps(out.dtype) * |ref64|`` is allowed. If there are more than two roundings, give half a
            unit for each: torch's roundings may cancel where those of the result under test add up.

    The rounding unit of an element is ``units * eps(out.dtype) * |ref64|`` (the store) plus ``ACCUMULATION`` times
    ``eps(accumulator) * magnitude``. float16, bfloat16 and float32 accumulate in float32. Where torch gives NaN or an
    infinity, ``out`` must give the same. The comparison runs on the device of ``ref64``.
    """
    __tracebackhide__ = True
    assert out.shape == ref64.shape == torch_out.shape, f"shapes {out.shape}, {ref64.shape}, {torch_out.shape}"
    assert out.dtype == torch_out.dtype, f"dtype {out.dtype}, torch gives {torch_out.dtype}"
    if out.numel() == 0:
        return
    if not (out.is_floating_point() or out.is_complex()):
        assert torch.equal(out, torch_out), "integer results must be equal"
        return
    wide = torch.complex128 if out.is_complex() else torch.float64
    ref, got, theirs = (t.detach().to(ref64.device, wide) for t in (ref64, out, torch_out))
    finite = theirs.isfinite()
    same_special = torch.where(theirs.isnan(), got.isnan(), got == theirs)
    if not bool((finite | same_special).all()):
        where = tuple(int(i) for i in (~(finite | same_special)).nonzero()[0])
        raise AssertionError(f"at {where}: got {got[where].item()}, torch gives {theirs[where].item()}")

    smallest = torch.finfo(out.dtype).smallest_normal
    if magnitude is None:
        finite_ref = ref[ref.isfinite()].abs()
        magnitude = float(finite_ref.max()) if finite_ref.numel() else 0.0
    elif isinstance(magnitude, Tensor):
        magnitude = magnitude.detach().to(ref64.device, torch.float64)
    eps = torch.finfo(out.dtype).eps
    unit = (
        units * eps * ref.abs().clamp(min=smallest)
        + ACCUMULATION * min(eps, torch.finfo(torch.float32).eps) * magnitude
    )
    error, allowed = (got - ref).abs(), factor * (theirs - ref).abs() + unit
    bad = finite & ~(error <= allowed)
    if bool(bad.any()):
        excess = torch.where(bad, (error / allowed).nan_to_num(nan=float("inf")), torch.zeros_like(error))
        where = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        raise AssertionError(
            f"{int(bad.sum())} of {out.numel()} elements are off; worst at {where}: got {got[where].item()}, "
            f"torch {theirs[where].item()}, float64 {ref[where].item()}: error {error[where].item():.3e}, "
            f"allowed {allowed[where].item():.3e}"
        )


def assert_half_accumulated(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Asserts that ``out``, a matmul of float16 matrices that was accumulated in float16, is off by roundings alone.

    Each of K additions rounds its partial sum by at most u = 2**-11 of it. (The products are exact, or round alike.) So
    an element is off by at most gamma(K) * sum|a||b|, gamma(K) = K u / (1 - K u). Beyond a few hundred terms, this
    bound says nothing.

    For inputs of random sign, partial sums stay near q = sqrt(sum (a b)**2), the standard deviation of the whole sum,
    and roundings are independent. So the standard deviation of the error is at most u q sqrt(K / 6). The bound is ten
    of these, ``4 u sqrt(K) q``, where that is below the first bound, and one more rounding of the result.

    Use it for inputs of random sign. Small integers, which sum up exactly, are the sharper test.
    """
    __tracebackhide__ = True
    assert out.dtype == a.dtype == b.dtype == torch.float16
    k, u = a.size(-1), torch.finfo(torch.float16).eps / 2
    wide_a, wide_b = a.detach().double(), b.detach().double()
    exact, magnitude = wide_a @ wide_b, wide_a.abs() @ wide_b.abs()
    walk = 4 * u * k**0.5 * (wide_a.square() @ wide_b.square()).sqrt()
    roundings = k + 1
    if roundings * u < 1:
        walk = torch.minimum(walk, roundings * u / (1 - roundings * u) * magnitude)
    allowed = walk + u * exact.abs() + torch.finfo(torch.float16).smallest_normal * u * k
    error = (out.double() - exact).abs()
    bad = ~(error <= allowed)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise AssertionError(
            f"{int(bad.sum())} of {out.numel()} elements are off; first at {where}: got {out[where].item()}, float64 "
            f"{exact[where].item()}: error {error[where].item():.3e}, allowed {allowed[where].item():.3e}"
        )


def check_a_chain_of_products(variant: int, factors: list[Tensor]) -> None:
    """Multiplies batches of square matrices one after the other by a kernel, 24 in a CUDA graph: launches that overlap
    give the same bits as launches that wait for each other."""

    def chain(wait: bool) -> Tensor:
        y = factors[0]
        for factor in factors * 4:
            y = torch.ops.hgemm.bmm(y, factor, variant=variant)
            if wait:
                torch.cuda.synchronize()
        return y

    expected = chain(True)
    out, replay = captured(lambda: chain(False))
    for _ in range(20):
        replay()
        assert torch.equal(out, expected)


def captured(call: Callable[[], _Tensors]) -> tuple[_Tensors, Callable[[], None]]:
    """Captures a call in a CUDA graph, after one call outside of it.

    Returns the tensors that the call returns, and a function that overwrites them and then replays the graph.
    """
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> None:
        with torch.inference_mode():  # the tensors may be inference tensors
            for tensor in tree_leaves(out):
                tensor.fill_(POISON)
        graph.replay()
        torch.cuda.synchronize()

    return out, replay


def share_of_allowed(out: Tensor, theirs: Tensor, exact: Tensor, *, units: float = 1.0) -> float:
    """The largest error over what is allowed: twice torch's, and ``units`` roundings of the largest result.

    It is for results of several roundings, where elements of two results cannot be compared one by one. Asserts the
    shape, the dtype, and the elements that are not finite.
    """
    __tracebackhide__ = True
    assert out.shape == theirs.shape == exact.shape, f"shapes {out.shape}, {theirs.shape}, {exact.shape}"
    assert out.dtype == theirs.dtype, f"dtype {out.dtype}, torch gives {theirs.dtype}"
    if out.numel() == 0:
        return 0.0
    finite = theirs.isfinite() & exact.isfinite()
    torch.testing.assert_close(out[~finite], theirs[~finite], rtol=0, atol=0, equal_nan=True)
    if not bool(finite.any()):
        return 0.0
    wide = torch.complex128 if out.is_complex() else torch.float64
    got, other, ref = (t.detach()[finite].to(wide) for t in (out, theirs, exact))
    unit = units * torch.finfo(out.dtype).eps * float(ref.abs().max())
    error, allowed = float((got - ref).abs().max()), 2 * float((other - ref).abs().max()) + unit
    if math.isnan(error):
        return math.inf
    return error / allowed if allowed > 0 else math.inf if error > 0 else 0.0


def assert_as_good(out: Tensor, theirs: Tensor, exact: Tensor, *, units: float = 1.0) -> None:
    """Asserts that the largest error is at most twice torch's, and ``units`` roundings of the largest result."""
    __tracebackhide__ = True
    share = share_of_allowed(out, theirs, exact, units=units)
    assert share <= 1, f"the largest error is {share:.3f} times twice torch's plus {units:g} roundings of the largest"


def calls(report: Report, variant: str | None = None) -> int:
    """The number of matmuls in a report, of all kernels or of one. "ours" are all kernels but torch's."""
    rows = [r for r in report.rows if variant in (None, r.variant) or (variant == "ours" and r.variant != "torch")]
    return sum(row.calls for row in rows)


def expect_calls(report: Report, number: int, variant: str | None = None) -> None:
    """Asserts the number of calls on a GPU. Elsewhere a report must be empty."""
    __tracebackhide__ = True
    found = calls(report, variant)
    assert found == (number if ON_GPU else 0), f"{found} calls of {variant or 'any kernel'}, not {number}:\n{report}"


def a_kernel(*products: tuple[Tensor, Tensor]) -> str:
    """A production kernel that can run all of these matmuls, with any epilogue; "torch" where no kernel runs."""
    if not ON_GPU:
        return "torch"
    names = [v.name for v in hgemm_ops.variants() if v.family != "ladder" and v.id not in limited_kernels()]
    for a, b in products:
        serves = {c.name for c in hgemm_ops.explain(a, b).candidates if c.eligible}
        names = [name for name in names if name in serves]
    assert names, "no kernel serves them all: find other products for this test"
    return names[0]


def less_accurate(ref64: Tensor, *routes: Tensor) -> Tensor:
    """Element by element, the one of torch's own results that is farther from ``ref64``. NaN counts as farthest.

    It is for results that torch computed for us. torch computes one matmul by several routes (with a fused addition or
    one after the matmul, with vector or matrix kernels), and it is free to take any of them.
    """
    worst = routes[0]
    for route in routes[1:]:
        farther = (route.double() - ref64).abs().nan_to_num(nan=float("inf")) > (worst.double() - ref64).abs()
        worst = torch.where(farther, route, worst)
    return worst


def widened(t: Tensor) -> Tensor:
    """The same values in float64, or complex128."""
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64)


def reference_matmul(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ``(a @ b, |a| @ |b|)`` in float64 (complex128 for complex): the reference and the magnitude for
    ``assert_close_to_torch``.

    For float64 operands the reference is exact if their elements are float32 numbers of :func:`rand` and K is at most
    32.
    """
    wide_a, wide_b = widened(a), widened(b)
    return wide_a @ wide_b, wide_a.abs() @ wide_b.abs()


@cache
def limited_kernels() -> frozenset[int]:
    """Ids of the kernels that can run a matmul, but not with everything around it: not with a float32 result.

    Those that only run ``x @ x.T`` are among them.
    """

    def serving(layout: str, size: int, k: int, out_dtype: torch.dtype) -> set[str]:
        candidates = hgemm_ops.explain(M=size, N=size, K=k, layout=layout, out_dtype=out_dtype).candidates
        return {c.name for c in candidates if c.eligible}

    names = {
        name
        for layout in ("NN", "NT", "TN", "TT")
        # Edged kernels run large C alone, and kernels in place of odd matrices small ones.
        for size, k in ((65, 97), (512, 512), (512, 513), (4096, 512), (4096, 513))
        for name in serving(layout, size, k, torch.float16) - serving(layout, size, k, torch.float32)
    }
    return frozenset(v.id for v in production() if v.name in names or v.name.endswith("_symmetric"))


def least_k(variant: hgemm_ops.VariantInfo) -> int:
    """The least K that a kernel takes: one that sums products of two float16 planes needs many terms."""
    return 128 if "two float16 planes" in variant.numerics else 1


@contextmanager
def refusal_allowed(variant: int) -> Iterator[None]:
    """For a forced kernel that is asked for more than a matmul.

    A limited kernel may raise the error that it cannot run it.
    """
    try:
        yield
    except RuntimeError as error:
        if variant not in limited_kernels() or "does not support" not in str(error):
            raise


class GuardedBuffer:
    """A poisoned tensor inside a larger poisoned allocation, to find unwritten elements and writes outside.

    ``tensor`` has ``shape``, row-major with ``row_padding`` extra elements after each row, and starts ``offset``
    elements into the allocation. After the op, ``check()`` asserts that nothing around it changed.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        offset: int = 64,
        row_padding: int = 0,
    ) -> None:
        strides, step = [], 1
        for i, size in enumerate(reversed(shape)):
            strides.append(step)
            step *= size + (row_padding if i == 0 else 0)
        self._storage = torch.full((offset + step + 64,), POISON, dtype=dtype, device=device)
        self.tensor = self._storage.as_strided(shape, strides[::-1], offset)

    def check(self) -> None:
        """Asserts that every element outside ``tensor`` is still poison."""
        outside = torch.ones_like(self._storage, dtype=torch.bool)
        outside.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()).fill_(False)
        touched = outside & ~self._storage.isnan()
        assert not bool(touched.any()), f"wrote outside the output at storage index {int(touched.nonzero()[0])}"


@contextmanager
def poisoned_cuda_memory(num_bytes: int = 1 << 28) -> Iterator[None]:
    """Makes the blocks that the CUDA caching allocator hands out next hold NaN instead of zeros or old results."""
    torch.cuda.empty_cache()
    small = [torch.full((1 << 18,), POISON, device="cuda") for _ in range(32)]  # 1 MiB each: the small-block pool
    large = torch.full((num_bytes // 4,), POISON, device="cuda")
    del small, large
    try:
        yield
    finally:
        torch.cuda.empty_cache()


@contextmanager
def counted(*settings: int, elsewhere: bool = False) -> Iterator[_native.Context]:
    """A context of the library, like that of ``use_custom_gemm()``. It needs no GPU.

    settings: as :class:`_native.Settings` takes them.
    elsewhere: another thread enters the context. It is active here while this thread has entered none.
    """
    context = _native.Context(_native.Settings(*settings))
    if elsewhere:
        thread = threading.Thread(target=context.enter)
        thread.start()
        thread.join()
    else:
        context.enter()
    try:
        yield context
    finally:
        context.exit()


class Names(TorchDispatchMode):
    """Records the name of every op that runs, in ``seen``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))
