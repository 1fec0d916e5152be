"""The command ``hgemm report``: the committed results as one page."""

from __future__ import annotations

import json
from pathlib import Path

import click

from benchmarks.report import page
from hgemm_ops.bench import record

_RESULTS = Path(__file__).resolve().parents[1] / "results"
_COURSE = "ladder.md"  # beside the directories of results


def _default_results() -> Path:
    """The checkout's results of the GPU on which the most was measured."""
    found = record.directories(_RESULTS)
    if not found:
        raise click.UsageError(f"--results: name a directory of result files, {_RESULTS} has none")
    return found[0]


@click.command("report", short_help="Write the results as one page with charts.")
@click.option(
    "--results",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Result files of one GPU.  [default: the checkout's, of the GPU that most was measured on]",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("hgemm-report.html"),
    show_default=True,
    help="The page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the charts show instead, as JSON.")
def report(results: Path | None, output: Path, as_json: bool) -> None:
    """Write the committed results as one static page.

    It shows the speed over torch by shape and suite, losses first; a roofline; decoding; whole models; and the ladder's
    course. The page loads nothing from a network. Needs vl-convert-python.
    """
    results = results or _default_results()
    try:
        documents = page.read(results)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(page.data(documents), ensure_ascii=False, indent=1))
        return
    course = results.parent.parent / _COURSE
    try:
        text = page.page(documents, course if course.is_file() else None)
    except ModuleNotFoundError:
        raise click.ClickException(page.MISSING) from None
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, "utf-8")
    click.echo(f"wrote {output} ({len(text.encode()) / 1e6:.1f} MB)")
