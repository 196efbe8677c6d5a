#include "core/host_internal.h"
#include "core/memory.h"
#include "core/pages.h"

#include <string.h>

#define FRESH     0xA5
#define FREED     0x5A
#define KIND_MASK 3u

static const char *const kind_names[] = {"free", "device memory", "pinned memory",
                                         "registered memory"};

/* ---- the list of blocks */

struct found {
    struct host_block *block;
    enum host_kind kind;
    uintptr_t base;
    uint64_t bytes;
};

/* A consistent copy of what a block holds, or false while it changes. */
static bool block_read(struct host_block *block, struct found *out)
{
    uint64_t state = atomic_load_explicit(&block->state, WEIR_HIDDEN_ACQUIRE);
    *out = (struct found){
        .block = block,
        .kind = (enum host_kind)(state & KIND_MASK),
        .base = atomic_load_explicit(&block->base, WEIR_HIDDEN_ACQUIRE),
        .bytes = atomic_load_explicit(&block->bytes, WEIR_HIDDEN_ACQUIRE),
    };
    return out->kind != HOST_FREE &&
           atomic_load_explicit(&block->state, memory_order_relaxed) == state;
}

/* The block that holds [memory, memory + bytes) whole. */
static bool block_find(struct host_device *device, const void *memory, uint64_t bytes,
                       struct found *out)
{
    uintptr_t at = (uintptr_t)memory;
    struct host_block *block = atomic_load_explicit(&device->blocks, WEIR_HIDDEN_ACQUIRE);
    for (; block != NULL; block = block->next)
        if (block_read(block, out) && at >= out->base && at - out->base <= out->bytes &&
            bytes <= out->bytes - (at - out->base))
            return true;
    return false;
}

/* The block of `kind` that begins at memory. */
static enum weir_status block_at(struct host_device *device, const void *memory,
                                 enum host_kind kind, struct found *out)
{
    struct host_block *block = atomic_load_explicit(&device->blocks, WEIR_HIDDEN_ACQUIRE);
    for (; block != NULL; block = block->next)
        if (block_read(block, out) && out->kind == kind && out->base == (uintptr_t)memory)
            return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG, "device \"host\": %p is not the start of %s", memory,
                     kind_names[kind]);
}

static void block_state_set(struct host_block *block, enum host_kind kind)
{
    uint64_t serial = atomic_load_explicit(&block->state, memory_order_relaxed) / 4 + 1;
    atomic_store_explicit(&block->state, serial * 4 + kind, WEIR_HIDDEN_RELEASE);
}

/* pre: device->lock is held. Blocks are reused, never unlinked. */
static enum weir_status block_add(struct host_device *device, enum host_kind kind, void *memory,
                                  uint64_t bytes)
{
    struct host_block *first = atomic_load_explicit(&device->blocks, memory_order_relaxed);
    struct host_block *block = first;
    while (block != NULL &&
           (atomic_load_explicit(&block->state, memory_order_relaxed) & KIND_MASK) != HOST_FREE)
        block = block->next;
    bool made = block == NULL;
    if (made)
        WEIR_TRY(weir_alloc(&block, 1, sizeof *block, "a block of device \"host\""));
    atomic_store_explicit(&block->base, (uintptr_t)memory, WEIR_HIDDEN_RELEASE);
    atomic_store_explicit(&block->bytes, bytes, WEIR_HIDDEN_RELEASE);
    block_state_set(block, kind);
    if (made) {
        block->next = first;
        atomic_store_explicit(&device->blocks, block, memory_order_release);
    }
    return WEIR_OK;
}

/* Takes a block out of use, unless a copy that is queued or runs names it. */
static enum weir_status block_remove(struct host_device *device, const struct found *found)
{
    uint64_t moves = atomic_load_explicit(&found->block->move_count, WEIR_HIDDEN_ACQUIRE);
    if (moves > 0)
        return weir_fail(WEIR_ERR_STATE,
                         "device \"host\": %s %p of %llu bytes is freed under %llu copies or fills "
                         "not yet complete; wait for their event first",
                         kind_names[found->kind], (void *)found->base,
                         (unsigned long long)found->bytes, (unsigned long long)moves);
    pthread_mutex_lock(&device->lock);
    block_state_set(found->block, HOST_FREE);
    pthread_mutex_unlock(&device->lock);
    return WEIR_OK;
}

/* ---- pages */

static enum weir_status pages_make(struct host_device *device, enum host_kind kind, uint64_t bytes,
                                   void **out)
{
    void *memory = NULL;
    WEIR_TRY(weir_pages_map("host", device->options.log, &device->no_huge_pages, bytes, &memory));
    pthread_mutex_lock(&device->lock);
    enum weir_status status = block_add(device, kind, memory, bytes);
    pthread_mutex_unlock(&device->lock);
    if (status != WEIR_OK) {
        weir_pages_unmap(memory, bytes);
        return status;
    }
    if (device->options.strict)
        memset(memory, FRESH, bytes);
    else
        weir_pages_clear(memory, bytes);
    *out = memory;
    return WEIR_OK;
}

static enum weir_status pages_free(struct host_device *device, enum host_kind kind, void *memory,
                                   uint64_t *bytes)
{
    struct found found;
    WEIR_TRY(block_at(device, memory, kind, &found));
    WEIR_TRY(block_remove(device, &found));
    /* for an operation that still reads it, and to show ThreadSanitizer the writer */
    if (device->options.strict)
        memset(memory, FREED, found.bytes);
    weir_pages_unmap(memory, found.bytes);
    *bytes = found.bytes;
    return WEIR_OK;
}

