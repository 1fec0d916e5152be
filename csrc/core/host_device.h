// Functions that both sides run, so that they can be tested without a GPU.
#pragma once

#ifdef __CUDACC__
#define HGEMM_HOST_DEVICE __host__ __device__
#else
#define HGEMM_HOST_DEVICE
#endif
