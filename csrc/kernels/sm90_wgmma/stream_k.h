// How the clusters of a stream-K launch (StreamK in config.h) share the work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace hgemm::sm90_wgmma {

/// What marks the partial sums of one launch. Flags lie in memory that holds anything: bits drawn at random keep it
/// from passing for a tag. Replays of a graph use one tag again and again, but every flag is set once in a launch and
/// cleared once, by the only block that waits for it.
uint64_t next_tag();

/// A cluster begins and ends a share of a tile at least this many steps from the tile's ends, or there: to write and
/// add partial sums takes as long as a few steps. At least the steps under which a cooperative tile is stored.
constexpr int kSplitSteps = 8;

/// How the clusters of a stream-K launch share the work, counted in units (the tiles of a cluster) and steps of K.
struct Split {
  uint32_t clusters;
  uint32_t units;         // the first ones are split: of 0, nothing is
  uint32_t waves;         // whole units that every cluster does after its share of the split ones
  uint32_t share, extra;  // steps of a share; that many clusters do one more
};

/// What does not fill a wave is shared out, with one of the whole waves if there is one: no tile then has more than two
/// parts, and all clusters are equally late.
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

/// A cluster's share of the split units, in steps from the first unit's first one on.
struct Share {
  uint32_t first, last;  // half-open
  uint32_t pieces;       // units of which it has some
  uint32_t partials;     // 1 where it does not reach the end of the last of them, else 0
};

/// What a cluster does of a unit in one turn.
struct Piece {
  uint32_t unit;
  uint32_t k_first, k_last;  // steps, half-open
  uint32_t helpers;          // clusters right before this one that leave partial sums of the unit to it
};

/// Where a cluster's share begins.
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

/// A cluster's n-th turn in its share, n < pieces: it goes from its last unit to its first.
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
