#include "core/device.h"

#include <array>
#include <mutex>

#include <cuda_runtime_api.h>

namespace hgemm {
namespace {

constexpr int kMaxDevices = 64;
static_assert(kInsufficientDriver == cudaErrorInsufficientDriver && kNoKernelImage == cudaErrorNoKernelImageForDevice &&
              kUnsupportedPtx == cudaErrorUnsupportedPtxVersion);

/// An empty kernel, which load_a_kernel() loads.
__global__ void nothing() {}

struct Entry {
  std::once_flag once;
  DeviceFacts facts;
  cudaError_t status = cudaSuccess;
};

cudaError_t read_facts(int ordinal, DeviceFacts* facts) {
  const struct {
    cudaDeviceAttr attribute;
    int* value;
  } simple[] = {
      {cudaDevAttrMultiProcessorCount, &facts->sm_count},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, &facts->smem_optin},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &facts->smem_per_sm},
  };
  for (const auto& item : simple) {
    if (cudaError_t status = cudaDeviceGetAttribute(item.value, item.attribute, ordinal)) return status;
  }
  int major = 0, minor = 0, l2_bytes = 0, dram_khz = 0, dram_bits = 0;
  if (cudaError_t status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal)) return status;
  if (cudaError_t status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal)) return status;
  if (cudaError_t status = cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, ordinal)) return status;
  if (cudaError_t status = cudaDeviceGetAttribute(&dram_khz, cudaDevAttrMemoryClockRate, ordinal)) return status;
  if (cudaError_t status = cudaDeviceGetAttribute(&dram_bits, cudaDevAttrGlobalMemoryBusWidth, ordinal)) return status;
  facts->cc = 10 * major + minor;
  facts->l2_bytes = l2_bytes;
  facts->dram_gbs = int64_t{dram_khz} * 2 * dram_bits / 8 / 1000000;  // double data rate
  return cudaSuccess;
}

}  // namespace

Status query_device_facts(int ordinal, DeviceFacts* facts) {
  static std::array<Entry, kMaxDevices> entries;
  if (ordinal < 0 || ordinal >= kMaxDevices) return cudaErrorInvalidDevice;
  Entry& entry = entries[ordinal];
  std::call_once(entry.once, [&] { entry.status = read_facts(ordinal, &entry.facts); });
  if (entry.status == cudaSuccess) *facts = entry.facts;
  return entry.status;
}

Status load_a_kernel(int ordinal) {
  // Relaxed mode makes these calls legal while a stream is being captured. The first launch of a kernel loads it then,
  // too.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  int before = 0;
  cudaFuncAttributes attributes;
  cudaError_t status = cudaGetDevice(&before);
  if (status == cudaSuccess) status = cudaSetDevice(ordinal);
  if (status == cudaSuccess) {
    status = cudaFuncGetAttributes(&attributes, nothing);
    cudaSetDevice(before);
  }
  cudaThreadExchangeStreamCaptureMode(&mode);
  return status;
}

std::string cuda_version() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

const char* status_string(Status status) {
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

}  // namespace hgemm
