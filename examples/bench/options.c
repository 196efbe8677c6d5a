#include "examples/bench/options.h"
#include "examples/bench/units.h"
#include "examples/train/arguments.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const command_names[COMMAND_COUNT] = {"io", "memory", "adam", "gemm", "copy", "all"};
const char *const pattern_names[PATTERN_COUNT] = {"read", "write", "mixed"};
const char *const layout_names[LAYOUT_COUNT] = {"huge", "pages", "scattered"};
const char *const engine_names[ENGINE_COUNT] = {"uring", "threads"};
const char *const device_names[2] = {"host", "cuda"};
static const char *const part_names[PART_COUNT] = {"sweep", "layouts", "replay"};
static const char *const gradient_names[] = {"none", "bf16", "fp32"};
static const char *const dtype_names[] = {"bf16", "fp32"};
static const char *const update_names[] = {"adam", "none"};

enum kind {
    KIND_TEXT,
    KIND_TEXTS,
    KIND_BYTES,
    KIND_BYTES_LIST,
    KIND_COUNT,
    KIND_COUNTS,
    KIND_NUMBER,
    KIND_CHOICE,
    KIND_CHOICES,
    KIND_SWITCH
};

struct flag {
    const char *name;
    enum kind kind;
    size_t field;
    unsigned commands;        /* a bit for each that takes it */
    uint64_t least, most;     /* of counts */
    const char *const *names; /* of choices, `most` of them */
    const char *help;
};

#define FIELD(name) offsetof(struct options, name)
#define IO          (1u << COMMAND_IO)
#define MEMORY      (1u << COMMAND_MEMORY)
#define ADAM        (1u << COMMAND_ADAM)
#define GEMM        (1u << COMMAND_GEMM)
#define COPY        (1u << COMMAND_COPY)
#define ALL         (1u << COMMAND_ALL)
#define EVERY       (IO | MEMORY | ADAM | GEMM | COPY | ALL)

