"""Runs the GPU tests and records the outcome in ``results/<gpu>/tests.json``. Further arguments go to pytest.

With ``--limit``, tests that have not ended by then are stopped. SIGTERM, which ``timeout`` sends, stops them too. The
record says whether every test had ended, and names those that had not. A test that takes longer than four minutes
prints the stacks of its threads, and goes on. This module is also the pytest plugin that writes down every outcome as
soon as it is known, in a file beside the record. It is removed once the record is written, so that a run that is
killed still says what it found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click
import pytest
import torch

from hgemm_ops.bench import record

ROOT = Path(__file__).resolve().parent.parent
#: Where two outcomes are reported for one test, the later one in this list counts.
OUTCOMES = ("passed", "skipped", "errors", "failed")
#: Tests that had not ended, by name in a record.
NAMED = 20
_GRACE = 10  # seconds that an interrupted pytest gets to end
# Seconds after which a test prints its stacks. The slowest one takes 62 where 15 processes share a GPU. No healthy test
# must get there: faulthandler reads the stacks of running threads, and with 60 it crashed a process that way.
_STUCK = 240


# The environment variable that names the plugin's file, which has a JSON object on each line.
_LINES = "HGEMM_TEST_OUTCOMES"
# The one that lists the GPUs which --spread gives to the processes of pytest-xdist.
_GPUS = "HGEMM_TEST_GPUS"


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    gpus, worker = os.environ.get(_GPUS), os.environ.get("PYTEST_XDIST_WORKER")
    if gpus is not None and worker is not None:
        names = gpus.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = names[int(worker.removeprefix("gw")) % len(names)]


def pytest_collection_finish(session: pytest.Session) -> None:
    # Under xdist every worker collects all tests, and the process that started them none.
    path = os.environ.get(_LINES)
    if path is not None and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0" and session.items:
        with open(path, "a") as lines:
            lines.write(json.dumps({"collected": [item.nodeid for item in session.items]}) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    path = os.environ.get(_LINES)
    if path is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(path, "a") as lines:
            lines.write(json.dumps({"started": nodeid}) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # xdist's workers report to the process that started them, which reports again.
    path = os.environ.get(_LINES)
    if path is None or "PYTEST_XDIST_WORKER" in os.environ or (report.passed and report.when != "call"):
        return
    if report.skipped:
        outcome, message = "skipped", report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        outcome, message = "failed" if report.when == "call" else "errors", crash.message if crash else ""
    else:
        outcome, message = "passed", ""
    line = {"test": report.nodeid, "outcome": outcome, "message": message.removeprefix("Skipped: ").partition("\n")[0]}
    with open(path, "a") as lines:
        lines.write(json.dumps(line) + "\n")


def summarize(lines: Path) -> dict[str, Any]:
    """Sums up the outcomes that the plugin wrote: counts in total and by file, failures, and reasons for skips.

    ``unfinished`` has tests that had not ended, at most ``NAMED``: first those that were running, then those that had
    not begun. ``running`` is the number of the former.

    A test whose teardown raised is reported twice and counts once. An expected failure counts as skipped.
    """
    tests: dict[str, tuple[str, str]] = {}  # name -> (outcome, message)
    collected: list[str] = []
    started: set[str] = set()
    for line in lines.read_text().splitlines():
        report = json.loads(line)
        if "collected" in report:
            collected = report["collected"]
            continue
        if "started" in report:
            started.add(report["started"])
            continue
        found = (report["outcome"], report["message"])
        tests[report["test"]] = max(tests.get(report["test"], found), found, key=lambda o: OUTCOMES.index(o[0]))
    files: dict[str, Counter[str]] = {}
    for test, (outcome, _) in tests.items():
        files.setdefault(test.partition("::")[0], Counter())[outcome] += 1
    unfinished = sorted((test for test in collected if test not in tests), key=lambda test: test not in started)
    return {
        "complete": bool(collected) and not unfinished,
        "unfinished": unfinished[:NAMED],
        "running": sum(test in started for test in unfinished),
        "counts": {outcome: sum(counts[outcome] for counts in files.values()) for outcome in OUTCOMES},
        "files": {file: {outcome: files[file][outcome] for outcome in OUTCOMES} for file in sorted(files)},
        "failures": [
            {"test": test, "message": message}
            for test, (outcome, message) in tests.items()
            if outcome in ("errors", "failed")
        ],
        "skips": Counter(message for outcome, message in tests.values() if outcome == "skipped"),
    }


class _Stopped(Exception):
    """SIGTERM has come."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped


def run(arguments: Sequence[str], lines: Path, limit: float | None, gpus: Sequence[str] = ()) -> int:
    """Runs pytest and returns its status. Outcomes are written to ``lines``.

    After ``limit`` seconds, or at SIGTERM, pytest is interrupted as by Ctrl-C. Each process of pytest-xdist sees one of
    ``gpus``.
    """
    before = signal.signal(signal.SIGTERM, _stop)
    lines.touch()
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, _LINES: str(lines), "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("PYTEST_XDIST_WORKER", None)  # this may run inside of another pytest
    if gpus:
        environment[_GPUS] = ",".join(gpus)
    plugin = ["-p", "benchmarks.gpu_tests", "-o", f"faulthandler_timeout={_STUCK}"]
    command = [sys.executable, "-m", "pytest", *plugin, *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            return process.wait(limit)
        except (subprocess.TimeoutExpired, _Stopped):
            process.send_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGTERM, before)
        try:
            return process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


@click.command(help=__doc__, context_settings={"ignore_unknown_options": True})
@click.option("--marks", default="gpu or sm90 or multi_gpu", show_default=True, help="Which tests, as pytest -m.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
@click.option("--limit", type=click.FloatRange(min=1), help="Seconds after which to stop.")
@click.option("--spread", is_flag=True, help="Share the GPUs out: each process of pytest-xdist sees one of them.")
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def main(marks: str, output: Path | None, limit: float | None, spread: bool, pytest_arguments: tuple[str, ...]) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA GPU: the tests would only be skipped")
    every = ",".join(map(str, range(torch.cuda.device_count())))
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", every).split(",") if spread else []
    output = output or ROOT / "benchmarks" / "results" / record.gpu_slug(torch.cuda.get_device_name()) / "tests.json"
    lines = output.with_suffix(".jsonl")
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.unlink(missing_ok=True)
    status = run(["-m", marks, *pytest_arguments], lines, limit, gpus)
    found = summarize(lines)
    if not any(found["counts"].values()):
        raise click.ClickException(f"pytest ended with status {status}, and no test: nothing is recorded")
    document = record.document(marks=marks, arguments=list(pytest_arguments), **found)
    record.save(document, output)
    lines.unlink()
    counts = ", ".join(f"{count} {name}" for name, count in document["counts"].items())
    click.echo(f"{counts}; recorded in {output}")
    sys.exit(status)


if __name__ == "__main__":
    main()
