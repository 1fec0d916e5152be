/* The dispatcher as a plain C API, for ctypes. hgemm_ops/_native.py mirrors every struct, and checks their sizes with
   hgemm_abi(). Only hgemm_device_facts, hgemm_device_fault, hgemm_read and hgemm_tuning_launch need a GPU.

   Values of the enums, which core/problem.h and dispatch/decision.h define:
     dtype     0 float16, 1 bfloat16, 2 float32, 3 float64, 4 complex64, 5 complex128, 6 int8, 7 int32
     major     0 k is the contiguous index of an operand, 1 m (of a) or n (of b) is
     act       0 none, 1 relu, 2 gelu, 3 gelu_tanh, 4 silu
     variant   an index below hgemm_variant_count(), -1 auto, -2 torch, -3 unknown or refused
     source    0 forced, 1 table, 2 model, 3 fallback
     numerics  0 fast, 1 batch-invariant, 2 batch-invariant or an error; -1 the default
     float32   0 strict, 1 split, 2 torch alone, which may use TF32; -1 the default

   Unless its comment says otherwise, a function that returns int returns 0 on success. On failure it returns another
   value, and hgemm_last_error() has the message. */
#pragma once

#include <stdint.h>

#define HGEMM_API extern "C" __attribute__((visibility("default")))

/* A strided tensor, described without its memory. `align` is the largest power of two, at most 16, that divides its
   address. */
typedef struct HgemmTensor {
  int32_t ndim;
  int32_t dtype;
  int64_t sizes[8];
  int64_t strides[8]; /* in elements */
  int32_t align;      /* bytes */
} HgemmTensor;

/* What the dispatcher knows of a device. */
typedef struct HgemmFacts {
  int32_t cc; /* compute capability: 10 * major + minor */
  int32_t sm_count;
  int32_t smem_optin;  /* bytes of shared memory that one block may use */
  int32_t smem_per_sm; /* bytes */
  int64_t l2_bytes;
  int64_t dram_gbs;     /* peak memory bandwidth in GB/s; 0: not known */
  int32_t slow_float64; /* 1 if float64 is much slower than on other GPUs of this compute capability */
} HgemmFacts;

/* One kernel. The strings live as long as the library. */
typedef struct HgemmVariantInfo {
  const char* name;
  const char* family;
  int32_t min_cc; /* the kernel runs on min_cc <= cc <= max_cc */
  int32_t max_cc;
  uint32_t dtypes;    /* the operand dtypes that it takes: bit 1 << dtype */
  int32_t arithmetic; /* 0: accumulates in float32; 1: in float16; 2, 3: splits float32 into three
                        bfloat16 planes, into two float16 planes; 4: accumulates in int32; 5: in float64 */
  int32_t tile[5];    /* BM, BN, BK, stages, threads */
  int32_t smem_bytes; /* of one block */
  int32_t splits_k;   /* not 0: it splits K across blocks */
  int32_t added;      /* not 0: hgemm_add_variants added it */
  int32_t sums;       /* a hgemm::Sums: its order of summation */
} HgemmVariantInfo;

/* One call of an op, with alpha = beta = 1, on a device with the given facts. */
typedef struct HgemmQuery {
  HgemmTensor a;
  HgemmTensor b;    /* linear: the weight, (n, k) */
  HgemmTensor c;    /* the input of addmm and baddbmm; ndim < 0: none */
  int32_t op;       /* 0 matmul, 1 mm, 2 bmm, 3 addmm, 4 baddbmm, 5 linear */
  int32_t has_bias; /* not 0: a bias vector (n,) is added */
  int32_t act;
  int32_t out_dtype; /* -1: the dtype of a; of int8 operands, int32 */
  int32_t variant;   /* -1: the default variant; where that is -1 as well, the dispatcher chooses */
  int32_t numerics;
  int32_t float32;
  int32_t same_address; /* not 0: a and b start at one address, as x and x.T do */
  HgemmFacts facts;
} HgemmQuery;

