"""Draws every suite's results, ``results/<gpu>/plots/<suite>-{ratio,roofline}.svg``, ``llm-bandwidth``, ``decode``,
and the ladder step by step, ``ladder-<group>-{<family>,roofline,roofline-dram}``."""

from __future__ import annotations

from pathlib import Path

import click

from hgemm_ops.bench import decode_plots, ladder_plots, plots, record

RESULTS = Path(__file__).parent / "results"


def profiled_traffic(profile: Path) -> dict[tuple[str, int], float]:
    """Step, rows -> FLOP per byte of DRAM traffic, from a ``ladder_ncu.json``."""
    if not profile.exists():
        return {}
    entries = record.load(profile)["ncu"]
    return {(e["name"], e["size"]): e["flop_per_dram_byte"] for e in entries if e["flop_per_dram_byte"]}


def draw_all(results: Path) -> list[Path]:
    """Draws decoding and each suite in which the dispatcher's choice was timed; returns the files written."""
    written = []
    for path in sorted(results.glob("*/*.json")):
        document = record.load(path)
        if document.get("ladder"):
            traffic = profiled_traffic(path.with_name("ladder_ncu.json")) if path.stem.endswith("_4096") else None
            written += ladder_plots.draw(document, path.parent / "plots" / path.stem.replace("_", "-"), traffic)
        if "decode" in document:
            written.append(decode_plots.by_batch(document, path.parent / "plots" / path.stem))
        if not any("ratio" in row["results"].get("hgemm", {}) for row in document.get("rows", ())):
            continue
        for kind, draw in (("ratio", plots.ratio_by_shape), ("roofline", plots.roofline)):
            written.append(draw(document, path.parent / "plots" / f"{path.stem}-{kind}"))
        if path.stem.startswith("llm"):
            drawn = plots.bandwidth_by_rows(document, path.parent / "plots" / f"{path.stem}-bandwidth")
            written += [drawn] if drawn else []
    return written


@click.command(help=__doc__)
@click.option("--results", type=click.Path(file_okay=False, exists=True, path_type=Path), default=RESULTS)
def main(results: Path) -> None:
    for path in draw_all(results):
        click.echo(path)


if __name__ == "__main__":
    main()
