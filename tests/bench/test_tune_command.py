"""``report.save``, and what ``hgemm tune`` takes beside suites: a report's products, random shapes for the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from helpers import ROOT, counted

from hgemm_ops import _library, _native, _tables, _tuning, _variants
from hgemm_ops._report import Report
from hgemm_ops.bench import console, runner, sampling, shapes, survey
from hgemm_ops.bench.suites import Case
from hgemm_ops.cli import tune

needs_library = pytest.mark.skipif(not _library.load(), reason=f"no native library: {_library.reason()}")
H200 = _tables.Device("NVIDIA H200", 90, 132, 62914560)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(tune.tune, list(arguments))


# A report as a file


@pytest.fixture
def report() -> Iterator[Report]:
    """What a context counts, of decisions that a test asks for."""
    with counted() as tally:
        made = Report()
        made._capsule = tally.capsule
        yield made


def multiply(m: int, n: int, k: int, dtype: torch.dtype = torch.float16, layout: str = "NT", **more: Any) -> None:
    changes = {name: more.pop(name) for name in ("out_dtype", "has_bias") if name in more}
    query = _variants.matmul_query(m, n, k, dtype, layout, _native.preset_facts(90), **more)
    for name, value in changes.items():
        setattr(query, name, value)
    assert _native.lib().hgemm_select_ns(query, 1, 0) >= 0


def product(**changes: Any) -> dict[str, Any]:
    plain = {"dtype": "float16", "out_dtype": "float16", "layout": "NT", "align": 16, "batch": 1, "m": 8, "n": 16}
    return {**plain, "k": 24, "calls": 1, "variant": "torch", "source": "model", "left": "", **changes}


@needs_library
def test_a_saved_report_has_every_kind_of_product(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    report.save(path)
    assert json.loads(path.read_text()) == {"schema": 1, "products": []}
    for _ in range(3):
        multiply(512, 1024, 768)
    multiply(300, 40, 72, torch.bfloat16, "TN", batch=3, alignment=4)
    multiply(512, 512, 64, out_dtype=2)
    report.save(str(path))
    # In any order: what a process has asked before comes first.
    products = sorted(json.loads(path.read_text())["products"], key=lambda p: -p["k"])
    assert [{name: p[name] for name in ("dtype", "out_dtype", "layout", "align", "calls")} for p in products] == [
        {"dtype": "float16", "out_dtype": "float16", "layout": "NT", "align": 16, "calls": 3},
        {"dtype": "bfloat16", "out_dtype": "bfloat16", "layout": "TN", "align": 4, "calls": 1},
        {"dtype": "float16", "out_dtype": "float32", "layout": "NT", "align": 16, "calls": 1},
    ]
    assert [(p["batch"], p["m"], p["n"], p["k"]) for p in products][1] == (3, 300, 40, 72)
    assert all(p["variant"] == "torch" or p["variant"] in _variants.names() for p in products)
    assert {p["source"] for p in products} <= {"table", "model"} and {p["left"] for p in products} == {""}
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]


@needs_library
def test_a_report_that_cannot_be_saved_raises(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        report.save(tmp_path / "file" / "report.json")


def test_the_products_of_a_report_that_can_be_tuned(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    products = [
        product(),
        product(calls=7, variant="x", source="table"),  # the same shape with another choice
        product(dtype="bfloat16", out_dtype="bfloat16", layout="TT", batch=4),
        product(k=25, align=2),
        product(align=8),
        product(out_dtype="float32"),
        product(dtype="float32", out_dtype="float32"),
        product(dtype="complex64", out_dtype="complex64"),
        product(k=0),
        product(m=9, left="alpha is 0"),
    ]
    path.write_text(json.dumps({"schema": 1, "products": products}))
    cases, skipped = tune.reported(path)
    assert cases == [
        Case(8, 16, 24, layout="NT"),
        Case(8, 16, 24, batch=4, layout="TT", dtype="bfloat16"),
        Case(8, 16, 25, layout="NT"),
        Case(8, 16, 24, layout="NT", dtype="float32"),
    ]
    assert skipped == [
        "float16 NT 8x16x24: its rows are 8-byte aligned, those of contiguous matrices of its sizes 16-byte",
        "float16 NT 8x16x24: only results in the operands' dtype can be tuned, not float32",
        "float32 NT 8x16x24: no kernel supports complex64",
        "float16 NN 1x1x1: a size of 1 x 8 x 16 x 0 is 0",
        "float16 NT 9x16x24: alpha is 0",
    ]


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", "{}", '{"schema": 2, "products": []}', '{"schema": 1, "products": [{"m": 1}]}', '{"schema": 1}'),
        json.dumps({"schema": 1, "products": [product(m="x")]}),
        json.dumps({"schema": 1, "products": [product(layout="XX")]}),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    result = command("--report", str(path))
    assert result.exit_code == 1 and f"{path}: not a report: " in result.output.replace("\n", "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Case]:
    """A GPU on which every case is timed at once; the cases, in order."""
    timed: list[Case] = []

    def run(cases: Any, options: Any, screen: Any, keep: Any) -> list[runner.Row]:
        timed.extend(cases)
        return []

    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(console, "require_kernels", lambda command: None)
    monkeypatch.setattr(console, "run_with_progress", run)
    monkeypatch.setattr(_tables, "device_of", lambda ordinal: H200)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *ordinal: H200.name)
    return timed


def test_tune_takes_a_report_beside_suites_and_shapes(machine: list[Case], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"schema": 1, "products": [product(), product(align=4)]}))
    result = command("--report", str(path), "--shapes", "8x16x24,32x32x32")
    assert result.exit_code == 0, result.output
    assert machine == [Case(8, 16, 24, layout="NT"), Case(32, 32, 32, layout="NT")]
    assert "skipped: float16 NT 8x16x24: its rows are 4-byte aligned" in result.output
    path.write_text(json.dumps({"schema": 1, "products": [product(align=4)]}))
    result = command("--report", str(path))
    assert result.exit_code == 2 and "the report has none" in result.output


# Random shapes for the model


@pytest.fixture
def measured(machine: list[Case], monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases that a survey measures."""
    cases: list[Case] = []

    def measure(case: Case, names: Any, memory: Any, options: Any, kept: Any = ()) -> survey.Measurement:
        cases.append(case)
        us = {"torch": 10.0, **dict.fromkeys(names[:2], 8.125 + len(cases))}
        return survey.Measurement(2, us, 1.2, names[0])

    monkeypatch.setattr(survey, "measure", measure)
    return cases


