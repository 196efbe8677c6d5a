/*
 * Where checkpoints are saved to and loaded from: what is refused, and that whatever is refused or
 * fails leaves the checkpoint that was there.
 */
#include "core/file.h"
#include "tests/support.h"
#include "tests/support_cost.h"
#include "zero/run.h"
#include <weir/checkpoint.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct lines {
    int warning_count;
    char last[512];
};

static void line_note(void *context, enum weir_log_level level, const char *line)
{
    struct lines *lines = context;
    lines->warning_count += level == WEIR_LOG_WARNING;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

/* One trained matrix of rows x width, and as many further ones as asked for, laid out. */
static weir_run *run_open(uint64_t rows, uint64_t width, int more, enum weir_dtype grad_dtype,
                          struct lines *lines)
{
    weir_run *run;
    assert_ok(weir_open(&run, &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                     .device = "host",
                                                     .device_bytes = 16 << 20,
                                                     .host_bytes = 16 << 20,
                                                     .dtype = WEIR_BF16,
                                                     .grad_dtype = grad_dtype,
                                                     .thread_count = 1,
                                                     .log = lines ? line_note : NULL,
                                                     .log_context = lines,
                                                     .cost = &test_cost}));
    uint32_t id, first = 0;
    for (int i = 0; i <= more; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        struct weir_tensor tensor = {.struct_bytes = sizeof tensor,
                                     .name = name,
                                     .dim_count = 2,
                                     .shape = {rows, width},
                                     .lr_scale = 1,
                                     .decay_scale = 1};
        assert_ok(weir_block_add(run, &tensor, 1, &id));
        first = i == 0 ? id : first;
    }
    struct weir_view view;
    assert_ok(weir_step_begin(run, "step", true));
    assert_ok(weir_want(run, &(struct weir_use){first, WEIR_READ}, 1, &view));
    assert_ok(weir_done(run, &first, 1));
    assert_ok(weir_step_end(run, NULL, NULL));
    assert_ok(weir_layout(run));
    return run;
}

static const char *path_of(const char *name)
{
    static char paths[4][300];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", test_directory, name);
    return path;
}

static void value_set(weir_run *run, float value)
{
    assert_ok(weir_block_load(run, 0, 0, WEIR_FP32, &value, 0, 1));
}

/* The first weight of a checkpoint, by loading it into a run of the same tensors. */
static float value_saved(const char *path)
{
    float value;
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    assert_ok(weir_load(run, path));
    assert_ok(weir_block_store(run, 0, 0, WEIR_FP32, &value, 0, 1));
    weir_close(run);
    return value;
}

#define assert_saved(path, value) assert_true(value_saved(path) == (value))

/* The link would be exchanged, and then the files behind it deleted. */
static void a_link_or_file_in_the_way_is_refused(void **state)
{
    (void)state;
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    value_set(run, 1);
    assert_ok(weir_save(run, path_of("step-1"), NULL, NULL, 0));
    assert_int_equal(0, symlink("step-1", path_of("latest")));
    assert_fails(weir_save(run, path_of("latest"), NULL, NULL, 0), WEIR_ERR_ARG, "in the way");
    assert_int_not_equal(0, access(path_of("latest.tmp"), F_OK));
    assert_saved(path_of("step-1"), 1);
    /* Nor are files deleted through a link where the temporary directory is to be made. */
    assert_int_equal(0, symlink("step-1", path_of("step-2.tmp")));
    assert_fails(weir_save(run, path_of("step-2"), NULL, NULL, 0), WEIR_ERR_IO, "step-2.tmp");
    assert_saved(path_of("step-1"), 1);
    weir_close(run);
}

static void file_put(const char *path)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(0, fclose(file));
}

static void save_is_refused(weir_run *run, const char *name, const char *text, const char *kept)
{
    assert_fails(weir_save(run, path_of(name), NULL, NULL, 0), WEIR_ERR_ARG, text);
    assert_int_equal(0, access(path_of(kept), F_OK));
}