/* A kernel, or torch, as a candidate for a call. */
typedef struct HgemmCandidate {
  int32_t variant;
  int32_t eligible;    /* not 0: it can run the call */
  int32_t forced_only; /* not 0: it does so only where it is named */
  int32_t reserved;
  double predicted_us; /* microseconds by the cost model; NaN: not eligible */
  double measured_us;  /* microseconds in the tuning table; NaN: the table does not have this shape */
  char reason[512];    /* why it is not eligible, or why it is forced_only */
} HgemmCandidate;

/* The time of one variant. */
typedef struct HgemmTiming {
  int32_t variant; /* or -2: torch */
  int32_t reserved;
  double us;
} HgemmTiming;

/* One shape of a tuning table: a matmul without epilogue, of contiguous operands, on one kind of GPU. Its times are
   timing_count elements, from first_timing on, of the array of timings that is passed along with the entries. */
typedef struct HgemmTableEntry {
  int32_t cc;
  int32_t sm_count;
  int64_t l2_bytes;
  int32_t dtype;
  int32_t a_major;
  int32_t b_major;
  int32_t align; /* the least alignment of a, b and the result, in bytes: 2, 4, 8 or 16 */
  int64_t batch;
  int64_t m;
  int64_t n;
  int64_t k;
  int32_t first_timing;
  int32_t timing_count;
  int64_t dram_gbs; /* 0: the bandwidth that core/chip.cc has for the chip */
} HgemmTableEntry;

/* A kind of calls: two calls are of one kind if all fields up to `float32` are equal. The fields after it are those of
   the decision on the kind's first call (dispatch/decision.h). */
typedef struct HgemmCallKind {
  int64_t batch;
  int64_t m;
  int64_t n;
  int64_t k;
  int32_t site; /* of hgemm_site_set; 0: none */
  int32_t variant;
  int16_t ordinal; /* of the CUDA device */
  int16_t cc;      /* its compute capability; 0 where torch computed them without a decision */
  int8_t dtype;
  int8_t out_dtype;
  int8_t a_major;
  int8_t b_major;
  int8_t act;
  int8_t has_bias;
  int8_t has_c;
  int8_t align; /* the least alignment of a, b and the result, in bytes */
  int8_t source;
  int8_t left; /* a HgemmLeft of gemm_api.h: why torch computed them without a decision */
  int8_t numerics;
  int8_t float32;
  float us;
  float torch_us;
  float margin;
  int16_t neighbours;
  int8_t measured_dtype;
  int8_t remark;
} HgemmCallKind;

/* The answer of hgemm_explain. */
typedef struct HgemmDecision {
  /* The call as reports count it: the problem as kernels see it, of which batch dimensions that can be are folded into
     m, and the choice. `variant` is -3 where the call is refused, and `reason` is then the error text. `us` and
     `torch_us` are NaN where they were not needed. */
  HgemmCallKind kind;
  char reason[4096];
} HgemmDecision;

/* How many calls of a kind were made. */
typedef struct HgemmCallCount {
  HgemmCallKind kind;
  int64_t calls;
} HgemmCallCount;

/* What a context asks for. */
typedef struct HgemmSettings {
  int32_t variant; /* its id, -1 auto, -2 torch. -4: no context is active, and the other fields have no meaning */
  int8_t numerics; /* -1: the context leaves it to an outer context, or to the default */
  int8_t float32;  /* -1: likewise */
  int8_t tunes;    /* 1: an untuned shape is timed at its first call; 0: it is not; -1: the default */
  int8_t reserved;
} HgemmSettings;

/* A matmul without epilogue that is to be timed (dispatch/tuning.h). Strides count elements. */
typedef struct HgemmTuning {
  HgemmTableEntry entry; /* the table's entry of this shape, still without times */
  int32_t ordinal;       /* of the CUDA device */
  int32_t reserved;
  int64_t batch[2]; /* outer, inner */
  const void* a;    /* the operands' addresses; null: the kernel would read a copy that does not exist yet */
  const void* b;
  const void* d;        /* the address of the result, which only tells its alignment; null: new memory */
  int64_t a_strides[4]; /* outer batch, inner batch, row, column */
  int64_t b_strides[4];
  uint64_t state[64]; /* opaque */
} HgemmTuning;

