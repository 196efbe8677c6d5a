/* The toy's arithmetic, shared by both ways to run it. */
#ifndef WEIR_TESTS_SUPPORT_TOY_WORK_H
#define WEIR_TESTS_SUPPORT_TOY_WORK_H

#include "tests/support_toy.h"

/* One unit of work; any pointer may be NULL where it makes no sense. */
struct work {
    enum weir_dtype dtype;
    const void *weight;
    void *weight_out;
    uint64_t elements;
    const float *x, *inner_in, *dy;
    float *y, *inner, *dx, *grad, *loss;
    uint32_t width;
    bool fresh, poison;
    float seed;
};

void work_input(const struct work *w);
void work_forward(const struct work *w);
void work_loss(const struct work *w);
void work_backward(const struct work *w);
void work_write(const struct work *w);
/* Padded elements of a block: of its gradient, of its weight. */
uint64_t trained_elements(const struct toy_spec *spec, uint32_t block);
uint64_t all_elements(const struct toy_spec *spec, uint32_t block);

#endif
