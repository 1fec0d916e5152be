"""Runs compute-sanitizer's tools over every production kernel and writes ``results/<gpu>/sanitizer.json``.

The kernels run in tests/sanitizer_smoke.py, a few in each process, and ``--jobs`` processes run at once. The record is
written after each process. What remains after ``--limit`` is left to the next run, which continues the record if that
is of the same device code (``rooms``: the tree ids of its directories). Ends with status 1 if a tool found something.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click
import torch

import hgemm_ops
from hgemm_ops.bench import record

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("core", "kernels", "ptx", "tile")  # the directories of csrc that kernels are compiled from
SMOKE = ROOT / "tests" / "sanitizer_smoke.py"
#: Each tool's own options. initcheck does not see what TMA stores, so it would call all results that are copied to the
#: host uninitialised. It does not check these copies: the results are compared on the host, and the reads of kernels
#: are still checked. It also prints no stacks of host frames, which take most of its time.
TOOLS: dict[str, tuple[str, ...]] = {
    "memcheck": (),
    "racecheck": (),
    "synccheck": (),
    "initcheck": ("--check-api-memory-access", "no", "--show-backtrace", "no", "--print-limit", "0"),
}
#: Findings that are intended: (tool, part of the kernels' names, function that reads, why it is intended).
MEANT = (
    (
        "initcheck",
        "_streamk",
        "hgemm::ptx::flag_load",
        "blocks wait in new memory for 64 bits that nothing can have left there: a tag of this launch alone",
    ),
)
SETTLED = ("clean", "meant", "skipped")
_FOUND = 99  # the status of a process in which a tool found something
_LINES_KEPT = 20  # of the output, at either end


def find_sanitizer() -> str | None:
    """compute-sanitizer on PATH, or beside nvcc."""
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


def meant(tool: str, kernels: Sequence[str], output: str) -> tuple[str, str] | None:
    """The part of the kernels' names and the reason, if all findings of a tool are intended.

    None if some finding is not.
    """
    sites = re.findall(r"^=========     at (?:\w+ )*([\w:]+)", output, re.MULTILINE)
    errors = sum(map(int, re.findall(r"ERROR SUMMARY: (\d+) errors?$", output, re.MULTILINE)))
    if len(sites) != errors:
        return None  # some were not printed
    for of_tool, part, site, why in MEANT:
        if tool == of_tool and set(sites) == {site} and any(part in name for name in kernels):
            return part, why
    return None


def run(tool: str, command: Sequence[str], kernels: Sequence[str], limit: float) -> dict[str, dict[str, Any]]:
    """The outcome of one process for each of its kernels.

    A kernel without launches was not reached. The end of the output says why.
    """
    start = time.perf_counter()
    try:
        process = subprocess.run(
            [*command, *kernels],
            cwd=ROOT,
            env={**os.environ, "HGEMM_SANITIZER": tool},
            capture_output=True,
            text=True,
            timeout=limit,
        )
        status, output = process.returncode, process.stdout + process.stderr
    except subprocess.TimeoutExpired as stopped:
        status = None
        output = "".join(x.decode() if isinstance(x, bytes) else x or "" for x in (stopped.stdout, stopped.stderr))
    seconds = round(time.perf_counter() - start, 1)
    launches = {name: int(n) for name, n in re.findall(r"^(\w+): (\d+) launches$", output, re.MULTILINE)}
    unable = dict(re.findall(r"^(\w+): (needs \w+)$", output, re.MULTILINE))
    summary = re.findall(r"SUMMARY: (.+)$", output, re.MULTILINE)
    explained = meant(tool, kernels, output) if status == _FOUND else None
    found: dict[str, dict[str, Any]] = {}
    for name in kernels:
        if name in unable:
            found[name] = {"outcome": "skipped", "why": unable[name]}
        elif (status == 0 or explained) and summary and name in launches:
            found[name] = {"outcome": "clean", "launches": launches[name]}
            if explained and explained[0] in name:
                found[name] = {"outcome": "meant", "launches": launches[name], "why": explained[1]}
        elif status is not None:
            outcome = "found" if status == _FOUND else "failed"
            lines = [line for line in output.splitlines() if "Host Frame" not in line]
            kept = lines if len(lines) <= 2 * _LINES_KEPT else [*lines[:_LINES_KEPT], "...", *lines[-_LINES_KEPT:]]
            found[name] = {"outcome": outcome, "with": list(kernels), "status": status, "output": kept}
    if found:
        next(iter(found.values()))["seconds_of_process"] = seconds
    return found


def totals(tools: dict[str, dict[str, dict[str, Any]]], kernels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each tool, the number of kernels with each outcome, and whether it has run on all kernels."""
    counted = {}
    for tool, found in tools.items():
        outcomes = [entry["outcome"] for entry in found.values()]
        counted[tool] = {outcome: outcomes.count(outcome) for outcome in (*SETTLED, "found", "failed")}
        counted[tool]["launches"] = sum(entry.get("launches", 0) for entry in found.values())
        counted[tool]["complete"] = set(kernels) <= found.keys()
    return counted