static const struct flag flags[] = {
    {"--path", KIND_TEXTS, FIELD(paths), IO | ALL, 0, 0, NULL,
     "DIR[,DIR]  directories on the drives to measure, at once; each gets a file of --bytes that "
     "is "
     "never visible"},
    {"--file", KIND_TEXT, FIELD(file), IO, 0, 0, NULL,
     "FILE       instead of --path: a file that was written in full; patterns that write overwrite "
     "it"},
    {"--bytes", KIND_BYTES, FIELD(bytes), IO | MEMORY | COPY | ALL, 0, 0, NULL,
     "SIZE       io: of each drive's file (default 4GiB); memory: of an array (256MiB); copy: of a "
     "copy (256MiB)"},
    {"--block", KIND_BYTES_LIST, FIELD(blocks), IO, 0, 0, NULL,
     "SIZE,...   bytes of a transfer (default 128KiB,1MiB,8MiB)"},
    {"--depth", KIND_COUNTS, FIELD(depths), IO, 1, 4096, NULL,
     "N,...      transfers in flight on each drive (default 1,8,32)"},
    {"--engine", KIND_CHOICES, FIELD(engines), IO, 0, ENGINE_COUNT, engine_names,
     "E,...      uring, threads (default both)"},
    {"--pattern", KIND_CHOICES, FIELD(patterns), IO, 0, PATTERN_COUNT, pattern_names,
     "P,...      read, write, mixed: half of each (default all)"},
    {"--part", KIND_CHOICES, FIELD(parts), IO, 0, PART_COUNT, part_names,
     "P,...      sweep of blocks and depths, layouts of memory, replay of training (default all)"},
    {"--layout", KIND_CHOICE, FIELD(layout), IO, 0, LAYOUT_COUNT, layout_names,
     "L          pages of the sweep's memory: huge, pages of 4 KiB, or those scattered (default "
     "huge, as in training)"},
    {"--seconds", KIND_NUMBER, FIELD(seconds), IO | ALL, 0, 0, NULL,
     "S          of each point in each round (default 0.5; all 0.2)"},
    {"--rounds", KIND_COUNT, FIELD(rounds), EVERY, 1, ROUNDS_MOST, NULL,
     "N          all points are measured once a round; medians are shown (default 3; adam, gemm, "
     "memory, copy 5)"},
    {"--parameters", KIND_NUMBER, FIELD(parameters), IO | ADAM, 0, 0, NULL,
     "N          io: of the model whose step is worked out, as 8e9; adam: that are updated "
     "(default "
     "67108864)"},
    {"--endurance", KIND_NUMBER, FIELD(endurance), IO, 0, 0, NULL,
     "TB         written (10^12 bytes) that the drives are rated for, together: how many steps "
     "they "
     "last"},
    {"--gradients", KIND_CHOICE, FIELD(gradients), IO, 0, 3, gradient_names,
     "G          that the replay reads beside states and weights: none, bf16 or fp32 (default "
     "none)"},
    {"--ring", KIND_COUNT, FIELD(ring), IO, 2, 256, NULL,
     "N          windows that the replay has in flight (default 8)"},
    {"--update", KIND_CHOICE, FIELD(update_none), IO, 0, 2, update_names,
     "U          that the replay makes between read and write: adam, or none (default adam)"},
    {"--threads", KIND_COUNTS, FIELD(threads), EVERY & ~COPY, 1, 1024, NULL,
     "N          of the team (default: one a core); memory: N,... (default 1 to all)"},
    {"--dtype", KIND_CHOICES, FIELD(dtypes), ADAM | GEMM, 0, 2, dtype_names,
     "D,...      bf16, fp32 (default both)"},
    {"--config", KIND_TEXTS, FIELD(configs), GEMM, 0, 0, NULL,
     "FILE,...   config.json of Llamas whose layers' products are measured"},
    {"--tokens", KIND_COUNT, FIELD(tokens), GEMM, 1, 1u << 20, NULL,
     "N          rows of a product: a micro-batch (default 1024)"},
    {"--hidden", KIND_COUNT, FIELD(hidden), GEMM, 1, 1u << 20, NULL,
     "N          instead of --config: width of the model and of q"},
    {"--intermediate", KIND_COUNT, FIELD(intermediate), GEMM, 1, 1u << 20, NULL,
     "N          width of gate and up"},
    {"--kv", KIND_COUNT, FIELD(kv), GEMM, 1, 1u << 20, NULL,
     "N          width of k and of v (default --hidden)"},
    {"--device", KIND_CHOICE, FIELD(device), COPY | ALL, 0, 2, device_names,
     "D          host, or cuda for the first NVIDIA GPU (default host)"},
    {"--turns", KIND_SWITCH, FIELD(turns), ADAM, 0, 0, NULL,
     "           one update for each line on stdin, its ns a parameter on stdout: another program "
     "can take turns with it"},
    {"--save", KIND_TEXT, FIELD(save), ALL, 0, 0, NULL,
     "FILE       the machine's profile, for weir-train --profile"},
    {"--json", KIND_TEXT, FIELD(json), EVERY, 0, 0, NULL,
     "FILE       the same figures for machines (docs/weir-bench.schema.json); - for stdout, and no "
     "tables"},
    {"--html", KIND_TEXT, FIELD(html), EVERY, 0, 0, NULL,
     "FILE       the same figures as one page with plots, which needs no network"},
    {"--help", KIND_SWITCH, FIELD(help), EVERY, 0, 0, NULL, "           this text"},
};
#define FLAG_COUNT (sizeof flags / sizeof *flags)

/* ---- values */

static enum weir_status number_parse(const char *flag, const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out) || *out <= 0)
        return weir_fail(WEIR_ERR_ARG, "%s: \"%s\" is not a positive number; write 8e9 or 0.5",
                         flag, text);
    return WEIR_OK;
}

static enum weir_status count_parse(const struct flag *flag, const char *text, size_t length,
                                    uint64_t *out)
{
    char word[24], *end;
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    errno = 0;
    *out = strtoull(word, &end, 10);
    if (end == word || *end || errno || length >= sizeof word || *word == '-' ||
        *out < flag->least || *out > flag->most)
        return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is not a whole number from %llu to %llu",
                         flag->name, (int)length, text, (unsigned long long)flag->least,
                         (unsigned long long)flag->most);
    return WEIR_OK;
}

static enum weir_status choice_parse(const struct flag *flag, const char *text, size_t length,
                                     int *out)
{
    char known[128] = "";
    for (uint64_t i = 0; i < flag->most; i++) {
        if (strlen(flag->names[i]) == length && strncmp(flag->names[i], text, length) == 0) {
            *out = (int)i;
            return WEIR_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ", flag->names[i]);
    }
    return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is not one of %s", flag->name, (int)length, text,
                     known);
}

