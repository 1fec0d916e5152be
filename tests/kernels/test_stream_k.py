"""Stream-K without a GPU: how the steps of K are shared out, and where it is the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import H200, ROOT, needs_library
from native_check import counts, needs_compiler

import hgemm_ops
from hgemm_ops import _tables
from hgemm_ops._tables import Entry, Table
from hgemm_ops.bench import shapes
from hgemm_ops.bench.suites import SUITES

RESULTS = ROOT / "benchmarks" / "results" / "h200"
#: All kernels were timed. The others have become faster since, stream-K of large tiles has not.
EARLIER = [RESULTS / f"{name}.tsv.xz" for name in ("shapes", "shapes-earlier")]
SHAPES = [RESULTS / "shapes-trimmed.tsv.xz"]  # as the kernels are now
# Times over those of the best other kernel, on an H200, one run (csrc/kernels/sm90_wgmma/NOTES.md).
MEASURED = {
    ("NT", 512, 28672, 4096): 0.971 / 0.962,
    ("NT", 256, 6144, 4096): 0.920 / 0.724,
    ("NT", 2048, 6144, 4096): 1.029 / 1.022,
    ("NT", 512, 6144, 4096): 0.998 / 0.944,
    ("NT", 1024, 6144, 4096): 1.015 / 0.992,
    ("NT", 256, 28672, 4096): 1.122 / 1.098,
    ("NT", 128, 28672, 4096): 1.059 / 0.678,
    ("NN", 4096, 4096, 4096): 1.018 / 1.004,
    ("NN", 8192, 4096, 4096): 1.039 / 1.025,
    ("NN", 4352, 4352, 4096): 1.043 / 1.032,
    ("NN", 4097, 4096, 4096): 0.985 / 0.972,
    ("NN", 2304, 4096, 8192): 1.004 / 0.992,
    ("NN", 3000, 5000, 7000): 1.011 / 1.012,
    ("NN", 1280, 1280, 8192): 1.020 / 1.030,
    ("NN", 4097, 4097, 4097): 4.26 / 4.16,
}


@pytest.fixture
def no_table() -> Iterator[None]:
    _tables.ensure()
    _tables.install([])
    yield
    _tables.reload()


# ---- the schedule --------------------------------------------------------------------------------

# What the head of tile_scheduler.cuh says of the order of work, for one launch. Prints what is wrong and where.
CHECK = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/sm90_wgmma/stream_k.h"

using namespace hgemm::sm90_wgmma;

int launches = 0, split_launches = 0, in_three = 0, in_four = 0;

// kCutsSlices: tiles are cut between slices of K alone.
template <bool kCutsSlices>
void check(uint32_t units, uint32_t steps, uint32_t clusters) {
  const Split split = kCutsSlices ? split_in_slices(units, steps, clusters) : split_of(units, steps, clusters);
  const uint32_t least = kCutsSlices ? 1 : kSplitSteps;
  const auto require = [&](bool ok, const char* what) {
    if (ok) return;
    std::printf("%u units of %u steps, %u clusters: %s\n", units, steps, clusters, what);
    std::exit(1);
  };
  ++launches;
  if (split.units == 0) return;
  ++split_launches;
  require(split.clusters <= clusters, "more clusters than find room");
  require(split.units + uint64_t{split.waves} * split.clusters == units, "the units do not add up");
  std::vector<int> done(uint64_t{split.units} * steps);  // times each step is multiplied
  std::vector<Piece> left(split.clusters);               // what a cluster leaves, in its first turn
  std::vector<bool> used(split.clusters);
  for (uint32_t c = 0; c < split.clusters; ++c) {
    const Share share = share_of<kCutsSlices>(split, steps, c);
    for (uint32_t turn = 0; turn < share.pieces; ++turn) {
      const Piece piece = piece_of<kCutsSlices>(split, steps, c, share.first, share.last, turn);
      require(piece.unit < split.units && piece.k_first < piece.k_last && piece.k_last <= steps, "no such steps");
      require(piece.k_last - piece.k_first >= least, "a part is too short for what is stored under it");
      for (uint32_t k = piece.k_first; k < piece.k_last; ++k) ++done[uint64_t{piece.unit} * steps + k];
      const bool ends = piece.k_last == steps;
      require(ends == (turn >= share.partials), "a part is left in another turn than the first");
      require(ends || piece.helpers == 0, "a first turn that leaves a part waits");
      require(piece.helpers == 0 || turn + 1 == share.pieces, "a wait before the last turn of a share");
      require((piece.k_first > 0 && ends) == (piece.helpers > 0), "a tile is ended without its first steps");
      if (!ends) left[c] = piece;
      uint32_t begins = piece.k_first;
      for (uint32_t h = 1; h <= piece.helpers; ++h) {
        require(h <= c, "a wait for a cluster that does not exist");
        const Share theirs = share_of<kCutsSlices>(split, steps, c - h);
        require(theirs.partials == 1 && left[c - h].unit == piece.unit, "a wait for what nobody leaves");
        require(left[c - h].k_last == begins, "parts do not join");
        require(!used[c - h], "a part is added twice");
        used[c - h] = true;
        begins = left[c - h].k_first;
      }
      require(!ends || begins == 0, "a tile lacks its first steps");
      if (kCutsSlices) {
        const auto slice_at = [&](uint32_t k) {
          for (uint32_t slice = 0; slice <= hgemm::kSlices; ++slice) {
            if (slice_begin(steps, slice) == k) return slice;
          }
          require(false, "a tile is cut inside of a slice");
          return 0u;
        };
        const uint32_t first = slice_at(piece.k_first), last = slice_at(piece.k_last);
        // Sums of several slices that lack the first ones cannot be added to those.
        require(ends || first == 0 || last == first + 1, "a part has several slices, but not the first ones");
        require(piece.helpers <= 1 || last == first + 1, "partial sums would be added to those of two slices");
        const uint32_t at = partials_at(steps, piece.k_first);
        const uint32_t second = slice_begin(steps, first + 2 < hgemm::kSlices ? first + 2 : hgemm::kSlices);
        require(piece.helpers == 0 || at == second, "partial sums are not added behind the second slice");
        require(first > 0 || at == steps, "a wait for partial sums of nobody");
        in_four += piece.helpers == 3;
      } else {
        in_three += piece.helpers > 1;
      }
    }
  }
  for (int times : done) require(times == 1, "a step is left out or done twice");
  for (uint32_t c = 0; c < split.clusters; ++c) {
    require(used[c] == (share_of<kCutsSlices>(split, steps, c).partials == 1), "a part is never added: its flag stays");
  }
}

int main() {
  for (uint32_t clusters : {1, 2, 3, 7, 16, 57, 66, 132}) {
    for (uint32_t steps : {1, 15, 16, 17, 18, 23, 31, 64, 65, 100, 224}) {
      for (uint32_t units = 1; units <= 3 * clusters + 2; ++units) {
        check<false>(units, steps, clusters);
        check<true>(units, steps, clusters);
      }
    }
  }
  check<false>(65 * 1000 + 1, 65, 66);
  check<false>(3, 100000, 66);
  check<true>(65 * 1000 + 1, 65, 66);
  std::printf("%d %d %d %d\n", launches, split_launches, in_three, in_four);
}
"""


