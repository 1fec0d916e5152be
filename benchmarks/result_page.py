"""The page of all results of one GPU, ``results/<gpu>/README.md``: every row of every file, as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hgemm_ops.bench import survey, survey_figures
from hgemm_ops.bench.statistics import geometric_mean

OURS, TORCH, PEER, STREAM, FAST = "hgemm", "torch", "peer:", "stream", "hgemm:fast"
INTERVAL = {"value": "", "low": "_low", "high": "_high"}

Document = Mapping[str, Any]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def suites(documents: Mapping[str, Document]) -> dict[str, Document]:
    return {name: document for name, document in documents.items() if "suite" in document}


def measured(document: Document) -> str:
    """The date and the sources of a measurement, such as "2025-01-31, csrc 0123abcd"."""
    facts = document["environment"]
    return f"{facts['date'][:10]}, csrc {facts['csrc'][:8] if facts['csrc'] else 'unknown'}"


def machine(document: Document) -> str:
    facts = document["environment"]
    return f"{facts['gpu']}, driver {facts['driver']}, CUDA {facts['cuda']}, torch {facts['torch']}"


def peer_names(document: Document) -> list[str]:
    """The peers that were asked for, by their names in the rows."""
    return [PEER + name for name in document["protocol"].get("peers", ())]


def best_peer(row: Document) -> str | None:
    """The name of the fastest peer that was timed."""
    timed = {name: result["us"] for name, result in row["results"].items() if name.startswith(PEER) and "us" in result}
    return min(timed, key=lambda name: timed[name]) if timed else None


def peer_line(suite: str, title: str, rows: Sequence[Document], results: Sequence[Document | None]) -> list[object]:
    """The line of one peer, or of the best one, for a suite.

    ``results`` has its result in each row, or None.
    """
    timed = [(row, result) for row, result in zip(rows, results, strict=True) if result and "ratio" in result]
    ours = [(result["ours"], row["label"]) for row, result in timed if "ours" in result]
    lowest, label = min(ours, key=lambda pair: pair[0]["value"], default=({"value": 0.0}, ""))
    return [
        suite,
        title,
        f"{len(timed)} of {len(rows)}",
        f"{geometric_mean([result['ratio']['value'] for _, result in timed]):.3f}" if timed else "-",
        f"{geometric_mean([ratio['value'] for ratio, _ in ours]):.3f}" if ours else "-",
        f"{lowest['value']:.3f}, {label}" if ours else "-",
        sum(ratio["high"] < 1 for ratio, _ in ours) if ours else "-",
    ]


def peer_lines(name: str, document: Document) -> list[list[object]]:
    """The lines of a suite in the summary of peers: one for each peer, then one for the best peer of each row."""
    rows, names = document["rows"], peer_names(document)
    lines = [
        peer_line(name, peer.removeprefix(PEER), rows, [row["results"].get(peer) for row in rows]) for peer in names
    ]
    if len(names) > 1:
        lines.append(peer_line(name, "the best", rows, [row["results"].get(best_peer(row)) for row in rows]))
    return lines


def peer_summary(documents: Mapping[str, Document]) -> list[str]:
    lines = [line for name, document in documents.items() for line in peer_lines(name, document)]
    if not lines:
        return []
    header = ["suite", "peer", "timed", "peer over torch", "ours over peer", "lowest", "slower than peer"]
    return [
        "Other libraries, timed in the same runs. Each library runs the configuration that was its fastest for the",
        "case in earlier rounds. `timed`: cases that the library supports. The ratios are geometric means.",
        "",
        *table(header, lines),
        "",
    ]


def peer_section(document: Document) -> list[str]:
    """Every row of a suite, with a column for each peer."""
    names = peer_names(document)
    if not names:
        return []

    def cell(row: Document, name: str) -> str:
        result = row["results"].get(name, {})
        if "ratio" not in result:
            return "wrong" if "wrong" in result else "-"
        chosen = f" ({result['configuration']})" if "configuration" in result else ""
        return f"{result['ratio']['value']:.3f}{chosen}"

    rows = []
    for row in document["rows"]:
        ours = row["results"].get(best_peer(row), {}).get("ours")
        rows.append([row["label"], cell(row, OURS), *(cell(row, name) for name in names), bold(ours)])
    versions = "; ".join(f"{name}: {version}" for name, version in document["protocol"]["peers"].items())
    header = ["case", OURS, *(name.removeprefix(PEER) for name in names), "ours / best peer"]
    return [
        f"Speed over torch beside other libraries ({versions}). Bold: slower than the best of them.",
        "",
        *table(header, rows),
        "",
    ]


def host_cost_section(document: Document) -> list[str]:
    """The costs of calls in the context and of the ops, without and with a required gradient.

    There is one column for each matmul.
    """
    products = document["products"]
    lines: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in document["calls"]:
        if "over_baseline_ns" in row and row["gradients"] != "on":
            function, _, operands = row["statement"].rstrip(")").partition("(")
            call = f"`{function}`" + (f" in {row['inside']}" if row["inside"] else "")
            cost, extra = row["ns"]["value"] / 1e3, row["over_baseline_ns"]["value"] / 1e3
            wanted = "wanted" if row["gradients"] == "required" else "none"
            line = lines.setdefault((call, f"`{row['baseline'].partition('(')[0]}`", wanted), {})
            line[operands] = f"{cost:.2f} ({extra:+.2f})"
    columns = [f"{'x'.join(map(str, product['shape']))}, by {product['by']}" for product in products.values()]
    return [
        "## Host cost",
        "",
        f"{measured(document)}; {machine(document)}.",
        "Host time of an eager call in µs. In brackets: how much longer it is than torch's call outside of a context.",
        "",
        *table(
            ["call", "over", "gradient", *columns],
            [[*words, *(line.get(name, "-") for name in products)] for words, line in lines.items()],
        ),
        "",
        *context_cost(document),
    ]


def interval(ns: Document, sign: str = "") -> str:
    return "{value:{s}.2f} µs ({low:{s}.2f} to {high:{s}.2f})".format(s=sign, **{end: x / 1e3 for end, x in ns.items()})


def context_cost(document: Document) -> list[str]:
    lines = []
    if document.get("context_ns"):
        lines += [f"Making, entering and leaving a context: {interval(document['context_ns'])}.", ""]
    if document.get("context_after_ns"):
        lines += [f"The same after the calls below: {interval(document['context_after_ns'])}.", ""]
    if document.get("context_again_ns"):
        lines += [f"Entering and leaving one context again: {interval(document['context_again_ns'])}.", ""]
    if document.get("unseen"):
        lines += [
            "`torch.mm` with a number of rows that is new to the process, and once more: µs of an eager call.",
            "",
            *table(
                ["rows", "N x K", "kernel", "new", "known", "torch, new", "torch, known"],
                [
                    [f"1 to {row['rows']}", f"{row['n']} x {row['k']}", row["by"]]
                    + [
                        f"{row[name]['value'] / 1e3:.1f}"
                        for name in ("new_ns", "known_ns", "torch_new_ns", "torch_known_ns")
                    ]
                    for row in document["unseen"]
                ],
            ),
            "",
        ]
    if document.get("inactive"):
        found = document["inactive"]
        off, wanted = (interval(found["over_before_ns"][name], "+") for name in ("off", "required"))
        line = f"While no context is active, the override adds {off} to `torch.mm`, with a gradient {wanted}."
        if control := found.get("control_ns"):
            off, wanted = (interval(control[name], "+") for name in ("off", "required"))
            line += f" The same measurement without the override: {off} and {wanted}."
        lines += [line, ""]
    return lines


def decode_title(document: Document) -> str:
    settings = document["decode"]
    return (
        f"Decoding, {settings['layers']} layers of {settings['model']} ({settings['size']}) in {settings['dtype']}, "
        f"tokens a second ({measured(document)}):"
    )


def decode_rows(document: Document) -> list[list[object]]:
    """The rows of the decoding table.

    The columns are the batch, how the steps run, torch's speed, and for ours and for fused projections the speed and
    the speed over torch.
    """
    rows = []
    for row in document["results"]:
        cells: list[object] = [row["batch"], row["runner"], number(row["sides"][TORCH]["tokens_per_second"])]
        for name in ("ours", "fused"):
            side = row["sides"].get(name)
            cells += [number(side["tokens_per_second"]), over_torch(side["speedup"])] if side else ["-", "-"]
        rows.append([*cells, "ok" if row["ok"] else "wrong"])
    return rows


def bold(ratio: Mapping[str, float] | None) -> str:
    """A ratio of speeds, in bold where its interval lies below 1."""
    mark = "**" if ratio and ratio["high"] < 1 else ""
    return f"{mark}{ratio['value']:.3f}{mark}" if ratio else "-"


def over_torch(ratio: Mapping[str, float]) -> str:
    """A ratio with its interval."""
    return f"{bold(ratio)} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def decode_header(document: Document) -> list[str]:
    """The header of the decoding table.

    Older records have no key "fused". In them, fused projections also promised that nothing writes the weights.
    """
    fused = document["decode"].get("fused", "fused, static weights")
    return ["batch", "steps by", "torch", "ours", "over torch", fused, "over torch", "results"]


def surveys(documents: Mapping[str, Document]) -> dict[str, Document]:
    return {name: documents[name] for name in survey.RECORDS if name in documents}


def survey_title(document: Document) -> str:
    """Where the shapes of a survey come from."""
    if document["survey"] != "zoo":
        tuned = ", each tuned at its first matmul by `tune=True`" if document["survey"] == "tuned" else ""
        return f"shapes that no tuning table and no suite has, drawn with seed {document['seed']}{tuned}"
    models = {model for row in document["shapes"] for model in row["chosen"]}
    return f"matmuls of {len(models)} published models, each without the measured times of its (n, k)"


_SURVEYED = (
    "No tuning table has these shapes, so the dispatcher's cost model chooses. In `tuned`, the times of `tune=True`",
    "decide. Every kernel that may be the fastest was timed beside the chosen one.",
    "",
    "- `choice`, `best`: speed over torch of the choice, and of the fastest of torch and all kernels; geometric means.",
    "- `slowdown`, `95th`: how much longer the choice takes than the fastest, in the mean and at the 95th percentile.",
    "- `torch (best)`: how often torch is chosen, and how often it is the fastest.",
    "- `losses`, `worst`: how many choices are below 0.97 of torch's speed, and the lowest one.",
)
_SURVEY_HEADER = ("shapes", "choice", "best", "slowdown", "95th", "torch (best)", "losses", "worst")


def survey_line(name: str, document: Document) -> str:
    cut = "" if len(document["shapes"]) == document["planned"] else f", of {document['planned']} planned"
    return f"`{name}`: {len(document['shapes'])} {survey_title(document)}{cut} ({measured(document)})."


def survey_summary(documents: Mapping[str, Document]) -> list[str]:
    """The figures of untuned shapes, one line for each survey."""
    found = surveys(documents)
    rows = [[name, *survey_figures.lines(document, by_model=False)[0][1:]] for name, document in found.items()]
    said = [f"- {survey_line(name, document)}" for name, document in found.items()]
    lines = table(["survey", *_SURVEY_HEADER], rows)
    return [*_SURVEYED, "", "The shapes:", "", *said, "", *lines, ""] if found else []


def survey_lines(documents: Mapping[str, Document]) -> list[str]:
    """The same figures by M, layout and model, with one table for each survey."""
    lines = [*_SURVEYED, ""]
    for name, document in surveys(documents).items():
        rows = survey_figures.lines(document)
        lines += [survey_line(name, document), "", *table([name, *_SURVEY_HEADER], rows), ""]
    return lines if surveys(documents) else []


def number(value: float) -> str:
    """Four significant digits, without an exponent."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def best_forced(row: Document) -> str:
    """The ratio and the name of the fastest kernel that was forced."""
    forced = {
        name: result["ratio"]["value"]
        for name, result in row["results"].items()
        if name not in (OURS, FAST) and not name.startswith((TORCH, PEER)) and "ratio" in result
    }
    if not forced:
        return "-"
    name = max(forced, key=lambda kernel: forced[kernel])
    return f"{forced[name]:.3f} {name}"


