#include "tile/tensor_map.h"

#include <cuda_runtime.h>

#include <cstring>

#include "core/device.h"
#include "core/driver.cuh"

namespace hgemm {
namespace {

CUtensorMapSwizzle swizzle_of(int box_bytes) {
  switch (box_bytes) {
    case 16: return CU_TENSOR_MAP_SWIZZLE_NONE;
    case 32: return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64: return CU_TENSOR_MAP_SWIZZLE_64B;
    default: return CU_TENSOR_MAP_SWIZZLE_128B;
  }
}

CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kF32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }
}

/// The bytes of an element. Views of int8 operands count pairs.
int bytes_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

Status encode(const TmaView& view, CUtensorMap* map) {
  constexpr uint32_t kRank = 4;
  static const auto function =
      driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", /*version=*/12000);
  if (function == nullptr) return cudaErrorNotSupported;
  // The driver needs a current context. A thread whose first CUDA call this is has none yet: torch starts one such
  // thread for the backward pass of each device, and leaves out a cudaSetDevice that changes nothing.
  if (const Status e = ensure_context(); e != cudaSuccess) return e;
  const cuuint64_t extents[kRank] = {static_cast<cuuint64_t>(view.cols), static_cast<cuuint64_t>(view.rows),
                                     static_cast<cuuint64_t>(view.batch[1]), static_cast<cuuint64_t>(view.batch[0])};
  // The stride of an extent of one is never used, but must still be a multiple of 16.
  const int element = bytes_of(view.dtype);
  const auto bytes = [element](int64_t extent, int64_t stride) {
    return static_cast<cuuint64_t>(extent > 1 ? stride * element : 16);
  };
  const cuuint64_t strides[kRank - 1] = {bytes(view.rows, view.ld), bytes(view.batch[1], view.batch_stride[1]),
                                         bytes(view.batch[0], view.batch_stride[0])};
  const cuuint32_t box[kRank] = {static_cast<cuuint32_t>(view.box_cols), static_cast<cuuint32_t>(view.box_rows),
                                 static_cast<cuuint32_t>(view.box_batch[1]),
                                 static_cast<cuuint32_t>(view.box_batch[0])};
  const cuuint32_t steps[kRank] = {1, 1, 1, 1};
  const CUresult result =
      function(map, type_of(view.dtype), kRank, view.data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               view.plain ? CU_TENSOR_MAP_SWIZZLE_NONE : swizzle_of(view.box_cols * element),
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return static_cast<cudaError_t>(result);  // both APIs number their errors alike
}

/// Everything that a tensor map depends on, without padding, so that keys can be compared and hashed as words.
struct Key {
  uint64_t words[10];
  explicit Key(const TmaView& v)
      : words{reinterpret_cast<uint64_t>(v.data),
              static_cast<uint64_t>(v.dtype) << 32 | static_cast<uint64_t>(v.plain) << 24 |
                  static_cast<uint64_t>(v.box_cols) << 16 | static_cast<uint64_t>(v.box_rows),
              static_cast<uint64_t>(v.cols),
              static_cast<uint64_t>(v.rows),
              static_cast<uint64_t>(v.ld),
              static_cast<uint64_t>(v.batch[0]),
              static_cast<uint64_t>(v.batch[1]),
              static_cast<uint64_t>(v.batch_stride[0]),
              static_cast<uint64_t>(v.batch_stride[1]),
              static_cast<uint64_t>(v.box_batch[0]) << 32 | static_cast<uint64_t>(v.box_batch[1])} {}
  Key() : words{} {}
  bool operator==(const Key& other) const { return std::memcmp(words, other.words, sizeof(words)) == 0; }
  uint64_t hash() const {
    uint64_t h = 0;
    for (const uint64_t w : words) h = (h ^ w) * 0x9e3779b97f4a7c15u;
    return h >> 32;
  }
};

struct Entry {
  Key key;  // all zero if the entry is empty; the last word of a view's key is never zero
  CUtensorMap map;
};

}  // namespace

Status tensor_map(const TmaView& view, CUtensorMap* map) {
  constexpr uint64_t kEntries = 256;
  thread_local Entry cache[kEntries];
  const Key key(view);
  Entry& entry = cache[key.hash() % kEntries];
  if (!(entry.key == key)) {
    if (const Status e = encode(view, &entry.map); e != cudaSuccess) return e;
    entry.key = key;
  }
  *map = entry.map;
  return cudaSuccess;
}

}  // namespace hgemm
