/*
 * How well a step hides its transfers: measured on a drive of a set pace, against the floor of its
 * schedule, the formula of its bytes, and the prediction.
 *
 *     bench_overlap DIR [REPETITIONS]       DIR: where the extent goes; tmpfs leaves the drive
 * alone
 *
 * Blocks of equal size are trained with everything but what the host budget holds on NVMe. Compute
 * is a wait on the compute engine, so that neither side needs the cores; gradients are cleared and
 * updates done by the real kernels. Steps under budgets alternate with steps in memory, whose
 * median is C. IO/C is set by the pace.
 */
#include "tests/support.h"
#include "tests/support_paced.h"
#include "zero/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BLOCKS      8u
#define STAGES      (2 * BLOCKS)
#define ELEMENTS    (2ull << 20)
#define FORWARD_NS  50000000u /* a block; backward takes twice that */
#define FORWARD     1e9       /* the work that is said to be */
#define REPEAT_MOST 32

static const char *directory;

struct side {
    weir_run *run;
    uint32_t blocks[BLOCKS];
};

static void side_open(struct side *s, uint64_t device_bytes, uint64_t host_bytes, bool nvme)
{
    const struct weir_cost cost = {.struct_bytes = sizeof cost,
                                   .read_bytes_per_s = test_pace.read_bytes_per_s,
                                   .write_bytes_per_s = test_pace.write_bytes_per_s,
                                   .to_device_bytes_per_s = 5e9,
                                   .to_host_bytes_per_s = 5e9,
                                   .update_bytes_per_s = 1e10,
                                   .compute_flops_per_s = FORWARD * 1e9 / FORWARD_NS,
                                   .latency_s = test_pace.latency_s,
                                   .update_on_compute = true};
    assert_ok(weir_open(&s->run, &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                        .device = "host",
                                                        .device_bytes = device_bytes,
                                                        .host_bytes = host_bytes,
                                                        .nvme_path = nvme ? directory : NULL,
                                                        .dtype = WEIR_BF16,
                                                        .grad_dtype = WEIR_FP32,
                                                        .thread_count = 1,
                                                        .cost = &cost}));
    s->run->io_table = &test_paced;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        char name[16];
        snprintf(name, sizeof name, "block%u", b);
        struct weir_tensor t = {.struct_bytes = sizeof t,
                                .name = name,
                                .dim_count = 1,
                                .shape = {ELEMENTS},
                                .lr_scale = 1};
        assert_ok(weir_block_add(s->run, &t, 1, &s->blocks[b]));
    }
}

