"""``hgemm tune``: measures shapes on this GPU, so that the dispatcher need not predict their times."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from hgemm_ops import _library, _native, _report, _tables, _tuning, _variants
from hgemm_ops.bench import console, record, runner, sampling, survey
from hgemm_ops.bench import shapes as model_data
from hgemm_ops.bench.suites import ELEMENT_BYTES, LAYOUTS, SUITES, Case, parse_shapes, with_dtype

_GROUPED_SECONDS = 0.2  # for a grouped matmul
_WHOLE_CHUNK = 16  # bytes; rows that start on such multiples have the best alignment
_LAYOUT_HELP = "Layout of --shapes; repeatable.  [default: NT, a linear layer's]"
_VARIANT_HELP = "Kernel to time, besides torch; repeatable.  [default: all that can run the shape]"


def read(path: Path, device: _tables.Device) -> _tables.Table:
    """Returns the table in ``path``, or an empty one if there is no file.

    ClickException if the file is not a table, or is the table of another GPU.
    """
    try:
        return _tables.of_device(path, device)
    except ValueError as error:
        raise click.ClickException(f"{error}; move it away to start a new one") from None


def blended(entry: _tables.Entry, earlier: _tables.Entry) -> _tables.Entry:
    """Averages the times of a run with those of an earlier run.

    Torch's time is that of this run. A kernel's speed over torch is the geometric mean of its speeds in both runs. A
    kernel that only one run timed keeps its speed in that run.
    """
    torch_us = entry.us["torch"]
    us = {"torch": torch_us}
    for name in {**entry.us, **earlier.us}:
        if name != "torch":
            speeds = [e.us["torch"] / e.us[name] for e in (entry, earlier) if name in e.us]
            us[name] = round(torch_us / math.prod(speeds) ** (1 / len(speeds)), 3)
    return replace(entry, us=us)


def reported(path: Path) -> tuple[list[Case], list[str]]:
    """Reads the plain matmuls of a report (``Report.save``).

    Returns those that can be tuned, and a line for each one that no table can contain. ClickException if the file is
    not a report.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != _report.SCHEMA:
            raise ValueError(f"schema {document['schema']}, but this version reads schema {_report.SCHEMA}")
        products = [_reported(**product) for product in document["products"]]
    except (KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        raise click.ClickException(f"{path}: not a report: {error}") from None
    cases = [case for case, why in products if not why]
    return list(dict.fromkeys(cases)), [f"{case.dtype} {case.label}: {why}" for case, why in products if why]


def _reported(
    *, dtype: str, out_dtype: str, layout: str, align: int, batch: int, m: int, n: int, k: int, left: str, **_: Any
) -> tuple[Case, str]:
    """Returns a matmul of a report, and why it cannot be tuned, or "" if it can."""
    if min(batch, m, n, k) < 1:
        return Case(1, 1, 1), f"a size of {batch} x {m} x {n} x {k} is 0"
    if dtype not in ELEMENT_BYTES:
        return Case(m, n, k, batch=batch, layout=layout, dtype="float32"), f"no kernel supports {dtype}"
    case = Case(m, n, k, batch=batch, layout=layout, dtype=dtype)
    if left:
        return case, left
    if out_dtype != dtype:
        return case, f"only results in the operands' dtype can be tuned, not {out_dtype}"
    if case.align != align:
        return case, f"its rows are {align}-byte aligned, those of contiguous matrices of its sizes {case.align}-byte"
    return case, ""


def _cases(
    suites: tuple[str, ...],
    shapes: str | None,
    dtype: str | None,
    layouts: tuple[str, ...],
    more: Sequence[Case] = (),
) -> list[Case]:
    """Returns the plain matmuls that were asked for, each once. A tuning table contains nothing else.

    A case with padded rows is included only if the rows do not start on 16 bytes. No kernel then reads the operands
    without a copy, and the copy is contiguous, as the operands of a table are.
    """
    cases = list(more)
    for suite in suites:
        cases += with_dtype(SUITES[suite], dtype) if dtype else SUITES[suite]
    if shapes:
        try:
            cases += parse_shapes(shapes, dtype=dtype or "float16", layouts=layouts)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--shapes") from None
    tunable = list(
        dict.fromkeys(
            case for case in cases if case.op == "matmul" and not (case.padding and case.align == _WHOLE_CHUNK)
        )
    )
    if not tunable:
        where = ", ".join(suites) or "the report"
        raise click.UsageError(f"only plain matmuls of contiguous matrices can be tuned, and {where} has none")
    return tunable


def table_key(case: Case) -> dict[str, Any]:
    """Returns the key by which the dispatcher looks a case up: the matmul in the canonical form that kernels get."""
    facts = _native.device_facts(torch.cuda.current_device())
    dtype: torch.dtype = getattr(torch, case.dtype)
    query = _variants.matmul_query(case.m, case.n, case.k, dtype, case.layout, facts, case.batch)
    problem, _ = _native.explain(query)
    layout = _native.LAYOUTS[problem.a_major, problem.b_major]
    sizes = {name: getattr(problem, name) for name in ("align", "batch", "m", "n", "k")}
    if case.padding:
        sizes["align"] = min(sizes["align"], case.align)
    return {"dtype": case.dtype, "layout": layout, **sizes}


def to_entry(row: runner.Row) -> _tables.Entry | None:
    """Returns the table entry of a row; None if torch, or every kernel of ours, has no time."""
    torch_us = row.results[runner.TORCH].us
    if torch_us is None:
        return None
    # A kernel's time is torch's median divided by the paired ratio: two medians also differ by the drift of the clock
    # between rounds.
    ours = {name: torch_us / result.ratio.value for name, result in row.results.items() if result.ratio}
    if not ours:
        return None
    us = {name: round(value, 3) for name, value in {runner.TORCH: torch_us, **ours}.items()}
    return _tables.Entry(**table_key(row.case), us=us)


def _grouped(text: str) -> list[tuple[int, int, int, int]]:
    """Returns the rows, N, K and groups of each grouped matmul that is asked for."""
    products = []
    for part in text.split(","):
        sizes = part.split("x")
        if len(sizes) != 4 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise click.BadParameter(f"{part}: expected ROWSxNxKxGROUPS", param_hint="--grouped")
        rows, n, k, groups = map(int, sizes)
        products.append((rows, n, k, groups))
    return products


def _output(given: Path | None, default: Callable[[], Path]) -> Path:
    if given is None:
        try:
            given = default()
        except RuntimeError as error:  # there is no home directory
            raise click.ClickException(f"{error}, or give --output") from None
    return given.resolve()


def _measure_random(
    count: int,
    seed: int | None,
    most_rows: int | None,
    sizes: str,
    candidates: int | None,
    soak: float,
    output: Path | None,
    screen: Console,
    as_json: bool,
    float32: str | None,
) -> None:
    """Adds random shapes to the data that the model is fitted to. A journal beside the file lets a run be resumed."""
    console.require_kernels("hgemm tune")
    console.set_modes(None, float32)
    slug = record.gpu_slug(torch.cuda.get_device_name())
    path = _output(output, lambda: _library.cache_dir() / "shapes" / f"{slug}.tsv.xz")
    environment = record.environment() | survey.mode_of_float32()
    options = survey.Options(candidates=candidates, rows=most_rows, sizes=sizes)
    journal = path.with_name(f"{path.name}.jsonl")
    try:
        model_data.check(environment, path)
        seed, _, rows = console.survey_rows(survey.MODEL, options, screen, seed, count, (), None, soak, journal)
        times = {row.planned.case: row.measured.us for row in rows}
        held = model_data.merge(times, environment, path)
    except ValueError as error:
        raise click.ClickException(f"{error}; give another --output") from None
    screen.print(f"added {len(rows)} shapes of seed {seed}; {path} now has {held}", markup=False)
    if as_json:
        click.echo(json.dumps({"seed": seed, "added": len(rows), "shapes": held, "output": str(path)}))
    wrong = [(row.planned.case, *found) for row in rows for found in row.measured.wrong.items()]
    console.fail_if_wrong((), [f"{case.dtype} {case.label}, {name}: {text}" for case, name, text in wrong])


@click.command("tune", short_help="Measure shapes on this GPU for the dispatcher.")
@click.option(
    "--suite", "suites", type=click.Choice(list(SUITES)), multiple=True, help="A suite of shapes to time; repeatable."
)
@click.option("--shapes", metavar="MxNxK,...", help="Shapes to time; BxMxNxK is a batch.")
@click.option(
    "--grouped",
    metavar="ROWSxNxKxGROUPS,...",
    help="Grouped matmuls to time, (ROWS, K) by (GROUPS, K, N), with rows spread evenly over the groups.",
)
@click.option("--layout", "layouts", type=click.Choice(LAYOUTS), multiple=True, default=("NT",), help=_LAYOUT_HELP)
@click.option("--dtype", type=click.Choice(list(ELEMENT_BYTES)), help="Default: the suite's own; float16 for --shapes.")
@click.option(
    "--report",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Tune the matmuls of a report that report.save(FILE) wrote.",
)
@click.option(
    "--random",
    type=click.IntRange(min=1),
    metavar="N",
    help="Instead of a table: add N random shapes to the data that the dispatcher's model is fitted to.",
)
@click.option(
    "--rows", "most_rows", type=click.IntRange(min=1), help="With --random: the largest M to draw, for decoding."
)
@click.option(
    "--sizes",
    type=click.Choice(sampling.DRAWS),
    default=sampling.DRAWS[0],
    show_default=True,
    help="With --random: the kind of sizes. mixed: 6 % ragged, the others multiples of 8; whole: rows a power of two, "
    "features multiples of 64, as in models; ragged: each of some odd length; logits: by the vocabularies of models; "
    "batches: of many kinds; float32: of many kinds, in float32; float32-large: large ones; float32-split: those that "
    "--float32 split is for; float32-batches: many batches; float64 and so on: the same kinds in float64.",
)
@click.option(
    "--float32",
    type=click.Choice(_native.FLOAT32),
    help="With --random: how float32 is multiplied. With split, kernels that split float32 are timed beside the "
    "others.  [default: HGEMM_OPS_FLOAT32, or strict]",
)
@click.option("--seed", type=int, help="With --random: the seed.  [default: a new one, or that of the run to resume]")
@click.option("--variant", "variants", metavar="NAME", multiple=True, default=("all",), help=_VARIANT_HELP)
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    help="Time only so many kernels, those predicted to be the fastest, and the dispatcher's choice. With --random, "
    "also one that is drawn from the others that are predicted to take at most twice as long. With --float32 split, "
    "so many of those that split float32 and of the others.",
)
@click.option(
    "--rounds", type=click.IntRange(min=5), default=20, show_default=True, help="How often each kernel is timed."
)
@click.option(
    "--duels",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Time so many of the fastest kernels again, each alone with torch.",
)
@console.soak_option
@click.option(
    "--most-sets",
    type=click.IntRange(min=2),
    metavar="N",
    help="Rotate at most N sets of operands, which may then stay in the L2: for many small shapes.",
)
@click.option("--blend", is_flag=True, help="Average the new times with those in the table, instead of replacing them.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write to. Default: in HGEMM_OPS_CACHE_DIR, this GPU's table, which is read from there on the next "
    "import; with --random, shapes/<gpu>.tsv.xz.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table written; with --random, a summary.")