static enum weir_status element_take(const struct flag *flag, const char *text, size_t length,
                                     void *field)
{
    struct number_list *numbers = field;
    struct choice_list *choices = field;
    uint64_t number;
    int choice;
    uint32_t *count = flag->kind == KIND_CHOICES ? &choices->count : &numbers->count;
    if (*count == OPTIONS_LIST_MOST)
        return weir_fail(WEIR_ERR_ARG, "%s: more than %d values; leave some out", flag->name,
                         OPTIONS_LIST_MOST);
    if (flag->kind == KIND_CHOICES) {
        WEIR_TRY(choice_parse(flag, text, length, &choice));
        number = (uint64_t)choice;
    } else if (flag->kind == KIND_BYTES_LIST)
        WEIR_TRY(arguments_bytes(flag->name, text, length, &number));
    else
        WEIR_TRY(count_parse(flag, text, length, &number));
    for (uint32_t i = 0; i < *count; i++)
        if ((flag->kind == KIND_CHOICES ? (uint64_t)choices->values[i] : numbers->values[i]) ==
            number)
            return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is there twice; leave one out", flag->name,
                             (int)length, text);
    if (flag->kind == KIND_CHOICES)
        choices->values[(*count)++] = (int)number;
    else
        numbers->values[(*count)++] = number;
    return WEIR_OK;
}

/* Cuts the caller's text in place. */
static enum weir_status texts_take(const struct flag *flag, char *text, struct text_list *list)
{
    for (char *next = text; next; text = next) {
        next = strchr(text, ',');
        if (next)
            *next++ = 0;
        if (!*text || list->count == OPTIONS_LIST_MOST)
            return weir_fail(WEIR_ERR_ARG, "%s: %s; give 1 to %d names with commas between",
                             flag->name, *text ? "too many names" : "an empty name",
                             OPTIONS_LIST_MOST);
        list->values[list->count++] = text;
    }
    return WEIR_OK;
}

static enum weir_status list_take(const struct flag *flag, const char *text, void *field)
{
    for (;;) {
        size_t length = strcspn(text, ",");
        WEIR_TRY(element_take(flag, text, length, field));
        if (!text[length])
            return WEIR_OK;
        text += length + 1;
    }
}

static enum weir_status value_take(const struct flag *flag, char *text, void *field)
{
    int choice;
    switch (flag->kind) {
    case KIND_TEXT:
        *(const char **)field = text;
        return WEIR_OK;
    case KIND_TEXTS:
        return texts_take(flag, text, field);
    case KIND_BYTES:
        return arguments_bytes(flag->name, text, strlen(text), field);
    case KIND_COUNT:
        return count_parse(flag, text, strlen(text), field);
    case KIND_NUMBER:
        return number_parse(flag->name, text, field);
    case KIND_CHOICE:
        WEIR_TRY(choice_parse(flag, text, strlen(text), &choice));
        if (flag->field == FIELD(update_none))
            *(bool *)field = choice == 1;
        else
            *(int *)field = choice;
        return WEIR_OK;
    case KIND_BYTES_LIST:
    case KIND_COUNTS:
    case KIND_CHOICES:
        return list_take(flag, text, field);
    case KIND_SWITCH:
        break;
    }
    *(bool *)field = true;
    return WEIR_OK;
}

/* ---- all of them together */

static void list_default(struct number_list *list, const uint64_t *values, uint32_t count)
{
    if (list->count > 0)
        return;
    memcpy(list->values, values, count * sizeof *values);
    list->count = count;
}

static void choices_default(struct choice_list *list, int count)
{
    for (int i = 0; list->count < (uint32_t)count && (i > 0 || list->count == 0); i++)
        list->values[list->count++] = i;
}