def share_of_stream(ours: Document) -> str:
    return f"{ours['of_stream']['value']:.3f}" if "of_stream" in ours else "-"


def suite_section(name: str, document: Document, directory: Path) -> list[str]:
    """Every row of a suite."""
    protocol = document["protocol"]
    soak = protocol.get("soak_seconds")  # older files have none
    soaked = f", after {soak:.0f} s of large matmuls" if soak else ""
    warmup = protocol.get("warmup_seconds")
    soaked += f", each case after {warmup:g} s of its own" if warmup else ""
    streamed = any(STREAM in row["results"] for row in document["rows"])
    promises = any(FAST in row["results"] for row in document["rows"])
    rows = []
    for row in document["rows"]:
        base, ours = row["results"][TORCH], row["results"].get(OURS, {})
        ratio = ours.get("ratio")
        rows.append(
            [
                row["label"],
                number(base["us"]) if "us" in base else "wrong",
                number(ours["us"]) if ratio else ours.get("wrong", "-"),
                bold(ratio),
                f"{ratio['low']:.3f} to {ratio['high']:.3f}" if ratio else "-",
                number(ours["tflops"]) if ratio else "-",
                number(ours["gbps"]) if ratio else "-",
                f"{ours['error'] / base['error']:.2f}" if ratio and base.get("error") else "-",
                row["served_by"] or "-",
                best_forced(row),
                *([share_of_stream(ours)] if streamed else []),
                *([bold(row["results"].get(FAST, {}).get("ours"))] if promises else []),
            ]
        )
    plot = Path("plots", f"{name}-ratio.svg")
    header = [
        "case", "torch µs", "µs", "ratio", "95 %", "TFLOP/s", "GB/s", "error / torch's", "kernel", "best forced",
        *(["of stream"] if streamed else []), *([f"{protocol['numerics']} over fast"] if promises else []),
    ]  # fmt: skip
    return [
        f"## {name}",
        "",
        f"{measured(document)}; {machine(document)}; {protocol['rounds']} rounds, {protocol['inputs']} inputs{soaked}.",
        "`ratio`: torch's time over ours, bold where ours is slower. `95 %`: its interval. `best forced`: the ratio",
        "and the name of the fastest kernel, where kernels were timed one by one.",
        *(["`of stream`: the time of only reading the weights over ours."] if streamed else []),
        "",
        *table(header, rows),
        "",
        *peer_section(document),
        *([f"![speed over torch by shape]({plot.as_posix()})", ""] if (directory / plot).exists() else []),
    ]


