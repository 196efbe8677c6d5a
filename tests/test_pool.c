#include "alloc/pool.h"
#include "core/memory.h"
#include "tests/support_device.h"

#include <stdlib.h>
#include <string.h>

static const struct test_variant strict = {"host", true};

static struct weir_pool *pool_open(struct test_device *d, enum weir_pool_kind kind,
                                   uint64_t budget_bytes)
{
    struct weir_pool *pool;
    assert_ok(weir_pool_open(&pool, d->device, kind, "device", budget_bytes,
                             "lower the micro-batch or raise device_bytes"));
    return pool;
}

/* A request beyond the budget changes nothing and says need, room, largest holders and remedy. */
static void request_beyond_the_budget_names_its_holders(void **state)
{
    struct weir_pool *pool = pool_open(*state, WEIR_POOL_DEVICE, 100000);
    void *slab, *none;
    assert_ok(weir_pool_take(pool, "scratch", 10000, &slab));
    assert_ok(weir_pool_charge(pool, "trace", 5000));
    assert_ok(weir_pool_charge(pool, "plan", 5000));
    assert_ok(weir_pool_charge(pool, "tables", 1));
    assert_ok(weir_pool_take(pool, "weights", 50000, &slab));
    assert_fails(weir_pool_take(pool, "transients", 30000, &none), WEIR_ERR_NOMEM,
                 "pool \"device\": need 30000 bytes for \"transients\", 29999 of 100000 free; "
                 "largest holders: weights 50000, scratch 10000, trace 5000; lower the micro-batch "
                 "or raise device_bytes");
    assert_fails(weir_pool_charge(pool, "plan", 29999 + 1), WEIR_ERR_NOMEM, "for \"plan\"");
    assert_int_equal(70001, weir_pool_used_bytes(pool));
    assert_ok(weir_pool_take(pool, "transients", 29999, &slab));
    assert_ok(weir_pool_check(pool));
    assert_ok(weir_pool_close(pool));
}

/* Given bytes can be taken again; the peak stays. */
static void use_falls_and_the_peak_stays(void **state)
{
    struct test_device *d = *state;
    struct weir_pool *pool = pool_open(d, WEIR_POOL_DEVICE, UINT64_MAX);
    struct weir_device_info info;
    void *a, *b;
    assert_ok(weir_pool_take(pool, "a", 4096, &a));
    assert_ok(weir_pool_take(pool, "b", 8192, &b));
    assert_ok(weir_pool_give(pool, a));
    assert_fails(weir_pool_give(pool, a), WEIR_ERR_ARG, "no slab");
    assert_ok(weir_pool_give(pool, NULL));
    assert_ok(weir_pool_charge(pool, "a", 100));
    assert_ok(weir_pool_charge(pool, "a", -60));
    assert_fails(weir_pool_charge(pool, "a", -41), WEIR_ERR_ARG,
                 "gives back 41 bytes, it holds 40");
    assert_int_equal(8192 + 40, weir_pool_used_bytes(pool));
    assert_int_equal(4096 + 8192, weir_pool_peak_bytes(pool));
    assert_int_equal(UINT64_MAX, weir_pool_budget_bytes(pool));
    assert_ok(weir_pool_check(pool));
    assert_ok(weir_pool_close(pool));
    d->table->info(d->device, &info);
    assert_int_equal(0, info.memory_used_bytes);
    assert_ok(weir_pool_close(NULL));
}

/* A host pool's slabs, lent or made, are pinned: strict copies take them. Large ones that it makes
 * begin on a huge page. */
static void host_slabs_are_pinned(void **state)
{
    struct test_device *d = *state;
    void *lent = NULL, *made, *in_lent, *device;
    assert_int_equal(0, posix_memalign(&lent, 4096, 16384));
    struct weir_pool *pool = pool_open(d, WEIR_POOL_HOST, UINT64_C(1) << 30);
    assert_ok(weir_pool_lend(pool, lent, 16384));
    assert_ok(weir_pool_take(pool, "small", 4096, &in_lent));
    assert_ok(weir_pool_take(pool, "large", 3 << 20, &made));
    assert_ptr_equal(lent, in_lent);
    assert_int_equal(0, (uintptr_t)made % (2 << 20));
    assert_ok(d->table->mem_alloc(d->device, 4096, &device));
    struct weir_stream *stream = d->streams[TO_DEVICE];
    memset(in_lent, 9, 4096);
    assert_ok(d->table->copy(stream, device, in_lent, 4096, WEIR_COPY_TO_DEVICE));
    assert_ok(d->table->copy(stream, made, device, 4096, WEIR_COPY_TO_HOST));
    assert_ok(d->table->stream_sync(stream));
    assert_memory_equal(in_lent, made, 4096);
    assert_ok(d->table->mem_free(d->device, device));
    assert_ok(weir_pool_close(pool));
    /* untouched, and no longer pinned */
    assert_int_equal(9, *(unsigned char *)lent);
    assert_fails(d->table->pin_unregister(d->device, lent), WEIR_ERR_ARG, "registered");
    free(lent);
}

