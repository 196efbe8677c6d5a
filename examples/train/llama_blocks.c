/*
 * The tensors of a Llama, by their Hugging Face names.
 */
#include "core/memory.h"
#include "examples/train/llama.h"
#include "zero/math.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const layer_names[LAYER_TENSORS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
    "mlp.down_proj",    "input_layernorm",  "post_attention_layernorm",
};

static struct weir_tensor tensor(const char *name, uint64_t rows, uint64_t columns)
{
    bool matrix = columns > 0;
    return (struct weir_tensor){
        .struct_bytes = sizeof(struct weir_tensor),
        .name = name,
        .kind = WEIR_TRAINED,
        .dim_count = matrix ? 2 : 1,
        .shape = {rows, matrix ? columns : 0},
        .lr_scale = 1,
        .decay_scale = matrix ? 1 : 0, /* norms do not decay */
    };
}

static void layer_shape(const struct network_shape *s, enum layer_tensor which, uint64_t out[2])
{
    const uint64_t h = s->hidden, q = (uint64_t)s->heads * s->head_dim,
                   k = (uint64_t)s->kv_heads * s->head_dim, i = s->intermediate;
    const uint64_t shapes[LAYER_TENSORS][2] = {{q, h}, {k, h}, {k, h}, {h, q}, {i, h},
                                               {i, h}, {h, i}, {h, 0}, {h, 0}};
    memcpy(out, shapes[which], sizeof shapes[which]);
}

static void layer_name(uint32_t layer, enum layer_tensor which, char name[static 96])
{
    snprintf(name, 96, "model.layers.%u.%s.weight", layer, layer_names[which]);
}

static enum weir_status layer_add(struct llama *l, uint32_t layer)
{
    struct weir_tensor tensors[LAYER_TENSORS];
    char names[LAYER_TENSORS][96];
    for (int i = 0; i < LAYER_TENSORS; i++) {
        uint64_t shape[2];
        layer_shape(&l->spec.shape, (enum layer_tensor)i, shape);
        layer_name(layer, (enum layer_tensor)i, names[i]);
        tensors[i] = tensor(names[i], shape[0], shape[1]);
    }
    return weir_block_add(l->run, tensors, LAYER_TENSORS, &l->layers[layer]);
}

/* 4k: rows cut at multiples of the tile, the most tiles that fit, at least one. */
static uint32_t rows_per_block(const struct llama_spec *spec)
{
    uint64_t tiles = spec->row_elements / ((uint64_t)spec->shape.tile_rows * spec->shape.hidden);
    uint64_t rows = (tiles > 0 ? tiles : 1) * spec->shape.tile_rows;
    return rows < spec->shape.vocab ? (uint32_t)rows : spec->shape.vocab;
}

static enum weir_status rows_add(struct llama *l, const char *whole, struct llama_rows *blocks)
{
    const struct network_shape *s = &l->spec.shape;
    uint32_t step = rows_per_block(&l->spec);
    for (uint32_t i = 0; i < l->row_block_count; i++) {
        blocks[i].first_row = i * step;
        blocks[i].rows = s->vocab - i * step < step ? s->vocab - i * step : step;
        char name[96];
        snprintf(name, sizeof name, l->row_block_count > 1 ? "%s[%u]" : "%s", whole, i);
        struct weir_tensor t = tensor(name, blocks[i].rows, s->hidden);
        if (l->row_block_count > 1) {
            t.whole_name = whole;
            t.whole_rows = s->vocab;
            t.first_row = blocks[i].first_row;
        }
        WEIR_TRY(weir_block_add(l->run, &t, 1, &blocks[i].block));
    }
    return WEIR_OK;
}

static enum weir_status blocks_add(struct llama *l)
{
    WEIR_TRY(rows_add(l, "model.embed_tokens.weight", l->embed));
    for (uint32_t i = 0; i < l->spec.layer_count; i++)
        WEIR_TRY(layer_add(l, i));
    struct weir_tensor norm = tensor("model.norm.weight", l->spec.shape.hidden, 0);
    WEIR_TRY(weir_block_add(l->run, &norm, 1, &l->final_norm));
    if (!l->spec.tied)
        return rows_add(l, "lm_head.weight", l->head);
    memcpy(l->head, l->embed, l->row_block_count * sizeof *l->head);
    return WEIR_OK;
}

