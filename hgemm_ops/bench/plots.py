"""Draws result files. Needs matplotlib, which the package does not depend on."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
# Text as text, and no date or random ids: the same results give the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "hgemm_ops", "font.size": 8})

from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter  # noqa: E402

_TORCH, _OURS = "#8a8f98", "#2b7a4b"
_SLOWER, _SAME_KERNEL = "#b8432f", "#c9ccd1"
_PEER = "#2f5fb8"
_DECODE_ROWS = 64  # tokens at once up to which reading the weights is all that counts


def _title(document: Mapping[str, Any]) -> str:
    facts = document["environment"]
    return f"{document['suite']} on {facts['gpu']}, torch {facts['torch']}, {facts['date'][:10]}"


def _write(figure: Figure, path: Path) -> Path:
    """Writes the figure to ``path`` as SVG."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    path = path.with_suffix(".svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_small(drawn.getvalue()))
    return path


def _small(svg: str) -> str:
    """The same drawing in two thirds of the bytes: hundredths of a point, one name for a style that is used often."""

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
    """Rows in which torch and ``contender`` were both timed.

    Raises:
        ValueError: there is none.
    """
    rows = [
        row for row in document["rows"] if "us" in row["results"]["torch"] and "us" in row["results"].get(contender, {})
    ]
    if not rows:
        raise ValueError(f"{document['suite']}: no row holds times of torch and of {contender!r}")
    return rows


def best_peers(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """(index, result) of the fastest peer of each row in which one was timed beside torch."""
    found = []
    for i, row in enumerate(rows):
        peers = [r for name, r in row["results"].items() if name.startswith("peer:") and "ratio" in r]
        if peers:
            found.append((i, min(peers, key=lambda result: result["us"])))
    return found


def ratio_by_shape(document: Mapping[str, Any], path: Path, contender: str = "hgemm") -> Path:
    """Speed over torch, one bar a case with its interval; green is faster, red slower, grey torch's own kernel.

    A diamond is the fastest peer's speed, where peers were timed.
    """
    rows = timed(document, contender)
    ratios = [row["results"][contender]["ratio"] for row in rows]
    values = [ratio["value"] for ratio in ratios]

    def colour(row: Mapping[str, Any], value: float) -> str:
        if contender == "hgemm" and row["served_by"] == "torch":
            return _SAME_KERNEL
        return _OURS if value >= 1 else _SLOWER

    figure = Figure(figsize=(7, 1.2 + 0.17 * len(rows)), layout="constrained")
    axes = figure.subplots()
    positions = range(len(rows))
    axes.barh(
        positions,
        values,
        color=[colour(row, value) for row, value in zip(rows, values, strict=True)],
        xerr=[
            # A percentile interval need not hold its median.
            [max(0.0, ratio["value"] - ratio["low"]) for ratio in ratios],
            [max(0.0, ratio["high"] - ratio["value"]) for ratio in ratios],
        ],
        error_kw={"elinewidth": 0.8},
    )
    axes.axvline(1, color="black", linewidth=0.8)
    if peers := best_peers(rows):
        positions_of_peers, speeds = zip(*((i, result["ratio"]["value"]) for i, result in peers), strict=True)
        axes.scatter(speeds, positions_of_peers, s=10, color=_PEER, marker="D", zorder=3, label="the best peer")
        axes.legend(loc="lower left", fontsize=6)
    axes.set_yticks(positions, [row["label"] for row in rows], fontsize=6)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel(f"speed of {contender} over torch (median of paired ratios, 95 % interval)")
    axes.set_title(_title(document))
    return _write(figure, path)


def roofline(document: Mapping[str, Any], path: Path, contender: str = "hgemm") -> Path:
    """TFLOP/s over arithmetic intensity, under the highest bandwidth (the copy's, or a row's above it) and rate."""
    rows = timed(document, contender)
    intensity = [row["flops"] / row["bytes"] for row in rows]
    rates: dict[str, Sequence[float]] = {
        name: [row["results"][name]["tflops"] for row in rows] for name in ("torch", contender)
    }
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, values), colour, marker in zip(rates.items(), (_TORCH, _OURS), ("o", "x"), strict=True):
        axes.scatter(intensity, values, s=16, color=colour, marker=marker, label=name, linewidths=1)
    peers = best_peers(rows)
    if peers:
        rates["the best peer"] = [result["tflops"] for _, result in peers]
        axes.scatter(
            [intensity[i] for i, _ in peers], rates["the best peer"], s=10, color=_PEER, marker="+", linewidths=0.8,
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
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="TFLOP/s", title=_title(document))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=2))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(NullLocator())
    axes.legend()
    return _write(figure, path)


