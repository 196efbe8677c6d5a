#include "examples/train/arguments.h"
#include "examples/flags.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

static const char *const schedule_names[] = {"cosine", "linear", "constant"};
static const char *const dtype_names[] = {"bf16", "fp32"};

/* Numbers become floats: none is infinite there, a beta below 1 does not become 1, and where a
 * gradient was never anything but 0 its update is not 0 / 0. */
#define RATE_MOST 1e6
#define BETA_MOST 0.999999
#define EPS_LEAST 1e-30
#define CLIP_MOST 1e30

#define FIELD(name) offsetof(struct arguments, name)
static const struct flag flags[] = {
    {"--model", "PATH", FLAG_TEXT, FIELD(model),
     .help = "Hugging Face directory, or a config.json alone (random weights)"},
    {"--data", "PATHS", FLAG_TEXT, FIELD(data),
     .help = "comma-separated .bin token files (raw or llm.c's), or text files and folders read as "
             "bytes"},
    {"--eval-data", "PATHS", FLAG_TEXT, FIELD(eval_data),
     .help = "the same for evaluation (default: the last 5 % of --data, never trained on)"},
    {"--eval-every", "N", FLAG_COUNT, FIELD(eval_every),
     .help = "steps between evaluations (0: only at the end; default 0)"},
    {"--eval-batches", "N", FLAG_COUNT, FIELD(eval_batches),
     .help = "batches of --batch sequences an evaluation (default 4)", .least = 1},
    {"--device", "D", FLAG_TEXT, FIELD(device),
     .help = "what computes: host, or cuda for the first NVIDIA GPU that CUDA_VISIBLE_DEVICES "
             "shows (default host)"},
    {"--device-memory", "BYTES", FLAG_BYTES, FIELD(device_bytes),
     .help = "hard budget of device memory, as 128MiB or 1GB (default: no bound; on a GPU what it "
             "has free, less at most 1 GiB)"},
    {"--host-memory", "BYTES", FLAG_BYTES, FIELD(host_bytes),
     .help = "hard budget of host memory (default: no bound)"},
    {"--nvme", "DIRS", FLAG_TEXT, FIELD(nvme),
     .help = "comma-separated directories for what fits neither, one a drive; each drive takes its "
             "share by its rate (default: none)"},
    {"--io-engine", "E", FLAG_TEXT, FIELD(io_engine),
     .help = "of --nvme, uring or threads (default: uring where the kernel allows it)"},
    {"--verify", NULL, FLAG_SWITCH, FIELD(verify),
     .help = "hash what is written to --nvme and compare what is read; a flipped bit ends the run"},
    {"--endurance", "SIZES", FLAG_TEXT, FIELD(endurance),
     .help = "what may be written to each drive of --nvme in its life (TBW), as 600TB, or one a "
             "directory as 600TB,1.2PB: says how many steps it lasts"},
    {"--profile", "FILE", FLAG_TEXT, FIELD(profile),
     .help = "this machine's rates, from weir-bench all --save FILE (default: measured briefly)"},
    {"--seq-len", "N", FLAG_COUNT32, FIELD(seq_len), .help = "tokens a sequence (default 256)",
     .least = 1, .most = 1 << 24},
    {"--micro-batch", "N", FLAG_COUNT32, FIELD(micro_batch),
     .help = "sequences computed at once (default 1)", .least = 1, .most = 1 << 24},
    {"--batch", "N", FLAG_COUNT32, FIELD(batch),
     .help = "sequences a step, a multiple of --micro-batch (default 4)", .least = 1,
     .most = 1 << 24},
    {"--steps", "N", FLAG_COUNT, FIELD(steps), .help = "steps to train in all (default 100)",
     .least = 1},
    {"--lr", "X", FLAG_NUMBER, FIELD(lr), .help = "peak learning rate (default 3e-4)", .low = 0,
     .high = RATE_MOST},
    {"--min-lr", "X", FLAG_NUMBER, FIELD(min_lr),
     .help = "learning rate at the end of the schedule (default 0.1 of --lr)", .low = 0,
     .high = RATE_MOST},
    {"--lr-schedule", "S", FLAG_CHOICE, FIELD(schedule),
     .help = "cosine, linear or constant (default cosine)", FLAG_NAMES(schedule_names)},
    {"--warmup", "N", FLAG_COUNT, FIELD(warmup), .help = "steps of linear warmup (default 0)"},
    {"--weight-decay", "X", FLAG_NUMBER, FIELD(weight_decay),
     .help = "AdamW's decay of matrices; norms do not decay (default 0.1)", .low = 0,
     .high = RATE_MOST},
    {"--beta1", "X", FLAG_NUMBER, FIELD(beta1), .help = "AdamW (default 0.9)", .low = 0,
     .high = BETA_MOST},
    {"--beta2", "X", FLAG_NUMBER, FIELD(beta2), .help = "AdamW (default 0.95)", .low = 0,
     .high = BETA_MOST},
    {"--eps", "X", FLAG_NUMBER, FIELD(eps), .help = "AdamW (default 1e-8)", .low = EPS_LEAST,
     .high = 1},
    {"--clip", "X", FLAG_NUMBER, FIELD(clip),
     .help = "most global gradient norm (0: no clipping; default 1)", .low = 0, .high = CLIP_MOST},
    {"--max-skips", "N", FLAG_COUNT, FIELD(max_skips),
     .help = "steps in a row with inf or nan gradients that end the run (default 10)", .least = 1},
    {"--dtype", "D", FLAG_CHOICE, FIELD(dtype),
     .help = "bf16 (exact fp32 masters in 12 bytes a parameter) or fp32 (default bf16)",
     FLAG_NAMES(dtype_names)},
    {"--grad-dtype", "D", FLAG_CHOICE, FIELD(grad_dtype),
     .help = "in which gradients wait for their update, fp32 or bf16 (default fp32)",
     FLAG_NAMES(dtype_names)},
    {"--seed", "N", FLAG_COUNT, FIELD(seed),
     .help = "of initial weights and data order (default 1)"},
    {"--threads", "N", FLAG_COUNT32, FIELD(threads),
     .help = "of the compute team (default: one for each CPU that it may use)", .least = 1,
     .most = 4096},
    {"--out", "DIR", FLAG_TEXT, FIELD(out),
     .help =
         "checkpoints go to DIR/step-N, which without --resume holds none; the last step is always "
         "saved"},
    {"--save-every", "N", FLAG_COUNT, FIELD(save_every),
     .help = "steps between checkpoints (0: only the last; default 0)"},
    {"--keep", "N", FLAG_COUNT, FIELD(keep), .help = "newest checkpoints to keep (default 2)",
     .least = 1},
    {"--resume", NULL, FLAG_SWITCH, FIELD(resume),
     .help = "go on from the newest checkpoint under --out"},
    {"--export-fp32", "FILE", FLAG_TEXT, FIELD(export_fp32),
     .help = "after training: the fp32 masters as one safetensors file; without --data: those of "
             "the checkpoint --model, and nothing is trained"},
    {"--log", "FILE", FLAG_TEXT, FIELD(log),
     .help = "one JSON object a step; a file of that name is replaced, with --resume continued"},
    {"--timeline", "FILE", FLAG_TEXT, FIELD(timeline),
     .help = "when each op of the third step ran, as a trace for chrome://tracing or Perfetto"},
    {"--dry-run", NULL, FLAG_SWITCH, FIELD(dry_run),
     .help = "print what would live where and bytes a step, and leave; measures this machine, "
             "--nvme with a file of up to 64 MiB that is gone at once"},
    {"--require-direct", NULL, FLAG_SWITCH, FIELD(require_direct),
     .help = "refuse a file system without O_DIRECT"},
    {"--require-registered", NULL, FLAG_SWITCH, FIELD(require_registered),
     .help = "refuse an I/O engine that does not register host memory"},
    {"--help", NULL, FLAG_SWITCH, FIELD(help), .help = "this text"},
};
#define FLAG_TOTAL (sizeof flags / sizeof *flags)
static const struct flag_table table = {flags, FLAG_TOTAL, "weir-train", 0};

