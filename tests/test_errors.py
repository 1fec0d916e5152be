"""Bad arguments: torch's exception type, and a message with the op, the argument, the requirement and the value.

Every case runs on real, meta and fake tensors: the fake implementations must refuse what the real ones refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import hgemm_ops

hgemm = torch.ops.hgemm


def t(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


HALF, DOUBLE = torch.float16, torch.float64

# name -> (call, what the message says)
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "mm inner": (
        lambda: hgemm.mm(t(4, 5), t(6, 3)),
        "hgemm::mm: a (4, 5) and b (6, 3): inner dimensions must match, got 5 and 6",
    ),
    "mm rank": (lambda: hgemm.mm(t(2, 4, 5), t(5, 3)), "hgemm::mm: a (2, 4, 5) and b (5, 3): both must be 2-D"),
    "mm dtype": (
        lambda: hgemm.mm(t(4, 5), t(5, 3, dtype=HALF)),
        "hgemm::mm: a (torch.float32) and b (torch.float16): dtypes must match",
    ),
    "mm variant": (lambda: hgemm.mm(t(4, 5), t(5, 3), variant=-3), "index into variants(), got -3"),
    "mm out_dtype": (
        lambda: hgemm.mm(t(4, 5), t(5, 3), out_dtype=HALF),
        "out_dtype must be the dtype of a (torch.float32), or torch.float32 for half inputs, got torch.float16",
    ),
    "matmul inner": (
        lambda: hgemm.matmul(t(2, 4, 5), t(6)),
        "hgemm::matmul: a (2, 4, 5) and b (6,): inner dimensions must match, got 5 and 6",
    ),
    "matmul batch": (
        lambda: hgemm.matmul(t(2, 4, 5), t(3, 5, 6)),
        "hgemm::matmul: a (2, 4, 5) and b (3, 5, 6): batch dimensions must broadcast",
    ),
    "matmul scalar": (
        lambda: hgemm.matmul(t(), t(5, 6)),
        "hgemm::matmul: a () and b (5, 6): both must be at least 1-D",
    ),
    "matmul out_dtype": (lambda: hgemm.matmul(t(4, 5), t(5, 3), out_dtype=DOUBLE), "got torch.float64"),
    "bmm batch": (
        lambda: hgemm.bmm(t(2, 4, 5), t(3, 5, 6)),
        "hgemm::bmm: a (2, 4, 5) and b (3, 5, 6): batch sizes must match, got 2 and 3",
    ),
    "bmm rank": (lambda: hgemm.bmm(t(4, 5), t(5, 6)), "hgemm::bmm: a (4, 5) and b (5, 6): both must be 3-D"),
    "addmm input": (
        lambda: hgemm.addmm(t(4, 5), t(4, 5), t(5, 6)),
        "hgemm::addmm: input (4, 5) must be expandable to the result's shape (4, 6)",
    ),
    "addmm input rank": (lambda: hgemm.addmm(t(1, 4, 6), t(4, 5), t(5, 6)), "hgemm::addmm: input (1, 4, 6) must be"),
    "addmm input dtype": (
        lambda: hgemm.addmm(t(4, 6), t(4, 5, dtype=HALF), t(5, 6, dtype=HALF)),
        "input (torch.float32) must have the dtype of mat1 (torch.float16) or of the result (torch.float16)",
    ),
    "addmm inner": (lambda: hgemm.addmm(t(6), t(4, 5), t(4, 6)), "hgemm::addmm: mat1 (4, 5) and mat2 (4, 6): inner"),
    "baddbmm batch": (
        lambda: hgemm.baddbmm(t(6), t(2, 4, 5), t(3, 5, 6)),
        "hgemm::baddbmm: batch1 (2, 4, 5) and batch2 (3, 5, 6): batch sizes must match, got 2 and 3",
    ),
    "linear inner": (
        lambda: hgemm.linear(t(4, 5), t(3, 6)),
        "hgemm::linear: x (4, 5) and weight (3, 6): last dimensions must match, got 5 and 6",
    ),
    "linear bias": (
        lambda: hgemm.linear(t(4, 5), t(3, 5), t(4)),
        "hgemm::linear: bias (4,) must be expandable to the rows of weight (3,)",
    ),
    "linear bias rank": (lambda: hgemm.linear(t(4, 5), t(3, 5), t(4, 3)), "hgemm::linear: bias (4, 3) must be"),
    "linear bias dtype": (
        lambda: hgemm.linear(t(4, 5), t(3, 5), t(3, dtype=HALF)),
        "hgemm::linear: x (torch.float32) and bias (torch.float16): dtypes must match",
    ),
    "linear weight rank": (lambda: hgemm.linear(t(4, 5), t(1, 3, 5)), "weight (1, 3, 5) must be 2-D"),
    "linear x rank": (lambda: hgemm.linear(t(), t(3, 5)), "hgemm::linear: x () must be at least 1-D"),
    "linear act": (lambda: hgemm.linear(t(4, 5), t(3, 5), None, 5), "act must be one of 0 (none), 1 (relu), "),
    "linear_save inner": (
        lambda: hgemm.linear_save(t(4, 5), t(3, 6), None, 1),
        "hgemm::linear_save: x (4, 5) and weight (3, 6): last dimensions must match",
    ),
    "linear_gated rows": (
        lambda: hgemm.linear_gated(t(4, 5), t(3, 5), 1),
        "hgemm::linear_gated: weight (3, 5) must be 2-D with an even number of rows",
    ),
    "linear_gated rank": (lambda: hgemm.linear_gated(t(4, 5), t(5), 1), "hgemm::linear_gated: weight (5,) must be 2-D"),
    "linear_gated inner": (
        lambda: hgemm.linear_gated(t(4, 5), t(4, 6), 1),
        "hgemm::linear_gated: x (4, 5) and weight (4, 6): last dimensions must match",
    ),
    "linear_gated act": (lambda: hgemm.linear_gated(t(4, 5), t(4, 5), -1), "act must be one of 0 (none), 1 (relu), "),
    "out shape": (
        lambda: hgemm.mm.out(t(4, 5), t(5, 3), out=t(4, 4)),
        "hgemm::mm: out (4, 4) must have the result's shape (4, 3)",
    ),
    "out rank": (lambda: hgemm.matmul.out(t(4, 5), t(5, 3), out=t(0)), "out (0,) must have the result's shape (4, 3)"),
    "out dtype": (
        lambda: hgemm.linear.out(t(4, 5), t(3, 5), out=t(4, 3, dtype=HALF)),
        "hgemm::linear: out (torch.float16) must have the result's dtype torch.float32",
    ),
}


@pytest.mark.parametrize("kind", ["real", "meta", "fake"])
@pytest.mark.parametrize("case", CASES)
def test_message(case: str, kind: str) -> None:
    call, message = CASES[case]
    if kind == "real":
        with pytest.raises(RuntimeError, match=re.escape(message)):
            call()
    elif kind == "meta":
        with torch.device("meta"), pytest.raises(RuntimeError, match=re.escape(message)):
            call()
    else:
        with FakeTensorMode(), pytest.raises(RuntimeError, match=re.escape(message)):
            call()


def test_mixed_devices() -> None:
    cpu, meta = t(4, 5), t(5, 3).to("meta")
    with pytest.raises(RuntimeError, match=re.escape("hgemm::mm: a (cpu) and b (meta): devices must match")):
        hgemm.mm(cpu, meta)
    with pytest.raises(RuntimeError, match=re.escape("x (cpu) and bias (meta): devices must match")):
        hgemm.linear(cpu, t(3, 5), t(3).to("meta"))
    with pytest.raises(RuntimeError, match=re.escape("input (meta) and mat1 (cpu): devices must match")):
        hgemm.addmm(t(3).to("meta"), cpu, t(5, 3))


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.mm(t(4, 5), t(6, 3)),
        lambda: torch.matmul(t(), t(5, 6)),
        lambda: torch.matmul(t(4, 5), t(5, 3, dtype=HALF)),
        lambda: torch.addmm(t(4, 5), t(4, 5), t(5, 6)),
        lambda: torch.nn.functional.linear(t(4, 5), t(3, 6)),
    ],
)
def test_torch_raises_the_same_type(call: Callable[[], Tensor]) -> None:
    with pytest.raises(RuntimeError):
        call()


@pytest.mark.parametrize("op", ["mm", "linear"])
def test_out_refuses_gradients(op: str) -> None:
    a, b = t(4, 5).requires_grad_(), t(5, 5)
    function = getattr(hgemm, op)
    for arguments, out in (((a, b), t(4, 5)), ((a.detach(), b), t(4, 5).requires_grad_())):
        with pytest.raises(RuntimeError, match=f"hgemm.{op}.out.* don't support automatic differentiation"):
            function.out(*arguments, out=out)
        with torch.no_grad():
            function.out(*arguments, out=out)


def test_public_functions_name_the_argument() -> None:
    a = t(4, 5)
    with pytest.raises(TypeError, match=r"hgemm_ops.matmul: b must be a torch.Tensor, got list"):
        hgemm_ops.matmul(a, [1.0])
    with pytest.raises(TypeError, match=r"hgemm_ops.matmul: a must be a torch.Tensor, got float"):
        hgemm_ops.matmul(2.0, a)
    with pytest.raises(TypeError, match=r"hgemm_ops.matmul: out_dtype must be a torch.dtype or None, got 'float32'"):
        hgemm_ops.matmul(a, a.T, out_dtype="float32")
    with pytest.raises(TypeError, match=r"hgemm_ops.linear: bias must be a torch.Tensor, got int"):
        hgemm_ops.linear(a, t(3, 5), 1)
    with pytest.raises(
        ValueError, match=r"activation must be one of none, relu, gelu, gelu_tanh, silu or None, got 'tanh'"
    ):
        hgemm_ops.linear(a, t(3, 5), activation="tanh")
    with pytest.raises(ValueError, match=r"unknown kernel 'no_such_kernel'; there are auto, torch"):
        hgemm_ops.matmul(a, a.T, variant="no_such_kernel")
    with pytest.raises(RuntimeError, match=re.escape("a (4, 5) and b (4, 5): inner dimensions must match")):
        hgemm_ops.matmul(a, a)


def test_mixed_sizes_fail_when_traced() -> None:
    """A size that is symbolic while tracing is still checked at run time."""
    program = torch.export.export(
        MatMul(), (t(4, 5), t(5, 3)), dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, {1: torch.export.Dim.DYNAMIC})
    )
    assert program.module()(t(7, 5), t(5, 2)).shape == (7, 2)
    with pytest.raises((RuntimeError, AssertionError)):
        program.module()(t(7, 5), t(6, 2))


class MatMul(torch.nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return hgemm.matmul(a, b)
