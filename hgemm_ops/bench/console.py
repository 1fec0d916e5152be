"""Options, checks and tables of ``hgemm bench``, ``hgemm tune`` and the scripts in ``benchmarks/``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import hgemm_ops
from hgemm_ops import _library, _native, _variants

from . import peers, runner, sampling, survey, survey_figures, workload, zoo
from .statistics import geometric_mean
from .suites import Case

_WIDTH_OF_FILES = 240


def require_kernels(command: str) -> None:
    """Ends the command with an error where no kernel of ours can be timed.

    Raises:
        click.ClickException: there is no CUDA GPU, or this package has no kernels for it.
    """
    if not torch.cuda.is_available():
        raise click.ClickException(f"{command} times kernels on a CUDA GPU, and torch {torch.__version__} finds none")
    if not _library.load():
        raise click.ClickException(f"{command} times this package's kernels, which cannot run: {_library.reason()}")
    if fault := _native.device_fault(torch.cuda.current_device()):
        raise click.ClickException(f"{command} times this package's kernels, which cannot run: {fault}")


def known_variants(names: Sequence[str]) -> tuple[str, ...]:
    """Returns ``names`` without duplicates, or only "all" if it is among them.

    Raises:
        click.BadParameter: no kernel has one of the names.
    """
    known = [v.name for v in hgemm_ops.variants()]
    for name in names:
        if name != runner.ALL and name not in known:
            raise click.BadParameter(f"unknown kernel {name!r}; available: {', '.join(known) or 'none'}")
    return (runner.ALL,) if runner.ALL in names else tuple(dict.fromkeys(names))


def known_peers(names: Sequence[str]) -> tuple[str, ...]:
    """Returns ``names`` without duplicates, or all peers if "all" is among them."""
    return peers.NAMES if runner.ALL in names else tuple(dict.fromkeys(names))


peer_option = click.option(
    "--peer",
    "peer_names",
    multiple=True,
    type=click.Choice([*peers.NAMES, runner.ALL]),
    help="Also time another library, with its best configuration for each shape; repeatable.",
)

float32_option = click.option(
    "--float32",
    type=click.Choice(_native.FLOAT32),
    help="How float32 is multiplied.  [default: HGEMM_OPS_FLOAT32, or strict]",
)

numerics_option = click.option(
    "--numerics",
    type=click.Choice(_native.NUMERICS),
    help="Which guarantee results must give; fast is timed beside any other.  [default: HGEMM_OPS_NUMERICS, or fast]",
)

soak_option = click.option(
    "--soak",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="First run large matmuls for so long: a warm chip clocks lower, and other kernels are the fastest.",
)

warmup_option = click.option(
    "--warmup",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Run the contenders of a shape for so long before they are timed: an idle chip gives other ratios.",
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def set_modes(numerics: str | None, float32: str | None) -> str:
    """Makes the modes that were asked for the defaults of this process; None leaves a default as it is.

    Returns what the names of result files end with: "-<mode>" for each default that is neither fast nor strict.
    """
    if numerics is not None:
        _native.check(_native.lib().hgemm_set_default_numerics(_native.NUMERICS.index(numerics)))
    if float32 is not None:
        _native.check(_native.lib().hgemm_set_default_float32(_native.FLOAT32.index(float32)))
    standing = _variants.standing_numerics(), workload.standing_float32()
    return "".join(f"-{mode}" for mode in standing if mode not in ("fast", "strict"))


def _all(options: Sequence[Callable[[_Command], _Command]]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def survey_options() -> Callable[[_Command], _Command]:
    """The options of the suites ``random`` and ``zoo``: ``count``, ``models``, ``candidates``, ``limit``."""
    return _all(
        (
            click.option(
                "--count",
                type=click.IntRange(min=1),
                default=1000,
                show_default=True,
                help="With random, and with zoo unless numerics are fast: the number of shapes.",
            ),
            click.option(
                "--model",
                "models",
                type=click.Choice(list(zoo.MODELS)),
                multiple=True,
                help="With zoo: only this model; repeatable.",
            ),
            click.option(
                "--candidates",
                type=click.IntRange(min=1),
                help="With random and zoo: time only so many kernels for each shape, by predicted time.",
            ),
            click.option(
                "--limit",
                type=click.FloatRange(min=0),
                metavar="SECONDS",
                help="With random and zoo: start no new shape after so long; the next run continues with the rest.",
            ),
        )
    )


def measuring_options(plot_help: str) -> Callable[[_Command], _Command]:
    """The options of all commands that measure: ``rounds``, ``inputs``, ``seed``, ``json_path``, ``plot_path``."""
    path = click.Path(dir_okay=False, path_type=Path)
    inputs = click.Choice(["normal", "uniform"])
    options = (
        click.option(
            "--rounds",
            type=click.IntRange(min=5),
            default=40,
            show_default=True,
            help="How often each contender is timed.",
        ),
        click.option("--inputs", type=inputs, default="normal", show_default=True),
        click.option(
            "--seed", type=int, help="Of the inputs, and of random's shapes.  [default: 0, and a new one for random]"
        ),
        click.option("--json", "json_path", type=path, help="Write the results to this file."),
        click.option("--plot", "plot_path", type=path, help=plot_help),
    )

    return _all(options)


def screen(stderr: bool = False) -> Console:
    """Returns a console. In a file or a pipe it has room for whole tables, and not 80 columns."""
    made = Console(stderr=stderr)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _WIDTH_OF_FILES
    return made


def report_peers(names: Sequence[str], console: Console) -> None:
    """Prints the version of each peer, or why it is not available. Called before the measurement."""
    for name, version in peers.versions(names).items():
        console.print(f"{name}: {version}", markup=False, highlight=False)


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, transient=True)


def survey_rows(
    suite: str,
    options: survey.Options,
    console: Console,
    seed: int | None,
    count: int,
    models: Sequence[str],
    limit: float | None,
    soak: float,
    journal_path: Path | None,
) -> tuple[int, list[survey.Planned], list[survey.Row]]:
    """Runs a survey under a progress bar.

    Without a seed, the journal's unfinished run is continued. If there is none, a new seed is drawn.

    Returns:
        The seed, all planned shapes, and the rows that have been measured.
    """
    if suite != "zoo" and seed is None:
        asked = survey.header_of(suite, 0, count, options)
        seed = survey.unfinished_seed(journal_path, asked)
        seed = sampling.new_seed() if seed is None else seed
    seed = seed or 0
    planned = survey.plan(survey.cases_of(suite, seed, count, models, options.rows, options.sizes), options)
    journal = survey.Journal(journal_path, survey.header_of(suite, seed, len(planned), options))
    rows = []
    try:
        with _progress(console) as progress:
            task = progress.add_task(f"{suite}, seed {seed}", total=len(planned))
            for row in survey.run(planned, options, journal, limit, soak):
                rows.append(row)
                progress.update(task, completed=len(rows), description=row.planned.case.label)
    finally:
        journal.close()
    return seed, planned, rows


def survey_table(document: Mapping[str, Any]) -> Table:
    """The figures of a survey as a table: for all shapes, by M, by layout, and for ``zoo`` by model."""
    of = f"{len(document['shapes'])} of {document['planned']} shapes"
    table = Table(title=f"{document['survey']}: {of}", header_style="bold")
    for i, heading in enumerate(("", *survey_figures.HEADINGS)):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for line in survey_figures.lines(document):
        table.add_row(*line)
    return table


def survey_wrong(document: Mapping[str, Any]) -> list[str]:
    """One line for each kernel whose result was wrong."""
    return [
        f"{survey_figures.label(row)}, {name}: {text}"
        for row in document["shapes"]
        for name, text in row.get("wrong", {}).items()
    ]


def run_with_progress(
    cases: Sequence[Case],
    options: runner.Options,
    console: Console,
    on_row: Callable[[runner.Row], None] = lambda row: None,
) -> list[runner.Row]:
    """Runs the cases under a progress bar that names the current one. Each result is passed to ``on_row``."""
    rows = []
    with _progress(console) as progress:
        task = progress.add_task(cases[0].label, total=len(cases))
        for i, row in enumerate(runner.run(cases, options), 1):
            rows.append(row)
            on_row(row)
            progress.update(task, completed=i, description=cases[i].label if i < len(cases) else "")
    return rows


def _mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.1f}"


def comparison(rows: Sequence[runner.Row], title: str) -> Table:
    """A table with one line for each contender of each case."""
    table = Table(title=title, header_style="bold")
    table.add_column("case", no_wrap=True)
    table.add_column("contender", no_wrap=True)
    headings = ["torch µs", "µs", "ratio", "95 %", "TFLOP/s", "GB/s", "error", "torch's", "peak MiB", "torch's"]
    streamed = any(runner.STREAM in row.results for row in rows)
    for heading in [*headings, "of stream"] if streamed else headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        base = row.results[runner.TORCH]
        torch_us = f"{base.us:.1f}" if base.us else "-"
        for name, result in row.results.items():
            if name == runner.TORCH and len(row.results) > 1 and not result.wrong:
                continue
            by = f"{name}: {row.served_by}" if name == runner.DISPATCHED else name
            if result.configuration:
                by = f"{name}: {result.configuration}"
            if text := result.wrong or result.refused:
                table.add_row(row.case.label, by, torch_us, f"[red]{'wrong' if result.wrong else 'refused'}[/]: {text}")
                continue
            assert result.us is not None
            if name == runner.STREAM:
                table.add_row(row.case.label, by, torch_us, f"{result.us:.1f}", "", "", "", f"{result.gbps:.0f}")
                continue
            ratio = result.ratio
            table.add_row(
                row.case.label,
                by,
                torch_us,
                f"{result.us:.1f}",
                f"[{'green' if ratio.value >= 1 else 'red'}]{ratio.value:.3f}[/]" if ratio else "",
                f"{ratio.low:.3f}-{ratio.high:.3f}" if ratio else "",
                f"{result.tflops:.1f}",
                f"{result.gbps:.0f}",
                f"{result.error:.1e}",
                f"{base.error:.1e}" if base.error is not None else "-",
                _mebibytes(result.peak_bytes),
                _mebibytes(base.peak_bytes),
                *([f"{result.of_stream.value:.3f}"] if result.of_stream else []),
            )
    return table


def against_peers(rows: Sequence[runner.Row], names: Sequence[str], title: str) -> Table:
    """A table with one line for each case, which compares us with the peers.

    Its columns are the speed over torch of our choice and of each peer, our speed over the fastest peer, and the name
    of the fastest peer.
    """
    table = Table(title=f"{title}: speed over torch", header_style="bold")
    table.add_column("case", no_wrap=True)
    for heading in (runner.DISPATCHED, *names, "ours / best", "best"):
        table.add_column(heading, justify="left" if heading == "best" else "right", no_wrap=True)

    def speed(row: runner.Row, name: str) -> str:
        result = row.results.get(name)
        if result is None or result.wrong:
            return "wrong" if result else "-"
        return f"{result.ratio.value:.3f}" if result.ratio else "-"

    for row in rows:
        best = row.best_peer
        ours = row.results[best].ours if best else None
        table.add_row(
            row.case.label,
            speed(row, runner.DISPATCHED),
            *(speed(row, runner.PEER + name) for name in names),
            f"[{'green' if ours.value >= 1 else 'red'}]{ours.value:.3f}[/]" if ours else "-",
            best.removeprefix(runner.PEER) if best else "-",
        )
    return table


def summary(rows: Sequence[runner.Row]) -> str:
    """Sums up the dispatcher's choices: "52 cases: 1.010x torch (geometric mean), ...". "" where none was timed."""
    timed = [(row, result.ratio) for row in rows if (result := row.results.get(runner.DISPATCHED)) and result.ratio]
    if not timed:
        return ""
    ours = sum(row.served_by != runner.TORCH for row, _ in timed)
    slower = sum(ratio.high < 1 for _, ratio in timed)
    mean = geometric_mean([ratio.value for _, ratio in timed])
    text = f"{len(timed)} cases: {mean:.3f}x torch (geometric mean), {ours} run on our kernels, {slower} slower"
    streams = [result.of_stream.value for row, _ in timed if (result := row.results[runner.DISPATCHED]).of_stream]
    if streams:
        text += f"; {geometric_mean(streams):.3f} of the speed of reading the weights in {len(streams)}"
    paired = [result.ours for row in rows if row.best_peer and (result := row.results[row.best_peer]).ours]
    if paired:
        over_best = geometric_mean([ratio.value for ratio in paired])
        behind = sum(ratio.high < 1 for ratio in paired)
        text += f"; {over_best:.3f}x the best peer of each of {len(paired)} cases, slower than it in {behind}"
    return text


def fail_if_wrong(rows: Sequence[runner.Row], more: Sequence[str] = ()) -> None:
    """Ends the command with status 1 if a contender gave a wrong result.

    ``more`` has lines on further wrong results, which surveys found.
    """
    wrong = [f"{row.case.label}, {name}: {text}" for row in rows for name, text in row.wrong.items()] + list(more)
    if wrong:
        raise click.ClickException("wrong results, not timed:\n" + "\n".join(wrong))
