"""Corrects a tuned table (default: the shipped one) by ``results/<GPU>``: a kernel that ``run.py`` saw chosen counts
with the slower of its ratios to torch. Why: ``hgemm_ops/_bench/confirm.py``."""

from __future__ import annotations

from pathlib import Path

import click

from hgemm_ops._bench.confirm import confirm

RESULTS = Path(__file__).parent / "results"


@click.command(help=__doc__)
@click.argument("gpu", default="h200")
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
def main(gpu: str, table: Path | None) -> None:
    path, choices = confirm(table, gpu, RESULTS / gpu)
    click.echo(f"{choices} choices of {gpu} in {path}")


if __name__ == "__main__":
    main()
