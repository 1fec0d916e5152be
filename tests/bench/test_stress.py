"""benchmarks/stress_products.py, stress_runtime.py and sanitize.py: that they see what they look for. No GPU needed."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from helpers import ACCUMULATION, assert_close_to_torch
from torch import Tensor

import hgemm_ops
from benchmarks import sanitize, stress_grouped, stress_products, stress_runtime
from hgemm_ops import _library

CPU = torch.device("cpu")
SMALL = stress_products.Limits(size=60)

# ---- Random products


def test_a_seed_draws_the_same_products() -> None:
    first, second = ([stress_products.draw(random.Random(3), SMALL) for _ in range(2)] for _ in range(2))
    assert first == second
    assert stress_products.draw(random.Random(4), SMALL) != first[0]


def test_the_products_cover_what_they_should() -> None:
    rng, limits = random.Random(0), stress_products.Limits()
    seen: Counter[str] = Counter()
    sizes = []
    for _ in range(2000):
        case = stress_products.draw(rng, limits)
        seen.update(set(case.features))
        *batch, m, k = case.a.shape
        n = case.b.shape[-2 if case.op == "linear" else -1]
        sizes.append(max(m, n, k))
        assert 2.0 * math.prod(batch) * m * n * k <= limits.flops and min(m, n, k) >= 1
    assert max(sizes) > 4000 and min(sizes) < 30
    expected = {f"op {op}" for op in stress_products.OPS} | {f"route {route}" for route in stress_products.ROUTES}
    expected |= {"float16", "bfloat16", "float32", "misaligned address", "padded rows", "no unit stride", "expanded"}
    expected |= {"row-major", "column-major or batch innermost", "C", "bias", "activation", "alpha or beta"}
    expected |= {"float32 result", "out="}
    assert {name: seen[name] for name in expected if seen[name] < 40} == {}


def test_operands_lie_as_they_should() -> None:
    operand = stress_products.Operand((3, 4, 5), (1, 2, 0), step=2, padding=1, offset=4, expanded=(0,))
    x = operand.make(torch.float16, torch.Generator().manual_seed(0))
    assert x.shape == (3, 4, 5) and x.stride() == (0, 2, 9) and x.storage_offset() == 4
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    assert x.isfinite().all() and int(memory.isfinite().sum()) == 4 * 5 < memory.numel()


def test_products_of_the_cpu_are_within_their_bounds() -> None:
    found = stress_products.stress(40, 1, SMALL, CPU)
    assert found["violating"] == 0 and found["violations"] == [] and 0 < found["largest_share_of_bound"] <= 1
    assert sum(found["kernels"].values()) + found["refused"] == 40
    json.dumps(found, allow_nan=False)


def test_a_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    by_op = stress_products._by_op

    def wrong(*arguments: Any) -> Tensor:
        result = by_op(*arguments)
        result[(-1,) * result.dim()] += 0.25
        return result

    monkeypatch.setattr(stress_products, "_by_op", wrong)
    found = stress_products.stress(20, 1, SMALL, CPU)
    routes = [entry["case"]["route"] for entry in found["violations"]]
    assert found["violating"] == len(routes) > 5 and "torch" not in routes


def test_what_torch_serves_must_be_torchs_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    by_torch, calls = stress_products._by_torch, iter(range(10**6))

    def restless(*arguments: Any) -> Tensor:
        result = by_torch(*arguments)
        return result.add_(result * torch.finfo(result.dtype).eps * 2) if next(calls) % 2 else result

    monkeypatch.setattr(stress_products, "_by_torch", restless)
    monkeypatch.setattr(stress_products, "excess", lambda *_: 0.0)
    monkeypatch.setattr(stress_products, "_torchs", lambda case, a, b, c: iter([by_torch(case, a, b, c)]))
    found = stress_products.stress(20, 1, SMALL, CPU)
    routes = Counter(entry["case"]["route"] for entry in found["violations"])
    assert set(routes) == {"torch"} and routes["torch"] > 3


def test_a_write_beside_the_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    by_op = stress_products._by_op

    def beside(case: Any, a: Tensor, b: Tensor, c: Any, out: Tensor | None, variant: int) -> Tensor:
        result = by_op(case, a, b, c, out, variant)
        if out is not None:
            out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0)
        return result

    monkeypatch.setattr(stress_products, "_by_op", beside)
    found = stress_products.stress(60, 1, SMALL, CPU)
    assert found["violating"] > 0 and all(entry["outside"] for entry in found["violations"])


def test_the_bound_is_that_of_the_tests() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(40, 64).half(), torch.randn(64, 48).half()
    exact, magnitude, theirs = a.double() @ b.double(), a.double().abs() @ b.double().abs(), a @ b
    noise = ACCUMULATION * torch.finfo(torch.float32).eps * magnitude
    for step in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 8.0, math.inf, math.nan):
        out = theirs.clone()
        out[7, 9] += step * torch.finfo(torch.float16).eps * exact[7, 9].abs()
        inside = stress_products.excess(out, exact, theirs, noise) <= 1
        try:
            assert_close_to_torch(out, exact, theirs, magnitude=magnitude)
        except AssertionError:
            assert not inside, step
        else:
            assert inside, step


def test_infinities_must_be_torchs() -> None:
    exact, noise = torch.tensor([[7e4]]).double(), torch.tensor([[1.0]]).double()
    theirs = torch.tensor([[math.inf]]).half()
    assert stress_products.excess(theirs.clone(), exact, theirs, noise) == 0
    for other in (-math.inf, math.nan, 65504.0):
        assert stress_products.excess(torch.tensor([[other]]).half(), exact, theirs, noise) == math.inf


# ---- Rows of grouped matmuls


def test_a_row_that_depends_on_its_company_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = stress_grouped.Trial(
        dtype="float32",
        n=16,
        k=24,
        columns_first=True,
        kept=[3, 0, 5, 2],
        before=[[1, 0, 2, 0], [0, 4, 0, 1]],
        after=[[0, 3, 0, 1], [2, 0, 7, 0]],
    )

    def by_rows(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
        groups = torch.searchsorted(offs, torch.arange(len(x)), right=True)
        return torch.stack([(row.double() @ w[group].double()).float() for row, group in zip(x, groups, strict=True)])

    def by_company(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
        out = by_rows(x, w, offs)
        out[int(offs[1]) : int(offs[2]), 7] += len(x) * 1e-3  # of the third expert alone
        return out

    differing = []
    for grouped_mm in (by_rows, by_company):
        monkeypatch.setattr(torch, "_grouped_mm", lambda x, w, offs, by=grouped_mm: by(x, w, offs))
        differing.append(stress_grouped.rows_that_differ(trial, torch.Generator().manual_seed(0))[0])
    assert differing == [0, 5]


def test_trials_of_a_seed_are_the_same_and_reach_every_kind() -> None:
    first, second = ([stress_grouped.draw(random.Random(7)) for _ in range(2)] for _ in range(2))
    assert first == second
    rng = random.Random(0)
    drawn = [stress_grouped.draw(rng) for _ in range(200)]
    assert {trial.dtype for trial in drawn} == set(stress_grouped.DTYPES)
    assert {trial.columns_first for trial in drawn} == {False, True}
    assert any(0 in trial.kept for trial in drawn)
    assert sum(map(sum, (trial.kept for trial in drawn))) > 200_000


# ---- Long runs


@pytest.fixture
def machine() -> stress_runtime.Machine:
    return stress_runtime.Machine(CPU)


def test_calls_are_made_by_every_thread(machine: stress_runtime.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stress_runtime.count_calls(machine, 480, 8, 4, 2, 3)
    assert found["calls"] == 480 and len(found["samples"]) == 4
    assert found["samples"][-1]["calls"] == 480
    kept: list[bytes] = []
    monkeypatch.setattr(machine, "synchronize", lambda stream=None: kept.append(b"x" * (1 << 20)))
    assert not stress_runtime.count_calls(machine, 480, 8, 4, 2, 3)["ok"]


def test_a_thread_that_fails_ends_the_run(machine: stress_runtime.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(a: Tensor, b: Tensor) -> Tensor:
        raise ValueError("no product")

    monkeypatch.setattr(Tensor, "__matmul__", fail)
    with pytest.raises(ValueError, match="no product"):
        stress_runtime.count_calls(machine, 480, 8, 4, 2, 3)


def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of what the left operand was before it was last written."""
    multiply, seen = torch.mm, {}

    def late(a: Tensor, b: Tensor, **options: Any) -> Tensor:
        before = seen.get((a.data_ptr(), a.shape, a.dtype), a)
        seen[a.data_ptr(), a.shape, a.dtype] = a.clone()
        return multiply(before, b, **options)

    monkeypatch.setattr(torch, "mm", late)


