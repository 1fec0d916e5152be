"""Times the ladder on the shapes of its course and writes ``results/<gpu>/ladder_<group>.json`` for each GROUP.

The default is all groups.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own path has its directory alone

from benchmarks.course import measure  # noqa: E402
from benchmarks.course.rungs import FAMILIES  # noqa: E402
from hgemm_ops.bench import console, record, runner  # noqa: E402
from hgemm_ops.bench.suites import SUITES, Case  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
# Some of the shapes behind the published ratios, of every size: with all of them the naive kernels take an hour. The
# small ones make up one published table, and the large ones complete the cubes of the other groups.
_SMALL = ((1024, 1024, 1024), (1024, 2048, 256), (4096, 4096, 256), (4096, 4096, 512), (4096, 4096, 1024))
_LARGE = ((4096, 4096, 2048), (16384, 4096, 2048), (4096, 16384, 4096))


def cube(size: int) -> list[tuple[str, Case]]:
    families = [family for family in FAMILIES if family != "elementwise"]
    return [
        (family, Case(size, size, size, dtype="float32" if family == "sgemm" else "float16")) for family in families
    ]


GROUPS: dict[str, list[tuple[str, Case]]] = {
    "4096": [*(("elementwise", case) for case in measure.default_cases("elementwise")), *cube(4096)],
    "8192": cube(8192),
    "seeds": [
        *(("elementwise", case) for case in SUITES["seeds-add"]),
        *(("sgemm", case) for case in SUITES["seeds-sgemm"]),
        *((family, Case(*shape)) for family in ("hgemm", "wmma") for shape in _SMALL + _LARGE),
    ],
}


@click.command(help=__doc__)
@click.argument("groups", nargs=-1, type=click.Choice(list(GROUPS)))
@click.option("--rounds", type=click.IntRange(min=5), default=20, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    help="A step whose passes would take longer has fewer of them.",
)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Another directory for the files.")
def main(groups: tuple[str, ...], rounds: int, seconds: float, output: Path | None) -> None:
    console.require_kernels("benchmarks/ladder.py")
    directory = output or RESULTS / record.gpu_slug(torch.cuda.get_device_name())
    options, copy, screen = measure.Options(rounds, seconds), runner.copy_gbps(), Console(soft_wrap=True)
    wrong = []
    for group in groups or GROUPS:
        tables = []
        for table in measure.run(GROUPS[group], options):
            tables.append(table)
            wrong += [f"{table.family} {table.case.label}, {name}: {text}" for name, text in table.wrong.items()]
        record.save(measure.document(tables, options, copy), record.path(directory, f"ladder_{group}"))
        screen.print(f"{group}: {len(tables)} tables, {sum(len(table.contenders) for table in tables)} lines")
    if wrong:
        raise click.ClickException("wrong results, not timed:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
