/* weir-train's command line: each flag reaches its field, each bad one is one error naming it. */
#include "examples/flags.h"
#include "examples/train/arguments.h"
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "--model m --data d" and the words of `more`, cut at blanks. */
static enum weir_status read_with(struct arguments *a, const char *more)
{
    static char first[5][16] = {"weir-train", "--model", "m", "--data", "d"};
    static char text[1024]; /* fields point into it until the next call */
    char *values[64] = {first[0], first[1], first[2], first[3], first[4]};
    int count = 5;
    strncpy(text, more, sizeof text - 1);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        values[count++] = word;
    return arguments_read(a, count, values);
}

static enum weir_status read_only(struct arguments *a, const char *first, const char *second)
{
    char words[3][64] = {"weir-train"};
    strncpy(words[1], first ? first : "", 63);
    strncpy(words[2], second ? second : "", 63);
    char *values[] = {words[0], words[1], words[2]};
    return arguments_read(a, first ? second ? 3 : 2 : 1, values);
}

/* Without flags everything stays in memory and the numbers are those that --help states. */
static void absent_flags_have_the_defaults_of_help(void **state)
{
    (void)state;
    struct arguments a;
    assert_ok(read_with(&a, ""));
    assert_string_equal("m", a.model);
    assert_string_equal("d", a.data);
    assert_string_equal("host", a.device);
    assert_true(!a.eval_data && !a.nvme && !a.io_engine && !a.out && !a.log);
    assert_true(!a.export_fp32 && !a.timeline);
    assert_true(a.device_bytes == UINT64_MAX && a.host_bytes == UINT64_MAX);
    assert_int_equal(256, a.seq_len);
    assert_int_equal(1, a.micro_batch);
    assert_int_equal(4, a.batch);
    assert_true(a.steps == 100 && a.eval_every == 0 && a.eval_batches == 4 && a.warmup == 0);
    assert_true(a.save_every == 0 && a.keep == 2 && a.max_skips == 10 && a.seed == 1);
    assert_true(a.lr == 3e-4 && fabs(a.min_lr - 3e-5) < 1e-18 && a.weight_decay == 0.1);
    assert_true(a.beta1 == 0.9 && a.beta2 == 0.95 && a.eps == 1e-8 && a.clip == 1);
    assert_true(a.schedule == SCHEDULE_COSINE && a.threads == 0);
    assert_true(a.dtype == WEIR_BF16 && a.grad_dtype == WEIR_FP32);
    assert_false(a.resume || a.dry_run || a.require_direct || a.help);
}

/* Every flag sets its field and no other flag's. */
static void every_flag_reaches_its_field(void **state)
{
    (void)state;
    struct arguments a;
    assert_ok(read_with(
        &a,
        "--eval-data e --eval-every 3 --eval-batches 5 --device cuda "
        "--device-memory 1KiB --host-memory 2MiB --nvme n --seq-len 7 --micro-batch 2 --batch 6 "
        "--steps 9 --lr 0.5 --min-lr 0.25 --lr-schedule linear --warmup 4 "
        "--weight-decay 0.125 --beta1 0.75 --beta2 0.875 --eps 1e-5 --clip 0 "
        "--max-skips 8 --dtype fp32 --grad-dtype bf16 --seed 77 --threads 3 "
        "--out o --save-every 11"));
    assert_string_equal("e", a.eval_data);
    assert_string_equal("cuda", a.device);
    assert_string_equal("n", a.nvme);
    assert_string_equal("o", a.out);
    assert_true(a.eval_every == 3 && a.eval_batches == 5 && a.device_bytes == 1024);
    assert_true(a.host_bytes == 2097152 && a.seq_len == 7 && a.micro_batch == 2 && a.batch == 6);
    assert_true(a.steps == 9 && a.lr == 0.5 && a.min_lr == 0.25 && a.schedule == SCHEDULE_LINEAR);
    assert_true(a.warmup == 4 && a.weight_decay == 0.125 && a.beta1 == 0.75 && a.beta2 == 0.875);
    assert_true(a.eps == 1e-5 && a.clip == 0 && a.max_skips == 8 && a.seed == 77);
    assert_true(a.dtype == WEIR_FP32 && a.grad_dtype == WEIR_BF16 && a.threads == 3);
    assert_int_equal(11, a.save_every);
    assert_ok(read_with(&a, "--out o --keep 4 --resume --log l --dry-run --require-direct "
                            "--nvme n --io-engine threads --require-registered"));
    assert_true(a.keep == 4 && a.resume && a.dry_run && a.require_direct && a.require_registered);
    assert_string_equal("l", a.log);
    assert_string_equal("threads", a.io_engine);
    assert_ok(read_with(&a, "--export-fp32 f --timeline t"));
    assert_string_equal("f", a.export_fp32);
    assert_string_equal("t", a.timeline);
    assert_ok(read_with(&a, "--lr=0.5 --nvme=a=b --dry-run"));
    assert_true(a.lr == 0.5 && a.dry_run);
    assert_string_equal("a=b", a.nvme);
}

