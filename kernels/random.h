/*
 * The generator under the initial weights, for the test with its known answers.
 */
#ifndef WEIR_KERNELS_RANDOM_H
#define WEIR_KERNELS_RANDOM_H

#include <stdint.h>

/* Philox4x32-10 (Salmon et al. 2011). */
void weir_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
