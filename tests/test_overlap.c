/*
 * From the replay log, with a device budget of three blocks: reads run ahead of compute, and the
 * update of a step runs under the next one's forward.
 */
#include "tests/support.h"
#include "tests/support_cost.h"
#include "zero/run.h"

#include <stdio.h>
#include <time.h>

#define BLOCKS   8
#define ELEMENTS 8192

static char nvme[256];

struct fixture {
    weir_run *run;
    uint32_t blocks[BLOCKS], x;
};

static void open_run(struct fixture *f)
{
    /* Weight and fp32 gradient of three blocks, and a page for the kept tensor. */
    uint64_t device_bytes = 3 * ELEMENTS * 6 + 3 * 4096;
    assert_ok(weir_open_with(&f->run,
                             &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                    .device = "host",
                                                    .device_bytes = device_bytes,
                                                    .host_bytes = 400 << 10,
                                                    .nvme_path = nvme,
                                                    .dtype = WEIR_BF16,
                                                    .grad_dtype = WEIR_FP32,
                                                    .thread_count = 1,
                                                    .ring_bytes = 160 << 10,
                                                    .cost = &test_cost},
                             &(struct weir_seams){.grain = {2048, 2048, 2}}));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        char name[16];
        snprintf(name, sizeof name, "block%u", b);
        struct weir_tensor t = {.struct_bytes = sizeof t,
                                .name = name,
                                .dim_count = 1,
                                .shape = {ELEMENTS},
                                .lr_scale = 1};
        assert_ok(weir_block_add(f->run, &t, 1, &f->blocks[b]));
    }
    struct weir_kept kept = {.struct_bytes = sizeof kept, .name = "x", .byte_count = 64};
    assert_ok(weir_kept_add(f->run, &kept, &f->x));
}

/* Every READ that brings something for the stage has begun in this step. */
static bool reads_begun(const struct fixture *f, uint32_t stage, size_t from)
{
    size_t count, wanted = 0, begun = 0;
    const struct weir_log_entry *log = weir_replay_log_read(f->run->replay, &count);
    const struct weir_plan *plan = f->run->keys[0]->plan;
    for (size_t i = 0; i < plan->op_count; i++)
        wanted += plan->ops[i].kind == WEIR_OP_READ && plan->ops[i].stage == stage;
    for (size_t i = from; i < count; i++)
        begun += log[i].kind == WEIR_LOG_OP && plan->ops[log[i].index].kind == WEIR_OP_READ &&
                 plan->ops[log[i].index].stage == stage;
    return begun == wanted;
}

static size_t log_count(const struct fixture *f)
{
    size_t count;
    (void)weir_replay_log_read(f->run->replay, &count);
    return count;
}

/* Holds the block until the next one's reads have begun: if they could not begin before its done,
 * this would never end; it gives up after 20 s. */
static void wait_for_next(const struct fixture *f, uint32_t stage, size_t from)
{
    for (int i = 0; !reads_begun(f, stage, from); i++) {
        assert_true(i < 20000);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

static void phase(const struct fixture *f, bool backward, bool dry, bool watch, size_t from)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t b = backward ? BLOCKS - 1 - i : i;
        struct weir_use use = {f->blocks[b], backward ? WEIR_GRAD : WEIR_READ};
        struct weir_view view;
        assert_ok(weir_want(f->run, &use, 1, &view));
        assert_ok(weir_work(f->run, 1e6));
        if (!dry && backward)
            assert_ok(f->run->table->fill(f->run->compute, view.grad, 0, ELEMENTS * 4));
        if (watch && i >= 1 && i + 1 < BLOCKS)
            wait_for_next(f, (backward ? BLOCKS : 0) + i + 1, from);
        assert_ok(weir_done(f->run, &use.id, 1));
    }
}

static void step(const struct fixture *f, bool dry, bool watch)
{
    struct weir_update update = {sizeof update, 0.1f, 0.9f, 0.95f, 1e-8f, 0, 0};
    struct weir_report report = {.struct_bytes = sizeof report};
    size_t from = dry ? 0 : log_count(f);
    assert_ok(weir_step_begin(f->run, "train", dry));
    phase(f, false, dry, watch, from);
    phase(f, true, dry, watch, from);
    assert_ok(weir_step_end(f->run, &update, &report));
}

/* In steady state every READ but the first of a phase begins before the done of the block before.
 */
static void reads_run_ahead_of_done(void **state)
{
    (void)state;
    struct fixture f;
    open_run(&f);
    step(&f, true, false);
    assert_ok(weir_layout(f.run));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const struct weir_window_home *windows = f.run->homes->blocks[f.blocks[b]];
        assert_true(windows[0].part[WEIR_PART_STATE].tier == WEIR_TIER_NVME ||
                    windows[1].part[WEIR_PART_STATE].tier == WEIR_TIER_NVME);
    }
    step(&f, false, false);
    assert_ok(weir_replay_log_start(f.run->replay, 100000));
    step(&f, false, true);
    step(&f, false, true);
    weir_close(f.run);
}

/* At step_end all trained blocks are pending, and no state was read since the forward's last want:
 * the update waits for the next forward. */
static void updates_run_under_the_forward(void **state)
{
    (void)state;
    struct fixture f;
    open_run(&f);
    step(&f, true, false);
    assert_ok(weir_layout(f.run));
    step(&f, false, false);
    assert_ok(weir_replay_log_start(f.run->replay, 100000));
    step(&f, false, false);
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_true(f.run->pending[f.blocks[b]]);
    size_t count, wants = 0, state_reads = 0, late = 0;
    const struct weir_log_entry *log = weir_replay_log_read(f.run->replay, &count);
    for (size_t i = 0; i < count; i++) {
        wants += log[i].kind == WEIR_LOG_WANT;
        if (log[i].kind != WEIR_LOG_OP || log[i].left_out)
            continue;
        const struct weir_op *op = &f.run->keys[0]->plan->ops[log[i].index];
        bool reads_state = op->kind == WEIR_OP_READ && op->part == WEIR_PART_STATE;
        state_reads += reads_state;
        late += reads_state && wants > BLOCKS;
    }
    assert_true(state_reads >= BLOCKS);
    assert_int_equal(0, late);
    weir_close(f.run);
}

int main(void)
{
    test_directory_make(nvme);
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_run_ahead_of_done),
                                       cmocka_unit_test(updates_run_under_the_forward)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_directory_remove(nvme);
    return failed;
}
