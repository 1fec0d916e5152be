"""Measures what a decision costs on the host, from the thread's cache and computed. Needs no GPU.

Run it as ``python benchmarks/select_cost.py [--json]`` for a few shapes.

``--shapes N`` decides on N random matmuls instead, each of them new, and prints what the steps of a decision take. It
needs a C++ compiler and the objects of the build (``build/native``). With ``--before DIRECTORY``, another checkout that
was built, the two run in turns, and their decisions on random problems of every kind are compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from hgemm_ops import _native, _tables, _variants

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "hgemm_ops" / "tables"
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


def link(
    source: Path, program: Path, root: Path = ROOT, flags: Sequence[str] = ("-O2",), fresh: Sequence[str] = ()
) -> None:
    """Compiles a C++ program, and links it with the objects of the build of the checkout ``root``.

    ``one_device.h`` stands for devices.cc and for what is CUDA's. Nothing is launched, so the symbols of other objects
    may be unresolved. ``fresh`` are sources of csrc/ that are compiled with the program's flags as well.
    """
    csrc, objects = root / "csrc", root / "build" / "native"
    directories = ("core", "dispatch", "kernels", "tile")
    sources = [str(s.relative_to(csrc)) for s in csrc.rglob("*.cc") if s.relative_to(csrc).parts[0] in directories]
    wanted = [s for s in sources if s != "dispatch/devices.cc" and s not in fresh]
    includes = [f"-I{csrc}", f"-I{objects}", f"-I{ROOT / 'tests' / 'dispatch'}", "-DHGEMM_NO_DEVICE_CODE"]
    compiler = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", *flags, *includes]
    files = [source, *(csrc / s for s in fresh), *(objects / f"{s}.o" for s in wanted)]
    linker = ["-no-pie", "-pthread", "-Wl,--unresolved-symbols=ignore-all", "-o", program]
    done = subprocess.run([*compiler, *files, *linker], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def write_table(path: Path) -> None:
    """Writes the measured times of the package's tables in the form that ``decisions.cc`` reads."""
    lines = []
    majors = {layout: majors for majors, layout in _native.LAYOUTS.items()}
    for table in map(_tables.Table.read, sorted(TABLES.glob("*.json"))):
        device = table.device
        for entry in table.entries:
            a_major, b_major = majors[entry.layout]
            dtype = [_native.dtype_name(dtype) for dtype in _native.TABLE_DTYPES].index(entry.dtype)
            shape = (dtype, a_major, b_major, entry.align, entry.batch, entry.m, entry.n, entry.k)
            words = (device.cc, device.sm_count, device.l2_bytes, device.dram_gbs, *shape)
            lines += [" ".join(map(str, (*words, kernel, us))) for kernel, us in entry.us.items()]
    path.write_text("\n".join(lines))


def unseen(
    checkouts: Sequence[Path], shapes: int, rounds: int, compared: int = 20_000
) -> tuple[list[dict[str, float]], list[list[str]]]:
    """For each checkout: the median nanoseconds of each step, and its decisions, a line each."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.txt"
        write_table(table)
        programs = [Path(folder) / f"decisions{i}" for i in range(len(checkouts))]
        for checkout, program in zip(checkouts, programs, strict=True):
            link(Path(__file__).with_name("decisions.cc"), program, checkout)

        def run(program: Path, what: str, count: int) -> list[str]:
            command = [str(program), str(table), what, str(count)]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

        samples: list[dict[str, list[float]]] = [{} for _ in checkouts]
        for _ in range(rounds):
            for program, sample in zip(programs, samples, strict=True):
                for line in run(program, "times", shapes):
                    name, value = line.rsplit(" ", 1)
                    sample.setdefault(name, []).append(float(value))
        times = [{name: statistics.median(values) for name, values in sample.items()} for sample in samples]
        return times, [run(program, "choices", compared) for program in programs] if len(programs) > 1 else []


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--shapes", type=click.IntRange(min=1000), help="Decide on so many random shapes, step by step.")
@click.option("--before", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="With --shapes.")
def main(as_json: bool, shapes: int | None, before: Path | None, rounds: int) -> None:
    """Time the dispatcher's decisions."""
    if shapes is not None:
        times, choices = unseen([ROOT] if before is None else [before.resolve(), ROOT], shapes, rounds)
        if as_json:
            click.echo(json.dumps(times, indent=2))
        else:
            for name in times[-1]:
                click.echo("  ".join([*(f"{of[name]:10.0f}" for of in times), name]))
        if choices:
            differ = [pair for pair in zip(*choices, strict=True) if pair[0] != pair[1]]
            click.echo(f"{len(differ)} of {len(choices[0])} decisions differ", err=True)
            for pair in differ[:5]:
                click.echo("\n".join(pair), err=True)
        return
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
