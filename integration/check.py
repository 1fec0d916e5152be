"""Runs each scenario three ways (wide reference, torch, ``use_custom_gemm()``), compares and times them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import hgemm_ops
from hgemm_ops import use_custom_gemm
from hgemm_ops.bench.statistics import geometric_mean
from integration import models, routing, scenarios, timing
from integration.compare import Comparison, compare, disagreement, error, rounding_unit

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
#: The scenarios for each kind of model.
SCENARIOS: dict[models.Kind, tuple[str, ...]] = {
    "decoder": ("prefill", "generate", "generate-static", "decode", "train"),
    "masked": ("forward", "train"),
    "vision": ("forward", "train"),
}
# The steps of one timed round of decoding, and the number of rounds. The key-value cache must have room for the steps
# of all rounds, and for the warm-up.
_DECODE_ITERATIONS, _DECODE_ROUNDS = 20, 11


@dataclass(frozen=True)
class Case:
    """One check.

    ``variant`` forces a kernel on our side; None lets the dispatcher choose. ``float32`` is the context's argument.
    ``experts`` is what computes the experts on our side; None is transformers' default.
    """

    model: str
    scenario: str
    size: str = "tiny"
    dtype: str = "bf16"
    batch: int = 1
    seq: int = 32
    new_tokens: int = 8
    attention: str = "sdpa"
    layers: int | None = None
    variant: str | None = None
    float32: str | None = None
    experts: str | None = None

    def __post_init__(self) -> None:
        if self.model not in models.FAMILIES:
            raise ValueError(f"model must be one of {', '.join(models.FAMILIES)}, got {self.model!r}")
        family = models.FAMILIES[self.model]
        if self.experts is not None and not family.has_experts:
            raise ValueError(f"{self.model} has no experts, got experts={self.experts!r}")
        for argument, value, allowed in (
            ("scenario", self.scenario, SCENARIOS[family.kind]),
            ("size", self.size, tuple(family.sizes)),
            ("dtype", self.dtype, tuple(DTYPES)),
        ):
            if value not in allowed:
                raise ValueError(f"{argument} must be one of {', '.join(allowed)} for {self.model}, got {value!r}")

    def context(self) -> use_custom_gemm:
        """Returns a new context for our side."""
        return use_custom_gemm(variant=self.variant, float32=self.float32)

    @property
    def generates(self) -> bool:
        return self.scenario in ("generate", "generate-static", "decode")

    @property
    def shape(self) -> str:
        """batch x tokens, or the batch alone for images, which have no token count to choose."""
        shape = f"{self.batch}" if models.FAMILIES[self.model].kind == "vision" else f"{self.batch}x{self.seq}"
        return f"{shape}+{self.new_tokens}" if self.generates else shape

    def __str__(self) -> str:
        options = (
            f", {self.layers} layers" if self.layers else "",
            ", eager attention" if self.attention == "eager" else "",
            f", {self.variant} forced" if self.variant else "",
            f" {self.float32}" if self.float32 else "",
            f", experts by {self.experts}" if self.experts else "",
        )
        return f"{self.model} {self.size} {self.scenario} {self.shape} {self.dtype}{''.join(options)}"


def finite(value: float) -> float | None:
    """Returns None for a NaN or an infinity, which JSON does not have. The case's ``problems`` report them."""
    return value if math.isfinite(value) else None


def products(report: Any) -> list[Any]:
    """Returns the rows of a report that are matmuls, and not, for example, fused attention or a convolution."""
    return [row for row in report.rows if row.flops]


def calls_of(rows: Iterable[Any]) -> dict[str, int]:
    """Returns the calls in rows of a report, by the kernel that ran them, or ``torch``."""
    calls: dict[str, int] = {}
    for row in rows:
        calls[row.variant] = calls.get(row.variant, 0) + row.calls
    return calls


def our_share_of(rows: Sequence[Any]) -> float:
    """Returns the share of the floating-point operations in rows of a report that ran on our kernels."""
    ours = sum(row.flops for row in rows if row.variant != "torch")
    return ours / sum(row.flops for row in rows) if rows else 0.0


