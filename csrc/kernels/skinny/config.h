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

/// How W is divided: into tiles of `tile_rows` rows, each into `splits` slices of K. In an unaligned K-major
/// W every eighth row has the same offset from a multiple of 16 bytes: an `interleaved` tile holds every eighth row,
/// and eight tiles together hold neighbouring rows.
struct Schedule {
  int tile_rows, tiles, splits;
  bool interleaved;
  bool dependent;       // the device has clusters and programmatic dependent launch
  bool releases_early;  // the next kernel may start before all blocks of this one have ended
};

/// Enqueues the GEMM. launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::skinny
