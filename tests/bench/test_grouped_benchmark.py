"""Grouped matmuls beside peers: ``benchmarks/grouped.py`` and the page of its results. No GPU, and no timing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from benchmarks import grouped, grouped_peers, kinds, result_page, tables
from benchmarks.grouped_peers import Operands, Unavailable
from hgemm_ops.bench import record

CHOSEN = "sm90_wgmma_grouped_64x64"
ENVIRONMENT = {"gpu": "NVIDIA T1", "driver": "1", "cuda": "13.0", "torch": "2", "csrc": None, "date": "2026-01-02T03"}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model, a dispatcher that always chooses CHOSEN, and replays that take as long as the side says."""

    @contextmanager
    def context() -> Iterator[Any]:
        yield SimpleNamespace(rows=[SimpleNamespace(op="grouped", variant=CHOSEN)])

    def captured(run: Callable[[], None], stream: Any) -> Callable[[], None]:
        run()
        return run

    names = [SimpleNamespace(name=name) for name in ("torch", CHOSEN)]
    monkeypatch.setattr(grouped, "DEVICE", "cpu")
    monkeypatch.setattr(grouped, "_GROWTH", 1 << 10)
    monkeypatch.setattr(grouped, "_values", {})
    monkeypatch.setattr(grouped, "MODELS", {"tiny": (4, 2, 16, 24)})
    monkeypatch.setattr(grouped, "use_custom_gemm", context)
    monkeypatch.setattr(grouped, "captured", captured)
    monkeypatch.setattr(grouped, "timed", lambda run: 8.0)
    monkeypatch.setattr(
        grouped.hgemm_ops, "explain_grouped", lambda *_, **__: SimpleNamespace(chosen=CHOSEN, candidates=names)
    )
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


class Fake:
    """A peer that runs this function."""

    version = "1.0"

    def __init__(self, call: Callable[[Operands], Tensor]) -> None:
        self.call = call

    def prepare(self, x: Operands) -> tuple[str, Callable[[Operands], Tensor]]:
        return "tile", self.call


def refusing(x: Operands) -> Tensor:
    raise ValueError("too few rows\nand more")


