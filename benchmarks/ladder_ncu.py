"""Profiles every step of the ladder with Nsight Compute and writes ``results/<gpu>/ladder_ncu.json``.

One launch of each at 4096x4096x4096 (sums: 4096x4096), with cold caches and the clocks as they are.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch

import hgemm_ops
from hgemm_ops._bench import ladder, record, workload
from hgemm_ops._bench.rungs import FAMILIES, RUNGS
from hgemm_ops._bench.suites import Case

RESULTS = Path(__file__).parent / "results"
SIZE = 4096

#: key of the record -> ncu's metric
METRICS = {
    "ns": "gpu__time_duration.sum",
    "compute_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_pct": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_bytes": "dram__bytes.sum",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "fma_pct": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "registers": "launch__registers_per_thread",
}
_STALL = "smsp__average_warps_issue_stalled_"
#: Not reasons to wait: the warp was issued, or could have been.
_RUNNING = ("selected", "not_selected")


def case_of(name: str) -> Case:
    """What a step is profiled on."""
    dtype = ladder.dtype_of(name)
    if RUNGS[name].family == "elementwise":
        return Case(SIZE, SIZE, 1, op="add", dtype=dtype)
    return Case(SIZE, SIZE, SIZE, dtype=dtype)


def steps(families: Sequence[str]) -> list[str]:
    """The steps of the families that this GPU runs, in the order of the course."""
    major = torch.cuda.get_device_capability()[0]
    newer = {v.name for v in hgemm_ops.variants() if int(v.min_arch.removeprefix("sm_")) // 10 > major}
    return [name for name, rung in RUNGS.items() if rung.family in families and name not in newer]


def launch_all(families: Sequence[str]) -> None:
    """What ncu watches: one launch of every step, and nothing else while the profiler is on."""
    generator = torch.Generator("cuda").manual_seed(0)
    operands = {case: workload.make_operands(case, generator) for case in dict.fromkeys(map(case_of, steps(families)))}
    for name in steps(families):
        x = operands[case_of(name)]
        op = getattr(torch.ops.hgemm, name)
        op(x.a, x.b)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        op(x.a, x.b)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def parse(text: str) -> list[dict[str, str]]:
    """The rows of ncu's raw page as CSV: a line of names, one of units, then a line a launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    return rows[1:]


def number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def entry(name: str, row: Mapping[str, str]) -> dict[str, Any]:
    """One step: the metrics, FLOP per byte of DRAM traffic, and what its warps wait for most."""
    found: dict[str, Any] = {"name": name, "size": SIZE}
    found |= {key: number(row[metric]) for key, metric in METRICS.items() if metric in row}
    dram = found.get("dram_bytes")
    found["flop_per_dram_byte"] = case_of(name).flops / dram if dram else None
    stalls = {}
    for metric, text in row.items():
        if metric and metric.startswith(_STALL) and metric.endswith("_per_issue_active.ratio"):
            reason = metric.removeprefix(_STALL).removesuffix("_per_issue_active.ratio")
            if reason not in _RUNNING and (value := number(text)):
                stalls[reason] = value
    found["stalls"] = dict(sorted(stalls.items(), key=lambda item: -item[1])[:4])
    return found


def profile(families: Sequence[str]) -> list[dict[str, Any]]:
    ncu = shutil.which("ncu")
    if ncu is None:
        raise click.ClickException("ncu is not on PATH")
    command = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    # Base units: bytes and nanoseconds, whatever their size.
    command += ["--print-units", "base", "--section", "WarpStateStats", "--metrics", ",".join(METRICS.values())]
    chosen = [f"--family={family}" for family in families]
    run = subprocess.run([*command, sys.executable, __file__, "--launch", *chosen], capture_output=True, text=True)
    if run.returncode:
        raise click.ClickException(f"ncu ended with status {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    rows, names = parse(run.stdout), steps(families)
    if len(rows) != len(names):
        raise click.ClickException(f"ncu saw {len(rows)} launches of {len(names)} steps")
    return [entry(name, row) for name, row in zip(names, rows, strict=True)]


@click.command(help=__doc__)
@click.option("--family", "families", type=click.Choice(list(FAMILIES)), multiple=True, default=tuple(FAMILIES))
@click.option("--launch", is_flag=True, hidden=True, help="Only launch the steps, under ncu.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(families: tuple[str, ...], launch: bool, output: Path | None) -> None:
    if launch:
        launch_all(families)
        return
    found = profile(families)
    output = output or RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "ladder_ncu.json"
    record.save(record.document(ncu=found, clock_control="none", cache_control="all"), output)
    click.echo(f"{len(found)} steps; recorded in {output}")


if __name__ == "__main__":
    main()
