/*
 * The run's kernels, for programs built in this tree (weir-train); not part of the public API yet.
 */
#ifndef WEIR_ZERO_MATH_H
#define WEIR_ZERO_MATH_H

#include "kernels/kernels.h"
#include <weir/weir.h>

/* Borrowed; lives as long as the run. */
struct weir_kernels *weir_compute_kernels(weir_run *run);

#endif
