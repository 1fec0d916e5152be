"""float32="split" without a GPU: how it is asked for, which kernels it chooses, and that nothing chooses them unasked.

``tests/context/test_gpu_float32.py`` tests the results.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from helpers import H200, counted, needs_library, run_python
from torch._subclasses import FakeTensorMode

import hgemm_ops
from hgemm_ops import _native, _override, _tables, _variants, use_custom_gemm
from hgemm_ops._tables import Entry, Table
from hgemm_ops.bench import shapes
from hgemm_ops.cli import main
from hgemm_ops.ops import aten

pytestmark = needs_library

MODES = _native.FLOAT32
SPLIT = [v for v in hgemm_ops.variants() if v.family == "sm90_split"]
THREE = [
    v for v in SPLIT if "split3" in v.name
]  # products of two float16 planes an operand; SIX of three bfloat16 ones
SIX = [v for v in SPLIT if v not in THREE]
SKINNY = [v for v in hgemm_ops.variants() if v.family == "sm90_split_skinny"]
MMA_SPLIT = [v for v in hgemm_ops.variants() if v.family == "sm80_split"]
MMA_THREE = [v for v in MMA_SPLIT if "split3" in v.name]
MMA_SIX = [v for v in MMA_SPLIT if v not in MMA_THREE]
LARGE = (4096, 4096, 4096)


def explain(m: int, n: int, k: int, float32: str | None = None, **options: object) -> hgemm_ops.Explanation:
    arguments = {"dtype": torch.float32, "arch": "sm_90"} | options
    return hgemm_ops.explain(M=m, N=n, K=k, float32=float32, **arguments)  # type: ignore[arg-type]


def family(explanation: hgemm_ops.Explanation) -> str:
    return _variants.family_of(_variants.resolve(explanation.chosen))


# ---- what is chosen -------------------------------------------------------------------------------


def test_the_kernels_say_what_they_are() -> None:
    assert SIX and THREE and SKINNY and MMA_SIX and MMA_THREE
    for v in (*SPLIT, *SKINNY, *MMA_SPLIT):
        planes = "two float16" if v in (*THREE, *MMA_THREE) else "three bfloat16"
        dtypes = (torch.float32,) if v in SKINNY else (torch.float32, torch.complex64)
        assert (v.dtypes, v.numerics) == (dtypes, f"float32 as {planes} planes")
        assert v.layouts == ("NN", "NT", "TN", "TT")
    assert {(v.min_arch, v.max_arch, v.sums) for v in SIX} == {("sm_90", "sm_90", "planes")}
    assert {(v.min_arch, v.max_arch, v.sums) for v in (*THREE, *SKINNY)} == {("sm_90", "sm_90", "vary")}
    assert {(v.min_arch, v.max_arch, v.sums) for v in MMA_SIX} == {("sm_80", None, "planes by mma.sync")}
    assert {(v.min_arch, v.max_arch, v.sums) for v in MMA_THREE} == {("sm_80", None, "vary")}


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("sizes", [LARGE, (8192, 8192, 8192), (2048, 2048, 2048), (4095, 4097, 4099)], ids=str)
def test_large_products_are_split_where_it_is_asked_for(sizes: tuple[int, int, int], layout: str) -> None:
    asked = explain(*sizes, "split", layout=layout, alignment=4)
    assert family(asked) == "sm90_split" and asked.source == "model" and "against torch's" in asked.reason
    for mode in ("strict", None):
        strict = explain(*sizes, mode, layout=layout, alignment=4)
        assert family(strict) != "sm90_split"
        for v in SPLIT:
            candidate = strict.candidates[v.id]
            assert not candidate.eligible and 'used only with float32="split"' in candidate.reason


@pytest.mark.parametrize(("arch", "three", "six"), [("sm_90", THREE, SIX), ("sm_80", MMA_THREE, MMA_SIX)])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_three_products_are_chosen_where_the_bits_may_vary(
    layout: str, arch: str, three: list[hgemm_ops.VariantInfo], six: list[hgemm_ops.VariantInfo]
) -> None:
    assert explain(*LARGE, "split", layout=layout, arch=arch).chosen in {v.name for v in three}
    invariant = explain(*LARGE, "split", layout=layout, arch=arch, numerics="batch_invariant")
    assert invariant.chosen in {v.name for v in six}
    for v in three:  # a sum of few terms shows the bit that two planes lack
        candidate = explain(4096, 4096, 127, "split", arch=arch).candidates[v.id]
        assert not candidate.eligible and candidate.reason == "K must be at least 128, got 127"
        assert explain(4096, 4096, 128, "split", arch=arch).candidates[v.id].eligible


@pytest.mark.parametrize(
    ("m", "n"),
    [
        (32, 16384),
        (64, 4096),
        (128, 4096),
        pytest.param(255, 11008, marks=pytest.mark.xfail(strict=True, reason="sm90_split3 is predicted 0.3 % faster")),
        (4096, 64),
    ],
)
def test_a_short_side_is_split_in_registers(m: int, n: int) -> None:
    """Other modes and misaligned weights leave it to other kernels, and so do symmetric results."""
    names = {v.name for v in SKINNY}
    for layout in ("NN", "NT", "TN", "TT"):
        asked = explain(m, n, 4096, "split", layout=layout)
        assert (asked.chosen in names, asked.source) == (True, "model"), asked
        assert explain(m, n, 4096, "strict", layout=layout).chosen not in names
        assert explain(m, n, 4096, "split", layout=layout, numerics="batch_invariant").chosen not in names
        for v in SKINNY:
            candidate = explain(m, n, 4096, "split", layout=layout, alignment=8).candidates[v.id]
            assert candidate.reason == "rows of the longer operand must be 16-byte aligned, got 8"
    x = torch.empty(64, 4096)
    for v in SKINNY:
        candidate = hgemm_ops.explain(x, x.t(), arch="sm_90", float32="split").candidates[v.id]
        assert candidate.reason == "x @ x.T would not be symmetric to the bit"
        assert "must be at most 1024" in explain(*LARGE, "split").candidates[v.id].reason


@pytest.mark.parametrize("sizes", [(64, 64, 64), (1, 4096, 4096), (4096, 1, 4096), (8, 4096, 4096), (1, 1, 1)], ids=str)
def test_small_and_short_products_are_not_split(sizes: tuple[int, int, int]) -> None:
    assert family(explain(*sizes, "split")) != "sm90_split"


def test_the_reason_for_torch_names_the_way_out() -> None:
    for sizes, arch, source in (((884, 128, 720), "sm_90", "model"), ((2048, 2048, 2048), "sm_80", "fallback")):
        strict = explain(*sizes, layout="TN", arch=arch)  # sm90_dmma takes any strict float32
        assert (strict.chosen, strict.source) == ("torch", source)
        assert strict.reason.endswith(' without float32="split"')
    assert "without float32" not in explain(*LARGE, dtype=torch.float64).reason


@pytest.mark.parametrize(("arch", "chosen"), [("sm_80", "sm80_split"), ("sm_86", "torch"), ("sm_89", "torch")])
def test_chips_without_wgmma_split_where_their_tensor_cores_are_far_ahead(arch: str, chosen: str) -> None:
    """Of tensor and CUDA cores, by datasheet: 312 and 19.5 TFLOP/s on an A100; 125 and 31 on an A10.

    Split needs three float16 matmuls or six of bfloat16, which cannot win on the A10.
    """
    asked = explain(*LARGE, "split", arch=arch)
    assert family(asked) == chosen and all(asked.candidates[v.id].eligible for v in MMA_SPLIT)
    assert family(explain(*LARGE, arch=arch)) == "torch"
    assert family(explain(256, 256, 256, "split", arch=arch)) == "torch"


def test_other_dtypes_do_not_notice() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        strict, split = (explain(*LARGE, mode, dtype=dtype) for mode in MODES)
        assert (strict.chosen, strict.source, strict.reason) == (split.chosen, split.source, split.reason)


def test_a_kernel_may_be_named_in_any_mode() -> None:
    for mode in (None, *MODES):
        forced = explain(64, 64, 64, mode, variant=SPLIT[0].name)
        assert (forced.chosen, forced.source) == (SPLIT[0].name, "forced")
        assert forced.candidates[SPLIT[0].id].eligible
        assert explain(*LARGE, mode, variant="torch").chosen == "torch"


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_complex_products_are_split_where_it_is_asked_for(layout: str) -> None:
    options = {"dtype": torch.complex64, "layout": layout, "alignment": 8}
    for size in (1024, 4096):
        asked = explain(size, size, size, "split", **options)
        assert asked.chosen in {v.name for v in THREE} and asked.source == "model"
        for mode in ("strict", None):
            strict = explain(size, size, size, mode, **options)
            assert (strict.chosen, strict.source) == ("torch", "fallback")
            assert strict.reason.endswith('on sm_90 without float32="split"')
    for sizes in ((64, 64, 64), (384, 384, 384), (4096, 127, 4096), (65, 4096, 4096), (1, 4096, 4096)):
        assert explain(*sizes, "split", **options).chosen == "torch", sizes
    for v in (THREE[0], MMA_THREE[0]):
        least = explain(4096, 4096, 63, "split", **options).candidates[v.id]
        assert not least.eligible and least.reason == "K must be at least 64, got 63"
    assert explain(*LARGE, "split", **options | {"arch": "sm_80"}).chosen in {v.name for v in MMA_THREE}


def test_complex_products_take_no_other_modes() -> None:
    for numerics in ("batch_invariant", "batch_invariant_or_raise"):
        options = {"dtype": torch.complex64, "numerics": numerics}
        if numerics == "batch_invariant":
            assert explain(*LARGE, "split", **options).chosen == "torch"
        else:
            with pytest.raises(RuntimeError, match="no batch-invariant kernel supports it"):
                explain(*LARGE, "split", **options)
    off = explain(*LARGE, "split", dtype=torch.complex64, alignment=4).candidates
    assert all("must be 8-byte aligned, got 4" in off[v.id].reason for v in (*SPLIT, *MMA_SPLIT))
    gelu = explain(*LARGE, "split", dtype=torch.complex64, activation="gelu").candidates
    assert all("complex results have no activation" in gelu[v.id].reason for v in (*SPLIT, *MMA_SPLIT))


def test_a_complex_matrix_times_its_transpose_is_torchs() -> None:
    """It would not be symmetric to the bit. A matrix times its adjoint is not meant to be."""
    x = torch.empty(2048, 2048, dtype=torch.complex64)
    assert hgemm_ops.explain(x, x.mT, arch="sm_90", float32="split").chosen == "torch"
    for y in (x.mH, x.conj(), x):
        assert hgemm_ops.explain(x, y, arch="sm_90", float32="split").chosen in {v.name for v in THREE}


@pytest.mark.parametrize(("arch", "sums"), [("sm_90", "planes"), ("sm_80", "planes by mma.sync")])
@pytest.mark.parametrize("mode", ["batch_invariant", "batch_invariant_or_raise"])
def test_batch_invariance_takes_kernels_of_one_class(arch: str, sums: str, mode: str) -> None:
    for n, k in ((4096, 4096), (1, 999), (517, 64)):
        for m in (1, 3, 64, 200, 4096, 16384):
            for activation in ("none", "gelu"):
                options = {"arch": arch, "numerics": mode, "layout": "NT", "alignment": 4, "activation": activation}
                chosen = explain(m, n, k, "split", **options).chosen
                assert [v.sums for v in hgemm_ops.variants() if v.name == chosen] == [sums], (m, n, k)
    for v in hgemm_ops.variants():
        if torch.float32 in v.dtypes and v.family != "ladder" and v.sums != sums:
            with pytest.raises(RuntimeError, match="another summation order"):
                explain(8, 64, 64, "split", arch=arch, numerics=mode, variant=v.name)


def test_batch_invariance_of_strict_float32_is_not_held() -> None:
    assert "not batch-invariant" in explain(*LARGE, numerics="batch_invariant").reason
    with pytest.raises(RuntimeError, match="is not possible"):
        explain(*LARGE, numerics="batch_invariant_or_raise")


@pytest.fixture
def tables() -> Iterator[None]:
    _tables.ensure()
    _tables.install([])
    yield
    _tables.reload()


@pytest.mark.usefixtures("tables")
def test_a_table_decides_by_the_kernels_that_it_has() -> None:
    def install(**us: float) -> None:
        _tables.install([Table(H200, [Entry("float32", "NN", 16, 1, *LARGE, us)])])

    first, other = SPLIT[0].name, SPLIT[-1].name
    install(torch=1000.0, **{first: 900.0, other: 800.0})
    assert (explain(*LARGE, "split").chosen, explain(*LARGE, "split").source) == (other, "table")
    assert family(explain(*LARGE)) != "sm90_split"
    install(torch=700.0, **{first: 900.0})
    assert (explain(*LARGE, "split").chosen, explain(*LARGE, "split").source) == ("torch", "table")
    install(torch=1.0)  # the entry has no time of a split kernel, so it does not count
    assert (family(explain(*LARGE, "split")), explain(*LARGE, "split").source) == ("sm90_split", "model")


def test_what_torch_may_compute_in_tf32_is_torchs() -> None:
    """Mode 2 stands for float32 that torch may compute in TF32.

    csrc/aten asks for it where torch's flags allow TF32, and the ops where neither the call nor a context names a mode.
    """
    query = _variants.matmul_query(16, 4096, 4096, torch.float32, "NT", _native.preset_facts(90))
    found = []
    for query.float32 in (0, 2):
        decision, candidates = _native.explain(query)
        found.append(_variants.family_of(decision.variant))
    assert found[0] != "torch" and found[1] == "torch"
    assert not any(c.eligible for c in candidates[:-1])
    query.variant = next(v.id for v in hgemm_ops.variants() if v.name == "simt_skinny_m16")
    assert _native.explain(query)[0].variant == query.variant  # a named kernel runs in any mode


@pytest.mark.parametrize(
    ("m", "n", "alignment", "layouts", "families"),
    [
        (2, 4096, 16, ("NT",), ("simt_gemv",)),
        (2, 4096, 16, ("NN",), ("simt_gemv", "sm90_dmma")),  # predicted 22.7 and 21.4 us
        (4, 4096, 16, ("NT",), ("simt_gemv",)),
        (8, 4096, 16, ("NT",), ("simt_gemv",)),
        (4096, 8, 16, ("NT", "TT"), ("simt_gemv",)),  # B is the short operand, and is K-major
        (8, 4096, 16, ("NN",), ("simt_gemv", "sm90_dmma")),  # 25.2 and 24.0 us on an H200
        (16, 4096, 16, ("NT",), ("simt_skinny", "sm90_dmma")),
        (8, 4096, 4, ("NT", "NN"), ("simt_skinny", "sm90_dmma")),
    ],
)
def test_few_rows_are_served_in_strict_float32(
    m: int, n: int, alignment: int, layouts: tuple[str, ...], families: tuple[str, ...]
) -> None:
    for layout in layouts:
        assert family(explain(m, n, 4096, layout=layout, alignment=alignment)) in families


def strict_choice(batch: int, m: int, n: int, k: int, layout: str) -> str:
    query = _variants.matmul_query(m, n, k, torch.float32, layout, _native.preset_facts(90), batch)
    return _variants.name_of(_native.explain(query)[0].variant)


# The comments give microseconds on an H200: torch's, and those of the fastest sm90_dmma kernel.
@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "layout"),
    [
        (504, 32, 8, 72, "NT"),  # 6.3, 8.0
        (560, 512, 212, 4, "NT"),  # 109, 123
        (964, 80, 184, 8, "TT"),  # 35.2, 40.3
        (1, 64, 648, 456, "NN"),  # 7.9, 10.1
        (1, 376, 64, 1344, "TN"),  # 7.2, 9.4
        (1, 708, 33, 486, "NT"),  # 8.4, 10.3: copies of 4 bytes
        (1, 884, 128, 720, "TN"),  # 9.7, 10.9
        (1, 3598, 4718, 5, "NT"),  # 30.2, 34.4
        (1, 2236, 100, 2156, "TT"),  # 35.4, 37.5
        (1, 4096, 8, 4096, "NT"),  # 41.2, 30.7: simt_gemv_m8 takes 19.7
    ],
)
def test_torch_and_simt_compute_what_float64_sums_are_no_faster_at(
    batch: int, m: int, n: int, k: int, layout: str
) -> None:
    assert not strict_choice(batch, m, n, k, layout).startswith("sm90_dmma")


@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "layout"),
    [
        (1, 368, 272, 33792, "TN"),  # 379, 163
        (1, 88, 1408, 12800, "NT"),  # 139, 83.7
        (512, 96, 96, 96, "NT"),  # 46.7, 33.9
        (1002, 80, 80, 80, "TT"),  # 63.9, 53.4
        (1, 1856, 1408, 32, "TT"),  # 12.1, 8.9
        (1, 32, 2056, 11412, "NN"),  # 55.7, 44.8
        (1, 16, 4096, 4096, "NN"),  # 78.4, 25.7
        (1, 9, 4096, 4096, "NN"),  # 42.9, 24.3
        (1, 4096, 768, 768, "NT"),  # 131, 105
        (1, 100000, 64, 64, "NN"),  # 32.0, 27.3
        (1, 2496, 1728, 6592, "NN"),  # 1301, 1019
        (1, 8192, 1344, 4992, "NN"),  # 2483, 2032
    ],
)
def test_float64_sums_are_taken_where_they_were_faster(batch: int, m: int, n: int, k: int, layout: str) -> None:
    assert strict_choice(batch, m, n, k, layout).startswith("sm90_dmma")


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("m", "n"), [(64, 64), (80, 72), (48, 64)])
def test_few_long_sums_are_served_in_strict_float32(m: int, n: int, layout: str) -> None:
    """On Hopper alone, and not under batch-invariant numerics, since the slices of K depend on M."""
    chosen = explain(m, n, 65536, layout=layout)
    assert family(chosen) == "sm90_dmma"
    assert next(v for v in hgemm_ops.variants() if v.name == chosen.chosen).numerics == "float64 accumulation"
    assert hgemm_ops.explain(
        M=m, N=n, K=65536, dtype=torch.float32, layout=layout, arch="sm_90", numerics="batch_invariant"
    ).chosen in ("torch",)
    for arch in ("sm_80", "sm_89", "sm_100"):
        other = hgemm_ops.explain(M=m, N=n, K=65536, dtype=torch.float32, layout=layout, arch=arch)
        reasons = [c.reason for c in other.candidates if c.family == "sm90_dmma"]
        assert reasons and all("needs sm_90 or" in reason for reason in reasons)


def test_choices_are_near_the_best_on_random_shapes() -> None:
    """On shapes that the model was fitted to, its choices are near the best: trees and features belong together."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "shapes-float32.tsv.xz"
    over_torch, over_best = [], []
    for shape in shapes.read(path)[1][::4]:
        case, us = shape.case, shape.us
        chosen = strict_choice(case.batch, case.m, case.n, case.k, case.layout)
        if chosen in us:  # not every kernel was timed for every shape
            over_torch.append(us["torch"] / us[chosen])
            over_best.append(min(us.values()) / us[chosen])
    assert len(over_torch) > 500
    assert statistics.geometric_mean(over_torch) > 1.35
    assert statistics.geometric_mean(over_best) > 0.94
    assert sum(ratio < 0.97 for ratio in over_torch) < 0.01 * len(over_torch)


