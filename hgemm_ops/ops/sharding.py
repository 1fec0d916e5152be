"""DTensor sharding rules: which placements of the operands give which placement of the result, on one mesh dimension.

``register_sharding`` is in ``torch.distributed.tensor``, which ``import hgemm_ops`` must not import. DTensor runs the
fake implementation of an op, for the metadata of the result, before it looks for the op's strategy. The fake
implementations call ``register_if_loaded``, so the strategies are registered when the first DTensor arrives.
``register()`` registers them explicitly.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .schema import OPS

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

# The placements of the results, and those of the positional arguments (None for one that is not a tensor).
Strategy = tuple[list["Placement | None"], list["Placement | None"]]
# The meaning of each dimension of an operand: "m", "n", "k", or a batch dimension's position from the right.
Labels = list["int | str"]


def register_if_loaded() -> None:
    """Registers the strategies if ``torch.distributed.tensor`` has already been imported."""
    if "torch.distributed.tensor" in sys.modules:
        register()


@functools.cache
def register() -> None:
    """Registers the strategies of every functional op with DTensor, once."""
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
        "grouped_mm": _grouped_mm,
        "grouped_linear": _grouped_linear,
        "gate": _gate,
    }
    for name, strategy in strategies.items():
        register_sharding(getattr(OPS, name).default)(strategy)


def _labels(operand: Any, *matrix: str) -> Labels:
    return [*range(2 - len(operand.shape), 0), *matrix] if len(operand.shape) > 1 else ["k"]


def _placements(
    a: Any, b: Any, c: Any, *, b_matrix: tuple[str, str] = ("k", "n"), is_sum: bool = True
) -> list[list[Placement]]:
    """Returns every [y, a, b, c] placement of y = a @ b + c.

    ``is_sum``: includes those in which y is the sum of the ranks' matmuls.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    a_labels, b_labels = _labels(a, "m", "k"), _labels(b, *b_matrix)
    batch = max(a_labels[:-2], b_labels[:-2], key=len)
    y_labels: Labels = [*batch, *(label for label in ("m", "n") if label in a_labels + b_labels)]
    operands = [(a, a_labels), (b, b_labels)]
    if c is not None:
        operands.append((c, y_labels[len(y_labels) - len(c.shape) :]))

    placements: list[list[Placement]] = [[Replicate()] * 4]
    for dim, label in enumerate(y_labels):
        sizes = [t.shape[labels.index(label)] if label in labels else 1 for t, labels in operands]
        shards: list[Placement] = [
            Shard(labels.index(label)) if label in labels and size == max(sizes) else Replicate()
            for size, (_, labels) in zip(sizes, operands, strict=True)
        ]
        placements.append([Shard(dim), *shards, Replicate()][:4])
    if is_sum:
        placements.append([Partial(), Shard(a_labels.index("k")), Shard(b_labels.index("k")), Partial()])
        placements += [[Partial(), Partial(), Replicate(), Partial()], [Partial(), Replicate(), Partial(), Partial()]]
    return placements


def _matmul(a: Any, b: Any, **options: Any) -> list[Strategy]:
    return [([y], [pa, pb]) for y, pa, pb, _ in _placements(a, b, None)]


def _add_product(input: Any, a: Any, b: Any, **options: Any) -> list[Strategy]:
    return [([y], [pc, pa, pb]) for y, pa, pb, pc in _placements(a, b, input)]


def _linear(x: Any, weight: Any, *others: Any, **options: Any) -> list[Strategy]:
    """Returns the strategies of ``linear``. ``others`` are bias and act; the dispatcher drops trailing defaults."""
    bias, act = others + (None, 0)[len(others) :]
    placements = _placements(x, weight, bias, b_matrix=("n", "k"), is_sum=act == 0)  # act needs the complete sum
    return [([y], [px, pw, None if bias is None else pb, None][: 2 + len(others)]) for y, px, pw, pb in placements]


def _linear_save(*args: Any, **options: Any) -> list[Strategy]:
    return [(y * 2, arguments) for y, arguments in _linear(*args)]


def _linear_gated(x: Any, weight: Any, act: int, **options: Any) -> list[Strategy]:
    """Returns the strategies with the whole weight on every rank.

    If the rows of the weight were sharded, a rank would not have the rows of gate and up that belong together. If k
    were sharded, the activation would see a part of the sum.
    """
    placements = _placements(x, weight, None, b_matrix=("n", "k"), is_sum=False)
    return [([y], [px, pw, None]) for y, px, pw, _ in placements if pw.is_replicate()]


def _grouped_mm(a: Any, b: Any, *others: Any, **options: Any) -> list[Strategy]:
    """Returns the strategies of a grouped matmul. ``others`` is offs, where it is given.

    The dimension that is divided into groups is whole on every rank, since the ends count its elements. So are the
    groups, except in a batch without ends.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    a_labels, b_labels = ["g", "m", "k"][-len(a.shape) :], ["g", "k", "n"][-len(b.shape) :]
    y_labels = ["g", "m", "n"] if len(a.shape) == len(b.shape) else ["m", "n"]
    # By whether a and b are 2-D: the dimensions that may be sharded.
    free = {(True, False): "nk", (True, True): "mn", (False, True): "mk", (False, False): "gmnk"}

    def placement(labels: list[str], label: str) -> Placement:
        return Shard(labels.index(label)) if label in labels else Replicate()

    placements: list[list[Placement]] = [
        [Replicate(), Replicate(), Replicate()],
        [Partial(), Partial(), Replicate()],
        [Partial(), Replicate(), Partial()],
    ]
    for label in free[len(a.shape) == 2, len(b.shape) == 2]:
        y: Placement = Partial() if label == "k" else placement(y_labels, label)
        placements.append([y, placement(a_labels, label), placement(b_labels, label)])
    return [([y], [pa, pb, *(None if t is None else Replicate() for t in others)]) for y, pa, pb in placements]


def _grouped_linear(x: Any, w: Any, offs: Any, bias: Any, act: int, gated: bool, **options: Any) -> list[Strategy]:
    """Returns the strategies with every operand whole, or with a part of the columns on each rank."""
    from torch.distributed.tensor import Replicate, Shard

    whole, of_bias = Replicate(), None if bias is None else Replicate()
    strategies: list[Strategy] = [([whole], [whole, whole, whole, of_bias, None, None])]
    if not gated:
        strategies.append(
            ([Shard(1)], [whole, Shard(2), whole, None if bias is None else Shard(1), None, None]),
        )
    return strategies


def _gate(both: Any, act: int) -> list[Strategy]:
    from torch.distributed.tensor import Replicate, Shard

    return [([placement], [placement, None]) for placement in (Replicate(), Shard(0))]
