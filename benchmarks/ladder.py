"""Times the ladder on the shapes of its course: ``results/<gpu>/ladder_<group>.json`` for each GROUP (default: all)."""

from __future__ import annotations

from pathlib import Path

import click
import torch
from rich.console import Console

from hgemm_ops.bench import console, ladder, record, runner
from hgemm_ops.bench.rungs import FAMILIES
from hgemm_ops.bench.suites import SUITES, Case

RESULTS = Path(__file__).parent / "results"
# Of the shapes behind the published ratios, some of every size: all of them take an hour of naive kernels. The small
# ones are those of a whole published table; the large ones go with the cubes of the other groups.
_SMALL = ((1024, 1024, 1024), (1024, 2048, 256), (4096, 4096, 256), (4096, 4096, 512), (4096, 4096, 1024))
_LARGE = ((4096, 4096, 2048), (16384, 4096, 2048), (4096, 16384, 4096))


def cube(size: int) -> list[tuple[str, Case]]:
    families = [family for family in FAMILIES if family != "elementwise"]
    return [
        (family, Case(size, size, size, dtype="float32" if family == "sgemm" else "float16")) for family in families
    ]


GROUPS: dict[str, list[tuple[str, Case]]] = {
    "4096": [*(("elementwise", case) for case in ladder.default_cases("elementwise")), *cube(4096)],
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
@click.option("--seconds", type=click.FloatRange(min=0), default=0.1, show_default=True, help="For a step's passes.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Another directory for the files.")
def main(groups: tuple[str, ...], rounds: int, seconds: float, output: Path | None) -> None:
    console.require_kernels("benchmarks/ladder.py")
    directory = output or RESULTS / record.gpu_slug(torch.cuda.get_device_name())
    options, copy, screen = ladder.Options(rounds, seconds), runner.copy_gbps(), Console(soft_wrap=True)
    wrong = []
    for group in groups or GROUPS:
        tables = []
        for table in ladder.run(GROUPS[group], options):
            tables.append(table)
            wrong += [f"{table.family} {table.case.label}, {name}: {text}" for name, text in table.wrong.items()]
        record.save(ladder.document(tables, options, copy), record.path(directory, f"ladder_{group}"))
        screen.print(f"{group}: {len(tables)} tables, {sum(len(table.steps) for table in tables)} lines")
    if wrong:
        raise click.ClickException("wrong results, not timed:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
