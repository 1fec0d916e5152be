"""vmap: a batched dimension becomes a batch dimension of the product, as torch's own batching rules do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library

from hgemm_ops.ops import activation
from hgemm_ops.ops.schema import NAMESPACE

_OPS = getattr(torch.ops, NAMESPACE)
Dims = tuple[int | None, ...]


def _front(t: Tensor, dim: int | None, batch_size: int) -> Tensor:
    """The batched dimension first; expanded (stride 0) where ``t`` has none."""
    return t.expand(batch_size, *t.shape) if dim is None else t.movedim(dim, 0)


def _without_static_weights(options: dict[str, Any]) -> dict[str, Any]:
    """For a second factor that may have to be copied first."""
    return {name: value for name, value in options.items() if name != "static_weights"}


def _matmul(info: Any, in_dims: Dims, a: Tensor, b: Tensor, **options: Any) -> tuple[Tensor, int]:
    """matmul, mm and bmm: their logical shapes are matmul's, with one more batch dimension in front."""
    a_dim, b_dim = in_dims[:2]
    a = a if a_dim is None else a.movedim(a_dim, 0)
    b = b if b_dim is None else b.movedim(b_dim, 0)
    a_rank, b_rank = a.dim() - (a_dim is not None), b.dim() - (b_dim is not None)  # as seen inside vmap
    if a_rank == 1:
        a = a.unsqueeze(-2)
    if b_rank == 1:
        b = b.unsqueeze(-1)
    # Broadcasting aligns dimensions from the right: keep the vmapped one left of the longest batch.
    rank = max(a_rank, b_rank, 2)
    if a_dim is not None:
        a = a.reshape(a.size(0), *[1] * (rank - max(a_rank, 2)), *a.shape[1:])
    if b_dim is not None:
        b = b.reshape(b.size(0), *[1] * (rank - max(b_rank, 2)), *b.shape[1:])
    y = _OPS.matmul.default(a, b, **options)
    if b_rank == 1:
        y = y.squeeze(-1)
    if a_rank == 1:
        y = y.squeeze(-2 if b_rank > 1 else -1)
    return y, 0


def _add_product(info: Any, in_dims: Dims, input: Tensor, a: Tensor, b: Tensor, **options: Any) -> tuple[Tensor, int]:
    """addmm and baddbmm: one baddbmm over the flattened batch."""
    n = info.batch_size
    input, a, b = (_front(t, dim, n) for t, dim in zip((input, a, b), in_dims, strict=False))
    shape = (*a.shape[:-1], b.size(-1))
    options = _without_static_weights(options)
    input = input.reshape(n, *[1] * (len(shape) - input.dim()), *input.shape[1:]).expand(shape)
    y = _OPS.baddbmm.default(input.flatten(0, -3), a.flatten(0, -3), b.flatten(0, -3), **options)
    return y.reshape(shape), 0


def _per_sample_linear(
    info: Any, in_dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, options: dict[str, Any]
) -> Tensor:
    """x @ weight.T + bias with a weight or bias for each sample."""
    n, options = info.batch_size, _without_static_weights(options)
    x, weight = _front(x, in_dims[0], n), _front(weight, in_dims[1], n)
    weight_is_vector = weight.dim() == 2
    shape = (*x.shape[:-1], *weight.shape[1:-1])  # of the result
    rows = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    columns = weight.unsqueeze(-1) if weight_is_vector else weight.mT
    if bias is None:
        return _OPS.bmm.default(rows, columns, **options).reshape(shape)
    bias = _front(bias, in_dims[2], n)
    bias = bias.reshape(n, *[1] * (len(shape) - bias.dim()), *bias.shape[1:]).expand(shape)
    product = (n, rows.size(1), columns.size(2))
    return _OPS.baddbmm.default(bias.reshape(product), rows, columns, **options).reshape(shape)


def _is_shared(in_dims: Dims, bias: Tensor | None) -> bool:
    """Whether only x is batched, so that vmap's dimension is one more leading dimension of x."""
    return in_dims[0] is not None and in_dims[1] is None and (bias is None or in_dims[2] is None)


def _linear(
    info: Any, in_dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None = None, act: int = 0, **options: Any
) -> tuple[Tensor, int]:
    if _is_shared(in_dims, bias):
        return _OPS.linear.default(x.movedim(in_dims[0], 0), weight, bias, act, **options), 0  # type: ignore[arg-type]
    y = _per_sample_linear(info, in_dims, x, weight, bias, options)
    return (activation.FUNCTIONS[act](y) if act else y), 0


def _linear_save(
    info: Any, in_dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, act: int, **options: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    if _is_shared(in_dims, bias):
        x = x.movedim(in_dims[0], 0)  # type: ignore[arg-type]
        return _OPS.linear_save.default(x, weight, bias, act, **options), (0, 0)
    pre = _per_sample_linear(info, in_dims, x, weight, bias, options)
    return (activation.FUNCTIONS[act](pre) if act else pre.clone(), pre), (0, 0)


def _linear_gated(info: Any, in_dims: Dims, x: Tensor, weight: Tensor, act: int, **options: Any) -> tuple[Tensor, int]:
    if _is_shared(in_dims, None):
        return _OPS.linear_gated.default(x.movedim(in_dims[0], 0), weight, act, **options), 0  # type: ignore[arg-type]
    return activation.gate(_per_sample_linear(info, in_dims, x, weight, None, options), act), 0


def register(lib: library.Library) -> None:
    """Registers the batching rules of every functional op on ``lib``."""
    rules: dict[str, Callable[..., Any]] = {
        "matmul": _matmul,
        "mm": _matmul,
        "bmm": _matmul,
        "addmm": _add_product,
        "baddbmm": _add_product,
        "linear": _linear,
        "linear_save": _linear_save,
        "linear_gated": _linear_gated,
    }
    for name, rule in rules.items():
        library.register_vmap(f"{NAMESPACE}::{name}", rule, lib=lib)
