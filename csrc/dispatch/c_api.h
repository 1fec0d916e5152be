/* The dispatcher as a plain C API, for ctypes (hgemm_ops/_native.py mirrors every struct; hgemm_abi() lets it check).
   Only hgemm_device_facts, hgemm_device_fault and hgemm_read need a GPU. Enums are those of core/problem.h and
   dispatch/select.h:
     dtype   0 float16, 1 bfloat16, 2 float32, 3 float64, 4 complex64, 5 complex128
     major   0 k is contiguous, 1 m or n is
     act     0 none, 1 relu, 2 gelu, 3 gelu_tanh, 4 silu
     variant an index below hgemm_variant_count(), -1 auto, -2 torch, -3 unknown or refused
     source  0 forced, 1 table, 2 model, 3 fallback
     numerics of a call: 0 fast, 1 batch-invariant, 2 the same and an error where that cannot be; -1 as by default
     float32 of a call: 0 strict, 1 split, 2 torch's alone, which may use TF32; -1 as by default
   Functions returning int give 0 for success; otherwise hgemm_last_error() holds this thread's message. */
#pragma once

#include <stdint.h>

#define HGEMM_API extern "C" __attribute__((visibility("default")))

/* A strided view. `align` is the largest power of two (at most 16) that divides the address. */
typedef struct HgemmTensor {
  int32_t ndim;
  int32_t dtype;
  int64_t sizes[8];
  int64_t strides[8]; /* in elements */
  int32_t align;      /* bytes */
} HgemmTensor;

typedef struct HgemmFacts {
  int32_t cc; /* 10 * major + minor */
  int32_t sm_count;
  int32_t smem_optin;
  int32_t smem_per_sm;
  int64_t l2_bytes;
  int64_t dram_gbs; /* 0: not known */
} HgemmFacts;

typedef struct HgemmVariantInfo {
  const char* name;
  const char* family;
  int32_t min_cc;
  int32_t max_cc;
  uint32_t dtypes;    /* bit 1 << dtype */
  int32_t arithmetic; /* 0 accumulates in float32, 1 in float16; 2 splits float32 */
  int32_t tile[5];    /* BM, BN, BK, stages, threads */
  int32_t smem_bytes;
  int32_t splits_k;
  int32_t added; /* by hgemm_add_variants */
  int32_t sums;  /* hgemm::Sums */
} HgemmVariantInfo;

/* One call of an op, with alpha = beta = 1. */
typedef struct HgemmQuery {
  HgemmTensor a;
  HgemmTensor b; /* linear: the weight, (n, k) */
  HgemmTensor c; /* what addmm and baddbmm add; ndim < 0: none */
  int32_t op;    /* 0 matmul, 1 mm, 2 bmm, 3 addmm, 4 baddbmm, 5 linear */
  int32_t has_bias;
  int32_t act;
  int32_t out_dtype; /* -1: that of a */
  int32_t variant;   /* -1: the default variant, then the dispatcher */
  int32_t numerics;
  int32_t float32;
  HgemmFacts facts;
} HgemmQuery;

typedef struct HgemmCandidate {
  int32_t variant;
  int32_t eligible;
  double predicted_us; /* NaN: not eligible */
  double measured_us;  /* NaN: this shape is not in the table */
  char reason[512];    /* why not eligible */
} HgemmCandidate;

typedef struct HgemmDecision {
  int32_t variant; /* -3: the forced variant cannot serve it, `reason` is the error text */
  int32_t source;
  double us; /* of the choice */
  double torch_us;
  /* The problem as kernels see it. */
  int64_t batch;
  int64_t m;
  int64_t n;
  int64_t k;
  int32_t a_major;
  int32_t b_major;
  int32_t align; /* the least alignment of a, b and the result, in bytes */
  int32_t reserved;
  char reason[4096];
} HgemmDecision;

/* One measured time; entries index a flat array of them. */
typedef struct HgemmTiming {
  int32_t variant;
  int32_t reserved;
  double us;
} HgemmTiming;

typedef struct HgemmTableEntry {
  int32_t cc;
  int32_t sm_count;
  int64_t l2_bytes;
  int32_t dtype;
  int32_t a_major;
  int32_t b_major;
  int32_t align;
  int64_t batch;
  int64_t m;
  int64_t n;
  int64_t k;
  int32_t first_timing;
  int32_t timing_count;
  int64_t dram_gbs; /* 0: that of the chip */
} HgemmTableEntry;

