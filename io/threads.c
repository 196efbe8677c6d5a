/*
 * The thread engine: up to 64 workers that pread and pwrite. It needs nothing of the kernel, so it
 * runs wherever weir does. A piece holds its worker until the drive is done with it: up to a depth
 * of 64 over all drives, none waits for a worker that another drive holds.
 *
 * Pieces go to the workers through a ring under `work_lock`, completions come back through a ring
 * under `done_lock`. The reaping thread sleeps on `bell`, which workers and wake ring.
 */
#include "core/clock.h"
#include "core/memory.h"
#include "io/engine.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS_MOST 64u

/* Of `bell`: a wake not yet returned by reap. Completions count in the bits above. */
#define BELL_WOKEN    1u
#define BELL_COMPLETE 2u

struct weir_io_engine {
    uint32_t depth;
    uint32_t in_flight;     /* the calling thread's: queued and not reaped */
    uint64_t queued_count;  /* the calling thread's */
    uint64_t started_count; /* work_lock: of the queued, those that workers may take */
    uint64_t taken_count;   /* work_lock */
    bool closing;           /* work_lock */
    pthread_mutex_t work_lock;
    pthread_cond_t work_arrived;
    struct weir_io_piece *pieces; /* ring of depth */

    pthread_mutex_t done_lock;
    uint64_t done_count, reaped_count;      /* done_lock */
    struct weir_io_completion *completions; /* ring of depth; done_lock */
    atomic_uint bell;

    uint32_t thread_count;
    pthread_t threads[THREADS_MOST];
};