@click.command(help=__doc__)
@click.option(
    "--tool", "tools", multiple=True, type=click.Choice(list(TOOLS)), help="Which; repeatable.  [default: all]"
)
@click.option("--kernel", "names", multiple=True, help="Which; repeatable.  [default: every production kernel]")
@click.option("--at-once", type=click.IntRange(min=1), default=8, show_default=True, help="Kernels a process.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes at once.")
@click.option("--limit", type=click.FloatRange(min=1), default=86400.0, help="Seconds after which to stop.")
@click.option("--sanitizer", help="Another compute-sanitizer.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(
    tools: tuple[str, ...],
    names: tuple[str, ...],
    at_once: int,
    jobs: int,
    limit: float,
    sanitizer: str | None,
    output: Path | None,
) -> None:
    program = sanitizer or find_sanitizer()
    if program is None:
        raise click.ClickException("there is no compute-sanitizer; it comes with the CUDA toolkit")
    if output is None:
        if names:
            raise click.UsageError("--kernel is no record: it needs --output")
        if not torch.cuda.is_available():
            raise click.ClickException("no CUDA GPU: the kernels cannot run")
        output = ROOT / "benchmarks" / "results" / record.gpu_slug(torch.cuda.get_device_name()) / "sanitizer.json"
    grouped = hgemm_ops.explain_grouped(rows=64, N=64, K=64, groups=4, arch="sm_90").candidates
    every = [v.name for v in hgemm_ops.variants() if v.family != "ladder"]
    every += [candidate.name for candidate in grouped if candidate.name != "torch"]
    if unknown := set(names) - set(every):
        raise click.BadParameter(f"no production kernel is called {', '.join(sorted(unknown))}", param_hint="--kernel")
    kernels = [name for name in every if not names or name in names]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    ignored = record.ignore_rules(ROOT / ".gitignore")
    rooms = {room: record.git_tree_id(ROOT / "csrc" / room, ignored) for room in ROOMS}
    if output.exists():
        before = record.load(output)
        if before.get("rooms") == rooms:
            found = before["tools"]
    end = time.monotonic() + limit

    def look(tool: str, some: Sequence[str]) -> tuple[str, dict[str, dict[str, Any]]]:
        if time.monotonic() >= end:
            return tool, {}
        command = [program, "--tool", tool, *TOOLS[tool], "--error-exitcode", str(_FOUND), sys.executable, str(SMOKE)]
        return tool, run(tool, command, some, end - time.monotonic())

    with ThreadPoolExecutor(jobs) as pool:
        looks = []
        for tool in tools or TOOLS:
            outcomes = found.setdefault(tool, {})
            left = [name for name in kernels if outcomes.get(name, {}).get("outcome") not in SETTLED]
            looks += [pool.submit(look, tool, left[first : first + at_once]) for first in range(0, len(left), at_once)]
        for done in as_completed(looks):
            tool, outcomes = done.result()
            outcomes = found[tool] | outcomes
            found[tool] = {name: outcomes[name] for name in kernels if name in outcomes}
            counted = totals(found, kernels)
            record.save(record.document(kernels=len(kernels), rooms=rooms, totals=counted, tools=found), output)
            click.echo(f"{tool}: {counted[tool]}")
    counted = totals(found, kernels)
    click.echo(f"recorded in {output}")
    sys.exit(any(tool["found"] or tool["failed"] or not tool["complete"] for tool in counted.values()))


if __name__ == "__main__":
    main()