typedef struct HgemmCallCount {
  int32_t dtype;
  int32_t out_dtype;
  int32_t a_major;
  int32_t b_major;
  int32_t act;
  int32_t has_bias;
  int32_t has_c;
  int32_t align;
  int64_t batch;
  int64_t m;
  int64_t n;
  int64_t k;
  int32_t ordinal;
  int32_t variant;
  int32_t source;
  int32_t left; /* HgemmLeft of gemm_api.h: why torch's without a decision */
  int32_t site;
  int32_t numerics;
  int32_t float32;
  int32_t reserved;
  int64_t calls;
} HgemmCallCount;

/* What a context asks for. */
typedef struct HgemmSettings {
  int32_t variant; /* its id, -1 auto, -2 torch, -4: no context holds, and the rest says nothing */
  int8_t numerics; /* -1: nothing is said of it */
  int8_t float32;  /* -1: the same */
  int8_t tunes;    /* whether shapes that the table lacks are timed at their first product; -1: as by default */
  int8_t reserved;
} HgemmSettings;

/* A plain product that is to be timed (dispatch/tuning.h). Strides count elements. */
typedef struct HgemmTuning {
  HgemmTableEntry entry; /* under which it will be looked up, without times */
  int32_t ordinal;       /* of the CUDA device */
  int32_t reserved;
  int64_t batch[2]; /* outer, inner */
  const void* a;    /* the operands' addresses; null: it would be a copy that is still to be made */
  const void* b;
  const void* d;        /* where the result is to go, of which only the alignment counts; null: to new memory */
  int64_t a_strides[4]; /* batch, batch, row, column */
  int64_t b_strides[4];
  uint64_t state[64];
} HgemmTuning;

/* sizeof of each struct above, in order of declaration; returns how many there are and fills at most `capacity`. */
HGEMM_API int hgemm_abi(int32_t* sizes, int capacity);
HGEMM_API const char* hgemm_last_error(void);
HGEMM_API int hgemm_has_device_code(void); /* 0: built with HGEMM_CUDA_ARCHS=none, no kernel can be launched */

HGEMM_API int hgemm_variant_count(void);
HGEMM_API int hgemm_variant_info(int id, HgemmVariantInfo* info);
HGEMM_API int hgemm_find_variant(const char* name); /* "auto" -1, "torch" -2, unknown -3 */

/* Appends kernels of another library, an array of hgemm::Variant, behind those that there are: before the first
   decision. They only run when they are asked for. `variant_bytes`: sizeof(hgemm::Variant) there; `family`: what their
   family is called. Neither is copied. */
HGEMM_API int hgemm_add_variants(const void* variants, int count, int variant_bytes, const char* family);

/* The compute capabilities of the chips that decisions can be made for without one in the machine (core/chip.cc).
   Returns how many there are and fills at most `capacity`. */
HGEMM_API int hgemm_chips(int32_t* ccs, int capacity);
HGEMM_API int hgemm_preset_facts(int cc, HgemmFacts* facts); /* of one of them */
HGEMM_API int hgemm_device_facts(int ordinal, HgemmFacts* facts);

/* Why this library cannot run on a device, and what to do about it; "" where it can. */
HGEMM_API const char* hgemm_device_fault(int ordinal);
/* The same of a build for `archs`, as HGEMM_CUDA_ARCHS has them (null: this build's), for a compute capability and what
   CUDA answered (a cudaError_t). Until this thread's next call of it. */
HGEMM_API const char* hgemm_fault_of(const char* archs, int cc, int status);
/* `warn` is called once for each device that is used and cannot be, with one line of text; null turns it off. */
HGEMM_API void hgemm_set_warning(void (*warn)(const char* line));

/* For benchmarks: enqueues a kernel on `stream` (a cudaStream_t) of the current device that reads `bytes` of its
   memory, address and size multiples of 16, and keeps nothing of them. `sink`: 4 bytes that may be written. */
HGEMM_API int hgemm_read(const void* data, int64_t bytes, void* sink, void* stream);

/* `candidates` has room for hgemm_variant_count() + 1; torch is the last. Null: only the decision is wanted. */
HGEMM_API int hgemm_explain(const HgemmQuery* query, HgemmDecision* decision, HgemmCandidate* candidates);

