"""The charts of ``hgemm report``, as Vega-Lite specifications.

Text and axes are drawn in ``currentColor``, so that a chart is light or dark as the page is. Ratios have logarithmic
axes around 1, without 0, so half the speed and twice the speed are equally far from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Spec = dict[str, Any]
Row = Mapping[str, Any]

WIDTH = 780
ALL = "all"
#: The fields that have a filter with a list of values. A fourth filter takes text.
FILTERS = ("suite", "dtype", "layout")

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # an identifier; nothing is fetched
_FASTER, _SLOWER, _EVEN, _TORCH, _OTHER = "#2f9e63", "#e0524d", "#4f86d9", "#8b929c", "#d98a2b"
#: What the interval of a ratio tells, and its colour.
VERDICTS = {"slower": _SLOWER, "not told apart": _EVEN, "faster": _FASTER, "torch's kernel": _TORCH}
_HIGHEST = 2.0  # the highest ratio on the axis of all cases
_WITHIN = 3.0  # a library that is more times as fast as the best step is not drawn
_SIDES = {"torch": _TORCH, "ours": _FASTER, "fused projections": _EVEN}
_CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "tickColor": "currentColor",
        "domainColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "labelLimit": 340,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "symbolOpacity": 1},
    "title": {"color": "currentColor", "anchor": "start", "fontSize": 13, "subtitleColor": "currentColor"},
    "header": {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12},
    "text": {"color": "currentColor"},
    "rule": {"color": "currentColor"},
}


def _spec(**content: Any) -> Spec:
    return {"$schema": _SCHEMA, "config": _CONFIG, **content}


def _scale(colours: Mapping[str, str]) -> Spec:
    return {"domain": list(colours), "range": list(colours.values())}


def _ratio(title: str, values: Sequence[float], field: str = "ratio", **axis: Any) -> Spec:
    """A logarithmic axis around 1 with round numbers. Ratios above _HIGHEST are drawn at _HIGHEST."""
    low, high = min([*values, 0.98]), min(max([*values, 1.02]), _HIGHEST)
    if max(values) > high:
        title += f" (above {_HIGHEST:g} at the edge)"
    steps = [0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2]
    axis = {
        "values": [step for step in steps if low * 0.98 <= step <= high * 1.02],
        "format": "~g",
        "grid": True,
    } | axis
    scale = {"type": "log", "domain": [low / 1.01, high * 1.01], "nice": False, "clamp": True}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _logarithmic(field: str, title: str, values: Sequence[float], **axis: Any) -> Spec:
    scale = {"type": "log", "domain": [min(values) / 1.2, max(values) * 1.2], "nice": False}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": {"format": "~s"} | axis}


def _tooltip(**fields: str) -> list[Spec]:
    """The tooltip that shows these fields, each under its title."""
    return [{"field": field, "title": title} for field, title in fields.items()]


_ONE = {"mark": {"type": "rule", "strokeDash": [4, 3], "opacity": 0.7}, "data": {"values": [{}]}}


def _at_one(channel: str) -> Spec:
    """A line at the ratio 1. A linear x axis would reach down to 0 for it unless it is told not to."""
    scale = {"type": "quantitative", "scale": {"zero": False}} if channel == "x" else {}
    return _ONE | {"encoding": {channel: {"datum": 1, **scale}}}


def _intervals(colour: Spec, order: Any, tooltip: list[Spec], *, label: str = "label") -> Spec:
    """A line for each row: the ratio as a point on its 95 % interval. The axis spans what is shown."""
    y = {"field": label, "type": "nominal", "title": None, "sort": order, "axis": {"grid": False}}
    x = {
        "field": "ratio",
        "type": "quantitative",
        "title": "speed over torch, and its 95 % interval",
        "scale": {"zero": False, "padding": 8},
        "axis": {"orient": "top", "format": ".3~f"},
    }
    return {
        "width": WIDTH,
        "height": {"step": 15},
        "layer": [
            _at_one("x"),
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}, "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {"y": y, "x": x, "color": colour, "tooltip": tooltip},
            },
        ],
    }


def _filters(rows: Sequence[Row]) -> tuple[list[Spec], str]:
    """The parameters that the page's input fields set, and the expression that is true for rows that pass them."""
    parameters: list[Spec] = []
    for name in FILTERS:
        options = [ALL, *dict.fromkeys(row[name] for row in rows)]
        bind = {"input": "select", "options": options, "name": name, "element": "#filters"}
        parameters.append({"name": f"pick_{name}", "value": ALL, "bind": bind})
    text = {"input": "search", "name": "text", "element": "#filters", "placeholder": "4096, wgmma, table …"}
    parameters.append({"name": "pick_text", "value": "", "bind": text})
    count = {"input": "range", "min": 10, "max": 200, "step": 10, "name": "listed", "element": "#filters"}
    parameters.append({"name": "listed", "value": 40, "bind": count})
    picked = [f"(pick_{name} === '{ALL}' || datum.{name} === pick_{name})" for name in FILTERS]
    return parameters, " && ".join([*picked, "indexof(datum.words, lower(pick_text)) >= 0"])


