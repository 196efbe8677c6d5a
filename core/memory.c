#include "core/memory.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t held_bytes;
static atomic_uint_fast64_t made_count; /* since the last weir_alloc_fail_at */
/* Values of made_count that fail: [first, last]; first 0: none. */
static atomic_uint_fast64_t fail_first, fail_last;

static uint64_t fail_set(uint64_t first, uint64_t last)
{
    atomic_store(&fail_last, last);
    atomic_store(&fail_first, first);
    return atomic_exchange(&made_count, 0);
}

uint64_t weir_alloc_fail_at(uint64_t nth)
{
    return fail_set(nth, nth);
}

uint64_t weir_alloc_fail_from(uint64_t nth)
{
    return fail_set(nth, UINT64_MAX);
}

uint64_t weir_alloc_bytes(void)
{
    return atomic_load_explicit(&held_bytes, memory_order_relaxed);
}

static bool must_fail(void)
{
    uint64_t number = atomic_fetch_add_explicit(&made_count, 1, memory_order_relaxed) + 1;
    uint64_t first = atomic_load_explicit(&fail_first, memory_order_relaxed);
    return first > 0 && number >= first &&
           number <= atomic_load_explicit(&fail_last, memory_order_relaxed);
}

enum weir_status weir_alloc(void *out, size_t count, size_t bytes, const char *what)
{
    size_t total;
    bool fits = !__builtin_mul_overflow(count, bytes, &total);
    void *memory = must_fail() || !fits ? NULL : calloc(1, total > 0 ? total : 1);
    if (memory == NULL)
        return weir_fail(WEIR_ERR_NOMEM,
                         "heap: no memory for %s, %zu x %zu bytes; free memory on this machine",
                         what, count, bytes);
    atomic_fetch_add_explicit(&held_bytes, malloc_usable_size(memory), memory_order_relaxed);
    memcpy(out, &memory, sizeof memory);
    return WEIR_OK;
}

enum weir_status weir_grow(void *array, size_t *capacity, size_t need, size_t bytes,
                           const char *what)
{
    if (need <= *capacity)
        return WEIR_OK;
    size_t grown = *capacity > SIZE_MAX / 2 ? need : *capacity * 2;
    if (grown < need)
        grown = need;
    if (grown < 8)
        grown = 8;
    void *old, *fresh;
    memcpy(&old, array, sizeof old);
    WEIR_TRY(weir_alloc(&fresh, grown, bytes, what));
    if (old != NULL)
        memcpy(fresh, old, *capacity * bytes);
    weir_free(old);
    memcpy(array, &fresh, sizeof fresh);
    *capacity = grown;
    return WEIR_OK;
}

void weir_free(void *memory)
{
    if (memory == NULL)
        return;
    atomic_fetch_sub_explicit(&held_bytes, malloc_usable_size(memory), memory_order_relaxed);
    free(memory);
}

enum weir_status weir_strdup(char **out, const char *text)
{
    size_t bytes = strlen(text) + 1;
    WEIR_TRY(weir_alloc(out, bytes, 1, "a string"));
    memcpy(*out, text, bytes);
    return WEIR_OK;
}
