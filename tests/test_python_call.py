"""The ops as functions of Python (``csrc/torch/python_call.cc``): which calls they run, and that the others notice
nothing.

These tests need a GPU, and so does the file; test_fast_path.py builds it for the CPU and runs them there.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hgemm_ops import _library, _native, _python_call, use_custom_gemm, variants
from hgemm_ops._key_sets import find_word

hgemm = torch.ops.hgemm
ON_CPU = "fast_path_on_cpu" in sys.modules
DEVICE, DTYPE = ("cpu", torch.float32) if ON_CPU else ("cuda", torch.float16)
here = pytest.mark.skipif(False, reason="") if ON_CPU else pytest.mark.gpu

TORCH: dict[str, Callable[..., Tensor]] = {
    "matmul": torch.matmul,
    "mm": torch.mm,
    "bmm": torch.bmm,
    "addmm": torch.addmm,
    "baddbmm": torch.baddbmm,
    "linear": F.linear,
}


def operands(op: str) -> list[tuple[Any, ...]]:
    """Of every form that the functions know."""
    a, b, c = (torch.randn(8, 8, device=DEVICE, dtype=DTYPE) for _ in range(3))
    forms: dict[str, list[tuple[Any, ...]]] = {
        "matmul": [(a, b), (a[None], b), (a[0], b), (a.t(), b[:, 1:3])],
        "mm": [(a, b), (a[1:, ::2], b.t()[::2])],
        "bmm": [(a[None], b.expand(1, 8, 8))],
        "addmm": [(c, a, b), (c[0], a, b)],
        "baddbmm": [(c[None], a[None], b[None])],
        "linear": [(a, b), (a[None], b, None), (a, b, c[0]), (a, Parameter(b), Parameter(c[0]))],
    }
    return forms[op]


make_function = _python_call.function  # whatever a test puts in its place


class Recorded:
    """A function of ``op``, and the calls that it left to torch's way."""

    def __init__(self, op: str, **options: Any) -> None:
        self.left: list[tuple[Any, ...]] = []
        self._op = getattr(hgemm, op).default._op
        self._options = options
        self.function = make_function(op, self._fallback, **options)

    def _fallback(self, *args: Any) -> Any:
        self.left.append(args)
        return self._op(*args, **self._options)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def expect_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-2, rtol=1e-2)


@here
@pytest.mark.parametrize("op", TORCH)
def test_plain_calls_take_the_short_way(op: str) -> None:
    recorded = Recorded(op)
    for args in operands(op):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                result = recorded(*args)
                expect_close(result, TORCH[op](*args))
                assert type(result) is Tensor and not result.requires_grad and result.is_contiguous()
                assert result.is_inference() == (mode is torch.inference_mode)
        if not any(isinstance(t, Parameter) for t in args):
            assert recorded(*args).grad_fn is None
    assert not recorded.left


@here
@pytest.mark.parametrize("op", TORCH)
def test_gradients_take_torch_s_way(op: str) -> None:
    for args in operands(op):
        tensors = [t for t in args if isinstance(t, Tensor)]
        for wanted in range(len(tensors)):
            leaf = tensors[wanted].detach().clone().requires_grad_()
            mine = [leaf if t is tensors[wanted] else t for t in args]
            recorded = Recorded(op)
            result = recorded(*mine)
            assert len(recorded.left) == 1 and result.requires_grad
            (ours,) = torch.autograd.grad(result.sum(), leaf)
            (theirs,) = torch.autograd.grad(TORCH[op](*mine).sum(), leaf)
            expect_close(ours, theirs)
            with torch.no_grad():
                assert not recorded(*mine).requires_grad
            assert len(recorded.left) == 1


class Subclass(Tensor):
    pass


