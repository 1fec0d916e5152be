"""hgemm_ops.compile: what the graph pass rewrites and fuses, and that results and gradients stay those of torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_as_good
from torch import Tensor, nn

import hgemm_ops.compile
from hgemm_ops.compile import GraphPass

pytestmark = [pytest.mark.usefixtures("fresh_dynamo")]

aten = torch.ops.aten


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_new": gelu_new,
    "silu": F.silu,
}


@pytest.fixture(autouse=True)
def everything_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products here are tiny: as if a kernel of ours were the fastest for each."""
    monkeypatch.setattr(hgemm_ops.compile.hgemm_ops, "explain", lambda **_: SimpleNamespace(chosen="ours"))


def compiled(fn: Callable, device: str = "cpu", **kwargs: object) -> tuple[Callable, GraphPass]:
    """``fn`` compiled with the pass, and the pass."""
    options = hgemm_ops.compile.options(device=device)
    return torch.compile(fn, fullgraph=True, options=options, **kwargs), options["post_grad_custom_pre_pass"]


class Mlp(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(24, 40, bias=bias), act, nn.Linear(40, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


def forward_backward(fn: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> list[Tensor]:
    """The output and the gradients of the input and of every parameter."""
    module.zero_grad()
    leaf = x.detach().requires_grad_()
    y = fn(leaf)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y))
    return [y.detach(), leaf.grad, *(p.grad for p in module.parameters())]


def assert_all_as_good(ours: list[Tensor], theirs: list[Tensor], exact: list[Tensor]) -> None:
    """Each of ``ours`` is no further from ``exact`` than twice the worst error of ``theirs``, plus a rounding unit."""
    for tensors in zip(ours, theirs, exact, strict=True):
        assert_as_good(*tensors)


def double(module: nn.Module, make: Callable[[], nn.Module]) -> nn.Module:
    clone = make()
    clone.load_state_dict(module.state_dict())
    return clone.double()


@pytest.mark.parametrize(("name", "shape"), [*((name, (2, 3, 24)) for name in ACTIVATIONS), ("silu", (6, 24))], ids=str)
def test_activation_is_fused_for_inference(name: str, shape: tuple[int, ...]) -> None:
    module = Mlp(ACTIVATIONS[name]).bfloat16()
    x = torch.randn(shape, dtype=torch.bfloat16)
    fn, graph_pass = compiled(module)
    with torch.no_grad():
        ours, theirs = fn(x), module(x)
        exact = double(module, lambda: Mlp(ACTIVATIONS[name]))(x.double())
    assert graph_pass.counts == Counter({"linear": 1})
    assert_all_as_good([ours], [theirs], [exact])


@pytest.mark.parametrize(("name", "bias"), [*((name, True) for name in ACTIVATIONS), ("silu", False)])
def test_activation_is_fused_for_training(name: str, bias: bool) -> None:
    def make() -> Mlp:
        return Mlp(ACTIVATIONS[name], bias)

    module = make().half()
    x = torch.randn(2, 3, 24, dtype=torch.float16)
    fn, graph_pass = compiled(module)
    ours = [t.clone() for t in forward_backward(fn, module, x)]
    theirs = [t.clone() for t in forward_backward(module, module, x)]
    exact_module = double(module, make)
    exact = forward_backward(exact_module, exact_module, x.double())
    # relu's backward reads its result; the others read its argument, which linear_save writes beside the result.
    assert graph_pass.counts == Counter({"linear" if name == "relu" else "linear_save": 1})
    assert_all_as_good(ours, theirs, exact)


def test_other_products_stay_torchs() -> None:
    """addmm with scalars, or with an input that is no row of the result's width, and batches."""

    def fn(c: Tensor, bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        products = (
            torch.addmm(bias, a[0], b[0], alpha=0.5, beta=2.0),
            torch.addmm(c[0], a[0], b[0]),
            torch.addmm(c[0, :, :1], a[0], b[0]),
            a @ b,
            torch.baddbmm(c, a, b, beta=0.5, alpha=-1.5),
        )
        return tuple(F.relu(y) for y in products)

    c, bias = torch.randn(3, 5, 7).bfloat16(), torch.randn(7).bfloat16()
    a, b = torch.randn(3, 5, 6).bfloat16(), torch.randn(3, 6, 7).bfloat16()
    ours_fn, graph_pass = compiled(fn)
    ours, theirs = ours_fn(c, bias, a, b), fn(c, bias, a, b)
    exact = fn(*(t.double() for t in (c, bias, a, b)))
    assert not graph_pass.counts
    assert_all_as_good(list(ours), list(theirs), list(exact))


def test_only_what_a_kernel_of_ours_serves_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def explain(**query: object) -> SimpleNamespace:
        asked.append(query)
        return SimpleNamespace(chosen="torch" if query["N"] == 40 else "ours")

    monkeypatch.setattr(hgemm_ops.compile.hgemm_ops, "explain", explain)
    first, second = nn.Linear(24, 40).bfloat16(), nn.Linear(40, 48, bias=False).bfloat16()
    fn, graph_pass = compiled(lambda x: F.silu(second(F.gelu(first(x)))))
    with torch.no_grad():
        fn(torch.randn(6, 24, dtype=torch.bfloat16))
    assert graph_pass.counts == Counter({"linear": 1})
    shared = {"M": 6, "dtype": torch.bfloat16, "layout": "NT", "arch": "sm_90", "numerics": "fast"}
    assert {"N": 40, "K": 24, "activation": "gelu", "bias": True, **shared} in asked
    assert {"N": 48, "K": 40, "activation": "silu", "bias": False, **shared} in asked


def test_argument_read_elsewhere_is_kept() -> None:
    """The argument of the activation is an output too, through a view and directly."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(x, w)
        return F.silu(y), y * 2

    x, w = torch.randn(2, 3, 8).bfloat16(), torch.randn(6, 8).bfloat16()
    ours_fn, graph_pass = compiled(fn)
    ours, theirs, exact = ours_fn(x, w), fn(x, w), fn(x.double(), w.double())
    assert graph_pass.counts == Counter({"linear_save": 1})
    assert_all_as_good(list(ours), list(theirs), list(exact))


def test_one_product_two_activations() -> None:
    """An epilogue holds one activation: the second stays in the graph and reads the saved argument."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return F.relu(y) + F.silu(y)

    x, w = torch.randn(5, 8).bfloat16(), torch.randn(8, 6).bfloat16()
    ours_fn, graph_pass = compiled(fn)
    ours, theirs, exact = ours_fn(x, w), fn(x, w), fn(x.double(), w.double())
    assert graph_pass.counts == Counter({"linear_save": 1})
    assert_all_as_good([ours], [theirs], [exact])


def test_activation_of_something_else_stays() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.gelu(x @ w + 1) * F.relu(x.sum())

    x, w = torch.randn(5, 8).bfloat16(), torch.randn(8, 6).bfloat16()
    ours_fn, graph_pass = compiled(fn)
    ours, theirs, exact = ours_fn(x, w), fn(x, w), fn(x.double(), w.double())
    assert not graph_pass.counts
    assert_all_as_good([ours], [theirs], [exact])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_dtypes_are_left_to_torch(dtype: torch.dtype) -> None:
    module = Mlp(F.gelu).to(dtype)
    x = torch.randn(6, 24, dtype=dtype)
    fn, graph_pass = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(fn(x), module(x))
    assert not graph_pass.counts


def test_other_devices_are_left_to_torch() -> None:
    module = Mlp(F.gelu).bfloat16()
    fn, graph_pass = compiled(module, device="cuda")
    with torch.no_grad():
        fn(torch.randn(6, 24, dtype=torch.bfloat16))
    assert not graph_pass.counts


def test_dynamic_shapes() -> None:
    module = Mlp(F.silu).bfloat16()
    fn, graph_pass = compiled(module, dynamic=True)
    exact_module = double(module, lambda: Mlp(F.silu))
    for batch in (2, 5, 9):
        x = torch.randn(batch, 3, 24, dtype=torch.bfloat16)
        with torch.no_grad():
            assert_all_as_good([fn(x)], [module(x)], [exact_module(x.double())])
    assert graph_pass.counts == Counter({"linear": 1}), "one graph for every size"


def test_uuid_follows_the_device() -> None:
    """Inductor's cache key: equal passes share graphs, passes for different devices must not."""
    assert GraphPass("cpu").uuid() == GraphPass("cpu").uuid() != GraphPass("cuda").uuid()


@pytest.mark.parametrize("name", ["linear", "linear_save"])
def test_uuid_follows_the_schemas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph in inductor's cache calls the ops as they were registered when it was compiled."""
    before = GraphPass("cpu").uuid()
    old = str(getattr(torch.ops.hgemm, name).default._schema)
    ops = {"linear": torch.ops.hgemm.linear, "linear_save": torch.ops.hgemm.linear_save}
    ops[name] = SimpleNamespace(default=SimpleNamespace(_schema=old.replace("int act", "str act")))
    monkeypatch.setattr(hgemm_ops.compile, "hgemm", SimpleNamespace(**ops))
    assert GraphPass("cpu").uuid() != before


def test_options_with_mode() -> None:
    options = hgemm_ops.compile.options("max-autotune-no-cudagraphs", device="cpu")
    assert options["max_autotune"] is True
    assert isinstance(options["post_grad_custom_pre_pass"], GraphPass)
    with pytest.raises(RuntimeError, match="Unrecognized mode=fast"):
        hgemm_ops.compile.options("fast")


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_llama(train: bool) -> None:
    """The silu of every gate projection is in its epilogue."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
    )

    def make() -> nn.Module:
        return transformers.LlamaForCausalLM(config).eval()

    def logits_and_grads(fn: Callable, module: nn.Module) -> list[Tensor]:
        with torch.set_grad_enabled(train):
            result = fn(input_ids=ids, labels=ids, use_cache=False)
        if not train:
            return [result.logits]
        module.zero_grad()
        result.loss.backward()
        return [result.logits.detach(), *(p.grad.clone() for p in module.parameters())]

    ids = torch.randint(0, config.vocab_size, (2, 16))
    module = make().bfloat16()
    fn, graph_pass = compiled(module)
    ours = logits_and_grads(fn, module)
    theirs = logits_and_grads(module, module)
    exact_module = double(module, make)
    exact = logits_and_grads(exact_module, exact_module)

    assert graph_pass.counts == Counter({"linear_save" if train else "linear": config.num_hidden_layers})
    assert_all_as_good(ours, theirs, exact)
