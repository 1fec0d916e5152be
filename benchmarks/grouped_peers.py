"""Other ways to compute a grouped matmul, which ``grouped.py --peers`` times beside torch and our kernels.

``loop``: one ``torch.mm`` for each group that has rows. Its kernels are launched from the host, so the host must know
where each group ends. The loop gets this for free here, while a model would have to wait for the GPU first.

``triton``: the persistent kernel that ``torch.compile`` has for ``torch._grouped_mm``, with ``max-autotune`` and
without ATen's kernels. All of inductor's tiles are compiled and timed for each model, layer and number of tokens, with
groups of equal size. Before torch 2.11 inductor times them with empty groups, so that its choice is random.

``triton`` reads the ends of the groups from the GPU, as our kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hgemm_ops.bench import peers
from hgemm_ops.bench.peers import Unavailable, triton

NAMES = ("loop", "triton")


@dataclass(frozen=True)
class Operands:
    """The operands of ``torch._grouped_mm``.

    a, b: (rows, K) and (groups, K, N), or for the gradient of weights (M, rows) and (rows, N).
    ends: (groups,) in int32, the last row of each group plus one.
    counts: the rows of each group, known to the host.
    """

    a: Tensor
    b: Tensor
    ends: Tensor
    counts: tuple[int, ...]

    @property
    def of_weights(self) -> bool:
        """Whether the result is the gradient of weights, a matrix for each group."""
        return self.b.dim() == 2

    def empty(self) -> Tensor:
        """Memory for the result."""
        groups = (len(self.counts),) if self.of_weights else ()
        return self.a.new_empty((*groups, self.a.size(0), self.b.size(-1)))


Call = Callable[[Operands], Tensor]


class Peer(Protocol):
    version: str

    def prepare(self, x: Operands) -> tuple[str, Call]:
        """What the peer runs for operands with these shapes and strides, and a function that runs it.

        Raises:
            Unavailable: the peer does not take these operands.
        """


class Loop:
    def __init__(self) -> None:
        self.version = f"torch {torch.__version__}"

    def prepare(self, x: Operands) -> tuple[str, Call]:
        return "torch.mm", loop


def loop(x: Operands) -> Tensor:
    out, first = x.empty(), 0
    for group, count in enumerate(x.counts):
        rows = slice(first, first + count)
        first += count
        if not x.of_weights and count:
            torch.mm(x.a[rows], x.b[group], out=out[rows])
        elif x.of_weights and count:
            torch.mm(x.a[:, rows], x.b[rows], out=out[group])
        elif x.of_weights:
            out[group].zero_()
    return out


class Triton:
    def __init__(self) -> None:
        self.version = peers.load("triton").version
        from torch._inductor.async_compile import AsyncCompile

        # Until the processes that compile are up, inductor compiles in threads, of which one runs at a time.
        AsyncCompile.wait_pool_ready()

    def prepare(self, x: Operands) -> tuple[str, Call]:
        """Compiles the kernel. For the same shapes once more, inductor finds it in its cache."""
        name, run = triton.compiled(lambda a, b, ends: torch._grouped_mm(a, b, offs=ends), x.a, x.b, x.ends)
        if name == triton.NO_TEMPLATE:
            raise Unavailable("torch.compile found no Triton kernel")
        return name, lambda x: run(x.a, x.b, x.ends)


_KINDS = {"loop": Loop, "triton": Triton}


def load(name: str) -> Peer | str:
    """Returns the peer, or the reason why it cannot run here."""
    try:
        return _KINDS[name]()
    except Unavailable as why:
        return str(why)
    except Exception as problem:  # loading a peer loads compilers and drivers
        return f"{type(problem).__name__}: {problem}"