/* iB are powers of 1024, B powers of 1000. */
static void sizes_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"4096", 4096},       {"12B", 12},         {"128MiB", 134217728},
                 {"1GiB", 1073741824}, {"4GB", 4000000000}, {"1.5GiB", 1610612736},
                 {"3MB", 3000000},     {"2KB", 2000},       {"1TiB", 1ull << 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char more[64] = "--host-memory ";
        struct arguments a;
        assert_ok(read_with(&a, strcat(more, sizes[i].text)));
        assert_true(a.host_bytes == sizes[i].bytes);
    }
}

/* Unknown, repeated, unfinished and malformed flags are refused, and the error names the flag. */
static void bad_flags_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--nmve x", "\"--nmve\" is not an option"},
        {"stray", "\"stray\" is not an option"},
        {"--lr 1 --lr 2", "--lr is given twice"},
        {"--model n", "--model is given twice"},
        {"--steps", "--steps needs a value"},
        {"--lr --steps 5", "--lr needs a value"},
        {"--lr=", "--lr needs a value"},
        {"--resume=1 --out o", "--resume takes no value"},
        {"--l=1", "\"--l=1\" is not an option"},
        {"--lr=1 --lr 1", "--lr is given twice"},
        {"--lr 1 --min-lr 2", "--min-lr 2 is more than --lr 1"},
        {"--eps 0", "--eps: \"0\" is not a number from 1e-30 to 1"},
        {"--micro-batch 65536 --batch 65536 --seq-len 65536", "at most 2147483647 tokens"},
        {"--steps 0", "--steps: \"0\" is not a whole number from 1"},
        {"--steps -5", "--steps: \"-5\""},
        {"--steps 1.5", "--steps: \"1.5\""},
        {"--steps 10k", "--steps: \"10k\""},
        {"--steps 99999999999999999999", "--steps: \"99999999999999999999\""},
        {"--seq-len 4294967297", "--seq-len: \"4294967297\""},
        {"--micro-batch 0", "--micro-batch: \"0\""},
        {"--threads 0", "--threads: \"0\""},
        {"--keep 0", "--keep: \"0\""},
        {"--max-skips 0", "--max-skips: \"0\""},
        {"--lr abc", "--lr: \"abc\" is not a number"},
        {"--lr 1e-4x", "--lr: \"1e-4x\""},
        {"--lr nan", "--lr: \"nan\""},
        {"--lr inf", "--lr: \"inf\""},
        {"--clip -1", "--clip: \"-1\""},
        {"--beta1 1", "--beta1: \"1\" is not a number from 0 to 0.999999"},
        {"--beta2 0.99999999999", "--beta2: \"0.99999999999\""},
        {"--lr 1e30", "--lr: \"1e30\" is not a number from 0 to 1e+06"},
        {"--min-lr 1e30", "--min-lr: \"1e30\""},
        {"--weight-decay 1e39", "--weight-decay: \"1e39\""},
        {"--clip 1e39", "--clip: \"1e39\""},
        {"--clip 1e-50", "--clip 1e-50 is 0 as a 32-bit float"},
        {"--lr 1e-50", "--lr 1e-50 is 0"},
        {"--weight-decay 1e-50", "--weight-decay 1e-50 is 0"},
        {"--steps 10 --warmup 10", "--warmup 10: all of --steps 10"},
        {"--warmup 200", "--warmup 200: all of --steps 100"},
        {"--min-lr 1e-5 --lr-schedule constant", "--min-lr 1e-05 has no use with --lr-schedule"},
        {"--lr-schedule step", "\"step\" is not one of cosine, linear, constant"},
        {"--dtype fp16", "--dtype: \"fp16\" is not one of bf16, fp32"},
        {"--grad-dtype int8", "--grad-dtype: \"int8\""},
        {"--device-memory 12Mib", "--device-memory: \"12Mib\" is not a size"},
        {"--device-memory GiB", "--device-memory: \"GiB\""},
        {"--device-memory -1GiB", "--device-memory: \"-1GiB\""},
        {"--host-memory 0", "--host-memory: \"0\""},
        {"--host-memory 9999999999TiB", "--host-memory: \"9999999999TiB\""},
        {"--host-memory nan", "--host-memory: \"nan\""},
        {"--batch 6 --micro-batch 4", "--batch 6 is not a multiple of --micro-batch 4"},
        {"--resume", "--resume needs --out"},
        {"--save-every 5", "--save-every needs --out"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arguments a;
        assert_fails(read_with(&a, cases[i][0]), WEIR_ERR_ARG, cases[i][1]);
    }
}

