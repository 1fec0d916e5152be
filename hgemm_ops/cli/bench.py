"""``hgemm bench``: compares our kernels with torch on a suite of shapes."""

from __future__ import annotations

from pathlib import Path

import click

from hgemm_ops.bench import console, record, runner, survey
from hgemm_ops.bench.suites import ELEMENT_BYTES, LAYOUTS, SUITES, parse_shapes, with_dtype

_SHAPES = "shapes"  # the suite's name in results of --shapes


@click.command("bench", short_help="Time our kernels against torch on a suite of shapes.")
@click.option(
    "--suite",
    type=click.Choice([*SUITES, *survey.NAMES]),
    help="The suite of shapes.  [default: llm, without --shapes]",
)
@click.option(
    "--shapes", metavar="MxNxK,...", help="Further shapes, or the only ones without --suite; BxMxNxK is a batch."
)
@click.option(
    "--layout",
    "layouts",
    type=click.Choice(LAYOUTS),
    multiple=True,
    default=("NT",),
    help="Layout of --shapes; repeatable.  [default: NT, a linear layer's]",
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    help="Also time this kernel; repeatable. 'all' times every kernel that can run the shape.",
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
    help="With random and zoo: write each shape to this file, and resume from it.",
)
@console.measuring_options(
    "Draw the speed over torch by shape to this SVG file, and the roofline to a second one beside it."
)
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

    Every timed configuration is first checked against float64. Contenders run interleaved, from CUDA graphs, on buffers
    that do not fit the L2. The ratio is the median, over rounds, of torch's time divided by ours, with its 95 %
    interval: above 1, we are faster. With few rows, "of stream" is the time to only read the weights, divided by the
    contender's time: 1.0 is the memory limit. The exit status is 1 if a result was wrong.

    The suites random and zoo have many shapes. random draws new ones each time, which no tuning table and no other
    suite has. zoo has the matmuls of published models, and ignores the entries of the tuning table for the model in
    question. Both time every kernel that may be the fastest, for a fifth of a second per shape, and report the speed
    over torch of the dispatcher's choice and of the fastest kernel.

    Peers: cublaslt (the best of 16 heuristics), triton (torch.compile, max-autotune), cutlass (needs nvcc and pip
    install 'hgemm_ops[peers]'), quack (needs quack-kernels). The bits of two more do not depend on the number of rows,
    so time them under HGEMM_OPS_NUMERICS=batch_invariant: cublaslt_fixed (one algorithm, no split-K) and triton_fixed
    (one tile). A peer that is not available is reported as such.
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
        from hgemm_ops.bench import plots  # fails before the measurement if matplotlib is missing

    screen = console.screen()
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
