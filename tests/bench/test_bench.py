"""The benchmark protocol, suites, result files and what is generated from them; no GPU and no timing."""

from __future__ import annotations

import importlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from eager_body import EagerBody
from helpers import ROOT, needs_library
from rich.console import Console

import hgemm_ops
from benchmarks import gpu_tests, host_cost, result_page, tables
from hgemm_ops import _library, _native, _tables
from hgemm_ops._explain import Candidate
from hgemm_ops.bench import console, record, runner, statistics, timing, workload
from hgemm_ops.bench.suites import (
    ACTIVATIONS,
    ELEMENT_BYTES,
    LAYOUTS,
    SUITES,
    Case,
    parse_shapes,
    with_dtype,
)
from hgemm_ops.cli import bench, tune

# Suites


def test_suites_of_the_seeds_and_of_llms_hold_the_whole_grids() -> None:
    assert {name: len(cases) for name, cases in SUITES.items() if name.startswith(("seeds", "llm"))} == {
        "seeds-large": 27,
        "seeds-large-nt": 27,
        "seeds-small": 27,
        "seeds-sgemm": 8,
        "seeds-add": 50,
        "llm": 52,
    }
    assert len(SUITES["peers"]) == 4
    assert {case.layout for case in SUITES["llm"]} == {"NT"}
    assert {case.layout for case in SUITES["decode-nn"]} == {"NN"} and len(SUITES["decode-nn"]) == 12
    assert {case.dtype for case in SUITES["seeds-sgemm"]} == {"float32"}


def test_ragged_suite_covers_odd_sizes_vocabularies_and_row_strides() -> None:
    cases = SUITES["ragged"]
    shapes = {(case.m, case.n, case.k) for case in cases}
    assert len(shapes) >= 20
    assert {50257, 32001} <= {case.n for case in cases}
    sizes = {size for shape in shapes for size in shape}
    assert {511, 4095, 4096, 4097, 8193} <= sizes
    assert any({4095, 4096, 4097} == set(shape) for shape in shapes)
    assert {case.align for case in cases} == {2, 4, 8, 16}
    assert {case.align for case in cases if case.padding} == {2, 4, 8, 16}


def test_layout_bmm_and_fused_suites_are_complete() -> None:
    layouts = Counter(case.layout for case in SUITES["layouts"])
    assert set(layouts) == set(LAYOUTS) and len(set(layouts.values())) == 1
    assert (8192, 8192, 8192) in {(case.m, case.n, case.k) for case in SUITES["layouts"]}
    assert len(SUITES["bmm"]) >= 14 and all(case.batch > 1 for case in SUITES["bmm"])
    assert {case.activation for case in SUITES["fused"]} == set(ACTIVATIONS)
    assert all(case.op == "linear" and case.bias for case in SUITES["fused"])


@pytest.mark.parametrize("suite", SUITES)
def test_no_case_of_a_suite_comes_twice_and_labels_tell_them_apart(suite: str) -> None:
    cases = SUITES[suite]
    assert len(set(cases)) == len({case.label for case in cases}) == len(cases)


def test_decode_cases_know_their_weights() -> None:
    decode = [case for name, cases in SUITES.items() if name.startswith("decode") for case in cases]
    assert all(case.weight_bytes > 0.9 * case.bytes for case in decode)
    assert {case.weight_bytes for case in SUITES["seeds-large"] + SUITES["bmm"] + SUITES["seeds-add"]} == {0}
    assert Case(64, 24, 16, layout="NT").weight_bytes == 24 * 16 * 2 and Case(65, 24, 16).weight_bytes == 0
    assert Case(1, 24, 16, padding=8).weight_bytes == 0
    chain = Case(2, 24, 16, layout="NT", op="chain", depth=2)
    assert chain.layers == ((24, 16), (16, 16), (48, 16), (16, 24)) * 2
    assert chain.weight_bytes == 2 * 2 * (24 * 16 + 16 * 16 + 48 * 16 + 16 * 24)
    assert chain.flops == 2 * chain.weight_bytes and chain.align == 16


def test_with_dtype_merges_cases_that_become_equal() -> None:
    assert {case.dtype for case in with_dtype(SUITES["llm"], "bfloat16")} == {"bfloat16"}
    assert len(with_dtype(SUITES["seeds-add"], "float16")) == len(SUITES["seeds-add"]) // 2


def test_parse_shapes() -> None:
    assert parse_shapes("1x2x3, 4X5x6x7", dtype="bfloat16", layouts=("NN", "TT")) == (
        Case(1, 2, 3, dtype="bfloat16"),
        Case(1, 2, 3, dtype="bfloat16", layout="TT"),
        Case(5, 6, 7, batch=4, dtype="bfloat16"),
        Case(5, 6, 7, batch=4, dtype="bfloat16", layout="TT"),
    )


@pytest.mark.parametrize("text", ["", "1x2", "1x2x3x4x5", "axbxc", "1x2x3,", "0x1x1"])
def test_parse_shapes_rejects(text: str) -> None:
    with pytest.raises(ValueError, match="got"):
        parse_shapes(text, dtype="float16", layouts=("NN",))


@pytest.mark.parametrize(
    "fields",
    [
        {"m": 0},
        {"layout": "NX"},
        {"dtype": "int8"},
        {"activation": "tanh", "op": "linear", "layout": "NT"},
        {"op": "conv"},
        {"bias": True},
        {"op": "linear"},
        {"op": "add"},
        {"padding": -1},
        {"depth": 2},
        {"op": "chain"},
        {"op": "chain", "layout": "NT", "padding": 8},
    ],
)
def test_an_impossible_case_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="got Case"):
        Case(**{"m": 4, "n": 5, "k": 6, **fields})


def _small(case: Case) -> Case:
    """The case with every size cut down, its oddness kept."""

    def cut(size: int) -> int:
        return size if size < 24 else 16 + size % 8

    sizes = {"m": cut(case.m), "n": cut(case.n), "k": cut(case.k), "batch": min(case.batch, 3)}
    return Case(**{**{name: getattr(case, name) for name in case.__dataclass_fields__}, **sizes})


_SMALL_CASES = sorted({_small(case) for cases in SUITES.values() for case in cases}, key=repr)


@pytest.mark.parametrize(
    "case",
    [case for case in _SMALL_CASES if case.op != "chain"],
    ids=lambda case: f"{case.dtype}-{case.label}".replace(" ", "-"),
)
def test_operands_have_the_shape_layout_alignment_and_size_the_case_says(case: Case) -> None:
    x = workload.make_operands(case, torch.Generator().manual_seed(0))
    batch = (case.batch,) if case.batch > 1 else ()
    if case.op == "add":
        assert x.a.shape == x.b.shape == (case.m, case.n)
    else:
        assert x.a.shape == (*batch, case.m, case.k) and x.b.shape == (*batch, case.k, case.n)
    for tensor, order in zip((x.a, x.b), case.layout, strict=True):
        unit, outer = (-1, -2) if order == "N" else (-2, -1)
        assert tensor.stride(unit) == 1 and tensor.stride(outer) == tensor.shape[unit] + case.padding
    out = workload.torch_call(case)(x)
    assert out.is_contiguous() and out.dtype == getattr(torch, case.dtype)
    tensors = [t for t in (x.a, x.b, x.bias, out) if t is not None]
    assert sum(t.numel() * t.element_size() for t in tensors) == case.bytes

    strides = [
        stride * t.element_size()
        for t in (x.a, x.b, out)
        for stride, size in zip(t.stride(), t.shape, strict=True)
        if size > 1 and stride != 1
    ]
    assert case.align == max(width for width in (2, 4, 8, 16) if all(stride % width == 0 for stride in strides))


