"""Whole mixtures of experts, with the experts of transformers' default and with ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import DEVICE, ON_GPU
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("transformers")

import hgemm_ops
from benchmarks import tables
from hgemm_ops import _experts
from integration import check, models, scenarios
from integration.check import SCENARIOS, Case

FAMILIES = [name for name, family in models.FAMILIES.items() if family.has_experts]


@pytest.mark.parametrize("model", FAMILIES)
def test_a_config_takes_it_by_its_name(model: str) -> None:
    built = models.build(model, "tiny", dtype=torch.float32, device="cpu")
    assert built.config._experts_implementation == "grouped_mm"
    inputs = models.sample(built, model, batch=2, seq=7)
    expected = scenarios.prefill(built, inputs)["logits"]
    with models.experts_by(built, "hgemm"):
        assert built.config._experts_implementation == "hgemm"
        torch.testing.assert_close(scenarios.prefill(built, inputs)["logits"], expected)
    assert built.config._experts_implementation == "grouped_mm"


def run_one(case: Case, device: str = "cpu") -> check.Result:
    (result,) = check.run([case], device=device, timed=False)
    return result


@pytest.mark.parametrize("scenario", SCENARIOS["decoder"])
@pytest.mark.parametrize("model", FAMILIES)
def test_models(model: str, scenario: str) -> None:
    assert not run_one(Case(model, scenario, batch=2, seq=19, new_tokens=5, experts="hgemm")).problems


@pytest.mark.parametrize("scenario", ["prefill", "train", "decode"])
def test_a_fault_of_the_experts_is_seen(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in (1.1, float("nan")):
        monkeypatch.setattr(_experts, "grouped_mm", lambda *args, f=fault: f * hgemm_ops.grouped_mm(*args))
        result = run_one(Case("mixtral", scenario, batch=2, seq=16, new_tokens=3, experts="hgemm"))
        assert any(problem.startswith("logits") for problem in result.problems)


def test_the_reference_takes_the_experts_of_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers that decide by rounding alone: the sides choose different experts, and each is judged by its own."""

    def rounded(*args: Any) -> Tensor:
        return hgemm_ops.grouped_mm(*args) * (1 + 2**-7)

    monkeypatch.setattr(_experts, "grouped_mm", rounded)
    build = models.build

    def undecided(*args: Any, **options: Any) -> Any:
        model = build(*args, **options)
        for name, parameter in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                parameter.data.copy_(parameter.data[:1] + 1e-3 * parameter.data)
        return model

    monkeypatch.setattr(models, "build", undecided)
    apart = []
    same = check.routing.same
    monkeypatch.setattr(check.routing, "same", lambda *args: apart.append(same(*args)) or apart[-1])
    result = run_one(Case("qwen3_moe", "prefill", batch=2, seq=64, experts="hgemm"))
    assert apart == [False], "this test needs routers that choose differently"
    assert result.worst.ours.rms < 0.05


class _HostReads(TorchDispatchMode):
    """Lists the operators that a capture refuses on a GPU: scalars from the host, and values that the host reads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("lift_fresh", "_local_scalar_dense", "nonzero"):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model", FAMILIES)
def test_a_step_of_decoding_can_be_captured(model: str, attention: str) -> None:
    built = models.build(model, "tiny", dtype=torch.bfloat16, device="cpu", attention=attention)
    prompt = models.sample(built, model, batch=2, seq=9)["input_ids"]
    decoder = scenarios.Decoder(built, prompt, capacity=12, graph=False)
    decoder.step()
    with _HostReads() as reads:
        decoder.step()
    assert not reads.found


def test_a_graph_with_other_bits_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, skew = scenarios.decode, 0.0

    def decoded(model: Any, inputs: scenarios.Inputs, *, new_tokens: int, graph: bool) -> scenarios.Outputs:
        found = decode(model, inputs, new_tokens=new_tokens, graph=False)
        return {**found, "logits": found["logits"] + skew} if graph else found

    monkeypatch.setattr(scenarios, "decode", decoded)
    monkeypatch.setattr(check, "_captures", lambda case, inputs: True)
    case = Case("gpt_oss", "decode", batch=2, seq=8, new_tokens=3)
    assert not run_one(case).problems
    skew = 1.0
    assert run_one(case).problems == ["tokens: a CUDA graph gives other logits than eager steps"]


def test_another_number_of_layers() -> None:
    assert not run_one(Case("gpt_oss", "prefill", batch=2, seq=8, layers=3)).problems


def test_the_suite_has_each_family_with_both_experts_in_bfloat16() -> None:
    cases = [case for case in check.suite("cuda") if case.model in FAMILIES]
    assert {(case.model, case.scenario, case.experts) for case in cases} == {
        (model, scenario, experts)
        for model in FAMILIES
        for scenario in ("prefill", "decode", "train")
        for experts in (None, "hgemm")
    }
    assert {(case.size, case.dtype) for case in cases} == {("real", "bf16")}


def test_the_summary_has_a_row_for_each_timed_case() -> None:
    environment = {"date": "2025-01-31", "csrc": "0123456789"}
    timing = {"torch_ms": 2.0, "speedup": 1.25, "speedup_low": 1.2, "speedup_high": 1.3}
    results = [{"label": "a", "problems": [], "timing": timing}, {"label": "c", "problems": [], "timing": None}]
    results.append({"label": "b", "problems": ["tokens: others"], "timing": timing})
    said = tables.experts_line({"environment": environment, "results": results})
    assert (
        "| a | 2.000 | 1.250 | 1.200 to 1.300 | ok |" in said
        and "1.300 | tokens: others |" in said
        and "| c " not in said
    )


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", [None, "hgemm"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("size", ["tiny", "mid"])
@pytest.mark.parametrize("model", FAMILIES)
def test_gpu_models(model: str, size: str, dtype: str, implementation: str | None) -> None:
    cases = [
        Case(model, scenario, size, dtype, batch=2, seq=50, new_tokens=6, experts=implementation)
        for scenario in ("prefill", "decode", "train")
    ]
    results = list(check.run(cases, device=DEVICE, timed=False))
    assert {str(result.case): result.problems for result in results if result.problems} == {}


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["grouped_mm", "hgemm"])
@pytest.mark.parametrize("model", FAMILIES)
def test_a_step_of_decoding_in_a_graph(model: str, implementation: str) -> None:
    """Its bits are those of the eager step: nothing waits, and nothing depends on what lay in memory before."""
    built = models.build(model, "mid", dtype=torch.bfloat16, device=DEVICE)
    prompt = models.sample(built, model, batch=4, seq=20)["input_ids"]
    with models.experts_by(built, implementation), hgemm_ops.use_custom_gemm() as report:
        outs = [
            scenarios.follow(scenarios.Decoder(built, prompt, capacity=32, graph=graph), 10)
            for graph in (False, ON_GPU)
        ]
    assert torch.equal(outs[0]["tokens"], outs[1]["tokens"]) and torch.equal(outs[0]["logits"], outs[1]["logits"])
    if ON_GPU:
        assert any(row.op == "grouped" and row.variant != "torch" for row in report.rows)