static enum weir_status kept(struct llama *l, const char *kind, uint32_t i, uint32_t m,
                             uint64_t bytes, double recompute_flops, uint32_t *id)
{
    char name[64];
    snprintf(name, sizeof name, "%s%u.%u", kind, i, m);
    return weir_kept_add(l->run,
                         &(struct weir_kept){.struct_bytes = sizeof(struct weir_kept),
                                             .name = name,
                                             .byte_count = bytes,
                                             .optional = recompute_flops > 0,
                                             .recompute_flops = recompute_flops},
                         id);
}

static enum weir_status kept_add(struct llama *l)
{
    const struct network_shape *s = &l->spec.shape;
    uint64_t n = l->net.tokens, act = s->dtype == WEIR_BF16 ? 2 : 4;
    uint32_t count = l->spec.micro_count;
    WEIR_TRY(kept(l, "rope", 0, 0, (uint64_t)s->length * s->head_dim * sizeof(float), 0, &l->rope));
    for (uint32_t m = 0; m < count; m++) {
        for (uint32_t i = 0; i <= l->spec.layer_count; i++)
            WEIR_TRY(kept(l, "x", i, m, n * s->hidden * act, 0, &l->boundary[i * count + m]));
        for (uint32_t i = 0; i < l->spec.layer_count; i++)
            WEIR_TRY(kept(l, "inner", i, m, l->net.inner_bytes, network_layer_flops(&l->net),
                          &l->inner[i * count + m]));
        for (uint32_t i = 0; i < 2; i++)
            WEIR_TRY(kept(l, "d", i, m, n * s->hidden * 4, 0, &l->d[i * count + m]));
        WEIR_TRY(kept(l, "tokens", 0, m, n * 2 * sizeof(int32_t), 0, &l->tokens[m]));
        WEIR_TRY(kept(l, "stats", 0, m, n * 3 * sizeof(float), 0, &l->stats[m]));
        for (uint32_t i = 0; i < l->row_block_count; i++)
            WEIR_TRY(kept(l, "logits", i, m, n * l->head[i].rows * sizeof(float),
                          network_head_flops(&l->net, l->head[i].rows), &l->logits[i * count + m]));
        WEIR_TRY(
            kept(l, "loss", 0, m, network_chunk_count(&l->net) * sizeof(double), 0, &l->loss[m]));
    }
    return WEIR_OK;
}

/* Kept tensors are numbered in 32 bits, and so are the arrays of their numbers. */
static enum weir_status kept_count_check(const struct llama *l)
{
    const struct llama_spec *s = &l->spec;
    uint64_t of_one = 2ull * s->layer_count + l->row_block_count + 6; /* as kept_add adds them */
    uint64_t all = of_one * s->micro_count + 1;
    if (all <= UINT32_MAX)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG,
                     "%u micro-batches through %u layers keep %llu tensors, at most %u are "
                     "counted; raise --micro-batch or lower --batch",
                     s->micro_count, s->layer_count, (unsigned long long)all, UINT32_MAX);
}

static enum weir_status arrays_make(struct llama *l)
{
    const struct llama_spec *s = &l->spec;
    uint32_t step = rows_per_block(s);
    uint64_t m = s->micro_count;
    l->row_block_count = (s->shape.vocab + step - 1) / step;
    WEIR_TRY(kept_count_check(l));
    WEIR_TRY(weir_alloc(&l->layers, s->layer_count, sizeof *l->layers, "layers"));
    WEIR_TRY(weir_alloc(&l->embed, l->row_block_count, sizeof *l->embed, "embedding"));
    WEIR_TRY(weir_alloc(&l->head, l->row_block_count, sizeof *l->head, "head"));
    WEIR_TRY(weir_alloc(&l->boundary, (s->layer_count + 1) * m, sizeof(uint32_t), "boundaries"));
    WEIR_TRY(weir_alloc(&l->inner, s->layer_count * m, sizeof(uint32_t), "activations"));
    WEIR_TRY(weir_alloc(&l->d, 2 * m, sizeof(uint32_t), "gradients"));
    WEIR_TRY(weir_alloc(&l->tokens, m, sizeof(uint32_t), "tokens"));
    WEIR_TRY(weir_alloc(&l->stats, m, sizeof(uint32_t), "statistics"));
    WEIR_TRY(weir_alloc(&l->logits, l->row_block_count * m, sizeof(uint32_t), "logits"));
    WEIR_TRY(weir_alloc(&l->loss, m, sizeof(uint32_t), "losses"));
    return weir_alloc(&l->losses, m * network_chunk_count(&l->net), sizeof(double), "losses");
}

