#include "alloc/pool.h"
#include "core/memory.h"

#include <stdio.h>
#include <string.h>

#define LENT_ALIGN_BYTES 4096
#define HOLDER_BYTES     48
#define SHOWN_HOLDERS    3

struct holder {
    char name[HOLDER_BYTES];
    uint64_t bytes;
};

struct slab {
    unsigned char *memory;
    uint64_t bytes;
    size_t holder;
    bool lent; /* part of the lent memory, not made here */
};

struct weir_pool {
    struct weir_device *device;
    enum weir_pool_kind kind;
    char *name, *remedy;
    uint64_t budget_bytes, used_bytes, peak_bytes;
    struct holder *holders; /* never removed: an index stays good */
    size_t holder_count, holder_capacity;
    struct slab *slabs; /* lent ones by address, then made ones */
    size_t slab_count, slab_capacity, lent_count;
    unsigned char *lent;
    uint64_t lent_bytes;
};

enum weir_status weir_pool_open(struct weir_pool **out, struct weir_device *device,
                                enum weir_pool_kind kind, const char *name, uint64_t budget_bytes,
                                const char *remedy)
{
    struct weir_pool *pool;
    WEIR_TRY(weir_alloc(&pool, 1, sizeof *pool, "a pool"));
    pool->device = device;
    pool->kind = kind;
    pool->budget_bytes = budget_bytes;
    enum weir_status status = weir_strdup(&pool->name, name);
    if (status == WEIR_OK)
        status = weir_strdup(&pool->remedy, remedy);
    if (status != WEIR_OK) {
        weir_free(pool->name);
        weir_free(pool);
        return status;
    }
    *out = pool;
    return WEIR_OK;
}

/* ---- memory: from the device, or a gap in what was lent */

static enum weir_status memory_make(struct weir_pool *pool, uint64_t bytes, void **out)
{
    const struct weir_device_table *table = pool->device->table;
    return pool->kind == WEIR_POOL_DEVICE ? table->mem_alloc(pool->device, bytes, out)
                                          : table->pin_alloc(pool->device, bytes, out);
}

static enum weir_status memory_unmake(struct weir_pool *pool, const struct slab *slab)
{
    const struct weir_device_table *table = pool->device->table;
    if (slab->lent)
        return WEIR_OK;
    return pool->kind == WEIR_POOL_DEVICE ? table->mem_free(pool->device, slab->memory)
                                          : table->pin_free(pool->device, slab->memory);
}

static enum weir_status lent_unpin(struct weir_pool *pool)
{
    if (pool->lent == NULL || pool->kind != WEIR_POOL_HOST)
        return WEIR_OK;
    return pool->device->table->pin_unregister(pool->device, pool->lent);
}

enum weir_status weir_pool_close(struct weir_pool *pool)
{
    if (pool == NULL)
        return WEIR_OK;
    struct weir_error first = {.status = WEIR_OK};
    for (size_t i = 0; i < pool->slab_count; i++)
        if (memory_unmake(pool, &pool->slabs[i]) != WEIR_OK && first.status == WEIR_OK)
            first = *weir_last_error();
    if (lent_unpin(pool) != WEIR_OK && first.status == WEIR_OK)
        first = *weir_last_error();
    weir_free(pool->slabs);
    weir_free(pool->holders);
    weir_free(pool->name);
    weir_free(pool->remedy);
    weir_free(pool);
    return first.status == WEIR_OK ? WEIR_OK : weir_fail_with(&first);
}

enum weir_status weir_pool_lend(struct weir_pool *pool, void *memory, uint64_t bytes)
{
    if (pool->slab_count > 0 || pool->lent != NULL)
        return weir_fail(WEIR_ERR_STATE,
                         "pool \"%s\": memory is lent once, before the first slab is taken",
                         pool->name);
    if ((uintptr_t)memory % LENT_ALIGN_BYTES != 0 || bytes > pool->budget_bytes)
        return weir_fail(WEIR_ERR_ARG,
                         "pool \"%s\": %llu bytes lent at %p; lend at most the budget of %llu "
                         "bytes, aligned to %d",
                         pool->name, (unsigned long long)bytes, memory,
                         (unsigned long long)pool->budget_bytes, LENT_ALIGN_BYTES);
    if (pool->kind == WEIR_POOL_HOST)
        WEIR_TRY(pool->device->table->pin_register(pool->device, memory, bytes));
    pool->lent = memory;
    pool->lent_bytes = bytes;
    return WEIR_OK;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + LENT_ALIGN_BYTES - 1) / LENT_ALIGN_BYTES * LENT_ALIGN_BYTES;
}

/* The lowest gap of the lent memory that holds `bytes`: its offset and its place among the slabs.
 */
