"""Writes the measurements in the ``ladder_*.json`` results into the ladder's course, benchmarks/ladder.md.

A generated part is between ``<!-- ladder: NAME -->`` and ``<!-- end of NAME -->``. ``--check`` changes nothing, and
fails if the course is not up to date.
"""

from __future__ import annotations

import csv
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own path has its directory alone

from benchmarks.course.measure import CUBLAS_F16, CUBLAS_F32, TORCH  # noqa: E402
from benchmarks.course.rungs import FAMILIES, RUNGS, Rung  # noqa: E402
from hgemm_ops.bench import record  # noqa: E402
from hgemm_ops.bench.statistics import geometric_mean  # noqa: E402

COURSE = ROOT / "benchmarks" / "ladder.md"
LIST = ROOT / "csrc" / "ladder" / "variants.inc"
STEPS = "../csrc/ladder"  # as the course links them
PUBLISHED_RATIOS = ROOT / "benchmarks" / "course" / "published_ratios.csv"
RESULTS = ROOT / "benchmarks" / "results" / "h200"

#: The heading of each table in published_ratios.csv.
PUBLISHED = {
    "rtx3080ti": "Sums, RTX 3080 Ti",
    "ada_sgemm": "float32, Ada",
    "ada_27": "half on CUDA cores, Ada",
    "ada_5": "half on CUDA cores and by WMMA, Ada",
    "l20": "half on CUDA cores and by WMMA, L20",
    "rtx3080": "half, RTX 3080",
}
CUBE, LARGE = "NN 4096x4096x4096", "NN 8192x8192x8192"
ADDS = ("256x256", "1024x1024", "4096x4096")
#: A step is explained if its gain is less than this share of the published gain, or less than this factor.
LEAST_GAIN = 0.9
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
    """The measurements of steps in the result files of one GPU."""

    def __init__(self, directory: Path) -> None:
        self.tables: list[Table] = []
        self.profiles: dict[str, Table] = {}
        self.copy_gbps = 0.0
        self.timed: Table = {}  # the environment of the timings
        self.profiled: Table = {}
        for path in record.files(directory, "ladder_*").values():
            document = record.load(path)
            if "ladder" in document:
                self.tables += document["ladder"]
                self.copy_gbps = max(self.copy_gbps, document["copy_gbps"])
                self.timed = document["environment"]
            if "ncu" in document:
                self.profiles |= {entry["name"]: entry for entry in document["ncu"]}
                self.profiled = document["environment"]

    def find(self, name: str, label: str) -> Table | None:
        """The result of a step or a library on the shape with this label.

        A library's result is taken from the table of any family.
        """
        for table in self.tables:
            for step in table["steps"] if table["label"] == label else ():
                if step["name"] == name and "us" in step["result"]:
                    result: Table = step["result"]
                    return result
        return None

    def ratio(self, name: str, label: str) -> float | None:
        """The speed over torch on that shape."""
        found = self.find(name, label)
        return found["ratio"]["value"] if found and "ratio" in found else None

    def gain(self, rung: Rung, label: str) -> float | None:
        """The speed over the step that this one changes."""
        before = self.find(rung.after, label) if rung.after else None
        return _over(_value(before, "us"), _value(self.find(rung.name, label), "us"))


@dataclass(frozen=True)
class Place:
    """Where a step is written.

    line: its line in the list of steps.
    file: the file of its body.
    body: the line of the kernel, or of the kernel's macro, in that file.
    """

    line: int
    file: str
    body: int


def places() -> dict[str, Place]:
    """The place of every step."""
    found, file, text = {}, "", ""
    for number, line in enumerate(LIST.read_text().splitlines(), 1):
        if section := re.match(r"// ---- (\S+\.cu)", line):
            file = section[1]
            text = (LIST.parent / file).read_text()
        elif step := re.match(r"([A-Z][A-Z0-9_]*)\((\w+), (?:F16|BF16|F32),", line):
            body = re.search(r"^.*__global__|^#define " + step[1] + r"\(", text, re.MULTILINE)
            found[step[2]] = Place(number, file, text.count("\n", 0, body.start()) + 1 if body else 1)
    return found


