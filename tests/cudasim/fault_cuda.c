/*
 * Failures of CUDA on the simulated runtime: whatever call fails, the device tells it once at that
 * call and at every later one with CUDA's text, nothing hangs, and everything is given back. And
 * what open says of machines that cannot do it.
 */
#include "core/cuda_internal.h"
#include "core/memory.h"
#include "tests/cudasim/runtime.h"
#include "tests/support_device.h"

#include <cuda_runtime_api.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_BYTES ((uint64_t)5 << 20)
#define SMALL_BYTES 1000
#define OWN_BYTES   8192
#define PIECE_BYTES 4096

static const struct weir_device_table *table;

/* ---- a program that makes every call that there is. Each step returns at its first failure. */

struct program {
    struct weir_device *device;
    struct weir_stream *streams[2];
    struct weir_event *event;
    void *large, *small, *pinned;
    unsigned char *own;
    bool registered;
    sem_t woken;
    uint64_t calls_queued;
};

static void wake(void *argument)
{
    sem_post(*(sem_t **)argument);
}

static enum weir_status program_make(struct program *p)
{
    struct weir_device_options options = {.memory_bytes = TEST_MEMORY_BYTES, .strict = true};
    WEIR_TRY(table->open(&p->device, &options));
    WEIR_TRY(table->mem_alloc(p->device, LARGE_BYTES, &p->large));
    WEIR_TRY(table->mem_alloc(p->device, SMALL_BYTES, &p->small));
    WEIR_TRY(table->pin_alloc(p->device, LARGE_BYTES, &p->pinned));
    WEIR_TRY(table->pin_register(p->device, p->own, OWN_BYTES));
    p->registered = true;
    for (int s = 0; s < 2; s++)
        WEIR_TRY(table->stream_create(p->device, WEIR_ENGINE_COMPUTE, "s", &p->streams[s]));
    return table->event_create(p->device, &p->event);
}

static enum weir_status wake_queue(struct program *p, struct weir_stream *stream)
{
    sem_t *woken = &p->woken;
    WEIR_TRY(table->call(stream, wake, &woken, sizeof woken, NULL, 0));
    p->calls_queued++;
    return WEIR_OK;
}

static enum weir_status program_work(struct program *p)
{
    bool complete;
    WEIR_TRY(table->fill(p->streams[0], p->small, 7, SMALL_BYTES));
    WEIR_TRY(table->copy(p->streams[0], p->large, p->pinned, LARGE_BYTES, WEIR_COPY_TO_DEVICE));
    WEIR_TRY(table->copy(p->streams[0], p->large, p->small, SMALL_BYTES, WEIR_COPY_ON_DEVICE));
    WEIR_TRY(table->event_record(p->streams[0], p->event));
    WEIR_TRY(table->event_wait(p->streams[1], p->event));
    WEIR_TRY(table->copy(p->streams[1], p->own, p->large, OWN_BYTES, WEIR_COPY_TO_HOST));
    WEIR_TRY(wake_queue(p, p->streams[1]));
    WEIR_TRY(table->event_query(p->event, &complete));
    WEIR_TRY(table->event_sync(p->event));
    WEIR_TRY(table->stream_sync(p->streams[1]));
    if (p->own[0] != 7 || p->own[SMALL_BYTES - 1] != 7)
        return weir_fail(WEIR_ERR_CORRUPT, "the bytes did not travel");
    return table->stream_sync(p->streams[0]);
}

static void keep_first(enum weir_status *first, struct weir_error *error, enum weir_status status)
{
    if (status == WEIR_OK || *first != WEIR_OK)
        return;
    *first = status;
    *error = *weir_last_error();
}

/* Whether a failure was told and is the device's, every later call tells the same. */
static void expect_sticky(struct program *p, const struct weir_error *error)
{
    void *memory;
    if (p->device == NULL || error->status != WEIR_ERR_DEVICE)
        return;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(WEIR_ERR_DEVICE, table->mem_alloc(p->device, 1, &memory));
        assert_string_equal(error->text, weir_last_error()->text);
    }
}

