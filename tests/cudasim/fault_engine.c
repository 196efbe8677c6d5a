/*
 * Failures of CUDA and cuBLASLt under the whole engine, on the simulated GPU: a Llama is declared,
 * recorded, laid out over device, host and NVMe, loaded, trained, evaluated and saved while one
 * call or operation fails, each in turn. Whatever fails, the call of weir that meets it returns one
 * status with CUDA's text and the object's name, the run then answers with that alone, close
 * returns, and nothing is left. What came before the failure has the bits of a run without one.
 */
#include "core/memory.h"
#include "tests/cudasim/runtime.h"
#include "tests/support_cost.h"
#include "tests/support_device.h"
#include "tests/support_llama.h"
#include "zero/run.h"
#include <weir/checkpoint.h>

#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS        3
#define EACH         60 /* first places that fail one by one; then strides */
#define HANG_SECONDS 60

static const struct llama_spec spec = {
    .shape = {.sequences = 1,
              .length = 5,
              .hidden = 16,
              .heads = 2,
              .kv_heads = 1,
              .head_dim = 8,
              .intermediate = 24,
              .vocab = 70,
              .tile_rows = 64,
              .chunk_tokens = 32,
              .norm_eps = 1e-5f,
              .dtype = WEIR_BF16,
              .rope = {.theta = 10000}},
    .layer_count = 2,
    .micro_count = 1,
    .row_elements = 64 * 16,
};
static char nvme[256], saves[256], path[300];

/* ---- one training */

struct world {
    weir_run *run;
    struct llama *llama;
    uint32_t steps;
};

static bool over_link;              /* the cores are slow */
static bool reaches_host = true;    /* the device, so that it may help them */
static uint64_t device_bytes;       /* of the run; 0: a few blocks */
static double losses[2][STEPS + 1]; /* [over_link], of a training without a failure */
static bool losses_known[2];
static int32_t tokens[2 * 5];

static enum weir_status open_and_declare(struct world *w)
{
    const struct weir_options options = {
        .struct_bytes = sizeof options,
        .device = "cuda",
        .device_bytes = device_bytes > 0 ? device_bytes : 260000,
        .host_bytes = device_bytes > 0 ? UINT64_MAX : 240000,
        .nvme_path = nvme,
        .dtype = WEIR_BF16,
        .grad_dtype = WEIR_BF16,
        .thread_count = 1,
        .cost = over_link ? &test_cost_slow_cores : &test_cost,
    };
    WEIR_TRY(weir_open_with(&w->run, &options, &(struct weir_seams){.grain = {2048, 2048, 2}}));
    return llama_open(&w->llama, w->run, &spec, 1);
}

static struct weir_update update = {sizeof update, 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.3f};

static enum weir_status llama_step(struct world *w, const char *key, bool dry, double *loss,
                                   struct weir_report *report)
{
    struct llama_step step = {.key = key,
                              .dry = dry,
                              .tokens = dry ? NULL : tokens,
                              .target_count = 5,
                              .update = strcmp(key, "train") == 0 ? &update : NULL};
    return llama_run(w->llama, &step, loss, report);
}

static enum weir_status record(struct world *w)
{
    double loss;
    WEIR_TRY(llama_step(w, "train", true, &loss, NULL));
    return llama_step(w, "eval", true, &loss, NULL);
}

static enum weir_status layout(struct world *w)
{
    return weir_layout(w->run);
}

static enum weir_status load(struct world *w)
{
    for (size_t i = 0; i < llama_tensor_count(w->llama); i++) {
        struct llama_tensor t;
        char name[96];
        float values[2048];
        llama_tensor_at(w->llama, i, &t, name);
        assert_true(t.count <= sizeof values / sizeof *values);
        weir_random_normal(7, name, t.first, t.count, 0.05f, values);
        for (uint64_t j = 0; t.dim_count == 1 && j < t.count; j++)
            values[j] += 1;
        WEIR_TRY(weir_block_load(w->run, t.block, t.tensor, WEIR_FP32, values, 0, t.count));
    }
    return WEIR_OK;
}

