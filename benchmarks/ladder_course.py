"""Writes what the ladder's steps measured into their course, csrc/ladder/README.md, from the ``ladder_*.json`` results.

A part lies between ``<!-- ladder: NAME -->`` and ``<!-- end of NAME -->``. ``--check`` changes nothing and fails where
the course is not up to date.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hgemm_ops._bench import record
from hgemm_ops._bench.ladder import CUBLAS_F16, CUBLAS_F32, TORCH
from hgemm_ops._bench.rungs import FAMILIES, RUNGS, Rung
from hgemm_ops._bench.statistics import geometric_mean
from hgemm_ops._bench.suites import SUITES

ROOT = Path(__file__).resolve().parent.parent
COURSE = ROOT / "csrc" / "ladder" / "README.md"
LIST = ROOT / "csrc" / "ladder" / "variants.inc"
SEEDS = ROOT / "benchmarks" / "seeds" / "ratios.csv"
RESULTS = ROOT / "benchmarks" / "results" / "h200"

#: column of ratios.csv -> its heading, and the shapes it is a mean over
PUBLISHED = {
    "add_rtx3080ti": ("RTX 3080 Ti", "seeds-add"),
    "sgemm_ada": ("Ada", "seeds-sgemm"),
    "hgemm_ada": ("Ada", "seeds-small"),
    "wmma_ada": ("Ada, WMMA", "seeds-small"),
    "wmma_l20": ("L20", "seeds-large"),
    "wmma_rtx3080": ("RTX 3080", "seeds-small"),
}
CUBE, LARGE = "NN 4096x4096x4096", "NN 8192x8192x8192"
ADDS = ("256x256", "1024x1024", "4096x4096")
LIBRARIES = {
    TORCH: "torch",
    CUBLAS_F32: "cuBLAS, float sums",
    CUBLAS_F16: "cuBLAS, half sums",
}

Table = Mapping[str, Any]


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


class Results:
    """What the result files of one GPU say of steps."""

    def __init__(self, directory: Path) -> None:
        self.tables: list[Table] = []
        self.profiles: dict[str, Table] = {}
        self.copy_gbps = 0.0
        for path in sorted(directory.glob("ladder_*.json")):
            document = record.load(path)
            self.tables += document.get("ladder", [])
            self.copy_gbps = max(self.copy_gbps, document.get("copy_gbps", 0.0))
            self.profiles |= {entry["name"]: entry for entry in document.get("ncu", [])}

    def find(self, name: str, label: str) -> Table | None:
        """The result of a step or library on the shape of that label. A library's, beside any family."""
        for table in self.tables:
            for step in table["steps"] if table["label"] == label else ():
                if step["name"] == name and "us" in step["result"]:
                    result: Table = step["result"]
                    return result
        return None

    def ratio(self, name: str, label: str) -> float | None:
        """Speed over torch's on that shape."""
        found = self.find(name, label)
        return found["ratio"]["value"] if found and "ratio" in found else None

    def mean_ratio(self, name: str, labels: Iterable[str]) -> float | None:
        """The geometric mean over those of the shapes that were measured."""
        ratios = [ratio for label in labels if (ratio := self.ratio(name, label))]
        return geometric_mean(ratios) if ratios else None


def places() -> dict[str, tuple[int, str]]:
    """The line of every step in the list, and the file whose section it stands in."""
    found, file = {}, ""
    for number, line in enumerate(LIST.read_text().splitlines(), 1):
        if section := re.match(r"// ---- (\S+\.cu)", line):
            file = section[1]
        elif step := re.match(r"[A-Z][A-Z0-9_]*\((\w+), (?:F16|BF16|F32),", line):
            found[step[1]] = (number, file)
    return found


def _link(rung: Rung, where: Mapping[str, tuple[int, str]]) -> str:
    line, _ = where[rung.name]
    return f"[{rung.name}](variants.inc#L{line})"


