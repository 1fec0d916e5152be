"""``python -m integration.decode``: tokens per second of decoding, torch against ``use_custom_gemm()``.

The model has layers of Llama 3 8B and its head, random weights, and a static key-value cache. A step appends one token
to every row of the batch. It is the replay of a CUDA graph, and for some batch sizes also a call of the model under
``torch.compile(mode="reduce-overhead")``. The sides alternate round by round, on one set of weights:

- ``torch``: plain;
- ``ours``: in ``use_custom_gemm()``;
- ``fused``: in ``use_custom_gemm()``, on a copy of the model that ``hgemm_ops.fuse_projections`` changed.

First, each side's logits and tokens are compared with those of a wider reference. Without a GPU, a tiny model takes the
same steps, but eagerly.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import transformers
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table
from torch._inductor import list_mode_options

from hgemm_ops import fuse_projections, use_custom_gemm
from hgemm_ops.bench import record
from hgemm_ops.bench.statistics import paired_ratio
from integration import check, models, scenarios, timing
from integration.__main__ import console
from integration.compare import rounding_unit

MODEL = "llama"
BATCHES = (1, 4, 8, 16, 32)
_SIDES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch": contextlib.nullcontext,
    "ours": use_custom_gemm,
    "fused": use_custom_gemm,
}


@dataclass(frozen=True)
class Settings:
    """``checked``: steps whose results are compared. ``iterations``: steps per round."""

    size: str
    layers: int
    dtype: str
    prompt: int = 128
    checked: int = 8
    rounds: int = 15
    iterations: int = 20

    @property
    def capacity(self) -> int:
        """Tokens of the cache: the prompt, the steps that are compared, and the untimed and timed rounds."""
        return self.prompt + self.checked + self.iterations * (self.rounds + 1)


@dataclass(frozen=True)
class Side:
    """Times are medians. ``speedup`` is over torch, with its 95 % interval. It is None for torch, as are ``logits`` and
    ``tokens``.

    ``calls`` counts the GEMMs of the steps by the kernel that ran them, or ``torch``. Replays of a graph are not
    counted.
    """

    ms: float
    tokens_per_second: float
    speedup: dict[str, float] | None = None
    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    logits: dict[str, float | None] | None = None
    tokens: str | None = None
    problems: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Row:
    batch: int
    runner: str  # "CUDA graph", "reduce-overhead", "eager"
    sides: dict[str, Side]

    @property
    def problems(self) -> list[str]:
        return [f"{name}: {problem}" for name, side in self.sides.items() for problem in side.problems]


def compiled_step(model: Any, side: str) -> Callable[..., Any]:
    """Returns ``model`` compiled for steps of one token. Each side needs code and graphs of its own.

    A CUDA graph contains the kernels of the side that recorded it.
    """
    # The value is inductor's default, set explicitly for one side. Otherwise dynamo gives both sides the same compiled
    # code, and so the same graphs.
    apart = {"shape_padding": True} if side == "ours" else {}
    function: Any = torch.compile(model, options={**list_mode_options("reduce-overhead"), **apart}, dynamic=False)

    def run(**inputs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return function(**inputs)

    return run


def measure(setup: check.Setup, batch: int, settings: Settings, *, compiled: bool) -> Row:
    """Compares and times the sides for one batch size."""
    inputs = models.sample(setup.model, MODEL, batch=batch, seq=settings.prompt)
    prompt = inputs["input_ids"]
    graph = prompt.is_cuda and not compiled
    contexts = {name: make() for name, make in _SIDES.items() if not (compiled and name == "fused")}
    fused = copy.deepcopy(setup.model)
    if not fuse_projections(fused):
        raise RuntimeError(f"no projections of {MODEL} could be fused")
    decoders, outputs = {}, {}
    for name, context in contexts.items():
        model = fused if name == "fused" else setup.model
        step = compiled_step(model, name) if compiled else None
        with context:
            decoders[name] = scenarios.Decoder(model, prompt, capacity=settings.capacity, graph=graph, compiled=step)
            outputs[name] = scenarios.follow(decoders[name], settings.checked)

    def side(name: str) -> timing.Side:
        def steps(iterations: int) -> None:
            with contexts[name]:
                for _ in range(iterations):
                    decoders[name].step()

        return steps

    times = timing.timed(
        {name: side(name) for name in contexts},
        rounds=settings.rounds,
        iterations=settings.iterations,
        gpu=prompt.is_cuda,
    )
    sides = {}
    for name, context in contexts.items():
        ms = median(times[name])
        sides[name] = Side(ms, batch / ms * 1e3)
        if isinstance(context, use_custom_gemm):
            ratio = paired_ratio(times["torch"], times[name])
            sides[name] = dataclasses.replace(
                sides[name],
                speedup=dataclasses.asdict(ratio),
                calls=_calls(context, batch),
                **_judged(setup, inputs, outputs["torch"], outputs[name]),
            )
    return Row(batch, "reduce-overhead" if compiled else "CUDA graph" if graph else "eager", sides)


def _calls(context: use_custom_gemm, batch: int) -> dict[str, int]:
    """Returns the GEMM calls of the steps, which have one row for each of the batch, by the kernel that ran them."""
    return check.calls_of(row for row in check.products(context.report) if row.m == batch)


def _judged(
    setup: check.Setup, inputs: scenarios.Inputs, torch_out: scenarios.Outputs, our_out: scenarios.Outputs
) -> dict[str, Any]:
    unit = rounding_unit(next(setup.model.parameters()).dtype)
    logits, tokens_ok, note = check.judge_generation(setup.reference, inputs, torch_out, our_out, unit)
    problems = [] if logits.ok else [logits.problem]
    if not tokens_ok:
        problems.append(f"tokens: {note}")
    return {
        "logits": {
            "torch_rms": logits.torch.rms,
            "torch_max": logits.torch.max,
            "rms": check.finite(logits.ours.rms),
            "max": check.finite(logits.ours.max),
        },
        "tokens": note,
        "problems": problems,
    }


def run(
    settings: Settings, batches: Sequence[int], compiled: Sequence[int], device: torch.device
) -> Iterator[tuple[str, Row | None]]:
    """Yields the name of each measurement with None before it starts, and then with its result.

    It measures every batch size by CUDA graph, and then those of ``compiled`` under torch.compile.
    """
    yield "building the model and its reference", None
    case = check.Case(MODEL, "decode", size=settings.size, dtype=settings.dtype, layers=settings.layers)
    setup = check.set_up(case, device)
    for as_compiled, sizes in ((False, batches), (True, compiled)):
        for batch in sizes:
            label = f"batch {batch}" + (", torch.compile" if as_compiled else "")
            yield label, None
            yield label, measure(setup, batch, settings, compiled=as_compiled)
            if as_compiled:
                torch.compiler.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def table(rows: Sequence[Row], settings: Settings) -> Table:
    title = f"Decoding, {settings.layers} layers of {MODEL} {settings.size}, {settings.dtype}: tokens a second"
    view = Table(title=title, title_justify="left")
    for heading in ("batch", "steps by", "torch ms", "torch", "ours", "speed-up", "fused", "speed-up"):
        view.add_column(heading, justify="left" if heading == "steps by" else "right")
    view.add_column("verdict", overflow="fold")
    for row in rows:
        cells = [str(row.batch), row.runner, f"{row.sides['torch'].ms:.3f}"]
        for name in _SIDES:
            side = row.sides.get(name)
            cells.append(f"{side.tokens_per_second:.0f}" if side else "-")
            if name != "torch":
                cells.append(f"{side.speedup['value']:.3f}" if side and side.speedup else "-")
        verdict = "[red]FAIL[/red] " + escape("; ".join(row.problems)) if row.problems else "[green]ok[/green]"
        view.add_row(*cells, verdict)
    return view


def document(rows: Sequence[Row], settings: Settings) -> dict[str, Any]:
    """Returns the content of a results file."""
    return record.document(
        transformers=transformers.__version__,
        decode={"model": MODEL, "fused": "fused projections", **dataclasses.asdict(settings)},
        results=[{**dataclasses.asdict(row), "ok": not row.problems} for row in rows],
    )


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        numbers = tuple(int(item) for item in value.split(",") if item)
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise click.BadParameter(f"needs positive numbers separated by commas, got {value!r}")
    return numbers


@click.command(context_settings={"show_default": True})
@click.option("--batches", callback=_numbers, help="Default: 1,4,8,16,32 on a GPU, 1,4 on a CPU.")
@click.option("--compiled", callback=_numbers, help='Batches under torch.compile, "" for none. Default: 1 on a GPU.')
@click.option("--dtype", type=click.Choice(list(check.DTYPES)), default="bf16")
@click.option("--layers", type=click.IntRange(min=1), help="Default: 8 on a GPU, 2 on a CPU.")
@click.option("--size", type=click.Choice(list(models.FAMILIES[MODEL].sizes)), help="Default: real, on a CPU tiny.")
@click.option("--prompt", type=click.IntRange(min=1), help="Tokens. Default: 128 on a GPU, 16 on a CPU.")
@click.option("--rounds", type=click.IntRange(min=1), help="Default: 15 on a GPU, 3 on a CPU.")
@click.option("--iterations", type=click.IntRange(min=1), help="Steps per round. Default: 20 on a GPU, 2 on a CPU.")
@click.option("--device", help="Default: cuda if there is one.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here.")
def main(
    batches: tuple[int, ...] | None,
    compiled: tuple[int, ...] | None,
    dtype: str,
    layers: int | None,
    size: str | None,
    prompt: int | None,
    rounds: int | None,
    iterations: int | None,
    device: str | None,
    path: Path | None,
) -> None:
    """Measure tokens per second of decoding: torch, use_custom_gemm(), and the same with fused projections."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    gpu = where.type == "cuda"
    settings = Settings(
        size=size or ("real" if gpu else "tiny"),
        layers=layers or (8 if gpu else 2),
        dtype=dtype,
        prompt=prompt or (128 if gpu else 16),
        rounds=rounds or (15 if gpu else 3),
        iterations=iterations or (20 if gpu else 2),
    )
    batches = (BATCHES if gpu else (1, 4)) if batches is None else batches
    compiled = ((1,) if gpu else ()) if compiled is None else compiled
    view, rows = console(), []
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=view, transient=True) as progress:
        task = progress.add_task("", total=len(batches) + len(compiled))
        for label, row in run(settings, batches, compiled, where):
            progress.update(task, description=label, advance=0 if row is None else 1)
            if row is not None:
                rows.append(row)
    view.print(table(rows, settings))
    if path is not None:
        record.save(document(rows, settings), path)
    sys.exit(any(row.problems for row in rows))


if __name__ == "__main__":
    main()