@needs_library
def test_random_shapes_are_added_to_the_models_data(measured: list[Case], tmp_path: Path) -> None:
    result = command("--random", "4", "--seed", "7", "--json")
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("cache/shapes/*.xz")
    done = json.loads(result.stdout)
    assert done == {"seed": 7, "added": 4, "shapes": 4, "output": str(path)} and path.name == "h200.tsv.xz"
    assert tuple(measured) == sampling.unscored(7, 4)
    head, held = shapes.read(path)
    assert head["shapes"] == 4 and len(head["csrc"]) == 40
    assert [shape.case for shape in held] == measured and {shape.kind for shape in held} == {"random"}
    assert held[0].us["torch"] == 10.0 and set(held[0].us.values()) == {10.0, 9.125}
    command("--random", "4", "--seed", "7")  # is in the journal
    assert len(measured) == 4 and len(shapes.read(path)[1]) == 4
    assert command("--random", "2", "--seed", "8").exit_code == 0
    assert [shape.case for shape in shapes.read(path)[1]] == measured and len(measured) == 6


@needs_library
def test_of_few_rows(measured: list[Case], tmp_path: Path) -> None:
    assert command("--random", "5", "--rows", "3", "--seed", "7").exit_code == 0
    assert tuple(measured) == sampling.unscored(7, 5, 3)
    assert all(case.m <= 3 and case.batch == 1 and case.layout in ("NT", "NN") for case in measured)


