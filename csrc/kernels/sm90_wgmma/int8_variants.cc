// The list of the int8 kernels, for the dispatcher.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/chip.h"
#include "core/variant_list.h"
#include "kernels/sm90_wgmma/int8_list.h"
#include "kernels/variants.h"
#include "tile/int8_operands.h"

namespace hgemm {
namespace {

using sm90_wgmma::int8::kKernels;

/// A kernel of the list; tile/int8_operands.h says what the members are.
template <class C>
struct Int8Kernel {
  static constexpr auto kLine = std::get<sm90_wgmma::int8::Kernel<C>>(kKernels);
  static constexpr bool kTransposesB = false;
  static constexpr int kTileM = C::BM * C::CM, kTileN = C::BN * C::CN;
  static constexpr Name kName =
      name_of("int8_wgmma_", C::BM, "x", C::BN, "_", C::CM, "x", C::CN, C::kPingpong ? "" : "_coop");

  static bool takes(const Problem& p, Reason* why) { return has_countable_tiles(p, C::BM, C::BN, why); }
  static int64_t at_once(const DeviceFacts& facts) { return clusters_at_once(facts, C::kCluster); }
  /// Whole waves of work tiles, each with the main loop of its k-tiles, which writing D slows down; at least the time
  /// to move the bytes.
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    constexpr double kFixedUs = 2.8, kShare = 0.75;
    const int64_t tiles = ceil_div(p.m, kTileM) * ceil_div(p.n, kTileN), most = at_once(facts);
    const double busy = std::min(1.0, static_cast<double>(tiles) / static_cast<double>(most));
    const double step_us = kLine.idle_step_us + (kLine.step_us - kLine.idle_step_us) * busy;
    const double math_us = static_cast<double>(ceil_div(tiles, most)) *
                           (static_cast<double>(ceil_div(p.k, C::BK)) * step_us + kLine.tile_us);
    const double bytes_per_us = 1e3 * dram_gbs(facts) * kShare;
    const double write_us = 4.0 * static_cast<double>(p.m) * static_cast<double>(p.n) / bytes_per_us;
    const double read_us = 2.0 * static_cast<double>(p.k) * static_cast<double>(p.m + p.n) / bytes_per_us;
    return kFixedUs + std::max(std::sqrt(math_us * math_us + write_us * write_us), read_us + write_us);
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, Stream stream) {
    return call<&sm90_wgmma::launch_int8<C>>(p, facts, stream);
  }
};

template <class C>
constexpr auto variants_of(const sm90_wgmma::int8::Kernel<C>&) {
  const Tile tile{.bm = C::BM, .bn = C::BN, .bk = 2 * C::BK, .stages = C::STAGES, .threads = C::kThreads};
  const Cut cut{.cluster_m = C::CM, .cluster_n = C::CN, .pingpong = C::kPingpong};
  return std::array{tile::int8_variant<Int8Kernel<C>>(Int8Kernel<C>::kName, tile, C::kSmemBytes, cut)};
}

constexpr auto kVariants = variants_of_list(kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSm90WgmmaInt8Variants = kVariants;

}  // namespace hgemm
