"""Measures errors of sums in K's order against float64, and writes ``results/<gpu>/in_order_errors.json``.

The products are of float16 and bfloat16 matrices, of N(0,1), with increasing K. float32 results are torch's, those of
one accumulator over all of K, and those of ``numerics="batch_invariant"``, which adds up accumulators in float32. Of
16-bit results there are torch's and those of ``numerics="batch_invariant"``, which has one accumulator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's own path has its directory alone

import hgemm_ops
from benchmarks.float32_errors import RESULTS, errors
from hgemm_ops.bench import record

SIZES = (512, 2048)
DEPTHS = (64, 257, 512, 1000, 1024, 2048, 2049, 4096, 4100, 8192, 8193, 16384, 32768, 65536)
#: Has one accumulator over all of K, and takes every layout and alignment.
ONE_SUM = "sm80_mma_64x64x64_w32x32_s3"
MOST_ROWS = 512  # that are compared with float64


def compare(a: Tensor, b: Tensor) -> Iterator[dict[str, Any]]:
    rows = slice(MOST_ROWS)
    exact, magnitude = a[rows].double() @ b.double(), a[rows].double().abs() @ b.double().abs()
    wide: dict[str, Any] = {"out_dtype": torch.float32}
    for result, found in (
        (
            "float32",
            {
                "torch": torch.mm(a, b, **wide),
                "one sum": hgemm_ops.matmul(a, b, variant=ONE_SUM, **wide),
                "batch_invariant": hgemm_ops.matmul(a, b, numerics="batch_invariant", **wide),
            },
        ),
        ("16-bit", {"torch": torch.mm(a, b), "batch_invariant": hgemm_ops.matmul(a, b, numerics="batch_invariant")}),
    ):
        yield {"result": result, **{side: errors(out[rows], exact, magnitude) for side, out in found.items()}}


def measure() -> Iterator[dict[str, Any]]:
    for dtype in (torch.float16, torch.bfloat16):
        for size in SIZES:
            for k in DEPTHS:
                a, b = (torch.randn(shape, device="cuda").to(dtype) for shape in ((size, k), (k, size)))
                for row in compare(a, b):
                    yield {"dtype": str(dtype).removeprefix("torch."), "size": size, "k": k, **row}


@click.command(help=__doc__)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(output: Path | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("needs a GPU")
    torch.manual_seed(0)
    rows = list(measure())
    for row in rows:
        found = {side: value for side, value in row.items() if isinstance(value, dict)}
        texts = (f"{side} {error['most']:.1e} {error['rms']:.1e}" for side, error in found.items())
        click.echo(f"{row['dtype']:8} {row['size']:4} {row['k']:5} {row['result']:7} {'  '.join(texts)}")
    if output is None:
        output = RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "in_order_errors.json"
    record.save(record.document(in_order_errors=rows), output)
    click.echo(f"recorded in {output}")


if __name__ == "__main__":
    main()
