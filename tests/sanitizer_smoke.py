"""Kernels on a few small ragged problems, for compute-sanitizer; a script, not a test. Its argument says which:
``production`` (also without one), ``grouped``, ``ladder``, ``int8`` or another family, or names of kernels.

::

    compute-sanitizer --tool memcheck --error-exitcode 1 python tests/sanitizer_smoke.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python tests/sanitizer_smoke.py ladder
    compute-sanitizer --tool initcheck --error-exitcode 1 python tests/sanitizer_smoke.py ladder

Inputs are made and results are checked on the CPU, so that hardly a kernel but ours runs under the tool. Every tensor
has its own cudaMalloc (``PYTORCH_NO_CUDA_MEMORY_CACHING``), so that memcheck sees where each one ends. initcheck does
not see what TMA stores, as kernels of sm90_* do: no activation runs over their results then.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch
import torch.nn.functional as F
from helpers import refusal_allowed, widened
from torch import Tensor

import hgemm_ops
from hgemm_ops import VariantInfo, _native
from hgemm_ops.ops import ladder

TOOL = "HGEMM_SANITIZER"  # the tool that it runs under: benchmarks/sanitize.py
LAYOUTS = ("NN", "NT", "TN", "TT")
# M, N, K and the layouts to run. Multiples of 8 make aligned rows, the others need narrow copies; K = 520 and 1030 are
# deep enough to split.
SHAPES = [
    (24, 40, 72, LAYOUTS),
    (17, 33, 67, LAYOUTS),
    (152, 280, 88, ("NN", "TT")),
    (150, 281, 45, ("NT", "TN")),
    (40, 24, 1030, ("TN",)),
    (39, 25, 1030, ("NT",)),
    (24, 40, 67, ("NT",)),  # aligned D of unaligned factors: what some padding kernels need
    (1, 136, 520, ("NT",)),
    (136, 1, 520, ("NN",)),
    (8, 16, 72, LAYOUTS),
    (9, 15, 67, LAYOUTS),
    (12, 20, 24, LAYOUTS),  # from here on tiny_batch
    (9, 7, 5, LAYOUTS),
    *((size, size, size, LAYOUTS) for size in range(2, 7)),
]
# Stream-K besides: one tile of 256 rows more than an H200 has clusters, so that most tiles come in two parts.
STREAM_K_SHAPES = [(17096, 72, 1032, ("NN",)), (17096, 72, 1031, ("NT",))]
# Edged kernels: whole tiles and edges on an H200.
EDGED_SHAPES = [(24, 17000, 72, ("NT", "TT")), (17000, 24, 520, ("NN",)), (24, 17000, 67, ("NT",))]
# Rows of x and K, for x @ x.T and x.T @ x: one tile, and some on both sides of the diagonal.
SYMMETRIC_SHAPES = [(24, 72), (280, 88), (152, 520), (519, 45)]
# The same for sm90_dmma, which then slices K, in clusters and through the workspace.
SLICED_SYMMETRIC_SHAPES = [(519, 1032), (200, 4099)]
# M, N, K and layout, for kernels that sum in slices of K with batch-invariant numerics (csrc/core/slices.h).
SLICED_SHAPES = [
    (24, 40, 3080, "NT"),
    (24, 40, 3080, "NN"),
    (7, 37, 3079, "NT"),
    (7, 37, 3079, "NN"),
    (152, 136, 3080, "NT"),
    (152, 136, 3080, "NN"),
    (152, 136, 3080, "TT"),
]
# Batch, M, N, K and layout. Odd matrices end in the middle of a word, one of them where its allocation does; H: the
# rows of a matrix lie between those of the others.
BATCHES = [
    (3, 20, 40, 72, "NN"),
    (1030, 8, 16, 72, "NN"),
    (5, 15, 13, 67, "NN"),
    (5, 15, 13, 67, "TT"),
    (5, 15, 13, 67, "NH"),
    (5, 67, 19, 33, "NT"),
    (701, 67, 19, 33, "TN"),  # more matrices than blocks of batched_mma_in_place
    (131, 12, 20, 24, "NN"),
    (67, 9, 7, 5, "TT"),
    (67, 9, 7, 5, "NH"),
    (67, 1, 64, 64, "NN"),  # vectors, the largest matrices that tiny_batch takes of 16 and of 32 bits
    (67, 1, 128, 32, "NT"),
    (67, 65, 1, 33, "TN"),
    *((301, size, size, size, "NT") for size in range(2, 7)),
]
# Batch, M, N, K and the order of A, for kernels that compute rows of several matrices in a tile. P: a permuted view; S:
# some rows of larger matrices; D: the same with a second batch dimension.
SHARED = [
    (16, 24, 40, 72, "P"),
    (5, 31, 136, 520, "P"),
    (9, 17, 264, 72, "S"),
    (6, 70, 40, 136, "S"),
    (3, 25, 48, 72, "D"),
    (9, 17, 37, 72, "P"),  # with a D that is not aligned
    (9, 17, 37, 72, "S"),
]
# Grouped matmuls: the rows, or the k, of each group, and the two other sizes.
GROUPS = [([5, 0, 70, 1, 130], 40, 72), ([0, 3], 264, 136), ([64, 200], 520, 200)]
# M, N and K of int8 matmuls: less than a tile, several tiles with a ragged end, and several k-tiles for every slice.
INT8_SHAPES = [(20, 24, 40), (24, 144, 1032), (64, 144, 1032), (300, 264, 392)]
# M, N and K of the ladder's steps: a whole tile of most, and the ragged edge of every tile, of vectors and of slices.
LADDER_SHAPES = [(128, 128, 32), (131, 139, 37), (16, 264, 72)]


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=dtype) if dtype.is_complex else torch.randn(shape).to(dtype)


def operand(rows: int, cols: int, transposed: bool, dtype: torch.dtype) -> Tensor:
    return random(cols, rows, dtype=dtype).t() if transposed else random(rows, cols, dtype=dtype)


def matrices(batch: int, rows: int, cols: int, order: str, dtype: torch.dtype) -> Tensor:
    if order == "H":
        return random(rows, batch, cols, dtype=dtype).transpose(0, 1)
    return random(batch, cols, rows, dtype=dtype).mT if order == "T" else random(batch, rows, cols, dtype=dtype)


def check(name: str, out: Tensor, exact: Tensor) -> None:
    """A gross check: memory errors are the tool's business, rounding is that of the tests."""
    eps = torch.finfo(out.dtype).eps if out.is_floating_point() or out.is_complex() else 0
    error = (widened(out.cpu()) - exact).abs().max().item()
    roundings = 64 if out.dtype == torch.float64 else 4  # float64: of every sum, here and in `exact`
    bound = roundings * eps * (1 + exact.abs().max().item())
    if not error <= bound:
        sys.exit(f"{name}: error {error:.3e}, allowed {bound:.3e}")


