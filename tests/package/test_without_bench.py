"""The package with ``hgemm_ops/bench`` deleted, outside of a checkout: everything that does not measure still works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

import hgemm_ops

PACKAGE = ROOT / "hgemm_ops"
PROGRAM = textwrap.dedent(
    """
    import json, sys
    # An editable installation finds what this copy lacks in the checkout.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
    import torch, hgemm_ops
    from click.testing import CliRunner
    from hgemm_ops.cli import main

    hgemm = torch.ops.hgemm
    a, b = torch.randn(5, 8), torch.randn(8, 4)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, y = a.to(dtype), b.to(dtype)
        torch.testing.assert_close(hgemm_ops.matmul(x, y), x @ y)
        torch.testing.assert_close(hgemm.mm(x, y), x @ y)
        torch.testing.assert_close(hgemm.linear(x, y.mT, None, 0), x @ y)
    for variant in hgemm_ops.variants():
        if variant.family == "int8":  # its kernels have no ops
            continue
        x, y = a.to(variant.dtypes[0]), b.to(variant.dtypes[0])
        torch.testing.assert_close(getattr(hgemm, variant.name)(x, y), x @ y)
    has_ladder = any(variant.family == "ladder" for variant in hgemm_ops.variants())
    if has_ladder:
        torch.testing.assert_close(hgemm.vector_add(a, a), a + a)

    def run(*arguments):
        result = CliRunner().invoke(main, arguments)
        return result.exit_code, result.output

    commands = {
        "explain": ("explain", "16", "4096", "4096", "--arch", "sm_90"),
        "help": ("--help",),
        **{name: (name,) for name in ("info", "doctor", "bench", "tune", "ladder", "report")},
        "ladder of a family": ("ladder", "--family", "sgemm", "--json", "x.json"),
    }
    print(json.dumps({
        "package": hgemm_ops.__file__,
        "variants": [v.name for v in hgemm_ops.variants()],
        "has_ladder": has_ladder,
        "chosen": hgemm_ops.explain(M=16, N=4096, K=4096, arch="sm_90").chosen,
        "commands": {name: run(*arguments) for name, arguments in commands.items()},
        "measuring": [name for name in sys.modules if name.startswith(("hgemm_ops.bench", "benchmarks"))],
    }))
    """
)


@pytest.fixture(scope="module", params=["_C and _ladder", "_C", "no library"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program says of a copy of the package with some of its libraries."""
    missing = {name for name in ("_C", "_ladder") if name not in request.param.split()}
    unbuilt = [name for name in {"_C", "_ladder"} - missing if not (PACKAGE / f"{name}.so").is_file()]
    if unbuilt:
        pytest.skip(f"{unbuilt[0]}.so was not built")
    directory = tmp_path_factory.mktemp("without")
    left_out = shutil.ignore_patterns("bench", "__pycache__", "*.so")
    for package in (PACKAGE, PACKAGE.with_name("hgemm_ops_start")):
        shutil.copytree(package, directory / package.name, ignore=left_out)
    # `bench` is the directory to leave out, and also a file of the command, which stays.
    assert not (directory / "hgemm_ops" / "bench").exists() and (directory / "hgemm_ops" / "cli" / "bench.py").exists()
    for library in PACKAGE.glob("*.so"):
        if library.stem not in missing:
            (directory / "hgemm_ops" / library.name).symlink_to(library)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HGEMM_OPS_")}
    environment |= {"PYTHONPATH": str(directory), "HGEMM_OPS_CACHE_DIR": str(directory / "cache")}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=directory, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    said: dict[str, Any] = json.loads(run.stdout)
    assert Path(said["package"]) == directory / "hgemm_ops" / "__init__.py"
    return said | {"missing": missing}


def test_kernels_are_the_same(found: dict[str, Any]) -> None:
    here = [v.name for v in hgemm_ops.variants() if v.family != "ladder" or "_ladder" not in found["missing"]]
    assert found["variants"] == ([] if "_C" in found["missing"] else here)
    assert found["has_ladder"] == (not found["missing"])
    with_library = hgemm_ops.explain(M=16, N=4096, K=4096, arch="sm_90").chosen
    assert found["chosen"] == ("torch" if "_C" in found["missing"] else with_library)


def test_nothing_that_measures_is_imported(found: dict[str, Any]) -> None:
    assert found["measuring"] == []


@pytest.mark.parametrize("command", ["info", "doctor", "help"])
def test_commands_that_do_not_measure_work(found: dict[str, Any], command: str) -> None:
    status, output = found["commands"][command]
    assert status == 0, output
    if command == "info":
        assert all(name in output for name in found["variants"])
    if command == "help":
        assert all(f"\n  {name} " in output for name in ("bench", "explain", "ladder", "report", "tune"))


def test_explain_works_where_there_is_a_library(found: dict[str, Any]) -> None:
    status, output = found["commands"]["explain"]
    assert status == 0 and found["chosen"] in output


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("bench", "hgemm bench needs hgemm_ops.bench, which is missing in "),
        ("tune", "hgemm tune needs hgemm_ops.bench, which is missing in "),
        ("ladder", "hgemm ladder needs a checkout of hgemm_ops, with benchmarks/ and csrc/, which "),
        ("ladder of a family", "hgemm ladder needs a checkout of hgemm_ops, with benchmarks/ and csrc/, which "),
        ("report", "hgemm report needs a checkout of hgemm_ops, with benchmarks/ and csrc/, which "),
    ],
)
def test_commands_that_measure_say_in_one_line_what_is_missing(
    found: dict[str, Any], command: str, reason: str
) -> None:
    status, output = found["commands"][command]
    assert status == 1
    assert output.startswith(f"Error: {reason}") and output.count("\n") == 1
