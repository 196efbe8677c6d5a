#include "core/memory.h"
#include "offload/dump_internal.h"

#include <stdio.h>
#include <string.h>

#define FIELD_BYTES 96

struct reader {
    const char *at; /* the rest of the text */
    uint32_t line;
    const char *field;      /* being read, for errors */
    char word[FIELD_BYTES]; /* the field's text */
    struct weir_plan *plan;
    struct weir_homes *homes;
    const struct weir_model *model;
};

static enum weir_status bad(const struct reader *r, const char *what)
{
    return weir_fail(WEIR_ERR_CORRUPT, "plan text line %u, %s: \"%s\" %s; dump the plan again",
                     r->line, r->field, r->word, what);
}

/* The next field of the line, without the space behind it; empty at the line's end. */
static enum weir_status take(struct reader *r, const char *field)
{
    size_t length = strcspn(r->at, " \n");
    size_t copied = length < FIELD_BYTES ? length : FIELD_BYTES - 1;
    r->field = field;
    memcpy(r->word, r->at, copied);
    r->word[copied] = '\0';
    if (copied < length)
        return bad(r, "is too long");
    if (length == 0)
        return bad(r, "is missing");
    r->at += length;
    if (*r->at == ' ' && r->at[1] != ' ' && r->at[1] != '\n')
        r->at++;
    return WEIR_OK;
}

static enum weir_status take_literal(struct reader *r, const char *literal)
{
    WEIR_TRY(take(r, literal));
    return strcmp(r->word, literal) == 0 ? WEIR_OK : bad(r, "is not what belongs here");
}

static enum weir_status line_end(struct reader *r)
{
    size_t length = strcspn(r->at, "\n");
    if (length > 0 || *r->at != '\n') {
        r->field = "end of line";
        snprintf(r->word, sizeof r->word, "%.*s", (int)(length < 40 ? length : 40), r->at);
        return bad(r, *r->at ? "is too much" : "is cut off");
    }
    r->at++;
    r->line++;
    return WEIR_OK;
}

/* A number at *at, which moves behind it. */
static enum weir_status number_read(struct reader *r, const char **at, uint64_t most, uint64_t *out)
{
    const char *p = *at;
    uint64_t value = 0;
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
        return bad(r, "is not a number");
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > (UINT64_MAX - digit) / 10 || value * 10 + digit > most)
            return bad(r, "is out of range");
        value = value * 10 + digit;
    }
    *at = p;
    *out = value;
    return WEIR_OK;
}

static enum weir_status take_u64(struct reader *r, const char *field, uint64_t most, uint64_t *out)
{
    WEIR_TRY(take(r, field));
    const char *at = r->word;
    WEIR_TRY(number_read(r, &at, most, out));
    return *at ? bad(r, "is not a number") : WEIR_OK;
}

static enum weir_status take_u32(struct reader *r, const char *field, uint64_t most, uint32_t *out)
{
    uint64_t value = 0;
    WEIR_TRY(take_u64(r, field, most, &value));
    *out = (uint32_t)value;
    return WEIR_OK;
}

/* "name value" */
static enum weir_status take_named(struct reader *r, const char *name, uint64_t *out)
{
    WEIR_TRY(take_literal(r, name));
    return take_u64(r, name, UINT64_MAX, out);
}

/* A line begins with its kind and its index. */
static enum weir_status take_index(struct reader *r, const char *kind, size_t index)
{
    uint64_t found = 0;
    WEIR_TRY(take_literal(r, kind));
    WEIR_TRY(take_u64(r, kind, UINT64_MAX, &found));
    return found == index ? WEIR_OK : bad(r, "is not the next index");
}

/* Which of the names the first `length` characters of the word are. */
static enum weir_status name_find(const struct reader *r, size_t length, const char *const *names,
                                  size_t count, uint32_t *out)
{
    for (uint32_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(r->word, names[i], length) == 0) {
            *out = i;
            return WEIR_OK;
        }
    return bad(r, "is not known");
}

static enum weir_status take_name(struct reader *r, const char *field, const char *const *names,
                                  size_t count, uint32_t *out)
{
    WEIR_TRY(take(r, field));
    return name_find(r, strlen(r->word), names, count, out);
}
#define TAKE_NAME(r, field, names, out)                                                            \
    take_name(r, field, names, sizeof(names) / sizeof *(names), out)