def serves(variant: VariantInfo, a: Tensor, b: Tensor) -> bool:
    return any(c.eligible and c.name == variant.name for c in hgemm_ops.explain(a, b, float32="split").candidates)


def problems(variant: VariantInfo) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Every shape in its layouts, the kernel's dtypes in turn."""
    real = [dtype for dtype in variant.dtypes if not dtype.is_complex]
    dtypes = itertools.cycle(real)
    more = STREAM_K_SHAPES if "_streamk" in variant.name else EDGED_SHAPES if "_edged" in variant.name else []
    for m, n, k, layouts in SHAPES + more:
        for layout, dtype in zip(layouts, dtypes):  # noqa: B905 (dtypes never ends)
            a, b = operand(m, k, layout[0] == "T", dtype), operand(k, n, layout[1] == "T", dtype)
            yield f"{variant.name} {dtype} {layout} {m}x{n}x{k}", a, b
    sliced = SLICED_SYMMETRIC_SHAPES if variant.family == "sm90_dmma" else []
    for (rows, k), dtype in itertools.product([*SYMMETRIC_SHAPES, *sliced], real):
        for x in (operand(rows, k, False, dtype), operand(rows, k, True, dtype)):
            yield f"{variant.name} {dtype} x @ x.T {rows}x{k}", x, x.t()
    if "_split3_" in variant.name:  # six products after all, for a sum of one term
        yield f"{variant.name} identity", torch.eye(150), operand(150, 45, False, torch.float32)


