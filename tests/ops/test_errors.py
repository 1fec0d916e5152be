"""Bad arguments: torch's exceptions, and messages of our own where torch has no such argument.

Every case of ours runs on real, meta and fake tensors: the fake implementations refuse what the real ones refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import hgemm_ops

hgemm = torch.ops.hgemm


def t(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


HALF, DOUBLE = torch.float16, torch.float64
TORCHS: dict[str, Callable[..., Any]] = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "bmm": torch.bmm,
    "addmm": torch.addmm,
    "baddbmm": torch.baddbmm,
    "linear": F.linear,
}
# op, arguments of both ours and torch's
MISTAKES: dict[str, tuple[str, tuple[Tensor, ...]]] = {
    "mm inner": ("mm", (t(4, 5), t(6, 3))),
    "mm rank": ("mm", (t(2, 4, 5), t(5, 3))),
    "mm dtype": ("mm", (t(4, 5), t(5, 3, dtype=HALF))),
    "matmul inner": ("matmul", (t(2, 4, 5), t(6))),
    "matmul vectors": ("matmul", (t(5), t(6))),
    "matmul batch": ("matmul", (t(2, 4, 5), t(3, 5, 6))),
    "matmul scalar": ("matmul", (t(), t(5, 6))),
    "bmm batch": ("bmm", (t(2, 4, 5), t(3, 5, 6))),
    "bmm rank": ("bmm", (t(4, 5), t(5, 6))),
    "addmm input": ("addmm", (t(4, 5), t(4, 5), t(5, 6))),
    "addmm input rank": ("addmm", (t(1, 4, 6), t(4, 5), t(5, 6))),
    "addmm input dtype": ("addmm", (t(4, 6), t(4, 5, dtype=HALF), t(5, 6, dtype=HALF))),
    "addmm inner": ("addmm", (t(6), t(4, 5), t(4, 6))),
    "baddbmm batch": ("baddbmm", (t(6), t(2, 4, 5), t(3, 5, 6))),
    "linear inner": ("linear", (t(4, 5), t(3, 6))),
    "linear bias": ("linear", (t(4, 5), t(3, 5), t(4))),
    "linear bias rows": ("linear", (t(4, 5), t(3, 5), t(2, 3))),
    "linear bias dtype": ("linear", (t(4, 5), t(3, 5), t(3, dtype=HALF))),
    "linear weight rank": ("linear", (t(4, 5), t(1, 3, 5))),
    "linear x rank": ("linear", (t(), t(3, 5))),
}


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "gradient"])
@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_torchs(case: str, grad: bool) -> None:
    name, args = MISTAKES[case]
    args = tuple(arg.clone().requires_grad_(grad) for arg in args)
    with pytest.raises(Exception) as theirs:
        TORCHS[name](*args)
    with pytest.raises(theirs.type):
        getattr(hgemm, name)(*args)
    if name == "linear" and len(args) == 3:
        with pytest.raises(theirs.type):
            hgemm.linear(*args, 2)


@pytest.mark.parametrize("case", [case for case in MISTAKES if "dtype" not in case])
def test_fake_tensors_refuse_what_torch_refuses(case: str) -> None:
    name, args = MISTAKES[case]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(arg) for arg in args]
        try:
            TORCHS[name](*fakes)
        except Exception as error:
            with pytest.raises((type(error), AssertionError)):  # the latter from torch's decompositions
                getattr(hgemm, name)(*fakes)
        else:  # torch finds out on real tensors alone
            getattr(hgemm, name)(*fakes)


# name -> (call, what the message says)
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "variant": (lambda: hgemm.mm(t(4, 5), t(5, 3), variant=-3), "index into variants(), got -3"),
    "mm out_dtype": (
        lambda: hgemm.mm(t(4, 5), t(5, 3), out_dtype=HALF),
        (
            "out_dtype must be torch.float32, the inputs' dtype, or torch.float32 for float16 and bfloat16 inputs, "
            "got torch.float16"
        ),
    ),
    "matmul out_dtype": (lambda: hgemm.matmul(t(4, 5), t(5, 3), out_dtype=DOUBLE), "got torch.float64"),
    "linear act": (lambda: hgemm.linear(t(4, 5), t(3, 5), None, 5), "act must be an index into ('none', 'relu', "),
    "linear_gated rows": (
        lambda: hgemm.linear_gated(t(4, 5), t(3, 5), 1),
        "hgemm::linear_gated: weight (3, 5) must be 2-D with an even number of rows",
    ),
    "linear_gated rank": (lambda: hgemm.linear_gated(t(4, 5), t(5), 1), "hgemm::linear_gated: weight (5,) must be 2-D"),
    "linear_gated act": (lambda: hgemm.linear_gated(t(4, 5), t(4, 5), -1), "act must be an index into ('none', "),
    "out shape": (
        lambda: hgemm.mm.out(t(4, 5), t(5, 3), out=t(4, 4)),
        "hgemm::mm: out must have the result's ((4, 3), torch.float32, ",
    ),
    "out rank": (lambda: hgemm.matmul.out(t(4, 5), t(5, 3), out=t(0)), "hgemm::matmul: out must have the result's"),
    "out dtype": (
        lambda: hgemm.linear.out(t(4, 5), t(3, 5), out=t(4, 3, dtype=HALF)),
        "hgemm::linear: out must have the result's",
    ),
}


@pytest.mark.parametrize("kind", ["real", "meta", "fake"])
@pytest.mark.parametrize("case", CASES)
def test_message(case: str, kind: str) -> None:
    call, message = CASES[case]
    contexts = {"real": torch.device("cpu"), "meta": torch.device("meta"), "fake": FakeTensorMode()}
    with contexts[kind], pytest.raises(RuntimeError, match=re.escape(message)):
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
    with pytest.raises(TypeError, match=r"hgemm_ops.matmul: out_dtype must be a torch.dtype or None, got 'float32'"):
        hgemm_ops.matmul(a, a.T, out_dtype="float32")
    with pytest.raises(TypeError, match=r"hgemm_ops.linear: bias must be a torch.Tensor, got int"):
        hgemm_ops.linear(a, t(3, 5), 1)
    with pytest.raises(
        ValueError, match=r"activation must be one of none, relu, gelu, gelu_tanh, silu or None, got 'tanh'"
    ):
        hgemm_ops.linear(a, t(3, 5), activation="tanh")
    with pytest.raises(ValueError, match=r"unknown kernel 'no_such_kernel'; available: auto, torch"):
        hgemm_ops.matmul(a, a.T, variant="no_such_kernel")


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
