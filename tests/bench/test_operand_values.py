"""The lines of ``benchmarks/operand_values.py`` and ``benchmarks/graph_memory.py``, which measure on a GPU."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from benchmarks import graph_memory, operand_values, tables
from hgemm_ops.bench import record

ENVIRONMENT = {"date": "2026-11-28T12:00:00", "csrc": "0123456789abcdef", "gpu": "NVIDIA H200"}


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value, "high": value}


def test_every_kind_of_values_is_summed_up(tmp_path: Path) -> None:
    rows = [
        {"values": values, "m": 8, "n": 16, "k": 32, "torch_tflops": 600 * ratio, "ratio": interval(ratio)}
        for values, ratio in (("N(0, 1)", 1.05), ("zeros", 1.1))
    ]
    path = tmp_path / "operand_values.json"
    record.save({"schema": record.SCHEMA, "environment": ENVIRONMENT, "operand_values": rows}, path)
    line = tables.values_line(record.load(path))
    assert "2026-11-28, csrc 01234567" in line
    assert "| matmul | N(0, 1) | zeros | torch |\n" in line
    assert line.endswith("\n| NT 8x16x32 | 1.050 | 1.100 | 630 to 660 |")


def test_other_gpus_are_summed_up_too() -> None:
    rows = [{"values": "zeros", "m": 8, "n": 16, "k": 32, "torch_tflops": 600.0, "ratio": interval(1.1)}]
    documents = {"operand_values": {"environment": ENVIRONMENT, "operand_values": rows}}
    assert "| NT 8x16x32 | 1.100 | 600 to 600 |" in tables.in_short(documents, "h100-80gb-hbm3")


def test_older_figures_of_other_gpus_have_their_date() -> None:
    def suite(speed: float, date: str) -> dict[str, object]:
        rows = [{"served_by": "x", "results": {"hgemm": {"ratio": interval(speed)}}}]
        return {"suite": "s", "environment": ENVIRONMENT | {"date": date}, "protocol": {}, "rows": rows}

    documents = {"old": suite(1.1, "2026-11-01"), "new": suite(1.2, "2026-11-02")}
    lines = tables.in_short(documents, "h100-80gb-hbm3")
    assert "| `old` | 1.100 | - | 2026-11-01, csrc 01234567 |" in lines
    assert "| `new` | 1.200 | - | 2026-11-02, csrc 01234567 |" in lines


def test_both_sides_of_graphs_are_summed_up() -> None:
    rows = [{"m": 16, "n": 32, "k": 64, "captures": 50, "torch_mib": 1126.4, "ours_mib": 98.0}]
    line = tables.graph_memory_line({"environment": ENVIRONMENT, "graph_memory": rows})
    assert "was captured 50 times in CUDA graphs" in line
    assert "NT 16x32x64 1126 MiB with torch, 98 MiB with ours." in line


@pytest.mark.parametrize("values", operand_values.VALUES)
def test_values_have_their_names_meaning(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("randn", "rand", "randint", "zeros"):
        made = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *of, made=made, **options: made(*of))
    x = operand_values.VALUES[values]((200, 300)).double()
    assert x.shape == (200, 300)
    assert (x.amin() < 0) == values.startswith("N(0, 1)") & ("ReLU" not in values)
    zeros = {"N(0, 1)": 0, "U(0, 1)": 0, "N(0, 1) after ReLU": 0.5, "0 and 1": 0.5, "zeros": 1}.get(values, 7 / 8)
    assert (x == 0).double().mean().item() == pytest.approx(zeros, abs=0.02)


@pytest.mark.parametrize("main", [operand_values.main, graph_memory.main])
def test_without_a_gpu_there_is_nothing_to_measure(main: click.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(main)
    assert result.exit_code == 1 and "needs a GPU" in result.output
