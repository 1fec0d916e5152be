// What devices.cc and CUDA's side would define: there is one device, an H200, as cuda:0. Programs that are linked with
// the library's objects include it once.
#pragma once

#include <string>

#include "core/chip.h"
#include "core/device.h"
#include "dispatch/devices.h"

namespace hgemm {

// A plan asks CUDA's side for the SMs of its stream, which is not linked. The programs are compiled as without device
// code, so the header defines the function inline, and this keeps it.
[[gnu::used]] int (*const sms_without_cuda)(Stream, int, int) = &sms_of;

const char* built_archs() {
  return "";
}
bool is_built_for(int) {
  return true;
}
std::string device_fault(const char*, int, Status) {
  return "";
}
const DeviceFacts* usable_device(int ordinal) {
  return ordinal == 0 ? &chip_of(90).facts : nullptr;
}
const std::string& fault_of_device(int) {
  static const std::string fault = "it is not there";
  return fault;
}
void set_warning(void (*)(const char*)) {}

}  // namespace hgemm
