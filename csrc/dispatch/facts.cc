#include "dispatch/facts.h"

namespace hgemm {
namespace {

// cc, SMs, shared memory a block may opt in to, shared memory of an SM, L2, the memory's peak.
constexpr DeviceFacts kPresets[] = {
    {80, 108, 166912, 167936, 41943040, 1555},    // A100
    {86, 72, 101376, 102400, 6291456, 600},       // A10
    {89, 142, 101376, 102400, 100663296, 864},    // L40S
    {90, 132, 232448, 233472, 62914560, 4916},    // H200
    {100, 148, 232448, 233472, 132644864, 8000},  // B200
};

}  // namespace

bool preset_facts(int cc, DeviceFacts* facts) {
  for (const DeviceFacts& preset : kPresets) {
    if (preset.cc == cc) {
      *facts = preset;
      return true;
    }
  }
  return false;
}

}  // namespace hgemm
