// The kernels of sm90_wgmma, one line each: this is where a kernel is declared.
//
// A line holds a Config: how the two consumer warpgroups share the work (config.h), the block tile, the number of
// pipeline stages, and the cluster shape. Blocks of a cluster share B along M and A along N, and split the sum along K.
//
// STAGES is as large as shared memory allows: with too few stages a kernel waits for L2. A stage of a K-major B is as
// large as the tile, a stage of an MN-major B is rounded up to a multiple of 64 columns. A kernel whose rounded stages
// do not fit takes a K-major B only (Config::kTakesMnMajorB).
//
// Which kernel is the fastest where, on the H200:
//
// - Swapped 128x200: most large C with row-major A.
// - 128x192 and 192x128 move as few bytes per FLOP, and take any layout.
// - 128x176 and 128x160 replace them where their number of waves fits C better (4097 x 4097, 28672 columns).
// - 128x128: C of few waves. Without a cluster it starts sooner.
// - Cooperative 128x256: C that is a whole number of its waves.
// - Of the tiles that have clusters of both shapes 2x1 leads, which shares B, unless C has an odd number of rows of
//   tiles (M = 4097, or 128).
// - The smaller tiles fill the chip when C is small: 64x96 for 128 x 6144, 128x96 for 256 x 6144.
// - Cooperative 128x224: C of about one wave. It fits 28672 columns.
// - The split-K kernels: C that is smaller still. 128x64 for 128 x 4096, four slices for a very long K.
// - Clusters of four run on 120 of the H200's 132 SMs, but read at most half as much through L2. They lead where that
//   decides: at C of few tiles, and where rows of A and B do not start at multiples of 128 bytes. Swapped 64xBN in 4x1
//   fit 65 to 200 rows, which are the columns of one tile or of two. 64x64 and 128x128 in 2x2 fit C of up to a wave in
//   any layout.
//
// Left out after timing:
//
//   kernels                                                 ahead of the others
//   128x144, 192x112, clusters of eight (64x144 in 4x2),    each by more than 1 % on at most 8 of the 611 to 1,610
//   other tiles in 2x2 (64x96, 64x128, 64x176, 128x96),     shapes that it was timed on
//   other tiles in 4x1 (swapped 64x112, 64x144, 128x80
//   to 128x144)
//   stream-K of 64x64 and 64x128 in 2x2                     on 7 of 414 shapes
//   256x192, 256x128, 128x208                               never by more than 1 %
//   128x112, 64x192, 64x256, 64x96 and 128x96 in clusters   -
//   of 1x2, 128x192, 128x128 and 128x256 swapped
//   clusters of four for large C                            (fewer than 32 of them fit the GPU at a time)
//   cooperative 128x128, 128x192                            of the pingpong ones never by more than 0.3 %
//   128x128 with two slices of K                            on no shape of the tuning table
//   128x224 in 1x2, for the bytes of its code               by more than 1 % on 15 of 3,041 shapes
//   128x200 not swapped, for the bytes of its code          by more than 1 % on 69 of 2,712 shapes
//   edged 128x248 not swapped, for its time to compile      by more than 1 % on 22 of 715 shapes, by 1.6 % at most on
//                                                           the tuning table's
//
// SwapAB kernels take row-major A only and compute D^T. Each has a quarter of the code of another kernel.
//
// StreamK kernels use the same tiles with stream-K, for C that is not a whole number of waves. CK must be 1. They are
// within 2 % of the best other kernel on most large C, and ahead of it on some (NOTES.md). They run when a caller
// forces them, or where a tuning table has them as the fastest.
//
// Edged kernels use tiles of BN columns, and residue tiles for the last columns of C. They are for C whose tiles of 256
// columns would leave a few clusters of the last wave without work.
//
// Symmetric kernels compute x @ x.T and x.T @ x, and nothing else.
//
// Merged kernels compute batches whose matrices share B, of K-major A, where that takes fewer tiles than one matrix
// after the other. Each line is a kernel above whose tiles suit another number of rows of the whole batch.
//
// Carried kernels add up accumulators in float32, for numerics="batch_invariant": float32 results have a smaller error,
// and 16-bit results of many rows the same slices of K as those of few. With StreamK they have no other use than those
// slices, which they hand out evenly where tiles do not fill whole waves. Clusters lead where rows of A and B do not
// start at multiples of 128 bytes.
#pragma once

#include <tuple>

#include "kernels/sm90_wgmma/config.h"