def repeated_share(files: Sequence[str], window: int = 6) -> float:
    """The share of code lines that are in a window of lines that occurs more than once."""
    lines: list[str] = []
    for text in files:
        code = [line.strip() for line in text.splitlines()]
        lines += [line for line in code if line and not line.startswith(("//", "#include"))] + ["<end>"]
    seen: dict[tuple[str, ...], list[int]] = {}
    for i in range(len(lines) - window + 1):
        seen.setdefault(tuple(lines[i : i + window]), []).append(i)
    repeated = {i + j for at in seen.values() if len(at) > 1 for i in at for j in range(window)}
    return len(repeated) / max(1, len(lines))


def bodies() -> list[str]:
    """A sentence that says how much of the ladder's code is repeated."""
    files = sorted(LIST.parent.glob("*.cu*"))
    share = repeated_share([file.read_text() for file in files])
    return [
        f"{len(RUNGS)} steps in {len(files)} files; {share:.1%} of the code lies in six-line windows that occur twice."
    ]


def _link(rung: Rung, where: Mapping[str, Place]) -> str:
    number, key = _body(where[rung.name])
    return f"[{rung.name}] ([{number}][{key}])"


def _body(place: Place) -> tuple[str, str]:
    """The number of a body's file, and the key of the link to the body."""
    number = re.sub(r"^sm90_|_.*", "", place.file)
    return number, f"{number}_{place.file.removesuffix('.cu').rpartition('_')[2]}:{place.body}"


def links(where: Mapping[str, Place]) -> list[str]:
    """The targets of the links that ``_link`` makes: each step's line in the list, and the bodies."""
    steps = [f"[{name}]: {STEPS}/variants.inc#L{place.line}" for name, place in where.items()]
    bodies = [f"[{_body(place)[1]}]: {STEPS}/{place.file}#L{place.body}" for place in where.values()]
    return [*steps, *dict.fromkeys(bodies)]