static enum weir_status program_free(struct program *p, enum weir_status first,
                                     struct weir_error *error)
{
    if (p->event)
        table->event_destroy(p->event);
    for (int s = 0; s < 2; s++)
        if (p->streams[s])
            table->stream_destroy(p->streams[s]);
    /* Destroying the streams has waited for their calls: each has run, also after a failure. */
    for (uint64_t n = 0; n < p->calls_queued; n++)
        assert_int_equal(0, sem_trywait(&p->woken));
    if (p->large)
        keep_first(&first, error, table->mem_free(p->device, p->large));
    if (p->small)
        keep_first(&first, error, table->mem_free(p->device, p->small));
    if (p->pinned)
        keep_first(&first, error, table->pin_free(p->device, p->pinned));
    if (p->registered)
        keep_first(&first, error, table->pin_unregister(p->device, p->own));
    if (p->device)
        table->close(p->device);
    return first;
}

/* The program from open to close; the first failure in *error. Nothing may be left. */
static enum weir_status program_run(struct weir_error *error)
{
    struct program p = {.own = aligned_alloc(4096, OWN_BYTES)};
    assert_non_null(p.own);
    sem_init(&p.woken, 0, 0);
    uint64_t held_bytes = weir_alloc_bytes();
    enum weir_status first = WEIR_OK, status = program_make(&p);
    if (status == WEIR_OK)
        status = program_work(&p);
    keep_first(&first, error, status);
    if (first != WEIR_OK)
        expect_sticky(&p, error);
    status = program_free(&p, first, error);
    assert_int_equal(held_bytes, weir_alloc_bytes());
    assert_int_equal(0, cudasim_leaks());
    free(p.own);
    return status;
}

/* ---- every call, then every operation */

static void expect_told(enum weir_status status, const struct weir_error *error, int code)
{
    const char *name = cudaGetErrorName((cudaError_t)code);
    if (code == cudaErrorMemoryAllocation && status == WEIR_ERR_NOMEM)
        return;
    if (status == WEIR_ERR_NOMEM && test_contains(error->text, "cannot pin") &&
        test_contains(error->text, name))
        return; /* of memory that is not pinned the device knows nothing */
    if (status != WEIR_ERR_DEVICE || error->device_code != code ||
        !test_contains(error->text, name))
        fail_msg("%s: %s", weir_status_name(status), error->text);
}

/* The nth call fails, for every n, also where pinned memory is many pieces. A program of which only
 * a call of close fails may not hear of it: there is nobody left to tell, and close has told all
 * that it could. */
static void failing_calls_check(void)
{
    static const int codes[] = {cudaErrorIllegalAddress, cudaErrorMemoryAllocation};
    struct weir_error error;
    uint64_t told = 0, calls = 0;
    for (size_t c = 0; c < sizeof codes / sizeof *codes; c++) {
        (void)cudasim_fail_at(0, 0);
        assert_ok(program_run(&error));
        calls = cudasim_fail_at(0, 0);
        told = 0;
        for (uint64_t n = 1; n <= calls; n++) {
            (void)cudasim_fail_at(n, codes[c]);
            enum weir_status status = program_run(&error);
            if (status != WEIR_OK) {
                expect_told(status, &error, codes[c]);
                told++;
            }
        }
        (void)cudasim_fail_at(0, 0);
    }
    print_message("%llu calls, %llu failures told\n", (unsigned long long)calls,
                  (unsigned long long)told);
    assert_true(calls > 30);
    /* cudaMemGetInfo is not among them; all are told: what frees is followed by a call that tells.
     */
    assert_int_equal(calls, told);
}

static void every_failing_call_is_told_and_leaks_nothing(void **state)
{
    (void)state;
    uint64_t whole_bytes = weir_cuda_piece_bytes;
    failing_calls_check();
    weir_cuda_piece_bytes = LARGE_BYTES / 5;
    cudasim_register_most(LARGE_BYTES / 5, cudaErrorMemoryAllocation);
    failing_calls_check();
    cudasim_register_most(UINT64_MAX, 0);
    weir_cuda_piece_bytes = whole_bytes;
}

/* The nth operation fails on the device, for every n and schedule: some later call tells, and the
 * thread that waits for its call is woken. */
static void every_failing_operation_is_told_and_hangs_nobody(void **state)
{
    (void)state;
    struct weir_error error;
    for (uint64_t seed = 0; seed < 10; seed++) {
        cudasim_schedule(seed == 0   ? CUDASIM_EAGER
                         : seed == 1 ? CUDASIM_LAZY
                                     : CUDASIM_RANDOM,
                         seed);
        (void)cudasim_fail_operation_at(0, 0);
        assert_ok(program_run(&error));
        uint64_t operations = cudasim_fail_operation_at(0, 0);
        assert_int_equal(4, operations);
        for (uint64_t n = 1; n <= operations; n++) {
            (void)cudasim_fail_operation_at(n, cudaErrorLaunchFailure);
            enum weir_status status = program_run(&error);
            assert_true(status != WEIR_OK);
            expect_told(status, &error, cudaErrorLaunchFailure);
            assert_true(test_contains(error.text, "unspecified launch failure"));
            cudasim_reset();
        }
    }
    (void)cudasim_fail_operation_at(0, 0);
    cudasim_schedule(CUDASIM_EAGER, 0);
}

