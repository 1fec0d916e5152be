"""What every op requires of its arguments, and the shape and dtype of its result.

One function per op, with the op's signature, shared by the fake and the ATen implementations (the CUDA one has the same
checks in C++). Sizes may be symbolic: a condition that is not decided yet becomes a runtime assertion of the compiled
graph. Messages name the op, the arguments, the requirement and the values given; the exception types are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")  # the values of `act`, in order

# Sizes are ints, or SymInts that the type checker takes for ints.
Shape = tuple[int, ...]
Result = tuple[Shape, torch.dtype]


def require(condition: bool | torch.SymBool, message: Callable[[], str]) -> None:
    """Raises RuntimeError(message()) unless ``condition`` holds; free of torch calls when it plainly does."""
    if condition is not True:
        torch._check(condition, message)


def _is_one(size: int | torch.SymInt) -> bool:
    if isinstance(size, int):
        return size == 1
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(size == 1)


def _shape(t: Tensor) -> Shape:
    return tuple(t.shape)


def _options(
    op: str, a: Tensor, b: Tensor, names: tuple[str, str], out_dtype: torch.dtype | None, variant: int | None
) -> torch.dtype:
    """Checks what every product asks of its two factors and of the options; returns the result's dtype."""
    require(
        a.device == b.device,
        lambda: f"hgemm::{op}: {names[0]} ({a.device}) and {names[1]} ({b.device}): devices must match",
    )
    require(
        a.dtype == b.dtype,
        lambda: f"hgemm::{op}: {names[0]} ({a.dtype}) and {names[1]} ({b.dtype}): dtypes must match",
    )
    require(
        variant is None or variant >= -2,
        lambda: f"hgemm::{op}: variant must be -2 (torch), -1 (auto) or an index into variants(), got {variant}",
    )
    if out_dtype is None or out_dtype == a.dtype:
        return a.dtype
    require(
        out_dtype == torch.float32 and a.dtype in HALF,
        lambda: (
            f"hgemm::{op}: out_dtype must be the dtype of {names[0]} ({a.dtype}), or torch.float32 for half inputs, "
            f"got {out_dtype}"
        ),
    )
    return out_dtype


def _dims(op: str, a: Tensor, b: Tensor, names: tuple[str, str], ndim: int) -> None:
    require(
        a.dim() == ndim and b.dim() == ndim,
        lambda: f"hgemm::{op}: {names[0]} {_shape(a)} and {names[1]} {_shape(b)}: both must be {ndim}-D",
    )


def _inner(op: str, a: Tensor, b: Tensor, names: tuple[str, str]) -> None:
    k_a, k_b = a.size(-1), b.size(-2 if b.dim() > 1 else 0)
    require(
        k_a == k_b,
        lambda: (
            f"hgemm::{op}: {names[0]} {_shape(a)} and {names[1]} {_shape(b)}: inner dimensions must match, "
            f"got {k_a} and {k_b}"
        ),
    )


def _expandable(op: str, name: str, t: Tensor, shape: Sequence[int], of: str = "the result's shape") -> None:
    def message() -> str:
        return f"hgemm::{op}: {name} {_shape(t)} must be expandable to {of} {tuple(shape)}"

    require(t.dim() <= len(shape), message)
    for size, target in zip(reversed(t.shape), reversed(shape), strict=False):
        if not _is_one(size):
            require(size == target, message)


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    static_weights: bool | None = None,
) -> Result:
    names = ("a", "b")
    dtype = _options("matmul", a, b, names, out_dtype, variant)
    require(
        a.dim() > 0 and b.dim() > 0,
        lambda: f"hgemm::matmul: a {_shape(a)} and b {_shape(b)}: both must be at least 1-D",
    )
    _inner("matmul", a, b, names)
    batch_a, batch_b = list(a.shape[:-2]), list(b.shape[:-2])
    rank = max(len(batch_a), len(batch_b))
    batch: list[int] = []
    for x, y in zip([1] * (rank - len(batch_a)) + batch_a, [1] * (rank - len(batch_b)) + batch_b, strict=True):
        if _is_one(x):
            batch.append(y)
        else:
            if not _is_one(y):
                require(
                    x == y,
                    lambda: f"hgemm::matmul: a {_shape(a)} and b {_shape(b)}: batch dimensions must broadcast",
                )
            batch.append(x)
    rows = a.shape[-2:-1] if a.dim() > 1 else ()
    columns = b.shape[-1:] if b.dim() > 1 else ()
    return (*batch, *rows, *columns), dtype


def matmul_swizzled(a: Tensor, b: Tensor, *, variant: int, swizzle_stride: int) -> Result:
    require(
        swizzle_stride >= 0,
        lambda: (
            "hgemm::matmul: swizzle_stride must be a number of columns, or 0 for the kernel's own, "
            f"got {swizzle_stride}"
        ),
    )
    return matmul(a, b, variant=variant)