/* Right, or told: a step that succeeds has the loss of a run without a failure. */
static enum weir_status step_checked(struct world *w, const char *key)
{
    struct weir_report report = {.struct_bytes = sizeof report};
    double loss;
    WEIR_TRY(llama_step(w, key, false, &loss, &report));
    if (strcmp(key, "train") == 0)
        assert_int_equal(over_link && reaches_host,
                         weir_run_key(w->run, key)->plan->choice.update_over_link);
    if (!losses_known[over_link]) {
        losses[over_link][w->steps] = loss;
        if (device_bytes == 0 && w->steps > 0) {
            assert_true(report.nvme_read_bytes > 0 && report.to_device_bytes > 0);
            assert_true(w->run->homes->device_end > w->run->homes->device_first);
        }
    } else {
        assert_memory_equal(&losses[over_link][w->steps], &loss, sizeof loss);
    }
    w->steps++;
    return WEIR_OK;
}

static enum weir_status train(struct world *w)
{
    return step_checked(w, "train");
}

static enum weir_status evaluate(struct world *w)
{
    return step_checked(w, "eval");
}

static enum weir_status save(struct world *w)
{
    return weir_save(w->run, path, NULL, NULL, 0);
}

typedef enum weir_status stage_fn(struct world *w);
static const struct {
    stage_fn *run;
    const char *name;
} stages[] = {{open_and_declare, "open"},
              {record, "record"},
              {layout, "layout"},
              {load, "load"},
              {train, "train"},
              {train, "train"},
              {train, "train"},
              {evaluate, "eval"},
              {save, "save"}};
#define STAGE_COUNT (sizeof stages / sizeof *stages)

static void world_close(struct world *w)
{
    if (w->llama)
        llama_close(w->llama);
    weir_close(w->run);
}

/* ---- faults */

struct fault {
    const char *name;
    const char *only; /* calls whose names begin so; NULL: all */
    bool operation;   /* fails on the device, after its call */
    int code;
};

static const struct fault faults[] = {
    {"call: out of memory", NULL, false, cudaErrorMemoryAllocation},
    {"call: illegal address", NULL, false, cudaErrorIllegalAddress},
    {"call: not supported", NULL, false, cudaErrorNotSupported},
    {"call: launch failure", NULL, false, cudaErrorLaunchFailure},
    {"cuBLASLt: out of memory", "cublasLt", false, cudaErrorMemoryAllocation},
    {"cuBLASLt: launch failure", "cublasLt", false, cudaErrorLaunchFailure},
    {"event: launch failure", "cudaEvent", false, cudaErrorLaunchFailure},
    {"stream: illegal address", "cudaStream", false, cudaErrorIllegalAddress},
    {"operation: illegal address", NULL, true, cudaErrorIllegalAddress},
    {"operation: launch failure", NULL, true, cudaErrorLaunchFailure},
    {"operation: ECC", NULL, true, cudaErrorECCUncorrectable},
};

/* Returns how many there were since the last arming. nth 0: disarm. */
static uint64_t fault_arm(const struct fault *fault, uint64_t nth)
{
    return fault->operation ? cudasim_fail_operation_at(nth, fault->code)
                            : cudasim_fail_at(nth, fault->code);
}

static struct {
    const struct fault *fault;
    uint64_t nth;
    size_t stage;
} now;

static void hangs(int signal)
{
    (void)signal;
    char text[160];
    int n = snprintf(text, sizeof text, "hangs: %s %llu, stage %zu\n", now.fault->name,
                     (unsigned long long)now.nth, now.stage);
    (void)!write(STDERR_FILENO, text, (size_t)n);
    abort();
}

#define check(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("%s %llu, stage %s: ", now.fault->name, (unsigned long long)now.nth,       \
                        now.stage < STAGE_COUNT ? stages[now.stage].name : "close");               \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

/* One status, with CUDA's name for it and the object's. */
static void failure_check(enum weir_status status, const struct weir_error *error)
{
    const char *code = cudaGetErrorName((cudaError_t)now.fault->code);
    check(error->status == status, "%s: %s", weir_status_name(status), error->text);
    if (status == WEIR_ERR_NOMEM) { /* an allocation, which says what it asked for */
        check((test_contains(error->text, "device \"cuda\": need") &&
               now.fault->code == cudaErrorMemoryAllocation) ||
                  (test_contains(error->text, "device \"cuda\": the driver cannot pin") &&
                   test_contains(error->text, code)),
              "%s", error->text);
        check(test_contains(error->text, "pool \"") && test_contains(error->text, "for \""), "%s",
              error->text);
        return;
    }
    check(status == WEIR_ERR_DEVICE, "%s: %s", weir_status_name(status), error->text);
    check(test_contains(error->text, code), "%s", error->text);
    check(test_contains(error->text, "device \"cuda\": ") ||
              test_contains(error->text, "cuBLASLt: "),
          "%s", error->text);
    if (now.fault->only && strcmp(now.fault->only, "cublasLt") == 0)
        check(test_contains(error->text, "CUBLAS_STATUS_"), "%s", error->text);
}

