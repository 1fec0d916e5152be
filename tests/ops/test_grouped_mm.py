"""Grouped matmuls on a CPU, where torch's functions compute them: the op, ``grouped_mm`` and the gated form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, OPCHECKS, run_python
from torch import Tensor, library, nn
from torch.utils.flop_counter import FlopCounterMode

import hgemm_ops
from hgemm_ops.ops import grouped
from hgemm_ops.ops.activation import ACTIVATIONS as NAMES
from hgemm_ops.ops.grouped import rows_of_groups, sums_of_groups

op = torch.ops.hgemm.grouped_mm.default
M, N, K = 2, 5, 3  # the dimensions that are not divided into groups; no kernel has tiles of such a size
#: The size of the dimension that is divided into groups, and the ends of these.
ENDS: dict[str, tuple[int, tuple[int, ...]]] = {
    "odd and empty": (11, (3, 3, 4, 11)),
    "one group": (4, (4,)),
    "one takes all": (5, (0, 0, 5, 5)),
    "a rest": (7, (0, 2, 5)),
    "all empty": (3, (0, 0)),
    "no rows": (0, (0, 0)),
}
#: The sum that each form is, over a mask of which index belongs to which group.
FORMS = {
    "2d_3d": "gr,rk,gkn->rn",
    "3d_3d": "gmk,gkn->gmn",
    "2d_2d": "gk,mk,kn->gmn",
    "3d_2d": "gc,gmk,kc->mc",
}


def shapes(
    form: str, size: int, groups: int, m: int = M, n: int = N, k: int = K
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return {
        "2d_3d": ((size, k), (groups, k, n)),
        "3d_3d": ((groups, m, k), (groups, k, n)),
        "2d_2d": ((m, size), (size, n)),
        "3d_2d": ((groups, m, k), (k, size)),
    }[form]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda t: t.contiguous(),
    "columns": lambda t: t.mT.contiguous().mT,
    "neither": lambda t: t.new_zeros(*t.shape[:-1], 2 * t.size(-1))[..., ::2].copy_(t),
}


def operands(
    form: str, ends: str, dtype: torch.dtype = torch.float64, layouts: tuple[str, str] = ("rows", "rows")
) -> tuple[Tensor, Tensor, Tensor | None]:
    size, values = ENDS[ends]
    a, b = (
        LAYOUTS[layout](torch.randn(shape, dtype=dtype))
        for shape, layout in zip(shapes(form, size, len(values)), layouts, strict=True)
    )
    return a, b, None if form == "3d_3d" else torch.tensor(values, dtype=torch.int32)


def mask(offs: Tensor, size: int) -> Tensor:
    """(groups, size): 1 where the index belongs to the group."""
    starts, index = F.pad(offs, (1, 0))[:-1, None], torch.arange(size)
    return ((index >= starts) & (index < offs[:, None])).double()


def reference(a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
    form = f"{a.dim()}d_{b.dim()}d"
    a, b = a.detach().double(), b.detach().double()
    if offs is None:
        return torch.einsum(FORMS[form], a, b)
    size = {"2d_3d": a.size(0), "2d_2d": a.size(-1), "3d_2d": b.size(-1)}[form]
    return torch.einsum(FORMS[form], mask(offs, size), a, b)


forms = pytest.mark.parametrize("form", FORMS)
all_ends = pytest.mark.parametrize("ends", ENDS)


@pytest.mark.parametrize("layouts", [(a, b) for a in LAYOUTS for b in LAYOUTS], ids="-".join)
@all_ends
@forms
def test_products(form: str, ends: str, layouts: tuple[str, str]) -> None:
    a, b, offs = operands(form, ends, layouts=layouts)
    out = op(a, b, offs)
    torch.testing.assert_close(out, reference(a, b, offs))
    pitch = out.size(-1) + out.size(-1) % 2  # 16 bytes are two elements
    assert out.numel() == 0 or out.stride()[-2:] == (pitch, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@forms
def test_dtypes_and_a_wider_result(form: str, dtype: torch.dtype) -> None:
    a, b, offs = operands(form, "odd and empty", dtype)
    exact = reference(a, b, offs)
    assert op(a, b, offs).dtype == dtype
    torch.testing.assert_close(op(a, b, offs).double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-2)
    wide = op(a, b, offs, out_dtype=torch.float32)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layouts", [("rows", "rows"), ("columns", "columns"), ("rows", "neither")], ids="-".join)
@all_ends
@forms
def test_gradients(form: str, ends: str, layouts: tuple[str, str]) -> None:
    a, b, offs = operands(form, ends, layouts=layouts)
    a.requires_grad_()
    b.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: op(a, b, offs), (a, b), check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda a, b: op(a, b, offs), (a, b), fast_mode=True)


@forms
def test_gradients_have_the_layout_of_the_operands(form: str) -> None:
    """Otherwise autograd would copy the gradient of a weight once more."""
    offs = None if form == "3d_3d" else torch.tensor([2, 8], dtype=torch.int32)
    for layout in ("rows", "columns"):  # which both start on 16 bytes in float64
        a, b = (LAYOUTS[layout](torch.randn(shape, dtype=torch.float64)) for shape in shapes(form, 8, 2, 4, 6, 10))
        a.requires_grad_()
        b.requires_grad_()
        out = op(a, b, offs)
        assert [g.stride() for g in torch.autograd.grad(out, (a, b), out.detach())] == [a.stride(), b.stride()]


@pytest.mark.parametrize("form", ["2d_3d", "2d_2d", "3d_2d"])
def test_nothing_behind_the_last_end_is_read(form: str) -> None:
    """NaN there, in operands and in the incoming gradient, reaches nothing; the gradient there is zero."""
    size, values = ENDS["a rest"]
    a, b, offs = operands(form, "a rest")
    divided = {"2d_3d": [(a, 0)], "2d_2d": [(a, 1), (b, 0)], "3d_2d": [(b, 1)]}[form]
    for t, dim in divided:
        t.narrow(dim, values[-1], size - values[-1]).fill_(torch.nan)
    a.requires_grad_()
    b.requires_grad_()
    out = op(a, b, offs)
    grad = torch.randn_like(out)
    written = out
    if form != "2d_2d":
        dim = 0 if form == "2d_3d" else 1
        grad.narrow(dim, values[-1], size - values[-1]).fill_(torch.nan)
        written = out.narrow(dim, 0, values[-1])
    assert written.isfinite().all()
    grads = dict(zip((a, b), torch.autograd.grad(out, (a, b), grad), strict=True))
    assert all(g.isfinite().all() for g in grads.values())
    for t, dim in divided:
        rest = grads[t].narrow(dim, values[-1], size - values[-1])
        assert torch.equal(rest, torch.zeros_like(rest))


def test_a_gradient_that_torch_refuses() -> None:
    """An expanded one, and one whose rows do not start on 16 bytes."""
    a, b, offs = operands("2d_3d", "odd and empty")
    a.requires_grad_()
    b.requires_grad_()
    (expected,) = torch.autograd.grad(op(a, b, offs), b, torch.ones(a.size(0), N, dtype=a.dtype))
    for other in (
        torch.autograd.grad(op(a, b, offs).sum(), b),
        torch.autograd.grad(op(a, b, offs)[:, :], b, torch.ones(a.size(0), N + 1, dtype=a.dtype)[:, 1:]),
    ):
        torch.testing.assert_close(other, (expected,))


SAMPLES = [
    *((form, ends, ("rows", "rows")) for form in FORMS for ends in ("odd and empty", "one group", "a rest")),
    *((form, "odd and empty", ("columns", "columns")) for form in FORMS),
]


@pytest.mark.parametrize(("form", "ends", "layouts"), SAMPLES)
def test_opcheck(form: str, ends: str, layouts: tuple[str, str]) -> None:
    a, b, offs = operands(form, ends, torch.float32, layouts)
    library.opcheck(op, (a.requires_grad_(), b.requires_grad_(), offs), {}, test_utils=OPCHECKS)


def test_opcheck_of_options() -> None:
    a, b, offs = operands("2d_3d", "odd and empty", torch.bfloat16)
    options = {"out_dtype": torch.float32, "variant": -2}
    library.opcheck(op, (a.requires_grad_(), b.requires_grad_(), offs), options, test_utils=OPCHECKS)


def test_autocast() -> None:
    a, b, offs = operands("2d_3d", "odd and empty", torch.float32)
    bias = torch.randn(b.size(0), N)
    parameters = [t.requires_grad_() for t in (a, b, bias)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = hgemm_ops.grouped_mm(a, b, offs, bias)
    low = [t.detach().bfloat16() for t in parameters]
    assert torch.equal(out, hgemm_ops.grouped_mm(low[0], low[1], offs, low[2]))
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(out.float().sum(), parameters))
    assert op(a, b, offs).dtype == torch.float32


# ---- The public functions


@pytest.mark.parametrize("activation", [None, *NAMES])
@pytest.mark.parametrize("ends", ["odd and empty", "one group", "a rest"])
def test_bias_and_activation(ends: str, activation: str | None) -> None:
    x, w, offs = operands("2d_3d", ends)
    assert offs is not None
    bias = torch.randn(w.size(0), N, dtype=x.dtype)
    function = ACTIVATIONS[NAMES.index(activation or "none")]
    rows = int(offs[-1])
    out = hgemm_ops.grouped_mm(x, w, offs, bias, activation=activation)
    exact = function(reference(x, w, offs) + mask(offs, x.size(0)).T @ bias)
    torch.testing.assert_close(out[:rows], exact[:rows])
    parameters = [t.requires_grad_() for t in (x, w, bias)]

    def defined(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return hgemm_ops.grouped_mm(x, w, offs, bias, activation=activation)[:rows]

    assert torch.autograd.gradcheck(defined, parameters, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(defined, parameters, fast_mode=True)


def test_bias_of_a_batch() -> None:
    x, w, _ = operands("3d_3d", "odd and empty")
    bias = torch.randn(w.size(0), N, dtype=x.dtype)
    torch.testing.assert_close(hgemm_ops.grouped_mm(x, w, None, bias), torch.baddbmm(bias[:, None], x, w))


@pytest.mark.parametrize("activation", [None, *NAMES])
def test_gated(activation: str | None) -> None:
    x, w, offs = operands("2d_3d", "odd and empty")
    w = torch.randn(w.size(0), 2 * N, K, dtype=x.dtype).mT  # a view, as of a parameter of transformers
    gate, up = reference(x, w, offs).chunk(2, -1)
    out = hgemm_ops.grouped_mm_gated(x, w, offs, activation)
    torch.testing.assert_close(out, ACTIVATIONS[NAMES.index(activation or "none")](gate) * up)
    assert torch.autograd.gradcheck(
        lambda x, w: hgemm_ops.grouped_mm_gated(x, w, offs, activation),
        (x.requires_grad_(), w.requires_grad_()),
        fast_mode=True,
    )


@all_ends
def test_values_of_groups(ends: str) -> None:
    size, ends_ = ENDS[ends]
    offs = torch.tensor(ends_, dtype=torch.int32)
    values = torch.randn(len(ends_), N, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(size, N, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(rows_of_groups(values, offs, size), mask(offs, size).T @ values)
    torch.testing.assert_close(sums_of_groups(rows, offs), mask(offs, size) @ rows)
    for function, t in ((lambda t: rows_of_groups(t, offs, size), values), (lambda t: sums_of_groups(t, offs), rows)):
        assert torch.autograd.gradcheck(function, t, check_forward_ad=True, check_batched_grad=size > 0)
        assert torch.autograd.gradgradcheck(function, t)


def test_torch_func() -> None:
    x, w, offs = operands("2d_3d", "odd and empty")
    bias = torch.randn(w.size(0), N, dtype=x.dtype)

    def loss(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return hgemm_ops.grouped_mm(x, w, offs, bias, activation="gelu").square().sum()

    expected = torch.autograd.grad(loss(*(p := [t.clone().requires_grad_() for t in (x, w, bias)])), p)
    torch.testing.assert_close(torch.func.grad(loss, argnums=(0, 1, 2))(x, w, bias), expected)
    many = torch.randn(3, *x.shape, dtype=x.dtype)
    batched = torch.func.vmap(lambda x: hgemm_ops.grouped_mm(x, w, offs, bias))(many)
    torch.testing.assert_close(batched, torch.stack([hgemm_ops.grouped_mm(x, w, offs, bias) for x in many]))


class Experts(nn.Module):
    def __init__(self, groups: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(groups, N, K))
        self.bias = nn.Parameter(torch.randn(groups, N))
        self.gated = nn.Parameter(torch.randn(groups, 2 * K, N))

    def forward(self, x: Tensor, offs: Tensor) -> Tensor:
        y = hgemm_ops.grouped_mm(x, self.weight.mT, offs, self.bias, activation="silu")
        return hgemm_ops.grouped_mm_gated(y, self.gated.mT, offs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool, fresh_dynamo: None) -> None:
    module = Experts()
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for size, ends in (ENDS["odd and empty"], (18, (5, 9, 9, 18))):
        x, offs = torch.randn(size, K, requires_grad=True), torch.tensor(ends, dtype=torch.int32)
        results = []
        for function in (module, compiled):
            out = function(x, offs)
            results.append((out, *torch.autograd.grad(out.sum(), [x, *module.parameters()])))
        torch.testing.assert_close(*results)


@pytest.mark.slow
def test_compiled_by_inductor(fresh_dynamo: None) -> None:
    module, (x, _, offs) = Experts(), operands("2d_3d", "odd and empty", torch.float32)
    compiled = torch.compile(module, fullgraph=True)
    results = []
    for function in (module, compiled):
        out = function(x, offs)
        results.append((out, *torch.autograd.grad(out.sum(), list(module.parameters()))))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict: bool) -> None:
    module, (x, _, offs) = Experts(), operands("2d_3d", "odd and empty", torch.float32)
    shapes = {"x": {0: torch.export.Dim("rows", min=2)}, "offs": None}
    program = torch.export.export(module, (x, offs), dynamic_shapes=shapes, strict=strict)
    assert torch.ops.hgemm.grouped_mm.default in {node.target for node in program.graph.nodes}
    x, offs = torch.randn(9, K), torch.tensor((2, 2, 3, 9), dtype=torch.int32)
    torch.testing.assert_close(program.module()(x, offs), module(x, offs))


@forms
def test_flops(form: str) -> None:
    a, b, offs = operands(form, "odd and empty", torch.float32)
    size, values = ENDS["odd and empty"]
    once = {
        "2d_3d": 2 * size * K * N,
        "3d_3d": 2 * len(values) * M * K * N,
        "2d_2d": 2 * M * size * N,
        "3d_2d": 2 * M * K * size,
    }
    with FlopCounterMode(display=False, custom_mapping=hgemm_ops.flop_formulas()) as counter:
        op(a.requires_grad_(), b.requires_grad_(), offs).sum().backward()
    assert counter.get_total_flops() == 3 * once[form]


def test_flops_of_the_other_ops() -> None:
    t, hgemm = torch.randn, torch.ops.hgemm
    for function, flops in (
        (lambda: hgemm.matmul(t(2, 5, 3), t(3, 4)), 2 * 2 * 5 * 3 * 4),
        (lambda: hgemm.matmul(t(3), t(3)), 2 * 3),
        (lambda: hgemm.mm(t(5, 3), t(3, 4)), 2 * 5 * 3 * 4),
        (lambda: hgemm.bmm(t(2, 5, 3), t(2, 3, 4)), 2 * 2 * 5 * 3 * 4),
        (lambda: hgemm.addmm(t(4), t(5, 3), t(3, 4)), 2 * 5 * 3 * 4),
        (lambda: hgemm.baddbmm(t(2, 5, 4), t(2, 5, 3), t(2, 3, 4)), 2 * 2 * 5 * 3 * 4),
        (lambda: hgemm.linear(t(2, 5, 3), t(4, 3), None, 1), 2 * 2 * 5 * 3 * 4),
        (lambda: hgemm.linear_save(t(5, 3), t(4, 3), None, 2), 2 * 5 * 3 * 4),
        (lambda: hgemm.linear_gated(t(5, 3), t(8, 3), 4), 2 * 5 * 3 * 8),
    ):
        with FlopCounterMode(display=False, custom_mapping=hgemm_ops.flop_formulas()) as counter:
            function()
        assert counter.get_total_flops() == flops


# ---- Errors


def e(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def ends(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


#: What torch refuses too, and its words where its CPU kernel has some.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "k": ((e(8, 16), e(2, 24, 8), ends(4, 8)), "contraction dimension of mat_a and mat_b must match"),
    "k of 2-D": ((e(8, 16), e(24, 8), ends(4, 8)), "contraction dimension of mat_a and mat_b must match"),
    "no offs": ((e(8, 16), e(2, 16, 8), None), "Have to provide offsets if there is a 2d matrix"),
    "offs of 3-D": ((e(2, 8, 16), e(2, 16, 8), ends(4, 8)), "or no offset if both matrices are 3d"),
    "batches": ((e(3, 8, 16), e(2, 16, 8), None), "batched dimension has to match"),
    "ends": ((e(8, 16), e(2, 16, 8), ends(8)), "matrix batch sizes have to match"),
    "ends along columns": ((e(2, 8, 16), e(16, 8), ends(2, 4, 8)), "matrix batch sizes have to match"),
    "int64": ((e(8, 16), e(2, 16, 8), ends(4, 8, dtype=torch.int64)), "Offsets have to be int32"),
    "2-D offs": ((e(8, 16), e(2, 16, 8), ends(4, 8)[None]), "offs has to be 1D"),
    "1-D a": ((e(16), e(2, 16, 8), ends(4, 8)), "mat_a has to be 2 or 3d"),
    "4-D b": ((e(8, 16), e(1, 2, 16, 8), ends(4, 8)), "mat_b has to be 2 or 3d"),
    # torch 2.15 leaves out "but".
    "dtypes": ((e(8, 16), e(2, 16, 8, dtype=torch.float16), ends(4, 8)), "to have the same dtype, (but )?got"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_torchs(case: str) -> None:
    args, message = REFUSED[case]
    with pytest.raises(RuntimeError, match=message):
        op(*args)
    meta = tuple(t.to("meta") if isinstance(t, Tensor) else t for t in args)
    with pytest.raises(RuntimeError, match=message):
        op(*meta)
    if case != "k of 2-D":  # which torch does not check on the host
        with pytest.raises(RuntimeError, match=message):
            torch._grouped_mm(args[0], args[1], offs=args[2])


def test_errors_of_devices_and_options() -> None:
    a, b, offs = e(8, 16), e(2, 16, 8), ends(4, 8)
    with pytest.raises(RuntimeError, match="on the same device, got cpu and meta"):
        op(a.to("meta"), b.to("meta"), offs)
    with pytest.raises(RuntimeError, match="out_dtype must be"):
        op(a, b, offs, out_dtype=torch.float64)
    with pytest.raises(RuntimeError, match="variant must be"):
        op(a, b, offs, variant=-3)


def test_errors_of_the_functions() -> None:
    x, w, offs = e(8, 16), e(2, 16, 10), ends(4, 8)
    with pytest.raises(TypeError, match=r"hgemm_ops\.grouped_mm: w must be a torch\.Tensor, got NoneType"):
        hgemm_ops.grouped_mm(x, None, offs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"offs must be a torch\.Tensor, got list"):
        hgemm_ops.grouped_mm(x, w, [4, 8])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="activation must be one of"):
        hgemm_ops.grouped_mm(x, w, offs, activation="tanh")
    with pytest.raises(ValueError, match="no_such_kernel"):
        hgemm_ops.grouped_mm(x, w, offs, variant="no_such_kernel")
    for bias in (e(2, 8), e(10), e(3, 10)):
        with pytest.raises(RuntimeError, match=r"bias must be \(groups, n\)"):
            hgemm_ops.grouped_mm(x, w, offs, bias)
    with pytest.raises(RuntimeError, match=r"bias must be \(groups, n\)"):
        hgemm_ops.grouped_mm(e(6, 8), e(8, 10), offs, e(2, 10))
    with pytest.raises(RuntimeError, match="bias must have the dtype of x"):
        hgemm_ops.grouped_mm(x, w, offs, e(2, 10, dtype=torch.float32))
    with pytest.raises(RuntimeError, match="even number of columns"):
        hgemm_ops.grouped_mm_gated(x, e(2, 16, 9), offs)
    with pytest.raises(RuntimeError, match="must be 3-D"):
        hgemm_ops.grouped_mm_gated(e(6, 8), e(8, 10), offs)


@pytest.mark.parametrize("layout", LAYOUTS)
@forms
def test_operands_are_arranged_for_kernels(form: str, layout: str) -> None:
    """Those of CUDA. torch's kernel for the CPU takes no others either, except that it does not look at groups."""
    offs = None if form == "3d_3d" else torch.tensor([2, 3, 7], dtype=torch.int32)
    seen = []

    def product(a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
        seen.append((a, b))
        return torch._grouped_mm(a, b, offs=offs)

    for n, k in ((8, 16), (5, 3)):
        a, b = (LAYOUTS[layout](torch.randn(shape).bfloat16()) for shape in shapes(form, 7, 3, 4, n, k))
        out = grouped.arranged(product, a, b, offs)
        torch.testing.assert_close(out, op(a, b, offs))
        assert out.stride() == op(a, b, offs).stride()
        for t, divided in zip(seen[-1], {"2d_2d": (-1, -2), "3d_3d": (0, 0)}.get(form, (-2, 0)), strict=True):
            assert t.stride(divided) != 1 or t.size(divided) == 1
            assert sorted(t.stride())[0] == 1 and not any(s % 8 for s in sorted(t.stride())[1:])


def test_operands_are_not_copied_for_nothing() -> None:
    def product(a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
        seen.append((a, b))
        return a

    seen: list[tuple[Tensor, Tensor]] = []
    offs, wide = ends(2, 7), e(9, 24)
    for a, b, given in (
        (wide[1:, 8:], e(2, 24, 16), offs),
        (wide[1:], e(2, 16, 24).mT, offs),
        (wide.T, e(9, 16), offs),
        (e(2, 5, 16).mT, e(2, 5, 8), None),
    ):
        grouped.arranged(product, a, b, given)
        assert [t.data_ptr() for t in seen[-1]] == [a.data_ptr(), b.data_ptr()]
    for t in (torch.empty(217, dtype=torch.bfloat16)[1:].view(9, 24), e(24, 9).T, e(1, 24).expand(9, 24)):
        copy, _ = (grouped.arranged(product, t, e(2, 24, 8), offs), seen[-1])[1]
        assert copy.stride() == (24, 1) and copy.storage_offset() == 0


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_operands_are_arranged(dynamic: bool, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> None:
    """Inductor keeps the strides that the operands of kernels need, in the forward and the backward."""
    monkeypatch.setattr(grouped, "_has_kernels", lambda a: True)
    seen = []

    def product(a: Tensor, b: Tensor, offs: Tensor | None = None, **options: Any) -> Tensor:
        seen.append((a.stride(), b.stride()))
        return by_torch(a, b, offs, **options)

    by_torch = grouped._by_torch
    monkeypatch.setattr(grouped, "_by_torch", product)
    x, w = torch.randn(9, 7, requires_grad=True), torch.randn(3, 5, 7, requires_grad=True)
    bias, offs = torch.randn(3, 5, requires_grad=True), ends(2, 2, 9)

    def function(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        y = hgemm_ops.grouped_mm(x * 2, w.mT, offs, bias, activation="silu")
        return hgemm_ops.grouped_mm(y + 1, w, offs)

    results = []
    for run in (function, torch.compile(function, fullgraph=True, dynamic=dynamic)):
        seen.clear()
        out = run(x, w, bias)
        results.append((out, *torch.autograd.grad(out.sum(), (x, w, bias))))
        assert len(seen) == 7
        for strides in (s for both in seen for s in both):
            assert min(strides) == 1 and all(s == 1 or s % 4 == 0 for s in strides), strides
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("before", ["the package", "fusing", "counting"])
def test_flop_counters_have_the_formulas(before: str) -> None:
    code = f"""
import sys
if {before == "the package"}:
    import torch.utils.flop_counter
import torch, hgemm_ops
assert {before == "the package"} == ("torch.utils.flop_counter" in sys.modules)
if {before == "fusing"}:
    import torch.utils.flop_counter
hgemm_ops.fuse_projections(torch.nn.Linear(2, 2))
from torch.utils.flop_counter import FlopCounterMode
options = {{"custom_mapping": hgemm_ops.flop_formulas()}} if {before == "counting"} else {{}}
with FlopCounterMode(display=False, **options) as counter:
    torch.ops.hgemm.mm(torch.ones(2, 3), torch.ones(3, 4))
assert counter.get_total_flops() == 48
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", ["rows", "k", "columns"])
def test_operands_stay_where_they_are_without_memory_for_copies(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(t: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(grouped, "_copied", no_memory)
    shapes = {"rows": ((5, 3), (2, 3, 7)), "k": ((5, 3), (3, 7)), "columns": ((2, 5, 3), (3, 7))}[form]
    a, b = torch.ones(shapes[0]), torch.ones(shapes[1])
    seen: list[tuple[Tensor, Tensor]] = []

    def product(a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
        seen.append((a, b))
        return a

    grouped.arranged(product, a, b, torch.tensor([1, 3], dtype=torch.int32))
    assert seen[-1][0] is a and seen[-1][1] is b