def mm(
    a: Tensor,
    b: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    static_weights: bool | None = None,
    op: str = "mm",
    names: tuple[str, str] = ("a", "b"),
) -> Result:
    dtype = _options(op, a, b, names, out_dtype, variant)
    _dims(op, a, b, names, 2)
    _inner(op, a, b, names)
    return (a.size(0), b.size(1)), dtype


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    static_weights: bool | None = None,
    op: str = "bmm",
    names: tuple[str, str] = ("a", "b"),
) -> Result:
    dtype = _options(op, a, b, names, out_dtype, variant)
    _dims(op, a, b, names, 3)
    require(
        a.size(0) == b.size(0),
        lambda: (
            f"hgemm::{op}: {names[0]} {_shape(a)} and {names[1]} {_shape(b)}: batch sizes must match, "
            f"got {a.size(0)} and {b.size(0)}"
        ),
    )
    _inner(op, a, b, names)
    return (a.size(0), a.size(1), b.size(2)), dtype


def _addend(op: str, input: Tensor, factor: Tensor, name: str, result: Result) -> Result:
    shape, dtype = result
    require(
        input.device == factor.device,
        lambda: f"hgemm::{op}: input ({input.device}) and {name} ({factor.device}): devices must match",
    )
    require(
        input.dtype == factor.dtype or input.dtype == dtype,
        lambda: (
            f"hgemm::{op}: input ({input.dtype}) must have the dtype of {name} ({factor.dtype}) "
            f"or of the result ({dtype})"
        ),
    )
    _expandable(op, "input", input, shape)
    return result


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    static_weights: bool | None = None,
) -> Result:
    result = mm(mat1, mat2, out_dtype=out_dtype, variant=variant, op="addmm", names=("mat1", "mat2"))
    return _addend("addmm", input, mat1, "mat1", result)


def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    static_weights: bool | None = None,
) -> Result:
    result = bmm(batch1, batch2, out_dtype=out_dtype, variant=variant, op="baddbmm", names=("batch1", "batch2"))
    return _addend("baddbmm", input, batch1, "batch1", result)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    act: int = 0,
    *,
    out_dtype: torch.dtype | None = None,
    variant: int | None = None,
    static_weights: bool | None = None,
    op: str = "linear",
) -> Result:
    dtype = _options(op, x, weight, ("x", "weight"), out_dtype, variant)
    require(
        0 <= act < len(ACTIVATIONS),
        lambda: (
            f"hgemm::{op}: act must be one of {', '.join(f'{i} ({n})' for i, n in enumerate(ACTIVATIONS))}, got {act}"
        ),
    )
    require(x.dim() > 0, lambda: f"hgemm::{op}: x {_shape(x)} must be at least 1-D")
    require(weight.dim() in (1, 2), lambda: f"hgemm::{op}: weight {_shape(weight)} must be 2-D (or 1-D: one feature)")
    require(
        x.size(-1) == weight.size(-1),
        lambda: (
            f"hgemm::{op}: x {_shape(x)} and weight {_shape(weight)}: last dimensions must match, "
            f"got {x.size(-1)} and {weight.size(-1)}"
        ),
    )
    shape = (*x.shape[:-1], *weight.shape[:-1])
    if bias is not None:
        require(
            bias.device == x.device,
            lambda: f"hgemm::{op}: x ({x.device}) and bias ({bias.device}): devices must match",
        )
        require(
            bias.dtype == x.dtype,
            lambda: f"hgemm::{op}: x ({x.dtype}) and bias ({bias.dtype}): dtypes must match",
        )
        _expandable(op, "bias", bias, weight.shape[:-1], "the rows of weight")
    return shape, dtype


def linear_gated(
    x: Tensor, weight: Tensor, act: int, *, variant: int | None = None, static_weights: bool | None = None
) -> Result:
    require(
        weight.dim() == 2 and weight.size(0) % 2 == 0,
        lambda: f"hgemm::linear_gated: weight {_shape(weight)} must be 2-D with an even number of rows",
    )
    shape, dtype = linear(x, weight, None, act, variant=variant, op="linear_gated")
    return (*shape[:-1], shape[-1] // 2), dtype


def out(op: str, tensor: Tensor, device: torch.device, result: Result) -> None:
    """``out=`` must have the result's shape, dtype and device already: it is never resized."""
    shape, dtype = result

    def message() -> str:
        return f"hgemm::{op}: out {_shape(tensor)} must have the result's shape {shape}"

    require(tensor.dim() == len(shape), message)
    for size, expected in zip(tensor.shape, shape, strict=True):
        require(size == expected, message)
    require(tensor.dtype == dtype, lambda: f"hgemm::{op}: out ({tensor.dtype}) must have the result's dtype {dtype}")
    require(
        tensor.device == device, lambda: f"hgemm::{op}: out ({tensor.device}) must be on the inputs' device {device}"
    )
