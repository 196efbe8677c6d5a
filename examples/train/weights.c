#include "examples/train/weights.h"
#include "core/memory.h"
#include "core/thread.h"
#include "io/safetensors.h"

#include <string.h>

#define DRAWER_LEAST 32768u /* elements that are worth a thread */

struct drawer {
    uint64_t seed, first, count;
    const char *name;
    float deviation, *out;
};

static void draw(void *argument)
{
    const struct drawer *d = argument;
    weir_random_normal(d->seed, d->name, d->first, d->count, d->deviation, d->out);
}

/* As weir_random_normal, which draws each element by itself: on the cores that there are. */
static void draw_together(const struct drawer *all)
{
    struct drawer drawers[WEIR_THREAD_PARTS];
    uint32_t count = weir_thread_parts(all->count, DRAWER_LEAST);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t first = all->count * i / count, end = all->count * (i + 1) / count;
        drawers[i] = *all;
        drawers[i].first += first;
        drawers[i].count = end - first;
        drawers[i].out += first;
    }
    weir_thread_each(draw, drawers, sizeof *drawers, count);
}

static enum weir_status tensor_random(const struct llama *l, const struct llama_tensor *t,
                                      uint64_t seed, float deviation, float *values)
{
    for (uint64_t at = 0; at < t->count; at += WEIGHTS_CHUNK) {
        uint64_t n = weights_chunk_at(at, t->count);
        if (t->dim_count == 2)
            draw_together(&(struct drawer){.seed = seed,
                                           .first = t->first + at,
                                           .count = n,
                                           .name = t->name,
                                           .deviation = deviation,
                                           .out = values});
        for (uint64_t i = 0; t->dim_count == 1 && i < n; i++)
            values[i] = 1;
        WEIR_TRY(weir_block_load(l->run, t->block, t->tensor, WEIR_FP32, values, at, n));
    }
    return WEIR_OK;
}

enum weir_status weights_random(const struct llama *l, uint64_t seed, float deviation)
{
    float *values;
    enum weir_status status = WEIR_OK;
    WEIR_TRY(weir_alloc(&values, WEIGHTS_CHUNK, sizeof *values, "initial weights"));
    for (size_t i = 0; status == WEIR_OK && i < llama_tensor_count(l); i++) {
        struct llama_tensor t;
        char name[96];
        llama_tensor_at(l, i, &t, name);
        status = tensor_random(l, &t, seed, deviation, values);
    }
    weir_free(values);
    return status;
}

static enum weir_status tensor_find(const struct weir_tensors *set, const char *directory,
                                    const struct llama_tensor *t,
                                    const struct weir_file_tensor **out)
{
    const struct weir_file_tensor *file = weir_tensors_find(set, t->name);
    *out = file;
    if (!file)
        return weir_fail(WEIR_ERR_CORRUPT, "model \"%s\": tensor \"%s\" is missing", directory,
                         t->name);
    bool same = file->dim_count == t->dim_count;
    for (uint32_t d = 0; same && d < t->dim_count; d++)
        same = file->shape[d] == t->whole_shape[d];
    if (!same)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "model \"%s\": tensor \"%s\" has %llu elements in %u "
                         "dimensions, its config.json says %llu x %llu",
                         directory, t->name, (unsigned long long)file->element_count,
                         file->dim_count, (unsigned long long)t->whole_shape[0],
                         (unsigned long long)t->whole_shape[1]);
    if (file->dtype != WEIR_FILE_F32 && file->dtype != WEIR_FILE_BF16 &&
        file->dtype != WEIR_FILE_F16)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "model \"%s\": tensor \"%s\" is %s; F32, BF16 and "
                         "F16 are read",
                         directory, t->name, weir_file_dtype_name(file->dtype));
    return WEIR_OK;
}

/* What older files hold beside the model: the rotary frequencies, which follow from the config, and
 * a tied head, which is the embedding once more. */
