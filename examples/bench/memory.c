#include "core/memory.h"
#include "core/clock.h"
#include "examples/bench/buffers.h"
#include "examples/bench/commands.h"
#include "examples/bench/io_series.h"
#include "examples/bench/memory_loops.h"
#include "examples/bench/progress.h"

#define OPERATIONS 5
#define PASSES     3 /* of a sample */
/* Between arrays, so that the same element of each lies in another set of the caches. */
#define APART_BYTES 4864u

static const struct operation {
    const char *name, *stores;
    loop_fn *run;
    double bytes; /* an element; a plain store's line, which is read first, does not count */
    bool streams;
} operations[OPERATIONS] = {
    {"read", "none", loop_read, 4, false},
    {"copy", "plain", loop_copy, 8, false},
    {"copy", "streaming", loop_copy_stream, 8, true},
    {"triad", "plain", loop_triad, 12, false},
    {"triad", "streaming", loop_triad_stream, 12, true},
};

struct memory {
    struct loop loop;
    double rates[FLAG_LIST_MOST][OPERATIONS][ROUNDS_MOST];
};

static void sample_take(struct memory *m, const struct operation *operation, double *rate)
{
    operation->run(&m->loop); /* the team is awake */
    uint64_t begin_ns = weir_now_ns();
    for (int pass = 0; pass < PASSES; pass++)
        operation->run(&m->loop);
    *rate = PASSES * operation->bytes * (double)m->loop.count / (double)(weir_now_ns() - begin_ns);
}

static void rounds_measure(const struct options *o, struct memory *m)
{
    progress_begin("memory", (uint32_t)(o->rounds * o->threads.count));
    for (uint64_t round = 0; round < o->rounds; round++)
        for (uint32_t t = 0; t < o->threads.count; t++) {
            m->loop.thread_count = (int)o->threads.values[t];
            progress_step("%d threads, round %llu", m->loop.thread_count,
                          (unsigned long long)round + 1);
            for (int i = 0; i < OPERATIONS; i++)
                if (!operations[i].streams || loop_streams())
                    sample_take(m, &operations[i], &m->rates[t][i][round]);
        }
    progress_end();
}

static enum weir_status rows_add(const struct options *o, struct memory *m, struct report *report)
{
    for (uint32_t t = 0; t < o->threads.count; t++)
        for (int i = 0; i < OPERATIONS; i++) {
            struct spread rate = spread_of(m->rates[t][i], (uint32_t)o->rounds);
            if (operations[i].streams && !loop_streams())
                continue;
            WEIR_TRY(report_row(report, json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f}",
                                                  "part", "memory", "operation", operations[i].name,
                                                  "stores", operations[i].stores, "threads",
                                                  (json_int_t)o->threads.values[t], "array_bytes",
                                                  (json_int_t)(m->loop.count * sizeof(float)),
                                                  "gb_per_s", rate.median, "gb_per_s_low", rate.low,
                                                  "gb_per_s_high", rate.high)));
        }
    return WEIR_OK;
}

enum weir_status memory_measure(const struct options *o, struct report *report)
{
    const uint64_t piece = LOOP_ELEMENTS * sizeof(float);
    uint64_t bytes = (o->bytes + piece - 1) / piece * piece;
    struct buffers arrays;
    struct memory *m;
    WEIR_TRY(buffers_open(&arrays, 3 * (bytes + APART_BYTES), LAYOUT_HUGE, "lower --bytes"));
    enum weir_status status = weir_alloc(&m, 1, sizeof *m, "rates of memory");
    if (status == WEIR_OK) {
        float *a = (float *)(void *)arrays.bytes;
        uint64_t count = bytes / sizeof *a, next = (bytes + APART_BYTES) / sizeof *a;
        for (uint64_t i = 0; i < 3 * next; i++) /* what it was filled with may be no numbers */
            a[i] = 1 + (float)(i % 1024);
        m->loop = (struct loop){.a = a, .b = a + next, .c = a + 2 * next, .count = count};
        rounds_measure(o, m);
        status = rows_add(o, m, report);
        weir_free(m);
    }
    buffers_close(&arrays);
    return status;
}
