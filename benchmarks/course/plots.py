"""Draws the result files of the ladder. Needs matplotlib, which the package does not depend on."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.course.measure import LIBRARIES, TORCH
from benchmarks.course.rungs import RUNGS
from hgemm_ops.bench.plots import write
from hgemm_ops.bench.statistics import geometric_mean

_COLOURS = ("#2b7a4b", "#3366a8", "#b8432f", "#8a6d1d", "#6a3d9a", "#1f8f8f", "#8a8f98")
_MARKERS = ("o", "s", "^", "D", "v", "P")

Table = Mapping[str, Any]
#: FLOP per byte of DRAM traffic, by step and by the rows of its result.
Traffic = Mapping[tuple[str, int], float]


def _title(document: Mapping[str, Any], what: str) -> str:
    facts = document["environment"]
    return f"{what} on {facts['gpu']}, torch {facts['torch']}, {facts['date'][:10]}"


def _speed(table: Table, step: Mapping[str, Any]) -> float | None:
    unit = "gbps" if table["case"]["op"] == "add" else "tflops"
    value: float | None = step["result"].get(unit)
    return value


def _lines(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """The tables that are drawn as one line: those of one matmul shape, or of additions of one length.

    Additions of one length are one line whatever their dtype and number of rows.
    """
    lines: dict[str, list[Table]] = {}
    lengths: dict[int, str] = {}
    for table in tables:
        case, label = table["case"], table["label"]
        if case["op"] == "add":
            label = lengths.setdefault(case["m"] * case["n"], f"{case['m']}x{case['n']}")
        lines.setdefault(label, []).append(table)
    return dict(sorted(lines.items(), key=lambda line: line[1][0]["flops"]))


def by_step(document: Mapping[str, Any], family: str, path: Path) -> Path:
    """Draws the speed of each step, in the order of the course, with a line for each shape.

    Torch's speed is the dashed line of the same colour. Torch's additions depend on the dtype, so there each step has
    a cross.

    Raises:
        ValueError: nothing of the family was measured.
    """
    tables = [table for table in document["ladder"] if table["family"] == family]
    names = dict.fromkeys(s["name"] for table in tables for s in table["steps"] if s["name"] not in LIBRARIES)
    if not names:
        raise ValueError(f"no step of {family} was measured")
    order = list(RUNGS)
    ordered = sorted(names, key=lambda name: order.index(name) if name in RUNGS else len(order))
    place = {name: i for i, name in enumerate(ordered)}
    sums = family == "elementwise"
    lines = _lines(tables)
    figure = Figure(figsize=(8, 1.6 + 0.19 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    colours = _COLOURS if len(lines) <= 3 else [colormaps["viridis"](i / len(lines)) for i in range(len(lines))]
    for (label, of), colour in zip(lines.items(), colours, strict=False):
        speeds: dict[str, list[float]] = {}
        beside: dict[str, list[float]] = {}
        for table in of:
            found = {s["name"]: speed for s in table["steps"] if (speed := _speed(table, s)) is not None}
            for name in found.keys() & place.keys():
                speeds.setdefault(name, []).append(found[name])
                if TORCH in found:
                    beside.setdefault(name, []).append(found[TORCH])
        points = sorted((place[name], geometric_mean(values)) for name, values in speeds.items())
        if points:
            y, x = zip(*points, strict=True)
            axes.plot(x, y, marker=".", linewidth=0.8, color=colour, label=label)
        if sums:
            crosses = [place[name] for name in beside]
            rates = [geometric_mean(values) for values in beside.values()]
            axes.plot(rates, crosses, marker="x", linestyle="", markersize=4, color=colour)
        elif beside:
            rate = geometric_mean([value for values in beside.values() for value in values])
            axes.axvline(rate, color=colour, linestyle="--", linewidth=0.8)
    axes.set_yticks(range(len(ordered)), [RUNGS[n].label if n in RUNGS else n for n in ordered], fontsize=6)
    axes.invert_yaxis()
    axes.margins(y=0.02)
    axes.set_xlim(left=0)
    axes.set_xlabel("GB/s (crosses: torch)" if sums else "TFLOP/s (dashed: torch)")
    axes.set_title(_title(document, f"{family}, step by step"))
    figure.legend(fontsize=6, loc="outside lower center", ncols=6)
    return write(figure, path)


def _roofs(document: Mapping[str, Any]) -> dict[str, float]:
    """The highest rates that were measured, in TFLOP/s: of float32 FMAs, and of float16 on tensor cores."""
    names = {"float32": "float32 FMA", "float16": "tensor cores"}
    best: dict[str, float] = {}
    for table in document["ladder"]:
        if table["case"]["op"] == "add":
            continue
        name = names[table["case"]["dtype"]]
        rates = [step["result"].get("tflops", 0.0) for step in table["steps"]]
        best[name] = max(best.get(name, 0.0), *rates)
    return best


def roofline(document: Mapping[str, Any], path: Path, traffic: Traffic | None = None) -> Path:
    """Draws TFLOP/s over FLOP per byte, under the measured roof: a copy's bandwidth and the highest rates.

    Without ``traffic``, bytes are the least possible traffic, so all steps of one shape lie above each other. With
    ``traffic``, bytes are the DRAM traffic that a profiler counted for each step. Dotted lines are lower bandwidths.
    """
    roofs, bandwidth = _roofs(document), document["copy_gbps"] * 1e-3
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    families = list(dict.fromkeys(table["family"] for table in document["ladder"]))
    points: list[tuple[float, float]] = []
    for i, family in enumerate(families):
        of: list[tuple[float, float]] = []
        for table in document["ladder"]:
            for step in table["steps"] if table["family"] == family else ():
                rate = step["result"].get("tflops")
                least = table["flops"] / table["bytes"]
                intensity = least if traffic is None else traffic.get((step["name"], table["case"]["m"]))
                if rate and intensity and step["name"] not in LIBRARIES:
                    of.append((intensity, rate))
        points += of
        if of:
            x, y = zip(*of, strict=True)
            axes.scatter(x, y, s=12, color=_COLOURS[i], marker=_MARKERS[i % len(_MARKERS)], label=family, alpha=0.8)
    if not points:
        raise ValueError("no step was measured")
    _draw_roofs(axes, roofs, bandwidth, points)
    unit = "FLOP per byte" if traffic is None else "FLOP per byte of DRAM traffic (ncu)"
    axes.set(xscale="log", yscale="log", xlabel=unit, ylabel="TFLOP/s", title=_title(document, "The ladder"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=4))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())
    axes.legend(fontsize=6, loc="upper left")
    return write(figure, path)


def _draw_roofs(axes: Any, roofs: Mapping[str, float], bandwidth: float, points: Sequence[tuple[float, float]]) -> None:
    ridges = {name: peak / bandwidth for name, peak in roofs.items()}
    xs, ys = zip(*points, strict=True)
    left, right = min(*xs, *ridges.values()) / 2, max(*xs, *ridges.values()) * 2
    bottom, top = min(ys) / 2, max(*ys, *roofs.values()) * 2
    for name, peak in roofs.items():
        axes.plot([ridges[name], right], [peak, peak], color="black", linewidth=0.8)
        text = f"{name}: {peak:.0f} TFLOP/s"
        axes.annotate(text, (ridges[name] * 1.2, peak), ha="left", va="bottom", fontsize=6)
    ridge = max(ridges.values(), default=right)
    axes.plot([left, ridge], [left * bandwidth, ridge * bandwidth], color="black", linewidth=0.8)
    at = (max(left, bottom / bandwidth) * ridge) ** 0.5
    axes.annotate(f"copy: {bandwidth * 1e3:.0f} GB/s ", (at, at * bandwidth), ha="right", va="bottom", fontsize=6)
    for gbps in (400, 40):
        low, high = max(left, bottom / gbps * 1e3), min(right, top / gbps * 1e3)
        if low < high:
            axes.plot([low, high], [low * gbps * 1e-3, high * gbps * 1e-3], color="black", linewidth=0.4, linestyle=":")
            at = (low * high) ** 0.5
            axes.annotate(f"{gbps} GB/s ", (at, at * gbps * 1e-3), ha="right", va="bottom", fontsize=6)
    axes.set(xlim=(left, right), ylim=(bottom, top))


def draw(
    document: Mapping[str, Any], path: Path, traffic: Traffic | None = None, only: Container[str] | None = None
) -> list[Path]:
    """Draws ``<path>-<family>`` for every family, ``<path>-roofline``, and with ``traffic`` ``<path>-roofline-dram``.

    With ``only``, draws just the plots whose names it contains.
    """
    families = dict.fromkeys(table["family"] for table in document["ladder"])
    plots = {family: partial(by_step, document, family) for family in families}
    plots["roofline"] = partial(roofline, document)
    if traffic:
        plots["roofline-dram"] = partial(roofline, document, traffic=traffic)
    named = {f"{path.name}-{kind}": plot for kind, plot in plots.items()}
    return [plot(path.with_name(name)) for name, plot in named.items() if only is None or name in only]
