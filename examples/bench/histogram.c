#include "examples/bench/histogram.h"

#include <math.h>
#include <stddef.h>

#define HALF (UINT64_C(1) << HISTOGRAM_BITS)

/* Values below 2^(bits + 1) have buckets of their own; above, each power of two has 2^bits. */
static size_t bucket_of(uint64_t value)
{
    if (value < 2 * HALF)
        return (size_t)value;
    int shift = 63 - __builtin_clzll(value) - HISTOGRAM_BITS;
    return (size_t)(((uint64_t)shift << HISTOGRAM_BITS) + (value >> shift));
}

static double bucket_middle(size_t bucket)
{
    if (bucket < 2 * HALF)
        return (double)bucket;
    int shift = (int)(bucket >> HISTOGRAM_BITS) - 1;
    uint64_t low = (bucket & (HALF - 1)) | HALF;
    return ldexp((double)low, shift) + (ldexp(1, shift) - 1) / 2;
}

void histogram_add(struct histogram *histogram, uint64_t value)
{
    histogram->counts[bucket_of(value)]++;
    histogram->total++;
}

double histogram_percentile(const struct histogram *histogram, double percent)
{
    uint64_t rank = (uint64_t)ceil(percent / 100 * (double)histogram->total), seen = 0;
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += histogram->counts[i];
        if (seen >= rank && seen > 0)
            return bucket_middle(i);
    }
    return 0;
}
