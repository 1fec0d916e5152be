"""Runs Nsight Compute on a command that marks what is to be profiled, and reads its output."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

import click
import torch

Row = Mapping[str, str]

_STALL = "smsp__average_warps_issue_stalled_"
#: These are no reasons to wait: the warp was issued, or could have been.
_RUNNING = ("selected", "not_selected")


def marked(launch: Callable[[], object]) -> None:
    """Runs ``launch`` twice. Nsight Compute sees the second run only."""
    launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def profile(command: Sequence[str], metrics: Sequence[str], limit: float) -> list[dict[str, str]]:
    """Profiles ``command`` and returns a row for each launch that it marks, with ``metrics`` and the warps' stalls.

    Clocks are left as they are, and caches are flushed before each launch.

    Raises:
        click.ClickException: ncu is not installed, it failed, or it took more than ``limit`` seconds.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise click.ClickException("ncu is not on PATH")
    whole = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    # Base units: bytes, nanoseconds and hertz, whatever their size.
    whole += ["--print-units", "base", "--section", "WarpStateStats", "--metrics", ",".join(metrics), *command]
    # In a session of its own, so that ncu's child process is killed together with ncu.
    with subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        try:
            output, _ = run.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            raise click.ClickException(f"ncu took more than {limit:g} s") from None
    if run.returncode:
        raise click.ClickException(f"ncu ended with status {run.returncode}:\n{output[-2000:]}")
    return parse(output)


def parse(text: str) -> list[dict[str, str]]:
    """The rows of ncu's raw page as CSV, which has a line of names, a line of units, and a line for each launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    return list(csv.DictReader(io.StringIO("\n".join(lines))))[1:]


def number(text: str) -> float | None:
    """A number as ncu prints it, or None for what is no number."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def stalls(row: Row, most: int = 4) -> dict[str, float]:
    """The reasons for which most warps wait: for each, the mean number of waiting warps per issued instruction."""
    found = {}
    for metric, text in row.items():
        if metric and metric.startswith(_STALL) and metric.endswith("_per_issue_active.ratio"):
            reason = metric.removeprefix(_STALL).removesuffix("_per_issue_active.ratio")
            if reason not in _RUNNING and (value := number(text)):
                found[reason] = value
    return dict(sorted(found.items(), key=lambda item: -item[1])[:most])
