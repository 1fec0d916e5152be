"""Gated linear units: ``linear_gated``, and modules that ask ``use_custom_gemm(fuse_projections=True)``."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.testing import assert_close
from transformers.activations import ACT2FN

import hgemm_ops
from hgemm_ops import _gating, fuse_projections, fuse_weights_, unfuse_weights_, use_custom_gemm

K, N = 16, 24


class Mlp(nn.Module):
    def __init__(self, activation: nn.Module | None = None, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(K, N, bias=bias), nn.Linear(K, N, bias=bias)
        self.down_proj = nn.Linear(N, K, bias=bias)
        self.act_fn = nn.SiLU() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def gated(mlp: nn.Module, x: Tensor, **options: Any) -> tuple[Tensor, list[str]]:
    """What the module returns in the context, and the products that it took."""
    with torch.no_grad(), use_custom_gemm(fuse_projections=True, **options) as report:
        y = mlp(x)
    return y, sorted(row.op for row in report.rows for _ in range(row.calls))


@pytest.fixture
def mlp() -> Mlp:
    mlp = Mlp()
    assert fuse_projections(mlp) == ["gate_proj+up_proj"]
    return mlp


def activations() -> dict[str, Callable[[Tensor], Tensor]]:
    return {
        "none": lambda t: t,
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
        "silu": F.silu,
    }


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("name", activations())
def test_function(name: str, joint: bool) -> None:
    x, weight = torch.randn(2, 3, K), torch.randn(2 * N, K)
    gate, up = weight.split(N)
    expected = activations()[name](F.linear(x, gate)) * F.linear(x, up)
    if not joint:
        up = up.clone()
    with use_custom_gemm() as report:
        assert_close(hgemm_ops.linear_gated(x, gate, up, name), expected)
    assert sum(row.calls for row in report.rows) == (1 if joint else 2)


def test_function_with_a_gradient() -> None:
    x = torch.randn(3, K, dtype=torch.float64, requires_grad=True)
    gate, up = (w.requires_grad_() for w in torch.randn(2 * N, K, dtype=torch.float64).split(N))
    assert torch.autograd.gradcheck(lambda *t: hgemm_ops.linear_gated(*t), (x, gate.detach(), up.detach()))
    ours = torch.autograd.grad(hgemm_ops.linear_gated(x, gate, up).sum(), (x, gate, up))
    assert_close(ours, torch.autograd.grad((F.silu(F.linear(x, gate)) * F.linear(x, up)).sum(), (x, gate, up)))


def test_function_refuses() -> None:
    x, gate, up = torch.randn(3, K), torch.randn(N, K), torch.randn(N, K)
    with pytest.raises(TypeError, match=r"linear_gated: up must be a torch.Tensor, got list"):
        hgemm_ops.linear_gated(x, gate, [1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="linear_gated: activation must be one of none, relu"):
        hgemm_ops.linear_gated(x, gate, up, "tanh")
    with pytest.raises(RuntimeError, match="last dimensions must match"):
        hgemm_ops.linear_gated(x[:, 1:], gate, up)


@pytest.mark.parametrize("shape", [(K,), (1, K), (2, 3, K)])
def test_module(mlp: Mlp, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    expected = mlp(x)
    y, ops = gated(mlp, x)
    assert_close(y, expected)
    assert ops == ["linear", "linear_gated"]
    with torch.no_grad(), use_custom_gemm() as report:  # that did not ask for fusion
        assert_close(mlp(x), expected)
    assert sum(row.calls for row in report.rows) == 3


def test_the_report_names_the_layers() -> None:
    model = nn.Sequential(Mlp(), Mlp())
    fuse_projections(model)
    with torch.no_grad(), use_custom_gemm() as enclosing, use_custom_gemm(fuse_projections=True) as report:
        for _ in range(3):
            model(torch.randn(4, K))
    rows = {row.site: (row.op, row.calls, row.n) for row in report.rows}
    assert rows["0.gate_proj+up_proj"] == ("linear_gated", 3, 2 * N)
    assert rows["1.down_proj"] == ("linear", 3, K)
    assert sum(row.calls for row in enclosing.rows) == sum(row.calls for row in report.rows) == 12


@pytest.mark.parametrize(
    "name", ["silu", "gelu", "gelu_pytorch_tanh", "relu", "gelu_new", "tanh", "quick_gelu", "mish"]
)
def test_activations_of_transformers(name: str) -> None:
    mlp = Mlp(ACT2FN[name])
    fuse_projections(mlp)
    x = torch.randn(3, K)
    expected = mlp(x)
    y, ops = gated(mlp, x)
    assert_close(y, expected)
    assert ops == (
        ["linear", "linear_gated"] if name in ("silu", "gelu", "gelu_pytorch_tanh", "relu") else ["linear"] * 2
    )


class Swapped(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(torch.mul(self.up_proj(x), F.silu(self.gate_proj(x))))


class Scaled(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * 2)


class Kept(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        return self.down_proj(self.act_fn(gate) * self.up_proj(x)) + gate.sum()


class Crossed(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


class Branches(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(-x if x.sum() > 0 else x)


class Two(Mlp):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x if y is None else y))


@pytest.mark.parametrize("kind", [Swapped, Scaled, Kept, Crossed, Branches, Two])
def test_only_what_is_a_gated_unit(kind: type[Mlp]) -> None:
    mlp = kind()
    fuse_projections(mlp)
    x = torch.randn(3, K)
    expected = mlp(x)
    y, ops = gated(mlp, x)
    assert_close(y, expected)
    assert ops == (["linear", "linear_gated"] if kind is Swapped else ["linear"] * 2)


def test_layers_with_a_bias_are_one_product_and_no_more() -> None:
    mlp = Mlp(bias=True)
    fuse_projections(mlp)
    x = torch.randn(3, K)
    y, ops = gated(mlp, x)
    assert_close(y, mlp(x))
    assert ops == ["linear"] * 2


@pytest.mark.parametrize("watched", ["gate_proj", "up_proj", "act_fn"])
def test_hooks_are_called(mlp: Mlp, watched: str) -> None:
    seen: list[Tensor] = []
    handle = getattr(mlp, watched).register_forward_hook(lambda module, args, y: seen.append(y))
    x = torch.randn(3, K)
    assert_close(gated(mlp, x)[0], mlp(x))
    assert len(seen) == 2
    handle.remove()
    assert gated(mlp, x)[1] == ["linear", "linear_gated"]


def test_other_layers_in_their_place(mlp: Mlp) -> None:
    x = torch.randn(3, K)
    mlp.act_fn = nn.Tanh()
    assert_close(gated(mlp, x)[0], mlp(x))
    mlp.act_fn = nn.SiLU()
    mlp.up_proj = nn.Linear(K, N, bias=False)
    y, ops = gated(mlp, x)
    assert_close(y, mlp(x))
    assert ops == ["linear"] * 3
    mlp.up_proj = nn.Sequential(nn.Linear(K, N), nn.Tanh())  # type: ignore[assignment]
    assert_close(gated(mlp, x)[0], mlp(x))


def test_where_a_gradient_is_wanted(mlp: Mlp) -> None:
    x = torch.randn(3, K)
    plain = copy.deepcopy(mlp)
    for module in (plain, mlp):
        with use_custom_gemm(fuse_projections=module is mlp):
            module(x).square().sum().backward()
    assert_close([p.grad for p in mlp.parameters()], [p.grad for p in plain.parameters()])


def test_autocast_inference_mode_and_keywords(mlp: Mlp) -> None:
    x = torch.randn(3, K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, ops = gated(mlp, x)
        assert_close(y, mlp(x))
    assert ops == ["linear"] * 3
    with torch.inference_mode(), use_custom_gemm(fuse_projections=True):
        inside = torch.randn(3, K)
        assert_close(mlp(inside), F.linear(F.silu(mlp.gate_proj(inside)) * mlp.up_proj(inside), mlp.down_proj.weight))
    with torch.no_grad(), use_custom_gemm(fuse_projections=True):
        assert_close(mlp(x=x), mlp(x))


def test_another_mode_on_top(mlp: Mlp) -> None:
    with torch.no_grad(), use_custom_gemm(fuse_projections=True), torch.device("cpu"):
        x = torch.randn(3, K)
        y = mlp(x)
    assert_close(y, mlp(x))


def test_threads_outside_of_the_context(mlp: Mlp) -> None:
    x = torch.randn(3, K)
    expected, results = mlp(x), []
    with torch.no_grad(), use_custom_gemm(fuse_projections=True):
        thread = threading.Thread(target=lambda: results.append(mlp(x)))
        thread.start()
        thread.join()
    assert_close(results[0], expected)
    assert results[0].requires_grad


@pytest.mark.parametrize("how", ["save", "deepcopy"])
def test_copies_stand_for_themselves(mlp: Mlp, how: str) -> None:
    if how == "save":
        file = io.BytesIO()
        torch.save(mlp, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = copy.deepcopy(mlp)
    x = torch.randn(3, K)
    expected = mlp(x)
    with torch.no_grad():
        mlp.gate_proj.weight.zero_()
    y, ops = gated(other, x)
    assert_close(y, expected)
    assert ops == ["linear"] * 3  # in memory of their own
    fuse_projections(other)
    assert gated(other, x)[1] == ["linear", "linear_gated"]
    assert other.forward._module() is other


def test_modules_go_with_their_last_use() -> None:
    mlp = Mlp()
    fuse_projections(mlp)
    gone = weakref.ref(mlp)
    gc.disable()
    try:
        del mlp
        assert gone() is None
    finally:
        gc.enable()


def test_undone(mlp: Mlp) -> None:
    assert isinstance(mlp.forward, _gating.GatedForward)
    unfuse_weights_(mlp.modules())
    assert "forward" not in mlp.__dict__
    assert gated(mlp, torch.randn(3, K))[1] == ["linear"] * 3


def test_a_forward_of_the_users_stays() -> None:
    mlp = Mlp()
    mlp.forward = lambda x: x  # type: ignore[method-assign]
    fuse_projections(mlp)
    x = torch.randn(3, K)
    assert gated(mlp, x)[0] is x


@pytest.mark.parametrize("inside", [True, False])
def test_compiled(mlp: Mlp, inside: bool) -> None:
    x = torch.randn(3, K)
    expected = mlp(x)
    torch.compiler.reset()
    compiled = torch.compile(mlp, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        if inside:
            with use_custom_gemm(fuse_projections=True):
                assert_close(compiled(x), expected)
        assert_close(compiled(x), expected)


def test_exported(mlp: Mlp) -> None:
    x = torch.randn(3, K)
    with torch.no_grad():
        program = torch.export.export(mlp, (x,))
    assert_close(program.module()(x), mlp(x))


def test_fuse_weights_alone_changes_no_forward() -> None:
    mlp = Mlp()
    fuse_weights_([mlp.gate_proj, mlp.up_proj])
    assert "forward" not in mlp.__dict__
    assert gated(mlp, torch.randn(2, K))[1] == ["linear"] * 2


def test_layers_of_a_llama() -> None:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=99,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(99, (2, 5))
    with torch.no_grad():
        expected = model(tokens).logits
    assert len(fuse_projections(model)) == 4
    with torch.no_grad(), use_custom_gemm(fuse_projections=True) as report:
        assert_close(model(tokens).logits, expected)
    assert [row.site for row in report.rows if row.op == "linear_gated"] == [
        f"model.layers.{i}.mlp.gate_proj+up_proj" for i in range(2)
    ]
