#include "examples/train/trainer.h"
#include "core/clock.h"
#include "core/machine.h"
#include "core/memory.h"
#include "core/thread.h"
#include "examples/flags.h"
#include "examples/train/export.h"
#include "examples/train/rates.h"
#include "examples/train/weights.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <weir/checkpoint.h>
#include <weir/timeline.h>

#define PLANNING_QUIET_NS 2000000000u /* who plans longer says how far it is */

static void log_line(void *context, enum weir_log_level level, const char *line)
{
    (void)context;
    fprintf(stderr, "%s%s\n", level == WEIR_LOG_WARNING ? "warning: " : "", line);
}

/* The last 5 % of the sequences are for evaluation, unless --eval-data brings others. */
static void corpus_split(struct trainer *t)
{
    uint64_t all = t->corpus.sequence_count;
    t->train_count = all;
    if (t->arguments.eval_data) {
        t->eval_count = t->eval_corpus.sequence_count;
        return;
    }
    t->eval_count = all / 20 > 0 ? all / 20 : all > 1 ? 1 : 0;
    t->train_count = all - t->eval_count;
    t->eval_first = t->train_count;
    if (t->eval_count == 0)
        fprintf(stderr, "warning: data \"%s\" is one sequence; nothing is left for evaluation\n",
                t->arguments.data);
}

static enum weir_status data_open(struct trainer *t)
{
    const struct arguments *a = &t->arguments;
    const char *refused = t->config.directory
                              ? "the model's weights were trained with a tokenizer; "
                                "turn the text into a .bin with weir-tokenize "
                                "(examples/train/tokenize.py in the source)"
                              : NULL;
    WEIR_TRY(corpus_open(&t->corpus, a->data, a->seq_len, t->config.vocab, refused));
    if (a->eval_data)
        WEIR_TRY(corpus_open(&t->eval_corpus, a->eval_data, a->seq_len, t->config.vocab, refused));
    corpus_split(t);
    return WEIR_OK;
}

static enum weir_status run_open(struct trainer *t, const volatile sig_atomic_t *stop)
{
    const struct arguments *a = &t->arguments;
    struct rates rates;
    if (a->profile)
        WEIR_TRY(rates_read(&rates, a));
    WEIR_TRY(weir_open(&t->run, &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                       .device = a->device,
                                                       .device_bytes = a->device_bytes,
                                                       .host_bytes = a->host_bytes,
                                                       .nvme_path = a->nvme,
                                                       .io_engine = a->io_engine,
                                                       .dtype = a->dtype,
                                                       .grad_dtype = a->grad_dtype,
                                                       .thread_count = a->threads,
                                                       .require_direct = a->require_direct,
                                                       .require_registered = a->require_registered,
                                                       .verify = a->verify,
                                                       .log = log_line,
                                                       .cost = a->profile ? &rates.cost : NULL}));
    struct llama_spec spec = {.shape = {.sequences = a->micro_batch,
                                        .length = a->seq_len,
                                        .hidden = t->config.hidden,
                                        .heads = t->config.heads,
                                        .kv_heads = t->config.kv_heads,
                                        .head_dim = t->config.head_dim,
                                        .intermediate = t->config.intermediate,
                                        .vocab = t->config.vocab,
                                        .tile_rows = WEIR_TILE_ROWS,
                                        .chunk_tokens = WEIR_CHUNK_TOKENS,
                                        .norm_eps = t->config.norm_eps,
                                        .dtype = a->dtype,
                                        .rope = t->config.rope},
                              .layer_count = t->config.layer_count,
                              .micro_count = a->batch / a->micro_batch,
                              .tied = t->config.tied,
                              .row_elements = LLAMA_ROW_ELEMENTS};
    if (a->timeline)
        WEIR_TRY(weir_timeline_start(t->run));
    WEIR_TRY(llama_open(&t->llama, t->run, &spec, a->threads));
    t->llama->stop = stop;
    return weir_alloc(&t->tokens, 2ull * t->llama->net.tokens * spec.micro_count, sizeof *t->tokens,
                      "tokens");
}

