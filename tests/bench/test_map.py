"""benchmarks/map.py: the shapes it draws, its bound, what it finds wrong, and what shows its results. No GPU needed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from benchmarks import map as kinds_map
from benchmarks import result_page, tables
from hgemm_ops.bench import record
from hgemm_ops.bench.statistics import Interval

CPU = torch.device("cpu")
RATES = kinds_map.CHIPS["NVIDIA H200"]
Case = kinds_map.Case


def first_of_each_kind() -> list[Any]:
    return [kinds_map.small(case) for case in kinds_map.draw(7, 1)]


# ---- Shapes


def test_a_seed_repeats_its_shapes_and_another_draws_others() -> None:
    cases = kinds_map.draw(5, 4)
    assert cases == kinds_map.draw(5, 4)
    others = kinds_map.draw(6, 4)
    assert not set(cases) & set(others) and [case.kind for case in cases] == [case.kind for case in others]


def test_the_kinds_take_turns_and_a_kind_alone_has_the_same_shapes() -> None:
    cases = kinds_map.draw(5, 3)
    assert [case.kind for case in cases] == 3 * list(kinds_map.KINDS)
    kind = "half, ragged"
    assert kinds_map.draw(5, 3, [kind]) == [case for case in cases if case.kind == kind]


@pytest.mark.parametrize("kind", kinds_map.KINDS)
def test_shapes_are_what_the_kind_says_and_fit_a_gpu(kind: str) -> None:
    for seed in range(40):
        for case in kinds_map.draw(seed, 3, [kind]):
            assert min(case.m, case.n, case.k, case.batch) >= 1
            assert case.form in kinds_map.FORMS and case.unit in RATES
            assert kinds_map.bound(case, RATES)[0] < 12_500 and case.allocated < 14e9
            assert ("float32" in kind) <= (case.dtype == "float32")
            assert ("half" in kind) <= (case.dtype in ("float16", "bfloat16"))
            if case.dtype == "float32":
                assert case.float32 == ("split" if "split" in kind else "strict")
            if case.form == "_int_mm":  # what torch accepts on CUDA
                assert case.m > 16 and case.n % 8 == case.k % 8 == 0
            if case.form == "_scaled_mm":
                assert case.m % 16 == case.n % 16 == case.k % 16 == 0
            if case.form == "grouped":
                assert case.n % 8 == case.k % 8 == 0
            if case.form == "gram":
                assert case.m == case.n


def test_a_small_shape_keeps_its_parity() -> None:
    case = Case("k", "float16", 5000, 4097, 33, batch=300)
    assert kinds_map.small(case) == Case("k", "float16", 72, 65, 33, batch=2)


# ---- The bound


@pytest.mark.parametrize(
    ("case", "us", "by"),
    [
        # 2 * 4096^3 operations at 750 TFLOP/s
        (Case("k", "bfloat16", 4096, 4096, 4096), 183.252 + 2.5, "operations"),
        # at 1500 TOP/s; the result has 4 bytes
        (Case("k", "int8", 4096, 4096, 4096, form="_int_mm"), 91.626 + 2.5, "operations"),
        # 4 bytes * (32 * 4096 + 4096^2 + 32 * 4096) at 4.3 TB/s
        (Case("k", "float32", 32, 4096, 4096, float32="split"), 15.850 + 2.5, "memory"),
        # 2 * 32 * 4096^2 operations at 60 TFLOP/s
        (Case("k", "float32", 32, 4096, 4096), 17.896 + 2.5, "operations"),
        # 100,000 * 27 elements
        (Case("k", "float32", 3, 3, 3, batch=100_000), 2.51163 + 2.5, "memory"),
        # 8 * 4096^3 operations at 130 TFLOP/s
        (Case("k", "complex64", 4096, 4096, 4096), 4229.1 + 2.5, "operations"),
        # 4096 * 4096 * 8192 operations at 750 TFLOP/s
        (Case("k", "bfloat16", 4096, 4096, 8192, form="gram"), 183.252 + 2.5, "operations"),
        # 2 bytes * (2 rows * 4096 + 2 of 8 weights of 1024 * 4096 + 2 * 1024)
        (Case("k", "bfloat16", 2, 1024, 4096, batch=8, form="grouped"), 3.90644 + 2.5, "memory"),
        # 2 bytes * (16 * 8 * 512 + 512 * 512 + 16 * 8 * 512): the weight once
        (Case("k", "float16", 8, 512, 512, batch=16, form="shared"), 0.183 + 2.5, "memory"),
        # 2 bytes * (64 * 64 + 64 * 64 + 64 * 64 and 64 * 64 of C)
        (Case("k", "float16", 64, 64, 64, form="addmm"), 0.00762 + 2.5, "memory"),
        # 1 byte * (16 * 64 + 64 * 64) and 2 bytes * 16 * 64
        (Case("k", "float8_e4m3fn", 16, 64, 64, form="_scaled_mm"), 0.00167 + 2.5, "memory"),
    ],
)
def test_the_bound_is_the_larger_of_operations_and_memory(case: Any, us: float, by: str) -> None:
    assert kinds_map.bound(case, RATES) == (pytest.approx(us, abs=6e-5 * us), by)


def test_the_h100_has_less_bandwidth_and_the_same_units() -> None:
    h100 = kinds_map.CHIPS["NVIDIA H100 80GB HBM3"]
    assert h100["memory"] < RATES["memory"] and {**h100, "memory": 0} == {**RATES, "memory": 0}


# ---- Verification


def measured_bytes(x: Any, out: Tensor) -> int:
    return sum(
        t.untyped_storage().nbytes() for t in {t.data_ptr(): t for t in (x.a, x.b, x.c, out) if t is not None}.values()
    )


@pytest.mark.parametrize("whole", [True, False])
def test_each_kind_agrees_with_float64_as_a_whole_and_in_samples(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        monkeypatch.setattr(kinds_map, "WHOLE_FLOPS", 0)
        monkeypatch.setattr(kinds_map, "SAMPLED", 16)
    for case in first_of_each_kind():
        generator = torch.Generator().manual_seed(1)
        x = kinds_map.make_operands(case, generator)
        sample, out = kinds_map.Sample(case, generator), kinds_map.FORMS[case.form](x)
        assert sample.whole == whole and out.dtype == case.result
        found, expected = sample.of(out), sample.reference(case, x)
        assert found.shape == expected.shape and (whole or max(found.shape[-2:]) <= 16)
        error = (found.to(expected.dtype) - expected).norm() / expected.norm()
        assert error <= (0 if case.dtype == "int8" else 4 * torch.finfo(case.result).eps), case
        if case.form == "grouped" and case.m < case.batch:
            continue  # torch does not need all weights
        assert case.bytes == measured_bytes(x, out), case


class Fixed:
    """A body with given results."""

    def __init__(self, outputs: list[Tensor]) -> None:
        self.outputs = outputs

    def poison(self) -> None: ...

    def replay(self) -> None: ...


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "int8"])
@pytest.mark.parametrize("wrong", [0.0, 1.0, float("nan")])
def test_a_wrong_element_of_any_set_is_found(dtype: str, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    form = "_int_mm" if dtype == "int8" else "matmul"
    case, generator = Case("k", dtype, 200, 208, 64, form=form), torch.Generator().manual_seed(1)
    sets = [kinds_map.make_operands(case, generator) for _ in range(3)]
    outputs = [kinds_map.FORMS[form](x) for x in sets]
    others = [output.clone() for output in outputs]
    if dtype == "int8":  # which has no NaN
        wrong = int(wrong == 1)
    others[1][150, 3] += wrong  # float64 is not asked about this set
    monkeypatch.setattr(kinds_map, "WHOLE_FLOPS", 0)
    sample = kinds_map.Sample(case, generator)
    _, found = kinds_map.verify(case, sets, {"torch": Fixed(outputs), "ours": Fixed(others)}, sample)
    assert bool(found) == (wrong != 0)


def test_errors_beyond_twice_torchs_are_found() -> None:
    case, generator = Case("k", "float32", 64, 64, 64), torch.Generator().manual_seed(1)
    sets = [kinds_map.make_operands(case, generator)]
    bodies = {"torch": Fixed([sets[0].a @ sets[0].b]), "ours": Fixed([(sets[0].a @ sets[0].b) * (1 + 1e-6)])}
    errors, found = kinds_map.verify(case, sets, bodies, kinds_map.Sample(case, generator))
    assert errors["torch"][0] < 2e-7 and errors["ours"][0] == pytest.approx(1e-6, rel=0.1) and "allowed" in found


# ---- Runs on the CPU


def quick(*arguments: str) -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the shapes are tiny
    try:
        return CliRunner().invoke(kinds_map.main, ["--quick", "--seed", "3", "--shapes", "1", *arguments])
    finally:
        torch.set_num_threads(threads)


def test_every_kind_is_measured_and_recorded(tmp_path: Path) -> None:
    output = tmp_path / "map.json.xz"
    result = quick("--output", str(output))
    assert result.exit_code == 0, result.output
    found = record.load(output)["map"]
    assert found["seed"] == 3 and found["timed_out"] == 0 and found["rates"] == RATES
    assert {row["kind"] for row in found["rows"]} | set(found["left_out"]) == set(kinds_map.KINDS)
    names = {"sets", "bound_us", "bound_by", "torch_us", "ours_us", "ratio", "kernel", "errors", "peak_bytes", "rounds"}
    for row in found["rows"]:
        assert row.keys() == names | set(Case.__dataclass_fields__)
        assert set(row["ratio"]) == {"value", "low", "high"} and row["kernel"] == "torch"


def test_a_kind_that_torch_does_not_run_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(x: Any) -> Tensor:
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setitem(kinds_map.FORMS, "grouped", refuse)
    result = quick("--kind", "grouped", "--kind", "float64", "--output", str(tmp_path / "map.json"))
    assert result.exit_code == 0
    found = json.loads((tmp_path / "map.json").read_text())["map"]
    assert found["left_out"] == dict.fromkeys((k for k in kinds_map.KINDS if "grouped" in k), "no such kernel")
    assert {row["kind"] for row in found["rows"]} == {kind for kind in kinds_map.KINDS if "float64" in kind}


def test_a_wrong_result_fails_the_run_and_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = []

    class Spoiled(kinds_map.Eager):
        """The second body, which is ours, misses an element."""

        def __post_init__(self) -> None:
            made.append(self)
            super().__post_init__()

        def replay(self) -> None:
            super().replay()
            if len(made) > 1 and self is made[1]:
                self.outputs[-1][-1, -1] = float("nan")

    monkeypatch.setattr(kinds_map, "Eager", Spoiled)
    result = quick("--kind", "half, ragged", "--shapes", "2", "--output", str(tmp_path / "map.json"))
    assert result.exit_code == 1 and "half, ragged" in result.output and "WRONG, errors nan" in result.output
    wrong, right = json.loads((tmp_path / "map.json").read_text())["map"]["rows"]
    assert wrong["wrong"].startswith("errors nan") and "ratio" not in wrong and "ratio" in right


def test_an_error_of_ours_alone_is_a_wrong_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(x: Any) -> Tensor:
        if sides[-1] == "ours":
            raise RuntimeError("no memory\nand more")
        return torch.matmul(x.a, x.b)

    sides = [""]
    monkeypatch.setattr(kinds_map, "_side", lambda side, case: sides.append(side) or nullcontext())
    monkeypatch.setitem(kinds_map.FORMS, "matmul", fail)
    result = quick("--kind", "half, ragged", "--output", str(tmp_path / "map.json"))
    assert result.exit_code == 1 and "WRONG, raised no memory" in result.output
    assert json.loads((tmp_path / "map.json").read_text())["map"]["left_out"] == {}


def test_no_shape_starts_after_the_limit() -> None:
    result = quick("--seconds", "0")
    assert result.exit_code == 0 and f"0 of {len(kinds_map.KINDS)} shapes" in result.output


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(kinds_map.main)
    assert result.exit_code == 1 and "needs a GPU" in result.output


def test_a_chip_without_rates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA T1")
    result = CliRunner().invoke(kinds_map.main)
    assert result.exit_code == 1 and "the rates of NVIDIA T1 are not known" in result.output


# ---- Page and plot


def row_of(case: Any, torch_us: float, ours_us: float, kernel: str) -> dict[str, Any]:
    speed = torch_us / ours_us
    bound_us, by = kinds_map.bound(case, RATES)
    return {
        **asdict(case), "sets": 2, "bound_us": bound_us, "bound_by": by, "kernel": kernel,
        "peak_bytes": {"torch": 2**20, "ours": 2**21}, "rounds": 5, "torch_us": torch_us, "ours_us": ours_us,
        "errors": {"torch": [2e-4, 1e-3], "ours": [1e-4, 1e-3]},
        "ratio": asdict(Interval(speed, speed * 0.99, speed * 1.01)),
    }  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    large, gram = Case("half, large", "float16", 4096, 4096, 4096), Case("X @ X.T, half", "float16", 64, 64, 64)
    bound = kinds_map.bound(large, RATES)[0]
    rows = [
        row_of(large, 2 * bound, bound, "sm90_a"),
        row_of(large, bound / 0.45, bound / 0.441, "torch"),  # 0.98 of torch
        row_of(gram, 100.0, 125.0, "sm90_b"),
    ]
    wrong = {name: value for name, value in rows[2].items() if name not in ("ratio", "torch_us", "ours_us", "errors")}
    found = {
        "seed": 12, "shapes": 2, "timed_out": 0, "copy_gbps": 4000.0, "rates": RATES,
        "left_out": {"fp8 _scaled_mm": "no fp8"}, "rows": [*rows, wrong | {"wrong": "errors", "kernel": "sm90_c"}],
    }  # fmt: skip
    environment = {
        "gpu": "NVIDIA T1", "driver": "1.2", "cuda": "13.0", "torch": "2.0", "date": "2001-02-03T04:05:06+00:00",
        "csrc": "0123456789" * 4,
    }  # fmt: skip
    return {"schema": record.SCHEMA, "environment": environment, "map": found}


def test_the_table_has_geometric_means_and_losses_by_kind(document: dict[str, Any]) -> None:
    lines = result_page.map_lines(document)
    assert lines[0] == "| kind | shapes | torch / bound | ours / bound | ours / torch | lowest | below 0.98 |"
    # sqrt(0.5 * 0.45), sqrt(1 * 0.441), sqrt(2 * 0.98)
    assert "| half, large | 2 | 0.47 | 0.66 | 1.40 | 0.98 | 0 |" in lines
    # The bound is 2.5 us, and the memory's share of it 0.006.
    assert "| X @ X.T, half | 1 | 0.03 | 0.02 | 0.80 | 0.80 | 1 |" in lines
    assert lines[2].startswith("| all | 3 | ") and len(lines) == 5


def test_page_and_plot_show_every_product(document: dict[str, Any], tmp_path: Path) -> None:
    directory = tmp_path / "results" / "t1"
    record.save(document, record.path(directory, "map"))
    assert record.path(directory, "map").name == "map.json.xz"
    drawn = pytest.importorskip("benchmarks.plots").draw_all(tmp_path / "results", every=False)
    assert [path.name for path in drawn] == ["map.svg"]
    text = drawn[0].read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for words in ("half, large (2)", "X @ X.T, half (1)", "torch / bound", "ours / bound", "NVIDIA T1"):
        assert words in text

    summary = tmp_path / "benchmarks.md"
    summary.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    pages = tables.generate(tmp_path / "results", summary)
    page = pages[directory / "README.md"]
    assert "## Kinds of matmuls" in page and "drawn with seed 12" in page and "](plots/map.svg)" in page
    assert "- Left out, fp8 _scaled_mm: no fp8" in page
    assert (
        "| half, large: 4096x4096x4096 NN float16 | 185.8 | 371.5 | 185.8 | 2.000 | 0.50 | 1.0 | 2.0 | sm90_a |" in page
    )
    assert "| 2.506 | 100 | 125 | **0.800** |" in page and "| wrong | wrong | - | - | - | - | sm90_c |" in page
    assert "on `map` (3 shapes of 2 kinds of matmuls; torch reaches" in " ".join(pages[summary].split())
