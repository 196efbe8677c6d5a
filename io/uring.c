/*
 * The io_uring engine: one ring, no thread of its own.
 *
 * queue prepares an entry, submit hands all of them to the kernel at once, reap takes completions
 * and sleeps in the same call that hands over. A read of `wake_fd` is always in the ring or about
 * to be, so that wake ends that sleep. The ring holds depth pieces and this read, and twice as many
 * completions, so neither side overflows.
 *
 * No setup flags. IORING_SETUP_SINGLE_ISSUER binds a ring to one thread, but the one that fills the
 * extent and the driver take turns; IORING_SETUP_COOP_TASKRUN would leave a wake that the former
 * armed until it happens to enter the kernel; neither, nor DEFER_TASKRUN, moved more bytes or took
 * less CPU at 64 KiB and 1 MiB.
 */
#include "core/clock.h"
#include "core/memory.h"
#include "io/engine.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WAKE_TOKEN       (UINT64_MAX - 1) /* UINT64_MAX is liburing's own */
#define FILES_MOST       32u
#define BUFFER_BYTES     (1u << 30) /* the most the kernel takes in one piece */
#define BUFFERS_MOST     16384u     /* of them */
#define REFUSALS_MOST    1000u
#define REFUSAL_WAIT_NS  1000000u
#define CLOSE_WAITS_MOST 30000u /* half a minute */
#define NONE             UINT32_MAX

struct weir_io_engine {
    struct io_uring ring;
    bool ring_made;
    uint32_t depth, in_flight; /* queued and not reaped, the read of wake_fd apart */

    int wake_fd;
    uint64_t wake_count; /* what that read brings */
    bool wake_armed;     /* it is prepared or in the kernel */
    bool woken;          /* a wake not yet returned by reap */

    int fds[FILES_MOST]; /* by their place among the registered files */
    uint32_t file_count, file_room;
    struct iovec *buffers; /* by their place among the registered buffers */
    size_t buffer_count, buffer_capacity;
};

/* ---- opening */

static enum weir_status setup_fail(int os_errno, uint32_t depth)
{
    switch (os_errno) {
    case EPERM:
        return weir_fail_errno(
            WEIR_ERR_UNSUPPORTED, os_errno,
            "io engine \"uring\": io_uring_setup is refused; allow it in the "
            "container's seccomp profile and set sysctl kernel.io_uring_disabled "
            "to 0, or use io engine \"threads\"");
    case ENOSYS:
        return weir_fail_errno(WEIR_ERR_UNSUPPORTED, os_errno,
                               "io engine \"uring\": this kernel or its sandbox has no io_uring; "
                               "use io engine \"threads\"");
    case ENOMEM:
        return weir_fail_errno(WEIR_ERR_UNSUPPORTED, os_errno,
                               "io engine \"uring\": no memory for a ring of %u entries; raise the "
                               "limit of locked memory (ulimit -l) or use io engine \"threads\"",
                               depth);
    default:
        return weir_fail_errno(WEIR_ERR_UNSUPPORTED, os_errno,
                               "io engine \"uring\": a ring of %u entries cannot be made; use io "
                               "engine \"threads\"",
                               depth);
    }
}

static enum weir_status ring_make(struct weir_io_engine *engine)
{
    int failure = -io_uring_queue_init(engine->depth + 1, &engine->ring, 0);
    if (failure != 0)
        return setup_fail(failure, engine->depth + 1);
    engine->ring_made = true;
    /* Without it the read of wake_fd would hold a kernel thread. */
    if (!(engine->ring.features & IORING_FEAT_FAST_POLL))
        return weir_fail(WEIR_ERR_UNSUPPORTED, "io engine \"uring\": needs Linux 5.7 or newer; use "
                                               "io engine \"threads\"");
    engine->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (engine->wake_fd < 0)
        return weir_fail_errno(WEIR_ERR_UNSUPPORTED, errno,
                               "io engine \"uring\": no eventfd; raise the limit of open files "
                               "(ulimit -n) or use io engine \"threads\"");
    return WEIR_OK;
}

