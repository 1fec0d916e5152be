"""Every form in which torch takes a matrix product, as a call of one of the operators.

A lowering has the signature of the torch function it stands for. It returns a ``Lowered``, or the reason why this call
is torch's: also where torch is about to raise, so that the error is torch's own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor


class Lowered(NamedTuple):
    """``finish(act(a @ b + c))`` by the operator ``op``; for linear, b is the (n, k) weight and c the bias."""

    op: str
    a: Tensor
    b: Tensor
    c: Tensor | None = None
    options: dict[str, Any] = {}  # noqa: RUF012 (never written to)
    out: Tensor | None = None
    finish: Callable[[Tensor], Tensor] | None = None

    def arguments(self) -> tuple[Tensor | None, ...]:
        """The operator's positional arguments."""
        if self.op == "linear":
            return (self.a, self.b, self.c)
        return (self.a, self.b) if self.c is None else (self.c, self.a, self.b)


Lowering: TypeAlias = Callable[..., "Lowered | str"]

_UNREDUCED = "operands that torch rejects or that are not one matrix product"
_DEPRECATED = "deprecated signature"


def _matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Lowered | str:
    return Lowered("matmul", input, other, out=out)


def _rmatmul(self: Tensor, other: Any) -> Lowered | str:
    return Lowered("matmul", other, self) if isinstance(other, Tensor) else _UNREDUCED


def _mm(
    input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None
) -> Lowered | str:
    return _with_out_dtype(Lowered("mm", input, mat2, out=out), out_dtype)


def _bmm(
    input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None
) -> Lowered | str:
    return _with_out_dtype(Lowered("bmm", input, mat2, out=out), out_dtype)


def _addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: Tensor | None = None,
) -> Lowered | str:
    return _added("addmm", input, mat1, mat2, out_dtype, beta, alpha, out)


def _baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: Tensor | None = None,
) -> Lowered | str:
    return _added("baddbmm", input, batch1, batch2, out_dtype, beta, alpha, out)


def _added(
    op: str, c: Any, a: Any, b: Any, out_dtype: torch.dtype | None, beta: Any, alpha: Any, out: Tensor | None
) -> Lowered | str:
    if not (isinstance(c, Tensor) and isinstance(a, Tensor) and isinstance(b, Tensor)):
        return _DEPRECATED
    if not (_is_number(beta) and _is_number(alpha)):
        return "beta or alpha is not a real number"
    return _with_out_dtype(Lowered(op, a, b, c, {"beta": beta, "alpha": alpha}, out), out_dtype)


def _with_out_dtype(lowered: Lowered, out_dtype: torch.dtype | None) -> Lowered | str:
    if out_dtype is None:
        return lowered
    if not lowered.a.is_cuda or lowered.out is not None:  # torch has these forms on CUDA alone
        return "out_dtype"
    return lowered._replace(options={**lowered.options, "out_dtype": out_dtype})


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Lowered | str:
    return Lowered("linear", input, weight, bias)


def _mv(input: Tensor, vec: Tensor, *, out: Tensor | None = None) -> Lowered | str:
    if input.dim() != 2 or vec.dim() != 1:
        return _UNREDUCED
    return Lowered("matmul", input, vec, out=out)


def _addmv(
    input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None
) -> Lowered | str:
    if out is not None:
        return "out="
    if not (isinstance(input, Tensor) and isinstance(mat, Tensor) and isinstance(vec, Tensor)):
        return _DEPRECATED
    if input.dim() > 1 or mat.dim() != 2 or vec.dim() != 1:
        return _UNREDUCED
    column = input.unsqueeze(-1) if input.dim() else input
    lowered = _added("addmm", column, mat, vec.unsqueeze(-1), None, beta, alpha, None)
    return lowered if isinstance(lowered, str) else lowered._replace(finish=_drop_column)


def _drop_column(x: Tensor) -> Tensor:
    return x.squeeze(-1)


def _addbmm(
    input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None
) -> Lowered | str:
    if not (isinstance(input, Tensor) and isinstance(batch1, Tensor) and isinstance(batch2, Tensor)):
        return _DEPRECATED
    if batch1.dim() != 3 or batch2.dim() != 3:
        return _UNREDUCED
    b, m, k = batch1.shape
    if batch2.shape[0] != b or batch2.shape[1] != k:
        return _UNREDUCED
    # The sum over the batch is part of the reduction: one GEMM with K = b * k.
    mat1 = batch1.transpose(0, 1).reshape(m, b * k)
    mat2 = batch2.reshape(b * k, batch2.shape[2])
    return _added("addmm", input, mat1, mat2, None, beta, alpha, out)


def _dot(input: Tensor, tensor: Tensor, *, out: Tensor | None = None) -> Lowered | str:
    if input.dim() != 1 or tensor.dim() != 1:
        return _UNREDUCED
    return Lowered("matmul", input, tensor, out=out)


