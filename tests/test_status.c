#include "tests/support.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* The last error holds what the failing call said, and its status comes back. */
static void failure_is_described_once(void **state)
{
    (void)state;
    assert_int_equal(WEIR_ERR_ARG, weir_fail(WEIR_ERR_ARG, "tensor \"%s\": %d", "w", 7));
    assert_string_equal("tensor \"w\": 7", weir_last_error()->text);
    assert_int_equal(WEIR_ERR_ARG, weir_last_error()->status);
    assert_int_equal(0, weir_last_error()->os_errno);
}

/* A new text may be made from the old one, is cut at the buffer's end, and stays one line. */
static void text_is_one_bounded_line_even_from_itself(void **state)
{
    (void)state;
    weir_fail(WEIR_ERR_IO, "inner\nline");
    weir_fail(WEIR_ERR_IO, "outer: %s", weir_last_error()->text);
    assert_string_equal("outer: inner line", weir_last_error()->text);
    char big[2000];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    weir_fail_errno(WEIR_ERR_IO, EIO, "%s", big);
    assert_int_equal(sizeof weir_last_error()->text - 1, strlen(weir_last_error()->text));
}

/* errno is kept and spelt out; a full file system has a status of its own. */
static void errno_is_kept_and_nospace_is_told_apart(void **state)
{
    (void)state;
    assert_fails(weir_fail_errno(WEIR_ERR_IO, EACCES, "file \"a\""), WEIR_ERR_IO,
                 "file \"a\": Permission denied");
    assert_int_equal(EACCES, weir_last_error()->os_errno);
    assert_fails(weir_fail_errno(WEIR_ERR_IO, ENOSPC, "file \"a\""), WEIR_ERR_NOSPACE, "No space");
    assert_fails(weir_fail_errno(WEIR_ERR_IO, EDQUOT, "file \"a\""), WEIR_ERR_NOSPACE, "quota");
    assert_fails(weir_fail_device(42, "device \"d\""), WEIR_ERR_DEVICE, "device \"d\"");
    assert_int_equal(42, weir_last_error()->device_code);
}

static void *fail_elsewhere(void *argument)
{
    struct weir_sticky *sticky = argument;
    weir_fail(WEIR_ERR_IO, "first");
    weir_sticky_set(sticky, weir_last_error());
    weir_fail(WEIR_ERR_COMM, "second");
    weir_sticky_set(sticky, weir_last_error());
    return NULL;
}

/* Of a worker's failures the first one is kept, told to another thread, each time it asks; the
 * worker's own last error is not the other thread's. */
static void first_failure_of_a_worker_is_sticky(void **state)
{
    (void)state;
    struct weir_sticky sticky = WEIR_STICKY_INIT;
    assert_int_equal(WEIR_OK, weir_sticky_raise(&sticky));
    weir_fail(WEIR_ERR_ARG, "mine");
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, fail_elsewhere, &sticky));
    assert_int_equal(0, pthread_join(thread, NULL));
    assert_string_equal("mine", weir_last_error()->text);
    for (int i = 0; i < 2; i++) {
        assert_fails(weir_sticky_raise(&sticky), WEIR_ERR_IO, "first");
        weir_fail(WEIR_ERR_ARG, "between");
    }
}

/* Every status has its own name. */
static void names_are_distinct(void **state)
{
    (void)state;
    for (int a = WEIR_OK; a <= WEIR_ERR_UNSUPPORTED; a++)
        for (int b = WEIR_OK; b < a; b++)
            assert_string_not_equal(weir_status_name((enum weir_status)a),
                                    weir_status_name((enum weir_status)b));
    assert_string_equal("WEIR_ERR_NOMEM", weir_status_name(WEIR_ERR_NOMEM));
}

static void keep_line(void *context, enum weir_log_level level, const char *line)
{
    snprintf(context, 64, "%d %s", (int)level, line);
}

/* A log line reaches its function with its level; no log and no function mean nowhere. */
static void log_goes_to_its_function_or_nowhere(void **state)
{
    (void)state;
    char kept[64] = "";
    struct weir_log log = {.context = kept, .lock = PTHREAD_MUTEX_INITIALIZER};
    weir_log(NULL, WEIR_LOG_INFO, "lost");
    weir_log(&log, WEIR_LOG_INFO, "lost");
    assert_string_equal("", kept);
    log.fn = keep_line;
    weir_log(&log, WEIR_LOG_WARNING, "drive %d", 3);
    assert_string_equal("1 drive 3", kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_is_described_once),
        cmocka_unit_test(text_is_one_bounded_line_even_from_itself),
        cmocka_unit_test(errno_is_kept_and_nospace_is_told_apart),
        cmocka_unit_test(first_failure_of_a_worker_is_sticky),
        cmocka_unit_test(names_are_distinct),
        cmocka_unit_test(log_goes_to_its_function_or_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