void arguments_help(void)
{
    printf("weir-train: trains a Llama-family model bigger than its memory budgets.\n\n"
           "  weir-train --model PATH --data PATHS [options]\n"
           "  weir-train --model CHECKPOINT --export-fp32 FILE\n\n");
    flags_print(&table);
    printf(
        "\nThe same flags on the same kind of machine give the same weights, bit for bit, whatever "
        "the budgets.\nctrl-C or SIGTERM saves the beginning of the step under --out, if given, "
        "and "
        "leaves; a second one\nleaves at once. Exit status: 0, 1 failed, 2 a wrong option, 128 + "
        "signal.\n");
}

/* What --model and --export-fp32 need nothing beside. */
static enum weir_status export_alone(const bool *seen)
{
    for (size_t f = 0; f < FLAG_TOTAL; f++)
        if (seen[f] && flags[f].field != FIELD(model) && flags[f].field != FIELD(export_fp32))
            return weir_fail(WEIR_ERR_ARG,
                             "%s has no use when --export-fp32 is given without --data, which "
                             "trains nothing; leave it out or give --data",
                             flags[f].name);
    return WEIR_OK;
}

/* A number that is not 0 stays so as the float in which an update computes: a clip of 0 is none. */
static enum weir_status floats_check(const struct arguments *a)
{
    const struct {
        const char *flag;
        double value;
    } numbers[] = {{"--lr", a->lr}, {"--weight-decay", a->weight_decay}, {"--clip", a->clip}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value > 0 && (float)numbers[i].value <= 0)
            return weir_fail(WEIR_ERR_ARG,
                             "%s %g is 0 as a 32-bit float, in which an update computes; give 0 or "
                             "at least %.2g",
                             numbers[i].flag, numbers[i].value, (double)FLT_MIN);
    return WEIR_OK;
}