@dataclass(frozen=True)
class Result:
    """The result of a case. ``report`` is the context's: its rows say which kernel ran which calls."""

    case: Case
    device: torch.device
    reference: str
    comparisons: list[Comparison]
    tokens_ok: bool
    tokens_note: str | None
    report: Any
    timing: timing.Timing | None

    @property
    def calls(self) -> dict[str, int]:
        """GEMM calls by the kernel that ran them, or ``torch``."""
        return calls_of(products(self.report))

    @property
    def our_share(self) -> float:
        """The share of the GEMMs' floating-point operations that ran on our kernels."""
        return our_share_of(products(self.report))

    @property
    def worst(self) -> Comparison:
        return max(self.comparisons, key=lambda comparison: comparison.ratio)

    @property
    def problems(self) -> list[str]:
        """Why the case fails. It is empty if the case passes."""
        problems = [item.problem for item in self.comparisons if not item.ok]
        if not self.tokens_ok:
            problems.append(f"tokens: {self.tokens_note}")
        if not self.calls and self.device.type == "cuda":
            problems.append("use_custom_gemm() saw no GEMM")
        forced = self.case.variant not in (None, "torch") and self.case.dtype != "fp32" and self.device.type == "cuda"
        if forced and self.case.variant not in self.calls:
            problems.append(f"{self.case.variant} was forced and ran no GEMM")
        return problems

    def record(self) -> dict[str, Any]:
        """Returns the result as plain data, for a results file."""
        logits = next(item for item in self.comparisons if item.name == "logits")
        return {
            "label": str(self.case),
            **dataclasses.asdict(self.case),
            "reference": self.reference,
            "ok": not self.problems,
            "problems": self.problems,
            "tensors": len(self.comparisons),
            "logits": {
                side: {"rms": finite(error.rms), "max": finite(error.max)}
                for side, error in (("torch", logits.torch), ("ours", logits.ours))
            },
            "worst": {"tensor": self.worst.name, "ratio": finite(self.worst.ratio)},
            "tokens": self.tokens_note,
            "calls": self.calls,
            "our_share_of_flops": self.our_share,
            "timing": dataclasses.asdict(self.timing) if self.timing else None,
        }


@dataclass(frozen=True)
class Setup:
    """A model in the case's dtype, and its reference. Cases that differ only in the scenario share them."""

    model: Any
    reference: Any
    reference_dtype: torch.dtype


def set_up(case: Case, device: torch.device) -> Setup:
    model = models.build(
        case.model,
        case.size,
        dtype=DTYPES[case.dtype],
        device=device,
        attention=case.attention,
        layers=case.layers,
    )
    wide = _reference_dtype(model, device)
    return Setup(model, models.reference_of(model, wide), wide)


def _reference_dtype(model: Any, device: torch.device) -> torch.dtype:
    """Returns the dtype of the reference: float64, or float32 if the GPU's memory is too small for that.

    float64 needs memory for the weights, for the gradients, and for about as much again during a step.
    """
    if device.type != "cuda":
        return torch.float64
    free, _ = torch.cuda.mem_get_info(device)
    needed = 3 * 8 * sum(parameter.numel() for parameter in model.parameters())
    return torch.float64 if needed < free else torch.float32


def _runner(case: Case) -> Callable[[Any, scenarios.Inputs], scenarios.Outputs]:
    """Returns the case's scenario as a function of model and inputs."""
    match case.scenario:
        case "forward":
            return scenarios.forward
        case "prefill":
            return scenarios.prefill
        case "train":
            return scenarios.train
        case "decode":
            return lambda model, inputs: scenarios.decode(
                model,
                inputs,
                new_tokens=case.new_tokens,
                # The choices of experts in a graph would be seen once, while it is captured.
                graph=_captures(case, inputs) and not models.FAMILIES[case.model].has_experts,
            )
        case scenario:
            cache = "static" if scenario == "generate-static" else None
            return lambda model, inputs: scenarios.generate(model, inputs, new_tokens=case.new_tokens, cache=cache)