/* A thread asleep until a call wakes it is woken after a failure too, and then finds it. */
static void sleeper_is_woken_after_a_failure(void **state)
{
    (void)state;
    struct program p = {.own = aligned_alloc(4096, OWN_BYTES)};
    struct weir_error error = {0};
    bool complete = false;
    sem_init(&p.woken, 0, 0);
    cudasim_schedule(CUDASIM_LAZY, 0);
    assert_ok(program_make(&p));
    (void)cudasim_fail_operation_at(1, cudaErrorECCUncorrectable);
    assert_ok(table->fill(p.streams[0], p.small, 1, 1));
    assert_ok(wake_queue(&p, p.streams[0]));
    assert_ok(table->event_record(p.streams[0], p.event));
    while (sem_wait(&p.woken) != 0)
        ;
    p.calls_queued = 0;
    assert_fails(table->event_query(p.event, &complete), WEIR_ERR_DEVICE,
                 "cudaErrorECCUncorrectable");
    assert_true(complete);
    error = *weir_last_error();
    assert_int_equal(WEIR_ERR_DEVICE, program_free(&p, WEIR_ERR_DEVICE, &error));
    assert_int_equal(0, cudasim_leaks());
    free(p.own);
    cudasim_reset();
    cudasim_schedule(CUDASIM_EAGER, 0);
}

static void log_keep(void *context, enum weir_log_level level, const char *message)
{
    (void)level;
    snprintf(context, 512, "%s", message);
}

/* A stream of a GPU that falls off the bus with its first fill: its calls never run. */
static void lost_make(struct program *p, struct weir_log *log)
{
    struct weir_device_options options = {.memory_bytes = TEST_MEMORY_BYTES, .log = log};
    weir_cuda_patience_ns = 20000000;
    cudasim_schedule(CUDASIM_LAZY, 0);
    sem_init(&p->woken, 0, 0);
    assert_ok(table->open(&p->device, &options));
    assert_ok(table->mem_alloc(p->device, SMALL_BYTES, &p->small));
    assert_ok(table->stream_create(p->device, WEIR_ENGINE_COMPUTE, "lost", &p->streams[0]));
    cudasim_lose_callbacks(1);
    (void)cudasim_fail_operation_at(1, cudaErrorLaunchFailure);
    assert_ok(table->fill(p->streams[0], p->small, 1, 1));
    assert_ok(wake_queue(p, p->streams[0]));
}

static void lost_forget(uint64_t patience_ns)
{
    static uint64_t left_behind;
    assert_int_equal(++left_behind, cudasim_leaks()); /* the stream, as it says */
    cudasim_lose_callbacks(0);
    cudasim_reset();
    cudasim_schedule(CUDASIM_EAGER, 0);
    weir_cuda_patience_ns = patience_ns;
}

/* A driver that has lost its GPU never runs what is queued: close waits for a while, says what it
 * leaves behind, and ends. */
static void close_gives_up_on_calls_that_never_run(void **state)
{
    (void)state;
    char text[512] = "";
    struct weir_log log = {.fn = log_keep, .context = text};
    struct program p = {0};
    uint64_t patience_ns = weir_cuda_patience_ns, held_bytes = weir_alloc_bytes();
    lost_make(&p, &log);
    table->close(p.device);
    assert_true(test_contains(text, "stream \"lost\": 1 of 1 calls have not run 20 ms after CUDA "
                                    "failed"));
    assert_int_equal(-1, sem_trywait(&p.woken));
    assert_in_range(weir_alloc_bytes() - held_bytes, sizeof(struct cuda_stream),
                    sizeof(struct cuda_stream) + 100);
    lost_forget(patience_ns);
}

/* Who finds such a stream full is told, and does not wait for room that never comes. */
static void full_stream_of_a_lost_gpu_is_told(void **state)
{
    (void)state;
    char text[512] = "";
    struct weir_log log = {.fn = log_keep, .context = text};
    struct program p = {0};
    uint64_t patience_ns = weir_cuda_patience_ns;
    enum weir_status status = WEIR_OK;
    lost_make(&p, &log);
    for (uint32_t i = 0; status == WEIR_OK && i < 2 * WEIR_STREAM_DEPTH; i++)
        status = wake_queue(&p, p.streams[0]);
    assert_int_equal(WEIR_ERR_DEVICE, status);
    assert_true(test_contains(weir_last_error()->text, "cudaStreamQuery"));
    table->close(p.device);
    lost_forget(patience_ns);
}

