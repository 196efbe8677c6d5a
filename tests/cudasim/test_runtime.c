/*
 * The simulator's own behaviour: what each schedule runs and when, that a seed fixes the order,
 * that nobody sleeps for ever, and that what is left over is told. What it refuses is in misuse.c.
 */
#include "tests/cudasim/runtime.h"
#include "tests/support.h"

#include <cuda_runtime_api.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS 3

static cudaStream_t streams[STREAMS];
/* Atomic: these tests look without waiting, to see what has run. */
static atomic_int list[64], list_count;

struct append {
    int value;
};

static void append_run(void *context)
{
    atomic_store(&list[atomic_fetch_add(&list_count, 1)], ((struct append *)context)->value);
}

static void append_queue(cudaStream_t stream, int value)
{
    struct append *append = malloc(sizeof *append);
    append->value = value;
    assert_int_equal(cudaSuccess, cudasim_launch(stream, "append", append_run, append, free));
}

static int streams_make(void **state)
{
    (void)state;
    list_count = 0;
    for (int s = 0; s < STREAMS; s++)
        assert_int_equal(cudaSuccess,
                         cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    return 0;
}

static int streams_destroy(void **state)
{
    (void)state;
    for (int s = 0; s < STREAMS; s++) {
        assert_int_equal(cudaSuccess, cudaStreamSynchronize(streams[s]));
        assert_int_equal(cudaSuccess, cudaStreamDestroy(streams[s]));
    }
    cudasim_schedule(CUDASIM_EAGER, 0);
    assert_int_equal(0, cudasim_leaks());
    return 0;
}

static cudaEvent_t event_make(void)
{
    cudaEvent_t event;
    assert_int_equal(cudaSuccess, cudaEventCreateWithFlags(&event, cudaEventDisableTiming |
                                                                       cudaEventBlockingSync));
    return event;
}

/* Eager: what can run has run when queueing returns, what waits has not. */
static void eager_runs_at_once(void **state)
{
    (void)state;
    cudasim_schedule(CUDASIM_EAGER, 0);
    append_queue(streams[1], 1);
    assert_int_equal(1, list_count);
    append_queue(streams[0], 2);
    assert_int_equal(2, list_count);
}

/* Lazy: a wait runs what it needs, through events and streams, and nothing else. */
static void lazy_runs_what_is_needed(void **state)
{
    (void)state;
    static const int needed[] = {1, 3};
    cudasim_schedule(CUDASIM_LAZY, 0);
    cudaEvent_t event = event_make();
    append_queue(streams[0], 1);
    assert_int_equal(cudaSuccess, cudaEventRecord(event, streams[0]));
    append_queue(streams[0], 2);
    assert_int_equal(cudaSuccess, cudaStreamWaitEvent(streams[1], event, 0));
    append_queue(streams[1], 3);
    append_queue(streams[2], 4);
    assert_int_equal(0, list_count);
    assert_int_equal(cudaSuccess, cudaStreamSynchronize(streams[1]));
    assert_int_equal(2, list_count);
    for (int i = 0; i < 2; i++)
        assert_int_equal(needed[i], list[i]);
    assert_int_equal(cudaSuccess, cudaEventDestroy(event));
}

static void drawn_order(uint64_t seed, int out[30])
{
    cudasim_schedule(CUDASIM_RANDOM, seed);
    list_count = 0;
    for (int n = 0; n < 30; n++)
        append_queue(streams[n % STREAMS], n);
    for (int s = 0; s < STREAMS; s++)
        assert_int_equal(cudaSuccess, cudaStreamSynchronize(streams[s]));
    assert_int_equal(30, list_count);
    for (int n = 0; n < 30; n++)
        out[n] = list[n];
}

/* Random: a seed gives one order, other seeds give others; a stream's own order always holds. */
static void random_order_is_the_seeds(void **state)
{
    (void)state;
    int orders[8][30], again[30], distinct = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        /* A caller that is kept off its core for milliseconds looks asleep, and the simulator goes
         * on by itself: another try. */
        for (int tries = 0; tries == 0 || memcmp(orders[seed], again, sizeof again) != 0; tries++) {
            assert_true(tries < 20);
            drawn_order(seed, orders[seed]);
            drawn_order(seed, again);
        }
        distinct += seed == 0 || memcmp(orders[seed], orders[seed - 1], sizeof again) != 0;
        for (int a = 0; a < 30; a++)
            for (int b = a + 1; b < 30; b++)
                assert_false(again[a] % STREAMS == again[b] % STREAMS && again[a] > again[b]);
    }
    assert_true(distinct >= 7);
}

