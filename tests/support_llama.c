#include "tests/support_llama.h"
#include "zero/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The run's blocks, described again. */
static void block_copy(struct plain_arrays *arrays, const struct weir_thing *thing)
{
    struct weir_tensor tensors[LAYER_TENSORS];
    for (uint32_t t = 0; t < thing->tensor_count; t++) {
        const struct weir_block_tensor *from = &thing->tensors[t];
        tensors[t] = (struct weir_tensor){.struct_bytes = sizeof *tensors,
                                          .name = from->name,
                                          .kind = from->kind,
                                          .dim_count = from->dim_count,
                                          .lr_scale = from->lr_scale,
                                          .decay_scale = from->decay_scale};
        memcpy(tensors[t].shape, from->shape, sizeof from->shape);
    }
    plain_block_add(arrays, tensors, thing->tensor_count);
}

void llama_plain_open(struct llama_plain *p, const struct llama *like, struct weir_grain grain)
{
    *p = (struct llama_plain){.spec = like->spec, .row_block_count = like->row_block_count};
    const struct weir_model *model = &like->run->model;
    plain_open(&p->arrays, model->dtype, model->grad_dtype, grain);
    for (size_t i = 0; i < model->thing_count && model->things[i].is_block; i++)
        block_copy(&p->arrays, &model->things[i]);
    assert_ok(network_open(&p->net, &like->spec.shape, p->arrays.kernels, p->arrays.stream, 2));
}

void llama_plain_close(struct llama_plain *p)
{
    plain_close(&p->arrays);
}

void llama_weights_load(const struct llama *llama, struct llama_plain *plain, uint64_t seed)
{
    for (size_t i = 0; i < llama_tensor_count(llama); i++) {
        struct llama_tensor t;
        char name[96];
        llama_tensor_at(llama, i, &t, name);
        float *values = malloc(t.count * sizeof *values);
        weir_random_normal(seed, name, t.first, t.count, 0.05f, values);
        for (uint64_t j = 0; t.dim_count == 1 && j < t.count; j++)
            values[j] += 1;
        assert_ok(weir_block_load(llama->run, t.block, t.tensor, WEIR_FP32, values, 0, t.count));
        if (plain)
            plain_load(&plain->arrays, t.block, (uint32_t)t.tensor, values);
        free(values);
    }
}

static uint32_t layer_block(const struct llama_plain *p, uint32_t layer)
{
    return p->row_block_count + layer;
}

static uint32_t norm_block(const struct llama_plain *p)
{
    return p->row_block_count + p->spec.layer_count;
}

static uint32_t head_block(const struct llama_plain *p, uint32_t i)
{
    return p->spec.tied ? i : norm_block(p) + 1 + i;
}

static struct vocab_rows rows_of(struct llama_plain *p, uint32_t block, uint32_t i)
{
    uint32_t first = 0;
    for (uint32_t j = 0; j < i; j++)
        first += (uint32_t)p->arrays.model.things[block - i + j].tensors[0].shape[0];
    return (struct vocab_rows){.first_row = first,
                               .rows = (uint32_t)p->arrays.model.things[block].tensors[0].shape[0],
                               .weight = p->arrays.weight[block],
                               .grad = p->arrays.grad[block],
                               .fresh = p->arrays.fresh[block]};
}

static void touched(struct llama_plain *p, uint32_t block)
{
    p->arrays.fresh[block] = false;
    p->arrays.made[block] = true;
}

static struct layer_weights layer_of(struct llama_plain *p, uint32_t layer)
{
    uint32_t block = layer_block(p, layer);
    struct layer_weights w = {.fresh = p->arrays.fresh[block]};
    uint64_t bytes = p->spec.shape.dtype == WEIR_BF16 ? 2 : 4;
    for (int t = 0; t < LAYER_TENSORS; t++) {
        uint64_t offset = p->arrays.model.things[block].tensors[t].offset;
        w.weight[t] = (char *)p->arrays.weight[block] + offset * bytes;
        w.grad[t] = p->arrays.grad[block] + offset;
    }
    return w;
}

/* Activations of one micro-batch. */
struct micro {
    void *x[16], *inner[16];
    float *d[2];
    struct head_stats stats;
    double *losses;
    const int32_t *tokens, *targets;
};

struct loop {
    struct llama_plain *p;
    float *rope;
    void *scratch;
    double loss;
    float scale;
};

static void forward(struct loop *l, struct micro *m)
{
    struct llama_plain *p = l->p;
    for (uint32_t i = 0; i < p->row_block_count; i++) {
        struct vocab_rows rows = rows_of(p, i, i);
        assert_ok(network_embed_forward(&p->net, &rows, m->tokens, m->x[0]));
    }
    for (uint32_t i = 0; i < p->spec.layer_count; i++) {
        struct layer_weights w = layer_of(p, i);
        assert_ok(network_layer_forward(&p->net, &w, l->rope, m->x[i], m->x[i + 1], m->inner[i],
                                        l->scratch));
    }
    struct head_norm norm = {.weight = p->arrays.weight[norm_block(p)]};
    for (uint32_t i = 0; i < p->row_block_count; i++) {
        struct vocab_rows rows = rows_of(p, head_block(p, i), i);
        assert_ok(network_head_stats(&p->net, &rows, &norm, m->x[p->spec.layer_count], m->targets,
                                     &m->stats, l->scratch));
    }
    assert_ok(network_head_loss(&p->net, m->targets, &m->stats, m->losses));
}

