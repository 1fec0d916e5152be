"""use_custom_gemm under torch.compile and torch.export: whole graphs, one per state, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hgemm_ops import use_custom_gemm

Fn = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Graphs:
    """A backend that runs graphs as they are and keeps them."""

    def __init__(self) -> None:
        self.operators: list[list[str]] = []
        self.options: list[dict[str, Any]] = []

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Fn:
        nodes = [node for node in graph.graph.nodes if node.op == "call_function" and "hgemm." in str(node.target)]
        self.operators.append([str(node.target).removeprefix("hgemm.").removesuffix(".default") for node in nodes])
        self.options.extend(node.kwargs for node in nodes)
        return graph.forward


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True)
ENCODER = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

FORMS: dict[str, tuple[list[str], Fn]] = {
    "@": (["matmul"], lambda x: x @ x.mT),
    "@ of intermediates": (["matmul"], lambda x: (x + x) @ (x + x).mT),
    "__rmatmul__": (["matmul"], lambda x: x.__rmatmul__(x.mT)),
    "__rmatmul__ of intermediates": (["matmul"], lambda x: (x + x).__rmatmul__((x + x).mT)),
    "Tensor.matmul": (["matmul"], lambda x: (x + x).matmul(x.mT)),
    "mm": (["mm"], lambda x: torch.mm(x[0], x[1].mT)),
    "bmm keywords": (["bmm"], lambda x: torch.bmm(x, mat2=x.mT)),
    "addmm": (["addmm"], lambda x: torch.addmm(x[0, :, :1], x[0], x[1].mT, beta=2)),
    "Tensor.baddbmm": (["baddbmm"], lambda x: x[:, :, :1].baddbmm(x, x.mT)),
    "addbmm": (["addmm"], lambda x: torch.addbmm(x[0, :, :1], x, x.mT)),
    "mv": (["matmul"], lambda x: torch.mv(x[0], x[1, 0])),
    "addmv": (["addmm"], lambda x: torch.addmv(x[0, :, 0], x[0], x[1, 0])),
    "dot": (["matmul"], lambda x: torch.dot(x[0, 0], x[0, 1])),
    "einsum": (["matmul"], lambda x: torch.einsum("bij,bkj->kbi", x, x)),
    "einsum that is not": ([], lambda x: torch.einsum("bij,bij->bij", x, x)),
    "out": (["mm.out"], lambda x: torch.mm(x[0], x[0].mT, out=torch.empty(x.size(1), x.size(1)))),
    "integers": ([], lambda x: (x.int() @ x.mT.int()).float()),
    "attention": (["linear", "bmm", "bmm", "linear"], lambda x: ATTENTION(x, x, x)[0]),
    "encoder layer": (["linear"] * 4, lambda x: ENCODER(x)),
    "unflatten": (["matmul"], lambda x: (x + x).unflatten(-1, (2, 2)) @ x[:1, :1, None, :2].mT),
    "sdpa": (["matmul"], lambda x: F.scaled_dot_product_attention(x, x, x) @ x.mT),
    "our own": (["mm", "linear"], lambda x: torch.ops.hgemm.linear(torch.ops.hgemm.mm.default(x[0], x[1].mT), x[0].mT)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms_in_whole_graphs(form: str, dynamic: bool) -> None:
    expected_operators, fn = FORMS[form]
    graphs = Graphs()
    x = torch.randn(2, 3, 4)
    compiled = torch.compile(fn, backend=graphs, fullgraph=True, dynamic=dynamic)
    with use_custom_gemm() as report:
        result = compiled(x)
    torch.testing.assert_close(result, fn(x))
    (operators,) = graphs.operators
    assert [name.removesuffix(".default") for name in operators] == expected_operators
    # Tracing is not running: what is counted is the one run of the graph.
    ours = [row for row in report.rows if row.reason.startswith("kernels run on CUDA")]
    assert {row.site for row in ours} <= {"(compiled graph)"}
    assert sum(row.calls for row in ours) == len(expected_operators)


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_per_state(dynamic: bool) -> None:
    graphs = Graphs()
    mlp = Mlp()
    compiled = torch.compile(mlp, backend=graphs, fullgraph=True, dynamic=dynamic)
    x = torch.randn(3, 4)
    for _ in range(3):
        compiled(x)
        with use_custom_gemm():  # another object every time
            compiled(x)
    assert graphs.operators == [[], ["linear", "linear"]]
    with use_custom_gemm(variant="torch"):
        compiled(x)
    with use_custom_gemm(variant="torch"):
        compiled(x)
    assert graphs.operators == [[], ["linear", "linear"], ["linear", "linear"]]
    assert [options.get("variant") for options in graphs.options] == [None, None, -2, -2]


def test_dynamic_sizes_share_a_graph() -> None:
    graphs, mlp = Graphs(), Mlp()
    compiled = torch.compile(lambda x: mlp(x) @ x.mT, backend=graphs, fullgraph=True, dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 4)
        with use_custom_gemm():
            torch.testing.assert_close(compiled(x), mlp(x) @ x.mT)
    assert graphs.operators == [["linear", "linear", "matmul"]]


def test_context_inside_a_compiled_function() -> None:
    graphs = Graphs()

    def inside(x: Tensor) -> tuple[Tensor, Tensor]:
        with use_custom_gemm():
            routed = x @ x.mT
        return routed, x @ x.mT

    x = torch.randn(3, 4)
    routed, plain = torch.compile(inside, backend=graphs, fullgraph=True)(x)
    torch.testing.assert_close(routed, x @ x.mT)
    torch.testing.assert_close(plain, x @ x.mT)
    assert graphs.operators == [["matmul"]]


def test_decorated_function() -> None:
    graphs = Graphs()
    decorated = use_custom_gemm(variant="torch")(lambda x: x @ x.mT)
    x = torch.randn(3, 4)
    result = torch.compile(lambda x: decorated(x) + x @ x.mT, backend=graphs, fullgraph=True)(x)
    torch.testing.assert_close(result, 2 * (x @ x.mT))
    assert graphs.operators == [["matmul"]]
    assert graphs.options == [{"variant": -2}]


def test_nested_contexts() -> None:
    graphs = Graphs()
    x = torch.randn(3, 4)
    compiled = torch.compile(lambda x: x @ x.mT, backend=graphs, fullgraph=True)
    with use_custom_gemm(variant="torch"), use_custom_gemm():
        compiled(x)
    assert graphs.operators == [["matmul"]]
    assert graphs.options == [{"variant": -2}]


@pytest.mark.parametrize("backward_inside", [True, False])
def test_training(backward_inside: bool) -> None:
    mlp, x = Mlp(), torch.randn(3, 4)
    mlp(x).sum().backward()
    expected = [p.grad for p in mlp.parameters()]
    mlp.zero_grad()
    compiled = torch.compile(mlp, backend="aot_eager", fullgraph=True)
    with use_custom_gemm():
        loss = compiled(x).sum()
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    torch.testing.assert_close([p.grad for p in mlp.parameters()], expected)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(dynamic: bool) -> None:
    mlp, x = Mlp(), torch.randn(3, 4)
    expected = mlp(x)
    compiled = torch.compile(mlp, fullgraph=True, dynamic=dynamic)
    with use_custom_gemm():
        result = compiled(x)
        result.sum().backward()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    mlp, x = Mlp(), torch.randn(3, 4)
    batch = {0: torch.export.Dim.DYNAMIC}
    with use_custom_gemm() as report:
        program = torch.export.export(mlp, (x,), dynamic_shapes=(batch,), strict=strict)
    targets = [str(node.target) for node in program.graph.nodes if "hgemm" in str(node.target)]
    assert targets == ["hgemm.linear.default"] * 2
    assert report.rows == []
    y = torch.randn(7, 4)
    torch.testing.assert_close(program.module()(y), mlp(y))


def test_errors_are_raised_while_tracing() -> None:
    with use_custom_gemm(), pytest.raises(RuntimeError, match="dtype"):
        torch.compile(lambda x: x @ x.mT.double(), backend="eager", fullgraph=True)(torch.randn(3, 4))