@needs_compiler
def test_every_step_is_done_once_and_waits_are_for_first_turns_of_clusters_before(tmp_path: Path) -> None:
    launches, split, in_three, in_four = counts(CHECK, tmp_path)
    assert launches > split > launches / 2 and in_three > 1000 and in_four > 1000


# ---- the choice ----------------------------------------------------------------------------------


def is_stream_k(name: str) -> bool:
    return "_streamk" in name


def ask(m: int, n: int, k: int, layout: str = "NN", dtype: torch.dtype = torch.float16) -> hgemm_ops.Explanation:
    return hgemm_ops.explain(M=m, N=n, K=k, layout=layout, dtype=dtype, arch="sm_90")


def suite_shapes() -> list[tuple[str, int, int, int]]:
    cases = {case for suite in SUITES.values() for case in suite if case.op == "matmul" and case.batch == 1}
    return sorted((case.layout, case.m, case.n, case.k) for case in cases)


def leads(paths: list[Path]) -> Iterator[tuple[float, tuple[int, int, int, str, torch.dtype]]]:
    """Of the H200's random shapes: by how much stream-K was faster than all else, torch included.

    Without those whose padded copies take more than the workspace: they were timed before such copies came in slabs.
    """
    for case, us in ((shape.case, shape.us) for path in paths for shape in shapes.read(path)[1]):
        ours = [value for name, value in us.items() if is_stream_k(name)]
        if ours and case.batch == 1 and 2 * case.k * (case.m + case.n) <= 256 << 20:
            best = min(value for name, value in us.items() if not is_stream_k(name))
            yield best / min(ours), (case.m, case.n, case.k, case.layout, getattr(torch, case.dtype))


@needs_library
def test_it_is_chosen_where_it_was_measured_to_lead_and_not_where_it_loses(no_table: None) -> None:
    chosen = [ask(m, n, k, layout).chosen for layout, m, n, k in MEASURED]
    assert sum(map(is_stream_k, chosen)) <= len(chosen) / 4
    ahead = [shape for lead, shape in leads(SHAPES) if lead > 1.1]
    behind = [shape for lead, shape in leads(EARLIER) if lead < 0.95]
    assert sum(is_stream_k(ask(*shape).chosen) for shape in ahead) > len(ahead) / 2 > 10
    assert sum(is_stream_k(ask(*shape).chosen) for shape in behind) < 0.004 * len(behind)  # all, not a sample


@needs_library
def test_the_shipped_table_decides_by_its_times(no_table: None) -> None:
    _tables.reload()
    for layout, m, n, k in [*MEASURED, *suite_shapes()]:
        explanation = ask(m, n, k, layout)
        if not is_stream_k(explanation.chosen):
            continue
        if explanation.source == "table":
            times = {c.name: c.measured_us for c in explanation.candidates if c.measured_us is not None}
            assert explanation.chosen == min(times, key=lambda name: times[name])


@needs_library
def test_a_table_entry_may_name_it(no_table: None) -> None:
    name = next(v.name for v in hgemm_ops.variants() if is_stream_k(v.name) and not v.name.endswith("_pad"))
    other = "sm90_wgmma_cooperative_128x256x64_c2x1x1"
    entry = Entry("float16", "NN", 16, 1, 4096, 4096, 4096, {"torch": 220.0, other: 212.0, name: 205.0})
    _tables.install([Table(H200, [entry])])
    explanation = ask(4096, 4096, 4096)
    assert (explanation.chosen, explanation.source) == (name, "table")
    # Losing there, it is no choice there.
    _tables.install([Table(H200, [replace(entry, us=entry.us | {name: 213.0})])])
    assert ask(4096, 4096, 4096).chosen == other


@needs_library
def test_it_can_be_asked_for() -> None:
    for variant in hgemm_ops.variants():
        if not is_stream_k(variant.name):
            continue
        k = 4097 if variant.name.endswith("_pad") else 4096
        explanation = hgemm_ops.explain(M=4096, N=4608, K=k, arch="sm_90", variant=variant.name)
        assert (explanation.chosen, explanation.source) == (variant.name, "forced")
        whole = hgemm_ops.explain(M=128 * 132, N=3072, K=k, arch="sm_90").candidates[variant.id]
        assert "no use for stream-K" in whole.reason
