/* Shared by the files that implement network.h. */
#ifndef WEIR_TRAIN_NETWORK_INTERNAL_H
#define WEIR_TRAIN_NETWORK_INTERNAL_H

#include "examples/train/network.h"

/* A bump pointer over scratch; every piece starts on 64 bytes. With base NULL it only counts. */
struct bump {
    char *base;
    uint64_t used;
};

static inline void *bump_take(struct bump *bump, uint64_t bytes)
{
    void *at = bump->base ? bump->base + bump->used : NULL;
    bump->used += (bytes + 63) / 64 * 64;
    return at;
}

static inline uint64_t act_bytes(const struct network *net)
{
    return net->shape.dtype == WEIR_BF16 ? 2 : 4;
}

static inline enum weir_status queue_gemm(const struct network *net, uint32_t gemm, const void *a,
                                          const void *b, void *c, void *scratch)
{
    struct weir_gemm_args args = {.gemm = gemm, .a = a, .b = b, .c = c, .scratch = scratch};
    return net->math->gemm(net->kernels, net->stream, &args);
}

/* A layer's activations between its boundaries. */
struct inner {
    void *q, *k, *v, *o, *x1, *gate, *up; /* act */
    float *lse, *rstd1, *rstd2;
};
struct inner inner_cut(const struct network *net, struct bump *bump);

#endif
