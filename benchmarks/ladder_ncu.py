"""Profiles every step of the ladder with Nsight Compute and writes ``results/<gpu>/ladder_ncu.json.xz``.

One launch of each is profiled at 4096x4096x4096 (additions: 4096x4096), with cold caches and the clocks as they are.
Each run of ncu profiles some of the steps, and the file is written after each run. So the results of earlier runs stay
when a later one fails or takes too long.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own path has its directory alone

import hgemm_ops  # noqa: E402
from benchmarks import ncu  # noqa: E402
from benchmarks.course import measure  # noqa: E402
from benchmarks.course.rungs import FAMILIES, RUNGS  # noqa: E402
from hgemm_ops.bench import record, workload  # noqa: E402
from hgemm_ops.bench.suites import Case  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
SIZE = 4096

#: ncu's metric for each key of a record.
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


def case_of(name: str) -> Case:
    """The case that a step is profiled on."""
    dtype = measure.dtype_of(name)
    if RUNGS[name].family == "elementwise":
        return Case(SIZE, SIZE, 1, op="add", dtype=dtype)
    return Case(SIZE, SIZE, SIZE, dtype=dtype)


def steps(families: Sequence[str]) -> list[str]:
    """The steps of the families that this GPU can run, in the order of the course."""
    major = torch.cuda.get_device_capability()[0]
    newer = {v.name for v in hgemm_ops.variants() if int(v.min_arch.removeprefix("sm_")) // 10 > major}
    return [name for name, rung in RUNGS.items() if rung.family in families and name not in newer]


def launch_all(names: Sequence[str]) -> None:
    """The process that ncu watches: one launch of every step, and nothing else while the profiler is on."""
    generator = torch.Generator("cuda").manual_seed(0)
    operands = {case: workload.make_operands(case, generator) for case in dict.fromkeys(map(case_of, names))}
    for name in names:
        x, op = operands[case_of(name)], getattr(torch.ops.hgemm, name)
        ncu.marked(lambda x=x, op=op: op(x.a, x.b))


def entry(name: str, row: ncu.Row) -> dict[str, Any]:
    """The record of one step: the metrics, FLOP per byte of DRAM traffic, and what its warps wait for most."""
    found: dict[str, Any] = {"name": name, "size": SIZE}
    found |= {key: ncu.number(row[metric]) for key, metric in METRICS.items() if metric in row}
    dram = found.get("dram_bytes")
    found["flop_per_dram_byte"] = case_of(name).flops / dram if dram else None
    return found | {"stalls": ncu.stalls(row)}


def profile(names: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """Runs ncu on some steps, for at most ``limit`` seconds."""
    command = [sys.executable, __file__, *(f"--launch={name}" for name in names)]
    rows = ncu.profile(command, list(METRICS.values()), limit)
    if len(rows) != len(names):
        raise click.ClickException(f"ncu saw {len(rows)} launches of {len(names)} steps")
    return [entry(name, row) for name, row in zip(names, rows, strict=True)]


def known(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a file that were measured with exactly these sources, by step."""
    if not path.exists():
        return {}
    document = record.load(path)
    csrc = record.source()["csrc"]
    if csrc is None or document["environment"]["csrc"] != csrc:
        return {}
    return {entry["name"]: entry for entry in document["ncu"]}


@click.command(help=__doc__)
@click.option("--family", "families", type=click.Choice(list(FAMILIES)), multiple=True, default=tuple(FAMILIES))
@click.option("--part", type=click.IntRange(min=1), default=35, show_default=True, help="Steps in a run of ncu.")
@click.option("--limit", type=click.FloatRange(min=1), default=120, show_default=True, help="Seconds for such a run.")
@click.option("--launch", type=click.Choice(list(RUNGS)), multiple=True, hidden=True, help="Only launch these.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(families: tuple[str, ...], part: int, limit: float, launch: tuple[str, ...], output: Path | None) -> None:
    if launch:
        launch_all(launch)
        return
    output = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "ladder_ncu")
    found, failed, names = known(output), [], steps(families)
    for begin in range(0, len(names), part):
        chosen = names[begin : begin + part]
        try:
            entries = profile(chosen, limit)
        except click.ClickException as error:
            failed.append(f"{chosen[0]} to {chosen[-1]}: {error.message}")
            continue
        found |= {entry["name"]: entry for entry in entries}
        ordered = [found[name] for name in RUNGS if name in found]
        record.save(record.document(ncu=ordered, clock_control="none", cache_control="all"), output)
        click.echo(f"{len(found)} of {len(RUNGS)} steps; recorded in {output}")
    if failed:
        raise click.ClickException("\n".join(failed))


if __name__ == "__main__":
    main()
