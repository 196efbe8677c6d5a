/*
 * Opening and closing a run, its tensors, and what stands between a caller and a poisoned run.
 */
#include "zero/run.h"
#include "core/memory.h"
#include "core/thread.h"
#include "io/engine.h"
#include "zero/checkpoint.h"
#include "zero/math.h"

#include <string.h>

#define IO_REQUESTS  128  /* more than lanes have outstanding */
#define THREADS_MOST 4096 /* OpenMP ends the process where the system has no more */

static enum weir_status cost_valid(const struct weir_cost *cost)
{
    if (cost->struct_bytes < sizeof *cost)
        return weir_fail(WEIR_ERR_ARG, "weir_open: cost.struct_bytes is %zu in place of %zu",
                         cost->struct_bytes, sizeof *cost);
    const struct {
        const char *name;
        double value;
    } rates[] = {{"read_bytes_per_s", cost->read_bytes_per_s},
                 {"write_bytes_per_s", cost->write_bytes_per_s},
                 {"to_device_bytes_per_s", cost->to_device_bytes_per_s},
                 {"to_host_bytes_per_s", cost->to_host_bytes_per_s},
                 {"update_bytes_per_s", cost->update_bytes_per_s},
                 {"device_update_bytes_per_s", cost->device_update_bytes_per_s},
                 {"compute_flops_per_s", cost->compute_flops_per_s}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!(rates[i].value > 0 && rates[i].value < 1e300))
            return weir_fail(WEIR_ERR_ARG, "weir_open: cost.%s is %g; give more than 0",
                             rates[i].name, rates[i].value);
    if (!(cost->latency_s >= 0 && cost->latency_s < 1e300) ||
        !(cost->link_update_bytes_per_s >= 0 && cost->link_update_bytes_per_s < 1e300))
        return weir_fail(WEIR_ERR_ARG,
                         "weir_open: cost.latency_s is %g, link_update_bytes_per_s %g; give 0 or "
                         "more",
                         cost->latency_s, cost->link_update_bytes_per_s);
    return WEIR_OK;
}

static enum weir_status options_take(weir_run *run, const struct weir_options *options)
{
    memcpy(&run->options, options,
           options->struct_bytes < sizeof run->options ? options->struct_bytes
                                                       : sizeof run->options);
    struct weir_options *o = &run->options;
    if (!o->device || o->dtype > WEIR_FP32 || o->grad_dtype > WEIR_FP32)
        return weir_fail(WEIR_ERR_ARG,
                         "weir_open: device %s, dtype %d, grad_dtype %d; give a "
                         "device's name and WEIR_BF16 or WEIR_FP32",
                         o->device ? o->device : "NULL", (int)o->dtype, (int)o->grad_dtype);
    if (o->thread_count < 0 || o->thread_count > THREADS_MOST)
        return weir_fail(WEIR_ERR_ARG, "weir_open: thread_count %d; give 0 to %d", o->thread_count,
                         THREADS_MOST);
    if (o->thread_count == 0)
        o->thread_count = weir_thread_cpus();
    if (o->nvme_path) {
        WEIR_TRY(weir_drives_open(&run->drives, o->nvme_path));
        o->nvme_path = run->drives.text;
    }
    if (o->io_engine) {
        const struct weir_io_engine_table *known;
        WEIR_TRY(weir_io_engine_find(o->io_engine, &known));
        WEIR_TRY(weir_strdup(&run->io_engine, o->io_engine));
        o->io_engine = run->io_engine;
    }
    if (o->cost) {
        WEIR_TRY(cost_valid(o->cost));
        WEIR_TRY(weir_drives_given(&run->drives, o->cost->drives));
        run->cost = *o->cost;
        run->cost.drives = NULL;
        run->have_cost = true;
        o->cost = NULL;
    }
    run->log.fn = o->log;
    run->log.context = o->log_context;
    return WEIR_OK;
}