def first_of(text: str) -> str:
    """The first of several findings, and the number of the others."""
    first, *more = text.split("; ")
    return f"{first}; {len(more)} more" if more else first


def decode_section(document: Document, directory: Path) -> list[str]:
    """Every batch, with the kernels that ran in our steps."""
    served = []
    for row in document["results"]:
        for name in ("ours", "fused"):
            side = row["sides"].get(name)
            if side:
                kernels = ", ".join(f"{kernel} {calls}" for kernel, calls in sorted(side["calls"].items()))
                errors = side["logits"]
                ratio = f"{errors['rms'] / errors['torch_rms']:.2f}" if errors["rms"] and errors["torch_rms"] else "-"
                served.append(
                    [row["batch"], row["runner"], name, f"{side['ms']:.3f}", ratio, first_of(side["tokens"]), kernels]
                )
    header = ["batch", "steps by", "side", "ms a step", "logit error / torch's", "tokens", "calls by kernel"]
    return [
        "## decode",
        "",
        f"{measured(document)}; {machine(document)}; transformers {document['transformers']}.",
        decode_title(document),
        "",
        *table(decode_header(document), decode_rows(document)),
        "",
        *table(header, served),
        "",
        *(
            ["![tokens a second by batch](plots/decode.svg)", ""]
            if (directory / "plots" / "decode.svg").exists()
            else []
        ),
    ]


