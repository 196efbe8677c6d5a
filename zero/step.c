/*
 * One step's calls: recorded into the key's trace when dry, replayed otherwise.
 */
#include "core/memory.h"
#include "zero/run.h"

#include <math.h>
#include <string.h>

#define KEY_MOST_BYTES 100 /* it stands in messages */

struct weir_key *weir_run_key(const weir_run *run, const char *name)
{
    for (size_t i = 0; i < run->key_count; i++)
        if (strcmp(run->keys[i]->trace->key, name) == 0)
            return run->keys[i];
    return NULL;
}

static enum weir_status key_add(weir_run *run, struct weir_key *key)
{
    WEIR_TRY(
        weir_grow(&run->keys, &run->key_capacity, run->key_count + 1, sizeof *run->keys, "keys"));
    run->keys[run->key_count++] = key;
    return WEIR_OK;
}

static enum weir_status key_make(weir_run *run, const char *name, struct weir_key **out)
{
    struct weir_key *key;
    WEIR_TRY(weir_alloc(&key, 1, sizeof *key, "key"));
    enum weir_status status = weir_trace_open(&key->trace, name);
    if (status == WEIR_OK)
        status = key_add(run, key);
    if (status != WEIR_OK)
        weir_key_free(key);
    *out = key;
    return status;
}

/* As if it had never been recorded; it has no plan yet. */
static void key_remove(weir_run *run, struct weir_key *key)
{
    size_t i = 0;
    while (run->keys[i] != key)
        i++;
    memmove(&run->keys[i], &run->keys[i + 1], (--run->key_count - i) * sizeof(struct weir_key *));
    weir_key_free(key);
}

/* A key is recorded once; before its layout again, which replaces the trace. */
static enum weir_status dry_begin(weir_run *run, const char *name)
{
    struct weir_key *key = weir_run_key(run, name);
    if (!key) {
        WEIR_TRY(key_make(run, name, &key));
    } else {
        if (key->plan)
            return weir_fail(WEIR_ERR_STATE,
                             "weir_step_begin: key \"%s\" is laid out already; "
                             "record another shape under another key",
                             name);
        struct weir_trace *trace;
        WEIR_TRY(weir_trace_open(&trace, name));
        weir_trace_close(key->trace);
        key->trace = trace;
    }
    run->key = key;
    run->dry = true;
    return WEIR_OK;
}

static enum weir_status real_begin(weir_run *run, const char *name)
{
    WEIR_TRY(weir_run_idle(run, "weir_step_begin"));
    struct weir_key *key = weir_run_key(run, name);
    if (!key || !key->score)
        return weir_fail(WEIR_ERR_STATE,
                         "weir_step_begin: key \"%s\" was not recorded and laid "
                         "out; run it dry and call weir_layout",
                         name);
    run->step_begin_ns = weir_now_ns();
    WEIR_TRY(weir_replay_begin(run->replay, key->score, run->pending));
    if (run->timed == key->score)
        run->timed = NULL; /* until this step has ended */
    run->key = key;
    run->dry = false;
    return WEIR_OK;
}

enum weir_status weir_step_begin(weir_run *run, const char *key, bool dry)
{
    WEIR_TRY(weir_run_alive(run));
    WEIR_TRY(weir_given(key, "weir_step_begin", "key"));
    if (key[0] == '\0' || strlen(key) > KEY_MOST_BYTES)
        return weir_fail(WEIR_ERR_ARG, "weir_step_begin: key \"%.40s\" of %zu bytes; give 1 to %d",
                         key, strlen(key), KEY_MOST_BYTES);
    if (run->key)
        return weir_fail(WEIR_ERR_STATE,
                         "weir_step_begin: already inside step \"%s\"; end or abort it first",
                         run->key->trace->key);
    return weir_run_result(run, dry ? dry_begin(run, key) : real_begin(run, key));
}

static enum weir_status inside(weir_run *run, const char *call)
{
    WEIR_TRY(weir_run_alive(run));
    if (!run->key)
        return weir_fail(WEIR_ERR_STATE, "%s: no step is open; call weir_step_begin first", call);
    return WEIR_OK;
}

enum weir_status weir_want(weir_run *run, const struct weir_use *uses, size_t count,
                           struct weir_view *views)
{
    WEIR_TRY(inside(run, "weir_want"));
    WEIR_TRY(weir_given(count > 0 ? (const void *)uses : "", "weir_want", "uses"));
    WEIR_TRY(weir_given(count > 0 ? (const void *)views : "", "weir_want", "views"));
    if (!run->dry)
        return weir_run_result(run, weir_replay_want(run->replay, uses, count, views));
    WEIR_TRY(weir_trace_want(run->key->trace, &run->model, uses, count));
    for (size_t i = 0; i < count; i++)
        views[i] = (struct weir_view){0};
    return WEIR_OK;
}

enum weir_status weir_want_wait(weir_run *run)
{
    WEIR_TRY(inside(run, "weir_want_wait"));
    struct weir_device_info info;
    run->table->info(run->device, &info);
    if (!info.calls_run_on_cpu)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "weir_want_wait: views of device \"%s\" are not "
                         "usable by a CPU thread; open the run on device \"host\"",
                         run->table->name);
    return run->dry ? WEIR_OK : weir_run_result(run, run->table->stream_sync(run->compute));
}

enum weir_status weir_scratch(weir_run *run, uint64_t bytes, void **out)
{
    WEIR_TRY(inside(run, "weir_scratch"));
    WEIR_TRY(weir_given(out, "weir_scratch", "out"));
    if (!run->dry)
        return weir_run_result(run, weir_replay_scratch(run->replay, bytes, out));
    *out = NULL;
    return weir_trace_scratch(run->key->trace, bytes);
}