def measure(layer: str = "up", spread: str = "even", **peers: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    return grouped.measure(grouped.Case("tiny", layer, 9, spread, "bfloat16"), 1e3, 1.0, peers=peers)


@pytest.mark.parametrize("layer", grouped.LAYERS)
@pytest.mark.parametrize("spread", grouped.SPREADS)
def test_the_loop_is_right_in_every_layer_and_spread(layer: str, spread: str) -> None:
    case = grouped.Case("tiny", layer, 3, spread, "bfloat16")
    sets, error = grouped.sets_of(case, case.rows())
    assert len(sets) >= (1 if layer == "gradient" else 4)
    for x in sets:
        assert x.ends.diff(prepend=torch.zeros(1)).tolist() == [*x.counts]
        out = grouped_peers.loop(x)
        torch.testing.assert_close(out, torch._grouped_mm(x.a, x.b, offs=x.ends), rtol=1e-2, atol=1e-2)
    assert error(grouped_peers.loop(sets[0])) < 1e-2
    assert math.isnan(error(torch.full_like(grouped_peers.loop(sets[0]), math.nan)))


@pytest.mark.parametrize("layer", grouped.LAYERS)
@pytest.mark.parametrize("of", [0, -1])
def test_a_fault_of_the_first_or_last_expert_is_seen(layer: str, of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "MODELS", {"tiny": (9, 2, 16, 24)})
    case = grouped.Case("tiny", layer, 9, "even", "bfloat16")
    sets, error = grouped.sets_of(case, case.rows())
    out = grouped_peers.loop(sets[0])
    assert error(out) < 1e-2
    out[of] = 0  # an expert's gradient, or a row
    assert error(out) > 0.1


@pytest.mark.parametrize("layer", grouped.LAYERS)
def test_a_row_has_its_peers(layer: str) -> None:
    row = measure(layer, loop=grouped_peers.load("loop"))
    (peer,) = row["peers"].values()
    assert peer.keys() == {"configuration", "error", "us", "ratio", "ours"}
    assert peer["configuration"] == "torch.mm" and peer["us"] > 0 and peer["ratio"] == peer["ours"] == 1
    assert "loop" in grouped.line_of(row) and "(torch.mm), ours 1.00 times as fast" in grouped.line_of(row)
    alone = measure(layer)
    assert alone.keys() == row.keys() - {"peers"} and "torch.mm" not in grouped.line_of(alone)


def test_a_peer_is_timed_in_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def quick(x: Operands) -> Tensor:
        ran.append("quick")
        return grouped_peers.loop(x)

    def timed(run: Callable[[], None]) -> float:
        ran.clear()
        run()
        return 2.0 if "quick" in ran else 8.0

    monkeypatch.setattr(grouped, "timed", timed)
    row = measure(some=Fake(quick))
    peer = row["peers"]["some"]
    assert peer["configuration"] == "tile" and peer["error"] < 1e-2
    assert peer["ratio"] == 4 and peer["ours"] == 0.25 and row["ratio"] == 1


def test_a_checked_result_cannot_pass_for_the_next_one() -> None:
    case = grouped.Case("tiny", "down", 9, "even", "bfloat16")
    sets, error = grouped.sets_of(case, case.rows())
    made: list[Tensor] = []

    def again(x: Operands) -> Tensor:  # as an allocator does, this gives the same memory, and nothing is written to it
        made.append(made[0] if made else grouped_peers.loop(x))
        return made[-1]

    assert grouped.checked(again, sets[0], error) < 1e-2
    assert math.isnan(grouped.checked(again, sets[0], error))


def test_a_peer_that_fails_or_is_wrong_is_named() -> None:
    def unwritten(x: Operands) -> Tensor:
        return x.empty().fill_(math.nan)

    row = measure(
        off=Fake(lambda x: grouped_peers.loop(x) * 1.1),
        unwritten=Fake(unwritten),
        no=Fake(refusing),
        missing="not installed",
        loop=grouped_peers.load("loop"),
    )
    found = row["peers"]
    assert found["off"].keys() == found["unwritten"].keys() == {"wrong"}
    assert found["off"]["wrong"].startswith("tile: error 1.0e-01, allowed ")
    assert found["no"] == {"failed": "ValueError: too few rows"}
    assert found["missing"] == {"failed": "not installed"}
    assert "us" in found["loop"]
    assert "; no failed: ValueError: too few rows; " in grouped.line_of(row)


def test_a_capture_that_fails_leaves_the_other_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def once(x: Operands) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return grouped_peers.loop(x)

    found = measure(once=Fake(once), loop=grouped_peers.load("loop"))["peers"]
    assert found["once"] == {"failed": "RuntimeError: operation not permitted when stream is capturing"}
    assert "us" in found["loop"]


def test_after_a_broken_gpu_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken: list[bool] = []

    def illegal(x: Operands) -> Tensor:
        if x.a.size(0) > 8:
            broken.append(True)
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return grouped_peers.loop(x)

    def synchronize() -> None:
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA T1")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(grouped.runner, "copy_gbps", lambda: 1e3)
    monkeypatch.setattr(grouped, "dense_tflops", lambda: 1.0)
    monkeypatch.setattr(grouped_peers, "load", lambda name: Fake(illegal))
    output = tmp_path / "found.json"
    options = ["--models", "tiny", "--layers", "up", "--tokens", "4,8", "--spreads", "even,zipf", "--verbose"]
    result = CliRunner().invoke(grouped.main, [*options, "--peers", "triton", "--output", str(output)])
    assert result.exit_code == 1 and "triton: RuntimeError: CUDA error: an illegal memory access" in result.output
    found = record.load(output)["grouped"]
    assert [(row["tokens"], row["spread"]) for row in found["rows"]] == [(4, "even"), (4, "zipf")]
    assert found["peers"] == {"triton": "1.0"} and "tokens=8" in found["broken"]
    options = [*options[:-1], "--seconds", "60", "--output", str(output)]
    broken.clear()
    assert CliRunner().invoke(grouped.main, options).exit_code == 0
    found = record.load(output)["grouped"]
    assert len(found["rows"]) == 4 and "peers" not in found and "broken" not in found


def test_the_spreads_of_a_layer_follow_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[Any, ...]] = []
    spreads: list[str] = []

    def measured(case: grouped.Case, *_: Any) -> dict[str, Any]:
        ran.append((case.layer, case.tokens))
        spreads.append(case.spread)
        row = {"layer": "up", "dtype": "bfloat16", "tokens": 1, "spread": "even", "torch": 2.0, "ours": 1.0}
        return {**row, "ratio": 2.0, "bound": 1.0}

    monkeypatch.setattr(grouped, "measure", measured)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA T1")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(grouped.runner, "copy_gbps", lambda: 1e3)
    monkeypatch.setattr(grouped, "dense_tflops", lambda: 1.0)
    options = ["--seconds", "60", "--output", str(tmp_path / "found.json"), "--peers", "loop"]
    assert CliRunner().invoke(grouped.main, options).exit_code == 0
    assert len(ran) == 3 * 15 * 3 and ran[::3] == ran[1::3] == ran[2::3]
    planned = list(itertools.product(grouped.LAYERS, grouped.TOKENS))
    assert spreads == [*grouped.SPREADS] * len(planned)
    assert ran[::3] != planned and sorted(ran[::3]) == sorted(planned)


