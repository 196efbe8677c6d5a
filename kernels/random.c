/*
 * Initial weights: one Philox4x32-10 block an element (Salmon et al. 2011, section 3), its eight
 * 16-bit halves summed (Irwin-Hall). All integers until one scaling, so the same bits everywhere.
 */
#include "kernels/random.h"
#include "kernels/kernels.h"
#include "kernels/simd.h"

#include <xxhash.h>

struct block {
    uint32_t x0, x1, x2, x3;
};

WEIR_INLINE struct block philox(struct block x, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x.x0, b = (uint64_t)0xCD9E8D57u * x.x2;
        x = (struct block){(uint32_t)(b >> 32) ^ x.x1 ^ key0, (uint32_t)b,
                           (uint32_t)(a >> 32) ^ x.x3 ^ key1, (uint32_t)a};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return x;
}

void weir_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    struct block x =
        philox((struct block){counter[0], counter[1], counter[2], counter[3]}, key[0], key[1]);
    out[0] = x.x0;
    out[1] = x.x1;
    out[2] = x.x2;
    out[3] = x.x3;
}

WEIR_INLINE int32_t halves(uint32_t word)
{
    return (int32_t)((word & 0xFFFFu) + (word >> 16));
}

/* Eight uniform integers of [0, 65535]: mean 8 * 65535 / 2, variance 8 * (2^32 - 1) / 12. */
void weir_random_normal(uint64_t seed, const char *name, uint64_t first, uint64_t count,
                        float deviation, float *out)
{
    uint64_t key = XXH3_64bits_withSeed(name, strlen(name), seed);
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    float scale = deviation * 0x1.3988e2p-16f; /* 1 / sqrt(variance) */
    WEIR_SIMD
    for (uint64_t i = 0; i < count; i++) {
        uint64_t element = first + i;
        struct block x =
            philox((struct block){(uint32_t)element, (uint32_t)(element >> 32), 0, 0}, key0, key1);
        int32_t sum = halves(x.x0) + halves(x.x1) + halves(x.x2) + halves(x.x3);
        out[i] = (float)(sum - 4 * 65535) * scale;
    }
}
