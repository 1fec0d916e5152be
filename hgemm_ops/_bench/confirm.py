"""Corrects a tuned table by what benchmarks measured of the dispatcher's choices.

``hgemm tune`` times a crowd of kernels on a chip that they keep warm; alone, beside torch, on a cooler chip the same
kernel may lose up to a tenth, since clocks then favour whoever needs fewer cycles. A kernel that was chosen counts with
the slower of its ratios to torch. Kernels that only ``hgemm tune`` saw ahead of it are left out of the shape, unless by
``CLEAR_LEAD`` where the chosen one did not hold.
"""

from __future__ import annotations

import json
from pathlib import Path

from hgemm_ops import _tables

from .runner import DISPATCHED, TORCH

HOLDS = 1.01  # what the dispatcher asks of a measured kernel
CLEAR_LEAD = 1.06

Shape = tuple[str, str, int, int, int, int]


def confirmed(results: Path) -> dict[Shape, tuple[str, float]]:
    """By shape, the kernel that served it and its ratio to torch; the slowest, where suites share a shape."""
    found: dict[Shape, tuple[str, float]] = {}
    for path in sorted(results.glob("*.json")):
        for row in json.loads(path.read_text()).get("rows", []):
            case, kernel = row.get("case", {}), row.get("served_by")
            ratio = row.get("results", {}).get(DISPATCHED, {}).get("ratio")
            if kernel in (None, TORCH) or ratio is None or case["op"] != "matmul" or case["padding"]:
                continue
            shape = (case["dtype"], case["layout"], case["batch"], case["m"], case["n"], case["k"])
            if shape not in found or ratio["value"] < found[shape][1]:
                found[shape] = (kernel, ratio["value"])
    return found


def correct(us: dict[str, float], kernel: str, ratio: float) -> dict[str, float]:
    """The times of a shape, where ``kernel`` reached ``ratio`` when it was chosen."""
    ratios = {name: us[TORCH] / time for name, time in us.items() if name != TORCH}
    holds = min(ratio, ratios.get(kernel, ratio))
    limit = holds if holds >= HOLDS else CLEAR_LEAD
    kept = {
        name: value
        for name, value in ratios.items()
        if name != kernel and (value <= limit if holds >= HOLDS else value >= limit)
    }
    return {TORCH: us[TORCH]} | {name: round(us[TORCH] / value, 3) for name, value in {kernel: holds, **kept}.items()}


def confirm(table: Path | None, gpu: str, results: Path) -> tuple[Path, int]:
    """Rewrites ``table`` (default: the GPU's shipped one) by the records in ``results``.

    Returns its path, and how many choices the records hold.
    """
    path = table or _tables.shipped_dir() / f"nvidia_{gpu}.json"
    tuned, seen = _tables.Table.read(path), confirmed(results)
    for i, e in enumerate(tuned.entries):
        choice = seen.get((e.dtype, e.layout, e.batch, e.m, e.n, e.k))
        if choice is not None and TORCH in e.us:
            us = correct(e.us, *choice)
            tuned.entries[i] = _tables.Entry(e.dtype, e.layout, e.align, e.batch, e.m, e.n, e.k, us)
    tuned.measured["confirmed"] = "by benchmarks/confirm_table.py"
    tuned.write(path)
    return path, len(seen)
