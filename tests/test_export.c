/*
 * --export-fp32: from a run and from its checkpoint's files the same bytes, which are the masters
 * to the bit; loading them gives back the weights and residuals; a failure leaves nothing.
 */
#include "core/file.h"
#include "core/memory.h"
#include "examples/replace.h"
#include "examples/train/export.h"
#include "examples/train/weights.h"
#include "tests/support_golden.h"
#include <weir/checkpoint.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct cut fine = {2, 24, 15, 48 * 32}; /* an embedding of several blocks */
static char base[256];

static const char *path_of(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

struct bytes {
    char *at;
    size_t count;
};

static struct bytes file_read(const char *path)
{
    struct stat st;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(0, fstat(fileno(file), &st));
    struct bytes out = {golden_array((uint64_t)st.st_size, 1), (size_t)st.st_size};
    assert_int_equal(out.count, fread(out.at, 1, out.count, file));
    fclose(file);
    return out;
}

/* Two steps, so that masters have residuals and updates are owed. */
static void train(struct model *m, const struct golden *g, enum weir_dtype dtype)
{
    double loss;
    struct weir_report report;
    model_open(m, g, &fine, dtype);
    for (int i = 0; i < 2; i++)
        model_step(m, false, true, &loss, &report);
}

/* Every tensor of the checkpoint, once, and each element bits(weight) << 16 plus its residual. */
static void assert_masters(const char *checkpoint, const char *file, bool tied)
{
    char states_path[600];
    struct weir_tensors *weights, *states, *masters;
    snprintf(states_path, sizeof states_path, "%s/optimizer.safetensors", checkpoint);
    assert_ok(weir_tensors_open(&weights, checkpoint));
    assert_ok(weir_tensors_open(&states, states_path));
    assert_ok(weir_tensors_open(&masters, file));
    assert_int_equal(weir_tensors_count(weights), weir_tensors_count(masters));
    assert_true(tied == (weir_tensors_find(masters, "lm_head.weight") == NULL));
    uint64_t checked = 0, with_residual = 0;
    for (size_t i = 0; i < weir_tensors_count(weights); i++) {
        const struct weir_file_tensor *w = weir_tensors_at(weights, i);
        char name[128];
        snprintf(name, sizeof name, "%s.residual", w->name);
        const struct weir_file_tensor *r = weir_tensors_find(states, name),
                                      *m = weir_tensors_find(masters, w->name);
        assert_true(r && m && m->dtype == WEIR_FILE_F32 && m->dim_count == w->dim_count);
        assert_memory_equal(w->shape, m->shape, sizeof w->shape);
        uint64_t n = w->element_count;
        uint16_t *weight = golden_array(n, 2);
        int16_t *residual = golden_array(n, 2);
        uint32_t *master = golden_array(n, 4);
        assert_ok(weir_tensors_read(weights, w, 0, weight, n * 2));
        assert_ok(weir_tensors_read(states, r, 0, residual, n * 2));
        assert_ok(weir_tensors_read(masters, m, 0, master, n * 4));
        for (uint64_t e = 0; e < n; e++) {
            assert_int_equal(((uint32_t)weight[e] << 16) + (uint32_t)(int32_t)residual[e],
                             master[e]);
            with_residual += residual[e] != 0;
        }
        checked += n;
        free(weight);
        free(residual);
        free(master);
    }
    assert_true(with_residual > checked / 2);
    weir_tensors_close(weights);
    weir_tensors_close(states);
    weir_tensors_close(masters);
}

static void assert_same_files(const char *a, const char *b)
{
    struct bytes x = file_read(a), y = file_read(b);
    assert_int_equal(x.count, y.count);
    assert_memory_equal(x.at, y.at, x.count);
    free(x.at);
    free(y.at);
}

/* The order of tensors in the two files may differ; the bits of each must not. */
static void assert_same_tensors(const char *a, const char *b)
{
    struct weir_tensors *x, *y;
    assert_ok(weir_tensors_open(&x, a));
    assert_ok(weir_tensors_open(&y, b));
    assert_true(weir_tensors_count(x) > 0);
    assert_int_equal(weir_tensors_count(x), weir_tensors_count(y));
    for (size_t i = 0; i < weir_tensors_count(x); i++) {
        const struct weir_file_tensor *t = weir_tensors_at(x, i), *u;
        u = weir_tensors_find(y, t->name);
        assert_true(u && u->byte_count == t->byte_count);
        char *p = golden_array(t->byte_count, 1), *q = golden_array(t->byte_count, 1);
        assert_ok(weir_tensors_read(x, t, 0, p, t->byte_count));
        assert_ok(weir_tensors_read(y, u, 0, q, t->byte_count));
        assert_memory_equal(p, q, t->byte_count);
        free(p);
        free(q);
    }
    weir_tensors_close(x);
    weir_tensors_close(y);
}

static void exports_are_the_masters(void **state)
{
    (void)state;
    static const char *const cases[] = {"tied", "untied"};
    for (size_t i = 0; i < 2; i++) {
        struct golden g = golden_open(cases[i]);
        struct model m;
        train(&m, &g, WEIR_BF16);
        assert_ok(export_run(m.llama, path_of("run.safetensors")));
        assert_ok(weir_save(m.run, path_of("step-2"), NULL, NULL, 0));
        model_close(&m);
        assert_ok(export_checkpoint(path_of("step-2"), path_of("files.safetensors")));
        assert_same_tensors(path_of("run.safetensors"), path_of("files.safetensors"));
        assert_masters(path_of("step-2"), path_of("run.safetensors"), i == 0);
        assert_int_not_equal(0, access(path_of("run.safetensors" REPLACE_SUFFIX), F_OK));
        golden_close(&g);
    }
}

/* Trained on from the export, a model has the weights and residuals of the checkpoint: saved at
 * once it is the same file, and exported again too. */
static void an_export_loads_to_the_same_bits(void **state)
{
    (void)state;
    struct golden g = golden_open("untied");
    struct model m;
    train(&m, &g, WEIR_BF16);
    assert_ok(export_run(m.llama, path_of("a.safetensors")));
    assert_ok(weir_save(m.run, path_of("step-a"), NULL, NULL, 0));
    model_close(&m);
    model_open(&m, &g, &fine, WEIR_BF16);
    assert_ok(weights_load(m.llama, path_of("a.safetensors")));
    assert_ok(export_run(m.llama, path_of("b.safetensors")));
    assert_ok(weir_save(m.run, path_of("step-b"), NULL, NULL, 0));
    model_close(&m);
    assert_same_files(path_of("a.safetensors"), path_of("b.safetensors"));
    assert_same_files(path_of("step-a/model.safetensors"), path_of("step-b/model.safetensors"));
    golden_close(&g);
}

/* fp32 weights are the masters, with or without states beside them; bf16 ones without are not. */
static void fp32_weights_need_no_residuals(void **state)
{
    (void)state;
    struct golden g = golden_open("tied");
    struct model m;
    train(&m, &g, WEIR_FP32);
    assert_ok(weir_save(m.run, path_of("step-32"), NULL, NULL, 0));
    model_close(&m);
    assert_int_equal(0, unlink(path_of("step-32/optimizer.safetensors")));
    assert_ok(export_checkpoint(path_of("step-32"), path_of("32.safetensors")));
    assert_same_tensors(path_of("step-32/model.safetensors"), path_of("32.safetensors"));
    train(&m, &g, WEIR_BF16);
    assert_ok(weir_save(m.run, path_of("step-16"), NULL, NULL, 0));
    model_close(&m);
    assert_int_equal(0, unlink(path_of("step-16/optimizer.safetensors")));
    assert_fails(export_checkpoint(path_of("step-16"), path_of("16.safetensors")), WEIR_ERR_ARG,
                 "give a checkpoint step-N of weir-train");
    assert_int_not_equal(0, access(path_of("16.safetensors"), F_OK));
    golden_close(&g);
}

/* A link that is given as the file leads to the new one. */
static void an_export_keeps_a_link(void **state)
{
    (void)state;
    struct golden g = golden_open("tied");
    struct model m;
    struct stat st;
    train(&m, &g, WEIR_BF16);
    assert_int_equal(0, mkdir(path_of("there"), 0777));
    assert_int_equal(0, symlink("there/linked.safetensors", path_of("link.safetensors")));
    for (int i = 0; i < 2; i++) {
        assert_ok(export_run(m.llama, path_of("link.safetensors")));
        assert_int_equal(0, lstat(path_of("link.safetensors"), &st));
        assert_true(S_ISLNK(st.st_mode));
    }
    assert_ok(export_run(m.llama, path_of("plain.safetensors")));
    assert_same_files(path_of("plain.safetensors"), path_of("there/linked.safetensors"));
    model_close(&m);
    golden_close(&g);
}

/* Whichever call fails, an older file under the name stays as it was, nothing lies beside it, and
 * the run goes on. */
static void a_failed_export_leaves_the_older_file(void **state)
{
    (void)state;
    struct golden g = golden_open("tied");
    struct model m;
    train(&m, &g, WEIR_BF16);
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("old.safetensors"));
    uint32_t failures = 0;
    for (int call = 0; call < WEIR_FILE_CALL_COUNT; call++) {
        enum weir_file_call which = (enum weir_file_call)call;
        if (which == WEIR_FILE_READ)
            continue; /* an export reads no file */
        weir_file_fail_at(which, 0, 0);
        assert_ok(export_run(m.llama, path));
        uint64_t calls = weir_file_fail_at(which, 0, 0);
        assert_true(calls > 0);
        struct bytes before = file_read(path);
        /* The last sync, of the directory, fails after the new file has taken its place. */
        for (uint64_t nth = 1; nth <= calls; nth += call == WEIR_FILE_WRITE ? 7 : 1) {
            weir_file_fail_at(which, nth, EIO);
            assert_int_equal(WEIR_ERR_IO, export_run(m.llama, path));
            weir_file_fail_at(which, 0, 0);
            struct bytes after = file_read(path);
            assert_int_equal(before.count, after.count);
            assert_memory_equal(before.at, after.at, before.count);
            assert_int_not_equal(0, access(path_of("old.safetensors" REPLACE_SUFFIX), F_OK));
            free(after.at);
            failures++;
        }
        free(before.at);
    }
    assert_true(failures > 8);
    double loss;
    struct weir_report report;
    model_step(&m, false, true, &loss, &report);
    model_close(&m);
    golden_close(&g);
}

int main(void)
{
    test_directory_make(base);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exports_are_the_masters),
        cmocka_unit_test(an_export_loads_to_the_same_bits),
        cmocka_unit_test(fp32_weights_need_no_residuals),
        cmocka_unit_test(an_export_keeps_a_link),
        cmocka_unit_test(a_failed_export_leaves_the_older_file),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_directory_remove(base);
    return failed;
}
