#include "tests/support_plain.h"
#include "zero/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define PAGE_BYTES UINT64_C(4096) /* a GPU pins whole pages, and none twice */

const char *plain_device = "host";

void *plain_memory(struct plain_arrays *p, uint64_t bytes)
{
    uint64_t whole_bytes = (bytes / PAGE_BYTES + 1) * PAGE_BYTES;
    void *memory = aligned_alloc(PAGE_BYTES, whole_bytes);
    assert_non_null(memory);
    memset(memory, 0, bytes);
    assert_ok(p->device->table->pin_register(p->device, memory, whole_bytes));
    return memory;
}

void plain_memory_free(struct plain_arrays *p, void *memory)
{
    if (memory)
        assert_ok(p->device->table->pin_unregister(p->device, memory));
    free(memory);
}

void *plain_device_memory(struct plain_arrays *p, uint64_t bytes)
{
    if (!p->apart)
        return plain_memory(p, bytes);
    void *memory;
    assert_ok(p->device->table->mem_alloc(p->device, bytes + 1, &memory));
    assert_ok(p->device->table->fill(p->stream, memory, 0, bytes + 1));
    return memory;
}

void plain_device_memory_free(struct plain_arrays *p, void *memory)
{
    if (!p->apart)
        plain_memory_free(p, memory);
    else if (memory)
        assert_ok(p->device->table->mem_free(p->device, memory));
}

/* A block's weights as the CPU can read and change them. */
static void *weight_borrow(const struct plain_arrays *plain, size_t block)
{
    struct plain_arrays *p = (struct plain_arrays *)(uintptr_t)plain;
    uint64_t bytes =
        p->model.things[block].element_count * weir_part_bytes(&p->model, WEIR_PART_WEIGHT);
    if (!p->apart)
        return p->weight[block];
    void *copy = plain_memory(p, bytes);
    assert_ok(p->device->table->copy(p->stream, copy, p->weight[block], bytes, WEIR_COPY_TO_HOST));
    assert_ok(p->device->table->stream_sync(p->stream));
    return copy;
}

static void weight_return(const struct plain_arrays *plain, size_t block, void *weight)
{
    struct plain_arrays *p = (struct plain_arrays *)(uintptr_t)plain;
    uint64_t bytes =
        p->model.things[block].element_count * weir_part_bytes(&p->model, WEIR_PART_WEIGHT);
    if (!p->apart)
        return;
    assert_ok(
        p->device->table->copy(p->stream, p->weight[block], weight, bytes, WEIR_COPY_TO_DEVICE));
    assert_ok(p->device->table->stream_sync(p->stream));
    plain_memory_free(p, weight);
}

void plain_open(struct plain_arrays *p, enum weir_dtype dtype, enum weir_dtype grad_dtype,
                struct weir_grain grain)
{
    *p = (struct plain_arrays){0};
    const struct weir_device_table *device;
    const struct weir_kernels_table *kernels;
    assert_ok(weir_device_find(plain_device, &device));
    assert_ok(device->open(
        &p->device, &(struct weir_device_options){.memory_bytes = UINT64_MAX, .thread_count = 2}));
    assert_ok(device->stream_create(p->device, WEIR_ENGINE_COMPUTE, "plain", &p->stream));
    assert_ok(weir_kernels_find(plain_device, &kernels));
    assert_ok(kernels->open(&p->kernels, p->device, 2, NULL, NULL));
    weir_model_open(&p->model, dtype, grad_dtype, grain);
    struct weir_device_info info;
    device->info(p->device, &info);
    p->apart = !info.calls_run_on_cpu;
    p->bad_count = plain_memory(p, sizeof *p->bad_count);
}

void plain_block_add(struct plain_arrays *p, const struct weir_tensor *tensors, size_t count)
{
    uint32_t id;
    assert_ok(weir_model_block_add(&p->model, tensors, count, &id));
    assert_true(id < PLAIN_BLOCKS);
    const struct weir_thing *thing = &p->model.things[id];
    p->weight[id] = plain_device_memory(p, thing->element_count * 4);
    p->state[id] = plain_memory(p, thing->element_count * 10);
    p->grad[id] = plain_device_memory(p, thing->element_count * 4);
    plain_memory_free(p, p->partials);
    p->partials = plain_memory(p, (p->model.trained_segment_count + 1) * sizeof(double));
}

