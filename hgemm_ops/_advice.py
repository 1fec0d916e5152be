"""What the matmuls of a program gain, and which settings would make them gain more: ``hgemm doctor PROGRAM``.

The times are the dispatcher's: measured ones where the tuning table has the shape, else those that the cost model
predicts. They are times of the GPU, without what the host takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from . import _native, _tables, _variants
from ._report import Report

#: A setting is recommended if it takes this share of a matmul's time away.
_WORTH = 0.02
_MOST_LINES = 20


@dataclass(frozen=True)
class Advice:
    """One kind of matmul, with the microseconds of all its calls.

    torch_us: on torch's kernels. now_us: as it ran. then_us: with ``setting``, None if nobody has measured or predicted
    that. ``setting`` is "" if none would help. ``why`` is the reason why it ran as it did.
    """

    matmul: str
    calls: int
    variant: str
    torch_us: float
    now_us: float
    setting: str
    then_us: float | None
    why: str


def _query(kind: _native.CallCount, facts: _native.Facts) -> _native.Query:
    """Returns the question for contiguous operands of this kind, with the settings that it ran with."""
    dtype, layout = _native.DTYPES[kind.dtype], _native.LAYOUTS[kind.a_major, kind.b_major]
    query = _variants.matmul_query(kind.m, kind.n, kind.k, dtype, layout, facts, kind.batch, kind.align)
    query.act, query.has_bias, query.out_dtype = kind.act, kind.has_bias or kind.has_c, kind.out_dtype
    query.numerics, query.float32 = kind.numerics, kind.float32
    return query


def _times(query: _native.Query) -> tuple[int, dict[int, float]]:
    """Returns what the dispatcher chooses, and the microseconds of every candidate that it may choose."""
    decision, candidates = _native.explain(query)
    times = {c.variant: c.predicted_us if math.isnan(c.measured_us) else c.measured_us for c in candidates}
    return decision.variant, {variant: us for variant, us in times.items() if not math.isnan(us)}


def _changes(kind: _native.CallCount) -> dict[str, dict[str, int]]:
    """Returns the settings that may help, with the fields of the query that they change."""
    changes: dict[str, dict[str, int]] = {}
    source = _native.SOURCES[kind.source]
    if source == "forced" and not kind.left:
        changes["variant=None"] = {}
    splits = _native.DTYPES[kind.dtype] in (torch.float32, torch.complex64)
    if splits and kind.float32 != _native.FLOAT32.index("split"):
        changes['float32="split"'] = {"float32": _native.FLOAT32.index("split")}
    if kind.numerics != _native.NUMERICS.index("fast"):
        changes['numerics="fast"'] = {"numerics": _native.NUMERICS.index("fast")}
    return changes


def _is_predicted(kind: _native.CallCount, facts: _native.Facts) -> bool:
    """Whether torch's time is predicted: in float64 that of matrices on Hopper, where float64 is fast."""
    dtype = _native.DTYPES[kind.dtype]
    if dtype == torch.float64:
        return facts.cc == 90 and not facts.slow_float64 and min(kind.m, kind.n) > 1
    return dtype in _native.PREDICTED_DTYPES


def _advise(kind: _native.CallCount, facts_of: Callable[[int], _native.Facts], why: str) -> Advice:
    _tables.ensure()
    dtype = _native.dtype_name(_native.DTYPES[kind.dtype])
    sizes = f"{kind.batch}x{kind.m}x{kind.n}x{kind.k}".removeprefix("1x")
    name = _variants.name_of(kind.variant)
    if kind.variant == _native.UNKNOWN:
        return Advice("all others", kind.calls, name, 0.0, 0.0, "", None, why)
    matmul = f"{sizes} {dtype} {_native.LAYOUTS[kind.a_major, kind.b_major]}"
    unknown = Advice(matmul, kind.calls, name, 0.0, 0.0, "", None, why)
    if kind.left or 0 in (kind.batch, kind.m, kind.n):
        return unknown
    facts = facts_of(kind.ordinal)
    if not _is_predicted(kind, facts):
        return unknown
    _, times = _times(_query(kind, facts))
    torch_us = times.get(_native.TORCH, 0.0)
    now = times.get(kind.variant, torch_us)
    setting, then = "", now
    for text, fields in _changes(kind).items():
        query = _query(kind, facts)
        for field, value in fields.items():
            setattr(query, field, value)
        chosen, others = _times(query)
        if (us := others.get(chosen, now)) < then * (1 - _WORTH):
            setting, then = text, us
    then_us: float | None = then * kind.calls if setting else None
    if not setting and name == "torch" and _native.SOURCES[kind.source] == "model":
        setting = "tune=True"  # nobody has timed this shape
    return Advice(matmul, kind.calls, name, torch_us * kind.calls, now * kind.calls, setting, then_us, why)


def advise(
    counts: Iterable[_native.CallCount], reasons: Iterable[str], facts_of: Callable[[int], _native.Facts]
) -> list[Advice]:
    """Returns a line for each kind of matmul, those that take the longest first.

    ``facts_of`` gives the facts of a device by its ordinal.
    """
    lines = [_advise(kind, facts_of, why) for kind, why in zip(counts, reasons, strict=True)]
    return sorted(lines, key=lambda line: line.now_us, reverse=True)


def of(report: Report) -> list[Advice]:
    """Returns the advice on the matmuls of a report, which this process has run."""
    counts = report.counts()
    return advise(counts, _native.reasons(counts), _native.device_facts)


def to_dict(lines: Iterable[Advice]) -> dict[str, Any]:
    """Returns the lines as plain data, for JSON."""
    return {"matmuls": [asdict(line) for line in lines]}


def to_text(lines: list[Advice]) -> str:
    """Returns the lines as a table, with the sums of all."""
    if not lines:
        return "no matmul ran on a GPU"
    header = ("matmul", "calls", "ran on", "torch us", "now us", "setting", "then us", "why")
    rows = [header]
    for line in lines[:_MOST_LINES]:
        us = [f"{value:.1f}" if value else "-" for value in (line.torch_us, line.now_us, line.then_us)]
        rows.append((line.matmul, str(line.calls), line.variant, us[0], us[1], line.setting or "-", us[2], line.why))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(lines) > _MOST_LINES:
        text.append(f"and {len(lines) - _MOST_LINES} more kinds, which take less time")
    torch, now = (sum(us) for us in zip(*((line.torch_us, line.now_us) for line in lines), strict=True))
    text += ["", "GPU time of all these matmuls, as measured where a shape was tuned, else as predicted:"]
    text.append(f"  torch {torch:.1f} us, now {now:.1f} us{_speed(torch, now)}")
    for setting in dict.fromkeys(line.setting for line in lines if line.then_us is not None):
        then = sum(line.then_us if line.setting == setting and line.then_us else line.now_us for line in lines)
        text.append(f"  with {setting}: {then:.1f} us{_speed(torch, then)}")
    if any(line.setting == "tune=True" for line in lines):
        text.append("  with tune=True: not known. Torch runs untuned shapes that the model predicts no gain for")
    return "\n".join(text)


def _speed(torch: float, us: float) -> str:
    return f", {torch / us:.2f} times torch's speed" if us else ""
