/*
 * How well a step hides its transfers: measured on a drive of a set pace, against the floor of its
 * schedule, the formula of its bytes, and the prediction.
 *
 *     bench_overlap DIR [REPETITIONS]       DIR: where the extent goes; tmpfs leaves the drive
 * alone
 *
 * Steps under budgets alternate with steps in memory, whose median is C; IO/C is set by the pace.
 */
#include "tests/support.h"
#include "tests/support_overlap.h"
#include "tests/support_paced.h"

#include <stdio.h>
#include <stdlib.h>

#define REPEAT_MOST 32

static const struct overlap_spec spec = {
    {WEIR_SEGMENT_ELEMENTS, WEIR_ALIGN_ELEMENTS, WEIR_WINDOW_SEGMENTS}, 2u << 20, 50000000};
#define COMPUTE_S (3 * OVERLAP_BLOCKS * 0.05)

static const char *directory;

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Fast while the extent is written; then the pace at which IO/C is as asked for. */
static void pace_set(const struct overlap *s, double ratio)
{
    test_pace =
        (struct test_pace){.read_bytes_per_s = 1, .write_bytes_per_s = 1, .latency_s = 1e-3};
    struct overlap_traffic t = overlap_traffic(s);
    double rate = overlap_io_seconds(&t) / (ratio * COMPUTE_S);
    test_pace.read_bytes_per_s = test_pace.write_bytes_per_s = rate;
}

static void compare(double ratio, uint64_t host_bytes, int repetitions)
{
    static const uint64_t device_bytes = (3 * 2 + 2 * 4 + 2) * (2ull << 20);
    struct overlap memory, budgeted;
    struct weir_report report;
    double in_memory[REPEAT_MOST], measured[REPEAT_MOST];
    /* What moves does not depend on the pace, or only a little: the first guess is near. */
    double rate = 34.0 * OVERLAP_BLOCKS * (double)spec.block_elements / (ratio * COMPUTE_S);
    test_pace =
        (struct test_pace){.read_bytes_per_s = rate, .write_bytes_per_s = rate, .latency_s = 1e-3};
    overlap_open(&memory, &spec, UINT64_MAX, UINT64_MAX, NULL);
    overlap_open(&budgeted, &spec, device_bytes, host_bytes, directory);
    overlap_step(&memory, true, &report);
    overlap_step(&budgeted, true, &report);
    test_pace =
        (struct test_pace){.read_bytes_per_s = 1e12, .write_bytes_per_s = 1e12, .latency_s = 0};
    assert_ok(weir_layout(memory.run));
    assert_ok(weir_layout(budgeted.run));
    pace_set(&budgeted, ratio);
    budgeted.run->cost.read_bytes_per_s = test_pace.read_bytes_per_s;
    budgeted.run->cost.write_bytes_per_s = test_pace.write_bytes_per_s;
    struct weir_prediction p = {.struct_bytes = sizeof p};
    assert_ok(weir_predict(budgeted.run, "train", &p));
    for (int i = -1; i < repetitions; i++) {
        overlap_step(&memory, false, &report);
        in_memory[i < 0 ? 0 : i] = (double)report.step_ns * 1e-9;
        overlap_step(&budgeted, false, &report);
        measured[i < 0 ? 0 : i] = (double)report.step_ns * 1e-9;
    }
    qsort(in_memory, (size_t)repetitions, sizeof *in_memory, ascending);
    qsort(measured, (size_t)repetitions, sizeof *measured, ascending);
    double c = in_memory[repetitions / 2], m = measured[repetitions / 2];
    struct overlap_traffic t = overlap_traffic(&budgeted);
    double least = overlap_floor_seconds(&t, c);
    printf("%5.2f %6llu %7.3f %7.3f %7.3f  %5.3f [%5.3f, %5.3f]  %6.3f %6.3f  %6.3f\n",
           overlap_io_seconds(&t) / c, (unsigned long long)(host_bytes >> 20), c, least, m,
           m / least, measured[0] / least, measured[repetitions - 1] / least,
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