def _captures(case: Case, inputs: scenarios.Inputs) -> bool:
    """Whether a step of decoding can be captured in a CUDA graph.

    In other dtypes than bfloat16, torch's grouped matmul copies the ends of the groups to the host.
    """
    return inputs["input_ids"].is_cuda and (case.dtype == "bf16" or not models.FAMILIES[case.model].has_experts)


def _like(inputs: scenarios.Inputs, dtype: torch.dtype) -> scenarios.Outputs:
    """Returns ``inputs`` with floating-point tensors (images) converted to ``dtype``."""
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}


def judge_generation(
    reference: Any,
    inputs: scenarios.Inputs,
    torch_out: scenarios.Outputs,
    our_out: scenarios.Outputs,
    unit: float,
    chosen: tuple[Sequence[Tensor], Sequence[Tensor]] = ((), ()),
) -> tuple[Comparison, bool, str]:
    """Compares each side's logits with the reference's along the tokens of that side, and then the tokens.

    ``chosen``: the experts that either side has chosen, which the reference then takes.
    """
    exact_torch, exact_ours = (
        _along(reference, inputs, side["tokens"], experts)
        for side, experts in zip((torch_out, our_out), chosen, strict=True)
    )
    logits = Comparison("logits", error(torch_out["logits"], exact_torch), error(our_out["logits"], exact_ours), unit)
    allowed = sum(
        float((side["logits"].double() - exact.double()).abs().max())
        for side, exact in ((torch_out, exact_torch), (our_out, exact_ours))
    )
    return logits, *disagreement(torch_out["tokens"], our_out["tokens"], exact_torch, exact_ours, allowed)


def _along(reference: Any, inputs: scenarios.Inputs, tokens: Tensor, chosen: Sequence[Tensor]) -> Tensor:
    batch, prompt = inputs["input_ids"].shape
    length = prompt + tokens.shape[1] - 1
    if chosen:
        chosen = routing.in_one_pass(chosen, reference.config.num_hidden_layers, batch, length)
    with routing.Routing(chosen):
        return scenarios.along(reference, inputs, tokens)


def _time(case: Case, model: Any, inputs: scenarios.Inputs) -> timing.Timing:
    if case.scenario == "decode":
        return _time_decode(case, model, inputs)
    run = _runner(case)

    def torch_side(iterations: int) -> None:
        for _ in range(iterations):
            run(model, inputs)

    def our_side(iterations: int) -> None:
        with models.experts_by(model, case.experts):
            for _ in range(iterations):
                with case.context():  # a new context at every step, as in training loops
                    run(model, inputs)

    # A whole generation is long and limited by the host: one per interleaved round is enough.
    return timing.paired(torch_side, our_side, iterations=1 if case.generates else None)


def _time_decode(case: Case, model: Any, inputs: scenarios.Inputs) -> timing.Timing:
    """Times one step of decoding. The step is the replay of a CUDA graph where it can be captured."""
    prompt, graph = inputs["input_ids"], _captures(case, inputs)
    capacity = prompt.shape[1] + _DECODE_ITERATIONS * (_DECODE_ROUNDS + 1)
    theirs, ours = (scenarios.Decoder(model, prompt, capacity=capacity, graph=graph) for _ in range(2))

    def torch_side(iterations: int) -> None:
        for _ in range(iterations):
            theirs.step()

    def our_side(iterations: int) -> None:
        # Both have an effect until the graph is captured, which is in the untimed round.
        with case.context(), models.experts_by(model, case.experts):
            for _ in range(iterations):
                ours.step()

    return timing.paired(torch_side, our_side, rounds=_DECODE_ROUNDS, iterations=_DECODE_ITERATIONS)


