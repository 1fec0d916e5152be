"""The report of use_custom_gemm: its rows, how it prints, and what it makes of the native counters."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hgemm_ops import _library, _native, _report, _variants, explain, use_custom_gemm
from hgemm_ops._report import ELSEWHERE, Call, Operand, Report

TIMES = "\N{MULTIPLICATION SIGN}"


def operand(*sizes: int, order: str = "C") -> Operand:
    t = torch.empty(sizes, device="meta")
    t = t if order == "C" else torch.empty((*sizes[:-2], sizes[-1], sizes[-2]), device="meta").mT
    return Operand(tuple(t.shape), t.stride(), 16)


def linear(site: str, m: int = 8, n: int = 16, k: int = 4, **changes: Any) -> Call:
    call = {"dtype": torch.float32, "device": torch.device("cpu"), "a": operand(m, k), "b": operand(n, k)}
    return Call(site, "linear", **{"kind": "linear", **call, **changes})


def report_of(calls: dict[Call, int]) -> Report:
    report = Report()
    for call, n in calls.items():
        report._add(call, n)
    return report


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.scale = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) @ self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        scores = x @ x.mT
        return self.head(scores @ x)


def test_rows_of_a_model() -> None:
    net, x = Net(), torch.randn(2, 3, 4)
    with use_custom_gemm() as report:
        net(x)
        net(x)
        net(x[:1])
    rows = {(row.site.partition(":")[0], row.batch, row.m): row for row in report.rows}
    up = rows["layers.1.up", 1, 6]
    assert (up.op, up.n, up.k, up.dtype, up.layout, up.calls) == ("linear", 8, 4, "float32", "NT", 2)
    scale = rows["layers.2", 1, 6]
    assert (scale.op, scale.n, scale.k, scale.layout, scale.calls) == ("matmul", 4, 8, "NN", 2)
    products = [row for row in report.rows if row.site.startswith("Net test_report.py:")]
    assert [(row.batch, row.m, row.n, row.k, row.layout, row.calls) for row in products] == [
        (2, 3, 3, 4, "NT", 2),
        (2, 3, 4, 3, "NN", 2),
        (1, 3, 3, 4, "NT", 1),
        (1, 3, 4, 3, "NN", 1),
    ]
    assert rows["head", 1, 3].calls == 1
    assert sum(row.calls for row in report.rows) == 3 * 9


def test_sites_outside_of_modules() -> None:
    def step(a: Tensor) -> Tensor:
        return a @ a

    with use_custom_gemm() as report:
        step(torch.ones(2, 2))
        torch.einsum("ij,jk", torch.ones(2, 2), torch.ones(2, 2))
    sites = [row.site for row in report.rows]
    assert sites[0].startswith("step test_report.py:")
    assert sites[1].startswith("test_sites_outside_of_modules test_report.py:")


def test_one_line_that_runs_in_several_shapes_and_layouts() -> None:
    a = torch.randn(4, 4)
    with use_custom_gemm() as report:
        for size in (2, 3, 4, 2):
            a[:size] @ a
        for b in (torch.randn(4, 3), torch.randn(3, 4).T):
            torch.mm(a, b)
    assert [(row.op, row.m, row.calls) for row in report.rows] == [
        ("matmul", 2, 2), ("matmul", 3, 1), ("matmul", 4, 1), ("mm", 4, 2),
    ]  # fmt: skip


def test_a_tied_weight_is_named_by_the_module_that_runs() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embedding(ids))

    with use_custom_gemm() as report:
        Tied()(torch.arange(3))
    assert [row.site for row in report.rows] == ["head"]


def test_reading_does_not_disturb() -> None:
    a = torch.ones(2, 2)
    with use_custom_gemm() as report:
        assert report.rows == []
        assert str(report) == "no matrix products were seen"
        for n in range(1, 4):
            torch.mm(a, a)
            assert [row.calls for row in report.rows] == [n]
            assert [row.calls for row in report.rows] == [n]
    assert [row.calls for row in report.rows] == [3]
    assert repr(report) == "<hgemm_ops report: 3 calls of 1 kinds>"


def test_rows_keep_the_order_of_first_calls() -> None:
    class Odd(nn.Linear): ...

    class Even(nn.Linear): ...

    x = torch.ones(2, 3)
    even = Even(3, 4)
    with use_custom_gemm() as report:
        even(x)
        Odd(3, 4)(x)  # gone before the report is read
        even(x)
    assert [row.site for row in report.rows] == ["Even", "Odd"]


def test_layers_are_one_line() -> None:
    calls = {linear(f"model.layers.{i}.mlp.up_proj"): 2 for i in (*range(32), 40, 42)}
    calls |= {linear(f"model.layers.0.experts.{i}.w1"): 1 for i in range(4)}
    calls |= {linear("3.weights"): 1, linear("4.weights"): 1, linear("lm_head", n=99): 5, linear("lm_head", n=7): 1}
    calls |= {linear(f"model.layers.{i}.mlp.up_proj (backward)", m=9): 1 for i in range(2)}
    report = report_of(calls)
    lines = str(report).splitlines()
    assert [line.split()[:2] for line in lines[1:8]] == [
        ["model.layers.{0-31,40,42}.mlp.up_proj", TIMES + "34"],
        ["model.layers.0.experts.{0-3}.w1", TIMES + "4"],
        ["{3-4}.weights", TIMES + "2"],
        ["lm_head", "linear"],
        ["lm_head", "linear"],
        ["model.layers.{0-1}.mlp.up_proj", "(backward)"],
        [],
    ]
    assert " 68  " in lines[1]
    assert len(report.rows) == len(calls)


def test_many_shapes_are_one_line() -> None:
    few = {linear("a", m=m): 1 for m in range(1, 5)}
    many = {linear("b", m=m, k=2 * m): 1 for m in range(1, 6)}
    lines = str(report_of({**few, **many})).splitlines()
    assert len(lines) == 1 + 4 + 1 + 1 + 3
    assert lines[5].split()[:7] == ["b", "linear", "1", "1..5", "16", "2..10", "float32"]


def test_columns_are_aligned() -> None:
    report = report_of({linear("short", m=1): 1, linear("a.much.longer.name", m=100000): 12345})
    header, first, second = str(report).splitlines()[:3]
    for name, values in {"m": ("1", "100000"), "calls": ("1", "12345")}.items():
        end = header.index(f" {name} ") + len(name) + 1
        for line, value in zip((first, second), values, strict=True):
            assert line[:end].endswith(f" {value}")


def test_footer_and_dict() -> None:
    report = Report()
    report._counts.update({linear("a", m=1, n=1, k=1): 3, Call("b", "conv1d", left="convolution"): 1})
    assert report.to_dict()["flops"] == 6
    text = str(report)
    assert "our kernels: 0 of 4 calls (0.0%), 0.0% of the FLOPs" in text
    assert "torch: 4 of 4 calls (100.0%), 100.0% of the FLOPs" in text
    assert "  3 calls: kernels run on CUDA devices, not on cpu" in text
    assert "  1 call: convolution" in text
    data = json.loads(json.dumps(report.to_dict()))
    assert data["calls"] == 4
    assert data["kernel_calls"] == 0
    assert data["torch_calls"] == {"kernels run on CUDA devices, not on cpu": 3, "convolution": 1}
    assert data["rows"][0] == {
        "site": "a", "op": "linear", "batch": 1, "m": 1, "n": 1, "k": 1, "dtype": "float32", "layout": "NT",
        "variant": "torch", "calls": 3, "reason": "kernels run on CUDA devices, not on cpu", "flops": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("op", "a", "b", "sizes", "layout"),
    [
        ("linear", operand(2, 3, 4), operand(5, 4), (1, 6, 5, 4), "NT"),
        ("linear", operand(3, 4), operand(5, 4, order="F"), (1, 3, 5, 4), "NN"),
        ("linear", operand(3, 4), operand(4), (1, 3, 1, 4), "NT"),
        ("matmul", operand(3, 4), operand(4, 5), (1, 3, 5, 4), "NN"),
        ("matmul", operand(3, 4, order="F"), operand(4, 5, order="F"), (1, 3, 5, 4), "TT"),
        ("matmul", operand(2, 3, 4), operand(4, 5), (1, 6, 5, 4), "NN"),
        ("matmul", operand(2, 1, 3, 4), operand(6, 4, 5), (12, 3, 5, 4), "NN"),
        ("matmul", operand(4), operand(4), (1, 1, 1, 4), "NN"),
        ("matmul", operand(4), operand(2, 4, 5), (2, 1, 5, 4), "NN"),
        ("matmul", operand(0, 3, 4), operand(4, 5), (1, 0, 5, 4), "NN"),
        ("bmm", operand(2, 3, 4), operand(2, 4, 5, order="F"), (2, 3, 5, 4), "NT"),
    ],
)
def test_sizes_and_layouts(op: str, a: Operand, b: Operand, sizes: tuple[int, ...], layout: str) -> None:
    (row,) = report_of({linear("x", a=a, b=b, kind=op): 1}).rows
    assert (row.batch, row.m, row.n, row.k) == sizes
    assert row.layout == layout


class Library:
    """Stands in for the shared library: counters that a test sets, decisions that are always "model: fastest"."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counters: Counter[_report._NativeCall] = Counter()
        self.users: list[bool] = []
        self.queries: list[_native.Query] = []
        patch.setattr(_library, "load", lambda: True)
        patch.setattr(_native, "lib", lambda: self)
        patch.setattr(_native, "explain", self.explain)
        patch.setattr(_report, "_idle", None)
        library, self.understood = self, 0

        class Stats:
            def __init__(self) -> None:
                self.calls = Counter(library.counters)

        def understand(stats: Any) -> Counter[_report._NativeCall]:
            self.understood += 1
            return Counter(stats.calls)

        patch.setattr(_native, "Stats", Stats)
        patch.setattr(_report, "_native_calls", understand)
        patch.setattr(_report, "_device_facts", lambda ordinal: _native.Facts(cc=90))
        patch.setattr(_report._tables, "ensure", lambda: None)
        patch.setattr(_variants, "name_of", lambda id_: {3: "kernel", -2: "torch"}[id_])

    def hgemm_stats_enable(self, on: bool) -> None:
        self.users.append(bool(on))

    def count(self, calls: dict[_report._NativeCall, int]) -> None:
        """Calls that kernels serve; seen while counting is on."""
        if self.users and self.users[-1]:
            self.counters.update(calls)

    def explain(self, query: _native.Query) -> tuple[_native.Decision, list[Any]]:
        self.queries.append(query)
        linear = query.op == _native.OPS.index("linear")
        m, k = query.a.sizes[0], query.a.sizes[1]
        n = query.b.sizes[0 if linear else 1]
        decision = _native.Decision(variant=3, source=2, batch=1, m=m, n=n, k=k, a_major=0, align=16)
        decision.b_major = 0 if linear else 1
        decision.reason = b"fastest"
        return decision, []

    @staticmethod
    def call(m: int, n: int, k: int, layout: str = "NT", align: int = 16) -> _report._NativeCall:
        return _report._NativeCall("float16", layout, 1, m, n, k, align, 0, "kernel")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    return Library(monkeypatch)


