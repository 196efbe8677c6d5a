/*
 * A training where the Nth thing fails, for every N until nothing does: an allocation, a call of
 * the device, of the kernels, of the communicator, an I/O submit, a completion, or a system call on
 * the extent or a checkpoint's files; once and for good. Each time the status is the one of the
 * fault and the text names what failed; what is held returns to what it was; a run that says it
 * goes on does so to the bits of a plain loop; and the newest complete checkpoint loads to the bits
 * of its step. Short, late and reordered completions are no failure at all.
 */
#include "core/file.h"
#include "core/memory.h"
#include "tests/support_cost.h"
#include "tests/support_double.h"
#include "tests/support_toy.h"
#include "zero/run.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS        4u
#define EACH         50u  /* the first so many N, then strides */
#define HANG_SECONDS 300u /* of one training, which takes some milliseconds */

static const struct toy_spec spec = {.dtype = WEIR_BF16,
                                     .grad_dtype = WEIR_FP32,
                                     .block_count = 3,
                                     .micro_count = 2,
                                     .tensor_count = {2, 1, 2},
                                     .elements = {{9000, 511}, {6000}, {513, 4097}},
                                     .width = 700,
                                     .tied = true,
                                     .inner = true};
static const struct toy_input train = {
    .seed = 1, .training = true, .poison_block = -1, .write_block = -1, .groups = 1};
static const struct toy_input evaluate = {
    .seed = 1, .training = false, .poison_block = -1, .write_block = -1, .groups = 1};
static const struct weir_update update = {sizeof update, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1};

static char directory[256], saves[256], path[300]; /* of the extent; of the checkpoint */
static struct toy_plain reference[STEPS + 1];      /* after so many steps */
static float reference_loss[STEPS + 1];            /* of the next step */
static bool doubles, roomy, apart; /* the run under test is on them; has no budget; updates so */

struct world {
    weir_run *run;
    struct toy toy;
    uint64_t steps;
    bool saved, failed;
};

/* ---- the training, in calls that may fail and then be made again */

static enum weir_status run_open(struct world *w)
{
    const struct weir_options options = {.struct_bytes = sizeof options,
                                         .device = "host",
                                         .device_bytes = roomy ? UINT64_MAX : 140000,
                                         .host_bytes = roomy ? UINT64_MAX : 260000,
                                         .nvme_path = directory,
                                         .dtype = spec.dtype,
                                         .grad_dtype = spec.grad_dtype,
                                         .thread_count = 1,
                                         .strict = true,
                                         .strict_seed = 3,
                                         .cost = &test_cost};
    struct weir_seams seams = {.grain = {2048, 2048, 2}, .updates_apart = apart};
    if (doubles) {
        seams.device = &test_double_device, seams.kernels = &test_double_kernels;
        seams.comm = &test_double_comm, seams.io = &test_double_io;
    }
    return weir_open_with(&w->run, &options, &seams);
}

/* Tensors that were added stay, so a second try begins with a new run. */
static enum weir_status open_and_declare(struct world *w)
{
    weir_close(w->run);
    w->run = NULL;
    WEIR_TRY(run_open(w));
    return toy_open(&w->toy, w->run, &spec);
}

static enum weir_status record_train(struct world *w)
{
    float loss;
    return toy_step(&w->toy, "train", true, &train, &update, &loss, NULL);
}

static enum weir_status record_eval(struct world *w)
{
    float loss;
    return toy_step(&w->toy, "eval", true, &evaluate, &update, &loss, NULL);
}

static enum weir_status layout(struct world *w)
{
    return weir_layout(w->run);
}

static enum weir_status load_weights(struct world *w)
{
    return toy_load(&w->toy, NULL);
}

static void loss_check(const struct world *w, float loss)
{
    assert_memory_equal(&loss, &reference_loss[w->steps], sizeof loss);
}

static enum weir_status step(struct world *w)
{
    float loss;
    struct weir_report report = {.struct_bytes = sizeof report};
    WEIR_TRY(toy_step(&w->toy, "train", false, &train, &update, &loss, &report));
    loss_check(w, loss);
    w->steps++;
    return WEIR_OK;
}

static enum weir_status evaluation(struct world *w)
{
    float loss;
    WEIR_TRY(toy_step(&w->toy, "eval", false, &evaluate, NULL, &loss, NULL));
    loss_check(w, loss);
    return WEIR_OK;
}

static enum weir_status save(struct world *w)
{
    WEIR_TRY(weir_save(w->run, path, "{\"n\": 1}", NULL, 0));
    w->saved = true;
    return WEIR_OK;
}

