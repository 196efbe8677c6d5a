/*
 * The run: what weir_open returns. Public calls live by theme: run.c (open, tensors), layout.c,
 * step.c, optimizer.c (update, norm, clip), access.c (load, store, flush), checkpoint_*.c.
 */
#ifndef WEIR_ZERO_RUN_H
#define WEIR_ZERO_RUN_H

#include "alloc/numa.h"
#include "alloc/pool.h"
#include "core/clock.h"
#include "io/engine.h"
#include "io/extent.h"
#include "kernels/kernels.h"
#include "offload/cost.h"
#include "offload/home.h"
#include "offload/replay.h"
#include "zero/comm.h"
#include "zero/drives.h"
#include <weir/weir.h>

/* A key's step: recorded, planned, indexed for replay. */
struct weir_key {
    struct weir_trace *trace;
    struct weir_plan *plan; /* NULL: not laid out */
    struct weir_score *score;
};

/* The update that a pending block still owes (4o): its own copy. */
struct weir_owed {
    float lr, beta1, beta2, eps, weight_decay;
    float clip_factor, correction1, correction2;
};

/* The tables under a run and its grain. weir_open takes them by name; tests put doubles under a run
 * and a grain that gives small blocks many windows. NULL: by name. */
struct weir_seams {
    struct weir_grain grain;
    const struct weir_device_table *device;
    const struct weir_kernels_table *kernels;
    const struct weir_comm_table *comm;
    const struct weir_io_engine_table *io;
    bool updates_apart; /* an updater beside a device whose kernels run on the CPU too */
};

struct weir_run {
    struct weir_log log;
    struct weir_drives drives;
    char *io_engine;
    struct weir_options options;                 /* names and paths point to copies */
    const struct weir_io_engine_table *io_table; /* NULL: by name */
    struct weir_numa numa;
    struct weir_device *device;
    const struct weir_device_table *table;
    struct weir_kernels *kernels;
    const struct weir_kernels_table *math;
    struct weir_comm *comm;
    struct weir_pool *device_pool, *host_pool;
    struct weir_stream *compute;
    /* Beside a GPU a host device updates states in host memory; else NULL, and the compute stream
     * and kernels stand in for the two below. */
    struct weir_device *updater;
    struct weir_kernels *update_kernels;
    struct weir_stream *update_stream; /* outside steps */
    bool reaches_host;                 /* the device's kernels: pinned host memory */

    struct weir_model model;
    struct weir_key **keys;
    size_t key_count, key_capacity;
    bool have_cost, timeline; /* timeline: ops are timed */
    struct weir_cost cost;

    /* after layout */
    bool laid_out;
    struct weir_homes *homes;
    void *slabs[2];
    uint64_t slab_bytes[2];
    struct weir_io *io;
    struct weir_extent extent;
    struct weir_replay *replay;
    const struct weir_score *timed; /* of the latest real step, if it was timed */
    struct weir_home home;
    bool *pending;          /* [thing] */
    struct weir_owed *owed; /* [thing] */
    uint64_t *bad_counts;   /* [thing] pinned: masters not finite, counted by Adam */
    /* [thing] device: those that the device counts, if it does not reach host memory; else NULL.
     * They are fetched to the place after bad_counts. */
    uint64_t *device_counts;
    double *partials;      /* [trained segment] device */
    double *norms;         /* the same in pinned host memory */
    int64_t charged_bytes; /* traces, plans: counted in host_pool */

    /* the step */
    struct weir_key *key; /* NULL: none */
    bool dry;
    uint64_t step_begin_ns;
    uint64_t step_count, update_count;

    bool poisoned;
    struct weir_error poison;
};

/* weir_open, for tests. */
enum weir_status weir_open_with(weir_run **out, const struct weir_options *options,
                                const struct weir_seams *seams);

/* Keep status: after IO, CORRUPT, DEVICE, COMM, and after NOSPACE in a home, the run answers only
 * close. */
enum weir_status weir_run_result(weir_run *run, enum weir_status status);
/* ARG, naming both, if the pointer that a caller must give is NULL. */
enum weir_status weir_given(const void *argument, const char *call, const char *name);
/* The same for a struct that a call fills in, and for its first field. */
enum weir_status weir_given_struct(const size_t *struct_bytes, const char *call, const char *name);
/* WEIR_OK, or what poisoned the run: itself, or its device. ARG if it is NULL. */
enum weir_status weir_run_alive(weir_run *run);
/* Laid out and between steps, for calls that reach into the homes. */
enum weir_status weir_run_idle(weir_run *run, const char *call);
enum weir_status weir_run_block(const weir_run *run, uint32_t id, const char *call);

/* The I/O of this run's options. */
enum weir_status weir_run_io_open(const weir_run *run, struct weir_log *log, struct weir_io **out);

struct weir_key *weir_run_key(const weir_run *run, const char *name);
void weir_key_free(struct weir_key *key);

/* optimizer.c */
struct weir_replay_hooks weir_optimizer_hooks(weir_run *run);
/* The norm over all gradients of the step, and what each block now owes. */
enum weir_status weir_optimizer_step(weir_run *run, const struct weir_update *update,
                                     struct weir_report *report);
/* Finish one window's owed update in its home; its state and weight are at `at` afterwards. */
enum weir_status weir_optimizer_finish(weir_run *run, uint32_t block, uint32_t window,
                                       struct weir_window_bytes *at);
/* An error if an update made a master that is not finite; names tensor and element. */
enum weir_status weir_optimizer_verify(weir_run *run);

/* The first element of a fetched window whose master is not finite after rounding (5a). */
struct weir_bad_element {
    const char *tensor;
    uint64_t element;
};
bool weir_window_bad(const weir_run *run, uint32_t block, uint32_t window,
                     const struct weir_window_bytes *at, struct weir_bad_element *bad);

/* measure.c: rates of this machine, each from a few tens of milliseconds. */
enum weir_status weir_cost_measure(weir_run *run, struct weir_cost *out);
/* measure_drive.c: those of the drives, through bytes of pinned memory; and what each likes best.
 */
enum weir_status weir_drives_measure(weir_run *run, void *memory, uint64_t bytes,
                                     struct weir_cost *out);

#endif
