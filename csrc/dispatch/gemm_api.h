/* The interface between csrc/aten and this library: a table of plain C functions. It has no C++ types, so that one
   _C.so works with the override compiled for any torch. Enums are those of core/problem.h and dispatch/canonical.h. */
#pragma once

#include <stdint.h>

/* A tensor, borrowed for the time of a call. Strides count elements. */
typedef struct HgemmOperand {
  const void* data;
  const int64_t* sizes;
  const int64_t* strides;
  int32_t ndim;  /* negative: the call has no such tensor */
  int32_t dtype; /* a DType */
} HgemmOperand;

/* One matmul: d = act(alpha * a @ b + beta * c), by the shape rules of torch's `op`. No tensor has more than three
   dimensions. */
typedef struct HgemmProduct {
  HgemmOperand a, b, c;
  HgemmOperand d; /* the caller's out=; absent: the result goes to new memory */
  double alpha, beta;
  int32_t op;          /* an Op */
  int32_t act;         /* an Activation */
  int32_t out_dtype;   /* a DType */
  int32_t ordinal;     /* of the CUDA device that all tensors are on */
  int32_t in_backward; /* not 0: autograd's backward pass makes this call */
  int32_t allows_tf32; /* not 0: torch's flags allow TF32 in a float32 matmul */
  int32_t left;        /* a HgemmLeft: why the caller leaves the matmul to torch; HGEMM_LEFT_NOT where it does not */
  int32_t conjugated;  /* bit 0, of a, and bit 1, of b: the elements are the conjugates of what memory holds */
  void* stream;        /* the cudaStream_t that launch() will be given */
} HgemmProduct;

/* The contiguous copy of an operand that a kernel needs. The caller views the operand with these sizes and strides, and
   copies the view. */
typedef struct HgemmCopy {
  int32_t needed; /* 0: the kernel reads the operand itself, and the other fields are not set */
  int32_t ndim;
  int64_t sizes[3];
  int64_t strides[3];
} HgemmCopy;

/* The kernel that was chosen for a matmul. The caller allocates what the first fields say; `state` is opaque. */
typedef struct HgemmPlan {
  int64_t sizes[3]; /* of the result, which is contiguous */
  int32_t ndim;
  int32_t reserved;
  HgemmCopy a, b;
  int64_t workspace;  /* bytes */
  uint64_t state[64]; /* the bytes of a hgemm::Job */
} HgemmPlan;

/* The device memory that a launch writes or reads beside the operands. A pointer is null where the plan needs no such
   memory. */
typedef struct HgemmMemory {
  void* d;
  void* a_copy;
  void* b_copy;
  void* workspace;
} HgemmMemory;

/* The fallback reason of a matmul that torch computes without a decision of the dispatcher, or against it. */
enum HgemmLeft {
  HGEMM_LEFT_NOT = 0,
  HGEMM_LEFT_OUT = 1,    /* out= would be resized or converted, is not contiguous, or overlaps an operand */
  HGEMM_LEFT_ALPHA = 2,  /* alpha is 0: torch then ignores a @ b, even where it is NaN */
  HGEMM_LEFT_TENSOR = 3, /* a tensor has names, a lazy negation, or no memory; c or d has a lazy conjugation */
  HGEMM_LEFT_GELU = 4,   /* the kernels do not compute gelu as torch's _addmm_activation does */
  HGEMM_LEFT_DEVICE = 5, /* this library cannot run on the device */
  HGEMM_LEFT_MEMORY = 6, /* the kernel's workspace, or a copy of an operand, could not be allocated */
  HGEMM_LEFT_SCALAR = 7, /* alpha or beta is complex */
  HGEMM_LEFT_KINDS = 8   /* no reason of torch's: there are too many kinds of matmuls to count this one by itself */
};