/* ---- the table's functions. What frees does so on a failed device too, then tells. */

enum weir_status weir_host_mem_alloc(struct weir_device *base, uint64_t bytes, void **out)
{
    struct host_device *device = host_device(base);
    WEIR_TRY(host_check(device));
    WEIR_TRY(weir_charge_take(&device->charge, bytes));
    enum weir_status status = pages_make(device, HOST_DEVICE, bytes, out);
    if (status != WEIR_OK)
        weir_charge_give(&device->charge, bytes);
    return status;
}

enum weir_status weir_host_mem_free(struct weir_device *base, void *memory)
{
    struct host_device *device = host_device(base);
    if (memory != NULL) {
        uint64_t bytes;
        WEIR_TRY(pages_free(device, HOST_DEVICE, memory, &bytes));
        weir_charge_give(&device->charge, bytes);
    }
    return host_check(device);
}

enum weir_status weir_host_pin_alloc(struct weir_device *base, uint64_t bytes, void **out)
{
    struct host_device *device = host_device(base);
    WEIR_TRY(host_check(device));
    return pages_make(device, HOST_PINNED, bytes, out);
}

enum weir_status weir_host_pin_free(struct weir_device *base, void *memory)
{
    struct host_device *device = host_device(base);
    uint64_t bytes;
    if (memory != NULL)
        WEIR_TRY(pages_free(device, HOST_PINNED, memory, &bytes));
    return host_check(device);
}

/* pre: device->lock is held */
static enum weir_status register_check(struct host_device *device, uintptr_t at, uint64_t bytes)
{
    struct found found;
    struct host_block *block = atomic_load_explicit(&device->blocks, memory_order_relaxed);
    for (; block != NULL; block = block->next)
        if (block_read(block, &found) && at < found.base + found.bytes && found.base < at + bytes)
            return weir_fail(WEIR_ERR_ARG,
                             "device \"host\": %p of %llu bytes overlaps %s %p of %llu bytes; pin "
                             "memory once",
                             (void *)at, (unsigned long long)bytes, kind_names[found.kind],
                             (void *)found.base, (unsigned long long)found.bytes);
    return WEIR_OK;
}

enum weir_status weir_host_pin_register(struct weir_device *base, void *memory, uint64_t bytes)
{
    struct host_device *device = host_device(base);
    WEIR_TRY(host_check(device));
    pthread_mutex_lock(&device->lock);
    enum weir_status status = register_check(device, (uintptr_t)memory, bytes);
    if (status == WEIR_OK)
        status = block_add(device, HOST_REGISTERED, memory, bytes);
    pthread_mutex_unlock(&device->lock);
    return status;
}

enum weir_status weir_host_pin_unregister(struct weir_device *base, void *memory)
{
    struct host_device *device = host_device(base);
    struct found found;
    WEIR_TRY(block_at(device, memory, HOST_REGISTERED, &found));
    WEIR_TRY(block_remove(device, &found));
    return host_check(device);
}

void weir_host_blocks_free(struct host_device *device)
{
    struct host_block *block = atomic_load_explicit(&device->blocks, memory_order_relaxed);
    while (block != NULL) {
        struct host_block *next = block->next;
        struct found found;
        if (block_read(block, &found) && found.kind != HOST_REGISTERED)
            weir_pages_unmap((void *)found.base, found.bytes);
        weir_free(block);
        block = next;
    }
}

/* ---- strict mode: what a copy or fill may touch */

static enum weir_status side_hold(struct host_device *device, const void *memory, uint64_t bytes,
                                  bool device_side, const char *role, struct host_block **out)
{
    struct found found;
    const char *wanted = device_side ? "device memory" : "pinned host memory";
    if (!block_find(device, memory, bytes, &found))
        return weir_fail(WEIR_ERR_ARG,
                         "device \"host\": the %s %p of %llu bytes is not within one piece of %s",
                         role, memory, (unsigned long long)bytes, wanted);
    if ((found.kind == HOST_DEVICE) != device_side)
        return weir_fail(WEIR_ERR_ARG,
                         "device \"host\": the %s %p lies in %s, the copy's direction wants %s",
                         role, memory, kind_names[found.kind], wanted);
    atomic_fetch_add_explicit(&found.block->move_count, 1, memory_order_relaxed);
    *out = found.block;
    return WEIR_OK;
}

enum weir_status weir_host_move_check(struct host_device *device, struct host_move *move,
                                      enum weir_copy direction)
{
    if (!device->options.strict)
        return WEIR_OK;
    WEIR_TRY(side_hold(device, move->destination, move->bytes, direction != WEIR_COPY_TO_HOST,
                       "destination", &move->blocks[0]));
    if (move->source == NULL)
        return WEIR_OK;
    enum weir_status status =
        side_hold(device, move->source, move->bytes, direction != WEIR_COPY_TO_DEVICE, "source",
                  &move->blocks[1]);
    if (status != WEIR_OK)
        weir_host_move_release(move);
    return status;
}

void weir_host_move_release(struct host_move *move)
{
    for (int i = 0; i < 2; i++)
        if (move->blocks[i] != NULL)
            atomic_fetch_sub_explicit(&move->blocks[i]->move_count, 1, WEIR_HIDDEN_RELEASE);
}
