/*
 * Which block, depth and engine to train with: of those that were measured, the fewest bytes in
 * flight that come within 3 % of the best in every direction measured. Where none does, within 3 %
 * of the one that comes nearest.
 */
#ifndef WEIR_BENCH_RECOMMEND_H
#define WEIR_BENCH_RECOMMEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECOMMEND_WITHIN 0.97

struct measured { /* one point in one direction */
    uint64_t block_bytes;
    uint32_t depth;
    int engine, pattern; /* numbers that only need to be equal or not */
    double gb_per_s, cpu_s_per_gb;
};

struct recommendation {
    size_t index;    /* into measured: block, depth, engine */
    double fraction; /* of the best, in the direction where it is least */
    bool within;     /* false: no point is so near in all directions; the same of the nearest */
};

/* count > 0. Of points with as many bytes in flight the one of smaller blocks, which does as well
 * for transfers that are no larger; then the one of less CPU time, then the first. */
struct recommendation recommend(const struct measured *points, size_t count);
/* The best rate of a direction; 0: not measured. */
double recommend_best(const struct measured *points, size_t count, int pattern);
/* The rate in a direction of the point that is like `like`; 0: not measured. */
double recommend_rate(const struct measured *points, size_t count, const struct measured *like,
                      int pattern);

#endif