def test_what_nobody_has_timed_is_torchs() -> None:
    """Of vectors, simt_gemv was only timed without a batch, and on half a megabyte or more, and batched_gemv on batches
    of at least 16. Other shapes stay with torch."""
    for m, n, k, batch in ((72, 1, 136, 1), (1, 64, 512, 8)):
        query = _variants.matmul_query(m, n, k, torch.float32, "NT", _native.preset_facts(90), batch)
        assert _variants.name_of(_native.explain(query)[0].variant) == "torch", (m, n, k, batch)


# ---- who asks -------------------------------------------------------------------------------------


def standing() -> str:
    return MODES[_native.lib().hgemm_standing_float32()]


def test_contexts_nest_and_each_thread_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_override, "start", lambda: True)
    seen: list[str] = []

    def elsewhere(context: use_custom_gemm | None = None) -> None:
        if context is None:
            seen.append(standing())
        else:
            with context:
                seen.append(standing())

    with use_custom_gemm(float32="split"):
        assert standing() == "split"
        with use_custom_gemm(numerics="fast"):  # does not set float32
            assert standing() == "split"
            with use_custom_gemm(float32="strict"):
                assert standing() == "strict"
                for context in (None, use_custom_gemm(), use_custom_gemm(float32="split")):
                    thread = threading.Thread(target=elsewhere, args=(context,))
                    thread.start()
                    thread.join()
            assert standing() == "split"
    assert standing() == "strict"
    # The thread without a context has the last one of any thread; the others have their own.
    assert seen == ["strict", "strict", "split"]


