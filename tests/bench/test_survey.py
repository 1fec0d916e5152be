"""The suites random and zoo: their shapes, the lean protocol, what is kept of a run and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from helpers import needs_library

import hgemm_ops
from benchmarks import tables, tuned
from hgemm_ops import _tables
from hgemm_ops.bench import console, record, sampling, survey, survey_figures, timing, zoo
from hgemm_ops.bench.suites import SUITES, Case
from hgemm_ops.cli import bench

# Shapes


def test_random_shapes_follow_from_the_seed_and_are_in_no_table_and_no_suite() -> None:
    cases = sampling.off_table(11, 1000)
    assert cases == sampling.off_table(11, 1000) and len(set(cases)) == 1000
    assert not set(cases) & set(sampling.off_table(12, 1000))
    known = {sampling.shape_of(case) for suite in SUITES.values() for case in suite if case.op in ("matmul", "linear")}
    known |= {(e.batch, e.m, e.n, e.k) for table in sampling.shipped_tables() for e in table.entries}
    assert (1, 4096, 4096, 4096) in known and not known & set(map(sampling.shape_of, cases))
    layouts, dtypes = Counter(case.layout for case in cases), Counter(case.dtype for case in cases)
    assert 400 < layouts["NT"] < 600 and all(100 < layouts[name] < 240 for name in ("NN", "TN", "TT"))
    assert dtypes.keys() == {"float16", "bfloat16"} and min(dtypes.values()) > 400
    assert 30 < sum(case.align < 16 for case in cases) < 90
    assert 30 < sum(case.batch > 1 for case in cases) < 90
    assert min(case.m for case in cases) == 1 and sum(case.m <= 64 for case in cases) > 200
    assert max(case.m for case in cases) > 10_000 and all(zoo.fits(case) for case in cases)


def test_what_is_scored_is_not_fitted_to() -> None:
    for suite in ("llm", "bmm", "fused"):
        assert all(sampling.is_scored(case) for case in SUITES[suite])
    assert all(sampling.is_scored(case) for case in zoo.models_of())
    layer = zoo.MODELS["qwen2-7b"].weights[2]
    assert sampling.is_scored(Case(777, *layer, layout="NT")) and sampling.is_scored(Case(777, *layer[::-1]))
    assert not sampling.is_scored(Case(777, 1304, 2008))
    assert not any(sampling.is_scored(case) for case in sampling.unscored(3, 500))
    assert set(map(sampling.shape_of, zoo.models_of())) <= sampling.scored_shapes()


@pytest.mark.parametrize("model", zoo.MODELS.values(), ids=lambda model: model.name)
def test_a_model_has_as_many_parameters_as_published(model: zoo.Model) -> None:
    width = model.heads * model.head_dim
    attention = model.hidden * (2 * width + 2 * model.kv_heads * model.head_dim)
    mlp = (2 + model.gated) * model.hidden * model.intermediate
    embedding = model.vocab * model.hidden * (1 if model.tied else 2)
    count = model.layers * (attention + mlp) + model.cross_layers * attention + embedding
    assert count * 1e-9 == pytest.approx(model.parameters, rel=0.016)
    assert model.source.startswith("https://")


def test_the_zoo_is_at_least_twenty_models_from_a_tenth_of_a_billion_to_seventy() -> None:
    sizes = [model.parameters for model in zoo.MODELS.values()]
    assert len(sizes) >= 20 and min(sizes) < 0.15 and max(sizes) > 65
    assert {case.m for case in zoo.models_of() if case.batch == 1} == set(zoo.TOKENS)
    llama = zoo.MODELS["llama-3-8b"]
    assert llama.weights == ((4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096))
    assert Case(2048, 2048, 128, batch=32, layout="NT", dtype="bfloat16") in llama.cases  # scores
    assert Case(1, 128, 2048, batch=32, dtype="bfloat16") in llama.cases  # the values of one more token
    gpt2 = {(case.n, case.k, case.layout) for case in zoo.MODELS["gpt2"].cases if case.batch == 1}
    assert gpt2 == {
        (2304, 768, "NN"), (768, 768, "NN"), (3072, 768, "NN"), (768, 3072, "NN"), (50257, 768, "NT")
    }  # fmt: skip
    assert zoo.MODELS["phi-3-mini"].weights[0] == (9216, 3072) and (16384, 3072) in zoo.MODELS["phi-3-mini"].weights


# The protocol, with CUDA graphs replaced by calls


class _Body:
    def __init__(self, call: Callable[[survey.Set], torch.Tensor], sets: list[survey.Set]) -> None:
        self.call, self.sets = call, sets

    @classmethod
    def capture(cls, call: Any, sets: Any, stream: Any, pool: Any) -> _Body:
        return cls(call, sets)

    def replay(self) -> None:
        for x in self.sets:
            self.call(x)

    def start(self) -> Callable[[], float]:
        us = getattr(self.call, "us", [4.0])
        return lambda: us[0] if len(us) == 1 else us.pop(0)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Kernels by name; each writes ``x.out`` and may have a list of times, ``us``."""

    def right(us: float) -> Any:
        def call(x: survey.Set) -> torch.Tensor:
            return survey.torch_call(x)

        call.us = [us]  # type: ignore[attr-defined]
        return call

    def unwritten(x: survey.Set) -> torch.Tensor:
        return torch.mm(x.a, x.b[..., :-1], out=x.out[..., :-1])

    def one_element_off(x: survey.Set) -> torch.Tensor:
        survey.torch_call(x)
        x.out[..., 1, 2] += 1.0
        return x.out

    def inaccurate(x: survey.Set) -> torch.Tensor:
        return survey.torch_call(x).mul_(1.01)

    found: dict[str, Any] = {"slow": right(8.0), "fast": right(2.0), "middle": right(3.0)}
    found |= {"unwritten": unwritten, "one_element_off": one_element_off, "inaccurate": inaccurate}
    monkeypatch.setattr(timing, "Body", _Body)
    monkeypatch.setattr(timing, "_MIN_ROTATION", 200_000)
    monkeypatch.setattr(survey, "kernel_call", found.__getitem__)
    return found


