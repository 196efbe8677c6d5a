/*
 * Device memory can be touched while an operation of the device runs, and at no other time: a host
 * thread that follows a device pointer faults as it does beside a real GPU, and the fault is told.
 * (One that does so at the very moment an operation runs gets away with it.) A test of operations
 * may have it shared, as managed memory is.
 */
#include "tests/cudasim/runtime_internal.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>

#ifdef CUDASIM_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(bytes, count) ((void)(bytes), (void)(count))
#endif

namespace cudasim::runtime
{

namespace
{

constexpr size_t page_bytes = 4096, align_bytes = 256;

/* Whole pages of living device memory. Made at its first use, which may be before main. */
std::map<char *, size_t> &regions()
{
    static auto &made = *new std::map<char *, size_t>;
    return made;
}
bool open, shared;
struct sigaction former;

void on_fault(int number, siginfo_t *info, void *context)
{
    auto *at = static_cast<char *>(info->si_addr);
    for (const auto &[memory, held] : state.memory) {
        if (held.device && !held.freed && at >= memory + held.bytes &&
            at < memory + held.bytes + page_bytes)
            violation("%p lies %zu bytes behind device memory of %zu bytes at %p", info->si_addr,
                      (size_t)(at - memory) - held.bytes, held.bytes, static_cast<void *>(memory));
        if (held.device && at >= memory && at < memory + held.bytes)
            violation("%p lies in %s device memory of %zu bytes at %p; %s", info->si_addr,
                      held.freed ? "freed" : "living", held.bytes, static_cast<void *>(memory),
                      held.freed ? "it was touched after that"
                                 : "the host touched it, which only the device can");
    }
    if (former.sa_flags & SA_SIGINFO)
        former.sa_sigaction(number, info, context);
    else
        sigaction(SIGSEGV, &former, nullptr); /* the fault comes again */
}

/* A test harness puts its own in place now and then; ours comes before it. */
void handler_install()
{
    struct sigaction action = {}, old;
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &old);
    if (old.sa_sigaction != on_fault)
        former = old;
}

void protect(char *at, size_t bytes, int protection)
{
    if (mprotect(at, bytes, protection) != 0)
        violation("cannot change the protection of %zu bytes", bytes);
}

void protect_all(int protection)
{
    for (const auto &[at, bytes] : regions())
        protect(at, bytes, protection);
}

} // namespace

void guard_open()
{
    if (!open)
        protect_all(PROT_READ | PROT_WRITE);
    open = true;
}

void guard_close()
{
    if (!open || shared)
        return;
    protect_all(PROT_NONE);
    open = false;
}

void guard_share(bool share)
{
    shared = share;
    if (shared)
        guard_open();
}

/* pre: whole pages, readable and writable */
void guard_add(void *memory, size_t bytes)
{
    guard_open();
    handler_install();
    madvise(memory, bytes, MADV_HUGEPAGE); /* fewer pages to protect */
    regions()[static_cast<char *>(memory)] = bytes;
}

void guard_remove(void *memory)
{
    auto region = regions().find(static_cast<char *>(memory));
    protect(region->first, region->second, PROT_NONE);
    madvise(region->first, region->second, MADV_DONTNEED);
    regions().erase(region);
}

static size_t pages(size_t bytes)
{
    return bytes > 0 ? (bytes + page_bytes - 1) / page_bytes * page_bytes : page_bytes;
}

static size_t tail(size_t bytes)
{
    return bytes > 0 ? (bytes + align_bytes - 1) / align_bytes * align_bytes : align_bytes;
}

/* At the end of its pages, before a page that nobody may touch, so that an overrun faults;
 * AddressSanitizer also sees one within the last 256 bytes. */
void *guarded_alloc(size_t bytes)
{
    size_t whole = pages(bytes);
    void *at = mmap(nullptr, whole + page_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return nullptr;
    char *start = static_cast<char *>(at);
    protect(start + whole, page_bytes, PROT_NONE);
    guard_add(start, whole);
    char *memory = start + whole - tail(bytes);
    ASAN_POISON_MEMORY_REGION(memory + bytes, tail(bytes) - bytes);
    return memory;
}

/* The addresses are never given out again. */
void guarded_free(void *memory, size_t bytes)
{
    guard_remove(static_cast<char *>(memory) + tail(bytes) - pages(bytes));
}

} // namespace cudasim::runtime
