// The assignment of counters to launches. Counters cannot live in the workspace: its contents are arbitrary, and
// setting it to zero would take a launch of its own. Counters are therefore static memory of a kernel. They start at
// zero, and the block that counts to the end sets its counter back to zero. It remains to ensure that no two launches
// use a counter at the same time.
//
// A launch on a stream uses the slot of the stream. Streams are told apart by cudaStreamGetId, which never gives an id
// twice. The kernels on a stream follow one another. Where they overlap by programmatic dependent launch, the later
// kernel touches no counter before griddepcontrol.wait. By then the earlier kernel has ended and has left its counters
// at zero.
//
// A launch that is captured gets a slot of its own for as long as the graph or an executable of it lives, because
// replays may run on any stream, beside any other launch. Only one replay of a graph runs at a time: two would write
// the same D.
//
// If no slot is free, the launch has no counters. One block then goes through all slices of its tile and adds up its
// own results from the workspace. That is slower and gives the same bits.
#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tile/counters.h"

namespace hgemm::tile {
namespace {

/// All devices share one numbering of slots. Each device has its own counters, and may leave some of them unused.
struct Slots {
  std::mutex mutex;
  std::unordered_map<unsigned long long, int> of_stream;
  std::vector<int> returned;
  int used = 0;

  int take() {  // the caller holds the mutex
    if (!returned.empty()) {
      const int slot = returned.back();
      returned.pop_back();
      return slot;
    }
    return used < kSlots ? used++ : -1;
  }
};

/// The slots are never destroyed, because graphs may outlive static objects.
Slots& slots() {
  static Slots& all = *new Slots;
  return all;
}

/// Returns a slot. CUDA calls this function on a thread of its own when the last graph that holds the slot is gone and
/// no launch of it is left.
void CUDART_CB give_back(void* slot) {
  const std::lock_guard<std::mutex> lock(slots().mutex);
  slots().returned.push_back(static_cast<int>(reinterpret_cast<intptr_t>(slot)));
}

int slot_for_capture(cudaGraph_t graph) {
  int slot;
  {
    const std::lock_guard<std::mutex> lock(slots().mutex);
    slot = slots().take();
  }
  if (slot < 0) return slot;
  void* const value = reinterpret_cast<void*>(static_cast<intptr_t>(slot));
  cudaUserObject_t object;
  if (cudaUserObjectCreate(&object, value, give_back, 1, cudaUserObjectNoDestructorSync) != cudaSuccess) {
    give_back(value);
    return -1;
  }
  if (cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove) != cudaSuccess) {
    cudaUserObjectRelease(object, 1);
    return -1;
  }
  return slot;
}

}  // namespace

int slot_for(Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  const cudaError_t e = cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph);
#else
  const cudaError_t e = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph);
#endif
  unsigned long long id = 0;
  if (e != cudaSuccess || (status == cudaStreamCaptureStatusNone && cudaStreamGetId(stream, &id) != cudaSuccess)) {
    cudaGetLastError();  // clears the error: the launch that follows reports what is wrong
    return -1;
  }
  if (status != cudaStreamCaptureStatusNone) return slot_for_capture(graph);
  const std::lock_guard<std::mutex> lock(slots().mutex);
  if (const auto known = slots().of_stream.find(id); known != slots().of_stream.end()) return known->second;
  const int slot = slots().take();
  if (slot >= 0) slots().of_stream.emplace(id, slot);
  return slot;
}

}  // namespace hgemm::tile
