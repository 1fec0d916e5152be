"""``hgemm doctor PROGRAM``: which settings would make the matmuls of a program faster. It needs no GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from helpers import counted, needs_library

import hgemm_ops
from hgemm_ops import _advice, _native, _variants
from hgemm_ops.cli import main

pytestmark = needs_library


def advise(*matmuls: tuple[int, int, int, torch.dtype], cc: int = 90, **fields: int) -> list[_advice.Advice]:
    """The advice on these matmuls, each called twice, on a preset chip. ``fields`` are those of their queries."""
    facts = _native.preset_facts(cc)
    with counted() as context:
        for m, n, k, dtype in matmuls:
            query = _variants.matmul_query(m, n, k, dtype, "NT", facts)
            for name, value in fields.items():
                setattr(query, name, value)
            for _ in range(2):
                assert _native.lib().hgemm_select_ns(query, 1, 0) >= 0
    counts = context.rows()
    return _advice.advise(counts, _native.reasons(counts), lambda ordinal: facts)


def best_us(**problem: Any) -> tuple[float, float]:
    """The microseconds of the dispatcher's choice and of torch."""
    explanation = hgemm_ops.explain(arch="sm_90", layout="NT", **problem)
    us = {c.name: c.us for c in explanation.candidates}
    return us[explanation.chosen], us["torch"]


def test_split_is_recommended_for_float32() -> None:
    (line,) = advise((2048, 4096, 4096, torch.float32))
    split, torchs = best_us(M=2048, N=4096, K=4096, dtype=torch.float32, float32="split")
    strict, _ = best_us(M=2048, N=4096, K=4096, dtype=torch.float32)
    assert (line.setting, line.calls) == ('float32="split"', 2) and line.variant.startswith("sm90_dmma")
    assert line.torch_us == pytest.approx(2 * torchs) and line.now_us == pytest.approx(2 * strict)
    assert line.then_us == pytest.approx(2 * split) and split < strict < torchs
    (line,) = advise((884, 128, 720, torch.float32), cc=80)
    assert line.variant == "torch" and 'float32="split"' in line.why
    (line,) = advise((2048, 4096, 4096, torch.float32), float32=1)
    assert line.setting == "" and line.then_us is None and line.now_us == pytest.approx(2 * split)


def test_a_setting_that_costs_time_is_named() -> None:
    ours, torchs = best_us(M=4096, N=4096, K=4096)
    assert ours < 0.98 * torchs
    (line,) = advise((4096, 4096, 4096, torch.float16), variant=_native.TORCH)
    assert (line.setting, line.then_us) == ("variant=None", pytest.approx(2 * ours))
    shapes = [(33, 4096, 4096, torch.float16), (16, 16384, 4096, torch.float16), (128, 1024, 8192, torch.float16)]
    settings = {line.setting for line in advise(*shapes, numerics=1)}
    assert 'numerics="fast"' in settings <= {'numerics="fast"', ""}


def test_tuning_is_recommended_where_the_model_keeps_torch() -> None:
    (line,) = advise((2048, 4096, 4096, torch.float16), cc=80)
    assert (line.variant, line.setting, line.then_us) == ("torch", "tune=True", None)
    assert line.now_us == line.torch_us > 0


def test_split_is_recommended_for_complex64() -> None:
    (line,) = advise((2048, 4096, 4096, torch.complex64))
    assert (line.variant, line.setting) == ("torch", 'float32="split"') and 'float32="split"' in line.why
    (line,) = advise((64, 64, 64, torch.complex64))
    assert (line.variant, line.setting) == ("torch", "")


def test_nothing_is_recommended_for_other_dtypes() -> None:
    (line,) = advise((64, 64, 64, torch.complex128))
    assert (line.variant, line.setting, line.torch_us, line.now_us) == ("torch", "", 0, 0)


def test_float64_is_predicted_on_hopper() -> None:
    few, vector = sorted(
        advise((20, 27, 19426, torch.float64), (60, 1, 64, torch.float64)), key=lambda line: line.now_us
    )[::-1]
    assert few.variant.startswith("sm90_dmma_f64_") and 0 < few.now_us < few.torch_us
    assert (vector.torch_us, vector.now_us) == (0, 0)


def test_the_text() -> None:
    shapes = [(64 * i, 4096, 4096, torch.float16) for i in range(1, 24)]
    lines = advise(*shapes, (2048, 4096, 4096, torch.float32), (64, 64, 64, torch.float64))
    assert [line.now_us for line in lines] == sorted((line.now_us for line in lines), reverse=True)
    text = _advice.to_text(lines).splitlines()
    assert text[1].startswith("2048x4096x4096 float32 NT  2 ") and "and 5 more kinds" in text[21]
    torchs, now = sum(line.torch_us for line in lines), sum(line.now_us for line in lines)
    assert f"torch {torchs:.1f} us, now {now:.1f} us, {torchs / now:.2f} times" in text[24]
    then = now - lines[0].now_us + (lines[0].then_us or 0)
    assert text[25].startswith(f'  with float32="split": {then:.1f} us, {torchs / then:.2f} times')
    assert _advice.to_text([]) == "no matmul ran on a GPU"
    assert len(_advice.to_dict(lines)["matmuls"]) == 25


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(
        "hgemm_ops_start.run.entry_points", lambda group: [type("P", (), {"module": "hgemm_ops_start"})]
    )
    monkeypatch.setattr("os.execv", lambda path, arguments: called.append(arguments))
    for name in ("ENABLE", "REPORT", "OWNER", "ADVISE"):  # restores them after the test
        monkeypatch.setenv(f"HGEMM_OPS_{name}", "")
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    result = CliRunner().invoke(main, ["doctor", "train.py", "--json", "-h"])
    assert result.exit_code == 0 and called[0][-3:] == ["train.py", "--json", "-h"], result.output
    assert os.environ["HGEMM_OPS_ADVISE"] == os.environ["HGEMM_OPS_ENABLE"] == "1"
    assert CliRunner().invoke(main, ["doctor", "--json", "train.py"]).exit_code == 2