static void files_make(struct weir_io_engine *engine, struct weir_log *log)
{
    for (uint32_t i = 0; i < FILES_MOST; i++)
        engine->fds[i] = -1;
    int failure = -io_uring_register_files(&engine->ring, engine->fds, FILES_MOST);
    if (failure == 0)
        engine->file_room = FILES_MOST;
    else
        weir_log(log, WEIR_LOG_WARNING,
                 "io engine \"uring\": files stay unregistered, each transfer looks its file up; "
                 "raise the limit of open files (ulimit -n): %s",
                 strerror(failure));
}

static void engine_free(struct weir_io_engine *engine)
{
    if (engine->ring_made) {
        /* Else the kernel lets go of memory and files some time after close. */
        if (engine->buffer_count > 0)
            io_uring_unregister_buffers(&engine->ring);
        if (engine->file_room > 0)
            io_uring_unregister_files(&engine->ring);
        io_uring_queue_exit(&engine->ring);
    }
    if (engine->wake_fd >= 0)
        close(engine->wake_fd);
    weir_free(engine->buffers);
    weir_free(engine);
}

static enum weir_status uring_open(struct weir_io_engine **out, uint32_t depth,
                                   struct weir_log *log)
{
    struct weir_io_engine *engine;
    WEIR_TRY(weir_alloc(&engine, 1, sizeof *engine, "the io_uring engine"));
    engine->depth = depth;
    engine->wake_fd = -1;
    enum weir_status status = ring_make(engine);
    if (status != WEIR_OK) {
        engine_free(engine);
        return status;
    }
    files_make(engine, log);
    *out = engine;
    return WEIR_OK;
}

/* ---- files, queue, submit */

static void uring_file(struct weir_io_engine *engine, int fd)
{
    uint32_t place = 0;
    while (place < engine->file_count && engine->fds[place] != fd)
        place++;
    if (place == engine->file_room)
        return; /* more files than places, or none: each transfer looks its file up */
    /* Only what the kernel took may be used: the number may have been another file's before. */
    bool taken = io_uring_register_files_update(&engine->ring, place, &fd, 1) == 1;
    engine->fds[place] = taken ? fd : -1;
    if (place == engine->file_count)
        engine->file_count++;
}

static uint32_t file_find(const struct weir_io_engine *engine, int fd)
{
    for (uint32_t i = 0; i < engine->file_count; i++)
        if (engine->fds[i] == fd)
            return i;
    return NONE;
}

/* The registered buffer that holds the whole piece. */
static size_t buffer_find(const struct weir_io_engine *engine, const struct weir_io_piece *piece)
{
    uintptr_t at = (uintptr_t)piece->bytes;
    for (size_t i = 0; i < engine->buffer_count; i++) {
        const struct iovec *buffer = &engine->buffers[i];
        uintptr_t base = (uintptr_t)buffer->iov_base;
        if (at >= base && at - base < buffer->iov_len &&
            piece->byte_count <= buffer->iov_len - (at - base))
            return i;
    }
    return NONE;
}

static void entry_fill(const struct weir_io_engine *engine, struct io_uring_sqe *entry,
                       const struct weir_io_piece *piece)
{
    bool read = piece->kind == WEIR_IO_READ;
    size_t buffer = buffer_find(engine, piece);
    uint32_t file = file_find(engine, piece->fd);
    int op = buffer != NONE ? (read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED)
                            : (read ? IORING_OP_READ : IORING_OP_WRITE);
    io_uring_prep_rw(op, entry, file != NONE ? (int)file : piece->fd, piece->bytes,
                     (unsigned)piece->byte_count, piece->offset_bytes);
    if (buffer != NONE)
        entry->buf_index = (uint16_t)buffer;
    if (file != NONE)
        entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(entry, piece->token);
}

static bool uring_queue(struct weir_io_engine *engine, const struct weir_io_piece *piece)
{
    if (engine->in_flight == engine->depth)
        return false;
    entry_fill(engine, io_uring_get_sqe(&engine->ring), piece);
    engine->in_flight++;
    return true;
}

