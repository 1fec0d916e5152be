"""use_custom_gemm() on two GPUs: tensor parallel, FSDP2 and DDP models, eager and compiled, train as without it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from helpers import DEVICE, ON_GPU, assert_as_good, calls
from torch import Tensor, nn

from hgemm_ops import use_custom_gemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not built"),
]

RANKS = 2
DTYPE = torch.float16 if ON_GPU else torch.float32  # gloo does not add up halves everywhere


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


def model(dtype: torch.dtype = DTYPE) -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(Mlp(), Mlp()).to(DTYPE).to(DEVICE, dtype)


def batch() -> Tensor:
    """Of all ranks together."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(RANKS, 64, 128, generator=generator).to(DTYPE).to(DEVICE)


def full(x: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x


def step(net: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The output, and the gradients of its mean square."""
    net.zero_grad()
    out = run(x)
    (full(out).float().square().mean() * 256).backward()
    return [full(out).detach(), *(full(p.grad).clone() for p in net.parameters() if p.grad is not None)]


def tensor_parallel(net: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {
        f"{i}.{name}": kind for i in range(2) for name, kind in (("up", ColwiseParallel()), ("down", RowwiseParallel()))
    }
    return parallelize_module(net, mesh, plan)


def fsdp(net: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in net:  # type: ignore[attr-defined]
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def ddp(net: nn.Module, mesh: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net, device_ids=[dist.get_rank()] if ON_GPU else None)


WAYS = {"tensor_parallel": tensor_parallel, "fsdp": fsdp, "ddp": ddp}


def check(way: str, compiled: bool, mesh: Any) -> None:
    whole = way == "tensor_parallel"  # every rank computes the whole batch
    x = batch() if whole else batch()[dist.get_rank()]
    exact_model = model(torch.float64)
    exact = step(exact_model, exact_model, batch().double())
    exact[0] = exact[0] if whole else exact[0][dist.get_rank()]

    nets = [WAYS[way](copy.deepcopy(model()), mesh) for _ in range(2)]
    backend = "inductor" if ON_GPU else "aot_eager"
    runs = [torch.compile(net, backend=backend) if compiled else net for net in nets]
    theirs = step(nets[0], runs[0], x)
    for _ in range(3):  # a new context at every step; the first compiles inside it
        with use_custom_gemm() as report:
            ours = step(nets[1], runs[1], x)
        assert len(ours) == len(theirs) == len(exact)
        for got, other, ref in zip(ours, theirs, exact, strict=True):
            assert_as_good(got, other, ref, units=4)
        assert calls(report) >= 4 + 7 or not ON_GPU, str(report)
    with torch._dynamo.config.patch(error_on_recompile=True):
        step(nets[1], runs[1], x)
        with use_custom_gemm(variant="torch"):
            step(nets[1], runs[1], x)
    torch._dynamo.reset()


def worker(rank: int, way: str, store: str) -> None:
    torch.set_num_threads(1)
    if ON_GPU:
        torch.cuda.set_device(rank)
    backend, timeout = ("nccl", 300) if ON_GPU else ("gloo", 120)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=timeout)
    )
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(dist.destroy_process_group)
        mesh = dist.device_mesh.init_device_mesh(DEVICE, (RANKS,))
        for compiled in (False, True):
            check(way, compiled, mesh)


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_train_as_without_it(way: str, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(worker, (way, str(tmp_path / "store")), nprocs=RANKS)


@pytest.mark.skipif(not ON_GPU, reason="threads with a GPU each")
def test_data_parallel_threads_are_served() -> None:
    """nn.DataParallel's threads entered no context; each has its GPU."""
    net, x = model(), batch().flatten(0, 1)
    exact, theirs = model(torch.float64)(x.double()), net(x)
    with use_custom_gemm() as report:
        ours = nn.DataParallel(net)(x)
    assert_as_good(ours, theirs, exact, units=4)
    assert calls(report) == 4 * RANKS
