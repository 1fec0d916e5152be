"""``python -m integration.decode``: a tiny model on a CPU, its results file, and the tables and the plot made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("transformers")


from benchmarks import tables
from hgemm_ops.bench import record
from integration import check, compare, decode
from integration.__main__ import main as integration_main

OPTIONS = ["--device", "cpu", "--prompt", "9", "--rounds", "2", "--iterations", "1"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of results: decoding, and one case of the integration suite."""
    directory = tmp_path_factory.mktemp("results")
    compile = torch.compile

    seen = []

    def without_inductor(model: Any, *, options: dict[str, Any], dynamic: bool) -> Any:  # whose compiler takes a minute
        assert options["triton.cudagraphs"] and not dynamic
        assert options not in seen, "sides that dynamo cannot tell apart share their CUDA graphs"
        seen.append(options)
        return compile(model, backend="eager", dynamic=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", without_inductor)
        run(decode.main, directory, "decode", [*OPTIONS, "--layers", "1", "--batches", "1,3", "--compiled", "2"])
    options = ["--model", "llama", "--scenario", "train", "--device", "cpu", "--size", "tiny", "--seq", "8"]
    run(integration_main, directory, "integration", options)
    return directory


def run(command: click.Command, directory: Path, name: str, options: list[str]) -> None:
    path = directory / "t1" / f"{name}.json"
    outcome = CliRunner().invoke(command, [*options, "--json", str(path)])
    assert outcome.exit_code == 0, outcome.output
    document = record.load(path)
    document["environment"] |= {"gpu": "NVIDIA T1", "driver": "1.2", "cuda": "13.0"}
    record.save(document, path)


@pytest.fixture
def document(results: Path) -> dict[str, Any]:
    return record.load(results / "t1" / "decode.json")


def test_decode_compares_and_times_every_side(document: dict[str, Any]) -> None:
    assert [(row["batch"], row["runner"]) for row in document["results"]] == [
        (1, "eager"),
        (3, "eager"),
        (2, "reduce-overhead"),
    ]
    assert document["decode"]["layers"] == 1 and document["decode"]["size"] == "tiny"
    for row in document["results"]:
        assert row["ok"]
        compiled = row["runner"] == "reduce-overhead"
        assert set(row["sides"]) == {"torch", "ours"} | (set() if compiled else {"fused"})
        for name, side in row["sides"].items():
            speed = 1e3 * row["batch"] / side["ms"]
            assert side["tokens_per_second"] == pytest.approx(speed, rel=1e-4)  # of five digits each
            if name == "torch":
                assert side["speedup"] is None
            else:
                assert side["tokens"] == "same tokens"
                assert side["logits"]["rms"] <= 2 * side["logits"]["torch_rms"] + 2.0**-8


def test_results_become_tables_and_a_plot(document: dict[str, Any], results: Path, tmp_path: Path) -> None:
    drawn = pytest.importorskip("benchmarks.plots").draw_all(results)
    assert {path.name for path in drawn} == {"decode.svg"}
    text = drawn[0].read_text()
    assert "on NVIDIA T1" in text and "with fused projections" in text and "reduce-overhead" in text

    readme = tmp_path / "README.md"
    readme.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    written = tables.generate(results, readme)
    page = written[results / "t1" / "README.md"]
    row = document["results"][1]["sides"]["fused"]
    assert f"| 3 | eager | fused | {row['ms']:.3f} | " in page and "plots/decode.svg" in page
    assert "| llama tiny train 1x8 bf16 | " in page
    assert "Decoding with 1 layers of llama (tiny) in bf16 at batch" in written[readme]
    assert "in 1 of 1 cases the error is within twice torch's own error" in written[readme]


def test_decode_fails_where_a_side_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "judge_generation", wrong)
    outcome = CliRunner().invoke(decode.main, [*OPTIONS, "--layers", "1", "--batches", "1"])
    assert outcome.exit_code == 1
    assert "FAIL" in outcome.output


def wrong(*_: Any) -> Any:
    return compare.Comparison("logits", compare.Error(0.0, 0.0), compare.Error(1.0, 1.0), 0.0), False, "row 0 differs"


@pytest.mark.parametrize("value", ["0", "1,x", "-1"])
def test_decode_refuses_other_batches(value: str) -> None:
    outcome = CliRunner().invoke(decode.main, ["--batches", value])
    assert outcome.exit_code == 2
    assert "positive numbers" in outcome.output