def _text(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else f"{value:{form}}"


def _value(result: Table | None, key: str) -> float | None:
    return result[key] if result else None


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _profile(entry: Table | None) -> list[str]:
    """Columns of what the profiler counted."""
    if entry is None:
        return ["-"] * 6
    wavefronts, conflicts = entry.get("shared_wavefronts"), entry.get("bank_conflicts")
    stalls = entry["stalls"]
    return [
        _text(entry.get("memory_pct"), ".0f"),
        _text(entry.get("compute_pct"), ".0f"),
        _text(entry.get("occupancy_pct"), ".0f"),
        next(iter(stalls), "-").replace("_", " "),
        f"{100 * conflicts / wavefronts:.0f}" if wavefronts and conflicts is not None else "-",
        _text(entry.get("flop_per_dram_byte"), ".0f" if (entry.get("flop_per_dram_byte") or 0) >= 10 else ".2f"),
    ]


_PROFILED = ["memory %", "compute %", "occupancy %", "waits for", "conflicts %", "FLOP/B"]


def products(family: str, results: Results, where: Mapping[str, tuple[int, str]]) -> list[str]:
    """A family's steps at 4096 and at 8192, and what the profiler counted."""
    rows = []
    for rung in FAMILIES[family]:
        at = results.find(rung.name, CUBE)
        before = results.find(rung.after, CUBE) if rung.after else None
        large = results.find(rung.name, LARGE)
        rows.append(
            [
                _link(rung, where),
                rung.adds,
                _text(_value(at, "tflops"), ".1f"),
                _text(_over(_value(at, "tflops"), _value(before, "tflops")), ".2f"),
                _text(results.ratio(rung.name, CUBE)),
                _text(_value(large, "tflops"), ".1f"),
                _text(results.ratio(rung.name, LARGE)),
                *_profile(results.profiles.get(rung.name)),
            ]
        )
    rows += _libraries(results, family)
    header = ["step", "adds", "TFLOP/s", "x before", "of torch", "TFLOP/s, 8192", "of torch, 8192", *_PROFILED]
    return markdown(header, rows)


def _libraries(results: Results, family: str) -> list[list[str]]:
    """torch's and cuBLAS's lines of a family's table."""
    rows = []
    for name, title in LIBRARIES.items():
        at, large = (
            next(
                (
                    step["result"]
                    for table in results.tables
                    if table["label"] == label and table["family"] == family
                    for step in table["steps"]
                    if step["name"] == name and "us" in step["result"]
                ),
                None,
            )
            for label in (CUBE, LARGE)
        )
        if at is None:
            continue
        ratios = [found and (1.0 if name == TORCH else found["ratio"]["value"]) for found in (at, large)]
        rows.append(
            [
                f"*{title}*",
                "",
                _text(at["tflops"], ".1f"),
                "",
                _text(ratios[0]),
                _text(_value(large, "tflops"), ".1f"),
                _text(ratios[1]),
                *[""] * len(_PROFILED),
            ]
        )
    return rows


def sums(results: Results, where: Mapping[str, tuple[int, str]]) -> list[str]:
    """The additions in three sizes: GB/s, and of torch; at the largest, the share of a copy's rate."""
    rows = []
    for rung in FAMILIES["elementwise"]:
        dtype = "bfloat16" if "bf16" in rung.name else "float16" if "f16" in rung.name else "float32"
        found = [results.find(rung.name, f"{dtype} {size}") for size in ADDS]
        cells = []
        for at, size in zip(found, ADDS, strict=True):
            cells.append(_text(_value(at, "gbps"), ".0f"))
            cells.append(_text(results.ratio(rung.name, f"{dtype} {size}"), ".2f"))
        last = found[-1]
        share = f"{100 * last['gbps'] / results.copy_gbps:.0f}" if last and results.copy_gbps else "-"
        rows.append([_link(rung, where), rung.adds, *cells, share, *_profile(results.profiles.get(rung.name))[:4]])
    header = ["step", "adds"]
    for size in ADDS:
        header += [f"GB/s, {size.partition('x')[0]}²", "of torch"]
    return markdown([*header, "% of a copy", *_PROFILED[:4]], rows)


def published(results: Results) -> list[str]:
    """Each published ratio to torch beside the one measured here on the same shapes, and the ratio of the steps."""
    with SEEDS.open(newline="") as file:
        seeds = {row["name"]: row for row in csv.DictReader(file)}
    lines: list[str] = []
    for column, (gpu, suite) in PUBLISHED.items():
        labels = [case.label for case in SUITES[suite]]
        rows: list[list[str]] = []
        measured: set[str] = set()
        for name, row in seeds.items():
            if not row[column]:
                continue
            dtype = "float16" if "f16" in name else "float32"
            mine = [label for label in labels if label.startswith((dtype, "NN"))]
            theirs, ours = float(row[column]), results.mean_ratio(name, mine)
            before = RUNGS[name].after
            step = step_theirs = None
            if before and before in seeds and seeds[before][column]:
                step_theirs = theirs / float(seeds[before][column])
                step = _over(ours, results.mean_ratio(before, mine))
            mark = " (!)" if step and step_theirs and step < 0.9 * step_theirs else ""
            measured |= {label for label in mine if results.ratio(name, label)}
            rows.append([f"`{name}`", _text(theirs), _text(ours), _text(step_theirs, ".2f"), _text(step, ".2f") + mark])
        if all(row[2] == "-" for row in rows):
            continue
        ranks = _rank_correlation([(float(r[1]), float(r[2])) for r in rows if r[2] != "-"])
        lines += [
            f"**{gpu}**, shapes of `{suite}`, here {len(measured)}; rank correlation {_text(ranks, '.2f')}.",
            "",
            *markdown(["step", "of torch, published", "of torch, H200", "x before, published", "x before, H200"], rows),
            "",
        ]
    return lines or ["Not measured yet."]


def _rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's, of two orders of the same steps."""
    n = len(pairs)
    if n < 3:
        return None

    def ranks(values: Sequence[float]) -> list[int]:
        order = sorted(range(n), key=lambda i: values[i])
        place = [0] * n
        for rank, i in enumerate(order):
            place[i] = rank
        return place

    squared = sum((x - y) ** 2 for x, y in zip(*(ranks(side) for side in zip(*pairs, strict=True)), strict=True))
    return 1 - 6 * squared / (n * (n * n - 1))


def profiled(results: Results) -> list[str]:
    """Where the profiler's columns come from."""
    sizes: dict[int, dict[str, None]] = {}
    for name, entry in results.profiles.items():
        if name in RUNGS:
            sizes.setdefault(entry["size"], {})[RUNGS[name].family] = None
    if not sizes:
        return ["Not profiled yet."]
    return ["Profiled at " + "; at ".join(f"{size}³ ({', '.join(of)})" for size, of in sorted(sizes.items())) + "."]


def parts(results: Results) -> dict[str, list[str]]:
    """Every generated part by name."""
    where = places()
    found = {family: products(family, results, where) for family in FAMILIES if family != "elementwise"}
    return {
        "profiled": profiled(results),
        "elementwise": sums(results, where),
        **found,
        "published": published(results),
    }


def course(page: str, results: Results) -> str:
    """The page with its generated parts replaced.

    Raises:
        ValueError: a part's markers are not there once each.
    """
    for name, lines in parts(results).items():
        begin, end = f"<!-- ladder: {name} -->", f"<!-- end of {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the course needs one {begin!r} and one {end!r}")
        head, rest = page.split(begin)
        page = f"{head}{begin}\n" + "\n".join(["", *lines, ""]) + f"\n{end}{rest.split(end)[1]}"
    return page


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Only say whether it is up to date, by the status.")
@click.option("--results", type=click.Path(file_okay=False, exists=True, path_type=Path), default=RESULTS)
def main(check: bool, results: Path) -> None:
    page = COURSE.read_text()
    text = course(page, Results(results))
    if text == page:
        return
    click.echo(
        f"{COURSE}: {'not up to date, run python benchmarks/ladder_course.py' if check else 'written'}", err=check
    )
    if check:
        sys.exit(1)
    COURSE.write_text(text)


if __name__ == "__main__":
    main()