@pytest.mark.parametrize(
    "case",
    [Case(40, 24, 33, layout="NT"), Case(300, 301, 64, layout="TN", dtype="bfloat16"), Case(5, 7, 9, layout="TT")],
    ids=lambda case: case.label,
)
def test_sets_are_what_the_case_says_and_share_no_element(case: Case) -> None:
    memory = survey.Memory(torch.device("cpu"), 0)
    memory.sets(Case(64, 64, 64, dtype=case.dtype), 2)  # what lies there already is used again
    sets, results = memory.sets(case, 3)
    for x in sets:
        assert x.a.shape == (case.m, case.k) and x.b.shape == (case.k, case.n) and x.out.shape == (case.m, case.n)
        assert x.a.is_contiguous() == (case.layout[0] == "N") and x.b.is_contiguous() == (case.layout[1] == "N")
        assert x.a.mT.is_contiguous() == (case.layout[0] == "T") and x.out.is_contiguous()
        assert (x.a.data_ptr() - sets[0].a.data_ptr()) % 256 == (x.b.data_ptr() - sets[0].a.data_ptr()) % 256 == 0
        assert (x.out.data_ptr() - sets[0].out.data_ptr()) % 256 == 0
        assert 0.5 < x.a.std() < 1.5
    spans = sorted((t.data_ptr(), t.numel() * t.element_size()) for x in sets for t in (x.a, x.b))
    assert all(start + size <= other for (start, size), (other, _) in pairwise(spans))
    results.fill_(3.0)
    assert all((x.out == 3.0).all() for x in sets) and results.shape == (3, case.m * case.n)


@pytest.mark.parametrize("case", [Case(40, 24, 33, layout="NT"), Case(40, 24, 33, layout="NN", batch=2)])
def test_wrong_kernels_are_found_and_not_timed(case: Case, kernels: dict[str, Any]) -> None:
    memory = survey.Memory(torch.device("cpu"), 0)
    names = [name for name in kernels if case.batch == 1 or name != "unwritten"]
    found = survey.measure(case, names, memory, survey.Options(finalists=1), kept=["middle", "torch", "middle"])
    wrong = {"unwritten", "one_element_off", "inaccurate"} & set(names)
    assert found.wrong.keys() == wrong and ("unwritten" not in wrong or "nan" in found.wrong["unwritten"])
    assert found.us == {"torch": 4.0, "slow": 8.0, "fast": 2.0, "middle": 3.0}
    assert (found.best, found.best_by) == (2.0, "fast")
    assert found.sets == timing.set_count(case.bytes, 200_000)
    assert survey.measure(case, names, memory, survey.Options(most_sets=3)).sets == 3


