"""Which modules that measure import which: without a cycle, and the package never imports ``benchmarks``."""

from __future__ import annotations

import ast
import graphlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers import ROOT

BENCH, SCRIPTS = ROOT / "hgemm_ops" / "bench", ROOT / "benchmarks"
#: The only modules of the package that import ``hgemm_ops.bench``.
MEASURING_COMMANDS = {"hgemm_ops.cli.bench", "hgemm_ops.cli.tune"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_in(*directories: Path) -> dict[str, Path]:
    return {module_of(path): path for directory in directories for path in sorted(directory.rglob("*.py"))}


def imported(module: str, path: Path, known: set[str]) -> set[str]:
    """The modules of ``known`` that a file imports anywhere: in functions and for type checkers too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            ancestor = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (ancestor, node.module) if part)
            found |= {f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in known else origin for alias in node.names}
    return found & known - {module}


def graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    return {module: imported(module, path, set(modules)) for module, path in modules.items()}


def test_imports_are_found_wherever_they_are(tmp_path: Path) -> None:
    known = {"p", "p.a", "p.b", "p.q", "p.q.c", "other"}
    file = tmp_path / "a.py"
    file.write_text(
        "import other\n"
        "if TYPE_CHECKING:\n    from .b import B\n"
        "def f():\n    from . import q\n    from .q import c, name\n    import json\n"
    )
    assert imported("p.a", file, known) == {"other", "p.b", "p.q", "p.q.c"}
    file = tmp_path / "__init__.py"
    file.write_text("from . import c\nfrom ..b import B\n")
    assert imported("p.q", file, known) == {"p.q.c", "p.b"}


def test_no_modules_import_each_other() -> None:
    modules = modules_in(BENCH, SCRIPTS)
    assert {"hgemm_ops.bench.survey", "hgemm_ops.bench.peers.cutlass", "benchmarks.course.measure"} <= modules.keys()
    try:
        graphlib.TopologicalSorter(graph(modules)).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_a_cycle_would_be_found() -> None:
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()


def test_only_the_commands_that_measure_import_what_measures() -> None:
    modules = modules_in(ROOT / "hgemm_ops", SCRIPTS)
    imports = graph(modules)
    package = {module: found for module, found in imports.items() if module.startswith("hgemm_ops")}
    assert not {module for module, found in package.items() if any(name.startswith("benchmarks") for name in found)}
    measuring = {
        module
        for module, found in package.items()
        if not module.startswith("hgemm_ops.bench") and any(name.startswith("hgemm_ops.bench") for name in found)
    }
    assert measuring == MEASURING_COMMANDS


@pytest.mark.slow
def test_each_module_can_be_the_first_to_be_imported() -> None:
    """Each in a process that has imported nothing but torch and the package: a fork, since torch takes seconds."""
    modules = list(modules_in(BENCH))
    program = textwrap.dedent(
        f"""
        import importlib, os, sys
        import torch, hgemm_ops
        assert not [name for name in sys.modules if name.startswith("hgemm_ops.bench")]
        failed = []
        for module in {json.dumps(modules)}:
            child = os.fork()
            if child == 0:
                try:
                    importlib.import_module(module)
                except ModuleNotFoundError as error:  # of matplotlib, triton: where they are not installed
                    os._exit(error.name.startswith("hgemm_ops"))
                except BaseException:
                    os._exit(1)
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                failed.append(module)
        print(failed)
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
