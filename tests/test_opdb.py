"""PyTorch's own sample inputs of the matmul family under use_custom_gemm(), then larger, stranger and empty ones.

Results and gradients are held to twice torch's own largest error against float64; mistakes must raise what torch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import hgemm_ops

pytest.importorskip("expecttest", reason="torch's op_db needs expecttest")
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

NAMES = (
    "matmul",
    "__rmatmul__",
    "mm",
    "bmm",
    "addmm",
    "nn.functional.linear",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
    "einsum",
)
OPS = [op for op in op_db if op.name in NAMES and not op.variant_test_name]
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["f16", "bf16", "f32"])
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])

Arguments = tuple[Any, ...]
Function = Callable[..., Tensor]


def tensors(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]


def fresh(arguments: Any, dtype: torch.dtype | None = None, grad: bool = False) -> Any:
    """The arguments with every tensor a new leaf of the same strides, in ``dtype``."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().to(dtype or value.dtype).requires_grad_(grad)

    return tree_map(leaf, arguments)


def run(fn: Function, args: Any, grad: bool) -> list[Tensor | None]:
    """The result, and the gradient of every tensor among the arguments that it depends on."""
    out = fn(*args[0], **args[1])
    if not grad or not out.requires_grad:
        return [out.detach()]
    seed = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device).view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, tensors(args), seed, allow_unused=True)]


def assert_as_good(ours: list[Tensor | None], theirs: list[Tensor | None], exact: list[Tensor | None]) -> None:
    assert len(ours) == len(theirs) == len(exact)
    for i, (got, other, ref) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert (got is None) == (other is None), f"tensor {i}: {got} where torch gives {other}"
        if got is None or other is None or ref is None:
            continue
        assert got.dtype == other.dtype and got.shape == other.shape
        if got.numel() == 0:
            continue
        unit = torch.finfo(got.dtype).eps * ref.abs().max()
        error, allowed = (got.double() - ref).abs().max(), 2 * (other.double() - ref).abs().max() + unit
        assert error <= allowed, f"tensor {i} (0 is the result): error {error:.3e}, allowed {allowed:.3e}"


def check(fn: Function, args: Any, grad: bool) -> hgemm_ops.use_custom_gemm:
    """Runs ``fn`` in the context, without it and in float64; the first must be as good as the second."""
    with hgemm_ops.use_custom_gemm() as report:
        ours = run(fn, fresh(args, grad=grad), grad)
    theirs = run(fn, fresh(args, grad=grad), grad)
    exact = run(fn, fresh(args, torch.float64, grad), grad)
    assert_as_good(ours, theirs, exact)
    return report


@DEVICES
@DTYPES
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_samples(op: OpInfo, grad: bool, dtype: torch.dtype, device: str) -> None:
    if dtype not in op.supported_dtypes(device):
        pytest.skip(f"{op.name} does not take {dtype} on {device}")
    seen = 0
    for sample in op.sample_inputs(device, dtype, requires_grad=grad):
        report = check(op, ((sample.input, *sample.args), sample.kwargs), grad)
        seen += sum(row.calls for row in report.rows)
    assert seen > 0, "no sample went through the context"


@DEVICES
@pytest.mark.parametrize("op", [op for op in OPS if op.error_inputs_func], ids=lambda op: op.name)
def test_error_inputs(op: OpInfo, device: str) -> None:
    """The inputs for which torch's own tests expect an exception."""
    for case in op.error_inputs(device):
        sample = case.sample_input
        with pytest.raises(Exception) as theirs:
            op(sample.input, *sample.args, **sample.kwargs)
        with pytest.raises(theirs.type), hgemm_ops.use_custom_gemm():
            op(sample.input, *sample.args, **sample.kwargs)


# What op_db lacks