def models_section(name: str, document: Document) -> list[str]:
    """Every case of a result of the integration suite."""
    rows = []
    for result in document["results"]:
        timing, worst = result["timing"], result["worst"]["ratio"]
        errors = [result["logits"][side]["rms"] for side in ("torch", "ours")]
        rows.append(
            [
                result["label"],
                *("-" if error is None else f"{error:.2e}" for error in errors),
                "-" if worst is None else f"{worst:.2f}",
                sum(calls for kernel, calls in result["calls"].items() if kernel != TORCH),
                result["calls"].get(TORCH, 0),
                f"{result['our_share_of_flops']:.0%}",
                *([f"{timing[side]:.3f}" for side in ("torch_ms", "ours_ms")] if timing else ["-", "-"]),
                over_torch({name: timing[f"speedup{end}"] for name, end in INTERVAL.items()}) if timing else "-",
                "ok" if result["ok"] else "; ".join(result["problems"]),
            ]
        )
    header = [
        "case", "torch's logit error", "ours", "worst ratio", "GEMM calls: ours", "torch", "our FLOPs",
        "torch ms", "ms", "over torch", "results",
    ]  # fmt: skip
    return [
        f"## {name}",
        "",
        f"{measured(document)}; {machine(document)}; transformers {document['transformers']}. Root-mean-square errors",
        "against a reference in a wider dtype. `worst ratio`: the largest of our errors over torch's, of all tensors.",
        "",
        *table(header, rows),
        "",
    ]


