// The variants of sm90_wgmma: which problems each one takes, and its predicted time.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <new>
#include <tuple>

#include "core/answers.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/sm90_wgmma/config.h"
#include "kernels/sm90_wgmma/edges.h"
#include "kernels/sm90_wgmma/list.h"
#include "kernels/sm90_wgmma/merged_rows.h"
#include "kernels/sm90_wgmma/stream_k.h"
#include "kernels/variants.h"
#include "tile/pad.h"
#include "tile/slabs.h"
#include "tile/triangle.h"

namespace hgemm {
namespace {

/// The parameters of a kernel of list.h, as run-time values.
struct Line {
  Tile tile;
  int smem_bytes;
  bool pingpong, copies, stores_any, takes_mn_major_b;
  int cm, cn, ck;  // cluster
  double rate;
  size_t partial_bytes;  // stream-K: bytes of a block's partial sums; else 0
  bool cuts_slices;      // stream-K that cuts tiles between slices of K
  int edge;              // Edged: columns of a residue tile; else 0
  double mirrored;       // Symmetric: the factor of list.h; else 0
  bool merged;
  double flops, fed, fill_clk;  // of a k-tile: operations, bytes from L2, clocks to fill the SM's shared memory
};

/// How a kernel reads its operands. Each form of a kernel is a variant of its own.
enum class Form {
  kDirect,   // in place
  kPad,      // from padded copies, which a kernel before makes
  kSwapped,  // in place, with A and B exchanged (SwapAB)
};

// Fitted to a thousand timings on the H200. Launches were back to back: each kernel starts while its predecessor
// drains.
constexpr double kPadBandwidth = 0.6;  // share of the read bandwidth that a padding copy reaches
constexpr double kFeed = 72;           // bytes per clock from L2 to an SM while all SMs read; a multicast counts once
constexpr double kFill = 75;           // bytes per clock into the shared memory of one SM
constexpr double kStartUs = 1.2;       // launch, first barriers, first stages
constexpr double kClusterUs = 0.3;     // wait until SMs for all blocks of the cluster are free
constexpr double kPadUs = 1.5;         // launch of the padding copy
constexpr double kStoreUs = 0.5;       // a warpgroup's plain epilogue of 128 x 128 results
constexpr double kCopyFactor = 4;      // the epilogue's factor where warps, not TMA, store D
constexpr double kSmallTileC = 18;     // the epilogue's factor with a C in tiles of at most 128 x 128
constexpr double kLargeTileC = 40;     // the same in larger ones
constexpr double kRoundShare = 0.3;    // share of the epilogue that remains where stores are deferred
constexpr double kReduceUs = 3.0;      // split-K: exchange through distributed shared memory
constexpr double kReadShare = 0.82;    // share of the read bandwidth that a kernel reaches at best
// Stream-K. The rates of its kernels were fitted to the 15 shapes of NOTES.md, such that no prediction is below the
// prediction of the best other kernel.
constexpr double kLeaveUs = 6.0;                            // to store 128 x 256 partial sums to memory
constexpr double kAddUs = 3.0;                              // to add as many to a tile
constexpr double kLeaveSlicesUs = 1.0, kAddSlicesUs = 0.5;  // the same where tiles are cut between slices of K
// Tiles that are cut between slices of K and are fewer than the clusters; fitted to 400 timings of 200 random shapes.
// The math is faster, to leave sums takes longer, and L2 serves each SM faster, because not all have work: at kFeed all
// together from kFeedShare of the SMs on. Rows that begin at sectors of 32 bytes get a share of it, and others another.
constexpr double kFewTilesRate = 1.1, kLeaveFewTilesUs = 6.0, kFeedShare = 0.65, kSectorShare = 0.6, kChunkShare = 0.45;
// Symmetric, x.T @ x: tiles of an MN-major B are loaded in whole boxes of 64 columns.
constexpr double kRoundedFactor = 1.12;
constexpr double kEdgedUs = 3.0;       // Edged: rows of tiles begin inside of sectors; most of it at the end
constexpr double kMergedStores = 1.5;  // Merged: the epilogue's factor, because warps store D. An estimate, not fitted

constexpr int kK = 64;           // of a k-tile
constexpr int kMostCluster = 4;  // blocks

/// A problem on a device, with what the answers of all kernels about it have in common.
struct Asked {
  Asked(const Problem& p, const DeviceFacts& facts)
      : p(p),
        facts(facts),
        chip(chip_of(facts.cc)),
        stores(sm90_wgmma::stores_of(p)),
        is_tma_a(sm90_wgmma::is_tma_a(p)),
        is_tma_b(sm90_wgmma::is_tma_b(p)),
        has_whole_lines(p.lda() % 64 == 0 && p.ldb() % 64 == 0),
        all_can_count(p.k > 0 && has_countable_extents(p, nullptr) &&
                      (p.m / 64 + 1) * (p.n / 64 + 1) * p.batches() <= kMaxTiles),
        k_tiles(ceil_div(p.k, kK)),
        memory_us(dram_bytes(p) / (dram_gbs(facts) * 1e3 * kReadShare)) {
    for (int blocks = 1; blocks <= kMostCluster; ++blocks) clusters[blocks] = clusters_at_once(facts, blocks);
    if (!sm90_wgmma::shares_b(p)) return;
    for (int i = 0; i < 2; ++i) merged_tiles[i] = sm90_wgmma::merged_tiles(p, 64 * (i + 1));
  }

