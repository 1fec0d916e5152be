"""Other libraries as contenders of the benchmark, with fakes; no GPU, no timing, and none of them installed."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import io
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from eager_body import EagerBody
from helpers import ROOT
from rich.console import Console

import hgemm_ops
from benchmarks import tables
from hgemm_ops.bench import console, peers, record, runner, timing, workload
from hgemm_ops.bench.peers import cublaslt, cublaslt_fixed, cutlass, quack, triton, triton_fixed
from hgemm_ops.bench.suites import SUITES, Case
from hgemm_ops.cli import bench

CASE = Case(40, 24, 32)
MODULES = {"cublaslt": cublaslt, "triton": triton, "cutlass": cutlass, "quack": quack}
MODULES |= {"cublaslt_fixed": cublaslt_fixed, "triton_fixed": triton_fixed}


@pytest.fixture(autouse=True)
def forget_peers() -> Any:
    peers._load.cache_clear()
    yield
    peers._load.cache_clear()


@dataclass
class _Fake:
    """A peer that offers the calls it is given."""

    calls: dict[str, Any]
    version: str = "1.0"

    def configurations(self, case: Case, operands: workload.Operands) -> dict[str, Any]:
        if case.m == 1:
            raise peers.Unavailable("no row vectors")
        return self.calls


def _product(us: float, factor: float = 1.0) -> Any:
    def call(x: workload.Operands) -> torch.Tensor:
        return torch.matmul(x.a, x.b) * factor

    call.us = us  # type: ignore[attr-defined]
    return call


def _refusing(x: workload.Operands) -> torch.Tensor:
    raise peers.Unavailable("needs more of everything")


class _EagerBody(EagerBody):
    def start(self) -> Any:
        return lambda: getattr(self.call, "us", 8.0)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Peers by name, and a dispatcher that takes 4 µs where torch takes 8."""
    found: dict[str, Any] = dict.fromkeys(peers.NAMES, "not installed")
    monkeypatch.setattr(peers, "_load", lambda name: found[name])
    monkeypatch.setattr(timing, "Body", _EagerBody)
    monkeypatch.setattr(timing, "_MIN_ROTATION", 20_000)
    monkeypatch.setattr(workload, "hgemm_call", lambda case, variant, numerics=None: _product(4.0))
    explanation = SimpleNamespace(chosen="ours", source="model", candidates=[])
    monkeypatch.setattr(hgemm_ops, "explain", lambda *_, **__: explanation)
    monkeypatch.setattr(hgemm_ops, "variants", list)
    return found


def _run(case: Case, names: tuple[str, ...]) -> runner.Row:
    return runner.run_case(case, runner.Options(peers=names, rounds=5), torch.device("cpu"))


# Choosing, timing, reporting


def test_the_fastest_right_configuration_is_timed(fakes: dict[str, Any]) -> None:
    fakes["cutlass"] = _Fake(
        {"slow": _product(5.0), "wrong": _product(1.0, 1.1), "refusing": _refusing, "fast": _product(3.2)}
    )
    fakes["triton"] = _Fake({"only": _product(6.0)})
    row = _run(CASE, ("cutlass", "triton"))
    assert row.results.keys() == {"torch", "hgemm", "peer:cutlass", "peer:triton"} and not row.wrong
    best, other = row.results["peer:cutlass"], row.results["peer:triton"]
    assert (best.configuration, best.us) == ("fast", 3.2) and best.error == row.results["torch"].error
    assert best.ratio is not None and best.ours is not None and other.ours is not None
    assert best.ratio.value == pytest.approx(2.5) and best.ours.value == pytest.approx(0.8)
    assert other.configuration == "only" and other.ours.value == pytest.approx(1.5)
    assert row.best_peer == "peer:cutlass"
    stored = json.loads(json.dumps(row.to_json(), allow_nan=False))["results"]
    assert stored["peer:cutlass"]["configuration"] == "fast" and stored["peer:cutlass"]["ours"]["value"] == 0.8
    assert "configuration" not in stored["hgemm"] and "ours" not in stored["hgemm"]


