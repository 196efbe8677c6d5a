/* The JSON log: one object a step, and what a resumed run keeps of it. */
#include "core/file.h"
#include "examples/replace.h"
#include "examples/train/journal.h"
#include "tests/support.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct journal_step step_make(uint64_t step)
{
    return (struct journal_step){
        .step = step,
        .steps = 9,
        .tokens = 64,
        .loss = 1.0 / 3,
        .lr = 0.1,
        .eval_loss = NAN,
        .seconds_left = 5000,
        .bound = "nvme",
        .report = {.struct_bytes = sizeof(struct weir_report),
                   .grad_norm = 2.0 / 3,
                   .nvme_read_bytes = 1,
                   .nvme_written_bytes = 2,
                   .to_device_bytes = 3,
                   .to_host_bytes = 4,
                   .stall_ns = 250000000,
                   .step_ns = 500000000,
                   .device_peak_bytes = 5,
                   .host_peak_bytes = 6},
    };
}

static void steps_write(const char *path, uint64_t done, uint64_t first, uint64_t last)
{
    struct journal journal;
    assert_ok(journal_open(&journal, path, done));
    for (uint64_t i = first; i <= last; i++) {
        struct journal_step step = step_make(i);
        assert_ok(journal_step(&journal, &step));
    }
    journal_close(&journal);
}

/* The steps of the log, in order, as digits. */
static void steps_read(const char *path, char out[static 16])
{
    char line[4096];
    size_t count = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        assert_true(count < 15);
        out[count++] = (char)('0' + json_integer_value(json_object_get(object, "step")));
        json_decref(object);
    }
    out[count] = 0;
    fclose(file);
}

/* A line holds every number of the step, without loss. */
static void a_line_holds_the_step(void **state)
{
    (void)state;
    char directory[256], path[300];
    test_directory_make(directory);
    snprintf(path, sizeof path, "%s/log.jsonl", directory);
    struct journal journal;
    struct journal_step step = step_make(7);
    step.eval_loss = 1.0 / 7;
    assert_ok(journal_open(&journal, path, 0));
    assert_ok(journal_step(&journal, &step));
    journal_close(&journal);
    json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    static const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"step", 7},
        {"loss", 1.0 / 3},
        {"grad_norm", 2.0 / 3},
        {"lr", 0.1},
        {"tokens", 64},
        {"tok_s", 128},
        {"nvme_read_bytes", 1},
        {"nvme_written_bytes", 2},
        {"h2d_bytes", 3},
        {"d2h_bytes", 4},
        {"peak_device_bytes", 5},
        {"peak_host_bytes", 6},
        {"eval_loss", 1.0 / 7},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *value = json_object_get(o, numbers[i].key);
        assert_true(json_is_number(value) && json_number_value(value) == numbers[i].value);
    }
    assert_true(fabs(json_number_value(json_object_get(o, "step_s")) - 0.5) < 1e-12);
    assert_true(fabs(json_number_value(json_object_get(o, "stall_s")) - 0.25) < 1e-12);
    assert_string_equal("nvme", json_string_value(json_object_get(o, "bound")));
    json_decref(o);
    test_directory_remove(directory);
}

/* A resumed run keeps the lines up to its step and appends; a line torn by a kill goes; a new run
 * begins the file anew. */
static void resume_drops_the_steps_beyond(void **state)
{
    (void)state;
    char directory[256], path[300], steps[16];
    test_directory_make(directory);
    snprintf(path, sizeof path, "%s/log.jsonl", directory);
    steps_write(path, 3, 4, 4); /* a log that is not there is begun */
    steps_write(path, 0, 1, 6);
    steps_read(path, steps);
    assert_string_equal("123456", steps);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    assert_true(fputs("{\"step\": 7, \"lo", file) >= 0);
    assert_int_equal(0, fclose(file));
    steps_write(path, 4, 5, 6);
    steps_read(path, steps);
    assert_string_equal("123456", steps);
    steps_write(path, 2, 3, 3);
    steps_read(path, steps);
    assert_string_equal("123", steps);
    snprintf(path + strlen(path), 16, REPLACE_SUFFIX);
    assert_int_equal(-1, access(path, F_OK));
    test_directory_remove(directory);
}

/* Behind a link the lines are dropped where it leads to; a line whole but for its end is ended. */
static void resume_keeps_a_link(void **state)
{
    (void)state;
    char directory[256], path[300], link[300], steps[16];
    struct stat st;
    test_directory_make(directory);
    snprintf(path, sizeof path, "%s/log.jsonl", directory);
    snprintf(link, sizeof link, "%s/link.jsonl", directory);
    assert_int_equal(0, symlink("log.jsonl", link));
    steps_write(link, 0, 1, 5);
    assert_int_equal(0, stat(path, &st));
    assert_int_equal(0, truncate(path, st.st_size - 1));
    steps_write(link, 5, 6, 6);
    steps_read(path, steps);
    assert_string_equal("123456", steps);
    steps_write(link, 3, 4, 4);
    assert_int_equal(0, lstat(link, &st));
    assert_true(S_ISLNK(st.st_mode));
    steps_read(path, steps);
    assert_string_equal("1234", steps);
    test_directory_remove(directory);
}

