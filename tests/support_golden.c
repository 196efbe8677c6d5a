#include "tests/support_golden.h"
#include "tests/support_cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void golden_read(const struct golden *g, const char *group, const char *name, uint64_t first,
                 uint64_t count, void *out)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", group, name);
    const struct weir_file_tensor *tensor = weir_tensors_find(g->file, full);
    if (!tensor)
        fail_msg("%s: no tensor %s", g->name, full);
    uint32_t bytes = weir_file_dtype_bytes(tensor->dtype);
    assert_ok(weir_tensors_read(g->file, tensor, first * bytes, out, count * bytes));
}

void *golden_array(uint64_t count, size_t size)
{
    void *out = calloc(count, size);
    assert_non_null(out);
    return out;
}

struct golden golden_open(const char *name)
{
    struct golden g = {.name = name};
    char path[64];
    snprintf(path, sizeof path, "golden/%s.safetensors", name);
    assert_ok(weir_tensors_open(&g.file, path));
    golden_read(&g, "", "shape", 0, 9, g.shape);
    golden_read(&g, "", "numbers", 0, 12, g.numbers);
    golden_read(&g, "", "loss", 0, STEPS, g.loss);
    golden_read(&g, "", "grad_norm", 0, STEPS, g.grad_norm);
    const struct weir_file_tensor *tokens = weir_tensors_find(g.file, "tokens");
    assert_non_null(tokens);
    assert_int_equal(SEQUENCES, tokens->shape[0]);
    g.length = (uint32_t)tokens->shape[1];
    g.tokens = golden_array(tokens->element_count, sizeof(int32_t));
    g.targets = golden_array(tokens->element_count, sizeof(int32_t));
    golden_read(&g, "", "tokens", 0, tokens->element_count, g.tokens);
    golden_read(&g, "", "targets", 0, tokens->element_count, g.targets);
    return g;
}

void golden_close(struct golden *g)
{
    free(g->tokens);
    free(g->targets);
    weir_tensors_close(g->file);
}

uint32_t golden_target_count(const struct golden *g)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SEQUENCES * g->length; i++)
        count += g->targets[i] != -100;
    return count;
}

static struct llama_spec spec_of(const struct golden *g, const struct cut *cut,
                                 enum weir_dtype dtype)
{
    const int32_t *s = g->shape;
    const double *n = g->numbers;
    return (struct llama_spec){
        .shape = {.sequences = cut->sequences,
                  .length = g->length,
                  .hidden = (uint32_t)s[1],
                  .heads = (uint32_t)s[2],
                  .kv_heads = (uint32_t)s[3],
                  .head_dim = (uint32_t)s[4],
                  .intermediate = (uint32_t)s[5],
                  .vocab = (uint32_t)s[6],
                  .tile_rows = cut->tile_rows,
                  .chunk_tokens = cut->chunk_tokens,
                  .norm_eps = (float)n[0],
                  .dtype = dtype,
                  .rope = {.theta = n[1],
                           .scaling = (enum weir_rope_scaling)s[8],
                           .factor = n[2],
                           .low_freq_factor = n[3],
                           .high_freq_factor = n[4],
                           .original_length = n[5]}},
        .layer_count = (uint32_t)s[0],
        .micro_count = SEQUENCES / cut->sequences,
        .tied = s[7] != 0,
        .row_elements = cut->row_elements,
    };
}

void model_step(struct model *m, bool dry, bool training, double *loss, struct weir_report *report)
{
    struct llama_step step = {.key = training ? "train" : "evaluate",
                              .dry = dry,
                              .group_count = 1,
                              .tokens = dry ? NULL : m->batch,
                              .target_count = golden_target_count(m->golden),
                              .update = training ? &m->update : NULL};
    *report = (struct weir_report){.struct_bytes = sizeof *report};
    assert_ok(llama_run(m->llama, &step, loss, report));
}

/* Micro-batches of neighbouring sequences: inputs, then targets. */
static void batch_fill(struct model *m)
{
    uint32_t n = m->llama->net.tokens;
    for (uint32_t i = 0; i < m->llama->spec.micro_count; i++) {
        memcpy(m->batch + 2ull * i * n, m->golden->tokens + i * n, n * sizeof(int32_t));
        memcpy(m->batch + (2ull * i + 1) * n, m->golden->targets + i * n, n * sizeof(int32_t));
    }
}

static void weights_load(struct model *m)
{
    for (size_t i = 0; i < llama_tensor_count(m->llama); i++) {
        struct llama_tensor t;
        char name[96];
        llama_tensor_at(m->llama, i, &t, name);
        float *values = golden_array(t.count, sizeof *values);
        golden_read(m->golden, "weight/", name, t.first, t.count, values);
        assert_ok(weir_block_load(m->run, t.block, t.tensor, WEIR_FP32, values, 0, t.count));
        free(values);
    }
}

void model_open(struct model *m, const struct golden *g, const struct cut *cut,
                enum weir_dtype dtype)
{
    const double *n = g->numbers + 6;
    *m = (struct model){.golden = g,
                        .update = {.struct_bytes = sizeof m->update,
                                   .lr = (float)n[0],
                                   .beta1 = (float)n[1],
                                   .beta2 = (float)n[2],
                                   .eps = (float)n[3],
                                   .weight_decay = (float)n[4],
                                   .clip = (float)n[5]}};
    assert_ok(weir_open(&m->run, &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                        .device = "host",
                                                        .device_bytes = UINT64_MAX,
                                                        .host_bytes = UINT64_MAX,
                                                        .dtype = dtype,
                                                        .grad_dtype = dtype,
                                                        .thread_count = 2,
                                                        .cost = &test_cost}));
    struct llama_spec spec = spec_of(g, cut, dtype);
    assert_ok(llama_open(&m->llama, m->run, &spec, 2));
    m->batch = golden_array(2ull * SEQUENCES * g->length, sizeof(int32_t));
    double loss;
    struct weir_report report;
    model_step(m, true, true, &loss, &report);
    model_step(m, true, false, &loss, &report);
    assert_ok(weir_layout(m->run));
    weights_load(m);
    batch_fill(m);
}

void model_close(struct model *m)
{
    free(m->batch);
    llama_close(m->llama);
    weir_close(m->run);
}
