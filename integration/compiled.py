"""``python -m integration.compiled``: whole models under torch.compile, torch against ``use_custom_gemm()``.

The side ``torch`` is compiled and run outside of any context. The side ``ours`` is compiled and run in a new context at
every step. The two sides alternate round by round. Graphs that dynamo compiles after the first steps are counted.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import transformers
from torch._dynamo.utils import counters

from hgemm_ops import use_custom_gemm
from hgemm_ops.bench import record
from hgemm_ops.bench.statistics import paired_ratio
from integration import models, timing

SIDES = ("torch", "ours")
_ROUNDS, _ROUND_MS = 21, 60.0


@dataclass(frozen=True)
class Case:
    """``train``: a step is forward and backward; otherwise it is a forward. ``float32`` is the context's argument."""

    model: str
    batch: int
    seq: int
    train: bool = False
    dtype: str = "float16"
    size: str = "real"
    float32: str | None = None

    def __str__(self) -> str:
        name = f"{self.model} {'train' if self.train else 'forward'} {self.batch}x{self.seq} {self.dtype}"
        return f"{name} {self.float32}" if self.float32 else name


CASES = (
    Case("llama", 4, 2048),
    Case("bert", 32, 128),
    Case("bert", 32, 128, train=True),
    Case("vit", 32, 197),
    Case("gpt2", 8, 1024, train=True),
    Case("bert", 32, 128, train=True, dtype="float32", float32="split"),
    Case("gpt2", 8, 1024, train=True, dtype="float32", float32="split"),
)


def compiled(model: Any, side: str) -> Any:
    # The value is inductor's default, set explicitly for one side. Otherwise dynamo, to which both models are the same,
    # gives our side torch's graph.
    return torch.compile(model, options={"shape_padding": True} if side == "ours" else None)


def measure(case: Case, device: torch.device) -> dict[str, Any]:
    """Returns the milliseconds and the speed over torch of each side, and how many graphs were compiled after the first
    steps."""
    dtype = getattr(torch, case.dtype)
    original = models.build(case.model, case.size, dtype=dtype, device=device)
    inputs = models.sample(original, case.model, batch=case.batch, seq=case.seq)
    if not case.train:
        del inputs["labels"]

    def side(name: str) -> timing.Side:
        model = copy.deepcopy(original).train(case.train)
        function = compiled(model, name)

        def steps(iterations: int) -> None:
            for _ in range(iterations):
                with nullcontext() if name == "torch" else use_custom_gemm(float32=case.float32):
                    if case.train:
                        function(**inputs).loss.backward()
                        model.zero_grad(set_to_none=True)
                    else:
                        with torch.no_grad():
                            function(**inputs)

        return steps

    sides = {name: side(name) for name in SIDES}
    for steps in sides.values():
        steps(3)
    graphs = counters["stats"]["unique_graphs"]
    slowest = max(timing.start(steps, 2, device.type == "cuda")() for steps in sides.values())
    iterations = max(1, round(_ROUND_MS / slowest))
    times = timing.timed(sides, rounds=_ROUNDS, iterations=iterations, gpu=device.type == "cuda")
    return {
        "ms": {name: median(found) for name, found in times.items()},
        "speed": {name: dataclasses.asdict(paired_ratio(times["torch"], times[name])) for name in SIDES[1:]},
        "compiled_later": counters["stats"]["unique_graphs"] - graphs,
        "iterations": iterations,
    }


def run(cases: tuple[Case, ...], device: torch.device) -> Iterator[tuple[Case, dict[str, Any]]]:
    for case in cases:
        torch.compiler.reset()
        yield case, measure(case, device)


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--only", help="Only the cases whose names contain this.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here.")
def main(only: str | None, path: Path | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA GPU: there is nothing to compare")
    results = []
    for case, result in run(tuple(case for case in CASES if only is None or only in str(case)), torch.device("cuda")):
        results.append({"label": str(case), **dataclasses.asdict(case), **result})
        shown = ", ".join(
            f"{k} {v['value']:.3f} ({v['low']:.3f} to {v['high']:.3f})" for k, v in result["speed"].items()
        )
        click.echo(f"{case}: {shown} of torch's speed; {result['compiled_later']} graphs compiled later")
        if path is not None:  # saved after each case, because a run may be interrupted
            record.save(record.document(transformers=transformers.__version__, results=results), path)


if __name__ == "__main__":
    main()