def speed(rows: Sequence[Row], roofs: Mapping[str, float]) -> Spec:
    """All cases by size, the slowest cases, and the roofline, under one set of filters.

    Args:
        rows: the result of ``page.speed_rows``.
        roofs: ``gbps``, the highest bandwidth, and ``tflops``, the highest rate that was measured.
    """
    parameters, passes = _filters(rows)
    tooltip = _tooltip(
        suite="suite", label="case", dtype="dtype", ratio="over torch", interval="95 %", us="µs", torch_us="torch µs",
        tflops="TFLOP/s", gbps="GB/s", by="kernel", source="decided by",
    )  # fmt: skip
    colour = {"field": "verdict", "type": "nominal", "title": None, "scale": _scale(VERDICTS)}
    point = {"type": "point", "filled": True, "size": 45, "opacity": 0.75}
    by_size = {
        "title": "Every case by size",
        "width": WIDTH,
        "height": 320,
        "layer": [
            _at_one("y"),
            {
                "name": "cases",
                "transform": [{"filter": passes}],
                "mark": point,
                "encoding": {
                    "x": _logarithmic("flop", "FLOP of the product", [row["flop"] for row in rows], format=".0s"),
                    "y": _ratio("speed over torch", [row["ratio"] for row in rows]),
                    "color": colour,
                    "tooltip": tooltip,
                },
            },
        ],
    }
    losses = _intervals(colour, {"field": "rank", "op": "min"}, tooltip, label="line") | {
        "title": "Losses first: the slowest of the filtered cases",
        "transform": [
            {"filter": passes},
            {"sort": [{"field": "ratio"}], "window": [{"op": "row_number", "as": "rank"}]},
            {"filter": "datum.rank <= listed"},
        ],
    }
    return _spec(
        params=parameters,
        data={"values": list(rows)},
        vconcat=[by_size, losses, _roofline(rows, roofs, passes, colour, tooltip)],
        spacing=36,
    )


def _roofline(rows: Sequence[Row], roofs: Mapping[str, float], passes: str, colour: Spec, tooltip: list[Spec]) -> Spec:
    at = [row["intensity"] for row in rows]
    left, right = min(at) / 1.3, max(at) * 1.3
    ridge = 1e3 * roofs["tflops"] / roofs["gbps"]
    bandwidth = roofs["gbps"] * 1e-3
    roof = [
        {"intensity": left, "tflops": left * bandwidth},
        {"intensity": ridge, "tflops": roofs["tflops"]},
        {"intensity": right, "tflops": roofs["tflops"]},
    ]
    names = [
        {"intensity": left * 1.1, "tflops": left * bandwidth * 3.2, "text": f"{roofs['gbps']:.0f} GB/s"},
        {"intensity": right / 2.6, "tflops": roofs["tflops"] * 1.25, "text": f"{roofs['tflops']:.0f} TFLOP/s"},
    ]
    rates = [*(row["tflops"] for row in rows), *(row["torch_tflops"] for row in rows), roofs["tflops"] * 1.3]
    x = _logarithmic("intensity", "FLOP per byte of the least traffic", [left, right], format="~g")
    y = _logarithmic("tflops", "TFLOP/s", rates, format="~g")
    return {
        "title": "Roofline: the filtered cases under the highest bandwidth and rate measured (grey circles: torch)",
        "width": WIDTH,
        "height": 380,
        "layer": [
            {
                "data": {"values": roof},
                "mark": {"type": "line", "color": "currentColor", "strokeWidth": 1.2},
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": names},
                "mark": {"type": "text", "align": "left", "fontSize": 11},
                "encoding": {"x": x, "y": y, "text": {"field": "text"}},
            },
            {
                "transform": [{"filter": passes}],
                "mark": {"type": "point", "size": 30, "color": _TORCH, "opacity": 0.7},
                "encoding": {"x": x, "y": y | {"field": "torch_tflops"}},
            },
            {
                "transform": [{"filter": passes}],
                "mark": {"type": "point", "filled": True, "size": 35, "opacity": 0.75},
                "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
            },
        ],
    }


