"""The page of one GPU's committed results: charts that show details on hovering and can be filtered.

``data`` turns the result files into the rows of the charts. ``page`` draws them with Vega-Lite; vl-convert has its
JavaScript, which becomes part of the page, so that the page needs no network. The ladder's section is
``benchmarks/ladder.md`` with its tables replaced by charts.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from benchmarks.course.measure import LIBRARIES, TORCH
from benchmarks.course.rungs import FAMILIES, RUNGS
from benchmarks.report import charts
from benchmarks.report.charts import Row, Spec
from hgemm_ops.bench import record, survey
from hgemm_ops.bench.suites import Case

OURS = "hgemm"
MISSING = "hgemm report draws with vl-convert: pip install vl-convert-python (or hgemm_ops[report])"
_TEMPLATE = Path(__file__).with_name("page.html")
_SPEEDUP = {"value": "speedup", "low": "speedup_low", "high": "speedup_high"}
_DIGITS = 5  # significant digits of the numbers in the page

Document = Mapping[str, Any]


def read(directory: Path) -> Mapping[str, Document]:
    """The result files of one GPU, by name.

    Raises:
        ValueError: the directory has no result file, or one of another schema.
    """
    documents = {name: record.load(path) for name, path in record.files(directory).items()}
    if not documents:
        raise ValueError(f"{directory}: holds no result files (*.json)")
    return documents


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _interval(ratio: Mapping[str, float]) -> dict[str, Any]:
    low, high = _short(ratio["low"]), _short(ratio["high"])
    return {"ratio": _short(ratio["value"]), "low": low, "high": high, "interval": f"{low:.3f} to {high:.3f}"}


def _verdict(ratio: Mapping[str, float], by: str | None = None) -> str:
    if by == TORCH:
        return "torch's kernel"
    return "slower" if ratio["high"] < 1 else "faster" if ratio["low"] > 1 else "not told apart"


def speed_rows(documents: Mapping[str, Document]) -> list[Row]:
    """Every case of a suite, and every untuned shape, for which the dispatcher's choice was timed."""
    rows = [row for name, document in documents.items() for row in _suite_rows(name, document)]
    rows += [row for name, document in documents.items() for row in _survey_rows(name, document)]
    for row in rows:
        row["line"] = f"{row['suite']}: {row['label']}"
        row["words"] = " ".join(str(row[key]) for key in ("line", "dtype", "by", "source", "verdict")).lower()
    return [*rows]


def _suite_rows(name: str, document: Document) -> Iterator[dict[str, Any]]:
    for row in document.get("rows", ()):
        ours, theirs, case = row["results"].get(OURS, {}), row["results"].get(TORCH, {}), row["case"]
        if "ratio" not in ours or "us" not in theirs:
            continue
        yield {
            "suite": name,
            "label": row["label"],
            "dtype": case["dtype"],
            "layout": case["layout"],
            "flop": row["flops"],
            "intensity": _short(row["flops"] / row["bytes"]),
            "us": _short(ours["us"]),
            "torch_us": _short(theirs["us"]),
            "tflops": _short(ours["tflops"]),
            "torch_tflops": _short(theirs["tflops"]),
            "gbps": _short(ours["gbps"]),
            "by": row["served_by"],
            "source": row["source"],
            "verdict": _verdict(ours["ratio"], row["served_by"]),
            **_interval(ours["ratio"]),
        }


def _survey_rows(name: str, document: Document) -> Iterator[dict[str, Any]]:
    """The untuned shapes. Their ratios have no interval."""
    for row in document.get("shapes", ()) if document.get("survey") in survey.RECORDS else ():
        case = Case(**{key: row[key] for key in ("dtype", "layout", "batch", "m", "n", "k")})
        for model, choice in row["chosen"].items():
            ratio = choice["ratio"]
            if ratio is None:
                continue
            us = row["torch_us"] / ratio
            torchs = choice["served_by"] == TORCH
            yield {
                "suite": name,
                "label": f"{case.label} {model}".strip(),
                "dtype": case.dtype,
                "layout": case.layout,
                "flop": case.flops,
                "intensity": _short(case.flops / case.bytes),
                "us": _short(us),
                "torch_us": _short(row["torch_us"]),
                "tflops": _short(case.flops / us * 1e-6),
                "torch_tflops": _short(case.flops / row["torch_us"] * 1e-6),
                "gbps": _short(case.bytes / us * 1e-3),
                "by": choice["served_by"],
                "source": choice["source"],
                "verdict": "torch's kernel" if torchs else "slower" if ratio < 1 else "faster",
                "ratio": _short(ratio),
                "low": _short(ratio),
                "high": _short(ratio),
                "interval": "not measured",
            }


def roofs(documents: Mapping[str, Document], rows: Sequence[Row]) -> dict[str, float]:
    """The highest bandwidth, of a copy or of a matmul that reads DRAM, and the highest rate."""
    copies = [document["copy_gbps"] for document in documents.values() if "copy_gbps" in document]
    rates = [row[name] for row in rows for name in ("tflops", "torch_tflops")]
    return {"gbps": _short(max([*copies, *(row["gbps"] for row in rows)])), "tflops": _short(max(rates))}