static void defaults_fill(struct options *o)
{
    bool drives = o->command == COMMAND_IO || o->command == COMMAND_ALL;
    bool sweep = o->command == COMMAND_IO;
    if (o->bytes == 0)
        o->bytes = drives ? UINT64_C(4) << 30 : UINT64_C(256) << 20;
    list_default(&o->blocks, (uint64_t[]){128u << 10, 1u << 20, 8u << 20}, sweep ? 3 : 0);
    if (!sweep)
        list_default(&o->blocks, (uint64_t[]){1u << 20, 2u << 20, 8u << 20}, 3);
    list_default(&o->depths, (uint64_t[]){1, 8, 32}, 3);
    choices_default(&o->engines, ENGINE_COUNT);
    choices_default(&o->patterns, PATTERN_COUNT);
    choices_default(&o->parts, PART_COUNT);
    choices_default(&o->dtypes, 2);
    if (o->seconds <= 0)
        o->seconds = sweep ? 0.5 : 0.2;
    if (o->rounds == 0)
        o->rounds = drives ? 3 : 5;
    if (o->parameters <= 0 && o->command == COMMAND_ADAM)
        o->parameters = 67108864;
    if (o->ring == 0)
        o->ring = 8;
    if (o->tokens == 0)
        o->tokens = 1024;
    if (o->kv == 0)
        o->kv = o->hidden;
    uint64_t cores = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (o->threads.count == 0 && o->command == COMMAND_MEMORY)
        for (uint64_t n = 1; n < cores && o->threads.count + 1 < OPTIONS_LIST_MOST; n *= 2)
            o->threads.values[o->threads.count++] = n;
    if (o->threads.count == 0 ||
        (o->command == COMMAND_MEMORY && o->threads.values[o->threads.count - 1] < cores))
        o->threads.values[o->threads.count++] = cores;
}

static enum weir_status io_check(const struct options *o)
{
    char block[24], bytes[24], least[24];
    if ((o->paths.count == 0) == !o->file)
        return weir_fail(WEIR_ERR_ARG,
                         o->file ? "--file \"%s\": measured instead of --path; leave one "
                                   "out"
                                 : "--path is missing%s; name a directory on the drive",
                         o->file ? o->file : "");
    if (o->bytes % (1u << 20) != 0)
        return weir_fail(WEIR_ERR_ARG, "--bytes: %llu is not a multiple of 1MiB",
                         (unsigned long long)o->bytes);
    for (uint32_t b = 0; b < o->blocks.count; b++)
        if (o->blocks.values[b] % 4096 != 0 || o->blocks.values[b] > 1u << 30)
            return weir_fail(WEIR_ERR_ARG,
                             "--block: %llu bytes is not a multiple of 4KiB up to 1GiB",
                             (unsigned long long)o->blocks.values[b]);
    for (uint32_t b = 0; b < o->blocks.count; b++)
        for (uint32_t d = 0; d < o->depths.count && !o->file; d++) {
            uint64_t need = 4 * o->blocks.values[b] * o->depths.values[d];
            if (need > o->bytes)
                return weir_fail(WEIR_ERR_ARG,
                                 "--bytes %s: too few for --depth %llu of --block %s; give at "
                                 "least %s or a lower depth",
                                 bytes_text(o->bytes, bytes),
                                 (unsigned long long)o->depths.values[d],
                                 bytes_text(o->blocks.values[b], block), bytes_text(need, least));
        }
    if (o->endurance > 0 && o->parameters <= 0)
        return weir_fail(WEIR_ERR_ARG, "--endurance %g: wears by steps; give --parameters too",
                         o->endurance);
    return WEIR_OK;
}

static enum weir_status together_check(const struct options *o)
{
    if (o->command != COMMAND_MEMORY && o->threads.count > 1)
        return weir_fail(WEIR_ERR_ARG, "--threads: %u values; only memory takes more than one",
                         o->threads.count);
    if (o->command == COMMAND_GEMM && (o->configs.count > 0) == (o->hidden > 0))
        return weir_fail(WEIR_ERR_ARG, "%s; give one of the two",
                         o->hidden > 0 ? "--hidden: shapes come from --config already"
                                       : "--config and --hidden are missing");
    if (o->command == COMMAND_GEMM && (o->hidden > 0) != (o->intermediate > 0))
        return weir_fail(WEIR_ERR_ARG, "--hidden and --intermediate go together; give both");
    return o->command == COMMAND_IO || o->command == COMMAND_ALL ? io_check(o) : WEIR_OK;
}

static enum weir_status flag_find(const struct options *o, const char *text, const bool *seen,
                                  size_t *found)
{
    const char *command = command_names[o->command];
    size_t length = strcspn(text, "=");
    for (size_t f = 0; f < FLAG_COUNT; f++) {
        if (strlen(flags[f].name) != length || strncmp(flags[f].name, text, length) != 0)
            continue;
        if (!(flags[f].commands & 1u << o->command))
            return weir_fail(WEIR_ERR_ARG,
                             "%s: %s has no use for it; weir-bench %s --help lists its options",
                             flags[f].name, command, command);
        if (seen[f])
            return weir_fail(WEIR_ERR_ARG, "\"%s\": %s was given before; leave one out", text,
                             flags[f].name);
        *found = f;
        return WEIR_OK;
    }
    return weir_fail(WEIR_ERR_ARG, "\"%s\" is not an option; weir-bench %s --help lists them", text,
                     command);
}