def run(variant: VariantInfo) -> int:
    """Launches the kernel on the problems it serves; returns how many."""
    launches = 0
    activates = not (os.environ.get(TOOL) == "initcheck" and variant.name.startswith("sm90_"))
    for name, a, b in problems(variant):
        device_a = a.cuda()
        device_b = device_a.t() if b.data_ptr() == a.data_ptr() else b.cuda()
        if not serves(variant, device_a, device_b):
            continue
        exact = widened(a) @ widened(b)
        check(name, torch.ops.hgemm.mm(device_a, device_b, variant=variant.id), exact)

        launches += 1
        if variant.name.startswith("skinny_wgmma"):  # which are other kernels where nothing is sliced
            out = hgemm_ops.matmul(device_a, device_b, variant=variant.name, numerics="batch_invariant")
            check(f"{name} unsliced", out, exact)
            launches += 1
        bias, c = random(b.size(1), dtype=a.dtype), random(*exact.shape, dtype=a.dtype)
        with refusal_allowed(variant.id):
            out = torch.ops.hgemm.addmm(c.cuda(), device_a, device_b, beta=0.5, alpha=2.0, variant=variant.id)
            check(f"{name} addmm", out, 0.5 * widened(c) + 2.0 * exact)
            launches += 1
        with refusal_allowed(variant.id):
            out = torch.ops.hgemm.linear(device_a, device_b.t(), bias.cuda(), variant=variant.id)
            check(f"{name} linear", out, exact + widened(bias))
            launches += 1
        if not activates or a.dtype in (torch.float64, torch.complex64):  # of which no kernel computes activations
            continue
        with refusal_allowed(variant.id):
            out = torch.ops.hgemm.linear(device_a, device_b.t(), bias.cuda(), 2, variant=variant.id)
            check(f"{name} gelu", out, F.gelu(exact + bias.double()))
            launches += 1
        with refusal_allowed(variant.id):
            out, pre = torch.ops.hgemm.linear_save(device_a, device_b.t(), bias.cuda(), 2, variant=variant.id)
            check(f"{name} bias", pre, exact + bias.double())
            check(f"{name} gelu", out, F.gelu(exact + bias.double()))
            launches += 1
        if b.size(1) % 2 == 0:
            gate, up = exact.chunk(2, -1)
            out = torch.ops.hgemm.linear_gated(device_a, device_b.t(), 4, variant=variant.id)
            check(f"{name} gated", out, F.silu(gate) * up)
            launches += 1
    return launches


def run_sliced(variant: VariantInfo) -> int:
    """Batch-invariant sums in slices of K, where the kernel computes them."""
    launches = 0
    for (m, n, k, layout), dtype in itertools.product(SLICED_SHAPES, (torch.float16, torch.bfloat16)):
        a, b = operand(m, k, layout[0] == "T", dtype), operand(k, n, layout[1] == "T", dtype)
        device_a, device_b = a.cuda(), b.cuda()
        candidates = hgemm_ops.explain(device_a, device_b, numerics="batch_invariant").candidates
        if any(c.eligible and c.name == variant.name for c in candidates):
            out = hgemm_ops.matmul(device_a, device_b, variant=variant.name, numerics="batch_invariant")
            check(f"{variant.name} in slices {m}x{n}x{k} {layout}", out, widened(a) @ widened(b))
            launches += 1
    return launches


def run_batched(variant: VariantInfo) -> int:
    """Batches whose first operand is broadcast, and K = 0 where the kernel takes it."""
    dtypes = variant.dtypes if variant.family in ("tiny_batch", "batched_gemv") else variant.dtypes[:1]
    return sum(run_batch(variant, dtype, *problem) for dtype in dtypes for problem in BATCHES)


