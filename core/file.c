#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static struct {
    atomic_uint_fast64_t made, first, last; /* those numbered [first, last] fail; 0: none */
    atomic_int os_errno;
} injected[WEIR_FILE_CALL_COUNT];

/* 0, or the errno that a test asked for. */
static int turn(enum weir_file_call call)
{
    uint64_t number = atomic_fetch_add(&injected[call].made, 1) + 1;
    uint64_t first = atomic_load(&injected[call].first);
    bool fails = first > 0 && number >= first && number <= atomic_load(&injected[call].last);
    return fails ? atomic_load(&injected[call].os_errno) : 0;
}

static uint64_t fail_set(enum weir_file_call call, uint64_t first, uint64_t last, int os_errno)
{
    atomic_store(&injected[call].os_errno, os_errno);
    atomic_store(&injected[call].last, last);
    atomic_store(&injected[call].first, first);
    return atomic_exchange(&injected[call].made, 0);
}

uint64_t weir_file_fail_at(enum weir_file_call call, uint64_t nth, int os_errno)
{
    return fail_set(call, nth, nth, os_errno);
}

uint64_t weir_file_fail_from(enum weir_file_call call, uint64_t nth, int os_errno)
{
    return fail_set(call, nth, UINT64_MAX, os_errno);
}

int weir_file_open(const char *path, int flags, unsigned mode, int *fd)
{
    int fault = turn(WEIR_FILE_OPEN);
    if (fault)
        return fault;
    *fd = open(path, flags | O_CLOEXEC, mode);
    return *fd < 0 ? errno : 0;
}

int weir_file_read(int fd, void *bytes, size_t byte_count, uint64_t offset, size_t *got)
{
    int fault = turn(WEIR_FILE_READ);
    *got = 0;
    while (!fault && *got < byte_count) {
        ssize_t n = pread(fd, (char *)bytes + *got, byte_count - *got, (off_t)(offset + *got));
        if (n < 0 && errno != EINTR)
            fault = errno;
        if (n == 0)
            break;
        if (n > 0)
            *got += (size_t)n;
    }
    return fault;
}

int weir_file_write(int fd, const void *bytes, size_t byte_count, uint64_t offset)
{
    int fault = turn(WEIR_FILE_WRITE);
    while (!fault && byte_count > 0) {
        ssize_t n = pwrite(fd, bytes, byte_count, (off_t)offset);
        if (n < 0 && errno != EINTR)
            fault = errno;
        if (n == 0)
            fault = ENOSPC;
        if (n > 0) {
            bytes = (const char *)bytes + n;
            byte_count -= (size_t)n;
            offset += (uint64_t)n;
        }
    }
    return fault;
}

int weir_file_sync(int fd)
{
    int fault = turn(WEIR_FILE_SYNC);
    return fault ? fault : fsync(fd) == 0 ? 0 : errno;
}

static int renamed(const char *from, const char *to, unsigned flags)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, flags) == 0 ? 0 : errno;
}

int weir_file_rename(const char *from, const char *to, enum weir_file_rename how)
{
    static const unsigned flags[] = {RENAME_NOREPLACE, RENAME_EXCHANGE, 0};
    int error = turn(WEIR_FILE_RENAME);
    if (!error)
        error = renamed(from, to, flags[how]);
    if (error == EINVAL && how == WEIR_FILE_NEW)
        error = access(to, F_OK) == 0 ? EEXIST : renamed(from, to, 0);
    return error;
}

int weir_file_reserve(int fd, uint64_t byte_count)
{
    /* Beyond the process's limit the kernel sends a signal, which ends programs. */
    struct rlimit most;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && byte_count > most.rlim_cur)
        return EFBIG;
    int error = 0;
    do
        error = fallocate(fd, 0, 0, (off_t)byte_count) == 0 ? 0 : errno;
    while (error == EINTR);
    if (error == EOPNOTSUPP)
        error = ftruncate(fd, (off_t)byte_count) == 0 ? 0 : errno;
    return error;
}
