"""Measures what ``use_custom_gemm(tune=True)`` chooses on random shapes: ``results/<gpu>/tuned.json.xz``.

The shapes are in no tuning table, and are drawn like those of the suite ``random``. The first matmul of a shape in such
a context tunes it. Then torch, the kernels that may be the fastest, and the chosen kernel are timed as in that suite.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
import torch

import hgemm_ops
from hgemm_ops.bench import console, record, sampling, survey, survey_figures, timing

RESULTS = Path(__file__).parent / "results"


@torch.inference_mode()  # survey's buffers are inference tensors
def tuned_choice(x: survey.Set) -> tuple[survey.Choice, float]:
    """The choice after a matmul of these operands has tuned its shape, and the seconds that this took."""
    begin = time.perf_counter()
    with hgemm_ops.use_custom_gemm(tune=True):
        survey.torch_call(x).cpu()
    seconds = time.perf_counter() - begin
    chosen = hgemm_ops.explain(x.a, x.b)
    return survey.Choice(chosen.chosen, chosen.source), seconds


def rows(
    planned: Sequence[survey.Planned], memory: survey.Memory, options: survey.Options
) -> Iterator[tuple[survey.Row, float]]:
    """Each shape with the choice that tuning made, and the seconds that tuning took."""
    for one in planned:
        (x,), _ = memory.sets(one.case, 1)
        choice, seconds = tuned_choice(x)
        ours = [choice.served_by] if choice.served_by != survey.TORCH else []
        measured = survey.measure(one.case, list(dict.fromkeys([*one.names, *ours])), memory, options, ours)
        yield survey.Row(replace(one, choices={"": choice}), measured), seconds


@click.command()
@click.option("--count", type=click.IntRange(min=1), default=300, show_default=True, help="Shapes.")
@click.option("--seed", type=int, help="Of the shapes.  [default: a new one]")
@console.soak_option
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(count: int, seed: int | None, soak: float, output: Path | None) -> None:
    console.require_kernels("benchmarks/tuned.py")
    seed = sampling.new_seed() if seed is None else seed
    options, device = survey.Options(), torch.device("cuda", torch.cuda.current_device())
    planned = survey.plan(sampling.off_table(seed, count), options)
    with hgemm_ops.use_custom_gemm():  # compiles the override if there is none for this torch
        torch.ones(8, 8, device=device, dtype=torch.float16).mm(torch.ones(8, 8, device=device, dtype=torch.float16))
    timing.soak(soak, device)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HGEMM_OPS_CACHE_DIR"] = scratch  # uses no shapes that were tuned before, and leaves none behind
        found, seconds = zip(*rows(planned, survey.Memory(device, options.seed), options), strict=True)
    document = survey.document("tuned", seed, planned, found, options, soak)
    document["milliseconds"] = {"median": 1e3 * median(seconds), "most": 1e3 * max(seconds)}
    path = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "tuned")
    record.save(document, path)
    figures = survey_figures.figures(survey_figures.scored(document["shapes"]))
    assert figures is not None
    click.echo(
        f"{figures.shapes} shapes: choice over torch {figures.choice:.4f}, over best "
        f"{figures.choice / figures.best:.4f}, slowdown against the best at the 95th percentile "
        f"{figures.slowdown_95:.1%}, below {survey_figures.LOSS} {figures.losses}, worst {figures.worst:.3f}; "
        f"{document['milliseconds']['median']:.0f} ms a shape; recorded in {path}"
    )


if __name__ == "__main__":
    main()
