"""Measures the memory that CUDA graphs keep, with and without ``use_custom_gemm()``.

One product is captured many times, each time on a new ``torch.cuda.Stream`` and after a call outside of the capture, as
programs do it. torch keeps a cuBLAS workspace for each stream, and a kernel's own memory and the results are the
graphs'. Each side runs in a process of its own. What torch's allocator holds is compared before and after.

Writes ``results/<gpu>/graph_memory.json``.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's own path has its directory alone

from hgemm_ops import use_custom_gemm
from hgemm_ops.bench import record

RESULTS = Path(__file__).parent / "results"
CAPTURES = 50
SIZES = ((16, 4096, 4096), (512, 4096, 4096))  # m, n, k
SIDES = ("torch", "ours")


def keep(side: str, m: int, n: int, k: int, captures: int) -> int:
    """Captures a product, and returns how many bytes torch's allocator then holds more."""
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    with nullcontext() if side == "torch" else use_custom_gemm():
        torch.mm(a, b.mT)  # loads the kernels, and creates the cuBLAS handle
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        graphs = []
        for _ in range(captures):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                torch.mm(a, b.mT)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                result = torch.mm(a, b.mT)
            graphs.append((graph, result))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before


def measure() -> list[dict[str, Any]]:
    """The memory of both sides in MiB, for all sizes. The processes run at the same time."""
    running = {}
    for m, n, k in SIZES:
        for side in SIDES:
            command = [sys.executable, __file__, "--side", side, "--size", f"{m}x{n}x{k}"]
            running[m, n, k, side] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    printed = {of: process.communicate()[0] for of, process in running.items()}
    if failed := [of for of, process in running.items() if process.returncode != 0]:
        raise click.ClickException(f"failed: {failed}")
    return [
        {"m": m, "n": n, "k": k, "captures": CAPTURES}
        | {f"{side}_mib": int(printed[m, n, k, side]) / 2**20 for side in SIDES}
        for m, n, k in SIZES
    ]


@click.command(help=__doc__)
@click.option("--side", type=click.Choice(SIDES), help="Only print the bytes of one side, for --size.")
@click.option("--size", default="x".join(map(str, SIZES[0])), metavar="MxNxK")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(side: str | None, size: str, output: Path | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("needs a GPU")
    if side is not None:
        m, n, k = map(int, size.split("x"))
        click.echo(keep(side, m, n, k, CAPTURES))
        return
    rows = measure()
    for row in rows:
        click.echo("{m}x{n}x{k}, {captures} captures: torch {torch_mib:.0f} MiB, ours {ours_mib:.0f} MiB".format(**row))
    output = output or record.path(RESULTS / record.gpu_slug(torch.cuda.get_device_name()), "graph_memory")
    record.save(record.document(graph_memory=rows), output)
    click.echo(f"recorded in {output}")


if __name__ == "__main__":
    main()
