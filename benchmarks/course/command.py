"""The command ``hgemm ladder``: times the steps from a naive kernel to the fastest one after the other."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.course import measure
from benchmarks.course.rungs import FAMILIES
from hgemm_ops.bench import console, record, runner
from hgemm_ops.bench.suites import SUITES, Case, parse_shapes
from hgemm_ops.ops import ladder as kernels

_SUITES = sorted({suite for family in FAMILIES for suite in measure.suites_of(family)})


def _cases(families: tuple[str, ...], suites: tuple[str, ...], shapes: str | None) -> list[tuple[str, Case]]:
    """Each family with its default shapes, or with the requested suites and shapes that it can compute."""
    if not suites and not shapes:
        return [(family, case) for family in families for case in measure.default_cases(family)]
    asked = [case for suite in suites for case in SUITES[suite]]
    if shapes:
        try:
            for dtype in ("float32", "float16"):
                asked += parse_shapes(shapes, dtype=dtype, layouts=("NN",))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--shapes") from None
    cases = [(family, case) for family in families for case in dict.fromkeys(asked) if measure.serves(family, case)]
    if not cases:
        raise click.UsageError(f"{', '.join(families)}: has none of these shapes; suites: {', '.join(_SUITES)}")
    return cases


@click.command("ladder", short_help="Time the ladder's steps, from naive to fastest.")
@click.option(
    "--family",
    "families",
    type=click.Choice(list(FAMILIES)),
    multiple=True,
    help="Repeatable.  [default: all]",
)
@click.option("--shapes", metavar="MxNxK,...", help="Matmuls to time.  [default: 4096x4096x4096]")
@click.option("--suite", "suites", type=click.Choice(_SUITES), multiple=True, help="A suite to time; repeatable.")
@click.option(
    "--swizzle",
    type=click.IntRange(min=1),
    help="Columns of a panel, for steps that walk C in panels.  [default: N/4]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    help="A step whose passes would take longer has fewer of them, but at least 5.",
)
@console.measuring_options("Draw the speed of each step here, one file for each family, and the roofline, as SVG.")
def ladder(
    families: tuple[str, ...],
    shapes: str | None,
    suites: tuple[str, ...],
    swizzle: int | None,
    rounds: int,
    seconds: float,
    inputs: str,
    seed: int | None,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Time every step of the ladder, and torch and cuBLAS beside them.

    Every step is checked against float64 first. Steps run interleaved, from CUDA graphs, over buffers that do not fit
    the L2. (+x%) is what a line adds to the best of the lines above it. Ends with status 1 if a result was wrong.
    """
    cases = _cases(families or tuple(FAMILIES), suites, shapes)
    console.require_kernels("hgemm ladder")
    if not kernels.is_built():
        raise click.ClickException("the ladder's library was not built: install with HGEMM_LADDER=1")
    if plot_path:
        from benchmarks.course import plots  # before the measurement: matplotlib may be missing

    options = measure.Options(rounds=rounds, seconds=seconds, swizzle=swizzle, seed=seed or 0, inputs=inputs)
    screen = Console(soft_wrap=True, highlight=False)
    copy = runner.copy_gbps()
    tables = []
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        names = [f"{family} {case.label}" for family, case in cases]
        progress.update(task, description=names[0])
        for i, table in enumerate(measure.run(cases, options), 1):
            tables.append(table)
            for line in measure.lines(table, copy):
                screen.print(line, markup=False)
            progress.update(task, completed=i, description=names[i] if i < len(names) else "")
    document = measure.document(tables, options, copy)
    if json_path:
        record.save(document, json_path)
    if plot_path:
        for path in plots.draw(document, plot_path):
            screen.print(f"wrote {path}")
    wrong = [f"{table.family} {table.case.label}, {n}: {text}" for table in tables for n, text in table.wrong.items()]
    if wrong:
        raise click.ClickException("wrong results, not timed:\n" + "\n".join(wrong))
