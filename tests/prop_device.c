/*
 * Random programs over five streams, ordered by events alone, against a model that runs each
 * operation when it is queued: if an event ordered too little, bytes would differ (and
 * ThreadSanitizer would say so); if a stream hung, the test would.
 */
#include "tests/support_device.h"

#include <pthread.h>
#include <string.h>

#define AREAS      10 /* the first half in device memory, the others pinned */
#define AREA_BYTES 3001

struct program {
    struct test_device device;
    struct test_random *random;
    unsigned char *areas[AREAS], model[AREAS][AREA_BYTES];
    /* who touched an area last: bits of streams not yet waited for by all */
    int writer[AREAS];       /* a stream, or -1 */
    unsigned readers[AREAS]; /* bits of streams since the last write */
    struct weir_event *events[STREAM_COUNT];
    /* the caller's way to device memory that is not the CPU's */
    struct weir_stream *look;
    unsigned char *looked;
};

static struct test_variant variants[TEST_VARIANTS];

static bool on_device(int area)
{
    return area < AREAS / 2;
}

/* Bytes that the caller may read and write where the area's stand; then area_put takes them back.
 */
static unsigned char *area_get(struct program *program, int area)
{
    struct test_device *d = &program->device;
    if (d->cpu || !on_device(area))
        return program->areas[area];
    assert_ok(d->table->copy(program->look, program->looked, program->areas[area], AREA_BYTES,
                             WEIR_COPY_TO_HOST));
    assert_ok(d->table->stream_sync(program->look));
    return program->looked;
}

static void area_put(struct program *program, int area)
{
    struct test_device *d = &program->device;
    if (d->cpu || !on_device(area))
        return;
    assert_ok(d->table->copy(program->look, program->areas[area], program->looked, AREA_BYTES,
                             WEIR_COPY_TO_DEVICE));
    assert_ok(d->table->stream_sync(program->look));
}

static void program_open(struct program *program, struct test_random *random, bool strict)
{
    *program = (struct program){.random = random};
    struct test_device *d = &program->device;
    test_device_open(d, variants[strict], test_random_next(random));
    void *looked;
    assert_ok(d->table->stream_create(d->device, WEIR_ENGINE_TO_HOST, "look", &program->look));
    assert_ok(d->table->pin_alloc(d->device, AREA_BYTES, &looked));
    program->looked = looked;
    for (int a = 0; a < AREAS; a++) {
        void *memory;
        if (on_device(a))
            assert_ok(d->table->mem_alloc(d->device, AREA_BYTES, &memory));
        else
            assert_ok(d->table->pin_alloc(d->device, AREA_BYTES, &memory));
        program->areas[a] = memory;
        memset(area_get(program, a), a, AREA_BYTES);
        area_put(program, a);
        memset(program->model[a], a, AREA_BYTES);
        program->writer[a] = -1;
    }
    for (int s = 0; s < STREAM_COUNT; s++)
        assert_ok(d->table->event_create(d->device, &program->events[s]));
}

static void program_close(struct program *program)
{
    struct test_device *d = &program->device;
    for (int s = 0; s < STREAM_COUNT; s++)
        d->table->event_destroy(program->events[s]);
    for (int a = 0; a < AREAS; a++)
        assert_ok(on_device(a) ? d->table->mem_free(d->device, program->areas[a])
                               : d->table->pin_free(d->device, program->areas[a]));
    d->table->stream_destroy(program->look);
    assert_ok(d->table->pin_free(d->device, program->looked));
    test_device_close(d);
}

/* ---- dependences: stream s is about to read or write an area */

static unsigned touched_by(const struct program *program, int area, bool write)
{
    unsigned streams = program->writer[area] >= 0 ? 1u << program->writer[area] : 0;
    return write ? streams | program->readers[area] : streams;
}

/* One event a stream, recorded anew each time, while earlier waits for it may still be queued. */
static void order_after(struct program *program, int stream, unsigned others)
{
    struct test_device *d = &program->device;
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s != stream && (others & 1u << s)) {
            assert_ok(d->table->event_record(d->streams[s], program->events[s]));
            assert_ok(d->table->event_wait(d->streams[stream], program->events[s]));
        }
}

