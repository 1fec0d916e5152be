// The kernels of sm90_wgmma, one line each: this is where a kernel is declared.
//
// A line holds a Config: how the two consumer warpgroups share the work (config.h), block tile, ring depth, cluster
// shape (along M the blocks share B, along N they share A, along K they split the sum).
//
// STAGES is as many as find room: until its ring is deep enough a kernel waits for L2. Stages of a K-major B are as
// large as its tile, those of an MN-major one are rounded to 64 columns; a kernel whose ring has no room for the
// latter takes the former alone (Config::kTakesMnMajorB).
//
// Swapped 128x200 leads on most large C with row-major A. 128x192 and 192x128 move as few bytes per FLOP and take any
// layout; 128x176 and 128x160 take their place where their waves come out better (4097 x 4097, 28672
// columns), 128x128 where there are few, and without a cluster it starts sooner. Cooperative 128x256 leads where C is a
// whole number of its waves. Of the tiles that have clusters of both shapes 2x1 leads, which shares B, but where the
// rows of tiles are odd in number (4097, or 128). The smaller ones fill the chip when C is small: 64x96 for 128 x 6144,
// 128x96 for 256 x 6144. Cooperative 128x224 serves C of about one wave: it fits 28672 columns. The split-K lines serve
// C that is smaller still: 128x64 for 128 x 4096, four slices for a very long K.
//
// Clusters of four run on 120 of the H200's 132 SMs and read half as much through L2, or less: they lead where that
// decides, at C of few tiles and rows of A and B that do not start on 128 bytes. Swapped 64xBN in 4x1 serve 65 to 200
// rows, which are a tile's columns or two's; 64x64 and 128x128 in 2x2 C of up to a wave in any layout.
//
// Left out after timing: 128x144, 192x112 and clusters of eight (64x144 in 4x2), other tiles in 2x2 (64x96, 64x128,
// 64x176, 128x96) and 4x1 (swapped 64x112, 64x144, 128x80 to 128x144), each ahead by more than 1 % on at most 8 of the
// 611 to 1,610 shapes that it was timed on; stream-K of 64x64 and 64x128 in 2x2 (on 7 of 414); 256x192, 256x128 and
// 128x208 (never ahead by more than 1 %), 128x112, 64x192, 64x256, 64x96 and 128x96 in clusters of 1x2, 128x192,
// 128x128 and 128x256 swapped, clusters of four for large C (fewer than 32 of them find room at the same time),
// cooperative 128x128 and 128x192 (never ahead of the pingpong ones by more than 0.3 %), 128x128 with two slices (on
// none of the table's shapes the fastest) and, for their bytes, 128x224 in 1x2 (ahead by more than 1 % on 15 of 3,041
// shapes) and 128x200 that is not swapped (on 69 of 2,712).
//
// SwapAB, for row-major A alone, computes D^T, in a quarter of the bytes of another line.
//
// StreamK: the same tiles with stream-K, for C that is no whole number of waves (no CK). Within 2 % of the best other
// kernel on most large C, ahead of it on some (NOTES.md): to be asked for, or chosen where a table has it as the
// fastest.
//
// Edged: tiles of BN columns, but for the last columns of C. For C whose tiles of 256 columns leave a few clusters of
// the last wave without work. Only the swapped form: the other one was ahead by more than 1 % on 22 of 715 random shapes
// and on 1 of the table's 642, by 1.6 %, and took 83 s of a build's CPU time.
#pragma once

#include <tuple>

#include "kernels/sm90_wgmma/config.h"

namespace hgemm::sm90_wgmma {

template <class Config>
struct Kernel {
  double rate;  // share of the chip's wgmma rate, at the clock of core/chip.h, that timings on a warm H200 fit best
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
};

}  // namespace hgemm::sm90_wgmma