/* A save replaces checkpoints, and what a killed one has left, but nobody else's files. */
static void files_of_others_are_never_deleted(void **state)
{
    (void)state;
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    value_set(run, 1);
    assert_int_equal(0, mkdir(path_of("work"), 0700));
    assert_ok(weir_save(run, path_of("work"), NULL, NULL, 0)); /* it is empty */
    assert_saved(path_of("work"), 1);
    assert_int_equal(0, mkdir(path_of("work/more"), 0700));
    save_is_refused(run, "work", "holds \"more\" and is no checkpoint", "work/state.json");
    assert_int_equal(0, mkdir(path_of("thesis"), 0700));
    file_put(path_of("thesis/thesis.tex"));
    save_is_refused(run, "thesis", "holds \"thesis.tex\"", "thesis/thesis.tex");
    assert_int_equal(0, mkdir(path_of("hub"), 0700)); /* a model that somebody downloaded */
    file_put(path_of("hub/model.safetensors"));
    save_is_refused(run, "hub", "holds \"model.safetensors\"", "hub/model.safetensors");
    assert_int_equal(0, mkdir(path_of("step.tmp"), 0700));
    file_put(path_of("step.tmp/notes"));
    save_is_refused(run, "step", "step.tmp\" holds \"notes\"", "step.tmp/notes");
    file_put(path_of("step.tmp/state.json")); /* as a save writes first */
    assert_ok(weir_save(run, path_of("step"), NULL, NULL, 0));
    assert_saved(path_of("step"), 1);
    assert_int_not_equal(0, access(path_of("step.tmp"), F_OK));
    weir_close(run);
}

static void files_that_would_be_the_checkpoints_own_are_refused(void **state)
{
    (void)state;
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    const char *const names[] = {NULL, "", ".", "..", "state.json", "model.safetensors", "x/y"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct weir_file file = {names[i], "", 0};
        assert_fails(weir_save(run, path_of("names"), NULL, &file, 1), WEIR_ERR_ARG, "file 0 of 1");
    }
    const struct weir_file twice[] = {{"a.json", "", 0}, {"a.json", "", 0}};
    assert_fails(weir_save(run, path_of("names"), NULL, twice, 2), WEIR_ERR_ARG, "file 1 of 2");
    assert_fails(weir_save(run, path_of("names"), "[1]", NULL, 0), WEIR_ERR_ARG, "give {...}");
    assert_int_not_equal(0, access(path_of("names"), F_OK));
    weir_close(run);
}

static void first_weight_write(weir_run *run, uint16_t bits)
{
    struct weir_view view;
    const uint32_t id = 0;
    assert_ok(weir_step_begin(run, "write", false));
    assert_ok(weir_want(run, &(struct weir_use){id, WEIR_WRITE}, 1, &view));
    assert_ok(weir_want_wait(run));
    *(uint16_t *)view.bytes = bits;
    assert_ok(weir_done(run, &id, 1));
    assert_ok(weir_step_end(run, NULL, NULL));
}

/* Neither given nor saved: a checkpoint of them could not be loaded. The run goes on. */
static void weights_that_are_not_finite_go_no_further(void **state)
{
    (void)state;
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    struct weir_view view;
    const uint32_t id = 0;
    assert_ok(weir_step_begin(run, "write", true));
    assert_ok(weir_want(run, &(struct weir_use){id, WEIR_WRITE}, 1, &view));
    assert_ok(weir_done(run, &id, 1));
    assert_ok(weir_step_end(run, NULL, NULL));
    assert_ok(weir_layout(run));
    value_set(run, 1);
    const float bad[] = {3, NAN};
    assert_fails(weir_block_load(run, 0, 0, WEIR_FP32, bad, 4, 2), WEIR_ERR_ARG,
                 "\"w0\": element 5 would be nan");
    const float rounds_to_inf = 3.4028235e38f;
    assert_fails(weir_block_load(run, 0, 0, WEIR_FP32, &rounds_to_inf, 0, 1), WEIR_ERR_ARG,
                 "element 0 would be 3.40282e+38");
    assert_ok(weir_save(run, path_of("finite"), NULL, NULL, 0));
    first_weight_write(run, 0x7FC0);
    assert_fails(weir_save(run, path_of("finite"), NULL, NULL, 0), WEIR_ERR_CORRUPT,
                 "\"w0\": element 0 is not finite");
    assert_saved(path_of("finite"), 1);
    first_weight_write(run, 0x4000);
    assert_ok(weir_save(run, path_of("finite"), NULL, NULL, 0));
    assert_saved(path_of("finite"), 2);
    weir_close(run);
}

static void json_that_load_would_refuse_is_not_saved(void **state)
{
    (void)state;
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    value_set(run, 1);
    assert_ok(weir_save(run, path_of("json"), "{\"a\": 1}", NULL, 0));
    char *text = malloc(1200001);
    assert_non_null(text);
    memset(text, 'x', 1200000);
    memcpy(text, "{\"a\": \"", 7);
    memcpy(text + 1199998, "\"}", 3);
    value_set(run, 2);
    assert_fails(weir_save(run, path_of("json"), text, NULL, 0), WEIR_ERR_ARG, "1048575 at most");
    assert_saved(path_of("json"), 1);
    free(text);
    weir_close(run);
}

