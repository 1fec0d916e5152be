"""Defines ``torch.ops.hgemm`` and registers everything of it that is written in Python.

``csrc/torch`` adds the CUDA kernels when the shared library is loaded, before or after; ``hgemm_ops._variants`` the ops
of its kernels.
"""

from torch import library

from hgemm_ops.ops import aten, autograd, keys, schema, variants

__all__ = ["LIB", "variants"]

# A FRAGMENT, because the shared library holds another; kept alive, because registrations die with it.
LIB = library.Library(schema.NAMESPACE, "FRAGMENT")
schema.define(LIB)
for _module in (aten, autograd, keys):
    _module.register(LIB)
