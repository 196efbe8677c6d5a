#include "offload/trace.h"

#include "core/memory.h"

#include <stdio.h>
#include <string.h>

static const char *const access_names[] = {"READ", "GRAD", "ADD", "WRITE", "NEW", "CHANGE", "LAST"};
#define ACCESS_COUNT (sizeof access_names / sizeof *access_names)

enum weir_status weir_trace_open(struct weir_trace **out, const char *key)
{
    struct weir_trace *trace;
    WEIR_TRY(weir_alloc(&trace, 1, sizeof *trace, "a trace"));
    enum weir_status status = weir_strdup(&trace->key, key);
    if (status != WEIR_OK) {
        weir_trace_close(trace);
        return status;
    }
    *out = trace;
    return WEIR_OK;
}

void weir_trace_close(struct weir_trace *trace)
{
    if (!trace)
        return;
    weir_free(trace->key);
    weir_free(trace->events);
    weir_free(trace->uses);
    weir_free(trace->dones);
    weir_free(trace->stage_flops);
    weir_free(trace->held);
    weir_free(trace->latest);
    weir_free(trace);
}

uint64_t weir_trace_bytes(const struct weir_trace *trace)
{
    return sizeof *trace + strlen(trace->key) + 1 + trace->event_capacity * sizeof *trace->events +
           trace->use_capacity * sizeof *trace->uses + trace->done_capacity * sizeof *trace->dones +
           trace->stage_capacity * sizeof *trace->stage_flops +
           trace->held_capacity * sizeof *trace->held +
           trace->latest_capacity * sizeof *trace->latest;
}

static enum weir_status open_required(const struct weir_trace *trace, const char *call)
{
    if (trace->sealed)
        return weir_fail(WEIR_ERR_STATE, "step \"%s\": %s after its end; begin a step first",
                         trace->key, call);
    if (trace->event_count >= UINT32_MAX / 2 || trace->use_count >= UINT32_MAX / 2)
        return weir_fail(WEIR_ERR_NOMEM, "step \"%s\": more than %u events; cut the step",
                         trace->key, UINT32_MAX / 2);
    return WEIR_OK;
}

static enum weir_status thing_find(const struct weir_trace *trace, const struct weir_model *model,
                                   uint32_t id, const struct weir_thing **out)
{
    if (id >= model->thing_count)
        return weir_fail(WEIR_ERR_ARG, "step \"%s\": id %u, but %zu tensors and blocks are known",
                         trace->key, id, model->thing_count);
    *out = &model->things[id];
    return WEIR_OK;
}

/* The innermost held use of id: its position in held[], or held_count. */
static size_t held_find(const struct weir_trace *trace, uint32_t id)
{
    for (size_t i = trace->held_count; i-- > 0;)
        if (trace->uses[trace->held[i]].id == id)
            return i;
    return trace->held_count;
}

static const struct weir_trace_use *latest_use(const struct weir_trace *trace, uint32_t id)
{
    if (id >= trace->latest_capacity || trace->latest[id] == 0)
        return NULL;
    return &trace->uses[trace->latest[id] - 1];
}

static enum weir_status stage_begin(struct weir_trace *trace)
{
    if (trace->stage_open)
        return WEIR_OK;
    WEIR_TRY(weir_grow(&trace->stage_flops, &trace->stage_capacity, trace->stage_count + 1,
                       sizeof *trace->stage_flops, "a trace's stages"));
    trace->stage_flops[trace->stage_count++] = 0;
    trace->stage_open = true;
    return WEIR_OK;
}

static enum weir_status event_add(struct weir_trace *trace, const struct weir_trace_event *event)
{
    WEIR_TRY(weir_grow(&trace->events, &trace->event_capacity, trace->event_count + 1,
                       sizeof *trace->events, "a trace's events"));
    trace->events[trace->event_count] = *event;
    trace->events[trace->event_count++].stage = (uint32_t)trace->stage_count - 1;
    return WEIR_OK;
}

