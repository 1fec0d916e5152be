"""``hgemm ladder``, the profile script and the course's generated parts; no GPU and no timing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
import torch
from click.testing import CliRunner
from eager_body import EagerBody
from helpers import ROOT, needs_library
from torch import Tensor

from benchmarks import ladder_course, ladder_ncu, ncu
from benchmarks.course import command, drawings, measure
from benchmarks.course.rungs import FAMILIES, RUNGS
from hgemm_ops.bench import record, runner, statistics, timing, workload
from hgemm_ops.bench.suites import Case
from hgemm_ops.cli import main

NAIVE, SLICED, TILED = (rung.name for rung in FAMILIES["sgemm"][:3])


class _EagerBody(EagerBody):
    def start(self) -> Callable[[], float]:
        return lambda: float(getattr(self.call, "us", 4.0))


def _call(us: float, factor: float = 1.0) -> Any:
    def call(x: workload.Operands) -> Tensor:
        return (x.a @ x.b if x.a.size(1) == x.b.size(0) else x.a + x.b) * factor

    call.us = us  # type: ignore[attr-defined]
    return call


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> measure.Table:
    """Three steps: one slow, one wrong, one fast."""
    calls = {NAIVE: _call(8e4), SLICED: _call(2.0, 1.1), TILED: _call(2.0)}
    monkeypatch.setattr(timing, "Body", _EagerBody)
    monkeypatch.setattr(timing, "_MIN_ROTATION", 50_000)
    monkeypatch.setattr(measure, "_library_calls", lambda case: {measure.TORCH: _call(4.0)})
    monkeypatch.setattr(measure, "_step_call", lambda name, panels: calls[name])
    reasons = {rung.name: "" if rung.name in calls else "needs another GPU" for rung in FAMILIES["sgemm"]}
    monkeypatch.setattr(measure, "_refusals", lambda family, case, operands: reasons)
    case = Case(48, 40, 33, dtype="float32")
    return measure.run_case("sgemm", case, measure.Options(rounds=20), torch.device("cpu"))


def test_steps_are_checked_and_timed_beside_the_library(table: measure.Table) -> None:
    steps = {step.name: step for step in table.contenders}
    assert list(steps) == [NAIVE, SLICED, TILED, measure.TORCH]
    assert table.wrong.keys() == {SLICED} and "allowed" in table.wrong[SLICED]
    assert steps[NAIVE].result.us == 8e4 and steps[TILED].result.ratio == statistics.Interval(2.0, 2.0, 2.0)
    assert steps[NAIVE].rounds == 5, "a slow step is timed less often"
    assert steps[TILED].rounds == steps[measure.TORCH].rounds == 20 and steps[SLICED].rounds == 0
    assert len(steps[TILED].values) == measure.VALUES
    document = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert document["label"] == "NN 48x40x33" and "ratio" not in document["steps"][-1]["result"]


def test_lines_have_the_published_form(table: measure.Table) -> None:
    title, naive, sliced, tiled, torchs = measure.lines(table)
    assert title.endswith(" M=48, N=40, K=33")
    tflops = 2 * 48 * 40 * 33 / 8e4 * 1e-6
    assert naive.lstrip().startswith("out_f32: [") and "time: 80.000000 ms, swizzle: NOOP" in naive
    assert f"TFLOPS: {tflops:<7.2f}" in naive and naive.endswith("(+0.00%)")
    assert "wrong: errors" in sliced
    assert tiled.endswith("(+3999900.00%)") and torchs.lstrip().startswith("torch: [") and "(+" not in torchs
    swizzled = measure.Contender(TILED, "step", runner.Result(us=1.0, tflops=2.0), 1024, (1.0, 2.0))
    (_, line) = measure.lines(measure.Table("wmma", Case(8, 8, 8), 1, (swizzled,)))
    assert "swizzle: 1024 , TFLOPS: 2.00" in line
    added = measure.Contender("vector_add", "f32", runner.Result(us=1.0, tflops=0.1, gbps=500.0))
    (title, line) = measure.lines(measure.Table("elementwise", Case(8, 9, 1, op="add"), 1, (added,)), 1000.0)
    assert title.endswith(" M=8, N=9, float16") and "GB/s: 500    (50% of a copy) (+0.00%)" in line


def test_families_and_their_shapes() -> None:
    for family in FAMILIES:
        assert all(measure.serves(family, case) for case in measure.default_cases(family))
    assert measure.suites_of("elementwise") == ("seeds-add",) and measure.suites_of("sgemm") == ("seeds-sgemm",)
    assert measure.suites_of("wmma") == measure.suites_of("wgmma") == ("seeds-large", "seeds-small", "decode-nn")
    cases = command._cases(("sgemm", "mma"), ("seeds-sgemm",), "64x64x64")
    assert len(cases) == 8 + 2 and {family for family, _ in cases} == {"sgemm", "mma"}
    assert len(command._cases(tuple(FAMILIES), (), None)) == 9 + len(FAMILIES) - 1
    for arguments in (["--shapes", "1x2"], ["--family", "sgemm", "--suite", "seeds-add"], ["--family", "nobody"]):
        assert CliRunner().invoke(main, ["ladder", *arguments]).exit_code == 2


def test_the_command_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(main, ["ladder"])
    assert result.exit_code == 1 and "hgemm ladder times kernels on a CUDA GPU" in result.output


def _document(table: measure.Table) -> dict[str, Any]:
    facts = {"gpu": "NVIDIA T1", "torch": "2.0", "date": "2001-02-03T04:05:06+00:00", "csrc": "0123"}
    return {"schema": record.SCHEMA, "environment": facts, "copy_gbps": 1000.0, "ladder": [table.to_json()]}


def test_the_command_prints_writes_and_draws(
    table: measure.Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    right = measure.Table(
        table.family, table.case, table.sets, tuple(s for s in table.contenders if not s.result.wrong)
    )
    for shown, status in ((table, 1), (right, 0)):
        monkeypatch.setattr(command.console, "require_kernels", lambda name: None)
        monkeypatch.setattr(command.kernels, "is_built", lambda: True)
        monkeypatch.setattr(runner, "copy_gbps", lambda: 1000.0)
        monkeypatch.setattr(measure, "run", lambda cases, options, shown=shown: iter([shown] * len(cases)))
        monkeypatch.setattr(measure, "document", lambda tables, options, copy: _document(tables[0]))
        path, plot = tmp_path / "x.json", tmp_path / "plots" / "y"
        arguments = ["--family", "sgemm", "--json", str(path), "--plot", str(plot)]
        result = CliRunner().invoke(main, ["ladder", *arguments])
        assert result.exit_code == status, result.output
        assert "M=48, N=40, K=33" in result.output and "swizzle: NOOP" in result.output
        assert ("wrong results, not timed" in result.output) == bool(status)
        assert record.load(path)["ladder"][0]["family"] == "sgemm"
    drawn = {p.name for p in plot.parent.iterdir()}
    assert drawn == {"y-sgemm.svg", "y-roofline.svg"}
    text = (plot.parent / "y-sgemm.svg").read_text()
    assert "out_f32x4(t8x8sk)" in text and "sgemm, step by step on NVIDIA T1" in text
    assert "copy: 1000 GB/s" in (plot.parent / "y-roofline.svg").read_text()


# ---- the profile

NCU = (
    "==PROF== Connected to process 1\n"
    '"ID","Kernel Name","gpu__time_duration.sum","dram__bytes.sum","launch__registers_per_thread",'
    '"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",'
    '"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",'
    '"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio"\n'
    '"","","ns","byte","register/thread","inst","inst","inst"\n'
    '"0","add(P)","1,234","1024","n/a","1.5","7.25","1.0"\n'
)


def _fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """An ncu that prints a launch for every step that it is asked for."""
    (tmp_path / "csv").write_text(NCU)
    script = tmp_path / "bin" / "ncu"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        f"#!/bin/sh\n{body}\nhead -n 3 {tmp_path}/csv\n"
        f"for word; do case $word in --launch=*) tail -n 1 {tmp_path}/csv;; esac; done\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")


@needs_library
def test_what_was_profiled_stays_when_a_later_part_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "ladder_ncu.json"
    monkeypatch.setattr(ladder_ncu, "steps", lambda families: [NAIVE, SLICED, TILED])
    arguments = ["--part", "2", "--output", str(output)]

    _fake_ncu(tmp_path, monkeypatch, f"case $* in *{TILED}*) echo no counters; exit 3;; esac")
    result = CliRunner().invoke(ladder_ncu.main, arguments)
    assert result.exit_code == 1 and f"{TILED} to {TILED}: ncu ended with status 3:\nno counters" in result.output
    assert [entry["name"] for entry in record.load(output)["ncu"]] == [NAIVE, SLICED]

    _fake_ncu(tmp_path, monkeypatch, f"case $* in *{NAIVE}*) exit 3;; esac")
    result = CliRunner().invoke(ladder_ncu.main, arguments)
    assert result.exit_code == 1 and "3 of" in result.output, "those of the same sources stay"
    assert [entry["name"] for entry in record.load(output)["ncu"]] == [NAIVE, SLICED, TILED]

    _fake_ncu(tmp_path, monkeypatch, "exec sleep 30")
    with pytest.raises(click.ClickException, match=r"ncu took more than 0\.2 s"):
        ladder_ncu.profile([NAIVE], 0.2)
    _fake_ncu(tmp_path, monkeypatch, "set --")
    with pytest.raises(click.ClickException, match="ncu saw 0 launches of 1 steps"):
        ladder_ncu.profile([NAIVE], 10)


@needs_library
def test_profiles_are_read() -> None:
    (row,) = ncu.parse(NCU)
    entry = ladder_ncu.entry("vector_add", row)
    assert entry["ns"] == 1234 and entry["flop_per_dram_byte"] == 4096 * 4096 / 1024
    assert entry["registers"] is None
    assert list(entry["stalls"]) == ["long_scoreboard", "barrier"]
    assert ladder_ncu.case_of("elementwise_add_bf16x8") == Case(4096, 4096, 1, op="add", dtype="bfloat16")
    assert ladder_ncu.case_of("sgemm_naive_f32").dtype == "float32"
    json.dumps(entry, allow_nan=False)


# ---- the course


def test_the_course_is_up_to_date() -> None:
    page = ladder_course.COURSE.read_text()
    expected = ladder_course.course(page, ladder_course.Results(ladder_course.RESULTS))
    assert page == expected, "run python benchmarks/ladder_course.py"


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_the_drawings_of_the_course_are_up_to_date(name: str) -> None:
    drawn = drawings.DRAWINGS[name]()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    kept = (drawings.DIRECTORY / f"{name}.svg").read_text()
    assert kept == drawn, "run python -m benchmarks.course.drawings"
    assert f"(drawings/{name}.svg)" in ladder_course.COURSE.read_text()


def test_no_page_of_csrc_is_written_from_results() -> None:
    """Results say by csrc's tree id what they measured: recording may not change it."""
    assert not [p.name for p in (ROOT / "csrc").rglob("*.md") if "<!-- " in p.read_text()]