def run_batch(variant: VariantInfo, dtype: torch.dtype, batch: int, m: int, n: int, k: int, layout: str) -> int:
    a, b = matrices(1, m, k, layout[0], dtype), matrices(batch, k, n, layout[1], dtype)
    device_a, device_b = a.cuda().expand(batch, m, k), b.cuda()
    launches = 0
    if serves(variant, device_a, device_b):
        exact = widened(a) @ widened(b)
        check(f"{variant.name} batch", torch.ops.hgemm.bmm(device_a, device_b, variant=variant.id), exact)
        launches += 1
        if dtype.is_complex:
            with hgemm_ops.use_custom_gemm(variant=variant.name):
                out = torch.bmm(device_a.conj(), device_b)
            check(f"{variant.name} batch of conjugates", out, widened(a).conj() @ widened(b))
            launches += 1
        if dtype.itemsize <= 4:  # others have results of their own type alone
            with refusal_allowed(variant.id):
                out = torch.ops.hgemm.bmm(device_a, device_b, out_dtype=torch.float32, variant=variant.id)
                check(f"{variant.name} batch", out.to(dtype), exact)
                launches += 1
    no_a, no_b = device_a[..., :0], device_b[:, :0]
    if serves(variant, no_a, no_b):
        empty = torch.ops.hgemm.bmm(no_a, no_b, variant=variant.id)
        check(f"{variant.name} K = 0", empty, torch.zeros(batch, m, n, dtype=widened(a).dtype))
        launches += 1
    return launches


def run_shared(variant: VariantInfo) -> int:
    """Batches whose second operand is broadcast, with every kind of epilogue."""
    launches = 0
    for (batch, m, n, k, order), b_order, dtype in itertools.product(SHARED, "NT", (torch.float16, torch.bfloat16)):
        if order == "P":
            a = random(m, batch, k, dtype=dtype).transpose(0, 1)
        else:
            a = random(*((2, batch + 1) if order == "D" else (batch,)), m + 3, k, dtype=dtype)
        device_a = a.cuda()[..., :batch, :m, :]
        a, b = a[..., :batch, :m, :], operand(k, n, b_order == "T", dtype)
        device_b, exact, bias = b.cuda(), widened(a) @ widened(b), random(n, dtype=dtype)
        if not serves(variant, device_a, device_b):
            continue
        name = f"{variant.name} {dtype} {order}{b_order} {batch} of {m}x{n}x{k}"
        check(name, torch.ops.hgemm.matmul(device_a, device_b, variant=variant.id), exact)
        out = torch.ops.hgemm.matmul(device_a, device_b, out_dtype=torch.float32, variant=variant.id)
        check(f"{name} float32", out.to(dtype), exact)
        out = torch.ops.hgemm.linear(device_a, device_b.t(), bias.cuda(), 1, variant=variant.id)
        check(f"{name} relu", out, F.relu(exact + bias.double()))
        launches += 3
        if order != "D":
            c, wide_b = random(batch, m, n, dtype=dtype), device_b.expand(batch, k, n)
            out = torch.ops.hgemm.baddbmm(c.cuda(), device_a, wide_b, beta=0.5, alpha=2.0, variant=variant.id)
            check(f"{name} baddbmm", out, 0.5 * widened(c) + 2.0 * exact)
            launches += 1
    return launches


