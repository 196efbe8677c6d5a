/*
 * Random models and traces for tests of planning: layer-major training steps of a llama (layers,
 * micro-batches, groups, tied or several head blocks, frozen and mixed blocks, optional kept
 * tensors, put and get), its evaluation, and wild but legal sequences of want and done.
 */
#ifndef WEIR_TESTS_SUPPORT_TRACE_H
#define WEIR_TESTS_SUPPORT_TRACE_H

#include "offload/trace.h"
#include "tests/support.h"

#define TEST_LAYERS 5
#define TEST_MICRO  4
#define TEST_PIECES 3

struct test_model {
    struct weir_model model;
    uint32_t layer_count, micro_count, group_count, piece_count, head_count;
    bool tied, frozen_embedding;
    uint32_t layer[TEST_LAYERS], embedding[TEST_PIECES], head[TEST_PIECES], norm;
    uint32_t x[TEST_LAYERS + 1][TEST_MICRO], d[2][TEST_MICRO];
    uint32_t inner[TEST_LAYERS][TEST_MICRO]; /* optional */
    uint32_t tokens[TEST_MICRO], loss[TEST_MICRO], running[TEST_MICRO];
    uint64_t scratch_bytes, layer_scratch_bytes; /* the latter while a layer is held; 0: none */
};

void test_model_open(struct test_model *m, struct test_random *random);
/* A model of `layers` equal layers and a tied embedding, for numbers of ops. */
void test_model_open_large(struct test_model *m, uint32_t layers, uint32_t micro,
                           struct weir_grain grain, uint64_t layer_elements);
void test_model_close(struct test_model *m);

struct weir_trace *test_trace_train(const struct test_model *m);
struct weir_trace *test_trace_eval(const struct test_model *m);
/* About `events` wants and dones of any blocks and kept tensors; legal, otherwise senseless. */
struct weir_trace *test_trace_wild(const struct test_model *m, struct test_random *random,
                                   uint32_t events);

#endif
