"""Other people's GEMMs, which ``hgemm bench --peer`` times beside torch and ours.

A module per peer, imported when it is asked for; nothing of this is needed to install or to use the package. A peer
offers configurations of itself for a case, and ``runner`` times the fastest one that is right: chosen by measurement,
per case, as torch's heuristics and our dispatcher choose without.
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
    """What a peer's module gives back from ``load()``, which raises ``Unavailable`` where the peer cannot run."""

    version: str

    def configurations(self, case: Case, operands: Operands) -> Mapping[str, Call]:
        """Ways to compute ``case``, whose buffer sets all have the shapes and strides of ``operands``, by name.

        A call raises ``Unavailable`` where its configuration does not take the case after all.

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
    """The peer, looked for once.

    Raises:
        Unavailable: it cannot run here.
    """
    found = _load(name)
    if isinstance(found, str):
        raise Unavailable(found)
    return found


def versions(names: Sequence[str]) -> dict[str, str]:
    """For a result file: the version of each peer, or why it is not available."""
    found = {name: _load(name) for name in names}
    return {name: f"unavailable: {peer}" if isinstance(peer, str) else peer.version for name, peer in found.items()}
