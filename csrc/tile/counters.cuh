// What the blocks of a launch do at their counters (counters.h).
#pragma once

#include "tile/counters.h"

namespace hgemm::tile {

/// Whether this block is the last of the gridDim.y that share a tile, of gridDim.x in each batch: what the others left
/// in the workspace can be read then. `counters`: the kernel's own, zero whenever nobody counts; the last sets its own
/// back.
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
