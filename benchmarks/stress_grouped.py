"""Checks on this GPU that a row of a grouped matmul has the same bits whatever the other rows and groups are.

Each trial draws a number of experts, sizes and a dtype, and a few rows for each expert. It computes the product twice
in ``use_custom_gemm(numerics="batch_invariant")``: each time other rows surround those of every expert, in other
numbers, and some experts get none. So the two products may run on different kernels, and a row lies at another place of
a tile. Every row that both have must have the same bits.

The same seed draws the same trials. Writes ``results/<gpu>/stress_grouped.json``; ends with status 1 if a row differs.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from hgemm_ops import use_custom_gemm
from hgemm_ops.bench import record

RESULTS = Path(__file__).parent / "results"
DTYPES = ("bfloat16",) * 4 + ("float16",) * 3 + ("float32",)
#: The rows of an expert on average, from which a trial draws: they choose the kernel.
ROWS = (2, 6, 30, 100, 250, 600)
_MOST_ROWS = 32768  # of one product
_MOST_WEIGHTS = 1 << 28  # elements


@dataclass(frozen=True)
class Trial:
    """``kept`` has the number of rows of each expert that both products have. Others lie ``before`` and ``after``."""

    dtype: str
    n: int
    k: int
    columns_first: bool
    kept: list[int]
    before: list[list[int]]
    after: list[list[int]]


def draw(rng: random.Random) -> Trial:
    while True:
        experts, n, k = rng.randint(2, 160), 8 * rng.randint(1, 500), 8 * rng.randint(1, 500)
        if experts * n * k <= _MOST_WEIGHTS:
            break
    means = [min(rng.choice(ROWS), _MOST_ROWS // experts) for _ in range(3)]

    def counts(mean: int) -> list[int]:
        return [0 if rng.random() < 0.2 else rng.randint(0, mean) for _ in range(experts)]

    return Trial(
        dtype=rng.choice(DTYPES),
        n=n,
        k=k,
        columns_first=rng.random() < 0.7,
        kept=counts(means[0]),
        before=[counts(mean) for mean in means[1:]],
        after=[counts(mean) for mean in means[1:]],
    )


def rows_that_differ(trial: Trial, generator: torch.Generator) -> tuple[int, list[str]]:
    """Returns how many rows have other bits in the second product, and the kernels of both."""
    dtype, experts = getattr(torch, trial.dtype), len(trial.kept)

    def values(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device).to(dtype)

    w = values(experts, trial.n, trial.k).mT if trial.columns_first else values(experts, trial.k, trial.n)
    kept = values(sum(trial.kept), trial.k).split(trial.kept)
    results, kernels = [], []
    for before, after in zip(trial.before, trial.after, strict=True):
        parts = [
            part
            for i, rows in enumerate(kept)
            for part in (values(before[i], trial.k), rows, values(after[i], trial.k))
        ]
        counts = [b + len(rows) + a for b, rows, a in zip(before, kept, after, strict=True)]
        offs = torch.tensor(counts, device=generator.device).cumsum(0, dtype=torch.int32)
        with use_custom_gemm(numerics="batch_invariant") as report:
            out = torch._grouped_mm(torch.cat(parts), w, offs=offs)
        kernels += [row.variant for row in report.rows]
        results.append(torch.cat(out.split([part.size(0) for part in parts])[1::3]))
    first, second = (result.contiguous().view(torch.uint8) for result in results)
    return int((first != second).any(1).sum()), kernels


@click.command(help=__doc__)
@click.option("--rows", "wanted", default=10**6, show_default=True, help="Compare so many rows.")
@click.option("--seed", default=0, show_default=True)
@click.option("--seconds", type=float, help="Start no trial after so long.")
@click.option("--output", type=click.Path(path_type=Path), help="The result file.")
def main(wanted: int, seed: int, seconds: float | None, output: Path | None) -> None:
    output = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "stress_grouped")
    rng, start = random.Random(seed), time.monotonic()
    generator = torch.Generator("cuda").manual_seed(seed)
    compared, trials, by_kernel = 0, 0, Counter[str]()
    violations: list[dict[str, Any]] = []
    while compared < wanted and (seconds is None or time.monotonic() < start + seconds):
        trial = draw(rng)
        if sum(trial.kept) == 0:
            continue
        wrong, kernels = rows_that_differ(trial, generator)
        trials, compared = trials + 1, compared + sum(trial.kept)
        by_kernel.update(kernels)
        if wrong:
            violations.append({"rows": wrong, "kernels": kernels, "trial": str(trial)})
    different = sum(found["rows"] for found in violations)
    click.echo(f"{trials} trials, {compared} rows compared, {different} differ; kernels: {dict(by_kernel)}")
    for found in violations[:10]:
        click.echo(str(found)[:400])
    record.save(
        record.document(
            seed=seed, trials=trials, rows=compared, different=different, kernels=by_kernel, violations=violations
        ),
        output,
    )
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
