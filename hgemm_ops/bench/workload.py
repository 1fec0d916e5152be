"""Tensors and calls of a case: ours, torch's, and the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import hgemm_ops
from hgemm_ops import _library, _native

from .suites import Case

INPUTS = ("normal", "uniform")

_APPLY: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class Operands:
    """A (batch, m, k) and B (batch, k, n), without the batch where it is 1, and the bias (n,).

    ``add`` has two (m, n) tensors. ``chain`` has the input, the last weight transposed, and all weights, each (n, k).
    """

    a: Tensor
    b: Tensor
    bias: Tensor | None
    chain: tuple[Tensor, ...] = ()


def make_operands(case: Case, generator: torch.Generator, inputs: str = "normal") -> Operands:
    """Draws the operands of ``case`` on the generator's device: N(0, 1), or U[-1, 1] where ``inputs`` is "uniform"."""
    if inputs not in INPUTS:
        raise ValueError(f"inputs must be one of {INPUTS}, got {inputs!r}")
    options: dict[str, Any] = {"dtype": getattr(torch, case.dtype), "device": generator.device, "generator": generator}

    def draw(*shape: int) -> Tensor:
        if inputs == "normal":
            return torch.randn(shape, **options)
        return torch.rand(shape, **options).mul_(2).sub_(1)

    def matrix(rows: int, columns: int, order: str) -> Tensor:
        batch = (case.batch,) if case.batch > 1 else ()
        if order == "N":
            return draw(*batch, rows, columns + case.padding)[..., :columns]
        return draw(*batch, columns, rows + case.padding)[..., :rows].mT

    if case.op == "add":
        return Operands(draw(case.m, case.n), draw(case.m, case.n), None)
    if case.op == "chain":
        # Divided by the square root of k, so that the values neither grow nor vanish along the chain.
        chain = tuple(draw(n, k).div_(k**0.5) for n, k in case.layers)
        return Operands(draw(case.m, case.k), chain[-1].mT, None, chain)
    a, b = matrix(case.m, case.k, case.layout[0]), matrix(case.k, case.n, case.layout[1])
    return Operands(a, b, draw(case.n) if case.bias else None)


def torch_call(case: Case) -> Callable[[Operands], Tensor]:
    """The call that a user of torch alone would write."""
    if case.op == "add":
        return lambda x: torch.add(x.a, x.b)
    if case.op == "matmul":
        return lambda x: torch.matmul(x.a, x.b)
    if case.op == "chain":
        return _chain_call(F.linear)
    apply = _APPLY[case.activation]
    return lambda x: apply(F.linear(x.a, x.b.mT, x.bias))


def _chain_call(linear: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Operands], Tensor]:
    def call(x: Operands) -> Tensor:
        y = x.a
        for weight in x.chain:
            y = linear(y[:, : weight.size(1)], weight)
        return y

    return call


def torch_fused_call(case: Case) -> Callable[[Operands], Tensor] | None:
    """The one-kernel form that inductor uses (cuBLASLt's epilogue).

    None for cases without a bias, and for activations that this form does not have.
    """
    if case.op != "linear" or not case.bias or case.activation not in ("relu", "gelu_tanh"):
        return None
    gelu = case.activation == "gelu_tanh"

    def call(x: Operands) -> Tensor:
        assert x.bias is not None
        return torch._addmm_activation(x.bias, x.a, x.b, use_gelu=gelu)

    return call


def standing_float32() -> str:
    """The float32 mode that is in effect on this thread.

    A context follows this mode as it is. An op that names no mode follows only "split", and else leaves float32 to
    torch.
    """
    return _native.FLOAT32[_native.lib().hgemm_standing_float32()] if _library.load() else "strict"


def hgemm_call(case: Case, variant: str | None, numerics: str | None = None) -> Callable[[Operands], Tensor]:
    """A call of the kernel ``variant``, or of the dispatcher's choice if it is None.

    ``numerics`` is the mode of the call. None is the mode in effect.
    """
    if case.op == "add":
        if variant is None:
            raise ValueError("the elementwise sum has no dispatcher: name a variant")
        add = getattr(torch.ops.hgemm, variant)
        return lambda x: add(x.a, x.b)
    if case.op == "chain":
        raise ValueError("a chain has no kernel of its own: chain_call")
    float32 = standing_float32() if case.dtype == "float32" else None
    if case.op == "matmul":
        return lambda x: hgemm_ops.matmul(x.a, x.b, variant=variant, numerics=numerics, float32=float32)
    return lambda x: hgemm_ops.linear(
        x.a, x.b.mT, x.bias, activation=case.activation, variant=variant, numerics=numerics, float32=float32
    )


def chain_call() -> Callable[[Operands], Tensor]:
    """A call of a chain in which the dispatcher chooses every kernel."""
    return _chain_call(hgemm_ops.linear)


def stream_call(case: Case, device: torch.device) -> Callable[[Operands], Tensor] | None:
    """A call of a kernel that only reads the weights, with one launch for each weight.

    None where the case is no decode case, or the device is no GPU.
    """
    if not case.weight_bytes or device.type != "cuda":
        return None

    def call(x: Operands) -> Tensor:
        sink = torch.empty(1, dtype=torch.int32, device=x.a.device)
        for weight in x.chain or (x.b if x.b.is_contiguous() else x.b.mT,):
            _read(weight, sink)
        return sink

    return call


def _read(data: Tensor, sink: Tensor) -> None:
    """Reads a contiguous CUDA tensor on the current stream, but for a remainder of less than 16 bytes.

    ``sink`` is a tensor of 4 bytes.
    """
    stream = torch.cuda.current_stream(data.device).cuda_stream
    with torch.cuda.device(data.device):
        _native.check(_native.lib().hgemm_read(data.data_ptr(), data.nbytes // 16 * 16, sink.data_ptr(), stream))


def reference(case: Case, operands: Operands) -> Tensor:
    """The result in float64, from the same rounded inputs."""
    a, b = operands.a.double(), operands.b.double()
    if case.op == "add":
        return a + b
    if case.op == "chain":
        return _chain_call(lambda y, weight: y @ weight.double().mT)(replace(operands, a=a))
    product = a @ b if operands.bias is None else torch.addmm(operands.bias.double(), a, b)
    return _APPLY[case.activation](product)
