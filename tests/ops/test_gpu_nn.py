"""Fused projections on a GPU: one kernel for the layers of one input, before and after what happens to a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from helpers import rand
from torch import Tensor, nn

from hgemm_ops import fuse_projections, unfuse_projections, use_custom_gemm
from hgemm_ops.nn import GatedMLP

pytestmark = pytest.mark.gpu


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(512, n, bias=False) for n in (512, 128, 128))
        self.o_proj = nn.Linear(512, 512, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q + torch.cat((k, v, k, v), -1))


class LlamaMLP(nn.Module):
    __module__ = "transformers.models.llama.modeling_llama"  # where fuse_projections expects the class

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(512, 1024, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(1024, 512, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


FUSED = ["0.q_proj+k_proj+v_proj", "1.gate_proj+up_proj"]


@pytest.fixture
def pair() -> Iterator[tuple[nn.Module, nn.Module]]:
    model = nn.Sequential(Attention(), LlamaMLP()).half().cuda()
    fused = copy.deepcopy(model)
    assert fuse_projections(fused) == FUSED
    assert isinstance(fused[1], GatedMLP)
    with use_custom_gemm():
        yield model, fused


def products(call: Callable[[], object]) -> int:
    with use_custom_gemm() as report:
        call()
    return sum(row.calls for row in report.rows)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert (actual - expected).abs().max() <= 0.01 * expected.abs().max()


@torch.no_grad()
def test_one_product_for_each_group(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    x = rand(4, 512)
    assert_close(fused(x), model(x))
    assert (products(lambda: model(x)), products(lambda: fused(x))) == (7, 4)


def converted(fused: nn.Module) -> nn.Module:
    return fused.to(torch.bfloat16).half()


def moved(fused: nn.Module) -> nn.Module:
    return fused.cpu().cuda()


def emptied(fused: nn.Module) -> nn.Module:
    state = fused.state_dict()
    fused.to("meta").to_empty(device="cuda").load_state_dict(state)
    return fused


def assigned(fused: nn.Module) -> nn.Module:
    fused.load_state_dict(copy.deepcopy(fused.state_dict()), assign=True)
    assert fuse_projections(fused) == FUSED
    return fused


def restored(fused: nn.Module) -> nn.Module:
    assert unfuse_projections(fused) == FUSED
    assert fuse_projections(fused) == FUSED
    return fused


@torch.no_grad()
@pytest.mark.parametrize(
    "change", [copy.deepcopy, converted, moved, emptied, assigned, restored], ids=lambda f: f.__name__
)
def test_the_layers_stay_together(pair: tuple[nn.Module, nn.Module], change: Callable[[nn.Module], nn.Module]) -> None:
    model, fused = pair
    x = rand(4, 512)
    changed = change(fused)
    assert_close(changed(x), model(x))
    assert products(lambda: changed(x)) == 4


@torch.no_grad()
def test_parameters_that_are_assigned(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    x = rand(4, 512)
    before = torch.cuda.memory_allocated()
    fused.load_state_dict({name: 2 * value for name, value in model.state_dict().items()}, assign=True)
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})
    assert_close(fused(x), model(x))
    assert products(lambda: fused(x)) == 7
    assert torch.cuda.memory_allocated() <= before + (1 << 20)  # nothing keeps the joint weights


@torch.no_grad()
def test_memory_is_what_it_was(pair: tuple[nn.Module, nn.Module]) -> None:
    model, _ = pair
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    fuse_projections(model)
    assert torch.cuda.memory_allocated() <= before + (1 << 16)
    unfuse_projections(model)
    assert torch.cuda.memory_allocated() <= before + (1 << 16)


def test_gradients(pair: tuple[nn.Module, nn.Module]) -> None:
    x = rand(128, 512)
    for each in pair:
        for _ in range(2):
            each(x).float().square().mean().mul(1e4).backward()
    for p, q in zip(*(each.parameters() for each in pair), strict=True):
        assert_close(q.grad, p.grad)


@torch.no_grad()
def test_a_graph(pair: tuple[nn.Module, nn.Module]) -> None:
    model, fused = pair
    x = rand(4, 512)
    fused(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused(x)
    for _ in range(3):
        x.copy_(rand(4, 512))
        for p, q in zip(model.parameters(), fused.parameters(), strict=True):
            p.mul_(1.1)
            q.copy_(p)
        graph.replay()
        assert_close(out, model(x))


@torch.no_grad()
def test_compiled(pair: tuple[nn.Module, nn.Module], fresh_dynamo: None) -> None:
    model, fused = pair
    x = rand(4, 512)
    assert_close(torch.compile(fused, fullgraph=True)(x), model(x))


@torch.no_grad()
def test_another_stream(pair: tuple[nn.Module, nn.Module]) -> None:
    """Parameters are freed in the order of the stream on which they were made, although their storage is borrowed."""
    model, fused = pair
    x = rand(4, 512)
    expected = model(x)
    side = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream())
            fused.load_state_dict(copy.deepcopy(fused.state_dict()), assign=True)
            fuse_projections(fused)
            out = fused(x)
        torch.cuda.current_stream().wait_stream(side)
        assert_close(out, expected)