def compiled_section(document: Document) -> list[str]:
    """Compiled models, with a new context at each step."""
    rows = [
        [
            result["label"],
            *(f"{result['ms'][side]:.3f}" for side in ("torch", "ours")),
            over_torch(result["speed"]["ours"]),
            result["compiled_later"],
        ]
        for result in document["results"]
    ]
    return [
        "## Compiled models",
        "",
        f"{measured(document)}; {machine(document)}; transformers {document['transformers']}. A new context at every",
        "step. `compiled later`: graphs that were compiled during the timed steps.",
        "",
        *table(["case", "torch ms", "ms", "over torch", "compiled later"], rows),
        "",
    ]


def train_section(document: Document, directory: Path) -> list[str]:
    """A training loop as a user would write it."""
    settings, results = document["train"], document["results"]
    speeds = [f"{side} {over_torch(ratio)}" for side, ratio in results["speed"].items()]
    apart = [f"{pair} {loss:.4f}" for pair, loss in results["largest_loss_difference"].items()]
    plot = Path("plots", "train.svg")
    return [
        "## A training loop",
        "",
        f"{measured(document)}; {machine(document)}; transformers {document['transformers']}.",
        "GPT-2 small, {batch}x{tokens}, vocabulary {vocabulary}, fp16 autocast, GradScaler, AdamW, {steps} steps, each "
        "in a context of its own.".format(**settings),
        "",
        f"Speed over torch, compiled over compiled: {'; '.join(speeds)}.",
        f"Largest differences of the losses: {'; '.join(apart)}.",
        "",
        *([f"![losses]({plot.as_posix()})", ""] if (directory / plot).exists() else []),
    ]