static void touch(struct program *program, int stream, int area, bool write)
{
    if (write) {
        program->writer[area] = stream;
        program->readers[area] = 0;
    } else {
        program->readers[area] |= 1u << stream;
    }
}

static void order_operation(struct program *program, int stream, int to, int from)
{
    order_after(program, stream, touched_by(program, to, true) | touched_by(program, from, false));
    touch(program, stream, from, false);
    touch(program, stream, to, true);
}

/* ---- operations */

struct mix {
    unsigned char *to;
    const unsigned char *from;
    unsigned char factor;
};

static void mix_run(void *argument)
{
    struct mix *mix = argument;
    for (int i = 0; i < AREA_BYTES; i++)
        mix->to[i] = (unsigned char)(mix->to[i] * mix->factor + mix->from[AREA_BYTES - 1 - i]);
}

static void queue_mix(struct program *program, int stream, int to, int from)
{
    struct test_device *d = &program->device;
    if (to == from || (!d->cpu && (on_device(to) || on_device(from))))
        return;
    unsigned char factor = (unsigned char)(2 * test_random_below(program->random, 100) + 1);
    struct mix mix = {program->areas[to], program->areas[from], factor};
    struct mix model = {program->model[to], program->model[from], factor};
    struct weir_range ranges[] = {{mix.to, AREA_BYTES, true}, {mix.from, AREA_BYTES, false}};
    order_operation(program, stream, to, from);
    assert_ok(d->table->call(d->streams[stream], mix_run, &mix, sizeof mix, ranges, 2));
    mix_run(&model);
}

static void queue_copy(struct program *program, int stream, int to, int from)
{
    struct test_device *d = &program->device;
    if (to == from || (!on_device(to) && !on_device(from)))
        return;
    enum weir_copy direction = !on_device(to)    ? WEIR_COPY_TO_HOST
                               : on_device(from) ? WEIR_COPY_ON_DEVICE
                                                 : WEIR_COPY_TO_DEVICE;
    uint64_t at = test_random_below(program->random, AREA_BYTES);
    uint64_t bytes = test_random_below(program->random, AREA_BYTES - at) + 1;
    order_operation(program, stream, to, from);
    assert_ok(d->table->copy(d->streams[stream], program->areas[to] + at, program->areas[from] + at,
                             bytes, direction));
    memcpy(program->model[to] + at, program->model[from] + at, bytes);
}

static void queue_fill(struct program *program, int stream, int to)
{
    struct test_device *d = &program->device;
    if (!on_device(to))
        return;
    unsigned char value = (unsigned char)test_random_next(program->random);
    uint64_t bytes = test_random_below(program->random, AREA_BYTES) + 1;
    order_operation(program, stream, to, to);
    assert_ok(d->table->fill(d->streams[stream], program->areas[to], value, bytes));
    memset(program->model[to], value, bytes);
}

/* The caller looks at an area, then changes it, after the events of all who touched it. */
static void look_and_change(struct program *program, int area)
{
    struct test_device *d = &program->device;
    unsigned streams = touched_by(program, area, true);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (streams & 1u << s) {
            assert_ok(d->table->event_record(d->streams[s], program->events[s]));
            assert_ok(d->table->event_sync(program->events[s]));
        }
    unsigned char *bytes = area_get(program, area);
    assert_memory_equal(program->model[area], bytes, AREA_BYTES);
    bytes[7] = program->model[area][7] = (unsigned char)test_random_next(program->random);
    area_put(program, area);
    program->writer[area] = -1;
    program->readers[area] = 0;
}

static void program_step(struct program *program)
{
    int stream = (int)test_random_below(program->random, STREAM_COUNT);
    int to = (int)test_random_below(program->random, AREAS);
    int from = (int)test_random_below(program->random, AREAS);
    switch (test_random_below(program->random, 16)) {
    case 0:
        look_and_change(program, to);
        break;
    case 1:
    case 2:
        queue_fill(program, stream, to);
        break;
    case 3:
    case 4:
    case 5:
    case 6:
        queue_mix(program, stream, to, from);
        break;
    default:
        queue_copy(program, stream, to, from);
    }
}

