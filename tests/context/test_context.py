"""use_custom_gemm() where no kernel of ours runs, and how its report prints; ``test_gpu_context.py`` has the rest."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, needs_library, run_python
from torch import Tensor, nn

from hgemm_ops import use_custom_gemm
from hgemm_ops._report import Report, Row

TIMES = "\N{MULTIPLICATION SIGN}"
LINEAR = Row("", "mm", 1, 8, 16, 4, "float16", "NT", "kernel", 1, "model: fastest")


class Fixed(Report):
    """Of rows that a test gives."""

    def __init__(self, *rows: Row) -> None:
        super().__init__()
        self._rows = list(rows)

    @property
    def rows(self) -> list[Row]:
        return self._rows


def train(dtype: torch.dtype = torch.float16) -> list[Tensor]:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(9, 17), nn.GELU(), nn.Linear(17, 5)).to(dtype), torch.randn(3, 9, dtype=dtype)
    loss = model(x).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_tensors_on_the_cpu_are_torchs(dtype: torch.dtype) -> None:
    expected = train(dtype)
    with use_custom_gemm(sites=True) as report, use_custom_gemm(variant="torch"):
        got = train(dtype)
    assert all(map(torch.equal, got, expected))
    assert report.rows == []


def test_the_package_is_reloaded() -> None:
    """importlib.reload() leaves contexts, ops and the logger as they are."""
    code = """
        import importlib, logging
        import torch, hgemm_ops
        x = torch.ones(2, 2)
        with hgemm_ops.use_custom_gemm() as report:
            importlib.reload(hgemm_ops)
            x @ x
        with hgemm_ops.use_custom_gemm():
            assert torch.equal(torch.ops.hgemm.matmul(x, x), x @ x)
        assert len(logging.getLogger("hgemm_ops").handlers) == 1
        print(report)
    """
    done = run_python(textwrap.dedent(code), HGEMM_OPS_LOG="warning")
    assert done.returncode == 0, done.stderr


def test_an_import_that_failed_is_repeated() -> None:
    """A notebook may correct a variable, and a program imports the package after ``import torch`` has tried to."""
    code = """
        import logging, os
        try:
            import hgemm_ops
        except ValueError as error:
            assert "HGEMM_OPS_NUMERICS" in str(error)
        os.environ["HGEMM_OPS_NUMERICS"] = "fast"
        import torch, hgemm_ops
        x = torch.ones(2, 2)
        assert torch.equal(hgemm_ops.matmul(x, x), x @ x)
        assert hgemm_ops.nn.GatedMLP
        assert len(logging.getLogger("hgemm_ops").handlers) == 1
    """
    done = run_python(textwrap.dedent(code), HGEMM_OPS_NUMERICS="fsat", HGEMM_OPS_LOG="warning")
    assert done.returncode == 0, done.stderr


def test_an_unknown_kernel_is_refused_where_it_is_named() -> None:
    with pytest.raises(ValueError, match="no_such_kernel"):
        use_custom_gemm(variant="no_such_kernel")


def test_settings_without_their_names_are_refused() -> None:
    with pytest.raises(TypeError, match=r"settings by name: as in variant='torch'"):
        use_custom_gemm("torch")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"settings by name: @use_custom_gemm\(\) decorates a function"):

        @use_custom_gemm  # type: ignore[arg-type]
        def step() -> None: ...


def test_an_empty_report() -> None:
    context = use_custom_gemm()
    for _ in range(2):
        assert context.report.rows == []
        assert str(context.report).startswith("no matmuls were counted")
        assert json.loads(json.dumps(context.report.to_dict()))["calls"] == 0
        with pytest.raises(ZeroDivisionError), context as report:
            assert report is context.report
            raise ZeroDivisionError


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")
def test_the_report_says_why_nothing_runs() -> None:
    with use_custom_gemm() as report:
        pass
    assert "CUDA" in str(report) or "native library" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=pytest.mark.gpu, id="gpu")])
def test_disabled_by_the_environment(device: str) -> None:
    code = f"""
import torch
from hgemm_ops import use_custom_gemm
a = torch.randn(64, 64).to("{device}", torch.float16)
expected = a @ a
with use_custom_gemm(sites=True) as report:
    assert torch.equal(a @ a, expected)
    assert torch.equal(torch.compile(lambda x: x @ x, backend="eager", fullgraph=True)(a), expected)