/* One grouped product by the rules of aten::_grouped_mm. */
typedef struct HgemmGrouped {
  HgemmOperand a, b;
  HgemmOperand offs;         /* its dtype has no meaning */
  int32_t offs_is_int32;     /* not 0: it is */
  int32_t offs_is_elsewhere; /* not 0: offs is not on the device of a and b */
  int32_t out_dtype;         /* a DType, or -1 as the dtypes of a and b: DType has no name for it */
  int32_t ordinal;           /* of the CUDA device of a and b */
  int32_t allows_tf32;       /* not 0: torch's flags allow TF32 in a float32 matmul */
  int32_t in_backward;       /* not 0: autograd's backward pass makes this call */
  int32_t left; /* a HgemmLeft: why the caller leaves the product to torch; HGEMM_LEFT_NOT where it does not */
  void* stream; /* the cudaStream_t that launch_grouped() will be given */
} HgemmGrouped;

/* The kernel that was chosen for a grouped product. The result has these sizes, the first only if it is not 0, and
   strides (rows * pitch, pitch, 1). */
typedef struct HgemmGroupedPlan {
  int64_t groups, rows, columns, pitch;
  int32_t is_bmm; /* HGEMM_TORCH only. Not 0: the product is a batched matmul, which the caller is to plan instead */
  int32_t copies_a, copies_b, is_transposed; /* not 0: as in hgemm::GroupedPlan */
  uint64_t state[64];                        /* the bytes of a hgemm::GroupedJob */
} HgemmGroupedPlan;

/* The outcome of HgemmGemmApi::plan. */
enum HgemmPlanned { HGEMM_REFUSED = -1, HGEMM_TORCH = 0, HGEMM_OURS = 1 };

typedef struct HgemmGemmApi {
  /* sizeof of this struct, HgemmProduct, HgemmPlan, HgemmGrouped and HgemmGroupedPlan. The override compares them with
     its own, and refuses to be installed where they differ. */
  int32_t sizes[5];
  int32_t reserved;
  /* Returns 1 if a context is active on this thread, else 0. */
  int (*active)(void);
  /* Decides who computes `product`, counts the call, and returns a HgemmPlanned:
     HGEMM_OURS     a kernel of this library; `plan` is filled in.
     HGEMM_TORCH    torch. Operands whose shapes do not fit come here too, so that torch raises its own error.
     HGEMM_REFUSED  neither may: a forced kernel cannot run it, no kernel has the numerics that are asked for, or
                    something failed. error() has the message. */
  int (*plan)(const HgemmProduct* product, HgemmPlan* plan);
  /* To be called where memory that `plan` asks for could not be allocated. Returns a HgemmPlanned:
     HGEMM_OURS     try again: `plan` now asks for less workspace.
     HGEMM_TORCH    torch computes the matmul.
     HGEMM_REFUSED  torch must not, and no kernel needs less: raise the allocator's error. */
  int (*plan_with_less)(HgemmPlan* plan);
  /* Enqueues the kernel of `plan` on `stream`, a cudaStream_t of the plan's device, which must be the current one.
     Returns 0, or a cudaError_t where the launch failed; error() then has the message. */
  int (*launch)(const HgemmPlan* plan, const HgemmMemory* memory, void* stream);
  /* plan() of a grouped product. Operands that torch refuses come to HGEMM_TORCH, so that torch raises its own error,
     but sizes that do not fit to HGEMM_REFUSED. */
  int (*plan_grouped)(const HgemmGrouped* grouped, HgemmGroupedPlan* plan);
  /* To be called where memory that `plan` asks for could not be allocated. Returns a HgemmPlanned:
     HGEMM_OURS     try again: `plan` now asks for no copies.
     HGEMM_TORCH    torch computes the product.
     HGEMM_REFUSED  torch must not: raise the allocator's error. */
  int (*plan_grouped_with_less)(HgemmGroupedPlan* plan);
  /* launch() of a grouped product, into `d`. `a_copy`, `b_copy`: the copies that the plan asks for, else null. */
  int (*launch_grouped)(const HgemmGroupedPlan* plan, void* d, void* a_copy, void* b_copy, void* stream);
  /* Returns this thread's last message. It stays valid until the thread's next call of a function above. */
  const char* (*error)(void);
} HgemmGemmApi;
