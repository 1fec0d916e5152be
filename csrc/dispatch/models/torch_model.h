// What torch (cuBLAS) would take: the candidate that every kernel of ours has to beat.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Predicted microseconds of the product alone. `alignments` are those of the problem.
double torch_product_us(const Problem& problem, const DeviceFacts& facts, const Alignments& alignments);

/// Predicted microseconds of what torch runs beside the product: the activation, and the copy of C into the result. A
/// bias vector is free (cuBLASLt adds it).
double torch_epilogue_us(const Problem& problem, const DeviceFacts& facts);

}  // namespace hgemm
