"""The ``hgemm`` command: what each subcommand prints, as text and as JSON, and its exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from helpers import ROOT, needs_library

import hgemm_ops
from hgemm_ops import _library, _tables
from hgemm_ops.cli import main


def hgemm(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_help_names_every_command() -> None:
    result = hgemm("--help")
    assert result.exit_code == 0
    for command in ("bench", "doctor", "explain", "info", "ladder", "report", "tune"):
        assert re.search(rf"^  {command} +\w", result.output, re.MULTILINE), result.output
        assert "--json" in hgemm(command, "--help").output
    assert re.search(r"^  run +\w", result.output, re.MULTILINE) and "PROGRAM" in hgemm("run", "--help").output
    assert hgemm("nope").exit_code == 2


def test_one_version() -> None:
    (declared,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert hgemm_ops.__version__ == declared
    assert hgemm("--version").output == f"hgemm, version {declared}\n"  # also in a checkout that is not installed


def test_info() -> None:
    data = json.loads(hgemm("info", "--json").output)
    assert data["hgemm_ops"] == hgemm_ops.__version__
    assert data["torch"] == torch.__version__
    assert data["loaded"] == _library.load()
    assert [v["name"] for v in data["variants"]] == [v.name for v in hgemm_ops.variants()]
    assert len(data["devices"]) == (torch.cuda.device_count() if data["loaded"] else 0)
    text = hgemm("info").output
    for v in hgemm_ops.variants():
        assert v.name in text


@needs_library
def test_explain_prints_what_the_function_says() -> None:
    explanation = hgemm_ops.explain(
        M=511, N=4099, K=2047, layout="NT", dtype=torch.bfloat16, arch="sm_89", activation="silu", bias=True, batch=2
    )
    options = ["--layout=NT", "--dtype=bfloat16", "--arch=sm_89", "--activation=silu", "--bias", "--batch=2"]
    arguments = ["explain", "511", "4099", "2047", *options]
    assert hgemm(*arguments).output == f"{explanation}\n"
    assert hgemm(*arguments, "--all").output == f"{explanation.table(every=True)}\n"
    data = json.loads(hgemm(*arguments, "--json").output)
    assert data == json.loads(json.dumps(explanation.to_dict()))


@needs_library
def test_explain_prints_a_grouped_matmul() -> None:
    explanation = hgemm_ops.explain_grouped(rows=64, groups=8, N=512, K=256, dtype=torch.float32, arch="sm_80")
    arguments = ["explain", "64", "512", "256", "--groups=8", "--layout=NT", "--dtype=float32", "--arch=sm_80"]
    assert hgemm(*arguments).output == f"{explanation}\n"
    assert "simt_grouped_16x128" in str(explanation)
    wrong = hgemm(*arguments, "--batch=2")
    assert wrong.exit_code == 2 and "--groups takes none of --batch" in wrong.output


@needs_library
def test_explain_reports_a_refused_kernel() -> None:
    refused = next(c for c in hgemm_ops.explain(M=1, N=1, K=1, arch="sm_90").candidates if not c.eligible)
    result = hgemm("explain", "1", "1", "1", "--arch", "sm_90", "--variant", refused.name)
    assert result.exit_code == 1
    assert refused.name in result.output and "does not support" in result.output
    unknown = hgemm("explain", "1", "1", "1", "--variant", "nope")
    assert unknown.exit_code == 1 and "unknown kernel 'nope'" in unknown.output


def test_explain_rejects_what_it_does_not_understand() -> None:
    for arguments in (
        ("1", "1"),
        ("1", "1", "-1"),
        ("1", "1", "1", "--arch", "sm_75"),
        ("1", "1", "1", "--layout", "X"),
    ):
        assert hgemm("explain", *arguments).exit_code == 2


def test_doctor_finds_this_installation_sound() -> None:
    result = hgemm("doctor", "--json")
    findings = {f["check"]: f for f in json.loads(result.output)}
    assert list(findings) == ["torch", "library", "override", "dispatcher", "device", "table", "correctness"]
    assert "broken" not in {f["status"] for f in findings.values()}, result.output
    assert result.exit_code == 0
    assert findings["library"]["status"] == ("ok" if _library.load() else "note")
    assert re.search(r"correctness +257x129x333 on", hgemm("doctor").output)


def test_doctor_fails_on_a_library_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "_C.so"
    bad.write_bytes(b"not an ELF file")
    monkeypatch.setattr(_library, "PATH", bad)
    monkeypatch.setattr(_library, "reason", _library.reason.__wrapped__)
    result = hgemm("doctor")
    assert result.exit_code == 1
    assert re.search(r"broken +library +.*cannot be loaded", result.output)


def test_doctor_takes_a_library_that_was_never_built_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_library, "PATH", tmp_path / "_C.so")
    monkeypatch.setattr(_library, "reason", _library.reason.__wrapped__)
    result = hgemm("doctor")
    assert result.exit_code == 0, result.output
    assert re.search(r"note +library +.*was not built", result.output)
    assert "torch runs every op" in caplog.text


def test_doctor_fails_on_a_broken_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path))
    _tables.user_dir().mkdir(parents=True)
    (_tables.user_dir() / "gpu.json").write_text("{}")
    result = hgemm("doctor")
    assert result.exit_code == 1
    assert re.search(r"broken +table +.*gpu\.json: not a tuning table", result.output)


@pytest.mark.slow
def test_python_m() -> None:
    result = subprocess.run([sys.executable, "-m", "hgemm_ops", "info", "--json"], capture_output=True, text=True)
    assert json.loads(result.stdout)["hgemm_ops"] == hgemm_ops.__version__