def _run_case(case: Case, setup: Setup, device: torch.device, timed: bool) -> Result:
    inputs = models.sample(setup.model, case.model, batch=case.batch, seq=case.seq)
    unit, run = rounding_unit(DTYPES[case.dtype]), _runner(case)
    with routing.Routing() as theirs:
        torch_out = run(setup.model, inputs)
    with case.context() as report, models.experts_by(setup.model, case.experts), routing.Routing() as ours:
        our_out = run(setup.model, inputs)
    tokens_ok, note = True, None
    if case.generates:
        chosen = theirs.chosen, ours.chosen
        logits, tokens_ok, note = judge_generation(setup.reference, inputs, torch_out, our_out, unit, chosen)
        comparisons = [logits]
        if case.scenario == "decode" and models.FAMILIES[case.model].has_experts and _captures(case, inputs):
            # The compared steps were eager. Those in a graph, which are timed, must have the same bits. For a query of
            # one token cuDNN's attention gives other bits in every run, so attention is computed by matmuls here.
            def steps(graph: bool) -> torch.Tensor:
                return scenarios.decode(setup.model, inputs, new_tokens=case.new_tokens, graph=graph)["logits"]

            with case.context(), models.experts_by(setup.model, case.experts), sdpa_kernel(SDPBackend.MATH):
                has_other_bits = not torch.equal(steps(graph=True), steps(graph=False))
            if has_other_bits:
                note = "a CUDA graph gives other logits than eager steps"
                tokens_ok = False
    else:
        wide = _like(inputs, setup.reference_dtype)
        with routing.Routing(theirs.chosen):
            exact = our_exact = run(setup.reference, wide)
        if not routing.same(theirs.chosen, ours.chosen):
            with routing.Routing(ours.chosen):
                our_exact = run(setup.reference, wide)
        comparisons = compare(torch_out, our_out, exact, unit, our_exact)
        del exact, our_exact
    del torch_out, our_out
    return Result(
        case,
        device,
        str(setup.reference_dtype).removeprefix("torch."),
        comparisons,
        tokens_ok,
        note,
        report,
        _time(case, setup.model, inputs) if timed and device.type == "cuda" else None,
    )


