#include "tests/support_overlap.h"
#include "tests/support.h"
#include "tests/support_paced.h"

#include <stdio.h>
#include <time.h>

#define FORWARD 1e9 /* the work that a forward visit is said to be */

void overlap_open(struct overlap *s, const struct overlap_spec *spec, uint64_t device_bytes,
                  uint64_t host_bytes, const char *directory)
{
    *s = (struct overlap){.spec = *spec};
    const struct weir_cost cost = {.struct_bytes = sizeof cost,
                                   .read_bytes_per_s = test_pace.read_bytes_per_s,
                                   .write_bytes_per_s = test_pace.write_bytes_per_s,
                                   .to_device_bytes_per_s = 5e9,
                                   .to_host_bytes_per_s = 5e9,
                                   .update_bytes_per_s = 1e10,
                                   .device_update_bytes_per_s = 1e10,
                                   .compute_flops_per_s = FORWARD * 1e9 / (double)spec->forward_ns,
                                   .latency_s = test_pace.latency_s,
                                   .update_on_compute = true};
    assert_ok(weir_open_with(&s->run,
                             &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                    .device = "host",
                                                    .device_bytes = device_bytes,
                                                    .host_bytes = host_bytes,
                                                    .nvme_path = directory,
                                                    .dtype = WEIR_BF16,
                                                    .grad_dtype = WEIR_FP32,
                                                    .thread_count = 1,
                                                    .cost = &cost},
                             &(struct weir_seams){.grain = spec->grain, .io = &test_paced}));
    for (uint32_t b = 0; b < OVERLAP_BLOCKS; b++) {
        char name[16];
        snprintf(name, sizeof name, "block%u", b);
        struct weir_tensor t = {.struct_bytes = sizeof t,
                                .name = name,
                                .dim_count = 1,
                                .shape = {spec->block_elements},
                                .lr_scale = 1};
        assert_ok(weir_block_add(s->run, &t, 1, &s->blocks[b]));
    }
}

static void compute(void *argument)
{
    uint64_t ns = *(uint64_t *)argument;
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

static void visit(const struct overlap *s, uint32_t block, bool backward, bool dry)
{
    struct weir_use use = {s->blocks[block], backward ? WEIR_GRAD : WEIR_READ};
    struct weir_view view;
    uint64_t ns = (backward ? 2 : 1) * s->spec.forward_ns;
    assert_ok(weir_want(s->run, &use, 1, &view));
    assert_ok(weir_work(s->run, (backward ? 2 : 1) * FORWARD));
    if (!dry)
        assert_ok(s->run->table->call(s->run->compute, compute, &ns, sizeof ns, NULL, 0));
    if (!dry && backward)
        assert_ok(s->run->table->fill(s->run->compute, view.grad, 0,
                                      s->spec.block_elements * sizeof(float)));
    assert_ok(weir_done(s->run, &use.id, 1));
}

void overlap_step(const struct overlap *s, bool dry, struct weir_report *report)
{
    const struct weir_update update = {sizeof update, 0.1f, 0.9f, 0.95f, 1e-8f, 0, 0};
    *report = (struct weir_report){.struct_bytes = sizeof *report};
    assert_ok(weir_step_begin(s->run, "train", dry));
    for (uint32_t b = 0; b < OVERLAP_BLOCKS; b++)
        visit(s, b, false, dry);
    for (uint32_t b = OVERLAP_BLOCKS; b-- > 0;)
        visit(s, b, true, dry);
    assert_ok(weir_step_end(s->run, &update, report));
}

static void arrives(struct overlap_traffic *t, uint32_t stage, uint64_t read, uint64_t written)
{
    t->arrive_s[stage] +=
        (double)read / test_pace.read_bytes_per_s + (double)written / test_pace.write_bytes_per_s;
    t->read_bytes += read;
    t->written_bytes += written;
}

struct overlap_traffic overlap_traffic(const struct overlap *s)
{
    struct overlap_traffic t = {.read_bytes = 0};
    for (uint32_t b = 0; b < OVERLAP_BLOCKS; b++) {
        uint64_t bytes[3] = {0};
        for (uint32_t w = 0; w < s->run->model.things[s->blocks[b]].window_count; w++)
            for (uint32_t p = 0; p < 3; p++) {
                const struct weir_place *at = &s->run->homes->blocks[s->blocks[b]][w].part[p];
                bytes[p] += at->tier == WEIR_TIER_NVME ? at->bytes : 0;
            }
        uint64_t weight = bytes[WEIR_PART_WEIGHT], grad = bytes[WEIR_PART_GRAD];
        arrives(&t, b, weight + grad + bytes[WEIR_PART_STATE], weight + bytes[WEIR_PART_STATE]);
        uint32_t back = OVERLAP_STAGES - 1 - b;
        if (b + 1 < OVERLAP_BLOCKS)
            arrives(&t, back, weight, 0);
        t.depart_s[back] += (double)grad / test_pace.write_bytes_per_s;
        t.written_bytes += grad;
    }
    return t;
}

double overlap_io_seconds(const struct overlap_traffic *t)
{
    double sum = 0;
    for (uint32_t i = 0; i < OVERLAP_STAGES; i++)
        sum += t->arrive_s[i] + t->depart_s[i];
    return sum;
}

/* DESIGN 4s, written as it stands there. */
double overlap_floor_seconds(const struct overlap_traffic *t, double compute_s)
{
    double most = overlap_io_seconds(t);
    for (uint32_t s = 0; s < OVERLAP_STAGES; s++)
        for (uint32_t e = s; e < OVERLAP_STAGES; e++) {
            double sum = 0;
            for (uint32_t i = 0; i <= s; i++)
                sum += t->arrive_s[i];
            for (uint32_t i = s; i <= e; i++)
                sum += compute_s * (i < OVERLAP_BLOCKS ? 1 : 2) / (3 * OVERLAP_BLOCKS);
            for (uint32_t i = e; i < OVERLAP_STAGES; i++)
                sum += t->depart_s[i];
            most = sum > most ? sum : most;
        }
    return most;
}
