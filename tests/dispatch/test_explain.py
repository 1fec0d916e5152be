"""``hgemm_ops.explain`` and ``hgemm_ops.variants``, for tensors and for sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from helpers import needs_library
from torch import Tensor
from torch._subclasses import FakeTensorMode

import hgemm_ops
from hgemm_ops import _devices, _library, _native, _variants


def half(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float16)


# ---- what is torch's ------------------------------------------------------------------------------


class Subclass(Tensor):
    pass


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (torch.ones(4, 4, dtype=torch.int32), torch.ones(4, 4, dtype=torch.int32), "not int32"),
        (torch.ones(4, 4, dtype=torch.complex128), torch.ones(4, 4, dtype=torch.complex128), "not complex128"),
        (half(4, 4).to_sparse(), half(4, 4), "layout torch.sparse_coo"),
        (half(4, 4), half(4, 4).as_subclass(Subclass), "type Subclass"),
        (torch.nested.nested_tensor([half(2, 4)], layout=torch.jagged), half(4, 4), "nested"),
    ],
    ids=["int32", "complex128", "sparse", "subclass", "nested"],
)
def test_what_no_kernel_takes_is_torchs_and_says_why(a: Tensor, b: Tensor, why: str) -> None:
    for arch in (None, "sm_90"):
        explanation = hgemm_ops.explain(a, b, arch=arch)
        assert (explanation.chosen, explanation.source) == ("torch", "fallback")
        assert why in explanation.reason
        assert [c.name for c in explanation.candidates if c.eligible] == ["torch"]


@needs_library
def test_only_tiny_batches_of_complex64_have_kernels() -> None:
    def of(*shape: int) -> hgemm_ops.Explanation:
        b = torch.ones(shape[0], 8, 8, dtype=torch.complex64)
        return hgemm_ops.explain(torch.ones(shape, dtype=torch.complex64, device="meta"), b, arch="sm_90")

    assert of(100_000, 8, 8).chosen == "tiny_batch_t4x4"
    few = of(10, 8, 8)
    assert (few.chosen, few.source) == ("torch", "model")
    large = of(100, 64, 8)
    assert (large.chosen, large.source) == ("torch", "fallback")
    assert "none of our kernels runs complex64" in large.reason
    assert [c.name for c in large.candidates if c.eligible] == ["torch"]


@needs_library
def test_cpu_tensors_are_torchs_unless_a_gpu_is_named() -> None:
    a, b = half(4097, 4097), half(4097, 4097)
    here = hgemm_ops.explain(a, b)
    assert (here.chosen, here.source) == ("torch", "fallback")
    assert "our kernels need CUDA tensors, these are on cpu" in here.reason
    there = hgemm_ops.explain(a, b, arch="sm_90")
    assert there.chosen != "torch"
    assert there.candidates == hgemm_ops.explain(M=4097, N=4097, K=4097, arch="sm_90").candidates


def test_without_a_library_torch_serves_and_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "reason", lambda: "it was never built")
    for explanation in (hgemm_ops.explain(M=64, N=64, K=64), hgemm_ops.explain(half(4, 4), half(4, 4))):
        assert (explanation.chosen, explanation.source) == ("torch", "fallback")
        assert "it was never built" in explanation.reason
    with pytest.raises(RuntimeError, match="it was never built"):
        _native.lib.__wrapped__()


# ---- tensors --------------------------------------------------------------------------------------


def problem_of(a: Tensor, b: Tensor) -> tuple[str, int, int, int, int, int]:
    """The problem that the dispatcher makes of two tensors: layout, batch, m, n, k, alignment."""
    query = _native.Query(
        a=_native.view(a.shape, a.stride(), a.dtype, _native.alignment(a.data_ptr())),
        b=_native.view(b.shape, b.stride(), b.dtype, _native.alignment(b.data_ptr())),
        c=_native.NO_TENSOR,
        out_dtype=-1,
        variant=_native.AUTO,
        facts=_native.preset_facts(90),
    )
    d, _ = _native.explain(query)
    return _native.LAYOUTS[d.a_major, d.b_major], d.batch, d.m, d.n, d.k, d.align


@needs_library
def test_views_are_seen_as_they_are() -> None:
    a, b = half(64, 128), half(128, 256)
    assert problem_of(a, b) == ("NN", 1, 64, 256, 128, 16)
    assert problem_of(a, half(256, 128).mT) == ("NT", 1, 64, 256, 128, 16)
    assert problem_of(half(128, 64).mT, b) == ("TN", 1, 64, 256, 128, 16)
    assert problem_of(half(128, 64).mT, half(256, 128).mT) == ("TT", 1, 64, 256, 128, 16)
    assert problem_of(half(64 * 128 + 1)[1:].view(64, 128), b)[-1] == 2
    assert problem_of(half(64, 132)[:, :128], b)[-1] == 8
    assert problem_of(a, half(128, 257))[-1] == 2
    # Batch dimensions are folded into the rows where B does not vary. Heads are not.
    assert problem_of(half(4, 64, 128), b)[1:5] == (1, 256, 256, 128)
    assert problem_of(half(4, 64, 128), half(4, 128, 256))[1:5] == (4, 64, 256, 128)
    assert problem_of(half(128), b)[1:5] == (1, 1, 256, 128)


@needs_library
def test_few_sms_have_kernels_whose_clusters_fit() -> None:
    """As those of a green context."""

    def able(sms: int) -> set[str]:
        facts = _native.preset_facts(90)
        facts.sm_count = sms
        query = _variants.matmul_query(1024, 1024, 1024, torch.float16, "NT", facts)
        return {_variants.name_of(c.variant) for c in _native.explain(query)[1] if c.eligible}

    whole, eight, two = able(132), able(8), able(2)
    assert {name for name in whole if not name.endswith(("_streamk", "_splitk"))} <= eight
    assert any("_c2x1x1" in name for name in two) and any("_c2x2x1" in name for name in whole)
    assert not any("_c2x2x1" in name or "_c4x1x1" in name or "_c1x1x4" in name for name in two)


@needs_library
@pytest.mark.parametrize(
    ("a", "b", "numbers"),
    [((4, 5), (6, 3), ("5", "6")), ((2, 4, 5), (3, 5, 4), ("2", "3"))],
)
def test_operands_that_do_not_fit_raise(a: tuple[int, ...], b: tuple[int, ...], numbers: tuple[str, ...]) -> None:
    with pytest.raises(RuntimeError) as error:
        hgemm_ops.explain(half(*a), half(*b), arch="sm_90")
    assert all(number in str(error.value) for number in numbers)


@needs_library
def test_mixed_dtypes_raise() -> None:
    with pytest.raises(RuntimeError, match="one dtype, got float16 and bfloat16"):
        hgemm_ops.explain(half(4, 4), half(4, 4).bfloat16(), arch="sm_90")


@needs_library
def test_meta_tensors_have_an_answer_and_fake_ones_are_left_alone() -> None:
    a = torch.empty(4097, 4097, dtype=torch.float16, device="meta")
    assert hgemm_ops.explain(a, a, arch="sm_90").chosen != "torch"
    with FakeTensorMode():
        fake = torch.empty(4097, 4097, dtype=torch.float16)
    assert "FakeTensor" in hgemm_ops.explain(fake, fake, arch="sm_90").reason


def test_kernels_that_would_make_x_times_its_transpose_asymmetric_refuse_it() -> None:
    def refusals(a: Tensor, b: Tensor) -> list[str]:
        candidates = hgemm_ops.explain(a, b, arch="sm_90").candidates
        return [c.name for c in candidates if "must be symmetric" in c.reason]

    x = torch.empty(2304, 2304, dtype=torch.float16)
    for a, b in ((x, x.t()), (x.t(), x)):
        found = refusals(a, b)
        assert found and all("streamk" in name for name in found)
    assert not refusals(x, x) and not refusals(x, x.clone().t()) and not refusals(x[:2000], x.t())
    short = torch.empty(8, 1001, dtype=torch.float16)
    assert all("skinny_mma" in name or "streamk" in name for name in refusals(short, short.t()))
    assert any("skinny_mma" in name for name in refusals(short, short.t()))
    batch = torch.empty(3, 2304, 2304, dtype=torch.float16)
    assert refusals(batch, batch.mT) and not refusals(batch, batch[:1].mT)
    sizes = hgemm_ops.explain(M=2304, N=2304, K=2304, layout="NT", arch="sm_90")
    assert not any("must be symmetric" in c.reason for c in sizes.candidates)


# ---- sizes ----------------------------------------------------------------------------------------


@needs_library
def test_sizes_and_tensors_agree() -> None:
    described = hgemm_ops.explain(M=33, N=257, K=129, batch=5, layout="TN", dtype=torch.bfloat16, arch="sm_80")
    a, b = half(5, 129, 33).bfloat16().mT, half(5, 129, 257).bfloat16()
    given = hgemm_ops.explain(a, b, arch="sm_80")
    assert (described.chosen, described.reason) == (given.chosen, given.reason)
    assert described.candidates == given.candidates


@needs_library
def test_default_arch_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "current", lambda: None)
    assert hgemm_ops.explain(M=64, N=64, K=64).device == "sm_90"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either a and b or M, N and K; got M=None"),
        ({"M": 4, "N": 4}, "K=None"),
        ({"M": -1, "N": 4, "K": 4}, "M must not be negative, got -1"),
        ({"M": 4, "N": 4, "K": 4, "batch": -2}, "batch must not be negative, got -2"),
        ({"M": 4, "N": 4, "K": 4, "layout": "NX"}, "layout must be NN, NT, TN or TT, got 'NX'"),
        ({"M": 4, "N": 4, "K": 4, "alignment": 3}, "alignment must be 1, 2, 4, 8 or 16 bytes, got 3"),
        ({"M": 4, "N": 4, "K": 4, "activation": "tanh"}, "activation: expected one of none, relu"),
        ({"M": 4, "N": 4, "K": 4, "variant": "nope"}, "unknown kernel 'nope'"),
        ({"a": half(2, 2), "b": half(2, 2), "M": 2}, "either a and b or M, N and K"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        hgemm_ops.explain(**arguments)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_name_is_no_dtype() -> None:
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype, got 'float16'"):
        hgemm_ops.explain(M=4, N=4, K=4, dtype="float16")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [4.0, "4", (2, 2)])
def test_sizes_are_integers(size: Any) -> None:
    with pytest.raises(TypeError, match=r"^explain: batch must be an integer, got "):
        hgemm_ops.explain(M=4, N=4, K=4, batch=size)
    with pytest.raises(TypeError, match=r"^explain_grouped: rows must be an integer, got "):
        hgemm_ops.explain_grouped(rows=size, groups=1, N=8, K=8)


def test_sizes_have_63_bits() -> None:
    """A larger one would be explained as what its lower bits are."""
    with pytest.raises(ValueError, match=r"^explain: M must be less than 2\*\*63, got 18446744073709551624$"):
        hgemm_ops.explain(M=2**64 + 8, N=8, K=8)
    with pytest.raises(ValueError, match=r"^explain_grouped: groups must be less than 2\*\*63, got "):
        hgemm_ops.explain_grouped(rows=8, groups=2**63, N=8, K=8)


@needs_library
def test_unknown_arch() -> None:
    with pytest.raises(ValueError, match="arch must be one of sm_80, sm_86, sm_89, sm_90, sm_100, got 'sm_75'"):
        hgemm_ops.explain(M=4, N=4, K=4, arch="sm_75")


@pytest.mark.parametrize("a", [None, [[1.0]], 3])
def test_non_tensors(a: object) -> None:
    with pytest.raises(TypeError, match=f"expected two tensors, got {type(a).__name__} and Tensor"):
        hgemm_ops.explain(a, half(2, 2))  # type: ignore[arg-type]


# ---- presentation ---------------------------------------------------------------------------------


@needs_library
def test_table_and_json_hold_everything() -> None:
    explanation = hgemm_ops.explain(M=4097, N=513, K=4097, layout="NT", arch="sm_90", activation="gelu", bias=True)
    lines = str(explanation).splitlines()
    assert lines[0] == f"float16 NT 4097x513x4097 on sm_90: {explanation.chosen} (model)"
    assert lines[1] == explanation.reason
    assert lines[4].split()[0] == explanation.chosen
    able = [c for c in explanation.candidates if c.eligible and not c.forced_only]
    others = sorted((c for c in able if c.name != explanation.chosen), key=lambda c: c.us)
    assert [line.split()[0] for line in lines[5:-1]] == [c.name for c in others]
    assert lines[-1].startswith(f"({len(explanation.candidates) - len(able)} more cannot run it")
    every = explanation.table(every=True).splitlines()
    assert len(every) == 4 + len(explanation.candidates)
    for c in explanation.candidates:
        (line,) = [line for line in every[4:] if line.split()[0] == c.name]
        assert c.reason in line
        if c.predicted_us is not None:
            assert f"{c.predicted_us:.1f}" in line
    assert any(not c.eligible for c in explanation.candidates)
    data = json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
    assert data["chosen"] == explanation.chosen
    assert [c["name"] for c in data["candidates"]] == [c.name for c in explanation.candidates]


@needs_library
def test_variants_describe_every_kernel() -> None:
    variants = hgemm_ops.variants()
    assert [v.id for v in variants] == list(range(len(variants)))
    assert len({v.name for v in variants}) == len(variants)
    for v in variants:
        assert v.dtypes and v.layouts
        if v.family == "ladder":  # has names of its own, and its first kernels have no pipeline stages
            assert min(*v.tile[:3], v.tile[4]) > 0 and v.tile[3] >= 0
        else:
            # Kernels of sm90_skinny keep their names from the time when they belonged to the family skinny.
            assert v.name.startswith("skinny" if v.family == "sm90_skinny" else v.family)
            assert min(v.tile) > 0
        planes = ("float32 as three bfloat16 planes", "float32 as two float16 planes")
        accumulations = tuple(f"{kind} accumulation" for kind in ("float16", "float32", "float64", "int32"))
        assert v.numerics in (*accumulations, *planes)
    mma = [v for v in variants if v.family == "sm80_mma"]
    assert len({v.tile for v in mma}) >= 3
    for v in mma:
        assert (v.min_arch, v.max_arch) == ("sm_80", None)
        assert v.dtypes == (torch.float16, torch.bfloat16)
        assert v.layouts == ("NN", "NT", "TN", "TT")
        assert v.numerics == "float32 accumulation"
