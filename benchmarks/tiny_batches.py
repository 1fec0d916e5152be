"""Times torch.bmm and torch.baddbmm of many tiny matrices, with and without use_custom_gemm().

The shapes are drawn from a seed: cubes and any sizes up to 8 and, but for float64 and complex64, up to 32; few
matrices, padded rows, an A that the whole batch shares, conjugated complex operands, and baddbmm. Both sides run in
CUDA graphs over rotating buffers, interleaved.

A row has the times in microseconds (medians of five rounds), torch's time over ours (the median of paired ratios), the
kernel that was chosen, and the error against float64, or complex128, over the norm of the result. ``bound`` is the time
that memory takes at the copy bandwidth, plus 2.5 us for a launch.

Writes ``results/<gpu>/tiny_batches.json.xz``.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from hgemm_ops import use_custom_gemm
from hgemm_ops.bench import record, runner

RESULTS = Path(__file__).parent / "results"
LAUNCH_US = 2.5
ROUNDS = 5
DTYPES = ("float32", "float16", "bfloat16")
WIDE = ("float64", "complex64")


@dataclass(frozen=True)
class Batch:
    """``layout``: a letter for A and one for B: N row-major, T transposed, P with padded rows, S shared by the batch, C
    and H conjugated and, of these, H transposed. ``c``: the call is baddbmm with beta = 0.5."""

    kind: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int
    layout: str = "NN"
    c: bool = False

    @property
    def bytes(self) -> int:
        """Bytes that a call must move at least: each operand once, and the result."""
        a, b = (1 if order == "S" else self.batch for order in self.layout)
        elements = a * self.m * self.k + b * self.k * self.n + self.batch * self.m * self.n * (2 if self.c else 1)
        return elements * getattr(torch, self.dtype).itemsize


def draw(seed: int) -> Iterator[Batch]:
    """Yields shapes without end, the same for the same seed."""
    source = random.Random(seed)
    layouts = ("NN", "NT", "TN", "TT")

    def many(dtype: str, m: int, n: int, k: int) -> int:
        """A batch that moves some 2 to 60 MB."""
        target = 10 ** source.uniform(6.3, 7.8)
        return max(1000, min(2_000_000, int(target / (getattr(torch, dtype).itemsize * (m * k + k * n + m * n)))))

    def cube(kind: str, dtype: str, size: int, layout: str, c: bool = False) -> Batch:
        return Batch(kind, dtype, many(dtype, size, size, size), size, size, size, layout, c)

    def box(kind: str, dtype: str, most: int) -> Batch:
        m, n, k = (source.randint(1, most) for _ in range(3))
        return Batch(kind, dtype, many(dtype, m, n, k), m, n, k, source.choice(layouts))

    while True:
        for dtype in DTYPES:
            yield cube("cubes 2..8", dtype, source.randint(2, 8), source.choice(layouts))
            yield box("any 1..8", dtype, 8)
            yield cube("cubes 9..32", dtype, source.randint(9, 32), source.choice(layouts))
            yield box("any 1..32", dtype, 32)
        for dtype in WIDE:
            yield cube("cubes 2..8", dtype, source.randint(2, 8), source.choice(layouts))
            yield box("any 1..8", dtype, 8)
            yield cube("shared A", dtype, source.randint(2, 8), source.choice(("SN", "ST")))
            yield cube("padded rows", dtype, source.randint(2, 8), source.choice(("NP", "PN", "PP")))
            yield cube("baddbmm", dtype, source.randint(2, 8), "NN", c=True)
            size = source.randint(2, 8)
            yield Batch("few", dtype, source.randint(1000, 3000), size, size, size)
        yield cube("conjugated", "complex64", source.randint(2, 8), source.choice(("CN", "NC", "HN", "NH", "HH")))
        dtype = source.choice(DTYPES)
        yield cube("shared A", dtype, source.choice((3, 4, 7, 8, 12, 16)), source.choice(("SN", "ST")))
        yield cube("padded rows", dtype, source.choice((3, 5, 8, 12, 16)), source.choice(("NP", "PN", "PP")))
        yield cube("baddbmm", dtype, source.randint(2, 16), "NN", c=True)
        size = source.randint(2, 16)
        yield Batch("few", dtype, source.randint(1000, 3000), size, size, size)


def operand(case: Batch, rows: int, cols: int, order: str) -> Tensor:
    dtype = getattr(torch, case.dtype)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype if case.dtype in WIDE else torch.float32).to(dtype)

    if order in "TH":
        matrices = make(case.batch, cols, rows)
        return matrices.mT if order == "T" else matrices.mH
    if order == "C":
        return make(case.batch, rows, cols).conj()
    if order == "S":
        return make(1, rows, cols).expand(case.batch, rows, cols)
    return make(case.batch, rows, cols + 3)[:, :, :cols] if order == "P" else make(case.batch, rows, cols)


def call(a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    if c is None:
        torch.bmm(a, b, out=out)
    else:
        torch.baddbmm(c, a, b, beta=0.5, out=out)


def measure(case: Batch, gbps: float) -> dict[str, Any]:
    """Times one shape, and checks both results. ``gbps``: the copy bandwidth."""
    bound = case.bytes / gbps * 1e-3 + LAUNCH_US
    sets = []
    for _ in range(max(2, min(16, int(300e6 // case.bytes) + 1))):  # past the L2
        a, b = operand(case, case.m, case.k, case.layout[0]), operand(case, case.k, case.n, case.layout[1])
        out = torch.empty(case.batch, case.m, case.n, device="cuda", dtype=a.dtype)
        sets.append((a, b, torch.randn_like(out) if case.c else None, out))
    a, b, c, out = sets[0]
    wide = torch.complex128 if a.is_complex() else torch.float64
    exact = a.to(wide) @ b.to(wide) + (0.5 * c.to(wide) if c is not None else 0)
    torch.cuda.synchronize()  # the calls run on another stream
    launches = len(sets) * max(1, -(-8 // len(sets)))
    stream, kernel = torch.cuda.Stream(), "torch"
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    errors: dict[str, float] = {}
    for side in ("torch", "ours"):
        with use_custom_gemm() if side == "ours" else nullcontext() as report:
            with torch.cuda.stream(stream):
                out.fill_(math.nan)
                call(*sets[0])
            stream.synchronize()
            errors[side] = ((out.to(wide) - exact).norm() / exact.norm()).item()
            if report is not None:
                kernel = ",".join(sorted({row.variant for row in report.rows}))
            graphs[side] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[side], stream=stream):
                for i in range(launches):
                    call(*sets[i % len(sets)])
    assert errors["ours"] <= 2 * errors["torch"] + 2 * torch.finfo(out.dtype).eps, (case, errors)
    for graph in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    replays = max(1, min(10, int(500 / (bound * launches)) + 1))
    us: dict[str, list[float]] = {"torch": [], "ours": []}
    for turn in range(ROUNDS):
        for side in ("torch", "ours") if turn % 2 == 0 else ("ours", "torch"):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(replays):
                graphs[side].replay()
            end.record()
            end.synchronize()
            us[side].append(start.elapsed_time(end) * 1e3 / replays / launches)
    ratio = statistics.median(t / o for t, o in zip(us["torch"], us["ours"], strict=True))
    times = {"bound": bound, **{side: statistics.median(of) for side, of in us.items()}, "ratio": ratio}
    return {**asdict(case), **times, "kernel": kernel, "errors": errors}


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yields a line per kind and dtype: geometric means, and the worst case."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["kind"], row["dtype"]].append(row)
    for (kind, dtype), group in sorted(groups.items()):
        ratio, share = (
            statistics.geometric_mean([row[above] / row["ours"] for row in group]) for above in ("torch", "bound")
        )
        worst, lost = min(row["ratio"] for row in group), sum(row["ratio"] < 0.98 for row in group)
        yield (
            f"{kind:12} {dtype:8} {len(group):4} shapes: torch / ours {ratio:6.2f}, worst {worst:.2f}, "
            f"{lost} below 0.98; of the bound {share:.2f}"
        )


@click.command(help=__doc__)
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Draw shapes for so long.")
@click.option("--seed", type=int, help="Of the shapes.  [default: a new one]")
@click.option("--output", type=click.Path(path_type=Path), help="The result file.")
def main(seconds: float, seed: int | None, output: Path | None) -> None:
    seed = random.randrange(2**31) if seed is None else seed
    torch.manual_seed(seed)
    output = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "tiny_batches")
    gbps, rows, end = runner.copy_gbps(), [], time.monotonic() + seconds
    for case in draw(seed):
        if time.monotonic() > end:
            break
        rows.append(measure(case, gbps))
    for line in summary(rows):
        click.echo(line)
    record.save(record.document(tiny_batches={"seed": seed, "copy_gbps": gbps, "rows": rows}), output)


if __name__ == "__main__":
    main()