/* The run answers every call with what ended it. */
static void ended_check(struct world *w, const struct weir_error *error)
{
    double loss;
    for (int i = 0; i < 3; i++) {
        enum weir_status status = i == 0   ? weir_flush(w->run)
                                  : i == 1 ? weir_layout(w->run)
                                           : llama_step(w, "train", false, &loss, NULL);
        check(status == error->status && strcmp(weir_last_error()->text, error->text) == 0,
              "after \"%s\" comes %s \"%s\"", error->text, weir_status_name(status),
              weir_last_error()->text);
    }
}

/* Returns the status of the call that failed, WEIR_OK if none did. */
static enum weir_status stages_run(struct world *w)
{
    for (now.stage = 0; now.stage < STAGE_COUNT; now.stage++) {
        enum weir_status status = stages[now.stage].run(w);
        if (status == WEIR_OK)
            continue;
        struct weir_error error = *weir_last_error();
        failure_check(status, &error);
        if (w->run && w->llama)
            ended_check(w, &error);
        return status;
    }
    return WEIR_OK;
}

static void world_begin(const struct fault *fault, uint64_t nth)
{
    now.fault = fault;
    now.nth = nth;
    alarm(HANG_SECONDS);
    cudasim_schedule((enum cudasim_mode)(nth % 3), nth); /* eager, lazy, random */
    cudasim_fail_only(fault->only);
}

/* Closed, with nothing left. */
static void world_end(struct world *w, uint64_t held_bytes)
{
    world_close(w);
    (void)fault_arm(now.fault, 0);
    cudasim_fail_only(NULL);
    cudasim_reset();
    check(cudasim_leaks() == 0, "CUDA still holds something");
    check(weir_alloc_bytes() == held_bytes, "%llu bytes leak",
          (unsigned long long)(weir_alloc_bytes() - held_bytes));
    if (access(path, F_OK) == 0)
        test_directory_remove(path);
    alarm(0);
}

/* One training with the nth failing; false: there were fewer. */
static bool training(const struct fault *fault, uint64_t nth)
{
    struct world w = {.run = NULL};
    uint64_t held_bytes = weir_alloc_bytes();
    world_begin(fault, nth);
    (void)fault_arm(fault, nth);
    enum weir_status status = stages_run(&w);
    uint64_t made = fault_arm(fault, 0);
    check(status != WEIR_OK || made < nth, "nobody was told");
    world_end(&w, held_bytes);
    return status != WEIR_OK;
}

static void references_make(void)
{
    static const struct fault none = {"no fault", NULL, false, 0};
    for (int i = 0; i < 2; i++) {
        over_link = i;
        losses_known[i] = false;
        assert_false(training(&none, UINT64_MAX / 2));
        losses_known[i] = true;
    }
}

/* Each of the first, then strides that pass the end in about as many trainings again. */
static void any_failure_is_told_once_and_for_good(void **state)
{
    (void)state;
    struct test_random random = test_random_open(1130);
    references_make();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        uint64_t nth = 1, each = test_draws(EACH), count = 0;
        over_link = i & 1;
        while (training(&faults[i], nth)) {
            count++;
            nth += nth < each ? 1 : 1 + test_random_below(&random, 1 + nth / (each < EACH ? 1 : 3));
        }
        printf("%s: %llu trainings, %llu places\n", faults[i].name, (unsigned long long)count,
               (unsigned long long)nth - 1);
        assert_true(count >= each / 2);
    }
}

/* Whatever fails in close, it returns and gives everything back: there is nobody to tell. */
static void close_returns_whatever_fails(void **state)
{
    (void)state;
    static const struct fault fault = {"close", NULL, false, cudaErrorIllegalAddress};
    over_link = false;
    uint64_t made = UINT64_MAX, stride = 1 + 60 / test_draws(20);
    uint64_t count = 0;
    for (uint64_t nth = 1; nth <= made; nth += stride, count++) {
        struct world w = {.run = NULL};
        uint64_t held_bytes = weir_alloc_bytes();
        world_begin(&fault, nth);
        (void)fault_arm(&fault, 0);
        assert_int_equal(WEIR_OK, stages_run(&w));
        (void)fault_arm(&fault, nth);
        llama_close(w.llama);
        weir_close(w.run);
        made = fault_arm(&fault, 0);
        w = (struct world){.run = NULL};
        world_end(&w, held_bytes);
    }
    assert_true(count >= 3);
}

