/*
 * Proves that the simulator can see. Small kernels, right ones and the same with one fault: right
 * ones give the same bits in every order of threads and no report; each fault is reported in the
 * builds that can see it, or changes results between orders. And warp operations and tensor-core
 * products give what CUDA's documents define.
 */
#include "kernels/kernels.h"
#include "tests/cudasim/faults.h"
#include "tests/cudasim/order.h"
#include "tests/support.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ELEMENTS (FAULT_BLOCKS * FAULT_THREADS)
#define DIFFER   "results differ between orders"

enum build { PLAIN, ADDRESS, THREAD };
#if defined(__SANITIZE_THREAD__)
static const enum build build = THREAD;
#elif defined(__SANITIZE_ADDRESS__)
static const enum build build = ADDRESS;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
static const enum build build = THREAD;
#elif __has_feature(address_sanitizer)
static const enum build build = ADDRESS;
#else
static const enum build build = PLAIN;
#endif
#else
static const enum build build = PLAIN;
#endif

#define RACE "ThreadSanitizer: data race"

/* What a run with the fault prints, by build; one text: in each. NULL: that build cannot see it. */
static const struct fault {
    const char *name;
    fault_launch *launch;
    const char *seen[3];
} faults[] = {
    {"reuse", fault_reuse, {DIFFER, DIFFER, RACE}},
    {"early_read", fault_early_read, {DIFFER, DIFFER, RACE}},
    {"lock_step", fault_lock_step, {DIFFER, DIFFER, RACE}},
    {"plain_add", fault_plain_add, {NULL, NULL, RACE}},
    {"unwritten", fault_unwritten, {DIFFER, DIFFER, DIFFER}},
    {"stale", fault_stale, {DIFFER, DIFFER, DIFFER}},
    {"overrun",
     fault_overrun,
     {"wrote byte 0 behind the 256 bytes of dynamic shared memory",
      "AddressSanitizer: heap-buffer-overflow", "wrote byte 0 behind the 256 bytes"}},
    {"static_overrun", fault_static_overrun, {NULL, "index 64 out of bounds", NULL}},
    {"odd_vector", fault_odd_vector, {NULL, "misaligned address", NULL}},
    {"divergent", fault_divergent, {"while others of its block wait at"}},
    {"early_exit", fault_early_exit, {"exits while 32 threads wait in a barrier"}},
    {"outside_mask", fault_outside_mask, {"reads lane 16, which is outside the mask 0000ffff"}},
    {"foreign_mask", fault_foreign_mask, {"lane 16 is not in its own mask 0000ffff"}},
    {"missing_lane", fault_missing_lane, {"nothing can go on; 0 of 64 threads are done"}},
    {"no_wait", fault_no_wait, {DIFFER, DIFFER, DIFFER}},
    {"wait_alone", fault_wait_alone, {DIFFER, DIFFER, RACE}},
    {"never_waited", fault_never_waited, {"exits with 1 asynchronous copies in flight"}},
    {"misaligned", fault_misaligned, {"both must be at multiples of 16 bytes"}},
    {"ldmatrix", fault_ldmatrix, {"is not at a multiple of 16 bytes"}},
    {"block_size", fault_block_size, {"1056 x 1 x 1 threads in a block; 1 to 1024 are allowed"}},
    {"shared_bytes", fault_shared_bytes, {"65536 bytes of dynamic shared memory, 49152 are"}},
    {"shared_most", fault_shared_most, {"asks for 102400 bytes of shared memory"}},
};
#define FAULT_COUNT (sizeof faults / sizeof *faults)

static const char *seen_by(const struct fault *fault)
{
    bool one = !fault->seen[1] && !fault->seen[2];
    return fault->seen[one ? PLAIN : build];
}

static cudaStream_t stream;

static int stream_make(void **state)
{
    (void)state;
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? 0 : -1;
}

static void fault_run(const struct fault *fault, bool planted, enum cudasim_order order,
                      uint64_t seed, uint32_t *out)
{
    uint32_t *in = aligned_alloc(64, ELEMENTS * sizeof *in);
    assert_non_null(in);
    for (uint32_t i = 0; i < ELEMENTS; i++)
        in[i] = i * 2654435761u + 1;
    memset(out, 0, ELEMENTS * sizeof *out);
    cudasim_thread_order(order, seed);
    assert_int_equal(0, fault->launch(stream, planted, in, out));
    assert_int_equal(0, cudaStreamSynchronize(stream));
    free(in);
}

/* True if all orders give the same bits. */
static bool orders_agree(const struct fault *fault, bool planted)
{
    uint32_t forward[ELEMENTS], other[ELEMENTS], written = 0;
    fault_run(fault, planted, CUDASIM_ORDER_FORWARD, 0, forward);
    for (uint32_t i = 0; i < ELEMENTS; i++)
        written += forward[i] != 0;
    assert_true(written > 0);
    fault_run(fault, planted, CUDASIM_ORDER_REVERSE, 0, other);
    bool same = memcmp(forward, other, sizeof forward) == 0;
    fault_run(fault, planted, CUDASIM_ORDER_RANDOM, 3, other);
    return same && memcmp(forward, other, sizeof forward) == 0;
}

/* Without its fault each kernel gives the same bits in every order, and nothing is reported (a
 * report would end the run: sanitizers' exit code). */
static void right_kernels_agree_in_every_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < FAULT_COUNT; i++)
        if (!orders_agree(&faults[i], false))
            fail_msg("kernel %s: %s", faults[i].name, DIFFER);
}