def _text(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else f"{value:{form}}"


def _value(result: Table | None, key: str) -> float | None:
    return result[key] if result else None


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _profile(entry: Table | None) -> list[str]:
    """The columns with what the profiler counted."""
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


def products(family: str, results: Results, where: Mapping[str, Place]) -> list[str]:
    """A family's table: its steps at 4096 and at 8192, and what the profiler counted."""
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
    """The lines of a family's table for torch, for cuBLAS and for the production kernel."""
    found: dict[str, dict[str, Table]] = {}  # line, shape -> result
    for table in results.tables:
        for step in table["steps"] if table["family"] == family and table["label"] in (CUBE, LARGE) else ():
            if step["name"] not in RUNGS and "us" in step["result"]:
                title = LIBRARIES.get(step["name"], f"production: {step['name']}")
                found.setdefault(title, {})[table["label"]] = step["result"]
    rows = []
    for title, by_shape in sorted(found.items(), key=lambda line: line[0] in LIBRARIES.values()):
        cells = []
        for label in (CUBE, LARGE):
            at = by_shape.get(label)
            ratio = None if at is None else at["ratio"]["value"] if "ratio" in at else 1.0
            cells.append((_text(_value(at, "tflops"), ".1f"), _text(ratio)))
        (rate, ratio_text), large = cells
        rows.append([f"*{title}*", "", rate, "", ratio_text, *large, *[""] * len(_PROFILED)])
    return rows


def _dtype(name: str) -> str:
    return "bfloat16" if "bf16" in name else "float16" if "f16" in name else "float32"


def sums(results: Results, where: Mapping[str, Place]) -> list[str]:
    """The table of the additions in three sizes: GB/s, the share of a copy's rate, and the speed over torch."""
    rows = []
    for rung in FAMILIES["elementwise"]:
        cells = []
        for size in ADDS:
            label = f"{_dtype(rung.name)} {size}"
            rate = _value(results.find(rung.name, label), "gbps")
            share = _text(_over(rate, results.copy_gbps), ".0%").rstrip("%")
            cells += [_text(rate, ".0f"), share, _text(results.ratio(rung.name, label), ".2f")]
        rows.append([_link(rung, where), rung.adds, *cells, *_profile(results.profiles.get(rung.name))])
    header = ["step", "adds"]
    for size in ADDS:
        header += [f"GB/s, {size.partition('x')[0]}²", "% of a copy", "of torch"]
    return markdown([*header, *_PROFILED], rows)


# ---- what was published

Shape = tuple[int, int, int]


def seeds() -> dict[str, dict[tuple[str, Shape], float]]:
    """The published ratios to torch by table, step and shape."""
    found: dict[str, dict[tuple[str, Shape], float]] = {table: {} for table in PUBLISHED}
    with PUBLISHED_RATIOS.open(newline="") as file:
        for row in csv.DictReader(file):
            for entry in row["ratios"].split():
                sizes, _, ratio = entry.partition("=")
                m, n, k = map(int, sizes.split("x"))
                found[row["table"]][row["name"], (m, n, k)] = float(ratio)
    return found


class Comparison:
    """A published table beside our measurements, as geometric means over the shapes that both have."""

    def __init__(self, ratios: Mapping[tuple[str, Shape], float], results: Results) -> None:
        self.published = list(dict.fromkeys(shape for _, shape in ratios))
        names = {name for name, _ in ratios}
        self.names = [name for name in RUNGS if name in names]
        ours = {(name, shape): results.ratio(name, _label(name, shape)) for name, shape in ratios}
        self.shapes = [shape for shape in self.published if all(ours[name, shape] for name in self.names)]
        self.theirs: dict[str, float] = {}
        self.ours: dict[str, float] = {}
        for name in self.names if self.shapes else ():
            self.theirs[name] = geometric_mean([ratios[name, shape] for shape in self.shapes])
            self.ours[name] = geometric_mean([ours[name, shape] or 0.0 for shape in self.shapes])

    def gains(self, name: str) -> tuple[float, float] | None:
        """A step's gain over the step that it changes: published and measured.

        None for the first step of a family, and where the table lacks the step before.
        """
        before = RUNGS[name].after
        if before is None or before not in self.theirs:
            return None
        return self.theirs[name] / self.theirs[before], self.ours[name] / self.ours[before]


def _label(name: str, shape: Shape) -> str:
    m, n, k = shape
    return f"{_dtype(name)} {m}x{n}" if RUNGS[name].family == "elementwise" else f"NN {m}x{n}x{k}"


def _places(values: Mapping[str, float]) -> dict[str, int]:
    """The rank of each step by speed. The fastest one has rank 1."""
    return {name: i for i, name in enumerate(sorted(values, key=lambda name: -values[name]), 1)}


def published(results: Results) -> list[str]:
    """Each published ratio to torch beside ours on the same shapes, the ranks of the steps, and their gains."""
    lines: list[str] = []
    for table, ratios in seeds().items():
        both = Comparison(ratios, results)
        if not both.shapes:
            continue
        rows = []
        theirs, ours = _places(both.theirs), _places(both.ours)
        for name in both.names:
            gains = both.gains(name) or (None, None)
            mark = " (!)" if gains[0] and gains[1] and gains[1] < LEAST_GAIN * gains[0] else ""
            ratio = [_text(both.theirs[name]), _text(both.ours[name])]
            rows.append(
                [f"`{name}`", *ratio, theirs[name], ours[name], _text(gains[0], ".2f"), _text(gains[1], ".2f") + mark]
            )
        ranks = _rank_correlation([(both.theirs[name], both.ours[name]) for name in both.names])
        shapes = ", ".join("x".join(map(str, shape[:2] if shape[2] == 1 else shape)) for shape in both.shapes)
        if both.shapes == both.published and len(both.shapes) > 8:
            shapes = f"all {len(both.shapes)} shapes"
        else:
            shapes += f" ({len(both.shapes)} of {len(both.published)} shapes)"
        header = ["step", "of torch, published", "of torch, H200", "place, published", "place, H200"]
        lines += [
            f"**{PUBLISHED[table]}**: {shapes}" + (f"; rank correlation {ranks:.2f}." if ranks is not None else "."),
            "",
            *markdown([*header, "x before, published", "x before, H200"], rows),
            "",
        ]
    return lines[:-1] or ["Not measured yet."]


def losses(results: Results, where: Mapping[str, Place]) -> list[str]:
    """The steps whose gain is too small (``LEAST_GAIN``), with the reason that the profiler shows."""
    # For each step: its share of the published gain, the published gain, its gain, and the shapes.
    found: dict[str, tuple[float, float | None, float, str]] = {}

    def consider(name: str, theirs: float | None, ours: float, on: str) -> None:
        share = ours / (theirs or 1.0)
        if min(share, ours) < LEAST_GAIN and (name not in found or share < found[name][0]):
            found[name] = (share, theirs, ours, on)

    for table, ratios in seeds().items():
        both = Comparison(ratios, results)
        for name in both.theirs:
            if gains := both.gains(name):
                consider(name, *gains, PUBLISHED[table].rpartition(", ")[2] + "'s shapes")
    compared = set(found)
    for rung in RUNGS.values():
        sizes = [f"{_dtype(rung.name)} {size}" for size in ADDS] if rung.family == "elementwise" else [CUBE, LARGE]
        for label in sizes:
            gain = results.gain(rung, label)
            if gain is not None and rung.name not in compared:
                consider(rung.name, None, gain, label.removeprefix("NN "))
    rows, reasons = [], []
    for name in (name for name in RUNGS if name in found):
        rung, (_, theirs, ours, on) = RUNGS[name], found[name]
        assert rung.after is not None
        before, at = (results.profiles.get(n, {}) for n in (rung.after, name))
        sides = (_profile(before or None), _profile(at or None))
        pipes = [max((e.get("fma_pct") or 0, e.get("tensor_pct") or 0), default=0) if e else None for e in (before, at)]
        columns = [f"{sides[0][i]} → {sides[1][i]}" for i in (0, 2, 4, 3)]
        pipe = " → ".join(_text(value, ".0f") for value in pipes)
        gain = f"{ours:.2f} ({on})"
        rows.append([_link(rung, where), _text(theirs, ".2f"), gain, pipe, *columns])
        why = f"- [{name}]: {rung.loses or 'Not explained.'}"
        reasons += textwrap.wrap(why, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    if not rows:
        return ["None."]
    header = ["step", "x before, published", "x before, H200", "pipe %", "memory %", "occupancy %", "conflicts %"]
    return [*markdown([*header, "waits for"], rows), "", "Why:", "", *reasons]


def _rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation of two orders of the same steps; None for fewer than three steps."""
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


def measured(results: Results) -> list[str]:
    """Sentences on the GPU, the versions and the sources of the timings and profiles."""
    if not results.timed:
        return ["Not measured yet."]
    facts = results.timed
    csrc = (facts["csrc"] or "-")[:8]
    lines = [
        f"Timed on {facts['gpu']} with torch {facts['torch']}, {facts['date'][:10]}, csrc `{csrc}`.",
        f"A copy within its memory moves {results.copy_gbps:.0f} GB/s.",
    ]
    if results.profiles:
        csrc = (results.profiled["csrc"] or "-")[:8]
        sizes = " and ".join(f"{size}³" for size in sorted({entry["size"] for entry in results.profiles.values()}))
        lines.append(f"Profiled at {sizes}, sums at that squared, csrc `{csrc}`.")
    return lines


def parts(results: Results) -> dict[str, list[str]]:
    """Every generated part by name."""
    where = places()
    found = {family: products(family, results, where) for family in FAMILIES if family != "elementwise"}
    return {
        "bodies": bodies(),
        "measured": measured(results),
        "elementwise": sums(results, where),
        **found,
        "losses": losses(results, where),
        "published": published(results),
        "links": links(where),
    }


def course(page: str, results: Results) -> str:
    """The page with its generated parts replaced.

    Raises:
        ValueError: a marker of a part is missing, or occurs more than once.
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
