#include "examples/train/arguments.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind {
    KIND_TEXT,
    KIND_BYTES,
    KIND_COUNT,
    KIND_COUNT32,
    KIND_NUMBER,
    KIND_SCHEDULE,
    KIND_DTYPE,
    KIND_THREADS,
    KIND_SWITCH
};

struct flag {
    const char *name;
    enum kind kind;
    size_t field;
    uint64_t least; /* of a count */
    const char *help;
};

#define FIELD(name) offsetof(struct arguments, name)
static const struct flag flags[] = {
    {"--model", KIND_TEXT, FIELD(model), 0,
     "PATH     Hugging Face directory, or a config.json alone (random weights)"},
    {"--data", KIND_TEXT, FIELD(data), 0,
     "PATHS    comma-separated .bin token files (raw or llm.c's), or text files and folders read "
     "as bytes"},
    {"--eval-data", KIND_TEXT, FIELD(eval_data), 0,
     "PATHS    the same for evaluation (default: the last 5 % of --data, never trained on)"},
    {"--eval-every", KIND_COUNT, FIELD(eval_every), 0,
     "N        steps between evaluations (0: only at the end; default 0)"},
    {"--eval-batches", KIND_COUNT, FIELD(eval_batches), 1,
     "N        batches of --batch sequences an evaluation (default 4)"},
    {"--device", KIND_TEXT, FIELD(device), 0,
     "D        what computes: host, or cuda for the first NVIDIA GPU that "
     "CUDA_VISIBLE_DEVICES shows (default host)"},
    {"--device-memory", KIND_BYTES, FIELD(device_bytes), 0,
     "BYTES    hard budget of device memory, as 128MiB or 1GB (default: no bound; on a GPU what it "
     "has free)"},
    {"--host-memory", KIND_BYTES, FIELD(host_bytes), 0,
     "BYTES    hard budget of host memory (default: no bound)"},
    {"--nvme", KIND_TEXT, FIELD(nvme), 0,
     "DIRS     comma-separated directories for what fits neither, one a drive; each drive takes "
     "its share by its rate (default: none)"},
    {"--io-engine", KIND_TEXT, FIELD(io_engine), 0,
     "E        of --nvme, uring or threads (default: uring where the kernel allows it)"},
    {"--verify", KIND_SWITCH, FIELD(verify), 0,
     "         hash what is written to --nvme and compare what is read; a flipped bit ends the "
     "run"},
    {"--endurance", KIND_TEXT, FIELD(endurance), 0,
     "SIZES    what may be written to each drive of --nvme in its life (TBW), as 600TB, or one a "
     "directory as 600TB,1.2PB: says how many steps it lasts"},
    {"--profile", KIND_TEXT, FIELD(profile), 0,
     "FILE     this machine's rates, from weir-bench all --save FILE (default: measured briefly)"},
    {"--seq-len", KIND_COUNT32, FIELD(seq_len), 1, "N        tokens a sequence (default 256)"},
    {"--micro-batch", KIND_COUNT32, FIELD(micro_batch), 1,
     "N        sequences computed at once (default 1)"},
    {"--batch", KIND_COUNT32, FIELD(batch), 1,
     "N        sequences a step, a multiple of --micro-batch (default 4)"},
    {"--steps", KIND_COUNT, FIELD(steps), 1, "N        steps to train in all (default 100)"},
    {"--lr", KIND_NUMBER, FIELD(lr), 0, "X        peak learning rate (default 3e-4)"},
    {"--min-lr", KIND_NUMBER, FIELD(min_lr), 0,
     "X        learning rate at the end of the schedule (default 0.1 of --lr)"},
    {"--lr-schedule", KIND_SCHEDULE, FIELD(schedule), 0,
     "S        cosine, linear or constant (default cosine)"},
    {"--warmup", KIND_COUNT, FIELD(warmup), 0, "N        steps of linear warmup (default 0)"},
    {"--weight-decay", KIND_NUMBER, FIELD(weight_decay), 0,
     "X        AdamW's decay of matrices; norms do not decay (default 0.1)"},
    {"--beta1", KIND_NUMBER, FIELD(beta1), 0, "X        AdamW (default 0.9)"},
    {"--beta2", KIND_NUMBER, FIELD(beta2), 0, "X        AdamW (default 0.95)"},
    {"--eps", KIND_NUMBER, FIELD(eps), 0, "X        AdamW (default 1e-8)"},
    {"--clip", KIND_NUMBER, FIELD(clip), 0,
     "X        most global gradient norm (0: no clipping; default 1)"},
    {"--max-skips", KIND_COUNT, FIELD(max_skips), 1,
     "N        steps in a row with inf or nan gradients that end the run (default 10)"},
    {"--dtype", KIND_DTYPE, FIELD(dtype), 0,
     "D        bf16 (exact fp32 masters in 12 bytes a parameter) or fp32 (default bf16)"},
    {"--grad-dtype", KIND_DTYPE, FIELD(grad_dtype), 0,
     "D        in which gradients wait for their update, fp32 or bf16 (default fp32)"},
    {"--seed", KIND_COUNT, FIELD(seed), 0,
     "N        of initial weights and data order (default 1)"},
    {"--threads", KIND_THREADS, FIELD(threads), 1,
     "N        of the compute team (default: one a core)"},
    {"--out", KIND_TEXT, FIELD(out), 0,
     "DIR      checkpoints go to DIR/step-N; the last step is always saved"},
    {"--save-every", KIND_COUNT, FIELD(save_every), 0,
     "N        steps between checkpoints (0: only the last; default 0)"},
    {"--keep", KIND_COUNT, FIELD(keep), 1, "N        newest checkpoints to keep (default 2)"},
    {"--resume", KIND_SWITCH, FIELD(resume), 0,
     "         go on from the newest checkpoint under --out"},
    {"--export-fp32", KIND_TEXT, FIELD(export_fp32), 0,
     "FILE     after training: the fp32 masters as one safetensors file; without --data: those of "
     "the checkpoint --model, and nothing is trained"},
    {"--log", KIND_TEXT, FIELD(log), 0, "FILE     one JSON object a step"},
    {"--timeline", KIND_TEXT, FIELD(timeline), 0,
     "FILE     when each op of the third step ran, as a trace for chrome://tracing or Perfetto"},
    {"--dry-run", KIND_SWITCH, FIELD(dry_run), 0,
     "         print what would live where and bytes a step, and leave; measures this machine, "
     "--nvme with a file of up to 64 MiB that is gone at once"},
    {"--require-direct", KIND_SWITCH, FIELD(require_direct), 0,
     "         refuse a file system without O_DIRECT"},
    {"--require-registered", KIND_SWITCH, FIELD(require_registered), 0,
     "         refuse an I/O engine that does not register host memory"},
    {"--help", KIND_SWITCH, FIELD(help), 0, "         this text"},
};
#define FLAG_COUNT (sizeof flags / sizeof *flags)

