"""Other ways to compute a grouped matmul, which ``grouped.py --peers`` times beside torch and our kernels.

``loop``: one ``torch.mm`` for each group that has rows. Its kernels are launched from the host, so the host must know
where each group ends. The loop gets this for free here, while a model would have to wait for the GPU first.

``triton``: the persistent kernel that ``torch.compile`` has for ``torch._grouped_mm``, with ``max-autotune`` and
without ATen's kernels. All of inductor's tiles are compiled and timed for each model, layer and number of tokens, with
groups of equal size. Before torch 2.11 inductor times them with empty groups, so that its choice is random.

``quack``: QuACK's GEMM for sequences of different lengths, from the ``quack-kernels`` wheel. It needs Hopper.

All but ``loop`` read the ends of the groups from the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hgemm_ops.bench import peers
from hgemm_ops.bench.peers import Unavailable, quack, triton

NAMES = ("loop", "triton", "quack")
#: Of QuACK's tiles (M, N). Each is compiled once, for all sizes of operands.
TILES = ((64, 256, True), (128, 128, True), (128, 192, True), (128, 256, False), (256, 128, False))


@dataclass(frozen=True)
class Operands:
    """The operands of ``torch._grouped_mm``.

    a, b: (rows, K) and (groups, K, N), or for the gradient of weights (M, rows) and (rows, N).
    bounds: (groups + 1,) in int32, the first row of each group, and the number of all rows.
    ends: the last row of each group plus one. It has its own memory, because Triton wants operands aligned to 16 bytes.
    counts: the rows of each group, known to the host.
    """

    a: Tensor
    b: Tensor
    bounds: Tensor
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

    def configurations(self, x: Operands) -> Mapping[str, Call]:
        """The ways to compute a product of operands with these shapes and strides, by name.

        Raises:
            Unavailable: the peer does not take these operands.
        """


class Loop:
    def __init__(self) -> None:
        self.version = f"torch {torch.__version__}"

    def configurations(self, x: Operands) -> Mapping[str, Call]:
        return {"torch.mm": loop}


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

    def configurations(self, x: Operands) -> Mapping[str, Call]:
        """Compiles the kernel. For the same shapes once more, inductor finds it in its cache."""
        name, run = triton.compiled(lambda a, b, ends: torch._grouped_mm(a, b, offs=ends), x.a, x.b, x.ends)
        if name == triton.NO_TEMPLATE:
            raise Unavailable("torch.compile found no Triton kernel")
        return {name: lambda x: run(x.a, x.b, x.ends)}


class Quack:
    def __init__(self) -> None:
        found = quack.load()
        self.version, self._gemm = found.version, found.gemm

    def configurations(self, x: Operands) -> Mapping[str, Call]:
        return {quack.Config(m, n, (2, 1), pingpong).name: self._call(m, n, pingpong) for m, n, pingpong in TILES}

    def _call(self, m: int, n: int, pingpong: bool) -> Call:
        def run(x: Operands) -> Tensor:
            out = x.empty()
            bounds = {"cu_seqlens_k" if x.of_weights else "cu_seqlens_m": x.bounds}
            self._gemm(x.a, x.b.mT, out, None, None, m, n, 2, 1, pingpong=pingpong, **bounds)
            return out

        return run


_KINDS = {"loop": Loop, "triton": Triton, "quack": Quack}


def load(name: str) -> Peer | str:
    """Returns the peer, or the reason why it cannot run here."""
    try:
        return _KINDS[name]()
    except Unavailable as why:
        return str(why)
    except Exception as problem:  # loading a peer loads compilers and drivers
        return f"{type(problem).__name__}: {problem}"