static enum weir_status open_all(struct llama *l, int thread_count)
{
    WEIR_TRY(network_open(&l->net, &l->spec.shape, weir_compute_kernels(l->run),
                          weir_compute_stream(l->run), thread_count));
    WEIR_TRY(arrays_make(l));
    WEIR_TRY(blocks_add(l));
    return kept_add(l);
}

enum weir_status llama_open(struct llama **out, weir_run *run, const struct llama_spec *spec,
                            int thread_count)
{
    struct llama *l;
    WEIR_TRY(weir_alloc(&l, 1, sizeof *l, "llama"));
    l->run = run;
    l->spec = *spec;
    enum weir_status status = open_all(l, thread_count);
    if (status != WEIR_OK) {
        llama_close(l);
        return status;
    }
    *out = l;
    return WEIR_OK;
}

void llama_close(struct llama *l)
{
    if (!l)
        return;
    void *arrays[] = {l->layers, l->embed, l->head,   l->boundary, l->inner, l->d,
                      l->tokens, l->stats, l->logits, l->loss,     l->losses};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        weir_free(arrays[i]);
    weir_free(l);
}

size_t llama_tensor_count(const struct llama *l)
{
    return (size_t)l->spec.layer_count * LAYER_TENSORS + 1 +
           (l->spec.tied ? 1 : 2) * (size_t)l->row_block_count;
}

static void rows_tensor(const struct llama *l, const struct llama_rows *rows, const char *name,
                        struct llama_tensor *out)
{
    uint64_t h = l->spec.shape.hidden;
    *out = (struct llama_tensor){.block = rows->block,
                                 .first = rows->first_row * h,
                                 .count = rows->rows * h,
                                 .dim_count = 2,
                                 .whole_shape = {l->spec.shape.vocab, h}};
    out->name = name;
}

void llama_tensor_at(const struct llama *l, size_t index, struct llama_tensor *out,
                     char name[static 96])
{
    size_t rows = l->row_block_count, layers = (size_t)l->spec.layer_count * LAYER_TENSORS;
    if (index < rows || index > rows + layers) {
        bool embed = index < rows;
        snprintf(name, 96, "%s", embed ? "model.embed_tokens.weight" : "lm_head.weight");
        rows_tensor(l, embed ? &l->embed[index] : &l->head[index - rows - layers - 1], name, out);
        return;
    }
    uint64_t shape[2] = {l->spec.shape.hidden, 0};
    uint32_t block = l->final_norm, which = 0;
    if (index < rows + layers) {
        uint32_t layer = (uint32_t)((index - rows) / LAYER_TENSORS);
        which = (uint32_t)((index - rows) % LAYER_TENSORS);
        block = l->layers[layer];
        layer_shape(&l->spec.shape, (enum layer_tensor)which, shape);
        layer_name(layer, (enum layer_tensor)which, name);
    } else {
        snprintf(name, 96, "model.norm.weight");
    }
    *out = (struct llama_tensor){.name = name,
                                 .block = block,
                                 .tensor = which,
                                 .count = shape[0] * (shape[1] ? shape[1] : 1),
                                 .whole_shape = {shape[0], shape[1]},
                                 .dim_count = shape[1] ? 2 : 1};
}

bool llama_tensor_known(const struct llama *l, const char *name)
{
    static const char layers[] = "model.layers.";
    if (strcmp(name, "lm_head.weight") == 0)
        return !l->spec.tied;
    bool in_layer = strncmp(name, layers, sizeof layers - 1) == 0;
    unsigned long layer = in_layer ? strtoul(name + sizeof layers - 1, NULL, 10) : 0;
    for (int i = 0; in_layer && layer < l->spec.layer_count && i < LAYER_TENSORS; i++) {
        char own[96];
        layer_name((uint32_t)layer, (enum layer_tensor)i, own);
        if (strcmp(name, own) == 0)
            return true;
    }
    return strcmp(name, "model.embed_tokens.weight") == 0 || strcmp(name, "model.norm.weight") == 0;
}

uint64_t llama_parameter_count(const struct llama *l)
{
    uint64_t count = 0;
    for (size_t i = 0; i < llama_tensor_count(l); i++) {
        struct llama_tensor t;
        char name[96];
        llama_tensor_at(l, i, &t, name);
        count += t.count;
    }
    return count;
}
