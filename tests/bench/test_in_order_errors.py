"""What shows the errors of sums in K's order: ``benchmarks/in_order_errors.py`` measures them on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import in_order_errors


def test_errors_are_drawn_for_each_size(tmp_path: Path) -> None:
    figures = pytest.importorskip("benchmarks.figures")
    sides = {side: {"most": 4e-7, "rms": 2e-7} for side in ("torch", "one sum", "batch_invariant")}
    rows = [
        {"dtype": "float16", "size": size, "k": k, "result": "float32", **sides}
        for size in in_order_errors.SIZES
        for k in in_order_errors.DEPTHS
    ]
    drawn = figures.error_of_sums({"in_order_errors": rows}, tmp_path / "errors")
    text = drawn.read_text()
    assert drawn.suffix == ".svg"
    assert all(colour in text for colour in (figures.OURS, figures.TORCH, figures.SLOWER))


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(in_order_errors.main)
    assert result.exit_code == 1 and "needs a GPU" in result.output