static void backward(struct loop *l, struct micro *m)
{
    struct llama_plain *p = l->p;
    uint32_t layers = p->spec.layer_count, norm = norm_block(p);
    for (uint32_t i = 0; i < p->row_block_count; i++) {
        struct vocab_rows rows = rows_of(p, head_block(p, i), i);
        struct head_norm head_norm = {p->arrays.weight[norm], p->arrays.grad[norm],
                                      p->arrays.fresh[norm]};
        assert_ok(network_head_grad(&p->net, &rows, &head_norm, m->x[layers], m->targets, &m->stats,
                                    l->scale, m->d[layers & 1], l->scratch));
        touched(p, head_block(p, i));
    }
    touched(p, norm);
    for (uint32_t i = layers; i-- > 0;) {
        struct layer_weights w = layer_of(p, i);
        assert_ok(network_layer_backward(&p->net, &w, l->rope, m->x[i], m->inner[i],
                                         m->d[(i + 1) & 1], m->d[i & 1], l->scratch));
        touched(p, layer_block(p, i));
    }
}

static void embed_backward(struct loop *l, struct micro *m)
{
    struct llama_plain *p = l->p;
    for (uint32_t i = 0; i < p->row_block_count; i++) {
        struct vocab_rows rows = rows_of(p, i, i);
        assert_ok(network_embed_backward(&p->net, &rows, m->tokens, m->d[0], l->scratch));
        touched(p, i);
    }
}

static void micro_open(struct llama_plain *p, struct micro *m, const int32_t *tokens)
{
    struct plain_arrays *a = &p->arrays;
    uint64_t n = p->net.tokens, h = p->spec.shape.hidden;
    for (uint32_t i = 0; i <= p->spec.layer_count; i++)
        m->x[i] = plain_device_memory(a, n * h * 4);
    for (uint32_t i = 0; i < p->spec.layer_count; i++)
        m->inner[i] = plain_device_memory(a, p->net.inner_bytes);
    for (int i = 0; i < 2; i++)
        m->d[i] = plain_device_memory(a, n * h * sizeof(float));
    float *stats = plain_memory(a, 3 * n * sizeof *stats);
    m->stats = (struct head_stats){stats, stats + n, stats + 2 * n};
    m->losses = plain_memory(a, network_chunk_count(&p->net) * sizeof *m->losses);
    int32_t *copy = plain_memory(a, 2 * n * sizeof *copy);
    memcpy(copy, tokens, 2 * n * sizeof *copy);
    m->tokens = copy;
    m->targets = copy + n;
}

static void micro_close(struct llama_plain *p, struct micro *m)
{
    struct plain_arrays *a = &p->arrays;
    for (uint32_t i = 0; i <= p->spec.layer_count; i++)
        plain_device_memory_free(a, m->x[i]);
    for (uint32_t i = 0; i < p->spec.layer_count; i++)
        plain_device_memory_free(a, m->inner[i]);
    plain_device_memory_free(a, m->d[0]);
    plain_device_memory_free(a, m->d[1]);
    plain_memory_free(a, m->stats.max);
    plain_memory_free(a, m->losses);
    plain_memory_free(a, (void *)(uintptr_t)m->tokens);
}

void llama_plain_step(struct llama_plain *p, const int32_t *tokens, uint64_t target_count,
                      bool training, const struct weir_update *update, double *loss, double *norm,
                      bool *skipped)
{
    struct micro micros[8];
    uint32_t count = p->spec.micro_count;
    struct loop l = {.p = p, .scale = 1.0f / (float)target_count};
    l.rope = plain_memory(&p->arrays,
                          (uint64_t)p->spec.shape.length * p->spec.shape.head_dim * sizeof(float));
    l.scratch = plain_device_memory(&p->arrays,
                                    p->net.forward_scratch_bytes + p->net.backward_scratch_bytes +
                                        p->net.head_scratch_bytes + p->net.inner_bytes +
                                        ((uint64_t)p->spec.shape.vocab + p->net.tokens + 2) * 8);
    assert_ok(network_rope(&p->net, l.rope));
    plain_begin(&p->arrays);
    for (uint32_t m = 0; m < count; m++) {
        micro_open(p, &micros[m], tokens + 2ull * m * p->net.tokens);
        forward(&l, &micros[m]);
    }
    /* Sums over micro-batches run from the last to the first. */
    for (uint32_t m = count; training && m-- > 0;)
        backward(&l, &micros[m]);
    for (uint32_t m = count; training && m-- > 0;)
        embed_backward(&l, &micros[m]);
    assert_ok(p->arrays.device->table->stream_sync(p->arrays.stream));
    double sum = 0;
    for (uint32_t m = 0; m < count; m++)
        for (uint32_t c = 0; c < network_chunk_count(&p->net); c++)
            sum += micros[m].losses[c];
    *loss = sum / (double)target_count;
    *norm = 0;
    *skipped = false;
    if (training)
        *norm = plain_finish(&p->arrays, update, skipped);
    for (uint32_t m = 0; m < count; m++)
        micro_close(p, &micros[m]);
    plain_memory_free(&p->arrays, l.rope);
    plain_device_memory_free(&p->arrays, l.scratch);
}