def stream_rows(documents: Mapping[str, Document]) -> list[Row]:
    """The matmuls that were timed beside a kernel that only reads the weights: our and torch's share of its speed."""
    rows: list[Row] = []
    for name, document in documents.items():
        for row in document.get("rows", ()):
            sides = {"torch": row["results"].get(TORCH, {}), "ours": row["results"].get(OURS, {})}
            shares = {side: result["of_stream"]["value"] for side, result in sides.items() if "of_stream" in result}
            for side, share in shares.items():
                rows.append(
                    {
                        "suite": name,
                        "label": row["label"],
                        "line": f"{name}: {row['label']}",
                        "side": side,
                        "share": _short(share),
                        "worst": _short(shares.get("ours", share)),
                        "us": _short(sides[side]["us"]),
                        "gbps": _short(sides[side]["gbps"]),
                        "by": TORCH if side == "torch" else row["served_by"],
                    }
                )
    return rows


def decode_rows(documents: Mapping[str, Document]) -> list[Row]:
    """Decoding: tokens a second over torch's, by side, batch size and way of running a decoding step."""
    names = {"ours": "ours", "fused": "fused projections"}
    return [
        {
            "batch": row["batch"],
            "runner": row["runner"],
            "side": names[side],
            "rate": _short(result["tokens_per_second"]),
            **_interval(result["speedup"]),
        }
        for document in documents.values()
        if "decode" in document
        for row in document["results"]
        for side, result in row["sides"].items()
        if side in names and result["speedup"]
    ]


def model_rows(documents: Mapping[str, Document]) -> list[Row]:
    """Whole models, eager and compiled."""
    rows: list[Row] = []
    for result in documents.get("integration", {}).get("results", ()):
        if timing := result["timing"]:
            ratio = {
                name: timing[f"speedup{end}"] for name, end in {"value": "", "low": "_low", "high": "_high"}.items()
            }
            rows.append(
                {
                    "label": result["label"],
                    "how": "CUDA graph" if result["scenario"] == "decode" else "eager",
                    "ms": _short(timing["ours_ms"]),
                    "torch_ms": _short(timing["torch_ms"]),
                    "share": f"{result['our_share_of_flops']:.0%}",
                    "verdict": _verdict(ratio),
                    **_interval(ratio),
                }
            )
    for result in documents.get("compiled", {}).get("results", ()):
        for side, ratio in result["speed"].items():
            rows.append(
                {
                    "label": f"{result['label']} compiled",
                    "how": "torch.compile",
                    "ms": _short(result["ms"][side]),
                    "torch_ms": _short(result["ms"][TORCH]),
                    "share": "-",
                    "verdict": _verdict(ratio),
                    **_interval(ratio),
                }
            )
    return rows


def course_rows(documents: Mapping[str, Document]) -> dict[str, list[Row]]:
    """The steps of each family on the largest shapes measured, in the order of the course, and the libraries."""
    tables: dict[tuple[str, str], Document] = {}
    waits: dict[str, str] = {}
    for document in documents.values():
        for table in document.get("ladder", ()):
            if table["case"]["op"] != "add" or table["case"]["m"] == table["case"]["n"]:
                tables[table["family"], table["label"]] = table
        if "clock_control" in document:
            waits |= {e["name"]: next(iter(e["stalls"]), "-").replace("_", " ") for e in document["ncu"]}
    found: dict[str, list[Row]] = {}
    for family in FAMILIES:
        of = sorted((t for (f, _), t in tables.items() if f == family), key=lambda t: t["flops"])
        shown = [t for t in of if t["case"]["m"] in (256, 1024, 4096)] if family == "elementwise" else of[-2:]
        rows = [row for table in shown for row in _steps(table, waits)]
        if rows:
            found[family] = rows
    return found


def _steps(table: Document, waits: Mapping[str, str]) -> Iterator[Row]:
    case = table["case"]
    unit, shape = ("gbps", f"{case['m']}²") if case["op"] == "add" else ("tflops", f"{case['m']}³")
    timed = {step["name"]: step["result"] for step in table["steps"] if unit in step["result"]}
    for name, result in timed.items():
        rung = RUNGS.get(name)
        before = timed.get(rung.after or "") if rung else None
        library = name in LIBRARIES
        if library and case["op"] == "add" and case["dtype"] != "float16":
            continue  # one line for each shape
        yield {
            "step": rung.label if rung else name if library else "production",
            "place": list(RUNGS).index(name) if rung else len(RUNGS),
            "adds": rung.adds if rung else name,
            "shape": shape,
            "other": library,
            "rate": _short(result[unit]),
            "before": f"{before['us'] / result['us']:.2f}" if before else "-",
            "of_torch": f"{result['ratio']['value']:.3f}" if "ratio" in result else "-",
            "waits": waits.get(name, "-"),
        }


def data(documents: Mapping[str, Document]) -> dict[str, Any]:
    """The rows of all charts."""
    return {
        "speed": speed_rows(documents),
        "stream": stream_rows(documents),
        "decode": decode_rows(documents),
        "models": model_rows(documents),
        "ladder": course_rows(documents),
    }