static enum weir_status command_read(struct options *o, const char *text)
{
    for (int c = 0; c < COMMAND_COUNT; c++)
        if (strcmp(command_names[c], text) == 0) {
            o->command = (enum command)c;
            return WEIR_OK;
        }
    return weir_fail(WEIR_ERR_ARG,
                     "\"%s\" is not a command; give io, memory, adam, gemm, copy or all", text);
}

enum weir_status options_read(struct options *o, int count, char **values)
{
    bool seen[FLAG_COUNT] = {false};
    *o = (struct options){.command = COMMAND_COUNT};
    if (count < 2)
        return weir_fail(WEIR_ERR_ARG, "no command; give io, memory, adam, gemm, copy or all, or "
                                       "--help");
    if (strcmp(values[1], "--help") == 0) {
        o->help = true;
        return WEIR_OK;
    }
    WEIR_TRY(command_read(o, values[1]));
    for (int i = 2; i < count; i++) {
        size_t f;
        WEIR_TRY(flag_find(o, values[i], seen, &f));
        char *value = strchr(values[i], '=');
        void *field = (char *)o + flags[f].field;
        seen[f] = true;
        if (flags[f].kind == KIND_SWITCH && value)
            return weir_fail(WEIR_ERR_ARG, "\"%s\": %s takes no value; leave it out", values[i],
                             flags[f].name);
        if (value)
            value++;
        else if (flags[f].kind != KIND_SWITCH && i + 1 < count &&
                 strncmp(values[i + 1], "--", 2) != 0)
            value = values[++i];
        if (flags[f].kind != KIND_SWITCH && (!value || !*value))
            return weir_fail(WEIR_ERR_ARG, "%s needs a value; weir-bench %s --help explains",
                             flags[f].name, command_names[o->command]);
        WEIR_TRY(value_take(&flags[f], value, field));
    }
    if (o->help)
        return WEIR_OK;
    defaults_fill(o);
    return together_check(o);
}

/* ---- help */

static const struct {
    const char *summary, *examples;
} texts[COMMAND_COUNT] = {
    {"what a drive gives training: bytes a second and latency by block and depth, and the pattern "
     "of "
     "a\nstep replayed. Recommends block, depth and engine.",
     "  weir-bench io --path /data --html drive.html\n"
     "  weir-bench io --path /data1,/data2 --parameters 8e9 --endurance 1200\n"
     "  weir-bench io --path /data --part sweep --block 1MiB --depth 32 --engine uring --json -\n"},
    {"what memory gives: read, copy and triad (a = b + s c) with plain and with streaming stores.",
     "  weir-bench memory\n  weir-bench memory --threads 1,8,16 --bytes 1GiB\n"},
    {"the optimizer's update on the CPU against memory.",
     "  weir-bench adam\n  weir-bench adam --dtype bf16 --parameters 134217728 --threads 8\n"},
    {"matrix products of a model's layers on the CPU, in the layouts that oneDNN could be given.",
     "  weir-bench gemm --config examples/train/configs/llama-124m.json\n"
     "  weir-bench gemm --tokens 512 --hidden 2048 --intermediate 5632 --kv 256 --dtype bf16\n"},
    {"copies between host and device, each way and both at once.",
     "  weir-bench copy --device cuda\n"},
    {"a short form of each, and the machine's profile for the planner.",
     "  weir-bench all --path /data --save machine.json\n"},
};

void options_help(const struct options *o, bool command_known)
{
    printf("weir-bench: what this machine's drives, memory and cores give training.\n\n");
    if (!command_known) {
        for (int c = 0; c < COMMAND_COUNT; c++)
            printf("weir-bench %s: %s\n%s\n", command_names[c], texts[c].summary,
                   texts[c].examples);
        printf("weir-bench COMMAND --help lists the options of a command.\n");
        return;
    }
    printf("weir-bench %s: %s\n\n%s\n", command_names[o->command], texts[o->command].summary,
           texts[o->command].examples);
    for (size_t f = 0; f < FLAG_COUNT; f++)
        if (flags[f].commands & 1u << o->command)
            printf("  %-15s %s\n", flags[f].name, flags[f].help);
    printf("\nSizes are 128KiB, 8MiB, 4GB. Rates are in GB/s of 10^9 bytes. ctrl-C leaves nothing "
           "behind.\n");
}
