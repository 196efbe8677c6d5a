/*
 * From recorded keys to slabs: plan all, prove all, then make device slab, host slab, extent.
 */
#include "core/memory.h"
#include "core/pages.h"
#include "zero/run.h"

#include <string.h>

#define PAGE 4096u

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static uint64_t less(uint64_t budget, uint64_t taken)
{
    return budget == UINT64_MAX ? budget : budget > taken ? budget - taken : 0;
}

/* Bytes that the run holds besides what plans address. */
struct fixed {
    uint64_t device_bytes, host_bytes, buffer_bytes;
};

static uint64_t counts_bytes(const weir_run *run)
{
    return round_up(run->model.thing_count * sizeof(uint64_t) + 1);
}

static struct fixed fixed_find(const weir_run *run)
{
    uint64_t partials = round_up(run->model.trained_segment_count * sizeof(double) + 1);
    uint64_t counts = counts_bytes(run);
    uint64_t apart = run->reaches_host ? 0 : counts; /* of the device: there, and fetched */
    /* With an NVMe tier the ring serves calls outside steps; it holds two windows. */
    uint64_t buffer = run->options.nvme_path ? 0 : round_up(weir_home_buffer_bytes(&run->model));
    return (struct fixed){partials + apart, partials + counts + apart + buffer, buffer};
}

/* The keys that have no plan yet. */
static enum weir_status traces_list(const weir_run *run, const struct weir_trace ***out,
                                    size_t *count)
{
    WEIR_TRY(weir_alloc(out, run->key_count, sizeof **out, "trace list"));
    *count = 0;
    for (size_t i = 0; i < run->key_count; i++)
        if (!run->keys[i]->plan)
            (*out)[(*count)++] = run->keys[i]->trace;
    return WEIR_OK;
}

/* The largest extent that the plans ask for; homes end where plans know. */
static uint64_t hashes_bytes(const weir_run *run, struct weir_plan *const *plans, size_t count)
{
    uint64_t most = 0;
    for (size_t i = 0; i < count; i++)
        most = plans[i]->nvme_bytes > most ? plans[i]->nvme_bytes : most;
    return run->options.verify && !run->laid_out && most > 0
               ? weir_extent_verify_bytes(most, run->drives.count)
               : 0;
}

static uint64_t tables_bytes(const weir_run *run, struct weir_plan *const *plans,
                             const struct weir_trace *const *traces, size_t count)
{
    uint64_t bytes = hashes_bytes(run, plans, count);
    for (size_t i = 0; i < count; i++)
        bytes += weir_plan_bytes(plans[i]) + weir_trace_bytes(traces[i]) +
                 weir_score_bytes(plans[i], traces[i]) +
                 (run->timeline ? weir_score_time_bytes(plans[i]) : 0);
    return bytes;
}

static void plans_free(struct weir_plan **plans, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        weir_plan_free(plans[i]);
        plans[i] = NULL;
    }
}

static bool within(const weir_run *run, const struct weir_homes *homes, uint64_t overhead)
{
    return run->options.host_bytes == UINT64_MAX ||
           homes->host_end + overhead <= run->options.host_bytes;
}

/* Traces and plans count against the host budget (7d) and are known only once made: plan, count,
 * and if that passes the budget plan again with so much less. */