/* ---- memory, and machines */

/* A device with less memory than the bound says so with both figures, and goes on. */
static void device_out_of_memory_tells_its_figures(void **state)
{
    (void)state;
    struct weir_device *device;
    struct weir_device_options options = {.memory_bytes = (uint64_t)64 << 20};
    struct weir_device_info info;
    void *memory, *more;
    cudasim_memory((uint64_t)16 << 20);
    assert_ok(table->open(&device, &options));
    assert_ok(table->mem_alloc(device, (uint64_t)8 << 20, &memory));
    assert_fails(table->mem_alloc(device, (uint64_t)10 << 20, &more), WEIR_ERR_NOMEM,
                 "need 10485760 bytes, the GPU has 8388608 of 16777216 free, weir holds 8388608");
    table->info(device, &info);
    assert_int_equal((uint64_t)16 << 20, info.memory_bytes);
    assert_int_equal((uint64_t)8 << 20, info.memory_used_bytes);
    assert_string_equal("Simulated GPU, 16 MiB", info.name);
    assert_false(info.calls_run_on_cpu);
    assert_ok(table->mem_alloc(device, (uint64_t)8 << 20, &more));
    assert_ok(table->mem_free(device, memory));
    assert_ok(table->mem_free(device, more));
    table->close(device);
    assert_int_equal(0, cudasim_leaks());
    cudasim_memory((uint64_t)80 << 30);
}

/* Memory is pinned in pieces, and copies are cut where it is: the simulator refuses more than a
 * piece, and ends a program that copies across two. */
static void pinned_memory_is_cut_at_multiples_of_the_address(void **state)
{
    (void)state;
    struct weir_device *device;
    struct weir_device_options options = {.memory_bytes = TEST_MEMORY_BYTES, .strict = true};
    struct weir_stream *stream;
    void *memory, *pinned;
    unsigned char *own = aligned_alloc(PIECE_BYTES, 4 * PIECE_BYTES);
    uint64_t whole_bytes = weir_cuda_piece_bytes, bytes = 3 * PIECE_BYTES - 100;
    weir_cuda_piece_bytes = PIECE_BYTES;
    cudasim_register_most(PIECE_BYTES, cudaErrorInvalidValue);
    assert_ok(table->open(&device, &options));
    assert_ok(table->stream_create(device, WEIR_ENGINE_COMPUTE, "s", &stream));
    assert_ok(table->mem_alloc(device, bytes, &memory));
    assert_ok(table->pin_alloc(device, bytes, &pinned));
    assert_ok(table->pin_register(device, own + 300, bytes)); /* four pieces: the first is short */
    for (uint64_t i = 0; i < bytes; i++)
        own[300 + i] = (unsigned char)(i * 7 + i / PIECE_BYTES);
    assert_ok(table->copy(stream, memory, own + 300, bytes, WEIR_COPY_TO_DEVICE));
    assert_ok(
        table->copy(stream, (char *)pinned + 1, (char *)memory + 1, bytes - 1, WEIR_COPY_TO_HOST));
    assert_ok(table->stream_sync(stream));
    assert_memory_equal((char *)pinned + 1, own + 301, bytes - 1);
    table->stream_destroy(stream);
    assert_ok(table->pin_unregister(device, own + 300));
    assert_ok(table->pin_free(device, pinned));
    assert_ok(table->mem_free(device, memory));
    table->close(device);
    assert_int_equal(0, cudasim_leaks());
    cudasim_register_most(UINT64_MAX, 0);
    weir_cuda_piece_bytes = whole_bytes;
    free(own);
}

/* A machine that pins no more says how far it came and why; what it had pinned is free again, and
 * the device goes on. */
