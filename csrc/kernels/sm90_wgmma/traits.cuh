// The compile-time traits of a kernel of sm90_wgmma, and its launch parameters.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "core/fast_divisor.h"
#include "core/grouped.h"
#include "core/problem.h"
#include "kernels/sm90_wgmma/config.h"
#include "kernels/sm90_wgmma/edges.h"
#include "kernels/sm90_wgmma/merged_rows.h"
#include "kernels/sm90_wgmma/stream_k.h"
#include "tile/epilogue.cuh"
#include "tile/raster.h"
#include "tile/triangle.h"

namespace hgemm::sm90_wgmma {

/// Everything that a kernel is compiled for: its Config, the element type, and the operands' orders.
template <class Config_, class T_, Major kMajorA_, Major kMajorB_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  /// True for the layout of linear layers, for which every activation has unrolled code.
  static constexpr bool kIsLinear = kMajorA == Major::kK && kMajorB == Major::kK && !Config_::kSymmetric;
};

struct Params {
  CUtensorMap a[3], b[3], d;       // of A and B, one for each Box (operands.cuh)
  int32_t a_batch[2], b_batch[2];  // outer, inner: 0 where a batch index does not move the operand, else ~0
  int k_tiles;
  uint32_t units;  // work tiles: each is the output tiles of one cluster
  tile::Raster raster;
  FastDivisor batch_inner;
  int m, n;
  int pitch_b;     // columns from one tile of an MN-major B to the next, if BN is not a multiple of 64
  bool store_tma;  // D is 16-bit and TMA can write it
  Finish finish;
  bool defers;               // a tile's results are stored under the main loop of the next tile
  bool bias_pairs, c_pairs;  // the bias, or C, exists and can be read two elements at a time
  tile::EpilogueParams epilogue;
};

/// The parameters of a stream-K kernel.
struct StreamKParams : Params {
  Split split;
  unsigned char* partials;  // (blocks, kPartialBytes)
  uint64_t* flags;          // (blocks): `tag` once a block's partial sums are complete, 0 once they have been read
  uint64_t tag;             // unique to the launch
};

/// The parameters of an Edged kernel. `raster` covers the whole work tiles only.
struct EdgedParams : Params {
  CUtensorMap b_edge;
  Edges edges;
  FastDivisor edge_rows;
};

/// The parameters of a Carried kernel.
struct CarriedParams : Params {
  bool in_slices;  // the accumulators are added to the sums at the end of each of kSlices slices of K
};

/// The parameters of a Symmetric kernel. `triangle` takes the place of `raster`.
struct SymmetricParams : Params {
  CUtensorMap mirror;  // of D, in boxes of 64 x 64
  tile::Triangle triangle;
};

/// The parameters of a Merged kernel. `m` is MergedRows::rows, and `raster` covers the rows of tiles.
struct MergedParams : Params {
  MergedRows merged;
};

/// The parameters of a grouped kernel. `raster` and `units` are not used: only the device knows the groups.
struct GroupedParams : Params {
  const int32_t* ends;  // (groups): the row behind the last one of each group
  int groups;
  int rows;          // of all groups
  uint32_t columns;  // work tiles along the columns of D
  uint32_t panel;    // work tiles along the rows of a group in a panel of the raster order
  uint32_t clusters;
  CUtensorMap b_whole;  // SwapAB: `b` in boxes of a tile's rows
  int gate_units;       // Gated: the columns of an expert's weights, gate and up, in units of kGateColumns
  Launch launch;        // as in GroupedProduct, and so are the next two
  int few_rows;
  WorkTiles tiles[2];
};

/// The parameters of a GroupedK kernel. The groups are the batches of `raster`.
struct GroupedKParams : Params {
  const int32_t* ends;  // (groups): the k behind the last one of each group
  int groups;
  int k;       // of all groups
  bool sorts;  // work tiles with the most k-tiles come first
  bool fills;  // zeros for groups without k, whose matrices have matrix_bytes bytes, may be written as an array
  int64_t matrix_bytes;
  FastDivisor filled_pieces;  // the pieces of kFillBytes of such a matrix, the last of which has last_piece_bytes
  int last_piece_bytes;
  Launch launch;  // GroupedProduct::launch
};

/// A null pointer to the launch parameters of a kernel, which ParamsOf names.
template <class Traits>
constexpr auto params_type() {
  if constexpr (Traits::kStreamK) {  // kCutsSlices as well
    return static_cast<StreamKParams*>(nullptr);
  } else if constexpr (Traits::kEdged) {
    return static_cast<EdgedParams*>(nullptr);
  } else if constexpr (Traits::kSymmetric) {
    return static_cast<SymmetricParams*>(nullptr);
  } else if constexpr (Traits::kCarries) {
    return static_cast<CarriedParams*>(nullptr);
  } else if constexpr (Traits::kGrouped) {
    return static_cast<GroupedParams*>(nullptr);
  } else if constexpr (Traits::kGroupsK) {
    return static_cast<GroupedKParams*>(nullptr);
  } else if constexpr (Traits::kMerged) {
    return static_cast<MergedParams*>(nullptr);
  } else {
    return static_cast<Params*>(nullptr);
  }
}

template <class Traits>
using ParamsOf = std::remove_pointer_t<decltype(params_type<Traits>())>;

}  // namespace hgemm::sm90_wgmma
