"""Draws the result files of scripts other than ``hgemm bench``, and the plots of suites that only a page shows.

Needs matplotlib, which the package does not depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from benchmarks.result_page import LOSS, map_means, map_timed
from hgemm_ops.bench.plots import OURS, SLOWER, TORCH, timed, title, write
from hgemm_ops.bench.statistics import geometric_mean

_DECODE_ROWS = 64  # up to this many rows, reading the weights takes nearly all of the time
_FUSED = "#2f5fb8"
_SIDES = {
    "torch": ("torch", TORCH),
    "ours": ("use_custom_gemm()", OURS),
    "fused": ("with fused projections, static weights", _FUSED),
}


def speed_by_kind(kinds: Mapping[str, Sequence[float]], of: str, path: Path) -> Path:
    """Draws the speeds over torch of each kind: a bar from the slowest case to the fastest, and their geometric mean.

    ``of`` is the title.
    """
    figure = Figure(figsize=(7, 0.9 + 0.28 * len(kinds)), layout="constrained")
    axes = figure.subplots()
    for place, speeds in enumerate(kinds.values()):
        low, high, mean = min(speeds), max(speeds), geometric_mean(speeds)
        axes.barh(place, high - low, left=low, height=0.5, color=OURS, alpha=0.25)
        axes.scatter([mean], [place], s=30, color=OURS, zorder=3)
        axes.annotate(f"{mean:.2f}", (high, place), (4, 0), textcoords="offset points", va="center")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="speed over torch: slowest and fastest case, geometric mean", title=of)
    axes.set_yticks(range(len(kinds)), [f"{kind} ({len(speeds)})" for kind, speeds in kinds.items()])
    axes.invert_yaxis()
    axes.set_xticks([1, 1.5, 2, 3, 4, 6, 8])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(0.95, axes.get_xlim()[0]), 1.1 * max(max(speeds) for speeds in kinds.values()))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return write(figure, path)


def share_of_bound(document: Mapping[str, Any], path: Path) -> Path:
    """Draws how much of the chip's bound torch and ours reach for each kind of product of the map: geometric means.

    A line joins the two, and is red where ours is slower.
    """
    kinds = map_timed(document)
    figure = Figure(figsize=(7, 1 + 0.2 * len(kinds)), layout="constrained")
    axes = figure.subplots()
    for place, rows in enumerate(kinds.values()):
        theirs, ours, speed = map_means(rows)
        axes.plot([theirs, ours], [place, place], color=OURS if speed >= LOSS else SLOWER, linewidth=2, alpha=0.5)
        for share, colour, name in ((theirs, TORCH, "torch / bound"), (ours, OURS, "ours / bound")):
            axes.scatter([share], [place], s=22, color=colour, zorder=3, label=None if place else name)
    axes.axvline(1, color="black", linewidth=0.8)
    facts = document["environment"]
    axes.set(xscale="log", xlabel="speed over the chip's bound (geometric mean)")
    figure.suptitle(f"{facts['gpu']}, torch {facts['torch']}, {facts['date'][:10]} (number of shapes in parentheses)")
    axes.set_yticks(range(len(kinds)), [f"{kind} ({len(rows)})" for kind, rows in kinds.items()])
    axes.invert_yaxis()
    axes.set_xticks([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower left", fontsize=7)
    return write(figure, path)


def bandwidth_by_rows(document: Mapping[str, Any], path: Path, contender: str = "hgemm") -> Path | None:
    """Draws GB/s over M, up to 64, for each weight (N, K) that was timed at more than two M.

    Torch's line is dashed. A dotted line is a kernel that only reads the weight, where that was timed. The right axis
    is the share of a copy's bandwidth. Bytes are the least possible traffic, so a line is the inverse of the time.
    Returns None where no weight was timed at more than two M.
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
        title=title(document),
        ylim=(0, None),
    )
    axes.set_xticks(ms, [str(m) for m in ms])
    axes.xaxis.set_minor_locator(NullLocator())
    share = axes.twinx()
    share.set(ylabel="% of a copy", ylim=(0, 100 * axes.get_ylim()[1] / copy))
    axes.legend(fontsize=6, loc="lower left")
    return write(figure, path)


def training_losses(document: Mapping[str, Any], path: Path) -> Path:
    """Draws the losses of each side of ``integration.train``, and the differences between the losses of two sides."""
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
    return write(figure, path)


def error_by_depth(document: Mapping[str, Any], path: Path) -> Path:
    """Draws the errors of ``benchmarks/float32_errors.py`` over K, a column for each distribution of the inputs."""
    rows = [row for row in document["float32_errors"] if row["kind"] == "depth"]
    columns = {
        name: [row for row in rows if row["inputs"] == name] for name in dict.fromkeys(r["inputs"] for r in rows)
    }
    sides = {"tf32": SLOWER, "strict": TORCH, "split": OURS, "split3": OURS}
    return _errors_over_k(columns, sides, path)


