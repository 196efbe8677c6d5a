#include "tests/support_toy_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t toy_block_count(const struct toy_spec *spec)
{
    return spec->block_count + (spec->head_only_gradient ? 1 : 0);
}

struct toy_spec toy_spec_draw(struct test_random *random)
{
    static const uint64_t odd[] = {1, 511, 513, 2048, 4097, 6000, 9000, 20000};
    struct toy_spec spec = {
        .dtype = test_random_below(random, 4) ? WEIR_BF16 : WEIR_FP32,
        .grad_dtype = test_random_below(random, 2) ? WEIR_FP32 : WEIR_BF16,
        .block_count = 2 + (uint32_t)test_random_below(random, TOY_BLOCKS - 2),
        .micro_count = 1 + (uint32_t)test_random_below(random, TOY_MICRO),
        .width = 500 + (uint32_t)test_random_below(random, 3000),
        .tied = test_random_below(random, 2),
        .inner = test_random_below(random, 2),
        .head_only_gradient = test_random_below(random, 2),
    };
    spec.block_scratch = spec.width % 3 == 0;
    for (uint32_t b = 0; b < toy_block_count(&spec); b++) {
        spec.tensor_count[b] = 1 + (uint32_t)test_random_below(random, TOY_TENSORS);
        bool frozen_tail = test_random_below(random, 5) == 0;
        for (uint32_t t = 0; t < spec.tensor_count[b]; t++) {
            spec.elements[b][t] = odd[test_random_below(random, 8)];
            spec.kind[b][t] = frozen_tail && t > 0 ? WEIR_FROZEN : WEIR_TRAINED;
        }
    }
    return spec;
}

void toy_tensors(const struct toy_spec *spec, uint32_t block, struct weir_tensor *tensors,
                 char names[TOY_TENSORS][32])
{
    for (uint32_t t = 0; t < spec->tensor_count[block]; t++) {
        snprintf(names[t], 32, "block%u.tensor%u", block, t);
        tensors[t] = (struct weir_tensor){
            .struct_bytes = sizeof *tensors,
            .name = names[t],
            .kind = spec->kind[block][t],
            .dim_count = 1,
            .shape = {spec->elements[block][t]},
            .lr_scale = t == 1 ? 0.5f : 1.0f,
            .decay_scale = t == 2 ? 0.0f : 1.0f,
        };
    }
}

/* Through weir ------------------------------------------------------------------------------ */

static enum weir_status kept(struct toy *toy, const char *kind, uint32_t i, uint32_t m,
                             bool optional, uint32_t *id)
{
    char name[32];
    bool scalar = strcmp(kind, "loss") == 0 || strcmp(kind, "input") == 0;
    snprintf(name, sizeof name, "%s%u.%u", kind, i, m);
    return weir_kept_add(
        toy->run,
        &(struct weir_kept){.struct_bytes = sizeof(struct weir_kept),
                            .name = name,
                            .byte_count = (scalar ? 1 : toy->spec.width) * sizeof(float),
                            .optional = optional,
                            .recompute_flops = optional ? 1e7 : 0},
        id);
}

enum weir_status toy_open(struct toy *toy, weir_run *run, const struct toy_spec *spec)
{
    *toy = (struct toy){.spec = *spec, .run = run, .abort_at = -1};
    for (uint32_t b = 0; b < toy_block_count(spec); b++) {
        struct weir_tensor tensors[TOY_TENSORS];
        char names[TOY_TENSORS][32];
        toy_tensors(spec, b, tensors, names);
        WEIR_TRY(weir_block_add(run, tensors, spec->tensor_count[b], &toy->blocks[b]));
    }
    for (uint32_t m = 0; m < spec->micro_count; m++) {
        for (uint32_t i = 0; i <= spec->block_count; i++)
            WEIR_TRY(kept(toy, "x", i, m, false, &toy->boundary[i][m]));
        for (uint32_t i = 0; i < spec->block_count; i++)
            WEIR_TRY(kept(toy, "inner", i, m, true, &toy->inner[i][m]));
        for (uint32_t i = 0; i < 2; i++)
            WEIR_TRY(kept(toy, "d", i, m, false, &toy->d[i][m]));
        WEIR_TRY(kept(toy, "loss", 0, m, false, &toy->loss[m]));
        WEIR_TRY(kept(toy, "input", 0, m, false, &toy->input[m]));
    }
    return WEIR_OK;
}

typedef void work_fn(const struct work *work);

