"""Runs suites and writes ``results/<gpu>/<suite>.json``: ``python benchmarks/run.py [--variant all] [SUITE...]``

The file's name contains the modes that were asked for (``float32-split.json``). ``random`` and, in fast numerics,
``zoo`` also write every shape to ``<suite>.jsonl`` as soon as it is measured. The next run after ``--limit`` continues
from there.
"""

from __future__ import annotations

from pathlib import Path

import click
import torch

from hgemm_ops.bench import console, record, runner, survey
from hgemm_ops.bench.suites import ELEMENT_BYTES, SUITES, with_dtype

RESULTS = Path(__file__).parent / "results"
_ZOO_ROWS = 4096  # the largest M where zoo's shapes are timed like those of other suites


@click.command(
    help="Runs SUITEs (default: all but random and zoo) and writes results/<gpu>/<suite>.json beside this script."
)
@click.argument("suites", nargs=-1, type=click.Choice([*SUITES, *survey.NAMES]))
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="Also time this kernel alone; or 'all'.")
@console.peer_option
@click.option(
    "--dtype", type=click.Choice(list(ELEMENT_BYTES)), help="Instead of the suites' own; <suite>-<dtype>.json."
)
@console.numerics_option
@console.float32_option
@click.option("--rounds", type=click.IntRange(min=5), default=40, show_default=True)
@console.soak_option
@console.warmup_option
@console.survey_options()
@click.option("--seed", type=int, help="Of random's shapes.  [default: a new one, or that of a run to go on with]")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Another directory for the files.")
def main(
    suites: tuple[str, ...],
    variants: tuple[str, ...],
    peer_names: tuple[str, ...],
    dtype: str | None,
    numerics: str | None,
    float32: str | None,
    rounds: int,
    soak: float,
    warmup: float,
    count: int,
    models: tuple[str, ...],
    candidates: int | None,
    limit: float | None,
    seed: int | None,
    output: Path | None,
) -> None:
    console.require_kernels("benchmarks/run.py")
    modes = console.set_modes(numerics, float32)
    surveyed = [name for name in suites if name in survey.NAMES]
    if "batch_invariant" in modes:
        if "random" in surveyed:
            raise click.UsageError("random times the kernels of fast numerics alone")
        surveyed = []  # zoo is timed like the other suites, to compare the dispatcher's choices in both modes
    directory = output or RESULTS / record.gpu_slug(torch.cuda.get_device_name())
    options = runner.Options(
        variants=console.known_variants(variants),
        peers=console.known_peers(peer_names),
        soak=soak,
        warmup=warmup,
        rounds=rounds,
    )
    screen = console.screen()
    console.report_peers(options.peers, screen)
    every: list[runner.Row] = []
    wrong: list[str] = []
    for suite in surveyed:
        asked, journal_path = survey.Options(candidates=candidates), directory / f"{suite}.jsonl"
        drawn, planned, measured = console.survey_rows(
            suite, asked, screen, seed, count, models, limit, soak, journal_path
        )
        document = survey.document(suite, drawn, planned, measured, asked, soak)
        record.save(document, record.path(directory, suite))
        screen.print(console.survey_table(document))
        wrong += console.survey_wrong(document)
    fixed = [name for name in suites or SUITES if name not in surveyed]
    copy = runner.copy_gbps() if fixed else 0.0
    for suite in fixed:
        if suite == "zoo":
            cases = tuple(case for case in survey.cases_of(suite, 0, 0, models) if case.m <= _ZOO_ROWS)[:count]
        else:
            cases = with_dtype(SUITES[suite], dtype) if dtype else SUITES[suite]
        rows = console.run_with_progress(cases, options, screen)
        name = suite + f"-{dtype}" * (dtype is not None) + modes
        record.save(runner.document(name, rows, options, copy), record.path(directory, name))
        screen.print(f"{name}: {console.summary(rows) or f'{len(rows)} cases'}")
        every += rows
    console.fail_if_wrong(every, wrong)


if __name__ == "__main__":
    main()
