"""``python -m integration``: runs the whole suite, or one case of it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click
import torch
import transformers
from rich.console import Console

from hgemm_ops.bench import record
from integration import check, models

#: The parts of the suite, by whether their models have experts.
SUITES = {"all": (False, True), "dense": (False,), "experts": (True,)}


def console() -> Console:
    """Returns a console that is wide enough for the table if the output is a file or a pipe."""
    probe = Console()
    return probe if probe.is_terminal else Console(width=180)


def save(results: list[check.Result], path: Path, *, whole: bool) -> None:
    """Writes the results to a file. If they are a part of the suite, the file keeps its results of other cases."""
    records = [result.record() for result in results]
    if not whole and path.exists():
        labels = {entry["label"] for entry in records}
        records = [entry for entry in record.load(path)["results"] if entry["label"] not in labels] + records
    record.save(record.document(transformers=transformers.__version__, results=records), path)


@click.command(context_settings={"show_default": True})
@click.option("--model", type=click.Choice(list(models.FAMILIES)), help="One case; without it, the whole suite.")
@click.option("--scenario", help="prefill, generate, generate-static, decode, train; encoders: forward, train.")
@click.option("--size", type=click.Choice(["tiny", "mid", "real"]), help="Default: real on a GPU, tiny on a CPU.")
@click.option("--dtype", type=click.Choice(list(check.DTYPES)), default="bf16")
@click.option("--attention", type=click.Choice(["sdpa", "eager"]), default="sdpa")
@click.option("--batch", type=click.IntRange(min=1), default=1)
@click.option("--seq", type=click.IntRange(min=1), help="Tokens of the prompt. Default: 512 on a GPU, 32 on a CPU.")
@click.option("--new-tokens", type=click.IntRange(min=1), default=8)
@click.option("--layers", type=click.IntRange(min=1), help="Default: the config's.")
@click.option("--variant", help="Force this kernel on our side.")
@click.option("--float32", type=click.Choice(["strict", "split"]), help="The float32 mode of our side.")
@click.option(
    "--experts", help='What computes the experts on our side, such as "hgemm". Default: transformers\' default.'
)
@click.option("--device", help="Default: cuda if there is one.")
@click.option("--time/--no-time", "timed", default=True, help="Time both sides on a GPU.")
@click.option("--report", "reports", is_flag=True, help="Print the report of use_custom_gemm() for every case.")
@click.option(
    "--suite", type=click.Choice(list(SUITES)), default="all", help="Of the suite, the models with or without experts."
)
@click.option("--only", help="Of the suite, only the cases whose names contain this.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here.")
def main(
    model: str | None,
    scenario: str | None,
    size: str | None,
    dtype: str,
    attention: str,
    batch: int,
    seq: int | None,
    new_tokens: int,
    layers: int | None,
    variant: str | None,
    float32: str | None,
    experts: str | None,
    device: str | None,
    timed: bool,
    reports: bool,
    suite: str,
    only: str | None,
    path: Path | None,
) -> None:
    """Check transformers models end to end: use_custom_gemm() against torch and a wide reference."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    gpu = where.type == "cuda"
    if model is None:
        if scenario is not None:
            raise click.UsageError("--scenario needs --model")
        cases = [dataclasses.replace(case, variant=variant) for case in check.suite(where)]
        cases = [case for case in cases if models.FAMILIES[case.model].has_experts in SUITES[suite]]
        cases = [case for case in cases if only is None or only in str(case)]
    else:
        try:
            case = check.Case(
                model,
                scenario or check.SCENARIOS[models.FAMILIES[model].kind][0],
                size=size or ("real" if gpu else "tiny"),
                dtype=dtype,
                batch=batch,
                seq=seq or (512 if gpu else 32),
                new_tokens=new_tokens,
                attention=attention,
                layers=layers,
                variant=variant,
                float32=float32,
                experts=experts,
            )
        except ValueError as problem:
            raise click.UsageError(str(problem)) from None
        cases = [case]

    view, results = console(), []
    for result in check.run(cases, device=where, timed=timed):
        results.append(result)
        if path is not None:  # saved after each case, because a run may be interrupted
            save(results, path, whole=model is None and only is None)
        verdict = "FAIL" if result.problems else "ok"
        view.print(f"{verdict:4} {result.case}", highlight=False)
        if reports:
            view.print(str(result.report), highlight=False, markup=False, soft_wrap=True)
    view.print(check.table(results))
    view.print(check.summary(results), highlight=False)
    sys.exit(any(result.problems for result in results))


if __name__ == "__main__":
    main()
