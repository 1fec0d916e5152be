// What a source file was compiled for.
#pragma once

namespace hgemm::tile {

/// Whether what runs on sm_90 and newer was compiled for it: PTX of an older architecture neither waits for the kernels
/// before it nor knows clusters.
inline bool has_sm90_code() {
  for (int arch : {__CUDA_ARCH_LIST__}) {
    if (arch >= 900) return true;
  }
  return false;
}

}  // namespace hgemm::tile
