"""The ops' way past autograd (``csrc/torch/autograd_fast_path.cc``): who runs which call, and that nothing else tells.

These tests need a GPU, and so does the file; the last one builds it for the CPU and runs them there, with those of
autograd and functorch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from helpers import assert_close_to_torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import hgemm_ops  # noqa: F401  (registers torch.ops.hgemm)
from hgemm_ops.ops import autograd

hgemm = torch.ops.hgemm
ON_CPU = "fast_path_on_cpu" in sys.modules
DEVICE, DTYPE = ("cpu", torch.float32) if ON_CPU else ("cuda", torch.float16)
here = pytest.mark.skipif(False, reason="") if ON_CPU else pytest.mark.gpu

Fn = Callable[..., Tensor]
# op -> (our call, torch's) of three (8, 8) matrices
CALLS: dict[str, tuple[Fn, Fn]] = {
    "matmul": (lambda a, b, c: hgemm.matmul(a[None], b) + c, lambda a, b, c: a[None] @ b + c),
    "mm": (lambda a, b, c: hgemm.mm(a, b) + c, lambda a, b, c: a @ b + c),
    "bmm": (lambda a, b, c: hgemm.bmm(a[None], b[None]) + c, lambda a, b, c: (a @ b)[None] + c),
    "addmm": (
        lambda a, b, c: hgemm.addmm(c, a, b, beta=2.0, out_dtype=a.dtype),
        lambda a, b, c: torch.addmm(c, a, b, beta=2.0),
    ),
    "baddbmm": (
        lambda a, b, c: hgemm.baddbmm(c, a[None], b[None], alpha=0.5, variant=-1),
        lambda a, b, c: torch.baddbmm(c, a[None], b[None], alpha=0.5),
    ),
    "linear": (lambda a, b, c: hgemm.linear(a, b, c[0], 1), lambda a, b, c: F.linear(a, b, c[0]).relu()),
    "linear no bias": (lambda a, b, c: hgemm.linear(a, b) + c, lambda a, b, c: F.linear(a, b) + c),
}


def matrices(requires_grad: str = "") -> dict[str, Tensor]:
    made = {name: torch.randn(8, 8, device=DEVICE, dtype=DTYPE) for name in "abc"}
    for name in requires_grad:
        made[name].requires_grad_()
    return made


def python_kernels(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What ``function`` returns, and the functions of ops/autograd.py that ran in it."""
    ran: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename == autograd.__file__:
            ran.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return result, ran


def without_dispatcher(function: Callable[[], Any]) -> bool:
    """Whether ``function`` has an op of ours go from autograd to its kernel and no way round."""
    if ON_CPU:
        import fast_path_on_cpu

        before = fast_path_on_cpu.calls_without_dispatcher()
        function()
        return bool(fast_path_on_cpu.calls_without_dispatcher() > before)
    function()  # a first profile may be of a thread that has yet to start things
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    # Not profile.events(), which lists an op once that is called in itself.
    events = [event.name() for event in profile.profiler.kineto_results.events()]  # type: ignore[union-attr]
    names = [name for name in events if name.startswith("hgemm::")]
    assert names
    return len(names) == 1


class Seen(TorchDispatchMode):
    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.names: list[str] = []
        self.error = error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "hgemm":
            self.names.append(str(func))
            if self.error is not None:
                raise self.error
        return func(*args, **(kwargs or {}))


class Stop(BaseException):
    """No type that C++ knows."""


@here
@pytest.mark.parametrize("op", CALLS)
def test_without_gradient_no_python_runs(op: str) -> None:
    ours, theirs = CALLS[op]
    inputs = matrices()
    for context, requires_grad in ((torch.enable_grad, ""), (torch.no_grad, "abc"), (torch.inference_mode, "")):
        for name in requires_grad:
            inputs[name].requires_grad_()
        with context():
            result, ran = python_kernels(lambda: ours(**inputs))
            assert not ran and not result.requires_grad
            exact = theirs(**{name: t.detach().double() for name, t in inputs.items()})
            assert_close_to_torch(result, exact, theirs(**inputs))


