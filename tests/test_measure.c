/*
 * What layout measures where no rates are given: in which order, of which numbers, how often. The
 * host device stands for a GPU by saying that its calls do not run on the CPU.
 */
#include "core/host.h"
#include "kernels/host.h"
#include "tests/support.h"
#include "zero/run.h"

#include <math.h>
#include <string.h>

static struct {
    bool gpu;
    uint32_t gemms, copies_to_host, gemms_after_copy;
} seen;

static void watched_info(struct weir_device *device, struct weir_device_info *out)
{
    weir_host_table.info(device, out);
    out->calls_run_on_cpu = !seen.gpu;
}

static enum weir_status watched_copy(struct weir_stream *stream, void *to, const void *from,
                                     uint64_t bytes, enum weir_copy direction)
{
    seen.copies_to_host += direction == WEIR_COPY_TO_HOST;
    return weir_host_table.copy(stream, to, from, bytes, direction);
}

/* Deviation 1 about 0, and no two rows of a small product alike. */
static void operand_check(const float *values)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < 256; i++) {
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    assert_true(fabs(sum / 256) < 0.5);
    assert_true(squares / 256 > 0.5 && squares / 256 < 2);
    assert_memory_not_equal(values, values + 16, 16 * sizeof *values);
}

static enum weir_status watched_gemm(struct weir_kernels *kernels, struct weir_stream *stream,
                                     const struct weir_gemm_args *args)
{
    if (seen.gemms++ == 0) { /* the first is 16 x 16 */
        WEIR_TRY(weir_host_table.stream_sync(stream));
        operand_check(args->a);
        operand_check(args->b);
    }
    seen.gemms_after_copy += seen.copies_to_host > 0;
    return weir_kernels_host.gemm(kernels, stream, args);
}

static void measured(bool gpu)
{
    struct weir_device_table device = weir_host_table;
    struct weir_kernels_table kernels = weir_kernels_host;
    struct weir_cost cost;
    weir_run *run;
    device.info = watched_info;
    device.copy = watched_copy;
    kernels.gemm = watched_gemm;
    memset(&seen, 0, sizeof seen);
    seen.gpu = gpu;
    assert_ok(weir_open_with(&run,
                             &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                    .device = "host",
                                                    .device_bytes = 512 << 10,
                                                    .host_bytes = 512 << 10,
                                                    .dtype = WEIR_FP32,
                                                    .grad_dtype = WEIR_FP32,
                                                    .thread_count = 1},
                             &(struct weir_seams){.device = &device, .kernels = &kernels}));
    assert_ok(weir_cost_measure(run, &cost));
    assert_true(cost.compute_flops_per_s > 0 && cost.to_device_bytes_per_s > 0 &&
                cost.to_host_bytes_per_s > 0 && cost.update_bytes_per_s > 0);
    assert_int_equal(gpu, cost.link_update_bytes_per_s > 0);
    assert_int_equal(0, seen.gemms_after_copy);
    assert_true(seen.gemms > 20);
    assert_true(seen.copies_to_host > 10); /* of a quarter of a MiB each, within 50 ms */
    weir_close(run);
}

/* The host's own device, and one beside it. */
static void products_of_ordinary_numbers_come_before_copies(void **state)
{
    (void)state;
    measured(false);
    measured(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_ordinary_numbers_come_before_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