static enum weir_status block_check(const struct weir_trace *trace, const struct weir_thing *block,
                                    struct weir_use use)
{
    if (use.access > WEIR_WRITE)
        return weir_fail(
            WEIR_ERR_ARG,
            "want \"%s\": %s is for kept tensors; a block takes READ, GRAD, ADD, WRITE",
            block->name, access_names[use.access]);
    if (use.access == WEIR_ADD && block->trained_element_count == 0)
        return weir_fail(WEIR_ERR_ARG,
                         "want \"%s\": ADD, but all its tensors are frozen; leave the want out",
                         block->name);
    for (size_t i = 0; i < trace->held_count; i++) {
        const struct weir_trace_use *held = &trace->uses[trace->held[i]];
        if (held->id == use.id && (held->access == WEIR_WRITE || use.access == WEIR_WRITE))
            return weir_fail(WEIR_ERR_STATE,
                             "want \"%s\": %s while it is held with %s; WRITE is wanted alone",
                             block->name, access_names[use.access], access_names[held->access]);
    }
    return WEIR_OK;
}

static enum weir_status kept_check(const struct weir_trace *trace, const struct weir_thing *kept,
                                   struct weir_use use)
{
    if (use.access == WEIR_GRAD || use.access == WEIR_ADD || use.access == WEIR_WRITE)
        return weir_fail(
            WEIR_ERR_ARG,
            "want \"%s\": %s is for blocks; a kept tensor takes NEW, READ, CHANGE, LAST",
            kept->name, access_names[use.access]);
    if (held_find(trace, use.id) < trace->held_count)
        return weir_fail(WEIR_ERR_STATE, "want \"%s\": it is held already; done it first",
                         kept->name);
    if (use.access == WEIR_NEW)
        return WEIR_OK;
    const struct weir_trace_use *latest = latest_use(trace, use.id);
    if (!latest)
        return weir_fail(WEIR_ERR_STATE, "want \"%s\": %s before it was born; want it NEW first",
                         kept->name, access_names[use.access]);
    if (latest->access == WEIR_LAST)
        return weir_fail(WEIR_ERR_STATE, "want \"%s\": %s after its LAST; want it NEW first",
                         kept->name, access_names[use.access]);
    return WEIR_OK;
}

static enum weir_status use_add(struct weir_trace *trace, const struct weir_model *model,
                                struct weir_use use)
{
    const struct weir_thing *thing = NULL;
    WEIR_TRY(thing_find(trace, model, use.id, &thing));
    if ((size_t)use.access >= ACCESS_COUNT)
        return weir_fail(WEIR_ERR_ARG, "want \"%s\": access %d does not exist", thing->name,
                         (int)use.access);
    WEIR_TRY(thing->is_block ? block_check(trace, thing, use) : kept_check(trace, thing, use));
    WEIR_TRY(weir_grow(&trace->uses, &trace->use_capacity, trace->use_count + 1,
                       sizeof *trace->uses, "a trace's uses"));
    WEIR_TRY(weir_grow(&trace->held, &trace->held_capacity, trace->held_count + 1,
                       sizeof *trace->held, "a trace's held uses"));
    struct weir_trace_use *out = &trace->uses[trace->use_count];
    *out = (struct weir_trace_use){.id = use.id,
                                   .access = use.access,
                                   .stage_first = (uint32_t)trace->stage_count - 1,
                                   .stage_end = UINT32_MAX};
    const struct weir_trace_use *latest = latest_use(trace, use.id);
    if (!thing->is_block && latest)
        out->life = latest->life + (use.access == WEIR_NEW);
    if (use.access != WEIR_NEW)
        out->recompute_flops = thing->recompute_flops;
    trace->held[trace->held_count++] = (uint32_t)trace->use_count++;
    trace->latest[use.id] = (uint32_t)trace->use_count;
    return WEIR_OK;
}