static void compute(void *argument)
{
    uint64_t ns = *(uint64_t *)argument;
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

static void visit(const struct side *s, uint32_t block, bool backward, bool dry)
{
    struct weir_use use = {s->blocks[block], backward ? WEIR_GRAD : WEIR_READ};
    struct weir_view view;
    uint64_t ns = (backward ? 2 : 1) * FORWARD_NS;
    assert_ok(weir_want(s->run, &use, 1, &view));
    assert_ok(weir_work(s->run, (backward ? 2 : 1) * FORWARD));
    if (!dry)
        assert_ok(s->run->table->call(s->run->compute, compute, &ns, sizeof ns, NULL, 0));
    if (!dry && backward)
        assert_ok(s->run->table->fill(s->run->compute, view.grad, 0, ELEMENTS * sizeof(float)));
    assert_ok(weir_done(s->run, &use.id, 1));
}

static void step(const struct side *s, bool dry, struct weir_report *report)
{
    const struct weir_update update = {sizeof update, 0.1f, 0.9f, 0.95f, 1e-8f, 0, 0};
    *report = (struct weir_report){.struct_bytes = sizeof *report};
    assert_ok(weir_step_begin(s->run, "train", dry));
    for (uint32_t b = 0; b < BLOCKS; b++)
        visit(s, b, false, dry);
    for (uint32_t b = BLOCKS; b-- > 0;)
        visit(s, b, true, dry);
    assert_ok(weir_step_end(s->run, &update, report));
}

/* The traffic of a step on the drive, from the homes alone: forward brings what the update needs
 * and takes back what it changed; backward brings the weight again, unless the block was just left,
 * and takes the gradient away. */
struct traffic {
    double arrive_s[STAGES], depart_s[STAGES];
    uint64_t read_bytes, written_bytes;
};

static void arrives(struct traffic *t, uint32_t stage, uint64_t read, uint64_t written)
{
    t->arrive_s[stage] +=
        (double)read / test_pace.read_bytes_per_s + (double)written / test_pace.write_bytes_per_s;
    t->read_bytes += read;
    t->written_bytes += written;
}

static struct traffic traffic_of(const struct side *s)
{
    struct traffic t = {.read_bytes = 0};
    for (uint32_t b = 0; b < BLOCKS; b++) {
        uint64_t bytes[3] = {0};
        for (uint32_t w = 0; w < s->run->model.things[s->blocks[b]].window_count; w++)
            for (uint32_t p = 0; p < 3; p++) {
                const struct weir_place *at = &s->run->homes->blocks[s->blocks[b]][w].part[p];
                bytes[p] += at->tier == WEIR_TIER_NVME ? at->bytes : 0;
            }
        uint64_t weight = bytes[WEIR_PART_WEIGHT], grad = bytes[WEIR_PART_GRAD];
        arrives(&t, b, weight + grad + bytes[WEIR_PART_STATE], weight + bytes[WEIR_PART_STATE]);
        uint32_t back = STAGES - 1 - b;
        if (b + 1 < BLOCKS)
            arrives(&t, back, weight, 0);
        t.depart_s[back] += (double)grad / test_pace.write_bytes_per_s;
        t.written_bytes += grad;
    }
    return t;
}

static double io_seconds(const struct traffic *t)
{
    double sum = 0;
    for (uint32_t i = 0; i < STAGES; i++)
        sum += t->arrive_s[i] + t->depart_s[i];
    return sum;
}

/* DESIGN 4s, written as it stands there. */
static double floor_seconds(const struct traffic *t, double compute_s)
{
    double most = io_seconds(t);
    for (uint32_t s = 0; s < STAGES; s++)
        for (uint32_t e = s; e < STAGES; e++) {
            double sum = 0;
            for (uint32_t i = 0; i <= s; i++)
                sum += t->arrive_s[i];
            for (uint32_t i = s; i <= e; i++)
                sum += compute_s * (i < BLOCKS ? 1 : 2) / (3 * BLOCKS);
            for (uint32_t i = e; i < STAGES; i++)
                sum += t->depart_s[i];
            most = sum > most ? sum : most;
        }
    return most;
}

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Fast while the extent is written; then the pace at which IO/C is as asked for. */
static void pace_set(const struct side *s, double ratio)
{
    test_pace = (struct test_pace){1, 1, 1e-3};
    struct traffic t = traffic_of(s);
    double rate = io_seconds(&t) / (ratio * 3 * BLOCKS * FORWARD_NS * 1e-9);
    test_pace.read_bytes_per_s = test_pace.write_bytes_per_s = rate;
}

static void compare(double ratio, uint64_t host_bytes, int repetitions)
{
    static const uint64_t device_bytes = (3 * 2 + 2 * 4 + 2) * ELEMENTS;
    struct side memory, budgeted;
    struct weir_report report;
    double in_memory[REPEAT_MOST], measured[REPEAT_MOST];
    /* What moves does not depend on the pace, or only a little: the first guess is near. */
    double rate = 34.0 * BLOCKS * (double)ELEMENTS / (ratio * 3 * BLOCKS * FORWARD_NS * 1e-9);
    test_pace = (struct test_pace){rate, rate, 1e-3};
    side_open(&memory, UINT64_MAX, UINT64_MAX, false);
    side_open(&budgeted, device_bytes, host_bytes, true);
    step(&memory, true, &report);
    step(&budgeted, true, &report);
    test_pace = (struct test_pace){1e12, 1e12, 0};
    assert_ok(weir_layout(memory.run));
    assert_ok(weir_layout(budgeted.run));
    pace_set(&budgeted, ratio);
    budgeted.run->cost.read_bytes_per_s = test_pace.read_bytes_per_s;
    budgeted.run->cost.write_bytes_per_s = test_pace.write_bytes_per_s;
    struct weir_prediction p = {.struct_bytes = sizeof p};
    assert_ok(weir_predict(budgeted.run, "train", &p));
    for (int i = -1; i < repetitions; i++) {
        step(&memory, false, &report);
        in_memory[i < 0 ? 0 : i] = (double)report.step_ns * 1e-9;
        step(&budgeted, false, &report);
        measured[i < 0 ? 0 : i] = (double)report.step_ns * 1e-9;
    }
    qsort(in_memory, (size_t)repetitions, sizeof *in_memory, ascending);
    qsort(measured, (size_t)repetitions, sizeof *measured, ascending);
    double c = in_memory[repetitions / 2], m = measured[repetitions / 2];
    struct traffic t = traffic_of(&budgeted);
    double least = floor_seconds(&t, c);
    printf("%5.2f %6llu %7.3f %7.3f %7.3f  %5.3f [%5.3f, %5.3f]  %6.3f %6.3f  %6.3f\n",
           io_seconds(&t) / c, (unsigned long long)(host_bytes >> 20), c, least, m, m / least,
           measured[0] / least, measured[repetitions - 1] / least,
           (double)report.nvme_read_bytes / (double)t.read_bytes,
           (double)report.nvme_written_bytes / (double)t.written_bytes, p.step_s / m);
    fflush(stdout);
    weir_close(memory.run);
    weir_close(budgeted.run);
}

int main(int argc, char **argv)
{
    static const double ratios[] = {0.25, 1, 4};
    int repetitions = argc > 2 ? atoi(argv[2]) : 5;
    if (argc < 2 || repetitions < 1 || repetitions > REPEAT_MOST) {
        fprintf(stderr, "use: bench_overlap DIR [REPETITIONS, 1 to %d]\n", REPEAT_MOST);
        return 2;
    }
    directory = argv[1];
    printf(" IO/C   host       C   floor    step  step/floor             read written  predicted\n"
           "         MiB       s       s       s  median [least, most]   / formula     / step\n");
    for (size_t i = 0; i < 3; i++)
        for (uint64_t host = 64; host <= 256; host *= 4)
            compare(ratios[i], host << 20, repetitions);
    return 0;
}
