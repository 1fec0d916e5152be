#include "dispatch/devices.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <mutex>

#include "core/chip.h"
#include "core/device.h"

#ifndef HGEMM_ARCHS
#define HGEMM_ARCHS ""
#endif

namespace hgemm {
namespace {

constexpr int kOldest = 80;
constexpr int kMaxDevices = 64;

std::atomic<void (*)(const char*)> the_warning{nullptr};

struct Device {
  std::once_flag once;
  std::atomic<bool> known{false};  // cheaper to read than the flag
  DeviceFacts facts;
  std::string fault;
  std::atomic<bool> logged{false};
};

Device& device(int ordinal) {
  static auto& all =
      *new std::array<Device, kMaxDevices + 1>;  // the last one is for every ordinal that is out of range
  const bool there = ordinal >= 0 && ordinal < kMaxDevices;
  Device& d = all[static_cast<size_t>(there ? ordinal : kMaxDevices)];
  if (d.known.load(std::memory_order_acquire)) return d;
  std::call_once(d.once, [&] {
    Status status = query_device_facts(ordinal, &d.facts);
    if (status == 0) status = load_a_kernel(ordinal);
    d.fault = device_fault(built_archs(), d.facts.cc, status);
    d.known.store(true, std::memory_order_release);
  });
  return d;
}

}  // namespace

const char* built_archs() {
  return HGEMM_ARCHS;
}

Archs archs_of(const char* text) {
  Archs archs;
  for (char* at = const_cast<char*>(text); *at != '\0';) {
    if (std::isdigit(static_cast<unsigned char>(*at)) == 0) {
      ++at;
      continue;
    }
    const int cc = static_cast<int>(std::strtol(at, &at, 10));
    (*at == 'a' ? archs.own : archs.portable).push_back(cc);
  }
  return archs;
}

bool has_code(const Archs& archs, int cc) {
  const auto runs = [cc](int arch) { return arch / 10 == cc / 10 && arch <= cc; };
  if (archs.portable.empty()) {
    return archs.own.empty() || std::find(archs.own.begin(), archs.own.end(), cc) != archs.own.end();
  }
  return std::any_of(archs.portable.begin(), archs.portable.end(), runs) ||
         *std::max_element(archs.portable.begin(), archs.portable.end()) <= cc;
}

bool is_built_for(int cc) {
  static const Archs& built = *new Archs(archs_of(built_archs()));
  return has_code(built, cc);
}

std::string device_fault(const char* archs, int cc, Status status) {
  if (status == kInsufficientDriver) {
    const std::string release =
        std::to_string(cuda_version() / 1000) + "." + std::to_string(cuda_version() % 1000 / 10);
    return "the NVIDIA driver does not support CUDA " + release +
           ", which this library was built with: update the driver, or rebuild with a CUDA toolkit that it supports";
  }
  const std::string number = std::to_string(cc);
  if (cc != 0 && cc < kOldest) {
    return "the kernels need sm_" + std::to_string(kOldest) + " or newer, this GPU is sm_" + number;
  }
  if ((cc != 0 && !has_code(archs_of(archs), cc)) || status == kNoKernelImage || status == kUnsupportedPtx) {
    return std::string("this library was built for ") + archs + ", and none of these runs on sm_" + number +
           ": rebuild with HGEMM_CUDA_ARCHS=" + number + (has_own_kernels(cc) ? "a" : "");
  }
  return status == 0 ? "" : status_string(status);
}

const DeviceFacts* usable_device(int ordinal) {
  Device& d = device(ordinal);
  if (d.fault.empty()) return &d.facts;
  if (!d.logged.load(std::memory_order_relaxed)) {
    const auto warn = the_warning.load();
    if (warn != nullptr && !d.logged.exchange(true)) {
      warn(("cuda:" + std::to_string(ordinal) + ": " + d.fault + "; torch runs every matmul on this GPU").c_str());
    }
  }
  return nullptr;
}

const std::string& fault_of_device(int ordinal) {
  return device(ordinal).fault;
}

void set_warning(void (*warn)(const char* line)) {
  the_warning.store(warn);
}

}  // namespace hgemm