/* Take back a want that failed in its middle. */
static void want_undo(struct weir_trace *trace, size_t use_count, bool stage_open)
{
    trace->held_count -= trace->use_count - use_count;
    memset(trace->latest, 0, trace->latest_capacity * sizeof *trace->latest);
    for (size_t i = 0; i < use_count; i++)
        trace->latest[trace->uses[i].id] = (uint32_t)i + 1;
    trace->use_count = use_count;
    trace->stage_count -= trace->stage_open && !stage_open;
    trace->stage_open = stage_open;
}

enum weir_status weir_trace_want(struct weir_trace *trace, const struct weir_model *model,
                                 const struct weir_use *uses, size_t count)
{
    WEIR_TRY(open_required(trace, "want"));
    if (count == 0 || count > UINT32_MAX / 4)
        return weir_fail(WEIR_ERR_ARG, "step \"%s\": want of %zu; name at least one", trace->key,
                         count);
    WEIR_TRY(weir_grow(&trace->latest, &trace->latest_capacity, model->thing_count,
                       sizeof *trace->latest, "a trace's latest uses"));
    size_t first = trace->use_count;
    bool stage_open = trace->stage_open;
    enum weir_status status = stage_begin(trace);
    for (size_t i = 0; status == WEIR_OK && i < count; i++)
        status = use_add(trace, model, uses[i]);
    if (status == WEIR_OK)
        status = event_add(trace, &(struct weir_trace_event){.kind = WEIR_EVENT_WANT,
                                                             .first = (uint32_t)first,
                                                             .count = (uint32_t)count});
    if (status != WEIR_OK)
        want_undo(trace, first, stage_open);
    return status;
}

static enum weir_status done_check(const struct weir_trace *trace, const struct weir_model *model,
                                   const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct weir_thing *thing = NULL;
        WEIR_TRY(thing_find(trace, model, ids[i], &thing));
        size_t held = 0, given = 0;
        for (size_t k = 0; k < trace->held_count; k++)
            held += trace->uses[trace->held[k]].id == ids[i];
        for (size_t k = 0; k <= i; k++)
            given += ids[k] == ids[i];
        if (given > held)
            return weir_fail(WEIR_ERR_STATE, "done \"%s\": it is not held; want it first",
                             thing->name);
    }
    return WEIR_OK;
}

enum weir_status weir_trace_done(struct weir_trace *trace, const struct weir_model *model,
                                 const uint32_t *ids, size_t count)
{
    WEIR_TRY(open_required(trace, "done"));
    if (count == 0 || count > trace->held_count)
        return weir_fail(WEIR_ERR_STATE, "step \"%s\": done of %zu while %zu are held", trace->key,
                         count, trace->held_count);
    WEIR_TRY(done_check(trace, model, ids, count));
    WEIR_TRY(weir_grow(&trace->dones, &trace->done_capacity, trace->done_count + count,
                       sizeof *trace->dones, "a trace's dones"));
    WEIR_TRY(event_add(trace, &(struct weir_trace_event){.kind = WEIR_EVENT_DONE,
                                                         .first = (uint32_t)trace->done_count,
                                                         .count = (uint32_t)count}));
    for (size_t i = 0; i < count; i++) {
        size_t at = held_find(trace, ids[i]);
        uint32_t use = trace->held[at];
        trace->uses[use].stage_end = (uint32_t)trace->stage_count;
        trace->dones[trace->done_count++] = use;
        trace->held_count--;
        memmove(&trace->held[at], &trace->held[at + 1],
                (trace->held_count - at) * sizeof *trace->held);
    }
    trace->stage_open = false;
    return WEIR_OK;
}

