#include "tests/support_toy_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void toy_plain_open(struct toy_plain *plain, const struct toy_spec *spec, struct weir_grain grain)
{
    *plain = (struct toy_plain){.spec = *spec};
    plain_open(&plain->arrays, spec->dtype, spec->grad_dtype, grain);
    for (uint32_t b = 0; b < toy_block_count(spec); b++) {
        struct weir_tensor tensors[TOY_TENSORS];
        char names[TOY_TENSORS][32];
        toy_tensors(spec, b, tensors, names);
        plain_block_add(&plain->arrays, tensors, spec->tensor_count[b]);
    }
}

void toy_plain_close(struct toy_plain *plain)
{
    plain_close(&plain->arrays);
}

struct activations {
    float *x[TOY_BLOCKS + 1][TOY_MICRO], *d[2][TOY_MICRO];
};

static struct work plain_base(const struct toy_plain *p, uint32_t b)
{
    return (struct work){.dtype = p->spec.dtype,
                         .weight = p->arrays.weight[b],
                         .elements = all_elements(&p->spec, b),
                         .width = p->spec.width};
}

static void plain_grad(struct toy_plain *p, uint32_t b, const float *x, const float *dy,
                       bool with_weight, bool poison)
{
    if (trained_elements(&p->spec, b) == 0)
        return;
    struct work w = plain_base(p, b);
    w.elements = trained_elements(&p->spec, b);
    w.weight = with_weight ? w.weight : NULL;
    w.x = x;
    w.dy = dy;
    w.grad = p->arrays.grad[b];
    w.fresh = p->arrays.fresh[b];
    w.poison = poison;
    work_backward(&w);
    p->arrays.fresh[b] = false;
    p->arrays.made[b] = true;
}

static void plain_backward(struct toy_plain *p, const struct toy_input *input,
                           struct activations *a)
{
    /* Whatever the groups, micro-batches add up from the last to the first. */
    for (uint32_t m = p->spec.micro_count; m-- > 0;)
        for (uint32_t b = p->spec.block_count; b-- > 0;) {
            struct work w = plain_base(p, b);
            w.x = a->x[b][m];
            w.dy = a->d[(b + 1) & 1][m];
            w.dx = a->d[b & 1][m];
            work_backward(&w);
            plain_grad(p, b, a->x[b][m], a->d[(b + 1) & 1][m], true, input->poison_block == (int)b);
        }
    for (uint32_t m = p->spec.micro_count; p->spec.head_only_gradient && m-- > 0;)
        plain_grad(p, p->spec.block_count, NULL, a->d[0][m], false, false);
    for (uint32_t m = p->spec.micro_count; p->spec.tied && m-- > 0;)
        plain_grad(p, 0, NULL, a->d[0][m], false, false);
}

static void plain_write(struct toy_plain *p, uint32_t b)
{
    struct work w = plain_base(p, b);
    w.weight_out = p->arrays.weight[b];
    work_write(&w);
    const struct weir_thing *thing = &p->arrays.model.things[b];
    for (uint32_t i = 0; p->spec.dtype == WEIR_BF16 && i < thing->trained_segment_count; i++) {
        const struct weir_segment *s = &thing->segments[i];
        memset((char *)p->arrays.state[b] + s->offset * 10, 0, s->padded_count * 2ull);
    }
}

void toy_plain_step(struct toy_plain *p, const struct toy_input *input,
                    const struct weir_update *update, float *loss, double *norm, bool *skipped)
{
    struct activations a;
    if (input->write_block >= 0)
        plain_write(p, (uint32_t)input->write_block);
    *loss = 0;
    plain_begin(&p->arrays);
    for (uint32_t m = 0; m < p->spec.micro_count; m++) {
        for (uint32_t b = 0; b <= p->spec.block_count; b++)
            a.x[b][m] = malloc(p->spec.width * sizeof(float));
        for (uint32_t i = 0; i < 2; i++)
            a.d[i][m] = malloc(p->spec.width * sizeof(float));
        struct work w = plain_base(p, 0);
        w.y = a.x[0][m];
        w.seed = input->seed + (float)m;
        work_input(&w);
        for (uint32_t b = 0; b < p->spec.block_count; b++) {
            w = plain_base(p, b);
            w.x = a.x[b][m];
            w.y = a.x[b + 1][m];
            work_forward(&w);
        }
        float one;
        w.x = a.x[p->spec.block_count][m];
        w.loss = &one;
        w.dx = a.d[p->spec.block_count & 1][m];
        work_loss(&w);
        *loss += one;
    }
    *norm = 0;
    *skipped = false;
    if (input->training) {
        plain_backward(p, input, &a);
        *norm = plain_finish(&p->arrays, update, skipped);
    }
    for (uint32_t m = 0; m < p->spec.micro_count; m++) {
        for (uint32_t b = 0; b <= p->spec.block_count; b++)
            free(a.x[b][m]);
        for (uint32_t i = 0; i < 2; i++)
            free(a.d[i][m]);
    }
}

/* Both ---------------------------------------------------------------------------------------- */

enum weir_status toy_load(struct toy *toy, struct toy_plain *plain)
{
    enum weir_status status = WEIR_OK;
    for (uint32_t b = 0; b < toy_block_count(&toy->spec); b++)
        for (uint32_t t = 0; status == WEIR_OK && t < toy->spec.tensor_count[b]; t++) {
            uint64_t count = toy->spec.elements[b][t];
            float *values = malloc(count * sizeof *values);
            char name[32];
            snprintf(name, sizeof name, "block%u.tensor%u", b, t);
            weir_random_normal(7, name, 0, count, 0.1f, values);
            status = weir_block_load(toy->run, toy->blocks[b], t, WEIR_FP32, values, 0, count);
            if (plain)
                plain_load(&plain->arrays, b, t, values);
            free(values);
        }
    return status;
}

uint64_t toy_compare(weir_run *run, const struct toy_plain *plain)
{
    return plain_compare(&plain->arrays, run);
}
