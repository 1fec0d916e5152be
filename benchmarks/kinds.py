"""The kinds of matmuls by which README sums up the results, each with the suites that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The suites of a kind have results of one GPU in ``results/<gpu>``. A kind without results is left out.
KINDS: dict[str, tuple[str, ...]] = {
    "dense, M and N of 4096 to 16384": ("seeds-large", "seeds-large-nt", "seeds-large-bfloat16"),
    "dense, M and N of 1024 to 4096": ("seeds-small",),
    "layers of language models": ("llm", "llm-bfloat16"),
    "decoding, at most 32 rows": ("decode-nn", "decode-tp", "decode-chain"),
    "ragged sizes": ("ragged", "decode-ragged"),
    "batched": ("bmm",),
    "with bias and activation": ("fused",),
    "float32, at most 64 rows": ("float32-rows",),
    "mixtures of experts, grouped": ("grouped",),
    'float32="split"': ("float32-split",),
}


def ratios(document: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, float]]]:
    """The row and the ratio of each case in which the dispatcher's choice was timed against torch."""
    found = ((row, row["results"].get("hgemm", {}).get("ratio")) for row in document["rows"])
    return [(row, ratio) for row, ratio in found if ratio]


def speeds_of(document: Mapping[str, Any]) -> list[float]:
    """The speed over torch of each case of a suite, or of ``benchmarks/grouped.py``."""
    if "grouped" in document:
        return [row["ratio"] for row in document["grouped"]["rows"]]
    return [ratio["value"] for _, ratio in ratios(document)]


def by_kind(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float]]:
    """The speeds over torch of each kind that was timed."""
    found = {
        kind: [speed for name in names if name in documents for speed in speeds_of(documents[name])]
        for kind, names in KINDS.items()
    }
    return {kind: speeds for kind, speeds in found.items() if speeds}
