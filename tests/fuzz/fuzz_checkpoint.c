/*
 * A checkpoint of which one file is edited. Loading it is refused by an error that names the file,
 * and then the run is as it was; or it succeeds, and the run trains on, or an error names the
 * tensor whose values it cannot train.
 */
#include "core/memory.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support_cost.h"
#include "tests/support_toy.h"
#include "zero/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define FILE_MOST (1u << 18)

static const char *const names[] = {"state.json", "model.safetensors", "optimizer.safetensors"};
static const struct toy_spec spec = {.dtype = WEIR_BF16,
                                     .grad_dtype = WEIR_FP32,
                                     .block_count = 2,
                                     .micro_count = 1,
                                     .tensor_count = {2, 1},
                                     .elements = {{100, 3}, {2049}},
                                     .kind = {{WEIR_TRAINED, WEIR_FROZEN}},
                                     .width = 500};
static const struct toy_input input = {
    .seed = 1, .training = true, .poison_block = -1, .write_block = -1, .groups = 1};
static const struct weir_update update = {sizeof update, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1};
static const struct weir_grain small = {2048, 2048, 2};

static char directory[256], good[300], edited[300];
static struct {
    char *bytes;
    size_t count;
} files[3];
static struct toy toy;
static struct toy_plain plain;

static void run_open(void)
{
    const struct weir_options options = {.struct_bytes = sizeof options,
                                         .device = "host",
                                         .device_bytes = 1 << 20,
                                         .host_bytes = 1 << 20,
                                         .nvme_path = directory,
                                         .dtype = spec.dtype,
                                         .grad_dtype = spec.grad_dtype,
                                         .thread_count = 1,
                                         .strict = true,
                                         .cost = &test_cost};
    weir_run *run;
    float loss;
    assert_ok(weir_open_with(&run, &options, &(struct weir_seams){.grain = small}));
    assert_ok(toy_open(&toy, run, &spec));
    assert_ok(toy_step(&toy, "train", true, &input, &update, &loss, NULL));
    assert_ok(weir_layout(run));
}

static void file_read(int which)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", good, names[which]);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    files[which].bytes = malloc(FILE_MOST);
    assert_non_null(files[which].bytes);
    files[which].count = fread(files[which].bytes, 1, FILE_MOST, file);
    assert_true(files[which].count > 0 && files[which].count < FILE_MOST);
    fclose(file);
}

/* The good checkpoint is of one step; plain is the same in plain arrays. */
static void good_make(void)
{
    float loss;
    double norm;
    bool skipped;
    char path[300];
    struct weir_report report = {.struct_bytes = sizeof report};
    fuzz_directory(directory);
    snprintf(good, sizeof good, "%s/good", directory);
    snprintf(edited, sizeof edited, "%s/edited", directory);
    assert_int_equal(0, mkdir(edited, 0700));
    run_open();
    toy_plain_open(&plain, &spec, small);
    assert_ok(toy_load(&toy, &plain));
    assert_ok(toy_step(&toy, "train", false, &input, &update, &loss, &report));
    toy_plain_step(&plain, &input, &update, &loss, &norm, &skipped);
    assert_ok(weir_save(toy.run, good, NULL, NULL, 0));
    for (int i = 0; i < 3; i++) {
        file_read(i);
        fuzz_file(edited, names[i], files[i].bytes, files[i].count, path);
    }
}

/* Whatever the values are, a step either works or says which tensor it cannot train. */
static void train_on(void)
{
    float loss;
    struct weir_report report = {.struct_bytes = sizeof report};
    enum weir_status status = toy_step(&toy, "train", false, &input, &update, &loss, &report);
    if (status == WEIR_OK)
        status = weir_flush(toy.run);
    if (status != WEIR_OK) {
        assert_int_equal(WEIR_ERR_CORRUPT, status);
        fuzz_named(status, "tensor \"block");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!files[0].bytes)
        good_make();
    if (size == 0)
        return 0;
    int which = data[0] % 3;
    size_t count;
    char path[300];
    uint64_t held = weir_alloc_bytes();
    char *bytes = fuzz_edit(files[which].bytes, files[which].count, data + 1, size - 1, &count);
    fuzz_file(edited, names[which], bytes, count, path);
    free(bytes);
    enum weir_status status = weir_load(toy.run, edited);
    fuzz_named(status, names[which]);
    if (status == WEIR_OK)
        train_on();
    else if (weir_flush(toy.run) == WEIR_OK)
        assert_int_equal(0, toy_compare(toy.run, &plain));
    fuzz_file(edited, names[which], files[which].bytes, files[which].count, path);
    if (weir_flush(toy.run) == WEIR_OK) {
        assert_true(weir_alloc_bytes() == held);
    } else {
        weir_close(toy.run);
        run_open();
    }
    assert_ok(weir_load(toy.run, good));
    return 0;
}
