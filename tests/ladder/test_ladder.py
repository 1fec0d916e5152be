"""The ladder without a GPU: what it holds, its ops, and what the tables and the course say of it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch
from helpers import OPCHECKS, ROOT
from torch import Tensor, library

import hgemm_ops
from benchmarks import ladder_course
from benchmarks.course.rungs import FAMILIES, RUNGS
from hgemm_ops.ops import ladder

pytestmark = pytest.mark.skipif(not ladder.is_built(), reason="the ladder's library was not built")

LIST = ROOT / "csrc" / "ladder" / "variants.inc"
hgemm = torch.ops.hgemm

STEPS = {step.name: step for step in ladder.steps()}
GEMMS = [v for v in hgemm_ops.variants() if v.family == "ladder"]
ADDITIONS = ladder.additions()


def seeds() -> list[dict[str, str]]:
    """The kernels of the published tables that the ladder follows."""
    with (ROOT / "benchmarks" / "course" / "published_kernels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def t(*shape: int, dtype: torch.dtype, grad: bool = True) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_(grad)


# ---- what there is


def test_every_published_kernel_is_a_step() -> None:
    names = [row["name"] for row in seeds()]
    assert len(names) == len(set(names)) == 69
    with (ROOT / "benchmarks" / "course" / "published_ratios.csv").open(newline="") as file:
        assert {row["name"] for row in csv.DictReader(file)} <= set(names)
    built = {v.name for v in GEMMS} | {addition.name for addition in ADDITIONS}
    assert not set(names) - built
    for row in seeds():
        rung = RUNGS[row["name"]]
        printed = row["label"]
        if row["name"].endswith("_stage4_dsmem") and "stage3" in printed:
            printed = printed.replace("stage3", "stage4")  # two rows were printed under one label
        assert rung.label == printed or not printed
        assert rung.family == {"hgemm_cuda_core": "hgemm", "hgemm_wmma": "wmma"}.get(row["family"], row["family"])


def test_the_list_the_library_and_the_course_hold_the_same_steps() -> None:
    declared = re.findall(r"^[A-Z][A-Z0-9_]*\((\w+), (?:F16|BF16|F32),", LIST.read_text(), re.MULTILINE)
    built = [v.name for v in GEMMS] + [addition.name for addition in ADDITIONS]
    assert len(built) == len(set(built))
    assert set(declared) == set(built) == set(RUNGS)


def test_steps_follow_steps() -> None:
    names = list(RUNGS)
    for rung in RUNGS.values():
        assert rung.label and rung.adds
        assert rung.after is None or names.index(rung.after) < names.index(rung.name), rung
    for family, rungs in FAMILIES.items():
        assert len({rung.label for rung in rungs}) == len(rungs), family


def test_what_steps_say_of_themselves() -> None:
    for v in GEMMS:
        family = RUNGS[v.name].family
        assert v.dtypes == ((torch.float32,) if family == "sgemm" else (torch.float16,))
        assert v.layouts == ("NN",)
        assert v.min_arch == ("sm_90" if family == "wgmma" else "sm_80")
        step = STEPS[v.name]
        assert (step.variant, step.dtype, step.swizzles) == (v.id, v.dtypes[0], "swizzle" in v.name)
        assert v.forced_only
        half = family in ("hgemm", "wmma", "mma") and not v.name.endswith("f32acc")
        assert v.numerics == ("float16 accumulation" if half else "float32 accumulation"), v.name


def test_nobody_is_given_a_step_unasked() -> None:
    for m, n, k in ((1, 4096, 4096), (64, 64, 64), (4096, 4096, 4096), (4097, 513, 129)):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            explanation = hgemm_ops.explain(M=m, N=n, K=k, dtype=dtype, arch="sm_90")
            chosen = next(c for c in explanation.candidates if c.name == explanation.chosen)
            assert chosen.family != "ladder"


def test_eligibility() -> None:
    def reasons(**problem: object) -> dict[str, str]:
        candidates = hgemm_ops.explain(**{"M": 64, "N": 72, "K": 40, "arch": "sm_90", **problem}).candidates  # type: ignore[arg-type]
        return {c.name: c.reason for c in candidates if c.family == "ladder"}

    for v in GEMMS:
        dtype = v.dtypes[0]
        assert reasons(dtype=dtype)[v.name] == ""
        assert "A and B must be row-major" in reasons(dtype=dtype, layout="NT")[v.name]
        assert "does not support batches, got 3 matrices" in reasons(dtype=dtype, batch=3)[v.name]
        assert "has no epilogue" in reasons(dtype=dtype, bias=True)[v.name]
        assert "K must be positive" in reasons(dtype=dtype, K=0)[v.name]
        assert f"supports {str(dtype).removeprefix('torch.')}, not bfloat16" in reasons(dtype=torch.bfloat16)[v.name]
        odd = reasons(dtype=dtype, N=73, alignment=2 if dtype == torch.float16 else 4)[v.name]
        assert odd == ("rows of A and B must be 16-byte aligned, got 2 and 2" if v.min_arch == "sm_90" else "")
        assert reasons(dtype=dtype, M=1, N=1, K=1)[v.name] == ""


# ---- ops


@pytest.mark.parametrize("v", GEMMS, ids=lambda v: v.name)
def test_product_ops(v: hgemm_ops.VariantInfo) -> None:
    """On a CPU a step's op is torch.matmul; where the kernel runs is the GPU tests' matter."""
    op, dtype = getattr(hgemm, v.name).default, v.dtypes[0]
    extra = ", int swizzle_stride=0" if STEPS[v.name].swizzles else ""
    assert str(op._schema) == f"hgemm::{v.name}(Tensor a, Tensor b{extra}) -> Tensor"
    a, b = t(5, 3, dtype=dtype), t(3, 4, dtype=dtype)
    torch.testing.assert_close(op(a, b), a @ b)
    torch.testing.assert_close(op(a.mT.contiguous().mT, b.expand(2, 3, 4)[1]), a @ b)
    library.opcheck(op, (a, b), test_utils=OPCHECKS)
    with pytest.raises(RuntimeError, match=f"hgemm::{v.name}: b must be {dtype}, got torch.float64"):
        op(a, b.double())
    if STEPS[v.name].swizzles:
        torch.testing.assert_close(op(a, b, 128), a @ b)
        library.opcheck(op, (a, b, 64), test_utils=OPCHECKS)
        with pytest.raises(RuntimeError, match=r"swizzle_stride must be a number of columns, .* got -1"):
            op(a, b, -1)


def test_operands_are_copied_only_where_a_step_needs_it() -> None:
    from hgemm_ops.ops.ladder import _plain

    x = torch.arange(24.0).reshape(4, 6)
    for plain in (x, x[:, :3], x[1:2], x[:, 1:], x[:0], x[:, :0], x[0], torch.zeros(3, 1), torch.zeros(1, 3)[:, 1:]):
        assert _plain(plain, 1) is plain
    for other in (x.mT, x[:, ::2], x[:1].expand(3, 6), x[0, ::2], x[:, 0]):
        copy = _plain(other, 1)
        assert copy.is_contiguous() and torch.equal(copy, other) and copy.data_ptr() != other.data_ptr()
    for chunked in (torch.zeros(4, 8), torch.zeros(4, 16)[:, :5], torch.zeros(5), torch.zeros(1, 5)):
        assert _plain(chunked, 16) is chunked
    for other in (x, x[:, :1], torch.randn(4, 9)[:, 1:], torch.randn(3, 8).mT, torch.randn(5)[1:], torch.randn(7, 1)):
        copy = _plain(other, 16)
        assert torch.equal(copy, other) and copy.storage_offset() == 0 and copy.stride(-1) == 1
        assert copy.dim() < 2 or (copy.stride(-2) % 4 == 0 and copy.stride(-2) >= copy.size(-1))


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.name)
def test_addition_ops(addition: ladder.Addition) -> None:
    op, dtype = getattr(hgemm, addition.name).default, addition.dtype
    assert str(op._schema) == f"hgemm::{addition.name}(Tensor a, Tensor b) -> Tensor"
    for a, b in (
        (t(5, 3, dtype=dtype), t(5, 3, dtype=dtype)),
        (t(3, 5, dtype=dtype).mT, t(5, 3, dtype=dtype)),
        (t(dtype=dtype), t(dtype=dtype)),
        (t(2, 0, 3, dtype=dtype), t(2, 0, 3, dtype=dtype)),
    ):
        result = op(a, b)
        assert torch.equal(result, a + b) and result.is_contiguous()
        library.opcheck(op, (a, b), test_utils=OPCHECKS)
    a, b = t(4, dtype=dtype), t(4, dtype=dtype)
    op(a, b).sum().backward()
    assert a.grad is not None and b.grad is not None and torch.equal(a.grad, torch.ones_like(a))
    _, tangent = torch.func.jvp(op, (a.detach(), b.detach()), (a.detach(), b.detach()))
    assert torch.equal(tangent, (a + b).detach())
    batched = torch.vmap(op, in_dims=(1, None))(t(4, 6, dtype=dtype, grad=False), b.detach())
    assert batched.shape == (6, 4)
    for wrong, message in (
        ((a, b.double()), f"a and b must be {dtype}, got {dtype} and torch.float64"),
        ((a, t(3, dtype=dtype)), r"a \(4,\) and b \(3,\) must have one shape"),
        ((a, t(4, 1, dtype=dtype)), r"a \(4,\) and b \(4, 1\) must have one shape"),
    ):
        with pytest.raises(RuntimeError, match=f"hgemm::{addition.name}: {message}"):
            op(*wrong)
        with pytest.raises(RuntimeError, match=f"hgemm::{addition.name}: {message}"):
            op(*(x.to("meta") for x in wrong))


# ---- style


def test_repetition_is_found() -> None:
    block = "\n".join(f"line {i};" for i in range(6))
    assert ladder_course.repeated_share([block, block]) > 0.8
    assert ladder_course.repeated_share([block]) == 0


def test_bodies_do_not_repeat_each_other() -> None:
    files = sorted((ROOT / "csrc" / "ladder").glob("*.cu*"))
    assert len(files) >= 10
    share = ladder_course.repeated_share([file.read_text() for file in files])
    assert share < 0.25, f"{share:.0%} of the ladder's lines are in repeated windows of six"


@pytest.mark.parametrize("file", sorted((ROOT / "csrc" / "ladder").glob("*.cu")), ids=lambda file: file.name)
def test_steps_open_with_what_they_change(file: Path) -> None:
    """What changes from the step before, the expected effect, the source."""
    head = []
    for line in file.read_text().splitlines():
        if not line.startswith("//"):
            break
        head.append(line)
    assert any("Source:" in line for line in head), head
