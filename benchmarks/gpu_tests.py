"""Runs the GPU tests and records the outcome in ``results/<gpu>/tests.json``; further arguments go to pytest."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import click
import torch

from hgemm_ops._bench import record

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ("passed", "skipped", "errors", "failed")  # of two reported for one test, the later counts
# pytest's exit statuses after which the report is complete: all passed, some failed.
_COMPLETE = (0, 1)


def summarize(report: Path) -> dict[str, Any]:
    """Outcomes of a pytest junit report (family xunit1): counts in all and per file, failures, reasons for skips.

    A test whose teardown raised is reported twice and counts once; an expected failure counts as skipped.
    """
    outcomes: dict[tuple[str, str], tuple[str, str]] = {}  # (file, test) -> (outcome, message)
    for case in ElementTree.parse(report).iter("testcase"):
        found = ("passed", "")
        for tag, outcome in (("skipped", "skipped"), ("error", "errors"), ("failure", "failed")):
            for element in case.findall(tag):
                found = (outcome, element.get("message", "").partition("\n")[0])
        test = (case.get("file", ""), f"{case.get('classname')}::{case.get('name')}")
        outcomes[test] = max(outcomes.get(test, found), found, key=lambda o: OUTCOMES.index(o[0]))
    files: dict[str, Counter[str]] = {}
    for (file, _), (outcome, _) in outcomes.items():
        files.setdefault(file, Counter())[outcome] += 1
    return {
        "counts": {outcome: sum(counts[outcome] for counts in files.values()) for outcome in OUTCOMES},
        "files": {file: {outcome: files[file][outcome] for outcome in OUTCOMES} for file in sorted(files)},
        "failures": [
            {"test": name, "message": message}
            for (_, name), (outcome, message) in outcomes.items()
            if outcome in ("errors", "failed")
        ],
        "skips": Counter(message for outcome, message in outcomes.values() if outcome == "skipped"),
    }


@click.command(help=__doc__, context_settings={"ignore_unknown_options": True})
@click.option("--marks", default="gpu or sm90 or multi_gpu", show_default=True, help="Which tests, as pytest -m.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def main(marks: str, output: Path | None, pytest_arguments: tuple[str, ...]) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA GPU: the tests would only be skipped")
    output = output or ROOT / "benchmarks" / "results" / record.gpu_slug(torch.cuda.get_device_name()) / "tests.json"
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "junit.xml")
        command = [sys.executable, "-m", "pytest", "-m", marks, f"--junitxml={report}", "-o", "junit_family=xunit1"]
        status = subprocess.run([*command, *pytest_arguments], cwd=ROOT, check=False).returncode
        if status not in _COMPLETE:
            raise click.ClickException(f"pytest ended with status {status}: nothing is recorded")
        document = record.document(marks=marks, arguments=list(pytest_arguments), **summarize(report))
    record.save(document, output)
    counts = ", ".join(f"{count} {name}" for name, count in document["counts"].items())
    click.echo(f"{counts}; recorded in {output}")
    sys.exit(status)


if __name__ == "__main__":
    main()
