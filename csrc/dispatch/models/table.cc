#include "dispatch/models/table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "core/chip.h"
#include "dispatch/canonical.h"
#include "dispatch/choose.h"
#include "dispatch/models/torch_model.h"
#include "dispatch/registry.h"

namespace hgemm {
namespace {

// A neighbour is within this factor in each of batch, m, n and k. For shapes farther away, wave quantisation differs
// too much for the ratio of measured to predicted time to carry over.
const float kReach = std::log2(1.5f);
// With at most this many rows or columns a kernel streams the other operand past them, and their number hardly matters
// (llm.json: 14.3 us for 1x6144x4096, 14.5 us for 16 rows). Distances in that number are multiplied by the share.
constexpr int64_t kSkinny = 16;
constexpr float kSkinnyShare = 0.25f;
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

/// The properties of a problem that must be equal before the times of one apply to another, in one word. TMA loads rows
/// that start on 128 bytes about twice as fast as others. So the times of contiguous operands do not apply to slices of
/// wider matrices whose rows start elsewhere. Rows that TMA cannot read at all do not count: kernels copy them, and the
/// rows of the copies start on 128 bytes.
uint64_t class_of(const Problem& p, DType dtype, const Alignments& alignments) {
  const auto whole = [](int64_t rows, int64_t ld, int alignment) {
    return rows <= 1 || ld % 64 == 0 || alignment < 16;
  };
  const bool whole_lines = whole(p.a_major() == Major::kK ? p.m : p.k, p.lda(), alignments.a) &&
                           whole(p.b_major() == Major::kK ? p.n : p.k, p.ldb(), alignments.b);
  return static_cast<uint64_t>(whole_lines) << 20 | static_cast<uint64_t>(dtype) << 16 |
         static_cast<uint64_t>(p.a_major()) << 12 | static_cast<uint64_t>(p.b_major()) << 8 |
         static_cast<uint64_t>(alignments.least());
}

/// A point in the space of sizes, where distances between shapes are measured.
struct Place {
  int64_t dims[4];  // batch, m, n, k
  float log2[4];
};

struct Point : Place {
  std::vector<double> measured;  // by slot
  std::vector<float> log_ratio;  // log2(measured / predicted) by slot, NaN where unknown
};

struct Group {
  uint64_t problem_class;
  std::vector<Point> points;
};

struct Gpu {
  int cc, sm_count;
  int64_t l2_bytes;
  std::vector<Group> groups;
};

using Snapshot = std::vector<Gpu>;

/// The snapshot that lookups read, by std::atomic_load. It is never destroyed: threads may outlive static objects.
std::shared_ptr<const Snapshot>& current() {
  static auto& snapshot = *new std::shared_ptr<const Snapshot>;
  return snapshot;
}

bool same_gpu(const Gpu& gpu, const DeviceFacts& facts) {
  return gpu.cc == facts.cc && gpu.sm_count == facts.sm_count && gpu.l2_bytes == facts.l2_bytes;
}

template <class Container, class Match, class Make>
typename Container::value_type& find_or_add(Container& items, const Match& match, const Make& make) {
  const auto found = std::find_if(items.begin(), items.end(), match);
  if (found != items.end()) return *found;
  items.push_back(make());
  return items.back();
}

/// The facts of the device that an entry was measured on. Entries do not have its shared memory, which is the chip's.
DeviceFacts facts_of(const TableEntry& e) {
  DeviceFacts facts = chip_of(e.cc).facts;
  facts.cc = e.cc;
  facts.sm_count = e.sm_count;
  facts.l2_bytes = e.l2_bytes;
  if (e.dram_gbs > 0) facts.dram_gbs = e.dram_gbs;
  return facts;
}

/// A contiguous problem with an entry's sizes. A single row or column has the stride that canonicalize() gives it.
/// Where the strides alone would be better aligned than the entry says, the addresses, which nothing dereferences, are
/// less aligned.
Problem problem_of(const TableEntry& e) {
  const auto matrix = [&](int64_t rows, int64_t cols, bool row_major, uintptr_t address) {
    Matrix x;
    x.data = reinterpret_cast<void*>(address);
    const auto step = [](int64_t outer, int64_t inner) { return outer > 1 ? inner : lone_stride(inner); };
    x.row_stride = row_major ? step(rows, cols) : 1;
    x.col_stride = row_major ? 1 : step(cols, rows);
    x.batch_stride[1] = rows * cols;
    return x;
  };
  Problem p;
  p.m = e.m;
  p.n = e.n;
  p.k = e.k;
  p.batch[1] = e.batch;
  p.dtype = p.out_dtype = p.c_dtype = e.dtype;
  for (uintptr_t address : {uintptr_t{16}, static_cast<uintptr_t>(e.align)}) {
    p.a = matrix(e.m, e.k, e.a_major == Major::kK, address);
    p.b = matrix(e.k, e.n, e.b_major == Major::kMN, address);
    p.d = matrix(e.m, e.n, true, address);
    if (alignments_of(p).least() <= e.align) break;
  }
  return p;
}

Point point_of(const TableEntry& e) {
  const size_t slots = static_cast<size_t>(variant_count()) + 1;
  Point point{{{e.batch, e.m, e.n, e.k}, {}}, std::vector<double>(slots, kNothing), std::vector<float>(slots, NAN)};
  for (int i = 0; i < 4; ++i) point.log2[i] = std::log2(static_cast<float>(point.dims[i]));
  const Problem problem = problem_of(e);
  const Alignments alignments = alignments_of(problem);
  const DeviceFacts facts = facts_of(e);
  for (const Timing& t : e.timings) {
    const size_t slot = t.variant == kTorch ? slots - 1 : static_cast<size_t>(t.variant);
    const double predicted = t.variant == kTorch ? torch_product_us(problem, facts, alignments)
                                                 : variant(t.variant).predict_us(problem, facts);
    point.measured[slot] = t.us;
    point.log_ratio[slot] = static_cast<float>(std::log2(t.us / predicted));
  }
  return point;
}

Group& group_for(Snapshot& snapshot, const TableEntry& e) {
  const DeviceFacts facts = facts_of(e);
  Gpu& gpu = find_or_add(
      snapshot, [&](const Gpu& g) { return same_gpu(g, facts); },
      [&] { return Gpu{e.cc, e.sm_count, e.l2_bytes, {}}; });
  const Problem problem = problem_of(e);
  const uint64_t problem_class = class_of(problem, e.dtype, alignments_of(problem));
  return find_or_add(
      gpu.groups, [&](const Group& g) { return g.problem_class == problem_class; },
      [&] { return Group{problem_class, {}}; });
}

/// A thread that replaces the snapshot holds this mutex.
std::mutex& changing() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

void publish(std::shared_ptr<const Snapshot> snapshot) {
  std::atomic_store(&current(), std::move(snapshot));
  invalidate_decisions();
}

/// The entries of a device; null where there are none. The pointer keeps the snapshot that they belong to alive.
std::shared_ptr<const Gpu> find_gpu(const DeviceFacts& facts) {
  const std::shared_ptr<const Snapshot> snapshot = std::atomic_load(&current());
  if (!snapshot) return nullptr;
  for (const Gpu& gpu : *snapshot) {
    if (same_gpu(gpu, facts)) return {snapshot, &gpu};
  }
  return nullptr;
}

/// Fills `scratch` with the ratios of measured to predicted time, averaged over the nearest points with more weight on
/// the nearer ones. Returns how many points there are; 0 for none, and `scratch` is then not filled.
int correct_by_neighbours(const Group& group, const Place& place, double* scratch) {
  const size_t slots = static_cast<size_t>(variant_count()) + 1;
  constexpr size_t kMaxNeighbours = 8;
  struct Neighbour {
    float distance;
    const Point* point;
  } nearest[kMaxNeighbours];
  size_t found = 0;
  for (const Point& point : group.points) {
    float distance = 0, farthest = 0;
    for (int i = 0; i < 4; ++i) {
      const bool is_skinny = (i == 1 || i == 2) && std::max(place.dims[i], point.dims[i]) <= kSkinny;
      const float d = std::fabs(place.log2[i] - point.log2[i]) * (is_skinny ? kSkinnyShare : 1.0f);
      distance += d;
      farthest = std::max(farthest, d);
    }
    if (farthest > kReach) continue;
    // Insertion into a short sorted list. When the list is full, its farthest point drops out.
    if (found == kMaxNeighbours && nearest[found - 1].distance <= distance) continue;
    size_t at = found < kMaxNeighbours ? found++ : kMaxNeighbours - 1;
    while (at > 0 && nearest[at - 1].distance > distance) {
      nearest[at] = nearest[at - 1];
      --at;
    }
    nearest[at] = {distance, &point};
  }
  if (found == 0) return 0;
  const auto correct = [&](size_t slot) {
    float weighted = 0, weights = 0;
    for (size_t i = 0; i < found; ++i) {
      const float ratio = nearest[i].point->log_ratio[slot];
      if (std::isnan(ratio)) continue;
      const float near = 0.05f + nearest[i].distance;
      const float weight = 1.0f / (near * near);
      weighted += weight * ratio;
      weights += weight;
    }
    scratch[slot] = weights > 0 ? std::exp2(weighted / weights) : kNothing;
  };
  for (int id : automatic_variants()) correct(static_cast<size_t>(id));  // other variants are no contenders
  correct(slots - 1);
  return static_cast<int>(found);
}

}  // namespace

const char* fault_of(const TableEntry& e) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto size = [](int64_t extent) { return extent >= 1 && extent <= kMost; };
  if (e.cc < 10 || e.cc > kMost / 10 || e.sm_count < 1 || !size(e.l2_bytes) || e.dram_gbs < 0 || e.dram_gbs > kMost) {
    return "is of an impossible device";
  }
  constexpr double kMostElements = 1ll << 45;  // of one operand: more than any memory, and less than would overflow
  const double m = static_cast<double>(e.m), n = static_cast<double>(e.n), k = static_cast<double>(e.k);
  if (!size(e.batch) || !size(e.m) || !size(e.n) || !size(e.k) ||
      std::max({m * k, k * n, m * n}) * static_cast<double>(e.batch) > kMostElements) {
    return "has an impossible size";
  }
  if (e.align != 2 && e.align != 4 && e.align != 8 && e.align != 16) return "has an impossible alignment";
  for (const Timing& t : e.timings) {
    if (t.variant != kTorch && (t.variant < 0 || t.variant >= variant_count()))
      return "has a time of an unknown kernel";
    if (!(t.us >= 1e-3 && t.us <= 1e9)) return "has a time outside of 0.001 to 1e9 us";
  }
  return nullptr;
}