@pytest.mark.parametrize("case", _SMALL_CASES, ids=lambda case: f"{case.dtype}-{case.label}".replace(" ", "-"))
def test_torch_passes_its_own_verification_and_a_wrong_element_does_not(case: Case) -> None:
    x = workload.make_operands(case, torch.Generator().manual_seed(1), "uniform")
    assert max(x.a.abs().max(), x.b.abs().max()) <= 1
    out, reference = workload.torch_call(case)(x), workload.reference(case, x)
    own = timing.worst([timing.errors(out, reference)])
    limits = runner.error_limits(case, own, accumulates_in_half=False)
    assert own[0] <= limits[0] and own[1] <= limits[1]
    out.view(-1)[-1] += out.abs().max() + 1
    off = timing.worst([timing.errors(out, reference)])
    assert off[1] > limits[1]
    out.view(-1)[0] = float("nan")
    off = timing.worst([torch.tensor(own), timing.errors(out, reference), torch.tensor(own)])
    assert not off[0] <= limits[0] and not off[1] <= limits[1]


def test_half_accumulation_may_err_more_but_not_drop_a_tenth_of_the_sum() -> None:
    case = Case(64, 64, 512)
    strict = runner.error_limits(case, (3e-4, 1e-3), accumulates_in_half=False)
    loose = runner.error_limits(case, (3e-4, 1e-3), accumulates_in_half=True)
    assert strict[0] < loose[0] < 0.1**0.5 and strict[1] < loose[1]


def test_a_walk_of_half_roundings_stays_within_its_bound_and_a_lost_term_does_not() -> None:
    """The roundings are simulated: one sum after the other, all in half, as the kernels do."""
    generator = torch.Generator().manual_seed(3)
    k = 1024
    a, b = (torch.randn(shape, generator=generator).half() for shape in ((256, k), (k, 256)))
    sums = torch.zeros(256, 256, dtype=torch.float16)
    for i in range(k):
        sums = (sums.double() + a[:, i : i + 1].double() * b[i : i + 1].double()).half()
    exact = a.double() @ b.double()
    bound = runner.half_rounding(a, b)
    error = (sums.double() - exact).abs()
    assert (error / bound).max() <= 1
    assert (error / bound).max() >= 0.3, "the bound is too wide to say anything"
    lost = sums.double() - a[:, :1].double() @ b[:1].double()  # as if the first term had been dropped
    assert ((lost - exact).abs() > bound).double().mean() > 0.05


def test_hgemm_call_agrees_with_torch_on_the_cpu() -> None:
    for case in (
        Case(5, 6, 7, layout="TN"),
        Case(5, 6, 7, layout="NT", op="linear", bias=True, activation="gelu_tanh"),
    ):
        x = workload.make_operands(case, torch.Generator().manual_seed(0))
        torch.testing.assert_close(workload.hgemm_call(case, None)(x), workload.torch_call(case)(x))
    with pytest.raises(ValueError, match="name a variant"):
        workload.hgemm_call(Case(4, 4, 1, op="add"), None)


def test_unknown_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="got 'zeros'"):
        workload.make_operands(Case(4, 4, 4), torch.Generator(), "zeros")


# Protocol


def test_rotation_goes_past_the_l2_with_at_least_two_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for l2_mib, expected in ((60, 60 * 10 << 20), (40, 600_000_000), (126, 1260 << 20)):
        properties = SimpleNamespace(L2_cache_size=l2_mib << 20)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, properties=properties: properties)
        assert timing.rotation_bytes(torch.device("cuda", 0)) == expected
    assert timing.set_count(1_000_000, 600_000_000) == 600
    assert timing.set_count(999_999, 600_000_000) == 601
    assert timing.set_count(5_000_000_000, 600_000_000) == 2
    for case in (case for cases in SUITES.values() for case in cases):
        count = timing.set_count(case.bytes, 600_000_000)
        assert count >= 2 and count * case.bytes >= 600_000_000


def test_every_round_times_every_contender_once_in_a_random_order() -> None:
    names = ["a", "b", "c"]
    orders = list(timing.schedule(names, 60, seed=0))
    assert all(sorted(order) == names for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    assert orders == list(timing.schedule(names, 60, seed=0)) != list(timing.schedule(names, 60, seed=1))


def test_interleave_reads_no_clock_before_the_last_round() -> None:
    events: list[str] = []

    def measure(name: str) -> Any:
        events.append(f"run {name}")
        count = len(events)

        def read() -> float:
            events.append("read")
            return float(count)

        return read

    times = timing.interleave(["a", "b"], 5, 0, measure)
    assert events[:10].count("run a") == events[:10].count("run b") == 5 and events[10:] == ["read"] * 10
    assert sorted(times["a"] + times["b"]) == list(range(1, 11))
    assert times["a"] == sorted(times["a"])  # by round


def test_paired_ratio_sees_through_drift_that_medians_do_not() -> None:
    noise = random.Random(0)
    # The clock slows by a factor of 2 halfway; torch is 5 % slower than ours within each round.
    drift = [1.0] * 20 + [2.0] * 21
    ours = [100 * d * noise.uniform(0.995, 1.005) for d in drift]
    theirs = [105 * d * noise.uniform(0.995, 1.005) for d in drift]
    ratio = statistics.paired_ratio(theirs, ours)
    assert ratio.value == pytest.approx(1.05, abs=0.004)
    assert 1.04 < ratio.low <= ratio.value <= ratio.high < 1.06
    unpaired = statistics.paired_ratio(theirs, ours[::-1])
    assert unpaired.low < 0.6 and unpaired.high > 2


def test_the_interval_covers_the_median_about_as_often_as_it_says() -> None:
    source = random.Random(7)
    intervals = [statistics.median_interval([source.gauss(1, 0.1) for _ in range(40)]) for _ in range(60)]
    covered = sum(i.low <= 1 <= i.high for i in intervals)
    assert 52 <= covered <= 59
    assert statistics.median_interval([3.0] * 9) == statistics.Interval(3.0, 3.0, 3.0)


def test_statistics_refuse_what_does_not_pair() -> None:
    with pytest.raises(ValueError, match="got 2 and 1"):
        statistics.paired_ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="not be empty"):
        statistics.median_interval([])
    assert statistics.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)


# Running a case, with CUDA graphs replaced by calls


class _EagerBody(EagerBody):
    def start(self) -> Any:
        self.replay()
        return lambda: 2.0 if getattr(self.call, "fast", False) else 4.0


