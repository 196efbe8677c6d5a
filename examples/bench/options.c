#include "examples/bench/options.h"
#include "core/thread.h"

#include <stdio.h>
#include <string.h>

const char *const command_names[COMMAND_COUNT] = {"io", "memory", "adam", "gemm", "copy", "all"};
const char *const pattern_names[PATTERN_COUNT] = {"read", "write", "mixed"};
const char *const layout_names[LAYOUT_COUNT] = {"huge", "pages", "scattered"};
const char *const engine_names[ENGINE_COUNT] = {"uring", "threads"};
const char *const device_names[2] = {"host", "cuda"};
static const char *const part_names[PART_COUNT] = {"sweep", "layouts", "replay"};
static const char *const gradient_names[] = {"none", "bf16", "fp32"};
static const char *const dtype_names[] = {"bf16", "fp32"};
static const char *const update_names[] = {"adam", "none"};

#define FIELD(name) offsetof(struct options, name)
#define IO          (1u << COMMAND_IO)
#define MEMORY      (1u << COMMAND_MEMORY)
#define ADAM        (1u << COMMAND_ADAM)
#define GEMM        (1u << COMMAND_GEMM)
#define COPY        (1u << COMMAND_COPY)
#define ALL         (1u << COMMAND_ALL)

static const struct flag flags[] = {
    {"--path", "DIR[,DIR]", FLAG_TEXTS, FIELD(paths),
     .help = "directories on the drives to measure, at once; each gets a file of --bytes that is "
             "never visible",
     .commands = IO | ALL},
    {"--file", "FILE", FLAG_TEXT, FIELD(file),
     .help = "instead of --path: a file that was written in full; patterns that write overwrite it",
     .commands = IO},
    {"--bytes", "SIZE", FLAG_BYTES, FIELD(bytes),
     .help = "io: of each drive's file (default 4GiB); memory: of an array (256MiB); copy: of a "
             "copy (256MiB)",
     .commands = IO | MEMORY | COPY | ALL},
    {"--block", "SIZE,...", FLAG_BYTES_LIST, FIELD(blocks),
     .help = "bytes of a transfer (default 128KiB,1MiB,8MiB)", .commands = IO},
    {"--depth", "N,...", FLAG_COUNTS, FIELD(depths),
     .help = "transfers in flight on each drive (default 1,8,32)", .least = 1, .most = 4096,
     .commands = IO},
    {"--engine", "E,...", FLAG_CHOICES, FIELD(engines), .help = "uring, threads (default both)",
     FLAG_NAMES(engine_names), .commands = IO},
    {"--pattern", "P,...", FLAG_CHOICES, FIELD(patterns),
     .help = "read, write, mixed: half of each (default all)", FLAG_NAMES(pattern_names),
     .commands = IO},
    {"--part", "P,...", FLAG_CHOICES, FIELD(parts),
     .help = "sweep of blocks and depths, layouts of memory, replay of training (default all)",
     FLAG_NAMES(part_names), .commands = IO},
    {"--layout", "L", FLAG_CHOICE, FIELD(layout),
     .help = "pages of the sweep's memory: huge, pages of 4 KiB, or those scattered (default huge, "
             "as in training)",
     FLAG_NAMES(layout_names), .commands = IO},
    {"--seconds", "S", FLAG_NUMBER, FIELD(seconds),
     .help = "of each point in each round (default 0.5; all 0.2)", .low = 0.001, .high = 86400,
     .commands = IO | ALL},
    {"--rounds", "N", FLAG_COUNT, FIELD(rounds),
     .help = "all points are measured once a round; medians are shown (default 3; adam, gemm, "
             "memory, copy 5)",
     .least = 1, .most = ROUNDS_MOST},
    {"--parameters", "N", FLAG_NUMBER, FIELD(parameters),
     .help = "io: of the model whose step is worked out, as 8e9; adam: that are updated (default "
             "67108864)",
     .low = 1, .high = 1e13, .commands = IO | ADAM},
    {"--endurance", "TB", FLAG_NUMBER, FIELD(endurance),
     .help =
         "written (10^12 bytes) that the drives are rated for, together: how many steps they last",
     .low = 0.001, .high = 1e9, .commands = IO},
    {"--gradients", "G", FLAG_CHOICE, FIELD(gradients),
     .help = "that the replay reads beside states and weights: none, bf16 or fp32 (default none)",
     FLAG_NAMES(gradient_names), .commands = IO},
    {"--ring", "N", FLAG_COUNT, FIELD(ring),
     .help = "windows that the replay has in flight (default 8)", .least = 2, .most = 256,
     .commands = IO},
    {"--update", "U", FLAG_CHOICE, FIELD(update),
     .help = "that the replay makes between read and write: adam, or none (default adam)",
     FLAG_NAMES(update_names), .commands = IO},
    {"--threads", "N", FLAG_COUNTS, FIELD(threads),
     .help = "of the team (default: one a core); memory: N,... (default 1 to all)", .least = 1,
     .most = 1024, .commands = IO | MEMORY | ADAM | GEMM | ALL},
    {"--dtype", "D,...", FLAG_CHOICES, FIELD(dtypes), .help = "bf16, fp32 (default both)",
     FLAG_NAMES(dtype_names), .commands = ADAM | GEMM},
    {"--config", "FILE,...", FLAG_TEXTS, FIELD(configs),
     .help = "config.json of Llamas whose layers' products are measured", .commands = GEMM},
    {"--tokens", "N", FLAG_COUNT, FIELD(tokens),
     .help = "rows of a product: a micro-batch (default 1024)", .least = 1, .most = 1u << 20,
     .commands = GEMM},
    {"--hidden", "N", FLAG_COUNT, FIELD(hidden),
     .help = "instead of --config: width of the model and of q", .least = 1, .most = 1u << 20,
     .commands = GEMM},
    {"--intermediate", "N", FLAG_COUNT, FIELD(intermediate), .help = "width of gate and up",
     .least = 1, .most = 1u << 20, .commands = GEMM},
    {"--kv", "N", FLAG_COUNT, FIELD(kv), .help = "width of k and of v (default --hidden)",
     .least = 1, .most = 1u << 20, .commands = GEMM},
    {"--device", "D", FLAG_CHOICE, FIELD(device),
     .help = "host, or cuda for the first NVIDIA GPU (default host)", FLAG_NAMES(device_names),
     .commands = COPY | ALL},
    {"--turns", NULL, FLAG_SWITCH, FIELD(turns),
     .help = "one update for each line on stdin, its ns a parameter on stdout: another program can "
             "take turns with it",
     .commands = ADAM},
    {"--save", "FILE", FLAG_TEXT, FIELD(save),
     .help = "the machine's profile, for weir-train --profile", .commands = ALL},
    {"--json", "FILE", FLAG_TEXT, FIELD(json),
     .help = "the same figures for machines (docs/weir-bench.schema.json); - for stdout, and no "
             "tables"},
    {"--html", "FILE", FLAG_TEXT, FIELD(html),
     .help = "the same figures as one page with plots, which needs no network"},
    {"--help", NULL, FLAG_SWITCH, FIELD(help), .help = "this text"},
};
#define FLAG_TOTAL (sizeof flags / sizeof *flags)

