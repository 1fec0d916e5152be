"""Measures what a decision costs on the host, from the thread's cache and computed. Needs no GPU.

Run it as ``python benchmarks/select_cost.py [--json]``.
"""

from __future__ import annotations

import json

import click
import torch

from hgemm_ops import _native, _tables, _variants

_SHAPES = ((1, 1, 4096, 4096), (1, 16, 4096, 4096), (1, 4097, 4097, 4097), (1, 8192, 8192, 8192), (64, 128, 128, 64))


def measure(iterations: int = 5_000, rounds: int = 50) -> list[dict[str, object]]:
    """Nanoseconds per decision for an H200.

    The shortest of many short rounds is taken, because other processes disturb it least.
    """
    _tables.ensure()
    facts = _native.preset_facts(90)
    rows: list[dict[str, object]] = []
    for batch, m, n, k in _SHAPES:
        query = _variants.matmul_query(m, n, k, torch.float16, "NT", facts, batch)
        cached, computed = (
            min(_native.lib().hgemm_select_ns(query, use_cache, iterations) for _ in range(rounds))
            for use_cache in (1, 0)
        )
        rows.append({"batch": batch, "m": m, "n": n, "k": k, "cached_ns": cached, "computed_ns": computed})
    return rows


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(as_json: bool) -> None:
    """Time the dispatcher's decisions."""
    rows = measure()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(
        f"{len(_variants.names())} kernels, {_native.lib().hgemm_table_size(_native.preset_facts(90))} tuned shapes"
    )
    click.echo(f"{'batch x M x N x K':>24}  {'cached ns':>9}  {'computed ns':>11}")
    for row in rows:
        shape = "x".join(str(row[key]) for key in ("batch", "m", "n", "k"))
        click.echo(f"{shape:>24}  {row['cached_ns']:9.0f}  {row['computed_ns']:11.0f}")


if __name__ == "__main__":
    main()