@needs_library
def test_of_sizes_as_models_have_them(measured: list[Case], tmp_path: Path) -> None:
    assert command("--random", "40", "--sizes", "whole", "--seed", "7").exit_code == 0
    assert tuple(measured) == sampling.unscored(7, 40, None, "whole")
    assert all(case.m & (case.m - 1) == 0 and case.n % 64 == case.k % 64 == 0 for case in measured)


@needs_library
def test_of_vocabularies(measured: list[Case], tmp_path: Path) -> None:
    assert command("--random", "40", "--sizes", "logits", "--seed", "7").exit_code == 0
    assert tuple(measured) == sampling.unscored(7, 40, None, "logits")
    assert all(case.layout == "NT" and case.n >= 24_000 and case.k % 64 == 0 for case in measured)
    assert {case.n % 2 for case in measured} == {0, 1}


@needs_library
def test_of_odd_lengths(measured: list[Case], tmp_path: Path) -> None:
    assert command("--random", "40", "--sizes", "ragged", "--seed", "7").exit_code == 0
    assert tuple(measured) == sampling.unscored(7, 40, None, "ragged")
    assert all(case.m % 8 or case.n % 8 or case.k % 8 for case in measured)


@needs_library
def test_of_float32_batches(measured: list[Case], tmp_path: Path) -> None:
    assert command("--random", "40", "--sizes", "float32-batches", "--seed", "7").exit_code == 0
    assert tuple(measured) == sampling.unscored(7, 40, None, "float32-batches")
    assert all(case.batch > 1 and case.dtype == "float32" for case in measured)
    many = sampling.draw(7, 2000, lambda case: False, None, "float32-batches")
    assert all(min(case.m, case.n) > 1 for case in many)


@pytest.fixture
def strict_afterwards() -> Iterator[None]:
    yield
    console.set_modes(None, "strict")


@needs_library
@pytest.mark.usefixtures("strict_afterwards")
def test_of_split_float32(measured: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[set[str]] = []
    measure = survey.measure

    def noting(case: Case, names: Any, *rest: Any) -> survey.Measurement:
        timed.append({_variants.family_of(_variants.ids()[name]) for name in names})
        return measure(case, names, *rest)

    monkeypatch.setattr(survey, "measure", noting)
    arguments = ("--random", "40", "--sizes", "float32-split", "--seed", "7", "--candidates", "3", "--float32")
    split, strict = tmp_path / "split.tsv.xz", tmp_path / "strict.tsv.xz"
    assert command(*arguments, "split", "--output", str(split)).exit_code == 0
    assert tuple(measured) == sampling.unscored(7, 40, None, "float32-split")
    assert all(case.dtype == "float32" and min(case.m, case.n) > 1 for case in measured)
    assert any(case.batch > 1 for case in measured) and any(case.batch == 1 for case in measured)
    assert shapes.read(split)[0]["float32"] == "split"
    both = [
        families for families in timed if "sm90_dmma" in families and families & {"sm90_split", "sm90_split_skinny"}
    ]
    assert len(both) > 20
    timed.clear()
    assert command(*arguments, "strict", "--output", str(strict)).exit_code == 0
    assert "float32" not in shapes.read(strict)[0]
    assert not any("split" in family for families in timed for family in families)
    result = command(*arguments, "strict", "--output", str(split))
    assert result.exit_code == 1 and "was measured with {'float32': 'split'}" in result.output
    assert len(shapes.read(split)[1]) == 40


def test_a_float32_mode_is_for_random_shapes() -> None:
    result = command("--shapes", "8x8x8", "--dtype", "float32", "--float32", "split")
    assert result.exit_code == 2 and "--float32 needs --random" in result.output


@needs_library
def test_an_interrupted_run_goes_on(measured: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = survey.measure

    def interrupted(case: Case, *rest: Any) -> survey.Measurement:
        if len(measured) == 2:
            raise RuntimeError("the GPU is gone")
        return measure(case, *rest)

    monkeypatch.setattr(survey, "measure", interrupted)
    output = tmp_path / "data.tsv.xz"
    assert command("--random", "4", "--output", str(output)).exit_code == 1 and not output.exists()
    monkeypatch.setattr(survey, "measure", measure)
    result = command("--random", "4", "--output", str(output))
    assert result.exit_code == 0 and len(measured) == 4, result.output
    assert [shape.case for shape in shapes.read(output)[1]] == measured


@needs_library
def test_data_of_other_sources_are_not_mixed(measured: list[Case], tmp_path: Path) -> None:
    path = tmp_path / "data.tsv.xz"
    assert command("--random", "1", "--output", str(path)).exit_code == 0
    head, held = shapes.read(path)
    shapes.write({**head, "csrc": "another"}, held, path)
    result = command("--random", "1", "--output", str(path))
    assert result.exit_code == 1 and "was measured with {'csrc': 'another'}" in result.output
    assert len(measured) == 1 and shapes.read(path)[0]["csrc"] == "another"


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("h200/shapes", 3800),
        ("h200/shapes-leaders", 5900),
        ("h200/shapes-whole", 2800),
        ("h200/shapes-few-rows", 700),
        ("h200/shapes-clusters", 4400),
        ("h200/shapes-trimmed-kinds", 14000),
        ("h200/shapes-trimmed-odd", 3100),
        ("h200/shapes-earlier", 2400),
        ("h100-80gb-hbm3/shapes", 6000),
        ("h100-80gb-hbm3/shapes-ragged", 900),
    ],
)
def test_the_committed_data_read_as_they_were_written(name: str, least: int, tmp_path: Path) -> None:
    path = ROOT / "benchmarks" / "results" / f"{name}.tsv.xz"
    head, held = shapes.read(path)
    assert len(held) == head["shapes"] >= least
    some = held[::50]
    shapes.write(head, some, tmp_path / "some.tsv.xz")
    again, same = shapes.read(tmp_path / "some.tsv.xz")
    assert same == some and again == {**head, "shapes": len(some)}


