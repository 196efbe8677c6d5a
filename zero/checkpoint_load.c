/*
 * A checkpoint into the homes. Everything is compared before the first byte is changed.
 */
#include "core/file.h"
#include "core/memory.h"
#include "zero/checkpoint.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct load {
    weir_run *run;
    struct weir_wholes wholes;
    struct weir_tensors *weights, *states;
    const struct weir_file_tensor **weight_of, **state_of; /* by model_index, state_index */
    uint64_t steps, updates;
};

static enum weir_status number_get(const json_t *root, const char *path, const char *field,
                                   uint64_t *out)
{
    const json_t *value = json_object_get(root, field);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "checkpoint file \"%s\": field \"%s\" is missing or not "
                         "a count",
                         path, field);
    *out = (uint64_t)json_integer_value(value);
    return WEIR_OK;
}

static enum weir_status root_read(struct load *load, const json_t *root, const char *path)
{
    uint64_t format = 0;
    WEIR_TRY(number_get(root, path, "weir_format", &format));
    if (format != WEIR_FORMAT)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "checkpoint file \"%s\": weir_format %llu, this "
                         "build reads %d; use the weir that wrote it",
                         path, (unsigned long long)format, WEIR_FORMAT);
    WEIR_TRY(number_get(root, path, "steps", &load->steps));
    WEIR_TRY(number_get(root, path, "updates", &load->updates));
    const char *dtype = json_string_value(json_object_get(root, "dtype"));
    const char *mine = load->run->model.dtype == WEIR_BF16 ? "bf16" : "fp32";
    if (!dtype || strcmp(dtype, mine) != 0)
        return weir_fail(WEIR_ERR_ARG,
                         "checkpoint file \"%s\": dtype \"%s\", this run has \"%s\"; "
                         "resume with the dtype it was begun with",
                         path, dtype ? dtype : "?", mine);
    const char *grad = json_string_value(json_object_get(root, "grad_dtype"));
    mine = load->run->model.grad_dtype == WEIR_BF16 ? "bf16" : "fp32";
    if (!grad || strcmp(grad, mine) != 0)
        weir_log(
            &load->run->log, WEIR_LOG_WARNING,
            "checkpoint file \"%s\": gradients were kept in %s, this run keeps them in %s: the "
            "bits will differ from the run that was begun",
            path, grad ? grad : "?", mine);
    return WEIR_OK;
}

/* text has room for WEIR_JSON_MOST_BYTES. */
static enum weir_status text_read(const char *path, char *text, size_t *byte_count)
{
    int fd, error = weir_file_open(path, O_RDONLY | O_NONBLOCK, 0, &fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "checkpoint file \"%s\": cannot be opened",
                               path);
    error = weir_file_read(fd, text, WEIR_JSON_MOST_BYTES, 0, byte_count);
    close(fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "checkpoint file \"%s\": cannot be read", path);
    if (*byte_count == WEIR_JSON_MOST_BYTES)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "checkpoint file \"%s\": %u bytes or more; not a file of weir's", path,
                         WEIR_JSON_MOST_BYTES);
    return WEIR_OK;
}

static enum weir_status json_read(struct load *load, const char *directory)
{
    char path[PATH_MAX], *text;
    size_t byte_count;
    snprintf(path, sizeof path, "%s/%s", directory, WEIR_FILE_JSON);
    WEIR_TRY(weir_alloc(&text, WEIR_JSON_MOST_BYTES, 1, "state.json"));
    enum weir_status read = text_read(path, text, &byte_count);
    json_error_t error;
    json_t *root =
        read == WEIR_OK ? json_loadb(text, byte_count, JSON_REJECT_DUPLICATES, &error) : NULL;
    weir_free(text);
    WEIR_TRY(read);
    if (!root)
        return weir_fail(WEIR_ERR_CORRUPT, "checkpoint file \"%s\", line %d: %s", path, error.line,
                         error.text);
    enum weir_status status = root_read(load, root, path);
    json_decref(root);
    return status;
}

