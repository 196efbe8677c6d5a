/*
 * Random takes, gives and charges against a model of bytes: every slab keeps the pattern written
 * into it, use and peak agree, and a refusal comes exactly when the budget says so.
 */
#include "alloc/pool.h"
#include "tests/support_device.h"

#include <string.h>

#define SLABS        40
#define LENT_BYTES   (UINT64_C(40) * 4096)
#define BUDGET_BYTES (UINT64_C(100) * 4096)

struct model {
    struct weir_pool *pool;
    struct {
        unsigned char *memory, pattern;
        uint64_t bytes;
    } slabs[SLABS];
    uint64_t charged_bytes, used_bytes, peak_bytes;
};

static void use(struct model *model, uint64_t bytes)
{
    model->used_bytes += bytes;
    if (model->used_bytes > model->peak_bytes)
        model->peak_bytes = model->used_bytes;
}

static void take(struct model *model, struct test_random *random, size_t i)
{
    static const char *const holders[] = {"weights", "scratch", "ring"};
    uint64_t bytes = test_random_below(random, 12 * 4096) + 1;
    const char *holder = holders[test_random_below(random, 3)];
    void *memory;
    if (bytes > BUDGET_BYTES - model->used_bytes) {
        assert_fails(weir_pool_take(model->pool, holder, bytes, &memory), WEIR_ERR_NOMEM, "raise");
        return;
    }
    assert_ok(weir_pool_take(model->pool, holder, bytes, &memory));
    assert_int_equal(0, (uintptr_t)memory % 4096);
    model->slabs[i].memory = memory;
    model->slabs[i].bytes = bytes;
    model->slabs[i].pattern = (unsigned char)test_random_next(random);
    memset(memory, model->slabs[i].pattern, bytes);
    use(model, bytes);
}

static void give(struct model *model, size_t i)
{
    for (uint64_t b = 0; b < model->slabs[i].bytes; b++)
        assert_int_equal(model->slabs[i].pattern, model->slabs[i].memory[b]);
    assert_ok(weir_pool_give(model->pool, model->slabs[i].memory));
    model->used_bytes -= model->slabs[i].bytes;
    model->slabs[i].memory = NULL;
}

static void charge(struct model *model, struct test_random *random)
{
    int64_t bytes = (int64_t)test_random_below(random, 60000) - 30000;
    bool fits = bytes < 0 ? (uint64_t)-bytes <= model->charged_bytes
                          : (uint64_t)bytes <= BUDGET_BYTES - model->used_bytes;
    enum weir_status status = weir_pool_charge(model->pool, "plan", bytes);
    assert_int_equal(fits ? WEIR_OK : bytes < 0 ? WEIR_ERR_ARG : WEIR_ERR_NOMEM, status);
    if (!fits)
        return;
    model->charged_bytes += (uint64_t)bytes;
    use(model, (uint64_t)bytes);
}

static void books_and_bytes_agree_with_the_model(void **state)
{
    struct test_device *d = *state;
    struct test_random random = test_random_open(5);
    for (uint32_t n = 0; n < test_draws(6); n++) {
        struct model model = {.pool = NULL};
        void *lent = NULL;
        assert_ok(weir_pool_open(&model.pool, d->device, WEIR_POOL_DEVICE, "p", BUDGET_BYTES,
                                 "raise it"));
        if (n % 2 == 0) {
            assert_ok(d->table->mem_alloc(d->device, LENT_BYTES, &lent));
            assert_ok(weir_pool_lend(model.pool, lent, LENT_BYTES));
        }
        for (int step = 0; step < 400; step++) {
            size_t i = test_random_below(&random, SLABS);
            if (test_random_below(&random, 5) == 0)
                charge(&model, &random);
            else if (model.slabs[i].memory != NULL)
                give(&model, i);
            else
                take(&model, &random, i);
            assert_ok(weir_pool_check(model.pool));
            assert_int_equal(model.used_bytes, weir_pool_used_bytes(model.pool));
            assert_int_equal(model.peak_bytes, weir_pool_peak_bytes(model.pool));
        }
        assert_true(model.peak_bytes > BUDGET_BYTES / 2);
        assert_ok(weir_pool_close(model.pool));
        assert_ok(d->table->mem_free(d->device, lent));
    }
}

int main(void)
{
    static const struct test_variant plain = {"host", false};
    const struct CMUnitTest tests[] = {
        {"books_and_bytes_agree_with_the_model", books_and_bytes_agree_with_the_model,
         test_device_setup, test_device_teardown, (void *)&plain},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