def test_a_context_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_override, "start", lambda: True)
    library = _native.lib()
    try:
        assert library.hgemm_set_default_float32(1) == 0
        with use_custom_gemm():
            assert standing() == "split"
        with use_custom_gemm(float32="strict"):
            assert standing() == "strict"
        assert family(explain(*LARGE)) == "sm90_split" and family(explain(*LARGE, "strict")) != "sm90_split"
    finally:
        library.hgemm_set_default_float32(0)
    assert standing() == "strict"
    assert library.hgemm_set_default_float32(2) != 0 and b"float32 must be 0 to 1, got 2" in library.hgemm_last_error()


@pytest.mark.slow
@pytest.mark.parametrize(("value", "expected"), [("split", "1"), ("strict", "0"), ("tf32", "ValueError")])
def test_the_environment_is_read_at_import(value: str, expected: str) -> None:
    done = run_python(
        "import hgemm_ops; print(hgemm_ops._native.lib().hgemm_standing_float32())", HGEMM_OPS_FLOAT32=value
    )
    if expected == "ValueError":
        assert "ValueError: HGEMM_OPS_FLOAT32: float32: expected strict, split or None, got 'tf32'" in done.stderr
    else:
        assert done.stdout.strip() == expected, done.stderr


def test_unknown_modes_are_refused_where_they_are_named() -> None:
    x = torch.ones(2, 2)
    for call in (
        lambda: use_custom_gemm(float32="tf32"),
        lambda: hgemm_ops.matmul(x, x, float32="tf32"),
        lambda: hgemm_ops.linear(x, x, float32="tf32"),
        lambda: hgemm_ops.explain(x, x, float32="tf32"),
    ):
        with pytest.raises(ValueError, match=r"float32: expected strict, split or None, got 'tf32'"):
            call()