static enum weir_status record(struct trainer *t, const char *key, uint32_t groups, bool training)
{
    struct weir_update update = {.struct_bytes = sizeof update};
    struct llama_step step = {
        .key = key, .dry = true, .group_count = groups, .update = training ? &update : NULL};
    double loss;
    return llama_run(t->llama, &step, &loss, NULL);
}

/* 4j: 1, 2, 4 ... groups of micro-batches; the fastest plan that fits. */
static enum weir_status groups_choose(struct trainer *t)
{
    uint32_t most = t->llama->spec.micro_count;
    uint64_t begun_ns = weir_now_ns();
    for (uint32_t groups = 1; groups <= most; groups *= 2) {
        struct weir_prediction p = {.struct_bytes = sizeof p};
        WEIR_TRY(record(t, "train", groups, true));
        enum weir_status status = weir_predict(t->run, "train", &p);
        if (status == WEIR_ERR_NOMEM && (t->group_count > 0 || groups * 2 <= most))
            continue;
        WEIR_TRY(status);
        bool slower = t->group_count > 0 && p.step_s >= t->prediction.step_s;
        if (!slower) {
            t->group_count = groups;
            t->prediction = p;
        }
        /* Where boundaries fit in memory, or fewer groups were as fast, more of them would only
         * move the weights more often. */
        if (slower || p.kept_bytes[2] == 0)
            break;
        if (weir_now_ns() - begun_ns > PLANNING_QUIET_NS)
            printf("planning: %u groups of %u micro-batches, %.3g s a step\n", groups,
                   most / groups, p.step_s);
    }
    WEIR_TRY(record(t, "train", t->group_count, true));
    return record(t, "eval", 1, false);
}

static enum weir_status budgets_fit(struct trainer *t)
{
    enum weir_status status = groups_choose(t);
    if (status != WEIR_ERR_NOMEM)
        return status;
    struct weir_error error = *weir_last_error();
    return weir_fail(WEIR_ERR_NOMEM, "%s (--device-memory, --host-memory, --nvme, --micro-batch)",
                     error.text);
}

enum weir_status trainer_memory_check(const struct trainer *t)
{
    const struct arguments *a = &t->arguments;
    bool on_host = strcmp(a->device, "host") == 0;
    uint64_t need = t->prediction.host_bytes + (on_host ? t->prediction.device_bytes : 0);
    uint64_t available = weir_memory_available_bytes("");
    if (need <= available)
        return WEIR_OK;
    return weir_fail(
        WEIR_ERR_NOMEM,
        "the plan needs %.1f MiB of memory, this machine has %.1f MiB available to this "
        "process; lower %s--host-memory, with --nvme for the rest, or free memory",
        (double)need / 0x1p20, (double)available / 0x1p20, on_host ? "--device-memory and " : "");
}

/* What is written at the end, or on the way, must not fail then. */
static enum weir_status files_check(const struct arguments *a)
{
    if (a->log)
        WEIR_TRY(flag_file_check("--log", a->log, FLAG_FILE_APPENDED));
    if (a->timeline)
        WEIR_TRY(flag_file_check("--timeline", a->timeline, FLAG_FILE_APPENDED));
    return a->export_fp32 ? flag_file_check("--export-fp32", a->export_fp32, FLAG_FILE_REGULAR)
                          : WEIR_OK;
}

/* A run begun beside another's checkpoints would prune its own for the sake of the other's, and be
 * resumed from them. A dry run makes none. */
static enum weir_status out_check(const struct trainer *t)
{
    const struct arguments *a = &t->arguments;
    char path[4096];
    bool found = false;
    if (!a->out || a->resume || a->dry_run)
        return WEIR_OK;
    WEIR_TRY(trainer_newest(t, path, sizeof path, &found));
    if (!found)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG,
                     "--out \"%s\": it holds the checkpoint %s of a run before; go on from it with "
                     "--resume, or name another folder",
                     a->out, strrchr(path, '/') + 1);
}

