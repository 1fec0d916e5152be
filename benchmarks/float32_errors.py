"""Measures errors of float32 matmuls against float64, and writes ``results/<gpu>/float32_errors.json``.

torch computes them without TF32 (strict) and with TF32. Our kernels split them into three bfloat16 planes, six products
of which are added up (split), or into two float16 planes, with three products (split3), where K is 128 or more. The
device takes six products after all where the three are not accurate. The inputs are random matrices with increasing K,
and values that are hard to represent in planes.
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
LEAST_K = 128  # of three products
DEPTHS = tuple(4**i for i in range(2, 9))  # 16 to 65,536


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda")


def uniform(*shape: int) -> Tensor:
    return torch.rand(shape, device="cuda")


def scales(*shape: int, most: int) -> Tensor:
    return torch.exp2((uniform(*shape) * 2 - 1) * most)


def hilbert() -> tuple[Tensor, Tensor]:
    i = torch.arange(512, device="cuda").float()
    return 1 / (i[:, None] + i + 1), 1 / (i[:, None] + i + 1)


def cancelling() -> tuple[Tensor, Tensor]:
    a, b = normal(300, 500), normal(500, 200)
    return torch.cat([a, -a], 1), torch.cat([b, b * (1 + 2.0**-20)])


HARD: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "rows times 2^U(-20,20)": lambda: (normal(512, 1024) * scales(512, 1, most=20), normal(1024, 512)),
    "rows times 2^U(-60,60)": lambda: (normal(512, 1024) * scales(512, 1, most=60), normal(1024, 512)),
    "elements times 2^U(-20,20)": lambda: (normal(512, 1024) * scales(512, 1024, most=20), normal(1024, 512)),
    "elements times 2^U(-60,60)": lambda: (normal(512, 1024) * scales(512, 1024, most=60), normal(1024, 512)),
    "cancelling sums": cancelling,
    "Hilbert": hilbert,
    "1e-36 times N(0,1)": lambda: (normal(512, 512) * 1e-36, normal(512, 512)),
    "1e37 times N(0,1)": lambda: (normal(512, 512) * 1e37, normal(512, 512) * 1e-3),
}


def errors(out: Tensor, exact: Tensor, magnitude: Tensor) -> dict[str, float]:
    """The largest error relative to |A||B|, and the rms error relative to the rms of the result."""
    error = (out.double() - exact).abs()
    return {
        "most": (error / magnitude).nan_to_num(0).max().item(),
        "rms": (error.square().mean() / exact.square().mean()).sqrt().item(),
    }


def compare(a: Tensor, b: Tensor, variants: dict[str, int]) -> dict[str, Any]:
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    found = {
        side: errors(torch.ops.hgemm.mm(a, b, variant=variant), exact, magnitude)
        for side, variant in variants.items()
        if side == "split" or a.shape[1] >= LEAST_K
    }
    for side, allowed in (("strict", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        found[side] = errors(torch.mm(a, b), exact, magnitude)
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def measure(variants: dict[str, int]) -> Iterator[dict[str, Any]]:
    for inputs, make in (("N(0,1)", normal), ("U(0,1)", uniform)):
        for k in DEPTHS:
            yield {"kind": "depth", "inputs": inputs, "k": k, **compare(make(512, k), make(k, 512), variants)}
    for inputs, pair in HARD.items():
        yield {"kind": "hard", "inputs": inputs, **compare(*pair(), variants)}


@click.command(help=__doc__)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(output: Path | None) -> None:
    kernels = [v for v in hgemm_ops.variants() if v.family == "sm90_split"]
    if not kernels or not torch.cuda.is_available():
        raise click.ClickException("needs a GPU that has kernels of sm90_split")
    torch.manual_seed(0)
    variants = {v.name.split("_")[1]: v.id for v in reversed(kernels)}
    rows = list(measure({side: variants[side] for side in ("split", "split3")}))
    for row in rows:
        sides = "  ".join(
            f"{side} {row[side]['most']:.1e} {row[side]['rms']:.1e}"
            for side in ("strict", "split", "split3", "tf32")
            if side in row
        )
        click.echo(f"{row['inputs']:28} {row.get('k', ''):6} {sides}")
    if output is None:
        output = RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "float32_errors.json"
    record.save(record.document(float32_errors=rows), output)
    click.echo(f"recorded in {output}")


if __name__ == "__main__":
    main()