  const Problem& p;
  const DeviceFacts& facts;
  const Chip& chip;
  sm90_wgmma::Stores stores;
  bool is_tma_a, is_tma_b, has_whole_lines;
  bool all_can_count;  // is_countable() is true for every kernel, as no tile is smaller than 64 x 64
  int64_t k_tiles;
  int clusters[kMostCluster + 1];  // that are resident at the same time, by their blocks
  double memory_us;
  int64_t merged_tiles[2] = {};  // rows of tiles of 64 and of 128 rows, for each index of the outer batch dimension
};

/// The extents of D as the kernel computes it: exchanged if it computes the transpose.
struct Extents {
  Extents(const Problem& p, Form form) : m(form == Form::kSwapped ? p.n : p.m), n(form == Form::kSwapped ? p.m : p.n) {}

  int64_t m, n;
};

/// Whether a kernel computes one triangle of C. Of an ordinary product a Symmetric kernel is predicted as if it
/// computed all of it, like the kernel that it is made of: dispatch/estimates.cc compares the two times.
bool computes_triangle(const Problem& p, const Line& line) {
  return line.mirrored > 0 && p.b_is_a_transposed;
}
/// The number of work tiles of C. A work tile is the output tiles of one cluster. Of a Merged kernel: if it computed
/// the matrices of the batch one after the other.
int64_t cluster_tiles_of(const Problem& p, const Line& line, Form form = Form::kDirect) {
  const Extents d(p, form);
  const int64_t tile_m = int64_t{line.tile.bm} * line.cm, tile_n = int64_t{line.tile.bn} * line.cn;
  if (computes_triangle(p, line)) return tile::tiles_of_triangle(d.n, tile_m, tile_n) * p.batches();
  return ceil_div(d.m, tile_m) * ceil_div(d.n, tile_n) * p.batches();
}
/// Merged: the number of work tiles of C.
int64_t merged_tiles_of(const Asked& asked, const Line& line) {
  const Problem& p = asked.p;
  const int64_t rows = ceil_div(asked.merged_tiles[line.tile.bm / 64 - 1], line.cm);
  return rows * ceil_div(p.n, int64_t{line.tile.bn} * line.cn) * p.batch[0];
}
/// Stream-K: how the steps of K are distributed over the clusters.
sm90_wgmma::Split split_of(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const auto split = line.cuts_slices ? sm90_wgmma::split_in_slices : sm90_wgmma::split_of;
  return split(cluster_tiles_of(p, line), ceil_div(p.k, line.tile.bk), clusters_at_once(facts, line.cm * line.cn));
}
/// Edged: how the clusters share the tiles of C.
sm90_wgmma::Edges edges_of(const Problem& p, const DeviceFacts& facts, const Line& line, Form form) {
  const Extents d(p, form);
  return sm90_wgmma::edges_of(ceil_div(d.m, int64_t{line.tile.bm} * line.cm), d.n,
                              std::max(1, facts.sm_count / line.cm), line.tile.bn, line.edge);
}

/// The operands that the padding kernel copies. In the copy of B every tile starts on a 128-byte line of its own, if
/// tiles would otherwise start inside of one.
Pads pads_of(bool is_tma_a, bool is_tma_b, const Line& line) {
  return {!is_tma_a, !is_tma_b, line.tile.bn % 32 == 0 ? 0 : line.tile.bn};
}
Pads pads_of(const Problem& p, const Line& line) {
  return pads_of(sm90_wgmma::is_tma_a(p), sm90_wgmma::is_tma_b(p), line);
}
/// Stream-K: bytes of the partial sums and flags of so many clusters; 0 for other kernels.
size_t stream_k_bytes(int64_t clusters, const Line& line) {
  if (line.partial_bytes == 0) return 0;
  const size_t blocks = static_cast<size_t>(clusters) * line.cm * line.cn;
  constexpr size_t kAlign = 256;
  return blocks * line.partial_bytes + (blocks * sizeof(uint64_t) + kAlign - 1) / kAlign * kAlign;
}
size_t stream_k_bytes(const Problem& p, const DeviceFacts& facts, const Line& line) {
  return line.partial_bytes == 0 ? 0 : stream_k_bytes(split_of(p, facts, line).clusters, line);
}
size_t most_stream_k_bytes(const DeviceFacts& facts, const Line& line) {
  return stream_k_bytes(clusters_at_once(facts, line.cm * line.cn), line);
}

/// The time of the epilogue as a multiple of a plain one's. A C takes longest, above all where the accumulators leave
/// no registers to load it ahead (five products of 8 to 32 us on an H200). Where TMA stores D, the code for bias and
/// relu is unrolled in every layout, and the code for other activations in the layout of linear layers. Every other
/// epilogue is a loop over 32-column subtiles.
double epilogue_factor(const Asked& asked, const Tile& tile) {
  const Problem& p = asked.p;
  if (p.c.data != nullptr) return tile.bm * tile.bn <= 128 * 128 ? kSmallTileC : kLargeTileC;
  const bool is_linear = p.a_major() == Major::kK && p.b_major() == Major::kK;
  const bool cheap = p.act == Activation::kNone || p.act == Activation::kRelu;
  const bool any = p.pre_activation != nullptr || p.out_dtype != p.dtype;
  if (any || (!cheap && !(is_linear && asked.stores.by_tma))) return 8;
  if (!cheap) return p.act == Activation::kGelu ? 3.5 : 2.5;
  if (!asked.stores.by_tma) return kCopyFactor;
  return p.act == Activation::kNone && p.bias == nullptr ? 1 : 1.5;
}

/// The share of kFeed at which L2 serves rows that are `pitch` elements apart, to a kernel that cuts few tiles.
double share_of_lines(int64_t pitch, Form form) {
  return form == Form::kPad || pitch % 64 == 0 ? 1.0 : pitch % 16 == 0 ? kSectorShare : kChunkShare;
}

/// The predicted time of the GEMM, counted in whole waves of clusters. A k-tile takes the longest of three times: its
/// math, its bytes from L2, and its bytes into the SM's shared memory. The epilogue of a pingpong kernel runs under the
/// main loop of the next tile, or, where K is short, the main loop under the epilogue. Compute and memory overlap, but
/// not fully where both take about the same time. Stream-K takes as many waves as its k-tiles amount to, and the time
/// to store and to add partial sums.
double gemm_us(const Asked& asked, const Line& line, Form form) {
  const Problem& p = asked.p;
  const DeviceFacts& facts = asked.facts;
  const Chip& chip = asked.chip;
  double epilogue = epilogue_factor(asked, line.tile);  // D has the same layout, swapped or not
  if (line.merged && asked.stores.by_tma) epilogue *= kMergedStores;
  const bool whole_lines = form == Form::kPad || asked.has_whole_lines;
  const Tile& t = line.tile;
  const double clk_per_us = chip.clock_ghz * 1e3;
  const int blocks = line.cm * line.cn * line.ck;
  const int64_t tiles = line.merged ? merged_tiles_of(asked, line) : cluster_tiles_of(p, line, form);
  const int64_t clusters = asked.clusters[blocks];
  double waves = static_cast<double>(ceil_div(tiles, clusters));
  const double steps = static_cast<double>(line.ck == 1 ? asked.k_tiles : ceil_div(asked.k_tiles, line.ck));

  const double line_share = whole_lines ? 1.0 : 0.45;  // fits 248 us at 4096^3 in rows of 4104
  double math_clk = line.flops / (line.rate * chip.peak_flops);
  double feed_clk = line.fed / (kFeed * line_share);
  double parts_us = 0;
  const sm90_wgmma::Split split = line.partial_bytes > 0 ? split_of(p, facts, line) : sm90_wgmma::Split{};
  if (split.units > 0) {
    const double of_tile = line.cuts_slices ? kSlices : steps;
    waves = split.waves + split.share / of_tile;
    const double adds = std::ceil(of_tile / split.share), area = t.bm * t.bn / (128.0 * 256.0);
    parts_us = area * (line.cuts_slices ? kLeaveSlicesUs + kAddSlicesUs * adds : kLeaveUs + kAddUs * adds);
  }
  if (line.cuts_slices && split.units > 0 && split.share <= kSlices) {
    const double bytes =
        t.bm / (line.cn * share_of_lines(p.lda(), form)) + t.bn / (line.cm * share_of_lines(p.ldb(), form));
    const double busy = static_cast<double>(split.clusters) / static_cast<double>(clusters);
    feed_clk = 2.0 * t.bk * bytes / kFeed * std::min(1.0, busy / kFeedShare);
    math_clk /= kFewTilesRate;
    parts_us += (kLeaveFewTilesUs - kLeaveSlicesUs) * t.bm * t.bn / (128.0 * 256.0);
  }
  if (line.edge > 0) {
    waves = edges_of(p, facts, line, form).turns - 1 + 2.0 * line.edge / t.bn;
    parts_us = kEdgedUs;
  }
  const double loop_us = steps * std::max({math_clk, feed_clk, line.fill_clk}) / clk_per_us;
  const double stores = computes_triangle(p, line) ? 2 : 1;
  const double store_us = stores * kStoreUs * epilogue * t.bm * t.bn / (128.0 * 128.0);
  double compute_us;
  if (line.pingpong) {
    compute_us = (waves - 1) * std::max(loop_us, (loop_us + store_us) / 2) + loop_us + store_us + parts_us;
  } else {
    const bool defers = line.ck == 1 && epilogue < 8 && asked.stores.by_tma;
    compute_us = waves * (loop_us + (line.ck > 1 ? kReduceUs : 0.0)) +
                 store_us * (defers ? 1 + kRoundShare * std::max(0.0, waves - 1) : waves) + parts_us;
  }
  if (computes_triangle(p, line)) {
    compute_us *= line.mirrored;
    if (p.b_major() == Major::kMN && t.bn % 64 != 0) compute_us *= kRoundedFactor;
  }
  const double memory_us = asked.memory_us;
  const double longer = std::max(compute_us, memory_us), shorter = std::min(compute_us, memory_us);
  const double overlap = shorter / longer;
  return kStartUs + (blocks > 1 ? kClusterUs : 0.0) +
         longer * std::sqrt(std::sqrt(1 + overlap * overlap * overlap * overlap));
}
/// The time to move so many bytes in padding copies.
double pad_us(double bytes, const DeviceFacts& facts) {
  return bytes / (kPadBandwidth * dram_gbs(facts) * 1e3);
}

/// Whether stream-K finds tiles to split in each slab, of which there are at most four sizes.
bool splits_every_slab(const Problem& p, const tile::Slabs& slabs, const DeviceFacts& facts, const Line& line) {
  Problem part = p;
  for (const int64_t m : {std::min(slabs.m, p.m), p.m % slabs.m}) {
    for (const int64_t n : {std::min(slabs.n, p.n), p.n % slabs.n}) {
      part.m = m;
      part.n = n;
      if (m > 0 && n > 0 && split_of(part, facts, line).units == 0) return false;
    }
  }
  return true;
}

/// The slabs of the padded copies. They lie in the workspace behind the partial sums of stream-K. An edged kernel takes
/// one slab only: it would cut the columns of each slab in a way of its own, or find nothing to cut.
tile::Slabs slabs_of(const Problem& p, const DeviceFacts& facts, const Line& line, const PaddedBytes& bytes) {
  const auto limit = static_cast<size_t>(p.most_workspace);
  const bool is_stream_k = line.partial_bytes > 0;
  const tile::Slabs whole = tile::one_slab(p, bytes);
  if (whole.workspace() + (is_stream_k ? stream_k_bytes(p, facts, line) : 0) <= limit) return whole;
  const size_t partial = is_stream_k ? most_stream_k_bytes(facts, line) : 0;
  if (line.edge > 0 || partial >= limit || (is_stream_k && p.batches() > 1)) return {};
  // Stream-K has no waves: its clusters share the k-tiles, however many tiles there are.
  const tile::SlabCost cost{
      .tile_m = int64_t{line.tile.bm} * line.cm,
      .tile_n = int64_t{line.tile.bn} * line.cn,
      .at_once = is_stream_k ? 1 : clusters_at_once(facts, line.cm * line.cn * line.ck),
      .gemm_us = gemm_us(Asked(p, facts), line, Form::kPad),
      .us_per_byte = pad_us(2.0, facts),
      .launch_us = kStartUs + kPadUs + (is_stream_k ? kLeaveUs + kAddUs : 0),
  };
  const tile::Slabs slabs = tile::slabs_of(p, limit - partial, cost, bytes);
  return is_stream_k && slabs.count > 0 && !splits_every_slab(p, slabs, facts, line) ? tile::Slabs{} : slabs;
}

tile::Slabs slabs_of(const Problem& p, const DeviceFacts& facts, const Line& line) {
  return slabs_of(p, facts, line, PaddedBytes(pads_of(p, line)));
}

/// Bytes of the workspace before the copies.
size_t partial_room(const Problem& p, const tile::Slabs& slabs, const DeviceFacts& facts, const Line& line) {
  if (line.partial_bytes == 0) return 0;
  return slabs.count == 1 ? stream_k_bytes(p, facts, line) : most_stream_k_bytes(facts, line);
}

/// Returns true if a Symmetric kernel can run the problem, as far as it differs from other kernels; otherwise refuses.
bool can_mirror(const Problem& p, const sm90_wgmma::Stores& stores, Reason* why) {
  if (!p.b_is_a_transposed) return refuse(why, "%s", "B must be A's transpose in the same memory: x @ x.T or x.T @ x");
  if (p.a_major() != p.b_major()) return refuse(why, "%s", "x must have a unit stride, along its rows or its columns");
  const bool is_plain = stores.finish == sm90_wgmma::Finish::kScale ||
                        (stores.finish == sm90_wgmma::Finish::kBiasRelu && p.bias == nullptr);
  if (!is_plain || p.c.data != nullptr || !stores.by_tma) {
    return refuse(why,
                  "D must be 16-bit with 16-byte-aligned rows, N a multiple of 8 (got %lld), without C, bias or "
                  "activations other than relu",
                  static_cast<long long>(p.n));
  }
  return true;
}

/// Returns true if a Merged kernel can run the problem, as far as it differs from other kernels, and computes fewer
/// tiles than these; otherwise refuses.
bool can_merge(const Asked& asked, const Line& line, Reason* why) {
  const Problem& p = asked.p;
  if (!sm90_wgmma::shares_b(p)) {
    return refuse(why, "%s", "must be a batch of different A, row-major, with the same B, and of at most 2^30 rows");
  }
  const int64_t tiles = merged_tiles_of(asked, line), others = cluster_tiles_of(p, line);
  if (tiles >= others) {
    return refuse(why, "%lld tiles of rows of several matrices are no fewer than %lld of one matrix each",
                  static_cast<long long>(tiles), static_cast<long long>(others));
  }
  return true;
}

bool eligible(const Asked& asked, const Line& line, Form form, Reason* why) {
  const Problem& p = asked.p;
  const DeviceFacts& facts = asked.facts;
  if (!is_built_for_sm90a(why)) return false;
  if (!asked.all_can_count && !is_countable(p, line.tile, why)) return false;
  if (line.ck > 1 && p.k < 2 * int64_t{line.ck} * line.tile.bk) {
    return refuse(why, "K = %lld is too short to split into %d slices", static_cast<long long>(p.k), line.ck);
  }
  const sm90_wgmma::Stores stores = asked.stores;
  if (line.mirrored > 0 && !can_mirror(p, stores, why)) return false;
  if (line.merged && !can_merge(asked, line, why)) return false;
  if (!line.stores_any && (p.c.data != nullptr || stores.finish == sm90_wgmma::Finish::kAny)) {
    return refuse(why,
                  "tiles of %d columns do not support C, float32 D, a saved pre-activation, a bias that is unaligned "
                  "or of odd N, and, outside of linear layers, gelu and silu",
                  line.tile.bn);
  }
  if (!line.copies && !stores.by_tma)
    return refuse(why, "%s", "D must be 16-bit with 16-byte-aligned rows, and N a multiple of 8");
  if (form == Form::kSwapped &&
      (p.a_major() != Major::kK || stores.finish != sm90_wgmma::Finish::kScale || !stores.by_tma)) {
    return refuse(why, "%s", "A must be row-major, D 16-bit with 16-byte-aligned rows, without C, bias or activation");
  }
  if (form != Form::kSwapped && !line.takes_mn_major_b && p.b_major() == Major::kMN) {
    return refuse(why,
                  "B must be K-major: with tiles of %d columns, an MN-major B is read inefficiently or does not fit "
                  "shared memory",
                  line.tile.bn);
  }
  const bool is_tma = asked.is_tma_a && asked.is_tma_b;
  if (form == Form::kPad && is_tma) return refuse(why, "%s", "A and B are aligned and need no padded copies");
  if (form != Form::kPad && !is_tma) {
    return refuse(why, "rows of A and B must be 16-byte aligned (got %d and %d) and must not overlap", alignment_a(p),
                  alignment_b(p));
  }
  if (line.edge > 0) {
    if (p.batches() > 1) return refuse(why, "%s", "does not support batches");
    if (edges_of(p, facts, line, form).columns == 0) {
      return refuse(why, "%s",
                    "no use for narrower tiles at the edge: they would take more waves than tiles of 256 columns");
    }
  }
  if (line.partial_bytes > 0 && !line.cuts_slices && p.b_is_a_transposed) {
    return refuse(why, "%s", "x @ x.T must be symmetric, but with stream-K not all tiles sum K in one order");
  }
  if (line.partial_bytes > 0 && split_of(p, facts, line).units == 0) {
    return refuse(why, "%s", "no use for stream-K: the tiles fill whole waves, or K is too short to split");
  }
  if (form != Form::kPad) return true;
  const PaddedBytes bytes(pads_of(asked.is_tma_a, asked.is_tma_b, line));
  if (line.edge > 0 || line.partial_bytes > 0) return tile::fit_workspace(slabs_of(p, facts, line, bytes), p, why);
  const auto limit = static_cast<size_t>(p.most_workspace);
  return tile::one_slab(p, bytes).workspace() <= limit ||
         tile::fit_workspace(tile::any_slab_fits(p, limit, bytes), p, why);
}

double predict_us(const Asked& asked, const Line& line, Form form) {
  const Problem& p = asked.p;
  const DeviceFacts& facts = asked.facts;
  const double gemm = gemm_us(asked, line, form);
  if (form != Form::kPad) return gemm;
  const PaddedBytes bytes(pads_of(asked.is_tma_a, asked.is_tma_b, line));
  const double copied = 2.0 * static_cast<double>(bytes.a(p) + bytes.b(p));
  return gemm + kPadUs + pad_us(copied, facts) + slabs_of(p, facts, line, bytes).extra_us;
}

template <class C>
constexpr size_t partial_bytes() {
  if constexpr (C::kStreamK) return C::kPartialBytes;
  return 0;
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::BM, .bn = C::BN, .bk = C::BK, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .pingpong = C::kPingpong,
    .copies = C::kCopies,
    .stores_any = C::kStoresAny,
    .takes_mn_major_b = C::kTakesMnMajorB,
    .cm = C::CM,
    .cn = C::CN,
    .ck = C::CK,
    .rate = std::get<sm90_wgmma::Kernel<C>>(sm90_wgmma::kKernels).rate,
    .partial_bytes = partial_bytes<C>(),
    .cuts_slices = C::kCutsSlices,
    .edge = C::kEdged ? C::kEdge : 0,
    .mirrored = C::kSymmetric ? std::get<sm90_wgmma::Kernel<C>>(sm90_wgmma::kKernels).mirrored : 0,
    .merged = C::kMerged,
    .flops = 2.0 * C::BM * C::BN * C::BK,
    .fed = 2.0 * C::BK * (C::BM / C::CN + C::BN / C::CM),
    .fill_clk = 2.0 * C::BK * (C::BM + C::BN) / kFill,
};

/// The functions of the Variant for one kernel and form.
template <class C, Form kForm>
struct Functions {
  static_assert(C::BK == kK && C::CM * C::CN * C::CK <= kMostCluster);

  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return hgemm::eligible(Asked(p, facts), kLine<C>, kForm, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    if (kForm != Form::kPad) return stream_k_bytes(p, facts, kLine<C>);
    const tile::Slabs slabs = slabs_of(p, facts, kLine<C>);
    return partial_room(p, slabs, facts, kLine<C>) + slabs.workspace();
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return hgemm::predict_us(Asked(p, facts), kLine<C>, kForm);
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    if constexpr (kForm != Form::kPad) {
      return launch_dtype(p, facts, workspace, stream);
    } else {
      const Pads pads = pads_of(p, kLine<C>);
      const tile::Slabs slabs = slabs_of(p, facts, kLine<C>);
      const size_t partial = partial_room(p, slabs, facts, kLine<C>);
      const PadMemory memory = pad_memory(slabs, static_cast<unsigned char*>(workspace) + partial);
      return tile::for_each_slab(p, slabs, [&](const Problem& part, const tile::Changed& changed) {
        if (const Status e = launch_pad(part, facts, pads, changed, memory, stream); e != 0) return e;
        return launch_dtype(padded_problem(part, pads, memory), facts, workspace, stream);
      });
    }
  }