static bool lent_fit(const struct weir_pool *pool, uint64_t bytes, uint64_t *offset, size_t *index)
{
    uint64_t at = 0;
    size_t i = 0;
    for (; i < pool->lent_count; i++) {
        uint64_t begin = (uint64_t)(pool->slabs[i].memory - pool->lent);
        if (bytes <= begin - at)
            break;
        at = begin + aligned(pool->slabs[i].bytes);
    }
    *offset = at;
    *index = i;
    return bytes > 0 && at <= pool->lent_bytes && bytes <= pool->lent_bytes - at;
}

/* ---- the budget */

/* "; largest holders: weights 5368709120, scratch 2147483648", or nothing. */
static void holders_describe(const struct weir_pool *pool, char *text, size_t text_bytes)
{
    uint64_t below = UINT64_MAX;
    size_t after = 0, used = 0;
    text[0] = '\0';
    for (int shown = 0; shown < SHOWN_HOLDERS; shown++) {
        const struct holder *largest = NULL;
        for (size_t i = 0; i < pool->holder_count; i++) {
            const struct holder *holder = &pool->holders[i];
            bool next = holder->bytes < below || (holder->bytes == below && i >= after);
            if (next && holder->bytes > 0 && (!largest || holder->bytes > largest->bytes))
                largest = holder;
        }
        if (largest == NULL || used >= text_bytes)
            return;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s %s %llu",
                                 shown == 0 ? "; largest holders:" : ",", largest->name,
                                 (unsigned long long)largest->bytes);
        below = largest->bytes;
        after = (size_t)(largest - pool->holders) + 1;
    }
}

static enum weir_status budget_check(const struct weir_pool *pool, const char *holder,
                                     uint64_t bytes)
{
    uint64_t left = pool->budget_bytes - pool->used_bytes;
    if (bytes <= left)
        return WEIR_OK;
    char holders[256];
    holders_describe(pool, holders, sizeof holders);
    return weir_fail(WEIR_ERR_NOMEM,
                     "pool \"%s\": need %llu bytes for \"%s\", %llu of %llu free%s; %s", pool->name,
                     (unsigned long long)bytes, holder, (unsigned long long)left,
                     (unsigned long long)pool->budget_bytes, holders, pool->remedy);
}

/* The device lacks what the budget has: its own line, and for what and who holds the rest. */
static enum weir_status device_refused(const struct weir_pool *pool, const char *holder,
                                       enum weir_status status)
{
    if (status != WEIR_ERR_NOMEM)
        return status;
    struct weir_error error = *weir_last_error();
    size_t length = strlen(error.text);
    char holders[192];
    holders_describe(pool, holders, sizeof holders);
    snprintf(error.text + length, sizeof error.text - length, " (pool \"%s\", for \"%s\"%s)",
             pool->name, holder, holders);
    return weir_fail_with(&error);
}

/* Finds the holder or adds it. */
static enum weir_status holder_find(struct weir_pool *pool, const char *name, size_t *out)
{
    char cut[HOLDER_BYTES];
    snprintf(cut, sizeof cut, "%s", name);
    size_t i = 0;
    while (i < pool->holder_count && strcmp(pool->holders[i].name, cut) != 0)
        i++;
    if (i == pool->holder_count) {
        WEIR_TRY(weir_grow(&pool->holders, &pool->holder_capacity, i + 1, sizeof *pool->holders,
                           "a pool's holders"));
        pool->holders[i] = (struct holder){.bytes = 0};
        memcpy(pool->holders[i].name, cut, sizeof cut);
        pool->holder_count++;
    }
    *out = i;
    return WEIR_OK;
}

static void charge(struct weir_pool *pool, size_t holder, uint64_t bytes)
{
    pool->holders[holder].bytes += bytes;
    pool->used_bytes += bytes;
    if (pool->used_bytes > pool->peak_bytes)
        pool->peak_bytes = pool->used_bytes;
}

static void discharge(struct weir_pool *pool, size_t holder, uint64_t bytes)
{
    pool->holders[holder].bytes -= bytes;
    pool->used_bytes -= bytes;
}

/* ---- slabs */