def test_triton_gets_the_ends_of_every_set(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = grouped_peers.Triton.__new__(grouped_peers.Triton)
    names = iter(["64x64x64", "no template"])
    monkeypatch.setattr(grouped_peers.triton, "compiled", lambda program, *operands: (next(names), program))
    case = grouped.Case("tiny", "up", 1, "even", "bfloat16")
    sets, _ = grouped.sets_of(case, case.rows())
    name, call = peer.prepare(sets[0])
    assert name == "64x64x64" and len({x.counts for x in sets}) > 1
    for x in sets:
        assert torch.equal(call(x), torch._grouped_mm(x.a, x.b, offs=x.ends))
    with pytest.raises(Unavailable, match="no Triton kernel"):
        peer.prepare(sets[0])


def test_peers_that_cannot_run_here_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_peers.peers, "load", lambda name: (_ for _ in ()).throw(Unavailable("no Triton")))
    assert grouped_peers.load("triton") == "no Triton"
    monkeypatch.setattr(grouped_peers.peers, "load", lambda name: 1 // 0)
    assert grouped_peers.load("triton").startswith("ZeroDivisionError: ")
    assert CliRunner().invoke(grouped.main, ["--peers", "cutlass"]).exit_code == 2


def row_of(tokens: int, **peers: Any) -> dict[str, Any]:
    names = {"model": "tiny", "layer": "up", "tokens": tokens, "spread": "even", "dtype": "bfloat16"}
    return {**names, "torch": 20.0, "ours": 10.0, "ratio": 2.0, "kernel": CHOSEN, "peers": peers}


def of_peer(us: float, ours: float) -> dict[str, Any]:
    return {"configuration": "tile", "error": 1e-3, "us": us, "ratio": 20.0 / us, "ours": ours}


def test_the_page_sums_up_the_peers(tmp_path: Path) -> None:
    rows = [
        row_of(8, loop=of_peer(40.0, 4.0), triton=of_peer(8.0, 0.8)),
        row_of(64, loop=of_peer(10.0, 1.0), triton={"failed": "no Triton kernel"}),
        row_of(512, loop={"wrong": "torch.mm: error nan, allowed 1e-2"}, triton={"failed": "no Triton kernel"}),
    ]
    about = {"peers": {"loop": "torch 2", "triton": "triton 3"}, "broken": "triton: illegal access"}
    document = {"schema": 1, "environment": ENVIRONMENT, "grouped": {**about, "rows": rows}}
    results = tmp_path / "results"
    record.save(document, results / "t1" / "grouped-peers.json")
    summary = tmp_path / "benchmarks.md"
    summary.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    page = tables.generate(results, summary)[results / "t1" / "README.md"]
    assert "Versions: loop: torch 2; triton: triton 3." in page
    assert "| loop | 2 of 3 | 1.000 | 2.000 | 1.000, tiny up bfloat16, 64 tokens even | 0 |" in page
    assert "| triton | 1 of 3 | 2.500 | 0.800 | 0.800, tiny up bfloat16, 8 tokens even | 1 |" in page
    assert "| the fastest | 2 of 3 | 2.236 | 0.894 | 0.800, tiny up bfloat16, 8 tokens even | 1 |" in page
    assert "- `triton` failed: no Triton kernel (cases: 2, first tiny up bfloat16, 64 tokens even)" in page
    assert "- `loop` wrong: torch.mm: error nan, allowed 1e-2 (cases: 1" in page and "illegal access" in page
    first = f"| tiny up bfloat16, 8 tokens even | 20 | 10 | 40 (tile) | 8 (tile) | **0.800** | {CHOSEN} |"
    assert first in page and f"| 20 | 10 | wrong | failed | - | {CHOSEN} |" in page
    none = {"schema": 1, "environment": ENVIRONMENT, "grouped": {"peers": {"loop": "torch 2"}, "rows": []}}
    assert "| loop | 0 of 0 | - | - | - | - |" in result_page.page({"grouped-peers": none}, tmp_path)


def test_results_without_peers_are_read_as_before(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row_of(8).items() if name != "peers"}]
    document = {"schema": 1, "environment": ENVIRONMENT, "grouped": {"copy_gbps": 1.0, "rows": rows}}
    record.save(document, tmp_path / "t1" / "grouped.json.xz")
    found = record.load(tmp_path / "t1" / "grouped.json.xz")
    assert "Grouped" not in result_page.page({"grouped": found}, tmp_path)
    assert kinds.by_kind({"grouped": found}) == {"mixtures of experts, grouped": [2.0]}