struct queued {
    work_fn *fn;
    struct work work;
};

static void queued_run(void *argument)
{
    const struct queued *q = argument;
    q->fn(&q->work);
}

static void range(struct weir_range *ranges, size_t *count, const void *bytes, uint64_t byte_count,
                  bool written)
{
    if (bytes && byte_count > 0)
        ranges[(*count)++] = (struct weir_range){bytes, byte_count, written};
}

static enum weir_status queue(struct toy *toy, work_fn *fn, const struct work *w)
{
    struct queued q = {fn, *w};
    struct weir_range r[12];
    size_t n = 0;
    uint64_t bytes = w->width * sizeof(float);
    uint64_t weight_bytes = w->elements * (w->dtype == WEIR_BF16 ? 2 : 4);
    range(r, &n, w->weight, weight_bytes, false);
    range(r, &n, w->weight_out, weight_bytes, true);
    range(r, &n, w->x, bytes, false);
    range(r, &n, w->dy, bytes, false);
    range(r, &n, w->inner_in, bytes, false);
    range(r, &n, w->y, bytes, true);
    range(r, &n, w->inner, bytes, true);
    range(r, &n, w->dx, bytes, true);
    range(r, &n, w->grad, w->grad ? w->elements * sizeof(float) : 0, true);
    range(r, &n, w->loss, sizeof(float), true);
    struct weir_device *device = weir_compute_device(toy->run);
    enum weir_status status =
        device->table->call(weir_compute_stream(toy->run), queued_run, &q, sizeof q, r, n);
    toy->queue_failed = status != WEIR_OK;
    return status;
}

/* Scratch is ours alone: whoever else lives there is destroyed. */
static enum weir_status scratch_spoil(struct toy *toy, void *scratch, uint64_t bytes,
                                      unsigned char value)
{
    struct weir_device *device = weir_compute_device(toy->run);
    enum weir_status status =
        device->table->fill(weir_compute_stream(toy->run), scratch, value, bytes);
    toy->queue_failed = status != WEIR_OK;
    return status;
}

#define BLOCK_SCRATCH_BYTES 4000
#define BLOCK_SCRATCH_VALUE 0x44

struct scratch_compare {
    const unsigned char *bytes;
    bool *lost;
};

static void scratch_compare_run(void *argument)
{
    const struct scratch_compare *c = argument;
    for (uint32_t i = 0; i < BLOCK_SCRATCH_BYTES; i++)
        *c->lost |= c->bytes[i] != BLOCK_SCRATCH_VALUE;
}

static enum weir_status scratch_compare(struct toy *toy, const void *scratch)
{
    struct scratch_compare compare = {scratch, &toy->scratch_lost};
    struct weir_device *device = weir_compute_device(toy->run);
    enum weir_status status = device->table->call(
        weir_compute_stream(toy->run), scratch_compare_run, &compare, sizeof compare,
        &(struct weir_range){scratch, BLOCK_SCRATCH_BYTES, false}, 1);
    toy->queue_failed = status != WEIR_OK;
    return status;
}

struct context {
    struct toy *toy;
    const struct toy_input *input;
    bool dry;
    int wants;
};

static enum weir_status want(struct context *c, const struct weir_use *uses, size_t count,
                             struct weir_view *views)
{
    if (!c->dry && c->wants++ == c->toy->abort_at)
        return weir_fail(WEIR_ERR_CANCELED, "the test leaves the step here");
    return weir_want(c->toy->run, uses, count, views);
}

static enum weir_status done(struct context *c, const struct weir_use *uses, size_t count)
{
    uint32_t ids[8];
    for (size_t i = 0; i < count; i++)
        ids[i] = uses[i].id;
    return weir_done(c->toy->run, ids, count);
}

static struct work work_base(const struct context *c, uint32_t block, const struct weir_view *view)
{
    const struct toy_spec *spec = &c->toy->spec;
    return (struct work){.dtype = spec->dtype,
                         .weight = view ? view->bytes : NULL,
                         .elements = view ? all_elements(spec, block) : 0,
                         .width = spec->width};
}

