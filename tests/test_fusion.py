"""Layers that share an input: ``linear_group``, ``fuse_weights_``, and ``use_custom_gemm(fuse_projections=True)``."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from hgemm_ops import _fusion, fuse_projections, fuse_weights_, linear_group, unfuse_weights_, use_custom_gemm

SIZES = (12, 4, 7)
K = 16


def rows_of_one_buffer(dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor]]:
    weights = torch.randn(sum(SIZES), K, dtype=dtype).split(SIZES)
    biases = torch.randn(sum(SIZES), dtype=dtype).split(SIZES)
    return list(weights), list(biases)


def products(function: Callable[[], Any]) -> tuple[Any, int]:
    """What ``function`` returns, and how many products it takes."""
    with use_custom_gemm() as report:
        result = function()
    return result, sum(row.calls for row in report.rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(K,), (1, K), (5, K), (2, 3, K), (0, K)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("joint", [False, True])
def test_group_is_its_layers(dtype: torch.dtype, shape: tuple[int, ...], with_bias: bool, joint: bool) -> None:
    weights, biases = rows_of_one_buffer(dtype)
    if not joint:
        weights, biases = [w.clone() for w in weights], [b.clone() for b in biases]
    x = torch.randn(shape, dtype=dtype)
    given = biases if with_bias else [None] * len(weights)
    results, count = products(lambda: linear_group(x, weights, given if with_bias else None))
    assert isinstance(results, tuple)
    for result, weight, bias in zip(results, weights, given, strict=True):
        assert_close(result, F.linear(x, weight, bias))
    assert len({result.untyped_storage().data_ptr() for result in results if result.numel()}) <= (1 if joint else 3)
    assert count == (1 if joint else 3)


def test_results_do_not_touch_each_other() -> None:
    weights, _ = rows_of_one_buffer()
    x = torch.randn(3, K)
    first, second, third = linear_group(x, weights)
    others = [second, third]
    versions, values = [t._version for t in others], [t.clone() for t in others]
    first.mul_(2)
    assert [t._version for t in others] == versions
    assert all(map(torch.equal, others, values))
    assert not any(t._is_view() for t in (first, *others))


def separate(case: str) -> tuple[list[Tensor], list[Tensor | None]]:
    weights, biases = rows_of_one_buffer()
    none: list[Tensor | None] = [None] * len(weights)
    match case:
        case "another order":
            return weights[::-1], none
        case "a gap":
            return [weights[0], weights[2]], none[:2]
        case "the same rows twice":
            return [weights[0], weights[0]], none[:2]
        case "neighbours by chance":
            memory = np.random.default_rng(0).standard_normal((8, K)).astype(np.float32)
            return [torch.from_numpy(memory[:4]), torch.from_numpy(memory[4:])], none[:2]
        case "one bias":
            return weights, [biases[0], None, None]
        case "biases apart":
            return weights, [b.clone() for b in biases]
        case "columns":
            return list(torch.randn(K, 12).t().split(4)), none
        case "one feature":
            return list(torch.randn(3, K).unbind()), none
        case _:
            return [weights[0].double().float(), weights[1]], none[:2]


@pytest.mark.parametrize(
    "case",
    [
        "another order",
        "a gap",
        "the same rows twice",
        "neighbours by chance",
        "one bias",
        "biases apart",
        "columns",
        "one feature",
        "a copy",
    ],
)
def test_other_weights_are_multiplied_apart(case: str) -> None:
    weights, biases = separate(case)
    x = torch.randn(5, K)
    results, count = products(lambda: linear_group(x, weights, biases))
    for result, weight, bias in zip(results, weights, biases, strict=True):
        assert_close(result, F.linear(x, weight, bias))
    assert count == len(weights)


def test_rows_may_be_padded() -> None:
    weights = list(torch.randn(12, K + 8)[:, :K].split(4))
    x = torch.randn(5, K)
    results, count = products(lambda: linear_group(x, weights))
    assert count == 1
    assert_close(results, tuple(F.linear(x, w) for w in weights))


def test_group_names_what_is_wrong() -> None:
    weights, biases = rows_of_one_buffer()
    x = torch.randn(5, K)
    with pytest.raises(TypeError, match=r"x must be a torch.Tensor, got list"):
        linear_group([1.0], weights)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"weights\[1\] must be a torch.Tensor, got NoneType"):
        linear_group(x, [weights[0], None])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="must not be empty"):
        linear_group(x, [])
    with pytest.raises(ValueError, match="got 2 for 3 weights"):
        linear_group(x, weights, biases[:2])
    with pytest.raises(RuntimeError, match="last dimensions must match, got 4 and 16"):
        linear_group(x[:, :4], weights)
    with pytest.raises(RuntimeError, match="dtypes must match"):
        linear_group(x.double(), weights)
    with pytest.raises(ValueError, match="nonsense"):
        linear_group(x, weights, variant="nonsense")


def test_group_gradients() -> None:
    weights, biases = rows_of_one_buffer(torch.float64)
    inputs = [torch.randn(3, K, dtype=torch.float64, requires_grad=True)]
    inputs += [t.detach().requires_grad_() for t in (*weights, *biases)]
    n = len(weights)

    def group(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        return linear_group(x, parameters[:n], parameters[n:])

    assert torch.autograd.gradcheck(group, inputs)
    assert torch.autograd.gradgradcheck(group, inputs)


def test_group_under_transforms_and_autocast() -> None:
    weights, _ = rows_of_one_buffer()
    x = torch.randn(5, K)
    expected = tuple(F.linear(x, w) for w in weights)
    assert_close(torch.func.vmap(lambda row: linear_group(row, weights))(x), expected)
    dual: Any = torch.func.jvp(lambda x: linear_group(x, weights), (x,), (x,))
    assert_close(dual, (expected, expected))
    with torch.autocast("cpu", torch.bfloat16):
        assert {y.dtype for y in linear_group(x, weights)} == {torch.bfloat16}
    traced = torch.jit.trace(lambda x: linear_group(x, weights), x)
    assert_close(traced(2 * x), tuple(2 * y for y in expected))
    with torch.inference_mode():
        assert_close(linear_group(x, weights), expected)


def test_group_compiles() -> None:
    weights, biases = rows_of_one_buffer()
    x = torch.randn(5, K)
    compiled = torch.compile(lambda x: linear_group(x, weights, biases), backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), linear_group(x, weights, biases))


class Attention(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(K, n, bias=bias) for n in SIZES)

    def forward(self, x: Tensor, between: Callable[[Tensor], object] = lambda x: None) -> tuple[Tensor, ...]:
        q = self.q_proj(x)
        between(x)
        return q, self.k_proj(x), self.v_proj(x)


def siblings(module: Attention) -> list[nn.Linear]:
    return [module.q_proj, module.k_proj, module.v_proj]


@pytest.fixture
def attention() -> Attention:
    return Attention()


@contextlib.contextmanager
def fusing(expected: int) -> Iterator[None]:
    """Asserts that what runs inside makes ``expected`` products."""
    with use_custom_gemm(fuse_projections=True) as report, torch.no_grad():
        yield
    assert sum(row.calls for row in report.rows) == expected


def test_fusing_moves_memory_and_nothing_else(attention: Attention) -> None:
    parameters = list(attention.parameters())
    before = {name: value.clone() for name, value in attention.state_dict().items()}
    attention.k_proj.weight.requires_grad_(False)
    fuse_weights_(siblings(attention))
    assert all(map(lambda a, b: a is b, parameters, attention.parameters()))
    assert_close(attention.state_dict(), before, rtol=0, atol=0)
    assert [p.requires_grad for p in attention.parameters()] == [True, True, False, True, True, True]
    assert len({layer.weight.untyped_storage().data_ptr() for layer in siblings(attention)}) == 1
    fuse_weights_(siblings(attention))  # again: nothing to do
    with fusing(1):
        attention(torch.randn(2, K))

    attention.load_state_dict({name: 2 * value for name, value in before.items()})
    assert_close(attention.state_dict(), {name: 2 * value for name, value in before.items()}, rtol=0, atol=0)

    unfuse_weights_(attention.modules())
    assert len({layer.weight.untyped_storage().data_ptr() for layer in siblings(attention)}) == 3
    assert all(map(lambda a, b: a is b, parameters, attention.parameters()))
    with fusing(3):
        attention(torch.randn(2, K))


def test_training_is_the_same(attention: Attention) -> None:
    plain = copy.deepcopy(attention)
    assert fuse_projections(attention) == ["q_proj+k_proj+v_proj"]
    x = torch.randn(6, K)
    for module in (plain, attention):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with use_custom_gemm(fuse_projections=True) as report:
                sum(y.square().sum() for y in module(x)).backward()
            optimizer.step()
        assert sum(row.calls for row in report.rows if row.op == "linear") == 3
    assert_close(dict(attention.named_parameters()), dict(plain.named_parameters()))
    expected = plain(x)
    with fusing(1):  # the optimizer wrote to the weights in place
        assert_close(attention(x), expected)


def test_what_moves_a_weight_ends_the_fusion(attention: Attention) -> None:
    fuse_projections(attention)
    x = torch.randn(3, K, dtype=torch.float64)
    clone, attention = copy.deepcopy(attention), attention.double()
    expected = clone.double()(x)
    with fusing(3):
        assert_close(attention(x), expected)
    assert fuse_projections(attention)
    with fusing(1):
        assert_close(attention(x), expected)
    attention.k_proj.weight = nn.Parameter(torch.zeros(SIZES[1], K, dtype=torch.float64))
    attention.k_proj.register_parameter("bias", None)
    with fusing(3):
        assert not attention(x)[1].any()


def test_a_fused_module_can_be_saved_and_copied(attention: Attention) -> None:
    x = torch.randn(2, K)
    expected = attention(x)
    fuse_projections(attention)
    file = io.BytesIO()
    torch.save(attention, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(attention)):
        with fusing(3):
            assert_close(other(x), expected)
        with torch.no_grad():
            other.q_proj.weight.zero_()
    assert_close(attention(x), expected)


def test_groups_do_not_outlive_their_weights() -> None:
    attention = Attention()
    fuse_projections(attention)
    ids = [id(layer.weight) for layer in siblings(attention)]
    assert all(i in _fusion._groups for i in ids)
    del attention
    assert not any(i in _fusion._groups for i in ids)


def refused(case: str) -> list[nn.Module]:
    a, b = nn.Linear(4, 3), nn.Linear(4, 5)
    match case:
        case "one layer":
            return [a]
        case "one twice":
            return [a, a]
        case "tied":
            c = nn.Linear(4, 3)
            c.weight = a.weight
            return [a, c]
        case "views of one buffer":
            buffer = torch.randn(8, 4)
            a.weight.data, b.weight.data = buffer[5:], buffer[:5]
        case "seen by another tensor":
            a.register_buffer("seen", a.weight.detach())
        case "in shared memory":
            a.share_memory()
        case "widths":
            b = nn.Linear(8, 5)
        case "dtypes":
            b.bfloat16()
        case "devices":
            b.to("meta")
        case "one bias":
            b = nn.Linear(4, 5, bias=False)
        case "biases of another dtype":
            b.bias.data = b.bias.data.double()
        case "nothing":
            b = nn.Linear(4, 0)
        case "parametrized":
            nn.utils.parametrizations.weight_norm(a)
        case "quantized":
            a.weight = type("Quantized", (nn.Parameter,), {})(a.weight.data)
        case "no layer":
            return [a, nn.ReLU()]
    return [a, b]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(
    "case",
    [
        "one layer",
        "one twice",
        "tied",
        "views of one buffer",
        "seen by another tensor",
        "in shared memory",
        "widths",
        "dtypes",
        "devices",
        "one bias",
        "biases of another dtype",
        "nothing",
        "parametrized",
        "quantized",
        "no layer",
    ],
)
def test_refused(case: str) -> None:
    modules = refused(case)
    addresses = [p.data_ptr() for module in modules for p in module.parameters() if not p.is_meta]
    with pytest.raises((TypeError, ValueError), match=r"hgemm_ops\.fuse_weights_: "):
        fuse_weights_(modules)
    assert [p.data_ptr() for module in modules for p in module.parameters() if not p.is_meta] == addresses


def test_projections_that_are_tied_or_refused_stay_as_they_are() -> None:
    plain, tied, mixed = (Attention() for _ in range(3))
    head = nn.Linear(K, SIZES[0], bias=False)
    tied.q_proj.weight = head.weight
    mixed.k_proj.register_parameter("bias", None)
    model = nn.ModuleDict({"plain": plain, "tied": tied, "mixed": mixed, "head": head})
    assert fuse_projections(model) == ["plain.q_proj+k_proj+v_proj"]


# Calls in the context


def test_fused_calls_are_reported() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Attention()])

        def forward(self, x: Tensor) -> Any:
            return self.layers[0](x)

    model, x = Model(), torch.randn(2, 3, K)
    assert fuse_projections(model) == ["layers.0.q_proj+k_proj+v_proj"]
    with torch.no_grad(), use_custom_gemm() as enclosing, use_custom_gemm(fuse_projections=True) as report:
        for _ in range(3):
            model(x)
    for seen in (report, enclosing):
        (row,) = seen.rows
        assert (row.site, row.op, row.m, row.n, row.k) == ("layers.0.q_proj+k_proj+v_proj", "linear", 6, sum(SIZES), K)
        assert row.calls == 3


@pytest.mark.parametrize("bias", [False, True])
def test_context_fuses_what_is_called_with_one_input(bias: bool) -> None:
    attention = Attention(bias)
    x, y = torch.randn(2, 5, K), torch.randn(1, K)
    expected = [attention(x), attention(y), attention(x)]
    fuse_projections(attention)
    with fusing(3):
        assert_close([attention(x), attention(y), attention(x)], expected)
    with use_custom_gemm(), torch.no_grad():
        assert_close(attention(x), expected[0])


def test_order_of_calls_does_not_matter(attention: Attention) -> None:
    x = torch.randn(5, K)
    expected = attention(x)
    fuse_projections(attention)
    for order in itertools.permutations(range(3)):
        with fusing(1):
            results = {i: siblings(attention)[i](x) for i in order}
        assert_close(tuple(results[i] for i in range(3)), expected)


def by_weight(attention: Attention, change: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
    return lambda x: change(attention.k_proj.weight)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.detach()[0].add_(1),
        lambda x: x.data.add_(1),
        lambda x: x.numpy().__iadd__(1),
        lambda x: x.set_(torch.ones_like(x)),
        lambda x: x.resize_(2, K),
    ],
    ids=["in place", "of a view", "data", "numpy", "set_", "resize_"],
)
def test_writes_to_the_input_between_calls(attention: Attention, change: Callable[[Tensor], object]) -> None:
    with torch.no_grad():
        x = torch.randn(4, K)
        expected = attention(x.clone(), change)
        fuse_projections(attention)
        with use_custom_gemm(fuse_projections=True):
            assert_close(attention(x, change), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.mul_(2),
        lambda w: w.data.mul_(2),
        lambda w: setattr(w, "data", torch.ones_like(w)),
    ],
    ids=["in place", "data", "another memory"],
)
def test_writes_to_a_weight_between_calls(attention: Attention, change: Callable[[Tensor], object]) -> None:
    plain = copy.deepcopy(attention)
    fuse_projections(attention)
    x = torch.randn(4, K)
    with torch.no_grad():
        expected = plain(x, by_weight(plain, change))
        with use_custom_gemm(fuse_projections=True):
            assert_close(attention(x, by_weight(attention, change)), expected)


def test_results_are_handed_out_once(attention: Attention) -> None:
    x = torch.randn(4, K)
    expected = attention(x)
    fuse_projections(attention)
    with torch.no_grad(), use_custom_gemm(fuse_projections=True):
        first = attention.k_proj(x)
        first.zero_()
        assert_close(attention.k_proj(x), expected[1])
        assert_close(attention(x), expected)


def test_gradients_switched_on_between_calls(attention: Attention) -> None:
    fuse_projections(attention)
    x = torch.randn(4, K)
    with use_custom_gemm(fuse_projections=True):
        with torch.no_grad():
            attention.q_proj(x)
        attention.k_proj(x).sum().backward()
    assert attention.k_proj.weight.grad is not None
    assert attention.q_proj.weight.grad is None


def test_another_bias_or_form_of_the_call(attention: Attention) -> None:
    fuse_projections(attention)
    x, bias = torch.randn(4, K), torch.randn(SIZES[0])
    weight = attention.q_proj.weight
    with torch.no_grad(), use_custom_gemm(fuse_projections=True):
        attention.v_proj(x)
        for arguments, options in (((x, weight), {}), ((x, weight, bias), {}), ((x, weight), {"bias": bias})):
            given = options.get("bias", arguments[2] if len(arguments) > 2 else None)
            assert_close(F.linear(*arguments, **options), x @ weight.t() + (0 if given is None else given))
        with pytest.raises(RuntimeError, match="last dimensions"):
            attention.q_proj(x[:, :3])
        with pytest.raises(TypeError):
            F.linear(x)  # type: ignore[call-arg]


def test_an_exception_between_calls(attention: Attention) -> None:
    def fail(x: Tensor) -> None:
        raise KeyError

    x = torch.randn(4, K)
    expected = attention(x)
    fuse_projections(attention)
    context = use_custom_gemm(fuse_projections=True)
    with torch.no_grad():
        for _ in range(5):
            with pytest.raises(KeyError), context:
                attention(x, fail)
        assert context._pending is not None and context._pending._held is None
        with fusing(1):
            assert_close(attention(x), expected)


def test_layers_with_different_inputs_are_left_alone(attention: Attention) -> None:
    fuse_projections(attention)
    x, memory = torch.randn(4, K), torch.randn(9, K)
    expected = attention.q_proj(x), attention.k_proj(memory), attention.v_proj(memory)
    with torch.no_grad(), use_custom_gemm(fuse_projections=True) as report:
        for _ in range(20):
            assert_close((attention.q_proj(x), attention.k_proj(memory), attention.v_proj(memory)), expected)
    wasted = [row for row in report.rows if row.n == sum(SIZES)]
    assert sum(row.calls for row in wasted) <= 5
    assert sum(row.calls for row in report.rows if row.n == SIZES[0]) >= 17


def test_threads_do_not_share_results(attention: Attention) -> None:
    fuse_projections(attention)
    x = torch.randn(4, K)
    expected = attention(x)
    context = use_custom_gemm(fuse_projections=True)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with torch.no_grad(), context:
                for _ in range(50):
                    assert_close(attention(x), expected)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(row.calls for row in context.report.rows) == 200


def test_a_context_inside_of_another(attention: Attention) -> None:
    fuse_projections(attention)
    x = torch.randn(4, K)
    expected = attention(x)
    context = use_custom_gemm(fuse_projections=True)
    with torch.no_grad(), context:
        q = attention.q_proj(x)
        with use_custom_gemm(fuse_projections=True), context:
            assert_close(attention(x), expected)
        assert_close((q, attention.k_proj(x), attention.v_proj(x)), expected)


@pytest.mark.parametrize("mode", ["inference mode", "autocast", "compile", "vmap"])
def test_the_fusion_steps_aside(attention: Attention, mode: str) -> None:
    x = torch.randn(4, K)
    run: Callable[[Tensor], Any] = attention
    around: Any = torch.no_grad()
    if mode == "inference mode":
        around = torch.inference_mode()
    elif mode == "autocast":
        around = torch.autocast("cpu", torch.bfloat16)
    elif mode == "compile":
        run = torch.compile(attention, backend="aot_eager")
    else:
        run = torch.func.vmap(attention)
    with torch.no_grad(), around:
        if mode == "inference mode":
            x = x.clone()
        expected = attention(x)
        fuse_projections(attention)
        with use_custom_gemm(fuse_projections=True) as report:
            assert_close(run(x), expected)
    assert sum(row.calls for row in report.rows if row.n == sum(SIZES)) == 0


def test_a_forced_kernel_serves_the_group(attention: Attention) -> None:
    fuse_projections(attention)
    x = torch.randn(4, K)
    with torch.no_grad(), use_custom_gemm(variant="torch", fuse_projections=True):
        assert_close(attention(x), tuple(layer(x) for layer in siblings(attention)))


@pytest.fixture(params=["llama", "qwen2", "bert", "vit"])
def model(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip("transformers")
    from integration import models

    return models.build(request.param, "tiny", dtype=torch.float32, device="cpu"), request.param


def test_transformers_models(model: tuple[Any, str]) -> None:
    from integration import models, scenarios

    module, name = model
    inputs = models.sample(module, name, batch=2, seq=9)
    run = scenarios.prefill if models.FAMILIES[name].kind == "decoder" else scenarios.forward
    expected = run(module, inputs)["logits"]
    trained = scenarios.train(module, inputs)
    with use_custom_gemm() as apart:
        run(module, inputs)
    groups = fuse_projections(module)
    assert len(groups) == (4 if models.FAMILIES[name].kind == "decoder" else 2)
    with use_custom_gemm(fuse_projections=True) as report:
        assert_close(run(module, inputs)["logits"], expected)
    assert {row.site for row in report.rows} >= set(groups)
    calls = {seen: sum(row.calls for row in seen.rows) for seen in (apart, report)}
    saved = sum(group.count("+") for group in groups)
    assert calls[apart] - calls[report] == saved
    with use_custom_gemm(fuse_projections=True):
        assert_close(scenarios.train(module, inputs), trained)
    if models.FAMILIES[name].kind == "decoder":
        tokens = scenarios.decode(module, inputs, new_tokens=4, graph=False)
        with use_custom_gemm(fuse_projections=True) as report:
            assert_close(scenarios.decode(module, inputs, new_tokens=4, graph=False), tokens)
        assert {row.calls for row in report.rows if row.site in groups} == {1, 4}  # prefill, decode


@pytest.fixture
def on_gpu() -> tuple[Attention, Tensor]:
    attention = Attention().to("cuda", torch.float16)
    assert fuse_projections(attention)
    return attention, torch.randn(4, K, device="cuda", dtype=torch.float16)


@pytest.mark.gpu
def test_gpu_group_in_a_graph(on_gpu: tuple[Attention, Tensor]) -> None:
    attention, x = on_gpu
    with torch.no_grad(), use_custom_gemm(fuse_projections=True) as report:
        attention(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = attention(x)
    assert sum(row.calls for row in report.rows) == 2
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert_close(results, attention(x))


@pytest.mark.gpu
def test_gpu_results_stay_on_their_stream(on_gpu: tuple[Attention, Tensor]) -> None:
    attention, x = on_gpu
    with torch.no_grad(), use_custom_gemm(fuse_projections=True) as report:
        attention.q_proj(x)
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            k = attention.k_proj(x)
        torch.cuda.current_stream().wait_stream(other)
        assert_close(k, attention.k_proj(x))
    assert [row.calls for row in report.rows if row.n == sum(SIZES)] == [3]


@pytest.mark.gpu
def test_gpu_float32_is_left_to_torch(on_gpu: tuple[Attention, Tensor]) -> None:
    attention, x = on_gpu
    attention.float()
    assert fuse_projections(attention)
    with torch.no_grad(), use_custom_gemm(fuse_projections=True) as report:
        attention(x.float())
    assert {row.reason for row in report.rows} == {"dtype torch.float32"}
    assert len(report.rows) == 3
