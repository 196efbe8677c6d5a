#include "examples/bench/io_point.h"
#include "core/clock.h"
#include "core/memory.h"
#include "examples/bench/leave.h"
#include "examples/bench/units.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#define RESULTS      64
#define STRIPE_BYTES (1u << 20) /* as the library cuts a large extent */

static uint64_t now_ns(void)
{
    return weir_now_ns();
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

const struct io_clock io_clock_real = {now_ns, cpu_s};

/* What is written takes turns with what is read, each in its own half of the file. */
struct cursor {
    uint64_t first, count, next; /* blocks */
};

struct run {
    const struct io_target *target;
    const struct io_point *point;
    struct io_limit limit;
    struct weir_io *io;
    uint32_t file;
    struct cursor cursors[2]; /* by kind */
    uint64_t begun_count;     /* requests so far */
    unsigned char *memory;
    struct slot {
        uint64_t begun_ns;
        enum weir_io_kind kind;
    } * slots; /* requests in flight, each with its own memory */
    uint32_t slot_count;
    uint64_t until_ns;
    struct io_sample *sample;
    struct histogram *latencies;
};

static enum weir_io_kind kind_next(const struct run *r)
{
    if (r->point->pattern == PATTERN_MIXED)
        return r->begun_count % 2 == 0 ? WEIR_IO_READ : WEIR_IO_WRITE;
    return r->point->pattern == PATTERN_READ ? WEIR_IO_READ : WEIR_IO_WRITE;
}

static enum weir_status block_begin(struct run *r, uint64_t slot, uint64_t at_ns)
{
    uint64_t bytes = r->point->block_bytes;
    enum weir_io_kind kind = kind_next(r);
    struct cursor *cursor = &r->cursors[kind];
    uint64_t block = cursor->first + cursor->next++ % cursor->count;
    r->begun_count++;
    r->slots[slot] = (struct slot){at_ns, kind};
    return weir_io_submit(r->io,
                          &(struct weir_io_request){.id = slot,
                                                    .kind = kind,
                                                    .file = r->file,
                                                    .offset_bytes = block * bytes,
                                                    .bytes = r->memory + slot * bytes,
                                                    .byte_count = bytes},
                          1);
}

static bool over(const struct run *r, uint64_t at_ns)
{
    return at_ns >= r->until_ns ||
           (r->limit.bytes > 0 && r->begun_count * r->point->block_bytes >= r->limit.bytes);
}

static enum weir_status result_take(struct run *r, const struct weir_io_result *result,
                                    uint64_t at_ns)
{
    if (result->status != WEIR_OK)
        return weir_fail_with(&result->error);
    const struct slot *slot = &r->slots[result->id];
    histogram_add(r->latencies, at_ns - slot->begun_ns);
    *(slot->kind == WEIR_IO_READ ? &r->sample->read_bytes : &r->sample->written_bytes) +=
        r->point->block_bytes;
    return WEIR_OK;
}

static enum weir_status blocks_move(struct run *r)
{
    uint64_t outstanding = 0;
    uint64_t at_ns = r->target->clock->now_ns();
    for (; outstanding < r->slot_count && !over(r, at_ns); outstanding++)
        WEIR_TRY(block_begin(r, outstanding, r->target->clock->now_ns()));
    while (outstanding > 0) {
        struct weir_io_result results[RESULTS];
        size_t count;
        leave_if_asked();
        WEIR_TRY(weir_io_reap(r->io, results, RESULTS, WEIR_IO_FOREVER, &count));
        at_ns = r->target->clock->now_ns();
        for (size_t i = 0; i < count; i++) {
            WEIR_TRY(result_take(r, &results[i], at_ns));
            if (over(r, at_ns))
                outstanding--;
            else
                WEIR_TRY(block_begin(r, results[i].id, at_ns));
        }
    }
    return WEIR_OK;
}

enum weir_status io_target_sync(const struct io_target *target)
{
    for (uint32_t f = 0; f < target->file_count; f++)
        if (fdatasync(target->files[f].fd) != 0)
            return weir_fail_errno(WEIR_ERR_IO, errno, "\"%s\": what was written is not synced",
                                   target->files[f].name);
    return WEIR_OK;
}

static enum weir_status files_open(const struct io_target *target, struct weir_io *io,
                                   uint32_t *file)
{
    uint32_t files[FLAG_LIST_MOST];
    double shares[FLAG_LIST_MOST];
    for (uint32_t f = 0; f < target->file_count; f++) {
        const struct io_target_file *from = &target->files[f];
        shares[f] = from->share;
        WEIR_TRY(weir_io_file_open(io, from->name, from->fd, from->direct, 0, &files[f]));
    }
    *file = files[0];
    if (target->file_count == 1)
        return WEIR_OK;
    return weir_io_volume_open(io, "the drives", files, shares, target->file_count, STRIPE_BYTES,
                               file);
}

enum weir_status io_target_open(const struct io_target *target, const struct weir_io_options *how,
                                void *memory, uint64_t byte_count, struct weir_io **io,
                                uint32_t *file)
{
    struct weir_io_options options = *how;
    options.drive_count = target->file_count;
    if (target->engine_table)
        options.engine_table = target->engine_table;
    WEIR_TRY(weir_io_open(io, &options));
    enum weir_status status = files_open(target, *io, file);
    if (status == WEIR_OK)
        status = weir_io_memory_add(*io, memory, byte_count);
    if (status != WEIR_OK) {
        weir_io_close(*io);
        *io = NULL;
    }
    return status;
}

enum weir_status io_target_size(struct io_target *target, uint64_t each_bytes)
{
    double shares[FLAG_LIST_MOST], sum = 0, most = 0;
    uint64_t parts[FLAG_LIST_MOST];
    target->byte_count = each_bytes;
    if (target->file_count == 1)
        return WEIR_OK;
    for (uint32_t f = 0; f < target->file_count; f++) {
        shares[f] = target->files[f].share;
        sum += shares[f];
        most = shares[f] > most ? shares[f] : most;
    }
    target->byte_count = (uint64_t)((double)each_bytes * sum / most) / STRIPE_BYTES * STRIPE_BYTES;
    for (bool fits = false; !fits; target->byte_count -= fits ? 0 : STRIPE_BYTES) {
        WEIR_TRY(weir_io_volume_share(shares, target->file_count, STRIPE_BYTES, target->byte_count,
                                      parts));
        fits = true;
        for (uint32_t f = 0; f < target->file_count; f++)
            fits = fits && parts[f] <= each_bytes;
    }
    return WEIR_OK;
}

uint64_t io_point_memory(const struct io_target *target, const struct io_point *point)
{
    return target->file_count * point->depth * point->block_bytes;
}

static enum weir_status timed_run(struct run *r)
{
    const struct io_clock *clock = r->target->clock;
    struct kernel_counters before, after;
    kernel_counters_read(r->target->drives, &before);
    double cpu = clock->cpu_s();
    uint64_t begin_ns = clock->now_ns();
    r->until_ns = begin_ns + r->limit.ns;
    WEIR_TRY(blocks_move(r));
    if (r->point->pattern != PATTERN_READ)
        WEIR_TRY(io_target_sync(r->target));
    r->sample->ns = clock->now_ns() - begin_ns;
    r->sample->cpu_s = clock->cpu_s() - cpu;
    kernel_counters_read(r->target->drives, &after);
    r->sample->counted = kernel_counters_between(&before, &after);
    return WEIR_OK;
}

/* In each part of the file that the pattern has. */
static uint64_t blocks_of(const struct io_target *target, const struct io_point *point)
{
    uint64_t blocks = target->byte_count / point->block_bytes;
    return point->pattern == PATTERN_MIXED ? blocks / 2 : blocks;
}

enum weir_status io_point_fits(const struct io_target *target, const struct io_point *point)
{
    uint64_t blocks = blocks_of(target, point);
    uint32_t in_flight = point->depth * target->file_count;
    if (blocks >= in_flight)
        return WEIR_OK;
    char bytes[24], block[24];
    return weir_fail(WEIR_ERR_ARG,
                     "\"%s\": %s hold %llu blocks of %s%s, %u are to be in flight; give a larger "
                     "file, a lower --depth or a smaller --block",
                     target->files[0].name, bytes_text(target->byte_count, bytes),
                     (unsigned long long)blocks, bytes_text(point->block_bytes, block),
                     point->pattern == PATTERN_MIXED ? " in each half" : "", in_flight);
}

static void cursors_make(struct run *r)
{
    uint64_t blocks = r->target->byte_count / r->point->block_bytes,
             half = blocks_of(r->target, r->point);
    r->cursors[WEIR_IO_READ] = (struct cursor){.first = 0, .count = half};
    r->cursors[WEIR_IO_WRITE] = (struct cursor){.first = blocks - half, .count = half};
}

enum weir_status io_point_run(const struct io_target *target, const struct io_point *point,
                              unsigned char *memory, struct io_limit limit,
                              struct io_sample *sample, struct histogram *latencies)
{
    struct run r = {.target = target,
                    .point = point,
                    .limit = limit,
                    .memory = memory,
                    .slot_count = point->depth * target->file_count,
                    .sample = sample,
                    .latencies = latencies};
    *sample = (struct io_sample){0};
    WEIR_TRY(io_point_fits(target, point));
    cursors_make(&r);
    WEIR_TRY(weir_alloc(&r.slots, r.slot_count, sizeof *r.slots, "requests in flight"));
    enum weir_status status =
        io_target_open(target,
                       &(struct weir_io_options){
                           .engine = point->engine,
                           .depth = point->depth,
                           .request_count = r.slot_count,
                           .piece_bytes = point->block_bytes,
                       },
                       memory, io_point_memory(target, point), &r.io, &r.file);
    if (status == WEIR_OK) {
        sample->registered = weir_io_memory_registered(r.io);
        status = timed_run(&r);
        weir_io_close(r.io);
    }
    weir_free(r.slots);
    return status;
}