static enum weir_status input_stage(struct context *c, uint32_t m)
{
    struct toy *toy = c->toy;
    float seed = c->input->seed + (float)m;
    struct weir_use uses[] = {{toy->input[m], WEIR_NEW}, {toy->boundary[0][m], WEIR_NEW}};
    struct weir_view v[2];
    WEIR_TRY(want(c, uses, 2, v));
    WEIR_TRY(weir_put(toy->run, toy->input[m], &seed));
    if (!c->dry) {
        struct work w = work_base(c, 0, NULL);
        w.y = v[1].bytes;
        w.seed = seed; /* the copy through the kept tensor is compared at the loss */
        WEIR_TRY(queue(toy, work_input, &w));
    }
    return done(c, uses, 2);
}

static enum weir_status forward_stage(struct context *c, uint32_t b, uint32_t m,
                                      const struct weir_view *block)
{
    struct toy *toy = c->toy;
    bool inner = toy->spec.inner && c->input->training;
    struct weir_use uses[] = {{toy->boundary[b][m], c->input->training ? WEIR_READ : WEIR_LAST},
                              {toy->boundary[b + 1][m], WEIR_NEW},
                              {toy->inner[b][m], WEIR_NEW}};
    size_t count = inner ? 3 : 2;
    struct weir_view v[3];
    WEIR_TRY(want(c, uses, count, v));
    WEIR_TRY(weir_work(toy->run, 1e6));
    void *scratch;
    WEIR_TRY(weir_scratch(toy->run, 5000, &scratch));
    if (!c->dry) {
        WEIR_TRY(scratch_spoil(toy, scratch, 5000, 0x33));
        struct work w = work_base(c, b, block);
        w.x = v[0].bytes;
        w.y = v[1].bytes;
        w.inner = inner ? v[2].bytes : NULL;
        WEIR_TRY(queue(toy, work_forward, &w));
    }
    return done(c, uses, count);
}

static enum weir_status loss_stage(struct context *c, uint32_t m)
{
    struct toy *toy = c->toy;
    uint32_t last = toy->spec.block_count;
    struct weir_use uses[] = {{toy->boundary[last][m], WEIR_LAST},
                              {toy->loss[m], WEIR_NEW},
                              {toy->input[m], WEIR_LAST},
                              {toy->d[last & 1][m], WEIR_NEW}};
    size_t count = c->input->training ? 4 : 3;
    struct weir_view v[4];
    WEIR_TRY(want(c, uses, count, v));
    if (!c->dry) {
        struct work w = work_base(c, 0, NULL);
        w.x = v[0].bytes;
        w.loss = v[1].bytes;
        w.dx = c->input->training ? v[3].bytes : NULL;
        WEIR_TRY(queue(toy, work_loss, &w));
    }
    WEIR_TRY(weir_get(toy->run, toy->loss[m], &toy->losses[m]));
    return done(c, uses, count);
}

static enum weir_status backward_stage(struct context *c, uint32_t b, uint32_t m, bool fresh,
                                       const struct weir_view *block)
{
    struct toy *toy = c->toy;
    struct weir_use uses[] = {{toy->boundary[b][m], WEIR_LAST},
                              {toy->d[(b + 1) & 1][m], WEIR_LAST},
                              {toy->d[b & 1][m], WEIR_NEW},
                              {toy->inner[b][m], WEIR_LAST}};
    size_t count = toy->spec.inner ? 4 : 3;
    struct weir_view v[4];
    WEIR_TRY(want(c, uses, count, v));
    WEIR_TRY(weir_work(toy->run, 2e6));
    if (!c->dry) {
        struct work w = work_base(c, b, block);
        w.x = v[0].bytes;
        w.dy = v[1].bytes;
        w.dx = v[2].bytes;
        w.inner_in = toy->spec.inner ? v[3].bytes : NULL;
        WEIR_TRY(queue(toy, work_backward, &w));
        struct work g = work_base(c, b, block);
        g.elements = trained_elements(&toy->spec, b);
        g.x = v[0].bytes;
        g.dy = v[1].bytes;
        g.grad = block->grad;
        g.fresh = block->grad_fresh && fresh;
        g.poison = c->input->poison_block == (int)b;
        if (g.grad)
            WEIR_TRY(queue(toy, work_backward, &g));
    }
    return done(c, uses, count);
}

