#include "examples/bench/replay_pattern.h"
#include "core/clock.h"
#include "core/memory.h"
#include "examples/bench/buffers.h"
#include "examples/bench/leave.h"
#include "examples/bench/optimizer.h"
#include "examples/bench/units.h"

#include <stdatomic.h>
#include <string.h>

#define STATE_BYTES  (10 * WINDOW_ELEMENTS)
#define WEIGHT_BYTES (2 * WINDOW_ELEMENTS)
#define RESULTS      64

enum part_of_window { STATE, WEIGHT, GRADIENT, PARTS };

/* A place of the ring. */
struct place {
    enum { IDLE, READING, UPDATING, WRITING } phase;
    uint64_t window;
    uint32_t outstanding;
    unsigned char *parts[PARTS];
};

/* What the update's thread and the caller's share. */
struct updates {
    struct weir_io *io;
    uint64_t began_ns, busy_ns; /* the update's thread's; read when the stream was synced */
    atomic_uint_fast64_t done_count;
};

struct replay {
    const struct io_target *target;
    struct replay_options options;
    struct optimizer optimizer;
    struct buffers memory, gradient; /* the ring; a gradient that is not read from the drive */
    struct place *places;
    uint64_t window_most;              /* on the drives */
    uint64_t part_bytes[PARTS];        /* of a window; gradient 0: not on the drive */
    uint64_t begun, updating, updated; /* windows so far: reads begun, updates queued, seen done */
    uint64_t bad_count;
    struct weir_io *io;
    uint32_t file;
    struct updates updates;
};

uint64_t replay_read_bytes(enum gradients gradients)
{
    static const uint64_t gradient_bytes[] = {0, 2, 4};
    return STATE_BYTES + WEIGHT_BYTES + gradient_bytes[gradients] * WINDOW_ELEMENTS;
}

uint64_t replay_written_bytes(void)
{
    return STATE_BYTES + WEIGHT_BYTES;
}

enum weir_status replay_fits(uint64_t byte_count, uint32_t ring, enum gradients gradients)
{
    char window[24], files[24], least[24];
    uint64_t window_bytes = replay_read_bytes(gradients), count = byte_count / window_bytes;
    if (count >= 2 * ring)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG,
                     "replay: %llu windows of %s fit files of %s, a --ring of %u needs %u; give "
                     "files of %s in all, a smaller --ring, or --part without replay",
                     (unsigned long long)count, bytes_text(window_bytes, window),
                     bytes_text(byte_count, files), ring, 2 * ring,
                     bytes_text(2 * ring * window_bytes, least));
}

/* ---- transfers of one window */

/* States lie together in the file, then weights, then gradients, as in an extent. */
static uint64_t part_offset(const struct replay *r, uint64_t window, int part)
{
    uint64_t before = 0, place = window % r->window_most;
    for (int p = 0; p < part; p++)
        before += r->part_bytes[p];
    return before * r->window_most + place * r->part_bytes[part];
}

static enum weir_status parts_begin(struct replay *r, struct place *place, enum weir_io_kind kind)
{
    int parts = kind == WEIR_IO_READ ? PARTS : GRADIENT; /* gradients are not written back */
    for (int p = 0; p < parts; p++) {
        if (r->part_bytes[p] == 0)
            continue;
        WEIR_TRY(weir_io_submit(
            r->io,
            &(struct weir_io_request){.id = (uint64_t)(place - r->places),
                                      .kind = kind,
                                      .file = r->file,
                                      .offset_bytes = part_offset(r, place->window, p),
                                      .bytes = place->parts[p],
                                      .byte_count = r->part_bytes[p]},
            1));
        place->outstanding++;
    }
    place->phase = kind == WEIR_IO_READ ? READING : WRITING;
    return WEIR_OK;
}

/* ---- update */

static void update_begins(void *argument)
{
    struct updates *updates = *(struct updates **)argument;
    updates->began_ns = weir_now_ns();
}

static void update_ends(void *argument)
{
    struct updates *updates = *(struct updates **)argument;
    updates->busy_ns += weir_now_ns() - updates->began_ns;
    atomic_fetch_add_explicit(&updates->done_count, 1, memory_order_release);
    weir_io_wake(updates->io);
}