static enum weir_status plan_all(weir_run *run, const struct weir_trace *const *traces,
                                 size_t count, struct weir_plan **plans, struct weir_homes **homes,
                                 uint64_t *tables)
{
    struct fixed fixed = fixed_find(run);
    bool given = *homes != NULL;
    *tables = 0;
    for (int attempt = 0; attempt < 4; attempt++) {
        uint64_t overhead = fixed.host_bytes + *tables + (uint64_t)run->charged_bytes;
        struct weir_limits limits = {
            .device_bytes =
                given ? (*homes)->device_end : less(run->options.device_bytes, fixed.device_bytes),
            .host_bytes = given ? (*homes)->host_end : less(run->options.host_bytes, overhead),
            .nvme = run->options.nvme_path != NULL,
            .ring_bytes = run->options.ring_bytes,
        };
        WEIR_TRY(weir_plan_best(plans, homes, &run->model, traces, count, &limits, &run->cost));
        uint64_t now = round_up(tables_bytes(run, plans, traces, count));
        if (given || (*homes && within(run, *homes, fixed.host_bytes + now))) {
            *tables = now;
            return WEIR_OK;
        }
        *tables = now + now / 16;
        plans_free(plans, count);
        weir_homes_free(*homes);
        *homes = NULL;
    }
    return weir_fail(WEIR_ERR_NOMEM,
                     "host: traces and plans of %zu keys take %llu bytes beside %llu fixed ones, "
                     "%llu given; raise host_bytes",
                     count, (unsigned long long)*tables, (unsigned long long)fixed.host_bytes,
                     (unsigned long long)run->options.host_bytes);
}

static enum weir_status cost_ready(weir_run *run)
{
    if (run->have_cost)
        return WEIR_OK;
    weir_numa_enter(&run->numa);
    enum weir_status status = weir_cost_measure(run, &run->cost);
    weir_numa_leave(&run->numa);
    run->have_cost = status == WEIR_OK;
    return status;
}

static void homes_count(const weir_run *run, const struct weir_homes *homes,
                        struct weir_prediction *out)
{
    uint64_t *sums[3] = {out->weight_bytes, out->grad_bytes, out->state_bytes};
    for (size_t i = 0; i < run->model.thing_count; i++)
        for (uint32_t w = 0; w < run->model.things[i].window_count; w++)
            for (uint32_t p = 0; p < 3; p++) {
                const struct weir_place *place = &homes->blocks[i][w].part[p];
                if (place->bytes > 0)
                    sums[p][place->tier] += place->bytes;
            }
}

static enum weir_status prediction_fill(weir_run *run, const struct weir_plan *plan,
                                        const struct weir_trace *trace,
                                        const struct weir_homes *homes, struct weir_prediction *out)
{
    struct fixed fixed = fixed_find(run);
    struct weir_plan_cost cost;
    WEIR_TRY(weir_plan_cost(plan, trace, &run->cost, NULL, &cost));
    size_t struct_bytes = out->struct_bytes;
    struct weir_prediction filled = {
        .struct_bytes = struct_bytes,
        .device_bytes = homes->device_end + fixed.device_bytes,
        .host_bytes =
            homes->host_end + fixed.host_bytes +
            round_up(tables_bytes(run, (struct weir_plan *const[]){(void *)plan}, &trace, 1)),
        .nvme_bytes = plan->nvme_bytes,
        .refused_bytes = plan->refused_bytes,
        .transient_bytes = plan->device_transient_bytes,
        .ring_bytes = plan->ring_bytes,
        .step_read_bytes = cost.read_bytes,
        .step_written_bytes = cost.written_bytes,
        .step_to_device_bytes = cost.to_device_bytes,
        .step_to_host_bytes = cost.to_host_bytes,
        .step_s = cost.step_s,
        .floor_s = cost.floor_s,
        .compute_s = cost.compute_s,
        .io_s = cost.io_s,
        .compute_flops_per_s = run->cost.compute_flops_per_s,
        .plan_hash = weir_plan_hash(plan, homes),
    };
    for (int t = 0; t < WEIR_TIER_COUNT; t++)
        filled.kept_bytes[t] = plan->kept_wait_bytes[t];
    homes_count(run, homes, &filled);
    memcpy(out, &filled, struct_bytes < sizeof filled ? struct_bytes : sizeof filled);
    return WEIR_OK;
}

