#include "core/pages.h"
#include "core/machine.h"
#include "core/thread.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES      4096u
#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)
#define THREAD_BYTES    ((uint64_t)64 << 20) /* worth a thread */

static uint64_t pages_bytes(uint64_t bytes)
{
    return bytes > 0 ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : PAGE_BYTES;
}

static void huge_ask(const char *owner, struct weir_log *log, _Atomic bool *told, void *memory,
                     uint64_t bytes)
{
    if (madvise(memory, bytes, MADV_HUGEPAGE) == 0)
        return;
    int os_errno = errno;
    if (!atomic_exchange(told, true))
        weir_log(log, WEIR_LOG_WARNING,
                 "device \"%s\": the kernel refuses huge pages (madvise: errno %d), transfers "
                 "will be slower; enable transparent_hugepage",
                 owner, os_errno);
}

/* The kernel would give addresses, and kill for the memory behind them once it is used. */
static enum weir_status available_check(const char *owner, uint64_t bytes)
{
    uint64_t available = bytes < HUGE_PAGE_BYTES ? bytes : weir_memory_available_bytes("");
    if (bytes <= available)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_NOMEM,
                     "device \"%s\": need %llu bytes of memory, this machine has %llu available to "
                     "this process; ask for less or free memory",
                     owner, (unsigned long long)bytes, (unsigned long long)available);
}

enum weir_status weir_pages_map(const char *owner, struct weir_log *log, _Atomic bool *told,
                                uint64_t bytes, void **out)
{
    if (bytes > (uint64_t)PTRDIFF_MAX - HUGE_PAGE_BYTES - PAGE_BYTES)
        return weir_fail(WEIR_ERR_NOMEM, "device \"%s\": %llu bytes are not addressable", owner,
                         (unsigned long long)bytes);
    uint64_t whole_bytes = pages_bytes(bytes);
    WEIR_TRY(available_check(owner, whole_bytes));
    uint64_t extra_bytes = whole_bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    char *mapped = mmap(NULL, whole_bytes + extra_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return weir_fail_errno(WEIR_ERR_NOMEM, errno, "device \"%s\": cannot map %llu bytes", owner,
                               (unsigned long long)whole_bytes);
    if (extra_bytes > 0) {
        uint64_t before = -(uintptr_t)mapped % HUGE_PAGE_BYTES;
        if (before > 0)
            munmap(mapped, before);
        mapped += before;
        if (extra_bytes > before)
            munmap(mapped + whole_bytes, extra_bytes - before);
        huge_ask(owner, log, told, mapped, whole_bytes);
    }
    *out = mapped;
    return WEIR_OK;
}

void weir_pages_unmap(void *memory, uint64_t bytes)
{
    munmap(memory, pages_bytes(bytes));
}

struct part {
    char *first;
    uint64_t byte_count;
};

static void part_clear(void *argument)
{
    const struct part *part = argument;
    memset(part->first, 0, part->byte_count);
}

void weir_pages_clear(void *memory, uint64_t bytes)
{
    struct part parts[WEIR_THREAD_PARTS];
    uint32_t count = weir_thread_parts(bytes, THREAD_BYTES);
    uint64_t each = (bytes / count + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t first = i * each < bytes ? i * each : bytes, left = bytes - first;
        parts[i] = (struct part){.first = (char *)memory + first,
                                 .byte_count = left < each || i + 1 == count ? left : each};
    }
    weir_thread_each(part_clear, parts, sizeof *parts, count);
}