def error_of_sums(document: Mapping[str, Any], path: Path) -> Path:
    """Draws the errors of ``benchmarks/in_order_errors.py`` over K: float16 operands, float32 results."""
    rows = [row for row in document["in_order_errors"] if (row["dtype"], row["result"]) == ("float16", "float32")]
    sizes = dict.fromkeys(row["size"] for row in rows)
    columns = {f"{size} x {size} x K": [row for row in rows if row["size"] == size] for size in sizes}
    return _errors_over_k(columns, {"one sum": SLOWER, "torch": TORCH, "batch_invariant": OURS}, path)


def _errors_over_k(columns: Mapping[str, Sequence[Mapping[str, Any]]], sides: Mapping[str, str], path: Path) -> Path:
    """Draws the errors of each side, in its colour, over K.

    The upper row is the largest error relative to |A||B|, the lower row the rms error relative to the result's rms.
    """
    figure = Figure(figsize=(1 + 3.5 * len(columns), 5), layout="constrained")
    axes_of = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row").T
    for (top, bottom), (name, drawn) in zip(axes_of, columns.items(), strict=True):
        for side, colour in sides.items():
            points = [(row["k"], row[side]) for row in drawn if side in row]
            style = "--" if side == "split3" else "-"
            for axes, error in ((top, "most"), (bottom, "rms")) if points else ():
                depths, found = [k for k, _ in points], [errors[error] for _, errors in points]
                axes.plot(depths, found, color=colour, linestyle=style, label=side, marker=".", linewidth=1)
        top.set(xscale="log", yscale="log", title=name)
        bottom.set(xscale="log", yscale="log", xlabel="K")
    axes_of[0][0].set_ylabel("largest error / |A||B|")
    axes_of[0][1].set_ylabel("rms error / rms result")
    axes_of[0][0].legend(frameon=False)
    return write(figure, path)


def decoding_by_batch(document: Mapping[str, Any], path: Path) -> Path:
    """Draws the results of ``integration.decode``: tokens a second over the batch size, and the speed over torch.

    There is a column for each way of running a decoding step (eager, CUDA graph, compiled).

    Raises:
        ValueError: nothing was measured.
    """
    results = document["results"]
    runners = list(dict.fromkeys(row["runner"] for row in results))
    if not runners:
        raise ValueError(f"{path.name}: no batch was measured")
    figure = Figure(figsize=(1 + 3.5 * len(runners), 5), layout="constrained")
    columns = figure.subplots(2, len(runners), squeeze=False, sharey="row").T
    for (top, bottom), runner in zip(columns, runners, strict=True):
        rows = [row for row in results if row["runner"] == runner]
        for name, (label, colour) in _SIDES.items():
            sides = [(row["batch"], row["sides"][name]) for row in rows if name in row["sides"]]
            batches = [batch for batch, _ in sides]
            speeds = [side["tokens_per_second"] for _, side in sides]
            top.plot(batches, speeds, color=colour, label=label, marker=".", linewidth=1)
            ratios = [side["speedup"] for _, side in sides if side["speedup"]]
            if ratios:
                bottom.errorbar(
                    batches,
                    [ratio["value"] for ratio in ratios],
                    yerr=[
                        # A percentile interval need not contain its median.
                        [max(0.0, ratio["value"] - ratio["low"]) for ratio in ratios],
                        [max(0.0, ratio["high"] - ratio["value"]) for ratio in ratios],
                    ],
                    color=colour,
                    marker=".",
                    linewidth=1,
                    capsize=2,
                )
        bottom.axhline(1, color="black", linewidth=0.8)
        top.set(xscale="log", yscale="log", title=runner)
        top.yaxis.set_major_formatter(ScalarFormatter())
        bottom.set(xscale="log", xlabel="batch")
        for axes in (top, bottom):
            axes.set_xticks([row["batch"] for row in rows])
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_locator(NullLocator())
    first_top, first_bottom = columns[0]
    first_top.set_ylabel("tokens a second")
    first_top.legend()
    first_bottom.set_ylabel("speed over torch (95 % interval)")
    settings, facts = document["decode"], document["environment"]
    figure.suptitle(
        f"decoding, {settings['layers']} layers of {settings['model']} {settings['size']}, {settings['dtype']}\n"
        f"on {facts['gpu']}, torch {facts['torch']}, {facts['date'][:10]}"
    )
    return write(figure, path)
