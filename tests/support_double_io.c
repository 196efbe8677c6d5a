/* The thread engine behind a front that refuses to submit, and fails, shortens, holds back and
 * reorders completions. */
#include "core/memory.h"
#include "tests/support_double.h"

#include <errno.h>
#include <string.h>

#define BLOCK_BYTES 4096

struct weir_io_engine {
    struct weir_io_engine *inner;
    uint32_t depth, piece_count, held_count;
    struct weir_io_piece *pieces;    /* in the inner engine or held */
    struct weir_io_completion *held; /* arrived, not yet brought */
    bool woken; /* the inner engine has used up a wake that this one still owes */
    bool late;  /* the last reap held back what had arrived; never twice in a row */
};

static enum weir_status buffers_make(struct weir_io_engine *engine, struct weir_log *log)
{
    WEIR_TRY(weir_alloc(&engine->pieces, engine->depth, sizeof *engine->pieces, "the double"));
    WEIR_TRY(weir_alloc(&engine->held, engine->depth, sizeof *engine->held, "the double"));
    return weir_io_threads.open(&engine->inner, engine->depth, log);
}

static void double_close(struct weir_io_engine *engine)
{
    if (engine->inner)
        weir_io_threads.close(engine->inner);
    weir_free(engine->pieces);
    weir_free(engine->held);
    weir_free(engine);
}

static enum weir_status double_open(struct weir_io_engine **out, uint32_t depth,
                                    struct weir_log *log)
{
    struct weir_io_engine *engine;
    WEIR_TRY(weir_alloc(&engine, 1, sizeof *engine, "the double"));
    engine->depth = depth;
    enum weir_status status = buffers_make(engine, log);
    if (status == WEIR_OK)
        *out = engine;
    else
        double_close(engine);
    return status;
}

static enum weir_status double_memory(struct weir_io_engine *engine, void *bytes,
                                      uint64_t byte_count, bool *registered)
{
    return weir_io_threads.memory(engine->inner, bytes, byte_count, registered);
}

static void double_file(struct weir_io_engine *engine, int fd)
{
    weir_io_threads.file(engine->inner, fd);
}

static bool double_queue(struct weir_io_engine *engine, const struct weir_io_piece *piece)
{
    if (engine->piece_count == engine->depth || !weir_io_threads.queue(engine->inner, piece))
        return false;
    engine->pieces[engine->piece_count++] = *piece;
    return true;
}

static enum weir_status double_submit(struct weir_io_engine *engine)
{
    if (test_fault_turn(TEST_FAULT_SUBMIT))
        return weir_fail(WEIR_ERR_IO, "io engine \"double\": refuses to start");
    return weir_io_threads.submit(engine->inner);
}

static struct weir_io_piece piece_take(struct weir_io_engine *engine, uint64_t token)
{
    uint32_t i = 0;
    while (engine->pieces[i].token != token)
        i++;
    struct weir_io_piece piece = engine->pieces[i];
    engine->pieces[i] = engine->pieces[--engine->piece_count];
    return piece;
}

static void bend(struct weir_io_engine *engine, struct weir_io_completion *completion)
{
    struct weir_io_piece piece = piece_take(engine, completion->token);
    if (test_fault_turn(TEST_FAULT_RESULT))
        completion->result = -EIO;
    if (piece.kind == WEIR_IO_WRITE && test_fault_turn(TEST_FAULT_FULL))
        completion->result = -ENOSPC;
    /* Less than a block on and on is a failure (io/piece.c). */
    if (completion->result < 2 * BLOCK_BYTES || !test_fault_turn(TEST_FAULT_SHORT))
        return;
    int64_t brought = completion->result / 2;
    if (piece.kind == WEIR_IO_READ)
        memset((char *)piece.bytes + brought, 0xEE, (size_t)(completion->result - brought));
    completion->result = brought;
}

static void reverse(struct weir_io_completion *completions, size_t count)
{
    for (size_t i = 0; i < count / 2; i++) {
        struct weir_io_completion swap = completions[i];
        completions[i] = completions[count - 1 - i];
        completions[count - 1 - i] = swap;
    }
}

/* Into held[] what the inner engine brings. A wake lasts until a reap brings nothing (io/engine.h):
 * one that the inner engine used up is owed while this one still brings something. */
static enum weir_status arrivals_take(struct weir_io_engine *engine, uint64_t timeout_ns)
{
    size_t arrived;
    WEIR_TRY(weir_io_threads.reap(engine->inner, engine->held + engine->held_count,
                                  engine->depth - engine->held_count, timeout_ns, &arrived));
    engine->woken = engine->woken || arrived == 0;
    for (size_t i = 0; i < arrived; i++)
        bend(engine, &engine->held[engine->held_count + i]);
    engine->held_count += (uint32_t)arrived;
    return WEIR_OK;
}

static enum weir_status double_reap(struct weir_io_engine *engine, struct weir_io_completion *out,
                                    size_t capacity, uint64_t timeout_ns, size_t *count)
{
    *count = 0;
    bool waits = engine->held_count == 0 && !engine->woken;
    WEIR_TRY(arrivals_take(engine, waits ? timeout_ns : 0));
    /* One alone has no order. */
    if (atomic_load(&test_faults[TEST_FAULT_REORDER].nth) > 0 && engine->held_count == 1 &&
        engine->piece_count > 0 && !engine->woken)
        WEIR_TRY(arrivals_take(engine, timeout_ns));
    engine->late = engine->held_count > 0 && !engine->late && test_fault_turn(TEST_FAULT_LATE);
    if (engine->held_count > 0 && !engine->late) {
        if (engine->held_count > 1 && test_fault_turn(TEST_FAULT_REORDER))
            reverse(engine->held, engine->held_count);
        *count = engine->held_count < capacity ? engine->held_count : capacity;
        engine->held_count -= (uint32_t)*count;
        memcpy(out, engine->held, *count * sizeof *out);
        memmove(engine->held, engine->held + *count, engine->held_count * sizeof *out);
    }
    engine->woken = engine->woken && *count > 0;
    return WEIR_OK;
}

static void double_wake(struct weir_io_engine *engine)
{
    weir_io_threads.wake(engine->inner);
}

const struct weir_io_engine_table test_double_io = {
    .name = "double",
    .open = double_open,
    .close = double_close,
    .memory = double_memory,
    .file = double_file,
    .queue = double_queue,
    .submit = double_submit,
    .reap = double_reap,
    .wake = double_wake,
};
