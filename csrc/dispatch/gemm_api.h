/* What csrc/aten asks of this library: a table of plain C functions, so that one _C.so serves the override of every
   torch. Enums are those of core/problem.h and dispatch/canonical.h. */
#pragma once

#include <stdint.h>

/* A tensor, borrowed. Strides count elements. */
typedef struct HgemmOperand {
  const void* data;
  const int64_t* sizes;
  const int64_t* strides;
  int32_t ndim; /* < 0: there is none */
  int32_t dtype;
} HgemmOperand;

/* d = act(alpha * a @ b + beta * c) */
typedef struct HgemmProduct {
  HgemmOperand a, b, c;
  HgemmOperand d; /* where the result is to go; none: to new memory */
  double alpha, beta;
  int32_t op;
  int32_t act;
  int32_t out_dtype;
  int32_t ordinal;     /* of the CUDA device that holds them all */
  int32_t in_backward; /* of autograd */
  int32_t allows_tf32; /* torch may compute a float32 product in TF32 */
  int32_t left;        /* HgemmLeft: why the caller leaves the product to torch, where it does */
  int32_t reserved;
} HgemmProduct;

/* A contiguous copy that an operand needs: of the operand seen with these sizes and strides. */
typedef struct HgemmCopy {
  int32_t needed;
  int32_t ndim;
  int64_t sizes[3];
  int64_t strides[3];
} HgemmCopy;

/* A kernel that was chosen for a product. The caller allocates by all but `state`. */
typedef struct HgemmPlan {
  int64_t sizes[3]; /* of the result */
  int32_t ndim;
  int32_t reserved;
  HgemmCopy a, b;
  int64_t workspace;  /* bytes */
  uint64_t state[64]; /* hgemm::Job */
} HgemmPlan;

/* Memory of a launch. What the plan does not ask for is null. */
typedef struct HgemmMemory {
  void* d;
  void* a_copy;
  void* b_copy;
  void* workspace;
} HgemmMemory;

/* Why a product was torch's without asking the dispatcher. */
enum HgemmLeft {
  HGEMM_LEFT_NOT = 0,
  HGEMM_LEFT_OUT = 1,    /* out= is resized, converted, not contiguous, or overlaps an operand */
  HGEMM_LEFT_ALPHA = 2,  /* alpha is 0: the product is not looked at, NaN included */
  HGEMM_LEFT_TENSOR = 3, /* a tensor with names, a lazy conjugation or negation, or no memory */
  HGEMM_LEFT_GELU = 4,   /* torch's gelu of _addmm_activation is not one of the kernels' */
  HGEMM_LEFT_DEVICE = 5  /* this library cannot run on the device */
};

enum HgemmPlanned { HGEMM_REFUSED = -1, HGEMM_TORCH = 0, HGEMM_OURS = 1 };

typedef struct HgemmGemmApi {
  int32_t sizes[3]; /* of this struct, HgemmProduct and HgemmPlan: both sides are of one version */
  int32_t reserved;
  /* Whether a context holds for this thread. */
  int (*active)(void);
  /* Decides, counts the product, and where it is a kernel's fills in `plan`. HGEMM_REFUSED: a forced kernel cannot
     run it, or none with the numerics that are asked for; error() says why. Products that are errors are torch's: it
     raises them. */
  int (*plan)(const HgemmProduct* product, HgemmPlan* plan);
  /* Enqueues the kernel on `stream`. Not 0: it failed, error() says how. */
  int (*launch)(const HgemmPlan* plan, const HgemmMemory* memory, void* stream);
  /* This thread's message. */
  const char* (*error)(void);
} HgemmGemmApi;
