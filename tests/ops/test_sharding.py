"""DTensor: the ops on sharded tensors, tensor parallelism and FSDP, on two processes (gloo, CPU)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import hgemm_ops  # noqa: F401  (registers torch.ops.hgemm)

hgemm = torch.ops.hgemm
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not built")


class MLP(nn.Module):
    """Two of our linear layers; ``up`` fuses its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Linear(8, 32, act=2), Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


class Linear(nn.Linear):
    def __init__(self, n_in: int, n_out: int, act: int = 0) -> None:
        super().__init__(n_in, n_out)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return hgemm.linear(x, self.weight, self.bias, self.act)


def assert_close(got: Tensor, expected: Tensor, name: str) -> None:
    tolerance = 1e-2 if "float32" in name else 1e-4  # its operands and gradients are bfloat16
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}")


def check_placements(mesh: Any) -> None:
    """Every pair of placements of the operands, against the product of the whole tensors; and which stay local."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    def full(t: Tensor) -> Tensor:
        return t.full_tensor() if isinstance(t, DTensor) else t

    def grouped(a: Tensor, b: Tensor) -> Tensor:
        ends = torch.tensor([1, 4], dtype=torch.int32)
        return hgemm.grouped_mm(a, b, distribute_tensor(ends, mesh, [Replicate()]) if isinstance(a, DTensor) else ends)

    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
        "mm": (hgemm.mm, torch.mm, ((4, 6), (6, 8))),
        "bmm": (hgemm.bmm, torch.bmm, ((2, 4, 6), (2, 6, 8))),
        "matmul": (hgemm.matmul, torch.matmul, ((2, 4, 6), (6, 8))),
        "matmul broadcast": (hgemm.matmul, torch.matmul, ((2, 1, 4, 6), (2, 6, 8))),
        "matmul vectors": (hgemm.matmul, torch.matmul, ((6,), (6,))),
        "matmul vector": (hgemm.matmul, torch.matmul, ((2, 4, 6), (6,))),
        "addmm": (
            lambda *t: hgemm.addmm(*t, alpha=0.5),
            lambda *t: torch.addmm(*t, alpha=0.5),
            ((8,), (4, 6), (6, 8)),
        ),
        "baddbmm": (hgemm.baddbmm, torch.baddbmm, ((4, 1), (2, 4, 6), (2, 6, 8))),
        "linear": (hgemm.linear, F.linear, ((2, 4, 6), (8, 6), (8,))),
        "linear no bias": (hgemm.linear, F.linear, ((4, 6), (8, 6))),
        "linear silu": (
            lambda *t: hgemm.linear(*t, 4),
            lambda *t: F.silu(F.linear(*t)),
            ((2, 4, 6), (8, 6), (8,)),
        ),
        "linear_gated": (
            lambda x, w: hgemm.linear_gated(x, w, 4),
            lambda x, w: F.silu(F.linear(x, w[:4])) * F.linear(x, w[4:]),
            ((2, 4, 6), (8, 6)),
        ),
        "grouped by rows": (grouped, grouped, ((4, 6), (2, 6, 8))),
        "grouped by k": (grouped, grouped, ((6, 4), (4, 8))),
        "grouped by columns": (grouped, grouped, ((2, 8, 6), (6, 4))),
        "grouped batch": (hgemm.grouped_mm, torch.bmm, ((2, 4, 6), (2, 6, 8))),
        "gate": (lambda t: hgemm.gate(t, 4), lambda t: F.silu(t[:, :4]) * t[:, 4:], ((6, 8),)),
        "linear float32": (
            lambda x, w: hgemm.linear(x.bfloat16(), w.bfloat16(), out_dtype=torch.float32),
            lambda x, w: F.linear(x.bfloat16().float(), w.bfloat16().float()),
            ((4, 6), (8, 6)),
        ),
    }
    for name, (ours, theirs, shapes) in cases.items():
        torch.manual_seed(0)
        values = [torch.randn(shape) for shape in shapes]
        for i in range(len(shapes)):
            for dim in range(len(shapes[i])):
                if shapes[i][dim] == 1:
                    continue  # nor does torch's own broadcasting product take a sharded dimension of size 1
                placed = [
                    distribute_tensor(v, mesh, [Shard(dim) if i == j else Replicate()]).requires_grad_()
                    for j, v in enumerate(values)
                ]
                plain = [v.clone().requires_grad_() for v in values]
                out, expected = ours(*placed), theirs(*plain)
                assert_close(full(out), expected, name)
                out.sum().backward()
                expected.sum().backward()
                for got, want in zip(placed, plain, strict=True):
                    assert_close(full(got.grad), want.grad, name)

    x, w, bias = torch.randn(4, 6), torch.randn(8, 6), torch.randn(8)
    columns = hgemm.linear(
        distribute_tensor(x, mesh, [Replicate()]),
        distribute_tensor(w, mesh, [Shard(0)]),
        distribute_tensor(bias, mesh, [Shard(0)]),
        2,
    )
    rows = hgemm.linear(distribute_tensor(x, mesh, [Shard(1)]), distribute_tensor(w, mesh, [Shard(1)]))
    assert columns.placements == (Shard(1),), "column-wise: no communication, the activation included"
    assert rows.placements == (Partial(),), "row-wise: the sum is left to whoever needs it"
    x, w, bias, ends = (
        torch.randn(4, 6),
        torch.randn(2, 6, 8),
        torch.randn(2, 8),
        torch.tensor([3, 4], dtype=torch.int32),
    )
    replicated = [distribute_tensor(t, mesh, [Replicate()]) for t in (x, w, ends, bias)]
    by_columns = [distribute_tensor(t, mesh, [Shard(dim)]) for t, dim in ((w, 2), (bias, 1))]
    with torch.no_grad():
        for placed, placement in (
            (replicated, Replicate()),
            ([replicated[0], by_columns[0], replicated[2], by_columns[1]], Shard(1)),
        ):
            out = hgemm.grouped_linear(*placed, 4, False)
            assert out.placements == (placement,)
            assert_close(full(out), hgemm.grouped_linear(x, w, ends, bias, 4, False), "grouped_linear")
    x, w = torch.randn(4, 6), torch.randn(8, 6)
    inner = hgemm.mm(distribute_tensor(x, mesh, [Shard(1)]), distribute_tensor(w.t(), mesh, [Shard(0)]))
    assert inner.placements == (Partial(),)


def check_parallel_modules(mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    reference, x = MLP(), torch.randn(4, 3, 8)
    expected = F.linear(F.gelu(F.linear(x, reference.up.weight, reference.up.bias)), *reference.down.parameters())
    expected.square().sum().backward()

    def copy() -> MLP:
        model = MLP()
        model.load_state_dict(reference.state_dict())
        return model

    def check(model: nn.Module, run: Callable[[Tensor], Tensor]) -> None:
        out = run(x)
        out.square().sum().backward()
        torch.testing.assert_close(out, expected)
        for got, want in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(got.grad.full_tensor(), want.grad, rtol=1e-4, atol=1e-4)

    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(copy(), mesh, plan)
    check(model, model)
    model = parallelize_module(copy(), mesh, plan)
    check(model, torch.compile(model, fullgraph=True, backend="aot_eager"))
    model = copy()
    fully_shard(model, mesh=mesh)
    check(model, model)


def worker(rank: int, world_size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    try:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (world_size,))
        check_placements(mesh)
        check_parallel_modules(mesh)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(worker, (2, str(tmp_path / "store")), nprocs=2)


def test_import_leaves_dtensor_alone() -> None:
    """``import hgemm_ops`` must not pay for torch.distributed.tensor, nor torch.compile's machinery."""
    code = (
        "import sys, torch; before = set(sys.modules); import hgemm_ops; "
        "new = set(sys.modules) - before; "
        "assert not {'torch.distributed.tensor', 'torch._dynamo', 'torch._inductor', 'sympy'} & new, new"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
