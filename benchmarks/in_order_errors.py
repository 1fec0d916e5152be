"""Measures errors of batch-invariant sums over K against float64, and writes ``results/<gpu>/in_order_errors.json``.

The operands are float16 and the results float32. Three sides compute each product: torch, ours with
``numerics="batch_invariant"``, which cuts a long K into slices, and "one sum", a kernel of ours that adds up all of K
in one accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

import hgemm_ops
from hgemm_ops.bench import record

RESULTS = Path(__file__).parent / "results"
DEPTHS = tuple(2**i for i in range(8, 17))  # 256 to 65,536
SHAPES = ((512, 512), (16, 4096), (2048, 2048))
INPUTS: dict[str, Callable[..., Tensor]] = {"N(0,1)": torch.randn, "U(0,1)": torch.rand}
#: A kernel that takes every layout and alignment, on every architecture.
ONE_SUM = "sm80_mma_128x128x32_w64x32_s4"


def errors(out: Tensor, exact: Tensor, magnitude: Tensor) -> dict[str, float]:
    """The largest error and the rms error, each relative to |A||B|."""
    share = (out.double() - exact) / magnitude
    return {"most": share.abs().max().item(), "rms": share.square().mean().sqrt().item()}


def compare(a: Tensor, b: Tensor) -> dict[str, Any]:
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    wide: dict[str, Any] = {"out_dtype": torch.float32}
    return {
        "ours": errors(hgemm_ops.matmul(a, b, numerics="batch_invariant", **wide), exact, magnitude),
        "torch": errors(torch.mm(a, b, **wide), exact, magnitude),
        "one sum": errors(hgemm_ops.matmul(a, b, numerics="fast", variant=ONE_SUM, **wide), exact, magnitude),
    }


def measure() -> Iterator[dict[str, Any]]:
    for m, n in SHAPES:
        for inputs, make in INPUTS.items():
            for k in DEPTHS:
                a, b = (make(size, device="cuda").half() for size in ((m, k), (k, n)))
                yield {"inputs": inputs, "m": m, "n": n, "k": k, **compare(a, b)}


@click.command(help=__doc__)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(output: Path | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("needs a GPU")
    torch.manual_seed(0)
    rows = list(measure())
    for row in rows:
        sides = "  ".join(
            f"{side} {row[side]['most']:.1e} {row[side]['rms']:.1e}" for side in ("torch", "ours", "one sum")
        )
        click.echo(f"{row['inputs']:8} {row['m']:5} {row['n']:5} {row['k']:6} {sides}")
    if output is None:
        output = RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "in_order_errors.json"
    record.save(record.document(in_order_errors=rows), output)
    click.echo(f"recorded in {output}")


if __name__ == "__main__":
    main()
