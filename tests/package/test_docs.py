"""The documentation: its Python runs, and the files, commands, kernels and variables it names exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from helpers import ROOT

import hgemm_ops
import hgemm_ops.cli

README = ROOT / "README.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", ROOT / "csrc" / "README.md", ROOT / "benchmarks" / "README.md")
NEEDS_GPU = "# needs a GPU"
# Documents name the form, not one file.
PLACEHOLDER = re.compile(r"[<>*{}…]")
FILE = re.compile(r"[\w./-]+(?:/|\.(?:py|cc|cu|cuh|h|inc|md|toml|json))")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Everything between backticks, and the lines of shell blocks without their comments."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for language, text in blocks(page) if language == "sh" for line in text.splitlines()]
    return re.findall(r"`([^`]+)`", prose) + [line.partition("  #")[0].strip() for line in lines]


def test_readme_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = [text for language, text in blocks(README) if language == "python" and not text.startswith(NEEDS_GPU)]
    assert len(code) >= 5
    names: dict[str, Any] = {}
    for text in code:
        exec(compile(text, "README.md", "exec"), names)
    shown = capsys.readouterr().out
    assert "our kernels: " in shown if torch.cuda.is_available() else "no CUDA device" in shown


def test_readme_python_for_the_gpu_uses_names_that_exist() -> None:
    code = [text for language, text in blocks(README) if language == "python" and text.startswith(NEEDS_GPU)]
    assert code
    for text in code:
        for node in ast.walk(ast.parse(text)):
            chain = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if re.match(r"(torch|hgemm_ops)\.", chain) and "sm80_mma_" not in chain:  # kernels: the test below
                value: Any = {"torch": torch, "hgemm_ops": hgemm_ops}[chain.partition(".")[0]]
                for name in chain.split(".")[1:]:
                    value = getattr(value, name)


def test_readme_kernels_are_declared() -> None:
    declared = {
        "sm80_mma_{}x{}x{}_w{}x{}_s{}".format(*numbers)
        for numbers in re.findall(
            r"Kernel<Config<(\d+), (\d+), (\d+), (\d+), (\d+), (\d+),",
            (ROOT / "csrc" / "kernels" / "sm80_mma" / "list.h").read_text(),
        )
    }
    named = set(re.findall(r"sm80_mma_\d+x\d+x\d+_w\d+x\d+_s\d+", README.read_text()))
    assert named
    assert named <= declared


@pytest.mark.skipif(not hgemm_ops.variants(), reason="no native library")
def test_readme_shows_the_refusal_as_it_is() -> None:
    shown = next(text for _, text in blocks(README) if text.startswith("RuntimeError: "))
    with pytest.raises(RuntimeError) as refused:
        hgemm_ops.explain(M=4097, N=4097, K=4097, arch="sm_90", variant="sm80_mma_128x128x64_w64x64_s3")
    assert f"RuntimeError: {refused.value}".startswith(" ".join(shown.split()))


def test_readme_names_every_environment_variable() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "hgemm_ops").glob("*.py"))
    assert set(re.findall(r'environ\.get\("(HGEMM_\w+)"', sources)) <= set(re.findall(r"HGEMM_\w+", README.read_text()))


@pages
def test_environment_variables_are_read_somewhere(page: Path) -> None:
    sources = [*(ROOT / "hgemm_ops").rglob("*.py"), *(ROOT / "build_tools").glob("*.py"), ROOT / "setup.py"]
    known = set(re.findall(r"HGEMM_[A-Z0-9_]+", "".join(path.read_text() for path in sources)))
    assert set(re.findall(r"HGEMM_[A-Z0-9_]+", page.read_text())) <= known


@pages
def test_files_exist(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    words = [word for command in commands(page) for word in command.split() if not PLACEHOLDER.search(word)]
    tracked = [p for p in ROOT.rglob("*") if not {".venv", "build", ".git"} & set(p.relative_to(ROOT).parts)]
    names = {str(p.relative_to(ROOT)) for p in tracked}

    def exists(word: str) -> bool:
        name = os.path.normpath(word)
        return any(known == name or known.endswith(f"/{name}") for known in names)

    files = [word for word in words if FILE.fullmatch(word) and not word.startswith(("/", "build/", ".venv/"))]
    # Not in this checkout: where results go, a directory of torch's, a user's program.
    absent = ("results/", "torch/headeronly", "train.py")
    missing = [word for word in files if not exists(word) and word not in absent]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pages
def test_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in commands(page):
        if PLACEHOLDER.search(command):
            continue
        words = [Path(word).name if word.startswith(".venv/bin/") else word for word in shlex.split(command)]
        if words[0] == "make" and len(words) > 1:
            assert words[1] in targets, command
        elif words[0] == "python" and words[1] == "-m":
            assert importlib.util.find_spec(words[2]), command
        elif words[0] == "hgemm" and len(words) > 1:
            subcommand = hgemm_ops.cli.main.get_command(click.Context(hgemm_ops.cli.main), words[1])
            assert subcommand, command
            if "NAME" not in words and len(words) > 2:
                subcommand.make_context(words[1], words[2:])  # parses, runs nothing