def make(device: str, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.rand(shape, device=device).mul_(2).sub_(1).to(dtype)


def odd(device: str, dtype: torch.dtype, *shape: int) -> Tensor:
    """Neither of the last two strides is 1, the base is misaligned and the storage larger than the view."""
    spread = [*shape[:-2], *(3 * size + 2 for size in shape[-2:])]
    return make(device, dtype, *spread)[(..., *(slice(1, 1 + 3 * size, 3) for size in shape[-2:]))]


def transposed(device: str, dtype: torch.dtype, *shape: int) -> Tensor:
    """Column-major, as a slice of something wider."""
    return make(device, dtype, *shape[:-2], shape[-1], shape[-2] + 5)[..., 1:-4].mT


def expanded(device: str, dtype: torch.dtype, *shape: int) -> Tensor:
    """Every row is the same memory."""
    return make(device, dtype, *shape[:-2], 1, shape[-1]).expand(shape)


LAYOUTS: dict[str, Callable[..., Tensor]] = {
    "contiguous": make,
    "odd": odd,
    "transposed": transposed,
    "expanded": expanded,
}
SIZES = {
    "large": (3, 257, 311, 640),  # on a CPU a quarter of each
    "no batch": (0, 5, 6, 7),
    "no rows": (3, 0, 6, 7),
    "no columns": (3, 5, 0, 7),
    "no inner": (3, 5, 6, 0),
    "ones": (1, 1, 1, 1),
}
# Each from t(*shape), a tensor of the layout under test, and the sizes of a batch of (m, k) @ (k, n).
CALLS: dict[str, tuple[Function, Callable[..., Arguments]]] = {
    "matmul": (torch.matmul, lambda t, b, m, n, k: (t(b, 1, m, k), t(2, k, n))),
    "__matmul__": (lambda x, y: x @ y, lambda t, b, m, n, k: (t(b, m, k), t(k, n))),
    "__rmatmul__": (torch.Tensor.__rmatmul__, lambda t, b, m, n, k: (t(k, n), t(b, m, k))),
    "mm": (torch.mm, lambda t, b, m, n, k: (t(m, k), t(k, n))),
    "bmm": (torch.bmm, lambda t, b, m, n, k: (t(b, m, k), t(b, k, n))),
    "addmm": (
        lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=-2),
        lambda t, b, m, n, k: (t(m, n), t(m, k), t(k, n)),
    ),
    "addmm row": (torch.addmm, lambda t, b, m, n, k: (t(1, n)[0], t(m, k), t(k, n))),
    "baddbmm": (
        lambda c, x, y: torch.baddbmm(c, x, y, beta=2, alpha=0.5),
        lambda t, b, m, n, k: (t(b, m, n), t(b, m, k), t(b, k, n)),
    ),
    "addbmm": (torch.addbmm, lambda t, b, m, n, k: (t(m, n), t(b, m, k), t(b, k, n))),
    "linear": (F.linear, lambda t, b, m, n, k: (t(b, m, k), t(n, k), t(1, n)[0])),
    "linear 4-D": (F.linear, lambda t, b, m, n, k: (t(b, 2, m, k), t(n, k))),
    "mv": (torch.mv, lambda t, b, m, n, k: (t(m, k), t(1, k)[0])),
    "addmv": (torch.addmv, lambda t, b, m, n, k: (t(1, m)[0], t(m, k), t(1, k)[0])),
    "dot": (torch.dot, lambda t, b, m, n, k: (t(1, k)[0], t(1, k)[0])),
    "einsum": (
        lambda x, y: torch.einsum("bik,bjk->bij", x, y),
        lambda t, b, m, n, k: (t(b, m, k), t(b, n, k)),
    ),
    "einsum heads": (
        lambda x, y: torch.einsum("bmhk,bnhk->bhmn", x, y),
        lambda t, b, m, n, k: (t(b, m, 2, k), t(b, n, 2, k)),
    ),
}