def run_complex(variant: VariantInfo) -> int:
    """Views of complex matrices, a sum with an addend, and values that two float16 planes do not hold."""
    launches = 0
    for m, n, k, _ in SHAPES:
        for a_is_adjoint, b_is_adjoint in itertools.product((False, True), repeat=2):
            a, b = (
                operand(rows, cols, is_adjoint, torch.complex64)
                for rows, cols, is_adjoint in ((m, k, a_is_adjoint), (k, n, b_is_adjoint))
            )
            device_a, device_b = a.cuda(), b.cuda()
            if not serves(variant, device_a, device_b):
                continue
            exact, c = a.to(torch.complex128) @ b.to(torch.complex128).conj(), torch.randn(m, n, dtype=torch.complex64)
            with hgemm_ops.use_custom_gemm(variant=variant.name):
                product = device_a @ device_b.conj()
                sum_ = torch.addmm(c.cuda(), device_a, device_b.conj(), beta=0.5)
                small = (device_a * 1e-30) @ device_b.conj()
            check(f"{variant.name} complex {m}x{n}x{k}", product, exact)
            check(f"{variant.name} complex {m}x{n}x{k} addmm", sum_, exact + 0.5 * c.to(torch.complex128))
            check(f"{variant.name} complex {m}x{n}x{k} small", small * 1e30, exact)
            launches += 3
    return launches


def run_grouped(index: int, name: str) -> None:
    """A kernel of grouped matmuls, on ends inside of tiles and groups without rows, with rows behind the last end."""
    of_k = "_k_" in name
    for sizes, n, k in GROUPS:
        ends, rows = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32), sum(sizes) + 3
        for dtype, transposed in itertools.product((torch.float16, torch.bfloat16), (False, True)):
            a = operand(k, rows, True, dtype) if of_k else operand(rows, k, False, dtype)
            b = (
                operand(rows, n, False, dtype)[None]
                if of_k
                else torch.stack([operand(n, k, False, dtype)] * len(sizes))
            )
            if not of_k:
                b = b.mT if transposed else b.mT.contiguous()
            out = torch.ops.hgemm.grouped_mm(a.cuda(), (b[0] if of_k else b).cuda(), ends.cuda(), variant=index)
            for group, (first, last) in enumerate(itertools.pairwise([0, *ends.tolist()])):
                if of_k:
                    check(name, out[group], a[:, first:last].double() @ b[0, first:last].double())
                elif first < last:
                    check(name, out[first:last], a[first:last].double() @ b[group].double())
    print(f"{name}: {4 * len(GROUPS)} launches")


def run_grouped_in_place(index: int, name: str) -> None:
    """Such a kernel that reads operands where they lie, in every form and order, on rows at any address if it may."""
    launches = 0
    dtypes = (torch.float32,) if name.startswith("simt") else (torch.float16, torch.bfloat16)
    groups = GROUPS[:1] if os.environ.get(TOOL) == "racecheck" else GROUPS
    cases = itertools.product(groups, dtypes, ("rows", "k", "columns"), ("NN", "NT", "TN", "TT"), (0, 1))
    for (sizes, columns, inner), dtype, form, order, odd in cases:
        ends, divided = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32), sum(sizes) + 8
        m, n, k = (
            divided if form == of else size - odd for of, size in (("rows", 72), ("columns", columns), ("k", inner))
        )
        by_rows, by_k, by_columns = form == "rows", form == "k", form == "columns"
        x = matrices(len(sizes) if by_columns else 1, m, k, order[0], dtype)
        w = matrices(len(sizes) if by_rows else 1, k, n, order[1], dtype)
        x, w = x if by_columns else x[0], w if by_rows else w[0]
        if dtype == torch.float32:
            x, w = x.round(), w.round()  # sums of small integers are exact
        try:
            with torch.inference_mode():  # in which the op makes no copies
                out = torch.ops.hgemm.grouped_mm(x.cuda(), w.cuda(), ends.cuda(), variant=index)
        except RuntimeError as error:
            if "cannot run the matmul" not in str(error):
                raise
            continue
        launches += 1
        for group, (first, last) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            if by_k:
                check(name, out[group], x[:, first:last].double() @ w[first:last].double())
            elif by_rows and first < last:
                check(name, out[first:last], x[first:last].double() @ w[group].double())
            elif by_columns and first < last:
                check(name, out[:, first:last], x[group].double() @ w[:, first:last].double())
    if launches == 0:
        sys.exit(f"{name}: serves none of the problems")
    print(f"{name}: {launches} launches")