void arguments_help(void)
{
    printf("weir-train: trains a Llama-family model bigger than its memory budgets.\n\n"
           "  weir-train --model PATH --data PATHS [options]\n"
           "  weir-train --model CHECKPOINT --export-fp32 FILE\n\n");
    for (size_t i = 0; i < FLAG_COUNT; i++)
        printf("  %-16s %s\n", flags[i].name, flags[i].help);
    printf(
        "\nThe same model, data, seed and batch give the same weights, bit for bit, whatever the "
        "budgets.\nctrl-C saves the beginning of the step and leaves; a second one leaves at "
        "once.\n");
}

static enum weir_status number_read(const char *flag, const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out) || *out < 0)
        return weir_fail(WEIR_ERR_ARG, "%s: \"%s\" is not a number of 0 or more", flag, text);
    return WEIR_OK;
}

static enum weir_status count_read(const char *flag, const char *text, uint64_t least,
                                   uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (end == text || *end || errno || *text == '-' || *out < least || *out > most)
        return weir_fail(WEIR_ERR_ARG, "%s: \"%s\" is not a whole number from %llu to %llu", flag,
                         text, (unsigned long long)least, (unsigned long long)most);
    return WEIR_OK;
}

enum weir_status arguments_bytes(const char *flag, const char *text, size_t length, uint64_t *out)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1},         {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                 {"TiB", 0x1p40}, {"KB", 1e3},   {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                 {"PB", 1e15},    {"K", 0x1p10}, {"M", 0x1p20},   {"G", 0x1p30},   {"T", 0x1p40}};
    char word[32], *end;
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    double value = strtod(word, &end);
    for (size_t i = 0; end != word && i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0 && value * units[i].bytes >= 1 &&
            value * units[i].bytes < 0x1p60) {
            *out = (uint64_t)(value * units[i].bytes);
            return WEIR_OK;
        }
    return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is not a size; write 512MiB, 2GiB or 4GB", flag,
                     (int)length, text);
}

