"""``swap_linear``: layers that call our operator themselves, for eager code where a context would cost too much."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hgemm_ops import _native, _python_call
from hgemm_ops._lowering import Lowered
from hgemm_ops._report import call_of, torch_serves, why_torch_records
from hgemm_ops.ops.schema import NAMESPACE

__all__ = ["Linear", "swap_linear", "unswap_linear"]

_linear = getattr(torch.ops, NAMESPACE).linear.default
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack

_Key: TypeAlias = tuple[Any, ...]

# Of calls whose gradient is wanted: whether torch's function runs them, and whether only outside of CUDA graphs.
_recorded_by_torch: dict[_Key, tuple[bool, bool]] = {}
_native.on_new_table(_recorded_by_torch.clear)


def _torch_records(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether torch's autograd records a call whose gradient is wanted: as ``use_custom_gemm()`` decides it."""
    if not input.is_cuda or type(input) is not Tensor or _dispatch_modes():
        return False
    cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else input.dtype
    key = (input.shape, weight.shape, bias is None, cast, input.device)
    found = _recorded_by_torch.get(key)
    if found is None:
        call = call_of("", "linear", Lowered("linear", input, weight, bias))
        why, eager = why_torch_records(call, torch_serves(call))
        found = _recorded_by_torch[key] = (bool(why), eager)
    recorded, eager = found
    return recorded and not (eager and torch.cuda.is_current_stream_capturing())


@functools.cache
def _eager_linear() -> Callable[..., Any]:
    return _python_call.function("linear", _linear)


class Linear(nn.Linear):
    """``nn.Linear`` through ``torch.ops.hgemm.linear``: the same parameters, state and results.

    Shapes, dtypes and errors are those of :func:`hgemm_ops.linear`; the equivalent PyTorch line is
    ``F.linear(input, self.weight, self.bias)``.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        compiles = _is_compiling()
        trains = not compiles and _is_grad_enabled() and (weight.requires_grad or input.requires_grad)
        if trains and _torch_records(input, weight, bias):
            return F.linear(input, weight, bias)
        result: Tensor = (_linear if compiles else _eager_linear())(input, weight, bias)
        return result


def _change(model: nn.Module, old: type[nn.Linear], new: type[nn.Linear]) -> list[str]:
    names = []
    for name, module in model.named_modules():
        if type(module) is old and "forward" not in vars(module):
            module.__class__ = new
            names.append(name)
    return names


def swap_linear(model: nn.Module) -> list[str]:
    """Makes every ``nn.Linear`` of ``model`` a :class:`Linear`, in place; returns the names of these layers.

    The other way to send a model through our kernels, for inference where the host is the limit (eager code, few
    rows): torch hands ``use_custom_gemm()`` every call of its API and every look at a tensor's attributes, while here a
    layer's call costs what :func:`hgemm_ops.linear` does, and the rest nothing. It serves linear layers alone, and
    there is no report. In training torch's function runs the layers whose three products are torch's and, outside of
    CUDA graphs, those so small that they wait for the host, which our operator's gradient costs more.

    Parameters, buffers, hooks, ``state_dict`` and ``isinstance(layer, nn.Linear)`` stay as they are. Subclasses of
    ``nn.Linear`` and layers whose ``forward`` was replaced keep theirs. A copy or pickle of a swapped layer is swapped;
    ``unswap_linear`` takes it back. Works under torch.compile and in CUDA graphs.

    Args:
        model: with weights of any dtype on any device; what no kernel of ours serves runs torch's.
    """
    return _change(model, nn.Linear, Linear)


def unswap_linear(model: nn.Module) -> list[str]:
    """Undoes ``swap_linear``; returns the names of the layers that are ``nn.Linear`` again."""
    return _change(model, Linear, nn.Linear)
