"""hgemm_ops without a line of code: ``HGEMM_OPS_ENABLE`` at ``import torch``, the engines' entry points, ``hgemm run``.

Every process here finds the entry points of the checkout, as if the package were installed. In the processes of
``COUNT``, the override of torch's matmuls pretends to start, so that a report has a row without a GPU.
``context/test_gpu_enable.py`` runs matmuls.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import ROOT, needs_library, pretend_installed

import hgemm_ops
from hgemm_ops import _context, _devices, _library, _native, _override, _startup, _variants
from hgemm_ops.cli import main
from hgemm_ops_start.run import run as command

pytestmark = pytest.mark.slow

#: Counts a matmul with the first argument rows.
COUNT = """
import sys
import torch
from hgemm_ops import _native, _override, _variants, enable
_override.start = lambda: True
enable()
query = _variants.matmul_query(int(sys.argv[1]), 8, 8, torch.float16, "NT", _native.preset_facts(90))
assert _native.lib().hgemm_select_ns(query, 1, 0) >= 0
"""
#: A report without a matmul, as a regular expression.
NOTHING = r"no matmuls were counted: .+\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the entry points of the checkout."""
    unset = ("HGEMM_", "TORCH_DEVICE_BACKEND", "RANK", "PYTHON")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    return inherited | pretend_installed(tmp_path_factory.mktemp("installed"))


def run(arguments: list[str], environment: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, env=environment | more, capture_output=True, text=True, timeout=300)


def python(code: str, environment: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", textwrap.dedent(code)], environment, **more)


def script(folder: Path, code: str, name: str = "script.py") -> str:
    path = folder / name
    path.write_text(textwrap.dedent(code))
    return str(path)


# ---- import torch


LOADED = "import sys, torch; print('hgemm_ops' in sys.modules)"
ENABLED = "import sys, torch; print(sys.modules['hgemm_ops']._context._last is not None)"


@pytest.mark.parametrize(
    "variables",
    [{}, {"HGEMM_OPS_ENABLE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}],
    ids=["unset", "no autoload"],
)
def test_import_torch_does_not_import_the_package(installed: dict[str, str], variables: dict[str, str]) -> None:
    done = python(LOADED, installed, **variables)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_the_variable_costs_little_where_it_is_not_set(installed: dict[str, str]) -> None:
    code = """
    import sys, time
    from importlib.metadata import entry_points
    (point,) = {p.value: p for p in entry_points(group="torch.backends") if p.module == "hgemm_ops_start"}.values()
    before, seconds = set(sys.modules), []
    for _ in range(5):
        sys.modules.pop("hgemm_ops_start", None)
        begin = time.perf_counter()
        point.load()()
        seconds.append(time.perf_counter() - begin)
    print(min(seconds), sorted(set(sys.modules) - before))
    """
    seconds, _, modules = python(code, installed).stdout.partition(" ")
    assert modules == "['hgemm_ops_start']\n"
    assert float(seconds) < 0.005


@pytest.mark.parametrize("first", ["import torch", "import hgemm_ops"])
def test_import_torch_enables(installed: dict[str, str], first: str) -> None:
    done = python(f"{first}\n{ENABLED}", installed, HGEMM_OPS_ENABLE="1")
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_without_autoload_the_package_reads_the_variable(installed: dict[str, str]) -> None:
    variables = {"HGEMM_OPS_ENABLE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert python(f"import hgemm_ops\n{ENABLED}", installed, **variables).stdout == "True\n"


@needs_library
def test_the_other_variables_are_its_settings(installed: dict[str, str]) -> None:
    code = "import torch, hgemm_ops; l = hgemm_ops._native.lib(); "
    code += "print(l.hgemm_standing_float32(), l.hgemm_standing_numerics())"
    variables = {"HGEMM_OPS_ENABLE": "1", "HGEMM_OPS_FLOAT32": "split", "HGEMM_OPS_NUMERICS": "batch_invariant"}
    assert python(code, installed, **variables).stdout == "1 1\n"


@needs_library
def test_torchs_own_kernels_from_python_are_registered_before(installed: dict[str, str], tmp_path: Path) -> None:
    """They are in ``torch._native``, which ``import torch`` imports after it has called the entry points."""
    probe = """
    import sys

    def start():
        from hgemm_ops import _devices, _native, _override

        def load():
            print("torch._native" in sys.modules)
            raise RuntimeError("this is far enough")

        _devices.no_cuda = lambda: ""
        _native.lib().hgemm_has_device_code = lambda: 1
        _override._load = load
        print(_override.reason())
    """
    script(tmp_path, probe, "probe.py")
    info = tmp_path / "probe-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nprobe = probe:start\n")
    done = python(
        "import torch, importlib.util; print(importlib.util.find_spec('torch._native') is not None)",
        installed | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])},
    )
    at_start, reason, exists = done.stdout.splitlines()
    assert at_start == exists and reason.endswith("this is far enough"), done.stderr


