// What torch (cuBLAS) would take: the candidate that every kernel of ours has to beat.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Whether A, B and D all start every row on 16 bytes. Where they do not, cuBLAS leaves its fast kernels.
bool is_aligned(const Problem& problem);

/// Least alignment of A, B and D in bytes, 1 to 16.
int least_alignment(const Problem& problem);

/// Predicted microseconds of the product alone.
double torch_product_us(const Problem& problem, const DeviceFacts& facts);

/// Predicted microseconds of what torch runs beside the product: the activation, and the copy of C into the result. A
/// bias vector is free (cuBLASLt adds it).
double torch_epilogue_us(const Problem& problem, const DeviceFacts& facts);

}  // namespace hgemm
