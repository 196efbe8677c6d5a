/*
 * One matrix product of oneDNN in several forms of its operands.
 */
#ifndef WEIR_BENCH_GEMM_FORMS_H
#define WEIR_BENCH_GEMM_FORMS_H

#include "core/status.h"
#include <stdint.h>
#include <weir/weir.h>

struct gemm_shape { /* C = A B, m x k times k x n */
    uint32_t m, n, k;
    bool turned_a, turned_b; /* stored the other way round */
    bool narrow_c;           /* the result is of the operands' dtype, else fp32 */
};

/* As weir hands it over; both operands in plain rows; B in the form that oneDNN likes best, packed
 * ahead; and that packing. */
enum gemm_form { FORM_AS_IT_IS, FORM_ROWS, FORM_PACKED, FORM_PACKING, FORM_COUNT };

struct gemm_forms;
enum weir_status gemm_forms_open(struct gemm_forms **out, const struct gemm_shape *shape,
                                 enum weir_dtype dtype);
enum weir_status gemm_forms_run(struct gemm_forms *forms, enum gemm_form form, double *seconds);
void gemm_forms_close(struct gemm_forms *forms);
const char *gemm_version(char out[static 32]); /* "oneDNN 2.6.3" */

#endif
