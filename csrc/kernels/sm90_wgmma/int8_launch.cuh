// Host side of the int8 kernels: from a product to a launch.
#pragma once

#include "kernels/sm90_wgmma/launch.cuh"

namespace hgemm::sm90_wgmma {

#ifdef HGEMM_NO_SM90A

template <class Config>
Status launch_int8(const Problem&, const DeviceFacts&, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

template <class Config>
Status launch_int8(const Problem& p, const DeviceFacts& facts, Stream stream) {
  const auto units = [](int64_t extent, int tile) { return static_cast<uint32_t>((extent + tile - 1) / tile); };
  const uint32_t units_m = units(p.m, Config::BM * Config::CM), units_n = units(p.n, Config::BN * Config::CN);
  ParamsOf<Config> params{};
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k_tiles = static_cast<int>((p.k + Config::BK - 1) / Config::BK);
  params.units = units_m * units_n;
  params.raster = tile::raster_of(units_m, units_n, std::max(1, kRasterRows / (Config::BM * Config::CM)));
  params.batch_inner = FastDivisor(1);
  params.pitch_b = Config::BN;
  params.store_tma = true;
  int32_t moves[2];
  // TMA copies bits: it takes an int32 of D as two elements of 16 bits.
  if (const Status e = tile::operand_map(p, p.d, p.m, 2 * p.n, 2 * p.d.row_stride, 16, &params.d, moves)) return e;
  return launch_traits<Traits<Config, ptx::Int8Pair, Major::kK, Major::kK> >(p, facts, params,
                                                                             static_cast<cudaStream_t>(stream));
}

#endif

}  // namespace hgemm::sm90_wgmma