/* Model and data must be named; --help asks for neither. */
static void what_must_be_given_is_named(void **state)
{
    (void)state;
    struct arguments a;
    assert_fails(read_only(&a, NULL, NULL), WEIR_ERR_ARG, "--model is missing");
    assert_fails(read_only(&a, "--model", "m"), WEIR_ERR_ARG, "--data is missing");
    assert_fails(read_only(&a, "--data", "d"), WEIR_ERR_ARG, "--model is missing");
    assert_ok(read_only(&a, "--help", NULL));
    assert_true(a.help);
    assert_fails(read_only(&a, "--export-fp32", "f"), WEIR_ERR_ARG, "--model is missing");
}

/* An export alone takes a model and no option that would be passed over. */
static void an_export_needs_no_data(void **state)
{
    (void)state;
    struct arguments a;
    assert_ok(read_only(&a, "--model=m", "--export-fp32=f"));
    assert_true(!a.data);
    char name[] = "weir-train", model[] = "--model=m", file[] = "--export-fp32=f",
         more[] = "--steps=3";
    char *values[] = {name, model, file, more};
    assert_fails(arguments_read(&a, 4, values), WEIR_ERR_ARG, "--steps has no use");
}

/* A file whose folder is missing, or that is a folder, is refused by flag and path. */
static void files_are_checked_by_flag(void **state)
{
    (void)state;
    char folder[256], path[300];
    test_directory_make(folder);
    snprintf(path, sizeof path, "%s/new", folder);
    assert_ok(flag_file_check("--log", path, FLAG_FILE_APPENDED));
    assert_ok(flag_file_check("--log", "/dev/null", FLAG_FILE_APPENDED));
    assert_fails(flag_file_check("--export-fp32", "/dev/null", FLAG_FILE_REGULAR), WEIR_ERR_ARG,
                 "no file");
    assert_fails(flag_file_check("--log", folder, FLAG_FILE_APPENDED), WEIR_ERR_ARG, "is no file");
    snprintf(path, sizeof path, "%s/absent/new", folder);
    assert_fails(flag_file_check("--log", path, FLAG_FILE_APPENDED), WEIR_ERR_IO, "--log \"");
    char far[5000] = {0};
    memset(far, 'x', sizeof far - 1);
    assert_fails(flag_file_check("--log", far, FLAG_FILE_APPENDED), WEIR_ERR_ARG,
                 "4999 characters");
    test_directory_remove(folder);
}

/* Warmup rises in equal steps to the peak; the last step has exactly min_lr, the constant one lr.
 */
static void learning_rate_follows_the_schedule(void **state)
{
    (void)state;
    struct arguments a;
    for (int schedule = SCHEDULE_COSINE; schedule <= SCHEDULE_CONSTANT; schedule++) {
        assert_ok(read_with(&a, "--lr 0.5 --min-lr 0.125 --steps 21 --warmup 4"));
        a.schedule = (enum schedule)schedule;
        for (uint64_t step = 0; step < 4; step++)
            assert_true(arguments_lr(&a, step) == 0.5 * (double)(step + 1) / 4);
        assert_true(arguments_lr(&a, 4) == 0.5);
        for (uint64_t step = 5; step < 21; step++)
            assert_true(schedule == SCHEDULE_CONSTANT
                            ? arguments_lr(&a, step) == 0.5
                            : arguments_lr(&a, step) < arguments_lr(&a, step - 1));
        double middle = arguments_lr(&a, 12), end = arguments_lr(&a, 20);
        assert_true(schedule == SCHEDULE_CONSTANT ||
                    (fabs(middle - 0.3125) < 1e-15 && fabs(end - 0.125) < 1e-15));
        assert_true(arguments_lr(&a, 1000) == end);
    }
    assert_ok(read_with(&a, "--lr 0.5 --steps 1"));
    assert_true(arguments_lr(&a, 0) == 0.5);
    assert_ok(read_with(&a, "--lr 0.5 --steps 11 --warmup 10"));
    assert_true(arguments_lr(&a, 2) == 0.5 * 3 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_flags_have_the_defaults_of_help),
        cmocka_unit_test(every_flag_reaches_its_field),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(bad_flags_are_refused_by_name),
        cmocka_unit_test(what_must_be_given_is_named),
        cmocka_unit_test(files_are_checked_by_flag),
        cmocka_unit_test(an_export_needs_no_data),
        cmocka_unit_test(learning_rate_follows_the_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