/* Whatever the program, the areas end as the sequential model's. */
static void random_programs_match_the_sequential_model(void **state)
{
    (void)state;
    struct test_random random = test_random_open(3);
    static struct program program;
    for (uint32_t n = 0; n < test_draws(12); n++) {
        program_open(&program, &random, n % 2 == 1);
        for (int i = 0; i < 600; i++)
            program_step(&program);
        for (int a = 0; a < AREAS; a++)
            look_and_change(&program, a);
        program_close(&program);
    }
}

/* ---- two threads */

struct pipeline {
    struct test_device device;
    void *pinned_in, *pinned_out, *memory; /* through device memory and back, then one more */
    struct weir_event *arrived, *left;
    sem_t filled, emptied;
    int rounds;
};

static void add_one(void *argument)
{
    ++**(uint64_t **)argument;
}

/* The second thread fetches what the first one sent, and computes on it. */
static void *pipeline_main(void *argument)
{
    struct pipeline *p = argument;
    struct test_device *d = &p->device;
    for (int n = 0; n < p->rounds; n++) {
        while (sem_wait(&p->filled) != 0)
            ;
        enum weir_status status = d->table->event_wait(d->streams[COMPUTE], p->arrived);
        struct weir_range range = {p->pinned_out, 8, true};
        if (status == WEIR_OK)
            status =
                d->table->copy(d->streams[COMPUTE], p->pinned_out, p->memory, 8, WEIR_COPY_TO_HOST);
        if (status == WEIR_OK)
            status = d->table->call(d->streams[COMPUTE], add_one, &p->pinned_out,
                                    sizeof p->pinned_out, &range, 1);
        if (status == WEIR_OK)
            status = d->table->event_record(d->streams[COMPUTE], p->left);
        sem_post(&p->emptied);
        if (status != WEIR_OK)
            return p;
    }
    return NULL;
}

/* Two threads hand work on through streams of their own; each round's number comes back plus one,
 * though both threads and both engines sleep and wake each other all the time. */
static void two_threads_hand_work_on(void **state)
{
    (void)state;
    static struct pipeline p;
    struct test_device *d = &p.device;
    test_device_open(d, variants[0], 1);
    assert_ok(d->table->mem_alloc(d->device, 8, &p.memory));
    assert_ok(d->table->pin_alloc(d->device, 8, &p.pinned_in));
    assert_ok(d->table->pin_alloc(d->device, 8, &p.pinned_out));
    assert_ok(d->table->event_create(d->device, &p.arrived));
    assert_ok(d->table->event_create(d->device, &p.left));
    sem_init(&p.filled, 0, 0);
    sem_init(&p.emptied, 0, 0);
    p.rounds = (int)test_draws(3000);
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, pipeline_main, &p));
    for (uint64_t n = 0; n < (uint64_t)p.rounds; n++) {
        *(uint64_t *)p.pinned_in = n;
        assert_ok(
            d->table->copy(d->streams[TO_DEVICE], p.memory, p.pinned_in, 8, WEIR_COPY_TO_DEVICE));
        assert_ok(d->table->event_record(d->streams[TO_DEVICE], p.arrived));
        sem_post(&p.filled);
        while (sem_wait(&p.emptied) != 0)
            ;
        assert_ok(d->table->event_sync(p.left));
        assert_int_equal(n + 1, *(uint64_t *)p.pinned_out);
    }
    void *failed;
    assert_int_equal(0, pthread_join(thread, &failed));
    assert_null(failed);
    d->table->event_destroy(p.arrived);
    d->table->event_destroy(p.left);
    assert_ok(d->table->mem_free(d->device, p.memory));
    assert_ok(d->table->pin_free(d->device, p.pinned_in));
    assert_ok(d->table->pin_free(d->device, p.pinned_out));
    test_device_close(d);
}

int main(int argument_count, char **arguments)
{
    test_variants_choose(argument_count, arguments, variants);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_match_the_sequential_model),
        cmocka_unit_test(two_threads_hand_work_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