enum weir_status weir_predict(weir_run *run, const char *name, struct weir_prediction *out)
{
    WEIR_TRY(weir_run_alive(run));
    WEIR_TRY(weir_given(name, "weir_predict", "key"));
    WEIR_TRY(weir_given_struct(out ? &out->struct_bytes : NULL, "weir_predict", "out"));
    struct weir_key *key = weir_run_key(run, name);
    if (!key)
        return weir_fail(WEIR_ERR_ARG,
                         "weir_predict: key \"%s\" was never recorded; run its step dry first",
                         name);
    if (!key->trace->sealed)
        return weir_fail(WEIR_ERR_STATE,
                         "weir_predict: key \"%s\" is being recorded; end its dry step first",
                         name);
    WEIR_TRY(weir_run_result(run, cost_ready(run)));
    if (key->plan)
        return prediction_fill(run, key->plan, key->trace, run->homes, out);
    const struct weir_trace *trace = key->trace;
    struct weir_plan *plan = NULL;
    struct weir_homes *homes = run->homes;
    uint64_t tables;
    WEIR_TRY(plan_all(run, &trace, 1, &plan, &homes, &tables));
    enum weir_status status = prediction_fill(run, plan, trace, homes, out);
    weir_plan_free(plan);
    if (homes != run->homes)
        weir_homes_free(homes);
    return status;
}

static enum weir_status tables_make(weir_run *run)
{
    struct fixed fixed = fixed_find(run);
    uint64_t partial_bytes = round_up(run->model.trained_segment_count * sizeof(double) + 1);
    WEIR_TRY(weir_alloc(&run->pending, run->model.thing_count, sizeof *run->pending, "pending"));
    WEIR_TRY(weir_alloc(&run->owed, run->model.thing_count, sizeof *run->owed, "owed updates"));
    void *at;
    WEIR_TRY(weir_pool_take(run->device_pool, "norm partials", partial_bytes, &at));
    run->partials = at;
    WEIR_TRY(weir_pool_take(run->host_pool, "norm partials", partial_bytes, &at));
    run->norms = at;
    WEIR_TRY(weir_pool_take(run->host_pool, "error counts",
                            fixed.host_bytes - partial_bytes - fixed.buffer_bytes, &at));
    run->bad_counts = at;
    for (size_t i = 0; i < run->model.thing_count; i++)
        run->bad_counts[i] = 0;
    if (run->reaches_host)
        return WEIR_OK;
    WEIR_TRY(weir_pool_take(run->device_pool, "error counts", counts_bytes(run), &at));
    run->device_counts = at;
    return run->table->fill(run->compute, at, 0, counts_bytes(run));
}

static enum weir_status slabs_make(weir_run *run)
{
    struct fixed fixed = fixed_find(run);
    run->slab_bytes[WEIR_TIER_DEVICE] = run->homes->device_end;
    run->slab_bytes[WEIR_TIER_HOST] = run->homes->host_end;
    struct weir_pool *pools[2] = {run->device_pool, run->host_pool};
    for (int t = 0; t < 2; t++)
        if (run->slab_bytes[t] > 0)
            WEIR_TRY(weir_pool_take(pools[t], "slab", run->slab_bytes[t], &run->slabs[t]));
    run->home.buffer = run->slabs[WEIR_TIER_HOST];
    if (fixed.buffer_bytes > 0)
        WEIR_TRY(
            weir_pool_take(run->host_pool, "window buffer", fixed.buffer_bytes, &run->home.buffer));
    return WEIR_OK;
}

/* Homes begin as zeros on every tier; the extent's are written when it is made. */
static enum weir_status homes_clear(weir_run *run)
{
    const struct weir_homes *homes = run->homes;
    uint64_t device_bytes = homes->device_end - homes->device_first;
    if (device_bytes > 0)
        WEIR_TRY(run->table->fill(run->compute,
                                  (char *)run->slabs[WEIR_TIER_DEVICE] + homes->device_first, 0,
                                  device_bytes));
    if (homes->host_end > homes->host_first)
        weir_pages_clear((char *)run->slabs[WEIR_TIER_HOST] + homes->host_first,
                         homes->host_end - homes->host_first);
    return run->table->stream_sync(run->compute);
}

