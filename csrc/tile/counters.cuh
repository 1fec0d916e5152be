// Device side of the counters (counters.h): how the blocks of a launch count arrivals.
#pragma once

#include "tile/counters.h"

namespace hgemm::tile {

/// Returns true in the last block to arrive of the gridDim.y blocks that share a tile. The others' results in the
/// workspace can then be read. There are gridDim.x tiles in each batch, and gridDim.z batches. `counters` is the
/// kernel's own array. A counter is zero whenever no block counts with it, since the last block resets it.
__device__ __forceinline__ bool arrives_last(unsigned* counters, int slot) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned& counter = counters[slot * kMaxCounted + blockIdx.z * gridDim.x + blockIdx.x];
    last = atomicAdd(&counter, 1) + 1 == gridDim.y;
    if (last) counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace hgemm::tile