static enum weir_status update_queue(struct replay *r, struct place *place)
{
    struct optimizer *o = &r->optimizer;
    struct updates *updates = &r->updates;
    enum weir_dtype dtype = r->options.gradients == GRADIENTS_BF16 ? WEIR_BF16 : WEIR_FP32;
    struct weir_adam_args args =
        optimizer_args(WEIR_BF16, dtype, place->parts[STATE], place->parts[WEIGHT],
                       place->parts[GRADIENT], &r->bad_count);
    WEIR_TRY(o->table->call(o->stream, update_begins, &updates, sizeof updates, NULL, 0));
    WEIR_TRY(o->math->adam(o->kernels, o->stream, &args));
    WEIR_TRY(o->table->call(o->stream, update_ends, &updates, sizeof updates, NULL, 0));
    place->phase = UPDATING;
    return WEIR_OK;
}

/* ---- the ring: windows are begun, updated and written in their order */

static struct place *place_of(struct replay *r, uint64_t window)
{
    return &r->places[window % r->options.ring];
}

static enum weir_status reads_begin(struct replay *r, bool over)
{
    while (!over && place_of(r, r->begun)->phase == IDLE) {
        struct place *place = place_of(r, r->begun);
        place->window = r->begun++;
        WEIR_TRY(parts_begin(r, place, WEIR_IO_READ));
    }
    return WEIR_OK;
}

/* Those whose parts have all arrived, as far as every earlier one has. */
static enum weir_status updates_begin(struct replay *r)
{
    while (r->updating < r->begun) {
        struct place *place = place_of(r, r->updating);
        if (place->phase != READING || place->outstanding > 0)
            break;
        if (r->options.update)
            WEIR_TRY(update_queue(r, place));
        else
            place->phase = UPDATING;
        r->updating++;
    }
    return WEIR_OK;
}

static enum weir_status writes_begin(struct replay *r)
{
    uint64_t done = r->options.update
                        ? atomic_load_explicit(&r->updates.done_count, memory_order_acquire)
                        : r->updating;
    for (; r->updated < done; r->updated++)
        WEIR_TRY(parts_begin(r, place_of(r, r->updated), WEIR_IO_WRITE));
    return WEIR_OK;
}

static enum weir_status results_take(struct replay *r, struct replay_sample *sample,
                                     uint64_t *window_count)
{
    struct weir_io_result results[RESULTS];
    size_t count;
    WEIR_TRY(weir_io_reap(r->io, results, RESULTS, WEIR_IO_FOREVER, &count));
    for (size_t i = 0; i < count; i++) {
        struct place *place = &r->places[results[i].id];
        if (results[i].status != WEIR_OK)
            return weir_fail_with(&results[i].error);
        if (--place->outstanding > 0 || place->phase != WRITING)
            continue;
        place->phase = IDLE;
        sample->io.read_bytes += replay_read_bytes(r->options.gradients);
        sample->io.written_bytes += replay_written_bytes();
        ++*window_count;
    }
    return WEIR_OK;
}

static enum weir_status windows_move(struct replay *r, uint64_t until_ns,
                                     struct replay_sample *sample)
{
    const struct io_clock *clock = r->target->clock;
    uint64_t first = r->begun;
    do {
        leave_if_asked();
        WEIR_TRY(updates_begin(r));
        WEIR_TRY(reads_begin(r, clock->now_ns() >= until_ns));
        WEIR_TRY(writes_begin(r));
        if (sample->window_count < r->begun - first)
            WEIR_TRY(results_take(r, sample, &sample->window_count));
    } while (sample->window_count < r->begun - first || clock->now_ns() < until_ns);
    return WEIR_OK;
}

enum weir_status replay_run(struct replay *r, uint64_t ns, struct replay_sample *sample)
{
    const struct io_clock *clock = r->target->clock;
    struct kernel_counters before, after;
    uint64_t busy_ns = r->updates.busy_ns;
    *sample = (struct replay_sample){0};
    kernel_counters_read(r->target->drives, &before);
    double cpu = clock->cpu_s();
    uint64_t begin_ns = clock->now_ns();
    WEIR_TRY(windows_move(r, begin_ns + ns, sample));
    WEIR_TRY(io_target_sync(r->target));
    sample->io.ns = clock->now_ns() - begin_ns;
    sample->io.cpu_s = clock->cpu_s() - cpu;
    kernel_counters_read(r->target->drives, &after);
    WEIR_TRY(r->optimizer.table->stream_sync(r->optimizer.stream));
    sample->io.counted = kernel_counters_between(&before, &after);
    sample->io.registered = weir_io_memory_registered(r->io);
    sample->update_ns = r->updates.busy_ns - busy_ns;
    if (r->bad_count > 0)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "replay: %llu numbers are not finite after their update: what was read is "
                         "not what was written; check the drive",
                         (unsigned long long)r->bad_count);
    return WEIR_OK;
}

