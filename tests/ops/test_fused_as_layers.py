"""What programs do to a model's layers works on a fused model, and gives what it gives without fuse_projections."""

from __future__ import annotations

import copy
import inspect
import io
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from helpers import run_python
from test_nn import Attention, Products
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from hgemm_ops import nn as fused_modules
from hgemm_ops.nn import ProjectionGroup, fuse_projections, unfuse_projections

#: Products of a forward of ``Model``: three of the attention's layers, or two of the MLP's, are one.
PLAIN, FUSED = 7, 4
ATTENTION, MLP = "attention.q_proj+k_proj+v_proj", "mlp.gate_proj+up_proj"


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(12, 20, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(20, 12, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Gated()

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attention(x))


class Pair:
    """A model and its fused copy, to which the same is done."""

    def __init__(self, make: Callable[[], nn.Module] = Model) -> None:
        self.plain = make()
        self.fused = copy.deepcopy(self.plain)
        assert fuse_projections(self.fused)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter((self.plain, self.fused))

    def each(self, do: Callable[[Any], Any]) -> None:
        """Replaces the models by what ``do`` returns, or lets it change them."""
        results = []
        for model in self:
            torch.manual_seed(1)
            results.append(do(model))
        self.plain, self.fused = (
            model if result is None else result for model, result in zip(self, results, strict=True)
        )

    def check(self, products: int | None = None, *, tolerance: float = 1e-5) -> None:
        """Compares results, gradients, names and values, and counts the products of the fused model."""
        like = next(self.plain.parameters())
        x = torch.randn(5, 12).to(like.dtype)
        close = lambda a, b: torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)  # noqa: E731
        with torch.no_grad(), Products() as mode:
            y = self.fused(x)
        close(y, self.plain(x))
        if products is not None:
            assert len(mode.names) == products
        for model in self:
            model.zero_grad()
            leaf = x.clone().requires_grad_()
            model(leaf).square().sum().backward()
            model.input_grad = leaf.grad
        close(self.fused.input_grad, self.plain.input_grad)
        plain, fused = (dict(model.named_parameters()) for model in self)
        assert list(plain) == list(fused)
        assert [p.requires_grad for p in plain.values()] == [p.requires_grad for p in fused.values()]
        close({name: p.grad for name, p in plain.items()}, {name: p.grad for name, p in fused.items()})
        plain, fused = (dict(model.state_dict()) for model in self)
        assert list(plain) == list(fused)
        close(fused, plain)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_the_layers_are_what_they_were(pair: Pair) -> None:
    pair.check(FUSED)
    assert [type(m) for m in pair.plain.attention.children()] == [type(m) for m in pair.fused.attention.children()]
    assert isinstance(pair.fused.attention, Attention)
    assert inspect.signature(pair.fused.attention.forward) == inspect.signature(pair.plain.attention.forward)
    for p in pair.fused.parameters():  # what tells savers of models that nothing is tied
        assert p.untyped_storage().data_ptr() == p.data_ptr() and p.untyped_storage().nbytes() == p.nbytes
    assert fuse_projections(pair.fused) == []


def test_the_parent_sees_layers() -> None:
    class Curious(Attention):
        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(self.k_proj, nn.Linear)
            assert self.k_proj.weight is self._modules["k_proj"].weight
            assert hasattr(self.k_proj, "out_features") and not hasattr(self.k_proj, "scale")
            return super().forward(x) + self.v_proj(input=x).sum()

    attention, x = Curious(), torch.randn(3, 12)
    expected = attention(x)
    fuse_projections(attention)
    torch.testing.assert_close(attention(x), expected)


def test_a_class_that_registers_its_subclasses() -> None:
    registered = []

    class Registered(Attention):
        def __init_subclass__(cls, *, name: str) -> None:
            registered.append(name)

    class Named(Registered, name="named"):
        pass

    pair = Pair(Named)
    assert isinstance(pair.fused, ProjectionGroup) and registered == ["named"]
    pair.check(2)