static void CUDART_CB post(cudaStream_t stream, cudaError_t status, void *argument)
{
    (void)stream, (void)status;
    sem_post(argument);
}

/* A thread that sleeps until a host function wakes it is woken though nobody forces its stream, in
 * every schedule; and a poller gets on. */
static void sleepers_are_woken(void **state)
{
    (void)state;
    sem_t woken;
    sem_init(&woken, 0, 0);
    cudaEvent_t event = event_make();
    for (int mode = CUDASIM_EAGER; mode <= CUDASIM_RANDOM; mode++) {
        cudasim_schedule((enum cudasim_mode)mode, 5);
        for (int n = 0; n < 20; n++) {
            list_count = 0;
            append_queue(streams[0], n);
            assert_int_equal(cudaSuccess, cudaEventRecord(event, streams[0]));
            assert_int_equal(cudaSuccess, cudaStreamWaitEvent(streams[1], event, 0));
            assert_int_equal(cudaSuccess, cudaStreamAddCallback(streams[1], post, &woken, 0));
            while (sem_wait(&woken) != 0)
                ;
            assert_int_equal(1, list_count);
            append_queue(streams[2], n);
            assert_int_equal(cudaSuccess, cudaEventRecord(event, streams[2]));
            while (cudaEventQuery(event) == cudaErrorNotReady)
                ;
            assert_int_equal(2, list_count);
        }
    }
    assert_int_equal(cudaSuccess, cudaEventDestroy(event));
}

/* Fresh device memory holds no zeros, freed memory is gone from the count, what is left is told. */
static void memory_is_dirty_and_counted(void **state)
{
    (void)state;
    unsigned char *memory, *pinned = aligned_alloc(4096, 4096);
    size_t before, during, after, total;
    cudasim_memory(1 << 20);
    assert_int_equal(cudaSuccess, cudaMemGetInfo(&before, &total));
    assert_int_equal(1 << 20, total);
    assert_int_equal(cudaErrorMemoryAllocation, cudaMalloc((void **)&memory, before + 1));
    assert_int_equal(cudaSuccess, cudaMalloc((void **)&memory, 4096));
    assert_int_equal(cudaSuccess, cudaMemGetInfo(&during, &total));
    assert_int_equal(before - 4096, during);
    assert_int_equal(cudaSuccess, cudaHostRegister(pinned, 4096, cudaHostRegisterMapped));
    assert_int_equal(cudaSuccess,
                     cudaMemcpyAsync(pinned, memory, 4096, cudaMemcpyDeviceToHost, streams[0]));
    assert_int_equal(cudaSuccess, cudaStreamSynchronize(streams[0]));
    for (int i = 0; i < 4096; i++)
        assert_int_equal(0xCB, pinned[i]);
    assert_int_equal(STREAMS + 2, cudasim_leaks());
    assert_int_equal(cudaSuccess, cudaHostUnregister(pinned));
    assert_int_equal(cudaSuccess, cudaFree(memory));
    assert_int_equal(cudaSuccess, cudaMemGetInfo(&after, &total));
    assert_int_equal(before, after);
    cudasim_memory((uint64_t)80 << 30);
    free(pinned);
}

/* A wait for an event that was never recorded passes, and is counted. */
static void unrecorded_waits_are_counted(void **state)
{
    (void)state;
    cudaEvent_t event = event_make();
    uint64_t before = cudasim_unrecorded_waits();
    assert_int_equal(cudaSuccess, cudaStreamWaitEvent(streams[0], event, 0));
    assert_int_equal(before + 1, cudasim_unrecorded_waits());
    assert_int_equal(cudaSuccess, cudaEventQuery(event));
    assert_int_equal(cudaSuccess, cudaEventDestroy(event));
}

#define CASE(behaviour) cmocka_unit_test_setup_teardown(behaviour, streams_make, streams_destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(eager_runs_at_once),          CASE(lazy_runs_what_is_needed),
        CASE(random_order_is_the_seeds),   CASE(sleepers_are_woken),
        CASE(memory_is_dirty_and_counted), CASE(unrecorded_waits_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