static void memory_that_cannot_be_pinned_is_no_fault_of_the_device(void **state)
{
    (void)state;
    struct weir_device *device;
    struct weir_device_options options = {.memory_bytes = TEST_MEMORY_BYTES, .strict = true};
    void *pinned;
    uint64_t whole_bytes = weir_cuda_piece_bytes;
    weir_cuda_piece_bytes = PIECE_BYTES;
    assert_ok(table->open(&device, &options));
    for (uint64_t nth = 1; nth <= 3; nth++) {
        cudasim_fail_only("cudaHostRegister");
        (void)cudasim_fail_at(nth, cudaErrorInvalidValue);
        assert_fails(table->pin_alloc(device, 3 * PIECE_BYTES, &pinned), WEIR_ERR_NOMEM,
                     "cudaErrorInvalidValue, invalid argument, at a piece of 4096 bytes after ");
        assert_int_equal(0, cudasim_leaks());
        cudasim_fail_only(NULL);
        (void)cudasim_fail_at(0, 0);
    }
    assert_ok(table->pin_alloc(device, 3 * PIECE_BYTES, &pinned));
    assert_ok(table->pin_free(device, pinned));
    table->close(device);
    weir_cuda_piece_bytes = whole_bytes;
}

/* The tables of a mapping may find no memory where the memory itself was got: no fault either. */
static void no_memory_for_a_mapping_is_no_fault_of_the_device(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap",
                                        "cuMemSetAccess"};
    struct weir_device *device;
    struct weir_device_options options = {.memory_bytes = TEST_MEMORY_BYTES, .strict = true};
    void *memory;
    assert_ok(table->open(&device, &options));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        cudasim_fail_only(calls[i]);
        (void)cudasim_fail_at(1, cudaErrorMemoryAllocation);
        assert_fails(table->mem_alloc(device, LARGE_BYTES, &memory), WEIR_ERR_NOMEM,
                     "need 5242880 bytes, the GPU has ");
        assert_int_equal(0, cudasim_leaks());
        cudasim_fail_only(NULL);
        (void)cudasim_fail_at(0, 0);
    }
    assert_ok(table->mem_alloc(device, LARGE_BYTES, &memory));
    assert_ok(table->mem_free(device, memory));
    table->close(device);
}

/* Small pieces take what they need of the bound, not a granule each. */
static void small_pieces_are_packed(void **state)
{
    (void)state;
    struct weir_device *device;
    struct weir_device_options options = {.memory_bytes = 64000};
    void *pieces[64];
    cudasim_memory((uint64_t)2 << 20);
    assert_ok(table->open(&device, &options));
    for (int i = 0; i < 64; i++)
        assert_ok(table->mem_alloc(device, 1000, &pieces[i]));
    for (int i = 0; i < 64; i++)
        assert_ok(table->mem_free(device, pieces[i]));
    table->close(device);
    assert_int_equal(0, cudasim_leaks());
    cudasim_memory((uint64_t)80 << 30);
}

static void expect_refused(int driver, int count, int major, const char *text)
{
    struct weir_device *device;
    struct weir_device_options options = {.memory_bytes = UINT64_MAX};
    cudasim_machine(driver, count, major, 5);
    assert_fails(table->open(&device, &options), WEIR_ERR_UNSUPPORTED, text);
    assert_int_equal(0, cudasim_leaks());
    cudasim_machine(CUDART_VERSION, 1, 9, 0);
}

/* Each machine that cannot do it is refused with a line of its own. */
static void unfit_machines_are_refused_by_cause(void **state)
{
    (void)state;
    expect_refused(0, 1, 9, "no NVIDIA driver is loaded (CUDA runtime ");
    expect_refused(11080, 1, 9, "the NVIDIA driver is for CUDA 11.8, too old");
    expect_refused(CUDART_VERSION, 0, 9, "shows no GPU");
    expect_refused(CUDART_VERSION, 1, 7, "Simulated GPU has compute capability 7.5, 8.0 is needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failing_call_is_told_and_leaks_nothing),
        cmocka_unit_test(every_failing_operation_is_told_and_hangs_nobody),
        cmocka_unit_test(sleeper_is_woken_after_a_failure),
        cmocka_unit_test(device_out_of_memory_tells_its_figures),
        cmocka_unit_test(pinned_memory_is_cut_at_multiples_of_the_address),
        cmocka_unit_test(memory_that_cannot_be_pinned_is_no_fault_of_the_device),
        cmocka_unit_test(no_memory_for_a_mapping_is_no_fault_of_the_device),
        cmocka_unit_test(small_pieces_are_packed),
        cmocka_unit_test(unfit_machines_are_refused_by_cause),
        cmocka_unit_test(close_gives_up_on_calls_that_never_run), /* each leaves a stream behind */
        cmocka_unit_test(full_stream_of_a_lost_gpu_is_told),
    };
    if (weir_device_find("cuda", &table) != WEIR_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