def test_decisions_are_remembered_by_what_is_asked_for() -> None:
    query = _variants.matmul_query(*LARGE, torch.float32, "NT", _native.preset_facts(90))
    half = _variants.matmul_query(129, 4096, 4099, torch.float16, "NT", _native.preset_facts(90))
    with counted() as tally:
        for mode in (0, 1, 0):
            query.float32 = half.float32 = mode
            assert _native.lib().hgemm_select_ns(query, 1, 1) > 0
            assert _native.lib().hgemm_select_ns(half, 1, 1) > 0
        rows = {(row.dtype, MODES[row.float32]): row for row in tally.rows()}
    assert rows[2, "strict"].calls == 2 * rows[2, "split"].calls > 0
    assert _variants.family_of(rows[2, "split"].variant) == "sm90_split"
    assert _variants.family_of(rows[2, "strict"].variant) != "sm90_split"
    assert rows[0, "strict"].calls == 3 * rows[2, "split"].calls  # float16 calls have no float32 mode


# ---- the ops --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_tensors_on_the_cpu_are_torchs(mode: str) -> None:
    x, w = (torch.randn(size, requires_grad=True) for size in ((3, 5, 8), (4, 8)))
    hgemm_ops.linear(x, w, activation="gelu", float32=mode).sum().backward()
    got = [x.grad, w.grad]
    x.grad = w.grad = None
    torch.nn.functional.gelu(x @ w.mT).sum().backward()
    for g, expected in zip(got, (x.grad, w.grad), strict=True):
        torch.testing.assert_close(g, expected)
    expected = x @ w.mT
    torch.testing.assert_close(hgemm_ops.matmul(x, w.mT, float32=mode), expected, rtol=0, atol=0)
    per_row = torch.func.vmap(lambda row: hgemm_ops.matmul(row, w.mT, float32=mode))(x)
    torch.testing.assert_close(per_row, expected)