enum weir_status trainer_open(struct trainer *t, const struct arguments *arguments,
                              const volatile sig_atomic_t *stop)
{
    *t = (struct trainer){.arguments = *arguments, .corpus = {.fd = -1}, .eval_corpus = {.fd = -1}};
    const struct arguments *a = &t->arguments;
    if (t->arguments.threads == 0)
        t->arguments.threads = weir_thread_cpus();
    WEIR_TRY(llama_config_read(&t->config, a->model));
    if (a->seq_len > t->config.position_count)
        return weir_fail(WEIR_ERR_ARG,
                         "--seq-len %u is beyond the model's "
                         "max_position_embeddings %u",
                         a->seq_len, t->config.position_count);
    WEIR_TRY(files_check(a));
    WEIR_TRY(out_check(t));
    if (a->out && t->config.directory)
        WEIR_TRY(companions_read(&t->companions, t->config.directory));
    WEIR_TRY(wear_read(&t->wear, a->endurance, a->nvme));
    WEIR_TRY(data_open(t));
    WEIR_TRY(run_open(t, stop));
    if (t->config.directory)
        WEIR_TRY(weights_check(t->llama, t->config.directory));
    char path[4096];
    bool found = false;
    if (a->resume) {
        WEIR_TRY(trainer_newest(t, path, sizeof path, &found));
        if (!found)
            return weir_fail(WEIR_ERR_ARG, "--resume: no checkpoint step-N under \"%s\"", a->out);
        WEIR_TRY(trainer_resume_check(t, path));
    }
    return budgets_fit(t);
}

static enum weir_status weights_fill(struct trainer *t)
{
    char path[4096];
    bool found = false;
    if (t->arguments.resume) {
        WEIR_TRY(trainer_newest(t, path, sizeof path, &found));
        printf("resuming from %s\n", path);
        WEIR_TRY(weir_load(t->run, path));
        const char *number = strrchr(path, '-');
        t->step = t->first_step = t->saved_step = strtoull(number + 1, NULL, 10);
        if (t->step >= t->arguments.steps)
            fprintf(stderr, "warning: --steps %llu: the checkpoint has %llu; nothing to train\n",
                    (unsigned long long)t->arguments.steps, (unsigned long long)t->step);
        return WEIR_OK;
    }
    if (t->config.directory)
        return weights_load(t->llama, t->config.directory);
    return weights_random(t->llama, t->arguments.seed, t->config.init_deviation);
}

static enum weir_status out_make(const char *out)
{
    struct stat st;
    if (mkdir(out, 0777) == 0)
        return WEIR_OK;
    if (errno != EEXIST)
        return weir_fail_errno(WEIR_ERR_IO, errno, "--out \"%s\": cannot be made", out);
    if (stat(out, &st) == 0 && !S_ISDIR(st.st_mode))
        return weir_fail(WEIR_ERR_ARG, "--out \"%s\": is no folder; give the name of one", out);
    if (access(out, W_OK | X_OK) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "--out \"%s\": cannot be written", out);
    return WEIR_OK;
}

enum weir_status trainer_start(struct trainer *t)
{
    if (t->arguments.out) {
        WEIR_TRY(out_make(t->arguments.out));
        trainer_sweep(t);
    }
    WEIR_TRY(weir_layout(t->run));
    WEIR_TRY(weir_predict(t->run, "train", &t->prediction));
    WEIR_TRY(weights_fill(t));
    return journal_open(&t->journal, t->arguments.log, t->step);
}

/* Sequences into micro-batches: inputs of all its sequences, then their targets. */
static enum weir_status batch_read(struct trainer *t, struct corpus *corpus, uint64_t place,
                                   uint64_t sequence)
{
    uint64_t length = t->arguments.seq_len, n = t->llama->net.tokens;
    int32_t *micro = t->tokens + place / t->arguments.micro_batch * 2 * n;
    int32_t *inputs = micro + place % t->arguments.micro_batch * length;
    return corpus_read(corpus, sequence, inputs, inputs + n);
}