/* A grouped product whose choice is asked for. Two of its operands' dimensions are divided into groups: a and b have
   two or three dimensions, not three both. */
typedef struct HgemmGroupedQuery {
  HgemmTensor a, b;
  int64_t groups;
  int32_t numerics, float32; /* a NumericsMode and a Float32Mode, or -1: the default */
  int32_t as_torch;          /* not 0: of torch's operator, which refuses operands that are not aligned; 0: of our op */
  int32_t reserved;
} HgemmGroupedQuery;

/* A grouped product that is to be timed. Its key are the words of hgemm::GroupedKey: compute capability, number of SMs,
   bytes of L2, dtype, what is divided (0 rows, 1 k, 2 columns), the majors of a and b, the number of groups, m, n, k.
 */
typedef struct HgemmGroupedTuning {
  int64_t key[11];
  HgemmTensor a, b;
  const void* a_data; /* addresses on the device */
  const void* b_data;
  const void* ends; /* as many int32 as there are groups */
  int32_t ordinal;  /* of the CUDA device */
  int32_t reserved;
} HgemmGroupedTuning;

/* Writes the sizeof of each struct above, in order of declaration, to the first `capacity` elements of `sizes`. Returns
   how many structs there are. */
HGEMM_API int hgemm_abi(int32_t* sizes, int capacity);

/* Returns this thread's last message. It is valid until the thread's next failure. */
HGEMM_API const char* hgemm_last_error(void);

/* Registers the CUDA implementations of the ops as torch.ops.<name_space>, for the rest of the process. Defined in
   torch/ops.cc. The name is chosen at run time, so that two copies of this library can serve one process, each with
   ops of its own. A second call with one name does nothing. Only one thread at a time may call it. Returns null, or
   the error's text. */
HGEMM_API const char* hgemm_register_ops(const char* name_space);

/* Returns 1, or 0 for a build with HGEMM_CUDA_ARCHS=none, which can launch no kernel. */
HGEMM_API int hgemm_has_device_code(void);

/* Returns the number of kernels. Their ids are the integers below it. */
HGEMM_API int hgemm_variant_count(void);

/* Fills `info` for the kernel `id`. Fails where there is no such kernel. */
HGEMM_API int hgemm_variant_info(int id, HgemmVariantInfo* info);

/* Returns the name of the kernel `index` of grouped products; null where there is no such kernel. */
HGEMM_API const char* hgemm_grouped_name(int index);

/* Returns the index of the kernel that a grouped product would run on; -2 for torch; -3 where it fails. `reason` is set
   to a text that is valid until this thread's next call of this function. */
HGEMM_API int hgemm_grouped_choice(const HgemmGroupedQuery* query, const HgemmFacts* facts, const char** reason);

/* Returns why the kernel `index` of grouped products cannot compute one; "" where it can; null where the call fails.
   The text is valid until this thread's next call of this function. */
HGEMM_API const char* hgemm_grouped_refusal(int index, const HgemmGroupedQuery* query, const HgemmFacts* facts);

/* Returns the id of the kernel called `name`; -1 for "auto", -2 for "torch", -3 for an unknown name. */
HGEMM_API int hgemm_find_variant(const char* name);

/* Appends `count` kernels of another library, an array of hgemm::Variant, to the list of kernels. They only run where
   they are named. To be called before the first decision. `variant_bytes` is the other library's
   sizeof(hgemm::Variant); the call fails where this library's differs. `family` is the name of the kernels' family.
   Neither the array nor the name is copied: both must live as long as this library. */
HGEMM_API int hgemm_add_variants(const void* variants, int count, int variant_bytes, const char* family);

