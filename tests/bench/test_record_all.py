"""The order and the failures of a whole recording; nothing is measured here."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import record_all
from hgemm_ops.bench.suites import SUITES


def test_every_suite_with_a_product_is_recorded_after_the_table() -> None:
    names = list(record_all.STEPS)
    suites = [name for name in names if name.startswith("suite-")]
    assert {name.removeprefix("suite-") for name in suites} == {
        *SUITES,
        "bfloat16",
        "float32-split",
        "batch_invariant",
    } - {
        "seeds-sgemm",
        "seeds-add",
        "float32",
    }
    assert max(names.index(n) for n in names if n.startswith("tune-")) < min(names.index(n) for n in suites)
    assert names[0] == "tests"
    soaked = {name for name in suites if "--soak" in record_all.STEPS[name].command}
    large = {"seeds-large", "seeds-large-nt", "layouts", "llm", "bfloat16", "batch_invariant"}
    assert soaked == {f"suite-{name}" for name in large}
    assert all("--soak" in record_all.STEPS[name].command for name in ("tune-large", "tune-bfloat16", "tune-llm"))
    # The course is written from what the two before it record.
    assert names[1:4] == ["ladder", "ladder-ncu", "course"]


def test_steps_name_what_exists() -> None:
    for step in record_all.STEPS.values():
        first = step.command[0]
        assert first == "-m" or Path(first).is_file()
        assert any(word.startswith(("RESULTS", "TABLE")) for word in step.command)
    listed = CliRunner().invoke(record_all.main, ["--list", "tests", "tune-bmm"])
    assert [line.split()[0] for line in listed.output.splitlines()] == ["tests", "tune-bmm"]


def test_a_step_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    steps = {
        "broken": record_all.Step(("-c", "raise SystemExit(3)"), 60),
        "slow": record_all.Step(("-c", "import time; time.sleep(60)"), 1),
        "good": record_all.Step(("-c", write, "RESULTS/found", "TABLE"), 60),
    }
    monkeypatch.setattr(record_all, "STEPS", steps)
    monkeypatch.setattr(record_all.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(record_all.torch.cuda, "get_device_name", lambda: "NVIDIA T1")
    table = tmp_path / "t.json"
    result = CliRunner().invoke(record_all.main, ["--output", str(tmp_path / "r"), "--table", str(table)])
    assert result.exit_code == 1
    assert "broken ended with status 3; slow took more than 1 s" in result.output and "good: ok" in result.output
    assert (tmp_path / "r" / "found").read_text() == str(table)


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_all.torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(record_all.main, ["tests"])
    assert result.exit_code == 1 and "no CUDA GPU" in result.output
