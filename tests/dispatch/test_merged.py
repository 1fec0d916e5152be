"""Which kernels compute rows of several matrices in one tile, where these share B, and which is chosen, without a GPU.

``F.linear`` makes such batches of a permuted input without gradient.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import needs_library
from torch import Tensor

import hgemm_ops

pytestmark = needs_library


def rows_of_all(batch: int, m: int, k: int, *, sliced: bool = False, dtype: torch.dtype = torch.float16) -> Tensor:
    """A permuted (batch, m, k). With ``sliced`` no single stride leads through all of its rows."""
    return torch.empty(m, batch + sliced, k, dtype=dtype)[:, :batch].transpose(0, 1)


def weight(n: int, k: int, layout: str = "NT", dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.empty(n, k, dtype=dtype).T if layout == "NT" else torch.empty(k, n, dtype=dtype)


def merged(a: Tensor, b: Tensor, **modes: Any) -> list[hgemm_ops.Candidate]:
    candidates = hgemm_ops.explain(a, b, arch="sm_90", **modes).candidates
    found = [c for c in candidates if c.name.endswith("_merged")]
    assert len(found) == 4
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize(
    ("batch", "m", "n", "k"),
    [(64, 27, 8192, 4096), (64, 27, 16384, 8192), (100, 17, 4096, 4096), (16, 8, 4096, 4096), (33, 100, 5120, 2048)],
)
def test_they_are_chosen(dtype: torch.dtype, layout: str, sliced: bool, batch: int, m: int, n: int, k: int) -> None:
    a, b = rows_of_all(batch, m, k, sliced=sliced, dtype=dtype), weight(n, k, layout, dtype)
    for options in ({}, {"bias": True}, {"activation": "gelu", "bias": True}):
        chosen = hgemm_ops.explain(a, b, arch="sm_90", **options)
        assert chosen.chosen.endswith("_merged"), str(chosen)
    alone = hgemm_ops.explain(torch.empty(batch * m, k, dtype=dtype), b, arch="sm_90")
    others = {c.name: c.predicted_us for c in alone.candidates if c.predicted_us is not None}
    times = {c.name: c.predicted_us for c in merged(a, b) if c.predicted_us is not None}
    base = min(others[name.removesuffix("_merged")] for name in times)
    assert 0.9 * base < min(times.values()) < 1.4 * base  # the product of all rows, with other stores and fuller boxes


def test_other_batches_are_left_to_other_kernels() -> None:
    b = weight(4096, 4096)
    own = torch.empty(64, 4096, 4096, dtype=torch.float16)
    shared = torch.empty(27, 4096, dtype=torch.float16).expand(64, 27, 4096)
    contiguous = torch.empty(64, 27, 4096, dtype=torch.float16)
    columns = torch.empty(64, 4096, 28, dtype=torch.float16)[..., :27].mT
    for x, y in (
        (rows_of_all(64, 27, 4096), own),
        (shared, own),
        (contiguous, b),  # which is one matrix
        (columns, b),
        (rows_of_all(64, 27, 4096)[0], b),
    ):
        chosen = hgemm_ops.explain(x, y, arch="sm_90")
        assert not chosen.chosen.endswith("_merged"), str(chosen)
        for c in merged(x, y):
            assert not c.eligible and "different A, row-major, with the same B" in c.reason
    for x in (rows_of_all(4, 512, 4096), rows_of_all(2, 1024, 4096, sliced=True)):
        for c in merged(x, b):
            assert not c.eligible and "no fewer than" in c.reason, c.reason
    for c in merged(rows_of_all(64, 27, 4100), weight(4096, 4100)):
        assert not c.eligible and "16-byte aligned" in c.reason


def test_an_activation_still_counts_for_kernels() -> None:
    """Torch computes it in a pass of its own. The lead that a product needs here was measured for merged rows alone."""
    a, b = torch.empty(5, 701, 1024, dtype=torch.float16)[:, :700], weight(2048, 1024)
    assert hgemm_ops.explain(a, b, arch="sm_90").chosen == "torch"
    chosen = hgemm_ops.explain(a, b, arch="sm_90", activation="silu")
    assert chosen.chosen != "torch", str(chosen)


def test_the_predictions_of_other_kernels_do_not_depend_on_margins() -> None:
    """A matrix that L2 does not hold is read again by other kernels, so these need a lead of 3."""
    a, b = rows_of_all(64, 27, 16384), weight(8192, 16384)
    times, invariant = (
        {c.name: c.predicted_us for c in hgemm_ops.explain(a, b, arch="sm_90", **modes).candidates}
        for modes in ({}, {"numerics": "batch_invariant"})  # where torch is no choice, and so no margin counts
    )
    both = [name for name, us in times.items() if us is not None and invariant.get(name) is not None]
    assert any(name.endswith("_merged") for name in both) and not all(name.endswith("_merged") for name in both)
    for name in both:
        assert times[name] == pytest.approx(invariant[name]), name


def test_sums_keep_their_order() -> None:
    """So a batch-invariant mode takes them as well, where it promises the order of one accumulator."""
    infos = [v for v in hgemm_ops.variants() if v.name.endswith("_merged")]
    assert {v.sums for v in infos} == {"in order"} and {v.layouts for v in infos} == {("NN", "NT")}
    a, b = rows_of_all(64, 27, 4096), weight(8192, 4096)
    chosen = hgemm_ops.explain(a, b, arch="sm_90", numerics="batch_invariant")
    assert chosen.chosen.endswith("_merged"), str(chosen)
    of_one = hgemm_ops.explain(a[0], b, arch="sm_90", numerics="batch_invariant").chosen
    assert {v.sums for v in hgemm_ops.variants() if v.name in (of_one, chosen.chosen)} == {"in order"}


def test_a_layer_in_a_context_makes_such_a_batch() -> None:
    """The dimensions of (S, B, K) come in either order, and more than one batch dimension may be left."""
    x = torch.empty(27, 64, 4096, dtype=torch.float16)
    for a in (x.transpose(0, 1), torch.empty(17, 27, 65, 4096, dtype=torch.float16)[:, :, :64].transpose(1, 2)):
        assert any(c.eligible for c in merged(a, weight(8192, 4096)))
