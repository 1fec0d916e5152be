"""``python -m integration.demo`` (``make demo``): runs a real model in ``use_custom_gemm()`` and prints the report.

On a GPU, it runs two layers of Llama 3 8B, and GPT-2 with its vocabulary of 50257. They are compared with a float64
reference and timed against torch. Llama runs once with the dispatcher's choices, and once with the project's own
tensor-core kernel forced.

Without a GPU, it lists the matmuls of a training step of one layer of Llama 3 8B and of GPT-2, of which only the shapes
are computed. For each it shows the kernel that the dispatcher would choose on an H200.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

import hgemm_ops
from integration import check, models
from integration.__main__ import console
from integration.check import Case

#: The family whose first kernel the demo forces: it runs on every GPU from sm_80 on.
FAMILY = "sm80_mma"


def show(view: Console, title: str, cases: Iterable[Case], device: str) -> bool:
    """Runs ``cases``, and prints each one's report and then the results. On a GPU it also times them.

    Returns True if all passed.
    """
    view.rule(title)
    results = []
    for result in check.run(cases, device=device):
        results.append(result)
        view.print(f"\n[bold]{escape(str(result.case))}[/bold]: which kernel ran which GEMM", highlight=False)
        view.print(str(result.report), highlight=False, markup=False, soft_wrap=True)
    view.print()
    view.print(check.table(results))
    return not any(result.problems for result in results)


class Products(TorchDispatchMode):
    """Lists the matmuls that torch runs, with the modules that they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str, int, int, int, int, str, bool]] = Counter()
        self._modules = ModuleTracker()

    def __enter__(self) -> Products:
        self._modules.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._modules.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            a, b = args[-2:]
            layout = "".join("N" if t.stride(-1) == 1 else "T" for t in (a, b))
            site = max(self._modules.parents - {"Global"}, key=len, default="")
            if self._modules.is_bw:
                site = "(backward)"
            batch = a.size(0) if a.dim() == 3 else 1
            self.calls[site, name, batch, a.size(-2), b.size(-1), a.size(-1), layout, "add" in name] += 1
        return func(*args, **(kwargs or {}))


def picks(arch: str, products: Products) -> Table:
    """Returns a table of the dispatcher's choices for matmuls in float16."""
    view = Table(title=f"float16 on {arch}: what the dispatcher picks, expected times in µs", title_justify="left")
    view.add_column("module", overflow="fold")
    view.add_column("product")
    for heading in ("batch", "M", "N", "K", "calls"):
        view.add_column(heading, justify="right")
    view.add_column("layout")
    view.add_column("chosen")
    for heading in ("torch", "best of ours"):
        view.add_column(heading, justify="right")
    for (site, name, batch, m, n, k, layout, bias), calls in products.calls.items():
        choice = hgemm_ops.explain(M=m, N=n, K=k, batch=batch, layout=layout, bias=bias, arch=arch)
        times = {
            candidate.name: time
            for candidate in choice.candidates
            if candidate.eligible and (time := candidate.measured_us or candidate.predicted_us)
        }
        torch_time = times.pop("torch", None)
        view.add_row(
            escape(site),
            name,
            *(str(number) for number in (batch, m, n, k, calls)),
            layout,
            choice.chosen,
            f"{torch_time:.1f}" if torch_time else "",
            f"{min(times.values()):.1f}" if times else "",
        )
    return view


def on_cpu(view: Console) -> bool:
    view.print("No GPU here, so torch runs every matmul. What an H200 would run:", highlight=False)
    if not hgemm_ops.variants():
        view.print("No kernel was built, so torch would run everything: `hgemm doctor` says why.", highlight=False)
        return True
    for name, seq in (("llama", 2048), ("gpt2", 1024)):
        model = models.build(name, "real", dtype=torch.float16, device="meta", attention="eager", layers=1)
        tokens = torch.zeros(1, seq, dtype=torch.long, device="meta")
        with Products() as products:
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss.backward()
        view.rule(f"A training step of {name} with one layer, 1x{seq} tokens")
        view.print(picks("sm_90", products))
    return True


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
