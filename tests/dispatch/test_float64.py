"""What the dispatcher chooses for float64, without a GPU."""

from __future__ import annotations

import pytest
import torch
from helpers import needs_library

import hgemm_ops
from hgemm_ops import _native, _variants

pytestmark = needs_library


def chosen(batch: int, m: int, n: int, k: int, layout: str = "NN", cc: int = 90, slow: bool = False) -> str:
    facts = _native.preset_facts(cc)
    facts.slow_float64 = int(slow)
    query = _variants.matmul_query(m, n, k, torch.float64, layout, facts, batch)
    return _variants.name_of(_native.explain(query)[0].variant)


# Measured on an H200, in microseconds: ours, torch.
@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "layout"),
    [
        (1, 20, 27, 19426, "NT"),  # 8.1, 13.2
        (1, 12, 8, 31204, "NT"),  # 8.2, 13.8
        (1, 150, 3, 155, "NT"),  # 5.2, 17.0
        (1, 60, 6, 1982, "TT"),  # 5.9, 29.1
        (1, 8, 184, 16888, "NT"),  # 11.7, 19.1
        (15, 80, 8, 3688, "TT"),  # 16.3, 28.4
    ],
)
def test_kernels_run_where_they_are_much_faster(batch: int, m: int, n: int, k: int, layout: str) -> None:
    assert chosen(batch, m, n, k, layout).startswith("sm90_dmma_f64_")


@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "layout"),
    [
        (1, 4096, 4096, 4096, "NN"),  # 2713, 2422
        (1, 1024, 1024, 1024, "NN"),  # 46.8, 41.4
        (1, 3867, 2449, 8, "NT"),  # 91, 36
        (1, 720, 2396, 16, "NT"),  # 13.3, 7.0
        (13, 64, 64, 64, "NT"),  # 4.7, 3.3
        (309, 64, 64, 64, "NT"),  # 15.2, 11.7
    ],
)
def test_torch_runs_what_it_is_faster_at(batch: int, m: int, n: int, k: int, layout: str) -> None:
    assert chosen(batch, m, n, k, layout) == "torch"


def test_a_product_by_its_own_transpose_takes_half_of_the_work() -> None:
    for n, k in ((4096, 4096), (2000, 500)):
        query = _variants.matmul_query(n, n, k, torch.float64, "NT", _native.preset_facts(90))
        assert _variants.name_of(_native.explain(query)[0].variant) == "torch"
        query.same_address = 1
        assert _variants.name_of(_native.explain(query)[0].variant).startswith("sm90_dmma_f64_")


def test_only_hopper_with_fast_float64_has_kernels() -> None:
    for arguments in ({"cc": 80}, {"cc": 89}, {"cc": 100}, {"slow": True}):
        assert chosen(1, 60, 6, 1982, "TT", **arguments) == "torch"


def test_vectors_are_left_to_torch() -> None:
    for m, n in ((1, 4096), (4096, 1)):
        assert chosen(1, m, n, 4096, "NT") == "torch"


def test_activations_are_left_to_torch() -> None:
    explanation = hgemm_ops.explain(
        M=60, N=6, K=1982, dtype=torch.float64, layout="TT", activation="relu", bias=True, arch="sm_90"
    )
    assert explanation.chosen == "torch"