/* ---- opening */

static void places_make(struct replay *r)
{
    unsigned char *at = r->memory.bytes;
    for (uint32_t i = 0; i < r->options.ring; i++)
        for (int p = 0; p < PARTS; p++) {
            r->places[i].parts[p] = p == GRADIENT && r->part_bytes[p] == 0 ? r->gradient.bytes : at;
            at += r->part_bytes[p];
        }
    for (uint32_t i = 0; i < r->options.ring; i++) {
        struct place *place = &r->places[i];
        enum weir_dtype dtype = r->options.gradients == GRADIENTS_BF16 ? WEIR_BF16 : WEIR_FP32;
        if (i == 0)
            optimizer_values(WEIR_BF16, dtype, place->parts[STATE], place->parts[WEIGHT],
                             place->parts[GRADIENT]);
        for (int p = 0; p < PARTS && i > 0; p++)
            memcpy(place->parts[p], r->places[0].parts[p], r->part_bytes[p]);
    }
}

static enum weir_status part_write(struct replay *r, uint64_t window, int part)
{
    struct weir_io_result result;
    size_t count = 0;
    WEIR_TRY(weir_io_submit(r->io,
                            &(struct weir_io_request){.kind = WEIR_IO_WRITE,
                                                      .file = r->file,
                                                      .offset_bytes = part_offset(r, window, part),
                                                      .bytes = r->places[0].parts[part],
                                                      .byte_count = r->part_bytes[part]},
                            1));
    while (count == 0)
        WEIR_TRY(weir_io_reap(r->io, &result, 1, WEIR_IO_FOREVER, &count));
    return result.status == WEIR_OK ? WEIR_OK : weir_fail_with(&result.error);
}

static enum weir_status states_write(struct replay *r)
{
    for (uint64_t w = 0; w < r->window_most; w++)
        for (int p = 0; p < PARTS; p++) {
            leave_if_asked();
            if (r->part_bytes[p] > 0)
                WEIR_TRY(part_write(r, w, p));
        }
    return io_target_sync(r->target);
}

static enum weir_status replay_make(struct replay *r)
{
    const struct replay_options *options = &r->options;
    uint64_t window_bytes = replay_read_bytes(options->gradients);
    r->part_bytes[STATE] = STATE_BYTES;
    r->part_bytes[WEIGHT] = WEIGHT_BYTES;
    r->part_bytes[GRADIENT] = window_bytes - STATE_BYTES - WEIGHT_BYTES;
    r->window_most = r->target->byte_count / window_bytes;
    WEIR_TRY(replay_fits(r->target->byte_count, options->ring, options->gradients));
    WEIR_TRY(weir_alloc(&r->places, options->ring, sizeof *r->places, "a ring of windows"));
    WEIR_TRY(buffers_open(&r->memory, options->ring * window_bytes, LAYOUT_HUGE, "lower --ring"));
    WEIR_TRY(buffers_open(&r->gradient, 4 * WINDOW_ELEMENTS, LAYOUT_HUGE, "lower --ring"));
    WEIR_TRY(optimizer_open(&r->optimizer, options->thread_count));
    places_make(r);
    WEIR_TRY(io_target_open(r->target,
                            &(struct weir_io_options){.engine = options->engine,
                                                      .depth = options->depth,
                                                      .request_count = PARTS * options->ring,
                                                      .piece_bytes = options->piece_bytes},
                            r->memory.bytes, r->memory.byte_count, &r->io, &r->file));
    r->updates.io = r->io;
    return states_write(r);
}

enum weir_status replay_open(struct replay **out, const struct io_target *target,
                             const struct replay_options *options)
{
    struct replay *r;
    WEIR_TRY(weir_alloc(&r, 1, sizeof *r, "a replay"));
    r->target = target;
    r->options = *options;
    enum weir_status status = replay_make(r);
    if (status == WEIR_OK)
        *out = r;
    else
        replay_close(r);
    return status;
}

void replay_close(struct replay *r)
{
    if (!r)
        return;
    optimizer_close(&r->optimizer); /* its thread wakes the front */
    weir_io_close(r->io);
    buffers_close(&r->memory);
    buffers_close(&r->gradient);
    weir_free(r->places);
    weir_free(r);
}