def test_every_step_has_a_line_in_the_course() -> None:
    page, places = ladder_course.COURSE.read_text(), ladder_course.places()
    lines = ladder_course.LIST.read_text().splitlines()
    assert places.keys() == RUNGS.keys()
    for name, place in places.items():
        body = (ROOT / "csrc" / "ladder" / place.file).read_text().splitlines()[place.body - 1]
        assert f"({name}," in lines[place.line - 1] and ("__global__" in body or body.startswith("#define "))
        line, body_line = f"variants.inc#L{place.line}", f"{place.file}#L{place.body}"
        assert f"| [{name}] ([" in page and f"\n[{name}]: ../csrc/ladder/{line}\n" in page
        assert page.count(f"]: ../csrc/ladder/{body_line}\n") == 1


def test_the_course_shows_what_was_measured(table: measure.Table, tmp_path: Path) -> None:
    document = _document(table)
    document["ladder"][0]["label"] = ladder_course.CUBE
    record.save(document, tmp_path / "ladder_x.json")
    profile = {
        "name": TILED,
        "size": 64,
        "stalls": {"math_pipe_throttle": 3.0},
        "memory_pct": 41.6,
        "bank_conflicts": 5.0,
    }
    profile |= {"shared_wavefronts": 50.0, "flop_per_dram_byte": 99.7}
    record.save({**document, "ladder": [], "ncu": [profile]}, tmp_path / "ladder_ncu.json")
    results = ladder_course.Results(tmp_path)
    assert ladder_course.parts(results)["measured"] == [
        "Timed on NVIDIA T1 with torch 2.0, 2001-02-03, csrc `0123`.",
        "A copy within its memory moves 1000 GB/s.",
        "Profiled at 64³, sums at that squared, csrc `0123`.",
    ]
    lines = ladder_course.parts(results)["sgemm"]
    (tiled,) = [line for line in lines if f"[{TILED}]" in line]
    assert "| 2.000 | - | - | 42 | - | - | math pipe throttle | 10 | 100 |" in tiled
    assert any(line.startswith("| *torch* |") for line in lines)
    assert ladder_course.parts(results)["losses"] == ["None."]
    assert ladder_course._rank_correlation([(1, 10), (2, 20), (3, 30)]) == 1
    assert ladder_course._rank_correlation([(1, 30), (2, 20), (3, 10)]) == -1
    with pytest.raises(ValueError, match="the course needs one"):
        ladder_course.course("", results)


