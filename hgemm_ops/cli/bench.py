"""``hgemm bench``: our kernels against torch on a suite of shapes."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from hgemm_ops.bench import console, record, runner, survey
from hgemm_ops.bench.suites import ELEMENT_BYTES, LAYOUTS, SUITES, parse_shapes, with_dtype

_SHAPES = "shapes"  # what results of --shapes are called


@click.command("bench", short_help="Time our kernels against torch on a suite of shapes.")
@click.option(
    "--suite", type=click.Choice([*SUITES, *survey.NAMES]), help="Which shapes.  [default: llm, without --shapes]"
)
@click.option("--shapes", metavar="MxNxK,...", help="Which shapes, beside or without a suite; BxMxNxK is a batch.")
@click.option(
    "--layout",
    "layouts",
    type=click.Choice(LAYOUTS),
    multiple=True,
    default=("NT",),
    help="Of --shapes; repeatable.  [default: NT, a linear layer's]",
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    help="Also time this kernel alone; repeatable. 'all' is every eligible one.",
)
@console.peer_option
@click.option("--dtype", type=click.Choice(list(ELEMENT_BYTES)), help="Default: the suite's own; float16 for --shapes.")
@console.warmup_option
@console.soak_option
@console.survey_options()
@click.option(
    "--journal",
    "journal_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Of random and zoo: write each shape here, and go on from what is there.",
)
@console.measuring_options("Draw speed over torch by shape here, as SVG, and beside it the roofline.")
def bench(
    suite: str | None,
    shapes: str | None,
    layouts: tuple[str, ...],
    variants: tuple[str, ...],
    peer_names: tuple[str, ...],
    dtype: str | None,
    warmup: float,
    soak: float,
    count: int,
    models: tuple[str, ...],
    candidates: int | None,
    limit: float | None,
    journal_path: Path | None,
    rounds: int,
    inputs: str,
    seed: int | None,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Time the dispatcher's choice, and any kernels and peers named, against torch.

    Every timed configuration is checked against float64 first. Contenders run interleaved, from CUDA graphs, over
    buffers that do not fit the L2. The ratio is the median over rounds of torch's time over ours, above 1 where we are
    faster, with its 95 % interval. With few rows, "of stream" is the time of only reading the weights over the
    contender's. Ends with status 1 if a result was wrong.

    random (shapes that no table and no suite holds, new ones each time) and zoo (what published models multiply,
    without what the table holds of the model in question) time every kernel that may be the fastest, in a fifth of a
    second a shape: the choice and the best of them, over torch.

    Peers: cublaslt (the best of 16 heuristics), triton (torch.compile, max-autotune), cutlass (needs nvcc and
    pip install 'hgemm_ops[peers]'), quack (needs quack-kernels); and two whose bits do not depend on the number of
    rows, to be timed under HGEMM_OPS_NUMERICS=batch_invariant: cublaslt_fixed (one algorithm, no split-K), triton_fixed
    (one tile). One that is not available is reported as such.
    """
    cases = with_dtype(SUITES[suite], dtype) if suite in SUITES and dtype else SUITES.get(suite or "", ())
    if shapes:
        try:
            cases += parse_shapes(shapes, dtype=dtype or "float16", layouts=layouts)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--shapes") from None
    elif suite is None:
        suite, cases = "llm", with_dtype(SUITES["llm"], dtype) if dtype else SUITES["llm"]
    if suite in survey.NAMES and (shapes or dtype or variants or peer_names or plot_path):
        raise click.UsageError(f"{suite} has shapes, types and kernels of its own")
    console.require_kernels("hgemm bench")
    if plot_path:
        from hgemm_ops.bench import plots  # before the measurement: matplotlib may be missing

    screen = Console()
    if suite in survey.NAMES:
        asked = survey.Options(candidates=candidates)
        drawn, planned, measured = console.survey_rows(
            suite, asked, screen, seed, count, models, limit, soak, journal_path
        )
        document = survey.document(suite, drawn, planned, measured, asked, soak)
        screen.print(console.survey_table(document))
        if json_path:
            record.save(document, json_path)
        console.fail_if_wrong((), console.survey_wrong(document))
        return
    options = runner.Options(
        variants=console.known_variants(variants),
        peers=console.known_peers(peer_names),
        soak=soak,
        warmup=warmup,
        rounds=rounds,
        seed=seed or 0,
        inputs=inputs,
    )
    name = suite or _SHAPES
    console.report_peers(options.peers, screen)
    rows = console.run_with_progress(tuple(dict.fromkeys(cases)), options, screen)
    screen.print(console.comparison(rows, name))
    if options.peers:
        screen.print(console.against_peers(rows, options.peers, name))
    screen.print(console.summary(rows))
    document = runner.document(name, rows, options, runner.copy_gbps())
    if json_path:
        record.save(document, json_path)
    if plot_path:
        roofline = plot_path.with_stem(f"{plot_path.stem}-roofline")
        for path in (plots.ratio_by_shape(document, plot_path), plots.roofline(document, roofline)):
            screen.print(f"wrote {path}")
    console.fail_if_wrong(rows)
