#include "offload/timeline.h"
#include "core/file.h"
#include "offload/dump_internal.h"
#include "offload/replay_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From what arrives to what leaves. */
static const enum weir_lane rows[WEIR_LANE_COUNT] = {
    WEIR_LANE_READ,    WEIR_LANE_UPDATE,  WEIR_LANE_TO_DEVICE, WEIR_LANE_COLLECTIVE,
    WEIR_LANE_COMPUTE, WEIR_LANE_TO_HOST, WEIR_LANE_WRITE};

struct out {
    const struct weir_score *score;
    const struct weir_model *model;
    const char *path;
    int fd;
    uint64_t offset_bytes;
    char bytes[16384];
    size_t count;
};

static enum weir_status flush(struct out *o)
{
    int error = weir_file_write(o->fd, o->bytes, o->count, o->offset_bytes);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error,
                               "timeline \"%s\": cannot be written; free space "
                               "there or give another file",
                               o->path);
    o->offset_bytes += o->count;
    o->count = 0;
    return WEIR_OK;
}

static enum weir_status text_add(struct out *o, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        size_t n = sizeof o->bytes - o->count < left ? sizeof o->bytes - o->count : left;
        memcpy(o->bytes + o->count, text, n);
        o->count += n;
        text += n;
        left -= n;
        if (o->count == sizeof o->bytes)
            WEIR_TRY(flush(o));
    }
    return WEIR_OK;
}

/* What was cut to fit ends with a whole character: JSON is UTF-8. */
static void character_finish(char *text)
{
    size_t end = strlen(text), begin = end;
    while (begin > 0 && ((unsigned char)text[begin - 1] & 0xC0) == 0x80)
        begin--;
    if (begin == 0)
        return;
    unsigned char lead = (unsigned char)text[begin - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (end - begin + 1 < need)
        text[begin - 1] = 0;
}

/* Takes the event. */
static enum weir_status event_add(struct out *o, json_t *event)
{
    char *text = event ? json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(event);
    if (!text)
        return weir_fail(WEIR_ERR_NOMEM, "timeline \"%s\": no memory for an event", o->path);
    enum weir_status status = text_add(o, ",\n");
    if (status == WEIR_OK)
        status = text_add(o, text);
    free(text);
    return status;
}

static enum weir_status row_name(struct out *o, int row, const char *lane, uint32_t copy)
{
    char name[64];
    snprintf(name, sizeof name, copy > 0 ? "%s %u" : "%s", lane, copy + 1);
    WEIR_TRY(event_add(o, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", "thread_name", "ph",
                                    "M", "pid", 1, "tid", row, "args", "name", name)));
    return event_add(o, json_pack("{s:s, s:s, s:i, s:i, s:{s:i}}", "name", "thread_sort_index",
                                  "ph", "M", "pid", 1, "tid", row, "args", "sort_index", row));
}

/* The stage's first want in words: "want L0.weight:GRAD x0.1:READ"; "" if it has none. */
static void stage_describe(const struct out *o, uint32_t stage, char *out, size_t out_bytes)
{
    const struct weir_trace *trace = o->score->trace;
    out[0] = 0;
    for (size_t i = 0; i < trace->event_count && !out[0]; i++)
        if (trace->events[i].kind == WEIR_EVENT_WANT && trace->events[i].stage == stage)
            weir_trace_describe(trace, o->model, i, out, out_bytes);
}

/* Named by what is wanted first, and how: "L0.weight:GRAD". */
static json_t *compute_event(const struct out *o, const struct weir_op *op)
{
    char event[256], name[256] = "compute";
    stage_describe(o, op->thing, event, sizeof event);
    character_finish(event);
    (void)sscanf(event, "want %255s", name);
    return json_pack("{s:s, s:{s:i, s:s}}", "name", name, "args", "stage", (int)op->thing, "event",
                     event);
}

static json_t *moving_event(const struct out *o, const struct weir_op *op)
{
    const struct weir_thing *thing = &o->model->things[op->thing];
    bool transfer = op->kind <= WEIR_OP_D2H;
    uint64_t bytes = op->places[0].bytes;
    for (int i = 1; !transfer && i < WEIR_OP_PLACES; i++)
        bytes += op->places[i].bytes;
    char name[256];
    weir_op_name(o->model, op, name, sizeof name);
    character_finish(name);
    return json_pack("{s:s, s:{s:i, s:s, s:s, s:i, s:I, s:i}}", "name", name, "args", "op",
                     (int)(op - o->score->plan->ops), "kind", weir_kind_names[op->kind],
                     thing->is_block ? "block" : "kept", thing->name, "window", (int)op->window,
                     "bytes", (json_int_t)bytes, "stage", (int)op->stage);
}

static enum weir_status op_add(struct out *o, const struct weir_op *op, int row)
{
    const struct weir_op_time *time = weir_op_time_of(o->score, op);
    json_t *event = op->kind == WEIR_OP_COMPUTE ? compute_event(o, op) : moving_event(o, op);
    uint64_t from = time->begin_ns - o->score->begin_ns;
    if (event && json_object_update_new(
                     event, json_pack("{s:s, s:i, s:i, s:f, s:f}", "ph", "X", "pid", 1, "tid", row,
                                      "ts", (double)from / 1e3, "dur",
                                      (double)(time->end_ns - time->begin_ns) / 1e3)) != 0) {
        json_decref(event);
        event = NULL;
    }
    return event_add(o, event);
}

/* Ops of a lane begin in order; one that begins before another's end takes the next free row. */
static enum weir_status lane_add(struct out *o, enum weir_lane lane, int first_row)
{
    uint64_t ends[WEIR_LANE_SLOTS] = {0};
    const struct weir_score *score = o->score;
    WEIR_TRY(row_name(o, first_row, weir_lane_names[lane], 0));
    for (uint32_t i = score->first[lane]; i < score->first[lane + 1]; i++) {
        const struct weir_op *op = &score->plan->ops[score->order[i]];
        const struct weir_op_time *time = weir_op_time_of(score, op);
        if (time->begin_ns == 0 || time->end_ns == 0)
            continue;
        uint32_t row = 0;
        while (row + 1 < WEIR_LANE_SLOTS && ends[row] > time->begin_ns)
            row++;
        if (ends[row] == 0 && row > 0)
            WEIR_TRY(row_name(o, first_row + (int)row, weir_lane_names[lane], row));
        ends[row] = time->end_ns;
        WEIR_TRY(op_add(o, op, first_row + (int)row));
    }
    return WEIR_OK;
}

static enum weir_status all_add(struct out *o)
{
    WEIR_TRY(text_add(o, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                         "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,"
                         "\"args\":{\"name\":\"weir\"}}"));
    for (int i = 0; i < WEIR_LANE_COUNT; i++)
        WEIR_TRY(lane_add(o, rows[i], 1 + i * (int)WEIR_LANE_SLOTS));
    WEIR_TRY(text_add(o, "\n]}\n"));
    return flush(o);
}

enum weir_status weir_timeline_file(const struct weir_score *score, const struct weir_model *model,
                                    const char *path)
{
    struct out out = {.score = score, .model = model, .path = path};
    int error = weir_file_open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666, &out.fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error,
                               "timeline \"%s\": cannot be opened; give another file", path);
    enum weir_status status = all_add(&out);
    error = status == WEIR_OK ? weir_file_sync(out.fd) : 0;
    close(out.fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error,
                               "timeline \"%s\": did not reach the disk; give another file", path);
    return status;
}
