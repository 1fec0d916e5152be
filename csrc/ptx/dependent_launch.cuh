// Programmatic dependent launch: a kernel starts while its predecessor in the stream still runs. Without the launch
// attribute, and before sm_90, both instructions do nothing.
// PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol".
#pragma once

namespace hgemm::ptx {

/// griddepcontrol.wait: returns once the preceding kernels have completed and their writes are visible.
/// NOTE: before this wait a kernel may neither read what a preceding kernel may have written, nor write what a
/// preceding kernel may read. It may not use ld.global.nc for such data at all, because ptxas moves that load above the
/// wait.
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// griddepcontrol.launch_dependents: allows the next kernel to start, as far as this block is concerned.
__device__ __forceinline__ void grid_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

}  // namespace hgemm::ptx
