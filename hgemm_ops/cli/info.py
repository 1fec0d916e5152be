"""``hgemm info``: lists versions, devices, kernels and tuning tables."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click
import torch

import hgemm_ops
from hgemm_ops import _devices, _library, _native, _override, _tables, _tuning


def devices() -> list[dict[str, Any]]:
    """Returns every visible GPU that kernels can run on, as the dispatcher sees it, with its number of tuned shapes."""
    if not _library.load():
        return []
    _tables.ensure()
    found = []
    for gpu in _devices.visible():
        if gpu.fault:
            continue
        facts = {name: getattr(gpu.facts, name) for name in ("cc", "sm_count", "l2_bytes", "dram_gbs")}
        tuned = _native.lib().hgemm_table_size(gpu.facts)
        found.append({"ordinal": gpu.ordinal, "name": gpu.name, **facts, "tuned_shapes": tuned})
    return found


def collect() -> dict[str, Any]:
    """Returns everything that the command prints."""
    kernels = []
    for v in hgemm_ops.variants():
        dtypes = [str(dtype).removeprefix("torch.") for dtype in v.dtypes]
        kernels.append({**asdict(v), "dtypes": dtypes})
    return {
        "hgemm_ops": hgemm_ops.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "library": str(_library.PATH),
        "loaded": _library.load(),
        "reason": _library.reason(),
        "override": _override.reason() or "ready",
        "tunes": _tuning.by_default(),
        "devices": devices(),
        "tables": [str(path) for path in _tables.files()],
        "variants": kernels,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool) -> None:
    """List versions, devices, kernels and tuning tables."""
    data = collect()
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    click.echo(f"hgemm_ops {data['hgemm_ops']}, torch {data['torch']} (CUDA {data['cuda']}), Python {data['python']}")
    click.echo(f"library   {data['library']}" + ("" if data["loaded"] else f" not loaded: {data['reason']}"))
    click.echo(f"override  {data['override']}")
    click.echo(f"tuning    {'on, for untuned shapes' if data['tunes'] else 'off (tune=True or HGEMM_OPS_TUNE=1)'}")
    for d in data["devices"]:
        click.echo(
            f"cuda:{d['ordinal']}    {d['name']}, sm_{d['cc']}, {d['sm_count']} SMs, {d['l2_bytes'] >> 20} MB L2, "
            f"{d['tuned_shapes']} tuned shapes"
        )
    if not data["devices"]:
        click.echo("devices   none that our kernels run on")
    for path in data["tables"]:
        click.echo(f"table     {path}")
    width = max((len(v["name"]) for v in data["variants"]), default=0)
    for v in data["variants"]:
        newest = v["max_arch"] or "newer"
        click.echo(
            f"{v['id']:>4}  {v['name']:<{width}}  {v['min_arch']} to {newest}  {'/'.join(v['dtypes'])}  "
            f"{'/'.join(v['layouts'])}  {v['numerics']}  sums {v['sums']}"
        )
