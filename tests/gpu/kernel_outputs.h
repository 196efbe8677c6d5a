/* Inside kernel_outputs: operations on inputs drawn from a fixed seed, their outputs recorded. */
#ifndef WEIR_TESTS_GPU_KERNEL_OUTPUTS_H
#define WEIR_TESTS_GPU_KERNEL_OUTPUTS_H

#include "kernels/kernels.h"

#include <stdio.h>

#define OUTPUTS_PIECES 16
#define OUTPUTS_MOST   (UINT64_C(4) << 20) /* bytes of an array */
#define BOUND_BITS     0.0
#define BOUND_FP32     1e-5
#define BOUND_BF16     (1.0 / 128) /* of the largest: one rounding to bf16 */

enum outputs_form { OUTPUTS_BF16, OUTPUTS_FP32, OUTPUTS_FP64, OUTPUTS_BYTES };

struct record {
    char name[32];
    uint64_t count;
    double bound;
    uint64_t form; /* enum outputs_form, as wide as the rest: no padding */
};
_Static_assert(sizeof(struct record) == 56, "records are written and compared as bytes");

struct outputs {
    struct weir_device *device;
    struct weir_stream *stream;
    const struct weir_kernels_table *math;
    struct weir_kernels *kernels;
    enum weir_dtype dtype;
    FILE *file;
    void *pinned, *memory[OUTPUTS_PIECES]; /* memory: until the operation ends */
    uint32_t memory_count;
    uint64_t random;
};

static inline uint64_t outputs_form_bytes(uint64_t form)
{
    static const uint64_t bytes[] = {2, 4, 8, 1};
    return bytes[form];
}
static inline enum outputs_form outputs_form_of(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? OUTPUTS_BF16 : OUTPUTS_FP32;
}
static inline double outputs_bound_of(enum weir_dtype dtype)
{
    return dtype == WEIR_BF16 ? BOUND_BF16 : BOUND_FP32;
}

/* Device memory that holds given bytes; values in [-1, 1); ids below `most`. */
enum weir_status outputs_upload(struct outputs *o, const void *bytes, uint64_t byte_count,
                                void **out);
enum weir_status outputs_values(struct outputs *o, uint64_t count, enum weir_dtype dtype,
                                void **out);
/* For what an operation needs and no output depends on; how much is the instance's business. */
enum weir_status outputs_scratch(struct outputs *o, uint64_t byte_count, void **out);
enum weir_status outputs_ids(struct outputs *o, uint32_t count, uint32_t most, void **out);
enum weir_status outputs_return(struct outputs *o); /* all that memory */
/* bound: BOUND_BITS, or a part of the array's largest. */
enum weir_status outputs_record(struct outputs *o, const char *name, const void *memory,
                                uint64_t count, enum outputs_form form, double bound);

enum weir_status outputs_adam(struct outputs *o);
enum weir_status outputs_reduce(struct outputs *o);
enum weir_status outputs_casts(struct outputs *o);
enum weir_status outputs_norm(struct outputs *o);
enum weir_status outputs_rope(struct outputs *o);
enum weir_status outputs_swiglu(struct outputs *o);
enum weir_status outputs_head(struct outputs *o);
enum weir_status outputs_attention(struct outputs *o);
enum weir_status outputs_embed(struct outputs *o);
enum weir_status outputs_gemm(struct outputs *o);
enum weir_status outputs_gemm_ones(struct outputs *o);

#endif
