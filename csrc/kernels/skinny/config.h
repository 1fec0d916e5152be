// What the host side of skinny (list.h, variants.cc) and its CUDA side share: configurations, how a problem is
// scheduled, the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::skinny {

/// What a kernel is made for: rows of x, warps, loads in flight.
template <int COLS_, int WARPS_, int DEPTH_K_, int DEPTH_MN_>
struct Config {
  static constexpr int COLS = COLS_, WARPS = WARPS_;
  static constexpr int kDepthK = DEPTH_K_, kDepthMN = DEPTH_MN_;
  static constexpr int kThreads = 32 * WARPS;
  static_assert(WARPS % 8 == 0, "unaligned, MN-major: a warp for each k modulo 8");
};

/// How W is cut: into tiles of `tile_rows` rows, each into `splits` slices of K. Where rows of an unaligned K-major W
/// start on 16 bytes is the same for every eighth: `interleaved` tiles hold such rows, eight tiles a neighbourhood.
struct Schedule {
  int tile_rows, tiles, splits;
  bool interleaved;
  bool dependent;     // the device has clusters and programmatic dependent launch
  bool hurries_next;  // the next kernel may start before this one's blocks have all ended
};

/// Enqueues the GEMM. launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::skinny