assert report.rows == []
assert "HGEMM_OPS_DISABLE" in str(report), report
"""
    environment = {**os.environ, "HGEMM_OPS_DISABLE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# The report's text


def test_layers_are_one_line() -> None:
    up = [replace(LINEAR, site=f"model.layers.{i}.mlp.up_proj", calls=2) for i in (*range(32), 40, 42)]
    experts = [replace(LINEAR, site=f"model.layers.0.experts.{i}.w1") for i in range(4)]
    others = [replace(LINEAR, site=site) for site in ("3.weights", "4.weights", "lm_head")]
    lines = str(Fixed(*up, *experts, *others, replace(LINEAR, site="lm_head", n=7, calls=5))).splitlines()
    assert [line.split()[:2] for line in lines[1:7]] == [
        ["model.layers.{0-31,40,42}.mlp.up_proj", TIMES + "34"],
        ["model.layers.0.experts.{0-3}.w1", TIMES + "4"],
        ["{3-4}.weights", TIMES + "2"],
        ["lm_head", "mm"],
        ["lm_head", "mm"],
        [],
    ]
    assert " 68  " in lines[1]


def test_many_shapes_are_one_line() -> None:
    few = [replace(LINEAR, site="a", m=m) for m in range(1, 5)]
    many = [replace(LINEAR, site="b", m=m, k=2 * m) for m in range(1, 6)]
    lines = str(Fixed(*few, *many)).splitlines()
    assert len(lines) == 1 + 4 + 1 + 1 + 2
    assert lines[5].split()[:7] == ["b", "mm", "1", "1..5", "16", "2..10", "float16"]


def test_of_many_lines_those_with_the_most_flops_are_printed() -> None:
    small = [replace(LINEAR, m=m, reason=f"model: {m}") for m in range(1, 51)]
    large = [replace(LINEAR, m=1000 * m, reason=f"model: {m}", calls=2) for m in range(1, 51)]
    report = Fixed(*itertools.chain(*zip(small, large, strict=True)))
    lines = str(report).splitlines()
    assert [line.split()[2] for line in lines[1:51]] == [str(row.m) for row in large]
    assert lines[51] == "and 50 more kinds (report.rows lists them): 50 calls, 0.0% of the FLOPs"
    assert lines[52] == "" and lines[53].startswith("our kernels: 150 of 150 calls")
    assert "more kinds" not in str(Fixed(*large))


def test_of_many_reasons_the_most_frequent_are_printed() -> None:
    rows = [replace(LINEAR, variant="torch", reason=f"model: {i}", calls=i) for i in range(1, 31)]
    lines = str(Fixed(*rows)).splitlines()
    assert lines[-11] == "  30 calls: model: 30"
    assert lines[-2:] == ["  21 calls: model: 21", "  210 calls: 20 other reasons"]


def test_columns_are_aligned() -> None:
    rows = replace(LINEAR, site="short", m=1), replace(LINEAR, site="a.much.longer.name", m=100000, calls=12345)
    header, first, second = str(Fixed(*rows)).splitlines()[:3]
    for name, values in {"m": ("1", "100000"), "calls": ("1", "12345")}.items():
        end = header.index(f" {name} ") + len(name) + 1
        for line, value in zip((first, second), values, strict=True):
            assert line[:end].endswith(f" {value}")


# What is called around each context


BUILT_IN = """
import copy, ctypes, pickle
from hgemm_ops import _context, _native, use_custom_gemm
_context._calls = _native.context_calls()  # as after the first entry on a machine with a GPU
"""


@pytest.mark.parametrize("byte", ["0", "2", "255"])
def test_the_functions_outlive_the_modules(byte: str) -> None:
    """At exit Python frees a module's variables in its own order. glibc writes over what is freed here."""
    environment = {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": byte}
    result = run_python(f"{BUILT_IN}\nwith use_custom_gemm(): pass", **environment)
    assert (result.returncode, result.stderr) == (0, "")


def test_other_packages_may_use_the_same_functions_of_python() -> None:
    code = """
_native._pointer_of()
assert ctypes.pythonapi.PyCFunction_NewEx.argtypes is None
assert ctypes.pythonapi.PyCapsule_GetPointer.argtypes is None
"""
    result = run_python(BUILT_IN + code)
    assert result.returncode == 0, result.stderr


def test_a_context_that_was_never_entered_can_be_pickled_after_another_one_was() -> None:
    result = run_python(BUILT_IN + "pickle.loads(pickle.dumps(use_custom_gemm()))")
    assert result.returncode == 0, result.stderr


ENTERED = """
import copy, os, pickle
import torch
from hgemm_ops import _native, _override, _variants, use_custom_gemm

_override.start = lambda: True  # as on a machine with a GPU
modes = lambda: (_native.lib().hgemm_standing_numerics(), _native.lib().hgemm_standing_float32())
context = use_custom_gemm(numerics="batch_invariant", float32="split", sites=True)
with context as report:
    for m in (8, 16):
        query = _variants.matmul_query(m, 8, 8, torch.float16, "NT", _native.preset_facts(90))
        assert _native.lib().hgemm_select_ns(query, 1, 0) >= 0
"""


@pytest.mark.parametrize("how", ["pickle.loads(pickle.dumps(context))", "copy.copy(context)", "copy.deepcopy(context)"])
@needs_library
def test_a_context_that_was_entered_is_copied_without_its_report(how: str) -> None:
    code = f"""
with {how} as counted:
    assert modes() == (1, 1)
    assert counted is not report and len(counted.rows) == 0 and len(report.rows) == 2
assert modes() == (0, 0)
"""
    result = run_python(ENTERED + code)
    assert result.returncode == 0, result.stderr


COMPILED = """
import warnings
import torch
from hgemm_ops import use_custom_gemm

warnings.filterwarnings("error", "Dynamo detected")
@torch.compile(backend="eager")
def step(x):
    with use_custom_gemm(variant="torch", numerics="batch_invariant", float32="split", tune=None):
        return x @ x
x = torch.eye(4)
assert torch.equal(step(x), x)
"""


@needs_library
@pytest.mark.slow
def test_a_context_inside_of_a_compiled_function_causes_no_warning() -> None:
    result = run_python(COMPILED)
    assert result.returncode == 0, result.stderr


@needs_library
def test_a_report_is_pickled_with_its_rows(tmp_path: Path) -> None:
    code = """
pickled = pickle.dumps(report)
open(os.environ["TARGET"], "wb").write(pickled)
report.save(os.environ["TARGET"] + ".json")
print(str(report), end="")
with context:
    assert _native.lib().hgemm_select_ns(query, 1, 0) >= 0
copies = copy.copy(report), copy.deepcopy(report)
assert all(sum(row.calls for row in copied.rows) == 3 for copied in copies)  # they count on
assert sum(row.calls for row in pickle.loads(pickled).rows) == 2
"""
    path = tmp_path / "report"
    result = run_python(ENTERED + code, TARGET=str(path))
    assert result.returncode == 0, result.stderr
    report = pickle.loads(path.read_bytes())
    assert str(report) == result.stdout and repr(report) == "<hgemm_ops report: 2 calls>"
    assert [row.m for row in report.rows] == [8, 16] and report.to_dict()["calls"] == 2
    report.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == Path(f"{path}.json").read_text()
    assert [row.m for row in pickle.loads(pickle.dumps(report)).rows] == [8, 16]


def test_footer_and_dict() -> None:
    report = Fixed(
        replace(LINEAR, m=1, n=1, k=1, calls=3), replace(LINEAR, m=1, n=1, k=3, variant="torch", reason="alpha is 0")
    )
    text = str(report)
    assert "our kernels: 3 of 4 calls (75.0%), 50.0% of the FLOPs" in text
    assert "torch: 1 of 4 calls (25.0%), 50.0% of the FLOPs" in text
    assert "  1 call: alpha is 0" in text
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["calls"], data["kernel_calls"], data["flops"]) == (4, 3, 12)
    assert data["torch_calls"] == {"alpha is 0": 1}
    assert data["rows"][0] == {
        "site": "", "op": "mm", "batch": 1, "m": 1, "n": 1, "k": 1, "dtype": "float16", "layout": "NT",
        "variant": "kernel", "calls": 3, "reason": "model: fastest", "flops": 6,
    }  # fmt: skip
