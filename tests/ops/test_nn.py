"""hgemm_ops.nn: projections and gated units as modules, and the functions, give what the separate layers give."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hgemm_ops
from hgemm_ops.nn import PROJECTIONS, GatedMLP, fuse_projections, unfuse_projections

hgemm = torch.ops.hgemm


class Attention(nn.Module):
    """Three projections of one input; the key and value have fewer features."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(12, n, bias=bias) for n in (12, 4, 4))
        self.o_proj = nn.Linear(12, 12, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q * torch.cat((k, v, k), -1)) + x


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the products that run, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.columns: list[int] = []

    def __torch_dispatch__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        name, result = str(func), func(*args, **(kwargs or {}))
        if name.startswith(("aten.mm", "aten.addmm", "aten.linear", "hgemm.")):
            self.names.append(name.removesuffix(".default"))
            self.columns.append(result.shape[-1])
        return result


def products(call: Callable[[], object]) -> list[str]:
    with Products() as mode:
        call()
    return mode.names


def shapes(call: Callable[[], object]) -> list[int]:
    """The number of columns of each product."""
    with Products() as mode:
        call()
    return mode.columns


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """A model and its fused copy."""
    model = nn.Sequential(Attention(request.param), nn.ReLU(), Attention(request.param))
    fused = copy.deepcopy(model)
    assert fuse_projections(fused) == ["0.q_proj+k_proj+v_proj", "2.q_proj+k_proj+v_proj"]
    return model, fused


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same(model: nn.Module, fused: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(fused(x), model(x))


def test_one_product_for_three(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    x = torch.randn(5, 12)
    with torch.no_grad():
        assert_same(model, fused, x)
        assert (len(products(lambda: model(x))), len(products(lambda: fused(x)))) == (8, 4)
    assert_same(model, fused, x)
    assert sum(p.numel() for p in fused.parameters()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("reentrant", [None, True, False], ids=["plain", "reentrant", "non-reentrant"])
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_gradients(
    pair: tuple[nn.Module, nn.Module], reentrant: bool | None, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, fused = pair
    x = torch.randn(2, 5, 12)
    if large:
        monkeypatch.setattr("hgemm_ops.nn._MOST_COPIED", 0)
    for each in (model, fused):
        for _ in range(2):  # gradients add up
            leaf = x.clone().requires_grad_()
            y = each(leaf) if reentrant is None else checkpoint(each, leaf, use_reentrant=reentrant)
            y.square().sum().backward()
        each.input_grad = leaf.grad
    torch.testing.assert_close(fused.input_grad, model.input_grad)
    torch.testing.assert_close(gradients(fused), gradients(model))


@pytest.mark.parametrize("most_copied", [0, 1 << 20])
def test_second_order(pair: tuple[nn.Module, nn.Module], most_copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgemm_ops.nn._MOST_COPIED", most_copied)
    for each in pair:
        x = torch.ones(3, 12, requires_grad=True)
        (first,) = torch.autograd.grad(each(x).sum(), x, create_graph=True)
        (each.second,) = torch.autograd.grad(first.square().sum(), x)
    torch.testing.assert_close(pair[1].second, pair[0].second)


def test_large_gradients_are_not_copied(pair: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain layers need no memory for that. The layers are then computed one after the other."""

    def backward(model: nn.Module) -> int:
        y = model(torch.ones(3, 12))
        return len(products(lambda: y.sum().backward()))

    plain, fused = map(backward, pair)
    monkeypatch.setattr("hgemm_ops.nn._MOST_COPIED", 0)
    assert fused < plain == backward(pair[1])


def test_a_result_is_not_taken_for_another_call() -> None:
    attention = Attention()
    fuse_projections(attention)
    x = torch.randn(5, 12)

    def run(body: Callable[[], Tensor]) -> Tensor:
        """Runs ``body`` as the module's forward."""
        return attention._run(body)

    def expected(x: Tensor) -> Tensor:
        return F.linear(x, attention.k_proj.weight, attention.k_proj.bias)

    def after_a_write() -> Tensor:
        attention.q_proj(x)
        x.mul_(2)
        return attention.k_proj(x)

    def of_an_equal_tensor() -> Tensor:
        attention.q_proj(x)
        return attention.k_proj(x.clone().mul_(3))

    def after_an_update() -> Tensor:
        attention.q_proj(x)
        attention.k_proj.weight.mul_(2)
        return attention.k_proj(x)

    def after_another_weight() -> Tensor:
        attention.q_proj(x)
        attention.k_proj.weight = nn.Parameter(attention.k_proj.weight * 2)
        return attention.k_proj(x)

    def in_place_on_a_part() -> Tensor:
        attention.q_proj(x).zero_()
        return attention.k_proj(x)

    def in_place_on_the_same_part() -> Tensor:
        attention.k_proj(x).zero_()
        return attention.k_proj(x)

    with torch.no_grad():
        assert len(products(lambda: run(lambda: attention.q_proj(x) + attention.k_proj(x).sum()))) == 1
        assert len(products(lambda: run(lambda: [getattr(attention, n)(x) for n in 2 * PROJECTIONS[0]]))) == 2
        # Attention to another sequence: only the first layer computes the rows of all.
        y = x + 1
        assert shapes(lambda: run(lambda: (attention.q_proj(x), attention.k_proj(y), attention.v_proj(y)))) == [
            20,
            4,
            4,
        ]
        torch.testing.assert_close(run(after_a_write), expected(x))
        torch.testing.assert_close(run(of_an_equal_tensor), expected(x * 3))
        torch.testing.assert_close(run(after_an_update), expected(x))
        torch.testing.assert_close(run(in_place_on_a_part), expected(x))
        torch.testing.assert_close(run(in_place_on_the_same_part), expected(x))

    def without_gradient_first() -> Tensor:
        with torch.no_grad():
            attention.q_proj(x)
        return attention.k_proj(x)

    assert run(without_gradient_first).requires_grad
    # Outside of the parent's forward nothing is kept: each computes its own.
    assert len(products(lambda: (attention.q_proj(x), attention.k_proj(x)))) == 2
    with torch.inference_mode():  # no version counter
        assert len(products(lambda: attention(x.clone()))) == 4
    with torch.no_grad():
        torch.testing.assert_close(run(after_another_weight), expected(x))


def test_nothing_is_kept_after_the_forward(pair: tuple[nn.Module, nn.Module]) -> None:
    from hgemm_ops import nn as module

    with pytest.raises(RuntimeError):
        pair[1](torch.randn(5, 11))
    pair[1](torch.randn(5, 12))
    assert module._running.forwards == []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    pair[1][2].o_proj.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        pair[1](torch.randn(5, 12))
    assert module._running.forwards == []


def test_threads_do_not_share_results(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    inputs = [torch.randn(64, 12) for _ in range(8)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not torch.allclose(fused(inputs[i]), model(inputs[i]), atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_state_dict_is_that_of_the_layers(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    assert list(fused.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(dict(fused.state_dict()), dict(model.state_dict()))
    other = copy.deepcopy(model)
    for p in other.parameters():
        nn.init.normal_(p, std=0.1)
    fused.load_state_dict(other.state_dict())
    assert_same(other, fused, torch.randn(5, 12))
    model.load_state_dict(fused.state_dict())
    assert_same(model, fused, torch.randn(5, 12))


def test_state_dict_errors_are_torchs(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    good = model.state_dict()
    missing = {key: value for key, value in good.items() if key != "0.k_proj.weight"}
    changes = [missing, {**good, "0.k_proj.scale": torch.ones(1)}, {**good, "2.v_proj.weight": torch.ones(5, 12)}]
    for changed in changes:
        messages = []
        for each in (model, fused):
            with pytest.raises(RuntimeError) as error:
                each.load_state_dict(changed)
            messages.append(str(error.value))
        assert messages[0] == messages[1]
    assert fused.load_state_dict(missing, strict=False).missing_keys == ["0.k_proj.weight"]


@pytest.mark.parametrize("how", ["deepcopy", "copy", "pickle", "replica"])
def test_copies_compute_with_their_own_weights(pair: tuple[nn.Module, nn.Module], how: str) -> None:
    model, fused = pair
    x = torch.randn(5, 12)
    before = model(x)
    if how == "pickle":
        buffer = io.BytesIO()
        torch.save(fused, buffer)
        buffer.seek(0)
        clone = torch.load(buffer, weights_only=False)
    elif how == "copy":  # shares its modules, as with plain layers
        clone = copy.copy(fused)
        torch.testing.assert_close(clone(x), before)
        return
    elif how == "replica":  # what DataParallel makes on each device
        modules = list(fused.modules())
        replicas = {id(m): m._replicate_for_data_parallel() for m in modules}
        for m in modules:
            for name, child in m._modules.items():
                replicas[id(m)]._modules[name] = None if child is None else replicas[id(child)]
            for name, p in m._parameters.items():
                if p is None:
                    replicas[id(m)]._parameters[name] = None
                else:
                    setattr(replicas[id(m)], name, p.detach() * 2)
        clone = replicas[id(fused)]
    else:
        clone = copy.deepcopy(fused)
    for p in fused.parameters():
        p.detach().zero_()
    if how == "replica":
        double = copy.deepcopy(model)
        for p in double.parameters():
            p.detach().mul_(2)
        torch.testing.assert_close(clone(x), double(x))
    else:
        torch.testing.assert_close(clone(x), before)


def test_conversions_and_training(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    model.double()
    fused.to(torch.float64)
    x = torch.randn(5, 12, dtype=torch.float64)
    assert_same(model, fused, x)
    for each in pair:
        optimizer = torch.optim.AdamW(each.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    assert_same(model, fused, x)
    replacement = torch.randn_like(model[0].q_proj.weight)
    for each in pair:
        torch.utils.swap_tensors(each[0].q_proj.weight, nn.Parameter(replacement.clone()))
    assert_same(model, fused, x)


def test_unfused_is_as_before(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    assert unfuse_projections(fused) == ["0.q_proj+k_proj+v_proj", "2.q_proj+k_proj+v_proj"]
    assert str(fused) == str(model)
    assert [type(m) for m in fused.modules()] == [type(m) for m in model.modules()]
    assert vars(fused[0]).keys() == vars(model[0]).keys()
    assert fused[0].k_proj.weight.untyped_storage().data_ptr() == fused[0].k_proj.weight.data_ptr()
    assert_same(model, fused, torch.randn(5, 12))


class Hooked(nn.Linear):
    pass


def hooked(attention: Attention) -> None:
    attention.k_proj.register_forward_hook(lambda *_: None)


def subclass(attention: Attention) -> None:
    attention.k_proj = Hooked(12, 4)


def tied(attention: Attention) -> None:
    attention.tied = nn.Linear(12, 4)
    attention.tied.weight = attention.k_proj.weight


def other_width(attention: Attention) -> None:
    attention.k_proj = nn.Linear(13, 4)


def parametrized(attention: Attention) -> None:
    nn.utils.parametrizations.weight_norm(attention.k_proj)


def without_bias(attention: Attention) -> None:
    attention.k_proj = nn.Linear(12, 4, bias=False)


CHANGES = (hooked, subclass, tied, other_width, parametrized, without_bias)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_layers_that_are_more_than_their_weight_stay(change: Callable[[Attention], None]) -> None:
    attention = Attention()
    change(attention)
    assert fuse_projections(attention) == []


def test_compiled(pair: tuple[nn.Module, nn.Module], fresh_dynamo: None) -> None:
    model, fused = pair
    x = torch.randn(5, 12)
    torch.testing.assert_close(torch.compile(fused, fullgraph=True, backend="aot_eager")(x), model(x))


def llama_mlp(act: str = "silu") -> nn.Module:
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaMLP

    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 2}
    return LlamaMLP(transformers.LlamaConfig(**sizes, hidden_act=act))


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
def test_gated_mlp(act: str) -> None:
    model = nn.ModuleDict({"mlp": llama_mlp(act)})
    fused = copy.deepcopy(model)
    assert fuse_projections(fused) == ["mlp.gate_proj+up_proj"]
    mlp, x = fused["mlp"], torch.randn(2, 5, 12)
    assert isinstance(mlp, GatedMLP)
    assert list(fused.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), model["mlp"](x))
        assert products(lambda: mlp(x))[0] == "hgemm.linear_gated"
    for each in (model, fused):
        each["mlp"](x).square().sum().backward()
    torch.testing.assert_close(gradients(fused), gradients(model))
    clone = copy.deepcopy(mlp)
    for p in mlp.parameters():
        p.detach().zero_()
    with torch.no_grad():
        torch.testing.assert_close(clone(x), model["mlp"](x))
    unfuse_projections(fused)
    assert type(fused["mlp"]) is type(model["mlp"]) and str(fused) == str(model)
    assert not fused["mlp"](x).any()


def test_gated_mlp_compiled(fresh_dynamo: None) -> None:
    """Whether the weights lie side by side is seen when the compiled code runs."""
    model = llama_mlp()
    fused, x = copy.deepcopy(model), torch.randn(2, 5, 12)
    assert fuse_projections(fused) == ["gate_proj+up_proj"]
    run = torch.compile(fused, fullgraph=True, backend="aot_eager")

    def operators() -> set[str]:
        with torch.no_grad(), torch.profiler.profile() as profiled:
            torch.testing.assert_close(run(x), model(x))
        return {event.key for event in profiled.key_averages() if "gated" in event.key}

    assert operators() == {"hgemm_nn::gated_projections", "hgemm::linear_gated"}
    for each in (model, fused):
        each.up_proj.weight.data = 2 * each.up_proj.weight.data
    assert operators() == {"hgemm_nn::gated_projections"}
    fuse_projections(fused)
    assert operators() == {"hgemm_nn::gated_projections", "hgemm::linear_gated"}
    for each in (run, model):
        each(x).square().sum().backward()
    torch.testing.assert_close(gradients(fused), gradients(model))
    with torch.no_grad():
        exported = torch.export.export(fused, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))
    assert not any("gated" in str(node.target) for node in exported.graph.nodes)


def test_other_activations_and_classes_are_not_taken_for_gated() -> None:
    assert all(not isinstance(m, GatedMLP) for m in _fused(llama_mlp("tanh")).modules())

    class LlamaMLP(nn.Module):  # of that name, but not transformers'
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(12, 20, bias=False), nn.Linear(12, 20, bias=False)
            self.down_proj, self.act_fn = nn.Linear(20, 12, bias=False), nn.SiLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))

    mlp, x = LlamaMLP(), torch.randn(5, 12)
    expected = mlp(x)
    torch.testing.assert_close(_fused(mlp)(x), expected)


def _fused(module: nn.Module) -> nn.Module:
    model = nn.ModuleDict({"mlp": module})
    assert fuse_projections(model) == ["mlp.gate_proj+up_proj"]
    return model["mlp"]


@pytest.mark.parametrize("act", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_linear_gated(act: str | None) -> None:
    x, joint = torch.randn(5, 8), torch.randn(12, 8)
    functions = {None: lambda t: t, "gelu_tanh": lambda t: F.gelu(t, approximate="tanh")}
    activation = functions.get(act) or getattr(F, str(act))
    gate, up = joint.chunk(2)
    expected = activation(F.linear(x, gate)) * F.linear(x, up)
    torch.testing.assert_close(hgemm_ops.linear_gated(x, joint, act), expected)
    assert products(lambda: hgemm_ops.linear_gated(x, joint, act)) == ["hgemm.linear_gated"]
    leaf, other = joint.clone().requires_grad_(), joint.clone().requires_grad_()
    hgemm_ops.linear_gated(x, leaf, act).sum().backward()
    gate, up = other.chunk(2)
    (activation(F.linear(x, gate)) * F.linear(x, up)).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)
    with pytest.raises(ValueError, match="activation must be one of"):
        hgemm_ops.linear_gated(x, joint, "tanh")
