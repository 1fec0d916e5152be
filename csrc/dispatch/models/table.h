// Measured times as data. A table holds plain products (no epilogue) of any number of GPUs; lookups go to the entries
// of the GPU in hand.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"

namespace hgemm {

struct Timing {
  int variant;  // an id, or kTorch
  double us;
};

struct TableEntry {
  // The GPU: two chips of one compute capability differ in SM count or L2 size (H100 and H200: 50 and 60 MB).
  int cc;
  int sm_count;
  int64_t l2_bytes;
  int64_t dram_gbs;  // of its memory; 0: that of its chip
  // The problem: A (m, k), B (k, n), contiguous; `align` is the least of the three operands' alignments in bytes.
  DType dtype;
  Major a_major, b_major;
  int align;
  int64_t batch, m, n, k;
  std::vector<Timing> timings;
};

/// What a table knows of a problem. `us` has one slot per variant and one, the last, for torch.
struct Knowledge {
  enum class Kind { kNothing, kExact, kNearby } kind = Kind::kNothing;
  int neighbours = 0;
  DType dtype = DType::kF16;  // that was measured: bfloat16 is looked up in float16 where it was not
  /// kExact: measured microseconds. kNearby: measured over predicted, by which a prediction is to be multiplied.
  /// NaN where nothing was measured.
  double* value = nullptr;
};

/// What an entry has that no measured product can have; null where all is well.
const char* fault_of(const TableEntry& entry);

/// Replaces the whole table by entries without faults; lookups in flight keep the one they started with. Every later
/// decision sees the new one.
void set_table(const std::vector<TableEntry>& entries);

/// Adds an entry without faults, in the place of one of the same product.
void add_to_table(const TableEntry& entry);

/// The entry, still without times, under which a plain product is looked up; false where no entry would be found: it is
/// another product than that of contiguous operands with these sizes.
bool entry_of(const Problem& product, const DeviceFacts& facts, TableEntry* entry);

/// Looks a problem with these alignments up; with `nearby`, also among shapes like it. `scratch` has
/// variant_count() + 1 slots and backs the answer.
Knowledge table_lookup(const Problem& problem, const DeviceFacts& facts, const Alignments& alignments, double* scratch,
                       bool nearby);

/// Entries held for a device.
int table_size(const DeviceFacts& facts);

}  // namespace hgemm