@needs_library
def test_what_tuning_chose_is_timed_in_all_rounds(kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    memory, case = survey.Memory(torch.device("cpu"), 0), Case(40, 24, 33)
    memory.sets(case, 1)
    planned = survey.Planned(case, ("fast",), {"": survey.Choice("torch", "model")})
    (found,) = tuned.rows([planned], memory, survey.Options(finalists=1))
    assert found[0].to_json()["chosen"] == {"": {"served_by": "torch", "source": "fallback", "ratio": 1.0}}
    assert found[1] > 0
    explained = replace(hgemm_ops.explain(M=40, N=24, K=33, arch="sm_90"), chosen="middle", source="table")
    monkeypatch.setattr(hgemm_ops, "explain", lambda a, b: explained)
    (found,) = tuned.rows([planned], memory, survey.Options(finalists=1))
    assert found[0].to_json()["chosen"] == {"": {"served_by": "middle", "source": "table", "ratio": 1.3333}}


def test_only_the_fastest_and_the_choice_are_timed_in_all_rounds(kernels: dict[str, Any]) -> None:
    rounds: Counter[str] = Counter()

    def counted(name: str) -> Callable[[], float]:
        rounds[name] += 1
        return lambda: {"fast": 2.0, "middle": 3.0, "slow": 8.0}.get(name, 4.0)

    for name in ("slow", "fast", "middle"):
        kernels[name].start = lambda name=name: counted(name)
    original = _Body.start
    try:
        _Body.start = lambda self: counted(next((n for n in kernels if kernels[n] is self.call), "torch"))  # type: ignore[method-assign]
        options = survey.Options(screening=2, finalists=1, rounds=5)
        survey.measure(
            Case(8, 8, 8), ["slow", "fast", "middle"], survey.Memory(torch.device("cpu"), 0), options, ["slow"]
        )
    finally:
        _Body.start = original  # type: ignore[method-assign]
    assert rounds == {"torch": 7, "fast": 7, "slow": 7, "middle": 2}


def test_a_torch_that_is_wrong_ends_the_run(kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "torch_call", kernels["unwritten"])
    with pytest.raises(RuntimeError, match="torch's own result is wrong"):
        survey.measure(Case(40, 24, 33), ["fast"], survey.Memory(torch.device("cpu"), 0), survey.Options())


@needs_library
def test_the_calls_that_are_timed_write_the_product() -> None:
    sets, results = survey.Memory(torch.device("cpu"), 0).sets(Case(40, 24, 33, layout="NT", batch=3), 1)
    for call in (survey.torch_call, survey.kernel_call("sm80_mma_128x128x64_w64x64_s3")):
        results.fill_(float("nan"))
        with torch.inference_mode():
            call(sets[0])
        torch.testing.assert_close(sets[0].out, sets[0].a @ sets[0].b)


def test_the_best_of_equal_kernels_is_no_better_than_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    naive, fair = [], []
    for _ in range(300):
        noisy = {f"k{i}": (1.1 + 0.02 * torch.randn(6, generator=generator)).tolist() for i in range(8)}
        best, name = survey.best_of(noisy)
        fair.append(best)
        naive.append(max(survey.median(samples) for samples in noisy.values()))
        assert name in noisy
    assert sum(naive) / len(naive) > 1.11
    assert sum(fair) / len(fair) == pytest.approx(1.1, abs=0.004)
    assert survey.best_of({"a": [1.3, 1.2, 1.3], "b": [1.0, 1.1, 1.0]}) == (1.3, "a")
    assert survey.best_of({"a": [0.9, 0.8], "b": [0.7, 0.6]}) == (1.0, "torch")
    assert survey.best_of({}) == (1.0, "torch")


# What the dispatcher is asked


@needs_library
def test_the_zoo_is_chosen_for_without_the_model_in_question(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[set[tuple[int, int]]] = []
    _tables.ensure()
    install = _tables.install

    def seen(given: list[_tables.Table]) -> int:
        installed.append({(entry.n, entry.k) for table in given for entry in table.entries})
        return install(given)

    monkeypatch.setattr(_tables, "install", seen)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    models = zoo.models_of(["llama-3-8b", "gpt2"])
    planned = {one.case: one for one in survey.plan(models, survey.Options())}
    llama, gpt2, restored = installed
    assert not llama & zoo.MODELS["llama-3-8b"].matrices and llama & {(6144, 4096), (28672, 4096)}
    assert (4096, 4096) in gpt2 and (4096, 4096) in restored and not gpt2 & zoo.MODELS["gpt2"].matrices
    assert planned.keys() == models.keys()
    for case, one in planned.items():
        assert set(one.choices) == set(models[case])
        assert one.names and {c.served_by for c in one.choices.values()} - {"torch"} <= set(one.names)
        assert not any(name.startswith(("hgemm_", "sgemm_")) for name in one.names)
    held = Case(1, 4096, 4096, layout="NT", dtype="bfloat16")
    assert planned[held].choices["llama-3-8b"].source == "model"
    assert hgemm_ops.explain(M=1, N=4096, K=4096, layout="NT", dtype=torch.bfloat16, arch="sm_90").source == "table"


@needs_library
def test_kernels_without_a_chance_are_left_out_but_never_the_choice() -> None:
    def limited(predicted: dict[str, float], chosen: str, options: survey.Options, n: int = 64) -> tuple[str, ...]:
        return survey._limited(Case(64, n, 64), predicted, {"": survey.Choice(chosen, "table")}, options)

    predicted = {"a": 1.0, "b": 1.4, "c": 2.5, "d": 1.9}
    assert limited(predicted, "c", survey.Options()) == ("a", "b", "d", "c")
    assert limited(predicted, "torch", survey.Options(within=1.5)) == ("a", "b")
    assert limited(predicted, "torch", survey.Options(candidates=2)) == ("a", "b", "d")
    names = [f"sm90_{kind}_128x64" for kind in ("dmma", "split_skinny")] + ["sm90_dmma_64x64", "sm90_dmma_32x128"]
    mixed = dict.fromkeys(names, 1.0)
    assert limited(mixed, "torch", survey.Options(candidates=3)) == tuple(names)
    found = [limited(mixed, "torch", survey.Options(candidates=1), n) for n in range(8, 400, 8)]
    # One that does not split float32, one that does, and in turn each of the others.
    assert set(found) == {(*names[:2], name) for name in names[2:]}
    assert found == [limited(mixed, "torch", survey.Options(candidates=1), n) for n in range(8, 400, 8)]
    assert {limited(predicted, "c", survey.Options(candidates=1), n) for n in range(8, 400, 8)} == {
        ("a", "b", "c"),
        ("a", "d", "c"),
    }
    (one,) = survey.plan((Case(333, 1016, 1000, layout="TN"),), survey.Options())
    assert one.choices.keys() == {""}


# A run and its journal


def _planned(count: int) -> list[survey.Planned]:
    return [
        survey.Planned(Case(8 + i, 16, 8), ("fast", "middle"), {"": survey.Choice("middle", "model")})
        for i in range(count)
    ]


_HEADER = {"suite": "random", "seed": 5, "count": 4, "csrc": "a"}


@pytest.mark.usefixtures("kernels")
def test_a_run_that_was_cut_off_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, planned, options = tmp_path / "x" / "random.jsonl", _planned(4), survey.Options()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def run(header: dict[str, Any], limit: float | None, *times: float) -> list[survey.Row]:
        journal = survey.Journal(path, header)
        clock = iter(times)
        try:
            return list(survey.run(planned, options, journal, limit, clock=lambda: next(clock, 0.0)))
        finally:
            journal.close()

    measured: list[Case] = []
    measure = survey.measure

    def counted(case: Case, *rest: Any) -> survey.Measurement:
        measured.append(case)
        return measure(case, *rest)

    monkeypatch.setattr(survey, "measure", counted)
    assert [row.planned.case.m for row in run(_HEADER, 10, 0, 1, 5, 11, 12)] == [8, 9]
    assert survey.unfinished_seed(path, {**_HEADER, "seed": 9}) == 5
    assert survey.unfinished_seed(path, {**_HEADER, "csrc": "b"}) is None
    with path.open("a") as file:
        file.write('{"case": {"dtype": "float1')  # the process was killed here
    rows = run(_HEADER, None)
    assert [row.planned.case.m for row in rows] == [8, 9, 10, 11] and [case.m for case in measured] == [8, 9, 10, 11]
    assert rows[0].measured == rows[3].measured  # as it was read, and as it was made
    assert survey.unfinished_seed(path, {**_HEADER, "seed": 9}) is None
    assert len(run(_HEADER, 0, 0, 1, 1, 1, 1)) == 4 and len(measured) == 4
    assert len(run({**_HEADER, "csrc": "b"}, None)) == 4 and len(measured) == 8  # other kernels: anew
    assert len(survey.Journal(path, {**_HEADER, "csrc": "b"})) == 4 and len(survey.Journal(None, _HEADER)) == 0


# Figures and pages


def _shape(
    m: int, choice: float | None, best: float, *, by: str = "k", best_by: str = "k", **more: Any
) -> dict[str, Any]:
    row = {"dtype": "float16", "layout": "NT", "batch": 1, "m": m, "n": 4096, "k": 4096, "align": 16, "torch_us": 9.0}
    chosen = {"": {"served_by": by, "source": "model", "ratio": choice}}
    return row | {"best": best, "best_by": best_by, "chosen": chosen} | more


def test_figures_of_a_survey() -> None:
    rows = [
        _shape(1, 1.0, 1.1, by="torch"),
        _shape(64, 1.21, 1.2),  # by noise: no slowdown
        _shape(65, 0.96, 1.0, best_by="torch"),
        _shape(300, None, 1.3),  # wrong
    ]
    found = survey_figures.figures(survey_figures.scored(rows))
    assert found is not None and found.shapes == 3
    assert found.choice == pytest.approx((1.0 * 1.21 * 0.96) ** (1 / 3))
    assert found.best == pytest.approx((1.1 * 1.21 * 1.0) ** (1 / 3))
    assert found.slowdown == pytest.approx((0.1 + 0.0 + 1 / 0.96 - 1) / 3)
    assert (found.losses, found.worst) == (1, 0.96)
    assert found.torchs == found.best_is_torch == pytest.approx(1 / 3)
    assert survey_figures.figures([]) is None


def _document(suite: str, shapes: list[dict[str, Any]], planned: int) -> dict[str, Any]:
    environment = {"gpu": "NVIDIA T1", "date": "2001-02-03T04:05:06+00:00", "csrc": "0123456789" * 4}
    environment |= {"driver": "1", "cuda": "13", "torch": "2"}
    return {
        "schema": 1, "environment": environment, "survey": suite, "seed": 77, "planned": planned, "shapes": shapes
    }  # fmt: skip


def test_pages_show_what_surveys_found(tmp_path: Path) -> None:
    directory, readme = tmp_path / "results" / "t1", tmp_path / "README.md"
    readme.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    random = [
        _shape(1, 1.25, 1.25),
        _shape(128, 0.9, 1.0, best_by="torch"),
        _shape(32, 1.1, 1.2, batch=4, k=4095, align=2),
    ]
    record.save(_document("random", random, 3), directory / "random.json")
    both = {name: {"served_by": "torch", "source": "model", "ratio": 1.0} for name in ("gpt2", "mistral-7b")}
    record.save(_document("zoo", [_shape(5000, None, 1.2) | {"chosen": both}], 9), directory / "zoo.json")
    assert record.load(directory / "random.json")["shapes"] == random
    pages = tables.generate(tmp_path / "results", readme)
    text, page = pages[readme], pages[directory / "README.md"]
    assert (
        "`random`: 3 shapes that no tuning table and no suite has, drawn with seed 77 (2001-02-03, csrc 01234567)."
        in text
    )
    assert "| random | 3 | 1.074 |" in text and "| zoo | 2 | 1.000 | 1.200 |" in text and "| M 1 to 64 |" not in text
    assert "| M 1 to 64 | 1 | 1.250 | 1.250 | 0.0% | 0.0% | 0% (0%) | 0 (0.0%) | 1.250 |" in page
    assert "| M 65 to 256 | 1 | 0.900 | 1.000 | 11.1% | 11.1% | 0% (100%) | 1 (100.0%) | 0.900 |" in page
    assert "| batched | 1 |" in page and "| unaligned | 1 |" in page and "M 257" not in page
    assert "`zoo`: 1 matmuls of 2 published models, each without the measured times of its (n, k), of 9" in text
    assert "| gpt2 |" not in text and "| gpt2 | 1 | 1.000 | 1.200 | 20.0% |" in page and "| mistral-7b | 1 |" in page


# The command


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(bench.bench, list(arguments))


@needs_library
def test_bench_runs_a_survey_and_keeps_it(
    kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(console, "require_kernels", lambda command: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(survey, "kernel_call", lambda name: kernels["fast"])
    monkeypatch.setattr(sampling, "_SIZES", ((1, 64), (16, 64), (16, 64)))
    monkeypatch.setattr(sampling, "_BATCHED_SIZES", sampling._SIZES)
    monkeypatch.setattr(sampling, "_MOST_PRODUCTS", 4)
    result_path, journal = tmp_path / "r.json", tmp_path / "r.jsonl"
    arguments = ["--suite", "random", "--count", "3", "--json", str(result_path), "--journal", str(journal)]
    first = _invoke(*arguments)
    assert first.exit_code == 0, first.output
    assert "random: 3 of 3 shapes" in first.output
    document = record.load(result_path)
    assert document["survey"] == "random" and len(document["shapes"]) == document["planned"] == 3
    assert (
        document["table"]["sha256"] == survey.tables_id() and document["protocol"]["rounds"] == survey.Options().rounds
    )
    assert asdict(survey.Options()).keys() <= document["protocol"].keys()
    _, held = survey.last_part(journal)
    cases = [{name: row[name] for name in line["case"]} for row, line in zip(document["shapes"], held, strict=True)]
    assert cases == [line["case"] for line in held]
    assert _invoke(*arguments, "--seed", str(document["seed"])).exit_code == 0  # nothing is left to measure
    assert len(journal.read_text().splitlines()) == 4  # the header and three shapes
    assert _invoke(*arguments).exit_code == 0  # complete: another seed
    assert record.load(result_path)["seed"] != document["seed"]
    assert _invoke("--suite", "random", "--dtype", "float16").exit_code == 2
    none = _invoke("--suite", "zoo", "--model", "gpt2", "--limit", "0")
    assert none.exit_code == 0 and "zoo: 0 of 59 shapes" in none.output
    kernels["fast"] = kernels["inaccurate"]
    wrong = _invoke("--suite", "random", "--count", "2")
    assert wrong.exit_code == 1 and "wrong results, not timed" in wrong.output


def test_bench_takes_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "require_kernels", lambda command: None)
    asked: list[Any] = []

    def run(cases: Any, options: Any, screen: Any) -> Any:
        asked.extend(cases)
        raise SystemExit(0)

    monkeypatch.setattr(console, "run_with_progress", run)
    _invoke("--shapes", "1x2x3,4x5x6x7", "--layout", "NN", "--layout", "TT", "--dtype", "bfloat16")
    assert asked == [
        Case(*sizes, batch=batch, layout=layout, dtype="bfloat16")
        for batch, sizes in ((1, (1, 2, 3)), (4, (5, 6, 7)))
        for layout in ("NN", "TT")
    ]
    asked.clear()
    _invoke("--shapes", "1x2x3", "--suite", "peers")
    assert asked == [*SUITES["peers"], Case(1, 2, 3, layout="NT")]
    asked.clear()
    _invoke()
    assert tuple(asked) == SUITES["llm"]
    assert _invoke("--shapes", "1x2").exit_code == 2
