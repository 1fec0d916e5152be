"""``hgemm bench``: our kernels against torch on a suite of shapes."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from hgemm_ops._bench import console, record, runner
from hgemm_ops._bench.suites import ELEMENT_BYTES, SUITES, with_dtype


@click.command("bench", short_help="Time our kernels against torch on a suite of shapes.")
@click.option("--suite", type=click.Choice(list(SUITES)), default="llm", show_default=True, help="Which shapes.")
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME",
    help="Also time this kernel alone; repeatable. 'all' is every eligible one.",
)
@console.peer_option
@click.option("--dtype", type=click.Choice(list(ELEMENT_BYTES)), help="Instead of the suite's own.")
@console.warmup_option
@console.measuring_options("Draw speed over torch by shape here, as SVG and PNG, and beside it the roofline.")
def bench(
    suite: str,
    variants: tuple[str, ...],
    peer_names: tuple[str, ...],
    dtype: str | None,
    warmup: float,
    rounds: int,
    inputs: str,
    seed: int,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Time the dispatcher's choice, and any kernels and peers named, against torch.

    Every timed configuration is checked against float64 first. Contenders run interleaved, from CUDA graphs, over
    buffers that do not fit the L2. The ratio is the median over rounds of torch's time over ours, above 1 where we are
    faster, with its 95 % interval. With few rows, "of stream" is the time of only reading the weights over the
    contender's. Ends with status 1 if a result was wrong.

    Peers: cublaslt (the best of 16 heuristics), triton (torch.compile, max-autotune), cutlass (needs nvcc and
    pip install 'hgemm_ops[peers]'), quack (needs quack-kernels). One that is not available is reported as such.
    """
    console.require_kernels("hgemm bench")
    if plot_path:
        from hgemm_ops._bench import plots  # before the measurement: matplotlib may be missing

    cases = with_dtype(SUITES[suite], dtype) if dtype else SUITES[suite]
    options = runner.Options(
        variants=console.known_variants(variants),
        peers=console.known_peers(peer_names),
        warmup=warmup,
        rounds=rounds,
        seed=seed,
        inputs=inputs,
    )
    screen = Console()
    console.report_peers(options.peers, screen)
    rows = console.run_with_progress(cases, options, screen)
    screen.print(console.comparison(rows, suite))
    if options.peers:
        screen.print(console.against_peers(rows, options.peers, suite))
    screen.print(console.summary(rows))
    document = runner.document(suite, rows, options, runner.copy_gbps())
    if json_path:
        record.save(document, json_path)
    if plot_path:
        roofline = plot_path.with_stem(f"{plot_path.stem}-roofline")
        for path in plots.ratio_by_shape(document, plot_path) + plots.roofline(document, roofline):
            screen.print(f"wrote {path}")
    console.fail_if_wrong(rows)
