"""The ops under torch.compile (forward and backward, static and dynamic), torch.export and AOTInductor."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim

import hgemm_ops

hgemm = torch.ops.hgemm
pytestmark = pytest.mark.usefixtures("fresh_dynamo")
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "matmul": (hgemm.matmul, torch.matmul, ((2, 6, 5), (5, 4))),
    "matmul broadcast": (hgemm.matmul, torch.matmul, ((2, 1, 6, 5), (3, 5, 4))),
    "mm transposed": (lambda a, b: hgemm.mm(a.t(), b.t()), lambda a, b: torch.mm(a.t(), b.t()), ((5, 6), (4, 5))),
    "bmm": (hgemm.bmm, torch.bmm, ((3, 6, 5), (3, 5, 4))),
    "addmm": (
        lambda c, a, b: hgemm.addmm(c, a, b, alpha=0.5),
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.5),
        ((4,), (6, 5), (5, 4)),
    ),
    "baddbmm": (hgemm.baddbmm, torch.baddbmm, ((3, 6, 4), (3, 6, 5), (3, 5, 4))),
    "linear": (hgemm.linear, F.linear, ((2, 6, 5), (4, 5), (4,))),
    "linear relu": (
        lambda x, w, b: hgemm.linear(x, w, b, 1),
        lambda x, w, b: F.linear(x, w, b).relu(),
        ((6, 5), (4, 5), (4,)),
    ),
    "public linear": (
        lambda x, w, b: hgemm_ops.linear(x, w, b, activation="gelu", variant="torch"),
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        ((2, 6, 5), (4, 5), (4,)),
    ),
    "public matmul": (
        lambda a, b: hgemm_ops.matmul(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32),
        lambda a, b: torch.matmul(a.bfloat16().float(), b.bfloat16().float()),
        ((6, 5), (5, 4)),
    ),
    "mlp": (
        lambda x, up, down: hgemm.linear(hgemm.linear(x * 2, up, None, 4), down).sin(),
        lambda x, up, down: F.linear(F.silu(F.linear(x * 2, up)), down).sin(),
        ((2, 6, 5), (7, 5), (4, 7)),
    ),
}


def leaves(shapes: tuple[tuple[int, ...], ...], seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)


def forward_and_backward(function: Callable[..., Tensor], args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    out = function(*args)
    return (out.detach(), *torch.autograd.grad(out.square().sum(), args))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_and_backward(name: str, backend: str, dynamic: bool) -> None:
    ours, theirs, shapes = FUNCTIONS[name]
    compiled = torch.compile(lambda *args: ours(*args), fullgraph=True, dynamic=dynamic, backend=backend)
    args = leaves(shapes)
    got, expected = forward_and_backward(compiled, args), forward_and_backward(theirs, args)
    grad_tolerance = 2**-4 if name == "public matmul" else 1e-4  # its gradients are products of bfloat16
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1:], expected[1:], rtol=grad_tolerance, atol=grad_tolerance)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), theirs(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dynamic_sizes_compile_once(backend: str) -> None:
    compiled = torch.compile(
        lambda x, w, b: hgemm.linear(hgemm.matmul(x, w), w, b, 2), fullgraph=True, dynamic=True, backend=backend
    )
    w, b = leaves(((8, 8), (8,)))
    compiled(torch.randn(3, 5, 8, requires_grad=True), w, b)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (2, 7, 33):
            x = torch.randn(rows, rows + 1, 8, requires_grad=True)
            got = forward_and_backward(compiled, (x, w, b))
            expected = forward_and_backward(lambda x, w, b: F.gelu(F.linear(x @ w, w, b)), (x, w, b))
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


def test_data_dependent_sizes() -> None:
    """Rows picked by a mask: their number is known only at run time."""

    def tokens(x: Tensor, keep: Tensor, w: Tensor) -> Tensor:
        return hgemm.linear(x[keep], w, None, 1)

    x, keep, w = torch.randn(9, 5), torch.arange(9) % 2 == 0, torch.randn(4, 5)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        out = torch.compile(tokens, fullgraph=True, backend="aot_eager")(x, keep, w)
    torch.testing.assert_close(out, tokens(x, keep, w))


def test_out_overload() -> None:
    def write(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        hgemm.matmul.out(a, b, out=out)
        hgemm.addmm.out(out, a, b, alpha=2.0, out=out)
        return out + 1

    a, b, out = torch.randn(3, 4), torch.randn(4, 5), torch.zeros(3, 5)
    result = torch.compile(write, fullgraph=True, backend="aot_eager")(a, b, out)
    torch.testing.assert_close(out, 3 * (a @ b))
    torch.testing.assert_close(result, out + 1)


def test_wrong_sizes_fail_at_compile_time() -> None:
    compiled = torch.compile(lambda a, b: hgemm.mm(a, b), fullgraph=True, dynamic=True, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="must have same reduction dim"):
        compiled(torch.randn(3, 4), torch.randn(5, 6))


def test_compiled_autograd() -> None:
    args = leaves(((6, 5), (4, 5), (4,)))

    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return hgemm.linear(hgemm.linear(x, w, b, 2), w.t(), None).square().sum()

    expected = torch.autograd.grad(loss(*args), args)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        loss(*args).backward()
    torch.testing.assert_close(tuple(a.grad for a in args), expected)


def test_checkpointed() -> None:
    args = leaves(((6, 5), (4, 5), (4,)))

    def block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return hgemm.linear(x, w, b, 4)

    def checkpointed(*args: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(block, *args, use_reentrant=False)

    expected = forward_and_backward(block, args)
    torch.testing.assert_close(forward_and_backward(checkpointed, args), expected)
    compiled = torch.compile(checkpointed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(forward_and_backward(compiled, args), expected)


def test_transforms_compile() -> None:
    x, w = torch.randn(6, 3, 5), torch.randn(4, 5)

    def per_sample(w: Tensor, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda w, x: hgemm.linear(x, w, None, 2).sum()), (None, 0))(w, x)

    compiled = torch.compile(per_sample, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(w, x), per_sample(w, x))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = hgemm.linear(x, self.up.weight, self.up.bias, 2)
        out = hgemm.linear(hidden, self.down.weight, self.down.bias)
        return hgemm.matmul(out.bfloat16(), out.mT.bfloat16(), out_dtype=torch.float32, variant=-2)


def exported(model: torch.nn.Module) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, (torch.randn(4, 3, 16),), dynamic_shapes=({0: Dim("batch", min=2, max=64)},))


def targets(program: torch.export.ExportedProgram) -> list[str]:
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return [name for name in names if name.startswith("hgemm")]


def test_export_keeps_the_ops() -> None:
    model = Block().eval()
    program = exported(model)
    expected = ["hgemm.linear.default", "hgemm.linear.default", "hgemm.matmul.default"]
    assert targets(program) == expected
    assert targets(program.run_decompositions()) == expected
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    x = torch.randn(7, 3, 16)
    torch.testing.assert_close(torch.export.load(file).module()(x), model(x))


def test_a_traced_training_graph_has_torchs_products_in_its_backward() -> None:
    def loss(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(hgemm.linear(x, w, None, 2).sum(), (x, w))

    graph = torch.fx.experimental.proxy_tensor.make_fx(loss, tracing_mode="symbolic")(*leaves(((6, 5), (4, 5))))
    names = [str(node.target) for node in graph.graph.nodes if re.match(r"hgemm|aten.\w*mm", str(node.target))]
    assert names == ["hgemm.linear_save.default", "aten.mm.default", "aten.mm.default"]


@pytest.mark.slow
def test_aot_inductor(tmp_path: Path) -> None:
    model = Block().eval()
    package = torch._inductor.aoti_compile_and_package(exported(model), package_path=str(tmp_path / "block.pt2"))
    run: Any = torch._inductor.aoti_load_package(package)
    for batch in (2, 7):
        x = torch.randn(batch, 3, 16)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