# ---- Changes to a layer, after which its siblings run one by one


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Rounded(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def parametrized(a: Any) -> None:
    parametrize.register_parametrization(a.q_proj, "weight", Doubled())


def no_longer_parametrized(a: Any) -> None:
    parametrized(a)
    parametrize.remove_parametrizations(a.q_proj, "weight")


def weight_normed(a: Any) -> None:
    nn.utils.parametrizations.weight_norm(a.v_proj)
    a.v_proj.parametrizations.weight.original0.detach().mul_(3)


def weight_normed_by_hooks(a: Any) -> None:
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(a.v_proj)
    a.v_proj.weight_g.detach().mul_(3)


def spectral_normed(a: Any) -> None:
    nn.utils.parametrizations.spectral_norm(a.q_proj)
    a.eval()  # each forward in training changes it


def pruned(a: Any) -> None:
    prune.l1_unstructured(a.k_proj, "weight", 0.5)


def pruned_for_good(a: Any) -> None:
    pruned(a)
    prune.remove(a.k_proj, "weight")


def hooked(a: Any) -> None:
    a.k_proj.register_forward_hook(lambda module, args, output: 3 * output)


def hooked_before(a: Any) -> None:
    a.v_proj.register_forward_pre_hook(lambda module, args: (3 * args[0],))


def hooked_backwards(a: Any) -> None:
    a.v_proj.register_full_backward_hook(lambda module, inputs, outputs: (3 * inputs[0],))


def own_forward(a: Any) -> None:
    a.k_proj.forward = lambda x: x[..., :4]


def replaced(a: Any) -> None:
    a.q_proj = nn.Sequential(a.q_proj, nn.Tanh())


def replaced_by_path(a: Any) -> None:
    a.set_submodule("q_proj", nn.Linear(12, 12))


def of_another_class(a: Any) -> None:
    a.q_proj.__class__ = Rounded


def new_weight(a: Any) -> None:
    a.k_proj.weight = nn.Parameter(2 * a.k_proj.weight.detach())


def new_data(a: Any) -> None:
    a.k_proj.weight.data = 2 * a.k_proj.weight.data


def transposed_in_place(a: Any) -> None:
    a.q_proj.weight.data = a.q_proj.weight.data.T


def without_bias(a: Any) -> None:
    a.v_proj.bias = None


def tied(a: Any) -> None:
    a.v_proj.weight = a.k_proj.weight


def compiled(a: Any) -> None:
    a.q_proj.compile(backend="eager")


CHANGES = (
    *(parametrized, no_longer_parametrized, weight_normed, weight_normed_by_hooks, spectral_normed, pruned),
    *(pruned_for_good, hooked, hooked_before, hooked_backwards, own_forward, replaced, replaced_by_path),
    *(of_another_class, new_weight, new_data, transposed_in_place, without_bias, tied, compiled),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_layer_that_changes(pair: Pair, change: Callable[[Any], None], fresh_dynamo: None) -> None:
    pair.each(lambda model: change(model.attention))
    pair.check(None if change is compiled else FUSED + 2 - (change is own_forward))
    assert unfuse_projections(pair.fused) == [ATTENTION, MLP]
    pair.check()


def test_the_function_of_all_linear_layers_is_replaced(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: 2 * forward(layer, x))
    pair.check(PLAIN)
    monkeypatch.undo()
    pair.check(FUSED)


def test_the_function_was_replaced_before_the_import() -> None:
    code = """
import torch
from torch import nn

forward = nn.Linear.forward
{replace}
from hgemm_ops.nn import fuse_projections

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(12, 20), nn.Linear(12, 20)

assert len(fuse_projections(Gated())) == {fused}
"""
    for replace, fused in (("", 1), ("nn.Linear.forward = lambda layer, x: 2 * forward(layer, x)", 0)):
        done = run_python(code.format(replace=replace, fused=fused))
        assert done.returncode == 0, done.stderr


def test_a_layer_is_deleted_and_returns(pair: Pair) -> None:
    for model in pair:
        q = model.attention.q_proj
        del model.attention.q_proj
        with pytest.raises(AttributeError, match="has no attribute 'q_proj'"):
            model.attention.q_proj  # noqa: B018
        model.attention.q_proj = q
    pair.check(FUSED)


def test_the_old_weights_are_freed(pair: Pair) -> None:
    """Nothing keeps the memory of a group whose layers all have other parameters."""
    joint = weakref.ref(pair.fused.mlp._joints["gate_proj", "up_proj"].weight)
    for name in ("gate_proj", "up_proj"):
        setattr(pair.fused.mlp, name, Rounded(12, 20))
    pair.fused(torch.randn(1, 12))
    assert joint() is None


# ---- Training


def test_frozen_layers(pair: Pair) -> None:
    pair.each(lambda model: model.attention.k_proj.requires_grad_(False) and None)
    pair.check(FUSED)
    pair.each(lambda model: model.requires_grad_(False) and None)
    x = torch.randn(5, 12, requires_grad=True)
    gradients = [torch.autograd.grad(model(x).sum(), x) for model in pair]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("when", ["before", "after"])
def test_optimizers(pair: Pair, when: str) -> None:
    fused = copy.deepcopy(pair.plain)
    if when == "after":
        fuse_projections(fused)
    optimizers = [torch.optim.AdamW(model.parameters(), 0.1) for model in (pair.plain, fused)]
    if when == "before":
        fuse_projections(fused)
    pair.fused = fused
    x = torch.randn(5, 12)
    for model, optimizer in zip(pair, optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            for p in model.parameters():
                nn.utils.clip_grad_norm_(p, 0.1)
            optimizer.step()
    pair.check(FUSED, tolerance=1e-4)
    optimizers[1].load_state_dict(optimizers[0].state_dict())


@pytest.mark.parametrize("what", ["weights", "input"])
def test_a_write_between_forward_and_backward(pair: Pair, what: str) -> None:
    """torch raises, because the gradient would be wrong."""
    for model in pair:
        x = torch.randn(5, 12, requires_grad=True)
        model.requires_grad_(what == "weights")
        out = model.attention(x)
        with torch.no_grad():
            model.attention.v_proj.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(out.sum(), x)


@pytest.mark.parametrize("shape", [(0, 12), (2, 0, 12), (12,), (2, 3, 2, 12)], ids=str)
def test_gradients_of_other_shapes(pair: Pair, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    for model in pair:
        model.mlp(x).square().sum().backward()
    for p, q in zip(pair.plain.mlp.parameters(), pair.fused.mlp.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)


def each_layer(a: Any, x: Tensor, recomputed: Callable[..., Tensor]) -> Tensor:
    return recomputed(a.q_proj, x) + (recomputed(a.k_proj, x) * recomputed(a.v_proj, x)).sum()


def one_layer(a: Any, x: Tensor, recomputed: Callable[..., Tensor]) -> Tensor:
    return recomputed(a.q_proj, x)


def a_layer_after_others(a: Any, x: Tensor, recomputed: Callable[..., Tensor]) -> Tensor:
    q, k = a.q_proj(x), a.k_proj(x)
    return q + (k * recomputed(lambda x: torch.tanh(a.v_proj(x)), x)).sum()


def layers_of_a_part(a: Any, x: Tensor, recomputed: Callable[..., Tensor]) -> Tensor:
    return a.q_proj(x) + recomputed(lambda x: F.silu(a.k_proj(x)) * a.v_proj(x), x).sum()


def the_whole(a: Any, x: Tensor, recomputed: Callable[..., Tensor]) -> Tensor:
    return recomputed(lambda x: a.q_proj(x) + (a.k_proj(x) * a.v_proj(x)).sum(), x)


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize("part", [each_layer, one_layer, a_layer_after_others, layers_of_a_part, the_whole])
def test_a_part_of_the_forward_is_recomputed(part: Callable[..., Tensor], reentrant: bool) -> None:
    class Checkpointed(Attention):
        def forward(self, x: Tensor) -> Tensor:
            return part(self, x, partial(checkpoint, use_reentrant=reentrant))

    pair, x = Pair(lambda: Checkpointed().double()), torch.randn(5, 12, dtype=torch.float64)
    gradients = []
    for model in pair:
        leaf = x.clone().requires_grad_()
        model(leaf).square().sum().backward()
        gradients.append([leaf.grad, *(torch.zeros(1) if p.grad is None else p.grad for p in model.parameters())])
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("part", [one_layer, layers_of_a_part, the_whole])
def test_without_the_function_of_torch_that_returns_hooks(
    monkeypatch: pytest.MonkeyPatch, part: Callable[..., Tensor]
) -> None:
    """What is recomputed cannot be told apart, so layers are computed together only where no backward follows."""
    monkeypatch.setattr(fused_modules, "_saved_tensors_hooks", None)
    test_a_part_of_the_forward_is_recomputed(part, reentrant=False)
    pair = Pair()
    pair.check(FUSED)
    with Products() as mode:
        pair.fused(torch.randn(5, 12))
    assert len(mode.names) == PLAIN


def test_the_package_is_imported_without_that_function() -> None:
    code = "import torch; del torch._C._autograd._top_saved_tensors_default_hooks; import hgemm_ops"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_checkpointed_module_stays_fused(pair: Pair) -> None:
    for model in pair:
        x = torch.randn(5, 12, requires_grad=True)
        with Products() as mode:
            y = checkpoint(model, x, use_reentrant=False)
            products = len(mode.names)
            y.sum().backward()
        assert products == (FUSED if model is pair.fused else PLAIN)


@pytest.mark.filterwarnings("ignore:Complex modules")
def test_complex_gradients(pair: Pair) -> None:
    pair.each(lambda model: model.attention.to(torch.complex64))
    x = torch.randn(3, 12, dtype=torch.complex64, requires_grad=True)
    found = []
    for attention in pair:
        parameters = dict(attention.named_parameters())
        found.append(torch.autograd.grad(attention(x).abs().sum(), [x, *parameters.values()]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("options", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.5)}], ids=["mean", "ema"])
def test_averaged_model(pair: Pair, options: dict[str, Any]) -> None:
    averaged = [AveragedModel(model, **options) for model in pair]
    x = torch.randn(5, 12)
    for model, average in zip(pair, averaged, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            average.update_parameters(model)
    pair.check(FUSED)
    pair.plain, pair.fused = (average.module for average in averaged)
    pair.check(FUSED)


def test_autocast(pair: Pair) -> None:
    pair.each(lambda model: model.register_forward_hook(lambda module, args, output: output.float()) and None)
    with torch.autocast("cpu", torch.bfloat16):
        pair.check(tolerance=1e-2)


# ---- Copies, conversions, state dicts


def through_torch_save(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def emptied(model: nn.Module) -> nn.Module:
    state = model.state_dict()
    model = model.to("meta").to_empty(device="cpu")
    model.load_state_dict(state)
    return model


def converted_under(switch: Callable[[bool], None], model: nn.Module) -> nn.Module:
    switch(True)
    try:
        return model.double()
    finally:
        switch(False)


def swapped(model: nn.Module) -> nn.Module:
    return converted_under(torch.__future__.set_swap_module_params_on_conversion, model)


def overwritten(model: nn.Module) -> nn.Module:
    return converted_under(torch.__future__.set_overwrite_module_params_on_conversion, model)


@pytest.mark.parametrize(
    "convert",
    [
        *(copy.deepcopy, copy.copy, through_torch_save, emptied, swapped, overwritten),
        *(nn.Module.double, nn.Module.bfloat16, nn.Module.cpu),
    ],
    ids=lambda f: f.__name__,
)
def test_copies_and_conversions_are_fused(pair: Pair, convert: Callable[[nn.Module], nn.Module]) -> None:
    pair.each(convert)
    pair.check(FUSED, tolerance=1e-5 if next(pair.plain.parameters()).dtype != torch.bfloat16 else 0.05)


def test_storages_are_resized_after_unfusing(pair: Pair) -> None:
    with pytest.raises(RuntimeError, match="not resizable"):
        pair.fused.attention.v_proj.weight.untyped_storage().resize_(0)
    unfuse_projections(pair.fused)

    def offload_and_load(model: nn.Module) -> None:
        weight = model.attention.v_proj.weight
        kept, storage = weight.detach().clone(), weight.untyped_storage()
        storage.resize_(0)
        storage.resize_(kept.nbytes)
        weight.data.copy_(kept)

    pair.each(offload_and_load)
    pair.check(PLAIN)


def test_shared_memory(pair: Pair) -> None:
    pair.each(nn.Module.share_memory)
    assert all(p.is_shared() for p in pair.fused.parameters())
    pair.check(PLAIN)
    assert fuse_projections(pair.fused) == []  # the parameters stay where other processes see them
    assert all(p.is_shared() for p in pair.fused.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_assigned_to_a_model_on_meta(dtype: torch.dtype) -> None:
    plain = Model().to(dtype)
    with torch.device("meta"):
        fused = Model()
    assert fuse_projections(fused) == [ATTENTION, MLP]
    state = plain.state_dict()
    fused.load_state_dict(state, assign=True)
    assert fused.mlp.up_proj.weight.data_ptr() == state["mlp.up_proj.weight"].data_ptr()
    pair = Pair()
    pair.plain, pair.fused = plain, copy.deepcopy(fused)
    pair.check(PLAIN)
    assert fuse_projections(pair.fused) == [ATTENTION, MLP]
    pair.check(FUSED)


def test_assigned_another_dtype(pair: Pair) -> None:
    state = {name: value.double() for name, value in pair.plain.state_dict().items()}
    for model in pair:
        model.load_state_dict(copy.deepcopy(state), assign=True)
    assert {p.dtype for p in pair.fused.parameters()} == {torch.float64}
    pair.check(PLAIN)


def test_assigned_one_weight(pair: Pair) -> None:
    for model in pair:
        model.load_state_dict({"attention.v_proj.weight": torch.ones(4, 12)}, assign=True, strict=False)
    pair.check(FUSED + 2)


def test_layers_that_share_memory_stay() -> None:
    model = Model()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(flat, model.parameters())  # all parameters are views of flat
    assert fuse_projections(model) == []


def test_layers_that_share_memory_with_a_tensor_outside_stay() -> None:
    model = Model()
    flat = nn.utils.parameters_to_vector(model.attention.parameters()).detach()
    nn.utils.vector_to_parameters(flat[4:], list(model.attention.parameters())[1:])
    model.mlp.gate_proj.weight.data, model.mlp.up_proj.weight.data = torch.randn(40, 12).chunk(2)
    assert fuse_projections(model) == [MLP]  # the two fill the memory that they share
    flat.zero_()
    assert not model.attention.v_proj.weight.any()


def test_a_model_that_is_fused_in_inference_mode_can_be_trained(pair: Pair) -> None:
    with torch.inference_mode():
        unfuse_projections(pair.fused)
    pair.check(PLAIN)
    with torch.inference_mode():
        assert fuse_projections(pair.fused) == [ATTENTION, MLP]
    pair.check(FUSED)


def test_weights_do_not_become_fake(pair: Pair) -> None:
    unfuse_projections(pair.fused)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(RuntimeError, match="outside of modes such as Fake"):
        fuse_projections(pair.fused)
    pair.check(PLAIN)
    assert fuse_projections(pair.fused) == [ATTENTION, MLP]
    pair.check(FUSED)


def test_a_parameter_of_two_models_stays_one(pair: Pair) -> None:
    for model in pair:
        other = nn.Linear(12, 12)
        other.weight = model.attention.q_proj.weight
        if model is pair.fused:
            unfuse_projections(model)
            assert fuse_projections(model) == [ATTENTION, MLP]
        with torch.no_grad():
            other.weight.mul_(2)
    pair.check(FUSED)


@pytest.mark.parametrize("how", ["torch.load", "torch.load(mmap=True)", "safetensors"])
def test_assigned_from_a_file(tmp_path: Path, how: str) -> None:
    """Some programs that load files return views of one memory, which the file has been read or mapped to."""
    model, path = Model(), tmp_path / "model"
    if how == "safetensors":
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(model.state_dict(), path)
        weights = safetensors.load_file(path)
    else:
        torch.save(model.state_dict(), path)
        weights = torch.load(path, mmap="mmap" in how)
    model.load_state_dict(weights, assign=True)
    assert fuse_projections(model) == [ATTENTION, MLP]


@pytest.mark.parametrize("how", ["one parameter", "one memory"])
def test_tied_siblings_stay(how: str) -> None:
    model = Model()
    weight = model.attention.k_proj.weight
    model.attention.v_proj.weight = weight if how == "one parameter" else nn.Parameter(weight.detach())
    assert fuse_projections(model) == [MLP]


def test_parameters_of_two_dtypes_stay() -> None:
    model = Model()
    model.attention.k_proj.bias = nn.Parameter(model.attention.k_proj.bias.double())
    assert fuse_projections(model) == [MLP]


def test_unfuse_names_what_is_in_its_way(pair: Pair) -> None:
    attention = pair.fused.attention
    attention.register_parameter("scale", nn.Parameter(torch.ones(1)))
    parametrize.register_parametrization(attention, "scale", Doubled())
    with pytest.raises(RuntimeError, match=r"attention is a ParametrizedAttention.*call unfuse_projections before"):
        unfuse_projections(pair.fused)
    assert isinstance(pair.fused.mlp, ProjectionGroup)
    parametrize.remove_parametrizations(attention, "scale")
    assert unfuse_projections(pair.fused) == [ATTENTION, MLP]


# ---- Tracing


def test_traced(pair: Pair) -> None:
    x = torch.randn(3, 12)
    expected = pair.plain(x)
    torch.testing.assert_close(torch.jit.trace(pair.fused, (x,))(x), expected)
    torch.testing.assert_close(torch.fx.symbolic_trace(pair.fused)(x), expected)
    torch.testing.assert_close(torch.export.export(pair.fused, (x,)).module()(x), expected)
    parameters = {name: 2 * p for name, p in pair.fused.named_parameters()}
    results = [torch.func.functional_call(model, parameters, (x,)) for model in pair]
    torch.testing.assert_close(*results)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangents = [torch.autograd.forward_ad.unpack_dual(model(dual)).tangent for model in pair]
    torch.testing.assert_close(*tangents)
    jacobians = [torch.autograd.functional.jacobian(model, x, vectorize=True) for model in pair]
    torch.testing.assert_close(*jacobians)
    pair.check(FUSED)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted(pair: Pair) -> None:
    x = torch.randn(3, 12)
    torch.testing.assert_close(torch.jit.script(pair.fused)(x), pair.plain(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dynamic_quantization(pair: Pair) -> None:
    quantized = [torch.ao.quantization.quantize_dynamic(m, {nn.Linear}, dtype=torch.qint8) for m in pair]
    kinds = [[type(child) for m in model.children() for child in m.children()] for model in quantized]
    assert kinds[0] == kinds[1]
    assert nn.Linear not in kinds[1]
    x = torch.randn(3, 12)
    torch.testing.assert_close(quantized[1](x), quantized[0](x))


# ---- Other packages


def test_safetensors(pair: Pair, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    for name, model in zip(("plain", "fused"), pair, strict=True):
        safetensors.save_model(model, tmp_path / name)
    plain, fused = (safetensors.load_file(tmp_path / name) for name in ("plain", "fused"))
    assert list(plain) == list(fused)
    torch.testing.assert_close(fused, plain)
    pair.each(lambda model: [p.detach().zero_() for p in model.parameters()] and None)
    pair.each(lambda model: safetensors.load_model(model, tmp_path / "plain") and None)
    assert pair.fused.mlp.up_proj.weight.any()
    pair.check(FUSED)


def llama(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, **options)).eval()


def logits(model: nn.Module) -> tuple[Tensor, int]:
    """The result of a forward, and its products."""
    with torch.no_grad(), Products() as mode:
        return model(torch.arange(6)[None]).logits, len(mode.names)


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
def test_save_pretrained(tmp_path: Path, tie: bool) -> None:
    plain, fused = llama(tie_word_embeddings=tie), llama(tie_word_embeddings=tie)
    assert len(fuse_projections(fused)) == 4
    for name, model in (("plain", plain), ("fused", fused)):
        model.save_pretrained(tmp_path / name)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("plain", "fused")]
    assert files[0] == files[1]
    loaded = type(plain).from_pretrained(tmp_path / "fused")
    torch.testing.assert_close(logits(loaded)[0], logits(plain)[0])
    assert len(fuse_projections(loaded)) == 4
    torch.testing.assert_close(logits(loaded)[0], logits(plain)[0])


@pytest.mark.parametrize("targets", ["q_proj", "v_proj,down_proj", "gate_proj", "all-linear"])
def test_lora_on_a_fused_model(targets: str) -> None:
    peft = pytest.importorskip("peft")
    plain, fused = llama(), llama()
    fuse_projections(fused)
    config = {"target_modules": targets if targets == "all-linear" else targets.split(","), "r": 4}
    tokens = torch.arange(6)[None]
    steps: list[list[Any]] = []
    for model in (plain, fused):
        torch.manual_seed(1)
        adapted = peft.get_peft_model(model, peft.LoraConfig(**config, init_lora_weights=False))
        found = [logits(adapted)[0]]
        optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            adapted(tokens, labels=tokens).loss.backward()
            optimizer.step()
        found += [logits(adapted)[0], [p.grad for p in adapted.parameters()], adapted.state_dict()]
        adapted.merge_adapter()
        found.append(logits(adapted)[0])
        adapted.unmerge_adapter()
        with adapted.disable_adapter():
            found.append(logits(adapted)[0])
        merged = adapted.merge_and_unload()
        found += [logits(merged)[0], merged.state_dict()]
        steps.append(found)
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-4, atol=1e-4)
    assert logits(fused)[1] == logits(plain)[1] - 6  # the layers are back, with their weights side by side


def test_lora_before_fusing() -> None:
    peft = pytest.importorskip("peft")
    model = llama()
    config = peft.LoraConfig(target_modules=["q_proj"], r=4, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    expected, _ = logits(adapted)
    assert len(fuse_projections(adapted)) == 2  # of the MLPs
    torch.testing.assert_close(logits(adapted)[0], expected)
    merged = adapted.merge_and_unload(safe_merge=True)
    torch.testing.assert_close(logits(merged)[0], expected, rtol=1e-4, atol=1e-4)
    assert len(fuse_projections(merged)) == 2
    torch.testing.assert_close(logits(merged)[0], expected, rtol=1e-4, atol=1e-4)
    assert len(unfuse_projections(merged)) == 4
    torch.testing.assert_close(logits(merged)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not built")
@pytest.mark.parametrize("shard", ["the model", "the parents", "one layer", "on meta"])
def test_fully_shard(pair: Pair, shard: str, tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    fused, x = pair.fused, torch.randn(5, 12)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        if shard == "on meta":
            fused.to("meta")
        for module in {"the parents": [fused.attention, fused.mlp], "one layer": [fused.attention.q_proj]}.get(
            shard, []
        ):
            fully_shard(module, mesh=dist.init_device_mesh("cpu", (1,)))
        fully_shard(fused, mesh=dist.init_device_mesh("cpu", (1,)))
        if shard == "on meta":
            fused.to_empty(device="cpu")
            for p, q in zip(fused.parameters(), pair.plain.parameters(), strict=True):
                p.detach().to_local().copy_(q.detach())
        for model in pair:
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        torch.testing.assert_close(fused(x), pair.plain(x))
        state = {name: value.full_tensor() for name, value in fused.state_dict().items()}
        torch.testing.assert_close(state, dict(pair.plain.state_dict()))
        if shard == "the parents":
            with pytest.raises(RuntimeError, match=r"attention is a FSDPAttention.*call unfuse_projections before"):
                unfuse_projections(fused)
        else:
            assert unfuse_projections(fused) == [ATTENTION, MLP]
        torch.testing.assert_close(fused(x), pair.plain(x))
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not built")
def test_distributed_data_parallel(pair: Pair, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(pair.fused)
        x = torch.randn(5, 12)
        for model in (pair.plain, wrapped):
            model(x).square().mean().backward()
        for p, q in zip(pair.plain.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad)
    finally:
        dist.destroy_process_group()


def test_accelerate_saves_every_weight(pair: Pair, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    safetensors = pytest.importorskip("safetensors.torch")
    accelerate.Accelerator(cpu=True).save_model(pair.fused, tmp_path)
    assert set(safetensors.load_file(tmp_path / "model.safetensors")) == set(pair.plain.state_dict())