static enum weir_status tables_find(weir_run *run, const struct weir_seams *seams,
                                    const struct weir_comm_table **comm)
{
    const char *device = run->options.device;
    run->table = seams->device;
    run->math = seams->kernels;
    *comm = seams->comm;
    run->io_table = seams->io;
    if (!run->table)
        WEIR_TRY(weir_device_find(device, &run->table));
    if (!run->math)
        WEIR_TRY(weir_kernels_find(device, &run->math));
    return *comm ? WEIR_OK : weir_comm_find("single", comm);
}

static struct weir_device_options device_options(weir_run *run)
{
    return (struct weir_device_options){
        .memory_bytes = run->options.device_bytes,
        .thread_count = run->options.thread_count,
        .cpus = weir_numa_cpus(&run->numa),
        .strict = run->options.strict,
        .seed = run->options.strict_seed,
        .log = &run->log,
    };
}

/* Where updates of states in host memory run: on the cores, whatever the device is. */
static enum weir_status updater_open(weir_run *run, const struct weir_seams *seams)
{
    struct weir_device_info info;
    run->table->info(run->device, &info);
    run->update_kernels = run->kernels;
    run->update_stream = run->compute;
    if (info.calls_run_on_cpu && !seams->updates_apart)
        return WEIR_OK;
    const struct weir_device_table *table;
    const struct weir_kernels_table *math;
    struct weir_device_options options = device_options(run);
    WEIR_TRY(weir_device_find("host", &table));
    WEIR_TRY(weir_kernels_find("host", &math));
    WEIR_TRY(table->open(&run->updater, &options));
    run->update_kernels = NULL;
    run->update_stream = NULL;
    WEIR_TRY(math->open(&run->update_kernels, run->updater, options.thread_count, NULL, &run->log));
    return table->stream_create(run->updater, WEIR_ENGINE_COMPUTE, "updates", &run->update_stream);
}

static enum weir_status device_open(weir_run *run, const struct weir_seams *seams)
{
    struct weir_options *o = &run->options;
    struct weir_device_info info;
    int node;
    WEIR_TRY(run->table->numa_node(&node));
    weir_numa_open(&run->numa, node, &run->log);
    struct weir_device_options options = device_options(run);
    WEIR_TRY(run->table->open(&run->device, &options));
    run->options.device = run->table->name;
    run->table->info(run->device, &info);
    o->device_bytes = o->device_bytes < info.memory_bytes ? o->device_bytes : info.memory_bytes;
    run->reaches_host = info.reaches_host;
    if (!run->reaches_host) /* whatever machine the given rates are from */
        run->cost.link_update_bytes_per_s = 0;
    WEIR_TRY(run->math->open(&run->kernels, run->device, o->thread_count, NULL, &run->log));
    WEIR_TRY(run->table->stream_create(run->device, WEIR_ENGINE_COMPUTE, "user", &run->compute));
    WEIR_TRY(updater_open(run, seams));
    WEIR_TRY(weir_pool_open(&run->device_pool, run->device, WEIR_POOL_DEVICE, "device",
                            o->device_bytes, "lower the micro-batch or raise device_bytes"));
    return weir_pool_open(&run->host_pool, run->device, WEIR_POOL_HOST, "host", o->host_bytes,
                          "raise host_bytes or give an nvme_path");
}

static enum weir_status run_fill(weir_run *run, const struct weir_options *options,
                                 const struct weir_seams *seams)
{
    const struct weir_comm_table *comm;
    WEIR_TRY(options_take(run, options));
    weir_model_open(&run->model, run->options.dtype, run->options.grad_dtype, seams->grain);
    WEIR_TRY(tables_find(run, seams, &comm));
    WEIR_TRY(device_open(run, seams));
    return comm->open(&run->comm);
}

