/*
 * The Llama against transformers: losses, gradient norms, gradients and logits that
 * LlamaForCausalLM and AdamW of PyTorch give on small random models (golden/make.py made the files)
 * are those of weir-train's network, whatever the micro-batches and the cuts of the vocabulary.
 */
#include "tests/support_golden.h"
#include "zero/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const cases[] = {"untied", "tied", "grouped", "head_dim", "llama3", "linear"};
#define CASES (sizeof cases / sizeof *cases)

static const struct cut whole = {2, WEIR_TILE_ROWS, WEIR_CHUNK_TOKENS, LLAMA_ROW_ELEMENTS};
static const struct cut fine = {2, 24, 15, 48 * 32}; /* blocks of two tiles, and rests of each */

/* Comparisons -------------------------------------------------------------------------------- */

static void assert_near(double expected, double got, double relative, const char *name,
                        const char *what, uint32_t step)
{
    if (!(fabs(got - expected) <= relative * fabs(expected)))
        fail_msg("%s: %s of step %u is %.9g, not %.9g within %g", name, what, step, got, expected,
                 relative);
}

static void assert_arrays_near(const float *expected, const float *got, uint64_t count,
                               double relative, const char *name, const char *what)
{
    double largest = 0, off = 0;
    for (uint64_t i = 0; i < count; i++) {
        double difference = fabs((double)expected[i] - (double)got[i]);
        largest = fmax(largest, fabs((double)expected[i]));
        off = isnan(off) || difference <= off ? off : difference; /* a nan stays */
    }
    if (!(largest > 0 && off <= relative * largest))
        fail_msg("%s: %s is off by %g of its largest, %g", name, what, off / largest, largest);
}

/* Losses and norms of ten steps; norm tolerance 0: not compared. */
static void assert_training(const char *name, const struct cut *cut, enum weir_dtype dtype,
                            double loss_tolerance, double norm_tolerance)
{
    struct golden g = golden_open(name);
    struct model m;
    model_open(&m, &g, cut, dtype);
    for (uint32_t step = 0; step < STEPS; step++) {
        double loss;
        struct weir_report report;
        model_step(&m, false, true, &loss, &report);
        assert_false(report.skipped);
        assert_near(g.loss[step], loss, loss_tolerance, name, "loss", step);
        if (norm_tolerance > 0)
            assert_near(g.grad_norm[step], report.grad_norm, norm_tolerance, name, "norm", step);
    }
    model_close(&m);
    golden_close(&g);
}

/* Tests -------------------------------------------------------------------------------------- */

/* Ten fp32 steps of every model have PyTorch's losses and gradient norms. */
static void fp32_training_matches_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        assert_training(cases[i], &whole, WEIR_FP32, 1e-5, 1e-4);
}

/* The same when vocabulary, tokens of the head and blocks of rows are cut small. */
static void cuts_of_the_vocabulary_match_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        assert_training(cases[i], &fine, WEIR_FP32, 1e-5, 1e-4);
}

/* Ten bf16 steps stay near fp32's losses: rounding, not another function. */
static void bf16_training_stays_near_fp32(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        assert_training(cases[i], &whole, WEIR_BF16, 5e-3, 0);
}

/* Elements [offset, offset + count) of a block's gradient, from its home. */
static void gradient_read(weir_run *run, uint32_t block, uint64_t offset, uint64_t count,
                          float *out)
{
    const struct weir_thing *thing = &run->model.things[block];
    uint64_t copied = 0;
    for (uint32_t i = 0; i < thing->trained_window_count; i++) {
        const struct weir_window *window = &thing->windows[i];
        uint64_t first = offset > window->offset ? offset : window->offset;
        uint64_t end = window->offset + window->element_count;
        end = end < offset + count ? end : offset + count;
        if (first >= end)
            continue;
        struct weir_window_bytes at;
        assert_ok(weir_home_fetch(&run->home, block, i, 1u << WEIR_PART_GRAD, &at));
        memcpy(out + (first - offset), (float *)at.part[WEIR_PART_GRAD] + (first - window->offset),
               (end - first) * sizeof *out);
        copied += end - first;
    }
    assert_int_equal(count, copied);
}

static void assert_gradients(const char *name, const struct cut *cut)
{
    struct golden g = golden_open(name);
    struct model m;
    model_open(&m, &g, cut, WEIR_FP32);
    double loss;
    struct weir_report report;
    model_step(&m, false, true, &loss, &report);
    for (size_t i = 0; i < llama_tensor_count(m.llama); i++) {
        struct llama_tensor t;
        char tensor[96];
        llama_tensor_at(m.llama, i, &t, tensor);
        float *expected = golden_array(t.count, sizeof *expected),
              *got = golden_array(t.count, sizeof *got);
        golden_read(&g, "grad/", tensor, t.first, t.count, expected);
        gradient_read(m.run, t.block, weir_block_offset(m.run, t.block, t.tensor), t.count, got);
        assert_arrays_near(expected, got, t.count, 1e-4, name, tensor);
        free(expected);
        free(got);
    }
    model_close(&m);
    golden_close(&g);
}