/* Raw system calls, because a wrapper that ThreadSanitizer knows might order wake before reap. */
static void bell_wake(struct weir_io_engine *engine)
{
    syscall(SYS_futex, &engine->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void bell_wait(struct weir_io_engine *engine, unsigned heard, uint64_t until_ns)
{
    struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    syscall(SYS_futex, &engine->bell, FUTEX_WAIT_BITSET_PRIVATE, heard,
            until_ns == WEIR_IO_FOREVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void completion_publish(struct weir_io_engine *engine, uint64_t token, int64_t result)
{
    pthread_mutex_lock(&engine->done_lock);
    engine->completions[engine->done_count++ % engine->depth] =
        (struct weir_io_completion){token, result};
    pthread_mutex_unlock(&engine->done_lock);
    /* Release: whoever hears this ring finds the completion published above. */
    atomic_fetch_add_explicit(&engine->bell, BELL_COMPLETE, memory_order_release);
    bell_wake(engine);
}

static int64_t piece_transfer(const struct weir_io_piece *piece)
{
    ssize_t moved =
        piece->kind == WEIR_IO_READ
            ? pread(piece->fd, piece->bytes, piece->byte_count, (off_t)piece->offset_bytes)
            : pwrite(piece->fd, piece->bytes, piece->byte_count, (off_t)piece->offset_bytes);
    return moved < 0 ? -errno : moved;
}

/* False: the engine is closing and no work is left. */
static bool piece_take(struct weir_io_engine *engine, struct weir_io_piece *piece)
{
    pthread_mutex_lock(&engine->work_lock);
    while (engine->taken_count == engine->started_count && !engine->closing)
        pthread_cond_wait(&engine->work_arrived, &engine->work_lock);
    bool taken = engine->taken_count < engine->started_count;
    if (taken)
        *piece = engine->pieces[engine->taken_count++ % engine->depth];
    pthread_mutex_unlock(&engine->work_lock);
    return taken;
}

static void *worker_run(void *argument)
{
    struct weir_io_engine *engine = argument;
    struct weir_io_piece piece;
    while (piece_take(engine, &piece))
        completion_publish(engine, piece.token, piece_transfer(&piece));
    return NULL;
}

static void threads_close(struct weir_io_engine *engine)
{
    pthread_mutex_lock(&engine->work_lock);
    engine->closing = true;
    pthread_cond_broadcast(&engine->work_arrived);
    pthread_mutex_unlock(&engine->work_lock);
    for (uint32_t i = 0; i < engine->thread_count; i++)
        pthread_join(engine->threads[i], NULL);
    pthread_cond_destroy(&engine->work_arrived);
    pthread_mutex_destroy(&engine->work_lock);
    pthread_mutex_destroy(&engine->done_lock);
    weir_free(engine->pieces);
    weir_free(engine->completions);
    weir_free(engine);
}

static enum weir_status workers_start(struct weir_io_engine *engine)
{
    uint32_t wanted = engine->depth < THREADS_MOST ? engine->depth : THREADS_MOST;
    int failure = 0;
    /* The program's signals are its own threads' business. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (engine->thread_count < wanted && failure == 0) {
        uint32_t i = engine->thread_count;
        failure = pthread_create(&engine->threads[i], NULL, worker_run, engine);
        if (failure == 0) {
            char name[16];
            snprintf(name, sizeof name, "weir-io-%u", i);
            pthread_setname_np(engine->threads[i], name);
            engine->thread_count++;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure != 0)
        return weir_fail_errno(WEIR_ERR_NOMEM, failure,
                               "io engine \"threads\": started %u of %u threads; raise the limit "
                               "of processes (ulimit -u)",
                               engine->thread_count, wanted);
    return WEIR_OK;
}

static enum weir_status threads_open(struct weir_io_engine **out, uint32_t depth,
                                     struct weir_log *log)
{
    (void)log;
    struct weir_io_engine *engine;
    WEIR_TRY(weir_alloc(&engine, 1, sizeof *engine, "the thread engine"));
    engine->depth = depth;
    pthread_mutex_init(&engine->work_lock, NULL);
    pthread_mutex_init(&engine->done_lock, NULL);
    pthread_cond_init(&engine->work_arrived, NULL);
    enum weir_status status =
        weir_alloc(&engine->pieces, depth, sizeof *engine->pieces, "the thread engine's pieces");
    if (status == WEIR_OK)
        status = weir_alloc(&engine->completions, depth, sizeof *engine->completions,
                            "the thread engine's completions");
    if (status == WEIR_OK)
        status = workers_start(engine);
    if (status != WEIR_OK) {
        threads_close(engine);
        return status;
    }
    *out = engine;
    return WEIR_OK;
}

/* pread and pwrite take any memory and any descriptor as they are. */
static enum weir_status threads_memory(struct weir_io_engine *engine, void *bytes,
                                       uint64_t byte_count, bool *registered)
{
    (void)engine, (void)bytes, (void)byte_count;
    *registered = false;
    return WEIR_OK;
}

static void threads_file(struct weir_io_engine *engine, int fd)
{
    (void)engine, (void)fd;
}

/* The ring's slot is free: fewer than depth pieces are in flight, so a piece at least as new as the
 * slot's last one was reaped, and pieces are taken in order. */
static bool threads_queue(struct weir_io_engine *engine, const struct weir_io_piece *piece)
{
    if (engine->in_flight == engine->depth)
        return false;
    engine->pieces[engine->queued_count++ % engine->depth] = *piece;
    engine->in_flight++;
    return true;
}

static enum weir_status threads_submit(struct weir_io_engine *engine)
{
    pthread_mutex_lock(&engine->work_lock);
    uint64_t fresh = engine->queued_count - engine->started_count;
    engine->started_count = engine->queued_count;
    if (fresh == 1)
        pthread_cond_signal(&engine->work_arrived);
    else if (fresh > 1)
        pthread_cond_broadcast(&engine->work_arrived);
    pthread_mutex_unlock(&engine->work_lock);
    return WEIR_OK;
}

static size_t completions_take(struct weir_io_engine *engine, struct weir_io_completion *out,
                               size_t capacity)
{
    size_t count = 0;
    pthread_mutex_lock(&engine->done_lock);
    while (count < capacity && engine->reaped_count < engine->done_count)
        out[count++] = engine->completions[engine->reaped_count++ % engine->depth];
    pthread_mutex_unlock(&engine->done_lock);
    engine->in_flight -= (uint32_t)count;
    return count;
}

static enum weir_status threads_reap(struct weir_io_engine *engine, struct weir_io_completion *out,
                                     size_t capacity, uint64_t timeout_ns, size_t *count)
{
    uint64_t now_ns = weir_now_ns();
    uint64_t until_ns = timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : WEIR_IO_FOREVER;
    for (;;) {
        /* Heard before looking: what is published later rings again, and ends the wait below. */
        unsigned heard = atomic_load_explicit(&engine->bell, memory_order_acquire);
        *count = completions_take(engine, out, capacity);
        if (*count > 0)
            return WEIR_OK;
        if (heard & BELL_WOKEN) {
            atomic_fetch_and_explicit(&engine->bell, ~BELL_WOKEN, memory_order_relaxed);
            /* With the fence in wake: what its caller stored is visible once the wake is used up.
             * ThreadSanitizer does not model fences, so it still sees no order. */
            atomic_thread_fence(memory_order_seq_cst);
            return WEIR_OK;
        }
        if (timeout_ns == 0 || weir_now_ns() >= until_ns)
            return WEIR_OK;
        bell_wait(engine, heard, until_ns);
    }
}

static void threads_wake(struct weir_io_engine *engine)
{
    atomic_thread_fence(memory_order_seq_cst);
    atomic_fetch_or_explicit(&engine->bell, BELL_WOKEN, memory_order_relaxed);
    bell_wake(engine);
}

const struct weir_io_engine_table weir_io_threads = {
    .name = "threads",
    .open = threads_open,
    .close = threads_close,
    .memory = threads_memory,
    .file = threads_file,
    .queue = threads_queue,
    .submit = threads_submit,
    .reap = threads_reap,
    .wake = threads_wake,
};
