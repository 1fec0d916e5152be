"""``static_weights``: who hands the promise on to the kernels, and who takes it back. What kernels make of it is in
``test_gpu_decode.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hgemm_ops
from hgemm_ops import use_custom_gemm
from hgemm_ops._context import Lowered
from hgemm_ops.ops.schema import SIGNATURES

hgemm = torch.ops.hgemm


class _Promises(TorchDispatchMode):
    """What the calls of our ops say of their weights, below autograd and autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "hgemm":
            self.seen.append((kwargs or {}).get("static_weights"))
        return func(*args, **(kwargs or {}))


@contextmanager
def promises() -> Iterator[list[bool | None]]:
    with _Promises() as mode:
        yield mode.seen


def operands(op: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, dtype=dtype)

    a, b = rand(3, 5), rand(5, 4)
    return {
        "matmul": (a, b),
        "mm": (a, b),
        "bmm": (a.expand(2, 3, 5), b.expand(2, 5, 4)),
        "addmm": (rand(3, 4), a, b),
        "baddbmm": (rand(2, 3, 4), a.expand(2, 3, 5), b.expand(2, 5, 4)),
        "linear": (a, b.t()),
    }[op]


@pytest.mark.parametrize("op", SIGNATURES)
def test_every_op_takes_the_option_and_its_gradients_do_not(op: str) -> None:
    packet = getattr(hgemm, op)
    args = operands(op)
    expected = packet(*args)
    with promises() as seen:
        assert torch.equal(packet(*args, static_weights=True), expected)
        assert torch.equal(packet.out(*args, static_weights=True, out=torch.empty_like(expected)), expected)
        assert torch.equal(packet(*args, static_weights=False), expected)
    assert seen == [True, True, False]
    leaves = [t.clone().requires_grad_() for t in args]
    with promises() as seen:
        packet(*leaves, static_weights=True).sum().backward()
    assert seen[0] is True and len(seen) > 1 and set(seen[1:]) == {None}


def test_linear_save_takes_the_option() -> None:
    x, weight = operands("linear")
    with promises() as seen:
        hgemm.linear_save(x, weight, None, 2, static_weights=True)
        # The forward of an activation that needs its argument later.
        hgemm.linear(x, weight.clone().requires_grad_(), None, 2, static_weights=True)
    assert seen == [True, True]


def test_the_functions_hand_it_on() -> None:
    x, weight = operands("linear")
    both = torch.rand(8, 5)
    with promises() as seen:
        hgemm_ops.matmul(x, weight.t(), static_weights=True)
        hgemm_ops.linear(x, weight, static_weights=True)
        hgemm_ops.linear_group(x, [weight, weight], static_weights=True)
        hgemm_ops.linear_group(x, [both[:4], both[4:]], static_weights=True)
        hgemm_ops.matmul(x, weight.t())
        hgemm_ops.linear(x, weight)
        hgemm_ops.linear_group(x, [weight, weight])
    assert seen[:4] == [True] * 4 and len(seen) > 8
    assert set(seen[-4:]) == {None} and None not in seen[:-4]


def test_a_weight_that_torch_must_resolve_first_is_not_static() -> None:
    x, weight = torch.rand(3, 5, dtype=torch.complex64), torch.rand(4, 5, dtype=torch.complex64)
    with promises() as seen:
        hgemm_ops.linear(x, weight.conj(), static_weights=True)
        hgemm_ops.matmul(x, weight.mH, static_weights=True)
        hgemm_ops.matmul(x, weight.t(), static_weights=True)
    assert seen == [None, None, True]


@pytest.mark.parametrize("op", [*SIGNATURES, "linear_save"])
def test_what_autocast_casts_is_not_static(op: str) -> None:
    def run(args: tuple[Any, ...]) -> list[bool | None]:
        with promises() as seen, torch.autocast("cpu", torch.bfloat16):
            getattr(hgemm, op)(*args, **({} if op != "linear_save" else {"act": 1}), static_weights=True)
        return seen

    at = 2 if op in ("addmm", "baddbmm") else 1
    args = operands("linear" if op == "linear_save" else op)
    if op == "linear_save":
        args = (*args, None)  # type: ignore[assignment]
    assert run(args) == [None]
    assert run((*args[:at], args[at].bfloat16(), *args[at + 1 :])) == [True]


