"""``use_for_experts``: modules of experts by grouped matmuls, on a CPU and on a GPU."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import Any

import pytest
import torch
from helpers import DEVICE, ON_GPU, poisoned_cuda_memory
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers
from transformers.integrations import moe

import hgemm_ops
from hgemm_ops import _experts

HIDDEN, INNER, EXPERTS, TOP = 24, 16, 6, 3


class Config:
    _experts_implementation = "hgemm"


class Plain(nn.Module):
    """Weights of every form that ``use_experts_implementation`` knows, by its arguments."""

    def __init__(self, config: Config, *, transposed: bool, bias: bool, gate: bool) -> None:
        super().__init__()
        self.num_experts = EXPERTS
        up, name = (2 * INNER, "gate_up_proj") if gate else (INNER, "up_proj")
        for key, n, k in ((name, up, HIDDEN), ("down_proj", HIDDEN, INNER)):
            shape = (EXPERTS, k, n) if transposed else (EXPERTS, n, k)
            setattr(self, key, nn.Parameter(torch.randn(shape) / 4))
            if bias:
                setattr(self, f"{key}_bias", nn.Parameter(torch.randn(EXPERTS, n) / 4))
        self.act_fn = nn.SiLU()

    def forward(self, *args: Any) -> Tensor:
        raise AssertionError("the experts run on another implementation")

    def post_expert_norm(self, t: Tensor) -> Tensor:
        return nn.functional.rms_norm(t, (HIDDEN,))


def experts(
    device: str = "cpu",
    *,
    transposed: bool = False,
    bias: bool = False,
    gate: bool = True,
    norm: bool = False,
    own_gate: bool = False,
) -> nn.Module:
    kind: Any = type("Experts", (Plain,), {"_apply_gate": interleaved} if own_gate else {})
    # The decorator replaces __init__ and forward of the class it gets.
    kind.__init__ = lambda self, config: Plain.__init__(self, config, transposed=transposed, bias=bias, gate=gate)
    settings = {"is_transposed": transposed, "has_bias": bias, "has_gate": gate, "has_post_expert_norm": norm}
    known = inspect.signature(moe.use_experts_implementation).parameters
    plain = {"has_gate": True}  # what an older transformers takes every module for
    if unknown := [key for key, value in settings.items() if key not in known and value != plain.get(key, False)]:
        pytest.skip(f"transformers {transformers.__version__} does not know {', '.join(unknown)}")
    made = moe.use_experts_implementation(**{key: value for key, value in settings.items() if key in known})(kind)
    return made(Config()).to(device)


def interleaved(self: Any, both: Tensor) -> Tensor:
    return both[..., ::2].sigmoid() * both[..., 1::2]


def by_token(module: Any, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """The definition, token by token and expert by expert."""
    rows = []
    for token in range(x.size(0)):
        total = x.new_zeros(HIDDEN)
        for expert, weight in zip(index[token].tolist(), weights[token], strict=True):
            if expert >= EXPERTS:
                continue

            def layer(t: Tensor, name: str, expert: int = expert) -> Tensor:
                w = getattr(module, name)[expert]
                y = t @ (w if module.is_transposed else w.mT)
                return y + getattr(module, f"{name}_bias")[expert] if module.has_bias else y

            y = layer(x[token], "gate_up_proj" if getattr(module, "has_gate", True) else "up_proj")
            y = layer(module._apply_gate(y) if getattr(module, "has_gate", True) else module.act_fn(y), "down_proj")
            total = total + weight * (
                module.post_expert_norm(y) if getattr(module, "has_post_expert_norm", False) else y
            )
        rows.append(total)
    return torch.stack(rows)


def tokens(count: int = 19, device: str = "cpu", *, elsewhere: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(count, HIDDEN, device=device)
    scores = torch.randn(count, EXPERTS, device=device)
    scores[:, 1] = -10  # nobody chooses expert 1
    weights, index = scores.softmax(-1).topk(TOP)
    if elsewhere:  # as transformers' expert parallelism marks the experts of other ranks
        others = torch.rand(index.shape, device=device) < 0.4
        index, weights = index.masked_fill(others, EXPERTS), weights.masked_fill(others, 0.0)
    return x, index, weights.detach()


@pytest.fixture(autouse=True)
def _registered() -> None:
    hgemm_ops.use_for_experts()


FORMS: dict[str, dict[str, bool]] = {
    "gated": {},
    "transposed": {"transposed": True},
    "biases": {"bias": True},
    "without a gate": {"gate": False, "bias": True},
    "a gate of its own": {"own_gate": True, "transposed": True, "bias": True},
    "a norm": {"norm": True},
}


@pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=pytest.mark.gpu, id="gpu")])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, elsewhere: bool, device: str, without_tf32: None) -> None:
    module = experts(device, **FORMS[form])
    module._is_expert_parallel = elsewhere
    args = tokens(device=device, elsewhere=elsewhere)
    with poisoned_cuda_memory() if device == "cuda" else contextlib.nullcontext():
        ours = gradients(module, module, *args)
    exact = gradients(functools.partial(by_token, module), module, *args)
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def gradients(run: Any, module: nn.Module, x: Tensor, index: Tensor, weights: Tensor) -> list[Tensor]:
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    out = run(x, index, weights)
    return [out, *torch.autograd.grad(out.square().sum(), [x, weights, *module.parameters()])]


def test_gradients_of_second_order() -> None:
    module = experts(bias=True).double()
    x, index, weights = tokens(4)
    x, weights = x.double().requires_grad_(), weights.double().requires_grad_()
    parameters = list(module.parameters())
    assert torch.autograd.gradgradcheck(lambda x, w, *_: module(x, index, w), (x, weights, *parameters), fast_mode=True)


def test_no_tokens() -> None:
    module = experts()
    x, index, weights = tokens(0)
    assert module(x, index, weights).shape == (0, HIDDEN)


def test_one_gate_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of transformers, of an activation that ``grouped_mm_gated`` computes."""
    seen: list[str | None] = []

    def gated(x: Tensor, w: Tensor, offs: Tensor, activation: str | None) -> Tensor:
        seen.append(activation)
        return hgemm_ops.grouped_mm_gated(x, w, offs, activation)

    monkeypatch.setattr(_experts, "grouped_mm_gated", gated)
    experts()(*tokens())
    assert seen == ["silu"]
    hooked = experts()
    hooked.act_fn.register_forward_hook(lambda *_: None)
    for module in (experts(own_gate=True), experts(bias=True), experts(gate=False), hooked):
        module(*tokens())
    assert seen == ["silu"]