@here
@pytest.mark.parametrize("wants", "abc")
@pytest.mark.parametrize("op", CALLS)
def test_with_gradient_python_does(op: str, wants: str) -> None:
    ours, theirs = CALLS[op]
    inputs = matrices(wants)
    result, ran = python_kernels(lambda: ours(**inputs))
    assert bool(ran) == (wants != "c" or op in ("addmm", "baddbmm", "linear"))
    (grad,) = torch.autograd.grad(result.sum(), inputs[wants])
    (expected,) = torch.autograd.grad(theirs(**inputs).sum(), inputs[wants])
    torch.testing.assert_close(grad, expected)


@here
@pytest.mark.parametrize("op", CALLS)
def test_with_tangent_python_does(op: str) -> None:
    ours, theirs = CALLS[op]
    inputs, tangent = matrices(), torch.randn(8, 8, device=DEVICE, dtype=DTYPE)
    with torch.no_grad(), forward_ad.dual_level():
        for name in "ab":
            dual = {**inputs, name: forward_ad.make_dual(inputs[name], tangent)}
            result, ran = python_kernels(lambda dual=dual: forward_ad.unpack_dual(ours(**dual)).tangent)  # type: ignore[misc]
            assert ran
            torch.testing.assert_close(result, forward_ad.unpack_dual(theirs(**dual)).tangent, atol=1e-2, rtol=1e-2)
        assert not python_kernels(lambda: hgemm.mm(inputs["a"], inputs["b"]))[1]  # inside a level, without a tangent


@here
@pytest.mark.parametrize("wants", ["", "a"])
def test_errors_of_arguments(wants: str) -> None:
    inputs = matrices(wants)
    with pytest.raises(RuntimeError, match=r"mm: a \(8, 8\) and b \(7, 8\): inner dimensions must match") as error:
        hgemm.mm(inputs["a"], inputs["b"][:7])
    assert type(error.value) is RuntimeError


@pytest.mark.gpu
@pytest.mark.skipif(ON_CPU, reason="the CPU multiplies integers")
def test_errors_of_torch_keep_their_type() -> None:
    a = torch.ones(4, 4, device="cuda", dtype=torch.int32)
    with pytest.raises(NotImplementedError) as expected:
        torch.mm(a, a)
    with pytest.raises(NotImplementedError) as error:
        hgemm.mm(a, a)
    assert str(error.value) == str(expected.value)


@here
def test_any_exception_comes_through() -> None:
    stop = Stop("enough")

    def pack(_: Tensor) -> Any:
        raise stop

    inputs = matrices("a")
    for _ in range(3):
        with pytest.raises(Stop) as error, saved_tensors_hooks(pack, lambda t: t):
            hgemm.mm(inputs["a"], inputs["b"])
        assert error.value is stop
        assert "pack" in [entry.name for entry in traceback.extract_tb(error.value.__traceback__)]
    assert hgemm.mm(inputs["a"], inputs["b"]).requires_grad


@here
@pytest.mark.parametrize("wants", ["", "a"])
def test_dispatch_modes_see_the_op_once(wants: str) -> None:
    inputs = matrices(wants)
    with Seen() as seen:
        hgemm.mm(inputs["a"], inputs["b"])
    assert seen.names == ["hgemm.mm.default"]
    stop = Stop()
    with Seen(stop) as seen, pytest.raises(Stop) as error:
        hgemm.mm(inputs["a"], inputs["b"])
    assert error.value is stop
    assert seen.names == ["hgemm.mm.default"]