def test_the_course_explains_what_gains_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published are gains of 2 and 3 on two shapes; measured, on the one that both have, 4 and 1.5."""
    times, shape = {NAIVE: 24.0, SLICED: 6.0, TILED: 4.0}, "1x2x3"
    steps = [
        {"name": name, "result": {"us": us, "tflops": 12 / us, "ratio": {"value": 3 / us}}}
        for name, us in times.items()
    ]
    production = {"name": "sm90_best", "result": {"us": 1.0, "tflops": 12.0, "ratio": {"value": 3.0}}}
    tables = [
        {"family": "sgemm", "label": f"NN {shape}", "steps": steps},
        {"family": "wgmma", "label": ladder_course.CUBE, "steps": [production]},
    ]
    facts = {"gpu": "T1", "torch": "2.0", "date": "2001-02-03", "csrc": None}
    document = {"schema": record.SCHEMA, "environment": facts, "copy_gbps": 1.0, "ladder": tables}
    record.save(document, tmp_path / "ladder_x.json")
    profiles = [
        {"name": name, "size": 64, "stalls": {"wait": 1.0}, "fma_pct": fma} for name, fma in ((SLICED, 8), (TILED, 9))
    ]
    record.save({"schema": record.SCHEMA, "environment": facts, "ncu": profiles}, tmp_path / "ladder_ncu.json")
    published = {NAIVE: 0.1, SLICED: 0.2, TILED: 0.6}
    lines = ["table,name,ratios", *(f"ada_sgemm,{name},1x2x3={x} 4x5x6=0.5" for name, x in published.items())]
    (tmp_path / "ratios.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(ladder_course, "PUBLISHED_RATIOS", tmp_path / "ratios.csv")

    parts = ladder_course.parts(ladder_course.Results(tmp_path))
    assert parts["published"][0] == "**float32, Ada**: 1x2x3 (1 of 2 shapes); rank correlation 1.00."
    assert parts["published"][-2:] == [
        f"| `{SLICED}` | 0.200 | 0.500 | 2 | 2 | 2.00 | 4.00 |",
        f"| `{TILED}` | 0.600 | 0.750 | 1 | 1 | 3.00 | 1.50 (!) |",
    ]
    line, *_, why = " ".join(parts["losses"][2:]).partition(" Why:  - ")
    assert (
        f"[{TILED}]" in line and "| 3.00 | 1.50 (Ada's shapes) | 8 → 9 |" in line and line.endswith("| wait → wait | ")
    )
    assert " ".join(why.split()) == f"[{TILED}]: {RUNGS[TILED].loses}"
    assert parts["wgmma"][-1].startswith("| *production: sm90_best* |  | 12.0 |  | 3.000 | - | - |")


def test_every_step_that_loses_says_why() -> None:
    assert "Not explained." not in ladder_course.COURSE.read_text()


def test_the_last_family_runs_beside_the_production_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Candidate:
        name: str
        family: str = "sm90_wgmma"
        eligible: bool = True
        measured_us: float | None = None
        predicted_us: float | None = None

    @dataclass
    class Explanation:
        candidates: tuple[Candidate, ...]

    ineligible = Candidate("d", eligible=False, measured_us=1.0)
    found = (
        Candidate("step", "ladder", predicted_us=1.0),
        Candidate("a", predicted_us=2.0),
        Candidate("b"),
        ineligible,
    )
    case, operands = Case(8, 8, 8), workload.make_operands(Case(8, 8, 8), torch.Generator())
    monkeypatch.setattr(measure.hgemm_ops, "explain", lambda *operands: Explanation(found))
    assert list(measure._production("wgmma", case, operands)) == ["a"]
    found += (Candidate("c", measured_us=9.0), Candidate("torch", "torch", measured_us=1.0))
    assert list(measure._production("wgmma", case, operands)) == ["c"], "a measured time counts for more"
    assert measure._production("mma", case, operands) == {}