CASES = [
    pytest.param(call, layout, size, id=f"{call}-{layout}-{size}".replace(" ", "_"))
    for size in SIZES
    for layout in (LAYOUTS if size == "large" else ("contiguous",))
    for call in CALLS
]


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize(("call", "layout", "size"), CASES)
def test_other_samples(call: str, layout: str, size: str, dtype: torch.dtype, device: str) -> None:
    fn, arguments = CALLS[call]
    sizes = tuple(-(-s // 4) for s in SIZES[size]) if device == "cpu" else SIZES[size]
    args = arguments(lambda *shape: LAYOUTS[layout](device, dtype, *shape), *sizes)
    report = check(fn, (args, {}), grad=True)
    assert report.rows, "the call did not go through the context"


MISTAKES: dict[str, Callable[[Callable[..., Tensor]], Tensor]] = {
    "mm inner": lambda t: torch.mm(t(4, 5), t(6, 3)),
    "mm rank": lambda t: torch.mm(t(2, 4, 5), t(5, 6)),
    "mm dtype": lambda t: torch.mm(t(4, 5), t(5, 6).double()),
    "mm number": lambda t: torch.mm(t(4, 5), 3),  # type: ignore[arg-type]
    "mm none": lambda t: torch.mm(t(4, 5), None),  # type: ignore[arg-type]
    "matmul inner": lambda t: torch.matmul(t(2, 4, 5), t(6, 3)),
    "matmul batch": lambda t: torch.matmul(t(2, 4, 5), t(3, 5, 6)),
    "matmul scalar": lambda t: torch.matmul(t(4, 5), t(4)[0]),
    "@ list": lambda t: t(4, 5) @ [1, 2],  # type: ignore[operator]
    "bmm batch": lambda t: torch.bmm(t(2, 4, 5), t(3, 5, 6)),
    "bmm rank": lambda t: torch.bmm(t(4, 5), t(5, 6)),
    "addmm addend": lambda t: torch.addmm(t(3, 6), t(4, 5), t(5, 6)),
    "addmm keyword": lambda t: torch.addmm(t(4, 6), t(4, 5), t(5, 6), gamma=1),  # type: ignore[call-overload]
    "baddbmm addend": lambda t: torch.baddbmm(t(4, 4, 6), t(2, 4, 5), t(2, 5, 6)),
    "addbmm batch": lambda t: torch.addbmm(t(4, 6), t(2, 4, 5), t(3, 5, 6)),
    "linear features": lambda t: F.linear(t(4, 5), t(6, 7)),
    "linear bias": lambda t: F.linear(t(4, 5), t(6, 5), t(7)),
    "linear bias dtype": lambda t: F.linear(t(4, 5), t(6, 5), t(6).double()),
    "linear weight": lambda t: F.linear(t(4, 5), [1.0]),  # type: ignore[arg-type]
    "mv inner": lambda t: torch.mv(t(4, 5), t(6)),
    "mv rank": lambda t: torch.mv(t(4, 5), t(5, 1)),
    "addmv addend": lambda t: torch.addmv(t(3), t(4, 5), t(5)),
    "dot sizes": lambda t: torch.dot(t(4), t(5)),
    "dot rank": lambda t: torch.dot(t(4, 1), t(4)),
    "einsum sizes": lambda t: torch.einsum("ik,kj->ij", t(4, 5), t(6, 3)),
    "einsum letters": lambda t: torch.einsum("ik,kj->il", t(4, 5), t(5, 3)),
    "integer and half": lambda t: torch.mm(t(4, 5), torch.ones(5, 6, dtype=torch.int64, device=t(1).device)),
}


@DEVICES
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str, device: str) -> None:
    """The exception of a mistake has the type that torch gives it."""

    def t(*shape: int) -> Tensor:
        return make(device, torch.bfloat16, *shape)

    with pytest.raises(Exception) as theirs:
        MISTAKES[mistake](t)
    with pytest.raises(theirs.type), hgemm_ops.use_custom_gemm():
        MISTAKES[mistake](t)
