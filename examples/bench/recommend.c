#include "examples/bench/recommend.h"

#include <math.h>

double recommend_best(const struct measured *points, size_t count, int pattern)
{
    double best = 0;
    for (size_t i = 0; i < count; i++)
        if (points[i].pattern == pattern && points[i].gb_per_s > best)
            best = points[i].gb_per_s;
    return best;
}

double recommend_rate(const struct measured *points, size_t count, const struct measured *like,
                      int pattern)
{
    for (size_t i = 0; i < count; i++)
        if (points[i].pattern == pattern && points[i].block_bytes == like->block_bytes &&
            points[i].depth == like->depth && points[i].engine == like->engine)
            return points[i].gb_per_s;
    return 0;
}

/* Over the directions that were measured. */
static double least_fraction(const struct measured *points, size_t count,
                             const struct measured *like)
{
    double least = 1;
    for (size_t i = 0; i < count; i++) {
        double best = recommend_best(points, count, points[i].pattern);
        double fraction = recommend_rate(points, count, like, points[i].pattern) / best;
        if (fraction < least)
            least = fraction;
    }
    return least;
}

static bool smaller(const struct measured *a, const struct measured *b)
{
    uint64_t a_bytes = a->block_bytes * a->depth, b_bytes = b->block_bytes * b->depth;
    if (a_bytes != b_bytes)
        return a_bytes < b_bytes;
    if (a->depth != b->depth)
        return a->depth > b->depth;
    return a->engine != b->engine && a->cpu_s_per_gb < b->cpu_s_per_gb;
}

struct recommendation recommend(const struct measured *points, size_t count)
{
    double nearest = 0;
    for (size_t i = 0; i < count; i++)
        nearest = fmax(nearest, least_fraction(points, count, &points[i]));
    struct recommendation found = {.index = count, .within = nearest >= RECOMMEND_WITHIN};
    double least = found.within ? RECOMMEND_WITHIN : RECOMMEND_WITHIN * nearest;
    for (size_t i = 0; i < count; i++) {
        double fraction = least_fraction(points, count, &points[i]);
        if (fraction < least || (found.index < count && !smaller(&points[i], &points[found.index])))
            continue;
        found.index = i;
        found.fraction = fraction;
    }
    return found;
}
