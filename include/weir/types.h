/*
 * The structs and enums of weir/weir.h.
 *
 * The caller sets every struct_bytes to the struct's sizeof before each call, also in structs that
 * the call fills in: then a program and a library of other versions agree on what both know.
 */
#ifndef WEIR_TYPES_H
#define WEIR_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weir/status.h>

WEIR_API_BEGIN

typedef struct weir_run weir_run;
typedef struct weir_stream weir_stream; /* wraps a CUDA stream, or is the host's queue */
typedef struct weir_device weir_device;

enum weir_dtype { WEIR_BF16, WEIR_FP32 };
enum weir_kind { WEIR_TRAINED, WEIR_FROZEN };

/* Blocks and kept tensors share one range of ids. A kept tensor begins with NEW and ends with LAST
 * or with the step. */
enum weir_access {
    WEIR_READ,   /* block: the weight. kept: its bytes */
    WEIR_GRAD,   /* block: weight and fp32 gradient buffer; on a frozen block the same as READ */
    WEIR_ADD,    /* block: gradient buffer only, the weight does not travel */
    WEIR_WRITE,  /* block: the caller changes the weight, to finite values; residuals become 0,
                  * moments stay. A frozen block with this is plain memory, without 8 or 10 more
                  * bytes of state and 4 of gradient an element */
    WEIR_NEW,    /* kept: born here, contents undefined */
    WEIR_CHANGE, /* kept: read and changed */
    WEIR_LAST,   /* kept: read for the last time; it may be born again */
};

struct weir_options {
    size_t struct_bytes;
    const char *device;    /* "host"; "cuda" where it was built */
    uint64_t device_bytes; /* hard budget; UINT64_MAX: what a GPU has free, less a sixteenth and
                            * at most 1 GiB */
    uint64_t host_bytes;   /* hard budget; UINT64_MAX: none */
    const char *nvme_path; /* directories of the extent, "DIR,DIR"; NULL: no NVMe tier */
    const char *io_engine; /* "uring", "threads"; NULL: the best that works */
    enum weir_dtype dtype; /* of weights; BF16: 10 bytes of state a parameter, FP32: 8 */
    enum weir_dtype grad_dtype; /* in which gradients wait for their update */
    int thread_count;           /* at most 4096; 0: one a CPU that the caller may use */
    uint64_t ring_bytes;        /* 0: weir chooses */
    bool require_direct;        /* refuse a file system without O_DIRECT */
    bool require_registered;    /* refuse an I/O engine that does not register host memory */
    bool verify;                /* NVMe bytes are hashed when written, compared when read */
    bool strict;                /* host device: test mode, in which operations are delayed by
                                 * drawn times, fresh memory is 0xA5 and freed memory 0x5A */
    uint64_t strict_seed;
    weir_log_fn *log; /* NULL: silent */
    void *log_context;
    const struct weir_cost *cost; /* NULL: measured at the first layout */
};

/* Rates that the planner predicts with. */
struct weir_cost {
    size_t struct_bytes;
    double read_bytes_per_s, write_bytes_per_s; /* NVMe, each alone; the two share the drives */
    double to_device_bytes_per_s, to_host_bytes_per_s;
    double update_bytes_per_s, device_update_bytes_per_s; /* of state + gradient + weight */
    double link_update_bytes_per_s; /* in host memory, by the device's kernels; 0: they cannot */
    double compute_flops_per_s, latency_s; /* latency of one NVMe transfer */
    bool update_on_compute;               /* all updates take turns with compute: the host device */
    const struct weir_drive_rate *drives; /* weir/drive.h, one a directory; NULL: all alike */
};

struct weir_tensor {
    size_t struct_bytes;
    const char *name; /* unique in the run; copied */
    enum weir_kind kind;
    uint32_t dim_count; /* 1 to 4 */
    uint64_t shape[4];
    float lr_scale, decay_scale; /* factors on the update's lr and weight_decay */
    /* NULL: a tensor of its own. Else this is rows [first_row, first_row + shape[0]) of the tensor
     * `whole_name` of whole_rows, which checkpoints hold whole. */
    const char *whole_name;
    uint64_t whole_rows, first_row;
};

struct weir_kept {
    size_t struct_bytes;
    const char *name; /* unique in the run; copied */
    uint64_t byte_count;
    bool optional;          /* may be refused: NULL view at NEW and after, the caller recomputes;
                             * with more than two uses it never waits off the device */
    double recompute_flops; /* what that costs, at each want after NEW */
};

struct weir_use {
    uint32_t id;
    enum weir_access access;
};
struct weir_view {
    void *bytes; /* device memory: weight or kept bytes; NULL: dry, ADD, or refused */
    float *grad; /* fp32 gradient, the weight's index; GRAD, ADD of trained tensors; NULL: dry */
    bool grad_fresh; /* the block's first such want in the step: all of grad is to be overwritten */
};

/* AdamW (Loshchilov & Hutter 2019, algorithm 2; decay scaled by lr), fp32, each operation rounded:
 *     g = grad * min(1, clip / norm)
 *     m = beta1 * m + (1 - beta1) * g;    v = beta2 * v + (1 - beta2) * (g * g)
 *     p = p - (lr * weight_decay) * p
 *     p = p - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 * In bf16 training weight and residual are p without loss: the weight is p rounded to nearest, ties
 * away from zero. */
struct weir_update {
    size_t struct_bytes;
    float lr, beta1, beta2, eps, weight_decay;
    float clip; /* most global gradient norm; 0: no clipping */
};

struct weir_report {
    size_t struct_bytes;
    double grad_norm;                  /* before clipping; of an evaluation 0 */
    bool skipped;                      /* an inf or nan: nothing was or will be changed */
    uint64_t step_count, update_count; /* ended with an update; of those not skipped. Its effect
                                        * comes before the block's next want */
    uint64_t nvme_read_bytes, nvme_written_bytes, to_device_bytes, to_host_bytes; /* this step */
    uint64_t stall_ns; /* the compute stream waited for bytes */
    uint64_t step_ns;
    uint64_t device_peak_bytes, host_peak_bytes; /* since open, against the budgets */
    const char *io_engine; /* that moves NVMe bytes; NULL: there are none. The run's */
    bool io_direct;        /* past the page cache */
    bool io_registered;    /* the kernel keeps the slab's pages between transfers */
};

/* What a layout of this recorded key would be, without making slab or extent. Bytes of one step. */
struct weir_prediction {
    size_t struct_bytes;
    uint64_t device_bytes, host_bytes, nvme_bytes; /* held: homes and the most of the rest */
    uint64_t weight_bytes[3], grad_bytes[3], state_bytes[3]; /* homes on device, host, nvme */
    uint64_t kept_bytes[3];               /* most kept bytes at once that wait in each tier */
    uint64_t refused_bytes;               /* optional tensors that will be recomputed */
    uint64_t transient_bytes, ring_bytes; /* device slots of one step; host ring */
    uint64_t step_read_bytes, step_written_bytes, step_to_device_bytes, step_to_host_bytes;
    double step_s, floor_s; /* simulated; of what arrives, computes and leaves in turn at best */
    double compute_s, io_s, compute_flops_per_s; /* the last is what it was predicted with */
    uint64_t plan_hash;
};
WEIR_API_END
#endif
