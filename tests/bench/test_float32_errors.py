"""What shows the errors of float32 products: ``benchmarks/float32_errors.py`` measures them on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks import float32_errors, tables
from hgemm_ops.bench import record


def document() -> dict[str, Any]:
    def sides(split: float) -> dict[str, dict[str, float]]:
        return {
            "strict": {"most": 4e-7, "rms": 2e-7},
            "split": {"most": split, "rms": split / 2},
            "tf32": {"most": 4e-5, "rms": 2e-4},
        }

    depths = [
        {"kind": "depth", "inputs": inputs, "k": k, **sides(split)}
        | ({"split3": {"most": split, "rms": split}} if k >= float32_errors.LEAST_K else {})
        for inputs in ("N(0,1)", "U(0,1)")
        for k, split in ((16, 1e-7), (65536, 2e-7))
    ]
    made = record.document(float32_errors=[*depths, {"kind": "hard", "inputs": "Hilbert", **sides(1e-6)}])
    made["environment"] |= {"gpu": "NVIDIA H200", "torch": "2.11.0"}
    return made


def test_errors_are_relative_to_the_sums_and_to_the_result() -> None:
    exact, magnitude = torch.tensor([[3.0, 4.0]]).double(), torch.tensor([[10.0, 0.0]]).double()
    found = float32_errors.errors(torch.tensor([[3.5, 4.0]]), exact, magnitude)
    assert found == {"most": 0.05, "rms": pytest.approx(0.1)}


def test_the_summary_has_the_errors_over_k() -> None:
    line = tables.errors_line(document())
    assert "is 0.25 to 0.50 of the rms error" in line and "for K up to 65,536 (" in line
    assert line.endswith("errors are 1.0e-07 (split), 2.0e-07 (strict) and 2.0e-04 (TF32).")


def test_errors_are_drawn_for_each_distribution(tmp_path: Path) -> None:
    figures = pytest.importorskip("benchmarks.figures")
    drawn = figures.error_by_depth(document(), tmp_path / "errors")
    text = drawn.read_text()
    assert drawn.suffix == ".svg"
    assert all(colour in text for colour in (figures.OURS, figures.TORCH, figures.SLOWER))
    assert "stroke-dasharray" in text and "split3" in text


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(float32_errors.main)
    assert result.exit_code == 1 and "needs a GPU" in result.output
