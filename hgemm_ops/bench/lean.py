"""The form of result files: values that follow from others are left out, and numbers keep five digits.

``lean`` brings a document into this form and ``complete`` restores it:

- A row with a case leaves out its label, FLOP, bytes and alignment, the case's defaults, and the rates that follow from
  the times. An interval becomes a list of its ``ENDS``.
- A step of the ladder also leaves out the first values of its result, which are not restored.
- A shape of a survey becomes a list of the values that ``SHAPE`` names. A kernel is given by its index in the list
  ``kernels``.

``text`` writes a document with as many values on a line as fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .suites import KEY, Case

STREAM = "stream"  # the contender that only reads the weights
_DIGITS = 5
_LINE = 240  # characters; a longer list or object is written on several lines
ENDS = ("value", "low", "high")
_INTERVALS = ("ratio", "ours", "of_stream")  # of a result
_CASE = {field.name: field.default for field in fields(Case)}
_STEP = {"swizzle": None}
#: ``chosen`` has [model, kernel, source, ratio] for each choice. ``wrong`` maps kernels to what was wrong with their
#: results, and is missing where all were right.
SHAPE = (*KEY, "torch_us", "best", "best_by", "chosen", "wrong")


def _facts(case: Case, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(case, name) for name in names}


def _rates(case: Case, name: str, result: Mapping[str, Any]) -> dict[str, float]:
    """The rates of a contender that was timed."""
    if "us" not in result:
        return {}
    if name == STREAM:
        return {"gbps": case.weight_bytes / result["us"] * 1e-3}
    return {"tflops": case.flops / result["us"] * 1e-6, "gbps": case.bytes / result["us"] * 1e-3}


def _without(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The values that ``known`` lacks, or for which it has another value."""
    return {name: value for name, value in values.items() if name not in known or known[name] != value}


def _with(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """``values``, and the values of ``known`` under the names that ``values`` lacks."""
    return {**values, **{name: value for name, value in known.items() if name not in values}}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _rounded(of) for name, of in value.items()}
    return [_rounded(of) for of in value] if isinstance(value, list | tuple) else value


def _lean_result(case: Case, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    rates = {rate: value for rate, value in result.items() if rate in ("tflops", "gbps")}
    rounded = _rounded(result)
    expected = _rates(case, name, rounded)
    close = {rate for rate, value in rates.items() if rate in expected and abs(value / expected[rate] - 1) < 2e-4}
    return {
        field: [value[end] for end in ENDS] if field in _INTERVALS and set(value) == set(ENDS) else value
        for field, value in rounded.items()
        if field not in close
    }


def _complete_result(case: Case, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    values = {
        field: dict(zip(ENDS, value, strict=True)) if field in _INTERVALS and isinstance(value, list) else value
        for field, value in result.items()
    }
    return _with(values, _rates(case, name, values))


def _lean_row(row: Mapping[str, Any]) -> dict[str, Any]:
    case = Case(**row["case"])
    found = _without(row, _facts(case, ("label", "flops", "bytes", "align")))
    found["case"] = _without(row["case"], _CASE)
    if "results" in row:
        found["results"] = {name: _lean_result(case, name, result) for name, result in row["results"].items()}
    if "steps" in row:
        found["steps"] = [_lean_step(case, step) for step in row["steps"]]
    return found


def _lean_step(case: Case, step: Mapping[str, Any]) -> dict[str, Any]:
    kept = _without(step, _STEP)
    kept.pop("values", None)
    return kept | {"result": _lean_result(case, step["name"], step["result"])}


def _complete_row(row: dict[str, Any]) -> dict[str, Any]:
    case = Case(**row["case"])
    # Rows of suites have an alignment. Tables of the ladder have none.
    names = ("label", "flops", "bytes", "align") if "results" in row else ("label", "flops", "bytes")
    found = _with(row, _facts(case, names))
    found["case"] = {name: getattr(case, name) for name in _CASE}
    if "results" in row:
        found["results"] = {name: _complete_result(case, name, result) for name, result in row["results"].items()}
    if "steps" in row:
        found["steps"] = [
            _with(step, _STEP) | {"result": _complete_result(case, step["name"], step["result"])}
            for step in row["steps"]
        ]
    return found


def _of_a_case(row: Any) -> bool:
    """Whether this is a row of a suite or of the ladder. The cases of other scripts have other fields."""
    case = row.get("case") if isinstance(row, Mapping) else None
    return isinstance(case, Mapping) and case.keys() <= _CASE.keys()


def _each_row(document: Mapping[str, Any], change: Any) -> dict[str, Any]:
    return {
        name: [change(row) if _of_a_case(row) else row for row in value] if isinstance(value, list) else value
        for name, value in document.items()
    }


def _lean_survey(document: Mapping[str, Any]) -> dict[str, Any]:
    kernels: dict[str, int] = {}

    def place(name: str) -> int:
        return kernels.setdefault(name, len(kernels))

    shapes = []
    for row in document["shapes"]:
        chosen = [[model, place(c["served_by"]), c["source"], c["ratio"]] for model, c in row["chosen"].items()]
        measured = [row[name] for name in (*KEY, "torch_us", "best")]
        shapes.append([*measured, place(row["best_by"]), chosen, *([row["wrong"]] if "wrong" in row else [])])
    return {**document, "kernels": list(kernels), "shapes": shapes}


def _complete_survey(document: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(document)
    kernels = found.pop("kernels")

    def row(shape: list[Any]) -> dict[str, Any]:
        values = dict(zip(SHAPE, shape, strict=False))
        choices = {
            model: {"served_by": kernels[by], "source": source, "ratio": ratio}
            for model, by, source, ratio in values["chosen"]
        }
        align = Case(**{name: values[name] for name in KEY}).align
        return values | {"align": align, "best_by": kernels[values["best_by"]], "chosen": choices}

    return {**found, "shapes": [row(shape) for shape in document["shapes"]]}


def lean(document: Mapping[str, Any]) -> dict[str, Any]:
    shorter = _lean_survey(document) if "survey" in document else _each_row(document, _lean_row)
    found: dict[str, Any] = _rounded(shorter)
    return found


def complete(document: Mapping[str, Any]) -> dict[str, Any]:
    return _complete_survey(document) if "survey" in document else _each_row(document, _complete_row)


def text(value: Any, indent: str = "") -> str:
    """JSON with each value that fits on a line on one line, and otherwise a line for each of its members.

    Raises:
        ValueError: a number is not finite.
    """
    line = json.dumps(value, allow_nan=False, separators=(",", ":"))
    if len(indent) + len(line) <= _LINE or not isinstance(value, dict | list) or not value:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(name)}:{text(of, inner)}" for name, of in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + text(of, inner) for of in value) + f"\n{indent}]"
