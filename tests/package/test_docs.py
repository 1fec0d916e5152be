"""The documentation: its Python runs, its links lead somewhere, and what it names or quotes exists."""

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
from hgemm_ops import _report, use_custom_gemm
from hgemm_ops.cli.bench import bench

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
OTHERS = ("CONTRIBUTING.md", "csrc/README.md", "benchmarks/README.md")
PAGES = (README, *DOCS, *(ROOT / name for name in OTHERS))
#: Every page with links to others.
NOT_RUN = ("benchmarks/ladder.md", "csrc/ladder/README.md", "findings/README.md")  # here
LINKED = (*PAGES, *(ROOT / name for name in NOT_RUN))
NEEDS_GPU = "# needs a GPU"
# Documents name the form, not one file.
PLACEHOLDER = re.compile(r"[<>*{}…]")
#: What messages have put in at run time.
PUT_IN = re.compile(r"…|:|predicted|\d+(?:\.\d)?a?(?= |,|$|:)|(?<=sm_)\d+a?|'c\+\+'|'batch_invariant'|aten/override.cc")
FILE = re.compile(r"[\w./-]+(?:/|\.(?:py|cc|cu|cuh|h|inc|md|toml|json))")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Everything between backticks but for headings, and the lines of shell blocks without their comments."""
    prose = re.sub(r"^```.*?^```$|^#[^\n]*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for language, text in blocks(page) if language == "sh" for line in text.splitlines()]
    return re.findall(r"`([^`]+)`", prose) + [line.partition("  #")[0].strip() for line in lines]


def snippets(page: Path, for_gpu: bool) -> list[str]:
    code = [text for language, text in blocks(page) if language == "python"]
    return [text for text in code if text.startswith(NEEDS_GPU) == for_gpu]


RUN_BY_TEST_HUB = ROOT / "docs" / "hub.md"
WITH_PYTHON = [page for page in PAGES if snippets(page, False) and page != RUN_BY_TEST_HUB]
with_python = pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
with_gpu_python = pytest.mark.parametrize("page", [page for page in PAGES if snippets(page, True)], ids=name_of)


def run(page: Path, code: list[str]) -> None:
    names: dict[str, Any] = {}
    for text in code:
        exec(compile(text, name_of(page), "exec"), names)


@with_python
def test_python_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(page, snippets(page, False))
    if page == README:
        shown = capsys.readouterr().out
        assert "our kernels: " in shown if torch.cuda.is_available() else "no CUDA device" in shown


@pytest.mark.gpu
@with_gpu_python
def test_python_for_the_gpu_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a snippet writes a file
    run(page, [text for language, text in blocks(page) if language == "python"])


@with_gpu_python
def test_python_for_the_gpu_uses_names_that_exist(page: Path) -> None:
    for text in snippets(page, True):
        for node in ast.walk(ast.parse(text)):
            chain = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if re.match(r"(torch|hgemm_ops)\.", chain) and "sm80_mma_" not in chain:  # kernels: the test below
                value: Any = {"torch": torch, "hgemm_ops": hgemm_ops}[chain.partition(".")[0]]
                for name in chain.split(".")[1:]:
                    value = getattr(value, name)


def test_every_snippet_is_run() -> None:
    code = [page for page in PAGES for language, _ in blocks(page) if language == "python"]
    assert len(code) >= 15 and {README, ROOT / "docs" / "tuning.md"} <= set(code)


def test_kernels_are_declared() -> None:
    declared = {
        "sm80_mma_{}x{}x{}_w{}x{}_s{}".format(*numbers)
        for numbers in re.findall(
            r"Kernel<Config<(\d+), (\d+), (\d+), (\d+), (\d+), (\d+),",
            (ROOT / "csrc" / "kernels" / "sm80_mma" / "list.h").read_text(),
        )
    }
    text = "".join(page.read_text() for page in (README, *DOCS))
    named = set(re.findall(r"sm80_mma_\d+x\d+x\d+_w\d+x\d+_s\d+", text))
    assert named
    assert named <= declared


@pytest.mark.skipif(not hgemm_ops.variants(), reason="no native library")
def test_the_refusal_is_shown_as_it_is() -> None:
    shown = next(text for _, text in blocks(ROOT / "docs" / "operators.md") if text.startswith("RuntimeError: "))
    with pytest.raises(RuntimeError) as refused:
        hgemm_ops.explain(M=4097, N=4097, K=4097, arch="sm_90", variant="sm80_mma_128x128x64_w64x64_s3")
    assert f"RuntimeError: {refused.value}".startswith(" ".join(shown.split()))


@pytest.mark.skipif(not hgemm_ops.variants(), reason="no native library")
def test_the_warned_times_are_the_models() -> None:
    text = (ROOT / "docs" / "numerics.md").read_text()
    for arch in ("sm_80", "sm_100"):
        e = hgemm_ops.explain(M=4096, N=4096, K=4096, dtype=torch.float16, arch=arch, numerics="batch_invariant")
        ours, theirs = (f"{float(number):.0f}" for number in re.findall(r"[\d.]+(?= us)", e.reason))
        assert f"{ours} µs" in text and f"{theirs} µs" in text


def test_the_report_is_shown_as_it_is_printed() -> None:
    shown = next(text for _, text in blocks(README) if text.startswith("site"))
    assert tuple(shown.splitlines()[0].split()) == _report._COLUMNS
    assert "our kernels: " in shown and "torch: " in shown


def test_every_environment_variable_is_listed() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "hgemm_ops").glob("*.py"))
    listed = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("reference", "installation"))
    assert set(re.findall(r'environ\.get\("(HGEMM_\w+)"', sources)) <= set(re.findall(r"HGEMM_\w+", listed))


def literals() -> str:
    """The text of every string in the sources, a line each, with … for what is put in at run time."""
    found = []
    for path in [
        p for folder in ("hgemm_ops", "hgemm_ops_start", "build_tools") for p in (ROOT / folder).rglob("*.py")
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    found.append((ROOT / "setup.py").read_text())
    for path in [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".cc", ".h")]:
        joined = re.sub(r'"\s*\n\s*"', "", path.read_text())  # adjacent literals are one
        found += [text.replace('\\"', '"') for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', joined)]
    return "\n".join(found).replace("`", "")


def test_every_suite_is_described() -> None:
    """Those that the command knows, and those in the tables of results, whose names may have a suffix."""
    (known,) = (option.type.choices for option in bench.params if option.name == "suite")
    _, described, *tables = (ROOT / "docs" / "benchmarks.md").read_text().split("\n## ")
    names = {
        name for cell in re.findall(r"^\| (`.+?) \|", described, re.MULTILINE) for name in re.findall("`(.+?)`", cell)
    }
    assert names == set(known)
    measured = next(text for text in tables if text.startswith("Shapes with measured times"))
    recorded = set(re.findall(r"^\| ([\w-]+) \|", measured, re.MULTILINE)) - {"suite", "---"}
    suffixed = {f"{name}-{suffix}" for name in names for suffix in ("bfloat16", "batch_invariant", "split")}
    assert recorded <= names | suffixed and len(recorded) > 10


def test_every_operator_that_is_overridden_is_named() -> None:
    doors = re.findall(r'door<\w+>\(library, "(\w+)', (ROOT / "csrc" / "aten" / "override.cc").read_text())
    operators = {door if door.startswith("_") else door.rstrip("_") for door in doors}
    assert {"mm", "addmv", "_int_mm"} <= operators
    docs = (ROOT / "docs" / "coverage.md").read_text()
    first = docs[: docs.index("in all their forms")]
    described = (use_custom_gemm.__doc__ or "").partition("They are below")[0]
    assert set(re.findall(r"`(?:aten::)?(\w+)`", first)) == operators
    assert operators <= set(re.findall(r"\w+", described))


def test_error_messages_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    headings = re.findall(r"^### `(.+)`$", text, re.MULTILINE)
    assert len(headings) > 30
    sources = literals()
    for heading in headings:
        fragments = [part.strip(" .") for part in PUT_IN.split(heading) if len(part.strip(" .,")) > 5]
        assert fragments, heading
        missing = [part for part in fragments if part not in sources]
        assert not missing, (heading, missing)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = sum(1 for other in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other))
        found.add(f"{slug}-{count}" if count else slug)
    return found


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"^\[[^\]]+\]: (\S+)$", prose, re.MULTILINE)
    broken = []
    for link in links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        line = re.fullmatch(r"L(\d+)", anchor)
        if line and target.is_file():
            broken += [link] if int(line[1]) > len(target.read_text().splitlines()) else []
        elif not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", (README, *DOCS), ids=name_of)
def test_lines_of_prose_are_short(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not [line for line in text.splitlines() if len(line) > 250]


@pages
def test_environment_variables_are_read_somewhere(page: Path) -> None:
    sources = [*(ROOT / "hgemm_ops").rglob("*.py"), *(ROOT / "build_tools").glob("*.py"), ROOT / "setup.py"]
    known = set(re.findall(r"HGEMM_[A-Z0-9_]+", "".join(path.read_text() for path in sources)))
    assert set(re.findall(r"HGEMM_[A-Z0-9_]+", page.read_text())) <= known


@pages
def test_files_exist(page: Path) -> None:
    words = [word for command in commands(page) for word in command.split() if not PLACEHOLDER.search(word)]
    tracked = [p for p in ROOT.rglob("*") if not {".venv", "build", ".git"} & set(p.relative_to(ROOT).parts)]
    names = {str(p.relative_to(ROOT)) for p in tracked}

    def exists(word: str) -> bool:
        name = os.path.normpath(word)
        return any(known == name or known.endswith(f"/{name}") for known in names)

    files = [word for word in words if FILE.fullmatch(word) and not word.startswith(("/", "build/", ".venv/"))]
    # Not in this checkout: where results go, a directory of torch's, a user's program, files that are written.
    absent = ("results/", "torch/headeronly", "train.py", "matmuls.json", "metadata.json", "build/site/index.html")
    missing = [word for word in files if not exists(word) and word not in absent]
    assert not missing


@pages
def test_commands_exist(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "matmuls.json").touch()  # commands of the pages read it
    monkeypatch.chdir(tmp_path)
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
