"""Registers the ops at two more of torch's dispatch keys.

* Autocast: the ops run in the dtype of the enclosing torch.autocast, as torch.matmul and F.linear do. Torch's
  ``register_autocast`` fixes one dtype per device, whereas these kernels ask torch at each call. NOTE: torch keeps the
  casts of leaf parameters in a cache that Python cannot reach, so a weight is cast at every call.
* Functionalize, for the ``.out`` overloads: torch.compile can then trace them, as the functional op and a write. Torch
  does this by itself only for ops that return nothing or a fresh tensor, and the ``.out`` overloads return ``out``, as
  torch's do.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library
from torch._ops import OpOverload
from torch.amp.autocast_mode import _cast

from .schema import OPS, OTHERS, SIGNATURES


def _autocast(op: OpOverload, device_type: str, key: str) -> Callable[..., Any]:
    autocast = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any, **options: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return op(*_cast(args, device_type, torch.get_autocast_dtype(device_type)), **options)

    return kernel


def _functionalize(functional: OpOverload) -> Callable[..., Tensor]:
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


def register_autocast(lib: library.Library, name: str) -> None:
    """Registers the Autocast kernels of an op on ``lib``."""
    op = getattr(OPS, name).default
    for device_type, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        lib.impl(name, _autocast(op, device_type, key), key)


def register(lib: library.Library) -> None:
    """Registers the Autocast and Functionalize kernels of every op on ``lib``."""
    for name in (*SIGNATURES, *OTHERS):
        register_autocast(lib, name)
        if name in SIGNATURES:
            op = getattr(OPS, name).default
            lib.impl(f"{name}.out", _functionalize(op), "Functionalize")
