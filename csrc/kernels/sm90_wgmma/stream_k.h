// How the clusters of a stream-K launch (StreamK in config.h) share the work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace hgemm::sm90_wgmma {

/// A tag that marks the partial sums of one launch. The memory of the flags is not initialised. Because the tag is
/// drawn at random, old contents do not pass for it. Replays of a graph use one tag again and again, but every flag is
/// set once in a launch and cleared once, by the only block that waits for it.
uint64_t next_tag();

/// The least number of k-tiles (a step in identifiers) between the point where a tile is split and either end of its K.
/// Storing and adding partial sums takes as long as a few k-tiles. It is at least the number of k-tiles under which a
/// cooperative kernel issues deferred stores.
constexpr int kSplitSteps = 8;

/// How the clusters of a stream-K launch share the work. A unit is a work tile (the output tiles of one cluster); a
/// step is a k-tile.
struct Split {
  uint32_t clusters;
  uint32_t units;         // the first `units` work tiles are split; 0: none
  uint32_t waves;         // whole work tiles that every cluster computes after its share of the split ones
  uint32_t share, extra;  // k-tiles of a share; the first `extra` clusters have one more
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
/// end.
HGEMM_HOST_DEVICE inline uint32_t border_of(const Split& split, uint32_t steps, uint32_t cluster) {
  const uint32_t at = cluster * split.share + (cluster < split.extra ? cluster : split.extra);
  const uint32_t in_unit = at % steps;
  if (in_unit < kSplitSteps) return at - in_unit;
  return in_unit + kSplitSteps > steps ? at - in_unit + steps : at;
}

HGEMM_HOST_DEVICE inline Share share_of(const Split& split, uint32_t steps, uint32_t cluster) {
  const uint32_t first = border_of(split, steps, cluster), last = border_of(split, steps, cluster + 1);
  if (first >= last) return {first, last, 0, 0};
  return {first, last, (last - 1) / steps - first / steps + 1, last % steps > 0};
}

/// The segment of iteration `turn` of a cluster, turn < Share::pieces. A cluster goes from its last work tile to its
/// first.
HGEMM_HOST_DEVICE inline Piece piece_of(const Split& split, uint32_t steps, uint32_t cluster, uint32_t first,
                                        uint32_t last, uint32_t turn) {
  const uint32_t unit = (last - 1) / steps - turn, begin = unit * steps, end = begin + steps;
  Piece piece{unit, (first > begin ? first : begin) - begin, (last < end ? last : end) - begin, 0};
  if (first > begin && last >= end) {
    do ++piece.helpers;
    while (border_of(split, steps, cluster - piece.helpers) > begin);
  }
  return piece;
}

}  // namespace hgemm::sm90_wgmma