static bool is_spare(const struct llama *l, const char *name)
{
    static const char rotary[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name), end = sizeof rotary - 1;
    if (length > end && strcmp(name + length - end, rotary) == 0)
        return true;
    return l->spec.tied && strcmp(name, "lm_head.weight") == 0;
}

/* A tensor that nobody reads is a part of the model that would be left out: layers that the config
 * does not count, biases, adapters. */
static enum weir_status no_others(const struct llama *l, const struct weir_tensors *set,
                                  const char *directory)
{
    for (size_t i = 0; i < weir_tensors_count(set); i++) {
        const char *name = weir_tensors_at(set, i)->name;
        if (!llama_tensor_known(l, name) && !is_spare(l, name))
            return weir_fail(WEIR_ERR_CORRUPT,
                             "model \"%s\": tensor \"%s\" is none of the %u-layer model that its "
                             "config.json describes, and would be left out; give the config.json "
                             "that belongs to the weights",
                             directory, name, l->spec.layer_count);
    }
    return WEIR_OK;
}

static enum weir_status all_find(const struct llama *l, const struct weir_tensors *set,
                                 const char *directory)
{
    for (size_t i = 0; i < llama_tensor_count(l); i++) {
        struct llama_tensor t;
        char name[96];
        const struct weir_file_tensor *file;
        llama_tensor_at(l, i, &t, name);
        WEIR_TRY(tensor_find(set, directory, &t, &file));
    }
    return no_others(l, set, directory);
}

enum weir_status weights_check(const struct llama *l, const char *directory)
{
    struct weir_tensors *set;
    WEIR_TRY(weir_tensors_open(&set, directory));
    enum weir_status status = all_find(l, set, directory);
    weir_tensors_close(set);
    return status;
}

/* bytes: WEIGHTS_CHUNK elements of the widest dtype; widened in place to fp32 from the end. */
static enum weir_status tensor_load(const struct llama *l, const struct weir_tensors *set,
                                    const struct weir_file_tensor *file,
                                    const struct llama_tensor *t, void *bytes)
{
    uint64_t each = weir_file_dtype_bytes(file->dtype);
    float *values = bytes;
    const uint16_t *halves = bytes;
    for (uint64_t at = 0; at < t->count; at += WEIGHTS_CHUNK) {
        uint64_t n = weights_chunk_at(at, t->count);
        WEIR_TRY(weir_tensors_read(set, file, (t->first + at) * each, bytes, n * each));
        for (uint64_t i = n; file->dtype == WEIR_FILE_F16 && i-- > 0;)
            values[i] = weir_float_from_f16(halves[i]);
        enum weir_dtype dtype = file->dtype == WEIR_FILE_BF16 ? WEIR_BF16 : WEIR_FP32;
        WEIR_TRY(weir_block_load(l->run, t->block, t->tensor, dtype, bytes, at, n));
    }
    return WEIR_OK;
}

static enum weir_status all_load(const struct llama *l, const struct weir_tensors *set,
                                 const char *directory, void *bytes)
{
    WEIR_TRY(all_find(l, set, directory));
    for (size_t i = 0; i < llama_tensor_count(l); i++) {
        struct llama_tensor t;
        char name[96];
        const struct weir_file_tensor *file;
        llama_tensor_at(l, i, &t, name);
        WEIR_TRY(tensor_find(set, directory, &t, &file));
        WEIR_TRY(tensor_load(l, set, file, &t, bytes));
    }
    return WEIR_OK;
}

enum weir_status weights_load(const struct llama *l, const char *directory)
{
    struct weir_tensors *set;
    void *bytes;
    WEIR_TRY(weir_tensors_open(&set, directory));
    enum weir_status status = weir_alloc(&bytes, WEIGHTS_CHUNK, sizeof(float), "weights to load");
    if (status == WEIR_OK) {
        status = all_load(l, set, directory, bytes);
        weir_free(bytes);
    }
    weir_tensors_close(set);
    return status;
}
