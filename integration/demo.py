"""``python -m integration.demo`` (``make demo``): a real model goes through ``use_custom_gemm()``, with its report.

On a GPU: two layers of Llama 3 8B and GPT-2 with its vocabulary of 50257, against a float64 reference and against
torch's time; Llama once with the dispatcher's choices and once with the project's own tensor-core kernel forced.
Without one: a tiny Llama through the CPU path, then what the dispatcher would pick on an H200 for Llama 3 8B and for
the head of GPT-2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import hgemm_ops
from integration import check, models
from integration.__main__ import console
from integration.check import Case

#: The family whose first kernel the demo forces: it runs on every GPU from sm_80 on.
FAMILY = "sm80_mma"


def show(view: Console, title: str, cases: Iterable[Case], device: str) -> bool:
    """Runs ``cases``, prints each one's report and then the results; on a GPU also times them. True if all passed."""
    view.rule(title)
    results = []
    for result in check.run(cases, device=device):
        results.append(result)
        view.print(f"\n[bold]{escape(str(result.case))}[/bold]: who served which GEMM", highlight=False)
        view.print(str(result.report), highlight=False, markup=False, soft_wrap=True)
    view.print()
    view.print(check.table(results))
    return not any(result.problems for result in results)


def picks(arch: str, wanted: Mapping[str, Iterable[int]]) -> Table:
    """What the dispatcher picks for the linear layers of models in float16, each for several numbers of tokens (M)."""
    view = Table(title=f"float16 on {arch}: what the dispatcher picks, expected times in µs", title_justify="left")
    view.add_column("layer")
    for heading in ("M", "N", "K"):
        view.add_column(heading, justify="right")
    view.add_column("chosen")
    view.add_column("torch", justify="right")
    view.add_column("best of ours", justify="right")
    view.add_column("source and reason", overflow="fold")
    for model, rows in wanted.items():
        shapes = models.linear_shapes(model, "real")
        for m in rows:
            for shape in shapes:
                choice = hgemm_ops.explain(M=m, N=shape.n, K=shape.k, dtype=torch.float16, arch=arch, layout="NT")
                times = {
                    candidate.name: time
                    for candidate in choice.candidates
                    if candidate.eligible and (time := candidate.measured_us or candidate.predicted_us)
                }
                torch_time = times.pop("torch", None)
                view.add_row(
                    f"{model} {shape.name}",
                    *(str(extent) for extent in (m, shape.n, shape.k)),
                    choice.chosen,
                    f"{torch_time:.1f}" if torch_time else "",
                    f"{min(times.values()):.1f}" if times else "",
                    escape(f"{choice.source}: {choice.reason}"),
                )
            view.add_section()
    return view


def on_cpu(view: Console) -> bool:
    cases = [
        Case("llama", scenario, dtype="bf16", batch=2, seq=48)
        for scenario in ("prefill", "generate", "generate-static", "train")
    ]
    ok = show(view, "No GPU here: a tiny Llama through the CPU path", cases, "cpu")
    view.print()
    view.rule("What an H200 would run")
    if hgemm_ops.variants():
        view.print(picks("sm_90", {"llama": (2048, 16, 1), "gpt2": (1024,)}))
    else:
        view.print("No kernel was built, so torch serves everything: `hgemm doctor` says why.", highlight=False)
    return ok


def on_gpu(view: Console) -> bool:
    llama = [Case("llama", scenario, size="real", dtype="fp16", seq=512) for scenario in ("prefill", "train")]
    ok = show(view, "Two layers of Llama 3 8B, kernels chosen by the dispatcher", llama, "cuda")
    kernel = check.forced_kernel(FAMILY)
    if kernel is None:
        view.print(f"No {FAMILY} kernel was built: `hgemm doctor` says why.", highlight=False)
    else:
        forced = [replace(case, variant=kernel) for case in llama]
        ok &= show(view, f"The same, with {kernel} forced", forced, "cuda")
    gpt2 = [Case("gpt2", "prefill", size="real", dtype="fp16", seq=1024)]
    return show(view, "GPT-2: no tile divides its vocabulary of 50257", gpt2, "cuda") and ok


def main() -> None:
    view = console()
    ok = on_gpu(view) if torch.cuda.is_available() else on_cpu(view)
    sys.exit(not ok)


if __name__ == "__main__":
    main()