static bool given(const bool *seen, size_t field)
{
    for (size_t f = 0; f < FLAG_TOTAL; f++)
        if (seen[f] && flags[f].field == field)
            return true;
    return false;
}

static enum weir_status schedule_check(const struct arguments *a, const bool *seen)
{
    if (a->schedule == SCHEDULE_CONSTANT && given(seen, FIELD(min_lr)))
        return weir_fail(WEIR_ERR_ARG,
                         "--min-lr %g has no use with --lr-schedule constant, which stays at --lr "
                         "%g; leave one of them out",
                         a->min_lr, a->lr);
    if (a->min_lr > a->lr)
        return weir_fail(WEIR_ERR_ARG, "--min-lr %g is more than --lr %g; give less, or more --lr",
                         a->min_lr, a->lr);
    if (a->warmup >= a->steps)
        return weir_fail(WEIR_ERR_ARG,
                         "--warmup %llu: all of --steps %llu would be warmup; give less of it, or "
                         "more steps",
                         (unsigned long long)a->warmup, (unsigned long long)a->steps);
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
    WEIR_TRY(floats_check(a));
    WEIR_TRY(schedule_check(a, seen));
    static const size_t of_nvme[] = {FIELD(io_engine), FIELD(require_direct),
                                     FIELD(require_registered), FIELD(verify), FIELD(endurance)};
    const struct flag *flag = flag_seen(&table, seen, of_nvme, sizeof of_nvme / sizeof *of_nvme);
    if (flag && !a->nvme)
        return weir_fail(WEIR_ERR_ARG, "%s needs --nvme", flag->name);
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
    bool seen[FLAG_TOTAL] = {false};
    WEIR_TRY(flags_read(&table, a, seen, count - 1, values + 1));
    if (a->min_lr < 0)
        a->min_lr = 0.1 * a->lr;
    return a->help ? WEIR_OK : together_check(a, seen);
}

const char *arguments_schedule(const struct arguments *a)
{
    return schedule_names[a->schedule];
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
