#include "tests/support_paced.h"
#include "core/clock.h"
#include "core/memory.h"

struct test_pace test_pace;
struct test_slow_drive test_slow_drive;

#define DRIVES 64 /* descriptors that are equal modulo this share a queue */

/* A piece between queue and reap. */
struct paced_piece {
    uint64_t token, due_ns;
    int64_t result;
    bool used, moved; /* moved: by the thread engine; waits for its time */
};
struct weir_io_engine {
    struct weir_io_engine *inner;
    struct paced_piece *pieces; /* [depth]; the inner token is the index */
    uint32_t depth;
    uint64_t ends_ns[DRIVES]; /* of the last piece in each queue, by descriptor */
    bool maybe_woken;         /* reap returned completions where a wake may have come too */
};

static enum weir_status paced_open(struct weir_io_engine **out, uint32_t depth,
                                   struct weir_log *log)
{
    struct weir_io_engine *engine;
    WEIR_TRY(weir_alloc(&engine, 1, sizeof *engine, "the paced engine"));
    engine->depth = depth;
    enum weir_status status =
        weir_alloc(&engine->pieces, depth, sizeof *engine->pieces, "the paced engine's pieces");
    if (status == WEIR_OK)
        status = weir_io_threads.open(&engine->inner, depth, log);
    if (status != WEIR_OK) {
        weir_free(engine->pieces);
        weir_free(engine);
        return status;
    }
    *out = engine;
    return WEIR_OK;
}

static void paced_close(struct weir_io_engine *engine)
{
    weir_io_threads.close(engine->inner);
    weir_free(engine->pieces);
    weir_free(engine);
}

static enum weir_status paced_memory(struct weir_io_engine *engine, void *bytes,
                                     uint64_t byte_count, bool *registered)
{
    return weir_io_threads.memory(engine->inner, bytes, byte_count, registered);
}

static void paced_file(struct weir_io_engine *engine, int fd)
{
    weir_io_threads.file(engine->inner, fd);
}

static uint64_t duration_ns(const struct weir_io_piece *piece)
{
    double rate =
        piece->kind == WEIR_IO_READ ? test_pace.read_bytes_per_s : test_pace.write_bytes_per_s;
    double factor =
        test_slow_drive.fd != 0 && piece->fd == test_slow_drive.fd ? test_slow_drive.factor : 1;
    return (uint64_t)((double)piece->byte_count / rate * factor * 1e9);
}

static bool paced_queue(struct weir_io_engine *engine, const struct weir_io_piece *piece)
{
    uint32_t i = 0;
    while (i < engine->depth && engine->pieces[i].used)
        i++;
    if (i == engine->depth)
        return false;
    struct weir_io_piece inner = *piece;
    inner.token = i;
    if (!weir_io_threads.queue(engine->inner, &inner))
        return false;
    uint64_t now = weir_now_ns();
    uint64_t *end_ns = &engine->ends_ns[(unsigned)piece->fd % DRIVES];
    *end_ns = (*end_ns > now ? *end_ns : now) + duration_ns(piece);
    engine->pieces[i] =
        (struct paced_piece){.token = piece->token,
                             .due_ns = *end_ns + (uint64_t)(test_pace.latency_s * 1e9),
                             .used = true};
    return true;
}

static enum weir_status paced_submit(struct weir_io_engine *engine)
{
    return weir_io_threads.submit(engine->inner);
}

/* Completions whose time has come; *next_ns: when the next one's will. */
static size_t due_take(struct weir_io_engine *engine, struct weir_io_completion *out,
                       size_t capacity, uint64_t *next_ns)
{
    uint64_t now = weir_now_ns();
    size_t count = 0;
    *next_ns = WEIR_IO_FOREVER;
    for (uint32_t i = 0; i < engine->depth; i++) {
        struct paced_piece *piece = &engine->pieces[i];
        if (!piece->moved)
            continue;
        if (piece->due_ns <= now && count < capacity) {
            out[count++] = (struct weir_io_completion){piece->token, piece->result};
            *piece = (struct paced_piece){.used = false};
        } else if (piece->due_ns < *next_ns) {
            *next_ns = piece->due_ns;
        }
    }
    return count;
}

static enum weir_status moved_take(struct weir_io_engine *engine, uint64_t until_ns, size_t *count)
{
    struct weir_io_completion moved[16];
    uint64_t now = weir_now_ns(), timeout = WEIR_IO_FOREVER;
    if (until_ns != WEIR_IO_FOREVER)
        timeout = until_ns > now ? until_ns - now : 0;
    WEIR_TRY(weir_io_threads.reap(engine->inner, moved, 16, timeout, count));
    for (size_t i = 0; i < *count; i++) {
        engine->pieces[moved[i].token].result = moved[i].result;
        engine->pieces[moved[i].token].moved = true;
    }
    return WEIR_OK;
}

static enum weir_status paced_reap(struct weir_io_engine *engine, struct weir_io_completion *out,
                                   size_t capacity, uint64_t timeout_ns, size_t *count)
{
    uint64_t now = weir_now_ns();
    uint64_t until = timeout_ns < UINT64_MAX - now ? now + timeout_ns : WEIR_IO_FOREVER;
    for (;;) {
        uint64_t next;
        *count = due_take(engine, out, capacity, &next);
        if (*count > 0)
            return WEIR_OK;
        if (engine->maybe_woken || (until != WEIR_IO_FOREVER && weir_now_ns() >= until)) {
            engine->maybe_woken = false;
            return WEIR_OK;
        }
        size_t moved;
        WEIR_TRY(moved_take(engine, next < until ? next : until, &moved));
        /* Nothing moved: the time is over, or somebody woke us, or both. */
        engine->maybe_woken = moved == 0;
    }
}

static void paced_wake(struct weir_io_engine *engine)
{
    weir_io_threads.wake(engine->inner);
}

const struct weir_io_engine_table test_paced = {
    .name = "paced",
    .open = paced_open,
    .close = paced_close,
    .memory = paced_memory,
    .file = paced_file,
    .queue = paced_queue,
    .submit = paced_submit,
    .reap = paced_reap,
    .wake = paced_wake,
};