/* What the learned model of time is asked about the product of a query: of `variant`, or of torch (-2), beside which
   the best kernel takes `best_us`. Fills `features`, returns how many there are, or -1. benchmarks/fit_model.py. */
HGEMM_API int hgemm_features(const HgemmQuery* query, int variant, double best_us, float* features, int capacity);

/* Mean nanoseconds of one decision over `iterations`: with the cache in front, or (cached = 0) computed every time.
   Negative on error. */
HGEMM_API double hgemm_select_ns(const HgemmQuery* query, int cached, int iterations);

/* Replaces the tuned table (nothing given: clears it). Returns how many entries were skipped because no product can
   have been measured so, hgemm_last_error() saying why of the first; negative on failure. */
HGEMM_API int hgemm_table_set(const HgemmTableEntry* entries, int entry_count, const HgemmTiming* timings,
                              int timing_count);
/* Adds one entry, in the place of one of the same product. */
HGEMM_API int hgemm_table_add(const HgemmTableEntry* entry, const HgemmTiming* timings, int timing_count);
HGEMM_API int hgemm_table_size(const HgemmFacts* facts);

HGEMM_API int hgemm_set_default_variant(int id);
HGEMM_API int hgemm_default_variant(void);
HGEMM_API int hgemm_set_default_numerics(int numerics);
HGEMM_API int hgemm_set_default_float32(int float32);

/* `log` is called once per new decision with one line of text, on the thread that made it; null turns it off. */
HGEMM_API void hgemm_set_log(void (*log)(const char* line));

/* `action` runs once, within the first decision that an op asks for (Python loads the tables there, so that importing
   does not pay for it). Other threads do not wait: they decide without, and forget that decision. Null: no action. */
HGEMM_API void hgemm_set_first_use(void (*action)(void));

/* A context and what is counted while it holds, for use_custom_gemm(). It may be entered again, also while it holds and
   by several threads; leaving it ends this thread's last entry of it that has not ended, else another thread's. On a
   thread that has entered contexts, these hold; on the others all that hold anywhere. Of several the innermost one's
   variant and tuning hold, and of numerics and float32 the innermost that is said. */
HGEMM_API struct HgemmContext* hgemm_context_new(HgemmSettings settings);
HGEMM_API void hgemm_context_delete(struct HgemmContext* context);
HGEMM_API void hgemm_context_enter(struct HgemmContext* context);
HGEMM_API int hgemm_context_exit(struct HgemmContext* context); /* 0: there was no such entry */
/* Returns how many rows there are and copies at most `capacity` of them. */
HGEMM_API int hgemm_context_rows(const struct HgemmContext* context, HgemmCallCount* rows, int capacity);
/* This thread is outside of all contexts, until it enters or leaves one. */
HGEMM_API void hgemm_context_leave_all(void);
HGEMM_API int hgemm_standing_numerics(void); /* of this thread, now */
HGEMM_API int hgemm_standing_float32(void);
HGEMM_API void hgemm_tuning_default(int tunes); /* where no context says anything: 0 or 1 */
/* `tuner` times such a shape and adds it to the table, on the thread of the product, which waits. Not 0: it could not
   now, and is asked again at the next product. Null: nothing is timed. */
HGEMM_API void hgemm_set_tuner(int (*tuner)(const HgemmTuning* tuning));
/* torch, then the kernels that may be the fastest, with predicted times: the one that would be chosen, then by time.
   Fills at most `capacity`, returns how many it did, or -1. */
HGEMM_API int hgemm_tuning_candidates(const HgemmTuning* tuning, HgemmTiming* candidates, int capacity);
/* What a kernel needs, in bytes, and its launch on these operands. Null, or how it failed. */
HGEMM_API int64_t hgemm_tuning_workspace(const HgemmTuning* tuning, int variant);
HGEMM_API const char* hgemm_tuning_launch(const HgemmTuning* tuning, int variant, const void* a, const void* b, void* d,
                                          void* workspace, void* stream);

/* Whether products are counted by site; this thread's site from now on (0: none), and which it was. */
HGEMM_API void hgemm_sites_enable(int on);
HGEMM_API int hgemm_site_set(int site);

/* The text of a HgemmLeft. */
HGEMM_API const char* hgemm_left_reason(int why);

/* What csrc/aten is started with: csrc/dispatch/gemm_api.h. */
HGEMM_API const struct HgemmGemmApi* hgemm_gemm_api(void);
