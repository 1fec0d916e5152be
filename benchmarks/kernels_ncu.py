"""Profiles production kernels beside torch's own with Nsight Compute and writes ``results/<gpu>/kernels_ncu.json.xz``.

One launch of each is profiled, with cold caches and the clocks as they are. The results show how a kernel spends its
cycles, how many bytes it moves, and at which clock its power lets it run.
"""

from __future__ import annotations

import re
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
from hgemm_ops.bench import record, workload  # noqa: E402
from hgemm_ops.bench.suites import Case  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
TORCH = "torch"

LARGE = (
    Case(4096, 6144, 4096, layout="NT"),
    Case(4096, 4096, 4096),
    Case(8192, 8192, 4096),
    Case(1024, 4096, 4096, layout="NT"),
    Case(512, 6144, 4096, layout="NT"),
)
DECODE = (
    Case(1, 4096, 4096, layout="NT"),
    Case(16, 28672, 4096, layout="NT"),
    Case(16, 4096, 14336, layout="NT"),
    Case(64, 6144, 4096, layout="NT"),
)
CASES = LARGE + DECODE
LARGE_KERNELS = tuple(
    f"sm90_wgmma_{name}"
    for name in (
        "pingpong_128x192x64_c2x1x1",
        "pingpong_192x128x64_c1x2x1",
        "pingpong_128x200x64_c2x1x1_swapped",
        "pingpong_128x128x64_c1x1x1",
        "cooperative_128x256x64_c2x1x1",
        "cooperative_128x248x64_c2x1x1_edged_swapped",
    )
)

DECODE_KERNELS = (
    *(f"skinny_wgmma_{name}" for name in ("64x8", "64x16", "64x32", "64x64", "128x32", "128x64")),
    "skinny_mma_16x8",
    "skinny_mma_16x16",
    "sm90_wgmma_pingpong_64x128x64_c1x1x1",
    "sm90_wgmma_pingpong_64x96x64_c2x1x1",
)
KERNELS = LARGE_KERNELS + DECODE_KERNELS

#: ncu's metric for each key of a record.
METRICS = {
    "ns": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "clock_hz": "sm__cycles_elapsed.avg.per_second",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "l2_bytes": "lts__t_bytes.sum",
    "dram_bytes": "dram__bytes.sum",
    "registers": "launch__registers_per_thread",
}
_SUMS = ("ns", "cycles", "l2_bytes", "dram_bytes")
_OURS = re.compile(r"\b(sm90_wgmma|sm90_skinny|skinny)::kernel\b")  # the functions of KERNELS


def launches() -> list[tuple[Case, str]]:
    """Every case with torch, and then with each kernel that can run it."""
    found = []
    for case in CASES:
        candidates = hgemm_ops.explain(M=case.m, N=case.n, K=case.k, layout=case.layout).candidates
        serves = {c.name for c in candidates if c.eligible}
        kernels = LARGE_KERNELS if case in LARGE else DECODE_KERNELS
        found += [(case, name) for name in (TORCH, *kernels) if name == TORCH or name in serves]
    return found


def launch_all() -> None:
    """The process that ncu watches: it runs all launches once."""
    generator = torch.Generator("cuda").manual_seed(0)
    ids = {v.name: v.id for v in hgemm_ops.variants()}
    operands = {case: workload.make_operands(case, generator) for case in CASES}
    for case, name in launches():
        x = operands[case]
        if name == TORCH:
            ncu.marked(lambda x=x: torch.mm(x.a, x.b))
        else:
            ncu.marked(lambda x=x, id_=ids[name]: torch.ops.hgemm.mm(x.a, x.b, variant=id_))


def grouped(expected: Sequence[tuple[Case, str]], rows: Sequence[ncu.Row]) -> list[list[ncu.Row]]:
    """The rows of each launch. Ours is one kernel. A matmul of torch may be several kernels, for split-K.

    Raises:
        click.ClickException: the rows do not match ``expected``.
    """
    left, groups = list(rows), []
    for case, name in expected:
        count = 1
        if name == TORCH:
            count = next((i for i, row in enumerate(left) if _OURS.search(row["Kernel Name"])), len(left))
        group, left = left[:count], left[count:]
        if not group or (name != TORCH) != bool(_OURS.search(group[0]["Kernel Name"])):
            seen = group[0]["Kernel Name"] if group else "nothing"
            raise click.ClickException(f"{case.label}: ncu saw {seen} where {name} was launched")
        groups.append(group)
    if left:
        raise click.ClickException(f"ncu saw {len(rows)} kernels, {len(left)} more than were launched")
    return groups


def entry(case: Case, name: str, rows: Sequence[ncu.Row]) -> dict[str, Any]:
    """The record of one launch.

    If it ran several kernels, their values are summed. What cannot be summed is taken from the longest kernel.
    """
    counted = [{key: ncu.number(row[metric]) or 0.0 for key, metric in METRICS.items()} for row in rows]
    longest = max(range(len(rows)), key=lambda i: counted[i]["ns"])
    found = counted[longest] | {key: sum(x[key] for x in counted) for key in _SUMS}
    found["tensor_pct"] = sum(x["tensor_pct"] * x["cycles"] for x in counted) / found["cycles"]
    return {
        "case": case.label,
        "name": name,
        "kernel": " + ".join(row["Kernel Name"] for row in rows),
        **found,
        "tflops": case.flops / found["ns"] / 1e3,
        "stalls": ncu.stalls(rows[longest]),
    }


@click.command(help=__doc__)
@click.option("--limit", type=click.FloatRange(min=1), default=120, show_default=True, help="Seconds for ncu.")
@click.option("--launch", is_flag=True, hidden=True, help="Only launch.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(limit: float, launch: bool, output: Path | None) -> None:
    if launch:
        launch_all()
        return
    output = output or RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "kernels_ncu.json.xz"
    expected = launches()
    rows = ncu.profile([sys.executable, __file__, "--launch"], list(METRICS.values()), limit)
    groups = grouped(expected, rows)
    entries = [entry(case, name, group) for (case, name), group in zip(expected, groups, strict=True)]
    record.save(record.document(ncu=entries, clock_control="none", cache_control="all"), output)
    click.echo(f"{len(entries)} launches recorded in {output}")


if __name__ == "__main__":
    main()