enum weir_status weir_work(weir_run *run, double flops)
{
    WEIR_TRY(inside(run, "weir_work"));
    return run->dry ? weir_trace_work(run->key->trace, flops) : WEIR_OK;
}

enum weir_status weir_put(weir_run *run, uint32_t kept, const void *bytes)
{
    WEIR_TRY(inside(run, "weir_put"));
    WEIR_TRY(run->dry ? WEIR_OK : weir_given(bytes, "weir_put", "bytes"));
    if (!run->dry)
        return weir_run_result(run, weir_replay_put(run->replay, kept, bytes));
    return weir_trace_copy(run->key->trace, &run->model, kept, true);
}

enum weir_status weir_get(weir_run *run, uint32_t kept, void *bytes)
{
    WEIR_TRY(inside(run, "weir_get"));
    WEIR_TRY(run->dry ? WEIR_OK : weir_given(bytes, "weir_get", "bytes"));
    if (!run->dry)
        return weir_run_result(run, weir_replay_get(run->replay, kept, bytes));
    return weir_trace_copy(run->key->trace, &run->model, kept, false);
}

enum weir_status weir_done(weir_run *run, const uint32_t *ids, size_t count)
{
    WEIR_TRY(inside(run, "weir_done"));
    WEIR_TRY(weir_given(count > 0 ? (const void *)ids : "", "weir_done", "ids"));
    if (!run->dry)
        return weir_run_result(run, weir_replay_done(run->replay, ids, count));
    return weir_trace_done(run->key->trace, &run->model, ids, count);
}

/* A block's update is finished by its first want in the step. */
static void pending_clear(weir_run *run)
{
    const struct weir_trace *trace = run->key->trace;
    for (size_t i = 0; i < trace->use_count; i++)
        run->pending[trace->uses[i].id] = false;
}

static enum weir_status dry_end(weir_run *run)
{
    WEIR_TRY(weir_trace_seal(run->key->trace, &run->model));
    run->key = NULL;
    return WEIR_OK;
}

static void report_fill(weir_run *run, const struct weir_replay_stats *stats,
                        struct weir_report *report)
{
    report->step_count = run->step_count;
    report->update_count = run->update_count;
    report->nvme_read_bytes = stats->read_bytes;
    report->nvme_written_bytes = stats->written_bytes;
    report->to_device_bytes = stats->to_device_bytes;
    report->to_host_bytes = stats->to_host_bytes;
    report->stall_ns = stats->stall_ns;
    report->step_ns = weir_now_ns() - run->step_begin_ns;
    report->device_peak_bytes = weir_pool_peak_bytes(run->device_pool);
    report->host_peak_bytes = weir_pool_peak_bytes(run->host_pool);
    if (run->extent.byte_count > 0) {
        report->io_engine = weir_io_engine_name(run->io);
        report->io_direct = run->extent.direct;
        report->io_registered = weir_io_memory_registered(run->io);
    }
}

static enum weir_status real_end(weir_run *run, const struct weir_update *update,
                                 struct weir_report *report)
{
    struct weir_replay_stats stats;
    WEIR_TRY(weir_replay_end(run->replay, &stats));
    pending_clear(run);
    WEIR_TRY(weir_optimizer_verify(run));
    struct weir_report full = {.struct_bytes = report ? report->struct_bytes : sizeof full};
    if (update) {
        run->step_count++;
        WEIR_TRY(weir_optimizer_step(run, update, &full));
    }
    report_fill(run, &stats, &full);
    run->timed = run->timeline ? run->key->score : NULL;
    run->key = NULL;
    if (report)
        memcpy(report, &full, full.struct_bytes < sizeof full ? full.struct_bytes : sizeof full);
    return WEIR_OK;
}

static enum weir_status update_valid(const struct weir_update *u)
{
    if (!u)
        return WEIR_OK;
    if (u->struct_bytes < sizeof *u)
        return weir_fail(WEIR_ERR_ARG,
                         "weir_step_end: update.struct_bytes is %zu; set it to the struct's size, "
                         "%zu",
                         u->struct_bytes, sizeof *u);
    const struct {
        const char *name;
        float value, below;
    } fields[] = {
        {"lr", u->lr, INFINITY},     {"beta1", u->beta1, 1},
        {"beta2", u->beta2, 1},      {"eps", u->eps, INFINITY},
        {"clip", u->clip, INFINITY}, {"weight_decay", u->weight_decay, INFINITY},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!(fields[i].value >= 0 && fields[i].value < fields[i].below))
            return weir_fail(WEIR_ERR_ARG,
                             "weir_step_end: update.%s is %g; betas lie in [0, 1), the rest is "
                             "finite and not negative",
                             fields[i].name, (double)fields[i].value);
    return WEIR_OK;
}

enum weir_status weir_step_end(weir_run *run, const struct weir_update *update,
                               struct weir_report *report)
{
    WEIR_TRY(inside(run, "weir_step_end"));
    WEIR_TRY(update_valid(update));
    if (report)
        WEIR_TRY(weir_given_struct(&report->struct_bytes, "weir_step_end", "report"));
    return weir_run_result(run, run->dry ? dry_end(run) : real_end(run, update, report));
}

enum weir_status weir_step_abort(weir_run *run)
{
    WEIR_TRY(inside(run, "weir_step_abort"));
    if (run->dry) {
        key_remove(run, run->key);
        run->key = NULL;
        return WEIR_OK;
    }
    WEIR_TRY(weir_run_result(run, weir_replay_abort(run->replay)));
    pending_clear(run);
    run->key = NULL;
    return weir_run_result(run, weir_optimizer_verify(run));
}
