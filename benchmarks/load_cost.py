"""Measures what loading the library costs: ``python benchmarks/load_cost.py [--json FILE] CHECKOUT...``

A checkout is a directory that holds hgemm_ops with its built libraries. Several checkouts, of one revision or of
several, are measured in turn. Each measurement is made in a new process. It opens _C.so alone, imports the package
after torch, and on a GPU times the first and the second call of matmuls that different kernels run, until their results
are complete. The printed times are medians, in milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import click

from hgemm_ops.bench import record

CHILD = """
import ctypes, json, sys, time
from pathlib import Path
import torch

def ms(action):
    start = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - start)

checkout = Path(sys.argv[1])
cuda = torch.cuda.is_available()
if cuda:  # torch's own start is not ours
    (torch.ones(64, 64, device="cuda").half() @ torch.ones(64, 64, device="cuda").half()).cpu()
rows = {"open _C.so": ms(lambda: ctypes.CDLL(str(checkout / "hgemm_ops" / "_C.so")))}
sys.path.insert(0, str(checkout))
def load():
    import hgemm_ops
rows["import hgemm_ops"] = ms(load)
import hgemm_ops
assert Path(hgemm_ops.__file__).parent.samefile(checkout / "hgemm_ops"), hgemm_ops.__file__
if cuda:
    for batch, m, n, k in [(1, 4096, 4096, 4096), (1, 4097, 4097, 4097), (1, 256, 6144, 4096), (1, 1, 4096, 4096),
                           (1, 16, 4096, 4096), (512, 32, 32, 32)]:
        a, b = torch.randn(batch, m, k, device="cuda").half(), torch.randn(batch, k, n, device="cuda").half()
        chosen = hgemm_ops.explain(a, b).chosen
        if chosen == "torch":
            continue
        def product():
            torch.ops.hgemm.matmul(a, b)
            torch.cuda.synchronize()
        torch.cuda.synchronize()
        for call in ("first", "second"):
            rows[f"{call} {batch}x{m}x{n}x{k} {chosen}"] = ms(product)
print(json.dumps(rows))
"""


def measure(checkout: Path) -> dict[str, float]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run([sys.executable, "-c", CHILD, checkout], capture_output=True, text=True, env=environ)
    if run.returncode:
        raise click.ClickException(f"{checkout}: {run.stderr}")
    return json.loads(run.stdout)


def library_sizes(checkout: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted((checkout / "hgemm_ops").glob("_[Cl]*.so"))}


@click.command()
@click.argument("checkouts", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--repeat", default=9, show_default=True, help="Processes for each.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every measurement here.")
def main(checkouts: tuple[Path, ...], repeat: int, json_path: Path | None) -> None:
    runs: dict[Path, list[dict[str, float]]] = {checkout.resolve(): [] for checkout in checkouts}
    for _ in range(repeat):
        for checkout, found in runs.items():
            found.append(measure(checkout))
    for checkout, found in runs.items():
        sizes = library_sizes(checkout).items()
        click.echo(f"{checkout}: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes))
        for name in found[0]:
            click.echo(f"  {statistics.median(run[name] for run in found):10.2f}  {name}")
    if json_path:
        rows = [{"bytes": library_sizes(checkout), "milliseconds": found} for checkout, found in runs.items()]
        record.save(record.document(checkouts=rows), json_path)


if __name__ == "__main__":
    main()