def test_autocast() -> None:
    """transformers' own default runs in the weights' dtype, which autocast does not change."""
    module, args = experts(bias=True), tokens()
    ops = []

    class Dtypes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.hgemm.grouped_mm.default:
                ops.append((args[0].dtype, args[1].dtype))
            return func(*args, **(kwargs or {}))

    with torch.autocast("cpu", dtype=torch.bfloat16), Dtypes():
        out = module(*args)
    assert ops == [(torch.bfloat16, torch.bfloat16)] * 2
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, by_token(module, *args), rtol=0.05, atol=0.05)


def test_compiled(fresh_dynamo: None) -> None:
    module, args = experts(bias=True), tokens()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    results = [gradients(run, module, *args) for run in (module, compiled)]
    torch.testing.assert_close(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_a_training_step_does_not_wait(form: str) -> None:
    module = experts(DEVICE, **FORMS[form]).bfloat16()
    x, index, weights = (t.bfloat16() if t.is_floating_point() else t for t in tokens(32, DEVICE))
    first = gradients(module, module, x, index, weights)
    if ON_GPU:
        torch.cuda.set_sync_debug_mode("error")
    try:
        second = gradients(module, module, x, index, weights)
    finally:
        if ON_GPU:
            torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# ---- Errors


def test_transformers_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", None)
    with pytest.raises(ImportError, match=rf"transformers 5 or newer.*transformers {transformers.__version__} is inst"):
        hgemm_ops.use_for_experts()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="which is not installed"):
        hgemm_ops.use_for_experts()


def test_another_name() -> None:
    hgemm_ops.use_for_experts("experts_of_a_test")
    try:
        assert moe.ALL_EXPERTS_FUNCTIONS["experts_of_a_test"] is _experts.experts_forward
    finally:
        moe.ALL_EXPERTS_FUNCTIONS._global_mapping.pop("experts_of_a_test")