static enum weir_status tensor_match(const struct weir_tensors *set, const char *file,
                                     const struct weir_whole *whole, const char *suffix,
                                     enum weir_file_dtype dtype,
                                     const struct weir_file_tensor **out)
{
    char name[WEIR_NAME_MOST_BYTES + 32];
    snprintf(name, sizeof name, "%s%s", whole->name, suffix);
    *out = weir_tensors_find(set, name);
    if (!*out)
        return weir_fail(WEIR_ERR_CORRUPT, "checkpoint file \"%s\": tensor \"%s\" is missing", file,
                         name);
    if ((*out)->dtype != dtype || (*out)->element_count != whole->count)
        return weir_fail(WEIR_ERR_ARG,
                         "checkpoint file \"%s\": tensor \"%s\" is %s with %llu "
                         "elements, this run needs %s with %llu",
                         file, name, weir_file_dtype_name((*out)->dtype),
                         (unsigned long long)(*out)->element_count, weir_file_dtype_name(dtype),
                         (unsigned long long)whole->count);
    bool alike = (*out)->dim_count == whole->dim_count;
    for (uint32_t d = 0; alike && d < whole->dim_count; d++)
        alike = (*out)->shape[d] == whole->shape[d];
    if (!alike)
        return weir_fail(WEIR_ERR_ARG,
                         "checkpoint file \"%s\": tensor \"%s\" has the elements of this run's in "
                         "another shape: %u dimensions, the first %llu, here %u and %llu; load the "
                         "checkpoint of this model",
                         file, name, (*out)->dim_count, (unsigned long long)(*out)->shape[0],
                         whole->dim_count, (unsigned long long)whole->shape[0]);
    return WEIR_OK;
}

/* Every tensor of the run was found: more in the file are another model's. */
static enum weir_status count_match(const struct weir_tensors *set, const char *file, size_t count)
{
    if (weir_tensors_count(set) != count)
        return weir_fail(WEIR_ERR_ARG,
                         "checkpoint file \"%s\": %zu tensors, this run has %zu of them and no "
                         "others; load the checkpoint of this model",
                         file, weir_tensors_count(set), count);
    return WEIR_OK;
}

static enum weir_status tensors_match(struct load *load)
{
    size_t array_count;
    const struct weir_state_array *arrays = weir_state_arrays(load->run->model.dtype, &array_count);
    for (size_t i = 0; i < load->wholes.count; i++) {
        const struct weir_whole *whole = &load->wholes.wholes[i];
        WEIR_TRY(tensor_match(load->weights, WEIR_FILE_MODEL, whole, "",
                              weir_weight_file_dtype(load->run), &load->weight_of[i]));
        for (size_t a = 0; whole->kind == WEIR_TRAINED && a < array_count; a++) {
            char suffix[32];
            snprintf(suffix, sizeof suffix, ".%s", arrays[a].name);
            WEIR_TRY(tensor_match(load->states, WEIR_FILE_STATES, whole, suffix,
                                  weir_state_file_dtype(&arrays[a]),
                                  &load->state_of[whole->state_index + a]));
        }
    }
    WEIR_TRY(count_match(load->weights, WEIR_FILE_MODEL, load->wholes.count));
    return count_match(load->states, WEIR_FILE_STATES, load->wholes.state_count);
}

static enum weir_status load_open(struct load *load, const char *directory)
{
    char path[PATH_MAX];
    WEIR_TRY(json_read(load, directory));
    WEIR_TRY(weir_wholes_make(load->run, &load->wholes));
    WEIR_TRY(weir_alloc(&load->weight_of, load->wholes.count, sizeof *load->weight_of, "tensors"));
    WEIR_TRY(
        weir_alloc(&load->state_of, load->wholes.state_count, sizeof *load->state_of, "tensors"));
    snprintf(path, sizeof path, "%s/%s", directory, WEIR_FILE_MODEL);
    WEIR_TRY(weir_tensors_open(&load->weights, path));
    snprintf(path, sizeof path, "%s/%s", directory, WEIR_FILE_STATES);
    WEIR_TRY(weir_tensors_open(&load->states, path));
    return tensors_match(load);
}