 private:
  static Status launch_dtype(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    if (p.dtype == DType::kF16) return call<&sm90_wgmma::launch<C, DType::kF16>>(p, facts, workspace, stream);
    return call<&sm90_wgmma::launch<C, DType::kBF16>>(p, facts, workspace, stream);
  }
};

/// How the variant tiles the problem (Cut in core/problem.h).
template <class C, Form kForm>
constexpr Cut cut_of() {
  Cut cut;
  cut.cluster_m = C::CM;
  cut.cluster_n = C::CN;
  cut.slices = C::CK;
  cut.pingpong = C::kPingpong;
  cut.pads = kForm == Form::kPad;
  cut.swaps = kForm == Form::kSwapped;
  cut.edges = C::kEdged;
  cut.shares_k = C::kStreamK;
  return cut;
}

/// The order of summation. Where stream-K splits K depends on the number of tiles and of SMs; where a split-K cluster
/// does so depends on K only.
template <class C>
constexpr Sums sums_of() {
  if (C::kCutsSlices) return Sums::kFourSlices;
  if (C::kStreamK) return Sums::kVaries;
  if (C::kCarries) return Sums::kCarried;
  return C::CK == 1 ? Sums::kInOrder : C::CK == 2 ? Sums::kTwoSlices : Sums::kFourSlices;
}

constexpr const char* suffix_of(Form form) {
  return form == Form::kPad ? "_pad" : form == Form::kSwapped ? "_swapped" : "";
}

template <class C, Form kForm>
constexpr Name kName = name_of("sm90_wgmma_", C::kPingpong ? "pingpong_" : "cooperative_", C::BM, "x", C::BN, "x",
                               C::BK, "_c", C::CM, "x", C::CN, "x", C::CK,
                               C::kCutsSlices  ? "_sliced_streamk"
                               : C::kStreamK   ? "_streamk"
                               : C::kEdged     ? "_edged"
                               : C::kSymmetric ? "_symmetric"
                               : C::kCarries   ? "_carried"
                               : C::kMerged    ? "_merged"
                                               : "",
                               suffix_of(kForm));

template <class C, Form kForm>
constexpr Variant variant() {
  Variant v = variant_of<Functions<C, kForm>>(kName<C, kForm>, Family::kSm90Wgmma, kHalfTypes, kLine<C>);
  v.min_cc = kHopper;
  v.max_cc = kHopper;
  v.cut = cut_of<C, kForm>();
  v.sums = sums_of<C>();
  v.only_invariant = C::kCarries;
  v.also_four_slices = C::kCarries;
  v.fast_activations = true;
  return v;
}

template <class C>
constexpr auto variants_of(const sm90_wgmma::Kernel<C>&) {
  if constexpr (C::kSwapped) {
    return std::array{variant<C, Form::kSwapped>()};
  } else if constexpr (C::kSymmetric || C::kMerged) {
    return std::array{variant<C, Form::kDirect>()};
  } else {
    return std::array{variant<C, Form::kDirect>(), variant<C, Form::kPad>()};
  }
}

/// What the answers of a variant depend on beside the problem.
struct Answering {
  const Line* line;
  Form form;
};

template <class C>
constexpr auto answering_of(const sm90_wgmma::Kernel<C>&) {
  if constexpr (C::kSwapped) {
    return std::array{Answering{&kLine<C>, Form::kSwapped}};
  } else if constexpr (C::kSymmetric || C::kMerged) {
    return std::array{Answering{&kLine<C>, Form::kDirect}};
  } else {
    return std::array{Answering{&kLine<C>, Form::kDirect}, Answering{&kLine<C>, Form::kPad}};
  }
}

constexpr auto kVariants = variants_of_list(sm90_wgmma::kKernels, [](auto kernel) { return variants_of(kernel); });

/// Of the variants of kVariants, in their order.
constexpr auto kAnswering = [] {
  std::array<Answering, kVariants.size()> all{};
  size_t next = 0;
  const auto append = [&](const auto& part) {
    for (const Answering& answering : part) all[next++] = answering;
  };
  std::apply([&](const auto&... kernels) { (append(answering_of(kernels)), ...); }, sm90_wgmma::kKernels);
  return all;
}();

}  // namespace

const VariantList kSm90WgmmaVariants = kVariants;

static_assert(sizeof(Asked) <= FamilyAnswers::kCommonBytes);

const FamilyAnswers kSm90WgmmaAnswers = {
    .prepare = [](const Problem& p, const DeviceFacts& facts, void* common) { new (common) Asked(p, facts); },
    .eligible =
        [](const void* common, int index) {
          const Answering& of = kAnswering[static_cast<size_t>(index)];
          const auto& asked = *static_cast<const Asked*>(common);
          // The form alone refuses the variants that read their operands in another way, before their lines are read.
          if ((of.form == Form::kPad) == (asked.is_tma_a && asked.is_tma_b)) return false;
          return eligible(asked, *of.line, of.form, nullptr);
        },
    .predict_us =
        [](const void* common, int index) {
          const Answering& of = kAnswering[static_cast<size_t>(index)];
          return predict_us(*static_cast<const Asked*>(common), *of.line, of.form);
        },
    .merges = [](int index) { return kAnswering[static_cast<size_t>(index)].line->merged; },
};

}  // namespace hgemm