def test_chains_see_a_stale_operand(machine: stress_runtime.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    links = (stress_runtime.Link(4, 24, 24), stress_runtime.Link(3, 20, 25), stress_runtime.Link(4, 8, 8, 3))
    found = stress_runtime.chain_links(machine, 2, links)
    assert found["ok"] and found["wrong"] == {}
    assert found["chains"] == 2 * 2 * (3 + 2 + 3)
    stale(monkeypatch)
    found = stress_runtime.chain_links(machine, 1, links[:2])
    assert not found["ok"] and found["wrong"]["torch"] >= 4


def test_reused_buffers_and_captures(machine: stress_runtime.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stress_runtime.reuse_buffers(machine, 2) == {"rounds": 2, "products": 10, "wrong": 0, "ok": True}
    found = stress_runtime.capture_beside_calls(machine, 2)
    assert found["ok"] and found["calls"]["replayed"] == 6 and found["calls"]["eager"] > 0
    monkeypatch.setattr(Tensor, "__matmul__", lambda a, b: torch.matmul(a, b) + 1)
    assert stress_runtime.reuse_buffers(machine, 1)["wrong"] == 5
    assert set(stress_runtime.capture_beside_calls(machine, 1)["wrong"]) == {"eager", "replayed"}


def test_products_under_a_limit_must_end_as_torchs_do(
    machine: stress_runtime.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stress_runtime.limit_memory(machine, 20)
    assert found["ok"] and found["ends"] == {"torch ok, ours ok": 20}
    ends = iter(["ok", "OutOfMemoryError", "OutOfMemoryError", "ok", "OutOfMemoryError", "RuntimeError"])
    monkeypatch.setattr(stress_runtime, "_under_limit", lambda machine, left, call: (next(ends), None))
    found = stress_runtime.limit_memory(machine, 3)
    assert [text.split(":")[0] for text in found["wrong"]] == [
        "torch ok, ours OutOfMemoryError",
        "torch OutOfMemoryError, ours RuntimeError",
    ]
    results = iter([torch.ones(4, 4), torch.full((4, 4), 2.0)])
    monkeypatch.setattr(stress_runtime, "_under_limit", lambda machine, left, call: ("ok", next(results)))
    assert "another result" in stress_runtime.limit_memory(machine, 1)["wrong"][0]


@pytest.mark.slow
@pytest.mark.parametrize("script", [stress_products, stress_runtime])
def test_quick_runs_write_a_record(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress_products, "Limits", lambda size=0: SMALL)
    path = tmp_path / "stress.json"
    result = CliRunner().invoke(script.main, ["--quick", "--output", str(path)])
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["environment"]["torch"] == torch.__version__
    assert CliRunner().invoke(script.main, ["--quick"]).exit_code == 2


# ---- compute-sanitizer

KERNELS = [v.name for v in hgemm_ops.variants() if v.family != "ladder"][:5]
needs_kernels = pytest.mark.skipif(not KERNELS, reason=f"no native library: {_library.reason()}")
FAKE = """\
#!/bin/sh
tool=$2
shift 6  # --tool X --error-exitcode 99 python smoke
echo "$tool $@" >> {log}
for kernel; do
  case "$tool $kernel" in
    "{found}") echo "========= Invalid read"; echo "========= ERROR SUMMARY: 1 error"; exit 99 ;;
    "{slow}") sleep 60 ;;
  esac
  echo "$kernel: 7 launches"
done
echo "========= ERROR SUMMARY: 0 errors"
"""


def sanitized(
    tmp_path: Path, *arguments: str, found: str = "-", slow: str = "-"
) -> tuple[int, dict[str, Any], list[str]]:
    fake, log, output = tmp_path / "sanitizer", tmp_path / "log", tmp_path / "out.json"
    fake.write_text(FAKE.format(log=log, found=found, slow=slow))
    fake.chmod(0o755)
    log.write_text("")
    options = ["--sanitizer", str(fake), "--output", str(output), "--at-once", "2"]
    options += [option for name in KERNELS for option in ("--kernel", name)]
    result = CliRunner().invoke(sanitize.main, [*options, *arguments])
    document = json.loads(output.read_text()) if output.exists() else {}
    return result.exit_code, document, log.read_text().splitlines()


@needs_kernels
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_every_tool_sees_every_kernel(tmp_path: Path, jobs: str) -> None:
    status, document, runs = sanitized(tmp_path, "--jobs", jobs)
    assert status == 0 and len(runs) == 4 * 3
    assert document["environment"]["csrc"] and all(document["rooms"].values())
    for tool in sanitize.TOOLS:
        assert document["totals"][tool] == {
            "clean": 5,
            "meant": 0,
            "skipped": 0,
            "found": 0,
            "failed": 0,
            "launches": 35,
            "complete": True,
        }
        assert list(document["tools"][tool]) == KERNELS
    status, _, runs = sanitized(tmp_path)
    assert (status, runs) == (0, [])  # of the same sources, nothing is left


@needs_kernels
def test_what_a_tool_finds_is_kept_and_looked_at_again(tmp_path: Path) -> None:
    status, document, _ = sanitized(tmp_path, "--tool", "racecheck", found=f"racecheck {KERNELS[3]}")
    assert status == 1 and document["totals"]["racecheck"]["found"] == 2  # with the one before it in its process
    entry = document["tools"]["racecheck"][KERNELS[3]]
    assert entry["with"] == KERNELS[2:4] and "========= Invalid read" in entry["output"]
    status, document, runs = sanitized(
        tmp_path, "--tool", "racecheck", "--at-once", "1", found=f"racecheck {KERNELS[3]}"
    )
    assert status == 1 and document["totals"]["racecheck"]["found"] == 1
    assert runs == [f"racecheck {name}" for name in KERNELS[2:4]]


@needs_kernels
def test_a_run_that_is_stopped_goes_on_later(tmp_path: Path) -> None:
    slow = f"memcheck {KERNELS[4]}"
    status, document, _ = sanitized(tmp_path, "--tool", "memcheck", "--limit", "2", slow=slow)
    assert status == 1 and not document["totals"]["memcheck"]["complete"]
    assert document["totals"]["memcheck"]["clean"] == 4
    status, document, runs = sanitized(tmp_path, "--tool", "memcheck")
    assert status == 0 and runs == [slow] and document["totals"]["memcheck"]["complete"]


@needs_kernels
def test_a_record_of_other_sources_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sanitized(tmp_path, "--tool", "memcheck")
    known = json.loads((tmp_path / "out.json").read_text())
    known["rooms"]["kernels"] = "0" * 40
    (tmp_path / "out.json").write_text(json.dumps(known))
    assert len(sanitized(tmp_path, "--tool", "memcheck")[2]) == 3


READ = """\
========= Uninitialized __global__ memory read of size 8 bytes
=========     at hgemm::ptx::flag_load(const unsigned long *)+0x40 in flag.cuh:17
=========     by thread (256,0,0) in block (3,0,0)
"""
OTHER = "=========     at void hgemm::tile::add_scaled<__half>(float (&)[8], float)+0x550 in epilogue.cuh:93\n"


@pytest.mark.parametrize(
    ("tool", "kernels", "output", "is_meant"),
    [
        ("initcheck", ["a", "b_streamk"], 2 * READ + "========= ERROR SUMMARY: 2 errors\n", True),
        ("initcheck", ["a", "b_streamk"], READ + "========= ERROR SUMMARY: 2 errors\n", False),
        ("initcheck", ["a", "b_streamk"], READ + OTHER + "========= ERROR SUMMARY: 2 errors\n", False),
        ("initcheck", ["a", "b_streamk"], OTHER + "========= ERROR SUMMARY: 1 error\n", False),
        ("initcheck", ["a", "b"], READ + "========= ERROR SUMMARY: 1 error\n", False),
        ("memcheck", ["b_streamk"], READ + "========= ERROR SUMMARY: 1 error\n", False),
    ],
    ids=["all of them", "some not printed", "others too", "others", "another kernel", "another tool"],
)
def test_waiting_for_a_flag_is_meant(tool: str, kernels: list[str], output: str, is_meant: bool) -> None:
    assert (sanitize.meant(tool, kernels, output) is not None) == is_meant