def test_a_peer_that_cannot_run_or_refuses_is_reported(fakes: dict[str, Any]) -> None:
    fakes["cutlass"] = _Fake({"a": _refusing})
    fakes["triton"] = _Fake({})
    fakes["cublaslt"] = _Fake({"a": _product(1.0)})
    row = _run(Case(1, 24, 32), ("cublaslt", "quack"))
    assert row.results["peer:cublaslt"] == runner.Result(refused="no row vectors")
    assert row.results["peer:quack"] == runner.Result(refused="not installed")
    row = _run(CASE, ("cutlass", "triton"))
    assert row.results["peer:cutlass"].refused == "needs more of everything"
    assert row.results["peer:triton"].refused == "offers no configuration"
    assert row.best_peer is None


def test_a_peer_that_is_wrong_throughout_is_reported_as_wrong(fakes: dict[str, Any]) -> None:
    fakes["quack"] = _Fake({"a": _product(2.0, 1.1), "b": _product(1.0, 1.2)})
    row = _run(CASE, ("quack",))
    assert row.wrong.keys() == {"peer:quack"} and row.results["peer:quack"].configuration == "b"
    assert row.best_peer is None


def test_without_a_dispatcher_a_peer_stands_beside_torch_alone(fakes: dict[str, Any]) -> None:
    fakes["cublaslt"] = _Fake({"a": _product(2.0)})
    options = runner.Options(peers=("cublaslt",), dispatched=False, rounds=5)
    result = runner.run_case(CASE, options, torch.device("cpu")).results["peer:cublaslt"]
    assert result.ratio is not None and result.ratio.value == 4.0 and result.ours is None


def test_the_screen_has_a_column_per_peer(fakes: dict[str, Any]) -> None:
    fakes["cutlass"] = _Fake({"swizzled": _product(3.2)})
    fakes["triton"] = _Fake({"tile": _product(6.0, 1.1)})
    names = ("cutlass", "triton", "quack")
    rows = [_run(CASE, names), _run(Case(1, 24, 32), names)]
    screen = Console(width=250, record=True, file=io.StringIO())
    console.report_peers(names, screen)
    screen.print(console.comparison(rows, "t"), console.against_peers(rows, names, "t"), console.summary(rows))
    lines = [" ".join(line.replace("│", " ").split()) for line in screen.export_text().splitlines()]
    assert lines[:3] == ["cutlass: 1.0", "triton: 1.0", "quack: unavailable: not installed"]
    assert "NN 40x24x32 2.000 2.500 wrong - 0.800 cutlass" in lines
    assert "NN 1x24x32 2.000 - - - - -" in lines
    assert any("peer:cutlass: swizzled" in line for line in lines)
    assert any("peer:quack" in line and "refused: not installed" in line for line in lines)
    assert lines[-1].endswith("; 0.800x the best peer of each of 1 cases, slower than it in 1")


def test_known_peers() -> None:
    assert console.known_peers(("cutlass", "cublaslt", "cutlass")) == ("cutlass", "cublaslt")
    assert console.known_peers(("cutlass", "all")) == peers.NAMES
    assert console.known_peers(()) == ()