enum weir_status weir_pool_take(struct weir_pool *pool, const char *holder, uint64_t bytes,
                                void **out)
{
    WEIR_TRY(budget_check(pool, holder, bytes));
    struct slab slab = {.bytes = bytes};
    WEIR_TRY(holder_find(pool, holder, &slab.holder));
    WEIR_TRY(weir_grow(&pool->slabs, &pool->slab_capacity, pool->slab_count + 1,
                       sizeof *pool->slabs, "a pool's slabs"));
    uint64_t offset;
    size_t index;
    slab.lent = lent_fit(pool, bytes, &offset, &index);
    if (slab.lent) {
        slab.memory = pool->lent + offset;
        memmove(pool->slabs + index + 1, pool->slabs + index,
                (pool->slab_count - index) * sizeof slab);
        pool->lent_count++;
    } else {
        void *made = NULL;
        enum weir_status status = memory_make(pool, bytes, &made);
        if (status != WEIR_OK)
            return device_refused(pool, holder, status);
        slab.memory = made;
        index = pool->slab_count;
    }
    pool->slabs[index] = slab;
    pool->slab_count++;
    charge(pool, slab.holder, bytes);
    *out = slab.memory;
    return WEIR_OK;
}

enum weir_status weir_pool_give(struct weir_pool *pool, void *memory)
{
    if (memory == NULL)
        return WEIR_OK;
    size_t i = 0;
    while (i < pool->slab_count && pool->slabs[i].memory != memory)
        i++;
    if (i == pool->slab_count)
        return weir_fail(WEIR_ERR_ARG, "pool \"%s\": %p is no slab of it", pool->name, memory);
    struct slab slab = pool->slabs[i];
    WEIR_TRY(memory_unmake(pool, &slab));
    memmove(pool->slabs + i, pool->slabs + i + 1, (pool->slab_count - i - 1) * sizeof slab);
    pool->slab_count--;
    pool->lent_count -= slab.lent;
    discharge(pool, slab.holder, slab.bytes);
    return WEIR_OK;
}

enum weir_status weir_pool_charge(struct weir_pool *pool, const char *holder, int64_t bytes)
{
    size_t index;
    if (bytes >= 0) {
        WEIR_TRY(budget_check(pool, holder, (uint64_t)bytes));
        WEIR_TRY(holder_find(pool, holder, &index));
        charge(pool, index, (uint64_t)bytes);
        return WEIR_OK;
    }
    WEIR_TRY(holder_find(pool, holder, &index));
    uint64_t back = -(uint64_t)bytes;
    if (back > pool->holders[index].bytes)
        return weir_fail(WEIR_ERR_ARG, "pool \"%s\": \"%s\" gives back %llu bytes, it holds %llu",
                         pool->name, holder, (unsigned long long)back,
                         (unsigned long long)pool->holders[index].bytes);
    discharge(pool, index, back);
    return WEIR_OK;
}

uint64_t weir_pool_used_bytes(const struct weir_pool *pool)
{
    return pool->used_bytes;
}

uint64_t weir_pool_peak_bytes(const struct weir_pool *pool)
{
    return pool->peak_bytes;
}

uint64_t weir_pool_budget_bytes(const struct weir_pool *pool)
{
    return pool->budget_bytes;
}

/* ---- invariants */

static enum weir_status corrupt(const struct weir_pool *pool, const char *what)
{
    return weir_fail(WEIR_ERR_CORRUPT, "pool \"%s\": %s", pool->name, what);
}

static enum weir_status check_slab(const struct weir_pool *pool, size_t index)
{
    const struct slab *slab = &pool->slabs[index];
    if (slab->lent != (index < pool->lent_count) || slab->holder >= pool->holder_count)
        return corrupt(pool, "a slab is out of place");
    if (slab->lent && (slab->memory < pool->lent || slab->bytes > pool->lent_bytes ||
                       (uint64_t)(slab->memory - pool->lent) > pool->lent_bytes - slab->bytes))
        return corrupt(pool, "a lent slab leaves the lent memory");
    for (size_t i = 0; i < index; i++) {
        const struct slab *other = &pool->slabs[i];
        if (slab->memory < other->memory + other->bytes &&
            other->memory < slab->memory + slab->bytes)
            return corrupt(pool, "two slabs overlap");
        if (slab->lent && other->memory > slab->memory)
            return corrupt(pool, "lent slabs are not in order");
    }
    return WEIR_OK;
}

enum weir_status weir_pool_check(const struct weir_pool *pool)
{
    uint64_t held = 0, in_slabs = 0;
    for (size_t i = 0; i < pool->holder_count; i++)
        held += pool->holders[i].bytes;
    for (size_t i = 0; i < pool->slab_count; i++) {
        WEIR_TRY(check_slab(pool, i));
        in_slabs += pool->slabs[i].bytes;
    }
    if (held != pool->used_bytes || in_slabs > held)
        return corrupt(pool, "the sums of its holders and slabs do not agree with its use");
    if (pool->used_bytes > pool->peak_bytes || pool->peak_bytes > pool->budget_bytes)
        return corrupt(pool, "more bytes are in use than the peak or the budget says");
    return WEIR_OK;
}
