#include "core/chip.h"

#include <array>

namespace hgemm {
namespace {

/// The compute capability of the chip on which the rates in the lists of kernels were measured.
constexpr int kRatedCc = 90;

// The rates of the H200 were measured on one, at fixed power. cuBLAS sustains 600-690 TFLOP/s there. A model needs the
// clock under that load, not the boost clock. The other chips' rates come from public datasheets and are unmeasured.
// On Hopper, mma.sync reaches 62 % of wgmma's rate. Its rate on Blackwell is a guess from that figure.
constexpr Chip kChips[] = {
    {.name = "A100",
     .facts = {.cc = 80,
               .sm_count = 108,
               .smem_optin = 166912,
               .smem_per_sm = 167936,
               .l2_bytes = 41943040,
               .dram_gbs = 1555},
     .clock_ghz = 1.41,
     .mma_flops = 2048,
     .peak_flops = 2048,
     .simt_flops = 128,
     .dram_gbs = 1400,
     .l2_bytes_per_clk = 48},
    {.name = "A10",
     .facts =
         {.cc = 86, .sm_count = 72, .smem_optin = 101376, .smem_per_sm = 102400, .l2_bytes = 6291456, .dram_gbs = 600},
     .clock_ghz = 1.69,
     .mma_flops = 1024,
     .peak_flops = 1024,
     .simt_flops = 256,
     .dram_gbs = 550,
     .l2_bytes_per_clk = 48},
    {.name = "L40S",
     .facts = {.cc = 89,
               .sm_count = 142,
               .smem_optin = 101376,
               .smem_per_sm = 102400,
               .l2_bytes = 100663296,
               .dram_gbs = 864},
     .clock_ghz = 2.25,
     .mma_flops = 1024,
     .peak_flops = 1024,
     .simt_flops = 256,
     .dram_gbs = 780,
     .l2_bytes_per_clk = 48},
    {.name = "H200",
     .facts = {.cc = 90,
               .sm_count = 132,
               .smem_optin = 232448,
               .smem_per_sm = 233472,
               .l2_bytes = 62914560,
               .dram_gbs = 4916},
     .clock_ghz = 1.55,
     .mma_flops = 2540,
     .peak_flops = 4096,
     .simt_flops = 256,
     .dram_gbs = 4600,
     .l2_bytes_per_clk = 56,
     .measured = true,
     .own_kernels = true},
    {.name = "B200",
     .facts = {.cc = 100,
               .sm_count = 148,
               .smem_optin = 232448,
               .smem_per_sm = 233472,
               .l2_bytes = 132644864,
               .dram_gbs = 8000},
     .clock_ghz = 1.70,
     .mma_flops = 2540,
     .peak_flops = 8192,
     .simt_flops = 256,
     .dram_gbs = 7000,
     .l2_bytes_per_clk = 56},
};
constexpr int kChipCount = sizeof(kChips) / sizeof(kChips[0]);

}  // namespace

int chip_count() {
  return kChipCount;
}

const Chip& chip_at(int index) {
  return kChips[index];
}

const Chip& chip_of(int cc) {
  constexpr int kMost = 255;  // no chip of the table is newer
  // Static, because the compiler would otherwise build the array on the stack in each of a decision's hundred calls.
  static constexpr auto kPlaces = [] {
    std::array<uint8_t, kMost + 1> places{};
    for (int of = 0; of <= kMost; ++of) {
      for (int i = 0; i < kChipCount; ++i) {
        if (kChips[i].facts.cc <= of) places[static_cast<size_t>(of)] = static_cast<uint8_t>(i);
      }
    }
    return places;
  }();
  return kChips[kPlaces[static_cast<size_t>(std::clamp(cc, 0, kMost))]];
}

bool preset_facts(int cc, DeviceFacts* facts) {
  const Chip& chip = chip_of(cc);
  if (chip.facts.cc != cc) return false;
  *facts = chip.facts;
  return true;
}

bool is_measured(int cc) {
  const Chip& chip = chip_of(cc);
  return chip.measured && chip.facts.cc == cc;
}

bool has_own_kernels(int cc) {
  const Chip& chip = chip_of(cc);
  return chip.own_kernels && chip.facts.cc == cc;
}

double dram_gbs(const DeviceFacts& facts) {
  const Chip& chip = chip_of(facts.cc);
  const double peak = static_cast<double>(chip.facts.dram_gbs);
  return facts.dram_gbs > 0 ? chip.dram_gbs * static_cast<double>(facts.dram_gbs) / peak : chip.dram_gbs;
}

double dram_share(const DeviceFacts& facts) {
  return dram_gbs(facts) / chip_of(kRatedCc).dram_gbs;
}

}  // namespace hgemm
