#include "examples/bench/buffers.h"
#include "core/machine.h"
#include "core/memory.h"
#include "examples/bench/units.h"

#include <errno.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)
#define PAGE_BYTES      UINT64_C(4096)

/* splitmix64 (Steele, Lea & Flood 2014) */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static enum weir_status scattered_touch(struct buffers *buffers)
{
    uint64_t count = buffers->byte_count / PAGE_BYTES, state = 1;
    uint32_t *order;
    WEIR_TRY(weir_alloc(&order, count, sizeof *order, "an order of pages"));
    for (uint64_t i = 0; i < count; i++) { /* Fisher and Yates, inside out */
        uint64_t j = random_next(&state) % (i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
    for (uint64_t i = 0; i < count; i++)
        buffers->bytes[order[i] * PAGE_BYTES] = 1;
    weir_free(order);
    return WEIR_OK;
}

static enum weir_status pages_make(struct buffers *buffers)
{
    uint64_t state = 2;
    int advice = buffers->layout == LAYOUT_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
    (void)madvise(buffers->bytes, buffers->byte_count,
                  advice); /* a kernel may have no huge pages */
    if (buffers->layout == LAYOUT_SCATTERED)
        WEIR_TRY(scattered_touch(buffers));
    uint64_t *words = (uint64_t *)(void *)buffers->bytes;
    for (uint64_t i = 0; i < buffers->byte_count / sizeof *words; i++)
        words[i] = random_next(&state);
    return WEIR_OK;
}

/* The kernel may place a map anywhere: take a huge page more and give back what lies outside. */
enum weir_status buffers_open(struct buffers *buffers, uint64_t byte_count, enum layout layout,
                              const char *remedy)
{
    char need[24], left[24];
    uint64_t available = weir_memory_available_bytes("");
    byte_count = (byte_count + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    *buffers = (struct buffers){.byte_count = byte_count, .layout = layout};
    if (byte_count > available)
        return weir_fail(WEIR_ERR_NOMEM,
                         "%s of memory to measure with, this machine or its container has %s "
                         "available; %s",
                         bytes_text(byte_count, need), bytes_text(available, left), remedy);
    unsigned char *map = mmap(NULL, byte_count + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return weir_fail_errno(WEIR_ERR_NOMEM, errno,
                               "%s of memory to measure with are not given; %s",
                               bytes_text(byte_count, need), remedy);
    uint64_t skip = -(uint64_t)(uintptr_t)map % HUGE_PAGE_BYTES;
    if (skip > 0)
        munmap(map, skip);
    munmap(map + skip + byte_count, HUGE_PAGE_BYTES - skip);
    buffers->bytes = map + skip;
    enum weir_status status = pages_make(buffers);
    if (status != WEIR_OK)
        buffers_close(buffers);
    return status;
}

void buffers_close(struct buffers *buffers)
{
    if (buffers->bytes)
        munmap(buffers->bytes, buffers->byte_count);
    buffers->bytes = NULL;
}