/* Somebody else has taken the GPU's memory since the run was opened: the line has what was asked
 * for, what is free and who holds the rest. */
static void too_little_device_memory_names_its_holders(void **state)
{
    (void)state;
    static const struct fault fault = {"memory", NULL, false, cudaErrorMemoryAllocation};
    struct world w = {.run = NULL};
    uint64_t held_bytes = weir_alloc_bytes();
    world_begin(&fault, 0);
    device_bytes = UINT64_MAX;
    for (now.stage = 0; stages[now.stage].run != layout; now.stage++)
        assert_ok(stages[now.stage].run(&w));
    cudasim_memory(40000);
    enum weir_status status = layout(&w);
    struct weir_error error = *weir_last_error();
    assert_int_equal(WEIR_ERR_NOMEM, status);
    failure_check(status, &error);
    ended_check(&w, &error);
    assert_true(test_contains(error.text, "free, weir holds 4096"));
    assert_true(test_contains(error.text, "of 40000 free"));
    assert_true(test_contains(error.text, "(pool \"device\", for \"slab\"; largest holders: norm "
                                          "partials 4096)"));
    world_end(&w, held_bytes);
    device_bytes = 0;
    cudasim_memory((uint64_t)80 << 30);
}

/* Where kernels do not reach host memory they are given none (the simulator would end this), and
 * the losses are the same; also with rates from a machine where they do. */
static void kernels_that_do_not_reach_host_memory_train_the_same(void **state)
{
    (void)state;
    static const struct fault none = {"no reach", NULL, false, 0};
    if (!losses_known[0])
        references_make();
    cudasim_reach_host(0);
    reaches_host = false;
    for (uint64_t schedule = 0; schedule < 3; schedule++) {
        over_link = schedule == 1;
        assert_false(training(&none, UINT64_MAX / 2 + schedule));
    }
    reaches_host = true;
    cudasim_reach_host(1);
}

/* Steps until weights that a huge rate made are refused by name, all on the device. */
static void expect_not_finite(void)
{
    static const struct fault none = {"not finite", NULL, false, 0};
    struct world w = {.run = NULL};
    struct weir_report report = {.struct_bytes = sizeof report};
    double loss;
    uint64_t held_bytes = weir_alloc_bytes();
    world_begin(&none, CUDASIM_LAZY);
    device_bytes = UINT64_MAX;
    over_link = true; /* so that no state is the cores' */
    for (now.stage = 0; stages[now.stage].run != train; now.stage++)
        assert_ok(stages[now.stage].run(&w));
    update.lr = 3e38f;
    update.weight_decay = 3e38f;
    assert_ok(llama_step(&w, "train", false, &loss, &report));
    assert_fails(llama_step(&w, "train", false, &loss, &report), WEIR_ERR_CORRUPT,
                 "is not finite after update 1");
    for (size_t i = 0; i < w.run->model.thing_count && w.run->device_counts; i++)
        assert_int_equal(0, w.run->bad_counts[i]);
    update.lr = 1e-2f;
    update.weight_decay = 0.1f;
    device_bytes = 0;
    world_end(&w, held_bytes);
}

/* What Adam counts on the device is heard of, also where it cannot count in host memory. */
static void masters_that_are_not_finite_are_told(void **state)
{
    (void)state;
    for (int reach = 1; reach >= 0; reach--) {
        cudasim_reach_host(reach);
        expect_not_finite();
    }
    cudasim_reach_host(1);
}

int main(void)
{
    signal(SIGALRM, hangs);
    test_directory_make(nvme);
    test_directory_make_in_memory(saves);
    snprintf(path, sizeof path, "%s/checkpoint", saves);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        tokens[i] = (int32_t)(i * 29 % spec.shape.vocab);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_failure_is_told_once_and_for_good),
        cmocka_unit_test(close_returns_whatever_fails),
        cmocka_unit_test(too_little_device_memory_names_its_holders),
        cmocka_unit_test(kernels_that_do_not_reach_host_memory_train_the_same),
        cmocka_unit_test(masters_that_are_not_finite_are_told),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_directory_remove(nvme);
    test_directory_remove(saves);
    return failed;
}
