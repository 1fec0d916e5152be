"""Draws the plots that the pages show, in ``results/<gpu>/plots``.

They are ``kinds``, ``map``, ``<suite>-ratio.svg``, ``decode``, ``train``, ``float32-errors``, ``in-order-errors``, and
the ladder's plots that its course links. With ``--all`` it also draws every suite's roofline, ``llm-bandwidth``, and
each family of the ladder, ``ladder-<group>-{<family>,roofline}``. ``hgemm report`` shows the same in one page.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own path has its directory alone

from benchmarks import figures  # noqa: E402
from benchmarks.course import plots as ladder_plots  # noqa: E402
from benchmarks.kinds import by_kind  # noqa: E402
from hgemm_ops.bench import plots, record  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
#: What benchmarks/ladder.md links.
COURSE = ("ladder-4096-roofline", "ladder-4096-roofline-dram", "ladder-seeds-elementwise")


def profiled_traffic(directory: Path) -> dict[tuple[str, int], float]:
    """FLOP per byte of DRAM traffic by step and number of rows, from a GPU's ``ladder_ncu``."""
    profile = record.files(directory).get("ladder_ncu")
    if profile is None:
        return {}
    entries = record.load(profile)["ncu"]
    return {(e["name"], e["size"]): e["flop_per_dram_byte"] for e in entries if e["flop_per_dram_byte"]}


def draw_kinds(directory: Path) -> list[Path]:
    """Draws the speeds over torch by the kind of matmul, if a GPU has results of two kinds or more."""
    documents = {name: record.load(path) for name, path in record.files(directory).items()}
    kinds = by_kind(documents)
    if len(kinds) < 2:
        return []
    facts = max((d["environment"] for d in documents.values() if "suite" in d), key=lambda facts: facts["date"])
    of = f"{facts['gpu']}, torch {facts['torch']} (number of shapes in parentheses)"
    return [figures.speed_by_kind(kinds, of, directory / "plots" / "kinds")]


def draw_all(results: Path, every: bool = True) -> list[Path]:
    """Draws the kinds of matmuls, decoding, the ladder, and each suite in which the dispatcher's choice was timed.

    Without ``every``, only the plots that the pages show. Returns the files that were written.
    """
    only = None if every else COURSE
    written = [path for directory in record.directories(results) for path in draw_kinds(directory)]
    for name, path in (found for directory in record.directories(results) for found in record.files(directory).items()):
        document = record.load(path)
        if document.get("ladder"):
            traffic = profiled_traffic(path.parent) if name.endswith("_4096") else None
            written += ladder_plots.draw(document, path.parent / "plots" / name.replace("_", "-"), traffic, only)
        if "float32_errors" in document:
            written.append(figures.error_by_depth(document, path.parent / "plots" / "float32-errors"))
        if "in_order_errors" in document:
            written.append(figures.error_of_sums(document, path.parent / "plots" / "in-order-errors"))
        if "map" in document:
            written.append(figures.share_of_bound(document, path.parent / "plots" / "map"))
        if "train" in document:
            written.append(figures.training_losses(document, path.parent / "plots" / name))
        if "decode" in document:
            written.append(figures.decoding_by_batch(document, path.parent / "plots" / name))
        if not any("ratio" in row["results"].get("hgemm", {}) for row in document.get("rows", ())):
            continue
        if not every and document["protocol"].get("numerics", "fast") != "fast":
            continue  # the pages give its cost as a number
        for kind, draw in (("ratio", plots.ratio_by_shape), ("roofline", plots.roofline))[: None if every else 1]:
            written.append(draw(document, path.parent / "plots" / f"{name}-{kind}"))
        if every and name.startswith("llm"):
            drawn = figures.bandwidth_by_rows(document, path.parent / "plots" / f"{name}-bandwidth")
            written += [drawn] if drawn else []
    return written


@click.command(help=__doc__)
@click.option("--results", type=click.Path(file_okay=False, exists=True, path_type=Path), default=RESULTS)
@click.option("--all", "every", is_flag=True, help="Also what no page shows.")
def main(results: Path, every: bool) -> None:
    for path in draw_all(results, every):
        click.echo(path)


if __name__ == "__main__":
    main()