/* After one step the gradient of every tensor is PyTorch's, element by element. */
static void first_gradients_match_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        assert_gradients(cases[i], &whole);
        assert_gradients(cases[i], &fine);
    }
}

/* Memory of a plain forward, freed together. */
struct plain {
    const struct golden *golden;
    const struct network *net;
    void *arrays[64];
    size_t count;
};

static void *plain_array(struct plain *p, uint64_t bytes)
{
    assert_true(p->count < sizeof p->arrays / sizeof *p->arrays);
    return p->arrays[p->count++] = golden_array(bytes, 1);
}

static const void *plain_weight(struct plain *p, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "weight/%s", name);
    const struct weir_file_tensor *tensor = weir_tensors_find(p->golden->file, full);
    if (!tensor)
        fail_msg("%s: no tensor %s", p->golden->name, full);
    void *out = plain_array(p, tensor->byte_count);
    assert_ok(weir_tensors_read(p->golden->file, tensor, 0, out, tensor->byte_count));
    return out;
}

/* Layer `layer` in the order of enum layer_tensor, whose names the llama knows. */
static struct layer_weights plain_layer(struct plain *p, const struct llama *llama, uint32_t layer)
{
    struct layer_weights w = {.fresh = false};
    for (size_t i = 0; i < llama_tensor_count(llama); i++) {
        struct llama_tensor t;
        char name[96];
        llama_tensor_at(llama, i, &t, name);
        if (t.block == llama->layers[layer])
            w.weight[t.tensor] = plain_weight(p, name);
    }
    return w;
}

static void *plain_layers(struct plain *p, const struct llama *llama, void *x)
{
    const struct network_shape *s = &p->net->shape;
    float *cos_sin = plain_array(p, (uint64_t)s->length * s->head_dim * sizeof *cos_sin);
    void *inner = plain_array(p, p->net->inner_bytes);
    void *scratch = plain_array(p, p->net->forward_scratch_bytes);
    assert_ok(network_rope(p->net, cos_sin));
    for (uint32_t i = 0; i < llama->spec.layer_count; i++) {
        struct layer_weights w = plain_layer(p, llama, i);
        void *y = plain_array(p, (uint64_t)p->net->tokens * s->hidden * sizeof(float));
        assert_ok(network_layer_forward(p->net, &w, cos_sin, x, y, inner, scratch));
        x = y;
    }
    return x;
}

/* The last boundary, by the network's functions over plain arrays. */
static void *plain_forward(struct plain *p, const struct llama *llama)
{
    const struct network_shape *s = &p->net->shape;
    const struct vocab_rows rows = {.rows = s->vocab,
                                    .weight = plain_weight(p, "model.embed_tokens.weight")};
    void *x = plain_array(p, (uint64_t)p->net->tokens * s->hidden * sizeof(float));
    assert_ok(network_embed_forward(p->net, &rows, p->golden->tokens, x));
    return plain_layers(p, llama, x);
}

/* The head's pass over the vocabulary for these targets. */
struct plain_head {
    struct vocab_rows rows;
    struct head_norm norm;
    const void *x;
    void *scratch;
    struct head_stats stats;
};

static struct plain_head plain_head_open(struct plain *p, const struct llama *llama)
{
    uint32_t n = p->net->tokens;
    const char *head = llama->spec.tied ? "model.embed_tokens.weight" : "lm_head.weight";
    float *of_token = plain_array(p, 3ull * n * sizeof *of_token);
    return (struct plain_head){
        .rows = {.rows = p->net->shape.vocab, .weight = plain_weight(p, head)},
        .norm = {.weight = plain_weight(p, "model.norm.weight")},
        .x = plain_forward(p, llama),
        .scratch = plain_array(p, p->net->head_scratch_bytes),
        .stats = {of_token, of_token + n, of_token + 2 * n},
    };
}

static void plain_head_run(const struct plain *p, const struct plain_head *head,
                           const int32_t *targets)
{
    assert_ok(network_head_stats(p->net, &head->rows, &head->norm, head->x, targets, &head->stats,
                                 head->scratch));
    assert_ok(p->net->stream->device->table->stream_sync(p->net->stream));
}

/* Every token's logit of every entry of the vocabulary: each entry is all tokens' target once. */
static void assert_logits(struct plain *p, const struct plain_head *head)
{
    uint32_t n = p->net->tokens, vocab = p->net->shape.vocab;
    uint64_t count = (uint64_t)n * vocab;
    int32_t *targets = plain_array(p, n * sizeof *targets);
    float *expected = plain_array(p, count * sizeof *expected),
          *got = plain_array(p, count * sizeof *got);
    golden_read(p->golden, "", "logits", 0, count, expected);
    for (uint32_t v = 0; v < vocab; v++) {
        for (uint32_t i = 0; i < n; i++)
            targets[i] = (int32_t)v;
        plain_head_run(p, head, targets);
        for (uint32_t i = 0; i < n; i++)
            got[(uint64_t)i * vocab + v] = head->stats.target_logit[i];
    }
    assert_arrays_near(expected, got, count, 1e-4, p->golden->name, "logits");
}