/* This program as a child with --fault, since most faults end the process. */
static void child_output(const char *name, char *text, size_t bytes)
{
    char program[512], command[600];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(length > 0);
    program[length] = '\0';
    snprintf(command, sizeof command, "'%s' --fault %s 2>&1", program, name);
    FILE *child = popen(command, "r");
    assert_non_null(child);
    size_t used = 0, got;
    while ((got = fread(text + used, 1, bytes - 1 - used, child)) > 0)
        used += got;
    text[used] = '\0';
    while (fgetc(child) != EOF)
        ;
    pclose(child);
}

/* Each planted fault is seen in this build, and by nothing else than what names it. */
static void planted_faults_are_seen(void **state)
{
    (void)state;
    static char text[1 << 16];
    size_t seen = 0;
    for (size_t i = 0; i < FAULT_COUNT; i++) {
        const char *expected = seen_by(&faults[i]);
        child_output(faults[i].name, text, sizeof text);
        if (expected && !strstr(text, expected))
            fail_msg("fault %s: \"%s\" is not in:\n%s", faults[i].name, expected, text);
        if (!expected && (strstr(text, DIFFER) || strstr(text, "cudasim:")))
            fail_msg("fault %s is seen though the table says no:\n%s", faults[i].name, text);
        seen += expected != NULL;
    }
    assert_true(seen >= FAULT_COUNT - 3);
}

static int fault_child(const char *name)
{
    stream_make(NULL);
    for (size_t i = 0; i < FAULT_COUNT; i++)
        if (strcmp(faults[i].name, name) == 0) {
            puts(orders_agree(&faults[i], true) ? "no order differs" : DIFFER);
            return 0;
        }
    return 2;
}

/* A seed fixes the random order; other seeds give others. */
static void seeds_fix_the_order(void **state)
{
    (void)state;
    if (build == THREAD)
        skip(); /* the kernel that shows the order has a race */
    uint32_t first[ELEMENTS], other[ELEMENTS], different = 0;
    fault_run(&faults[1], true, CUDASIM_ORDER_RANDOM, 1, first);
    for (uint64_t seed = 1; seed <= 8; seed++) {
        fault_run(&faults[1], true, CUDASIM_ORDER_RANDOM, seed, other);
        bool same = memcmp(first, other, sizeof first) == 0;
        assert_true(seed > 1 || same);
        different += !same;
    }
    assert_true(different >= 6);
}

/* a b of small integers, exact in bf16 and fp32, whatever the order of products. */
static void products_are_right(void **state)
{
    (void)state;
    struct test_random random = test_random_open(5);
    int a[16][16], b[16][8];
    uint16_t of_a[256], of_b[128];
    float c[128];
    for (int i = 0; i < 256; i++) {
        a[i / 16][i % 16] = (int)test_random_below(&random, 33) - 16;
        of_a[i] = weir_bf16_from_float((float)a[i / 16][i % 16]);
    }
    for (int i = 0; i < 128; i++) {
        b[i / 8][i % 8] = (int)test_random_below(&random, 33) - 16;
        of_b[i] = weir_bf16_from_float((float)b[i / 8][i % 8]);
    }
    for (int order = 0; order < CUDASIM_ORDER_COUNT; order++) {
        cudasim_thread_order((enum cudasim_order)order, 1);
        memset(c, 0, sizeof c);
        assert_int_equal(0, fault_product(stream, of_a, of_b, c));
        assert_int_equal(0, cudaStreamSynchronize(stream));
        for (int row = 0; row < 16; row++)
            for (int column = 0; column < 8; column++) {
                int sum = 0;
                for (int k = 0; k < 16; k++)
                    sum += a[row][k] * b[k][column];
                assert_true(c[row * 8 + column] == (float)sum);
            }
    }
}

static void shuffles_check(const int32_t (*out)[32])
{
    for (int lane = 0; lane < 32; lane++) {
        int of_eight = lane / 8 * 8, of_sixteen = lane / 16 * 16;
        assert_int_equal(100 + of_eight + (lane + 3) % 8, out[0][lane]);
        assert_int_equal(100 + (lane - of_sixteen < 5 ? lane : lane - 5), out[1][lane]);
        assert_int_equal(100 + (lane - of_sixteen > 10 ? lane : lane + 5), out[2][lane]);
        assert_int_equal(100 + (lane ^ 6), out[3][lane]);
        assert_int_equal(0x49249249, out[4][lane]); /* every third lane */
        assert_int_equal(1, out[5][lane]);
        assert_int_equal(20 + 100, out[6][lane]);
        assert_int_equal(2 * (31 - lane) + 1, out[7][lane]);
    }
}

/* Shuffles, votes and barriers that vote, as the CUDA guide defines them. */
static void warp_operations_are_right(void **state)
{
    (void)state;
    int32_t out[8][32];
    for (int order = 0; order < CUDASIM_ORDER_COUNT; order++) {
        cudasim_thread_order((enum cudasim_order)order, 1);
        memset(out, 0, sizeof out);
        assert_int_equal(0, fault_shuffles(stream, out[0]));
        assert_int_equal(0, cudaStreamSynchronize(stream));
        shuffles_check(out);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--fault") == 0)
        return fault_child(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernels_agree_in_every_order),
        cmocka_unit_test(planted_faults_are_seen),
        cmocka_unit_test(seeds_fix_the_order),
        cmocka_unit_test(products_are_right),
        cmocka_unit_test(warp_operations_are_right),
    };
    return cmocka_run_group_tests(tests, stream_make, NULL);
}