/* Writes the compute capabilities of the known chips (core/chip.cc) to the first `capacity` elements of `ccs`. The
   dispatcher can decide for such a chip without one in the machine. Returns how many chips there are. */
HGEMM_API int hgemm_chips(int32_t* ccs, int capacity);

/* Fills `facts` for the known chip with compute capability `cc`. Fails where no chip is known. */
HGEMM_API int hgemm_preset_facts(int cc, HgemmFacts* facts);

/* Fills `facts` for a CUDA device of this machine. Fails where CUDA does. */
HGEMM_API int hgemm_device_facts(int ordinal, HgemmFacts* facts);

/* Returns why this library cannot run on a CUDA device, and what to do about it; "" where it can. The text lives as
   long as the library. */
HGEMM_API const char* hgemm_device_fault(int ordinal);

/* Returns the text of hgemm_device_fault for any build and device. `archs`: the build's HGEMM_CUDA_ARCHS (null: this
   build's). `cc`: the device's compute capability. `status`: the cudaError_t that the device's queries returned. The
   text is valid until this thread's next call of this function. */
HGEMM_API const char* hgemm_fault_of(const char* archs, int cc, int status);

/* Sets the function that is called, with one line of text, once for each device that a call uses and this library
   cannot run on. Null turns it off. */
HGEMM_API void hgemm_set_warning(void (*warn)(const char* line));

/* For benchmarks: enqueues a kernel on `stream` (a cudaStream_t) of the current device. The kernel reads `bytes` bytes
   of device memory at `data` and discards them; address and size must be multiples of 16. `sink`: 4 bytes of device
   memory that the kernel may write. Fails where the sizes do not fit or the launch fails. */
HGEMM_API int hgemm_read(const void* data, int64_t bytes, void* sink, void* stream);

/* Decides on a call as its query says, and fills `decision`. Contexts, the decision cache and the counters take no
   part. `candidates` is null, or has hgemm_variant_count() + 1 elements, which are filled in the order of ids, torch
   last. Fails where the shapes do not fit or the query has an unknown value; a refusal is a decision. */
HGEMM_API int hgemm_explain(const HgemmQuery* query, HgemmDecision* decision, HgemmCandidate* candidates);

/* For benchmarks/fit_model.py: writes the inputs of the learned cost model for a query to the first `capacity` elements
   of `features`. They describe the shape and the kernel `variant`, or the shape and torch (-2); `best_us` is then the
   predicted time of the best kernel. Returns how many features there are; -1 on failure. */
HGEMM_API int hgemm_features(const HgemmQuery* query, int variant, double best_us, float* features, int capacity);

/* Returns the mean host time of one decision, in nanoseconds, over `iterations` decisions. They come from the decision
   cache, or with cached = 0 are computed each time. Returns a negative number on failure. */
HGEMM_API double hgemm_select_ns(const HgemmQuery* query, int cached, int iterations);

/* Replaces the whole tuning table by the entries; without entries it clears the table. Entries with impossible values
   are skipped. Returns how many were skipped, with the reason for the first of them in hgemm_last_error(); a negative
   number on failure. */
HGEMM_API int hgemm_table_set(const HgemmTableEntry* entries, int entry_count, const HgemmTiming* timings,
                              int timing_count);

/* Adds one entry to the table, and replaces the entry of the same shape if there is one. Fails on impossible values. */
HGEMM_API int hgemm_table_add(const HgemmTableEntry* entry, const HgemmTiming* timings, int timing_count);

/* Returns how many entries the table has for GPUs with these facts. */
HGEMM_API int hgemm_table_size(const HgemmFacts* facts);

/* Sets the variant of calls for which neither the call nor a context names one: an id, -1 auto or -2 torch. Fails where
   there is no such variant. */
HGEMM_API int hgemm_set_default_variant(int id);

/* Returns that variant. */
HGEMM_API int hgemm_default_variant(void);

