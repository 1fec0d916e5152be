// How the clusters of a stream-K launch (StreamK in config.h) share the work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"
#include "core/slices.h"

namespace hgemm::sm90_wgmma {

/// A tag that marks the partial sums of one launch. The memory of the flags is not initialised. Because the tag is
/// drawn at random, old contents do not pass for it. Replays of a graph use one tag again and again, but every flag is
/// set once in a launch and cleared once, by the only block that waits for it.
uint64_t next_tag();

/// The least number of k-tiles (a step in identifiers) between the point where a tile is split and either end of its K.
/// Storing and adding partial sums takes as long as a few k-tiles. It is at least the number of k-tiles under which a
/// cooperative kernel issues deferred stores.
constexpr int kSplitSteps = 8;

/// The k-tiles between two k at which a slice of K may begin.
constexpr int kSliceTiles = kSliceK / 64;

/// The first k-tile of a slice of K (core/slices.h), or, for kSlices, the number of k-tiles.
HGEMM_HOST_DEVICE inline uint32_t slice_begin(uint32_t steps, uint32_t slice) {
  if (slice == kSlices) return steps;
  return (steps + kSliceTiles - 1) / kSliceTiles * slice / kSlices * kSliceTiles;
}

/// How the clusters of a stream-K launch share the work. A unit is a work tile (the output tiles of one cluster); a
/// step is a k-tile.
struct Split {
  uint32_t clusters;
  uint32_t units;         // the first `units` work tiles are split; 0: none
  uint32_t waves;         // whole work tiles that every cluster computes after its share of the split ones
  uint32_t share, extra;  // k-tiles of a share; the first `extra` clusters have one more. Or slices of a share, and 0
};

/// Splits the work tiles that do not fill a wave, together with one whole wave if there is one. With that wave no tile
/// has more than two parts, and all clusters finish at about the same time.
inline Split split_of(int64_t units, int64_t steps, int64_t max_clusters) {
  const int64_t clusters = std::max<int64_t>(max_clusters, 1);
  const int64_t rest = units % clusters, waves = units / clusters;
  const int64_t split = waves > 0 ? rest + clusters : rest;
  const auto count = [](int64_t n) { return static_cast<uint32_t>(n); };
  const bool can = rest > 0 && steps >= 2 * kSplitSteps && split * steps < int64_t{1} << 32;
  const int64_t sharers = can ? std::min(clusters, split * steps / kSplitSteps) : 0;
  Split out{};
  out.clusters = count(std::min(units, clusters));
  if (sharers <= rest) return out;
  out.clusters = count(sharers);
  out.units = count(split);
  out.waves = count(std::max<int64_t>(waves - 1, 0));
  out.share = count(split * steps / sharers);
  out.extra = count(split * steps % sharers);
  return out;
}

/// The same for kernels that cut work tiles between slices of K alone. Every share but the last has the same number of
/// slices. One of two slices or more, which begins inside of a work tile, ends with it or behind it. So a tile has more
/// than two parts only where each of them is one slice.
inline Split split_in_slices(int64_t units, int64_t steps, int64_t max_clusters) {
  const int64_t clusters = std::max<int64_t>(max_clusters, 1);
  const int64_t rest = units % clusters, waves = units / clusters;
  const int64_t split = waves > 0 ? rest + clusters : rest, slices = split * kSlices;
  const int64_t share = (slices + clusters - 1) / clusters;
  const auto count = [](int64_t n) { return static_cast<uint32_t>(n); };
  Split out{};
  out.clusters = count(std::min(units, clusters));
  const bool gains = share < (waves > 0 ? 2 : 1) * kSlices;
  if (rest == 0 || !gains || steps <= kSliceTiles * (kSlices - 1) || split * steps >= int64_t{1} << 32) return out;
  out.clusters = count(waves > 1 ? clusters : (slices + share - 1) / share);
  out.units = count(split);
  out.waves = count(std::max<int64_t>(waves - 1, 0));
  out.share = count(share);
  return out;
}

/// A cluster's share of the split work tiles: a range of k-tiles, counted from the first k-tile of the first one.
struct Share {
  uint32_t first, last;  // half-open
  uint32_t pieces;       // work tiles that the range touches
  uint32_t partials;     // 1 if the range ends before the last of these does, else 0
};

/// A segment: the k-tiles of one work tile that a cluster computes in one iteration.
struct Piece {
  uint32_t unit;
  uint32_t k_first, k_last;  // k-tiles, half-open
  uint32_t helpers;          // the number of clusters right before this one that leave partial sums of the tile to it
};

/// The first k-tile of a cluster's share. A border less than kSplitSteps from an end of its work tile moves to that
/// end. `kCutsSlices`: of split_in_slices().
template <bool kCutsSlices = false>
HGEMM_HOST_DEVICE inline uint32_t border_of(const Split& split, uint32_t steps, uint32_t cluster) {
  if constexpr (kCutsSlices) {
    const uint32_t all = split.units * kSlices, at = cluster * split.share < all ? cluster * split.share : all;
    return at / kSlices * steps + slice_begin(steps, at % kSlices);
  }
  const uint32_t at = cluster * split.share + (cluster < split.extra ? cluster : split.extra);
  const uint32_t in_unit = at % steps;
  if (in_unit < kSplitSteps) return at - in_unit;
  return in_unit + kSplitSteps > steps ? at - in_unit + steps : at;
}

template <bool kCutsSlices = false>
HGEMM_HOST_DEVICE inline Share share_of(const Split& split, uint32_t steps, uint32_t cluster) {
  const uint32_t first = border_of<kCutsSlices>(split, steps, cluster);
  const uint32_t last = border_of<kCutsSlices>(split, steps, cluster + 1);
  if (first >= last) return {first, last, 0, 0};
  return {first, last, (last - 1) / steps - first / steps + 1, last % steps > 0};
}

/// The segment of iteration `turn` of a cluster, turn < Share::pieces. A cluster goes from its last work tile to its
/// first.
template <bool kCutsSlices = false>
HGEMM_HOST_DEVICE inline Piece piece_of(const Split& split, uint32_t steps, uint32_t cluster, uint32_t first,
                                        uint32_t last, uint32_t turn) {
  const uint32_t unit = (last - 1) / steps - turn, begin = unit * steps, end = begin + steps;
  Piece piece{unit, (first > begin ? first : begin) - begin, (last < end ? last : end) - begin, 0};
  if (first > begin && last >= end) {
    do ++piece.helpers;
    while (border_of<kCutsSlices>(split, steps, cluster - piece.helpers) > begin);
  }
  return piece;
}

/// The k-tile of a piece that cuts slices, before which, or behind the last one, the partial sums of its helpers are
/// added to its own: the end of its second slice. So the helpers have as long as two slices take to leave them. By then
/// the piece's own sums are those of its first slice alone, because the second is still in the accumulators. Adding two
/// terms gives the same bits in either order, so the result has the bits of sums in the order of K. At another place it
/// would not have them.
HGEMM_HOST_DEVICE inline int partials_at(int steps, int k_first) {
  const auto begin = [steps](uint32_t slice) { return static_cast<int>(slice_begin(steps, slice)); };
  for (uint32_t slice = 1; slice + 2 < kSlices; ++slice) {
    if (k_first == begin(slice)) return begin(slice + 2);
  }
  return steps;
}

}  // namespace hgemm::sm90_wgmma