static enum weir_status choice_read(const char *flag, const char *text, const char *const *names,
                                    int count, int *out)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return WEIR_OK;
        }
    return weir_fail(WEIR_ERR_ARG, "%s: \"%s\" is not one of %s, %s%s%s", flag, text, names[0],
                     names[1], count > 2 ? ", " : "", count > 2 ? names[2] : "");
}

static enum weir_status value_read(const struct flag *flag, const char *text, void *field)
{
    static const char *const schedules[] = {"cosine", "linear", "constant"};
    static const char *const dtypes[] = {"bf16", "fp32"};
    uint64_t count;
    int choice;
    switch (flag->kind) {
    case KIND_TEXT:
        *(const char **)field = text;
        return WEIR_OK;
    case KIND_BYTES:
        return arguments_bytes(flag->name, text, strlen(text), field);
    case KIND_COUNT:
        return count_read(flag->name, text, flag->least, INT64_MAX, field);
    case KIND_COUNT32:
        WEIR_TRY(count_read(flag->name, text, flag->least, 1u << 24, &count));
        *(uint32_t *)field = (uint32_t)count;
        return WEIR_OK;
    case KIND_THREADS:
        WEIR_TRY(count_read(flag->name, text, flag->least, 4096, &count));
        *(int *)field = (int)count;
        return WEIR_OK;
    case KIND_NUMBER:
        return number_read(flag->name, text, field);
    case KIND_SCHEDULE:
        WEIR_TRY(choice_read(flag->name, text, schedules, 3, &choice));
        *(enum schedule *)field = (enum schedule)choice;
        return WEIR_OK;
    case KIND_DTYPE:
        WEIR_TRY(choice_read(flag->name, text, dtypes, 2, &choice));
        *(enum weir_dtype *)field = choice == 0 ? WEIR_BF16 : WEIR_FP32;
        return WEIR_OK;
    case KIND_SWITCH:
        break;
    }
    return WEIR_OK;
}

/* What --model and --export-fp32 need nothing beside. */
static enum weir_status export_alone(const bool *seen)
{
    for (size_t f = 0; f < FLAG_COUNT; f++)
        if (seen[f] && flags[f].field != FIELD(model) && flags[f].field != FIELD(export_fp32))
            return weir_fail(WEIR_ERR_ARG,
                             "%s has no use when --export-fp32 is given without --data, which "
                             "trains nothing; leave it out or give --data",
                             flags[f].name);
    return WEIR_OK;
}

static enum weir_status together_check(const struct arguments *a, const bool *seen)
{
    if (a->model && !a->data && a->export_fp32)
        return export_alone(seen);
    if (!a->model || !a->data)
        return weir_fail(WEIR_ERR_ARG, "%s is missing; weir-train --help explains",
                         a->model ? "--data" : "--model");
    if (a->batch % a->micro_batch != 0)
        return weir_fail(WEIR_ERR_ARG, "--batch %u is not a multiple of --micro-batch %u", a->batch,
                         a->micro_batch);
    if ((uint64_t)a->micro_batch * a->seq_len > INT32_MAX)
        return weir_fail(WEIR_ERR_ARG, "--micro-batch %u x --seq-len %u: at most %d tokens",
                         a->micro_batch, a->seq_len, INT32_MAX);
    if (a->min_lr > a->lr)
        return weir_fail(WEIR_ERR_ARG, "--min-lr %g is more than --lr %g", a->min_lr, a->lr);
    if (a->eps < 1e-30) /* 0 / 0 where a gradient was never anything but 0 */
        return weir_fail(WEIR_ERR_ARG, "--eps %g: at least 1e-30", a->eps);
    if (a->beta1 >= 1 || a->beta2 >= 1)
        return weir_fail(WEIR_ERR_ARG, "--beta1 %g, --beta2 %g: both lie below 1", a->beta1,
                         a->beta2);
    static const size_t of_nvme[] = {FIELD(io_engine), FIELD(require_direct),
                                     FIELD(require_registered), FIELD(verify), FIELD(endurance)};
    for (size_t f = 0; !a->nvme && f < FLAG_COUNT; f++)
        for (size_t i = 0; seen[f] && i < sizeof of_nvme / sizeof *of_nvme; i++)
            if (flags[f].field == of_nvme[i])
                return weir_fail(WEIR_ERR_ARG, "%s needs --nvme", flags[f].name);
    if (!a->out && (a->resume || a->save_every > 0))
        return weir_fail(WEIR_ERR_ARG, "%s needs --out", a->resume ? "--resume" : "--save-every");
    return WEIR_OK;
}