/* Sets the numerics of calls for which neither the call nor a context says anything: 0, 1 or 2. Fails on another
   value. */
HGEMM_API int hgemm_set_default_numerics(int numerics);

/* Sets the float32 mode of such calls: 0 or 1. Fails on another value. */
HGEMM_API int hgemm_set_default_float32(int float32);

/* For tests and benchmarks: sets the most bytes of workspace that a launch may take. A negative number restores
   the default, kMostWorkspace of core/problem.h. */
HGEMM_API void hgemm_set_most_workspace(int64_t bytes);

/* Sets the function that is called where the ops cannot allocate a result or a copy of an operand. It returns
   hgemm_aten_allocate of csrc/aten, which raises the error as torch's allocator does, or null where that library cannot
   be loaded. Null: the ops raise a RuntimeError. */
HGEMM_API void hgemm_set_allocation_failed(const void* (*find_allocate)(void));

/* Sets the function that is called once for each new decision, with one line of text, on the thread that made the
   decision. Null turns it off. */
HGEMM_API void hgemm_set_log(void (*log)(const char* line));

/* Sets a function that runs once, within the first decision that an op asks for. Python loads the tuning tables in it,
   so that importing the package does not take the time. Other threads do not wait for it: they decide without the
   tables, and decide again once the tables are there. Null: nothing runs. */
HGEMM_API void hgemm_set_first_use(void (*action)(void));

/* A context of use_custom_gemm(): its settings, and the calls that are counted while it is active.

   A context may be entered several times, also while it is active, and by several threads. On a thread that has entered
   contexts, those contexts are active. On every other thread all contexts are active that any thread has entered. Of
   several active contexts, the innermost one (the one entered last) gives the variant and the tuning; numerics and
   float32 come from the innermost context that sets them. Contexts may be left in any order: the others stay active.

   One context may be that of the process. It is active on every thread, as the outermost context. */

/* Returns a new context, which the caller deletes. */
HGEMM_API struct HgemmContext* hgemm_context_new(HgemmSettings settings);

/* Deletes the handle. Entries that have not ended keep the context active. */
HGEMM_API void hgemm_context_delete(struct HgemmContext* context);

/* Enters the context on this thread. */
HGEMM_API void hgemm_context_enter(struct HgemmContext* context);

/* Ends the last entry of the context that this thread made and that has not ended; without one, the last such entry of
   any thread, and at last one of a suspended span. Returns 1, or 0 where there was no entry. */
HGEMM_API int hgemm_context_exit(struct HgemmContext* context);

/* new, enter and exit as built-in functions of Python: with the signature of a PyCFunction of the kind METH_O. The
   caller holds the GIL. They raise Python's errors and return new references. */

/* Takes an int, the bytes of a HgemmSettings, and returns a capsule of the name "hgemm_context". It deletes the handle
   when it is collected. */
HGEMM_API void* hgemm_builtin_context_new(void* self, void* settings);

/* Takes such a capsule, and returns True. */
HGEMM_API void* hgemm_builtin_context_enter(void* self, void* capsule);

/* Takes such a capsule, and returns whether there was an entry. */
HGEMM_API void* hgemm_builtin_context_exit(void* self, void* capsule);

/* Makes the context that of the process, in place of the one before; null: there is none any more. A thread inside
   contexts of its own takes numerics and float32 over from it when the thread next enters or leaves a context. */
HGEMM_API void hgemm_context_set_process(struct HgemmContext* context);

/* A span is code that runs piece by piece inside a context, as the body of a generator or coroutine does. While it is
   suspended, neither the context nor any context that this code has entered itself and not left is active because of
   it. A new span is suspended; the caller deletes it. Pieces may run on different threads, but not at the same time. */
HGEMM_API struct HgemmSpan* hgemm_span_new(struct HgemmContext* context);

/* Enters the span's context on this thread, and inside of it again those that the span's code has not left. */
HGEMM_API void hgemm_span_resume(struct HgemmSpan* span);

