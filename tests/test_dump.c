/* A plan survives its text: the same hash, the same text; and text that is not one is refused. */
#include "core/memory.h"
#include "tests/support_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A plan that fits, from seed on. */
static void case_open(struct test_case *c, struct test_random *random, bool wild)
{
    while (!test_case_open(c, random, wild))
        test_case_close(c);
}

static void small_case_open(struct test_case *c)
{
    struct test_random random = {.state = 77};
    case_open(c, &random, false);
    while (c->plans[0]->op_count > 120) {
        test_case_close(c);
        case_open(c, &random, false);
    }
}

static enum weir_status reread(const struct test_case *c, const char *text, uint64_t *hash)
{
    struct weir_plan *plan;
    struct weir_homes *homes;
    WEIR_TRY(weir_plan_parse(text, &c->m.model, &plan, &homes));
    *hash = weir_plan_hash(plan, homes);
    weir_plan_free(plan);
    weir_homes_free(homes);
    return WEIR_OK;
}

/* parse(text(plan)) has the plan's hash, passes check and has the same text. */
static void plans_survive_their_text(void **state)
{
    (void)state;
    struct test_random random = test_random_open(5);
    for (uint32_t i = 0; i < test_draws(40); i++) {
        struct test_case c;
        case_open(&c, &random, i & 1);
        for (uint32_t k = 0; k < 2; k++) {
            char *text, *again;
            struct weir_plan *plan;
            struct weir_homes *homes;
            assert_ok(weir_plan_text(c.plans[k], c.homes, &text));
            assert_ok(weir_plan_parse(text, &c.m.model, &plan, &homes));
            assert_ok(weir_plan_text(plan, homes, &again));
            assert_string_equal(text, again);
            assert_true(weir_plan_hash(plan, homes) == weir_plan_hash(c.plans[k], c.homes));
            assert_ok(weir_plan_check(plan, homes, &c.m.model, c.traces[k], &c.limits, NULL));
            weir_plan_free(plan);
            weir_homes_free(homes);
            weir_free(text);
            weir_free(again);
        }
        test_case_close(&c);
    }
}

/* Any one number of ops, uses and homes changed changes the hash. */
static void the_hash_sees_each_number(void **state)
{
    (void)state;
    struct test_case c;
    small_case_open(&c);
    uint64_t hash = weir_plan_hash(c.plans[0], c.homes);
    assert_true(hash == weir_plan_hash(c.plans[0], c.homes));
    struct weir_op *op = &c.plans[0]->ops[c.plans[0]->op_count / 2];
    uint64_t *numbers[] = {&op->places[0].offset,
                           &op->places[1].bytes,
                           &c.plans[0]->uses[0].bytes_offset,
                           &c.plans[0]->device_transient_bytes,
                           &c.homes->nvme_end,
                           &c.homes->blocks[c.m.norm][0].part[0].offset};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        ++*numbers[i];
        assert_true(weir_plan_hash(c.plans[0], c.homes) != hash);
        --*numbers[i];
    }
    op->pending_only = !op->pending_only;
    assert_true(weir_plan_hash(c.plans[0], c.homes) != hash);
    op->pending_only = !op->pending_only;
    assert_true(weir_plan_hash(c.plans[0], c.homes) == hash);
    test_case_close(&c);
}

/* A key may hold anything but a NUL. */
static void keys_are_escaped(void **state)
{
    (void)state;
    struct test_case c;
    small_case_open(&c);
    char *text;
    weir_free(c.plans[0]->key);
    assert_ok(weir_strdup(&c.plans[0]->key, " a b%\n\x7f\xc3\xa9 "));
    assert_ok(weir_plan_text(c.plans[0], c.homes, &text));
    assert_true(test_contains(text, "\nkey  a b%25%0A%7F\xc3\xa9 \n"));
    uint64_t hash = 0;
    assert_ok(reread(&c, text, &hash));
    assert_true(hash == weir_plan_hash(c.plans[0], c.homes));
    weir_free(text);
    test_case_close(&c);
}

/* Text cut anywhere is refused, naming the line where it ends, or the counts that it cannot hold.
 */