def test_a_failure_is_a_warning(installed: dict[str, str]) -> None:
    variables = {"HGEMM_OPS_ENABLE": "1", "HGEMM_OPS_LOG": "loud"}
    done = python("import torch; print(torch.ones(2).sum())", installed, **variables)
    assert done.stdout == "tensor(2.)\n"
    expected = "HGEMM_OPS_ENABLE has no effect, torch runs as before: ValueError: HGEMM_OPS_LOG: expected debug"
    assert done.stderr.startswith(expected) and done.stderr.count("\n") == 1


def test_numerics_that_cannot_be_guaranteed_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HGEMM_OPS_ENABLE", "1")
    monkeypatch.setattr(_override, "start", lambda: False)
    monkeypatch.setattr(_override, "reason", lambda: "there is no compiler")
    monkeypatch.setattr(_devices, "may_exist", lambda: True)
    monkeypatch.setattr(_variants, "standing_numerics", lambda: "batch_invariant")
    _startup.apply_environment()
    (line,) = caplog.messages
    assert (
        line.startswith("HGEMM_OPS_ENABLE has no effect")
        and "'batch_invariant'" in line
        and "there is no compiler" in line
    )


@pytest.mark.parametrize("enable", [False, True])
def test_entry_points_are_called_as_torch_and_the_engines_do(installed: dict[str, str], enable: bool) -> None:
    """vLLM and SGLang load each entry point of their group and call it without arguments, maybe several times."""
    code = """
    import sys
    from importlib.metadata import entry_points
    groups = ("torch.backends", "vllm.general_plugins", "sglang.srt.plugins")
    functions = [{point.name: point.load() for point in entry_points(group=group)}["hgemm_ops"] for group in groups]
    import torch
    for function in functions * 2:
        function()
        print("hgemm_ops" in sys.modules and sys.modules["hgemm_ops"]._context._last is not None)
    """
    variables = {"HGEMM_OPS_ENABLE": str(int(enable)), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert python(code, installed, **variables).stdout == f"{enable}\n" * 6


def test_commands_are_not_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They measure torch's own kernels."""
    monkeypatch.setenv("HGEMM_OPS_ENABLE", "1")
    monkeypatch.setattr(_override, "start", lambda: _library.load())
    hgemm_ops.enable()
    assert CliRunner().invoke(main, ["info"]).exit_code == 0
    assert _context._active is None and "HGEMM_OPS_ENABLE" not in os.environ


# ---- hgemm run


WHERE = "import sys; print(sys.argv[1:], __name__, __file__, sys.path[0], sys.flags.optimize)\n"


def test_a_program_runs_as_python_runs_it(installed: dict[str, str], tmp_path: Path) -> None:
    path = script(tmp_path, WHERE)
    (tmp_path / "package").mkdir()
    script(tmp_path / "package", WHERE, "__main__.py")
    environment = installed | {"PYTHONPATH": os.pathsep.join([str(tmp_path), installed["PYTHONPATH"]])}
    for program in ([path, "--report", "x", "-m", "--", "a b"], ["-m", "package", "--tune", "-h"]):
        expected, got = run([sys.executable, *program], environment), run(["hgemm", "run", *program], environment)
        assert (got.returncode, got.stdout, got.stderr) == (0, expected.stdout, "")
    optimized = run([sys.executable, "-O", "-m", "hgemm_ops", "run", path], environment)
    assert optimized.stdout.endswith(" 1\n"), optimized.stderr


@pytest.mark.parametrize("code", ["raise ValueError('no')", "sys.exit(7)", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_program_ends_as_python_ends_it(installed: dict[str, str], tmp_path: Path, code: str) -> None:
    """Exit status, signal and traceback are Python's; then comes the report."""
    # Python does not handle Ctrl-C in a process that was started with this signal ignored, as a shell's jobs are.
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    path = script(tmp_path, f"{start}\nimport json\n{code}\n")
    expected = run([sys.executable, path], installed)
    assert expected.returncode == {"r": 1, "s": 7, "o": -signal.SIGINT}[code[0]]  # a shell calls the last one 130
    got = run(["hgemm", "run", path], installed)
    assert (got.returncode, got.stdout, got.stderr) == (expected.returncode, "", expected.stderr)  # no torch, no report
    script(tmp_path, f"{start}\nimport torch\n{code}\n")
    got = run(["hgemm", "run", path], installed)
    assert (got.returncode, got.stdout) == (expected.returncode, "")
    report = rf"\nhgemm_ops report of process \d+\n{NOTHING}"
    assert re.fullmatch(re.escape(expected.stderr) + report, got.stderr), got.stderr


def test_the_program_decides_when_torch_is_imported(installed: dict[str, str], tmp_path: Path) -> None:
    path = script(tmp_path, "import sys; print({'torch', 'click', 'hgemm_ops_start'} & set(sys.modules))")
    assert run(["hgemm", "run", path], installed).stdout == "set()\n"


def test_options_are_variables_of_the_program(installed: dict[str, str], tmp_path: Path) -> None:
    path = script(tmp_path, "import os; print({k: v for k, v in os.environ.items() if k.startswith('HGEMM_OPS_')})")
    options = ["--float32=split", "--numerics=batch_invariant", "--variant=torch", "--tune", "--sites"]
    done = run(["hgemm", "run", *options, "--report", "x.txt", path], installed, HGEMM_OPS_FLOAT32="strict")
    variables = eval(done.stdout)
    owner = variables.pop("HGEMM_OPS_OWNER")
    assert re.fullmatch(r":\d+", owner)
    assert variables == {
        "HGEMM_OPS_ENABLE": "1",
        "HGEMM_OPS_FLOAT32": "split",
        "HGEMM_OPS_NUMERICS": "batch_invariant",
        "HGEMM_OPS_VARIANT": "torch",
        "HGEMM_OPS_TUNE": "1",
        "HGEMM_OPS_SITES": "1",
        "HGEMM_OPS_REPORT": str(Path("x.txt").resolve()),
    }
    variables = eval(run(["hgemm", "run", path], installed, HGEMM_OPS_FLOAT32="split").stdout)
    assert (variables["HGEMM_OPS_FLOAT32"], variables["HGEMM_OPS_REPORT"]) == ("split", "-")
    outer = {"HGEMM_OPS_ENABLE": "1", "HGEMM_OPS_REPORT": "/outer", "HGEMM_OPS_OWNER": ":1"}
    assert eval(run(["hgemm", "run", path], installed, **outer).stdout) == outer


@needs_library
def test_a_kernel_that_is_unknown_is_refused_before_the_program_runs(installed: dict[str, str], tmp_path: Path) -> None:
    path = script(tmp_path, "print('ran')")
    done = run(["hgemm", "run", "--variant", "gemv_m", path], installed)
    assert (done.returncode, done.stdout) == (2, "") and "unknown kernel 'gemv_m'; available" in done.stderr
    assert run(["hgemm", "run", "--variant", "gemv_m1", path], installed).stdout == "ran\n"
    outer = {"HGEMM_OPS_ENABLE": "1", "HGEMM_OPS_REPORT": "-", "HGEMM_OPS_VARIANT": "no_such_kernel"}
    refused = run(["hgemm", "run", "--variant", "gemv_m", path], installed, **outer)
    assert (refused.returncode, refused.stdout) == (2, "") and "report" not in refused.stderr
    assert run(["hgemm", "run", "--variant", "gemv_m1", path], installed, **outer).stdout == "ran\n"


def test_modes_are_those_of_the_library() -> None:
    choices = {option.name: option.type.choices for option in command.params if hasattr(option.type, "choices")}
    assert {name: tuple(values) for name, values in choices.items()} == {
        "float32": _native.FLOAT32,
        "numerics": _native.NUMERICS,
    }


@needs_library
def test_the_report_is_written_to_a_file(installed: dict[str, str], tmp_path: Path) -> None:
    path = script(tmp_path, COUNT + "raise SystemExit(3)")
    for name in ("report.txt", "report.json"):
        done = run(["hgemm", "run", "--report", str(tmp_path / name), path, "41"], installed)
        assert (done.returncode, done.stderr) == (3, "")
    assert " 41 " in (tmp_path / "report.txt").read_text()
    variables = {"HGEMM_OPS_ENABLE": "1", "HGEMM_OPS_REPORT": "~/home.txt", "HOME": str(tmp_path)}
    assert run([sys.executable, path, "43"], installed, **variables).returncode == 3
    assert " 43 " in (tmp_path / "home.txt").read_text()
    (product,) = json.loads((tmp_path / "report.json").read_text())["products"]
    assert product["m"] == 41
    for bad in (f"{path}/report.txt", str(tmp_path)):
        before = set(tmp_path.parent.iterdir())
        done = run(["hgemm", "run", "--report", bad, path, "41"], installed)
        assert done.returncode in (2, 3) and set(tmp_path.parent.iterdir()) == before
        assert done.returncode == 2 or ("cannot write the report to" in done.stderr and " 41 " in done.stderr)


@needs_library
@pytest.mark.parametrize("rank", [{}, {"RANK": "1"}])
def test_the_report_goes_to_a_stream(installed: dict[str, str], tmp_path: Path, rank: dict[str, str]) -> None:
    """It replaces neither the name of the stream nor the file that a shell has redirected the stream to."""
    path, output = script(tmp_path, "print('first', flush=True)\n" + COUNT), tmp_path / "output"
    line = '{ hgemm run --report /dev/stdout "$0" 41; echo last; } > "$1"'
    done = run(["sh", "-c", line, path, str(output)], installed, **rank)
    assert (done.returncode, done.stderr) == (0, "")
    first, *report, last = output.read_text().splitlines()
    assert (first, last) == ("first", "last") and " 41 " in report[1]
    assert Path("/dev/stdout").is_symlink() and not Path("/dev/stdout.rank1").exists()


@needs_library
def test_stdout_is_closed(installed: dict[str, str], tmp_path: Path) -> None:
    done = run(["sh", "-c", 'exec hgemm run --report /dev/stdout "$0" 41 >&-', script(tmp_path, COUNT)], installed)
    assert done.returncode == 0 and Path("/dev/stdout").is_symlink()
    assert "cannot write the report to /dev/stdout" in done.stderr and " 41 " in done.stderr


def test_a_command_is_no_program(installed: dict[str, str], tmp_path: Path) -> None:
    path = script(tmp_path, "pass")
    for name in ("python3", sys.executable, "sh"):
        done = run(["hgemm", "run", name, path], installed)
        assert done.returncode == 2 and f"{name} is a command, but PROGRAM is a Python script" in done.stderr
    folder = tmp_path / "python3"
    folder.mkdir()
    script(folder, "print('main')", "__main__.py")
    done = subprocess.run(["hgemm", "run", "python3"], env=installed, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "main\n", done.stderr


@needs_library
def test_advice_in_place_of_the_report(installed: dict[str, str], tmp_path: Path) -> None:
    path = script(tmp_path, COUNT + "_native.device_facts = lambda ordinal: _native.preset_facts(90)")
    for name in ("advice.txt", "advice.json"):
        done = run(["hgemm", "run", "--advise", "--report", str(tmp_path / name), path, "42"], installed)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "advice.txt").read_text().splitlines()[1].startswith("42x8x8 float16 NT")
    (line,) = json.loads((tmp_path / "advice.json").read_text())["matmuls"]
    assert (line["matmul"], line["calls"]) == ("42x8x8 float16 NT", 1)


def test_doctor_runs_modules(installed: dict[str, str], tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(sys.argv[1:], __name__)", "program.py")
    environment = installed | {"PYTHONPATH": os.pathsep.join([str(tmp_path), installed["PYTHONPATH"]])}
    done = run(["hgemm", "doctor", "-m", "program", "-m", "a"], environment)
    assert (done.returncode, done.stdout) == (0, "['-m', 'a'] __main__\n"), done.stderr
    assert run(["hgemm", "doctor", "-m"], environment).returncode == 2


@needs_library
def test_child_processes_report_apart(installed: dict[str, str], tmp_path: Path) -> None:
    """Only those that ran matmuls, and not forked ones, whose counts are in part their parent's."""
    count = script(tmp_path, COUNT, "count.py")
    body = f"""
    import os, runpy, subprocess, sys
    import multiprocessing

    def child(m):
        sys.argv = ["count", str(m)]
        runpy.run_path({count!r})

    if __name__ == "__main__":
        import torch
        subprocess.run([sys.executable, {count!r}, "51"], check=True)
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        process = multiprocessing.get_context("spawn").Process(target=child, args=(52,))
        process.start()
        process.join()
        assert process.exitcode == 0
        child(53)
        if os.fork() == 0:
            sys.exit()
        os.wait()
    """
    path = script(tmp_path, body)
    done = run(["hgemm", "run", "--report", str(tmp_path / "report.txt"), path], installed)
    assert (done.returncode, done.stderr) == (0, "")
    found = {path.name: path.read_text() for path in tmp_path.glob("report*")}
    assert " 53 " in found.pop("report.txt")
    assert all(re.fullmatch(r"report\.pid\d+\.txt", name) for name in found), list(found)
    assert sorted(m for text in found.values() for m in re.findall(r"\bmm +1 +(\d+)", text)) == ["51", "52"]


@needs_library
@pytest.mark.parametrize("how", ["--no-python", "-m", "variable"])
def test_torchrun_has_a_report_for_each_rank(installed: dict[str, str], tmp_path: Path, how: str) -> None:
    code = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    dist.destroy_process_group()
    """
    path, report = script(tmp_path, COUNT + textwrap.dedent(code)), str(tmp_path / "report.txt")
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--standalone"]
    if how == "--no-python":
        done = run(
            [sys.executable, *torchrun, "--no-python", "hgemm", "run", "--report", report, path, "61"], installed
        )
    elif how == "-m":
        done = run([sys.executable, *torchrun, "-m", "hgemm_ops", "run", "--report", report, path, "61"], installed)
    else:
        variables = {"HGEMM_OPS_ENABLE": "1", "HGEMM_OPS_REPORT": report}
        done = run([sys.executable, *torchrun, path, "61"], installed, **variables)
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in tmp_path.glob("report*")}
    if how == "variable":
        assert re.fullmatch(NOTHING, found.pop("report.txt"))  # torchrun's own
    assert sorted(found) == ["report.rank0.txt", "report.rank1.txt"]
    assert all(" 61 " in text for text in found.values())


def test_what_would_run_without_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    result = CliRunner().invoke(command, ["x.py"])
    assert result.exit_code == 1 and "TORCH_DEVICE_BACKEND_AUTOLOAD is set" in result.output
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD")
    monkeypatch.setattr("hgemm_ops_start.run.entry_points", lambda group: [])
    result = CliRunner().invoke(command, ["x.py"])
    assert result.exit_code == 1 and "hgemm_ops is not installed" in result.output


def test_usage_errors() -> None:
    for arguments in ([], ["--float32", "wide", "x.py"], ["--nope", "x.py"]):
        assert CliRunner().invoke(command, arguments).exit_code == 2
