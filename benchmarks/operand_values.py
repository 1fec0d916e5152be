"""Times products of operands with different values: torch and the dispatcher's choice, interleaved.

A GPU at its power limit runs faster on values that toggle fewer bits, so the lead over torch depends on the values.
Both operands of a product have the same kind of values, and B is stored as a layer's weight (NT).

Writes ``results/<gpu>/operand_values.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's own path has its directory alone

import hgemm_ops
from hgemm_ops.bench import record, timing
from hgemm_ops.bench.statistics import paired_ratio
from hgemm_ops.bench.survey import Set, torch_call

RESULTS = Path(__file__).parent / "results"
SIZES = ((8192, 8192, 8192), (4096, 4096, 4096))  # m, n, k
ROUNDS, WARMUP, SOAK = 30, 0.5, 3.0
SAMPLED = 64  # rows, and columns, that are compared with float64

Shape = tuple[int, int]
VALUES: dict[str, Callable[[Shape], Tensor]] = {
    "N(0, 1)": lambda shape: torch.randn(shape, device="cuda"),
    "N(0, 1) after ReLU": lambda shape: torch.randn(shape, device="cuda").relu_(),
    "U(0, 1)": lambda shape: torch.rand(shape, device="cuda"),
    "0 and 1": lambda shape: torch.randint(2, shape, device="cuda"),
    "N(0, 1), 7 of 8 zeros": lambda shape: torch.nn.functional.dropout(torch.randn(shape, device="cuda"), 7 / 8),
    "zeros": lambda shape: torch.zeros(shape, device="cuda"),
}


def ours(x: Set) -> Tensor:
    return torch.ops.hgemm.matmul.out(x.a, x.b, out=x.out)


def check(x: Set, out: Tensor, name: str) -> None:
    """Compares sampled elements with float64. Raises AssertionError beyond the error of a bfloat16 result."""
    rows, columns = (torch.randint(size, (SAMPLED,), device="cuda") for size in out.shape)
    exact = x.a[rows].double() @ x.b[:, columns].double()
    error = (out[rows][:, columns].double() - exact).norm() / exact.norm().clamp(min=torch.finfo(torch.float64).tiny)
    assert error <= torch.finfo(torch.bfloat16).eps, (name, error.item())


def measure(values: str, m: int, n: int, k: int) -> dict[str, Any]:
    """Checks and times one product."""
    draw = VALUES[values]
    count = timing.set_count(2 * (m * k + n * k + m * n), timing.rotation_bytes(torch.device("cuda")))
    sets = [
        Set(
            draw((m, k)).bfloat16(),
            draw((n, k)).bfloat16().mT,
            torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
        )
        for _ in range(count)
    ]
    bodies = {}
    for name, call in (("torch", torch_call), ("ours", ours)):
        bodies[name] = timing.Body.capture(call, sets)
        bodies[name].poison()
        bodies[name].replay()
        for x in sets:
            check(x, x.out, f"{name} {values} {m}x{n}x{k}")
    us = timing.time_bodies(bodies, ROUNDS, 0, WARMUP)
    tflop = 2e-6 * m * n * k
    return {
        "values": values,
        "m": m,
        "n": n,
        "k": k,
        "kernel": hgemm_ops.explain(sets[0].a, sets[0].b).chosen,
        **{f"{name}_tflops": tflop / sorted(samples)[len(samples) // 2] for name, samples in us.items()},
        "ratio": vars(paired_ratio(us["torch"], us["ours"])),
    }


def measure_all() -> Iterator[dict[str, Any]]:
    for m, n, k in SIZES:
        timing.soak(SOAK, torch.device("cuda"))
        for values in VALUES:
            yield measure(values, m, n, k)


@click.command(help=__doc__)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(output: Path | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("needs a GPU")
    torch.manual_seed(0)
    rows = []
    for row in measure_all():
        rows.append(row)
        click.echo(
            f"{row['m']}x{row['n']}x{row['k']} {row['values']:24} torch {row['torch_tflops']:4.0f} TFLOP/s, ours "
            f"{row['ours_tflops']:4.0f}, ratio {row['ratio']['value']:.3f}, {row['kernel']}"
        )
    output = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "operand_values")
    record.save(record.document(operand_values=rows), output)
    click.echo(f"recorded in {output}")


if __name__ == "__main__":
    main()
