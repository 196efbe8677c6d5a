#include "offload/dump_internal.h"

#include "core/memory.h"

#include <stdio.h>
#include <string.h>

const char *const weir_tier_names[WEIR_TIER_COUNT] = {"device", "host", "nvme"};
const char *const weir_lane_names[WEIR_LANE_COUNT] = {
    "read", "write", "to-device", "to-host", "update", "collective", "compute"};
const char *const weir_kind_names[WEIR_OP_KIND_COUNT] = {"READ",   "WRITE", "H2D",    "D2H",
                                                         "UPDATE", "CLEAR", "REDUCE", "COMPUTE"};
const char *const weir_part_names[WEIR_PART_KEPT + 1] = {"weight", "grad", "state", "kept"};
const char *const weir_arrive_names[2] = {"departs", "arrives"};
const char *const weir_pending_names[2] = {"always", "pending"};
const char *const weir_refused_names[2] = {"kept", "refused"};

void weir_op_name(const struct weir_model *model, const struct weir_op *op, char *out,
                  size_t out_bytes)
{
    bool transfer = op->kind <= WEIR_OP_D2H;
    snprintf(out, out_bytes, "%s%s%s %s[%u]", weir_kind_names[op->kind], transfer ? " " : "",
             transfer ? weir_part_names[op->part] : "", model->things[op->thing].name, op->window);
}

struct text {
    char *bytes;
    size_t count, capacity;
    enum weir_status status; /* the first failure; later additions do nothing */
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    char piece[512]; /* more than the longest line of numbers */
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    if (text->status == WEIR_OK)
        text->status = weir_grow(&text->bytes, &text->capacity, text->count + (size_t)length + 1, 1,
                                 "a plan's text");
    if (text->status != WEIR_OK)
        return;
    memcpy(text->bytes + text->count, piece, (size_t)length + 1);
    text->count += (size_t)length;
}

static void add_name(struct text *text, const char *const *names, size_t count, unsigned index)
{
    add(text, " %s", index < count ? names[index] : "?");
}
#define ADD_NAME(text, names, index)                                                               \
    add_name(text, names, sizeof(names) / sizeof *(names), (unsigned)(index))

/* A key is the caller's: what would break the line is written %XX. */
static void add_key(struct text *text, const char *key)
{
    add(text, "key ");
    for (; *key; key++)
        add(text, (unsigned char)*key < 0x20 || *key == '%' || *key == 0x7f ? "%%%02X" : "%c",
            (unsigned char)*key);
    add(text, "\n");
}

static void add_place(struct text *text, const struct weir_place *place)
{
    if (place->bytes == 0 && place->offset == 0 && place->tier == 0) {
        add(text, " -");
        return;
    }
    ADD_NAME(text, weir_tier_names, place->tier);
    add(text, ":%llu+%llu", (unsigned long long)place->offset, (unsigned long long)place->bytes);
}

static void add_offset(struct text *text, uint64_t offset)
{
    if (offset == WEIR_NOWHERE)
        add(text, " -");
    else
        add(text, " %llu", (unsigned long long)offset);
}

static void add_head(struct text *text, const struct weir_plan *plan,
                     const struct weir_homes *homes)
{
    add(text, "weir-plan 1\n");
    add_key(text, plan->key);
    add(text, "counts stages %u ops %zu uses %zu scratches %zu mail %zu\n", plan->stage_count,
        plan->op_count, plan->use_count, plan->scratch_count, plan->mail_count);
    add(text, "choice lead %u ring %llu homes %llu link %u\n", plan->choice.lead,
        (unsigned long long)plan->choice.ring_bytes,
        (unsigned long long)plan->choice.device_home_bytes, plan->choice.update_over_link);
    add(text, "bytes ring %llu device %llu host %llu nvme %llu refused %llu wait %llu %llu %llu\n",
        (unsigned long long)plan->ring_bytes, (unsigned long long)plan->device_transient_bytes,
        (unsigned long long)plan->host_transient_bytes, (unsigned long long)plan->nvme_bytes,
        (unsigned long long)plan->refused_bytes, (unsigned long long)plan->kept_wait_bytes[0],
        (unsigned long long)plan->kept_wait_bytes[1], (unsigned long long)plan->kept_wait_bytes[2]);
    add(text, "homes device %llu %llu host %llu %llu nvme %llu\n",
        (unsigned long long)homes->device_first, (unsigned long long)homes->device_end,
        (unsigned long long)homes->host_first, (unsigned long long)homes->host_end,
        (unsigned long long)homes->nvme_end);
}

static void add_homes(struct text *text, const struct weir_homes *homes)
{
    for (uint32_t i = 0; i < homes->model->thing_count; i++) {
        const struct weir_thing *thing = &homes->model->things[i];
        for (uint32_t w = 0; thing->is_block && w < thing->window_count; w++) {
            add(text, "home %u %u", i, w);
            for (uint32_t p = 0; p < 3; p++)
                add_place(text, &homes->blocks[i][w].part[p]);
            add(text, "\n");
        }
    }
}

static void add_op(struct text *text, size_t index, const struct weir_op *op)
{
    add(text, "op %zu", index);
    ADD_NAME(text, weir_lane_names, op->lane);
    ADD_NAME(text, weir_kind_names, op->kind);
    ADD_NAME(text, weir_part_names, op->part);
    add(text, " %u/%u stage %u", op->thing, op->window, op->stage);
    ADD_NAME(text, weir_arrive_names, op->arrives);
    ADD_NAME(text, weir_pending_names, op->pending_only);
    for (uint32_t p = 0; p < WEIR_OP_PLACES; p++)
        add_place(text, &op->places[p]);
    for (uint32_t w = 0; w < op->wait_count && w < WEIR_OP_WAITS; w++) {
        ADD_NAME(text, weir_lane_names, op->waits[w].lane);
        add(text, ":%u", op->waits[w].count);
    }
    add(text, "\n");
}

enum weir_status weir_plan_text(const struct weir_plan *plan, const struct weir_homes *homes,
                                char **out)
{
    struct text text = {.status = WEIR_OK};
    add_head(&text, plan, homes);
    add_homes(&text, homes);
    for (size_t i = 0; i < plan->use_count; i++) {
        add(&text, "use %zu", i);
        add_offset(&text, plan->uses[i].bytes_offset);
        add_offset(&text, plan->uses[i].grad_offset);
        ADD_NAME(&text, weir_refused_names, plan->uses[i].refused);
        add(&text, "\n");
    }
    for (size_t i = 0; i < plan->scratch_count; i++)
        add(&text, "scratch %zu %llu\n", i, (unsigned long long)plan->scratches[i]);
    for (size_t i = 0; i < plan->mail_count; i++)
        add(&text, "mail %zu %llu\n", i, (unsigned long long)plan->mail[i]);
    for (size_t i = 0; i < plan->op_count; i++)
        add_op(&text, i, &plan->ops[i]);
    add(&text, "end\n");
    if (text.status != WEIR_OK) {
        weir_free(text.bytes);
        return text.status;
    }
    *out = text.bytes;
    return WEIR_OK;
}
