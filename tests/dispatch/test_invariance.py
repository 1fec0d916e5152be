"""numerics="batch_invariant" without a GPU: which kernels it takes, what it refuses, and how it is asked for.

``tests/kernels/test_gpu_invariance.py`` compares the bits of results.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from click.testing import CliRunner
from helpers import counted, needs_library
from torch._subclasses import FakeTensorMode

import hgemm_ops
from hgemm_ops import _devices, _native, _override, _tables, _variants, use_custom_gemm
from hgemm_ops._tables import Device, Entry, Table
from hgemm_ops.cli import main
from hgemm_ops.ops import aten

pytestmark = needs_library

MODES = _native.NUMERICS
ROWS = (1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 128, 200, 512, 1023, 1024, 4096, 9999, 16384)
HALF = (torch.float16, torch.bfloat16)


def chosen(query: _native.Query) -> hgemm_ops.VariantInfo:
    """The kernel that a query gets. Raises AssertionError where it gets torch, or is refused."""
    decision, _ = _native.explain(query)
    assert decision.variant >= 0, decision.reason.decode()
    return hgemm_ops.variants()[decision.variant]


def asking(query: _native.Query, mode: str = "batch_invariant") -> _native.Query:
    query.numerics = MODES.index(mode)
    return query


# ---- the classes ----------------------------------------------------------------------------------


def test_every_kernel_declares_its_sums() -> None:
    vary = ("gemv", "skinny_mma", "simt_skinny", "splitk", "streamk", "_split3", "sm90_split_skinny", "sm90_dmma")
    others = dict.fromkeys(vary, "vary")
    others |= {"c1x1x2": "two slices", "c1x1x4": "four slices"}
    others |= {"sm90_split": "planes", "sm80_split": "planes by mma.sync", "tiny_batch": "chain", "carried": "carried"}
    others = {"int8": "vary", "skinny_mma_in_order": "in order", "_sliced": "four slices"} | others
    for v in hgemm_ops.variants():
        expected = next((sums for part, sums in others.items() if part in v.name), "in order")
        assert v.sums == ("vary" if v.family == "ladder" else expected), v.name


def adds_four_slices(v: hgemm_ops.VariantInfo) -> bool:
    """Whether a kernel adds up four slices of K where the promise is that."""
    return v.sums == "four slices" or v.name.startswith("skinny_wgmma_64x") or v.name.endswith(SLICED)


#: Endings of the names of kernels that add up K in other ways as well.
SLICED = ("_carried", "_carried_pad", "_splitk", "skinny_mma_in_order_16x8")


def promised(n: int, k: int, cc: int, out_dtype: int = -1) -> str:
    if out_dtype == 2:
        return "carried" if k > 128 else "in order"
    in_slices = (n <= 1280 and k >= 3072) or (n <= 2048 and k >= 6144)
    return "four slices" if cc == 90 and in_slices else "in order"


# ---- what is chosen -------------------------------------------------------------------------------


@pytest.mark.parametrize("cc", _native.chips())
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_class_never_changes_and_torch_never_serves(cc: int, dtype: torch.dtype) -> None:
    facts, draw = _native.preset_facts(cc), random.Random(cc)
    for _ in range(8):
        n = draw.choice((1, 2, draw.randrange(1, 300), 8 * draw.randrange(1, 4000), draw.randrange(1, 40000)))
        k = draw.choice((1, draw.randrange(1, 300), 8 * draw.randrange(1, 2000), draw.randrange(1, 16000)))
        layout, act, bias = draw.choice(("NN", "NT", "TN", "TT")), draw.choice((0, 0, 1, 2, 3, 4)), draw.random() < 0.5
        out_dtype = draw.choice((-1, -1, 2))
        classes = set()
        for m in (*ROWS, draw.randrange(1, 16384)):
            query = _variants.matmul_query(
                m, n, k, dtype, layout, facts, draw.choice((1, 1, 2, 7)), draw.choice((2, 4, 8, 16))
            )
            query.act, query.has_bias, query.out_dtype = act, bias, out_dtype
            v = chosen(asking(query))
            sums = promised(n, k, cc, out_dtype)
            is_so = adds_four_slices(v) if sums == "four slices" else v.sums == sums
            # Kernels of sm90_wgmma compute activations other than relu by other formulas than all other kernels.
            classes.add((sums if is_so else v.name, v.family == "sm90_wgmma" if act > 1 else None))
        assert classes == {(sums, (cc == 90) if act > 1 else None)}, (n, k, layout, act, out_dtype)


@pytest.mark.parametrize(
    ("n", "k"),
    [(1, 3072), (1280, 3072), (1280, 3071), (1281, 3072), (999, 4097), (1281, 6143), (2048, 6144), (2049, 6144)],
)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_slices_of_k_depend_on_n_and_k_alone(n: int, k: int, layout: str) -> None:
    facts = _native.preset_facts(90)
    for m in ROWS:
        for batch, alignment in ((1, 16), (1, 2), (3, 8)):
            query = _variants.matmul_query(m, n, k, torch.bfloat16, layout, facts, batch, alignment)
            decision, candidates = _native.explain(asking(query))
            able = [hgemm_ops.variants()[c.variant] for c in candidates if c.variant >= 0 and c.eligible]
            assert able and decision.variant in {v.id for v in able}
            for v in able:
                is_so = adds_four_slices(v) if promised(n, k, 90) == "four slices" else v.sums == "in order"
                assert is_so, (v.name, m, batch, alignment)


def test_a_matrix_times_a_vector_has_the_slices_of_a_single_column() -> None:
    """However many rows the matrix has: they are the batch."""
    x = torch.empty(4096, dtype=torch.float16)
    for rows, of_row in ((1, "four slices"), (1280, "four slices"), (1288, "in order"), (9000, "in order")):
        w = torch.empty(rows, 4096, dtype=torch.float16)
        for a, b, sums in ((w, x, "four slices"), (w, x[:, None], "four slices"), (x, w.t(), of_row)):
            candidates = hgemm_ops.explain(a, b, arch="sm_90", numerics="batch_invariant").candidates
            able = {c.name for c in candidates if c.eligible}
            assert any("splitk" in name for name in able) == (sums == "four slices"), (rows, a.shape, b.shape)


def test_sums_are_carried_only_where_that_is_asked_for() -> None:
    def sums(**arguments: object) -> set[str]:
        names = {
            hgemm_ops.explain(M=m, N=512, arch="sm_90", **arguments).chosen  # type: ignore[arg-type]
            for m in (1, 64, 128, 2048)
        }
        return {v.sums for v in hgemm_ops.variants() if v.name in names}

    wide = {"numerics": "batch_invariant", "out_dtype": torch.float32}
    assert sums(K=129, **wide) == {"carried"} and sums(K=128, **wide) == {"in order"}
    assert sums(K=3071, numerics="batch_invariant") == {"in order"}
    assert "carried" not in sums(K=65536, out_dtype=torch.float32)


def test_explain_says_that_carried_sums_must_be_asked_for_or_named() -> None:
    shape = {"M": 64, "N": 512, "K": 4096, "layout": "NT", "arch": "sm_90", "out_dtype": torch.float32}
    fast = hgemm_ops.explain(**shape)  # type: ignore[arg-type]
    invariant = hgemm_ops.explain(**shape, numerics="batch_invariant")  # type: ignore[arg-type]
    carried = [v for v in hgemm_ops.variants() if v.sums == "carried"]
    able = [v for v in carried if fast.candidates[v.id].eligible]
    assert able and able == [v for v in carried if invariant.candidates[v.id].eligible]
    for v in able:
        candidate = fast.candidates[v.id]
        assert candidate.forced_only and 'numerics="batch_invariant"' in candidate.reason
        assert v.name not in str(fast) and v.name in fast.table(every=True)
        assert not invariant.candidates[v.id].forced_only and v.name in str(invariant)
        named = hgemm_ops.explain(**shape, variant=v.name).candidates[v.id]  # type: ignore[arg-type]
        assert named.eligible and not named.forced_only and named.reason == ""


@pytest.mark.parametrize("sizes", [((5,), (5,)), ((1, 4097), (4097,)), ((4096,), (4096, 64)), ((3, 2, 4), (3, 4, 1))])
def test_vectors_and_strange_views_have_a_kernel(sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (torch.empty(size, dtype=torch.float16) for size in sizes)
    odd = torch.empty(a.numel() + 1, dtype=torch.float16)[1:].view(a.shape)
    for x in (a, odd, a[..., :1].expand(a.shape)):
        name = hgemm_ops.explain(x, b, arch="sm_90", numerics="batch_invariant").chosen
        v = next(v for v in hgemm_ops.variants() if v.name == name)
        assert adds_four_slices(v) if a.shape[-1] > 4000 else v.sums == "in order"


def test_a_kernel_that_slices_k_for_speed_is_asked_to_do_without() -> None:
    query = _variants.matmul_query(8, 1288, 6136, torch.float16, "NT", _native.preset_facts(90))
    name = "skinny_wgmma_64x8"
    sliced, whole = (
        {_variants.name_of(c.variant): c.predicted_us for c in _native.explain(asking(query, mode))[1]}[name]
        for mode in MODES[:2]
    )
    assert whole > 1.2 * sliced


def test_fast_is_as_it_was() -> None:
    names = {hgemm_ops.explain(M=m, N=4096, K=4096, layout="NT", arch="sm_90").chosen for m in ROWS}
    said = {hgemm_ops.explain(M=m, N=4096, K=4096, layout="NT", arch="sm_90", numerics="fast").chosen for m in ROWS}
    assert names == said and any("c1x1x2" in name for name in names)


@pytest.fixture
def tables() -> Iterator[None]:
    _tables.ensure()
    _tables.install([])
    yield
    _tables.reload()


@pytest.mark.usefixtures("tables")
def test_a_table_decides_among_kernels_of_the_class() -> None:
    def install(**us: float) -> None:
        entry = Entry("float16", "NT", 16, 1, 256, 4096, 4096, us)
        _tables.install([Table(Device("NVIDIA H200", 90, 132, 62914560), [entry])])

    def explain() -> hgemm_ops.Explanation:
        return hgemm_ops.explain(M=256, N=4096, K=4096, layout="NT", arch="sm_90", numerics="batch_invariant")

    sliced, whole = "sm90_wgmma_cooperative_128x64x64_c1x1x2", "sm90_wgmma_pingpong_128x96x64_c2x1x1"
    install(torch=10.0, **{sliced: 8.0, whole: 12.0})
    assert (explain().chosen, explain().source) == (whole, "table")
    assert "the fastest batch-invariant kernel" in explain().reason
    install(torch=10.0, **{sliced: 8.0})
    assert explain().source == "model" and explain().chosen not in (sliced, "torch")


# ---- what is refused, what is torch's -------------------------------------------------------------


def test_nothing_to_multiply_is_nobodys() -> None:
    for m, n, k in ((4, 4, 0), (0, 4, 4), (4, 0, 4)):
        explanation = hgemm_ops.explain(M=m, N=n, K=k, arch="sm_90", numerics="batch_invariant_or_raise")
        assert explanation.chosen == "torch" and "nothing to multiply" in explanation.reason


@pytest.mark.parametrize("variant", ["torch", "gemv_m1", "sm90_wgmma_cooperative_128x64x64_c1x1x2"])
def test_a_kernel_of_another_class_is_refused(variant: str) -> None:
    arguments = {"M": 1, "N": 4096, "K": 4096, "layout": "NT", "arch": "sm_90", "variant": variant}
    assert hgemm_ops.explain(**arguments).chosen == variant
    with pytest.raises(RuntimeError, match=r"torch was requested|another summation order"):
        hgemm_ops.explain(**arguments, numerics="batch_invariant")


def test_a_kernel_of_the_class_may_be_named() -> None:
    name = "sm80_mma_128x128x64_w64x64_s3"
    assert hgemm_ops.explain(M=1, N=64, K=64, variant=name, arch="sm_90", numerics="batch_invariant").chosen == name


def test_a_problem_that_no_kernel_takes_is_refused() -> None:
    assert hgemm_ops.explain(M=2**31, N=8, K=8, arch="sm_90").chosen == "torch"
    with pytest.raises(RuntimeError, match="is not possible for float16 NN 2147483648x8x8: no batch-invariant kernel"):
        hgemm_ops.explain(M=2**31, N=8, K=8, arch="sm_90", numerics="batch_invariant")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int32], ids=str)
def test_a_dtype_without_kernels_is_reported_or_raises(dtype: torch.dtype) -> None:
    explanation = hgemm_ops.explain(M=64, N=64, K=64, dtype=dtype, arch="sm_90", numerics="batch_invariant")
    assert explanation.chosen == "torch" and "not batch-invariant" in explanation.reason
    with pytest.raises(RuntimeError, match="is not possible"):
        hgemm_ops.explain(M=64, N=64, K=64, dtype=dtype, arch="sm_90", numerics="batch_invariant_or_raise")


def test_other_candidates_say_why_not() -> None:
    candidates = hgemm_ops.explain(M=1, N=4096, K=4096, arch="sm_90", numerics="batch_invariant").candidates
    reasons = {c.name: c.reason for c in candidates if not c.eligible}
    assert "not batch-invariant" in reasons["torch"] and "another summation order" in reasons["gemv_m1"]


# ---- who asks -------------------------------------------------------------------------------------


def standing() -> str:
    return MODES[_native.lib().hgemm_standing_numerics()]


def test_contexts_nest_and_each_thread_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_override, "start", lambda: True)
    seen: list[str] = []

    def elsewhere(context: use_custom_gemm | None = None) -> None:
        if context is None:
            seen.append(standing())
        else:
            with context:
                seen.append(standing())

    with use_custom_gemm(numerics="batch_invariant"):
        assert standing() == "batch_invariant"
        with use_custom_gemm():  # does not set numerics
            assert standing() == "batch_invariant"
            with use_custom_gemm(numerics="fast"):
                assert standing() == "fast"
                for context in (None, use_custom_gemm(), use_custom_gemm(numerics="batch_invariant_or_raise")):
                    thread = threading.Thread(target=elsewhere, args=(context,))
                    thread.start()
                    thread.join()
            assert standing() == "batch_invariant"
    assert standing() == "fast"
    # The thread without a context has the last one of any thread; the others have their own.
    assert seen == ["fast", "fast", "batch_invariant_or_raise"]


def test_a_context_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_override, "start", lambda: True)
    library = _native.lib()
    try:
        assert library.hgemm_set_default_numerics(1) == 0
        assert standing() == "batch_invariant"
        with use_custom_gemm():
            assert standing() == "batch_invariant"
        with use_custom_gemm(numerics="fast"):
            assert standing() == "fast"
        assert hgemm_ops.explain(M=1, N=4096, K=4096, arch="sm_80").chosen != "torch"  # a chip without measured times
        fast = hgemm_ops.explain(M=4096, N=4096, K=4096, arch="sm_80", numerics="fast")
        assert fast.chosen == "torch"
    finally:
        library.hgemm_set_default_numerics(0)
    assert (
        library.hgemm_set_default_numerics(3) != 0 and b"numerics must be 0 to 2, got 3" in library.hgemm_last_error()
    )


@pytest.mark.slow
@pytest.mark.parametrize(("value", "expected"), [("batch_invariant", "1"), ("fast", "0"), ("always", "ValueError")])
def test_the_environment_is_read_at_import(value: str, expected: str) -> None:
    code = "import hgemm_ops; print(hgemm_ops._native.lib().hgemm_standing_numerics())"
    environment = os.environ | {"HGEMM_OPS_NUMERICS": value}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if expected == "ValueError":
        assert "ValueError: HGEMM_OPS_NUMERICS: numerics: expected fast, batch_invariant" in done.stderr
    else:
        assert done.stdout.strip() == expected, done.stderr


def test_decisions_are_remembered_by_what_is_asked_for() -> None:
    query = _variants.matmul_query(129, 4096, 4097, torch.float16, "NT", _native.preset_facts(90))
    with counted() as tally:
        for mode in ("fast", "batch_invariant", "fast"):
            assert _native.lib().hgemm_select_ns(asking(query, mode), 1, 1) > 0
        rows = {MODES[row.numerics]: row for row in tally.rows()}
    assert rows["fast"].calls == 2 * rows["batch_invariant"].calls > 0
    assert hgemm_ops.variants()[rows["batch_invariant"].variant].sums == "in order"


def test_unknown_modes_are_refused_where_they_are_named() -> None:
    x = torch.ones(2, 2)
    for call in (
        lambda: use_custom_gemm(numerics="slow"),
        lambda: hgemm_ops.matmul(x, x, numerics="slow"),
        lambda: hgemm_ops.linear(x, x, numerics="slow"),
        lambda: hgemm_ops.explain(x, x, numerics="slow"),
    ):
        with pytest.raises(ValueError, match=r"numerics: expected fast, batch_invariant, .* got 'slow'"):
            call()


@pytest.mark.parametrize("reason", ["no native library: it was never built", None])
def test_a_context_that_cannot_hold_raises_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    monkeypatch.setattr(_override, "start", lambda: False)
    monkeypatch.setattr(_override, "reason", lambda: reason or "no CUDA device")
    monkeypatch.setattr(_devices, "may_exist", lambda: reason is not None)
    if reason is None:
        with use_custom_gemm(numerics="batch_invariant"):
            pass
        return
    with pytest.raises(RuntimeError, match=r"'batch_invariant' is not possible: .*never built"):
        use_custom_gemm(numerics="batch_invariant").__enter__()
    with use_custom_gemm(), use_custom_gemm(numerics="fast"):
        pass


# ---- the ops --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_tensors_on_the_cpu_are_torchs(mode: str) -> None:
    x, w = (torch.randn(size, requires_grad=True) for size in ((3, 5, 8), (4, 8)))
    hgemm_ops.linear(x, w, activation="gelu", numerics=mode).sum().backward()
    got = [x.grad, w.grad]
    x.grad = w.grad = None
    torch.nn.functional.gelu(x @ w.mT).sum().backward()
    for g, expected in zip(got, (x.grad, w.grad), strict=True):
        torch.testing.assert_close(g, expected)
    expected = x @ w.mT
    torch.testing.assert_close(hgemm_ops.matmul(x, w.mT, numerics=mode), expected, rtol=0, atol=0)
    per_row = torch.func.vmap(lambda row: hgemm_ops.matmul(row, w.mT, numerics=mode))(x)
    torch.testing.assert_close(per_row, expected)


def test_gradients_are_asked_for_in_the_same_mode() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = hgemm_ops.matmul(x, torch.randn(4, 5), numerics="batch_invariant")
    assert y.grad_fn is not None and y.grad_fn.matmul.keywords == {"numerics": 1}
    assert hgemm_ops.matmul(x, torch.randn(4, 5)).grad_fn.matmul is torch.matmul


def test_cuda_tensors_that_torch_would_compute_are_refused() -> None:
    with FakeTensorMode():
        a = torch.empty(4, 4, dtype=torch.float16, device="cuda")
        for name, arguments in {
            "matmul": (a, a),
            "addmm": (a, a, a),
            "linear": (a, a),
            "linear_gated": (a, a, 4),
        }.items():
            with pytest.raises(RuntimeError, match="numerics is not possible where torch computes the op"):
                aten.FUNCTIONS[name](*arguments, numerics=1)
            aten.FUNCTIONS[name](*arguments, numerics=0)
        # Tracing computes nothing, so nothing is refused.
        assert torch.ops.hgemm.matmul(a, a, numerics=1).shape == (4, 4)


def test_the_command_line() -> None:
    run = CliRunner().invoke(main, ["explain", "1", "4096", "4096", "--arch=sm_90", "--numerics=batch_invariant"])
    assert run.exit_code == 0 and "the fastest batch-invariant kernel" in run.output
    run = CliRunner().invoke(
        main, ["explain", "1", "8", "8", "--dtype=float32", "--arch=sm_90", "--numerics=batch_invariant_or_raise"]
    )
    assert run.exit_code == 1 and "is not possible" in run.output
    assert "sums in order" in CliRunner().invoke(main, ["info"]).output