# The page.


def _chart(name: str) -> str:
    return f'<div class="chart" id="chart-{name}"></div>'


def _markdown(directory: Path) -> MarkdownIt:
    """A renderer of CommonMark with tables.

    Pictures that lie in ``directory`` become part of the page. Links become plain text, because they point into the
    checkout.
    """

    def image(_: object, tokens: Sequence[Token], index: int, *__: object) -> str:
        path, words = directory / str(tokens[index].attrs["src"]), html.escape(tokens[index].content)
        if path.suffix != ".svg" or not path.is_file():
            return words
        drawn = base64.b64encode(path.read_bytes()).decode()
        return f'<img alt="{words}" src="data:image/svg+xml;base64,{drawn}">'

    md = MarkdownIt("commonmark", {"html": False}).enable("table")
    md.add_render_rule("image", image)
    for rule in ("link_open", "link_close"):
        md.add_render_rule(rule, lambda *_: "")
    md.add_render_rule("table_open", lambda *_: '<div class="wide"><table>')
    md.add_render_rule("table_close", lambda *_: "</table></div>")
    return md


def _course(course: Path | None, families: Sequence[str]) -> str:
    """The course with a chart before each family's table. Without the course's page, each family's name and chart."""
    if course is None:
        return "".join(f"<h3>{family}</h3>{_chart(f'ladder-{family}')}" for family in families)
    md = _markdown(course.parent)
    text = re.sub(r"^# .*\n", "", course.read_text("utf-8"))
    text = re.sub(r"^(#+) ", r"#\1 ", text, flags=re.MULTILINE)
    parts: list[str] = []
    at = 0
    for part in re.finditer(r"<!-- ladder: (\w+) -->\n(.*?)<!-- end of \1 -->\n", text, re.DOTALL):
        parts.append(md.render(text[at : part.start()]))
        table = md.render(part[2])
        if part[1] in families:
            table = f"{_chart(f'ladder-{part[1]}')}<details><summary>in numbers</summary>{table}</details>"
        parts.append(table)
        at = part.end()
    return "".join([*parts, md.render(text[at:])])


def _charts(found: Mapping[str, Any], documents: Mapping[str, Document]) -> dict[str, Spec]:
    """The charts by the id of the element that shows them. A section without measurements has no chart."""
    specs: dict[str, Spec] = {}
    if rows := found["speed"]:
        specs["speed"] = charts.speed(rows, roofs(documents, rows))
    for name, draw in (
        ("stream", charts.stream), ("decode", charts.decode), ("models", charts.models),
    ):  # fmt: skip
        if rows := found[name]:
            specs[name] = draw(rows)
    for family, rows in found["ladder"].items():
        specs[f"ladder-{family}"] = charts.course(rows, "GB/s" if family == "elementwise" else "TFLOP/s")
    return specs


#: The title of each section, and what a reader must know about its charts.
_TITLES = {
    "speed": (
        "Speed over torch",
        """Ratios of torch's time to ours, above 1 where ours is faster. The fields choose the cases of all three
        charts; a point says what it is. Red: the 95 % interval lies below 1.""",
    ),
    "stream": (
        "Decode against the stream",
        """A product of few rows can be no faster than its weights are read. A point at 100 % takes the time of a kernel
        that only reads them. The products farthest from it come first.""",
    ),
    "decode": ("Tokens a second", "Whole steps of decoding, over torch's, with the 95 % interval."),
    "models": ("Whole models", "Forward, generation and training, the slowest first."),
    "ladder": (
        "The ladder",
        """From a naive kernel to wgmma. Each family has a logarithmic axis of its own; dashed lines are torch and
        cuBLAS. A point says what its step adds and gains.""",
    ),
}


def page(documents: Mapping[str, Document], course: Path | None = None) -> str:
    """The page as HTML. ``course`` is the path of ``benchmarks/ladder.md``.

    Raises:
        ModuleNotFoundError: vl-convert is not installed.
    """
    import vl_convert

    found = data(documents)
    specs = _charts(found, documents)
    shown = {name: title for name, title in _TITLES.items() if found[name]}
    sections = []
    for name, (title, note) in shown.items():
        fields = '<div id="filters"></div>' if name == "speed" else ""
        body = _course(course, list(found["ladder"])) if name == "ladder" else _chart(name)
        sections.append(f'<section id="{name}"><h2>{title}</h2><p class="note">{note}</p>{fields}{body}</section>')
    facts = max((d["environment"] for d in documents.values()), key=lambda facts: str(facts["date"]))
    words = {"driver": "driver", "cuda": "CUDA", "torch": "torch"}
    machine = [f"{word} {facts[name]}" for name, word in words.items() if facts.get(name)]
    text = json.dumps(specs, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return Template(_TEMPLATE.read_text("utf-8")).substitute(
        gpu=html.escape(str(facts["gpu"])),
        machine=html.escape(", ".join([*machine, f"newest record {facts['date'][:10]}"])),
        contents=" ".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in shown.items()),
        sections="\n".join(sections),
        library=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script"),
        charts=text,
    )
