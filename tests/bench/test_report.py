"""``hgemm report``: what the page shows of the committed results, and that a browser shows it without an error."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import chromium
import pytest
from click.testing import CliRunner
from helpers import ROOT, run_python

from benchmarks.report import page as report
from hgemm_ops.bench import record
from hgemm_ops.cli import main

RESULTS = ROOT / "benchmarks" / "results" / "h200"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    run = CliRunner().invoke(main, ["report", "--json"])  # of the GPU that most was measured on
    assert run.exit_code == 0, run.output
    assert run.output == CliRunner().invoke(main, ["report", "--results", str(RESULTS), "--json"]).output
    return json.loads(run.output)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vl_convert", reason="vl-convert-python draws the charts")
    path = tmp_path_factory.mktemp("report") / "report.html"
    run = CliRunner().invoke(main, ["report", "--results", str(RESULTS), "--output", str(path)])
    assert run.exit_code == 0, run.output
    return path


def test_the_page_does_not_depend_on_the_locale(page: Path, tmp_path: Path) -> None:
    code = f"from hgemm_ops.cli import main; main(['report', '--output', {str(tmp_path / 'report.html')!r}])"
    done = run_python(code, PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").read_bytes() == page.read_bytes()


def test_every_timed_case_is_a_row(found: dict[str, Any]) -> None:
    timed = {
        (name, row["label"])
        for name, path in record.files(RESULTS).items()
        for row in record.load(path).get("rows", ())
        if "ratio" in row["results"].get("hgemm", {})
    }
    rows = [row for row in found["speed"] if row["interval"] != "not measured"]
    assert {(row["suite"], row["label"]) for row in rows} == timed and len(timed) > 100
    for row in found["speed"]:
        assert row["ratio"] > 0 and row["flop"] > 0 and row["words"] == row["words"].lower()
        if row["verdict"] == "slower":
            assert row["high"] < 1 and row["by"] != "torch"


def test_shapes_off_the_table_are_rows_too() -> None:
    shape = {"dtype": "float16", "layout": "NT", "batch": 1, "m": 8, "n": 4096, "k": 512, "align": 16, "torch_us": 9.0}
    chosen = {
        "a": {"served_by": "k", "source": "model", "ratio": 1.5},
        "b": {"served_by": "torch", "source": "", "ratio": None},
    }
    (row,) = report.speed_rows({"zoo": {"survey": "zoo", "shapes": [shape | {"chosen": chosen}]}})
    assert (row["suite"], row["label"], row["us"], row["verdict"]) == ("zoo", "NT 8x4096x512 a", 6.0, "faster")


def test_the_ladder_is_in_the_order_of_the_course(found: dict[str, Any]) -> None:
    steps = [row for row in found["ladder"]["sgemm"] if row["shape"] == "4096³" and not row["other"]]
    assert [row["place"] for row in steps] == sorted(row["place"] for row in steps)
    assert "naive" in steps[0]["adds"] or steps[0]["before"] == "-"
    assert {row["step"] for row in found["ladder"]["sgemm"] if row["other"]} >= {"torch"}


def test_without_the_library_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    run = CliRunner().invoke(main, ["report", "--results", str(RESULTS), "--output", str(tmp_path / "x.html")])
    assert run.exit_code == 1 and "pip install vl-convert-python" in run.output
    assert not (tmp_path / "x.html").exists()


def test_a_directory_without_results_is_an_error(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["report", "--results", str(tmp_path)])
    assert run.exit_code == 1 and "holds no result files" in run.output


def test_the_page_asks_for_nothing(page: Path) -> None:
    text = page.read_text()
    body = text[: text.index("<script>")]
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", body)
    assert "@import" not in body and "<link" not in body
    for drawing in ("row 0  | a0 | a1", "single buffer"):  # of the course
        assert drawing in body


def test_results_without_a_course_still_make_a_page(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="vl-convert-python draws the charts")
    for name in ("bmm", "ladder_8192"):
        shutil.copy(RESULTS / f"{name}.json", tmp_path)
    output = tmp_path / "out" / "page.html"
    run = CliRunner().invoke(main, ["report", "--results", str(tmp_path), "--output", str(output)])
    assert run.exit_code == 0, run.output
    text = output.read_text()
    assert 'id="chart-speed"' in text and 'id="chart-ladder-sgemm"' in text and 'id="chart-models"' not in text


@pytest.mark.slow
@pytest.mark.skipif(chromium.PATH is None, reason="no Chromium (Debian: apt-get install chromium)")
def test_a_browser_shows_and_filters_it(page: Path, tmp_path: Path, found: dict[str, Any]) -> None:
    points = "document.querySelectorAll('#chart-speed .cases_marks path').length"

    def choose(field: str, value: str) -> int:
        """How many cases are left."""
        browser.evaluate(
            f"""charts.then(async found => {{
                const fields = [...document.querySelectorAll('#filters .vega-bind')];
                const input = fields.find(e => e.innerText.trim().startsWith('{field}')).querySelector('select, input');
                input.value = '{value}';
                input.dispatchEvent(new Event('input', {{bubbles: true}}));
                input.dispatchEvent(new Event('change', {{bubbles: true}}));
                await new Promise(done => setTimeout(done, 300));
                for (const chart of found) await chart.view.runAsync();
            }})"""
        )
        return int(browser.evaluate(points))

    with chromium.Page(tmp_path) as browser:
        browser.open(page)
        assert browser.evaluate("charts.then(found => found.length)") == page.read_text().count('class="chart"')
        assert browser.evaluate(points) == len(found["speed"])
        rows = [row for row in found["speed"] if row["suite"] == "llm"]
        assert choose("suite", "llm") == len(rows) > 0
        assert choose("text", "X4096X4096") == sum("x4096x4096" in row["words"] for row in rows) < len(rows)
        assert choose("text", "no such kernel") == 0
        assert choose("text", "") == len(rows)
        assert choose("suite", "all") == len(found["speed"])
        # What vega says of a chart that is left without a case.
        assert [text for text in browser.errors() if not text.startswith("WARN Infinite extent")] == []
        assert [address for address in browser.requests() if not address.startswith(("file:", "data:"))] == []


@pytest.mark.slow
@pytest.mark.skipif(chromium.PATH is None, reason="no Chromium (Debian: apt-get install chromium)")
@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_page_is_as_dark_as_its_reader_wants(page: Path, tmp_path: Path, scheme: str, dark: bool) -> None:
    brightness = "[...getComputedStyle({}).{}.matchAll(/\\d+/g)].slice(0, 3).reduce((sum, n) => sum + +n[0], 0) / 765"
    with chromium.Page(tmp_path) as browser:
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.open(page)
        browser.evaluate("charts.then(() => 0)")
        behind = browser.evaluate(brightness.format("document.body", "backgroundColor"))
        axis = "document.querySelector('#chart-speed .role-axis-label text')"
        text = browser.evaluate(brightness.format(axis, "fill"))
        assert (behind < 0.3) == dark and abs(text - behind) > 0.5
        point = "document.querySelector('#chart-speed .cases_marks path').getBoundingClientRect()"
        browser.evaluate("document.querySelector('#chart-speed').scrollIntoView()")
        x, y = (browser.evaluate(f"{point}.{side} + 3") for side in ("x", "y"))
        browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        shown = browser.evaluate(
            "new Promise(done => setTimeout(() => done(document.querySelector('#vg-tooltip-element')?.innerText), 300))"
        )
        assert "over torch" in shown and "decided by" in shown