@here
def test_subclasses_see_the_op_once() -> None:
    names: list[str] = []
    error: BaseException | None = None

    class Wrapped(Tensor):
        plain: Tensor

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            if error is not None:
                raise error
            return func(*(getattr(arg, "plain", arg) for arg in args), **(kwargs or {}))

    inputs = matrices()
    wrapped = Tensor._make_subclass(Wrapped, inputs["a"])
    wrapped.plain = inputs["a"]
    result = hgemm.mm(wrapped, inputs["b"])
    assert [name for name in names if "hgemm" in name] == ["hgemm.mm.default"]
    torch.testing.assert_close(result, inputs["a"] @ inputs["b"])
    names.clear()
    error = Stop()
    for call in (hgemm.mm, torch.func.vmap(hgemm.mm, (None, 0))):
        with pytest.raises(Stop) as raised:
            call(wrapped, inputs["b"].expand(2, 8, 8) if call is not hgemm.mm else inputs["b"])
        assert raised.value is error
    assert names[0] == "hgemm.mm.default"


@here
def test_negative_views() -> None:
    inputs = matrices()
    torch.testing.assert_close(hgemm.mm(torch._neg_view(inputs["a"]), inputs["b"]), -inputs["a"] @ inputs["b"])


@here
@pytest.mark.parametrize("op", CALLS)
def test_plain_calls_take_no_dispatcher(op: str) -> None:
    ours, _ = CALLS[op]
    inputs, factors = matrices(), matrices("ab")
    assert without_dispatcher(lambda: ours(**inputs))
    with torch.no_grad():
        assert without_dispatcher(lambda: ours(**factors))
        with forward_ad.dual_level():
            assert without_dispatcher(lambda: ours(**inputs))


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": torch._neg_view,
    "zero": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype, device=t.device),
    "conjugate": lambda t: t.to(torch.complex64).conj(),
}


@here
@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("what", BETWEEN)
def test_what_lies_between_sees_the_call(what: str, which: str) -> None:
    inputs = matrices()
    other = inputs["ab".replace(which, "")]
    marked = BETWEEN[what](inputs[which])
    pair = (marked, other.to(marked.dtype)) if which == "a" else (other.to(marked.dtype), marked)
    assert not without_dispatcher(lambda: hgemm.mm(*pair))
    torch.testing.assert_close(hgemm.mm(*pair), torch.mm(*pair))
    if what != "conjugate":
        bias = BETWEEN[what](inputs["c"][0])
        assert not without_dispatcher(lambda: hgemm.linear(inputs["a"], inputs["b"], bias))
        torch.testing.assert_close(
            hgemm.linear(inputs["a"], inputs["b"], bias), F.linear(inputs["a"], inputs["b"], bias)
        )


@pytest.mark.gpu
@pytest.mark.skipif(ON_CPU, reason="of the CUDA implementation")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_products_left_to_torch_are_torchs(dtype: torch.dtype) -> None:
    a, b = torch.randn(33, 40, device="cuda", dtype=dtype), torch.randn(40, 17, device="cuda", dtype=dtype)
    batch = a.expand(3, 33, 40)
    for weight in (b.t(), b.t().contiguous(), b[:, ::2].t()):
        assert torch.equal(hgemm.linear(a, weight, variant=-2), F.linear(a, weight))
        assert torch.equal(hgemm.mm(a, weight.t(), variant=-2), torch.mm(a, weight.t()))
    assert torch.equal(hgemm.bmm(batch, b.expand(3, 40, 17), variant=-2), torch.bmm(batch, b.expand(3, 40, 17)))
    empty = hgemm.linear(a[:, :0], b.t()[:, :0], variant=-2)
    assert empty.shape == (33, 17) and not empty.any() and empty.is_contiguous()


@here
def test_tangents_that_are_zero() -> None:
    """Forward mode makes zero tensors of the tangents that an op does not have."""
    inputs = matrices()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(inputs["a"], torch._efficientzerotensor((8, 8), dtype=DTYPE, device=DEVICE))
        ours, theirs = hgemm.mm(dual, inputs["b"]), torch.mm(dual, inputs["b"])
        torch.testing.assert_close(forward_ad.unpack_dual(ours).primal, forward_ad.unpack_dual(theirs).primal)
        tangent = forward_ad.unpack_dual(ours).tangent
        assert tangent is None or not tangent.any()