def bandwidth_by_rows(document: Mapping[str, Any], path: Path, contender: str = "hgemm") -> Path | None:
    """GB/s over M up to 64 for each weight (N, K) that was timed at several M, torch dashed, and the share of a copy;
    dotted, what a kernel reached that only reads the weight, where it was timed.

    Bytes are the least possible traffic, so that what is drawn is the inverse of time. Draws nothing where no weight
    was timed at several M.
    """
    weights: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in timed(document, contender):
        case = row["case"]
        if case["m"] <= _DECODE_ROWS and case["batch"] == 1 and case["op"] == "matmul" and not case["padding"]:
            weights.setdefault((case["n"], case["k"]), []).append(row)
    lines = {weight: rows for weight, rows in weights.items() if len({row["case"]["m"] for row in rows}) > 2}
    if not lines:
        return None
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (n, k), rows in lines.items():
        rows = sorted(rows, key=lambda row: row["case"]["m"])
        ms = [row["case"]["m"] for row in rows]
        (line,) = axes.plot(ms, [row["results"][contender]["gbps"] for row in rows], marker="o", label=f"N {n}, K {k}")
        theirs = [row["results"]["torch"]["gbps"] for row in rows]
        axes.plot(ms, theirs, color=line.get_color(), linestyle="--", linewidth=0.8)
        if all("stream" in row["results"] for row in rows):
            streamed = [row["results"]["stream"]["gbps"] for row in rows]
            axes.plot(ms, streamed, color=line.get_color(), linestyle=":", linewidth=0.8)
    copy = document["copy_gbps"]
    axes.axhline(copy, color="black", linewidth=0.8, label=f"a copy: {copy:.0f} GB/s")
    axes.set(
        xscale="log",
        xlabel="M",
        ylabel=f"GB/s of {contender} (dashed: torch, dotted: only reading)",
        title=_title(document),
        ylim=(0, None),
    )
    axes.set_xticks(ms, [str(m) for m in ms])
    axes.xaxis.set_minor_locator(NullLocator())
    share = axes.twinx()
    share.set(ylabel="% of a copy", ylim=(0, 100 * axes.get_ylim()[1] / copy))
    axes.legend(fontsize=6, loc="lower left")
    return _write(figure, path)


def training_losses(document: Mapping[str, Any], path: Path) -> Path:
    """The losses of ``integration.train``'s sides, and how far apart those of two sides are."""
    losses, apart = document["results"]["losses"], document["results"]["largest_loss_difference"]
    figure = Figure(figsize=(8, 6), layout="constrained")
    curves, differences = figure.subplots(2, 1, sharex=True)
    for i, name in enumerate(losses):
        curves.plot(losses[name], label=name, color=f"C{i}", linewidth=1)
    for i, names in enumerate(apart):
        other, _, one = names.partition(" from ")
        gaps = [abs(a - b) for a, b in zip(losses[one], losses[other], strict=True)]
        differences.plot(gaps, label=names, color=f"C{i}", linewidth=1)
    curves.set_ylabel("loss")
    differences.set(xlabel="step", ylabel="difference")
    for axes in (curves, differences):
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    return _write(figure, path)


def error_by_depth(document: Mapping[str, Any], path: Path) -> Path:
    """Errors of ``benchmarks/float32_errors.py`` over K: the largest beside |A||B|, and the rms beside the result's."""
    rows = [row for row in document["float32_errors"] if row["kind"] == "depth"]
    inputs = list(dict.fromkeys(row["inputs"] for row in rows))
    figure = Figure(figsize=(1 + 3.5 * len(inputs), 5), layout="constrained")
    columns = figure.subplots(2, len(inputs), squeeze=False, sharex=True, sharey="row").T
    for (top, bottom), name in zip(columns, inputs, strict=True):
        drawn = [row for row in rows if row["inputs"] == name]
        depths = [row["k"] for row in drawn]
        for side, colour in (("tf32", _SLOWER), ("strict", _TORCH), ("split", _OURS)):
            for axes, error in ((top, "most"), (bottom, "rms")):
                axes.plot(
                    depths, [row[side][error] for row in drawn], color=colour, label=side, marker=".", linewidth=1
                )
        top.set(xscale="log", yscale="log", title=name)
        bottom.set(xscale="log", yscale="log", xlabel="K")
    columns[0][0].set_ylabel("largest error / |A||B|")
    columns[0][1].set_ylabel("rms error / rms result")
    columns[0][0].legend(frameon=False)
    return _write(figure, path)