void plain_close(struct plain_arrays *p)
{
    for (size_t b = 0; b < p->model.thing_count; b++) {
        plain_device_memory_free(p, p->weight[b]);
        plain_memory_free(p, p->state[b]);
        plain_device_memory_free(p, p->grad[b]);
    }
    plain_memory_free(p, p->partials);
    plain_memory_free(p, p->bad_count);
    weir_model_close(&p->model);
    p->device->table->stream_destroy(p->stream);
    p->kernels->table->close(p->kernels);
    p->device->table->close(p->device);
}

static const struct weir_segment *segment_at(const struct weir_thing *thing, uint64_t element)
{
    uint32_t s = 0;
    while (element >= thing->segments[s].offset + thing->segments[s].padded_count)
        s++;
    return &thing->segments[s];
}

void plain_load(struct plain_arrays *p, uint32_t block, uint32_t tensor, const float *values)
{
    const struct weir_thing *thing = &p->model.things[block];
    const struct weir_block_tensor *t = &thing->tensors[tensor];
    void *weight = weight_borrow(p, block);
    for (uint64_t i = 0; i < t->count; i++) {
        uint64_t at = t->offset + i;
        if (p->model.dtype == WEIR_FP32) {
            ((float *)weight)[at] = values[i];
            continue;
        }
        int16_t rest;
        weir_master_split(&values[i], (uint16_t *)weight + at, &rest, 1);
        if (t->kind == WEIR_FROZEN)
            continue;
        const struct weir_segment *s = segment_at(thing, at);
        char *state = (char *)p->state[block] + s->offset * 10;
        ((int16_t *)(void *)state)[at - s->offset] = rest;
    }
    weight_return(p, block, weight);
}

void plain_begin(struct plain_arrays *p)
{
    for (size_t b = 0; b < p->model.thing_count; b++) {
        p->fresh[b] = true;
        p->made[b] = false;
    }
}

static double tree(const double *v, size_t n)
{
    if (n <= 2)
        return n == 0 ? 0 : n == 1 ? v[0] : v[0] + v[1];
    size_t half = 1;
    while (half * 2 < n)
        half *= 2;
    return tree(v, half) + tree(v + half, n - half);
}

static void window_reduce(struct plain_arrays *p, uint32_t b, uint32_t w)
{
    const struct weir_thing *thing = &p->model.things[b];
    struct weir_reduce_args args = {.grad_dtype = p->model.grad_dtype,
                                    .grad = p->grad[b] + thing->windows[w].offset,
                                    .partials = p->partials + thing->first_segment +
                                                thing->windows[w].first_segment,
                                    .segment_count = thing->windows[w].segment_count};
    weir_window_segments(thing, w, args.segments);
    assert_ok(p->kernels->table->reduce(p->kernels, p->stream, &args));
}

static void window_update(struct plain_arrays *p, uint32_t b, uint32_t w,
                          const struct weir_update *u, double norm)
{
    const struct weir_thing *thing = &p->model.things[b];
    uint64_t at = thing->windows[w].offset;
    double t = (double)p->update_count;
    struct weir_adam_args args = {
        .dtype = p->model.dtype,
        .grad_dtype = p->model.grad_dtype,
        .state = (char *)p->state[b] + at * weir_part_bytes(&p->model, WEIR_PART_STATE),
        .weight = (char *)p->weight[b] + at * weir_part_bytes(&p->model, WEIR_PART_WEIGHT),
        .grad = p->grad[b] + at,
        .lr = u->lr,
        .beta1 = u->beta1,
        .beta2 = u->beta2,
        .eps = u->eps,
        .weight_decay = u->weight_decay,
        .clip_factor = u->clip > 0 && norm > (double)u->clip ? (float)((double)u->clip / norm) : 1,
        .correction1 = (float)(1 - pow((double)u->beta1, t)),
        .correction2 = (float)(1 - pow((double)u->beta2, t)),
        .bad_count = p->bad_count,
        .segment_count = thing->windows[w].segment_count};
    weir_window_segments(thing, w, args.segments);
    assert_ok(p->kernels->table->adam(p->kernels, p->stream, &args));
}