static void cut_text_is_refused(void **state)
{
    (void)state;
    struct test_case c;
    small_case_open(&c);
    char *text;
    uint64_t hash;
    assert_ok(weir_plan_text(c.plans[0], c.homes, &text));
    size_t length = strlen(text), lines = 1;
    for (size_t i = 0; i < length; lines += text[i++] == '\n') {
        char last = text[i], named[32];
        text[i] = '\0';
        assert_fails(reread(&c, text, &hash), WEIR_ERR_CORRUPT, "plan text line ");
        snprintf(named, sizeof named, "line %zu, ", lines);
        assert_true(test_contains(weir_last_error()->text, named) ||
                    test_contains(weir_last_error()->text, "is more than the text holds"));
        text[i] = last;
    }
    /* one line out of the middle gone */
    for (char *line = text; (size_t)(line - text) + 1 < length;) {
        char *next = strchr(line, '\n') + 1, *rest = malloc(length + 1);
        assert_non_null(rest);
        memcpy(rest, text, (size_t)(line - text));
        strcpy(rest + (line - text), next);
        assert_fails(reread(&c, rest, &hash), WEIR_ERR_CORRUPT, "line ");
        free(rest);
        line = next;
    }
    weir_free(text);
    test_case_close(&c);
}

/* The text with the field at `at` replaced. */
static char *replaced(const char *text, const char *at, const char *by)
{
    size_t field = strcspn(at, " \n");
    char *out = malloc(strlen(text) + strlen(by) + 1);
    assert_non_null(out);
    memcpy(out, text, (size_t)(at - text));
    strcpy(out + (at - text), by);
    strcat(out, at + field);
    return out;
}

/* Each field in turn replaced by what cannot be there is refused; by another number it is refused
 * or read as it stands, and never crashes what reads it. */
static void hostile_fields_are_refused(void **state)
{
    (void)state;
    static const char *const never[] = {"99999999999999999999999",
                                        "-1",
                                        "0x10",
                                        "007",
                                        "",
                                        "18446744073709551616",
                                        "+3",
                                        "1e3",
                                        "?",
                                        "nvme:1",
                                        "host:1+",
                                        "a b",
                                        "read:"};
    static const char *const maybe[] = {"0", "1", "18446744073709551615", "4294967295", "-"};
    struct test_case c;
    small_case_open(&c);
    char *text;
    assert_ok(weir_plan_text(c.plans[0], c.homes, &text));
    const char *at = strchr(strchr(text, '\n') + 1, '\n') + 1; /* behind the key */
    for (uint32_t field = 0; *at; field++) {
        uint64_t hash = 0;
        char *bad = replaced(text, at, never[field % (sizeof never / sizeof *never)]);
        assert_fails(reread(&c, bad, &hash), WEIR_ERR_CORRUPT, "plan text line ");
        free(bad);
        char *odd = replaced(text, at, maybe[field % (sizeof maybe / sizeof *maybe)]);
        enum weir_status status = reread(&c, odd, &hash);
        assert_true(status == WEIR_OK || status == WEIR_ERR_CORRUPT);
        free(odd);
        at += strcspn(at, " \n");
        at += *at != '\0';
    }
    weir_free(text);
    test_case_close(&c);
}

/* A text that reads well but is no plan of this trace is an error of check, never a crash. */
static void odd_plans_do_not_crash_check(void **state)
{
    (void)state;
    struct test_random random = test_random_open(6);
    struct test_case c;
    small_case_open(&c);
    char *text;
    assert_ok(weir_plan_text(c.plans[0], c.homes, &text));
    size_t length = strlen(text);
    uint32_t read = 0;
    for (uint32_t i = 0; i < test_draws(4000); i++) {
        struct weir_plan *plan;
        struct weir_homes *homes;
        size_t at = test_random_below(&random, length);
        char held = text[at];
        if (held < '0' || held > '9')
            continue;
        text[at] = (char)('0' + test_random_below(&random, 10));
        if (weir_plan_parse(text, &c.m.model, &plan, &homes) == WEIR_OK) {
            enum weir_status status =
                weir_plan_check(plan, homes, &c.m.model, c.traces[0], &c.limits, NULL);
            assert_true(status == WEIR_OK || status == WEIR_ERR_CORRUPT);
            weir_plan_free(plan);
            weir_homes_free(homes);
            read++;
        }
        text[at] = held;
    }
    assert_true(read > test_draws(100));
    weir_free(text);
    test_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_survive_their_text),
        cmocka_unit_test(the_hash_sees_each_number),
        cmocka_unit_test(keys_are_escaped),
        cmocka_unit_test(cut_text_is_refused),
        cmocka_unit_test(hostile_fields_are_refused),
        cmocka_unit_test(odd_plans_do_not_crash_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