def on_gpu(site: str, **changes: Any) -> Call:
    return linear(site, dtype=torch.float16, device=torch.device("cuda", 0), **changes)


def test_kernels_are_the_dispatchers_choice(library: Library) -> None:
    bias = {"bias": True, "activation": 2, "out_dtype": torch.float32, "variant": 3}
    report = report_of({on_gpu("x", **bias): 4, on_gpu("y", left="dtype torch.float32"): 1, on_gpu("z", m=0): 1})
    ours, left, empty = report.rows
    assert (ours.variant, ours.reason, ours.layout) == ("kernel", "model: fastest", "NT")
    assert (left.variant, left.reason) == ("torch", "dtype torch.float32")
    assert (empty.variant, empty.reason) == ("torch", "empty result")
    (query,) = library.queries
    assert (query.has_bias, query.act, query.variant, query.op) == (1, 2, 3, _native.OPS.index("linear"))
    assert query.out_dtype == _native.DTYPES.index(torch.float32)
    assert query.c.ndim < 0
    assert "our kernels: 4 of 6 calls" in str(report)


@pytest.mark.parametrize("m", [1, 100, 4096])
def test_kernels_agree_with_explain(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not _library.load():
        pytest.skip(f"no native library: {_library.reason()}")
    monkeypatch.setattr(_report, "_device_facts", lambda ordinal: _native.preset_facts(90))
    expected = explain(M=m, N=4096, K=1024, layout="NT", arch="sm_90")
    (row,) = report_of({on_gpu("x", a=operand(m, 1024), b=operand(4096, 1024)): 1}).rows
    assert (row.variant, row.m, row.n, row.k) == (expected.chosen, m, 4096, 1024)
    assert row.reason == f"{expected.source}: {expected.reason}"


def test_native_calls_without_a_site(library: Library) -> None:
    library.counters.update({library.call(1, 1, 1): 5})  # before the context
    context = use_custom_gemm()
    with context as report:
        report._add(on_gpu("layer", m=8, n=16, k=4), 3)
        library.count({library.call(8, 16, 4): 3, library.call(4, 16, 8, "TN"): 3, library.call(1, 1, 1): 1})
        assert {(row.site, row.m, row.calls) for row in report.rows} == {
            ("layer", 8, 3), (ELSEWHERE, 4, 3), (ELSEWHERE, 1, 1),
        }  # fmt: skip
    library.count({library.call(1, 1, 1): 7})  # after it
    assert sum(row.calls for row in report.rows if row.site == ELSEWHERE) == 4
    with context:
        library.count({library.call(1, 1, 1): 2})
    assert sum(row.calls for row in report.rows if row.site == ELSEWHERE) == 6
    assert library.users == [True, False, True, False]


def test_a_site_whose_later_calls_had_another_alignment(library: Library) -> None:
    with use_custom_gemm() as report:
        report._add(on_gpu("layer", m=8, n=16, k=4), 5)
        library.count({library.call(8, 16, 4): 2, library.call(8, 16, 4, align=2): 4})
    assert [(row.site, row.calls) for row in report.rows] == [("layer", 5), (ELSEWHERE, 1)]


def test_counters_are_on_while_any_context_is(library: Library) -> None:
    context = use_custom_gemm()
    with context, use_custom_gemm():
        with context:
            pass
        assert library.users == [True, True]
    assert library.users == [True, True, True, False]


def test_entering_again_takes_no_snapshot(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = 0

    class Stats(_native.Stats):
        def __init__(self) -> None:
            nonlocal snapshots
            snapshots += 1
            super().__init__()

    monkeypatch.setattr(_native, "Stats", Stats)
    context = use_custom_gemm()
    for _ in range(10):
        with context:
            library.count({library.call(1, 1, 1): 2})
    assert snapshots == 1
    with use_custom_gemm() as other:
        library.count({library.call(1, 1, 1): 3})
    with context:
        library.count({library.call(1, 1, 1): 4})
    assert [row.calls for row in context.report.rows] == [24]
    assert [row.calls for row in other.rows] == [3]


def test_counters_are_understood_when_a_report_is_read(library: Library) -> None:
    """Entering a context costs the same however many shapes the process has seen."""
    contexts = []
    for i in range(5):
        with use_custom_gemm() as report:
            library.count({library.call(1, 1, 1): i + 1})
        contexts.append(report)
    assert library.understood == 0
    assert [[row.calls for row in report.rows] for report in contexts] == [[1], [2], [3], [4], [5]]
    assert library.understood == 10

    outer, inner = use_custom_gemm(), use_custom_gemm()
    with outer:
        for _ in range(100):  # what a report keeps has an end
            with inner:
                library.count({library.call(1, 1, 1): 1})
    assert 0 < len(inner.report._spans) <= _report._MOST_SPANS
    assert [row.calls for row in inner.report.rows] == [row.calls for row in outer.report.rows] == [100]


def test_contexts_of_two_threads(library: Library) -> None:
    first, second = use_custom_gemm(), use_custom_gemm()
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with second:
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    with first:
        library.count({library.call(1, 1, 1): 1})
        thread.start()
        entered.wait(10)
        library.count({library.call(1, 1, 1): 2})
    library.count({library.call(1, 1, 1): 4})
    leave.set()
    thread.join()
    assert [row.calls for row in first.report.rows] == [3]
    assert [row.calls for row in second.report.rows] == [6]


@pytest.mark.gpu
def test_gpu_rows_name_kernels_and_backward() -> None:
    net, x = Net().cuda().half(), torch.randn(2, 3, 4, device="cuda", dtype=torch.float16)
    with use_custom_gemm() as report:
        net(x).sum().backward()
        F.linear(x.float(), net.head.weight.float())
    rows = {row.site: row for row in report.rows}
    assert rows["head"].reason.split(":")[0] in ("forced", "table", "model", "fallback")
    assert [row.reason for row in report.rows if row.dtype == "float32"] == ["dtype torch.float32"]
    assert any("(backward)" in site for site in rows)
    assert ELSEWHERE not in rows  # every call has a site


def count_compiled(backend: str, device: str, dtype: torch.dtype) -> list[tuple[str, int, int, int, int]]:
    """What a report says of a compiled layer and a compiled product of activations, each called three times."""
    layer, x = nn.Linear(64, 32).to(device, dtype), torch.randn(16, 64, device=device, dtype=dtype)
    compiled = [torch.compile(fn, backend=backend, fullgraph=True) for fn in (layer, lambda x: x @ x.mT)]
    with use_custom_gemm(), torch.no_grad():
        for fn in compiled:
            fn(x)
    with use_custom_gemm() as report, torch.no_grad():
        for _ in range(3):
            for fn in compiled:
                fn(x)
    return [(row.site, row.m, row.n, row.k, row.calls) for row in report.rows]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_graphs_are_counted(backend: str, fresh_dynamo: None) -> None:
    rows = count_compiled(backend, "cpu", torch.float32)
    assert rows == [("Linear", 16, 32, 64, 3), ("(compiled graph)", 16, 16, 64, 3)]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gpu_compiled_graphs_are_counted(backend: str, fresh_dynamo: None) -> None:
    rows = count_compiled(backend, "cuda", torch.float16)
    assert rows == [("Linear", 16, 32, 64, 3), ("(compiled graph)", 16, 16, 64, 3)]


def test_sites_of_compiled_modules() -> None:
    net = Net()
    net.layers[1] = torch.compile(net.layers[1], backend="eager")  # type: ignore[assignment]
    torch._dynamo.config.disable = True
    try:
        with use_custom_gemm() as report:
            torch.compile(net)(torch.randn(2, 3, 4))
    finally:
        torch._dynamo.config.disable = False
    assert {row.site for row in report.rows if row.op == "linear"} == {*(f"layers.{i}.up" for i in range(3)), "head"}


@pytest.mark.skipif(torch.version.cuda is not None, reason="of a CPU build of torch")
def test_a_cpu_build_of_torch_has_no_cublas() -> None:
    if not _library.load():
        pytest.skip("asks the library")
    assert not _native.calls_cublas()