static enum weir_status kernel_fail(int os_errno)
{
    return weir_fail_errno(WEIR_ERR_IO, os_errno,
                           "io engine \"uring\": the kernel takes no more transfers; use io engine "
                           "\"threads\"");
}

/* The kernel takes nothing just now; reap tries again when completions made room. */
static bool passes(int os_errno)
{
    return os_errno == EINTR || os_errno == EAGAIN || os_errno == EBUSY;
}

static enum weir_status uring_submit(struct weir_io_engine *engine)
{
    int taken = 1;
    while (taken > 0 && io_uring_sq_ready(&engine->ring) > 0)
        taken = io_uring_submit(&engine->ring);
    return taken >= 0 || passes(-taken) ? WEIR_OK : kernel_fail(-taken);
}

/* ---- reap, wake */

static void wake_arm(struct weir_io_engine *engine)
{
    if (engine->wake_armed)
        return;
    struct io_uring_sqe *entry = io_uring_get_sqe(&engine->ring);
    io_uring_prep_read(entry, engine->wake_fd, &engine->wake_count, sizeof engine->wake_count, 0);
    io_uring_sqe_set_data64(entry, WAKE_TOKEN);
    engine->wake_armed = true;
}

static size_t completions_take(struct weir_io_engine *engine, struct weir_io_completion *out,
                               size_t capacity)
{
    size_t count = 0;
    unsigned head, seen = 0;
    struct io_uring_cqe *entry;
    io_uring_for_each_cqe(&engine->ring, head, entry)
    {
        if (entry->user_data == WAKE_TOKEN) {
            /* Canceled when the thread that armed it has ended: then a wake too many. */
            engine->wake_armed = false;
            engine->woken = true;
        } else if (count < capacity) {
            out[count++] = (struct weir_io_completion){entry->user_data, entry->res};
        } else {
            break;
        }
        seen++;
    }
    io_uring_cq_advance(&engine->ring, seen);
    engine->in_flight -= (uint32_t)count;
    return count;
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/* Until there is a completion, a signal, or the time is over. */
static void ring_poll(struct weir_io_engine *engine, uint64_t ns)
{
    struct timespec left = timespec_of(ns);
    ppoll(&(struct pollfd){.fd = engine->ring.ring_fd, .events = POLLIN}, 1, &left, NULL);
}

/* Hand over what is prepared and sleep until a completion, a signal, or until_ns. */
static enum weir_status ring_sleep(struct weir_io_engine *engine, uint64_t until_ns,
                                   uint32_t *refusal_count)
{
    bool forever = until_ns == WEIR_IO_FOREVER;
    int taken = io_uring_submit_and_wait(&engine->ring, forever ? 1 : 0);
    if (taken >= 0) {
        uint64_t now_ns = weir_now_ns();
        if (!forever && now_ns < until_ns)
            ring_poll(engine, until_ns - now_ns);
        return WEIR_OK;
    }
    if (!passes(-taken))
        return kernel_fail(-taken);
    if (taken != -EINTR) {
        if (++*refusal_count == REFUSALS_MOST)
            return kernel_fail(-taken);
        ring_poll(engine, REFUSAL_WAIT_NS);
    }
    return WEIR_OK;
}

static enum weir_status uring_reap(struct weir_io_engine *engine, struct weir_io_completion *out,
                                   size_t capacity, uint64_t timeout_ns, size_t *count)
{
    uint64_t now_ns = weir_now_ns();
    uint64_t until_ns = timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : WEIR_IO_FOREVER;
    uint32_t refusal_count = 0;
    for (bool over = false;; over = weir_now_ns() >= until_ns) {
        *count = completions_take(engine, out, capacity);
        bool woken = engine->woken && *count == 0;
        if (woken)
            engine->woken = false;
        if (*count > 0 || woken || over)
            return WEIR_OK;
        wake_arm(engine);
        WEIR_TRY(ring_sleep(engine, until_ns, &refusal_count));
    }
}

/* A raw system call, because ThreadSanitizer takes a write for a release. */
static void uring_wake(struct weir_io_engine *engine)
{
    uint64_t one = 1;
    syscall(SYS_write, engine->wake_fd, &one, sizeof one);
}

/* End the read of wake_fd; the next reap returns for it. */
static enum weir_status wake_disarm(struct weir_io_engine *engine)
{
    uint32_t refusal_count = 0;
    if (engine->wake_armed)
        uring_wake(engine);
    while (engine->wake_armed) {
        WEIR_TRY(ring_sleep(engine, WEIR_IO_FOREVER, &refusal_count));
        completions_take(engine, NULL, 0);
    }
    return WEIR_OK;
}

/* ---- memory, closing */

static enum weir_status memory_fail(int os_errno, const void *bytes, uint64_t byte_count)
{
    struct rlimit limit = {0};
    if (os_errno != ENOMEM && os_errno != EPERM)
        return weir_fail_errno(WEIR_ERR_UNSUPPORTED, os_errno,
                               "io engine \"uring\": %llu bytes at %p are not registered, the "
                               "kernel pins them anew for each transfer",
                               (unsigned long long)byte_count, bytes);
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return weir_fail_errno(WEIR_ERR_UNSUPPORTED, os_errno,
                           "io engine \"uring\": %llu bytes at %p are not registered, the kernel "
                           "pins them anew for each transfer; %llu bytes may be locked, raise that "
                           "(ulimit -l)",
                           (unsigned long long)byte_count, bytes,
                           (unsigned long long)limit.rlim_cur);
}

/* Kernels before 5.13 take all buffers at once or none, and wait until nothing is in the ring. */
static enum weir_status uring_memory(struct weir_io_engine *engine, void *bytes,
                                     uint64_t byte_count, bool *registered)
{
    *registered = false;
    size_t count = engine->buffer_count + (byte_count + BUFFER_BYTES - 1) / BUFFER_BYTES;
    if (count > BUFFERS_MOST)
        return memory_fail(E2BIG, bytes, byte_count);
    WEIR_TRY(wake_disarm(engine));
    WEIR_TRY(weir_grow(&engine->buffers, &engine->buffer_capacity, count, sizeof *engine->buffers,
                       "registered buffers"));
    if (engine->buffer_count > 0)
        io_uring_unregister_buffers(&engine->ring);
    struct iovec *next = engine->buffers + engine->buffer_count;
    for (uint64_t at = 0, left = byte_count; left > 0; next++) {
        *next = (struct iovec){(char *)bytes + at, left < BUFFER_BYTES ? left : BUFFER_BYTES};
        at += next->iov_len;
        left -= next->iov_len;
    }
    int failure;
    do
        failure = -io_uring_register_buffers(&engine->ring, engine->buffers, (unsigned)count);
    while (failure == EINTR);
    engine->buffer_count = failure == 0 ? count : 0;
    *registered = failure == 0;
    return failure == 0 ? WEIR_OK : memory_fail(failure, bytes, byte_count);
}

/* The kernel takes nothing more, but what it took still moves bytes of the caller's memory. */
static void submitted_wait(struct weir_io_engine *engine)
{
    for (uint32_t i = 0; i < CLOSE_WAITS_MOST; i++) {
        struct weir_io_completion rest[16];
        while (completions_take(engine, rest, 16) > 0)
            ;
        if (engine->in_flight <= io_uring_sq_ready(&engine->ring))
            return;
        ring_poll(engine, REFUSAL_WAIT_NS);
    }
}

static void uring_close(struct weir_io_engine *engine)
{
    enum weir_status status = WEIR_OK;
    while (status == WEIR_OK && engine->in_flight > 0) {
        struct weir_io_completion rest[16];
        size_t count;
        status = uring_reap(engine, rest, 16, WEIR_IO_FOREVER, &count);
    }
    if (status == WEIR_OK)
        (void)wake_disarm(engine); /* it would fill memory of the engine */
    else
        submitted_wait(engine);
    engine_free(engine);
}

const struct weir_io_engine_table weir_io_uring = {
    .name = "uring",
    .open = uring_open,
    .close = uring_close,
    .memory = uring_memory,
    .file = uring_file,
    .queue = uring_queue,
    .submit = uring_submit,
    .reap = uring_reap,
    .wake = uring_wake,
};
