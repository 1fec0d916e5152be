"""Autocast: the ops run in the dtype of the enclosing torch.autocast, as torch.matmul and F.linear do.

torch's ``register_autocast`` fixes one dtype per device; these kernels ask torch at each call. Like torch, they
leave float64 and tensors of another device as they are.
NOTE: torch keeps the casts of leaf parameters in a cache that Python cannot reach, so a weight is cast at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library
from torch._ops import OpOverload

from hgemm_ops.ops.schema import NAMESPACE, SIGNATURES, second_factor

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def _kernel(name: str, op: OpOverload, device_type: str) -> Callable[..., Any]:
    autocast = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEYS[device_type]))
    weight = second_factor(name)

    def cast(value: Any, dtype: torch.dtype) -> Any:
        if (
            isinstance(value, Tensor)
            and value.device.type == device_type
            and value.is_floating_point()
            and value.dtype is not torch.float64
        ):
            return value.to(dtype)
        return value

    def kernel(*args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device_type)
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            given = tuple(cast(arg, dtype) for arg in args)
            if given[weight] is not args[weight]:
                options.pop("static_weights", None)  # the cast writes it right before
            return op(*given, **options)

    return kernel


def register(lib: library.Library) -> None:
    """Registers the autocast kernels of every functional op on ``lib``."""
    for name in (*SIGNATURES, "linear_save", "linear_gated", "matmul_swizzled"):
        op = getattr(getattr(torch.ops, NAMESPACE), name).default
        for device_type, key in _KEYS.items():
            lib.impl(name, _kernel(name, op, device_type), key)
