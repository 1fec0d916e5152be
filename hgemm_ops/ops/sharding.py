"""DTensor: which placements of the operands give which placement of the result, on one dimension of the mesh.

``register_sharding`` lives in ``torch.distributed.tensor``, which ``import hgemm_ops`` must not import. DTensor runs an
op's fake implementation, for the result's metadata, before it looks for the op's strategy: the fake implementations
call ``register_if_loaded``, so the strategies are there when the first DTensor arrives. ``register()`` does it by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hgemm_ops.ops.schema import NAMESPACE

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

# Placements of the results and of the positional arguments (None: not a tensor).
Strategy = tuple[list["Placement | None"], list["Placement | None"]]

_registered = False


def register_if_loaded() -> None:
    """Registers the strategies once ``torch.distributed.tensor`` has been imported by somebody else."""
    if not _registered and "torch.distributed.tensor" in sys.modules:
        register()


def register() -> None:
    """Registers the strategies of every functional op with DTensor."""
    global _registered
    if _registered:
        return
    _registered = True
    from torch.distributed.tensor.experimental import register_sharding

    strategies: dict[str, Callable[..., list[Strategy]]] = {
        "matmul": _matmul,
        "mm": _matmul,
        "bmm": _matmul,
        "addmm": _add_product,
        "baddbmm": _add_product,
        "linear": _linear,
        "linear_save": _linear_save,
        "linear_gated": _linear_gated,
    }
    for name, strategy in strategies.items():
        register_sharding(getattr(getattr(torch.ops, NAMESPACE), name).default)(strategy)


def _aligned(spec: Any, dim: int, rank: int, size: int) -> Placement:
    """Placement of an operand when dimension ``dim`` of a result of ``rank`` dimensions is sharded: its own dimension
    there, counted from the right, unless it broadcasts along it."""
    from torch.distributed.tensor import Replicate, Shard

    own = dim - (rank - len(spec.shape))
    return Shard(own) if own >= 0 and spec.shape[own] == size else Replicate()


def _product(a: Any, b: Any) -> tuple[list[int], list[tuple[Placement, Placement, Placement]]]:
    """The result's shape, and the (result, a, b) placements of a @ b."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    a_rank, b_rank = len(a.shape), len(b.shape)
    batch = list(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    rows = list(a.shape[-2:-1]) if a_rank > 1 else []
    columns = list(b.shape[-1:]) if b_rank > 1 else []
    shape = [*batch, *rows, *columns]

    placements: list[tuple[Placement, Placement, Placement]] = [(Replicate(), Replicate(), Replicate())]
    for i, size in enumerate(batch):
        own = i - len(batch)  # from the right, before the matrix dimensions
        a_dim, b_dim = own + a_rank - 2, own + b_rank - 2
        placements.append(
            (
                Shard(i),
                Shard(a_dim) if a_dim >= 0 and a.shape[a_dim] == size else Replicate(),
                Shard(b_dim) if b_dim >= 0 and b.shape[b_dim] == size else Replicate(),
            )
        )
    if rows:
        placements.append((Shard(len(batch)), Shard(a_rank - 2), Replicate()))
    if columns:
        placements.append((Shard(len(shape) - 1), Replicate(), Shard(b_rank - 1)))
    placements.append((Partial(), Shard(a_rank - 1), Shard(max(b_rank - 2, 0))))
    placements.append((Partial(), Partial(), Replicate()))
    placements.append((Partial(), Replicate(), Partial()))
    return shape, placements


def _matmul(a: Any, b: Any, **options: Any) -> list[Strategy]:
    return [([y], [pa, pb]) for y, pa, pb in _product(a, b)[1]]


def _add_product(input: Any, a: Any, b: Any, **options: Any) -> list[Strategy]:
    from torch.distributed.tensor import Shard

    shape, placements = _product(a, b)
    return [
        ([y], [_aligned(input, y.dim, len(shape), shape[y.dim]) if isinstance(y, Shard) else y, pa, pb])
        for y, pa, pb in placements
    ]


def _linear_placements(x: Any, weight: Any, bias: Any, act: int) -> list[list[Placement]]:
    """The [result, x, weight, bias] placements of a linear layer; without a bias the last one counts for nothing."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    shape = [*x.shape[:-1], *weight.shape[:-1]]
    last = len(x.shape) - 1

    def bias_placement(dim: int) -> Placement:
        return Replicate() if bias is None else _aligned(bias, dim, len(shape), shape[dim])

    placements: list[list[Placement]] = [[Replicate(), Replicate(), Replicate(), Replicate()]]
    placements += [[Shard(i), Shard(i), Replicate(), bias_placement(i)] for i in range(last)]  # batch, sequence
    if len(weight.shape) == 2:
        placements.append([Shard(last), Replicate(), Shard(0), bias_placement(last)])  # column-wise
    if act == 0:  # an activation needs the whole sum
        placements.append([Partial(), Shard(last), Shard(len(weight.shape) - 1), Partial()])  # row-wise
    return placements


def _linear_arguments(placements: list[Placement], arguments: Sequence[Any]) -> list[Placement | None]:
    """One placement for each argument that was passed: the dispatcher drops trailing defaults."""
    _, x, weight, bias = placements
    has_bias = len(arguments) > 2 and arguments[2] is not None
    return [x, weight, bias if has_bias else None, None][: len(arguments)]


def _linear(*arguments: Any, **options: Any) -> list[Strategy]:
    defaults = (None, 0)  # bias, act
    x, weight, bias, act = arguments + defaults[len(arguments) - 2 :]
    return [([p[0]], _linear_arguments(p, arguments)) for p in _linear_placements(x, weight, bias, act)]


def _linear_save(x: Any, weight: Any, bias: Any, act: int, **options: Any) -> list[Strategy]:
    placements = _linear_placements(x, weight, bias, act)
    return [([p[0], p[0]], _linear_arguments(p, (x, weight, bias, act))) for p in placements]


def _linear_gated(x: Any, weight: Any, act: int, **options: Any) -> list[Strategy]:
    """Whole weights alone: a shard's rows are not the rows that belong together, and the gate needs the whole sum."""
    from torch.distributed.tensor import Replicate, Shard

    rows = [Replicate(), *(Shard(i) for i in range(len(x.shape) - 1))]
    return [([y], [y, Replicate(), None]) for y in rows]