@here
def test_functorch_sees_every_call() -> None:
    inputs = matrices()
    batch = torch.stack([inputs["a"], inputs["c"]])
    close = torch.testing.assert_close
    close(torch.func.vmap(hgemm.mm, (0, None))(batch, inputs["b"]), batch @ inputs["b"])
    close(torch.func.vmap(lambda a: hgemm.mm(inputs["b"], inputs["b"]) + a)(batch), inputs["b"] @ inputs["b"] + batch)
    ours = torch.func.grad(lambda a: hgemm.mm(a, inputs["b"]).sum())(inputs["a"])
    close(ours, torch.func.grad(lambda a: (a @ inputs["b"]).sum())(inputs["a"]))
    ours = torch.func.jvp(lambda a: hgemm.mm(a, inputs["b"]), (inputs["a"],), (inputs["c"],))[1]
    close(ours, inputs["c"] @ inputs["b"])
    close(torch.func.functionalize(hgemm.mm)(inputs["a"], inputs["b"]), inputs["a"] @ inputs["b"])
    close(torch.func.functionalize(lambda a, b: hgemm.mm(a.clone().neg_(), b))(*batch), -batch[0] @ batch[1])


@here
@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_traces_hold_the_op(tracing_mode: str) -> None:
    inputs = matrices()
    graph = make_fx(lambda a, b: hgemm.mm(a, b).relu(), tracing_mode=tracing_mode)(inputs["a"], inputs["b"])
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets == [hgemm.mm.default, torch.ops.aten.relu.default]


@here
def test_fake_tensors_stay_fake() -> None:
    with FakeTensorMode() as mode:
        a, b = (torch.empty(8, 8, device=DEVICE, dtype=DTYPE) for _ in range(2))
        assert isinstance(hgemm.mm(a, b), FakeTensor)
    assert isinstance(hgemm.mm(a, b), FakeTensor) and a.fake_mode is mode  # type: ignore[attr-defined]


@here
def test_checkpoint_stops_early() -> None:
    """By an exception, thrown where the last needed tensor is saved."""
    inputs = matrices("ab")
    ran = 0

    def block(x: Tensor) -> Tensor:
        nonlocal ran
        y = hgemm.linear(hgemm.mm(x, inputs["b"]), inputs["b"])
        ran += 1  # the second time, the exception comes before
        return y

    def grads(function: Fn) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(inputs["a"]).sum(), (inputs["a"], inputs["b"]))

    expected = grads(block)
    ran = 0
    torch.testing.assert_close(grads(lambda x: checkpoint(block, x, use_reentrant=False)), expected)
    assert ran == 1


@pytest.mark.slow
@pytest.mark.skipif(ON_CPU, reason="runs the others there")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_all_this_on_the_cpu(tmp_path: Path) -> None:
    root, torch_dir = Path(__file__).parent.parent, Path(torch.__file__).parent
    source, library = tmp_path / "fast_path.cc", tmp_path / "fast_path.so"
    text = (root / "csrc" / "torch" / "autograd_fast_path.cc").read_text()
    assert text.count("AutogradCUDA, ") == 1
    source.write_text(text.replace("AutogradCUDA, ", "AutogradCPU, "))
    sources = [
        str(source),
        str(root / "csrc" / "torch" / "python_call.cc"),
        str(root / "tests" / "fast_path_on_cpu.cc"),
    ]
    flags = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    includes = ["-isystem", str(torch_dir / "include"), f"-I{root / 'csrc'}"]
    link = [f"-L{torch_dir / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    subprocess.run(["c++", "-shared", *flags, *includes, *sources, "-o", str(library), *link], check=True)
    files = [str(root / "tests" / f"test_{name}.py") for name in ("fast_path", "python_call", "autograd", "functorch")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "fast_path_on_cpu", "-p", "no:cacheprovider", *files],
        cwd=root,
        env={
            **os.environ,
            "HGEMM_FAST_PATH_ON_CPU": str(library),
            "PYTHONPATH": os.pathsep.join([str(root / "tests"), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
