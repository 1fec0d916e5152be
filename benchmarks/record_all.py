"""Measures everything in ``results/<gpu>``, in the order in which one result needs another.

If steps are named as arguments, only these run. A step that fails or takes too long does not stop the others, and the
files that it wrote stay.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from hgemm_ops.bench import record
from hgemm_ops.bench.suites import SUITES

HERE = Path(__file__).resolve().parent
SHIPPED = HERE.parent / "hgemm_ops" / "tables"


@dataclass(frozen=True)
class Step:
    """A command with its limit.

    command: the arguments of python, in which RESULTS and TABLE are replaced by paths.
    limit: seconds.
    """

    command: tuple[str, ...]
    limit: int


#: Of stress_runtime. The products under a limit are a step of their own, since a step may take ten minutes.
_PARTS = tuple(word for part in ("calls", "reuse", "capture", "chains") for word in ("--part", part))


def _script(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(HERE / f"{name}.py"), *arguments)


def _tune(*arguments: str) -> tuple[str, ...]:
    return ("-m", "hgemm_ops", "tune", "--output", "TABLE", "--rounds", "15", "--duels", "5", *arguments)


def _suites(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--suite", name))


def _soak(suite: str) -> tuple[str, ...]:
    """The options that warm up the GPU before suites with many large matmuls.

    While the GPU warms up, the ratios of the first cases would differ from later ones.
    """
    return ("--soak", "5") if suite in ("seeds-large", "seeds-large-nt", "layouts", "llm") else ()


_PRODUCTS = tuple(name for name in SUITES if name not in ("seeds-sgemm", "seeds-add", "float32"))
#: The matmuls of the fused suite without their epilogues, as tuning tables have them, and a few sizes between those of
#: the suites.
_BETWEEN = (
    "16x16384x4096,512x16384x4096,4096x16384x4096,8192x3072x768,1x1024x4096,4x1024x4096,8x1024x4096,16x1024x4096,"
    "32x1024x4096,1x14336x4096,4x14336x4096,8x14336x4096,16x14336x4096,32x14336x4096,1x128256x4096,8x128256x4096,"
    "32x128256x4096,2048x14336x4096,512x512x512,1024x1024x1024,2048x2048x2048"
)

#: The tests come first, then the ladder and its course. Tuning tables come before the suites whose choices they decide.
#: Files that no other step needs come last.
STEPS = {
    "tests": Step(_script("gpu_tests", "--limit", "280", "--output", "RESULTS/tests.json", "-q", "-n", "auto"), 300),
    "ladder": Step(_script("ladder", "--output", "RESULTS"), 300),
    "ladder-ncu": Step(_script("ladder_ncu", "--output", "RESULTS/ladder_ncu.json.xz"), 240),
    "course": Step(_script("ladder_course", "--results", "RESULTS"), 60),
    "tune-large": Step(
        _tune(*_suites("seeds-large", "seeds-large-nt", "layouts"), "--candidates", "11", "--soak", "15"), 400
    ),
    "tune-bfloat16": Step(
        _tune(*_suites("seeds-large", "llm"), "--dtype", "bfloat16", "--candidates", "11", "--soak", "15"), 400
    ),
    "tune-llm": Step(
        _tune(*_suites("llm", "decode-nn", "decode-tp", "decode-ragged"), "--candidates", "11", "--soak", "15"), 400
    ),
    "tune-small": Step(_tune(*_suites("seeds-small", "ragged"), "--candidates", "7"), 240),
    "tune-bmm": Step(_tune(*_suites("bmm")), 120),
    "tune-between": Step(_tune("--shapes", _BETWEEN, "--candidates", "8"), 120),
    **{f"suite-{name}": Step(_script("run", name, *_soak(name), "--output", "RESULTS"), 120) for name in _PRODUCTS},
    "suite-float32-split": Step(_script("run", "float32", "--float32", "split", "--output", "RESULTS"), 120),
    "suite-batch_invariant": Step(
        _script(
            "run",
            "llm",
            "zoo",
            "--numerics",
            "batch_invariant",
            "--count",
            "110",
            "--rounds",
            "15",
            "--warmup",
            "0.2",
            "--peer",
            "cublaslt_fixed",
            "--peer",
            "triton_fixed",
            *_soak("llm"),
            "--output",
            "RESULTS",
        ),
        240,
    ),
    "float32-errors": Step(_script("float32_errors", "--output", "RESULTS/float32_errors.json"), 60),
    "in-order-errors": Step(_script("in_order_errors", "--output", "RESULTS/in_order_errors.json"), 60),
    "suite-bfloat16": Step(
        _script("run", "seeds-large", "llm", "--dtype", "bfloat16", *_soak("seeds-large"), "--output", "RESULTS"), 120
    ),
    # New shapes, a fifth of a second each. If a run is cut off at its limit, the next one continues it.
    "random": Step(_script("run", "random", "--soak", "5", "--limit", "500", "--output", "RESULTS"), 580),
    "zoo": Step(_script("run", "zoo", "--soak", "5", "--limit", "500", "--output", "RESULTS"), 580),
    "tuned": Step(_script("tuned", "--soak", "5", "--output", "RESULTS/tuned.json.xz"), 120),
    "host-cost": Step(_script("host_cost", "--output", "RESULTS/host_cost.json"), 120),
    "models": Step(("-m", "integration", "--suite", "dense", "--json", "RESULTS/integration.json.xz"), 330),
    "experts": Step(("-m", "integration", "--suite", "experts", "--json", "RESULTS/experts.json"), 300),
    "compiled": Step(("-m", "integration.compiled", "--json", "RESULTS/compiled.json"), 400),
    "train": Step(("-m", "integration.train", "--json", "RESULTS/train.json"), 240),
    "science": Step(("-m", "integration.science", "--json", "RESULTS/science.json"), 120),
    "decode": Step(("-m", "integration.decode", "--compiled", "1,4,8,16,32", "--json", "RESULTS/decode.json"), 400),
    "stress-products": Step(_script("stress_products", "--output", "RESULTS/stress_products.json"), 400),
    "stress-grouped": Step(_script("stress_grouped", "--output", "RESULTS/stress_grouped.json"), 100),
    "stress-runtime": Step(
        _script("stress_runtime", *_PARTS, "--output", "RESULTS/stress_runtime.json"),
        500,
    ),
    "stress-limits": Step(_script("stress_runtime", "--part", "limits", "--output", "RESULTS/stress_limits.json"), 600),
    "sanitizer": Step(_script("sanitize", "--limit", "580", "--output", "RESULTS/sanitizer.json"), 600),
    "grouped": Step(_script("grouped", "--kernels", "--seconds", "500", "--output", "RESULTS/grouped.json.xz"), 600),
    "grouped-peers": Step(
        _script(
            "grouped",
            "--peers",
            "loop,triton",
            "--models",
            "mixtral-8x7b,qwen3-30b-a3b,gpt-oss-120b,deepseek-v3/8",
            "--layers",
            "up",
            "--tokens",
            "8,512,8192",
            "--spreads",
            "even,zipf",
            "--seconds",
            "240",
            "--output",
            "RESULTS/grouped-peers.json",
        ),
        330,
    ),
    "tiny-batches": Step(_script("tiny_batches", "--output", "RESULTS/tiny_batches.json.xz"), 120),
    "symmetric": Step(_script("symmetric", "--output", "RESULTS/symmetric.json"), 300),
    "int8": Step(_script("int8", "--output", "RESULTS/int8.json"), 200),
    "operand-values": Step(_script("operand_values", "--output", "RESULTS/operand_values.json"), 120),
    "graph-memory": Step(_script("graph_memory", "--output", "RESULTS/graph_memory.json"), 120),
    "map": Step(_script("map", "--output", "RESULTS/map.json.xz"), 120),
    "kernels-ncu": Step(_script("kernels_ncu", "--output", "RESULTS/kernels_ncu.json.xz"), 120),
}


def run(step: Step, results: Path, table: Path) -> str:
    """Runs a step; returns "ok" or what went wrong."""
    words = [word.replace("RESULTS", str(results)).replace("TABLE", str(table)) for word in step.command]
    try:
        status = subprocess.run([sys.executable, *words], cwd=HERE.parent, timeout=step.limit, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"took more than {step.limit} s"
    return "ok" if status == 0 else f"ended with status {status}"


def choose(names: Sequence[str]) -> dict[str, Step]:
    """The steps of these names in their order, or all steps without a name."""
    return {name: step for name, step in STEPS.items() if not names or name in names}


@click.command(help=__doc__)
@click.argument("names", metavar="[STEP]...", nargs=-1, type=click.Choice(list(STEPS)))
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Another directory.")
@click.option("--table", type=click.Path(dir_okay=False, path_type=Path), help="Another table than the shipped one.")
@click.option("--list", "only_list", is_flag=True, help="Print the steps and their limits in seconds.")
def main(names: tuple[str, ...], output: Path | None, table: Path | None, only_list: bool) -> None:
    steps = choose(names)
    if only_list:
        for name, step in steps.items():
            click.echo(f"{name:24} {step.limit:4}  python {' '.join(step.command)}")
        return
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA GPU: there is nothing to measure")
    gpu = record.gpu_slug(torch.cuda.get_device_name())
    output = output or HERE / "results" / gpu
    table = table or SHIPPED / f"nvidia_{gpu}.json"
    output.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, step in steps.items():
        begin = time.monotonic()
        outcome = run(step, output, table)
        click.echo(f"{name}: {outcome}, {time.monotonic() - begin:.0f} s")
        if outcome != "ok":
            failed.append(f"{name} {outcome}")
    if failed:
        raise click.ClickException("; ".join(failed))
    click.echo("now benchmarks/tables.py and plots.py")


if __name__ == "__main__":
    main()