def science_section(document: Document) -> list[str]:
    """Training steps of scientific networks in float32, in both float32 modes."""

    def mebibytes(side: Document) -> str:
        return "-" if side["peak_bytes"] is None else f"{side['peak_bytes'] / 2**20:.0f}"

    rows = []
    for result in document["results"]:
        theirs = result["sides"][TORCH]
        for name, side in result["sides"].items():
            if name == TORCH:
                continue
            worst = side["worst"]
            rows.append(
                [
                    result["label"],
                    name,
                    f"{result['matmul_share_of_flops']:.0%}",
                    f"{side['our_share_of_flops']:.0%}",
                    *(f"{of['ms']:.3f}" for of in (theirs, side)),
                    over_torch(side["speed"]),
                    "-" if worst["ratio"] is None else f"{worst['ratio']:.2f} ({worst['tensor']})",
                    *(f"{of['loss_error']:.1e}" for of in (theirs, side)),
                    *(mebibytes(of) for of in (theirs, side)),
                    "; ".join(side["problems"]) or "ok",
                ]
            )
    header = [
        "network", "float32", "matmuls", "of them ours", "torch ms", "ms", "over torch", "worst ratio",
        "torch's loss error", "ours", "torch MiB", "MiB", "results",
    ]  # fmt: skip
    return [
        "## Scientific networks",
        "",
        f"{measured(document)}; {machine(document)}. Training steps in float32: forward, backward and Adam, in eager",
        "code, each in a new context. `matmuls`: their share of a step's floating-point operations. The others are",
        "convolutions, which run in TF32, as torch's do by default, and in float32 where errors are compared.",
        "`worst ratio`: the largest of our errors over torch's against float64, of residuals and gradients. A loss has",
        "only one error, which may be small by chance. `MiB`: what a step takes from torch's allocator at its peak.",
        "",
        *table(header, rows),
        "",
    ]


def profile_section(document: Document) -> list[str]:
    """What Nsight Compute counts for production kernels, and for torch's kernels of the same matmul."""
    rows = []
    for launch in document["ncu"]:
        waits = ", ".join(f"{reason.replace('_', ' ')} {warps:.1f}" for reason, warps in launch["stalls"].items())
        rows.append(
            [
                launch["case"],
                f"torch ({' + '.join(name.partition('<')[0] for name in launch['kernel'].split(' + '))})"
                if launch["name"] == TORCH
                else launch["name"],
                number(launch["ns"] / 1e3),
                number(launch["tflops"]),
                f"{launch['cycles'] / 1e3:.0f}",
                f"{launch['clock_hz'] / 1e9:.3f}",
                f"{launch['tensor_pct']:.1f}",
                f"{launch['l2_bytes'] / 1e6:.0f}",
                f"{launch['dram_bytes'] / 1e6:.0f}",
                waits or "-",
            ]
        )
    header = [
        "case", "kernel", "µs", "TFLOP/s", "1000 cycles", "GHz", "tensor pipe %", "L2 MB", "DRAM MB", "warps that wait",
    ]  # fmt: skip
    return [
        "## Nsight Compute",
        "",
        f"{measured(document)}; {machine(document)}. One launch of each alone, caches cold, clocks as they are.",
        "The last column: how many warps of a scheduler wait for which reason, whenever it issues an instruction.",
        "",
        *table(header, rows),
        "",
    ]


LOSS = 0.98  # a ratio below this counts as a loss


def map_means(rows: Sequence[Document]) -> list[float]:
    """Geometric means over matmuls of the map: of torch and of ours over the bound, and of ours over torch."""
    return [
        geometric_mean([row["bound_us"] / row["torch_us"] for row in rows]),
        geometric_mean([row["bound_us"] / row["ours_us"] for row in rows]),
        geometric_mean([row["ratio"]["value"] for row in rows]),
    ]


def map_timed(document: Document) -> dict[str, list[Document]]:
    """The matmuls of the map by kind. Wrong results were not timed."""
    kinds: dict[str, list[Document]] = {}
    for row in document["map"]["rows"]:
        if "ratio" in row:
            kinds.setdefault(row["kind"], []).append(row)
    return kinds


def map_lines(document: Document) -> list[str]:
    """The table of the map: a line for all matmuls, and one for each kind."""
    kinds = map_timed(document)
    every = [row for rows in kinds.values() for row in rows]
    lines = []
    for kind, rows in {"all": every, **kinds}.items() if every else ():
        ratios = [row["ratio"]["value"] for row in rows]
        losses = sum(ratio < LOSS for ratio in ratios)
        lines.append([kind, len(rows), *(f"{mean:.2f}" for mean in map_means(rows)), f"{min(ratios):.2f}", losses])
    return table(["kind", "shapes", "torch / bound", "ours / bound", "ours / torch", "lowest", f"below {LOSS}"], lines)


