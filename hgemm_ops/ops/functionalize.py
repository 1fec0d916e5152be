"""Functionalization of the ``.out`` overloads, so that torch.compile traces them: the functional op, then a write.

torch does this by itself only for ops that return nothing or a fresh tensor, and torch's own ``out=`` returns ``out``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library
from torch._ops import OpOverload

from hgemm_ops.ops.schema import NAMESPACE, SIGNATURES


def _kernel(functional: OpOverload) -> Callable[..., Tensor]:
    def kernel(*args: Any, out: Tensor, **options: Any) -> Tensor:
        from torch._subclasses.functional_tensor import CppFunctionalizeAPI

        context = CppFunctionalizeAPI()
        inputs = context.unwrap_tensors(args)
        with context.redispatch_to_next():
            result = functional(*inputs, **options)
        context.replace(out, result)
        context.commit_update(out)
        context.sync(out)
        return out

    return kernel


def register(lib: library.Library) -> None:
    """Registers the functionalization of every ``.out`` overload on ``lib``."""
    for name in SIGNATURES:
        functional = getattr(getattr(torch.ops, NAMESPACE), name).default
        lib.impl(f"{name}.out", _kernel(functional), "Functionalize")