double plain_finish(struct plain_arrays *p, const struct weir_update *update, bool *skipped)
{
    memset(p->partials, 0, p->model.trained_segment_count * sizeof(double));
    for (uint32_t b = 0; b < p->model.thing_count; b++)
        for (uint32_t w = 0; p->made[b] && w < p->model.things[b].trained_window_count; w++)
            window_reduce(p, b, w);
    assert_ok(p->device->table->stream_sync(p->stream));
    double norm = sqrt(tree(p->partials, p->model.trained_segment_count));
    *skipped = !isfinite(norm);
    if (*skipped)
        return norm;
    p->update_count++;
    for (uint32_t b = 0; b < p->model.thing_count; b++)
        for (uint32_t w = 0; p->made[b] && w < p->model.things[b].trained_window_count; w++)
            window_update(p, b, w, update, norm);
    assert_ok(p->device->table->stream_sync(p->stream));
    assert_int_equal(0, *p->bad_count);
    return norm;
}

static uint64_t bytes_different(const void *a, const void *b, uint64_t count)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < count; i++)
        n += ((const char *)a)[i] != ((const char *)b)[i];
    return n;
}

static uint64_t window_different(const struct plain_arrays *p, weir_run *run, uint32_t b,
                                 uint32_t w, const void *weights)
{
    const struct weir_thing *thing = &p->model.things[b];
    const struct weir_window *window = &thing->windows[w];
    uint64_t weight = weir_part_bytes(&p->model, WEIR_PART_WEIGHT);
    uint64_t state = weir_part_bytes(&p->model, WEIR_PART_STATE);
    struct weir_window_bytes at;
    assert_ok(
        weir_home_fetch(&run->home, b, w, 1u << WEIR_PART_WEIGHT | 1u << WEIR_PART_STATE, &at));
    uint64_t n =
        bytes_different(at.part[WEIR_PART_WEIGHT], (const char *)weights + window->offset * weight,
                        window->element_count * weight);
    if (w < thing->trained_window_count)
        n += bytes_different(at.part[WEIR_PART_STATE], (char *)p->state[b] + window->offset * state,
                             window->element_count * state);
    return n;
}

uint64_t plain_compare(const struct plain_arrays *p, weir_run *run)
{
    uint64_t different = 0;
    for (uint32_t b = 0; b < p->model.thing_count; b++) {
        void *weights = weight_borrow(p, b);
        for (uint32_t w = 0; w < p->model.things[b].window_count; w++)
            different += window_different(p, run, b, w, weights);
        weight_return(p, b, weights);
    }
    return different;
}

/* The masters: weights, and in bf16 training the residuals at each segment's start. */
static uint64_t block_hash(const struct plain_arrays *p, size_t block)
{
    const struct weir_thing *thing = &p->model.things[block];
    void *weights = weight_borrow(p, block);
    uint64_t hash =
        XXH3_64bits(weights, thing->element_count * weir_part_bytes(&p->model, WEIR_PART_WEIGHT));
    weight_return(p, block, weights);
    for (uint32_t s = 0; p->model.dtype == WEIR_BF16 && s < thing->trained_segment_count; s++)
        hash = XXH3_64bits_withSeed((const char *)p->state[block] + thing->segments[s].offset * 10,
                                    thing->segments[s].count * 2ull, hash);
    return hash;
}

void plain_hashes(const struct plain_arrays *p, uint64_t *hashes)
{
    for (size_t b = 0; b < p->model.thing_count; b++)
        hashes[b] = block_hash(p, b);
}

void plain_all_changed(const struct plain_arrays *p, const uint64_t *before)
{
    for (size_t b = 0; b < p->model.thing_count; b++)
        if (block_hash(p, b) == before[b])
            fail_msg("block \"%s\" did not change in a step", p->model.things[b].name);
}
