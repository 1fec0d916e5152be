// HGEMM_HOST_DEVICE marks functions that run on host and device, so that tests can call them without a GPU.
#pragma once

#ifdef __CUDACC__
#define HGEMM_HOST_DEVICE __host__ __device__
#else
#define HGEMM_HOST_DEVICE
#endif