enum weir_status weir_open_with(weir_run **out, const struct weir_options *options,
                                const struct weir_seams *seams)
{
    if (!out || !options || options->struct_bytes < offsetof(struct weir_options, cost))
        return weir_fail(WEIR_ERR_ARG,
                         "weir_open: out or options is NULL, or struct_bytes %zu is "
                         "not set to sizeof(struct weir_options)",
                         options ? options->struct_bytes : 0);
    weir_run *run;
    WEIR_TRY(weir_alloc(&run, 1, sizeof *run, "run"));
    pthread_mutex_init(&run->log.lock, NULL);
    enum weir_status status = run_fill(run, options, seams);
    if (status != WEIR_OK) {
        struct weir_error error = *weir_last_error();
        weir_close(run);
        return weir_fail_with(&error);
    }
    *out = run;
    return WEIR_OK;
}

enum weir_status weir_open(weir_run **out, const struct weir_options *options)
{
    return weir_open_with(out, options, &(struct weir_seams){.grain = WEIR_GRAIN_DEFAULT});
}

void weir_key_free(struct weir_key *key)
{
    if (!key)
        return;
    weir_score_free(key->score);
    weir_plan_free(key->plan);
    weir_trace_close(key->trace);
    weir_free(key);
}

static void updater_close(weir_run *run)
{
    if (!run->updater)
        return;
    const struct weir_device_table *table = run->updater->table;
    if (run->update_stream && run->update_stream->device == run->updater)
        table->stream_destroy(run->update_stream);
    if (run->update_kernels)
        run->update_kernels->table->close(run->update_kernels);
    table->close(run->updater);
}

void weir_close(weir_run *run)
{
    if (!run)
        return;
    /* In a step that failed, work that knows the replay may still be queued. */
    if (run->compute)
        run->table->stream_destroy(run->compute);
    weir_replay_close(run->replay);
    weir_io_close(run->io);
    weir_extent_close(&run->extent);
    for (size_t i = 0; i < run->key_count; i++)
        weir_key_free(run->keys[i]);
    weir_free(run->keys);
    weir_homes_free(run->homes);
    weir_model_close(&run->model);
    weir_free(run->pending);
    weir_free(run->owed);
    /* A pool that cannot give back has a poisoned device under it; the device frees all. */
    (void)weir_pool_close(run->device_pool);
    (void)weir_pool_close(run->host_pool);
    updater_close(run);
    if (run->kernels)
        run->math->close(run->kernels);
    if (run->device)
        run->table->close(run->device);
    if (run->comm)
        run->comm->table->close(run->comm);
    pthread_mutex_destroy(&run->log.lock);
    weir_drives_close(&run->drives);
    weir_free(run->io_engine);
    weir_free(run);
}

enum weir_status weir_run_result(weir_run *run, enum weir_status status)
{
    /* No space in a home: file systems that never overwrite in place say so of a write to bytes
     * that were there (btrfs, ZFS, thin volumes). What was moved is then half a block. */
    bool half = status == WEIR_ERR_NOSPACE && run->laid_out;
    if (!run->poisoned && (half || status == WEIR_ERR_IO || status == WEIR_ERR_CORRUPT ||
                           status == WEIR_ERR_DEVICE || status == WEIR_ERR_COMM)) {
        run->poisoned = true;
        run->poison = *weir_last_error();
    }
    return status;
}

enum weir_status weir_run_io_open(const weir_run *run, struct weir_log *log, struct weir_io **out)
{
    return weir_io_open(out, &(struct weir_io_options){
                                 .engine = run->options.io_engine,
                                 .engine_table = run->io_table,
                                 .depth = run->drives.count > 0 ? WEIR_DRIVE_DEPTH_MOST : 1,
                                 .drive_count = run->drives.count,
                                 .request_count = IO_REQUESTS,
                                 .piece_bytes = WEIR_DRIVE_PIECE_MOST,
                                 .require_direct = run->options.require_direct,
                                 .require_registered = run->options.require_registered,
                                 .log = log,
                             });
}

enum weir_status weir_given(const void *argument, const char *call, const char *name)
{
    return argument ? WEIR_OK : weir_fail(WEIR_ERR_ARG, "%s: %s is NULL", call, name);
}

enum weir_status weir_given_struct(const size_t *struct_bytes, const char *call, const char *name)
{
    WEIR_TRY(weir_given(struct_bytes, call, name));
    if (*struct_bytes < sizeof *struct_bytes)
        return weir_fail(WEIR_ERR_ARG, "%s: %s.struct_bytes is %zu; set it to the struct's size",
                         call, name, *struct_bytes);
    return WEIR_OK;
}