class Seeing:
    """A mode of either kind that keeps what it is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def see(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Names(Seeing, TorchFunctionMode):
    __torch_function__ = Seeing.see


class Dispatched(Seeing, TorchDispatchMode):
    __torch_dispatch__ = Seeing.see


@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("kind", ["subclass", "negative", "zero", "dual", "meta"])
@here
def test_tensors_that_are_not_plain(kind: str, which: str) -> None:
    (plain, *_) = operands("mm")
    at = "ab".index(which)
    make: dict[str, Callable[[Tensor], Tensor]] = {
        "subclass": lambda t: t.as_subclass(Subclass),
        "negative": torch._neg_view,
        "zero": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype, device=t.device),
        "dual": lambda t: forward_ad.make_dual(t, torch.ones_like(t)),
        "meta": lambda t: t.to("meta"),
    }
    with forward_ad.dual_level():
        args = list(plain)
        args[at] = make[kind](args[at])
        if kind == "meta":
            args[1 - at] = args[1 - at].to("meta")
        recorded = Recorded("mm")
        result, expected = recorded(*args), torch.mm(*args)
        assert len(recorded.left) == 1 and type(result) is type(expected) and result.device == expected.device
        if kind == "dual":
            result, expected = (forward_ad.unpack_dual(t).tangent for t in (result, expected))
        if kind != "meta":
            expect_close(result, expected)


@here
@pytest.mark.parametrize("args", [(), (1,), (None, None), ("ab", [2]), "wrong shapes", "four"])
def test_arguments_that_are_wrong(args: Any) -> None:
    a, b = operands("mm")[0]
    if args == "wrong shapes":
        args = (a, b[:3])
    elif args == "four":
        args = (a, b, b, b)
    op = hgemm.mm.default._op
    with pytest.raises((TypeError, RuntimeError, AttributeError)) as expected:
        op(*args)
    with pytest.raises(expected.type) as raised:
        _python_call.function("mm", op)(*args)
    assert str(raised.value) == str(expected.value)
    expect_close(_python_call.function("mm", op)(a, b), a @ b)


@contextmanager
def profiled() -> Iterator[None]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


@here
@pytest.mark.parametrize(
    "mode",
    [Names, Dispatched, profiled, lambda: torch.autocast(DEVICE, dtype=torch.bfloat16)],
    ids=["function mode", "dispatch mode", "profiler", "autocast"],
)
def test_modes_see_the_op(mode: Callable[[], Any]) -> None:
    a, b = operands("mm")[0]
    recorded = Recorded("mm")
    with mode() as entered:
        result = recorded(a, b)
    assert len(recorded.left) == 1
    expect_close(result.to(DTYPE), a @ b)
    if isinstance(entered, Names):
        # What is called is what the fallback holds, which a mode knows as the op.
        assert any("mm" in str(func) for func in entered.seen)
    if isinstance(entered, Dispatched):
        assert hgemm.mm.default in entered.seen
    recorded(a, b)
    assert len(recorded.left) == 1


@here
def test_profiles_list_the_op() -> None:
    a, b = operands("mm")[0]
    function = _python_call.function("mm", hgemm.mm.default._op)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(a, b)
    assert any(event.name() == "hgemm::mm" for event in profile.profiler.kineto_results.events())  # type: ignore[union-attr]


@here
def test_functorch_and_traces_see_the_op() -> None:
    a, b = operands("mm")[0]
    function = _python_call.function("mm", hgemm.mm.default._op)
    batch = torch.stack([a, b])
    expect_close(torch.func.vmap(function, (0, None))(batch, b), batch @ b)
    expect_close(torch.func.vmap(lambda t: function(b, b) + t)(batch), b @ b + batch)
    ours = torch.func.grad(lambda t: function(t, b).sum())(a)
    expect_close(ours, torch.func.grad(lambda t: (t @ b).sum())(a))
    expect_close(torch.func.functionalize(function)(a, b), a @ b)
    graph = make_fx(lambda x, y: function(x, y).relu())(a, b)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets == [hgemm.mm.default, torch.ops.aten.relu.default]
    assert "hgemm::mm" in str(torch.jit.trace(lambda x, y: function(x, y), (a, b)).graph)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (a, b)]
        assert type(function(*fake)) is type(fake[0])


@here
def test_threads_share_a_function() -> None:
    function = _python_call.function("mm", hgemm.mm.default._op)
    pairs = [operands("mm")[0] for _ in range(16)]

    def many(pair: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            results = [function(*pair) for _ in range(50)]
        assert all(torch.equal(results[0], r) for r in results)
        return results[0]

    with ThreadPoolExecutor(4) as pool:
        for pair, result in zip(pairs, pool.map(many, pairs), strict=True):
            expect_close(result, pair[0] @ pair[1])


@here
def test_references_are_returned() -> None:
    a, b = operands("mm")[0]
    recorded = Recorded("mm")
    calls = (recorded, lambda a, b: recorded(a, a.new_empty(3)))  # plain, and one that fails

    def run() -> None:
        for call in calls:
            try:
                result = call(a, b)
                assert sys.getrefcount(result) == 2
            except RuntimeError:
                recorded.left.clear()

    run()
    counts = [sys.getrefcount(o) for o in (a, b, recorded.function)]
    for _ in range(100):
        run()
    assert [sys.getrefcount(o) for o in (a, b, recorded.function)] == counts

    def fallback(*args: Any) -> None: ...

    function = _python_call.function("mm", fallback)
    alive = weakref.ref(fallback)
    del fallback
    gc.collect()
    assert alive() is not None
    del function
    gc.collect()
    assert alive() is None


@pytest.mark.gpu
@pytest.mark.skipif(ON_CPU, reason="of the CUDA implementation")
def test_options_hold() -> None:
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    for variant in (v for v in variants() if v.name in ("sm80_mma_128x128x32_w64x32_s4", "skinny_mma_16x64")):
        recorded = Recorded("mm", variant=variant.id)
        try:
            expected = hgemm.mm(a, b, variant=variant.id)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                recorded(a, b)
            assert str(raised.value).splitlines()[0] == str(error).splitlines()[0]
        else:
            assert torch.equal(recorded(a, b), expected) and not recorded.left
    recorded = Recorded("mm", variant=_native.TORCH)
    assert torch.equal(recorded(a, b), torch.mm(a, b)) and not recorded.left
    x = a[:2]
    recorded = Recorded("linear", static_weights=True)
    assert torch.equal(recorded(x, b), hgemm.linear(x, b)) and not recorded.left


@pytest.mark.gpu
@pytest.mark.skipif(ON_CPU, reason="of the CUDA implementation")
def test_the_context_takes_the_short_way_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Recorded] = []
    calls: list[tuple[Any, ...]] = []

    def function(op: str, fallback: Any, **options: Any) -> Any:
        made.append(Recorded(op, **options))

        def counted(*args: Any) -> Any:
            calls.append(args)
            return made[-1](*args)

        return counted

    monkeypatch.setattr(_python_call, "function", function)
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    entries = []
    with torch.no_grad(), use_custom_gemm() as report:
        for _ in range(5):
            entries.append(torch.mm(a, b))
    assert all(torch.equal(entries[0], e) for e in entries)
    assert sum(row.calls for row in report.rows) == 5
    (recorded,) = made
    assert len(calls) == 4 and not recorded.left  # all but the first call, which is looked at
    expect_close(entries[0], a @ b)


@pytest.mark.skipif(not _library.load(), reason=f"no native library: {_library.reason()}")
class TestLayout:
    def test_this_python_and_torch_are_understood(self) -> None:
        found = _python_call.layout(_native.lib())
        assert found is not None
        assert (found.tensor, found.parameter, found.none) == (id(Tensor), id(Parameter), id(None))
        assert found.type_word == 1 and found.tensor_word > 1

    def test_what_is_not_there_is_not_found(self) -> None:
        tensors = [torch.empty(1) for _ in range(3)]
        impls = [t._cdata for t in tensors]
        objects = [id(t) for t in tensors]
        assert find_word(_native.lib(), objects, 6, impls) is not None
        assert find_word(_native.lib(), objects, 2, impls) is None
        for i in range(3):
            assert find_word(_native.lib(), objects, 6, [*impls[:i], 12345, *impls[i + 1 :]]) is None
        assert find_word(_native.lib(), [], 6, []) is None

    def test_without_it_the_op_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_python_call, "layout", lambda library: None)
        assert _python_call.start(_native.lib(), str(_library.path())) is None
        monkeypatch.setattr(_python_call, "maker", lambda: None)
        op = hgemm.mm.default._op
        assert _python_call.function("mm", op) is op