def test_under_vmap_a_shared_weight_stays_static_and_those_of_samples_do_not() -> None:
    x, weight = torch.rand(2, 3, 5), torch.rand(4, 5)

    def linear(x: Tensor, weight: Tensor) -> Tensor:
        return hgemm.linear(x, weight, static_weights=True)

    with promises() as seen:
        torch.vmap(linear, (0, None))(x, weight)
        torch.vmap(linear, (0, 0))(x, weight.expand(2, 4, 5))
        torch.vmap(lambda a, b: hgemm.addmm(a.new_zeros(4), a, b, static_weights=True))(x, torch.rand(2, 5, 4))
    assert seen == [True, None, None]


def test_the_context_speaks_of_parameters_alone() -> None:
    layer, x = nn.Linear(5, 4), torch.rand(3, 5)
    matrix = nn.Parameter(torch.rand(5, 4))
    with torch.no_grad(), use_custom_gemm(static_weights=True), promises() as seen:
        for _ in range(3):  # new, seen once, with the dispatcher's answer
            layer(x)
            x @ matrix
            torch.mm(x, x.t())
            torch.mm(x, matrix, out=torch.empty(3, 4))
            torch.einsum("ij,jk->ik", x, matrix)
            hgemm.mm(x, matrix)
    assert seen == [True, True, None, True, True, None] * 3
    with torch.no_grad(), use_custom_gemm(), promises() as seen:
        layer(x)
        layer(x)
    assert seen == [None, None]


def test_the_context_keeps_the_promise_beside_a_variant() -> None:
    calls: list[Any] = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(kwargs)
            return func(*args, **(kwargs or {}))

    layer, x = nn.Linear(5, 4, bias=False), torch.rand(3, 5)
    with torch.no_grad(), use_custom_gemm(variant="torch", static_weights=True), Calls():
        layer(x)
        layer(x)
    assert [c for c in calls if c] == [{"variant": -2, "static_weights": True}] * 2


def test_fused_projections_are_static_together(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Linear(5, 4, bias=False), nn.Linear(5, 6, bias=False)]
    hgemm_ops.fuse_weights_(layers)
    seen: list[Lowered] = []
    run = use_custom_gemm._run

    def recorded(self: use_custom_gemm, lowered: Lowered) -> Tensor:
        seen.append(lowered)
        return run(self, lowered)

    monkeypatch.setattr(use_custom_gemm, "_run", recorded)
    x = torch.rand(3, 5)
    for static in (False, True):
        seen.clear()
        with torch.no_grad(), use_custom_gemm(fuse_projections=True, static_weights=static):
            for layer in layers:
                layer(x)
        assert [lowered.options for lowered in seen] == [{"static_weights": True} if static else {}]


def _options_in(graph: torch.fx.Graph) -> list[dict[str, Any]]:
    return [dict(node.kwargs) for node in graph.nodes if "hgemm" in str(node.target)]


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_code_keeps_it() -> None:
    layer, x = nn.Linear(5, 4), torch.rand(3, 5)
    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(module)
        return module.forward

    @torch.compile(backend=backend, fullgraph=True)
    def step(x: Tensor) -> Tensor:
        y: Tensor = layer(x)
        return y @ y.t()

    with torch.no_grad(), use_custom_gemm(static_weights=True):
        step(x)
    (module,) = graphs
    assert _options_in(module.graph) == [{"static_weights": True}, {}]


def test_exported_code_keeps_it() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 5))

        def forward(self, x: Tensor) -> Tensor:
            return hgemm_ops.linear(hgemm_ops.linear(x, self.weight, static_weights=True), self.weight.t())

    program = torch.export.export(Model(), (torch.rand(3, 5),))
    assert [options.get("static_weights") for options in _options_in(program.graph)] == [True, None]