/* Giving back nothing tells what the device has kept: a kernel that the caller queued may have been
 * told of a failure that no call of the run has met. */
enum weir_status weir_run_alive(weir_run *run)
{
    WEIR_TRY(weir_given(run, "a call on a run", "run"));
    if (run->poisoned)
        return weir_fail_with(&run->poison);
    return weir_run_result(run, run->table->mem_free(run->device, NULL));
}

enum weir_status weir_run_idle(weir_run *run, const char *call)
{
    WEIR_TRY(weir_run_alive(run));
    if (!run->laid_out)
        return weir_fail(WEIR_ERR_STATE,
                         "%s: the run has no layout yet; record a dry step and "
                         "call weir_layout first",
                         call);
    if (run->key)
        return weir_fail(WEIR_ERR_STATE, "%s: inside step \"%s\"; end or abort it first", call,
                         run->key->trace->key);
    return WEIR_OK;
}

enum weir_status weir_run_block(const weir_run *run, uint32_t id, const char *call)
{
    if (id >= run->model.thing_count || !run->model.things[id].is_block)
        return weir_fail(WEIR_ERR_ARG, "%s: id %u is not a block of this run (%zu ids)", call, id,
                         run->model.thing_count);
    return WEIR_OK;
}

static enum weir_status tensors_open(weir_run *run, const uint32_t *id, const char *call)
{
    WEIR_TRY(weir_given(run, call, "run"));
    WEIR_TRY(weir_given(id, call, "id"));
    if (run->laid_out || run->key)
        return weir_fail(WEIR_ERR_STATE,
                         "%s: tensors are added before the layout and outside "
                         "steps",
                         call);
    return WEIR_OK;
}

static enum weir_status name_valid(const char *name, const char *call)
{
    if (!name || weir_checkpoint_name(name))
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG,
                     "%s: the name \"%.40s\" of %zu bytes; names are UTF-8 of at most %u bytes and "
                     "not \"__metadata__\"",
                     call, name, strlen(name), WEIR_NAME_MOST_BYTES);
}

enum weir_status weir_block_add(weir_run *run, const struct weir_tensor *tensors,
                                size_t tensor_count, uint32_t *id)
{
    WEIR_TRY(tensors_open(run, id, "weir_block_add"));
    WEIR_TRY(weir_given(tensors, "weir_block_add", "tensors"));
    for (size_t i = 0; i < tensor_count; i++) {
        if (tensors[i].struct_bytes < sizeof *tensors)
            break; /* refused below */
        WEIR_TRY(name_valid(tensors[i].name, "weir_block_add"));
        WEIR_TRY(name_valid(tensors[i].whole_name, "weir_block_add"));
    }
    return weir_model_block_add(&run->model, tensors, tensor_count, id);
}

enum weir_status weir_kept_add(weir_run *run, const struct weir_kept *kept, uint32_t *id)
{
    WEIR_TRY(tensors_open(run, id, "weir_kept_add"));
    WEIR_TRY(weir_given(kept, "weir_kept_add", "kept"));
    if (kept->struct_bytes >= sizeof *kept)
        WEIR_TRY(name_valid(kept->name, "weir_kept_add"));
    return weir_model_kept_add(&run->model, kept, id);
}

uint64_t weir_block_offset(const weir_run *run, uint32_t block, size_t tensor)
{
    if (!run || block >= run->model.thing_count || !run->model.things[block].is_block ||
        tensor >= run->model.things[block].tensor_count)
        return UINT64_MAX;
    return run->model.things[block].tensors[tensor].offset;
}

weir_stream *weir_compute_stream(weir_run *run)
{
    return run ? run->compute : NULL;
}

weir_device *weir_compute_device(weir_run *run)
{
    return run ? run->device : NULL;
}

struct weir_kernels *weir_compute_kernels(weir_run *run)
{
    return run->kernels;
}