def _key(case: Case) -> dict[str, Any]:
    """The table key of a case whose problem kernels see as it is."""
    return {name: getattr(case, name) for name in ("dtype", "layout", "align", "batch", "m", "n", "k")}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels named for what they do, on the CPU."""
    monkeypatch.setattr(timing, "Body", _EagerBody)
    monkeypatch.setattr(tune, "table_key", _key)
    monkeypatch.setattr(timing, "_MIN_ROTATION", 50_000)

    def unwritten(x: workload.Operands) -> torch.Tensor:
        return torch.matmul(x.a, x.b)[:-1]

    def inaccurate(x: workload.Operands) -> torch.Tensor:
        return torch.matmul(x.a, x.b) * 1.01

    def fast(x: workload.Operands) -> torch.Tensor:
        return torch.matmul(x.a, x.b)

    fast.fast = True  # type: ignore[attr-defined]
    kernels = {"fast": fast, "unwritten": unwritten, "inaccurate": inaccurate, None: fast}
    monkeypatch.setattr(workload, "hgemm_call", lambda case, variant, numerics=None: kernels[variant])
    predicted = {"unwritten": 3.0, "inaccurate": 2.0, "fast": 1.0}
    candidates = [Candidate(name, True, "", predicted[name]) for name in kernels if name]
    candidates.append(Candidate("picky", False, "needs k % 64 == 0"))
    candidates.append(Candidate("step", True, "", 0.5, family="ladder", forced_only=True))
    candidates.append(Candidate("torch", True, "", 4.0, family="torch"))
    explanation = SimpleNamespace(chosen="fast", source="model", candidates=candidates)
    monkeypatch.setattr(hgemm_ops, "explain", lambda *_, **__: explanation)
    monkeypatch.setattr(hgemm_ops, "variants", lambda: [SimpleNamespace(name=c.name, numerics="") for c in candidates])


def test_a_soak_multiplies_until_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[torch.Tensor] = []
    multiply = torch.mm

    def counted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        products.append(multiply(x, y))
        return products[-1]

    monkeypatch.setattr(torch, "mm", counted)
    times = iter((10.0, 10.0, 11.0, 12.9, 13.0))
    timing.soak(3, torch.device("cpu"), size=8, clock=lambda: next(times))
    assert len(products) == 3 * 20 and products[0].shape == (8, 8) and next(times, None) is None
    timing.soak(0, torch.device("cpu"), size=8, clock=lambda: next(times))
    assert len(products) == 3 * 20


def test_a_case_warms_up_by_count_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    replays: list[str] = []
    bodies: Any = {name: SimpleNamespace(replay=partial(replays.append, name)) for name in ("torch", "ours")}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    timing.warm_up(bodies, 0.0, clock=lambda: 7.0)
    assert replays == ["torch", "ours"] * timing.WARMUP_REPLAYS
    replays.clear()
    times = iter((0.0, 0.1, 0.4, 0.6))  # the first one sets the end, those of the first replays are not looked at
    timing.warm_up(bodies, 0.5, clock=lambda: next(times))
    assert replays == ["torch", "ours"] * (timing.WARMUP_REPLAYS + 2)


@pytest.mark.usefixtures("eager")
def test_wrong_kernels_are_found_and_not_timed() -> None:
    options = runner.Options(variants=("fast", "unwritten", "inaccurate", "picky"), rounds=5)
    row = runner.run_case(Case(40, 24, 33, layout="NT"), options, torch.device("cpu"))
    assert row.sets == 9  # of 6144 bytes, past 50000
    assert (row.served_by, row.source) == ("fast", "model")
    assert row.wrong.keys() == {"unwritten", "inaccurate"} and "nan" in row.wrong["unwritten"]
    assert row.results["picky"] == runner.Result(refused="needs k % 64 == 0")
    for name in ("hgemm", "fast"):
        assert row.results[name].us == 2.0 and row.results[name].ratio == statistics.Interval(2.0, 2.0, 2.0)
    assert row.results["torch"].us == 4.0 and row.results["torch"].ratio is None
    assert row.results["fast"].tflops == pytest.approx(2 * 40 * 24 * 33 / 2e-6 * 1e-12)
    assert row.results["fast"].gbps == pytest.approx(6144 / 2e-6 * 1e-9)
    assert row.results["fast"].error == row.results["torch"].error
    json.dumps(row.to_json(), allow_nan=False)

    screen = Console(width=250, record=True, file=io.StringIO())
    screen.print(console.comparison([row], "title"), console.summary([row]))
    text = screen.export_text()
    assert "hgemm: fast" in text and "2.000" in text and "refused: needs k % 64 == 0" in text
    assert "1 cases: 2.000x torch (geometric mean), 1 run on our kernels, 0 slower" in text
    with pytest.raises(click.ClickException, match="unwritten"):
        console.fail_if_wrong([row])


@pytest.mark.usefixtures("eager")
def test_peak_memory_stands_beside_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([2 << 20, 3 << 20])  # torch's, then ours
    monkeypatch.setattr(timing, "peak_bytes", lambda call, buffers, device: next(peaks))
    row = runner.run_case(Case(40, 24, 33), runner.Options(rounds=5), torch.device("cpu"))
    results = row.to_json()["results"]
    assert (results["torch"]["peak_bytes"], results["hgemm"]["peak_bytes"]) == (2 << 20, 3 << 20)
    screen = Console(width=250, record=True, file=io.StringIO())
    screen.print(console.comparison([row], "title"))
    lines = screen.export_text().splitlines()
    heading, line = (next(x for x in lines if word in x) for word in ("peak", "hgemm:"))
    assert [cell.strip() for cell in heading.split("┃")[-3:-1]] == ["peak MiB", "torch's"]
    assert [cell.strip() for cell in line.split("│")[-3:-1]] == ["3.0", "2.0"]


@pytest.mark.gpu
def test_peak_memory_is_the_result_and_what_lies_beside_it() -> None:
    x = torch.ones(1 << 20, device="cuda")
    device = torch.device("cuda", torch.cuda.current_device())
    assert timing.peak_bytes(lambda x: x + 1, x, device) == x.nbytes
    assert timing.peak_bytes(lambda x: (x + 1) * 2, x, device) == 2 * x.nbytes
    assert timing.peak_bytes(lambda x: x, x, torch.device("cpu")) is None


@pytest.mark.usefixtures("eager")
def test_a_chain_is_dependent_layers_and_is_timed_beside_reading_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "stream_call", lambda case, device: lambda x: x.a.new_zeros(1, 1))
    case = Case(3, 32, 16, layout="NT", op="chain", depth=2)
    options = runner.Options(variants=("fast", "all"), peers=("cublaslt",), rounds=5)
    row = runner.run_case(case, options, torch.device("cpu"))
    assert (row.served_by, row.source) == ("fast", "model") and not row.wrong
    timed = {runner.TORCH, runner.DISPATCHED}
    assert timed | {runner.STREAM, "fast", "peer:cublaslt"} == row.results.keys()
    assert row.results["fast"].refused and row.results["peer:cublaslt"].refused
    stream = row.results[runner.STREAM]
    assert stream.us == 4.0 and stream.gbps == pytest.approx(case.weight_bytes / 4e-6 * 1e-9) and stream.ratio is None
    assert all(row.results[name].of_stream == statistics.Interval(1.0, 1.0, 1.0) for name in timed)

    screen = Console(width=250, record=True, file=io.StringIO())
    screen.print(console.comparison([row], "title"), console.summary([row]))
    text = screen.export_text()
    assert "of stream" in text and "1.000 of the speed of reading the weights in 1" in text
    page = "\n".join(result_page.suite_section("decode-chain", _document([row], "decode-chain"), Path()))
    assert "| of stream |" in page and "| 1.000 |" in page


@pytest.mark.usefixtures("eager")
def test_other_numerics_are_timed_beside_fast_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    call = workload.hgemm_call

    def hgemm_call(case: Case, variant: str | None, numerics: str | None = None) -> Any:
        asked.append(numerics)
        return call(case, variant)

    monkeypatch.setattr(workload, "hgemm_call", hgemm_call)
    monkeypatch.setattr(runner._variants, "standing_numerics", lambda: "batch_invariant")
    row = runner.run_case(Case(40, 24, 33), runner.Options(rounds=5), torch.device("cpu"))
    assert asked == [None, "fast"] and row.results.keys() == {"torch", "hgemm", runner.FAST}
    assert row.results[runner.FAST].ours == statistics.Interval(1.0, 1.0, 1.0)
    document = _document([row], "llm-batch_invariant")
    document["protocol"]["numerics"] = "batch_invariant"
    page = "\n".join(result_page.suite_section("llm-batch_invariant", document, Path()))
    assert "| batch_invariant over fast |" in page and "| - | 1.000 |" in page
    lines = tables.promise_lines({"llm-batch_invariant": document})
    assert lines[0] == "## Batch-invariant results" and lines[2].startswith('Speed with `numerics="batch_invariant"`')
    assert "| 1 to 64 | 1 | 2.000 | 2.000 | 1.000 | 1.000 | - | - |" in lines
    assert "| from 256 | 0 | - | - | - | - | - | - |" in lines
    assert tables.promise_lines({"llm": _document([row], "llm") | {"protocol": {}}}) == []


@pytest.mark.usefixtures("eager")
def test_all_takes_eligible_kernels_only_and_fused_torch_stands_beside() -> None:
    options = runner.Options(variants=("all",), rounds=5, dispatched=False)
    row = runner.run_case(Case(40, 24, 33), options, torch.device("cpu"))
    assert row.results.keys() == {"torch", "fast", "unwritten", "inaccurate"} and row.served_by is None
    assert console.summary([row]) == ""
    options = runner.Options(variants=("all",), candidates=2, rounds=5, dispatched=False)
    row = runner.run_case(Case(40, 24, 33), options, torch.device("cpu"))
    assert row.results.keys() == {"torch", "fast", "inaccurate"}
    hgemm_ops.explain().chosen = "unwritten"  # by a table, say, against the model
    row = runner.run_case(Case(40, 24, 33), options, torch.device("cpu"))
    assert row.results.keys() == {"torch", "fast", "inaccurate", "unwritten"}
    fused = Case(40, 24, 33, layout="NT", op="linear", bias=True, activation="relu")
    row = runner.run_case(fused, runner.Options(rounds=5, dispatched=False), torch.device("cpu"))
    assert row.results.keys() == {"torch", "torch._addmm_activation"} and not row.wrong


@pytest.mark.usefixtures("eager")
def test_tune_merges_into_the_table_of_this_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = _tables.Device("NVIDIA T1", 90, 132, 50 << 20)
    monkeypatch.setattr(_tables, "device_of", lambda ordinal: device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(console, "require_kernels", lambda command: None)
    monkeypatch.setattr(
        runner, "run", lambda cases, options: (runner.run_case(c, options, torch.device("cpu")) for c in cases)
    )
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path))

    def run(*arguments: str) -> _tables.Table:
        result = CliRunner().invoke(tune.tune, ["--variant", "fast", "--rounds", "5", *arguments])
        assert result.exit_code == 0, result.output
        (path,) = tmp_path.glob("tables/*.json")
        return _tables.Table.read(path)

    table = run("--shapes", "40x24x33,8x8x8")
    assert [entry.shape[3:] for entry in table.entries] == [(1, 40, 24, 33), (1, 8, 8, 8)]
    assert table.entries[0].us == {"torch": 4.0, "fast": 2.0} and table.entries[0].layout == "NT"
    assert len(table.measured["csrc"]) == 40
    table = run("--shapes", "8x8x8,3x16x16x16", "--layout", "NN", "--layout", "NT")
    assert [entry.shape[1:2] + entry.shape[3:] for entry in table.entries] == [
        ("NT", 1, 40, 24, 33),
        ("NT", 1, 8, 8, 8),
        ("NN", 1, 8, 8, 8),
        ("NN", 3, 16, 16, 16),
        ("NT", 3, 16, 16, 16),
    ]
    table.entries[0].us.update(torch=8.0, fast=1.0, other=4.0)
    (path,) = tmp_path.glob("tables/*.json")
    _tables.write(table, path)
    assert run("--shapes", "40x24x33", "--blend").entries[0].us == {"torch": 4.0, "fast": 1.0, "other": 2.0}
    assert run("--shapes", "40x24x33").entries[0].us == {"torch": 4.0, "fast": 2.0}
    failed = CliRunner().invoke(tune.tune, ["--shapes", "40x24x33", "--rounds", "5"])
    assert failed.exit_code == 1 and "wrong results" in failed.output
    device = _tables.Device("NVIDIA T2", 90, 114, 50 << 20)
    (path,) = tmp_path.glob("tables/*.json")
    other = CliRunner().invoke(tune.tune, ["--shapes", "8x8x8", "--output", str(path)])
    assert other.exit_code == 1 and "table of another GPU" in other.output
    assert CliRunner().invoke(tune.tune, ["--shapes", "8x8x8", "--variant", "nobody"]).exit_code != 0


@pytest.mark.usefixtures("eager")
def test_no_more_sets_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "rotation_bytes", lambda device: 20_000)
    case, options = Case(40, 24, 33), runner.Options(variants=("fast",), dispatched=False, rounds=5)
    assert runner.run_case(case, options, torch.device("cpu")).sets > 3
    assert runner.run_case(case, replace(options, most_sets=3), torch.device("cpu")).sets == 3


# Sources and result files


def _git(directory: Path, *arguments: str) -> str:
    identity = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-c", "core.autocrlf=false", *arguments]
    return subprocess.run(
        command, cwd=directory, env={**os.environ, **identity}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_tree_id_is_git_s(tmp_path: Path) -> None:
    sources = tmp_path / "csrc"
    (sources / "core" / "deep").mkdir(parents=True)
    (sources / "empty").mkdir()
    (sources / "only_ignored").mkdir()
    (sources / "__pycache__").mkdir()
    # git sorts the directory "core" as "core/", between these two files.
    for name in ("core-b.h", "core.h", "core0.h", "core/deep/x.cuh", "core/ünïcode.h", "core/zero"):
        (sources / name).write_bytes(name.encode() * 3 + b"\r\n")
    (sources / "core/zero").write_bytes(b"")
    (sources / "run.sh").write_text("#!/bin/sh\n")
    (sources / "run.sh").chmod(0o755)
    (sources / "link.h").symlink_to("core/deep/x.cuh")
    for ignored in ("_C.so", "core/a.o", "only_ignored/b.so", "__pycache__/c.py"):
        (sources / ignored).write_text("built")
    (tmp_path / ".gitignore").write_text("# built\n__pycache__/\n*.so\n\n*.o\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", "-A")
    expected = _git(tmp_path, "rev-parse", _git(tmp_path, "write-tree") + ":csrc")

    rules = record.ignore_rules(tmp_path / ".gitignore")
    assert record.git_tree_id(sources, rules) == expected
    (sources / "core.h").write_text("edited")
    assert record.git_tree_id(sources, rules) != expected
    assert record.git_tree_id(sources / "empty", rules) is None


def test_tree_id_of_csrc_is_git_s() -> None:
    if subprocess.run(["git", "rev-parse", "HEAD:csrc"], cwd=ROOT, capture_output=True).returncode != 0:
        pytest.skip("csrc is not in a git commit here")
    if _git(ROOT, "status", "--porcelain", "--", "csrc"):
        pytest.skip("csrc has uncommitted changes")
    assert record.source()["csrc"] == _git(ROOT, "rev-parse", "HEAD:csrc")


def test_what_changed_since_a_tree_is_git_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "repository", lambda: tmp_path)
    assert record.changed_files("0" * 40, "1" * 40) is None  # no git
    sources = tmp_path / "csrc"
    sources.mkdir()
    _git(tmp_path, "init", "-q")
    trees = []
    for text in ("first", "second"):
        for name in ("kept.h", "changed.h"):
            (sources / name).write_text(name if name == "kept.h" else text)
        _git(tmp_path, "add", "-A")
        trees.append(_git(tmp_path, "rev-parse", _git(tmp_path, "write-tree") + ":csrc"))
    assert record.changed_files(trees[0], trees[1]) == ["changed.h"]
    assert record.changed_files(trees[0], trees[0]) == []
    assert record.changed_files(trees[0], "2" * 40) is None
    assert record.changed_files(None, trees[0]) is None


def test_stale_results_say_since_what(tmp_path: Path) -> None:
    for name, csrc in (("old", "a" * 40), ("new", "b" * 40)):
        path = tmp_path / "gpu" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"schema": record.SCHEMA, "environment": {"csrc": csrc}}))
    assert tables.stale(tmp_path, "b" * 40) == {tmp_path / "gpu" / "old.json": "a" * 40}
    assert tables.what_changed(None) == tables.what_changed([]) == ""
    assert tables.what_changed(["a.h", "b.h"]) == ": a.h, b.h changed since"
    assert (
        tables.what_changed([f"{i}.h" for i in range(9)]) == ": 0.h, 1.h, 2.h, 3.h, 4.h, 5.h and 3 more changed since"
    )


@pytest.mark.parametrize("pattern", ["!keep.so", "a/b", "/build", r"\#x"])
def test_gitignore_beyond_names_is_refused(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / ".gitignore"
    path.write_text(f"*.o\n{pattern}\n")
    with pytest.raises(ValueError, match="names and"):
        record.ignore_rules(path)


def test_environment_says_what_was_measured() -> None:
    facts = record.environment()
    assert {"gpu", "torch", "cuda", "hgemm_ops", "commit", "csrc", "date"} <= facts.keys()
    assert facts["torch"] == torch.__version__
    assert len(facts["csrc"]) == 40
    assert (facts["gpu"] is None) == (not torch.cuda.is_available())


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, False),
        ({"cuda.matmul.allow_tf32": True}, True),
        ({"cuda.matmul.fp32_precision": "tf32"}, True),
        ({"cuda.matmul.fp32_precision": "ieee"}, False),
        ({"fp32_precision": "tf32"}, True),
        ({"fp32_precision": "tf32", "cuda.matmul.fp32_precision": "ieee"}, False),
    ],
)
def test_tf32_is_read_whichever_setting_of_torch_allows_it(settings: dict[str, Any], allowed: bool) -> None:
    matmul = torch.backends.cuda.matmul
    # torch.testing forbids tests to set these flags: another test of this process may have imported it.
    with torch.backends.__allow_nonbracketed_mutation():
        before = torch.backends.fp32_precision, matmul.fp32_precision
        torch.backends.fp32_precision = matmul.fp32_precision = "none"
        try:
            for name, value in settings.items():
                owner, _, setting = name.rpartition(".")
                setattr(matmul if owner else torch.backends, setting, value)
            assert record.allows_tf32() is allowed
        finally:
            if "cuda.matmul.allow_tf32" in settings:
                matmul.allow_tf32 = False
            torch.backends.fp32_precision, matmul.fp32_precision = before
        assert not record.allows_tf32() and not matmul.allow_tf32, "as before"


def test_commit_comes_from_the_environment_where_there_is_no_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.h").write_text("x")
    monkeypatch.setattr(record, "repository", lambda: tmp_path)
    monkeypatch.setenv("HGEMM_OPS_COMMIT", "abc")
    assert record.source()["commit"] == "abc"
    monkeypatch.setattr(record, "repository", lambda: None)
    assert record.source() == {"commit": None, "dirty": None, "csrc": None}


def test_saved_results_load_again_and_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    document = record.document(rows=[1, 2])
    record.save(document, path)
    assert record.load(path) == document
    path.write_text(json.dumps({**document, "schema": 99}))
    with pytest.raises(ValueError, match="got 99"):
        record.load(path)
    with pytest.raises(ValueError, match="JSON"):
        record.save({"us": float("nan")}, path)


def test_gpu_slug() -> None:
    assert record.gpu_slug("NVIDIA H200") == "h200"
    assert record.gpu_slug("NVIDIA GeForce RTX 4090") == "geforce-rtx-4090"


# Results, tables, plots


def _row(
    case: Case, ours: float, *, served_by: str = "sm80_mma_a", forced: dict[str, float] | None = None
) -> runner.Row:
    def result(speed: float | None) -> runner.Result:
        us = 100 / (speed or 1)
        ratio = statistics.Interval(speed, speed * 0.99, speed * 1.01) if speed else None
        return runner.Result(us, ratio, case.flops / us * 1e-6, case.bytes / us * 1e-3, 2e-4, 1e-3)

    speeds = {runner.DISPATCHED: ours, **(forced or {})}
    results = {runner.TORCH: result(None), **{name: result(speed) for name, speed in speeds.items()}}
    return runner.Row(case, 7, served_by, "model", results)


def _document(rows: list[runner.Row], name: str = "llm") -> dict[str, Any]:
    environment = {
        "gpu": "NVIDIA T1",
        "driver": "1.2",
        "cuda": "13.0",
        "torch": "2.0",
        "date": "2001-02-03T04:05:06+00:00",
        "csrc": "0123456789" * 4,
    }
    return {
        "schema": record.SCHEMA,
        "environment": environment,
        "suite": name,
        "protocol": {"rounds": 9, "inputs": "normal"},
        "copy_gbps": 1000.0,
        "rows": [row.to_json() for row in rows],
    }


@pytest.fixture
def document() -> dict[str, Any]:
    cases = SUITES["llm"]
    return _document(
        [
            _row(cases[0], 1.25),
            _row(cases[1], 0.8, forced={"sm80_mma_b": 0.75, "sm80_mma_c": 0.79}),
            _row(cases[2], 1.0, served_by="torch"),
        ]
    )


def test_a_row_is_json_without_empty_fields(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(document, allow_nan=False)) == json.loads(json.dumps(document))
    row = document["rows"][0]
    assert row["case"]["m"] == 1 and row["label"] == "NT 1x6144x4096" and row["sets"] == 7
    assert "ratio" not in row["results"]["torch"] and "refused" not in row["results"]["hgemm"]
    assert row["results"]["hgemm"]["ratio"] == {"value": 1.25, "low": 1.25 * 0.99, "high": 1.25 * 1.01}


@pytest.fixture
def results(tmp_path: Path, document: dict[str, Any]) -> Path:
    directory = tmp_path / "results" / "t1"
    record.save(document, directory / "llm.json")
    nothing_of_ours = _document([runner.Row(SUITES["seeds-add"][0], 2, None, None, {})], "seeds-add")
    nothing_of_ours["rows"][0]["results"] = {"torch": {"us": 1.3, "tflops": 0.1, "gbps": 600.0, "error": 0.0}}
    record.save(nothing_of_ours, directory / "seeds-add.json")
    call = {
        "statement": "torch.mm(a, b)",
        "gradients": "off",
        "inside": host_cost.ROUTED,
        "baseline": "torch.mm(a, b)",
    }
    times = {"ns": {"value": 6400.0}, "over_baseline_ns": {"value": -2900.0}}
    products = {"a, b": {"shape": [16, 16, 16], "by": "torch"}}
    host = {**document, "products": products, "calls": [{**call, **times}]}

    def ns(value: float) -> dict[str, float]:
        return {"value": value, "low": value - 10, "high": value + 10}

    host["context_ns"] = ns(3600.0)
    host["context_again_ns"] = ns(2500.0)
    host["context_after_ns"] = ns(3700.0)
    costs = {"new_ns": ns(20000.0), "known_ns": ns(7000.0), "torch_new_ns": ns(90000.0), "torch_known_ns": ns(9000.0)}
    host["unseen"] = [{"n": 64, "k": 96, "rows": 8000, "by": "ours", "shapes": 4000, **costs}]
    host["inactive"] = {
        "over_before_ns": {"off": ns(100.0), "required": ns(200.0)},
        "control_ns": {"off": ns(0.0), "required": ns(-50.0)},
    }
    del host["suite"], host["rows"]
    record.save(host, directory / "host_cost.json")
    tests = {**host, "counts": {"passed": 12, "skipped": 3, "errors": 0, "failed": 1}}
    record.save(tests, directory / "tests.json")
    return directory.parent


def test_compiled_models_and_the_training_loop_have_sections(document: dict[str, Any], tmp_path: Path) -> None:
    of = {name: document[name] for name in ("schema", "environment")} | {"transformers": "5"}
    slower, faster = {"value": 0.9, "low": 0.8, "high": 0.95}, {"value": 1.2, "low": 1.1, "high": 1.3}
    case = {"label": "bert", "ms": {"torch": 2.0, "ours": 1.5}, "speed": {"ours": slower}, "compiled_later": 1}
    compiled = of | {"results": [case]}
    losses = {"again from torch": 0.0002}
    settings = {"batch": 8, "tokens": 16, "vocabulary": 50, "steps": 3}
    speeds = {"ours": faster, "ours compiled": slower}
    train = of | {"train": settings, "results": {"speed": speeds, "largest_loss_difference": losses}}
    page = result_page.page({"compiled": compiled, "train": train}, tmp_path)
    assert "| bert | 2.000 | 1.500 | **0.900** (0.800 to 0.950) | 1 |" in page
    assert "ours 1.200 (1.100 to 1.300); ours compiled **0.900** (0.800 to 0.950)." in page
    assert "GPT-2 small, 8x16, vocabulary 50, " in page and "again from torch 0.0002." in page and "![" not in page
    assert "bert 0.900. Graphs compiled during the timed steps: 1." in tables.compiled_line(compiled)
    said = tables.train_line(train)
    assert "at 1.200 of torch's speed." in said and "at 0.900 of the speed of compiled torch." in said


def test_the_readme_section_is_what_the_files_say(results: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    written = tables.generate(results, readme)
    text = written[readme]
    assert text.startswith(f"before\n{tables.BEGIN}\n") and text.endswith(f"{tables.END}\nafter\n")
    assert "old" not in text
    assert "| llm | 2 of 3 | 1.000 | 0.800 to 1.250 | 1 | - | 2001-02-03, csrc 01234567 |" in text
    assert "| seeds-add | - | - | - | - | - | 2001-02-03" in text
    assert "run by torch, 6.4 µs (9.3 µs outside)." in text
    assert "GPU tests (2001-02-03, csrc 01234567): 12 passed, 3 skipped, 1 failed." in text
    assert "NVIDIA T1, driver 1.2, CUDA 13.0, torch 2.0" in text

    page = written[results / "t1" / "README.md"]
    assert "| NT 1x6144x4096 | 100 | 80 | 1.250 | 1.238 to 1.262 |" in page
    assert "| **0.800** |" in page and "| 0.790 sm80_mma_c |" in page
    assert f"| `torch.mm` in {host_cost.ROUTED} | `torch.mm` | none | 6.40 (-2.90) |" in page
    assert "Making, entering and leaving a context: 3.60 µs (3.59 to 3.61)." in page
    assert "The same after the calls below: 3.70 µs (3.69 to 3.71)." in page
    assert "Entering and leaving one context again: 2.50 µs (2.49 to 2.51)." in page
    assert "| 1 to 8000 | 64 x 96 | ours | 20.0 | 7.0 | 90.0 | 9.0 |" in page
    assert "adds +0.10 µs (+0.09 to +0.11) to `torch.mm`, with a gradient +0.20 µs" in page
    assert "without the override: +0.00 µs (-0.01 to +0.01) and -0.05 µs" in page


@needs_library
def test_tables_check_fails_until_the_files_are_written(results: Path, tmp_path: Path) -> None:
    summary = tmp_path / "benchmarks.md"
    summary.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    readme = tmp_path / "README.md"
    readme.write_text(f"{tables.MODELS_BEGIN}\n{tables.MODELS_END}\n")
    arguments = ["--readme", str(readme), "--benchmarks", str(summary), "--results", str(results)]

    def run(*more: str) -> Any:
        return CliRunner().invoke(tables.main, [*arguments, *more])

    first = run("--check")
    assert first.exit_code == 1 and "README.md: not up to date" in first.output
    assert "benchmarks.md: not up to date" in first.output
    assert summary.read_text() == f"{tables.BEGIN}\n{tables.END}\n"
    assert "llm.json was measured on other sources" in first.output
    assert run().exit_code == 0
    assert run("--check").exit_code == 0
    data = record.load(results / "t1" / "llm.json")
    data["rows"][0]["results"]["hgemm"]["ratio"]["value"] = 2.0
    record.save(data, results / "t1" / "llm.json")
    assert run("--check").exit_code == 1


def test_another_gpu_is_told_in_short(results: Path, tmp_path: Path) -> None:
    other = record.load(results / "t1" / "llm.json")
    other["environment"] |= {"gpu": "Other", "date": "2026-01-01T00:00:00+00:00"}
    record.save(other, results / "a0" / "llm.json")
    readme = tmp_path / "README.md"
    readme.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    text = tables.generate(results, readme)[readme]
    first, _, second = text.partition("## Other\n")
    assert second.startswith("\nThe package ships no measured times for this GPU") and "\n| `llm` | 1." in second
    assert first.count("Speed over torch on") == 1 and "Speed over torch on" not in second


def test_tables_without_results_say_so_and_need_their_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    assert "No results are recorded yet." in tables.generate(tmp_path / "none", readme)[readme]
    readme.write_text(f"{tables.END}\n{tables.BEGIN}\n")
    with pytest.raises(ValueError, match="needs one line"):
        tables.generate(tmp_path / "none", readme)


def test_tables_are_whole_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert console.screen().width == console.screen(stderr=True).width >= 200
    monkeypatch.setenv("COLUMNS", "100")
    assert console.screen().width == 100


def test_pages_name_the_kernels_that_are_gone() -> None:
    kernels = {"sm90_wgmma_a_128x64", "skinny_mma_16", "gemv_m1", "torch"}
    text = "| `sm90_wgmma_b_128x64_pad` | sm90_wgmma_a_128x64, 0.9 skinny_mma_32 | sm90_xmma_gemm_128 gemv_m1 torch_2 |"
    assert result_page.removed(text, kernels) == ["skinny_mma_32", "sm90_wgmma_b_128x64_pad"]
    assert result_page.removed(text, ()) == result_page.removed(f"{text} _2", {"torch"}) == []


@needs_library
def test_pages_of_the_repository_are_up_to_date() -> None:
    pages = tables.generate(ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md", ROOT / "README.md")
    assert len(pages) >= 4
    for path, text in pages.items():
        assert path.read_text() == text, f"{path}: run python benchmarks/tables.py"


@pytest.mark.parametrize("name", ["ratio_by_shape", "roofline"])
def test_plots_are_valid_and_the_same_for_the_same_results(name: str, document: dict[str, Any], tmp_path: Path) -> None:
    draw = getattr(pytest.importorskip("hgemm_ops.bench.plots"), name)
    svg = draw(document, tmp_path / "a" / "x")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    text = svg.read_text()
    assert "llm on NVIDIA T1" in text
    if name == "ratio_by_shape":
        assert all(row["label"] in text for row in document["rows"])
    else:
        highest = max(1000, *(r["gbps"] for row in document["rows"] for r in row["results"].values() if "gbps" in r))
        assert f"highest: {highest:.0f} GB/s" in text
    again = draw(document, tmp_path / "b" / "x.svg")
    assert again.read_bytes() == svg.read_bytes()


def test_plots_of_a_contender_that_was_not_timed_are_refused(document: dict[str, Any], tmp_path: Path) -> None:
    plots = pytest.importorskip("hgemm_ops.bench.plots")
    with pytest.raises(ValueError, match="'nobody'"):
        plots.roofline(document, tmp_path / "x.svg", "nobody")


def test_plots_are_drawn_for_suites_only(results: Path) -> None:
    drawn = pytest.importorskip("benchmarks.plots").draw_all(results)
    assert {path.name for path in drawn} == {"llm-ratio.svg", "llm-roofline.svg"}
    promised = record.load(results / "t1" / "llm.json")
    promised["protocol"]["numerics"] = "batch_invariant"
    record.save(promised, results / "t1" / "llm-batch_invariant.json")
    shown = importlib.import_module("benchmarks.plots").draw_all(results, every=False)
    assert {path.name for path in shown} == {"llm-ratio.svg"}
    mixtures = {
        "schema": 1,
        "environment": promised["environment"],
        "grouped": {"rows": [{"ratio": 1.5}, {"ratio": 2}]},
    }
    record.save(mixtures, results / "t1" / "grouped.json")
    kinds = importlib.import_module("benchmarks.plots").draw_all(results, every=False)
    assert {path.name for path in kinds} == {"kinds.svg", "llm-ratio.svg"}
    assert "mixtures of experts, grouped (2)" in (results / "t1" / "plots" / "kinds.svg").read_text()


def test_plots_that_no_page_shows_are_not_kept() -> None:
    files = [*ROOT.glob("*.md"), *(path for name in ("benchmarks", "docs") for path in (ROOT / name).rglob("*.md"))]
    pages = "".join(path.read_text() for path in files)
    kept = {path.name for path in (ROOT / "benchmarks" / "results").rglob("*.svg")}
    assert len(kept) > 10
    assert not {name for name in kept if f"plots/{name}" not in pages}


def test_a_plot_says_the_same_in_fewer_bytes() -> None:
    plots = pytest.importorskip("hgemm_ops.bench.plots")
    figure = plots.Figure()
    figure.subplots().scatter([0.1234567, 1, 2], [3, 4, 5], c=["red", "green", "blue"])
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    small = plots._small(drawn.getvalue())
    before, after = (list(ElementTree.fromstring(text).iter()) for text in (drawn.getvalue(), small))
    assert [element.tag for element in before] == [element.tag for element in after]
    assert [element.text for element in before if element.tag.endswith("}text")] == [
        element.text for element in after if element.tag.endswith("}text")
    ]
    assert len(small) < 0.9 * len(drawn.getvalue())
    for was, now in zip(before, after, strict=True):
        if "x" in was.attrib:
            assert float(now.attrib["x"]) == pytest.approx(float(was.attrib["x"]), abs=0.005)


def test_bandwidth_is_drawn_for_weights_with_several_m(tmp_path: Path) -> None:
    figures = pytest.importorskip("benchmarks.figures")
    rows = [_row(Case(m, 4096, 4096, layout="NT"), 1.25) for m in (1, 4, 16, 128)]
    drawn = figures.bandwidth_by_rows(_document(rows), tmp_path / "x")
    text = drawn.read_text()
    assert "N 4096, K 4096" in text and "% of a copy" in text
    streamed = [replace(row, results=row.results | {"stream": runner.Result(us=7.0, gbps=4500.0)}) for row in rows]
    assert figures.bandwidth_by_rows(_document(streamed), tmp_path / "z").read_text() != text
    assert figures.bandwidth_by_rows(_document(rows[:2]), tmp_path / "y") is None


# GPU tests and host cost


@pytest.mark.parametrize("processes", ["0", "2"])
def test_gpu_test_report_counts_per_file(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "def test_a(): pass\n"
        "@pytest.mark.parametrize('i', range(3))\n"
        "def test_b(i): assert i < 2, 'too big'\n"
        "@pytest.mark.skip(reason='no second GPU')\n"
        "def test_c(): pass\n"
        "@pytest.fixture\n"
        "def broken():\n"
        "    yield\n"
        "    raise OSError('teardown')\n"
        "def test_d(broken): pass\n"
        "def test_e(broken): assert False\n"
    )
    (tmp_path / "test_y.py").write_text("def test_a(): pass\n")
    lines = tmp_path / "outcomes.jsonl"
    arguments = ["-q", "-n", processes, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    assert gpu_tests.run(arguments, lines, None) == 1
    found = gpu_tests.summarize(lines)
    assert found["complete"] and found["unfinished"] == []
    assert found["counts"] == {"passed": 4, "skipped": 1, "errors": 1, "failed": 2}
    assert found["files"] == {
        "test_x.py": {"passed": 3, "skipped": 1, "errors": 1, "failed": 2},
        "test_y.py": {"passed": 1, "skipped": 0, "errors": 0, "failed": 0},
    }
    assert sorted(failure["test"] for failure in found["failures"]) == [
        "test_x.py::test_b[2]",
        "test_x.py::test_d",
        "test_x.py::test_e",
    ]
    assert any("too big" in failure["message"] for failure in found["failures"])
    assert found["skips"] == {"no second GPU": 1}


def test_host_cost_pairs_every_call_with_its_baseline() -> None:
    contenders = host_cost.calls()
    names = {call.name for call in contenders}
    assert len(names) == len(contenders)
    for call in contenders:
        if call.baseline:
            assert host_cost.Call(call.baseline, None, call.gradients).name in names
    assert any(call.inside == host_cost.ROUTED and call.statement == "torch.add(a, b)" for call in contenders)


def test_host_cost_measures_under_the_state_each_call_names() -> None:
    seen: list[tuple[bool, bool, bool]] = []
    inside = False

    class Context:
        def __enter__(self) -> None:
            nonlocal inside
            inside = True

        def __exit__(self, *_: object) -> None:
            nonlocal inside
            inside = False

    def work(a: torch.Tensor) -> None:
        seen.append((torch.is_grad_enabled(), a.requires_grad, inside))

    contenders = [
        host_cost.Call("work(a)", None, "off"),
        host_cost.Call("work(a)", "work(a)", "off", host_cost.ROUTED),
        host_cost.Call("work(a)", None, "on"),
        host_cost.Call("work(a)", None, "required"),
    ]
    rows = host_cost.measure(
        contenders,
        {"a": torch.zeros(2), "work": work},
        rounds=5,
        calls_per_round=4,
        contexts={host_cost.ROUTED: Context()},
        synchronize=lambda: None,
    )
    counts = Counter(seen)
    assert set(counts) == {(False, False, False), (False, False, True), (True, False, False), (True, True, False)}
    assert len(set(counts.values())) == 1
    assert all(row["ns"]["value"] > 0 for row in rows)
    assert [("over_baseline_ns" in row) for row in rows] == [False, True, False, False]


def test_host_cost_enters_new_contexts_and_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[int] = []  # of each context that was made

    class Context:
        def __init__(self) -> None:
            self.place = len(entries)
            entries.append(0)

        def __enter__(self) -> None:
            entries[self.place] += 1

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(hgemm_ops, "use_custom_gemm", Context)
    assert host_cost.entering(5, 4)["value"] > 0
    assert entries == [1] * 20
    entries.clear()
    assert host_cost.entering(5, 4, again=True)["value"] > 0
    assert entries == [20]


# Command line


@pytest.mark.parametrize("command", [bench.bench, tune.tune], ids=["bench", "tune"])
def test_commands_explain_themselves_and_say_what_they_lack(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    help_text = CliRunner().invoke(command, ["--help"])
    assert help_text.exit_code == 0 and "--suite" in help_text.output
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(command, ["--suite", "llm"])
    assert result.exit_code == 1 and "on a CUDA GPU" in result.output
    assert CliRunner().invoke(command, ["--suite", "nonsense"]).exit_code == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_library, "load", lambda: False)
    monkeypatch.setattr(_library, "reason", lambda: "not built")
    result = CliRunner().invoke(command, ["--suite", "llm"])
    assert result.exit_code == 1 and "not built" in result.output


def test_tune_takes_plain_products_only() -> None:
    cases = tune._cases(("ragged", "bmm", "llm", "llm"), "1x6144x4096,7x8x9", None, ("NT",))
    assert all(case.op == "matmul" for case in cases)
    assert {case.align for case in cases if case.padding} == {2, 4, 8}  # copied, and contiguous then
    assert len(cases) == len(set(cases))
    assert Case(7, 8, 9, layout="NT") in cases
    for arguments in (["--suite", "fused"], [], ["--shapes", "1x2"]):
        assert CliRunner().invoke(tune.tune, arguments).exit_code == 2


@needs_library
def test_tuned_cases_are_looked_up_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(_native, "device_facts", lambda ordinal: _native.preset_facts(90))
    for case in tune._cases(("seeds-large", "llm", "layouts", "ragged", "bmm"), None, None, ()):
        assert tune.table_key(case) == _key(case)
    assert tune.table_key(Case(1, 8, 8, layout="TN"))["layout"] == "NN"  # one row is stored either way


def test_tune_entry_takes_paired_times_of_the_kernels_that_were_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "table_key", _key)
    case = Case(16, 4096, 4096, layout="NT", dtype="bfloat16")
    row = _row(case, 1.0, forced={"sm80_mma_a": 1.25, "sm80_mma_b": 0.5})
    del row.results[runner.DISPATCHED]
    row.results["sm80_mma_c"] = runner.Result(wrong="off")
    entry = tune.to_entry(row)
    assert entry is not None
    assert entry.shape == ("bfloat16", "NT", 16, 1, 16, 4096, 4096)
    assert entry.us == {"torch": 100.0, "sm80_mma_a": 80.0, "sm80_mma_b": 200.0}
    row.results.pop("sm80_mma_a"), row.results.pop("sm80_mma_b")
    assert tune.to_entry(row) is None
    row.results[runner.TORCH] = runner.Result(wrong="off")
    assert tune.to_entry(row) is None


def test_importing_the_package_imports_no_benchmark() -> None:
    program = "import sys, hgemm_ops; print([m for m in sys.modules if m.startswith('hgemm_ops.bench') or m == 'rich'])"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_element_bytes_are_torch_s() -> None:
    assert {name: getattr(torch, name).itemsize for name in ELEMENT_BYTES} == ELEMENT_BYTES


def test_the_best_are_timed_again_alone_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = {name: statistics.Interval(v, v - 0.01, v + 0.01) for name, v in {"a": 1.1, "b": 1.05, "c": 1.02}.items()}
    alone = {"a": 0.99, "b": 1.06}
    paired, drawn = [], []

    def times(bodies: Mapping[str, str], rounds: int, seed: int) -> dict[str, list[float]]:
        paired.append(tuple(bodies))
        drawn.append(rounds)
        return {name: [100.0 / alone.get(name, 1.0)] * rounds for name in bodies}

    monkeypatch.setattr(timing, "time_bodies", times)
    bodies = dict.fromkeys(("torch", *crowd), "")
    found = runner.duel(bodies, crowd, runner.Options(duels=2, rounds=12))  # type: ignore[arg-type]
    assert paired == [("torch", "a"), ("torch", "b")] * 3
    assert drawn == [5, 5, 5, 5, 2, 2]
    # c was not timed again: it loses what a lost, a tenth.
    assert {name: round(ratio.value, 4) for name, ratio in found.items()} == {"a": 0.99, "b": 1.06, "c": 0.918}
    assert found["c"].high == pytest.approx(1.03 * 0.9)


def test_gpus_are_shared_out_to_the_processes_of_xdist(tmp_path: Path) -> None:
    (tmp_path / "test_seen.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.mark.parametrize('i', range(12))\n"
        "def test_seen(i):\n"
        "    name = os.environ['PYTEST_XDIST_WORKER'] + '.txt'\n"
        "    pathlib.Path(__file__).with_name(name).write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    arguments = ["-q", "-n", "3", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    assert gpu_tests.run(arguments, tmp_path / "outcomes.jsonl", None, gpus=("4", "6")) == 0
    seen = {path.stem: path.read_text() for path in tmp_path.glob("gw*.txt")}
    assert seen == {"gw0": "4", "gw1": "6", "gw2": "4"}


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "by_signal"), [("0", False), ("1", False), ("1", True)])
def test_gpu_tests_are_stopped_at_their_limit_and_still_reported(
    processes: str, by_signal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The limit ends, or SIGTERM comes, when the first test has ended and the second one has printed its stack."""
    printed = ""

    class Process(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout != limit:
                return super().wait(timeout)
            nonlocal printed
            while ('"outcome"' not in lines.read_text() or "Timeout" not in printed) and self.poll() is None:
                time.sleep(0.1)
                printed += capfd.readouterr().err
            if by_signal:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)  # the signal ends it
            raise subprocess.TimeoutExpired(self.args, limit)

    limit = 25.0
    monkeypatch.setattr(gpu_tests.subprocess, "Popen", Process)
    monkeypatch.setattr(gpu_tests, "_STUCK", 1)
    endless = "def test_endless(): time.sleep(600)\n"
    (tmp_path / "test_two.py").write_text(f"import time\ndef test_quick(): pass\n{endless}def test_later(): pass\n")
    lines = tmp_path / "outcomes.jsonl"
    arguments = ["-q", "-n", processes, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    assert gpu_tests.run(arguments, lines, limit) not in (0, 1)
    found = gpu_tests.summarize(lines)
    assert (found["counts"]["passed"], sum(found["counts"].values()), found["complete"]) == (1, 1, False)
    assert found["unfinished"] == ["test_two.py::test_endless", "test_two.py::test_later"]
    assert found["running"] == 1
    assert "in test_endless" in printed
