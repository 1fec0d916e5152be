"""Defines ``torch.ops.hgemm``, and registers the implementations that are written in Python.

``csrc/torch`` adds the CUDA kernels when the shared library is loaded, before or after this module.
``hgemm_ops._variants`` adds an op for each kernel.
"""

from torch import library

from . import aten, autograd, flops, grouped, keys, schema, variants

__all__ = ["LIB", "variants"]

# A FRAGMENT, because the shared library defines another one. It is kept alive, because the registrations die with it.
LIB = library.Library(schema.NAMESPACE, "FRAGMENT")
schema.define(LIB)
for _module in (aten, autograd, keys, grouped):
    _module.register(LIB)
flops.register_if_loaded()
