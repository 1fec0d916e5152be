// The tuning table: measured times of matmuls without epilogue, for any number of GPUs. A lookup only sees the entries
// of one GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"

namespace hgemm {

/// A measured time, in microseconds.
struct Timing {
  int variant;  // an id, or kTorch
  double us;
};

/// The measured times of one shape on one kind of GPU.
struct TableEntry {
  // The GPU. Two chips of one compute capability differ in SM count or L2 size (H100 and H200: 50 and 60 MB).
  int cc;
  int sm_count;
  int64_t l2_bytes;
  int64_t dram_gbs;  // bandwidth of its memory; 0: that of its chip
  // The shape: A (m, k) and B (k, n), contiguous. `align` is the least of the alignments of A, B and D, in bytes.
  DType dtype;
  Major a_major, b_major;
  int align;
  int64_t batch, m, n, k;
  std::vector<Timing> timings;
};

/// What the table has for a problem. `value` has one slot for each variant, in the order of ids, and a last one for
/// torch.
struct Knowledge {
  enum class Kind { kNothing, kExact, kNearby } kind = Kind::kNothing;
  int neighbours = 0;
  DType dtype = DType::kF16;  // the dtype that was measured: float16's times are also used for bfloat16
  /// kExact: measured microseconds. kNearby: measured over predicted time, a factor to multiply a prediction by.
  /// NaN where nothing was measured.
  double* value = nullptr;
};

/// The impossible value of an entry, as the end of a sentence that starts with the entry; null where there is none.
const char* fault_of(const TableEntry& entry);

/// Replaces the whole table by these entries, which have no faults. Lookups in progress finish on the old table; every
/// later decision sees the new one.
void set_table(const std::vector<TableEntry>& entries);

/// Adds an entry, which has no faults. Replaces the entry of the same shape if there is one.
void add_to_table(const TableEntry& entry);

/// Fills `entry`, still without times, so that a lookup of `product` would find it. Returns false where no entry can
/// describe the product, because its strides or alignments differ from those of contiguous operands with these sizes.
bool entry_of(const Problem& product, const DeviceFacts& facts, TableEntry* entry);

/// Looks up a problem, whose alignments are `alignments`. With `nearby`, measured shapes nearby stand in for a shape
/// that the table does not have. `scratch` has variant_count() + 1 slots, and is the memory of the answer.
Knowledge table_lookup(const Problem& problem, const DeviceFacts& facts, const Alignments& alignments, double* scratch,
                       bool nearby);

/// The number of entries for a device.
int table_size(const DeviceFacts& facts);

}  // namespace hgemm
