"""Defines ``torch.ops.hgemm`` and registers everything of it that is written in Python.

``csrc/torch`` adds the CUDA kernels when the shared library is loaded, before or after.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hgemm_ops.ops import aten, autocast, autograd, fake, functionalize, schema, variants, vmap

__all__ = ["define_variants"]

# A FRAGMENT, because the shared library holds another; kept alive, because registrations die with it.
_LIB = torch.library.Library(schema.NAMESPACE, "FRAGMENT")
schema.define(_LIB)
for _module in (aten, fake, functionalize, autograd, autocast, vmap):
    _module.register(_LIB)


def define_variants(names: Sequence[str]) -> None:
    """Defines ``torch.ops.hgemm.<name>(a, b)`` for every kernel. To be called once, with the names in order of id."""
    variants.define_variants(_LIB, names)
