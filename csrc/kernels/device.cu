#include "core/device.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>

#include <cuda_runtime_api.h>

#include "core/driver.cuh"

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

/// The primary contexts of the devices on which load_a_kernel() has run. They are never replaced: torch does not work
/// after cudaDeviceReset() either.
std::array<std::atomic<CUcontext>, kMaxDevices> primaries{};

/// The context that is current on this thread; null if none is.
CUcontext current_context() {
  static const auto get = driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent", 4000);
  CUcontext context = nullptr;
  return get != nullptr && get(&context) == CUDA_SUCCESS ? context : nullptr;
}

/// The ordinal of the device with this primary context, or -1.
int device_of_primary(CUcontext context) {
  thread_local CUcontext last = nullptr;
  thread_local int device = -1;
  if (context == last) return device;
  for (int i = 0; i < kMaxDevices && context != nullptr; ++i) {
    if (primaries[i].load(std::memory_order_acquire) != context) continue;
    last = context;
    return device = i;
  }
  return -1;
}

/// Makes a device's primary context current for the time of a scope.
class OnPrimary {
 public:
  explicit OnPrimary(int ordinal) : before_(current_context()) {
    status_ = cudaGetDevice(&device_before_);
    if (status_ == cudaSuccess) status_ = cudaSetDevice(ordinal);
    if (status_ == cudaSuccess) primaries[ordinal].store(current_context(), std::memory_order_release);
  }
  OnPrimary(const OnPrimary&) = delete;
  ~OnPrimary() {
    static const auto set = driver_function<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent", 4000);
    if (before_ == nullptr || set == nullptr) {
      cudaSetDevice(device_before_);
    } else {
      set(before_);  // cudaSetDevice would replace a green or foreign context by the primary one
    }
  }
  cudaError_t status() const { return status_; }

 private:
  CUcontext before_;
  int device_before_ = 0;
  cudaError_t status_;
};

/// The number of SMs of a context; 0 if the driver cannot say.
int sms_of_context([[maybe_unused]] CUcontext context) {
#if CUDA_VERSION >= 12040
  static const auto get = driver_function<decltype(&cuCtxGetDevResource)>("cuCtxGetDevResource", 12040);
  CUdevResource resource{};
  if (get != nullptr && get(context, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS) {
    return static_cast<int>(resource.sm.smCount);
  }
#endif
  return 0;
}

/// The context of a stream; null if the driver cannot say. That of the default streams is the current one.
CUcontext context_of(Stream stream) {
  if (stream == nullptr) return current_context();
  static const auto get = driver_function<decltype(&cuStreamGetCtx)>("cuStreamGetCtx", 9020);
  CUcontext context = nullptr;
  return get != nullptr && get(static_cast<CUstream>(stream), &context) == CUDA_SUCCESS ? context : nullptr;
}

/// Whether a GPU of compute capability 9.0 has float64 at a small part of the rate of an H100's. The names say so: H20
/// and H800. Its other facts do not: an H800 has the compute capability, the SMs and the memory of an H100. The right
/// attribute would be cudaDevAttrSingleToDoublePrecisionPerfRatio, but nobody has read it on these GPUs.
cudaError_t has_slow_float64(int ordinal, bool* slow) {
  cudaDeviceProp properties;
  if (cudaError_t e = cudaGetDeviceProperties(&properties, ordinal)) return e;
  const std::string_view name = properties.name;
  const size_t h20 = name.find("H20");  // but not H200
  const bool is_h20 = h20 != name.npos && (h20 + 3 == name.size() || name[h20 + 3] != '0');
  *slow = is_h20 || name.find("H800") != name.npos;
  return cudaSuccess;
}

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
  return facts->cc == 90 ? has_slow_float64(ordinal, &facts->slow_float64) : cudaSuccess;
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
  cudaError_t status;
  {
    const OnPrimary on_primary(ordinal);
    cudaFuncAttributes attributes;
    status = on_primary.status();
    if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, nothing);
  }
  cudaThreadExchangeStreamCaptureMode(&mode);
  return status;
}

Status ensure_context() {
  if (current_context() != nullptr) return cudaSuccess;
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  return cudaSetDevice(device);
}

int current_primary() {
  return device_of_primary(current_context());
}

int sms_of(Stream stream, int ordinal, int all) {
  const CUcontext context = context_of(stream);
  if (context == nullptr || device_of_primary(context) >= 0) return all;
  // A default stream is one of the current device. The caller makes the tensors' device current later, and with it its
  // primary context.
  int device = 0;
  if (stream == nullptr && (cudaGetDevice(&device) != cudaSuccess || device != ordinal)) return all;
  const int count = sms_of_context(context);
  return count > 0 && count < all ? count : all;
}

int cuda_version() {
  return CUDART_VERSION;
}

const char* status_string(Status status) {
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

}  // namespace hgemm