static enum weir_status block_pass(struct context *c, uint32_t b, uint32_t first, uint32_t end,
                                   bool backward)
{
    struct weir_use use = {c->toy->blocks[b], backward ? WEIR_GRAD : WEIR_READ};
    struct weir_view view;
    void *scratch = NULL;
    WEIR_TRY(want(c, &use, 1, &view));
    if (c->toy->spec.block_scratch)
        WEIR_TRY(weir_scratch(c->toy->run, BLOCK_SCRATCH_BYTES, &scratch));
    if (scratch)
        WEIR_TRY(scratch_spoil(c->toy, scratch, BLOCK_SCRATCH_BYTES, BLOCK_SCRATCH_VALUE));
    for (uint32_t i = first; i < end; i++) {
        uint32_t m = backward ? end - 1 - (i - first) : i;
        WEIR_TRY(backward ? backward_stage(c, b, m, m == end - 1, &view)
                          : forward_stage(c, b, m, &view));
    }
    if (scratch)
        WEIR_TRY(scratch_compare(c->toy, scratch));
    return done(c, &use, 1);
}

/* Gradient only: the weight does not travel (ADD), or the block was never wanted before (GRAD). */
static enum weir_status grad_only(struct context *c, uint32_t b, enum weir_access access)
{
    struct toy *toy = c->toy;
    struct weir_use use = {toy->blocks[b], access};
    struct weir_view view;
    WEIR_TRY(want(c, &use, 1, &view));
    for (uint32_t m = toy->spec.micro_count; m-- > 0;) {
        struct weir_use d = {toy->d[0][m], access == WEIR_ADD ? WEIR_LAST : WEIR_READ};
        struct weir_view v;
        WEIR_TRY(want(c, &d, 1, &v));
        if (!c->dry && view.grad) {
            struct work w = work_base(c, b, &view);
            w.weight = NULL;
            w.elements = trained_elements(&toy->spec, b);
            w.dy = v.bytes;
            w.grad = view.grad;
            w.fresh = view.grad_fresh && m + 1 == toy->spec.micro_count;
            WEIR_TRY(queue(toy, work_backward, &w));
        }
        WEIR_TRY(done(c, &d, 1));
    }
    return done(c, &use, 1);
}

static enum weir_status write_stage(struct context *c, uint32_t b)
{
    struct weir_use use = {c->toy->blocks[b], WEIR_WRITE};
    struct weir_view view;
    WEIR_TRY(want(c, &use, 1, &view));
    if (!c->dry) {
        struct work w = work_base(c, b, &view);
        w.weight_out = view.bytes;
        WEIR_TRY(queue(c->toy, work_write, &w));
    }
    return done(c, &use, 1);
}

static enum weir_status events(struct context *c)
{
    const struct toy_spec *spec = &c->toy->spec;
    if (c->input->write_block >= 0)
        WEIR_TRY(write_stage(c, (uint32_t)c->input->write_block));
    for (uint32_t g = c->input->groups; g-- > 0;) {
        uint32_t first = spec->micro_count * g / c->input->groups;
        uint32_t end = spec->micro_count * (g + 1) / c->input->groups;
        for (uint32_t m = first; m < end; m++)
            WEIR_TRY(input_stage(c, m));
        for (uint32_t b = 0; b < spec->block_count; b++)
            WEIR_TRY(block_pass(c, b, first, end, false));
        for (uint32_t m = first; m < end; m++)
            WEIR_TRY(loss_stage(c, m));
        for (uint32_t b = c->input->training ? spec->block_count : 0; b-- > 0;)
            WEIR_TRY(block_pass(c, b, first, end, true));
    }
    if (c->input->training && spec->head_only_gradient)
        WEIR_TRY(grad_only(c, spec->block_count, WEIR_GRAD));
    if (c->input->training && spec->tied)
        WEIR_TRY(grad_only(c, 0, WEIR_ADD));
    return WEIR_OK;
}

enum weir_status toy_step(struct toy *toy, const char *key, bool dry, const struct toy_input *input,
                          const struct weir_update *update, float *loss, struct weir_report *report)
{
    struct context c = {.toy = toy, .input = input, .dry = dry};
    WEIR_TRY(weir_step_begin(toy->run, key, dry));
    enum weir_status status = events(&c);
    if (status == WEIR_ERR_CANCELED) {
        WEIR_TRY(weir_step_abort(toy->run));
        return weir_fail(WEIR_ERR_CANCELED, "left");
    }
    WEIR_TRY(status);
    WEIR_TRY(weir_step_end(toy->run, input->training ? update : NULL, report));
    if (toy->scratch_lost)
        return weir_fail(WEIR_ERR_CORRUPT, "the scratch of a block was overwritten");
    *loss = 0;
    for (uint32_t m = 0; !dry && m < toy->spec.micro_count; m++)
        *loss += toy->losses[m];
    return WEIR_OK;
}