@pytest.mark.parametrize(
    "arguments", [["--suite", "llm"], ["--shapes", "8x8x8"], ["--report", __file__], ["--blend"]], ids=lambda a: a[0]
)
def test_random_shapes_are_for_no_table(arguments: list[str]) -> None:
    assert command("--random", "3", *arguments).exit_code == 2


# Grouped matmuls


def test_grouped_matmuls_are_added_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def time(*sizes: Any) -> tuple[_tables.Device, _tables.GroupedEntry]:
        rows, n, k, groups, dtype, layout, _ = sizes
        asked.append(sizes[:-1])
        us = {"torch": 200.0, "kernel": 100.0 + len(asked)}
        return H200, _tables.GroupedEntry(_native.dtype_name(dtype), "rows", layout, groups, rows, n, k, us)

    monkeypatch.setattr(_tuning, "tune_grouped", time)
    monkeypatch.setattr(_tables, "device_of", lambda ordinal: H200)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(console, "require_kernels", lambda name: None)
    path = tmp_path / "table.json"
    for _ in range(2):
        done = command("--grouped", "4096x1536x2048x128,64x512x256x4", "--output", str(path))
        assert done.exit_code == 0, done.output
    assert asked == 2 * [
        (4096, 1536, 2048, 128, torch.bfloat16, "NT"),
        (64, 512, 256, 4, torch.bfloat16, "NT"),
    ]
    assert "bfloat16 NT 64x512x256 in 4 groups of rows: kernel 104.0 us, torch 200.0 us" in done.output
    assert f"2 shapes in {path}" in done.output.replace("\n", "")
    table = _tables.Table.read(path)
    assert table.entries == [] and [entry.us["kernel"] for entry in table.grouped] == [103.0, 104.0]


@pytest.mark.parametrize("text", ["4096x1536x2048", "1x2x3x0", "axbxcxd", ""])
def test_sizes_of_grouped_matmuls_are_checked(text: str) -> None:
    done = command("--grouped", text or "1x", "--output", "t.json")
    assert done.exit_code == 2 and "expected ROWSxNxKxGROUPS" in done.output
