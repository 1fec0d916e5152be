"""Times products of some 30 kinds, torch and use_custom_gemm(), and says how far each is from what the chip can do.

Each run draws new shapes of every kind from a seed. Both sides run in CUDA graphs over rotating buffers, interleaved,
by the protocol of ``hgemm bench``. Results are compared with float64, and have its limits. Kinds that only torch's
kernels run (large float64 and complex64, fp8) show that they do not get slower.

``bound_us`` is the larger of two times, plus 2.5 us for a launch: the time for the operations, at the rate that
``CHIPS`` has for their unit, and the time for the least possible memory traffic. X @ X.T needs half of its operations.
``ratio`` is torch's time over ours, the median of paired ratios. ``peak_bytes`` is what a call takes from torch's
allocator.

The kinds take turns, so that a run that ends early, after ``--seconds``, has shapes of each kind. Writes
``results/<gpu>/map.json.xz``; ends with status 1 if a result is wrong.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own path has its directory alone

from benchmarks.grouped import MODELS  # noqa: E402
from benchmarks.int8 import LAYERS  # noqa: E402
from benchmarks.result_page import map_lines  # noqa: E402
from hgemm_ops import use_custom_gemm  # noqa: E402
from hgemm_ops.bench import record, runner, sampling, statistics, timing  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
LAUNCH_US = 2.5
WARMUP_SECONDS = 0.1
TIMED_SECONDS = 0.1  # both sides together
LEAST_ROUNDS, MOST_ROUNDS = 5, 21
MOST_SETS, MOST_BYTES = 128, 16e9  # of the operands of all sets
SAMPLED = 64  # matrices, rows and columns of a large result that are compared with float64
WHOLE_FLOPS, WHOLE_ELEMENTS = 4e9, 4e7  # a product with less of both is compared with float64 as a whole
APART = 16  # limit of an element's distance from torch's, in multiples of torch's error or one rounding
SIDES = ("torch", "ours")
TERMS = ("operations", "memory")

#: The rates that a chip sustains: TFLOP/s of the unit that computes a dtype, and TB/s of a copy. float32 has two rates:
#: that of FMA on CUDA cores ("strict"), and that of six products of bfloat16 planes on tensor cores ("split").
#: complex64 takes the latter. Both chips have the same number of SMs and the same power.
_HOPPER = {
    "half": 750.0,
    "int8": 1500.0,
    "fp8": 1500.0,
    "strict": 60.0,
    "split": 130.0,
    "float64": 60.0,
}
CHIPS = {"NVIDIA H200": {**_HOPPER, "memory": 4.3}, "NVIDIA H100 80GB HBM3": {**_HOPPER, "memory": 3.0}}
_UNITS = {
    "float16": "half",
    "bfloat16": "half",
    "int8": "int8",
    "float8_e4m3fn": "fp8",
    "complex64": "split",
    "float64": "float64",
}
_RESULTS_OF = {"int8": "int32", "float8_e4m3fn": "bfloat16"}


@dataclass(frozen=True)
class Case:
    """A product of (batch) matrices of m x k and k x n.

    form: the call, a key of ``FORMS``.
    layout: a letter for A and one for B: N if the matrix is stored as it is, T if its transpose is stored.
    float32: the mode in which our side computes float32.

    A grouped matmul has ``batch`` groups, among which ``m`` rows are spread evenly.
    """

    kind: str
    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "NN"
    form: str = "matmul"
    float32: str = "strict"

    @property
    def label(self) -> str:
        of = f"{self.batch} groups, " if self.form == "grouped" else f"{self.batch} of " if self.batch > 1 else ""
        return f"{of}{self.m}x{self.n}x{self.k}"

    @property
    def unit(self) -> str:
        return self.float32 if self.dtype == "float32" else _UNITS[self.dtype]

    @property
    def result(self) -> torch.dtype:
        return getattr(torch, _RESULTS_OF.get(self.dtype, self.dtype))

    @property
    def flops(self) -> float:
        """The operations that are enough."""
        batch = 1 if self.form == "grouped" else self.batch
        real = 2.0 * batch * self.m * self.n * self.k * (4 if self.dtype == "complex64" else 1)
        return real / 2 if self.form == "gram" else real

    @property
    def bytes(self) -> int:
        """The bytes that a call must move at least: each operand once, and the result."""
        own = getattr(torch, self.dtype).itemsize
        if self.form == "grouped":  # only the weights of groups with rows
            weights = min(self.batch, self.m) * self.n * self.k
            return own * (self.m * self.k + weights + self.m * self.n)
        matrices = {"gram": 0, "shared": 1, "einsum": 1}.get(self.form, self.batch)
        added = {"linear": self.n, "addmm": self.m * self.n, "baddbmm": self.batch * self.m * self.n}.get(self.form, 0)
        operands = self.batch * self.m * self.k + matrices * self.k * self.n + added
        return own * operands + self.result.itemsize * self.batch * self.m * self.n

    @property
    def allocated(self) -> int:
        """The bytes of a set of operands with its two results."""
        idle = max(0, self.batch - self.m) * self.n * self.k if self.form == "grouped" else 0
        batch = 1 if self.form == "grouped" else self.batch
        return self.bytes + self.result.itemsize * batch * self.m * self.n + getattr(torch, self.dtype).itemsize * idle


def bound(case: Case, rates: dict[str, float]) -> tuple[float, str]:
    """Microseconds that the chip needs at least, and which of ``TERMS`` takes them."""
    us = case.flops / rates[case.unit] * 1e-6, case.bytes / rates["memory"] * 1e-6
    return max(us) + LAUNCH_US, TERMS[us.index(max(us))]


# The calls


@dataclass(frozen=True)
class Operands:
    """A and B as they are multiplied. ``c`` is added. ``ends`` are those of groups, ``one`` is a scale of fp8."""

    a: Tensor
    b: Tensor
    c: Tensor | None = None
    ends: Tensor | None = None
    one: Tensor | None = None


FORMS: dict[str, Callable[[Operands], Tensor]] = {
    "matmul": lambda x: torch.matmul(x.a, x.b),
    "gram": lambda x: torch.matmul(x.a, x.a.mT),
    "shared": lambda x: F.linear(x.a, x.b.mT),  # A is a permuted view, so that torch expands B over the batch
    "einsum": lambda x: torch.einsum("bmk,kn->bmn", x.a, x.b),
    "linear": lambda x: F.linear(x.a, x.b.mT, x.c),
    "addmm": lambda x: torch.addmm(x.c, x.a, x.b),
    "baddbmm": lambda x: torch.baddbmm(x.c, x.a, x.b),
    "_int_mm": lambda x: torch._int_mm(x.a, x.b),
    "_scaled_mm": lambda x: torch._scaled_mm(x.a, x.b, x.one, x.one, out_dtype=torch.bfloat16),
    "grouped": lambda x: torch._grouped_mm(x.a, x.b, offs=x.ends),
}


def make_operands(case: Case, generator: torch.Generator) -> Operands:
    """Draws operands on the generator's device: N(0, 1), and all values of int8."""
    device, dtype = generator.device, getattr(torch, case.dtype)

    def draw(*shape: int) -> Tensor:
        if dtype == torch.int8:
            return torch.randint(-128, 128, shape, dtype=dtype, device=device, generator=generator)
        drawn = torch.bfloat16 if dtype == torch.float8_e4m3fn else dtype
        return torch.randn(shape, dtype=drawn, device=device, generator=generator).to(dtype)

    def matrix(batch: int, rows: int, columns: int, order: str) -> Tensor:
        outer = (batch,) if batch > 1 else ()
        return draw(*outer, rows, columns) if order == "N" else draw(*outer, columns, rows).mT

    if case.form == "grouped":
        rows = torch.tensor([case.m // case.batch + (i < case.m % case.batch) for i in range(case.batch)])
        ends = torch.cumsum(rows, 0, dtype=torch.int32).to(device)
        return Operands(draw(case.m, case.k), draw(case.batch, case.n, case.k).mT, ends=ends)
    if case.form == "shared":
        a = draw(case.m, case.batch, case.k).transpose(0, 1)
    else:
        a = matrix(case.batch, case.m, case.k, case.layout[0])
    if case.form == "gram":
        return Operands(a, a.mT)
    b = matrix(1 if case.form in ("shared", "einsum") else case.batch, case.k, case.n, case.layout[1])
    if case.form == "linear":
        return Operands(a, b, draw(case.n))
    if case.form in ("addmm", "baddbmm"):
        return Operands(a, b, matrix(case.batch, case.m, case.n, "N"))
    return Operands(a, b, one=torch.ones((), device=device) if case.form == "_scaled_mm" else None)


# Kinds, and their shapes


class Source(random.Random):
    """Draws sizes."""

    def size(self, least: float, most: float, multiple: int = 1) -> int:
        """A multiple, log-uniform."""
        return max(1, round(math.exp(self.uniform(math.log(least), math.log(most))) / multiple)) * multiple

    def half(self) -> str:
        return self.choice(("float16", "bfloat16"))

    def layout(self) -> str:
        return self.choice(("NN", "NT", "TN", "TT"))

    def sizes(self, least: float, most: float, multiple: int = 1) -> dict[str, int]:
        return {name: self.size(least, most, multiple) for name in "mnk"}


Draw = Callable[[Source], dict[str, Any]]


def _tiny(least: int, most: int, *dtypes: str) -> Draw:
    """Cubes and other shapes in equal parts, in batches that move 2 to 60 MB."""

    def draw(s: Source) -> dict[str, Any]:
        dtype, sizes = s.choice(dtypes), [s.randint(least, most) for _ in range(3)]
        m, n, k = [sizes[0]] * 3 if s.random() < 0.5 else sizes
        each = getattr(torch, dtype).itemsize * (m * k + k * n + m * n)
        batch = min(2_000_000, max(1000, int(s.size(2e6, 6e7) / each)))
        return {"dtype": dtype, "m": m, "n": n, "k": k, "batch": batch, "layout": s.layout()}

    return draw


def _middle_batches(float32: str) -> Draw:
    """Cubes and other shapes, and the attention products of a few heads."""

    def draw(s: Source) -> dict[str, Any]:
        found = {"dtype": "float32", "float32": float32, "layout": s.choice(("NN", "NT"))}
        if s.random() < 0.25:
            rows = s.size(256, 1024, 64)
            return found | {"m": rows, "n": rows, "k": s.choice((64, 128)), "batch": s.size(16, 64)}
        sizes = dict.fromkeys("mnk", s.size(33, 128)) if s.random() < 0.5 else s.sizes(33, 128)
        return found | sizes | {"batch": s.size(32, 1024)}

    return draw


def _odd(s: Source) -> dict[str, Any]:
    sizes = {name: size | 1 for name, size in s.sizes(9, 200).items()}
    return {"dtype": s.half(), **sizes, "batch": s.size(64, 2048), "layout": s.layout()}


def _vectors(*dtypes: str) -> Draw:
    def draw(s: Source) -> dict[str, Any]:
        n, k = s.size(32, 2048, 8), s.size(32, 2048, 8)
        batch = max(16, min(8192, int(s.size(1e7, 1.5e8) / (4 * n * k))))
        return {"dtype": s.choice(dtypes), "m": 1, "n": n, "k": k, "batch": batch, "layout": s.choice(("NN", "NT"))}

    return draw


def _float32(m: tuple[int, int], n: tuple[int, int], k: tuple[int, int], float32: str = "strict", of: int = 1) -> Draw:
    """``of``: m, n and k are multiples of it, or of 1 in a quarter of the shapes."""

    def draw(s: Source) -> dict[str, Any]:
        multiple = of if s.random() < 0.75 else 1
        sizes = {name: s.size(*range_, multiple) for name, range_ in zip("mnk", (m, n, k), strict=True)}
        return {"dtype": "float32", **sizes, "layout": s.layout(), "float32": float32}

    return draw


def _gram(float32: str | None = None) -> Draw:
    """x @ x.T and x.T @ x, in float32 in this mode, or in a 16-bit type."""

    def draw(s: Source) -> dict[str, Any]:
        n, k = s.size(1024, 4096 if float32 else 8192, 64), s.size(1024, 4096 if float32 else 16384, 64)
        dtype, mode = "float32" if float32 else s.half(), float32 or "strict"
        return {"dtype": dtype, "m": n, "n": n, "k": k, "layout": s.choice("NT") + "N", "form": "gram", "float32": mode}

    return draw


def _shared(s: Source) -> dict[str, Any]:
    n, k = s.choice(LAYERS)
    batch = s.choice((4, 8, 16, 32, 64))
    m = max(8, s.size(1024, 8192) // batch)
    return {"dtype": s.half(), "m": m, "n": min(n, 16384), "k": min(k, 16384), "batch": batch, "layout": "NT",
            "form": "shared"}  # fmt: skip


def _int8(layout: str) -> Draw:
    def draw(s: Source) -> dict[str, Any]:
        n, k = s.choice([layer for layer in LAYERS if math.prod(layer) <= 6e7])
        m = s.choice((32, 128, 512, 2048, 4096)) if s.random() < 0.5 else s.size(17, 4096)
        return {"dtype": "int8", "m": m, "n": n, "k": k, "layout": layout, "form": "_int_mm"}

    return draw


def _dense(m: tuple[int, int], n: tuple[int, int], k: tuple[int, int], of: int, rows_of: int = 1) -> Draw:
    def draw(s: Source) -> dict[str, Any]:
        sizes = {"m": s.size(*m, rows_of), "n": s.size(*n, of), "k": s.size(*k, of)}
        return {"dtype": s.half(), **sizes, "layout": s.layout() if rows_of > 1 else s.choice(("NN", "NT", "NT"))}

    return draw


def _ragged(s: Source) -> dict[str, Any]:
    """At least one row length is odd."""
    sizes = s.sizes(500, 5000)
    sizes[s.choice("nk")] |= 1
    return {"dtype": s.half(), **sizes, "layout": s.choice(("NN", "NT"))}


def _logits(s: Source) -> dict[str, Any]:
    n, k = s.choice((32000, 50257, 128256, 151936, 256000)), s.choice((2048, 3584, 4096, 5120))
    return {"dtype": s.half(), "m": s.size(64, min(4096, 2.5e12 / n / k), 8), "n": n, "k": k, "layout": "NT"}


def _forms(*dtypes: str) -> Draw:
    def draw(s: Source) -> dict[str, Any]:
        form, dtype = s.choice(("addmm", "linear", "einsum", "baddbmm")), s.choice(dtypes)
        batch = s.size(4, 64) if form in ("einsum", "baddbmm") else 1
        rows = s.size(64, 512 if batch > 1 else 4096)
        most = {"einsum": 2048, "baddbmm": 512}.get(form, 4096)
        n, k = s.size(128, most, 8), s.size(128, most, 8)
        layout = "NT" if form == "linear" else "NN"
        return {"dtype": dtype, "m": rows, "n": n, "k": k, "batch": batch, "layout": layout, "form": form}

    return draw


def _grouped(least: int, most: int) -> Draw:
    """Layers of mixtures of experts, with so many tokens."""

    def draw(s: Source) -> dict[str, Any]:
        experts, top, hidden, inner = s.choice(list(MODELS.values()))
        n, k = s.choice(((2 * inner, hidden), (hidden, inner)))
        return {"dtype": "bfloat16", "m": s.size(least, most) * top, "n": n, "k": k, "batch": experts, "layout": "NT",
                "form": "grouped"}  # fmt: skip

    return draw


def _wide(dtype: str, most: int) -> Draw:
    return lambda s: {"dtype": dtype, **s.sizes(256, most), "layout": s.layout()}


def _scaled(s: Source) -> dict[str, Any]:
    n, k = s.choice([layer for layer in LAYERS if math.prod(layer) <= 6e7])
    m = s.size(16, 8192, 16)
    return {"dtype": "float8_e4m3fn", "m": m, "n": n, "k": k, "layout": "NT", "form": "_scaled_mm"}


KINDS: dict[str, Draw] = {
    "tiny batches 2 to 8, float32": _tiny(2, 8, "float32"),
    "tiny batches 2 to 8, half": _tiny(2, 8, "float16", "bfloat16"),
    "tiny batches 2 to 8, float64 and complex64": _tiny(2, 8, "float64", "complex64"),
    "batches 9 to 32, float32": _tiny(9, 32, "float32"),
    "batches 9 to 32, half": _tiny(9, 32, "float16", "bfloat16"),
    "batches from 33, float32 strict": _middle_batches("strict"),
    "batches from 33, float32 split": _middle_batches("split"),
    "batches of odd sizes, half": _odd,
    "batches of vectors, float32": _vectors("float32"),
    "batches of vectors, half": _vectors("float16", "bfloat16"),
    "float32 strict, few rows": _float32((2, 256), (1024, 8192), (1024, 8192), of=64),
    "float32 strict, long K": _float32((16, 128), (16, 128), (8192, 131072)),
    "float32 strict, tall": _float32((16384, 262144), (16, 128), (16, 128), of=8),
    "float32 strict, short K": _float32((512, 4096), (512, 4096), (8, 64), of=8),
    "float32 split, large": _float32((2048, 5000), (2048, 5000), (1024, 5000), "split", of=64),
    "float32 split, middle": _float32((256, 2048), (256, 2048), (256, 4096), "split", of=8),
    "X @ X.T, half": _gram(),
    "X @ X.T, float32 strict": _gram("strict"),
    "X @ X.T, float32 split": _gram("split"),
    "batches with a shared weight, half": _shared,
    "_int_mm, weight of a layer (NT)": _int8("NT"),
    "_int_mm, row-major weight (NN)": _int8("NN"),
    "half, large": _dense((3072, 12288), (3072, 12288), (2048, 8192), of=128, rows_of=128),
    "half, middle": _dense((256, 3072), (512, 8192), (512, 8192), of=64),
    "half, ragged": _ragged,
    "half, decoding": _dense((1, 32), (1024, 16384), (1024, 16384), of=128),
    "half, one row of long K": _dense((1, 1), (1024, 8192), (16384, 131072), of=128),
    "half, logits": _logits,
    "forms, half": _forms("float16", "bfloat16"),
    "forms, float32 strict": _forms("float32"),
    "grouped_mm, few rows": _grouped(1, 32),
    "grouped_mm, many rows": _grouped(256, 8192),
    "float64": _wide("float64", 4096),
    "complex64": _wide("complex64", 2560),
    "fp8 _scaled_mm": _scaled,
}


def draw(seed: int, shapes: int, kinds: Iterable[str] = tuple(KINDS)) -> list[Case]:
    """Draws so many shapes of each kind, in turns. The shapes of a kind depend on the seed alone."""
    sources = {kind: Source(f"{seed} {kind}") for kind in kinds}
    return [Case(kind, **KINDS[kind](source)) for _ in range(shapes) for kind, source in sources.items()]


def small(case: Case) -> Case:
    """A tiny shape with the same divisors up to 32, for ``--quick``."""

    def size(of: int) -> int:
        return of if of <= 96 else 64 + of % 32

    m, n, k = map(size, (case.m, case.n, case.k))
    return replace(case, m=m, n=m if case.form == "gram" else n, k=k, batch=min(case.batch, 2 + case.batch % 5))


# Measuring


@dataclass
class Eager:
    """What ``timing.Body`` is on a device without graphs."""

    call: Callable[[Operands], Tensor]
    sets: Sequence[Operands]

    def __post_init__(self) -> None:
        self.replay()

    def poison(self) -> None:
        for output in self.outputs:
            timing.fill_with_nan(output)

    def replay(self) -> None:
        self.outputs = [self.call(x) for x in self.sets]

    def start(self) -> Callable[[], float]:
        begin = time.perf_counter()
        self.replay()
        us = (time.perf_counter() - begin) * 1e6 / len(self.sets)
        return lambda: us


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


class Sample:
    """The elements of a result that are compared with float64: all of them, or some rows and columns."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        matrices = 1 if case.form == "grouped" else case.batch
        largest = max(case.batch * case.n * case.k, matrices * case.m * max(case.n, case.k))
        self.whole = case.flops <= WHOLE_FLOPS and largest <= WHOLE_ELEMENTS

        def some(count: int) -> Tensor:
            if self.whole:
                return torch.arange(count, device=generator.device)
            return torch.randint(count, (min(count, SAMPLED),), device=generator.device, generator=generator)

        self.matrices, self.rows, self.columns = some(matrices), some(case.m), some(case.n)

    def _of(self, x: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
        if self.whole:
            return x
        if x.dim() == 3:
            x = x.index_select(0, self.matrices)
        x = x if rows is None else x.index_select(-2, rows)
        return x if columns is None else x.index_select(-1, columns)

    def of(self, output: Tensor) -> Tensor:
        return self._of(output, self.rows, self.columns)

    def reference(self, case: Case, x: Operands) -> Tensor:
        """The sampled elements in float64, or complex128, from the same rounded inputs."""
        wide = torch.complex128 if x.a.is_complex() else torch.float64
        if x.a.dtype == torch.float8_e4m3fn:  # bfloat16 has all values of fp8, and can be indexed
            x = replace(x, a=x.a.to(torch.bfloat16), b=x.b.to(torch.bfloat16))
        if case.form == "grouped":
            assert x.ends is not None
            group = torch.searchsorted(x.ends, self.rows.to(x.ends.dtype), right=True)
            weights = x.b.index_select(2, self.columns)  # (groups, k, columns)
            found = torch.empty(len(self.rows), len(self.columns), dtype=wide, device=x.a.device)
            for index in group.unique().tolist():
                here = group == index
                found[here] = x.a[self.rows[here]].to(wide) @ weights[index].to(wide)
            return found
        product = self._of(x.a, self.rows, None).to(wide) @ self._of(x.b, None, self.columns).to(wide)
        if x.c is None:
            return product
        return product + self._of(x.c.expand(*x.a.shape[:-1], case.n), self.rows, self.columns).to(wide)


def limits(case: Case, own: tuple[float, float]) -> tuple[float, float]:
    """The largest errors that our result may have, in the 2-norm and in the maximum norm, as in ``hgemm bench``.

    They are twice torch's own error and what rounding explains. Sums of integers are exact.
    """
    if not case.result.is_floating_point and not case.result.is_complex:
        return 0.0, 0.0
    return 2 * own[0] + torch.finfo(torch.float32).eps, 2 * own[1] + torch.finfo(case.result).eps


def verify(
    case: Case, sets: Sequence[Operands], bodies: dict[str, Any], sample: Sample
) -> tuple[dict[str, tuple[float, float]], str]:
    """Runs what will be timed over poisoned results, and compares them.

    The sampled elements of the first set and the last one are compared with float64, and every element of every set
    with torch's.

    Returns:
        The errors of both sides, in the 2-norm and in the maximum norm, and what is wrong with ours, or "".
    """
    for body in bodies.values():
        body.poison()
        body.replay()
    found: dict[str, list[Tensor]] = {side: [] for side in SIDES}
    for i in {0, len(sets) - 1}:
        expected = _real(sample.reference(case, sets[i]))
        for side in SIDES:
            found[side].append(timing.errors(_real(sample.of(bodies[side].outputs[i])), expected))
    errors = {side: timing.worst(rows) for side, rows in found.items()}
    apart = torch.stack(
        [
            (_real(ours) - _real(theirs)).abs().amax().double() / _real(theirs).abs().amax().double().clamp(min=1e-300)
            for ours, theirs in zip(bodies["ours"].outputs, bodies["torch"].outputs, strict=True)
        ]
    )
    most, allowed = apart.amax().item(), limits(case, errors["torch"])
    within = 0.0 if allowed == (0.0, 0.0) else APART * max(errors["torch"][1], torch.finfo(case.result).eps)
    two_norm, largest = errors["ours"]
    if two_norm <= allowed[0] and largest <= allowed[1] and most <= within:  # false for NaN
        return errors, ""
    return errors, (
        f"errors {two_norm:.2e} and {largest:.2e}, {most:.2e} from torch's; "
        f"allowed {allowed[0]:.2e}, {allowed[1]:.2e}, {within:.2e}"
    )


class Unable(Exception):
    """This device or this release of torch does not run the product."""


ERRORS = (RuntimeError, AttributeError, TypeError)  # of calls that a device or a release of torch does not have


def first_line(error: Exception, device: torch.device) -> str:
    """The first line of an error. An error that ended the CUDA context is raised again."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return str(error).split("\n")[0]


def _side(side: str, case: Case) -> AbstractContextManager[Any]:
    return use_custom_gemm(float32=case.float32) if side == "ours" else nullcontext()


def measure(case: Case, seed: int, device: torch.device, rates: dict[str, float]) -> dict[str, Any]:
    """Checks and times one product.

    Raises:
        Unable: torch does not run it.
    """
    generator, call, on_gpu = torch.Generator(device).manual_seed(seed), FORMS[case.form], device.type == "cuda"
    count = min(MOST_SETS, timing.set_count(case.bytes, timing.rotation_bytes(device) if on_gpu else 1))
    count = max(1, min(count, int(MOST_BYTES // case.allocated)))
    sets = [make_operands(case, generator) for _ in range(count)]
    bound_us, term = bound(case, rates)
    row: dict[str, Any] = {**asdict(case), "sets": len(sets), "bound_us": bound_us, "bound_by": term}
    bodies: dict[str, Any] = {}
    peaks: dict[str, int | None] = {}
    for side in SIDES:
        with _side(side, case) as report, torch.no_grad():
            try:
                peaks[side] = timing.peak_bytes(call, sets[0], device)
                bodies[side] = timing.Body.capture(call, sets) if on_gpu else Eager(call, sets)
            except ERRORS as error:
                reason = first_line(error, device)
                if side == "torch":
                    raise Unable(reason) from error
                return row | {"kernel": "?", "wrong": f"raised {reason}"}
        if report is not None:
            row["kernel"] = ",".join(sorted({found.variant for found in report.rows})) or "torch"
    errors, wrong = verify(case, sets, bodies, Sample(case, generator))
    row["peak_bytes"] = peaks
    if wrong:
        return row | {"wrong": wrong}
    pass_us = sum(body.start()() for body in bodies.values()) * len(sets)
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(TIMED_SECONDS * 1e6 / pass_us))) if on_gpu else 1
    us = timing.time_bodies(bodies, rounds, seed, WARMUP_SECONDS if on_gpu else 0.0)
    times = {f"{side}_us": statistics.median(us[side]) for side in SIDES}
    row["errors"] = errors
    return row | {"rounds": rounds, **times, "ratio": asdict(statistics.paired_ratio(us["torch"], us["ours"]))}


def line_of(row: dict[str, Any]) -> str:
    case = Case(**{name: row[name] for name in Case.__dataclass_fields__})
    head = f"{case.kind}: {case.label} {case.layout} {case.dtype}"
    if "wrong" in row:
        return f"{head}, {row['kernel']}: WRONG, {row['wrong']}"
    shares = f"of the bound {row['bound_us'] / row['torch_us']:.2f} and {row['bound_us'] / row['ours_us']:.2f}"
    return (
        f"{head}: bound {row['bound_us']:.1f} us, torch {row['torch_us']:.1f}, ours {row['ours_us']:.1f}, "
        f"ratio {row['ratio']['value']:.2f}, {shares}, {row['kernel']}"
    )


def chosen_kinds(words: Sequence[str]) -> list[str]:
    """The kinds with one of these words in their names, or all of them."""
    return [kind for kind in KINDS if not words or any(word in kind for word in words)]


@click.command(help=__doc__)
@click.option("--seed", type=int, help="Of the shapes.  [default: a new one]")
@click.option("--shapes", default=5, show_default=True, help="Of each kind.")
@click.option("--kind", "words", multiple=True, help="Only kinds whose name contains this. May be repeated.")
@click.option("--seconds", default=55.0, show_default=True, help="Start no shape after so long.")
@click.option("--verbose", is_flag=True, help="Print every shape.")
@click.option("--quick", is_flag=True, help="Tiny shapes, no graphs, also on the CPU: only to try this script.")
@click.option("--output", type=click.Path(path_type=Path), help="The result file.")
def main(
    seed: int | None,
    shapes: int,
    words: tuple[str, ...],
    seconds: float,
    verbose: bool,
    quick: bool,
    output: Path | None,
) -> None:
    begin = time.monotonic()
    if not quick and not torch.cuda.is_available():
        raise click.ClickException("the map needs a GPU")
    device = torch.device("cpu") if quick else torch.device("cuda", torch.cuda.current_device())
    gpu = next(iter(CHIPS)) if quick else torch.cuda.get_device_name(device)
    if gpu not in CHIPS:
        raise click.ClickException(f"the rates of {gpu} are not known: add them to CHIPS in {Path(__file__).name}")
    if output is None and not quick:
        output = record.path(RESULTS / record.gpu_slug(gpu), "map")
    seed = sampling.new_seed() if seed is None else seed
    copy_gbps = None if quick else runner.copy_gbps()
    planned = [small(case) if quick else case for case in draw(seed, shapes, chosen_kinds(words))]
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    timed_out = 0
    try:
        for case in planned:
            if case.kind in left_out:
                continue
            if time.monotonic() > begin + seconds:
                timed_out += 1
                continue
            try:
                rows.append(measure(case, seed, device, CHIPS[gpu]))
            except Unable as reason:
                left_out[case.kind] = str(reason)
                continue
            if verbose or "wrong" in rows[-1]:
                click.echo(line_of(rows[-1]))
            if not quick:
                torch.cuda.empty_cache()  # frees graphs' own memory pools, which the next shape cannot use
    finally:
        found = {"seed": seed, "shapes": shapes, "timed_out": timed_out, "copy_gbps": copy_gbps, "rates": CHIPS[gpu],
                 "left_out": left_out, "rows": rows}  # fmt: skip
        document = record.document(map=found)
        if output is not None:
            record.save(document, output)
    for line in map_lines(document):
        click.echo(line)
    for kind, text in left_out.items():
        click.echo(f"left out: {kind}: {text}")
    click.echo(f"seed {seed}, {len(rows)} of {len(planned)} shapes, {time.monotonic() - begin:.0f} s")
    if any("wrong" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
