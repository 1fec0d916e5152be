"""transformers models under ``use_custom_gemm()``: tiny ones on a CPU, larger ones on a GPU; and the judge itself."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from rich.console import Console
from torch.overrides import TorchFunctionMode

pytest.importorskip("transformers")

import hgemm_ops
from integration import check, compare, compiled, demo, models, scenarios, train
from integration.__main__ import main
from integration.check import SCENARIOS, Case

ALL = [(name, scenario) for name, family in models.FAMILIES.items() for scenario in SCENARIOS[family.kind]]


def run_one(case: Case, device: str = "cpu") -> check.Result:
    (result,) = check.run([case], device=device, timed=False)
    return result


@pytest.mark.parametrize(("model", "scenario"), ALL)
def test_the_harness_on_a_cpu(model: str, scenario: str) -> None:
    """Where torch serves both sides: scenarios run, and sides that agree pass."""
    result = run_one(Case(model, scenario, dtype="bf16", batch=2, seq=19, new_tokens=5))
    assert not result.problems and not result.calls


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["chosen", "forced"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("size", ["tiny", "mid"])
@pytest.mark.parametrize("model", list(models.FAMILIES))
def test_gpu(model: str, size: str, dtype: str, kernel: str) -> None:
    variant = check.forced_kernel(demo.FAMILY) if kernel == "forced" else None
    if kernel == "forced" and variant is None:
        pytest.skip(f"no {demo.FAMILY} kernel was built")
    cases = [
        Case(model, scenario, size, dtype, batch=2, seq=50, new_tokens=6, attention=attention, variant=variant)
        for attention in ("sdpa", "eager")
        for scenario in SCENARIOS[models.FAMILIES[model].kind]
    ]
    results = list(check.run(cases, device="cuda", timed=False))
    assert len(results) == len(cases)
    assert {str(result.case): result.problems for result in results if result.problems} == {}


class _Skew(TorchFunctionMode):
    def __init__(self, skew: float) -> None:
        super().__init__()
        self._skew = skew

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * (1 + self._skew) if func is F.linear else result


def stand_in(skew: float, *rows: SimpleNamespace) -> Callable[..., Any]:
    """A ``use_custom_gemm`` with a fault (results of linear layers are ``skew`` too large) and ``rows`` to report."""

    @contextlib.contextmanager
    def context(*, variant: str | None, float32: str | None) -> Iterator[SimpleNamespace]:
        with _Skew(skew):
            yield SimpleNamespace(rows=rows)

    return context


@pytest.mark.parametrize("scenario", SCENARIOS["decoder"])
def test_a_fault_is_seen(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, row = (
        Case("llama", scenario, batch=2, seq=16, new_tokens=3),
        SimpleNamespace(variant="skewed", calls=1, flops=1),
    )
    monkeypatch.setattr(check, "use_custom_gemm", stand_in(0.0, row))
    assert not run_one(case).problems
    for skew in (0.05, math.nan):
        monkeypatch.setattr(check, "use_custom_gemm", stand_in(skew, row))
        assert any(problem.startswith("logits") for problem in run_one(case).problems)


def test_a_model_whose_products_nobody_saw_is_a_failure_on_a_gpu() -> None:
    result = run_one(Case("vit", "forward"))
    on_gpu = dataclasses.replace(result, device=torch.device("cuda"))
    assert not result.problems and on_gpu.problems == ["use_custom_gemm() saw no GEMM"]


def test_bound_is_twice_torchs_error_and_one_rounding() -> None:
    unit = compare.rounding_unit(torch.float16)
    assert unit == 2.0**-11

    def comparison(ours: float) -> compare.Comparison:
        return compare.Comparison("x", compare.Error(1e-3, 2e-3), compare.Error(ours, 2e-3), unit)

    assert comparison(2e-3 + 0.9 * unit).ok
    assert not comparison(2e-3 + 1.1 * unit).ok
    assert not comparison(math.nan).ok
    peak = compare.Comparison("x", compare.Error(1e-3, 2e-3), compare.Error(1e-3, 4e-3 + 1.1 * unit), unit)
    assert not peak.ok  # a single wrong element hides in an RMS error


def test_error_norms() -> None:
    reference = torch.tensor([3.0, -4.0, 0.0, 0.0], dtype=torch.float64)
    result = torch.tensor([3.0, -4.0, 0.0, 1.0])
    found = compare.error(result, reference)
    assert (found.rms, found.max) == pytest.approx((0.2, 0.25))
    assert math.isnan(compare.error(torch.full((4,), math.nan), reference).max)
    with pytest.raises(ValueError, match=r"\(1, 4\).*\(4,\)"):
        compare.error(result[None], reference)


def test_vanishing_gradients_are_measured_against_the_others() -> None:
    """Noise where the exact gradient is zero passes up to a rounding of the typical gradient, and no further."""
    unit = compare.rounding_unit(torch.bfloat16)
    reference = {"grad weight": torch.ones(8, dtype=torch.float64), "grad key": torch.zeros(8, dtype=torch.float64)}

    def verdicts(noise: float) -> dict[str, bool]:
        ours = {"grad weight": torch.ones(8), "grad key": torch.full((8,), noise)}
        return {item.name: item.ok for item in compare.compare(reference, ours, reference, unit)}

    assert verdicts(0.9 * unit**2) == {"grad weight": True, "grad key": True}
    assert verdicts(1.1 * unit**2) == {"grad weight": True, "grad key": False}


def test_sides_must_hold_the_same_tensors() -> None:
    one, two = {"a": torch.ones(1)}, {"a": torch.ones(1), "grad b": torch.ones(1)}
    with pytest.raises(ValueError, match="grad b"):
        compare.compare(one, two, two, 0.0)


def test_tokens_may_differ_only_where_logits_are_close() -> None:
    exact = torch.zeros(1, 3, 4)
    exact[0, 1] = torch.tensor([0.0, 1.0, 1.01, 0.0])
    torch_tokens, our_tokens = torch.tensor([[0, 2, 0]]), torch.tensor([[0, 1, 3]])
    assert compare.disagreement(our_tokens, our_tokens, exact, exact, 0.0) == (True, "same tokens")
    ok, note = compare.disagreement(torch_tokens, our_tokens, exact, exact, 0.02)
    assert ok and "row 0 differs from step 1" in note
    assert not compare.disagreement(torch_tokens, our_tokens, exact, exact, 0.005)[0]
    assert not compare.disagreement(our_tokens, torch_tokens, exact, exact, 0.005)[0]


def test_tokens_of_sides_with_different_experts_are_judged_by_the_reference_of_each() -> None:
    """Other experts are another function, which may prefer another token by any amount."""
    exact_torch, exact_ours = torch.zeros(1, 1, 3), torch.zeros(1, 1, 3)
    exact_torch[0, 0, 1] = exact_ours[0, 0, 2] = 5.0

    def is_allowed(theirs: int, ours: int) -> bool:
        return compare.disagreement(torch.tensor([[theirs]]), torch.tensor([[ours]]), exact_torch, exact_ours, 1.0)[0]

    assert is_allowed(1, 2)
    assert not is_allowed(0, 1)  # torch's reference prefers token 1
    assert not is_allowed(2, 0)  # ours prefers token 2


def test_reference_has_the_same_values_and_ties() -> None:
    model = models.build("gpt2", "tiny", dtype=torch.float16, device="cpu")
    reference = models.reference_of(model, torch.float64)
    assert reference.lm_head.weight is reference.transformer.wte.weight
    assert reference.lm_head.weight.dtype == torch.float64
    assert torch.equal(reference.lm_head.weight, model.lm_head.weight.double())
    rotary = models.build("llama", "tiny", dtype=torch.float16, device="cpu").model.rotary_emb
    assert rotary.inv_freq.dtype == torch.float32


def test_models_and_inputs_are_reproducible() -> None:
    first, again = (models.build("bert", "tiny", dtype=torch.float32, device="cpu") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    a, b = (models.sample(first, "bert", batch=2, seq=5) for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_linear_shapes_of_llama_3_8b() -> None:
    shapes = {shape.name: (shape.n, shape.k, shape.count) for shape in models.linear_shapes("llama", "real")}
    assert shapes == {
        "q_proj": (4096, 4096, 1),
        "k_proj": (1024, 4096, 1),
        "v_proj": (1024, 4096, 1),
        "o_proj": (4096, 4096, 1),
        "gate_proj": (14336, 4096, 1),
        "up_proj": (14336, 4096, 1),
        "down_proj": (4096, 14336, 1),
        "lm_head": (128256, 4096, 1),
    }


def test_static_cache_matches_dynamic_and_refuses_to_overflow() -> None:
    model = models.build("llama", "tiny", dtype=torch.float32, device="cpu")
    inputs = models.sample(model, "llama", batch=2, seq=9)
    dynamic = scenarios.generate(model, inputs, new_tokens=4, cache=None)
    decoded = scenarios.decode(model, inputs, new_tokens=4, graph=False)
    assert torch.equal(dynamic["tokens"], decoded["tokens"])
    decoder = scenarios.Decoder(model, inputs["input_ids"], capacity=10, graph=False)
    decoder.step()
    with pytest.raises(ValueError, match="cache is full"):
        decoder.step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "t5"}, "model must be one of llama"),
        ({"scenario": "forward"}, "scenario must be one of prefill"),
        ({"size": "huge"}, "size must be one of tiny"),
        ({"dtype": "int8"}, "dtype must be one of fp16"),
    ],
)
def test_case_names_what_is_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Case("llama", "prefill"), **change)


def test_command_line_writes_results(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    options = ["--model", "llama", "--scenario", "prefill", "--dtype", "bf16", "--device", "cpu", "--size", "tiny"]
    outcome = CliRunner().invoke(main, [*options, "--seq", "8", "--report", "--json", str(path)])
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(path.read_text())
    assert {"torch", "cuda", "gpu", "commit", "csrc"} <= document["environment"].keys()
    (result,) = document["results"]
    assert result["ok"] and result["model"] == "llama" and result["reference"] == "float64"
    assert result["logits"]["ours"]["rms"] <= 2 * result["logits"]["torch"]["rms"] + 2.0**-8


def test_results_of_other_cases_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"

    def labels(*options: str) -> list[str]:
        outcome = CliRunner().invoke(main, [*options, "--device", "cpu", "--json", str(path)])
        assert outcome.exit_code == 0, outcome.output
        return [result["label"] for result in json.loads(path.read_text())["results"]]

    monkeypatch.setattr(check, "suite", lambda _: [Case("llama", "prefill"), Case("mixtral", "prefill")])
    one = ("--scenario", "prefill", "--size", "tiny", "--seq", "8", "--model")
    llama, mixtral, gpt2 = (f"{model} tiny prefill 1x8 bf16" for model in ("llama", "mixtral", "gpt2"))
    assert labels(*one, "llama") == [llama]
    assert labels(*one, "gpt2") == [llama, gpt2]
    assert labels(*one, "llama") == [gpt2, llama]
    assert labels("--only", "mixtral") == [gpt2, llama, mixtral.replace("1x8", "1x32")]
    assert labels("--suite", "experts") == [mixtral.replace("1x8", "1x32")]
    assert labels("--suite", "dense") == [llama.replace("1x8", "1x32")]


def test_command_line_refuses_a_scenario_the_model_lacks() -> None:
    outcome = CliRunner().invoke(main, ["--model", "bert", "--scenario", "generate", "--device", "cpu"])
    assert outcome.exit_code == 2
    assert "scenario must be one of forward, train for bert" in outcome.output


def test_demo_without_a_gpu() -> None:
    output = io.StringIO()
    assert demo.on_cpu(Console(file=output, width=240))
    assert "no CUDA device" not in output.getvalue()
    if hgemm_ops.variants():
        shown = output.getvalue()
        assert all(name in shown for name in ("q_proj", "down_proj", "lm_head", "c_attn", "(backward)", "sm90_wgmma"))


@pytest.mark.slow
def test_compiled_models_are_measured_side_by_side(monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> None:
    monkeypatch.setattr(compiled, "_ROUNDS", 3)
    monkeypatch.setattr(compiled, "_ROUND_MS", 1.0)
    case = compiled.Case("vit", 1, 17, size="tiny", dtype="bfloat16")
    result = compiled.measure(case, torch.device("cpu"))
    assert result["ms"].keys() == {"torch", "ours"} and result["speed"].keys() == {"ours"}
    assert result["compiled_later"] == 0


def test_the_training_loop_learns_and_tells_sides_apart(tmp_path: Path) -> None:
    tiny = train.Settings(steps=40, batch=4, tokens=32, layers=1, width=24, vocabulary=64, words=8, compiled=False)
    results = train.train(tiny, torch.device("cpu"))
    losses = results["losses"]
    assert losses.keys() == {"torch", "ours", "again"} and losses["torch"][-1] < losses["torch"][0] - 0.2
    assert len(results["ms"]["ours"]) == 4 and results["speed"]["ours"]["low"] > 0
    assert results["largest_loss_difference"]["ours from torch"] == 0  # torch serves both here
    figures = pytest.importorskip("benchmarks.figures")
    assert "again from torch" in figures.training_losses({"results": results}, tmp_path / "train").read_text()


def test_float32_models_are_split_on_a_gpu() -> None:
    split = [case for case in check.suite("cuda") if case.float32 == "split"]
    assert {case.model for case in split} == {"gpt2", "bert", "vit"} and {case.dtype for case in split} == {"fp32"}
    assert {case.scenario for case in split} == {"prefill", "forward", "train"}
    assert str(split[0]) == "gpt2 real prefill 1x1024 fp32 split"
    (result,) = check.run([check.Case("bert", "train", dtype="fp32", float32="split")], device="cpu")
    assert result.problems == [] and result.record()["float32"] == "split"
