// The cost model of torch (cuBLAS), the candidate that every kernel of ours has to beat.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Predicted microseconds of the matmul without its epilogue. `alignments` are those of the problem. For a tiny batch
/// (core/cost.h) the prediction rests on measurements of such batches. Only a model that was fitted to such batches may
/// correct it.
double torch_product_us(const Problem& problem, const DeviceFacts& facts, const Alignments& alignments);

/// Predicted microseconds of the extra passes that torch runs: one for the activation, and one that copies C into the
/// result. A bias vector is free, because cuBLASLt adds it.
double torch_epilogue_us(const Problem& problem, const DeviceFacts& facts);

}  // namespace hgemm
