"""The GEMMs of other libraries, which ``hgemm bench --peer`` times beside torch and our kernels.

Each peer is a module, imported when it is asked for. Neither installing nor using the package needs any of them. A peer
offers several configurations for a case, and ``runner`` times the fastest one that is right. The choice is made by
measurement for each case, while torch's heuristics and our dispatcher choose without one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Protocol, cast

from torch import Tensor

from ..suites import Case
from ..workload import Operands

NAMES = ("cublaslt", "triton", "cutlass", "quack", "cublaslt_fixed", "triton_fixed")

Call = Callable[[Operands], Tensor]


class Unavailable(Exception):
    """A peer cannot run here, or does not take a case; the text says why."""


class Peer(Protocol):
    """What ``load()`` of a peer's module returns. It raises ``Unavailable`` where the peer cannot run."""

    version: str

    def configurations(self, case: Case, operands: Operands) -> Mapping[str, Call]:
        """The ways to compute ``case``, by name. All its buffer sets have the shapes and strides of ``operands``.

        A call raises ``Unavailable`` if its configuration does not take the case after all.

        Raises:
            Unavailable: the peer does not take the case.
        """


@cache
def _load(name: str) -> Peer | str:
    if name not in NAMES:
        raise ValueError(f"a peer is one of {', '.join(NAMES)}, got {name!r}")
    try:
        return cast(Peer, importlib.import_module(f".{name}", __name__).load())
    except Unavailable as reason:
        return str(reason)


def load(name: str) -> Peer:
    """Returns the peer. It is looked for only once.

    Raises:
        Unavailable: the peer cannot run here.
    """
    found = _load(name)
    if isinstance(found, str):
        raise Unavailable(found)
    return found


def versions(names: Sequence[str]) -> dict[str, str]:
    """The version of each peer, or why it is not available. For result files."""
    found = {name: _load(name) for name in names}
    return {name: f"unavailable: {peer}" if isinstance(peer, str) else peer.version for name, peer in found.items()}
