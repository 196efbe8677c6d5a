/*
 * weir-train's checkpoints: DIR/step-N, the newest --keep of them.
 */
#include "examples/train/trainer.h"
#include "zero/directory.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void step_name(int64_t step, char name[static 32])
{
    snprintf(name, 32, "step-%08lld", (long long)step);
}

static void step_path(const char *out, int64_t step, char *path, size_t bytes)
{
    char name[32];
    step_name(step, name);
    snprintf(path, bytes, "%s/%s", out, name);
}

/* N of the very name that a checkpoint of step N has, or -1: "step-1" is somebody else's. */
static int64_t step_of(const char *name)
{
    char own[32];
    if (strncmp(name, "step-", 5) != 0)
        return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    step_name(step, own);
    return strcmp(name, own) == 0 ? step : -1;
}

/* The nth newest checkpoint's step (0: newest) of those below one; -1: there is none. */
static int64_t newest_step(const char *out, int64_t below, uint64_t nth)
{
    for (uint64_t i = 0; i <= nth; i++) {
        DIR *dir = opendir(out);
        int64_t best = -1;
        struct dirent *entry;
        while (dir && (entry = readdir(dir)) != NULL) {
            int64_t step = step_of(entry->d_name);
            if (step > best && step < below)
                best = step;
        }
        if (dir)
            closedir(dir);
        if (best < 0)
            return -1;
        below = best;
    }
    return below;
}

enum weir_status trainer_newest(const struct trainer *t, char *path, size_t path_bytes, bool *found)
{
    const char *out = t->arguments.out;
    *found = false;
    if (access(out, R_OK) != 0 && errno != ENOENT)
        return weir_fail_errno(WEIR_ERR_IO, errno, "--out \"%s\": cannot be read", out);
    int64_t step = newest_step(out, INT64_MAX, 0);
    *found = step >= 0;
    step_path(t->arguments.out, step, path, path_bytes);
    return WEIR_OK;
}

/* All but the newest --keep of the steps up to this one. A later one is not this run's: it does not
 * count, and stays. Each is tried once, so that one which cannot be removed hides no other. */
static void prune(const char *out, int64_t step, uint64_t keep)
{
    char path[4096];
    for (int64_t old = newest_step(out, step + 1, keep); old >= 0; old = newest_step(out, old, 0)) {
        step_path(out, old, path, sizeof path);
        if (weir_directory_remove(path) != WEIR_OK)
            fprintf(stderr, "warning: an older checkpoint stays: %s\n", weir_last_error()->text);
    }
}

/* Whether name, in out, is the folder of a save that never ended. */
static bool is_half(const char *out, const char *name, char *path, size_t bytes)
{
    char whole[64];
    struct stat st;
    size_t length = strlen(name);
    if (length <= 4 || length - 4 >= sizeof whole || strcmp(name + length - 4, ".tmp") != 0)
        return false;
    snprintf(whole, sizeof whole, "%.*s", (int)(length - 4), name);
    snprintf(path, bytes, "%s/%s", out, name);
    return step_of(whole) >= 0 && lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

void trainer_sweep(const struct trainer *t)
{
    const char *out = t->arguments.out;
    char path[4096];
    DIR *dir = opendir(out);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) {
        if (!is_half(out, entry->d_name, path, sizeof path))
            continue;
        if (weir_directory_remove(path) == WEIR_OK)
            fprintf(stderr, "removed \"%s\": half a checkpoint, of a save that was killed\n", path);
        else
            fprintf(stderr, "warning: half a checkpoint stays: %s\n", weir_last_error()->text);
    }
    if (dir)
        closedir(dir);
}

static enum weir_status save_with(struct trainer *t, const char *path, const char *json)
{
    struct weir_file files[COMPANIONS_MOST + 1] = {
        {"config.json", t->config.text, t->config.text_bytes}};
    memcpy(files + 1, t->companions.files, t->companions.count * sizeof *files);
    return weir_save(t->run, path, json, files, t->companions.count + 1);
}

enum weir_status trainer_save(struct trainer *t)
{
    char path[4096];
    step_path(t->arguments.out, (int64_t)t->step, path, sizeof path);
    json_t *object = trainer_numbers(t);
    char *json = object ? json_dumps(object, JSON_COMPACT) : NULL;
    enum weir_status status = json ? save_with(t, path, json)
                                   : weir_fail(WEIR_ERR_NOMEM, "checkpoint: no memory for JSON");
    free(json);
    json_decref(object);
    WEIR_TRY(status);
    t->saved_step = t->step;
    printf("saved %s\n", path);
    fflush(stdout);
    prune(t->arguments.out, (int64_t)t->step, t->arguments.keep);
    return WEIR_OK;
}
