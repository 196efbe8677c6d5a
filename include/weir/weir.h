/*
 * weir: trains models larger than the device by moving them through it on a plan.
 *
 * A training step is the same tensors in the same order every time. Record it once dry, let weir
 * lay it out, then run the same loop for real:
 *
 *     weir_open(&run, &options);
 *     weir_block_add(run, tensors, n, &layer[i]);  weir_kept_add(run, &kept, &x[i]);
 *     step(run, true);                 // begin dry, want, done ...: records, moves nothing
 *     weir_layout(run);                // plans, proves, makes slabs and extents
 *     weir_block_load(...);            // fill the weights
 *     while (training) step(run, false);
 *     weir_close(run);
 *
 * want makes blocks and kept tensors usable on the compute stream, done says that all work on them
 * is queued. All calls on a run come from one thread at a time. Bits never depend on the budgets.
 */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weir/status.h>

WEIR_API_BEGIN

typedef struct weir_run weir_run;
typedef struct weir_stream weir_stream; /* of the device: a CUstream's peer, or the host's queue */
typedef struct weir_device weir_device;

enum weir_dtype { WEIR_BF16, WEIR_FP32 };
enum weir_kind { WEIR_TRAINED, WEIR_FROZEN };

enum weir_access {
    WEIR_READ,   /* block: the weight. kept: its bytes */
    WEIR_GRAD,   /* block: weight and fp32 gradient buffer; on a frozen block the same as READ */
    WEIR_ADD,    /* block: gradient buffer only, the weight does not travel */
    WEIR_WRITE,  /* block: the caller changes the weight; residuals become 0, moments stay */
    WEIR_NEW,    /* kept: born here, contents undefined */
    WEIR_CHANGE, /* kept: read and changed */
    WEIR_LAST,   /* kept: read for the last time; it may be born again */
};

struct weir_options {
    size_t struct_bytes;
    const char *device;         /* "host"; "cuda" where it was built */
    uint64_t device_bytes;      /* hard budget; UINT64_MAX: what a GPU has free */
    uint64_t host_bytes;        /* hard budget; UINT64_MAX: none */
    const char *nvme_path;      /* directories of the extent, "DIR,DIR"; NULL: no NVMe tier */
    const char *io_engine;      /* "uring", "threads"; NULL: the best that works */
    enum weir_dtype dtype;      /* of weights; BF16: 10 bytes of state a parameter, FP32: 8 */
    enum weir_dtype grad_dtype; /* in which gradients wait for their update */
    int thread_count;           /* 0: one a core that the caller may use */
    uint64_t ring_bytes;        /* 0: weir chooses */
    bool require_direct;        /* refuse a file system without O_DIRECT */
    bool require_registered;    /* refuse an I/O engine that does not register host memory */
    bool verify;                /* NVMe bytes are hashed when written, compared when read */
    bool strict;                /* host device: test mode, see core/device.h */
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
    const char *whole_name; /* this is rows [first_row, first_row + shape[0]) of a tensor that is */
    uint64_t whole_rows, first_row; /* whole in checkpoints; NULL: it is the whole */
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
    void *bytes;     /* device memory: weight or kept bytes; NULL: dry, ADD, or refused */
    float *grad;     /* fp32 gradient, the weight's index; GRAD, ADD of trained tensors */
    bool grad_fresh; /* grad holds nothing yet: overwrite it */
};

/* AdamW (Loshchilov & Hutter 2019, algorithm 2; decay scaled by lr). */
struct weir_update {
    size_t struct_bytes;
    float lr, beta1, beta2, eps, weight_decay;
    float clip; /* most global gradient norm; 0: no clipping */
};

struct weir_report {
    size_t struct_bytes;
    double grad_norm; /* before clipping; of an evaluation 0 */
    bool skipped;     /* an inf or nan: nothing was or will be changed */
    uint64_t step_count, update_count;
    uint64_t nvme_read_bytes, nvme_written_bytes, to_device_bytes, to_host_bytes; /* this step */
    uint64_t stall_ns; /* the compute stream waited for bytes */
    uint64_t step_ns;
    uint64_t device_peak_bytes, host_peak_bytes; /* since open, against the budgets */
    const char *io_engine; /* that moves NVMe bytes; NULL: there are none. The run's */
    bool io_direct;        /* past the page cache */
    bool io_registered;    /* the kernel keeps the slab's pages between transfers */
};

enum weir_status weir_open(weir_run **out, const struct weir_options *options) WEIR_MUST_CHECK;
/* Waits for what is in flight; pending updates are lost unless flushed or saved. NULL is fine. */
void weir_close(weir_run *run);