/* A moment that would spoil its parameter at the next update. An infinite exp_avg_sq does not. */
static bool moment_bad(const char *array, float value)
{
    return strcmp(array, "exp_avg") == 0 ? !isfinite(value) : isnan(value) || value < 0;
}

static enum weir_status moments_check(const struct load *load, const struct weir_array_piece *piece)
{
    size_t count;
    const struct weir_state_array *array =
        &weir_state_arrays(load->run->model.dtype, &count)[piece->array];
    const float *values = piece->bytes;
    if (array->element_bytes != sizeof *values)
        return WEIR_OK; /* the residual; the master is looked at as a whole */
    for (uint64_t i = 0; i < piece->byte_count / sizeof *values; i++)
        if (moment_bad(array->name, values[i]))
            return weir_fail(WEIR_ERR_CORRUPT,
                             "checkpoint file \"" WEIR_FILE_STATES
                             "\": tensor \"%s.%s\": element %llu is %g; load another checkpoint",
                             load->wholes.wholes[piece->whole].name, array->name,
                             (unsigned long long)(piece->first_bytes / sizeof *values + i),
                             (double)values[i]);
    return WEIR_OK;
}

static enum weir_status piece_read(void *context, const struct weir_array_piece *piece,
                                   bool is_weight)
{
    struct load *load = context;
    const struct weir_whole *whole = &load->wholes.wholes[piece->whole];
    const struct weir_file_tensor *tensor = is_weight
                                                ? load->weight_of[piece->whole]
                                                : load->state_of[whole->state_index + piece->array];
    WEIR_TRY(weir_tensors_read(is_weight ? load->weights : load->states, tensor, piece->first_bytes,
                               piece->bytes, piece->byte_count));
    return is_weight ? WEIR_OK : moments_check(load, piece);
}

static enum weir_status window_read(struct load *load, uint32_t block, uint32_t window)
{
    const uint32_t parts = 1u << WEIR_PART_WEIGHT | 1u << WEIR_PART_STATE;
    weir_run *run = load->run;
    struct weir_window_bytes at;
    struct weir_bad_element bad;
    WEIR_TRY(weir_home_fetch(&run->home, block, window, parts, &at));
    WEIR_TRY(weir_window_pieces(run, &load->wholes, block, window, &at, piece_read, load));
    if (weir_window_bad(run, block, window, &at, &bad))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "checkpoint files \"" WEIR_FILE_MODEL "\", \"" WEIR_FILE_STATES
                         "\": tensor \"%s\": element %llu is not finite; load another checkpoint",
                         bad.tensor, (unsigned long long)bad.element);
    return weir_home_store(&run->home, block, window, parts, &at);
}

static enum weir_status blocks_read(struct load *load)
{
    const struct weir_model *model = &load->run->model;
    for (uint32_t i = 0; i < model->thing_count; i++)
        for (uint32_t w = 0; w < model->things[i].window_count; w++)
            WEIR_TRY(window_read(load, i, w));
    return WEIR_OK;
}

enum weir_status weir_load(weir_run *run, const char *directory)
{
    WEIR_TRY(weir_run_idle(run, "weir_load"));
    WEIR_TRY(weir_given(directory, "weir_load", "directory"));
    struct load load = {.run = run};
    enum weir_status status = load_open(&load, directory);
    if (status == WEIR_OK) {
        memset(run->pending, 0, run->model.thing_count * sizeof *run->pending);
        /* Half a checkpoint is no state to go on from. */
        status = weir_run_result(run, blocks_read(&load));
    }
    if (status == WEIR_OK) {
        run->step_count = load.steps;
        run->update_count = load.updates;
    }
    weir_tensors_close(load.weights);
    weir_tensors_close(load.states);
    weir_free(load.weight_of);
    weir_free(load.state_of);
    weir_wholes_free(run, &load.wholes);
    return status;
}
