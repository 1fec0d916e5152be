"""Which kernels are contenders for ``x @ x.T`` and ``x.T @ x``, and which is chosen, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import needs_library
from torch import Tensor

import hgemm_ops

pytestmark = needs_library

HOW = pytest.mark.parametrize("how", ["x @ x.T", "x.T @ x"])


def operands(how: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    x = torch.empty(shape, dtype=dtype)
    return (x, x.mT) if how == "x @ x.T" else (x.mT, x)


def symmetric(a: Tensor, b: Tensor, **modes: Any) -> list[hgemm_ops.Candidate]:
    candidates = hgemm_ops.explain(a, b, arch="sm_90", **modes).candidates
    found = [c for c in candidates if c.name.endswith("_symmetric")]
    assert found
    return found


@HOW
def test_they_take_such_products_alone(how: str) -> None:
    a, b = operands(how, 512, 512)
    assert all(c.eligible for c in symmetric(a, b))
    for other in (b.clone(), torch.empty_like(b), a):
        for c in symmetric(a, other):
            assert not c.eligible and "x @ x.T or x.T @ x" in c.reason
    for c in hgemm_ops.explain(M=512, N=512, K=512, layout="NT", arch="sm_90").candidates:
        assert not (c.name.endswith("_symmetric") and c.eligible)


@HOW
def test_what_they_lack_they_refuse(how: str) -> None:
    a, b = operands(how, 512, 512)
    for options in ({"bias": True}, {"activation": "gelu"}, {"out_dtype": torch.float32}):
        for c in symmetric(a, b, **options):
            assert not c.eligible and "without C, bias or activations other than relu" in c.reason
    assert all(c.eligible for c in symmetric(a, b, activation="relu"))
    a, b = operands(how, 516, 516)
    for c in symmetric(a, b):
        assert not c.eligible and "N a multiple of 8 (got 516)" in c.reason
    x = torch.empty(256, 512, dtype=torch.float16)[:, ::2]  # both operands are copied, and then have two addresses
    for c in symmetric(*((x, x.mT) if how == "x @ x.T" else (x.mT, x))):
        assert not c.eligible and "unit stride" in c.reason


@HOW
@pytest.mark.parametrize("n", [2048, 3000, 4096, 8192])
def test_large_ones_are_theirs(how: str, n: int) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        a, b = operands(how, n, 4096, dtype=dtype) if how == "x @ x.T" else operands(how, 4096, n, dtype=dtype)
        for numerics in ("fast", "batch_invariant"):
            chosen = hgemm_ops.explain(a, b, arch="sm_90", numerics=numerics)
            assert chosen.chosen.endswith("_symmetric"), str(chosen)
            other = hgemm_ops.explain(a, b.clone(), arch="sm_90", numerics=numerics)
            assert not other.chosen.endswith("_symmetric")
            times, of_other = ({c.name: c.predicted_us for c in e.candidates if c.eligible} for e in (chosen, other))
            # What else can run the product is predicted to take as long as ever, and so is torch, but for what its
            # model makes of the kernels beside it.
            if numerics == "fast":
                assert times["torch"] == pytest.approx(of_other.pop("torch"), rel=0.02)
            assert {item for item in of_other.items() if "streamk" not in item[0]} <= set(times.items())
            fastest = min(us for us in of_other.values() if us is not None)
            assert min(us for us in times.values() if us is not None) < 0.8 * fastest


@HOW
def test_batches_of_large_ones_are_theirs(how: str) -> None:
    a, b = operands(how, 4, 2048, 2048)
    assert hgemm_ops.explain(a, b, arch="sm_90").chosen.endswith("_symmetric")
    a, b = operands(how, 4096, 16, 16)
    assert not hgemm_ops.explain(a, b, arch="sm_90").chosen.endswith("_symmetric")


@HOW
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_over_planes_need_half_the_time(how: str, arch: str) -> None:
    a, b = operands(how, 4096, 4096, dtype=torch.float32)
    ours, ordinary = (hgemm_ops.explain(a, x, arch=arch, float32="split") for x in (b, b.clone()))
    compared = 0
    for mine, other in zip(ours.candidates, ordinary.candidates, strict=True):
        if "split" in mine.name and mine.eligible:
            assert 0.45 < mine.predicted_us / other.predicted_us < 0.65, mine.name
            compared += 1
    assert compared > 0


@HOW
@pytest.mark.parametrize("n", [4096, 8192])
def test_strict_float32_kernels_need_half_the_time(how: str, n: int) -> None:
    a, b = operands(how, n, n, dtype=torch.float32)
    ours, ordinary = (hgemm_ops.explain(a, x, arch="sm_90") for x in (b, b.clone()))
    pairs = zip(ours.candidates, ordinary.candidates, strict=True)
    shares = [x.predicted_us / y.predicted_us for x, y in pairs if x.name.startswith("sm90_dmma") and x.eligible]
    assert len(shares) > 4 and all(0.45 < share < 0.75 for share in shares), shares
    assert ours.chosen.startswith("sm90_dmma"), str(ours)


@HOW
def test_a_predicted_time_is_not_called_measured(how: str) -> None:
    """The shipped table has 4096 x 4096 x 4096, but no kernel in it computes one triangle."""
    a, b = operands(how, 4096, 4096)
    ordinary, ours = hgemm_ops.explain(a, b.clone(), arch="sm_90"), hgemm_ops.explain(a, b, arch="sm_90")
    assert (ordinary.source, ours.source) == ("table", "model") or how == "x.T @ x"
    assert ours.chosen.endswith("_symmetric") and ours.reason.startswith("predicted")
