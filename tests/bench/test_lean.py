"""How result files are kept: what is left out comes back, what is not derived stays, and a line holds what fits."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from benchmarks.course.measure import Contender, Table
from benchmarks.course.rungs import FAMILIES
from hgemm_ops.bench import lean, record, runner
from hgemm_ops.bench.runner import Result
from hgemm_ops.bench.statistics import Interval
from hgemm_ops.bench.suites import Case


def _timed(case: Case, us: float) -> Result:
    return Result(
        us=us, ratio=Interval(1.5, 1.25, 1.75), tflops=case.flops / us * 1e-6, gbps=case.bytes / us * 1e-3, error=1e-4
    )


def _document(**content: Any) -> dict[str, Any]:
    return {"schema": record.SCHEMA, "environment": {"gpu": "NVIDIA T1"}, **content}


def test_a_row_comes_back_as_it_was(tmp_path: Path) -> None:
    case = Case(16, 4096, 512, layout="NT", op="linear", bias=True)
    stream = Result(us=4.0, gbps=case.weight_bytes / 4.0 * 1e-3)
    results = {"torch": _timed(case, 8.0), "hgemm": _timed(case, 5.0), "stream": stream, "x": Result(refused="why")}
    document = _document(rows=[runner.Row(case, 7, "k", "table", results).to_json()])
    record.save(document, tmp_path / "x.json")
    (kept,) = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert not {"label", "flops", "bytes", "align"} & kept.keys()
    assert kept["case"] == {"m": 16, "n": 4096, "k": 512, "layout": "NT", "op": "linear", "bias": True}
    assert kept["results"]["hgemm"].keys() == {"us", "ratio", "error"} and kept["results"]["stream"] == {"us": 4.0}
    assert record.load(tmp_path / "x.json") == document


def test_the_ladder_comes_back_without_the_first_values(tmp_path: Path) -> None:
    case, rung = Case(64, 64, 64), FAMILIES["hgemm"][0]
    contenders = (
        Contender(rung.name, rung.label, _timed(case, 8.0), None, (1.0, 2.0), 20),
        Contender("torch", "torch", _timed(case, 2.0), 16, (1.0, 2.0), 40),
    )
    document = _document(ladder=[Table("hgemm", case, 3, contenders).to_json()])
    record.save(document, tmp_path / "x.json")
    loaded = record.load(tmp_path / "x.json")
    for step in document["ladder"][0]["steps"]:
        del step["values"]
    assert loaded == json.loads(json.dumps(document))


def test_what_is_not_derived_is_kept() -> None:
    case = Case(8, 8, 8)
    row = runner.Row(case, 1, None, None, {"torch": Result(us=3.0, tflops=5.0, gbps=case.bytes / 3.0 * 1e-3)}).to_json()
    row["label"] = "another"
    (kept,) = lean.lean({"rows": [row]})["rows"]
    assert kept["label"] == "another" and kept["results"]["torch"] == {"us": 3.0, "tflops": 5.0}
    assert lean.complete({"rows": [kept]})["rows"] == [row]


def test_numbers_keep_five_digits() -> None:
    assert lean.lean({"a": [1.23456789012, 3], "b": {"c": 1e-12 / 3}}) == {
        "a": [1.2346, 3],
        "b": {"c": 3.3333e-13},
    }
    with pytest.raises(ValueError, match="not JSON compliant"):
        lean.text(float("inf"))


def test_text_is_json_of_short_lines() -> None:
    value = {"short": {"a": [1, 2]}, "long": [{"name": "x" * 100, "of": i} for i in range(4)], "none": [], "e": {}}
    text = lean.text(value)
    assert json.loads(text) == value
    assert ' "short":{"a":[1,2]},' in text.splitlines()
    assert max(map(len, text.splitlines())) <= lean._LINE


def test_committed_results_are_lean() -> None:
    for directory in (ROOT / "benchmarks" / "results").iterdir():
        for path in record.files(directory).values():
            kept = lean.text(lean.lean(record.load(path))) + "\n"
            text = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
            assert text.decode() == kept, f"{path}: record.save(record.load(path), path) makes it so"


def test_large_results_are_compressed(tmp_path: Path) -> None:
    document = _document(rows=[])
    for name in ("random", "llm-batch_invariant", "llm"):
        record.save(document, record.path(tmp_path, name))
        assert record.load(record.files(tmp_path)[name]) == document
    names = ["llm-batch_invariant.json.xz", "llm.json", "random.json.xz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert record.files(tmp_path, "llm*").keys() == {"llm", "llm-batch_invariant"}


def test_committed_results_are_where_they_belong() -> None:
    for directory in (ROOT / "benchmarks" / "results").iterdir():
        for name, path in record.files(directory).items():
            assert path == record.path(directory, name)


def test_cases_of_other_scripts_stay_as_they_are(tmp_path: Path) -> None:
    case = {"op": "mm", "route": "torch", "a": {"shape": [3, 4]}, "out": None}
    document = _document(violations=[{"number": 7, "case": case, "excess": 1.25}])
    record.save(document, tmp_path / "x.json")
    assert record.load(tmp_path / "x.json") == document