def run_int8(variant: VariantInfo) -> int:
    """A kernel of int8 matmuls, with operands in place, padded and transposed."""
    launches = 0
    for (m, n, k), a_order, b_order in itertools.product(INT8_SHAPES, "NT", "NT"):
        a = torch.randint(-128, 128, (m, k) if a_order == "N" else (k, m), dtype=torch.int8)
        b = torch.randint(-128, 128, (k, n) if b_order == "N" else (n, k), dtype=torch.int8)
        a, b = a if a_order == "N" else a.t(), b if b_order == "N" else b.t()
        device_a, device_b = a.cuda(), b.cuda()
        if serves(variant, device_a, device_b):
            with hgemm_ops.use_custom_gemm(variant=variant.name):
                out = torch._int_mm(device_a, device_b)
            check(f"{variant.name} {m}x{n}x{k} {a_order}{b_order}", out, a.double() @ b.double())
            launches += 1
    return launches


def run_step(variant: VariantInfo) -> int:
    """A step of the ladder, on aligned and on ragged matrices, with one and with several slices of K."""
    op, dtype = getattr(torch.ops.hgemm, variant.name), variant.dtypes[0]
    for m, n, k in LADDER_SHAPES:
        # Few distinct small integers: sums in half are exact.
        a, b = (torch.randint(-1, 2, shape).to(dtype) for shape in ((m, k), (k, n)))
        check(f"{variant.name} {m}x{n}x{k}", op(a.cuda(), b.cuda()), a.double() @ b.double())
    swizzles = any(step.swizzles for step in ladder.steps() if step.name == variant.name)
    if swizzles:
        check(f"{variant.name} in panels", op(a.cuda(), b.cuda(), 128), a.double() @ b.double())
    return len(LADDER_SHAPES) + swizzles


def run_addition(name: str, dtype: torch.dtype) -> None:
    for count in (1, 8, 1027, 4096):
        a, b = torch.randn(count).to(dtype), torch.randn(count).to(dtype)
        check(f"{name} {count}", getattr(torch.ops.hgemm, name)(a.cuda(), b.cuda()), a.double() + b.double())
    print(f"{name}: 4 launches")


def chosen(variant: VariantInfo, names: list[str]) -> bool:
    production = () if variant.family == "ladder" else ("production",)
    return not {variant.name, variant.family, *production}.isdisjoint(names)


def launched(variant: VariantInfo) -> int:
    """Launches a kernel on the problems for its family; returns how many."""
    if variant.family == "ladder":
        return run_step(variant)
    if variant.family == "int8":
        return run_int8(variant)
    launches = run(variant) + run_batched(variant) + (run_sliced(variant) if torch.float16 in variant.dtypes else 0)
    launches += run_shared(variant) if variant.name.endswith("_merged") else 0
    return launches + (run_complex(variant) if "split" in variant.family else 0)


def main(names: list[str]) -> None:
    torch.manual_seed(0)
    kernels = [v for v in hgemm_ops.variants() if chosen(v, names)]
    additions = [a for a in ladder.additions() if "ladder" in names or a.name in names]
    grouped = [(i, g) for i, g in enumerate(_native.grouped_names()) if {g, "grouped", "production"} & set(names)]
    if not (kernels or additions or grouped):
        sys.exit("no such kernels: the native library was not built?")
    major, minor = torch.cuda.get_device_capability()
    for variant in kernels:
        if int(variant.min_arch.removeprefix("sm_")) > 10 * major + minor:
            print(f"{variant.name}: needs {variant.min_arch}")
            continue
        launches = launched(variant)
        if launches == 0:
            sys.exit(f"{variant.name}: serves none of the problems")
        print(f"{variant.name}: {launches} launches")
    for addition in additions:
        run_addition(addition.name, addition.dtype)
    for index, name in grouped:
        if not name.startswith("sm90"):
            run_grouped_in_place(index, name)
        elif major == 9:
            run_grouped(index, name)
        else:
            print(f"{name}: needs sm_90")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:] or ["production"])
