"""What ``use_custom_gemm(tune=True)`` chooses on random shapes, beside the best kernel: ``results/<gpu>/tuned.json``.

Every shape is off the tables, and drawn as those of the suite ``random``. Its first product in such a context tunes it;
then torch, the kernels that may be the fastest and the one that was chosen are timed as that suite times them.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
import torch

import hgemm_ops
from hgemm_ops.bench import console, record, sampling, survey, survey_figures, timing

RESULTS = Path(__file__).parent / "results"


def tuned_choice(x: survey.Set) -> tuple[survey.Choice, float]:
    """What is chosen once a product of these operands has tuned its shape, and the seconds that took."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with hgemm_ops.use_custom_gemm(tune=True):
        survey.torch_call(x)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    chosen = hgemm_ops.explain(x.a, x.b)
    return survey.Choice(chosen.chosen, chosen.source), seconds


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
    memory, rows, seconds = survey.Memory(device, options.seed), [], []
    with hgemm_ops.use_custom_gemm():  # compiles the override where it has to
        torch.ones(8, 8, device=device, dtype=torch.float16).mm(torch.ones(8, 8, device=device, dtype=torch.float16))
    timing.soak(soak, device)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HGEMM_OPS_CACHE_DIR"] = scratch  # nobody else's tuned shapes, and none left behind
        for one in planned:
            (x,), _ = memory.sets(one.case, 1)
            choice, took = tuned_choice(x)
            ours = [choice.served_by] if choice.served_by != survey.TORCH else []
            names = dict.fromkeys([*one.names, *ours])
            measured = survey.measure(one.case, list(names), memory, options, ours)
            rows.append(survey.Row(replace(one, choices={"": choice}), measured))
            seconds.append(took)
    document = survey.document("tuned", seed, planned, rows, options, soak)
    document |= {"seed": seed, "milliseconds": {"median": 1e3 * median(seconds), "most": 1e3 * max(seconds)}}
    path = output or RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "tuned.json"
    record.save(document, path)
    found = survey_figures.figures(survey_figures.scored(document["shapes"]))
    assert found is not None
    click.echo(
        f"{found.shapes} shapes: choice over torch {found.choice:.4f}, over best {found.choice / found.best:.4f}, "
        f"regret at the 95th percentile {found.regret_95:.1%}, below 0.97 {found.losses}, worst {found.worst:.3f}; "
        f"{document['milliseconds']['median']:.0f} ms a shape; recorded in {path}"
    )


if __name__ == "__main__":
    main()
