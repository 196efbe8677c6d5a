#include "examples/train/export.h"
#include "core/memory.h"
#include "examples/flags.h"
#include "examples/replace.h"
#include "examples/train/weights.h"
#include "io/safetensors.h"
#include "zero/directory.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct export_file {
    struct replace file;
    struct weir_file_tensor *tensors;
    size_t count;
    struct weir_tensors_writer *writer;
    float *values; /* WEIGHTS_CHUNK */
};

static enum weir_status begin(struct export_file *e, const char *path, size_t most)
{
    *e = (struct export_file){.count = 0};
    WEIR_TRY(flag_file_check("--export-fp32", path, FLAG_FILE_REGULAR));
    WEIR_TRY(replace_find(&e->file, "--export-fp32", path));
    WEIR_TRY(weir_alloc(&e->tensors, most, sizeof *e->tensors, "export's tensors"));
    return weir_alloc(&e->values, WEIGHTS_CHUNK, sizeof *e->values, "export's chunk");
}

static enum weir_status tensor_add(struct export_file *e, const char *name, const uint64_t *shape,
                                   uint32_t dim_count)
{
    struct weir_file_tensor *tensor = &e->tensors[e->count++];
    *tensor = (struct weir_file_tensor){.dtype = WEIR_FILE_F32, .dim_count = dim_count};
    memcpy(tensor->shape, shape, dim_count * sizeof *shape);
    return weir_strdup(&tensor->name, name);
}

/* All tensors are added: the file is laid out. What a killed run left under the name goes. */
static enum weir_status file_begin(struct export_file *e)
{
    const char *beside = e->file.beside;
    if (unlink(beside) != 0 && errno != ENOENT)
        return weir_fail_errno(WEIR_ERR_IO, errno, "--export-fp32: \"%s\" is in the way", beside);
    return weir_tensors_create(&e->writer, beside, e->tensors, e->count, "{\"format\":\"pt\"}");
}

/* e->values become elements [first, first + count) of a tensor. */
static enum weir_status values_write(struct export_file *e, size_t tensor, uint64_t first,
                                     uint64_t count)
{
    return weir_tensors_write(e->writer, &e->tensors[tensor], first * sizeof(float), e->values,
                              count * sizeof(float));
}

static enum weir_status file_place(struct export_file *e)
{
    char parent[PATH_MAX];
    struct weir_tensors_writer *writer = e->writer;
    e->writer = NULL;
    WEIR_TRY(weir_tensors_commit(writer));
    WEIR_TRY(replace_place(&e->file));
    snprintf(parent, sizeof parent, "%s", e->file.target);
    return weir_directory_sync(dirname(parent));
}

/* Ends the export: the file stands, or nothing does. */
static enum weir_status finish(struct export_file *e, enum weir_status status)
{
    if (status == WEIR_OK)
        status = file_place(e);
    if (status != WEIR_OK) {
        struct weir_error error = *weir_last_error();
        weir_tensors_abandon(e->writer);
        if (*e->file.beside)
            (void)unlink(e->file.beside);
        status = weir_fail_with(&error);
    }
    for (size_t i = 0; i < e->count; i++)
        weir_free(e->tensors[i].name);
    weir_free(e->tensors);
    weir_free(e->values);
    return status;
}

static enum weir_status run_list(struct export_file *e, const struct llama *l)
{
    for (size_t i = 0; i < llama_tensor_count(l); i++) {
        struct llama_tensor t;
        char name[96];
        llama_tensor_at(l, i, &t, name);
        if (t.first == 0) /* else further rows of the same tensor */
            WEIR_TRY(tensor_add(e, t.name, t.whole_shape, t.dim_count));
    }
    return WEIR_OK;
}

static enum weir_status run_write(struct export_file *e, const struct llama *l)
{
    size_t tensor = 0;
    for (size_t i = 0; i < llama_tensor_count(l); i++) {
        struct llama_tensor t;
        char name[96];
        llama_tensor_at(l, i, &t, name);
        tensor += i > 0 && t.first == 0;
        for (uint64_t at = 0; at < t.count; at += WEIGHTS_CHUNK) {
            uint64_t n = weights_chunk_at(at, t.count);
            WEIR_TRY(weir_block_store(l->run, t.block, t.tensor, WEIR_FP32, e->values, at, n));
            WEIR_TRY(values_write(e, tensor, t.first + at, n));
        }
    }
    return WEIR_OK;
}

enum weir_status export_run(const struct llama *l, const char *path)
{
    struct export_file e;
    enum weir_status status = begin(&e, path, llama_tensor_count(l));
    if (status == WEIR_OK)
        status = run_list(&e, l);
    if (status == WEIR_OK)
        status = file_begin(&e);
    if (status == WEIR_OK)
        status = run_write(&e, l);
    return finish(&e, status);
}

