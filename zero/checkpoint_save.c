/*
 * One walk over the blocks: finish what is owed, and write each window to its home and, from the
 * same bytes, to the checkpoint's files.
 */
#include "core/memory.h"
#include "zero/checkpoint.h"
#include "zero/directory.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct save {
    weir_run *run;
    struct weir_directory directory;
    struct weir_wholes wholes;
    struct weir_file_tensor *weights, *states;
    struct weir_tensors_writer *weight_file, *state_file;
};

static enum weir_status tensor_fill(struct weir_file_tensor *out, const struct weir_whole *whole,
                                    const char *suffix, enum weir_file_dtype dtype)
{
    size_t bytes = strlen(whole->name) + strlen(suffix) + 1;
    WEIR_TRY(weir_alloc(&out->name, bytes, 1, "tensor name"));
    snprintf(out->name, bytes, "%s%s", whole->name, suffix);
    out->dtype = dtype;
    out->dim_count = whole->dim_count;
    memcpy(out->shape, whole->shape, sizeof whole->shape);
    return WEIR_OK;
}

static enum weir_status lists_make(struct save *save)
{
    size_t array_count;
    const struct weir_state_array *arrays = weir_state_arrays(save->run->model.dtype, &array_count);
    struct weir_wholes *w = &save->wholes;
    WEIR_TRY(weir_wholes_make(save->run, w));
    WEIR_TRY(weir_alloc(&save->weights, w->count, sizeof *save->weights, "tensor list"));
    WEIR_TRY(weir_alloc(&save->states, w->state_count, sizeof *save->states, "tensor list"));
    for (size_t i = 0; i < w->count; i++) {
        const struct weir_whole *whole = &w->wholes[i];
        WEIR_TRY(tensor_fill(&save->weights[i], whole, "", weir_weight_file_dtype(save->run)));
        for (size_t a = 0; whole->kind == WEIR_TRAINED && a < array_count; a++) {
            char suffix[32];
            snprintf(suffix, sizeof suffix, ".%s", arrays[a].name);
            WEIR_TRY(tensor_fill(&save->states[whole->state_index + a], whole, suffix,
                                 weir_state_file_dtype(&arrays[a])));
        }
    }
    return WEIR_OK;
}

static enum weir_status files_create(struct save *save)
{
    char path[PATH_MAX];
    WEIR_TRY(weir_directory_path(&save->directory, WEIR_FILE_MODEL, path, sizeof path));
    WEIR_TRY(weir_tensors_create(&save->weight_file, path, save->weights, save->wholes.count,
                                 "{\"format\":\"pt\"}"));
    WEIR_TRY(weir_directory_path(&save->directory, WEIR_FILE_STATES, path, sizeof path));
    return weir_tensors_create(&save->state_file, path, save->states, save->wholes.state_count,
                               NULL);
}

static enum weir_status piece_write(void *context, const struct weir_array_piece *piece,
                                    bool is_weight)
{
    struct save *save = context;
    const struct weir_whole *whole = &save->wholes.wholes[piece->whole];
    if (is_weight)
        return weir_tensors_write(save->weight_file, &save->weights[whole->model_index],
                                  piece->first_bytes, piece->bytes, piece->byte_count);
    return weir_tensors_write(save->state_file, &save->states[whole->state_index + piece->array],
                              piece->first_bytes, piece->bytes, piece->byte_count);
}

/* What updates and loads leave is finite; a caller's own writing is looked at here first. */
static bool caller_writes(const weir_run *run, uint32_t block)
{
    for (size_t k = 0; k < run->key_count; k++) {
        const struct weir_trace *trace = run->keys[k]->trace;
        for (size_t u = 0; u < trace->use_count; u++)
            if (trace->uses[u].id == block && trace->uses[u].access == WEIR_WRITE)
                return true;
    }
    return false;
}

static enum weir_status window_save(struct save *save, uint32_t block, uint32_t window,
                                    const struct weir_window_bytes *at, bool written)
{
    struct weir_bad_element bad;
    if (written && weir_window_bad(save->run, block, window, at, &bad))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "weir_save: tensor \"%s\": element %llu is not finite, no checkpoint is "
                         "made of that; WRITE other values, or load a checkpoint",
                         bad.tensor, (unsigned long long)bad.element);
    return weir_window_pieces(save->run, &save->wholes, block, window, at, piece_write, save);
}

/* A block's owed update is finished whole even when the files cannot be written: half a block
 * updated and marked pending would be updated twice. */
static enum weir_status block_save(struct save *save, uint32_t block)
{
    weir_run *run = save->run;
    const struct weir_thing *thing = &run->model.things[block];
    const uint32_t parts = 1u << WEIR_PART_WEIGHT | 1u << WEIR_PART_STATE;
    const bool written = caller_writes(run, block);
    enum weir_status first = WEIR_OK;
    struct weir_error error = {0};
    for (uint32_t w = 0; w < thing->window_count; w++) {
        struct weir_window_bytes at;
        if (run->pending[block] && w < thing->trained_window_count)
            WEIR_TRY(weir_run_result(run, weir_optimizer_finish(run, block, w, &at)));
        else if (first == WEIR_OK)
            WEIR_TRY(weir_run_result(run, weir_home_fetch(&run->home, block, w, parts, &at)));
        if (first == WEIR_OK)
            first = window_save(save, block, w, &at, written);
        if (first != WEIR_OK && error.status == WEIR_OK)
            error = *weir_last_error();
    }
    run->pending[block] = false;
    WEIR_TRY(weir_run_result(run, weir_optimizer_verify(run)));
    return first == WEIR_OK ? WEIR_OK : weir_fail_with(&error);
}

