"""What shows the errors of batch-invariant sums: ``benchmarks/in_order_errors.py`` measures them on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks import in_order_errors, tables
from hgemm_ops.bench import record


def document() -> dict[str, Any]:
    def sides(ours: float) -> dict[str, dict[str, float]]:
        found = {"ours": ours, "torch": 2e-8, "one sum": 4e-7}
        return {side: {"most": 5 * rms, "rms": rms} for side, rms in found.items()}

    rows = [
        {"inputs": inputs, "m": m, "n": 512, "k": k, **sides(ours)}
        for inputs in ("N(0,1)", "U(0,1)")
        for m in (16, 512)
        for k, ours in ((256, 1e-8), (65536, 3e-8))
    ]
    made = record.document(in_order_errors=rows)
    made["environment"] |= {"gpu": "NVIDIA H200", "torch": "2.11.0"}
    return made


def test_errors_are_relative_to_the_sums() -> None:
    exact, magnitude = torch.tensor([[3.0, 4.0]]).double(), torch.tensor([[10.0, 20.0]]).double()
    found = in_order_errors.errors(torch.tensor([[3.5, 4.0]]), exact, magnitude)
    assert found == {"most": 0.05, "rms": pytest.approx(0.05 / 2**0.5)}


def test_the_summary_compares_them_with_torchs() -> None:
    line = tables.in_order_errors_line(document())
    assert "K up to 65,536: 0.50 to 1.50." in line
    assert line.endswith("is 3.0e-08, torch's 2.0e-08, and that of one sum over all of K 4.0e-07.")


def test_errors_are_drawn_for_each_distribution_and_shape(tmp_path: Path) -> None:
    figures = pytest.importorskip("benchmarks.figures")
    text = figures.in_order_error_by_depth(document(), tmp_path / "errors").read_text()
    assert all(colour in text for colour in (figures.OURS, figures.TORCH, figures.SLOWER))


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(in_order_errors.main)
    assert result.exit_code == 1 and "needs a GPU" in result.output