def test_gradients_are_asked_for_in_the_same_mode() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    for options, keywords in (
        ({"float32": "split"}, {"float32": 1}),
        ({"float32": "split", "numerics": "batch_invariant"}, {"numerics": 1, "float32": 1}),
    ):
        y = hgemm_ops.matmul(x, w, **options)  # type: ignore[arg-type]
        assert y.grad_fn is not None and y.grad_fn.matmul.keywords == keywords
    assert hgemm_ops.matmul(x, w, float32="strict").grad_fn.matmul is torch.matmul
    assert hgemm_ops.matmul(x.half(), w.half(), float32="split").grad_fn.matmul is torch.matmul


def test_torch_may_compute_what_might_be_split() -> None:
    """It does so under torch.func, for example: the result is more exact than what was asked for."""
    with FakeTensorMode():
        a = torch.empty(4, 4, device="cuda")
        for name, arguments in {"matmul": (a, a), "addmm": (a, a, a), "linear_gated": (a, a, 4)}.items():
            assert aten.FUNCTIONS[name](*arguments, float32=1).dtype == torch.float32
        assert torch.ops.hgemm.matmul(a, a, float32=1).shape == (4, 4)


def test_the_command_line() -> None:
    arguments = ["explain", *map(str, LARGE), "--dtype=float32", "--arch=sm_90"]
    assert "sm90_split" in CliRunner().invoke(main, [*arguments, "--float32=split"]).output
    assert "sm90_split" not in CliRunner().invoke(main, arguments).output
    assert CliRunner().invoke(main, [*arguments, "--float32=tf32"]).exit_code == 2
    assert "float32 as three bfloat16 planes" in CliRunner().invoke(main, ["info"]).output


def test_without_strict_kernels_predictions_are_analytic() -> None:
    """The forests were fitted to choices among strict kernels as well, and rule out what is much slower than the best.
    Where there is little memory, such a kernel may be the only one that a batch-invariant result can come from."""
    query = _variants.matmul_query(16001, 2049, 2047, torch.float32, "NN", _native.preset_facts(90))
    query.float32, query.numerics = _native.FLOAT32.index("split"), _native.NUMERICS.index("batch_invariant")
    found = [c for c in _native.explain(query)[1] if c.eligible and c.variant != _native.TORCH]
    assert len(found) > 1
    for candidate in found:
        values = (ctypes.c_float * 128)()
        assert _native.lib().hgemm_features(query, candidate.variant, 1.0, values, len(values)) > 20
        assert candidate.predicted_us == pytest.approx(2 ** values[20], rel=1e-3)
