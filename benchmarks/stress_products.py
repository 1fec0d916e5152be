"""Runs random matmuls on this GPU. No element may have more than twice torch's own error against float64.

Sizes are log-uniform from 1 to 5,000, and half of them are multiples of 8. Operands have any order of dimensions,
padding after rows, no unit stride, misaligned addresses and expanded batches, and they lie in memory full of NaN.
Results go to new tensors or into ``out=``, which is also surrounded by NaN.

One third of the matmuls run as torch's functions in ``use_custom_gemm()``, and one third as ``torch.ops.hgemm``. The
dispatcher decides on both. One third run on a kernel that is drawn from those that ``explain`` calls eligible. Where
the dispatcher leaves a matmul in the context to torch, the result must equal torch's, bit for bit.

torch's reductions in reduced precision are off. With them its error depends on whether cuBLAS splits K, which may
differ with the layout of the result. The same seed draws the same matmuls. Writes
``results/<gpu>/stress_products.json``; ends with status 1 if an element is beyond its bound.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from torch import Tensor

import hgemm_ops
from hgemm_ops.bench import record

RESULTS = Path(__file__).parent / "results"
OPS = ("mm", "bmm", "matmul", "addmm", "baddbmm", "linear")
ROUTES = ("torch", "op", "kernel")
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    F.relu,
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    F.silu,
)
_STEEPEST = 1.2  # no activation has a larger slope anywhere
_ACCUMULATION = 4.0  # in units of float32's eps times |a| @ |b|; tests/helpers.py says where it comes from
_TENSOR_CORE_STEP = 16  # 16-bit products that a tensor core adds at once
_MOST_LISTED = 50


@dataclass(frozen=True)
class Operand:
    """A tensor in memory.

    order: its dimensions from the innermost out.
    step: the stride of the innermost dimension.
    padding: elements after each row of the innermost dimension.
    offset: elements before the first one.
    expanded: the dimensions that are expanded (stride 0).
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    step: int = 1
    padding: int = 0
    offset: int = 0
    expanded: tuple[int, ...] = ()

    def make(self, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Creates the tensor. Its values are U[-1, 1], surrounded by NaN."""
        shape = [1 if dim in self.expanded else size for dim, size in enumerate(self.shape)]
        strides, stride = [0] * len(shape), self.step
        for level, dim in enumerate(self.order):
            strides[dim] = stride
            stride = stride * shape[dim] + (self.padding if level == 0 else 0)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        storage = torch.full((self.offset + extent + 16,), math.nan, dtype=dtype, device=generator.device)
        view = storage.as_strided(shape, strides, self.offset)
        view.copy_(torch.rand(shape, generator=generator, device=generator.device) * 2 - 1)
        return view.expand(self.shape)


@dataclass(frozen=True)
class Case:
    """``activation(alpha * a @ b + beta * c)``.

    wide: whether 16-bit operands have a float32 result.
    out: the padding and the offset of the tensor that is given for the result; None for a new tensor.
    """

    op: str
    route: str
    dtype: str
    a: Operand
    b: Operand
    c: Operand | None = None
    alpha: float = 1.0
    beta: float = 1.0
    activation: int = 0
    wide: bool = False
    out: tuple[int, int] | None = None

    @property
    def features(self) -> Iterator[str]:
        """The op, the route and the dtype of the case, and all that is unusual about it."""
        yield from (f"op {self.op}", f"route {self.route}", self.dtype)
        for x in (self.a, self.b, *([self.c] if self.c else [])):
            yield from ["misaligned address"] * (x.offset % 8 != 0) + ["padded rows"] * (x.padding > 0)
            yield from ["no unit stride"] * (x.step > 1) + ["expanded"] * bool(x.expanded)
            if len(x.shape) > 1:
                yield "row-major" if x.order[0] == len(x.shape) - 1 else "column-major or batch innermost"
        yield from ["C"] * (self.c is not None and self.op != "linear") + ["activation"] * (self.activation > 0)
        yield from ["bias"] * (self.c is not None and self.op == "linear")
        yield from ["alpha or beta"] * ((self.alpha, self.beta) != (1.0, 1.0)) + ["float32 result"] * self.wide
        yield from ["out="] * (self.out is not None)


@dataclass(frozen=True)
class Limits:
    size: int = 5000
    flops: float = 3e11
    elements: int = 1 << 25


# Drawing


def _size(rng: random.Random, most: int) -> int:
    size = round(math.exp(rng.uniform(0, math.log(most))))
    return max(8, size // 8 * 8) if rng.random() < 0.5 else size


def _operand(rng: random.Random, shape: Sequence[int], expandable: int = 0) -> Operand:
    """Draws an operand, in which the first ``expandable`` dimensions may be expanded."""
    dims = list(range(len(shape)))[::-1]
    if len(dims) > 1 and rng.random() < 0.5:
        dims[0], dims[1] = dims[1], dims[0]
    if len(dims) > 2 and rng.random() < 0.15:
        rng.shuffle(dims)
    return Operand(
        tuple(shape),
        tuple(dims),
        step=rng.choice((1,) * 12 + (2, 3)),
        padding=rng.choice((0, 0, 0, 8, 64, 1, 5)),
        offset=rng.choice((0, 0, 0, 8, 1, 2, 4)),
        expanded=tuple(dim for dim in range(expandable) if shape[dim] > 1 and rng.random() < 0.2),
    )


def draw(rng: random.Random, limits: Limits) -> Case:
    op, route = rng.choice(OPS), rng.choice(ROUTES)
    m, n, k = (_size(rng, limits.size) for _ in range(3))
    batch: tuple[int, ...] = ()
    if op in ("bmm", "baddbmm"):
        batch = (_size(rng, min(128, limits.size)),)
    elif op == "matmul":
        batch = tuple(rng.randint(1, 6) for _ in range(rng.randint(0, 2)))
    elif op == "linear" and rng.random() < 0.3:
        batch = (rng.randint(1, 4),)
    many = math.prod(batch)
    while 2.0 * many * m * n * k > limits.flops or many * max(m * n, n * k, m * k) > limits.elements:
        m, n, k = (size // 2 if size == max(m, n, k) else size for size in (m, n, k))
    dtype = rng.choice(("float16",) * 9 + ("bfloat16",) * 9 + ("float32",) * 2)
    widening = ("mm", "bmm") if route == "torch" else ("mm", "bmm", "addmm", "baddbmm")
    wide = dtype != "float32" and op in widening and rng.random() < 0.2
    a = _operand(rng, (*batch, m, k), len(batch))
    if op == "linear":
        c = _operand(rng, (n,)) if rng.random() < 0.6 else None
        return Case(op, route, dtype, a, _operand(rng, (n, k)), c, activation=rng.randint(0, 4))
    narrower = tuple(1 if rng.random() < 0.2 else size for size in batch) if op == "matmul" else batch
    b = _operand(rng, (*narrower, k, n), len(narrower))
    out = (rng.choice((0, 0, 8, 5)), rng.choice((0, 0, 8, 1))) if rng.random() < 0.3 else None
    if op not in ("addmm", "baddbmm"):
        return Case(op, route, dtype, a, b, wide=wide, out=out)
    shape = rng.choice([(*batch, m, n), (*batch, m, n), (n,), (m, 1)])
    alpha, beta = rng.choice((1.0, 1.0, -0.5, 2.0)), rng.choice((1.0, 1.0, 0.0, 0.75))
    return Case(op, route, dtype, a, b, _operand(rng, shape), alpha, beta, 0, wide, out)


# Computing


def _torch_functions(case: Case) -> Callable[..., Tensor]:
    return F.linear if case.op == "linear" else getattr(torch, case.op)


def _by_torch(case: Case, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None = None) -> Tensor:
    """The call that a user of torch would write."""
    options: dict[str, Any] = {} if out is None else {"out": out}
    function = _torch_functions(case)
    if case.op == "linear":
        return ACTIVATIONS[case.activation](function(a, b, c))
    if case.wide and a.is_cuda:
        options["out_dtype"] = torch.float32
    elif case.wide:
        a, b, c = (None if x is None else x.float() for x in (a, b, c))
    if c is None:
        return function(a, b, **options)
    return function(c, a, b, alpha=case.alpha, beta=case.beta, **options)


def _by_op(case: Case, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, variant: int) -> Tensor:
    op = getattr(torch.ops.hgemm, case.op)
    if case.op == "linear":
        return op.default(a, b, c, case.activation, variant=variant)
    options: dict[str, Any] = {"variant": variant, "out_dtype": torch.float32 if case.wide else None}
    if c is not None:
        options |= {"alpha": case.alpha, "beta": case.beta}
        a, b, c = c, a, b
    arguments = (a, b) if c is None else (a, b, c)
    return op.default(*arguments, **options) if out is None else op.out(*arguments, **options, out=out)


def _torchs(case: Case, a: Tensor, b: Tensor, c: Tensor | None) -> Iterator[Tensor]:
    """torch's results by the routes that it takes to this one: fused, or one step after the other."""
    dtype = torch.float32 if case.wide else a.dtype
    b_as_factor = b.mT if case.op == "linear" else b
    if case.wide:
        product = torch.matmul(a.float(), b_as_factor.float()) if not a.is_cuda else _wide_product(a, b_as_factor)
    else:
        product = torch.matmul(a, b_as_factor)
    if c is None:
        yield ACTIVATIONS[case.activation](product.to(dtype))
        return
    scaled = case.alpha * product + (case.beta * c if case.beta else 0)
    yield ACTIVATIONS[case.activation](scaled.to(dtype))
    if not case.wide:
        yield _by_torch(case, a, b, c)
        if case.op != "linear":
            yield _by_torch(case, a, b, c.expand((*a.shape[:-1], b.shape[-1])).contiguous())


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    return (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out_dtype=torch.float32)


def _exact(case: Case, a: Tensor, b: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
    """The result in float64, and the error that an element may have from what happens before its last rounding.

    Sums in float32 lose ``_ACCUMULATION`` units of their terms' magnitude. A tensor core also truncates the partial sum
    at each of K / 16 steps, by half a unit of it in the mean. Where the sum is large, the partial sum is half of it in
    the mean. torch's own error shows none of that where cuBLAS splits K.

    With an activation, the result was rounded before it too, at most twice (after the matmul, after the bias). torch's
    two roundings may cancel where those of the result under test add up.
    """
    a64, b64 = a.double(), (b.mT if case.op == "linear" else b).double()
    product, magnitude = case.alpha * (a64 @ b64), abs(case.alpha) * (a64.abs() @ b64.abs())
    truncated = a.shape[-1] / _TENSOR_CORE_STEP / 4 * product.abs()
    if c is not None and case.beta:
        product, magnitude = product + case.beta * c.double(), magnitude + abs(case.beta) * c.double().abs()
    noise = torch.finfo(torch.float32).eps * (_ACCUMULATION * magnitude + truncated)
    if not case.activation:
        return product, noise
    before = product.requires_grad_()
    exact = ACTIVATIONS[case.activation](before)
    (slope,) = torch.autograd.grad(exact.sum(), before)
    rounded = torch.finfo(a.dtype).eps * (before * slope).abs()
    return exact.detach(), (_STEEPEST * noise + rounded).detach()


def excess(out: Tensor, exact: Tensor, theirs: Tensor, noise: Tensor) -> float:
    """The largest ratio of an element's error to its bound.

    The bound is twice torch's own error, one rounding of the result, and ``noise``, as in ``assert_close_to_torch`` of
    tests/helpers.py. The ratio is infinite where torch gives NaN or an infinity and this result does not, or the other
    way round.
    """
    if out.shape != exact.shape or out.dtype != theirs.dtype:
        return math.inf
    info, other, got = torch.finfo(out.dtype), theirs.double(), out.double()
    finite = other.isfinite()
    same = torch.where(other.isnan(), got.isnan(), got == other)
    unit = info.eps * exact.abs().clamp(min=info.smallest_normal)
    allowed = 2 * (other - exact).abs() + unit + noise
    ratio = ((got - exact).abs() / allowed).nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(finite, ratio, torch.where(same, 0.0, math.inf)).max().item()


@dataclass(frozen=True)
class Outcome:
    kernel: str
    excess: float
    outside: bool = False  # whether memory around the result was written


def run_case(case: Case, generator: torch.Generator, rng: random.Random) -> Outcome | None:
    """Runs one case.

    None if the kernel that was drawn does not support something that the case asks for beside the matmul.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    a, b = case.a.make(dtype, generator), case.b.make(dtype, generator)
    c = None if case.c is None else case.c.make(dtype, generator)
    exact, noise = _exact(case, a, b, c)
    routes = list(_torchs(case, a, b, c))
    worst = routes[0]
    for route in routes[1:]:
        farther = (route.double() - exact).abs().nan_to_num(nan=math.inf) > (worst.double() - exact).abs()
        worst = torch.where(farther, route, worst)
    guard, out = None, None
    if case.out is not None:
        guard, out = _guarded(exact.shape, worst.dtype, *case.out, exact.device)
    variant = -1
    if case.route == "kernel":
        factor = b.mT if case.op == "linear" else b
        names = [x.name for x in hgemm_ops.explain(a, factor).candidates if x.eligible and x.family != "ladder"]
        ids = [v.id for v in hgemm_ops.variants() if v.name in names]
        variant = rng.choice(ids) if ids else -1
    with hgemm_ops.use_custom_gemm() as report:
        try:
            result = _by_torch(case, a, b, c, out) if case.route == "torch" else _by_op(case, a, b, c, out, variant)
        except RuntimeError as error:
            if variant < 0 or "does not support" not in str(error):
                raise
            return None
    kernel = max(report.rows, key=lambda row: row.flops).variant if report.rows else "torch"
    outside = guard is not None and not _is_intact(guard, out)
    if kernel == "torch" and case.route == "torch":
        if case.out is not None:
            _, out = _guarded(exact.shape, worst.dtype, *case.out, exact.device)
        if not torch.equal(result, _by_torch(case, a, b, c, out)):
            return Outcome(kernel, math.inf, outside)
    return Outcome(kernel, excess(result, exact, worst, noise), outside)


def _guarded(
    shape: torch.Size, dtype: torch.dtype, padding: int, offset: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """An allocation full of NaN, and the view of it that the result is written to."""
    strides, step = [], 1
    for level, size in enumerate(reversed(shape)):
        strides.append(step)
        step *= size + (padding if level == 0 else 0)
    storage = torch.full((64 + offset + step + 64,), math.nan, dtype=dtype, device=device)
    return storage, storage.as_strided(shape, strides[::-1], 64 + offset)


def _is_intact(storage: Tensor, view: Tensor | None) -> bool:
    assert view is not None
    outside = torch.ones_like(storage, dtype=torch.bool)
    outside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
    return not bool((outside & ~storage.isnan()).any())


def stress(count: int, seed: int, limits: Limits, device: torch.device) -> dict[str, Any]:
    """Runs ``count`` random cases, and returns the content of a result file."""
    rng, generator = random.Random(seed), torch.Generator(device).manual_seed(seed)
    kernels: Counter[str] = Counter()
    features: Counter[str] = Counter()
    violations: list[dict[str, Any]] = []
    refused, worst, violating, start = 0, 0.0, 0, time.perf_counter()
    for number in range(count):
        case = draw(rng, limits)
        features.update(set(case.features))
        outcome = run_case(case, generator, rng)
        if outcome is None:
            refused += 1
            continue
        kernels[outcome.kernel] += 1
        worst = max(worst, outcome.excess)
        if outcome.excess > 1 or outcome.outside:
            violating += 1
            found = {"number": number, "case": asdict(case), **asdict(outcome)}
            if not math.isfinite(outcome.excess):
                found["excess"] = None  # JSON has no infinity
            click.echo(f"beyond its bound: {found}")
            violations += [found][: _MOST_LISTED - len(violations)]
    return {
        "products": count,
        "seed": seed,
        "limits": asdict(limits),
        "seconds": round(time.perf_counter() - start, 1),
        "refused": refused,
        "ours": sum(n for kernel, n in kernels.items() if kernel != "torch"),
        "violating": violating,
        "largest_share_of_bound": worst if math.isfinite(worst) else None,
        "kernels": dict(kernels.most_common()),
        "features": dict(sorted(features.items())),
        "violations": violations,
    }


@click.command(help=__doc__)
@click.option("--products", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="200 products of at most 200: tries the script, also without a GPU.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(products: int, seed: int, quick: bool, output: Path | None) -> None:
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if quick and output is None:
        raise click.UsageError("--quick is no record: it needs --output")
    if not (quick or torch.cuda.is_available()):
        raise click.ClickException("no CUDA GPU: --quick tries the script without one")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limits = Limits(size=200) if quick else Limits()
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        found = stress(200 if quick else products, seed, limits, device)
    if output is None:
        output = RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "stress_products.json"
    record.save(record.document(**found), output)
    click.echo(
        f"{found['products']} products, {found['ours']} on our kernels, {found['refused']} refused: "
        f"{found['violating']} beyond their bound; {output}"
    )
    sys.exit(found["violating"] > 0)


if __name__ == "__main__":
    main()