def map_section(document: Document, directory: Path) -> list[str]:
    """The kinds of matmuls, and every matmul."""
    found, plot = document["map"], Path("plots", "map.svg")
    rows = []
    for row in found["rows"]:
        batch = f"{row['batch']} {'groups, ' if row['form'] == 'grouped' else 'of '}" if row["batch"] > 1 else ""
        form = f"{row['form']}, " if row["kind"].startswith("forms") else ""
        case = f"{row['kind']}: {form}{batch}{row['m']}x{row['n']}x{row['k']} {row['layout']} {row['dtype']}"
        if "wrong" in row:
            rows.append([case, number(row["bound_us"]), *["wrong"] * 2, *["-"] * 4, row["kernel"]])
            continue
        (theirs, _), (ours, _) = (row["errors"][side] for side in (TORCH, "ours"))
        times = [number(row[name]) for name in ("bound_us", "torch_us", "ours_us")]
        peaks = [row["peak_bytes"][side] for side in (TORCH, "ours")]
        memory = [f"{peak / 2**20:.1f}" if peak is not None else "-" for peak in peaks]
        error = f"{ours / theirs:.2f}" if theirs else "-"
        rows.append([case, *times, bold(row["ratio"]), error, *memory, row["kernel"]])
    header = ["case", "bound µs", "torch µs", "µs", "ratio", "error / torch's", "torch MiB", "MiB", "kernel"]
    left_out = [f"- Left out, {kind}: {reason}" for kind, reason in found["left_out"].items()]
    return [
        "## Kinds of matmuls",
        "",
        f"{measured(document)}; {machine(document)}. Shapes drawn with seed {found['seed']} by `benchmarks/map.py`.",
        "The bound is the time that the chip needs at least: the larger of operations over their unit's rate and bytes",
        "over a copy's rate, plus 2.5 µs for a launch. The table has geometric means of speeds: `torch / bound` is 1",
        "where torch is as fast as the bound, and `ours / torch` is above 1 where we are faster than torch.",
        "",
        *table(["unit", *found["rates"]], [["TFLOP/s; memory: TB/s", *found["rates"].values()]]),
        "",
        *map_lines(document),
        "",
        *([*left_out, ""] if left_out else []),
        *([f"![torch and ours of the bound, by kind]({plot.as_posix()})", ""] if (directory / plot).exists() else []),
        "`MiB`: what a call takes from torch's allocator at its peak, its result included.",
        "",
        *table(header, rows),
        "",
    ]


def grouped_peer_line(title: str, rows: Sequence[Document], peers: Sequence[Document]) -> list[object]:
    """The line of one peer, or of the fastest one. ``peers`` has what each row of ``grouped.py`` says of it."""
    timed = [(peer, row) for peer, row in zip(peers, rows, strict=True) if "us" in peer]
    lowest, label = min(((peer["ours"], grouped_label(row)) for peer, row in timed), default=(0.0, ""))
    return [
        title,
        f"{len(timed)} of {len(rows)}",
        f"{geometric_mean([peer['ratio'] for peer, _ in timed]):.3f}" if timed else "-",
        f"{geometric_mean([peer['ours'] for peer, _ in timed]):.3f}" if timed else "-",
        f"{lowest:.3f}, {label}" if timed else "-",
        sum(peer["ours"] < 1 for peer, _ in timed) if timed else "-",
    ]


def grouped_label(row: Document) -> str:
    return f"{row['model']} {row['layer']} {row['dtype']}, {row['tokens']} tokens {row['spread']}"