enum weir_status arguments_read(struct arguments *a, int count, char **values)
{
    *a = (struct arguments){.device = "host",
                            .device_bytes = UINT64_MAX,
                            .host_bytes = UINT64_MAX,
                            .seq_len = 256,
                            .micro_batch = 1,
                            .batch = 4,
                            .steps = 100,
                            .eval_batches = 4,
                            .keep = 2,
                            .max_skips = 10,
                            .seed = 1,
                            .lr = 3e-4,
                            .min_lr = -1,
                            .weight_decay = 0.1,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .clip = 1,
                            .dtype = WEIR_BF16,
                            .grad_dtype = WEIR_FP32};
    bool seen[FLAG_COUNT] = {false};
    for (int i = 1; i < count; i++) {
        size_t f = 0, name = strcspn(values[i], "=");
        while (f < FLAG_COUNT &&
               (strncmp(flags[f].name, values[i], name) != 0 || flags[f].name[name] != 0))
            f++;
        if (f == FLAG_COUNT || seen[f])
            return weir_fail(WEIR_ERR_ARG, "\"%s\" is %s; weir-train --help lists the options",
                             values[i], f == FLAG_COUNT ? "not an option" : "given twice");
        seen[f] = true;
        void *field = (char *)a + flags[f].field;
        const char *value = values[i][name] ? values[i] + name + 1 : NULL;
        if (flags[f].kind == KIND_SWITCH && value)
            return weir_fail(WEIR_ERR_ARG, "%s takes no value", flags[f].name);
        if (flags[f].kind == KIND_SWITCH) {
            *(bool *)field = true;
            continue;
        }
        if (!value && i + 1 < count && strncmp(values[i + 1], "--", 2) != 0)
            value = values[++i];
        if (!value || !*value)
            return weir_fail(WEIR_ERR_ARG, "%s needs a value", flags[f].name);
        WEIR_TRY(value_read(&flags[f], value, field));
    }
    if (a->min_lr < 0)
        a->min_lr = 0.1 * a->lr;
    return a->help ? WEIR_OK : together_check(a, seen);
}

enum weir_status arguments_file_check(const char *flag, const char *path, bool replaced)
{
    char folder[PATH_MAX];
    struct stat st;
    size_t count = strlen(path);
    if (count + sizeof ".weir-export" > sizeof folder)
        return weir_fail(WEIR_ERR_ARG, "%s: a path of %zu characters is too long", flag, count);
    memcpy(folder, path, count + 1);
    bool exists = stat(path, &st) == 0;
    if (exists && (S_ISDIR(st.st_mode) || (replaced && !S_ISREG(st.st_mode))))
        return weir_fail(WEIR_ERR_ARG, "%s \"%s\": is no file; give the name of one", flag, path);
    if (exists && !replaced && access(path, W_OK) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "%s \"%s\": cannot be written", flag, path);
    if ((!exists || replaced) && access(dirname(folder), W_OK | X_OK) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "%s \"%s\": its folder cannot be written", flag,
                               path);
    return WEIR_OK;
}

double arguments_lr(const struct arguments *a, uint64_t step)
{
    if (step < a->warmup)
        return a->lr * (double)(step + 1) / (double)a->warmup;
    uint64_t last = a->steps > a->warmup + 1 ? a->steps - a->warmup - 1 : 1;
    double way = (double)(step - a->warmup) / (double)last;
    way = way < 1 ? way : 1;
    switch (a->schedule) {
    case SCHEDULE_COSINE:
        return a->min_lr + (a->lr - a->min_lr) * 0.5 * (1 + cos(3.14159265358979323846 * way));
    case SCHEDULE_LINEAR:
        return a->lr + (a->min_lr - a->lr) * way;
    case SCHEDULE_CONSTANT:
        break;
    }
    return a->lr;
}
