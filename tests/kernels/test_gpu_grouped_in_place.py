"""The kernels of grouped matmuls that read operands where they lie, by mma.sync and in float32, in every form.

Every kernel is compared with float64 group by group, in every order of the operands and from any address.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from helpers import DEVICE, ON_GPU, POISON, assert_close_to_torch, captured, rand
from torch import Tensor

import hgemm_ops
from hgemm_ops import _native, use_custom_gemm

pytestmark = pytest.mark.gpu

NAMES = _native.grouped_names()
#: The kernels and their dtypes.
KERNELS = [
    (index, dtype)
    for index, name in enumerate(NAMES)
    for dtype in ([torch.float32] if name.startswith("simt") else [torch.float16, torch.bfloat16])
    if not name.startswith("sm90")
]
each_kernel = pytest.mark.parametrize(
    ("kernel", "dtype"), KERNELS, ids=[f"{NAMES[i]}-{str(dtype)[6:]}" for i, dtype in KERNELS]
)
#: The sizes of the groups, and the two sizes that are not divided.
CASES = [
    ([5, 0, 70, 1, 0, 33], 256, 128),
    ([0, 0, 3], 40, 72),
    ([129, 257, 15, 300], 520, 200),
    ([1], 8, 8),
    ([16] * 20 + [0] * 30 + [1000] + [7] * 3, 136, 264),
    ([2] * 1500, 64, 72),
]
each_case = pytest.mark.parametrize(("sizes", "p", "q"), CASES, ids=lambda v: str(v)[:20])
UNALIGNED = [([5, 0, 70, 1, 0, 33], 131, 67), ([3, 200, 0, 1], 65, 259), ([0, 17], 1, 1)]
each_unaligned = pytest.mark.parametrize(("sizes", "p", "q"), UNALIGNED, ids=lambda v: str(v)[:20])
FORMS = pytest.mark.parametrize("form", ["rows", "k", "columns"])
ORDERS = pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])


def ends_of(sizes: Sequence[int]) -> Tensor:
    return torch.tensor(list(itertools.accumulate(sizes)), dtype=torch.int32, device=DEVICE)


def stored(shape: tuple[int, ...], order: str, dtype: torch.dtype, offset: int = 0) -> Tensor:
    """A tensor whose matrices are stored by rows ("N") or by columns ("T"), ``offset`` elements into its memory.

    With an offset, rows have the pitch of their elements; else they start on multiples of 16 bytes.
    """
    *outer, rows, columns = shape
    if order == "T":
        rows, columns = columns, rows
    chunk = 1 if offset else 8
    pitch = -(-columns // chunk) * chunk
    elements = rand(offset + rows * pitch * (outer[0] if outer else 1), dtype=dtype)
    t = elements[offset:].view(*outer, rows, pitch)[..., :columns]
    return t if order == "N" else t.mT


def operands(
    form: str, order: str, sizes: Sequence[int], p: int, q: int, dtype: torch.dtype, offset: int = 0, rest: int = 0
) -> tuple[Tensor, Tensor]:
    divided, groups = sum(sizes) + rest, len(sizes)
    shapes = {
        "rows": ((divided, q), (groups, q, p)),
        "k": ((p, divided), (divided, q)),
        "columns": ((groups, p, q), (q, divided)),
    }[form]
    return stored(shapes[0], order[0], dtype, offset), stored(shapes[1], order[1], dtype, offset)


def call(a: Tensor, b: Tensor, offs: Tensor, kernel: int) -> Tensor:
    """Calls the kernel with the operands where they lie: in inference mode the op makes no copies."""
    with torch.inference_mode():
        return torch.ops.hgemm.grouped_mm(a, b, offs, variant=kernel)


def parts(form: str, sizes: Sequence[int]) -> list[tuple[Callable[[Tensor], Tensor], ...]]:
    """For each group, what takes its part of a, of b and of the result."""
    found, first = [], 0
    for g, size in enumerate(sizes):
        part = slice(first, first + size)
        first += size
        if form == "rows":
            takers = (lambda a, s=part: a[s]), (lambda b, g=g: b[g]), (lambda d, s=part: d[s])
        elif form == "k":
            takers = (lambda a, s=part: a[:, s]), (lambda b, s=part: b[s]), (lambda d, g=g: d[g])
        else:
            takers = (lambda a, g=g: a[g]), (lambda b, s=part: b[:, s]), (lambda d, s=part: d[:, s])
        found.append(takers)
    return found


def check(form: str, out: Tensor, a: Tensor, b: Tensor, sizes: Sequence[int]) -> None:
    """Compares some groups, the largest one among them."""
    __tracebackhide__ = True
    groups = parts(form, sizes)
    some = sorted({*range(min(len(sizes), 60)), max(range(len(sizes)), key=lambda g: sizes[g]), len(sizes) - 1})
    for g in some:
        of_a, of_b, of_d = groups[g]
        left, right, got = of_a(a), of_b(b), of_d(out)
        if got.numel():
            wide = left.double(), right.double()
            magnitude = wide[0].abs() @ wide[1].abs()
            assert_close_to_torch(got, wide[0] @ wide[1], left @ right, magnitude=magnitude)


def poison(elements: int, dtype: torch.dtype) -> None:
    """The next tensor, if it has so many elements, gets memory that holds NaN."""
    torch.full((elements,), POISON, dtype=dtype, device=DEVICE)


def takes(kernel: int, form: str, order: str) -> bool:
    """Whether a kernel takes the operands of CASES."""
    name = NAMES[kernel]
    if not name.startswith("sm80"):
        return True
    a_inner, b_inner = order[0] == "N", order[1] == "T"
    if not a_inner and b_inner:
        return False
    if "128x128" not in name:
        return True
    divided = {"rows": not a_inner, "k": a_inner or b_inner, "columns": not b_inner}[form]
    return not divided


@each_kernel
@FORMS
@ORDERS
@each_case
def test_every_group_is_its_own_product(
    kernel: int, dtype: torch.dtype, form: str, order: str, sizes: list[int], p: int, q: int, without_tf32: None
) -> None:
    a, b = operands(form, order, sizes, p, q, dtype)
    offs = ends_of(sizes)
    if ON_GPU and not takes(kernel, form, order):
        with pytest.raises(RuntimeError, match="cannot run the matmul"):
            call(a, b, offs, kernel)
        return
    columns = b.size(-1)
    pitch = -(-columns // (16 // dtype.itemsize)) * (16 // dtype.itemsize)
    poison(a.size(-2) * pitch * (len(sizes) if form == "k" else 1), dtype)
    out = call(a, b, offs, kernel)
    assert out.dtype == dtype and out.stride(-2) == pitch
    assert out.shape == ((len(sizes),) if form == "k" else ()) + (a.size(-2), columns)
    check(form, out, a, b, sizes)


@pytest.mark.parametrize(
    ("kernel", "dtype"), [(i, d) for i, d in KERNELS if "128x128" not in NAMES[i]], ids=lambda v: str(v)
)
@FORMS
@ORDERS
@each_unaligned
@pytest.mark.parametrize("offset", [1, 2])
def test_operands_at_any_address(
    kernel: int,
    dtype: torch.dtype,
    form: str,
    order: str,
    sizes: list[int],
    p: int,
    q: int,
    offset: int,
    without_tf32: None,
) -> None:
    a, b = operands(form, order, sizes, p, q, dtype, offset)
    # A matrix of one element has every memory order, also that which the kernel does not take beside a column-major A.
    if not takes(kernel, form, order) or (order == "TN" and p == q == 1):
        return
    poison(sum(sizes) * 512, dtype)
    check(form, call(a, b, ends_of(sizes), kernel), a, b, sizes)


@each_kernel
@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("rest", [1, 15, 200])
def test_what_lies_behind_the_last_end_is_not_written(kernel: int, dtype: torch.dtype, form: str, rest: int) -> None:
    """The replay of a graph writes to memory that the test has filled."""
    if not ON_GPU:
        pytest.skip("needs CUDA graphs")
    sizes = [17, 0, 129]
    a, b = operands(form, "NT", sizes, 512, 256, dtype, rest=rest)
    (a if form == "rows" else b.mT)[sum(sizes) :] = POISON
    offs = ends_of(sizes)
    out, replay = captured(lambda: call(a, b, offs, kernel))
    replay()
    check(form, out, a, b, sizes)
    behind = out[sum(sizes) :] if form == "rows" else out[:, sum(sizes) :]
    assert behind.isnan().all()


@each_kernel
def test_nothing_leaks_between_groups_of_k(kernel: int, dtype: torch.dtype, without_tf32: None) -> None:
    sizes = [30, 50, 0, 3, 61]
    for group in (0, 1, 3, 4):
        a, b = operands("k", "TN", sizes, 136, 72, dtype, rest=9)
        first = sum(sizes[:group])
        a[:, first : first + sizes[group]], b[first] = float("nan"), float("inf")
        a[:, -9:], b[-9:] = POISON, float("inf")
        out = call(a, b, ends_of(sizes), kernel)
        assert out.isnan().flatten(1).any(1).tolist() == [g == group for g in range(5)]
        assert (out[2] == 0).all()


@each_kernel
@pytest.mark.parametrize("ends", [[-5, 70, 200], [50, 20, 90], [300, 100, 90], [2**30, 2**31 - 1, -(2**31)]], ids=str)
def test_wrong_ends_write_nothing_outside(kernel: int, dtype: torch.dtype, ends: list[int]) -> None:
    """The result is not defined, but memory around it must stay as it is."""
    for form in ("rows", "k", "columns"):
        a, b = operands(form, "NT" if form != "k" else "TN", [30, 30, 30], 256, 128, dtype)
        out = call(a, b, torch.tensor(ends, dtype=torch.int32, device=DEVICE), kernel)
        around = torch.full((64, 256), 7.0, dtype=dtype, device=DEVICE)
        torch.cuda.synchronize()
        assert out.numel() and (around == 7).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("order", ["NT", "NN"])
def test_a_rows_bits_depend_on_its_expert_and_itself(dtype: torch.dtype, order: str) -> None:
    if not ON_GPU:
        pytest.skip("the bits of the kernels")
    kernels = [i for i, of in KERNELS if of == dtype]
    w = stored((6, 1032, 520), order[1], dtype)
    x = rand(300, 1032, dtype=dtype)
    alone = call(x, w, ends_of([0, 0, 300, 0, 0, 0]), kernels[0])
    for kernel in kernels:
        for before, after in ((0, 0), (1, 0), (77, 500), (4000, 3)):
            sizes = [before, 0, 300, after, 0, 9]
            company = torch.cat([rand(before, 1032, dtype=dtype), x, rand(after + 9, 1032, dtype=dtype)])
            out = call(company, w, ends_of(sizes), kernel)[before : before + 300]
            assert torch.equal(out, alone), (NAMES[kernel], before, after)


@pytest.mark.sm90
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_bits_are_those_of_the_kernels_for_hopper(dtype: torch.dtype) -> None:
    sizes = [33, 0, 200, 1, 66]
    for form, order in (("rows", "NT"), ("rows", "NN"), ("k", "TN")):
        a, b = operands(form, order, sizes, 264, 520, dtype)
        index = next(i for i, name in enumerate(NAMES) if name.startswith("sm90") and ("_k_" in name) == (form == "k"))
        theirs = call(a, b, ends_of(sizes), index)
        for kernel, of in KERNELS:
            if of == dtype:
                assert torch.equal(call(a, b, ends_of(sizes), kernel), theirs), (NAMES[kernel], form, order)


@each_kernel
@FORMS
def test_a_graph_follows_the_groups(kernel: int, dtype: torch.dtype, form: str, without_tf32: None) -> None:
    """The host reads nothing of ``offs``: a captured call computes what its values are at each replay."""
    if not ON_GPU:
        pytest.skip("needs CUDA graphs")
    a, b = operands(form, "TN" if form == "k" else "NT", [40] * 5, 256, 264, dtype)
    offs = ends_of([40] * 5)
    out, replay = captured(lambda: call(a, b, offs, kernel))
    for sizes in ([40] * 5, [200, 0, 0, 0, 0], [0, 1, 2, 3, 194], [0, 0, 0, 99, 101]):
        offs.copy_(ends_of(sizes))
        replay()
        check(form, out, a, b, sizes)


def test_float32_runs_on_our_kernel_unless_tf32_is_allowed(without_tf32: None) -> None:
    sizes = [3, 0, 5, 8]
    x, w, offs = rand(16, 256, dtype=torch.float32), rand(4, 512, 256, dtype=torch.float32).mT, ends_of(sizes)
    with use_custom_gemm() as report:
        out = torch._grouped_mm(x, w, offs=offs)
        torch.set_float32_matmul_precision("high")
        try:
            torch._grouped_mm(x, w, offs=offs)
        finally:
            torch.set_float32_matmul_precision("highest")
    if ON_GPU:
        variants = {row.variant: row.reason for row in report.rows}
        assert set(variants) == {"simt_grouped_16x128", "torch"} and "TF32" in variants["torch"]
    check("rows", out, x, w, sizes)


def test_the_op_in_float32_follows_torchs_flags(without_tf32: None) -> None:
    sizes = [3, 0, 5, 8]
    x, w, offs = rand(16, 256, dtype=torch.float32), rand(4, 512, 256, dtype=torch.float32).mT, ends_of(sizes)
    with use_custom_gemm() as report:
        out = hgemm_ops.grouped_mm(x, w, offs)
    check("rows", out, x, w, sizes)
    if ON_GPU:
        assert [row.variant for row in report.rows] == ["simt_grouped_16x128"]
