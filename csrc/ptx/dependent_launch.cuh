// Programmatic dependent launch: a kernel starts while the one before it in the stream still runs. Without the launch
// attribute, and before sm_90, both instructions do nothing.
// PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol".
#pragma once

namespace hgemm::ptx {

/// griddepcontrol.wait: the kernels before this one have completed and what they wrote is visible.
/// NOTE: nothing that a kernel before may have written can be read, and nothing that it may read can be written, before
/// this. ld.global.nc may not be used for such data at all: ptxas moves it above the wait.
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// griddepcontrol.launch_dependents: as far as this block is concerned, the next kernel may start.
__device__ __forceinline__ void grid_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

}  // namespace hgemm::ptx
