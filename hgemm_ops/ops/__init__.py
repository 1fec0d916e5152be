"""Defines ``torch.ops.hgemm`` and registers everything of it that is written in Python.

``csrc/torch`` adds the CUDA kernels when the shared library is loaded, before or after.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import library

from hgemm_ops.ops import aten, autocast, autograd, elementwise, functionalize, schema, variants
from hgemm_ops.ops.elementwise import Addition
from hgemm_ops.ops.variants import NO_LADDER, Kernel

__all__ = ["NO_LADDER", "Addition", "Kernel", "define_additions", "define_kernels", "define_missing"]

# A FRAGMENT, because the shared library holds another; kept alive, because registrations die with it.
_LIB = library.Library(schema.NAMESPACE, "FRAGMENT")
schema.define(_LIB)
for _module in (aten, functionalize, autograd, autocast):
    _module.register(_LIB)


def define_kernels(kernels: Sequence[Kernel]) -> None:
    """Defines ``torch.ops.hgemm.<name>(a, b)`` for every kernel. To be called once."""
    variants.define_kernels(_LIB, kernels)


def define_additions(additions: Sequence[Addition]) -> None:
    """Defines ``torch.ops.hgemm.<name>(a, b)`` for every elementwise addition. To be called once."""
    elementwise.define_additions(_LIB, additions)


def define_missing(names: Sequence[str]) -> None:
    """Defines ``torch.ops.hgemm.<name>`` for steps of a ladder that was not built: RuntimeError. To be called once."""
    variants.define_missing(_LIB, names)
