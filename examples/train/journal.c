#include "examples/train/journal.h"
#include "core/file.h"
#include "examples/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A line of a step up to steps_done is kept. One that a kill tore off is not, unless only its end
 * is missing. */
static enum weir_status line_copy(const char *line, size_t length, const char *path,
                                  uint64_t steps_done, struct replace *to)
{
    json_t *object = json_loads(line, 0, NULL);
    const json_t *step = json_object_get(object, "step");
    bool own = json_is_integer(step), whole = line[length - 1] == '\n';
    bool kept = own && (uint64_t)json_integer_value(step) <= steps_done;
    json_decref(object);
    if (!own && whole)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "log \"%s\": a line without a step; not a log of weir-train: name another "
                         "file",
                         path);
    if (!kept)
        return WEIR_OK;
    WEIR_TRY(replace_write(to, line, length));
    return whole ? WEIR_OK : replace_write(to, "\n", 1);
}

static enum weir_status lines_copy(FILE *from, const char *path, uint64_t steps_done,
                                   struct replace *to)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    enum weir_status status = WEIR_OK;
    while (status == WEIR_OK && (length = getline(&line, &capacity, from)) > 0)
        status = line_copy(line, (size_t)length, path, steps_done, to);
    if (status == WEIR_OK && !feof(from))
        status = weir_fail_errno(WEIR_ERR_IO, errno, "log \"%s\": cannot be read", path);
    free(line);
    return status;
}

/* The log of a run that is resumed: lines of later steps are of a future that will be made again.
 * What a device or a pipe was told cannot be taken back. */
static enum weir_status lines_drop(const char *path, uint64_t steps_done)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return WEIR_OK;
    FILE *from = fopen(path, "re");
    if (!from)
        return errno == ENOENT
                   ? WEIR_OK
                   : weir_fail_errno(WEIR_ERR_IO, errno, "log \"%s\": cannot be read", path);
    struct replace to;
    enum weir_status status = replace_begin(&to, "log", path);
    if (status == WEIR_OK)
        status = replace_end(&to, lines_copy(from, path, steps_done, &to));
    fclose(from);
    return status;
}

enum weir_status journal_open(struct journal *journal, const char *path, uint64_t steps_done)
{
    *journal = (struct journal){.path = path};
    if (!path)
        return WEIR_OK;
    if (steps_done > 0)
        WEIR_TRY(lines_drop(path, steps_done));
    int fd, error = weir_file_open(path, O_WRONLY | O_CREAT | (steps_done > 0 ? O_APPEND : O_TRUNC),
                                   0666, &fd);
    if (!error && (journal->json = fdopen(fd, steps_done > 0 ? "a" : "w")) == NULL) {
        error = errno;
        close(fd);
    }
    return error ? weir_fail_errno(WEIR_ERR_IO, error, "log \"%s\": cannot be opened", path)
                 : WEIR_OK;
}

void journal_close(struct journal *journal)
{
    if (journal->json)
        fclose(journal->json);
    journal->json = NULL;
}

static void duration_print(double seconds)
{
    if (seconds >= 3600)
        printf("%.1f h", seconds / 3600);
    else if (seconds >= 60)
        printf("%.1f min", seconds / 60);
    else
        printf("%.0f s", seconds);
}

/* JSON has no inf and no nan. */
static json_t *real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static enum weir_status json_line(struct journal *journal, const struct journal_step *s)
{
    const struct weir_report *r = &s->report;
    double seconds = (double)r->step_ns * 1e-9;
    json_t *o = json_pack(
        "{s:I, s:o, s:o, s:f, s:I, s:f, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:s, s:I, s:I, s:b}",
        "step", (json_int_t)s->step, "loss", real(s->loss), "grad_norm", real(r->grad_norm), "lr",
        s->lr, "tokens", (json_int_t)s->tokens, "step_s", seconds, "tok_s",
        real((double)s->tokens / seconds), "nvme_read_bytes", (json_int_t)r->nvme_read_bytes,
        "nvme_written_bytes", (json_int_t)r->nvme_written_bytes, "nvme_written_total_bytes",
        (json_int_t)s->nvme_written_total_bytes, "h2d_bytes", (json_int_t)r->to_device_bytes,
        "d2h_bytes", (json_int_t)r->to_host_bytes, "stall_s", (double)r->stall_ns * 1e-9, "bound",
        s->bound, "peak_device_bytes", (json_int_t)r->device_peak_bytes, "peak_host_bytes",
        (json_int_t)r->host_peak_bytes, "skipped", r->skipped);
    if (o && isfinite(s->eval_loss))
        json_object_set_new(o, "eval_loss", json_real(s->eval_loss));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    bool failed = !text || fprintf(journal->json, "%s\n", text) < 0 || fflush(journal->json) != 0;
    free(text);
    json_decref(o);
    if (failed)
        return weir_fail_errno(WEIR_ERR_IO, errno, "log \"%s\": cannot be written", journal->path);
    return WEIR_OK;
}