namespace hgemm::sm90_wgmma {

template <class Config>
struct Kernel {
  double rate;  // share of the chip's wgmma rate, at the clock of core/chip.h, that timings on a warm H200 fit best
  double mirrored = 1;  // Symmetric: x @ x.T takes so much longer than by that rate and the number of its tiles
};

constexpr std::tuple kKernels{
    Kernel<Config<Consumers::kPingpong, 128, 192, 5, 2, 1, 1>>{.rate = 0.83},
    Kernel<Config<Consumers::kPingpong, 192, 128, 5, 1, 2, 1>>{.rate = 0.83},
    Kernel<SwapAB<Consumers::kPingpong, 128, 200, 5, 2, 1, 1>>{.rate = 0.83},
    Kernel<Config<Consumers::kPingpong, 128, 176, 5, 2, 1, 1>>{.rate = 0.82},
    Kernel<Config<Consumers::kPingpong, 128, 176, 5, 1, 2, 1>>{.rate = 0.82},
    Kernel<Config<Consumers::kPingpong, 128, 160, 5, 2, 1, 1>>{.rate = 0.82},
    Kernel<Config<Consumers::kPingpong, 128, 128, 6, 2, 1, 1>>{.rate = 0.82},
    Kernel<Config<Consumers::kPingpong, 128, 128, 6, 1, 1, 1>>{.rate = 0.79},
    Kernel<Config<Consumers::kPingpong, 128, 96, 7, 2, 1, 1>>{.rate = 0.76},
    Kernel<Config<Consumers::kPingpong, 64, 128, 8, 2, 1, 1>>{.rate = 0.71},
    Kernel<Config<Consumers::kPingpong, 64, 128, 8, 1, 1, 1>>{.rate = 0.70},
    Kernel<Config<Consumers::kPingpong, 64, 96, 10, 2, 1, 1>>{.rate = 0.62},
    Kernel<Config<Consumers::kCooperative, 128, 256, 4, 2, 1, 1>>{.rate = 0.83},
    Kernel<Config<Consumers::kCooperative, 128, 256, 4, 1, 2, 1>>{.rate = 0.83},
    Kernel<Config<Consumers::kCooperative, 128, 224, 4, 2, 1, 1>>{.rate = 0.82},
    Kernel<Config<Consumers::kCooperative, 128, 64, 8, 1, 1, 1>>{.rate = 0.72},
    Kernel<Config<Consumers::kCooperative, 128, 64, 8, 1, 1, 2>>{.rate = 0.76},
    Kernel<Config<Consumers::kCooperative, 128, 128, 5, 1, 1, 4>>{.rate = 0.73},
    Kernel<Config<Consumers::kPingpong, 64, 64, 13, 2, 2, 1>>{.rate = 0.50},
    Kernel<Config<Consumers::kPingpong, 128, 128, 6, 2, 2, 1>>{.rate = 0.80},
    Kernel<SwapAB<Consumers::kPingpong, 64, 80, 11, 4, 1, 1>>{.rate = 0.56},
    Kernel<SwapAB<Consumers::kPingpong, 64, 96, 10, 4, 1, 1>>{.rate = 0.62},
    Kernel<SwapAB<Consumers::kPingpong, 64, 128, 8, 4, 1, 1>>{.rate = 0.70},
    Kernel<SwapAB<Consumers::kPingpong, 64, 176, 7, 4, 1, 1>>{.rate = 0.72},
    Kernel<SwapAB<Consumers::kPingpong, 64, 200, 6, 4, 1, 1>>{.rate = 0.72},
    Kernel<SwapAB<Consumers::kPingpong, 128, 64, 8, 4, 1, 1>>{.rate = 0.66},
    Kernel<Edged<SwapAB<Consumers::kCooperative, 128, 248, 4, 2, 1, 1>>>{.rate = 0.83},
    Kernel<StreamK<Config<Consumers::kCooperative, 128, 256, 4, 2, 1, 1>>>{.rate = 0.82},
    Kernel<StreamK<Config<Consumers::kPingpong, 128, 192, 5, 2, 1, 1>>>{.rate = 0.78},
    Kernel<Symmetric<Config<Consumers::kCooperative, 128, 256, 4, 2, 1, 1>>>{.rate = 0.83, .mirrored = 0.95},
    Kernel<Symmetric<Config<Consumers::kPingpong, 128, 192, 4, 2, 1, 1>>>{.rate = 0.83, .mirrored = 1.04},
    Kernel<Symmetric<Config<Consumers::kPingpong, 128, 160, 4, 2, 1, 1>>>{.rate = 0.82, .mirrored = 1.12},
    Kernel<Symmetric<Config<Consumers::kPingpong, 128, 128, 6, 2, 1, 1>>>{.rate = 0.82, .mirrored = 1.15},
    Kernel<Symmetric<Config<Consumers::kPingpong, 64, 128, 8, 2, 1, 1>>>{.rate = 0.71, .mirrored = 1.15},
    Kernel<Carried<Config<Consumers::kCooperative, 128, 128, 6, 1, 1, 1>>>{.rate = 0.78},
    Kernel<Carried<Config<Consumers::kCooperative, 128, 192, 5, 2, 1, 1>>>{.rate = 0.80},
    Kernel<Carried<Config<Consumers::kCooperative, 128, 128, 6, 2, 2, 1>>>{.rate = 0.78},
    Kernel<Carried<Config<Consumers::kPingpong, 64, 128, 8, 1, 1, 1>>>{.rate = 0.68},
    Kernel<StreamK<Carried<Config<Consumers::kCooperative, 128, 128, 6, 1, 1, 1>>>>{.rate = 0.78},
    Kernel<StreamK<Carried<Config<Consumers::kCooperative, 128, 128, 6, 2, 1, 1>>>>{.rate = 0.78},
    Kernel<Merged<Config<Consumers::kPingpong, 128, 192, 5, 2, 1, 1>>>{.rate = 0.83},
    Kernel<Merged<Config<Consumers::kPingpong, 128, 128, 6, 2, 1, 1>>>{.rate = 0.82},
    Kernel<Merged<Config<Consumers::kPingpong, 128, 128, 6, 1, 1, 1>>>{.rate = 0.79},
    Kernel<Merged<Config<Consumers::kPingpong, 64, 128, 8, 2, 1, 1>>>{.rate = 0.71},
};

}  // namespace hgemm::sm90_wgmma