static void batch_mask(struct trainer *t, uint64_t place)
{
    uint64_t length = t->arguments.seq_len, n = t->llama->net.tokens;
    int32_t *micro = t->tokens + place / t->arguments.micro_batch * 2 * n;
    int32_t *inputs = micro + place % t->arguments.micro_batch * length;
    for (uint64_t i = 0; i < length; i++) {
        inputs[i] = 0;
        inputs[n + i] = -100;
    }
}

static enum weir_status evaluate(struct trainer *t, double *loss)
{
    struct corpus *corpus = t->arguments.eval_data ? &t->eval_corpus : &t->corpus;
    uint64_t batch = t->arguments.batch, left = t->eval_count, next = t->eval_first, seen = 0;
    double sum = 0;
    for (uint64_t b = 0; b < t->arguments.eval_batches && left > 0; b++) {
        uint64_t here = left < batch ? left : batch;
        for (uint64_t i = 0; i < here; i++)
            WEIR_TRY(batch_read(t, corpus, i, next++));
        for (uint64_t i = here; i < batch; i++)
            batch_mask(t, i);
        left -= here;
        double mean;
        struct llama_step step = {
            .key = "eval", .tokens = t->tokens, .target_count = here * t->arguments.seq_len};
        WEIR_TRY(llama_run(t->llama, &step, &mean, NULL));
        sum += mean * (double)here;
        seen += here;
    }
    *loss = seen > 0 ? sum / (double)seen : NAN;
    return WEIR_OK;
}

static const char *bound_of(const struct weir_report *r)
{
    if (r->stall_ns < r->step_ns / 20)
        return "compute";
    return r->nvme_read_bytes + r->nvme_written_bytes > 0 ? "nvme" : "link";
}

static enum weir_status step_run(struct trainer *t, struct journal_step *out)
{
    const struct arguments *a = &t->arguments;
    for (uint64_t i = 0; i < a->batch; i++)
        WEIR_TRY(batch_read(t, &t->corpus, i,
                            corpus_order(a->seed, t->train_count, t->step * a->batch + i)));
    struct weir_update update = {
        sizeof update, (float)arguments_lr(a, t->step), (float)a->beta1, (float)a->beta2,
        (float)a->eps, (float)a->weight_decay,          (float)a->clip};
    *out = (struct journal_step){.steps = a->steps,
                                 .tokens = (uint64_t)a->batch * a->seq_len,
                                 .lr = (double)update.lr,
                                 .eval_loss = NAN,
                                 .report = {.struct_bytes = sizeof out->report}};
    struct llama_step step = {.key = "train",
                              .group_count = t->group_count,
                              .tokens = t->tokens,
                              .target_count = out->tokens,
                              .update = &update};
    WEIR_TRY(llama_run(t->llama, &step, &out->loss, &out->report));
    out->step = ++t->step;
    out->bound = bound_of(&out->report);
    return WEIR_OK;
}

static enum weir_status skips_count(struct trainer *t, const struct weir_report *r)
{
    t->skips = r->skipped ? t->skips + 1 : 0;
    if (t->skips >= t->arguments.max_skips)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "%llu steps in a row had an inf or nan gradient "
                         "(--max-skips); lower --lr or look at the data",
                         (unsigned long long)t->skips);
    return WEIR_OK;
}

/* What is done every so many steps (0: never) is also done after the last. */
static bool due(const struct trainer *t, uint64_t every)
{
    return t->step == t->arguments.steps || (every > 0 && t->step % every == 0);
}

/* The third step of this process is like all that follow; a shorter run has only its last. */
static enum weir_status timeline_step(struct trainer *t)
{
    uint64_t third = t->first_step + 3, last = t->arguments.steps;
    if (!t->arguments.timeline || t->step != (third < last ? third : last))
        return WEIR_OK;
    return weir_timeline_write(t->run, t->arguments.timeline);
}