enum weir_status journal_step(struct journal *journal, const struct journal_step *s)
{
    const struct weir_report *r = &s->report;
    printf("step %llu/%llu  loss %.4f  norm %.3f%s  lr %.2e  %.0f tok/s  %s-bound  left ",
           (unsigned long long)s->step, (unsigned long long)s->steps, s->loss, r->grad_norm,
           r->skipped ? " SKIPPED" : "", s->lr, (double)s->tokens * 1e9 / (double)r->step_ns,
           s->bound);
    duration_print(s->seconds_left);
    if (isfinite(s->eval_loss))
        printf("  eval %.4f", s->eval_loss);
    printf("\n");
    fflush(stdout);
    return journal->json ? json_line(journal, s) : WEIR_OK;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 0x1p20;
}

void journal_layout(const struct weir_prediction *p, uint32_t group_count)
{
    printf("                      device       host       nvme   (MiB)\n");
    const struct {
        const char *name;
        const uint64_t *bytes;
    } rows[] = {{"weights", p->weight_bytes},
                {"gradients", p->grad_bytes},
                {"optimizer states", p->state_bytes},
                {"waiting activations", p->kept_bytes}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("  %-19s %7.1f    %7.1f    %7.1f\n", rows[i].name, mib(rows[i].bytes[0]),
               mib(rows[i].bytes[1]), mib(rows[i].bytes[2]));
    printf("  %-19s %7.1f    %7.1f\n", "slots of a step, ring", mib(p->transient_bytes),
           mib(p->ring_bytes));
    printf("  %-19s %7.1f    %7.1f    %7.1f\n", "in all", mib(p->device_bytes), mib(p->host_bytes),
           mib(p->nvme_bytes));
    printf("  a step reads %.1f and writes %.1f MiB of NVMe, moves %.1f MiB to the device and %.1f "
           "back",
           mib(p->step_read_bytes), mib(p->step_written_bytes), mib(p->step_to_device_bytes),
           mib(p->step_to_host_bytes));
    if (group_count > 1)
        printf(", in %u groups of micro-batches", group_count);
    if (p->refused_bytes > 0)
        printf("; %.1f MiB of activations are recomputed", mib(p->refused_bytes));
    printf("\n  predicted: %.3f s a step, floor of the schedule %.3f s (compute %.3f s, NVMe %.3f "
           "s)\n",
           p->step_s, p->floor_s, p->compute_s, p->io_s);
    fflush(stdout);
}

uint64_t journal_peak_rss_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

void journal_summary(const struct journal_summary *s)
{
    printf("\ndone: %llu steps in %.1f s, %.0f tokens/s", (unsigned long long)s->steps, s->seconds,
           s->seconds > 0 ? s->tokens / s->seconds : 0);
    if (s->peak_flops_per_s > 0 && s->seconds > 0)
        printf(", model FLOPs utilisation %.1f %% of the %.0f GFLOP/s measured here",
               100 * s->flops / s->seconds / s->peak_flops_per_s, s->peak_flops_per_s * 1e-9);
    if (isfinite(s->eval_loss))
        printf(", eval loss %.4f", s->eval_loss);
    printf(
        "\npeak: device %.1f MiB, host %.1f MiB, nvme %.1f MiB, resident set %.1f MiB; NVMe read "
        "%.1f MiB, written %.1f MiB",
        mib(s->device_peak_bytes), mib(s->host_peak_bytes), mib(s->nvme_bytes),
        mib(journal_peak_rss_bytes()), mib(s->read_bytes), mib(s->written_bytes));
    if (s->io_engine)
        printf(" (%s, %s, %s)", s->io_engine, s->io_direct ? "direct" : "buffered",
               s->io_registered ? "registered" : "not registered");
    printf("\n");
    fflush(stdout);
}