def run(cases: Iterable[Case], *, device: torch.device | str | None = None, timed: bool = True) -> Iterator[Result]:
    """Runs the cases in order, on a GPU if there is one. Consecutive cases with the same weights share the model.

    ``timed``: also time both sides, on a GPU.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def weights(case: Case) -> tuple[Any, ...]:
        return case.model, case.size, case.dtype, case.attention, case.layers

    for _, group in itertools.groupby(cases, key=weights):
        first, *others = group
        setup = set_up(first, where)
        for case in (first, *others):
            yield _run_case(case, setup, where, timed)
        del setup
        if where.type == "cuda":
            torch.cuda.empty_cache()


def suite(device: torch.device | str) -> list[Case]:
    """Returns the cases that ``python -m integration`` runs.

    On a CPU they are tiny models. On a GPU they have the layer shapes of published models, in float16, in bfloat16, and
    in float32 with ``float32="split"``. Mixtures of experts are in bfloat16 only, in which they were published.
    """
    if torch.device(device).type != "cuda":
        return [
            Case(model, scenario, batch=2, attention=attention)
            for model, family in models.FAMILIES.items()
            for attention in ("sdpa", "eager")
            for scenario in SCENARIOS[family.kind]
        ]
    real = functools.partial(Case, size="real")
    cases = (
        real("llama", "prefill", seq=512),
        real("llama", "prefill", seq=2048),
        real("llama", "generate", batch=2, seq=128, new_tokens=32),
        real("llama", "generate-static", batch=2, seq=128, new_tokens=32),
        real("llama", "decode", batch=1, seq=128, new_tokens=32),
        real("llama", "decode", batch=16, seq=128, new_tokens=32),
        real("llama", "train", seq=512),
        real("llama", "prefill", seq=512, attention="eager"),
        real("llama", "train", seq=512, attention="eager"),
        real("qwen2", "prefill", seq=512),
        real("qwen2", "decode", batch=16, seq=128, new_tokens=32),
        real("qwen2", "train", seq=512),
        real("gpt2", "prefill", seq=1024),
        real("gpt2", "decode", batch=16, seq=128, new_tokens=32),
        real("gpt2", "train", seq=1024),
        real("gpt2", "train", batch=8, seq=1024),
        real("bert", "forward", batch=32, seq=128),
        real("bert", "train", batch=32, seq=128),
        real("vit", "forward", batch=32),
        real("vit", "train", batch=32),
    )
    float32 = functools.partial(real, dtype="fp32", float32="split")
    return [
        *(dataclasses.replace(case, dtype=dtype) for dtype in ("fp16", "bf16") for case in cases),
        float32("gpt2", "prefill", seq=1024),
        float32("gpt2", "train", batch=8, seq=1024),
        float32("bert", "forward", batch=32, seq=128),
        float32("bert", "train", batch=32, seq=128),
        float32("vit", "forward", batch=32),
        float32("vit", "train", batch=32),
        *(
            case
            for model in ("qwen3_moe", "mixtral", "gpt_oss")
            for experts in (None, "hgemm")
            for case in (
                real(model, "prefill", batch=8, seq=1024, experts=experts),
                real(model, "decode", batch=32, seq=128, new_tokens=32, experts=experts),
                real(model, "train", batch=4, seq=512, experts=experts),
            )
        ),
    ]


def summary(results: Iterable[Result]) -> str:
    """Summarises the eager cases in one line: the speed over torch, and how many are slower."""
    eager = [result.timing for result in results if result.timing and result.case.scenario != "decode"]
    if not eager:
        return ""
    worst = min(eager, key=lambda timing: timing.speedup)
    below = {bound: sum(timing.speedup_high < bound for timing in eager) for bound in (0.98, 1.0)}
    return (
        f"{len(eager)} eager cases: geometric mean {geometric_mean([t.speedup for t in eager]):.3f} of torch's speed, "
        f"lowest {worst.speedup:.3f} ({worst.speedup_low:.3f} to {worst.speedup_high:.3f}); 95 % interval below 0.98: "
        f"{below[0.98]}, below 1.00: {below[1.0]}"
    )


def forced_kernel(family: str) -> str | None:
    """Returns the first kernel of a family that takes any size and alignment; None if the build has none."""
    able: set[str] = {variant.name for variant in hgemm_ops.variants()}
    for size, alignment in ((33, 2), (1024, 16)):
        explanation = hgemm_ops.explain(M=size, N=size, K=size, dtype=torch.float16, arch="sm_90", alignment=alignment)
        able &= {candidate.name for candidate in explanation.candidates if candidate.eligible}
    return next((v.name for v in hgemm_ops.variants() if v.family == family and v.name in able), None)


def table(results: Sequence[Result]) -> Table:
    """Returns a table of the results, with one row each."""
    timed = any(result.timing for result in results)
    view = Table(title="End to end, against the reference: error at most 2x torch's", title_justify="left")
    view.add_column("case", overflow="fold")
    for heading in ("logits: torch", "ours", "worst ratio", "GEMM calls: ours", "torch", "our FLOPs"):
        view.add_column(heading, justify="right")
    if timed:
        for heading in ("torch ms", "ours ms", "speed-up", "95 %"):
            view.add_column(heading, justify="right")
    view.add_column("verdict", overflow="fold")
    for result in results:
        logits = next(item for item in result.comparisons if item.name == "logits")
        worst, by_torch = result.worst, result.calls.get("torch", 0)
        cells = [
            str(result.case),
            f"{logits.torch.rms:.2e}",
            f"{logits.ours.rms:.2e}",
            f"{worst.ratio:.2f} of {len(result.comparisons)}",
            str(sum(result.calls.values()) - by_torch),
            str(by_torch),
            f"{result.our_share:.0%}",
        ]
        if timed:
            measured = result.timing
            cells += (
                [
                    f"{measured.torch_ms:.3f}",
                    f"{measured.ours_ms:.3f}",
                    f"{measured.speedup:.3f}",
                    f"{measured.speedup_low:.3f} to {measured.speedup_high:.3f}",
                ]
                if measured
                else [""] * 4
            )
        if result.problems:
            verdict = "[red]FAIL[/red] " + escape("; ".join(result.problems))
        else:
            verdict = "[green]ok[/green]" + (f", {escape(result.tokens_note)}" if result.tokens_note else "")
        view.add_row(*cells, verdict)
    return view
