// What a kernel of sm90_wgmma is compiled for, and what a launch hands it.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "core/fast_divisor.h"
#include "core/problem.h"
#include "kernels/sm90_wgmma/config.h"
#include "kernels/sm90_wgmma/edges.h"
#include "kernels/sm90_wgmma/stream_k.h"
#include "tile/epilogue.cuh"
#include "tile/raster.h"

namespace hgemm::sm90_wgmma {

/// What the kernel is compiled for.
template <class Config_, class T_, Major kMajorA_, Major kMajorB_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  /// The layout of linear layers, where activations are worth unrolled code.
  static constexpr bool kIsLinear = kMajorA == Major::kK && kMajorB == Major::kK;
};

struct Params {
  CUtensorMap a, b, d;
  int32_t a_batch[2], b_batch[2];  // outer, inner: 0 where a batch index does not move the operand, else ~0
  int k_tiles;
  uint32_t units;  // of work: the tiles of one cluster
  tile::Raster raster;
  FastDivisor batch_inner;
  int m, n;
  int pitch_b;     // columns of an MN-major B from tile to tile, where BN does not say it
  bool store_tma;  // D is 16-bit and TMA can write it
  Finish finish;
  bool defers;               // a tile's results are written under the next one's main loop
  bool bias_pairs, c_pairs;  // there is one, and it can be read two elements at a time
  tile::EpilogueParams epilogue;
};

/// What stream-K needs beside that.
struct StreamKParams : Params {
  Split split;
  unsigned char* partials;  // (blocks, kPartialBytes)
  uint64_t* flags;          // (blocks): `tag` once the block's partial sums are complete, 0 once they have been used
  uint64_t tag;             // no other launch has it
};

/// What Edged needs beside that; the raster is that of the whole units.
struct EdgedParams : Params {
  CUtensorMap b_edge;
  Edges edges;
  FastDivisor edge_rows;
};

template <class Traits>
using ParamsOf =
    std::conditional_t<Traits::kStreamK, StreamKParams, std::conditional_t<Traits::kEdged, EdgedParams, Params> >;

}  // namespace hgemm::sm90_wgmma