static enum weir_status files_commit(struct save *save)
{
    struct weir_tensors_writer *weights = save->weight_file, *states = save->state_file;
    save->weight_file = NULL;
    WEIR_TRY(weir_tensors_commit(weights));
    save->state_file = NULL;
    return weir_tensors_commit(states);
}

static enum weir_status json_write(struct save *save, const char *caller_json)
{
    const weir_run *run = save->run;
    json_error_t error;
    json_t *caller = json_loads(caller_json ? caller_json : "{}", 0, &error);
    if (!json_is_object(caller)) {
        bool parsed = caller != NULL;
        json_decref(caller);
        return weir_fail(WEIR_ERR_ARG, "weir_save: caller_json is not a JSON object: %s",
                         parsed ? "it is another value; give {...}" : error.text);
    }
    json_t *root =
        json_pack("{s:i, s:I, s:I, s:s, s:s, s:o}", "weir_format", WEIR_FORMAT, "steps",
                  (json_int_t)run->step_count, "updates", (json_int_t)run->update_count, "dtype",
                  run->model.dtype == WEIR_BF16 ? "bf16" : "fp32", "grad_dtype",
                  run->model.grad_dtype == WEIR_BF16 ? "bf16" : "fp32", "caller", caller);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    enum weir_status status =
        !text ? weir_fail(WEIR_ERR_NOMEM, "weir_save: no memory for %s", WEIR_FILE_JSON)
        : strlen(text) >= WEIR_JSON_MOST_BYTES
            ? weir_fail(WEIR_ERR_ARG,
                        "weir_save: %s would have %zu bytes, %u at most; shorten caller_json",
                        WEIR_FILE_JSON, strlen(text), WEIR_JSON_MOST_BYTES - 1)
            : weir_directory_file(&save->directory, WEIR_FILE_JSON, text, strlen(text));
    free(text);
    json_decref(root);
    return status;
}

static enum weir_status names_valid(const struct weir_file *files, size_t count)
{
    static const char *const taken[] = {
        "", ".", "..", "a", "b", WEIR_FILE_JSON, WEIR_FILE_MODEL, WEIR_FILE_STATES};
    for (size_t i = 0; i < count; i++) {
        const char *name = files[i].name;
        bool valid = name && !strchr(name, '/') && (files[i].bytes || files[i].byte_count == 0);
        for (size_t t = 0; valid && t < sizeof taken / sizeof *taken; t++)
            valid = strcmp(name, taken[t]) != 0;
        for (size_t k = 0; valid && k < i; k++)
            valid = strcmp(name, files[k].name) != 0;
        if (!valid)
            return weir_fail(WEIR_ERR_ARG,
                             "weir_save: file %zu of %zu is named \"%s\"; give bytes, and a name "
                             "without slash that is neither another's nor the checkpoint's own",
                             i, count, name ? name : "NULL");
    }
    return WEIR_OK;
}

static enum weir_status save_all(struct save *save, const char *directory, const char *caller_json,
                                 const struct weir_file *files, size_t file_count)
{
    WEIR_TRY(lists_make(save));
    WEIR_TRY(weir_directory_begin(&save->directory, directory));
    WEIR_TRY(json_write(save, caller_json));
    for (size_t i = 0; i < file_count; i++)
        WEIR_TRY(weir_directory_file(&save->directory, files[i].name, files[i].bytes,
                                     files[i].byte_count));
    WEIR_TRY(files_create(save));
    for (uint32_t i = 0; i < save->run->model.thing_count; i++)
        if (save->run->model.things[i].is_block)
            WEIR_TRY(block_save(save, i));
    return files_commit(save);
}

static void lists_free(struct save *save)
{
    for (size_t i = 0; save->weights && i < save->wholes.count; i++)
        weir_free(save->weights[i].name);
    for (size_t i = 0; save->states && i < save->wholes.state_count; i++)
        weir_free(save->states[i].name);
    weir_free(save->weights);
    weir_free(save->states);
    weir_wholes_free(save->run, &save->wholes);
}

/* A failure of the checkpoint's own files does not poison the run: it can train on and save
 * elsewhere. Failures of the homes came through weir_run_result already. */
enum weir_status weir_save(weir_run *run, const char *directory, const char *caller_json,
                           const struct weir_file *files, size_t file_count)
{
    WEIR_TRY(weir_run_idle(run, "weir_save"));
    WEIR_TRY(weir_given(directory, "weir_save", "directory"));
    WEIR_TRY(weir_given(file_count > 0 ? (const void *)files : "", "weir_save", "files"));
    WEIR_TRY(names_valid(files, file_count));
    struct save save = {.run = run};
    enum weir_status status = save_all(&save, directory, caller_json, files, file_count);
    if (status == WEIR_OK)
        status = weir_directory_commit(&save.directory, &run->log);
    if (status != WEIR_OK) {
        struct weir_error error = *weir_last_error();
        if (save.weight_file)
            weir_tensors_abandon(save.weight_file);
        if (save.state_file)
            weir_tensors_abandon(save.state_file);
        weir_directory_abandon(&save.directory);
        status = weir_fail_with(&error);
    }
    lists_free(&save);
    return status;
}