def tune(
    suites: tuple[str, ...],
    shapes: str | None,
    grouped: str | None,
    layouts: tuple[str, ...],
    dtype: str | None,
    report: Path | None,
    random: int | None,
    most_rows: int | None,
    sizes: str,
    float32: str | None,
    seed: int | None,
    variants: tuple[str, ...],
    candidates: int | None,
    rounds: int,
    duels: int,
    soak: float,
    most_sets: int | None,
    blend: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Time every eligible kernel and torch, and write the times to a tuning table.

    For a shape in a table, the dispatcher takes the fastest measured kernel. On a GPU of which its model has learned
    nothing, measured shapes also correct the predictions for shapes nearby. First, all kernels run interleaved. Then
    the fastest are timed again, each alone with torch, because the clock under mixed load can favour other kernels.
    Shapes that are already in the table are replaced, or averaged with ``--blend``; others are kept. The table is
    written after every shape, so an interrupted run loses nothing, and several processes may tune at once. The exit
    status is 1 if a kernel gave a wrong result, whose time is not written.

    --random measures shapes that no suite scores, as the suite random of hgemm bench does, and merges them into a file
    for benchmarks/fit_model.py. An interrupted run is resumed by running it again with the same N.
    """
    screen = console.screen(stderr=as_json)
    if random is not None:
        if suites or shapes or grouped or report or blend:
            raise click.UsageError("--random cannot be combined with --suite, --shapes, --grouped, --report or --blend")
        return _measure_random(random, seed, most_rows, sizes, candidates, soak, output, screen, as_json, float32)
    if float32 is not None:
        raise click.UsageError("--float32 needs --random: a table has the times of all kernels")
    if not (suites or shapes or grouped or report):
        raise click.UsageError("say what to tune with --suite, --shapes, --grouped, --report or --random")
    groups = _grouped(grouped) if grouped else []
    products, skipped = reported(report) if report else ([], [])
    for line in skipped:
        screen.print(f"skipped: {line}", markup=False, highlight=False)
    cases = _cases(suites, shapes, dtype, layouts, products) if suites or shapes or report else []
    console.require_kernels("hgemm tune")
    device = _tables.device_of(torch.cuda.current_device())
    path = _output(output, lambda: _tables.user_dir() / f"{device.slug}.json")
    measured = record.environment()
    read(path, device)  # raises if the file is not valid, before anything is measured

    def keep(row: runner.Row) -> None:
        entry = to_entry(row)
        if entry is None:
            return
        with _tables.updating(path, device) as table:
            entries = {known.shape: known for known in table.entries}
            earlier = entries.get(entry.shape) if blend else None
            entries[entry.shape] = entry if earlier is None else blended(entry, earlier)
            table.entries, table.measured = list(entries.values()), measured

    for (m, n, k, count), layout in itertools.product(groups, layouts):
        _, product = _tuning.tune_grouped(m, n, k, count, getattr(torch, dtype or "bfloat16"), layout, _GROUPED_SECONDS)
        with _tables.updating(path, device) as table:
            table.grouped = [*(known for known in table.grouped if known.shape != product.shape), product]
            table.measured = measured
        fastest = min(product.us, key=lambda name: product.us[name])
        line = f"{product.dtype} {product.layout} {product.label}: {fastest} {product.us[fastest]:.1f} us"
        screen.print(f"{line}, torch {product.us['torch']:.1f} us", markup=False, highlight=False)
    options = runner.Options(
        variants=console.known_variants(variants),
        candidates=candidates,
        dispatched=False,
        rounds=rounds,
        duels=duels,
        soak=soak,
        most_sets=most_sets,
    )
    rows = console.run_with_progress(cases, options, screen, keep) if cases else []
    if cases:
        screen.print(console.comparison(rows, f"tuned for {device.name}"))
    written = read(path, device)
    screen.print(f"{len(written.entries) + len(written.grouped)} shapes in {path}")
    if as_json:
        sys.stdout.write(path.read_text())
    console.fail_if_wrong(rows)