void set_table(const std::vector<TableEntry>& entries) {
  auto snapshot = std::make_shared<Snapshot>();
  for (const TableEntry& e : entries) group_for(*snapshot, e).points.push_back(point_of(e));
  const std::lock_guard<std::mutex> lock(changing());
  publish(std::move(snapshot));
}

void add_to_table(const TableEntry& e) {
  const std::lock_guard<std::mutex> lock(changing());
  const std::shared_ptr<const Snapshot> before = std::atomic_load(&current());
  auto snapshot = before ? std::make_shared<Snapshot>(*before) : std::make_shared<Snapshot>();
  Point point = point_of(e);
  std::vector<Point>& points = group_for(*snapshot, e).points;
  const auto same = [&](const Point& other) { return std::equal(other.dims, other.dims + 4, point.dims); };
  points.erase(std::remove_if(points.begin(), points.end(), same), points.end());
  points.push_back(std::move(point));
  publish(std::move(snapshot));
}

bool entry_of(const Problem& p, const DeviceFacts& facts, TableEntry* entry) {
  const Alignments alignments = alignments_of(p);
  *entry = {.cc = facts.cc,
            .sm_count = facts.sm_count,
            .l2_bytes = facts.l2_bytes,
            .dram_gbs = facts.dram_gbs,
            .dtype = p.dtype,
            .a_major = p.a_major(),
            .b_major = p.b_major(),
            .align = alignments.least(),
            .batch = p.batches(),
            .m = p.m,
            .n = p.n,
            .k = p.k,
            .timings = {}};
  if (p.out_dtype != p.dtype || p.dtype > DType::kF32 || fault_of(*entry) != nullptr) return false;
  const Problem found = problem_of(*entry);
  return class_of(found, p.dtype, alignments_of(found)) == class_of(p, p.dtype, alignments);
}