def grouped_peers_section(document: Document) -> list[str]:
    """The grouped matmuls that were timed beside other ways to compute them."""
    found = document["grouped"]
    rows, names = found["rows"], list(found["peers"])
    fastest = [min(row["peers"].values(), key=lambda peer: peer.get("us", math.inf)) for row in rows]
    summary = [grouped_peer_line(name, rows, [row["peers"][name] for row in rows]) for name in names]
    if len(names) > 1:
        summary.append(grouped_peer_line("the fastest", rows, fastest))
    versions = "; ".join(f"{name}: {version}" for name, version in found["peers"].items())
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for name, peer in row["peers"].items():
            if "us" not in peer:
                words = "; ".join(f"{how}: {why}" for how, why in peer.items())
                reasons.setdefault(f"`{name}` {words}", []).append(grouped_label(row))
    lines = []
    for row, best in zip(rows, fastest, strict=True):
        times = [
            f"{number(peer['us'])} ({peer['configuration']})" if "us" in peer else next(iter(peer))
            for peer in (row["peers"][name] for name in names)
        ]
        mark = "**" if best.get("ours", 1.0) < 1 else ""
        over = f"{mark}{best['ours']:.3f}{mark}" if "ours" in best else "-"
        lines.append([grouped_label(row), number(row["torch"]), number(row["ours"]), *times, over, row["kernel"]])
    return [
        "## Grouped matmuls beside other libraries",
        "",
        f"{measured(document)}; {machine(document)}. Versions: {versions}.",
        "",
        "Layers of mixtures of experts. [What each peer is](../../README.md#peers-of-grouped-matmuls).",
        "`timed`: the cases for which the peer has a right result. The ratios are geometric means.",
        "",
        *table(["peer", "timed", "peer over torch", "ours over peer", "lowest", "slower than peer"], summary),
        "",
        *(f"- {reason} (cases: {len(cases)}, first {cases[0]})" for reason, cases in reasons.items()),
        *([""] if reasons else []),
        *([f"The run ended early: {found['broken']}.", ""] if "broken" in found else []),
        "Times in µs. The last ratio is bold where our kernel is slower than the fastest peer.",
        "",
        *table(["case", TORCH, "ours", *names, "ours / fastest peer", "kernel"], lines),
        "",
    ]


def removed(text: str, kernels: Collection[str]) -> list[str]:
    """The names of kernels in a text that are of a family of ``kernels``, and not among them."""
    families = "|".join({"_".join(name.split("_")[:2]) for name in kernels if "_" in name})  # not of "torch"
    return sorted(set(re.findall(rf"\b(?:{families})_\w*\d\w*", text)) - set(kernels)) if families else []


def page(documents: Mapping[str, Document], directory: Path, kernels: Collection[str] = ()) -> str:
    """``results/<gpu>/README.md``. ``kernels``: the names of those that there are now."""
    lines: list[str] = []
    if peers := peer_summary(suites(documents)):
        lines += ["## Other libraries", "", *peers]
    for name, document in suites(documents).items():
        lines += suite_section(name, document, directory)
    if found := survey_lines(documents):
        lines += ["## Shapes without measured times", "", *found]
    if "map" in documents:
        lines += map_section(documents["map"], directory)
    if "grouped-peers" in documents:
        lines += grouped_peers_section(documents["grouped-peers"])
    if "decode" in documents:
        lines += decode_section(documents["decode"], directory)
    for name in ("integration", "experts"):
        if name in documents:
            lines += models_section(name, documents[name])
    if "compiled" in documents:
        lines += compiled_section(documents["compiled"])
    if "train" in documents:
        lines += train_section(documents["train"], directory)
    if "science" in documents:
        lines += science_section(documents["science"])
    if "host_cost" in documents:
        lines += host_cost_section(documents["host_cost"])
    if "kernels_ncu" in documents:
        lines += profile_section(documents["kernels_ncu"])
    head = [f"# Results: {directory.name}", "", "Generated by `benchmarks/tables.py` from the JSON files here.", ""]
    if gone := removed("\n".join(lines), kernels):
        head += ["These kernels have been removed since they were measured:", "", *(f"- `{n}`" for n in gone), ""]
    return "\n".join([*head, *lines]).rstrip() + "\n"