/* Tensors wanted together. Trained ones first, then frozen ones (else WEIR_ERR_ARG). */
enum weir_status weir_block_add(weir_run *run, const struct weir_tensor *tensors,
                                size_t tensor_count, uint32_t *id) WEIR_MUST_CHECK;
enum weir_status weir_kept_add(weir_run *run, const struct weir_kept *kept,
                               uint32_t *id) WEIR_MUST_CHECK;
/* Elements from a view's start to the tensor's; the same in weight, gradient and state. */
uint64_t weir_block_offset(const weir_run *run, uint32_t block, size_t tensor);

/* What a layout of this recorded key would be, without making slab or extent. Bytes of one step. */
struct weir_prediction {
    size_t struct_bytes;
    uint64_t device_bytes, host_bytes, nvme_bytes; /* held: homes and the most of the rest */
    uint64_t weight_bytes[3], grad_bytes[3], state_bytes[3]; /* homes on device, host, nvme */
    uint64_t kept_bytes[3];               /* most kept bytes at once that wait in each tier */
    uint64_t refused_bytes;               /* optional tensors that will be recomputed */
    uint64_t transient_bytes, ring_bytes; /* device slots of one step; host ring */
    uint64_t step_read_bytes, step_written_bytes, step_to_device_bytes, step_to_host_bytes;
    double step_s, floor_s; /* simulated, and the floor of the schedule (DESIGN 4s) */
    double compute_s, io_s, compute_flops_per_s; /* the last is what it was predicted with */
    uint64_t plan_hash;
};
enum weir_status weir_predict(weir_run *run, const char *key,
                              struct weir_prediction *out) WEIR_MUST_CHECK;

/* Plan all keys recorded so far, prove the plans, make slabs and extents (weights and state 0).
 * Keys recorded later are planned into what is left. Recording a key again before layout replaces
 * it. NOMEM says which budget, or this machine, is short of how many bytes, at which stage. */
enum weir_status weir_layout(weir_run *run) WEIR_MUST_CHECK;

/* Elements [first, first + count) of one tensor, outside steps. fp32 values fill the residual;
 * bf16 values clear it. store reads the weight as the update last left it (flushes its block). */
enum weir_status weir_block_load(weir_run *run, uint32_t block, size_t tensor,
                                 enum weir_dtype dtype, const void *values, uint64_t first,
                                 uint64_t count) WEIR_MUST_CHECK;
enum weir_status weir_block_store(weir_run *run, uint32_t block, size_t tensor,
                                  enum weir_dtype dtype, void *values, uint64_t first,
                                  uint64_t count) WEIR_MUST_CHECK;

weir_stream *weir_compute_stream(weir_run *run);
weir_device *weir_compute_device(weir_run *run);

enum weir_status weir_step_begin(weir_run *run, const char *key, bool dry) WEIR_MUST_CHECK;
/* Blocks until the transfers are issued, never until they have finished. Wants of a held block
 * nest. DIVERGED: not what the plan expects here, naming both; end with weir_step_abort. */
enum weir_status weir_want(weir_run *run, const struct weir_use *uses, size_t count,
                           struct weir_view *views) WEIR_MUST_CHECK;
/* Make the views usable by the calling CPU thread; host device only. */
enum weir_status weir_want_wait(weir_run *run) WEIR_MUST_CHECK;
/* Device memory until all of the innermost want is done. Dry: NULL. */
enum weir_status weir_scratch(weir_run *run, uint64_t bytes, void **out) WEIR_MUST_CHECK;
/* Arithmetic that the caller queues here: the planner's clock. Heard when dry. */
enum weir_status weir_work(weir_run *run, double flops) WEIR_MUST_CHECK;
/* Copy the caller's bytes (all of the kept tensor) in or out, in order on the compute stream.
 * put: bytes may be reused at return. get: bytes are filled when weir_step_end returns. */
enum weir_status weir_put(weir_run *run, uint32_t kept, const void *bytes) WEIR_MUST_CHECK;
enum weir_status weir_get(weir_run *run, uint32_t kept, void *bytes) WEIR_MUST_CHECK;
enum weir_status weir_done(weir_run *run, const uint32_t *ids, size_t count) WEIR_MUST_CHECK;
/* update NULL: evaluation. Waits until every transfer is complete. */
enum weir_status weir_step_end(weir_run *run, const struct weir_update *update,
                               struct weir_report *report) WEIR_MUST_CHECK;
/* Drop the step: weights as at its beginning, but where WRITE wrote. Dry: the key is forgotten. */
enum weir_status weir_step_abort(weir_run *run) WEIR_MUST_CHECK;
/* Finish all pending updates. */
enum weir_status weir_flush(weir_run *run) WEIR_MUST_CHECK;

WEIR_API_END
#endif
