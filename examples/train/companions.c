#include "examples/train/companions.h"
#include "core/file.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[COMPANIONS_MOST] = {"tokenizer.json", "tokenizer_config.json",
                                                   "special_tokens_map.json", "tokenizer.model",
                                                   "generation_config.json"};

static enum weir_status file_read(const char *path, int fd, void **memory, size_t *bytes)
{
    struct stat stat;
    int error = fstat(fd, &stat) == 0 ? 0 : errno;
    if (!error) {
        WEIR_TRY(weir_alloc(memory, (size_t)stat.st_size + 1, 1, path));
        error = weir_file_read(fd, *memory, (size_t)stat.st_size, 0, bytes);
    }
    if (!error)
        return WEIR_OK;
    weir_free(*memory);
    return weir_fail_errno(
        WEIR_ERR_IO, error,
        "\"%s\": cannot be read, and goes with the model; mend it or take it away", path);
}

static enum weir_status file_take(struct companions *c, const char *directory, const char *name)
{
    char path[4096];
    int fd;
    void *memory = NULL;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int error = weir_file_open(path, O_RDONLY, 0, &fd);
    if (error == ENOENT)
        return WEIR_OK;
    if (error)
        return weir_fail_errno(
            WEIR_ERR_IO, error,
            "\"%s\": cannot be opened, and goes with the model; mend it or take it away", path);
    enum weir_status status = file_read(path, fd, &memory, &bytes);
    close(fd);
    if (status == WEIR_OK)
        c->files[c->count++] = (struct weir_file){name, memory, bytes};
    return status;
}

enum weir_status companions_read(struct companions *companions, const char *directory)
{
    *companions = (struct companions){.count = 0};
    for (size_t i = 0; i < COMPANIONS_MOST; i++) {
        enum weir_status status = file_take(companions, directory, names[i]);
        if (status != WEIR_OK) {
            companions_free(companions);
            return status;
        }
    }
    return WEIR_OK;
}

void companions_free(struct companions *companions)
{
    for (size_t i = 0; i < companions->count; i++)
        weir_free((void *)companions->files[i].bytes);
    companions->count = 0;
}
