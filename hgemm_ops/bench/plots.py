"""The plots of ``hgemm bench --plot``, and how every plot of the repository is written.

Needs matplotlib, which the package does not depend on.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
# Text stays text, and there is no date and no random id, so that the same results give the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "hgemm_ops", "font.size": 8})

from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter  # noqa: E402

TORCH, OURS = "#8a8f98", "#2b7a4b"
SLOWER, PEER = "#b8432f", "#2f5fb8"
_SAME_KERNEL = "#c9ccd1"  # the dispatcher chose torch


def title(document: Mapping[str, Any]) -> str:
    facts = document["environment"]
    return f"{document['suite']} on {facts['gpu']}, torch {facts['torch']}, {facts['date'][:10]}"


def write(figure: Figure, path: Path) -> Path:
    """Writes the figure to ``path`` as SVG, with that suffix, and returns the path."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    path = path.with_suffix(".svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_small(drawn.getvalue()), "utf-8")
    return path


def _small(svg: str) -> str:
    """The same drawing in two thirds of the bytes.

    Coordinates are rounded to hundredths of a point, and a style that is used often becomes a class.
    """

    def place(attribute: re.Match[str]) -> str:
        numbers = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), attribute[2])
        return f'{attribute[1]}="{" ".join(numbers.split())}"'

    svg = re.sub(r'(?<= )(d|x|y|width|height)="([^"]*)"', place, svg)
    often = [style for style, count in Counter(re.findall(r' style="([^"]*)"', svg)).most_common() if count > 2]
    names = {style: f"s{i}" for i, style in enumerate(often)}
    svg = re.sub(
        r' style="([^"]*)"', lambda style: f' class="{names[style[1]]}"' if style[1] in names else style[0], svg
    )
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    return re.sub(r"\n *", "\n", svg.replace("</style>", f"{rules}</style>", 1))


def timed(document: Mapping[str, Any], contender: str) -> list[Mapping[str, Any]]:
    """The rows in which both torch and ``contender`` were timed.

    Raises:
        ValueError: there is no such row.
    """
    rows = [
        row for row in document["rows"] if "us" in row["results"]["torch"] and "us" in row["results"].get(contender, {})
    ]
    if not rows:
        raise ValueError(f"{document['suite']}: no row has times of torch and of {contender!r}")
    return rows


def best_peers(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """The index of each row in which a peer was timed beside torch, and the result of the fastest such peer."""
    found = []
    for i, row in enumerate(rows):
        peers = [r for name, r in row["results"].items() if name.startswith("peer:") and "ratio" in r]
        if peers:
            found.append((i, min(peers, key=lambda result: result["us"])))
    return found


def ratio_by_shape(document: Mapping[str, Any], path: Path, contender: str = "hgemm") -> Path:
    """Draws the speed over torch: one bar for each case, with its interval.

    Green bars are faster than torch and red ones slower. A bar is grey where the dispatcher chose torch. A diamond
    marks the speed of the fastest peer, where peers were timed.
    """
    rows = timed(document, contender)
    ratios = [row["results"][contender]["ratio"] for row in rows]
    values = [ratio["value"] for ratio in ratios]

    def colour(row: Mapping[str, Any], value: float) -> str:
        if contender == "hgemm" and row["served_by"] == "torch":
            return _SAME_KERNEL
        return OURS if value >= 1 else SLOWER

    figure = Figure(figsize=(7, 1.2 + 0.17 * len(rows)), layout="constrained")
    axes = figure.subplots()
    positions = range(len(rows))
    axes.barh(
        positions,
        values,
        color=[colour(row, value) for row, value in zip(rows, values, strict=True)],
        xerr=[
            # A percentile interval need not contain its median.
            [max(0.0, ratio["value"] - ratio["low"]) for ratio in ratios],
            [max(0.0, ratio["high"] - ratio["value"]) for ratio in ratios],
        ],
        error_kw={"elinewidth": 0.8},
    )
    axes.axvline(1, color="black", linewidth=0.8)
    if peers := best_peers(rows):
        positions_of_peers, speeds = zip(*((i, result["ratio"]["value"]) for i, result in peers), strict=True)
        axes.scatter(speeds, positions_of_peers, s=10, color=PEER, marker="D", zorder=3, label="the best peer")
        axes.legend(loc="lower left", fontsize=6)
    axes.set_yticks(positions, [row["label"] for row in rows], fontsize=6)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel(f"speed of {contender} over torch (median of paired ratios, 95 % interval)")
    axes.set_title(title(document))
    return write(figure, path)


def roofline(document: Mapping[str, Any], path: Path, contender: str = "hgemm") -> Path:
    """Draws TFLOP/s over arithmetic intensity.

    The roof is the highest rate that was measured, and the highest bandwidth: a copy's bandwidth, or a row's if that is
    higher.
    """
    rows = timed(document, contender)
    intensity = [row["flops"] / row["bytes"] for row in rows]
    rates: dict[str, Sequence[float]] = {
        name: [row["results"][name]["tflops"] for row in rows] for name in ("torch", contender)
    }
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, values), colour, marker in zip(rates.items(), (TORCH, OURS), ("o", "x"), strict=True):
        axes.scatter(intensity, values, s=16, color=colour, marker=marker, label=name, linewidths=1)
    peers = best_peers(rows)
    if peers:
        rates["the best peer"] = [result["tflops"] for _, result in peers]
        axes.scatter(
            [intensity[i] for i, _ in peers], rates["the best peer"], s=10, color=PEER, marker="+", linewidths=0.8,
            label="the best peer",
        )  # fmt: skip
    peak = max(max(values) for values in rates.values())
    highest_gbps = max(
        *(row["results"][name]["gbps"] for row in rows for name in ("torch", contender)),
        *(result["gbps"] for _, result in peers),
    )
    bandwidth = max(document["copy_gbps"], highest_gbps)
    tflops_per_intensity = bandwidth * 1e-3
    ridge = peak / tflops_per_intensity
    left, right = min(*intensity, ridge) / 2, max(*intensity, ridge) * 2
    axes.plot(
        [left, ridge, right],
        [left * tflops_per_intensity, peak, peak],
        color="black",
        linewidth=0.8,
        label=f"highest: {bandwidth:.0f} GB/s, {peak:.0f} TFLOP/s",
    )
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="TFLOP/s", title=title(document))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=2))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(NullLocator())
    axes.legend()
    return write(figure, path)