static enum weir_status take_place(struct reader *r, struct weir_place *place)
{
    WEIR_TRY(take(r, "place"));
    *place = (struct weir_place){.bytes = 0};
    if (strcmp(r->word, "-") == 0)
        return WEIR_OK;
    size_t length = strcspn(r->word, ":");
    uint32_t tier = 0;
    WEIR_TRY(name_find(r, length, weir_tier_names, WEIR_TIER_COUNT, &tier));
    const char *at = r->word + length;
    if (*at++ != ':')
        return bad(r, "is not tier:offset+bytes");
    WEIR_TRY(number_read(r, &at, UINT64_MAX, &place->offset));
    if (*at++ != '+')
        return bad(r, "is not tier:offset+bytes");
    WEIR_TRY(number_read(r, &at, UINT64_MAX, &place->bytes));
    place->tier = tier;
    if (*at || (tier == 0 && place->offset == 0 && place->bytes == 0))
        return bad(r, "is not tier:offset+bytes");
    return WEIR_OK;
}

static enum weir_status take_offset(struct reader *r, const char *field, uint64_t *out)
{
    WEIR_TRY(take(r, field));
    *out = WEIR_NOWHERE;
    if (strcmp(r->word, "-") == 0)
        return WEIR_OK;
    const char *at = r->word;
    WEIR_TRY(number_read(r, &at, UINT64_MAX - 1, out));
    return *at ? bad(r, "is not a number") : WEIR_OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The rest of the line; the inverse of add_key, and nothing else. */
static enum weir_status key_read(struct reader *r)
{
    r->field = "key";
    r->word[0] = '\0';
    if (strncmp(r->at, "key ", 4) != 0)
        return bad(r, "is missing");
    r->at += 4;
    size_t length = strcspn(r->at, "\n");
    WEIR_TRY(weir_alloc(&r->plan->key, length + 1, 1, "a plan's key"));
    char *out = r->plan->key;
    for (const char *end = r->at + length; r->at < end; r->at++) {
        int high = r->at[0] == '%' ? hex_digit(r->at[1]) : -1;
        int low = high >= 0 ? hex_digit(r->at[2]) : -1;
        int byte = high * 16 + low;
        bool escaped = byte < 0x20 || byte == '%' || byte == 0x7f;
        if (r->at[0] == '%' && (low < 0 || byte == 0 || !escaped))
            return bad(r, "has a wrong escape");
        if (r->at[0] != '%' && ((unsigned char)r->at[0] < 0x20 || r->at[0] == 0x7f))
            return bad(r, "has a character that is not written as it is");
        *out++ = r->at[0] == '%' ? (char)byte : r->at[0];
        r->at += r->at[0] == '%' ? 2 : 0;
    }
    return line_end(r);
}

/* A count of lines to come is at most what the text can hold; so nothing large is allocated. */
static enum weir_status take_count(struct reader *r, const char *name, size_t *out)
{
    uint64_t count = 0;
    WEIR_TRY(take_named(r, name, &count));
    if (count > strlen(r->at))
        return bad(r, "is more than the text holds");
    *out = (size_t)count;
    return WEIR_OK;
}

static enum weir_status counts_read(struct reader *r)
{
    struct weir_plan *plan = r->plan;
    uint64_t stages = 0;
    WEIR_TRY(take_literal(r, "counts"));
    WEIR_TRY(take_literal(r, "stages"));
    WEIR_TRY(take_u64(r, "stages", UINT32_MAX, &stages));
    plan->stage_count = (uint32_t)stages;
    WEIR_TRY(take_count(r, "ops", &plan->op_count));
    WEIR_TRY(take_count(r, "uses", &plan->use_count));
    WEIR_TRY(take_count(r, "scratches", &plan->scratch_count));
    WEIR_TRY(take_count(r, "mail", &plan->mail_count));
    WEIR_TRY(line_end(r));
    plan->op_capacity = plan->op_count;
    WEIR_TRY(weir_alloc(&plan->ops, plan->op_count, sizeof *plan->ops, "a plan's ops"));
    WEIR_TRY(weir_alloc(&plan->uses, plan->use_count, sizeof *plan->uses, "a plan's uses"));
    WEIR_TRY(weir_alloc(&plan->scratches, plan->scratch_count, sizeof *plan->scratches,
                        "a plan's scratches"));
    return weir_alloc(&plan->mail, plan->mail_count, sizeof *plan->mail, "a plan's mail");
}

static enum weir_status bytes_read(struct reader *r)
{
    struct weir_plan *plan = r->plan;
    uint32_t over_link;
    WEIR_TRY(take_literal(r, "choice"));
    WEIR_TRY(take_literal(r, "lead"));
    WEIR_TRY(take_u32(r, "lead", UINT32_MAX, &plan->choice.lead));
    WEIR_TRY(take_named(r, "ring", &plan->choice.ring_bytes));
    WEIR_TRY(take_named(r, "homes", &plan->choice.device_home_bytes));
    WEIR_TRY(take_literal(r, "link"));
    WEIR_TRY(take_u32(r, "link", 1, &over_link));
    plan->choice.update_over_link = over_link == 1;
    WEIR_TRY(line_end(r));
    WEIR_TRY(take_literal(r, "bytes"));
    WEIR_TRY(take_named(r, "ring", &plan->ring_bytes));
    WEIR_TRY(take_named(r, "device", &plan->device_transient_bytes));
    WEIR_TRY(take_named(r, "host", &plan->host_transient_bytes));
    WEIR_TRY(take_named(r, "nvme", &plan->nvme_bytes));
    WEIR_TRY(take_named(r, "refused", &plan->refused_bytes));
    WEIR_TRY(take_named(r, "wait", &plan->kept_wait_bytes[0]));
    WEIR_TRY(take_u64(r, "wait", UINT64_MAX, &plan->kept_wait_bytes[1]));
    WEIR_TRY(take_u64(r, "wait", UINT64_MAX, &plan->kept_wait_bytes[2]));
    return line_end(r);
}

static enum weir_status home_read(struct reader *r, uint32_t block, uint32_t window)
{
    WEIR_TRY(take_index(r, "home", block));
    uint64_t found = 0;
    WEIR_TRY(take_u64(r, "window", UINT64_MAX, &found));
    if (found != window)
        return bad(r, "is not the next window");
    for (uint32_t p = 0; p < 3; p++)
        WEIR_TRY(take_place(r, &r->homes->blocks[block][window].part[p]));
    return line_end(r);
}

static enum weir_status homes_read(struct reader *r)
{
    struct weir_homes *homes = r->homes;
    homes->model = r->model;
    WEIR_TRY(take_literal(r, "homes"));
    WEIR_TRY(take_named(r, "device", &homes->device_first));
    WEIR_TRY(take_u64(r, "device", UINT64_MAX, &homes->device_end));
    WEIR_TRY(take_named(r, "host", &homes->host_first));
    WEIR_TRY(take_u64(r, "host", UINT64_MAX, &homes->host_end));
    WEIR_TRY(take_named(r, "nvme", &homes->nvme_end));
    WEIR_TRY(line_end(r));
    WEIR_TRY(weir_alloc(&homes->blocks, r->model->thing_count, sizeof *homes->blocks, "homes"));
    for (uint32_t i = 0; i < r->model->thing_count; i++) {
        const struct weir_thing *thing = &r->model->things[i];
        if (!thing->is_block)
            continue;
        WEIR_TRY(
            weir_alloc(&homes->blocks[i], thing->window_count, sizeof **homes->blocks, "homes"));
        for (uint32_t w = 0; w < thing->window_count; w++)
            WEIR_TRY(home_read(r, i, w));
    }
    return WEIR_OK;
}

static enum weir_status uses_read(struct reader *r)
{
    struct weir_plan *plan = r->plan;
    for (size_t i = 0; i < plan->use_count; i++) {
        uint32_t refused = 0;
        WEIR_TRY(take_index(r, "use", i));
        WEIR_TRY(take_offset(r, "bytes", &plan->uses[i].bytes_offset));
        WEIR_TRY(take_offset(r, "grad", &plan->uses[i].grad_offset));
        WEIR_TRY(TAKE_NAME(r, "refused", weir_refused_names, &refused));
        plan->uses[i].refused = refused == 1;
        WEIR_TRY(line_end(r));
    }
    for (size_t i = 0; i < plan->scratch_count; i++) {
        WEIR_TRY(take_index(r, "scratch", i));
        WEIR_TRY(take_u64(r, "scratch", UINT64_MAX, &plan->scratches[i]));
        WEIR_TRY(line_end(r));
    }
    for (size_t i = 0; i < plan->mail_count; i++) {
        WEIR_TRY(take_index(r, "mail", i));
        WEIR_TRY(take_u64(r, "mail", UINT64_MAX, &plan->mail[i]));
        WEIR_TRY(line_end(r));
    }
    return WEIR_OK;
}

static enum weir_status waits_read(struct reader *r, struct weir_op *op)
{
    while (*r->at != '\n' && *r->at != '\0') {
        WEIR_TRY(take(r, "wait"));
        if (op->wait_count == WEIR_OP_WAITS)
            return bad(r, "is one wait too many");
        struct weir_wait *wait = &op->waits[op->wait_count++];
        size_t length = strcspn(r->word, ":");
        uint64_t count = 0;
        WEIR_TRY(name_find(r, length, weir_lane_names, WEIR_LANE_COUNT, &wait->lane));
        const char *at = r->word + length;
        if (*at++ != ':')
            return bad(r, "is not lane:count");
        WEIR_TRY(number_read(r, &at, UINT32_MAX, &count));
        if (*at)
            return bad(r, "is not lane:count");
        wait->count = (uint32_t)count;
    }
    return line_end(r);
}

static enum weir_status op_read(struct reader *r, size_t index)
{
    struct weir_op *op = &r->plan->ops[index];
    uint32_t lane = 0, kind = 0, part = 0, arrives = 0, pending = 0;
    uint64_t thing = 0, window = 0;
    WEIR_TRY(take_index(r, "op", index));
    WEIR_TRY(TAKE_NAME(r, "lane", weir_lane_names, &lane));
    WEIR_TRY(TAKE_NAME(r, "kind", weir_kind_names, &kind));
    WEIR_TRY(TAKE_NAME(r, "part", weir_part_names, &part));
    WEIR_TRY(take(r, "thing/window"));
    const char *at = r->word;
    WEIR_TRY(number_read(r, &at, UINT32_MAX, &thing));
    if (*at++ != '/')
        return bad(r, "is not thing/window");
    WEIR_TRY(number_read(r, &at, UINT32_MAX, &window));
    if (*at)
        return bad(r, "is not thing/window");
    WEIR_TRY(take_literal(r, "stage"));
    WEIR_TRY(take_u32(r, "stage", UINT32_MAX, &op->stage));
    WEIR_TRY(TAKE_NAME(r, "arrives", weir_arrive_names, &arrives));
    WEIR_TRY(TAKE_NAME(r, "pending", weir_pending_names, &pending));
    op->lane = lane;
    op->kind = kind;
    op->part = part;
    op->thing = (uint32_t)thing;
    op->window = (uint32_t)window;
    op->arrives = arrives == 1;
    op->pending_only = pending == 1;
    for (uint32_t p = 0; p < WEIR_OP_PLACES; p++)
        WEIR_TRY(take_place(r, &op->places[p]));
    return waits_read(r, op);
}

static enum weir_status plan_read(struct reader *r)
{
    WEIR_TRY(take_literal(r, "weir-plan"));
    WEIR_TRY(take_literal(r, "1"));
    WEIR_TRY(line_end(r));
    WEIR_TRY(key_read(r));
    WEIR_TRY(counts_read(r));
    WEIR_TRY(bytes_read(r));
    WEIR_TRY(homes_read(r));
    WEIR_TRY(uses_read(r));
    for (size_t i = 0; i < r->plan->op_count; i++)
        WEIR_TRY(op_read(r, i));
    WEIR_TRY(take_literal(r, "end"));
    WEIR_TRY(line_end(r));
    r->field = "end of text";
    snprintf(r->word, sizeof r->word, "%.40s", r->at);
    return *r->at ? bad(r, "is too much") : WEIR_OK;
}

enum weir_status weir_plan_parse(const char *text, const struct weir_model *model,
                                 struct weir_plan **plan, struct weir_homes **homes)
{
    struct reader reader = {.at = text, .line = 1, .model = model};
    enum weir_status status = weir_alloc(&reader.plan, 1, sizeof *reader.plan, "a plan");
    if (status == WEIR_OK)
        status = weir_alloc(&reader.homes, 1, sizeof *reader.homes, "homes");
    if (status == WEIR_OK) {
        reader.homes->model = model;
        status = plan_read(&reader);
    }
    if (status != WEIR_OK) {
        weir_plan_free(reader.plan);
        weir_homes_free(reader.homes);
        return status;
    }
    *plan = reader.plan;
    *homes = reader.homes;
    return WEIR_OK;
}