static struct flag_table table_of(enum command command, char text[static 32])
{
    snprintf(text, 32, "weir-bench %s", command_names[command]);
    return (struct flag_table){flags, FLAG_TOTAL, text, 1u << command};
}

/* ---- what was not given */

static void list_default(struct number_list *list, const uint64_t *values, uint32_t count)
{
    if (list->count > 0)
        return;
    memcpy(list->values, values, count * sizeof *values);
    list->count = count;
}

static void choices_default(struct number_list *list, int count)
{
    for (int i = 0; list->count < (uint32_t)count && (i > 0 || list->count == 0); i++)
        list->values[list->count++] = (uint64_t)i;
}

/* All cores; before them, if each is to be measured, the powers of two below. */
static void threads_fill(struct number_list *threads, bool each)
{
    uint64_t cores = (uint64_t)weir_thread_cpus();
    for (uint64_t n = 1; each && n < cores && threads->count + 1 < FLAG_LIST_MOST; n *= 2)
        threads->values[threads->count++] = n;
    threads->values[threads->count++] = cores;
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
    o->replay_left_out = o->parts.count == 0 && o->file && !options_write(o);
    choices_default(&o->parts, o->replay_left_out ? PART_REPLAY : PART_COUNT);
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
    if (o->threads.count == 0)
        threads_fill(&o->threads, o->command == COMMAND_MEMORY);
}

static enum weir_status command_read(struct options *o, const char *text)
{
    for (int c = 0; c < COMMAND_COUNT; c++)
        if (strcmp(command_names[c], text) == 0) {
            o->command = (enum command)c;
            return WEIR_OK;
        }
    return weir_fail(WEIR_ERR_ARG,
                     "\"%s\" is not a command; give io, memory, adam, gemm, copy or all, or --help",
                     text);
}

enum weir_status options_read(struct options *o, int count, char **values)
{
    bool seen[FLAG_TOTAL] = {false};
    char command[32];
    *o = (struct options){.command = COMMAND_COUNT};
    if (count < 2)
        return weir_fail(WEIR_ERR_ARG, "no command; give io, memory, adam, gemm, copy or all, or "
                                       "--help");
    if (strcmp(values[1], "--help") == 0) {
        o->help = true;
        return WEIR_OK;
    }
    WEIR_TRY(command_read(o, values[1]));
    struct flag_table table = table_of(o->command, command);
    WEIR_TRY(flags_read(&table, o, seen, count - 2, values + 2));
    if (o->help)
        return WEIR_OK;
    defaults_fill(o);
    return options_check(o, &table, seen);
}

/* ---- help */

static const struct {
    const char *summary, *examples;
} texts[COMMAND_COUNT] = {
    {"what a drive gives training: bytes a second and latency by block and depth, and the pattern "
     "of a\nstep replayed. Recommends block, depth and engine.",
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
    char command[32];
    struct flag_table table = table_of(o->command, command);
    flags_print(&table);
    printf("\nSizes are 128KiB, 8MiB, 4GB. Rates are in GB/s of 10^9 bytes. ctrl-C leaves nothing "
           "behind.\n");
}