/* Scratches, puts and gets belong to a want; after a done they open the next stage. */
static enum weir_status inner_event_add(struct weir_trace *trace,
                                        const struct weir_trace_event *event)
{
    bool stage_open = trace->stage_open;
    WEIR_TRY(stage_begin(trace));
    enum weir_status status = event_add(trace, event);
    if (status != WEIR_OK && !stage_open) {
        trace->stage_count--;
        trace->stage_open = false;
    }
    return status;
}

/* The event of the want that is held innermost. */
static uint32_t innermost_want(const struct weir_trace *trace)
{
    uint32_t use = trace->held[trace->held_count - 1];
    size_t at = trace->event_count - 1;
    while (trace->events[at].kind != WEIR_EVENT_WANT || use < trace->events[at].first)
        at--;
    return (uint32_t)at;
}

enum weir_status weir_trace_scratch(struct weir_trace *trace, uint64_t bytes)
{
    WEIR_TRY(open_required(trace, "scratch"));
    if (trace->held_count == 0)
        return weir_fail(WEIR_ERR_STATE,
                         "step \"%s\": scratch of %llu bytes outside a want; it ends with the done "
                         "of the innermost want",
                         trace->key, (unsigned long long)bytes);
    if (bytes == 0 || bytes > UINT64_MAX / 2)
        return weir_fail(WEIR_ERR_ARG, "step \"%s\": scratch of %llu bytes", trace->key,
                         (unsigned long long)bytes);
    WEIR_TRY(inner_event_add(trace, &(struct weir_trace_event){.kind = WEIR_EVENT_SCRATCH,
                                                               .first = trace->scratch_count,
                                                               .count = innermost_want(trace),
                                                               .bytes = bytes}));
    trace->scratch_count++;
    return WEIR_OK;
}

enum weir_status weir_trace_work(struct weir_trace *trace, double flops)
{
    WEIR_TRY(open_required(trace, "work"));
    if (trace->stage_count == 0)
        return weir_fail(WEIR_ERR_STATE, "step \"%s\": work before the first want", trace->key);
    if (!(flops >= 0 && flops < 1e300))
        return weir_fail(WEIR_ERR_ARG, "step \"%s\": work of %g operations", trace->key, flops);
    trace->stage_flops[trace->stage_count - 1] += flops;
    return WEIR_OK;
}

enum weir_status weir_trace_copy(struct weir_trace *trace, const struct weir_model *model,
                                 uint32_t kept, bool put)
{
    const char *call = put ? "put" : "get";
    WEIR_TRY(open_required(trace, call));
    const struct weir_thing *thing = NULL;
    WEIR_TRY(thing_find(trace, model, kept, &thing));
    if (thing->is_block || thing->optional)
        return weir_fail(WEIR_ERR_ARG, "%s \"%s\": %s; only kept tensors that are not optional",
                         call, thing->name, thing->is_block ? "a block" : "it may be refused");
    size_t at = held_find(trace, kept);
    if (at == trace->held_count)
        return weir_fail(WEIR_ERR_STATE, "%s \"%s\": it is not held; want it first", call,
                         thing->name);
    enum weir_access access = trace->uses[trace->held[at]].access;
    if (put && access != WEIR_NEW && access != WEIR_CHANGE)
        return weir_fail(WEIR_ERR_STATE, "put \"%s\": it is held with %s; want it NEW or CHANGE",
                         thing->name, access_names[access]);
    WEIR_TRY(inner_event_add(
        trace, &(struct weir_trace_event){.kind = put ? WEIR_EVENT_PUT : WEIR_EVENT_GET,
                                          .first = trace->held[at],
                                          .count = trace->put_get_count}));
    trace->put_get_count++;
    return WEIR_OK;
}

