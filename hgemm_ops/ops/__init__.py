"""Defines ``torch.ops.hgemm`` and registers everything of it that is written in Python.

``csrc/torch`` adds the CUDA kernels when the shared library is loaded, before or after.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import library

from hgemm_ops.ops import aten, autocast, autograd, elementwise, functionalize, schema, variants
from hgemm_ops.ops.elementwise import Addition
from hgemm_ops.ops.variants import Kernel

__all__ = ["Addition", "Kernel", "define_additions", "define_kernels"]

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
