"""Draws the ladder's result files. Needs matplotlib, which the package does not depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from .ladder import LIBRARIES, TORCH
from .plots import _write

_COLOURS = ("#2b7a4b", "#3366a8", "#b8432f", "#8a6d1d", "#6a3d9a", "#1f8f8f", "#8a8f98")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def _title(document: Mapping[str, Any], what: str) -> str:
    facts = document["environment"]
    return f"{what} on {facts['gpu']}, torch {facts['torch']}, {facts['date'][:10]}"


def _speed(table: Mapping[str, Any], step: Mapping[str, Any]) -> float | None:
    unit = "gbps" if table["case"]["op"] == "add" else "tflops"
    value: float | None = step["result"].get(unit)
    return value


def by_step(document: Mapping[str, Any], family: str, path: Path) -> list[Path]:
    """Speed by step, one line a shape, in the order of the course; torch's is the dashed line of its colour.

    Raises:
        ValueError: nothing of the family was measured.
    """
    tables = [table for table in document["ladder"] if table["family"] == family]
    labels = list(dict.fromkeys(s["label"] for table in tables for s in table["steps"] if s["name"] not in LIBRARIES))
    if not labels:
        raise ValueError(f"no step of {family} was measured")
    place = {label: i for i, label in enumerate(labels)}
    figure = Figure(figsize=(8, 1.6 + 0.19 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for i, table in enumerate(tables):
        colour = _COLOURS[i % len(_COLOURS)]
        points = [
            (speed, place[step["label"]])
            for step in table["steps"]
            if step["label"] in place and (speed := _speed(table, step)) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, marker=".", linewidth=0.8, color=colour, label=table["label"])
        for step in table["steps"]:
            if step["name"] == TORCH and (speed := _speed(table, step)) is not None:
                axes.axvline(speed, color=colour, linestyle="--", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels, fontsize=6)
    axes.invert_yaxis()
    axes.margins(y=0.02)
    axes.set_xlim(left=0)
    axes.set_xlabel("GB/s" if family == "elementwise" else "TFLOP/s (dashed: torch)")
    axes.set_title(_title(document, f"{family}, step by step"))
    axes.legend(fontsize=6)
    return _write(figure, path)


def _roofs(document: Mapping[str, Any]) -> dict[str, float]:
    """The highest rates measured, TFLOP/s: by float32 FMAs, and by half operands on tensor cores."""
    names = {"float32": "float32 FMA", "float16": "tensor cores"}
    best: dict[str, float] = {}
    for table in document["ladder"]:
        if table["case"]["op"] == "add":
            continue
        name = names[table["case"]["dtype"]]
        rates = [step["result"].get("tflops", 0.0) for step in table["steps"]]
        best[name] = max(best.get(name, 0.0), *rates)
    return best


def roofline(document: Mapping[str, Any], path: Path, traffic: Mapping[str, float] | None = None) -> list[Path]:
    """TFLOP/s over FLOP per byte, under the measured ceilings: a copy's bandwidth, and the highest rates.

    Bytes are the least possible, so that the steps of one shape stand above each other; with ``traffic``, FLOP per byte
    of DRAM that a profiler counted for each step, they are what a step moved.
    """
    roofs, bandwidth = _roofs(document), document["copy_gbps"] * 1e-3
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    families = list(dict.fromkeys(table["family"] for table in document["ladder"]))
    xs: list[float] = []
    for i, family in enumerate(families):
        points: list[tuple[float, float]] = []
        for table in document["ladder"]:
            for step in table["steps"] if table["family"] == family else ():
                rate = step["result"].get("tflops")
                least = table["flops"] / table["bytes"]
                intensity = least if traffic is None else traffic.get(step["name"])
                if rate and intensity and step["name"] not in LIBRARIES:
                    points.append((intensity, rate))
        xs += [x for x, _ in points]
        if points:
            marker = _MARKERS[i % len(_MARKERS)]
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=12, color=_COLOURS[i], marker=marker, label=family, alpha=0.8)
    if not xs:
        raise ValueError("no step was measured")
    _draw_roofs(axes, roofs, bandwidth, xs)
    unit = "FLOP per byte" if traffic is None else "FLOP per byte of DRAM traffic (ncu)"
    axes.set(xscale="log", yscale="log", xlabel=unit, ylabel="TFLOP/s", title=_title(document, "The ladder"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=4))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())
    axes.legend(fontsize=6, loc="upper left")
    return _write(figure, path)


def _draw_roofs(axes: Any, roofs: Mapping[str, float], bandwidth: float, xs: Sequence[float]) -> None:
    ridges = {name: peak / bandwidth for name, peak in roofs.items()}
    left, right = min(*xs, *ridges.values()) / 2, max(*xs, *ridges.values()) * 2
    for name, peak in roofs.items():
        axes.plot([ridges[name], right], [peak, peak], color="black", linewidth=0.8)
        axes.annotate(f"{name}: {peak:.0f} TFLOP/s", (right, peak), ha="right", va="bottom", fontsize=6)
    top = max(ridges.values(), default=right)
    axes.plot([left, top], [left * bandwidth, top * bandwidth], color="black", linewidth=0.8)
    middle = (left * top) ** 0.5
    axes.annotate(
        f"copy: {bandwidth * 1e3:.0f} GB/s ", (middle, middle * bandwidth), ha="right", va="bottom", fontsize=6
    )


def draw(document: Mapping[str, Any], path: Path) -> list[Path]:
    """``<path>-<family>`` for every family, and ``<path>-roofline``, as SVG and as PNG."""
    families = dict.fromkeys(table["family"] for table in document["ladder"])
    written = [p for family in families for p in by_step(document, family, path.with_name(f"{path.name}-{family}"))]
    return written + roofline(document, path.with_name(f"{path.name}-roofline"))
