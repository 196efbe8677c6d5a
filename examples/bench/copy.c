#include "alloc/numa.h"
#include "core/clock.h"
#include "core/device.h"
#include "examples/bench/commands.h"
#include "examples/bench/io_series.h"
#include "examples/bench/progress.h"

enum direction { TO_DEVICE, TO_HOST, BOTH, DIRECTIONS };
static const char *const direction_names[DIRECTIONS] = {"to device", "to host", "both at once"};

struct copies {
    const struct weir_device_table *table;
    struct weir_device *device;
    struct weir_stream *streams[2]; /* by direction */
    struct weir_numa numa;          /* host memory lies near the device, as a run's does */
    void *host[2], *on_device[2];
    uint64_t bytes;
};

static enum weir_status copy_queue(const struct copies *c, enum direction direction)
{
    return direction == TO_DEVICE ? c->table->copy(c->streams[0], c->on_device[0], c->host[0],
                                                   c->bytes, WEIR_COPY_TO_DEVICE)
                                  : c->table->copy(c->streams[1], c->host[1], c->on_device[1],
                                                   c->bytes, WEIR_COPY_TO_HOST);
}

static enum weir_status copy_time(const struct copies *c, enum direction direction, double *rate)
{
    uint64_t begin_ns = weir_now_ns();
    for (int way = 0; way < 2; way++)
        if (direction == BOTH || (int)direction == way)
            WEIR_TRY(copy_queue(c, (enum direction)way));
    for (int way = 0; way < 2; way++)
        WEIR_TRY(c->table->stream_sync(c->streams[way]));
    *rate = (double)(c->bytes * (direction == BOTH ? 2 : 1)) / (double)(weir_now_ns() - begin_ns);
    return WEIR_OK;
}

static enum weir_status pinned_make(struct copies *c)
{
    weir_numa_enter(&c->numa);
    enum weir_status status = c->table->pin_alloc(c->device, c->bytes, &c->host[0]);
    if (status == WEIR_OK)
        status = c->table->pin_alloc(c->device, c->bytes, &c->host[1]);
    weir_numa_leave(&c->numa);
    return status;
}

static enum weir_status copies_make(struct copies *c, const char *device)
{
    static const enum weir_engine engines[2] = {WEIR_ENGINE_TO_DEVICE, WEIR_ENGINE_TO_HOST};
    int node;
    WEIR_TRY(weir_device_find(device, &c->table));
    WEIR_TRY(c->table->numa_node(&node));
    weir_numa_open(&c->numa, node, NULL);
    WEIR_TRY(c->table->open(&c->device,
                            &(struct weir_device_options){.memory_bytes = UINT64_MAX,
                                                          .thread_count = 1,
                                                          .cpus = weir_numa_cpus(&c->numa)}));
    WEIR_TRY(pinned_make(c));
    for (int way = 0; way < 2; way++) {
        WEIR_TRY(c->table->stream_create(c->device, engines[way], direction_names[way],
                                         &c->streams[way]));
        WEIR_TRY(c->table->mem_alloc(c->device, c->bytes, &c->on_device[way]));
    }
    return WEIR_OK;
}

static void copies_free(struct copies *c)
{
    if (!c->device)
        return;
    for (int way = 0; way < 2; way++) {
        if (c->streams[way])
            c->table->stream_destroy(c->streams[way]);
        if (c->host[way])
            (void)c->table->pin_free(c->device, c->host[way]);
        if (c->on_device[way])
            (void)c->table->mem_free(c->device, c->on_device[way]);
    }
    c->table->close(c->device);
}

static enum weir_status rounds_measure(const struct copies *c, const struct options *o,
                                       struct report *report)
{
    double rates[DIRECTIONS][ROUNDS_MOST];
    progress_begin("copies", (uint32_t)o->rounds + 1);
    for (uint64_t round = 0; round < o->rounds + 1; round++) {
        progress_step(round == 0 ? "warming up" : "round %llu", (unsigned long long)round);
        for (int d = 0; d < DIRECTIONS; d++)
            WEIR_TRY(copy_time(c, (enum direction)d, &rates[d][round > 0 ? round - 1 : 0]));
    }
    progress_end();
    for (int d = 0; d < DIRECTIONS; d++) {
        struct spread rate = spread_of(rates[d], (uint32_t)o->rounds);
        WEIR_TRY(report_row(report, json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:f}", "part", "copy",
                                              "device", device_names[o->device], "direction",
                                              direction_names[d], "bytes", (json_int_t)c->bytes,
                                              "gb_per_s", rate.median, "gb_per_s_low", rate.low,
                                              "gb_per_s_high", rate.high)));
    }
    return WEIR_OK;
}

enum weir_status copy_measure(const struct options *o, struct report *report)
{
    struct copies c = {.bytes = o->bytes};
    enum weir_status status = copies_make(&c, device_names[o->device]);
    if (status == WEIR_OK)
        status = rounds_measure(&c, o, report);
    struct weir_error error = *weir_last_error();
    copies_free(&c);
    return status == WEIR_OK ? WEIR_OK : weir_fail_with(&error);
}