Knowledge table_lookup(const Problem& p, const DeviceFacts& facts, const Alignments& alignments, double* scratch,
                       bool nearby) {
  const auto gpu = find_gpu(facts);
  // Entries are only of matmuls whose result has the operands' dtype.
  if (!gpu || p.out_dtype != p.dtype) return {};
  Place place{{p.batches(), p.m, p.n, p.k}, {}};
  // float16 and bfloat16 run through the same instructions at the same rate, in cuBLAS too: where there are no times of
  // bfloat16, those of float16 apply.
  const DType dtypes[] = {p.dtype, DType::kF16};
  const int count = p.dtype == DType::kBF16 ? 2 : 1;
  const Group* groups[2] = {};
  for (int i = 0; i < count; ++i) {
    const uint64_t problem_class = class_of(p, dtypes[i], alignments);
    for (const Group& group : gpu->groups) {
      if (group.problem_class == problem_class) groups[i] = &group;
    }
    if (!groups[i]) continue;
    for (const Point& point : groups[i]->points) {
      if (!std::equal(place.dims, place.dims + 4, point.dims)) continue;
      std::copy(point.measured.begin(), point.measured.end(), scratch);
      return {Knowledge::Kind::kExact, 1, dtypes[i], scratch};
    }
  }
  if (!nearby) return {};
  for (int i = 0; i < 4; ++i) place.log2[i] = std::log2(static_cast<float>(place.dims[i]));
  for (int i = 0; i < count; ++i) {
    const int neighbours = groups[i] ? correct_by_neighbours(*groups[i], place, scratch) : 0;
    if (neighbours > 0) return {Knowledge::Kind::kNearby, neighbours, dtypes[i], scratch};
  }
  return {};
}

int table_size(const DeviceFacts& facts) {
  const auto gpu = find_gpu(facts);
  size_t size = 0;
  for (const Group& group : gpu ? gpu->groups : std::vector<Group>{}) size += group.points.size();
  return static_cast<int>(size);
}

}  // namespace hgemm