#define FILL_LOG_NS 5000000000u

struct fill_log {
    struct weir_log *log;
    uint64_t next_ns;
};

/* Of an extent that takes long to write. */
static void fill_progress(void *context, uint64_t done_bytes, uint64_t all_bytes)
{
    struct fill_log *fill = context;
    if (weir_now_ns() < fill->next_ns)
        return;
    fill->next_ns = weir_now_ns() + FILL_LOG_NS;
    weir_log(fill->log, WEIR_LOG_INFO, "extent: %llu of %llu MiB written",
             (unsigned long long)(done_bytes >> 20), (unsigned long long)(all_bytes >> 20));
}

static enum weir_status extent_make(weir_run *run, uint64_t nvme_bytes)
{
    struct fill_log fill = {&run->log, weir_now_ns() + FILL_LOG_NS};
    struct weir_extent_place places[WEIR_DRIVES_MOST];
    weir_drives_places(&run->drives, places);
    WEIR_TRY(weir_extent_open(&run->extent, run->io,
                              &(struct weir_extent_options){.places = places,
                                                            .place_count = run->drives.count,
                                                            .byte_count = nvme_bytes,
                                                            .verify = run->options.verify,
                                                            .progress = fill_progress,
                                                            .progress_context = &fill,
                                                            .log = &run->log}));
    return weir_drives_tune(run->io, &run->extent, run->drives.rates);
}

static enum weir_status engine_start(weir_run *run, uint64_t nvme_bytes)
{
    /* Without an NVMe tier it is the driver's place to sleep, and any engine does. */
    WEIR_TRY(weir_run_io_open(run, run->options.nvme_path ? &run->log : NULL, &run->io));
    if (nvme_bytes > 0)
        WEIR_TRY(weir_io_memory_add(run->io, run->slabs[WEIR_TIER_HOST],
                                    run->slab_bytes[WEIR_TIER_HOST]));
    if (nvme_bytes > 0)
        WEIR_TRY(extent_make(run, nvme_bytes));
    WEIR_TRY(weir_replay_open(&run->replay, &(struct weir_replay_options){
                                                .device = run->device,
                                                .updater = run->updater,
                                                .io = run->io,
                                                .extent_file = run->extent.file,
                                                .slabs = {run->slabs[0], run->slabs[1]},
                                                .model = &run->model,
                                                .hooks = weir_optimizer_hooks(run),
                                                .compute = run->compute,
                                            }));
    void *buffer = run->home.buffer;
    run->home = (struct weir_home){
        .model = &run->model,
        .homes = run->homes,
        .replay = run->replay,
        .extent_file = run->extent.file,
        .slabs = {run->slabs[0], run->slabs[1]},
        .buffer = buffer,
        .stream = run->compute,
    };
    return WEIR_OK;
}

/* All on the node of the device: slabs and who moves their bytes. */
static enum weir_status tiers_make(weir_run *run, uint64_t nvme_bytes)
{
    weir_numa_enter(&run->numa);
    enum weir_status status = tables_make(run);
    if (status == WEIR_OK)
        status = slabs_make(run);
    if (status == WEIR_OK)
        status = homes_clear(run);
    if (status == WEIR_OK)
        status = engine_start(run, nvme_bytes);
    weir_numa_leave(&run->numa);
    return status;
}

static enum weir_status scores_make(weir_run *run, struct weir_plan *const *plans)
{
    size_t next = 0;
    for (size_t i = 0; i < run->key_count; i++) {
        struct weir_key *key = run->keys[i];
        if (key->plan)
            continue;
        WEIR_TRY(weir_score_make(&key->score, plans[next++], key->trace, run->updater != NULL));
        if (run->timeline)
            WEIR_TRY(weir_score_time(key->score));
    }
    return WEIR_OK;
}

