"""Draws the results of ``python -m integration.decode``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from hgemm_ops.bench.plots import _OURS, _TORCH, _write

_FUSED = "#2f5fb8"
_SIDES = {
    "torch": ("torch", _TORCH),
    "ours": ("use_custom_gemm()", _OURS),
    "fused": ("with fused projections, static weights", _FUSED),
}


def by_batch(document: Mapping[str, Any], path: Path) -> Path:
    """Tokens a second over the batch, and the speed over torch with its interval; one column for each way of running.

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
                        # A percentile interval need not hold its median.
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
    return _write(figure, path)