static enum weir_status load(struct world *w)
{
    WEIR_TRY(weir_load(w->run, path));
    w->steps = w->run->step_count;
    return WEIR_OK;
}

typedef enum weir_status stage_fn(struct world *w);
static stage_fn *const stages[] = {
    open_and_declare, record_train, record_eval, layout, load_weights, step, save,
    evaluation,       step,         save,        step,   load,         step, step};
#define STAGE_COUNT (sizeof stages / sizeof *stages)

/* ---- faults */

struct fault {
    const char *name;
    void (*arm)(const struct fault *fault, uint64_t nth, bool for_good); /* nth 0: disarm */
    uint64_t (*made)(const struct fault *fault);                         /* since armed */
    int kind, os_errno;
    bool harmless;              /* what fails is made good: the training succeeds */
    bool apart;                 /* updates have a device of their own, as beside a GPU */
    enum weir_status status;    /* of the call that fails, and what its text names */
    const char *text, *or_text; /* or_text NULL: one text alone */
};

static void double_arm(const struct fault *fault, uint64_t nth, bool for_good)
{
    test_fault_set((enum test_fault_kind)fault->kind, nth, for_good);
}

static uint64_t double_made(const struct fault *fault)
{
    return atomic_load(&test_faults[fault->kind].made_count);
}

static void alloc_arm(const struct fault *fault, uint64_t nth, bool for_good)
{
    (void)fault;
    (for_good ? weir_alloc_fail_from : weir_alloc_fail_at)(nth);
}

static void file_arm(const struct fault *fault, uint64_t nth, bool for_good)
{
    (for_good ? weir_file_fail_from : weir_file_fail_at)((enum weir_file_call)fault->kind, nth,
                                                         fault->os_errno);
}

/* Both count from one setting to the next, which also disarms. */
static uint64_t alloc_made(const struct fault *fault)
{
    (void)fault;
    return weir_alloc_fail_at(0);
}

static uint64_t file_made(const struct fault *fault)
{
    return weir_file_fail_at((enum weir_file_call)fault->kind, 0, 0);
}

#define DOUBLE .arm = double_arm, .made = double_made
#define FILES  .arm = file_arm, .made = file_made
static const struct fault faults[] = {
    {"allocation", alloc_arm, alloc_made, .status = WEIR_ERR_NOMEM, .text = "heap: no memory for"},
    {"allocation, updates apart", alloc_arm, alloc_made, .apart = true, .status = WEIR_ERR_NOMEM,
     .text = "heap: no memory for"},
    {"device", DOUBLE, .kind = TEST_FAULT_DEVICE, .status = WEIR_ERR_DEVICE,
     .text = "device \"double\""},
    {"kernels", DOUBLE, .kind = TEST_FAULT_KERNELS, .status = WEIR_ERR_DEVICE,
     .text = "kernels \"double\""},
    {"comm", DOUBLE, .kind = TEST_FAULT_COMM, .status = WEIR_ERR_COMM,
     .text = "communicator \"double\""},
    {"submit", DOUBLE, .kind = TEST_FAULT_SUBMIT, .status = WEIR_ERR_IO,
     .text = "io engine \"double\""},
    {"completion", DOUBLE, .kind = TEST_FAULT_RESULT, .status = WEIR_ERR_IO, .text = directory},
    {"full home", DOUBLE, .kind = TEST_FAULT_FULL, .status = WEIR_ERR_NOSPACE, .text = directory},
    {"short", DOUBLE, .kind = TEST_FAULT_SHORT, .harmless = true},
    {"late", DOUBLE, .kind = TEST_FAULT_LATE, .harmless = true},
    {"reorder", DOUBLE, .kind = TEST_FAULT_REORDER, .harmless = true},
    {"open", FILES, .kind = WEIR_FILE_OPEN, .os_errno = EMFILE, .status = WEIR_ERR_IO,
     .text = saves, .or_text = directory},
    {"read", FILES, .kind = WEIR_FILE_READ, .os_errno = EIO, .status = WEIR_ERR_IO, .text = path},
    {"write", FILES, .kind = WEIR_FILE_WRITE, .os_errno = ENOSPC, .status = WEIR_ERR_NOSPACE,
     .text = path},
    {"sync", FILES, .kind = WEIR_FILE_SYNC, .os_errno = EIO, .status = WEIR_ERR_IO, .text = saves},
    {"rename", FILES, .kind = WEIR_FILE_RENAME, .os_errno = EIO, .status = WEIR_ERR_IO,
     .text = path},
};

static bool is_file_fault(const struct fault *fault)
{
    return fault->arm == file_arm;
}

/* ---- what must hold after a failure */

