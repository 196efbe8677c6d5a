/*
 * Conformance of the comm table, run for every instance that needs no launcher.
 */
#include "tests/support.h"
#include "zero/comm.h"

static const char *const names[] = {"single"};

/* Over one rank every collective is the identity, in place or not. */
static void collectives_over_one_rank_are_the_identity(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct weir_comm_table *table;
        struct weir_comm *comm;
        assert_ok(weir_comm_find(names[i], &table));
        assert_string_equal(names[i], table->name);
        assert_ok(table->open(&comm));
        assert_int_equal(0, table->rank(comm));
        assert_int_equal(1, table->rank_count(comm));
        double mine[3] = {1.5, -2, 1e300}, all[3] = {0}, back[3] = {0};
        assert_ok(table->all_gather(comm, mine, 3, all));
        assert_memory_equal(mine, all, sizeof mine);
        assert_ok(table->reduce_scatter(comm, all, 3, WEIR_REDUCE_SUM, back));
        assert_memory_equal(mine, back, sizeof mine);
        assert_ok(table->all_gather(comm, all, 3, all));
        assert_ok(table->all_reduce(comm, all, 3, WEIR_REDUCE_MAX));
        assert_ok(table->broadcast(comm, all, sizeof all, 0));
        assert_memory_equal(mine, all, sizeof mine);
        assert_ok(table->barrier(comm));
        table->close(comm);
    }
}

/* A root that is no rank is refused; after abort every call fails. */
static void misuse_and_abort_are_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct weir_comm_table *table;
        struct weir_comm *comm;
        double x = 1;
        assert_ok(weir_comm_find(names[i], &table));
        assert_ok(table->open(&comm));
        assert_fails(table->broadcast(comm, &x, sizeof x, 1), WEIR_ERR_ARG, "root 1");
        table->abort(comm);
        assert_fails(table->barrier(comm), WEIR_ERR_COMM, "aborted");
        assert_fails(table->all_gather(comm, &x, 1, &x), WEIR_ERR_COMM, "aborted");
        assert_fails(table->all_reduce(comm, &x, 1, WEIR_REDUCE_SUM), WEIR_ERR_COMM, "aborted");
        table->close(comm);
    }
    const struct weir_comm_table *none;
    assert_fails(weir_comm_find("nccl", &none), WEIR_ERR_UNSUPPORTED, "single");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_over_one_rank_are_the_identity),
        cmocka_unit_test(misuse_and_abort_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