/* A checkpoint's files; states NULL: fp32 weights, which are the masters. */
struct source {
    const char *directory;
    struct weir_tensors *weights, *states;
    uint16_t *weight; /* WEIGHTS_CHUNK */
    int16_t *residual;
};

static enum weir_status source_open(struct source *s, const char *directory)
{
    char path[PATH_MAX];
    struct stat st;
    *s = (struct source){.directory = directory};
    if (stat(directory, &st) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "model \"%s\": cannot be found", directory);
    if (!S_ISDIR(st.st_mode))
        return weir_fail(WEIR_ERR_ARG,
                         "--export-fp32: model \"%s\" is no directory; give a checkpoint step-N of "
                         "weir-train",
                         directory);
    WEIR_TRY(weir_tensors_open(&s->weights, directory));
    bool narrow = false;
    for (size_t i = 0; i < weir_tensors_count(s->weights); i++)
        narrow |= weir_tensors_at(s->weights, i)->dtype != WEIR_FILE_F32;
    if (!narrow)
        return WEIR_OK;
    if (snprintf(path, sizeof path, "%s/optimizer.safetensors", directory) >= (int)sizeof path ||
        access(path, F_OK) != 0)
        return weir_fail(WEIR_ERR_ARG,
                         "--export-fp32: model \"%s\" has no optimizer.safetensors with the "
                         "residuals of its weights; give a checkpoint step-N of weir-train",
                         directory);
    WEIR_TRY(weir_tensors_open(&s->states, path));
    WEIR_TRY(weir_alloc(&s->weight, WEIGHTS_CHUNK, sizeof *s->weight, "weights to export"));
    return weir_alloc(&s->residual, WEIGHTS_CHUNK, sizeof *s->residual, "residuals to export");
}

static void source_close(struct source *s)
{
    weir_tensors_close(s->weights);
    weir_tensors_close(s->states);
    weir_free(s->weight);
    weir_free(s->residual);
}

static enum weir_status residual_find(const struct source *s, const struct weir_file_tensor *weight,
                                      const struct weir_file_tensor **out)
{
    char name[1024];
    snprintf(name, sizeof name, "%s.residual", weight->name);
    *out = weir_tensors_find(s->states, name);
    if (weight->dtype == WEIR_FILE_BF16 && *out && (*out)->dtype == WEIR_FILE_I16 &&
        (*out)->element_count == weight->element_count)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_CORRUPT,
                     "checkpoint \"%s\": tensor \"%s\" is %s with %llu elements and its residual "
                     "%s; BF16 and as many of I16 are needed",
                     s->directory, weight->name, weir_file_dtype_name(weight->dtype),
                     (unsigned long long)weight->element_count, *out ? "differs" : "is missing");
}

static enum weir_status masters_read(struct source *s, const struct weir_file_tensor *weight,
                                     uint64_t first, uint64_t count, float *out)
{
    const struct weir_file_tensor *residual;
    if (weight->dtype == WEIR_FILE_F32)
        return weir_tensors_read(s->weights, weight, first * sizeof *out, out, count * sizeof *out);
    WEIR_TRY(residual_find(s, weight, &residual));
    WEIR_TRY(weir_tensors_read(s->weights, weight, first * 2, s->weight, count * 2));
    WEIR_TRY(weir_tensors_read(s->states, residual, first * 2, s->residual, count * 2));
    weir_master_join(s->weight, s->residual, out, count);
    return WEIR_OK;
}

static enum weir_status source_write(struct export_file *e, struct source *s)
{
    size_t count = weir_tensors_count(s->weights);
    for (size_t i = 0; i < count; i++) {
        const struct weir_file_tensor *t = weir_tensors_at(s->weights, i);
        WEIR_TRY(tensor_add(e, t->name, t->shape, t->dim_count));
    }
    WEIR_TRY(file_begin(e));
    for (size_t i = 0; i < count; i++) {
        const struct weir_file_tensor *t = weir_tensors_at(s->weights, i);
        for (uint64_t at = 0; at < t->element_count; at += WEIGHTS_CHUNK) {
            uint64_t n = weights_chunk_at(at, t->element_count);
            WEIR_TRY(masters_read(s, t, at, n, e->values));
            WEIR_TRY(values_write(e, i, at, n));
        }
    }
    return WEIR_OK;
}

enum weir_status export_checkpoint(const char *directory, const char *path)
{
    struct source source;
    enum weir_status status = source_open(&source, directory);
    if (status == WEIR_OK) {
        struct export_file e;
        status = begin(&e, path, weir_tensors_count(source.weights));
        if (status == WEIR_OK)
            status = source_write(&e, &source);
        status = finish(&e, status);
    }
    source_close(&source);
    return status;
}