def _vdot(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Lowered | str:
    return _dot(input, other, out=out)


def _inner(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Lowered | str:
    if input.dim() == 1 and other.dim() == 1:
        return Lowered("matmul", input, other, out=out)
    if input.dim() >= 1 and other.dim() == 2 and out is None:
        return Lowered("linear", input, other)
    return _UNREDUCED


def _einsum(*args: Any) -> Lowered | str:
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return "einsum of other than an equation and two operands"
    a, b = operands
    # Dynamo warns of every lru_cache it traces through.
    parse = _parse_einsum if torch.compiler.is_dynamo_compiling() else _parse_einsum_cached
    plan = parse(equation, a.dim(), b.dim())
    if plan is None:
        return "einsum that is not one matrix product"
    a, b = _permuted(a, plan.permute_a), _permuted(b, plan.permute_b)
    rows_end = plan.batch + plan.rows
    columns_start = plan.batch + plan.shared
    batch, rows, shared = a.shape[: plan.batch], a.shape[plan.batch : rows_end], a.shape[rows_end:]
    columns = b.shape[columns_start:]
    if b.shape[:columns_start] != (*batch, *shared):  # a label of size 1 broadcasts, or torch raises
        return "einsum that broadcasts a label"
    if plan.rows == plan.shared == plan.columns == 1:
        finish = functools.partial(_permuted, order=plan.permute_out) if plan.permute_out else None
        return Lowered("matmul", a, b, finish=finish)
    k = math.prod(shared)
    a = a.reshape(*batch, math.prod(rows), k)
    b = b.reshape(*batch, k, math.prod(columns))

    def unfold(x: Tensor) -> Tensor:
        return _permuted(x.reshape((*batch, *rows, *columns)), plan.permute_out)

    return Lowered("matmul", a, b, finish=unfold)


def _permuted(x: Tensor, order: tuple[int, ...] | None) -> Tensor:
    return x if order is None else x.permute(order)


class _EinsumPlan(NamedTuple):
    """(batch, rows, shared) @ (batch, shared, columns): how to permute operands and result (None: not), and how many
    dimensions each group has."""

    permute_a: tuple[int, ...] | None
    permute_b: tuple[int, ...] | None
    permute_out: tuple[int, ...] | None
    batch: int
    rows: int
    shared: int
    columns: int


def _parse_einsum(equation: str, a_dim: int, b_dim: int) -> _EinsumPlan | None:
    """None: ellipsis, a label that repeats within an operand or is summed over in one alone, no label to reduce."""
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or not all(c.isascii() and c.isalpha() for c in terms[0] + terms[1] + out):
        return None
    a, b = terms
    if not arrow:
        out = "".join(sorted(c for c in a + b if (a + b).count(c) == 1))
    if len(a) != a_dim or len(b) != b_dim or any(len(set(term)) != len(term) for term in (a, b, out)):
        return None
    batch = [c for c in a if c in b and c in out]
    rows = [c for c in a if c not in b]
    columns = [c for c in b if c not in a]
    shared = [c for c in a if c in b and c not in out]
    if not shared or set(batch + rows + columns) != set(out):
        return None
    return _EinsumPlan(
        _order(a, batch + rows + shared),
        _order(b, batch + shared + columns),
        _order("".join(batch + rows + columns), list(out)),
        len(batch),
        len(rows),
        len(shared),
        len(columns),
    )


def _order(labels: str, wanted: list[str]) -> tuple[int, ...] | None:
    """The permutation that brings ``labels`` into the wanted order; None if they are."""
    order = tuple(labels.index(c) for c in wanted)
    return None if order == tuple(range(len(order))) else order


_parse_einsum_cached = functools.lru_cache(maxsize=1024)(_parse_einsum)


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float, torch.SymInt, torch.SymFloat))


#: torch function -> lowering
LOWERINGS: dict[Callable[..., Any], Lowering] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.linalg.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    Tensor.__rmatmul__: _rmatmul,
    torch.mm: _mm,
    Tensor.mm: _mm,
    torch.bmm: _bmm,
    Tensor.bmm: _bmm,
    torch.addmm: _addmm,
    Tensor.addmm: _addmm,
    torch.baddbmm: _baddbmm,
    Tensor.baddbmm: _baddbmm,
    torch.addbmm: _addbmm,
    Tensor.addbmm: _addbmm,
    torch.mv: _mv,
    Tensor.mv: _mv,
    torch.addmv: _addmv,
    Tensor.addmv: _addmv,
    torch.dot: _dot,
    Tensor.dot: _dot,
    torch.vdot: _vdot,
    Tensor.vdot: _vdot,
    torch.inner: _inner,
    Tensor.inner: _inner,
    torch.einsum: _einsum,
}

#: Functions that multiply matrices inside and are torch's: the report says so. -> reason
LEFT_TO_TORCH: dict[Callable[..., Any], str] = {
    **dict.fromkeys((Tensor.addmm_, Tensor.baddbmm_, Tensor.addbmm_, Tensor.addmv_), "in place"),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), "convolution"),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), "convolution"),
    F.scaled_dot_product_attention: "fused attention",
    F.bilinear: "bilinear form",
    torch.tensordot: "composite of torch",
    torch.chain_matmul: "composite of torch",
    torch.linalg.multi_dot: "composite of torch",
}
