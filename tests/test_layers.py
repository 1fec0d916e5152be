"""``swap_linear``: layers that call the operator themselves."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hgemm_ops import Linear, _layers, swap_linear, unswap_linear, use_custom_gemm


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Sequential(nn.ReLU(), nn.Linear(6, 4, bias=False))
        self.own = Doubled(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.own(self.down(self.up(x)))
        return out


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "hgemm":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def test_layers_call_the_operator_and_compute_the_same() -> None:
    model, x = Model(), torch.randn(2, 3, 4)
    expected, state = model(x), {name: t.clone() for name, t in model.state_dict().items()}
    assert swap_linear(model) == ["up", "down.1"]
    assert swap_linear(model) == []
    with Operators() as seen:
        result = model(x)
    assert seen.names == ["linear", "linear"]
    torch.testing.assert_close(result, expected)
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert all(isinstance(model.get_submodule(name), nn.Linear) for name in ("up", "down.1", "own"))
    assert type(model.own) is Doubled
    assert unswap_linear(model) == ["up", "down.1"]
    with Operators() as seen:
        model(x)
    assert seen.names == []


def test_gradients() -> None:
    x = torch.randn(3, 4)
    model = Model()
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    swap_linear(model)
    torch.testing.assert_close(torch.autograd.grad(model(x).sum(), list(model.parameters())), expected)


def test_a_forward_of_somebody_elses_stays() -> None:
    model = Model()
    model.up.forward = lambda input: F.linear(input, model.up.weight)  # type: ignore[method-assign]
    assert swap_linear(model) == ["down.1"]


def test_copies_and_pickles_are_swapped() -> None:
    layer, x = nn.Linear(4, 6), torch.randn(2, 4)
    swap_linear(layer)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is Linear
        assert torch.equal(other(x), layer(x))


def test_a_context_counts_them() -> None:
    model, x = Model(), torch.randn(2, 4)
    swap_linear(model)
    with use_custom_gemm() as report, torch.no_grad():
        model(x)
        model(x)
    assert {row.site: row.calls for row in report.rows} == {"up": 2, "down.1": 2, "own": 2}


@pytest.mark.usefixtures("fresh_dynamo")
def test_one_graph_under_compile() -> None:
    model, x = Model(), torch.randn(2, 4)
    expected = model(x)
    swap_linear(model)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)


@pytest.mark.parametrize("torchs", [True, False])
def test_who_records_a_gradient(torchs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def torch_records(*args: Tensor | None) -> bool:
        asked.append(args)
        return torchs

    monkeypatch.setattr(_layers, "_torch_records", torch_records)
    layer, x = nn.Linear(4, 6), torch.randn(3, 4)
    expected = layer(x)
    swap_linear(layer)
    result = layer(x)
    assert (result.grad_fn.name() == expected.grad_fn.name()) == torchs
    torch.testing.assert_close(result, expected)
    with Operators() as seen, torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
    assert (len(asked), seen.names) == (1, ["linear"])
    layer.requires_grad_(requires_grad=False)
    layer(x)
    assert len(asked) == 1
    layer(x.requires_grad_())
    assert len(asked) == 2


@pytest.mark.gpu
def test_training_leaves_small_layers_to_torch_outside_of_graphs() -> None:
    def nodes(width: int, rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[str, str]:
        layer = nn.Linear(width, width, device="cuda", dtype=dtype)
        swap_linear(layer)
        x = torch.randn(rows, width, device="cuda", dtype=dtype, requires_grad=True)
        layer(x).sum().backward()
        grads = x.grad, layer.weight.grad
        node = type(layer(x).grad_fn).__name__
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            layer(x).sum().backward()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            captured = layer(x)
        graph.replay()
        torch.testing.assert_close(captured, layer(x))
        assert all(grad is not None and grad.isfinite().all() for grad in grads)
        return node, type(captured.grad_fn).__name__

    small, small_captured = nodes(1024, 256)
    large, large_captured = nodes(4096, 16384)
    assert small == "AddmmBackward0"
    assert small_captured == large == large_captured == "_LinearBackward"
    with torch.autocast("cuda", torch.bfloat16):
        layer = nn.Linear(256, 256, device="cuda")
        swap_linear(layer)
        assert type(layer(torch.randn(64, 256, device="cuda")).grad_fn).__name__ == "AddmmBackward0"


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 33, 512])
def test_on_a_gpu(rows: int) -> None:
    layer = nn.Linear(1000, 1024, device="cuda", dtype=torch.half)
    x = torch.randn(rows, 1000, device="cuda").half()
    theirs = layer(x)
    exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    swap_linear(layer)
    ours = layer(x)
    error, allowed = (ours.double() - exact).abs(), 2 * (theirs.double() - exact).abs().max()
    assert bool((error <= allowed).all())