/* As many elements in another shape, fewer tensors or more are another model's. */
static void another_models_checkpoint_is_refused(void **state)
{
    (void)state;
    weir_run *run = run_open(32, 128, 1, WEIR_FP32, NULL);
    assert_ok(weir_save(run, path_of("two"), NULL, NULL, 0));
    weir_close(run);
    static const struct {
        uint64_t rows, width;
        int more;
        enum weir_status status;
        const char *text;
    } others[] = {{128, 32, 1, WEIR_ERR_ARG, "another shape"},
                  {32, 128, 0, WEIR_ERR_ARG, "2 tensors, this run has 1"},
                  {32, 128, 2, WEIR_ERR_CORRUPT, "\"w2\" is missing"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        run = run_open(others[i].rows, others[i].width, others[i].more, WEIR_FP32, NULL);
        assert_fails(weir_load(run, path_of("two")), others[i].status, others[i].text);
        value_set(run, 3); /* it goes on */
        weir_close(run);
    }
}

/* NFS and FUSE know no flags of rename: a new name works, an old one is refused beforehand. */
static void a_file_system_without_exchange_saves_under_new_names(void **state)
{
    (void)state;
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    value_set(run, 1);
    weir_file_fail_from(WEIR_FILE_RENAME, 1, EINVAL);
    assert_ok(weir_save(run, path_of("nfs"), NULL, NULL, 0));
    value_set(run, 2);
    assert_fails(weir_save(run, path_of("nfs"), NULL, NULL, 0), WEIR_ERR_UNSUPPORTED,
                 "save under a new name");
    weir_file_fail_from(WEIR_FILE_RENAME, 0, 0);
    assert_int_not_equal(0, access(path_of("nfs.tmp"), F_OK));
    assert_saved(path_of("nfs"), 1);
    weir_close(run);
}

/* Renamed, but perhaps not for good: the one before stays beside it until a save is known to last.
 */
static void a_failed_sync_keeps_both(void **state)
{
    (void)state;
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    for (int i = 1; i <= 2; i++) {
        value_set(run, (float)i);
        weir_file_fail_at(WEIR_FILE_SYNC, 0, 0);
        assert_ok(weir_save(run, path_of("sync"), NULL, NULL, 0));
    }
    uint64_t syncs = weir_file_fail_at(WEIR_FILE_SYNC, 0, 0);
    value_set(run, 3);
    weir_file_fail_at(WEIR_FILE_SYNC, syncs, EIO);
    assert_fails(weir_save(run, path_of("sync"), NULL, NULL, 0), WEIR_ERR_IO, "cannot be synced");
    weir_file_fail_at(WEIR_FILE_SYNC, 0, 0);
    assert_saved(path_of("sync"), 3);
    assert_saved(path_of("sync.tmp"), 2);
    value_set(run, 4);
    assert_ok(weir_save(run, path_of("sync"), NULL, NULL, 0));
    assert_saved(path_of("sync"), 4);
    assert_int_not_equal(0, access(path_of("sync.tmp"), F_OK));
    weir_close(run);
}

/* Gradients kept in another dtype change the bits, which is said and not refused. */
static void another_gradient_dtype_is_told(void **state)
{
    (void)state;
    struct lines lines = {0};
    weir_run *run = run_open(32, 128, 0, WEIR_FP32, NULL);
    assert_ok(weir_save(run, path_of("grad"), NULL, NULL, 0));
    weir_close(run);
    for (int i = 0; i < 2; i++) {
        run = run_open(32, 128, 0, i == 0 ? WEIR_FP32 : WEIR_BF16, &lines);
        lines = (struct lines){0};
        assert_ok(weir_load(run, path_of("grad")));
        assert_int_equal(i, lines.warning_count);
        weir_close(run);
    }
    assert_true(test_contains(lines.last, "kept in fp32, this run keeps them in bf16"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_or_file_in_the_way_is_refused),
        cmocka_unit_test(files_of_others_are_never_deleted),
        cmocka_unit_test(files_that_would_be_the_checkpoints_own_are_refused),
        cmocka_unit_test(weights_that_are_not_finite_go_no_further),
        cmocka_unit_test(json_that_load_would_refuse_is_not_saved),
        cmocka_unit_test(another_models_checkpoint_is_refused),
        cmocka_unit_test(a_file_system_without_exchange_saves_under_new_names),
        cmocka_unit_test(a_failed_sync_keeps_both),
        cmocka_unit_test(another_gradient_dtype_is_told),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