static const struct fault *current;
static uint64_t current_nth;
static bool current_for_good;
static size_t current_stage;

static void hangs(int signal)
{
    (void)signal;
    char text[160];
    int n = snprintf(text, sizeof text, "hangs: %s %llu%s, stage %zu\n", current->name,
                     (unsigned long long)current_nth, current_for_good ? " for good" : "",
                     current_stage);
    (void)!write(STDERR_FILENO, text, (size_t)n);
    abort();
}

#define check(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("%s %llu%s, stage %zu: ", current->name, (unsigned long long)current_nth,  \
                        current_for_good ? " for good" : "", current_stage);                       \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

static uint64_t entries_count(const char *folder)
{
    uint64_t count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void bits_check(const struct world *w)
{
    check(toy_compare(w->run, &reference[w->steps]) == 0, "bits differ after %llu steps",
          (unsigned long long)w->steps);
}

/* A checkpoint stands, whole: some save succeeded, or one that failed had already put it there. */
static void newest_loads(const struct world *failed)
{
    struct world w = {.run = NULL};
    bool exists = access(path, F_OK) == 0;
    check(exists || !failed->saved, "the checkpoint is gone");
    if (!exists)
        return;
    doubles = false;
    assert_ok(open_and_declare(&w));
    assert_ok(record_train(&w));
    assert_ok(layout(&w));
    assert_ok(load(&w));
    bits_check(&w);
    assert_ok(step(&w));
    assert_ok(weir_flush(w.run));
    bits_check(&w);
    weir_close(w.run);
}

/* A run that has ended says at every call what ended it: a half-made layout, or a failure that
 * leaves its bytes in doubt. One whose checkpoint could not be written goes on. */
static bool goes_on(const struct world *w, const struct weir_error *error)
{
    bool outside = is_file_fault(current) && stages[current_stage] == save;
    bool may_end = !outside && (error->status != WEIR_ERR_NOMEM || stages[current_stage] == layout);
    bool may_go_on =
        error->status == WEIR_ERR_NOMEM || is_file_fault(current) || w->toy.queue_failed;
    enum weir_status status = weir_flush(w->run);
    const char *text = weir_last_error()->text;
    bool ended = status == error->status;
    if (ended ? strcmp(text, error->text) != 0 || !may_end : !may_go_on)
        check(false, "after \"%s\" comes %s \"%s\"", error->text, weir_status_name(status), text);
    return !ended;
}

static void failure_check(const struct weir_error *error, enum weir_status status)
{
    check(!current->harmless, "fails: %s", error->text);
    check(status == current->status && error->status == status, "%s: %s", weir_status_name(status),
          error->text);
    check(test_contains(error->text, current->text) ||
              (current->or_text && test_contains(error->text, current->or_text)),
          "\"%s\" does not name \"%s\"", error->text, current->text);
}

/* Of a transfer in a step it is known what it moved: "READ state b0[1]: file ...". */
static void transfer_check(const struct weir_error *error)
{
    if (current->kind != TEST_FAULT_RESULT || current->arm != double_arm ||
        stages[current_stage] != step)
        return;
    char kind[8], part[8], thing[64];
    unsigned window;
    check(sscanf(error->text, "%7s %7s %63[^[][%u]: file ", kind, part, thing, &window) == 4 &&
              (strcmp(kind, "READ") == 0 || strcmp(kind, "WRITE") == 0),
          "\"%s\" does not say what was moved", error->text);
}

/* Returns whether the training went on to its end. */
static bool stage_run(struct world *w)
{
    enum weir_status status = stages[current_stage](w);
    if (status == WEIR_OK)
        return true;
    struct weir_error error = *weir_last_error();
    w->failed = true;
    failure_check(&error, status);
    transfer_check(&error);
    if (current_stage > 0 && !goes_on(w, &error))
        return false;
    current->arm(current, 0, false);
    /* The driver may have met the fault too, which nobody was told yet. */
    if (w->run && w->run->key && (status = weir_step_abort(w->run)) != WEIR_OK) {
        error = *weir_last_error();
        failure_check(&error, status);
        check(!goes_on(w, &error), "goes on after \"%s\"", error.text);
        return false;
    }
    status = stages[current_stage](w);
    check(status == WEIR_OK, "again: %s", weir_last_error()->text);
    return true;
}

/* One training with the Nth of this kind failing; false: N is past the end. */
static bool training(const struct fault *fault, uint64_t nth, bool for_good)
{
    struct world w = {.run = NULL};
    uint64_t held = weir_alloc_bytes(), files = entries_count("/proc/self/fd");
    uint64_t threads = entries_count("/proc/self/task");
    current = fault;
    current_nth = nth;
    current_for_good = for_good;
    alarm(HANG_SECONDS);
    doubles = true;
    apart = fault->apart;
    fault->arm(fault, nth, for_good);
    bool whole = true;
    for (current_stage = 0; whole && current_stage < STAGE_COUNT; current_stage++)
        whole = stage_run(&w);
    current_stage--;
    bool reached = w.failed || fault->made(fault) >= nth;
    if (whole) {
        fault->arm(fault, 0, false);
        assert_ok(weir_flush(w.run));
        bits_check(&w);
    }
    weir_close(w.run);
    fault->arm(fault, 0, false);
    apart = false;
    newest_loads(&w);
    check(weir_alloc_bytes() == held, "%llu bytes leak",
          (unsigned long long)(weir_alloc_bytes() - held));
    check(entries_count("/proc/self/fd") == files, "descriptors leak");
    while (entries_count("/proc/self/task") != threads)
        sched_yield(); /* a joined thread is listed a moment longer; one that stays is a hang */
    alarm(0);
    if (access(path, F_OK) == 0)
        test_directory_remove(path);
    return reached;
}

/* Each of the first N, then strides that pass the end in about as many trainings again. */
static uint64_t each_nth(const struct fault *fault, bool for_good, struct test_random *random)
{
    uint64_t count = 0, each = test_draws(EACH), nth = 1;
    while (training(fault, nth, for_good)) {
        count++;
        nth += nth < each ? 1 : 1 + test_random_below(random, 1 + nth / 4);
    }
    printf("%s%s: %llu trainings, %llu places\n", fault->name, for_good ? " for good" : "",
           (unsigned long long)count, (unsigned long long)nth - 1);
    return count;
}

static void any_fault_is_told_and_nothing_is_lost(void **state)
{
    (void)state;
    struct test_random random = test_random_open(20261130);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (int for_good = 0; for_good < 2; for_good++)
            assert_true(each_nth(&faults[i], for_good, &random) > 0);
}

/* A key recorded after the layout gets a plan and may run, or gets none and can be tried again. */
static void a_later_key_is_laid_out_or_not_at_all(void **state)
{
    (void)state;
    uint64_t nth = 1;
    bool failed = true;
    roomy = true;
    for (; failed; nth++) {
        struct world w = {.run = NULL};
        doubles = false;
        assert_ok(open_and_declare(&w));
        assert_ok(record_train(&w));
        assert_ok(layout(&w));
        assert_ok(load_weights(&w));
        assert_ok(record_eval(&w));
        weir_alloc_fail_at(nth);
        enum weir_status status = layout(&w);
        weir_alloc_fail_at(0);
        failed = status != WEIR_OK;
        if (failed) {
            assert_int_equal(WEIR_ERR_NOMEM, status);
            assert_fails(evaluation(&w), WEIR_ERR_STATE, "was not recorded and laid out");
            assert_ok(record_eval(&w));
            assert_ok(layout(&w));
        }
        assert_ok(evaluation(&w));
        assert_ok(step(&w));
        assert_ok(weir_flush(w.run));
        assert_int_equal(0, toy_compare(w.run, &reference[w.steps]));
        weir_close(w.run);
    }
    roomy = false;
    assert_true(nth > 10);
}

static int references_make(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= STEPS; i++) {
        struct world w = {.run = NULL};
        double norm;
        bool skipped;
        doubles = false;
        assert_ok(open_and_declare(&w));
        assert_ok(record_train(&w));
        assert_ok(layout(&w));
        toy_plain_open(&reference[i], &spec, (struct weir_grain){2048, 2048, 2});
        assert_ok(toy_load(&w.toy, &reference[i]));
        weir_close(w.run);
        for (uint32_t s = 0; s <= i; s++) {
            struct toy_input input = s < i ? train : evaluate;
            toy_plain_step(&reference[i], &input, &update, &reference_loss[s], &norm, &skipped);
        }
    }
    return 0;
}

static int references_free(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= STEPS; i++)
        toy_plain_close(&reference[i]);
    return 0;
}

int main(void)
{
    signal(SIGALRM, hangs);
    test_directory_make(directory);
    test_directory_make_in_memory(saves);
    snprintf(path, sizeof path, "%s/checkpoint", saves);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_later_key_is_laid_out_or_not_at_all),
                                       cmocka_unit_test(any_fault_is_told_and_nothing_is_lost)};
    int failed = cmocka_run_group_tests(tests, references_make, references_free);
    test_directory_remove(directory);
    test_directory_remove(saves);
    return failed;
}
