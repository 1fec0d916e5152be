"""Autocast: the ops run in the dtype of the enclosing torch.autocast, as torch.matmul and F.linear do.

torch's ``register_autocast`` fixes one dtype per device; these kernels ask torch at each call.
NOTE: torch keeps the casts of leaf parameters in a cache that Python cannot reach, so a weight is cast at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import library
from torch._ops import OpOverload
from torch.amp.autocast_mode import _cast

from hgemm_ops.ops.schema import NAMESPACE, OTHERS, SIGNATURES


def _kernel(op: OpOverload, device_type: str, key: str) -> Callable[..., Any]:
    autocast = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any, **options: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return op(*_cast(args, device_type, torch.get_autocast_dtype(device_type)), **options)

    return kernel


def register(lib: library.Library) -> None:
    """Registers the autocast kernels of every functional op on ``lib``."""
    for name in (*SIGNATURES, *OTHERS):
        op = getattr(getattr(torch.ops, NAMESPACE), name).default
        for device_type, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
            lib.impl(name, _kernel(op, device_type, key), key)