/* A pipe has no lines to drop: it stays one and is told what follows. */
static void resume_leaves_a_pipe(void **state)
{
    (void)state;
    char directory[256], path[300], got[2048] = "";
    struct stat st;
    test_directory_make(directory);
    snprintf(path, sizeof path, "%s/pipe", directory);
    assert_int_equal(0, mkfifo(path, 0600));
    int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    steps_write(path, 3, 4, 4);
    assert_true(read(reader, got, sizeof got - 1) > 0);
    assert_true(test_contains(got, "\"step\":4"));
    close(reader);
    assert_int_equal(0, lstat(path, &st));
    assert_true(S_ISFIFO(st.st_mode));
    test_directory_remove(directory);
}

/* Lines that cannot be written again leave the log as it was. */
static void a_failed_resume_leaves_the_log(void **state)
{
    (void)state;
    static const enum weir_file_call calls[] = {WEIR_FILE_OPEN, WEIR_FILE_WRITE, WEIR_FILE_SYNC,
                                                WEIR_FILE_RENAME};
    char directory[256], path[300], beside[320], steps[16];
    test_directory_make(directory);
    snprintf(path, sizeof path, "%s/log.jsonl", directory);
    snprintf(beside, sizeof beside, "%s" REPLACE_SUFFIX, path);
    steps_write(path, 0, 1, 6);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct journal journal;
        weir_file_fail_at(calls[i], 1, EIO);
        assert_fails(journal_open(&journal, path, 3), WEIR_ERR_IO, path);
        assert_true(weir_file_fail_at(calls[i], 0, 0) > 0);
        assert_int_equal(-1, access(beside, F_OK));
        steps_read(path, steps);
        assert_string_equal("123456", steps);
    }
    test_directory_remove(directory);
}

/* inf and nan are null, so that every line stays JSON and a skipped step does not end the run. */
static void a_step_without_a_number_is_null(void **state)
{
    (void)state;
    char directory[256], path[300];
    test_directory_make(directory);
    snprintf(path, sizeof path, "%s/log.jsonl", directory);
    struct journal journal;
    struct journal_step step = step_make(1);
    step.loss = NAN;
    step.report.grad_norm = INFINITY;
    step.report.skipped = true;
    assert_ok(journal_open(&journal, path, 0));
    assert_ok(journal_step(&journal, &step));
    journal_close(&journal);
    json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_null(json_object_get(o, "loss")));
    assert_true(json_is_null(json_object_get(o, "grad_norm")));
    json_decref(o);
    test_directory_remove(directory);
}

/* A resumed run does not eat a file that is no log. */
static void a_file_that_is_no_log_is_kept(void **state)
{
    (void)state;
    char directory[256], path[300], text[64] = "";
    test_directory_make(directory);
    snprintf(path, sizeof path, "%s/notes.txt", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("dear diary\n", file) >= 0);
    assert_int_equal(0, fclose(file));
    struct journal journal;
    assert_fails(journal_open(&journal, path, 3), WEIR_ERR_CORRUPT, "not a log of weir-train");
    file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal("dear diary\n", text);
    test_directory_remove(directory);
}

/* A log that cannot be written is an error of the step or of the start, naming the file. */
static void a_log_that_fails_is_an_error(void **state)
{
    (void)state;
    struct journal journal;
    assert_fails(journal_open(&journal, "/nowhere/log.jsonl", 0), WEIR_ERR_IO,
                 "/nowhere/log.jsonl");
    assert_ok(journal_open(&journal, NULL, 0));
    struct journal_step step = step_make(1);
    assert_ok(journal_step(&journal, &step));
    journal_close(&journal);
    assert_ok(journal_open(&journal, "/dev/full", 0));
    assert_fails(journal_step(&journal, &step), WEIR_ERR_NOSPACE, "/dev/full");
    journal_close(&journal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_holds_the_step),
        cmocka_unit_test(resume_drops_the_steps_beyond),
        cmocka_unit_test(resume_keeps_a_link),
        cmocka_unit_test(resume_leaves_a_pipe),
        cmocka_unit_test(a_failed_resume_leaves_the_log),
        cmocka_unit_test(a_step_without_a_number_is_null),
        cmocka_unit_test(a_file_that_is_no_log_is_kept),
        cmocka_unit_test(a_log_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