/* Ends what the last hgemm_span_resume() entered, and suspends what this thread has entered since. It is called on the
   same thread. */
HGEMM_API void hgemm_span_suspend(struct HgemmSpan* span);

/* Deletes a suspended span. Contexts that its code has not left are left. */
HGEMM_API void hgemm_span_delete(struct HgemmSpan* span);

/* Writes what was counted to `rows`, one row for each kind of call, and returns how many rows there are. `as_shown` not
   0: kinds that a report shows alike are one row, with the sum of their calls. Where `capacity` might not do, nothing
   is written, and the result is a capacity that does. */
HGEMM_API int hgemm_context_rows(const struct HgemmContext* context, int as_shown, HgemmCallCount* rows, int capacity);

/* Writes why the kernel of each row was chosen to `text`, one reason after the other, each with a null character at its
   end. Returns how many bytes all reasons take. Those that end beyond `capacity` are not written. */
HGEMM_API int64_t hgemm_reasons(const HgemmCallCount* rows, int count, char* text, int64_t capacity);

/* Puts this thread outside of all contexts, until it enters or exits one. */
HGEMM_API void hgemm_context_leave_all(void);

/* Returns the numerics of a call that this thread would make now without naming any. */
HGEMM_API int hgemm_standing_numerics(void);

/* Returns the float32 mode of such a call. */
HGEMM_API int hgemm_standing_float32(void);

/* Sets whether untuned shapes are timed where no context says anything: 0 or 1. */
HGEMM_API void hgemm_tuning_default(int tunes);

/* Sets the function that times an untuned shape and adds it to the table. It runs on the thread of the call, which
   waits for it. It returns 0, or another value where it could not time the shape now; it is then asked again at the
   shape's next call. Null: nothing is timed. */
HGEMM_API void hgemm_set_tuner(int (*tuner)(const HgemmTuning* tuning));

/* Writes the candidates to time, with predicted times, to the first `capacity` elements of `candidates`: torch, then
   the kernel that would be chosen, then the other kernels that may be the fastest, in the order of their times. Returns
   how many it wrote; -1 on failure. */
HGEMM_API int hgemm_tuning_candidates(const HgemmTuning* tuning, HgemmTiming* candidates, int capacity);

/* Returns the bytes of workspace that a kernel needs for the shape. */
HGEMM_API int64_t hgemm_tuning_workspace(const HgemmTuning* tuning, int variant);

/* Enqueues a kernel on `stream` (a cudaStream_t) for the shape, with operands a and b, result d and workspace at these
   addresses of the device. Returns null, or the text of the CUDA error. */
HGEMM_API const char* hgemm_tuning_launch(const HgemmTuning* tuning, int variant, const void* a, const void* b, void* d,
                                          void* workspace, void* stream);

/* The same for grouped products. The function adds the times of a product itself, by hgemm_grouped_times_add(). */
HGEMM_API void hgemm_set_grouped_tuner(int (*tuner)(const HgemmGroupedTuning* tuning));

/* Adds the times of a grouped product to the table; `variant` of a time is the index of a grouped kernel, or -2. Fails
   where a kernel is unknown or a time is impossible. */
HGEMM_API int hgemm_grouped_times_add(const int64_t* key, const HgemmTiming* timings, int count);

/* Removes all times of grouped products. */
HGEMM_API void hgemm_grouped_times_clear(void);

/* Sets whether calls are counted by site: by the module, say, that makes them. */
HGEMM_API void hgemm_sites_enable(int on);

/* Sets the site of this thread's calls from now on (0: none), and returns the one before. */
HGEMM_API int hgemm_site_set(int site);

/* Returns the text of a fallback reason, which must be a HgemmLeft; "" for HGEMM_LEFT_NOT. */
HGEMM_API const char* hgemm_left_reason(int why);

/* Returns the functions that csrc/aten calls (gemm_api.h). The table lives as long as the library. */
HGEMM_API const struct HgemmGemmApi* hgemm_gemm_api(void);