/* Memory is lent once, before the first slab, aligned, within the budget. */
static void lending_has_conditions(void **state)
{
    struct test_device *d = *state;
    void *lent, *slab;
    assert_ok(d->table->mem_alloc(d->device, 16384, &lent));
    struct weir_pool *pool = pool_open(d, WEIR_POOL_DEVICE, 16384);
    assert_fails(weir_pool_lend(pool, (char *)lent + 1, 4096), WEIR_ERR_ARG, "aligned to 4096");
    assert_fails(weir_pool_lend(pool, lent, 16385), WEIR_ERR_ARG, "16385 bytes");
    assert_ok(weir_pool_lend(pool, lent, 16384));
    assert_fails(weir_pool_lend(pool, lent, 4096), WEIR_ERR_STATE, "once");
    assert_ok(weir_pool_close(pool));
    pool = pool_open(d, WEIR_POOL_DEVICE, 16384);
    assert_ok(weir_pool_take(pool, "early", 1, &slab));
    assert_fails(weir_pool_lend(pool, lent, 4096), WEIR_ERR_STATE, "before the first slab");
    assert_ok(weir_pool_close(pool));
    assert_ok(d->table->mem_free(d->device, lent));
}

/* The device's own bound surfaces with the device's text, and the pool's books are as before. */
static void device_refusal_leaves_the_books_alone(void **state)
{
    struct weir_pool *pool = pool_open(*state, WEIR_POOL_DEVICE, UINT64_MAX);
    void *slab;
    assert_fails(weir_pool_take(pool, "huge", TEST_MEMORY_BYTES + 1, &slab), WEIR_ERR_NOMEM,
                 "device \"host\"");
    assert_int_equal(0, weir_pool_used_bytes(pool));
    assert_ok(weir_pool_check(pool));
    assert_ok(weir_pool_close(pool));
}

static enum weir_status use_everything(struct test_device *d, void *lent)
{
    struct weir_pool *pool;
    void *slab;
    WEIR_TRY(weir_pool_open(&pool, d->device, WEIR_POOL_HOST, "host", 1 << 20, "raise host_bytes"));
    enum weir_status status = weir_pool_lend(pool, lent, 4096);
    if (status == WEIR_OK)
        status = weir_pool_take(pool, "a", 4096, &slab);
    if (status == WEIR_OK)
        status = weir_pool_take(pool, "b", 4096, &slab);
    if (status == WEIR_OK)
        status = weir_pool_charge(pool, "c", 1);
    assert_ok(weir_pool_check(pool));
    assert_ok(weir_pool_close(pool));
    return status;
}

/* Whichever heap allocation fails, it is NOMEM, the books agree and nothing is left behind. */
static void any_failed_allocation_is_nomem(void **state)
{
    struct test_device *d = *state;
    void *lent = NULL;
    assert_int_equal(0, posix_memalign(&lent, 4096, 4096));
    uint64_t nth = 0;
    enum weir_status status;
    do {
        weir_alloc_fail_at(++nth);
        status = use_everything(d, lent);
        assert_true(status == WEIR_OK || status == WEIR_ERR_NOMEM);
    } while (status != WEIR_OK);
    weir_alloc_fail_at(0);
    assert_true(nth > 4);
    free(lent);
}

#define CASE(behaviour)                                                                            \
    {                                                                                              \
#behaviour, behaviour, test_device_setup, test_device_teardown, (void *)&strict            \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(request_beyond_the_budget_names_its_holders),
        CASE(use_falls_and_the_peak_stays),
        CASE(host_slabs_are_pinned),
        CASE(lending_has_conditions),
        CASE(device_refusal_leaves_the_books_alone),
        CASE(any_failed_allocation_is_nomem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