static void grads_mark(struct weir_trace *trace, const struct weir_model *model)
{
    memset(trace->latest, 0, trace->latest_capacity * sizeof *trace->latest);
    for (size_t i = 0; i < trace->use_count; i++) {
        struct weir_trace_use *use = &trace->uses[i];
        const struct weir_thing *thing = &model->things[use->id];
        bool grad = use->access == WEIR_GRAD || use->access == WEIR_ADD;
        if (!grad || thing->trained_element_count == 0)
            continue;
        uint32_t *latest = &trace->latest[use->id];
        use->grad_fresh = *latest == 0;
        use->grad_last = true;
        if (*latest)
            trace->uses[*latest - 1].grad_last = false;
        *latest = (uint32_t)i + 1;
    }
}

/* A scratch lasts until all of its want is done. */
static void scratches_end(struct weir_trace *trace)
{
    for (size_t i = 0; i < trace->event_count; i++) {
        struct weir_trace_event *event = &trace->events[i];
        if (event->kind != WEIR_EVENT_SCRATCH)
            continue;
        const struct weir_trace_event *want = &trace->events[event->count];
        for (uint32_t u = want->first; u < want->first + want->count; u++)
            if (trace->uses[u].stage_end > event->stage_end)
                event->stage_end = trace->uses[u].stage_end;
    }
}

enum weir_status weir_trace_seal(struct weir_trace *trace, const struct weir_model *model)
{
    WEIR_TRY(open_required(trace, "end"));
    if (trace->held_count > 0)
        return weir_fail(WEIR_ERR_STATE, "step \"%s\": ends while \"%s\" is held; done it first",
                         trace->key, model->things[trace->uses[trace->held[0]].id].name);
    if (trace->stage_count == 0)
        return weir_fail(WEIR_ERR_STATE, "step \"%s\": ends without a want; nothing to plan",
                         trace->key);
    grads_mark(trace, model);
    scratches_end(trace);
    trace->sealed = true;
    return WEIR_OK;
}

/* Appends; what does not fit is cut. */
static void append(char **at, char *end, const char *text)
{
    while (*text && *at + 1 < end)
        *(*at)++ = *text++;
    **at = '\0';
}

static void append_name(char **at, char *end, const struct weir_model *model, uint32_t id)
{
    append(at, end, " ");
    append(at, end, id < model->thing_count ? model->things[id].name : "?");
}

static void append_use(char **at, char *end, const struct weir_model *model, uint32_t id,
                       enum weir_access access)
{
    append_name(at, end, model, id);
    append(at, end, ":");
    append(at, end, (size_t)access < ACCESS_COUNT ? access_names[access] : "?");
}

void weir_want_describe(const struct weir_model *model, const struct weir_use *uses, size_t count,
                        char *out, size_t out_bytes)
{
    if (out_bytes == 0)
        return;
    char *at = out, *end = out + out_bytes;
    append(&at, end, "want");
    for (size_t i = 0; i < count; i++)
        append_use(&at, end, model, uses[i].id, uses[i].access);
}

void weir_trace_describe(const struct weir_trace *trace, const struct weir_model *model,
                         size_t event, char *out, size_t out_bytes)
{
    static const char *const kinds[] = {"want", "done", "scratch", "put", "get"};
    if (out_bytes == 0)
        return;
    const struct weir_trace_event *e = &trace->events[event];
    char *at = out, *end = out + out_bytes, number[40];
    append(&at, end, kinds[e->kind]);
    switch (e->kind) {
    case WEIR_EVENT_WANT:
        for (uint32_t i = e->first; i < e->first + e->count; i++)
            append_use(&at, end, model, trace->uses[i].id, trace->uses[i].access);
        break;
    case WEIR_EVENT_DONE:
        for (uint32_t i = e->first; i < e->first + e->count; i++)
            append_name(&at, end, model, trace->uses[trace->dones[i]].id);
        break;
    case WEIR_EVENT_SCRATCH:
        snprintf(number, sizeof number, " %llu bytes", (unsigned long long)e->bytes);
        append(&at, end, number);
        break;
    case WEIR_EVENT_PUT:
    case WEIR_EVENT_GET:
        append_name(&at, end, model, trace->uses[e->first].id);
        break;
    }
}