/* Hand the plans to their keys, all or none; tables_bytes are charged from now on. */
static enum weir_status keys_take(weir_run *run, struct weir_plan **plans, uint64_t tables)
{
    enum weir_status status = scores_make(run, plans);
    if (status == WEIR_OK)
        status = weir_pool_charge(run->host_pool, "traces and plans", (int64_t)tables);
    size_t next = 0;
    for (size_t i = 0; i < run->key_count; i++) {
        struct weir_key *key = run->keys[i];
        if (key->plan)
            continue;
        if (status == WEIR_OK) {
            key->plan = plans[next];
            plans[next++] = NULL;
        } else {
            weir_score_free(key->score);
            key->score = NULL;
        }
    }
    run->charged_bytes += status == WEIR_OK ? (int64_t)tables : 0;
    return status;
}

static uint64_t nvme_most(struct weir_plan *const *plans, size_t count,
                          const struct weir_homes *homes)
{
    uint64_t most = homes->nvme_end;
    for (size_t i = 0; i < count; i++)
        most = plans[i]->nvme_bytes > most ? plans[i]->nvme_bytes : most;
    return most;
}

static enum weir_status later_fits(const weir_run *run, uint64_t nvme_bytes)
{
    if (nvme_bytes > run->extent.byte_count)
        return weir_fail(WEIR_ERR_NOMEM,
                         "nvme: keys recorded after the layout need %llu bytes, the extent has "
                         "%llu; record every key before weir_layout",
                         (unsigned long long)nvme_bytes,
                         (unsigned long long)run->extent.byte_count);
    return WEIR_OK;
}

static enum weir_status layout_make(weir_run *run, struct weir_plan **plans, size_t count,
                                    uint64_t tables)
{
    uint64_t nvme_bytes = nvme_most(plans, count, run->homes);
    if (run->laid_out) {
        WEIR_TRY(later_fits(run, nvme_bytes));
        return keys_take(run, plans, tables);
    }
    if (nvme_bytes > 0) {
        struct weir_extent_place places[WEIR_DRIVES_MOST];
        weir_drives_places(&run->drives, places);
        WEIR_TRY(weir_extent_preflight(places, run->drives.count, nvme_bytes));
    }
    WEIR_TRY(tiers_make(run, nvme_bytes));
    WEIR_TRY(keys_take(run, plans, tables));
    run->laid_out = true;
    return WEIR_OK;
}

/* A first layout that failed. Before any slab was made the caller may try again, with more space on
 * the drive, say; half made, the run is good for close only. */
static void layout_drop(weir_run *run)
{
    if (run->pending) {
        run->poisoned = true;
        run->poison = *weir_last_error();
        return;
    }
    weir_homes_free(run->homes);
    run->homes = NULL;
}

enum weir_status weir_layout(weir_run *run)
{
    WEIR_TRY(weir_run_alive(run));
    if (run->key)
        return weir_fail(WEIR_ERR_STATE, "weir_layout: inside step \"%s\"; end or abort it first",
                         run->key->trace->key);
    WEIR_TRY(weir_run_result(run, cost_ready(run)));
    const struct weir_trace **traces;
    size_t count;
    WEIR_TRY(traces_list(run, &traces, &count));
    struct weir_plan **plans = NULL;
    uint64_t tables = 0;
    enum weir_status status = WEIR_OK;
    if (count == 0)
        status = weir_fail(WEIR_ERR_STATE, "weir_layout: no key was recorded since the last "
                                           "layout; run the step dry first");
    if (status == WEIR_OK)
        status = weir_alloc(&plans, count, sizeof *plans, "plan list");
    if (status == WEIR_OK)
        status = plan_all(run, traces, count, plans, &run->homes, &tables);
    if (status == WEIR_OK)
        status = layout_make(run, plans, count, tables);
    if (plans)
        plans_free(plans, count);
    weir_free(plans);
    weir_free(traces);
    if (status != WEIR_OK && !run->laid_out)
        layout_drop(run);
    return weir_run_result(run, status);
}