def test_bench_takes_peers(monkeypatch: pytest.MonkeyPatch, fakes: dict[str, Any], tmp_path: Path) -> None:
    fakes["cutlass"] = _Fake({"a": _product(3.2)})
    monkeypatch.setattr(console, "require_kernels", lambda command: None)
    monkeypatch.setattr(runner, "run", lambda cases, options: iter([_run(CASE, options.peers)]))
    monkeypatch.setattr(runner, "copy_gbps", lambda: 1000.0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(timing, "rotation_bytes", lambda device: 20_000)
    path = tmp_path / "out.json"
    result = CliRunner().invoke(bench.bench, ["--peer", "cutlass", "--peer", "quack", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "quack: unavailable: not installed" in result.output
    assert record.load(path)["protocol"]["peers"] == {"cutlass": "1.0", "quack": "unavailable: not installed"}
    assert CliRunner().invoke(bench.bench, ["--peer", "nobody"]).exit_code == 2


# The peers themselves, as far as they go without a GPU


@pytest.mark.parametrize("name", peers.NAMES)
def test_peers_say_why_they_cannot_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(peers.Unavailable) as reason:
        peers.load(name)
    assert peers.versions([name]) == {name: f"unavailable: {reason.value}"}
    assert importlib.import_module(f"hgemm_ops.bench.peers.{name}") is MODULES[name]


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'nobody'"):
        peers.load("nobody")


def test_nothing_imports_a_peer_before_it_is_asked_for() -> None:
    program = (
        "import sys; import hgemm_ops.cli.bench; "
        "print([m for m in sys.modules if m.startswith(('hgemm_ops.bench.peers.', 'triton', 'quack', 'cutlass'))])"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@dataclass
class _Functions:
    """cuBLASLt's functions; keeps what descriptors are told and what products are run."""

    attributes: dict[tuple[str, int, int], int] = field(default_factory=dict)
    layouts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    products: list[tuple[int, ...]] = field(default_factory=list)
    status: int = 0
    created: int = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)
        return lambda *arguments: self._called(name, arguments)

    def _called(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name.endswith("Create"):
            self.created += 1
            arguments[0]._obj.value = self.created
            if name == "cublasLtMatrixLayoutCreate":
                self.layouts[self.created] = tuple(value.value for value in arguments[1:])
        elif name.endswith("SetAttribute"):
            target, attribute, value, size = arguments
            assert size.value == ctypes.sizeof(value._obj)
            kind = name.removeprefix("cublasLt").removesuffix("SetAttribute")
            self.attributes[kind, target.value, attribute] = value._obj.value
        elif name == "cublasLtMatmulAlgoGetHeuristic":
            results, count = arguments[-2], arguments[-1]._obj
            count.value = 3
            for i, state in enumerate((0, 15, 0)):
                results[i].state, results[i].algorithm[0] = state, i
        elif name == "cublasLtMatmul":
            self.products.append((arguments[3].value, arguments[5].value, arguments[10].value, arguments[12][0]))
        return self.status


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> _Functions:
    made = _Functions()
    monkeypatch.setattr(ctypes, "CDLL", lambda path: made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    return made


def _cublaslt(functions: _Functions, kind: Any = cublaslt._CublasLt) -> Any:
    functions.cublasLtGetVersion = lambda: 130100  # type: ignore[attr-defined]
    library = cublaslt._Library("libcublasLt.so.13")
    made = kind.__new__(kind)
    made._library, made._handle, made.version = library, ctypes.c_void_p(99), library.version
    made._workspace = torch.empty(64, dtype=torch.uint8)
    return made


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_cublaslt_is_told_the_transposed_product(layout: str, functions: _Functions) -> None:
    case = Case(5, 6, 7, batch=3, layout=layout, padding=2, dtype="bfloat16")
    x = workload.make_operands(case, torch.Generator().manual_seed(0))
    peer = _cublaslt(functions)
    assert peer.version == "130100"
    calls = peer.configurations(case, x)
    assert list(calls) == ["heuristic 1", "heuristic 2"]  # the one whose state is not success is left out
    a, b, d = functions.layouts.values()  # data type, rows, columns, leading dimension, column-major
    assert a == ((14, 7, 5, 9) if layout[0] == "N" else (14, 5, 7, 7))
    assert b == ((14, 6, 7, 8) if layout[1] == "N" else (14, 7, 6, 9))
    assert d == (14, 6, 5, 6)
    flags = {attribute: value for (kind, _, attribute), value in functions.attributes.items() if kind == "MatmulDesc"}
    assert flags == {3: int(layout[1] == "T"), 4: int(layout[0] == "T"), 7: 1}
    strides = [value for (kind, _, attribute), value in functions.attributes.items() if attribute == 6]
    assert strides == [x.a.stride(0), x.b.stride(0), 30]
    out = calls["heuristic 2"](x)
    assert out.shape == (3, 5, 6) and functions.products == [(x.b.data_ptr(), x.a.data_ptr(), out.data_ptr(), 2)]
    functions.status = 13
    with pytest.raises(peers.Unavailable, match="cublasLtMatmul returned status 13"):
        calls["heuristic 1"](x)


def test_cublaslt_takes_the_epilogues_it_has(functions: _Functions) -> None:
    peer = _cublaslt(functions)
    for activation, epilogue in (("none", 4), ("relu", 6), ("gelu_tanh", 36)):
        case = Case(4, 8, 16, layout="NT", op="linear", bias=True, activation=activation)
        x = workload.make_operands(case, torch.Generator().manual_seed(0))
        peer.configurations(case, x)["heuristic 1"](x)
        flags = {key[2]: value for key, value in functions.attributes.items() if key[0] == "MatmulDesc"}
        assert x.bias is not None and (flags[7], flags[8]) == (epilogue, x.bias.data_ptr())
    for case in (
        Case(4, 8, 16, layout="NT", op="linear", bias=True, activation="silu"),
        Case(4, 8, 1, op="add"),
    ):
        with pytest.raises(peers.Unavailable):
            peer.configurations(case, x)


def test_cublaslt_fixed_asks_for_an_algorithm_of_many_rows_without_split_k(functions: _Functions) -> None:
    case = Case(4, 8, 16, layout="NT")
    x = workload.make_operands(case, torch.Generator().manual_seed(0))
    ((name, call),) = _cublaslt(functions, cublaslt.Fixed).configurations(case, x).items()
    assert name == "of 4096 rows"
    assert functions.attributes["MatmulPreference", 5, 3] == 0  # no reduction scheme
    rows = [size for _, *sizes in functions.layouts.values() for size in sizes]
    assert 4096 in rows and rows.index(4096) < len(rows) // 2  # the first descriptors, which the heuristic was asked of
    out = call(x)
    assert out.shape == (4, 8) and functions.products == [(x.b.data_ptr(), x.a.data_ptr(), out.data_ptr(), 0)]


def test_triton_fixed_has_one_tile_and_says_what_it_does_not_take() -> None:
    launches: list[Any] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *arguments, **options: launches.append((grid, arguments[4:], options))

    peer = triton_fixed._Fixed("v", Kernel(), 132)
    for m in (1, 4000):
        case = Case(m, 8, 16, layout="NT", dtype="bfloat16")
        x = workload.make_operands(case, torch.Generator().manual_seed(0))
        ((name, call),) = peer.configurations(case, x).items()
        assert name == "128x128x64" and call(x).shape == (m, 8)
    assert [grid for grid, _, _ in launches] == [(132,), (132,)]
    assert launches[0][1] == (1, 8, 16, *x.a.stride(), *x.b.stride()) and launches[0][2] == launches[1][2]
    for case in (Case(4, 8, 16, batch=2), Case(4, 8, 16, dtype="float32"), Case(4, 8, 1, op="add")):
        with pytest.raises(peers.Unavailable, match="only, here"):
            peer.configurations(case, x)


def test_triton_runs_inductor_s_code_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler: dict[str, Any] = {}

    def compile_(function: Any, **options: Any) -> Any:
        compiler.update(options)
        return function

    code = "BLOCK_M : tl.constexpr = 128\nBLOCK_N : tl.constexpr = 256\nBLOCK_K : tl.constexpr = 64\n"
    codes = [f"{code}num_stages=3,\nnum_warps=8,\n"]
    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr("torch._inductor.utils.run_and_get_code", lambda f, *args: (f(*args), codes))
    case = Case(4, 8, 16, layout="NT", op="linear", bias=True, activation="relu")
    x = workload.make_operands(case, torch.Generator().manual_seed(0))
    ((name, call),) = triton._Compiled("v").configurations(case, x).items()
    assert name == "128x256x64 num_stages=3 num_warps=8"
    torch.testing.assert_close(call(x), workload.torch_call(case)(x))
    assert compiler["options"]["max_autotune"] and compiler["options"]["max_autotune_gemm_backends"] == "TRITON"
    assert "triton.cudagraphs" not in compiler["options"]
    codes[0] = "def call(args): triton_red_fused_mm_0.run(...)"
    assert list(triton._Compiled("v").configurations(case, x)) == ["no template"]
    codes[0] = "extern_kernels.mm(...)"
    with pytest.raises(peers.Unavailable, match="calls ATen's"):
        triton._Compiled("v").configurations(case, x)


def test_dynamo_takes_the_program_triton_compiles() -> None:
    case = Case(4, 8, 16)
    x = workload.make_operands(case, torch.Generator().manual_seed(0))
    eager = workload.torch_call(case)
    compiled = torch.compile(
        lambda a, b, bias: eager(workload.Operands(a, b, bias)), backend="eager", fullgraph=True, dynamic=False
    )
    torch.testing.assert_close(compiled(x.a, x.b, x.bias), eager(x))


@pytest.fixture
def cutlass_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """CUTLASS with a compiler of libraries that have its arguments, and functions that keep theirs."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    monkeypatch.setenv("HGEMM_OPS_CACHE_DIR", str(tmp_path / "cache"))
    compiler = tmp_path / "nvcc"
    compiler.write_text(
        '#!/bin/sh\nfor last; do :; done\ncase "$*" in *-DFAIL*) echo "no" >&2; exit 1;; esac\n'
        'echo "char arguments[] = \\"$*\\";" | exec cc -shared -fPIC -x c - -o "$last"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(cutlass, "_nvcc", lambda: str(compiler))
    return cutlass._Cutlass("4.2.0.0", tmp_path / "include")


def arguments_of(library: ctypes.CDLL) -> list[str]:
    return ctypes.string_at(library.arguments).decode().split()


def test_cutlass_compiles_each_kernel_once(cutlass_peer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = [cutlass.macros(tile, "bfloat16", "NT") for tile in cutlass.TILES]
    commands = [arguments_of(cutlass_peer.load(each)) for each in arguments]
    folder = tmp_path / "cache" / "peers"
    assert len(list(folder.iterdir())) == 3 and folder.stat().st_mode & 0o777 == 0o700
    command = commands[0]
    assert {"-DPEER_M=128", "-DPEER_N=192", "-DPEER_PINGPONG=true", "-DPEER_B_TRANSPOSED=true"} <= set(command)
    assert "-DPEER_ELEMENT=cutlass::bfloat16_t" in command and "-gencode=arch=compute_90a,code=sm_90a" in command
    source = cutlass._SOURCE.read_text()
    assert all(each.removeprefix("-D").partition("=")[0] in source for each in arguments[0])
    assert cutlass.macros(cutlass.TILES[2], "float16", "NN")[-2:] == (
        "-DPEER_PINGPONG=false",
        "-DPEER_B_TRANSPOSED=false",
    )
    with pytest.raises(peers.Unavailable, match="nvcc failed"):
        cutlass_peer.load(("-DFAIL",))
    with monkeypatch.context() as patch:
        patch.setattr(cutlass, "_nvcc", lambda: pytest.fail("compiled again"))
        assert [arguments_of(cutlass_peer.load(each)) for each in arguments] == commands
    assert len(list(folder.iterdir())) == 3


def test_a_kernel_of_cutlass_that_others_may_have_written_is_not_loaded(cutlass_peer: Any, tmp_path: Path) -> None:
    arguments = cutlass.macros(cutlass.TILES[0], "bfloat16", "NT")
    command = arguments_of(cutlass_peer.load(arguments))
    (planted,) = (tmp_path / "cache" / "peers").iterdir()
    planted.write_text("somebody else's")
    planted.chmod(0o606)
    assert arguments_of(cutlass_peer.load(arguments))[:-1] == command[:-1]
    assert planted.read_text() == "somebody else's"


@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_cutlass_passes_sizes_and_strides(layout: str, cutlass_peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    status = 0

    def function(*arguments: int) -> int:
        calls.append(arguments)
        return status

    monkeypatch.setattr(cutlass_peer, "_function", lambda path: function)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    case = Case(16, 24, 32, batch=3, layout=layout, padding=8)
    x = workload.make_operands(case, torch.Generator().manual_seed(0))
    found = cutlass_peer.configurations(case, x)
    assert len(found) == 9 and "pingpong 128x192x64 swizzle 4" in found and "cooperative 128x256x64 swizzle 8" in found
    out = found["pingpong 128x192x64 swizzle 4"](x)
    assert out.shape == (3, 16, 24)
    leading = [max(x.a.stride()[1:]), max(x.b.stride()[1:])]
    pointers = [x.a.data_ptr(), x.b.data_ptr(), out.data_ptr()]
    assert calls == [(*pointers, 16, 24, 32, 3, *leading, x.a.stride(0), x.b.stride(0), 4, 132, 7)]
    status = 7
    with pytest.raises(peers.Unavailable, match="Status 7"):
        found["pingpong 128x128x64 swizzle 1"](x)


def test_quack_is_called_with_its_configuration() -> None:
    calls: list[Any] = []

    def gemm(a: Any, b: Any, out: Any, *positional: Any, **named: Any) -> None:
        if positional[2] == 256:
            raise AssertionError("not this tile")
        calls.append((positional, named))
        torch.matmul(a, b.mT, out=out)

    x = workload.make_operands(CASE, torch.Generator().manual_seed(0))
    found = quack._Quack("0.6.5", gemm).configurations(CASE, x)
    assert len(found) == len(quack.CONFIGS)
    torch.testing.assert_close(found["pingpong 128x192 cluster 1x2"](x), x.a @ x.b)
    assert calls == [((None, None, 128, 192, 1, 2), {"pingpong": True, "max_swizzle_size": 8})]
    with pytest.raises(peers.Unavailable, match="AssertionError"):
        found["cooperative 256x128 cluster 2x1"](x)


@pytest.mark.parametrize(
    "case",
    [
        Case(4, 8, 1, op="add"),
        Case(16, 24, 32, dtype="float32"),
        Case(16, 24, 33),
        Case(16, 24, 32, layout="NT", op="linear", bias=True),
    ],
    ids=lambda case: case.label,
)
def test_cutlass_and_quack_say_what_they_do_not_take(case: Case, cutlass_peer: Any) -> None:
    x = workload.make_operands(case, torch.Generator().manual_seed(0))
    for peer in (cutlass_peer, quack._Quack("0.6.5", None)):
        with pytest.raises(peers.Unavailable):
            peer.configurations(case, x)


def test_cutlass_needs_its_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.2.0.0")
    package = SimpleNamespace(origin=str(tmp_path / "cutlass_library" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    with pytest.raises(peers.Unavailable, match="has no headers"):
        cutlass.load()
    header = tmp_path / "cutlass_library" / "source" / "include" / "cutlass" / "cutlass.h"
    header.parent.mkdir(parents=True)
    header.touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert cutlass.load()._include == header.parent.parent
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(peers.Unavailable, match="Hopper"):
        cutlass.load()


# Tables and plots


def _interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value * 0.99, "high": value * 1.01}


def _timed(us: float, **more: Any) -> dict[str, Any]:
    return {"us": us, "tflops": 100 / us, "gbps": 1000 / us, "error": 1e-3, "ratio": _interval(8 / us), **more}


@pytest.fixture
def document() -> dict[str, Any]:
    facts = {"gpu": "NVIDIA T1", "driver": "1", "cuda": "13.0", "torch": "2.0", "date": "2001-02-03", "csrc": "01" * 20}
    rows = []
    for case, cutlass_us in zip(SUITES["seeds-large"][:2], (3.2, 6.0), strict=True):
        results = {
            "torch": _timed(8.0),
            "hgemm": _timed(4.0),
            "peer:cublaslt": _timed(5.0, configuration="heuristic 3", ours=_interval(1.25)),
            "peer:cutlass": _timed(cutlass_us, configuration="swizzle 4", ours=_interval(cutlass_us / 4)),
            "peer:quack": {"refused": "not installed"},
        }
        rows.append({"label": case.label, "served_by": "ours", "flops": 1e9, "bytes": 1e6, "results": results})
    versions = {"cublaslt": "130100", "cutlass": "4.2.0.0", "quack": "unavailable: not installed"}
    protocol = {"rounds": 9, "inputs": "normal", "peers": versions}
    return {
        "schema": record.SCHEMA,
        "environment": facts,
        "suite": "seeds-large",
        "protocol": protocol,
        "copy_gbps": 1000.0,
        "rows": rows,
    }


def test_tables_show_each_peer_and_the_best(document: dict[str, Any], tmp_path: Path) -> None:
    record.save(document, tmp_path / "t1" / "seeds-large.json")
    readme = tmp_path / "README.md"
    readme.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    written = tables.generate(tmp_path, readme)
    summary, page = written[readme], written[tmp_path / "t1" / "README.md"]
    second = document["rows"][1]["label"]
    assert "| seeds-large | 2 of 2 | 2.000 | 2.000 to 2.000 | 0 | 1.000 |" in summary
    assert f"| seeds-large | cublaslt | 2 of 2 | 1.600 | 1.250 | 1.250, {document['rows'][0]['label']} | 0 |" in page
    assert "| seeds-large | cutlass | 2 of 2 | 1.826 | 1.095 | 0.800, NN 4096x4096x2048 | 1 |" in page
    assert "| seeds-large | quack | 0 of 2 | - | - | - | - |" in page
    assert "| seeds-large | the best | 2 of 2 | 2.000 | 1.000 | 0.800, NN 4096x4096x2048 | 1 |" in page
    assert "cublaslt: 130100; cutlass: 4.2.0.0; quack: unavailable: not installed" in page
    assert "| NN 4096x4096x2048 | 2.000 | 1.600 (heuristic 3) | 2.500 (swizzle 4) | - | **0.800** |" in page
    assert f"| {second} | 2.000 | 1.600 (heuristic 3) | 1.333 (swizzle 4) | - | 1.250 |" in page
    assert "peer:" not in page  # no peer is taken for a forced kernel of ours


def test_results_without_peers_have_no_such_table(document: dict[str, Any], tmp_path: Path) -> None:
    del document["protocol"]["peers"]
    for row in document["rows"]:
        row["results"] = {name: row["results"][name] for name in ("torch", "hgemm")}
    record.save(document, tmp_path / "t1" / "seeds-large.json")
    readme = tmp_path / "README.md"
    readme.write_text(f"{tables.BEGIN}\n{tables.END}\n")
    written = tables.generate(tmp_path, readme)
    assert "peer" not in written[tmp_path / "t1" / "README.md"] and "| 2.000 to 2.000 | 0 | - |" in written[readme]


@pytest.mark.parametrize("name", ["ratio_by_shape", "roofline"])
def test_plots_show_the_best_peer(name: str, document: dict[str, Any], tmp_path: Path) -> None:
    draw = getattr(pytest.importorskip("hgemm_ops.bench.plots"), name)
    assert "the best peer" in draw(document, tmp_path / "a.svg").read_text()
    for row in document["rows"]:
        row["results"] = {name: row["results"][name] for name in ("torch", "hgemm")}
    assert "the best peer" not in draw(document, tmp_path / "b.svg").read_text()
