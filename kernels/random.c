/*
 * Initial weights: Philox4x32-10 (Salmon et al. 2011, section 3) and a normal distribution by sums
 * of uniform integers, so that the bits are the same on every machine.
 */
#include "kernels/kernels.h"

#include <string.h>
#include <xxhash.h>

struct block {
    uint32_t v[4];
};

static struct block philox(struct block counter, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * counter.v[0];
        uint64_t b = (uint64_t)0xCD9E8D57u * counter.v[2];
        counter = (struct block){{(uint32_t)(b >> 32) ^ counter.v[1] ^ key0, (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ counter.v[3] ^ key1, (uint32_t)a}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

void weir_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    struct block block;
    memcpy(block.v, counter, sizeof block.v);
    block = philox(block, key[0], key[1]);
    memcpy(out, block.v, sizeof block.v);
}

/* Sum of 12 uniform integers of 16 bits, centred: mean 0, variance 12 * (2^32 - 1) / 12 = 2^32 - 1
 * (Irwin-Hall); scaled to deviation 1 by 2^-16. */
static float normal(struct block a, struct block b)
{
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(a.v[i] & 0xFFFFu) + (int32_t)(a.v[i] >> 16);
    for (int i = 0; i < 2; i++)
        sum += (int32_t)(b.v[i] & 0xFFFFu) + (int32_t)(b.v[i] >> 16);
    return (float)(2 * sum - 12 * 65535) * 0x1p-17f;
}

void weir_random_normal(uint64_t seed, const char *name, uint64_t first, uint64_t count,
                        float deviation, float *out)
{
    uint64_t key = XXH3_64bits_withSeed(name, strlen(name), seed);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t element = first + i;
        struct block counter = {{(uint32_t)element, (uint32_t)(element >> 32), 0, 0}};
        struct block a = philox(counter, (uint32_t)key, (uint32_t)(key >> 32));
        counter.v[2] = 1;
        struct block b = philox(counter, (uint32_t)key, (uint32_t)(key >> 32));
        out[i] = normal(a, b) * deviation;
    }
}