static void assert_log_probabilities(struct plain *p, const struct plain_head *head)
{
    const int32_t *targets = p->golden->targets;
    uint32_t n = p->net->tokens;
    float *expected = plain_array(p, n * sizeof *expected), *got = plain_array(p, n * sizeof *got);
    golden_read(p->golden, "", "log_probability", 0, n, expected);
    plain_head_run(p, head, targets);
    for (uint32_t i = 0; i < n; i++)
        got[i] = targets[i] == -100
                     ? 0
                     : head->stats.target_logit[i] - head->stats.max[i] - logf(head->stats.sum[i]);
    assert_arrays_near(expected, got, n, 1e-5, p->golden->name, "log-probability");
}

/* Before training every logit and each target's log-probability are PyTorch's, token by token. */
static void first_logits_match_transformers(void **state)
{
    (void)state;
    static const struct cut all = {SEQUENCES, 24, 15, LLAMA_ROW_ELEMENTS};
    for (size_t i = 0; i < CASES; i++) {
        struct golden g = golden_open(cases[i]);
        struct model m;
        model_open(&m, &g, &all, WEIR_FP32);
        struct plain p = {.golden = &g, .net = &m.llama->net};
        struct plain_head head = plain_head_open(&p, m.llama);
        assert_logits(&p, &head);
        assert_log_probabilities(&p, &head);
        model_close(&m);
        while (p.count > 0)
            free(p.arrays[--p.count]);
        golden_close(&g);
    }
}

/* Loss and norm of the first training step. */
static double first_step(const struct golden *g, const struct cut *cut, double *norm)
{
    struct model m;
    model_open(&m, g, cut, WEIR_FP32);
    double loss;
    struct weir_report report;
    model_step(&m, false, true, &loss, &report);
    *norm = report.grad_norm;
    model_close(&m);
    return loss;
}

/* A masked target adds nothing to the sum of losses: a mask and its complement add up to all. */
static void masked_targets_do_not_count(void **state)
{
    (void)state;
    struct golden g = golden_open("untied");
    uint32_t n = SEQUENCES * g.length;
    int32_t *targets = golden_array(n, sizeof *targets);
    memcpy(targets, g.targets, n * sizeof *targets);
    double norm, all = first_step(&g, &whole, &norm) * golden_target_count(&g), sum = 0;
    for (uint32_t part = 0; part < 2; part++) {
        for (uint32_t i = 0; i < n; i++)
            g.targets[i] = (i % 3 == 0) == (part == 0) ? targets[i] : -100;
        sum += first_step(&g, &whole, &norm) * golden_target_count(&g);
    }
    assert_near(all, sum, 1e-6, g.name, "sum of losses", 0);
    free(targets);
    golden_close(&g);
}

/* The tokens of a sequence without targets change no bit of loss and gradient norm, which a single
 * one of its targets does. */
static void sequences_without_targets_do_not_count(void **state)
{
    (void)state;
    struct golden g = golden_open("grouped");
    int32_t *tokens = g.tokens + 3 * g.length, *targets = g.targets + 3 * g.length;
    int32_t last = targets[g.length - 1];
    for (uint32_t i = 0; i < g.length; i++)
        targets[i] = -100;
    double norm[3], loss[3];
    loss[0] = first_step(&g, &whole, &norm[0]);
    for (uint32_t i = 0; i < g.length; i++)
        tokens[i] = (tokens[i] + 1) % g.shape[6];
    loss[1] = first_step(&g, &whole, &norm[1]);
    targets[g.length - 1] = last;
    loss[2] = first_step(&g, &whole, &norm[2]);
    assert_true(loss[0] == loss[1] && norm[0] == norm[1]);
    assert_true(loss[0] != loss[2] && norm[0] != norm[2]);
    golden_close(&g);
}

/* Four micro-batches of one sequence, two of two and one of four have the same loss. */
static void micro_batches_do_not_change_the_loss(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        struct golden g = golden_open(cases[i]);
        double expected_norm, expected = first_step(&g, &whole, &expected_norm);
        for (uint32_t sequences = 1; sequences <= SEQUENCES; sequences *= 2) {
            struct cut cut = whole;
            cut.sequences = sequences;
            double norm, loss = first_step(&g, &cut, &norm);
            assert_near(expected, loss, 1e-6, g.name, "loss", 0);
            assert_near(expected_norm, norm, 1e-5, g.name, "norm", 0);
        }
        golden_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_training_matches_transformers),
        cmocka_unit_test(cuts_of_the_vocabulary_match_transformers),
        cmocka_unit_test(bf16_training_stays_near_fp32),
        cmocka_unit_test(first_gradients_match_transformers),
        cmocka_unit_test(first_logits_match_transformers),
        cmocka_unit_test(masked_targets_do_not_count),
        cmocka_unit_test(sequences_without_targets_do_not_count),
        cmocka_unit_test(micro_batches_do_not_change_the_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
