"""Profiles every step of the ladder with Nsight Compute and writes ``results/<gpu>/ladder_ncu.json.xz``.

One launch of each at 4096x4096x4096 (sums: 4096x4096), with cold caches and the clocks as they are. ncu runs several
times over a part of the steps, and the file is written after each: what was found stays when a later run fails or takes
too long.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch

import hgemm_ops
from hgemm_ops.bench import ladder, ncu, record, workload
from hgemm_ops.bench.rungs import FAMILIES, RUNGS
from hgemm_ops.bench.suites import Case

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


def launch_all(names: Sequence[str]) -> None:
    """What ncu watches: one launch of every step, and nothing else while the profiler is on."""
    generator = torch.Generator("cuda").manual_seed(0)
    operands = {case: workload.make_operands(case, generator) for case in dict.fromkeys(map(case_of, names))}
    for name in names:
        x, op = operands[case_of(name)], getattr(torch.ops.hgemm, name)
        ncu.marked(lambda x=x, op=op: op(x.a, x.b))


def entry(name: str, row: ncu.Row) -> dict[str, Any]:
    """One step: the metrics, FLOP per byte of DRAM traffic, and what its warps wait for most."""
    found: dict[str, Any] = {"name": name, "size": SIZE}
    found |= {key: ncu.number(row[metric]) for key, metric in METRICS.items() if metric in row}
    dram = found.get("dram_bytes")
    found["flop_per_dram_byte"] = case_of(name).flops / dram if dram else None
    return found | {"stalls": ncu.stalls(row)}


def profile(names: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """Runs ncu over steps, at most ``limit`` seconds."""
    command = [sys.executable, __file__, *(f"--launch={name}" for name in names)]
    rows = ncu.profile(command, list(METRICS.values()), limit)
    if len(rows) != len(names):
        raise click.ClickException(f"ncu saw {len(rows)} launches of {len(names)} steps")
    return [entry(name, row) for name, row in zip(names, rows, strict=True)]


def known(path: Path) -> dict[str, dict[str, Any]]:
    """What a file holds of these very sources, by step."""
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