/* Whatever ends a run before its last step (a signal, data that cannot be read, a file of figures
 * that takes no more, too many skips) leaves whole weights, unless the run itself is broken: save
 * them, whatever --save-every says. What ended it stays the error. */
static enum weir_status stopped(struct trainer *t)
{
    struct weir_error error = *weir_last_error();
    bool saved = t->arguments.out && t->step > 0;
    if (saved && t->step != t->saved_step && trainer_save(t) != WEIR_OK) {
        saved = false;
        if (strcmp(weir_last_error()->text, error.text) != 0) /* else it is what broke the run */
            fprintf(stderr, "warning: step %llu is not saved: %s\n", (unsigned long long)t->step,
                    weir_last_error()->text);
    }
    return weir_fail(error.status, "%s, after step %llu%s", error.text, (unsigned long long)t->step,
                     saved ? "; saved, go on with --resume" : "");
}

/* The step is done: its line is written whatever fails after it. */
static enum weir_status step_after(struct trainer *t, struct journal_step *s)
{
    const struct arguments *a = &t->arguments;
    t->trained_tokens += (double)s->tokens;
    t->trained_seconds += (double)s->report.step_ns * 1e-9;
    t->read_bytes += s->report.nvme_read_bytes;
    t->written_bytes += s->report.nvme_written_bytes;
    double each = t->trained_seconds * (double)s->tokens / t->trained_tokens;
    s->seconds_left = each * (double)(a->steps - t->step);
    WEIR_TRY(wear_written(t->run, &s->nvme_written_total_bytes));
    enum weir_status status = timeline_step(t);
    if (status == WEIR_OK && due(t, a->eval_every))
        status = evaluate(t, &s->eval_loss);
    struct weir_error error = *weir_last_error();
    enum weir_status logged = journal_step(&t->journal, s);
    if (status != WEIR_OK)
        return weir_fail_with(&error);
    WEIR_TRY(logged);
    return skips_count(t, &s->report);
}

static void summary_print(const struct trainer *t, const struct journal_step *s)
{
    struct journal_summary summary = {
        .steps = t->step,
        .eval_loss = s->eval_loss,
        .seconds = t->trained_seconds,
        .tokens = t->trained_tokens,
        .flops = t->trained_tokens * llama_config_token_flops(&t->config, t->arguments.seq_len),
        .peak_flops_per_s = t->prediction.compute_flops_per_s,
        .device_peak_bytes = s->report.device_peak_bytes,
        .host_peak_bytes = s->report.host_peak_bytes,
        .io_engine = s->report.io_engine,
        .io_direct = s->report.io_direct,
        .io_registered = s->report.io_registered,
        .nvme_bytes = t->prediction.nvme_bytes,
        .read_bytes = t->read_bytes,
        .written_bytes = t->written_bytes,
    };
    journal_summary(&summary);
}

enum weir_status trainer_train(struct trainer *t)
{
    struct journal_step s = {.eval_loss = NAN};
    while (t->step < t->arguments.steps) {
        enum weir_status status = step_run(t, &s);
        if (status == WEIR_OK)
            status = step_after(t, &s);
        if (status != WEIR_OK)
            return stopped(t);
        if (t->arguments.out && due(t, t->arguments.save_every))
            WEIR_TRY(trainer_save(t));
    }
    if (t->arguments.export_fp32) {
        WEIR_TRY(export_run(t->llama, t->arguments.export_fp32));
        printf("exported %s\n", t->arguments.export_fp32);
    }
    summary_print(t, &s);
    uint64_t steps = t->step - t->first_step;
    return wear_summary(&t->wear, t->run, steps > 0 ? (double)t->written_bytes / (double)steps : 0);
}

void trainer_close(struct trainer *t)
{
    journal_close(&t->journal);
    llama_close(t->llama);
    weir_close(t->run);
    weir_free(t->tokens);
    corpus_close(&t->corpus);
    corpus_close(&t->eval_corpus);
    companions_free(&t->companions);
    llama_config_free(&t->config);
}