def stream(rows: Sequence[Row]) -> Spec:
    """How near matmuls with few rows come to a kernel that only reads the weights; the farthest come first."""
    y = {"field": "line", "type": "nominal", "title": None, "sort": {"field": "worst", "op": "min"}}
    low = min(row["share"] for row in rows)
    x: Spec = {
        "field": "share",
        "type": "quantitative",
        "title": "time of only reading the weights over the product's",
        "scale": {"domain": [low - 0.02, max(1.02, *(row["share"] for row in rows))], "nice": False},
        "axis": {"orient": "top", "format": ".0%"},
    }
    sides = {name: _SIDES[name] for name in ("torch", "ours")}
    colour = {"field": "side", "type": "nominal", "title": None, "scale": _scale(sides)}
    tooltip = _tooltip(suite="suite", label="case", side="side", share="of the stream", us="µs", gbps="GB/s", by="by")
    return _spec(
        data={"values": list(rows)},
        width=WIDTH,
        height={"step": 15},
        layer=[
            _at_one("x"),
            {
                "mark": {"type": "line", "color": "currentColor", "opacity": 0.3},
                "encoding": {"y": y, "x": x, "detail": {"field": "line"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {"y": y, "x": x, "color": colour, "tooltip": tooltip},
            },
        ],
    )


def decode(rows: Sequence[Row]) -> Spec:
    """Tokens a second over torch's, by batch size, for each way of running a decoding step."""
    bounds = [row[name] for row in rows for name in ("low", "high")]
    y = _ratio("tokens a second over torch's", bounds)
    x = {"field": "batch", "type": "ordinal", "title": "batch", "axis": {"labelAngle": 0}}
    names = {name: _SIDES[name] for name in dict.fromkeys(row["side"] for row in rows)}
    colour = {"field": "side", "type": "nominal", "title": None, "scale": _scale(names)}
    offset = {"field": "side", "type": "nominal"}
    shown = _tooltip(side="side", batch="batch", ratio="over torch", interval="95 %", rate="tokens a second")
    marks: list[Spec] = [
        _at_one("y"),
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "x": x, "xOffset": offset, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"x": x, "xOffset": offset, "y": y, "color": colour, "tooltip": shown},
        },
    ]  # fmt: skip
    runners = list(dict.fromkeys(row["runner"] for row in rows))
    width = WIDTH // len(runners) - 40
    parts = [
        {"title": name, "data": {"values": [row for row in rows if row["runner"] == name]}, "layer": marks}
        for name in runners
    ]
    return _spec(hconcat=[part | {"width": width, "height": 260} for part in parts])


def models(rows: Sequence[Row]) -> Spec:
    """The speed of whole models over torch; the slowest come first."""
    said = {row["verdict"] for row in rows}
    verdicts = {name: colour for name, colour in VERDICTS.items() if name in said}
    colour = {"field": "verdict", "type": "nominal", "title": None, "scale": _scale(verdicts)}
    shown = _tooltip(
        label="case", how="run", ratio="over torch", interval="95 %", ms="ms", torch_ms="torch ms", share="our FLOPs"
    )
    return _spec(data={"values": list(rows)}, **_intervals(colour, {"field": "ratio", "op": "min"}, shown))


def course(rows: Sequence[Row], unit: str) -> Spec:
    """The steps of one family in the order of the course, on a logarithmic axis of their own. Libraries are dashed.

    A library that is several times as fast as the best step would squeeze the steps together. It is not drawn, and the
    title names its speed instead.
    """
    ours = sorted((row for row in rows if not row["other"]), key=lambda row: row["place"])
    steps = list(dict.fromkeys(row["step"] for row in ours))
    most = _WITHIN * max(row["rate"] for row in ours)
    beyond = sorted({f"{row['rate']:.0f}" for row in rows if row["rate"] > most and row["step"] == "torch"})
    title = f"{unit}, logarithmic" + (f"; torch's {' and '.join(beyond)} lie beyond" if beyond else "")
    rows = [row for row in rows if row["rate"] <= most]
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    y = {"field": "step", "type": "nominal", "title": None, "sort": steps, "axis": {"grid": True}}
    x = _logarithmic("rate", title, [row["rate"] for row in rows], orient="top", format="~g")
    colours = dict(zip(shapes, (_FASTER, _EVEN, _OTHER, "#9a6fd0", "#3aa6a6", _SLOWER), strict=False))
    colour = {"field": "shape", "type": "nominal", "title": None, "scale": _scale(colours)}
    shown = _tooltip(
        step="step", adds="adds", shape="shape", rate=unit, before="x the step it changes", of_torch="of torch",
        waits="waits for",
    )  # fmt: skip
    libraries = _tooltip(step="library", shape="shape", rate=unit)
    return _spec(
        data={"values": list(rows)},
        width=WIDTH - 200,
        height={"step": 17},
        layer=[
            {
                "transform": [{"filter": "datum.other"}],
                "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
                "encoding": {"x": x, "color": colour, "tooltip": libraries},
            },
            {
                "transform": [{"filter": "!datum.other"}],
                "mark": {"type": "line", "opacity": 0.45, "strokeWidth": 1.2},
                "encoding": {"y": y, "x": x, "color": colour, "order": {"field": "place"}},
            },
            {
                "transform": [{"filter": "!datum.other"}],
                "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
                "encoding": {"y": y, "x": x, "color": colour, "tooltip": shown},
            },
        ],
    )
