#include "core/file.h"
#include "core/memory.h"
#include "io/safetensors_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_SUFFIX ".index.json"
#define SINGLE_NAME  "model.safetensors"
#define INDEX_NAME   SINGLE_NAME INDEX_SUFFIX

struct shard {
    char *path;
    int fd;
    uint64_t byte_count;
};

struct weir_tensors {
    struct weir_file_tensor *tensors; /* by name */
    size_t count, capacity;
    struct shard *shards;
    size_t shard_count, shard_capacity;
};

static enum weir_status bytes_read(const char *path, int fd, uint64_t offset_bytes, void *out,
                                   uint64_t byte_count, const char *what)
{
    size_t got;
    int error = weir_file_read(fd, out, byte_count, offset_bytes, &got);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "\"%s\": %s: read at %" PRIu64 " failed", path,
                               what, offset_bytes + got);
    if (got < byte_count)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "\"%s\": %s: the file ends at %" PRIu64 ", bytes [%" PRIu64 ", %" PRIu64
                         ") are needed; fetch the file again",
                         path, what, offset_bytes + got, offset_bytes, offset_bytes + byte_count);
    return WEIR_OK;
}

/* listed_in: the index that names the file, or NULL. O_NONBLOCK: a pipe must not block the open. */
static enum weir_status regular_open(const char *path, const char *listed_in, int *fd,
                                     uint64_t *byte_count)
{
    int opened, error = weir_file_open(path, O_RDONLY | O_NONBLOCK, 0, &opened);
    if (error && listed_in != NULL)
        return weir_fail_errno(WEIR_ERR_IO, error, "\"%s\": listed in \"%s\", cannot be opened",
                               path, listed_in);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "\"%s\": cannot be opened", path);
    struct stat stat;
    if (fstat(opened, &stat) != 0 || !S_ISREG(stat.st_mode)) {
        close(opened);
        return weir_fail(WEIR_ERR_ARG, "\"%s\": not a regular file", path);
    }
    *fd = opened;
    *byte_count = (uint64_t)stat.st_size;
    return WEIR_OK;
}

/* The JSON object in bytes [offset, offset + byte_count). */
static enum weir_status json_read(const char *path, int fd, uint64_t offset_bytes,
                                  uint64_t byte_count, json_t **out)
{
    char *text;
    WEIR_TRY(weir_alloc(&text, byte_count, 1, "a JSON header"));
    enum weir_status status = bytes_read(path, fd, offset_bytes, text, byte_count, "header");
    if (status == WEIR_OK) {
        json_error_t error = {.text = "does not begin with {"};
        *out = byte_count > 0 && text[0] == '{'
                   ? json_loadb(text, byte_count, JSON_REJECT_DUPLICATES, &error)
                   : NULL;
        if (*out == NULL)
            status = weir_fail(WEIR_ERR_CORRUPT,
                               "\"%s\": header is not a JSON object: %s (at byte %d); fetch the "
                               "file again",
                               path, error.text, error.position);
    }
    weir_free(text);
    return status;
}

static enum weir_status dtype_parse(const char *path, const char *tensor, json_t *value,
                                    enum weir_file_dtype *dtype)
{
    const char *name = json_string_value(value);
    if (name == NULL)
        return weir_fail(WEIR_ERR_CORRUPT, "\"%s\": tensor \"%s\": dtype is not a string", path,
                         tensor);
    for (int i = 0; i < WEIR_FILE_DTYPE_COUNT; i++) {
        *dtype = (enum weir_file_dtype)i;
        if (strcmp(name, weir_file_dtype_name(*dtype)) == 0)
            return WEIR_OK;
    }
    return weir_fail(WEIR_ERR_UNSUPPORTED,
                     "\"%s\": tensor \"%s\": unknown dtype \"%s\"; BF16, F16, F32, F64, I16, I32, "
                     "I64 and U8 are known",
                     path, tensor, name);
}

static bool count_parse(json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static enum weir_status shape_parse(const char *path, json_t *shape,
                                    struct weir_file_tensor *tensor)
{
    size_t dims = json_array_size(shape);
    if (!json_is_array(shape))
        return weir_fail(WEIR_ERR_CORRUPT, "\"%s\": tensor \"%s\": shape is not an array", path,
                         tensor->name);
    if (dims > WEIR_FILE_DIMS_MOST)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "\"%s\": tensor \"%s\": shape has %zu dimensions, at most %u are known",
                         path, tensor->name, dims, WEIR_FILE_DIMS_MOST);
    tensor->dim_count = (uint32_t)dims;
    for (size_t i = 0; i < dims; i++)
        if (!count_parse(json_array_get(shape, i), &tensor->shape[i]))
            return weir_fail(WEIR_ERR_CORRUPT,
                             "\"%s\": tensor \"%s\": shape[%zu] is not a whole number from 0 on",
                             path, tensor->name, i);
    if (!weir_file_tensor_measure(tensor))
        return weir_fail(WEIR_ERR_CORRUPT, "\"%s\": tensor \"%s\": shape passes 2^63 bytes", path,
                         tensor->name);
    return WEIR_OK;
}

/* data_bytes: of the file after its header. offset_bytes stays relative to there. */
static enum weir_status offsets_parse(const char *path, json_t *offsets, uint64_t data_bytes,
                                      struct weir_file_tensor *tensor)
{
    uint64_t begin, end;
    if (json_array_size(offsets) != 2 || !count_parse(json_array_get(offsets, 0), &begin) ||
        !count_parse(json_array_get(offsets, 1), &end) || begin > end)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "\"%s\": tensor \"%s\": data_offsets are not two ascending whole numbers",
                         path, tensor->name);
    if (end > data_bytes)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "\"%s\": tensor \"%s\": data_offsets end at %" PRIu64 ", the file's data "
                         "at %" PRIu64 "; the file was cut short, fetch it again",
                         path, tensor->name, end, data_bytes);
    if (end - begin != tensor->byte_count)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "\"%s\": tensor \"%s\": data_offsets hold %" PRIu64 " bytes, shape and "
                         "dtype %s need %" PRIu64,
                         path, tensor->name, end - begin, weir_file_dtype_name(tensor->dtype),
                         tensor->byte_count);
    tensor->offset_bytes = begin;
    return WEIR_OK;
}

static enum weir_status tensor_parse(const char *path, json_t *value, uint64_t data_bytes,
                                     struct weir_file_tensor *tensor)
{
    if (!json_is_object(value))
        return weir_fail(WEIR_ERR_CORRUPT, "\"%s\": tensor \"%s\": not an object", path,
                         tensor->name);
    WEIR_TRY(dtype_parse(path, tensor->name, json_object_get(value, "dtype"), &tensor->dtype));
    WEIR_TRY(shape_parse(path, json_object_get(value, "shape"), tensor));
    return offsets_parse(path, json_object_get(value, "data_offsets"), data_bytes, tensor);
}

static int compare_offsets(const void *left, const void *right)
{
    const struct weir_file_tensor *a = left, *b = right;
    if (a->offset_bytes != b->offset_bytes)
        return a->offset_bytes < b->offset_bytes ? -1 : 1;
    return (a->byte_count > b->byte_count) - (a->byte_count < b->byte_count);
}

static int compare_names(const void *left, const void *right)
{
    const struct weir_file_tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* The tensors of one file follow each other without overlap or hole up to the file's end. */
static enum weir_status layout_check(const char *path, struct weir_file_tensor *tensors,
                                     size_t count, uint64_t data_bytes)
{
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, compare_offsets);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        if (tensors[i].offset_bytes != end)
            return weir_fail(WEIR_ERR_CORRUPT,
                             "\"%s\": tensor \"%s\": data_offsets begin at %" PRIu64
                             " and leave %s at %" PRIu64,
                             path, tensors[i].name, tensors[i].offset_bytes,
                             tensors[i].offset_bytes > end ? "a hole" : "an overlap", end);
        end += tensors[i].byte_count;
    }
    if (end != data_bytes)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "\"%s\": %" PRIu64 " bytes of data, the header names %" PRIu64, path,
                         data_bytes, end);
    return WEIR_OK;
}

static enum weir_status header_parse(struct weir_tensors *tensors, json_t *header,
                                     uint64_t data_offset)
{
    uint32_t shard = (uint32_t)(tensors->shard_count - 1);
    const char *path = tensors->shards[shard].path;
    uint64_t data_bytes = tensors->shards[shard].byte_count - data_offset;
    size_t first = tensors->count;
    const char *name;
    json_t *value;
    json_object_foreach(header, name, value)
    {
        if (strcmp(name, WEIR_FILE_METADATA) == 0) {
            if (!weir_file_metadata_valid(value))
                return weir_fail(WEIR_ERR_CORRUPT,
                                 "\"%s\": " WEIR_FILE_METADATA " is not an object of strings",
                                 path);
            continue;
        }
        WEIR_TRY(weir_grow(&tensors->tensors, &tensors->capacity, tensors->count + 1,
                           sizeof *tensors->tensors, "a model's tensors"));
        struct weir_file_tensor *tensor = &tensors->tensors[tensors->count];
        *tensor = (struct weir_file_tensor){.shard = shard};
        WEIR_TRY(weir_strdup(&tensor->name, name));
        tensors->count++;
        WEIR_TRY(tensor_parse(path, value, data_bytes, tensor));
    }
    size_t count = tensors->count - first;
    WEIR_TRY(layout_check(path, count > 0 ? &tensors->tensors[first] : NULL, count, data_bytes));
    for (size_t i = first; i < tensors->count; i++)
        tensors->tensors[i].offset_bytes += data_offset;
    return WEIR_OK;
}

static enum weir_status shard_add(struct weir_tensors *tensors, const char *path,
                                  const char *listed_in)
{
    WEIR_TRY(weir_grow(&tensors->shards, &tensors->shard_capacity, tensors->shard_count + 1,
                       sizeof *tensors->shards, "a model's files"));
    struct shard *shard = &tensors->shards[tensors->shard_count];
    *shard = (struct shard){.fd = -1};
    WEIR_TRY(weir_strdup(&shard->path, path));
    tensors->shard_count++;
    WEIR_TRY(regular_open(path, listed_in, &shard->fd, &shard->byte_count));
    unsigned char prefix[WEIR_FILE_PREFIX];
    WEIR_TRY(bytes_read(path, shard->fd, 0, prefix, sizeof prefix, "header length"));
    uint64_t header_bytes = 0;
    for (size_t i = 0; i < sizeof prefix; i++)
        header_bytes |= (uint64_t)prefix[i] << 8 * i;
    if (header_bytes > WEIR_FILE_HEADER_MOST || header_bytes > shard->byte_count - WEIR_FILE_PREFIX)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "\"%s\": header of %" PRIu64 " bytes in a file of %" PRIu64
                         ", at most %u are allowed; not a safetensors file or cut short",
                         path, header_bytes, shard->byte_count, WEIR_FILE_HEADER_MOST);
    json_t *header;
    WEIR_TRY(json_read(path, shard->fd, WEIR_FILE_PREFIX, header_bytes, &header));
    enum weir_status status = header_parse(tensors, header, WEIR_FILE_PREFIX + header_bytes);
    json_decref(header);
    return status;
}

static enum weir_status names_sort(struct weir_tensors *tensors)
{
    struct weir_file_tensor *sorted = tensors->tensors;
    if (tensors->count > 0)
        qsort(sorted, tensors->count, sizeof *sorted, compare_names);
    for (size_t i = 1; i < tensors->count; i++)
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0)
            return weir_fail(WEIR_ERR_CORRUPT, "tensor \"%s\": in \"%s\" and again in \"%s\"",
                             sorted[i].name, tensors->shards[sorted[i - 1].shard].path,
                             tensors->shards[sorted[i].shard].path);
    return WEIR_OK;
}

static enum weir_status path_join(char out[static PATH_MAX], const char *directory,
                                  size_t directory_length, const char *name)
{
    int length = snprintf(out, PATH_MAX, "%.*s%s", (int)directory_length, directory, name);
    if (directory_length >= PATH_MAX || length < 0 || length >= PATH_MAX)
        return weir_fail(WEIR_ERR_ARG, "\"%s\": path of %zu bytes is too long", name,
                         directory_length + strlen(name));
    return WEIR_OK;
}

static bool shard_known(const struct weir_tensors *tensors, const char *path)
{
    for (size_t i = 0; i < tensors->shard_count; i++)
        if (strcmp(tensors->shards[i].path, path) == 0)
            return true;
    return false;
}

/* A shard lies beside its index: a name from a file must not lead anywhere else. */
static enum weir_status shard_path(const char *index, const char *tensor, json_t *value,
                                   char path[static PATH_MAX])
{
    const char *name = json_string_value(value);
    if (name == NULL || name[0] == 0 || strchr(name, '/') != NULL || strchr(name, '\\') != NULL ||
        strstr(name, "..") != NULL)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "\"%s\": weight_map: tensor \"%s\": \"%s\" is not a plain file name",
                         index, tensor, name != NULL ? name : "");
    const char *slash = strrchr(index, '/');
    return path_join(path, index, slash != NULL ? (size_t)(slash - index) + 1 : 0, name);
}

static enum weir_status index_parse(struct weir_tensors *tensors, const char *index, json_t *root)
{
    json_t *map = json_object_get(root, "weight_map");
    if (json_object_size(map) == 0)
        return weir_fail(WEIR_ERR_CORRUPT, "\"%s\": weight_map is missing or empty", index);
    char path[PATH_MAX];
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        WEIR_TRY(shard_path(index, name, value, path));
        if (!shard_known(tensors, path))
            WEIR_TRY(shard_add(tensors, path, index));
    }
    WEIR_TRY(names_sort(tensors));
    json_object_foreach(map, name, value)
    {
        WEIR_TRY(shard_path(index, name, value, path));
        const struct weir_file_tensor *tensor = weir_tensors_find(tensors, name);
        if (tensor == NULL || strcmp(tensors->shards[tensor->shard].path, path) != 0)
            return weir_fail(WEIR_ERR_CORRUPT,
                             "\"%s\": weight_map: tensor \"%s\" is not in \"%s\"; fetch the model "
                             "again",
                             index, name, json_string_value(value));
    }
    return WEIR_OK;
}

static enum weir_status index_open(struct weir_tensors *tensors, const char *index)
{
    int fd;
    uint64_t byte_count;
    WEIR_TRY(regular_open(index, NULL, &fd, &byte_count));
    json_t *root = NULL;
    enum weir_status status =
        byte_count <= WEIR_FILE_HEADER_MOST
            ? json_read(index, fd, 0, byte_count, &root)
            : weir_fail(WEIR_ERR_CORRUPT, "\"%s\": %" PRIu64 " bytes, at most %u are allowed",
                        index, byte_count, WEIR_FILE_HEADER_MOST);
    close(fd);
    if (status == WEIR_OK)
        status = index_parse(tensors, index, root);
    json_decref(root);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* path itself, or the file that stands for the directory. */
static enum weir_status model_path(const char *path, char found[static PATH_MAX])
{
    struct stat stat_;
    if (stat(path, &stat_) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "\"%s\": cannot be opened", path);
    if (!S_ISDIR(stat_.st_mode))
        return path_join(found, path, strlen(path), "");
    WEIR_TRY(path_join(found, path, strlen(path), "/" SINGLE_NAME));
    if (access(found, F_OK) == 0)
        return WEIR_OK;
    WEIR_TRY(path_join(found, path, strlen(path), "/" INDEX_NAME));
    if (access(found, F_OK) == 0)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG, "\"%s\": holds neither " SINGLE_NAME " nor " INDEX_NAME, path);
}

enum weir_status weir_tensors_open(struct weir_tensors **out, const char *path)
{
    char found[PATH_MAX];
    WEIR_TRY(model_path(path, found));
    struct weir_tensors *tensors;
    WEIR_TRY(weir_alloc(&tensors, 1, sizeof *tensors, "a model's index"));
    enum weir_status status = ends_with(found, INDEX_SUFFIX) ? index_open(tensors, found)
                                                             : shard_add(tensors, found, NULL);
    if (status == WEIR_OK)
        status = names_sort(tensors);
    if (status != WEIR_OK) {
        weir_tensors_close(tensors);
        return status;
    }
    *out = tensors;
    return WEIR_OK;
}

void weir_tensors_close(struct weir_tensors *tensors)
{
    if (tensors == NULL)
        return;
    for (size_t i = 0; i < tensors->count; i++)
        weir_free(tensors->tensors[i].name);
    for (size_t i = 0; i < tensors->shard_count; i++) {
        if (tensors->shards[i].fd >= 0)
            close(tensors->shards[i].fd);
        weir_free(tensors->shards[i].path);
    }
    weir_free(tensors->tensors);
    weir_free(tensors->shards);
    weir_free(tensors);
}

size_t weir_tensors_count(const struct weir_tensors *tensors)
{
    return tensors->count;
}

const struct weir_file_tensor *weir_tensors_at(const struct weir_tensors *tensors, size_t index)
{
    return &tensors->tensors[index];
}

static int compare_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct weir_file_tensor *)tensor)->name);
}

const struct weir_file_tensor *weir_tensors_find(const struct weir_tensors *tensors,
                                                 const char *name)
{
    if (tensors->count == 0)
        return NULL;
    return bsearch(name, tensors->tensors, tensors->count, sizeof *tensors->tensors, compare_name);
}

enum weir_status weir_tensors_read(const struct weir_tensors *tensors,
                                   const struct weir_file_tensor *tensor, uint64_t first_bytes,
                                   void *out, uint64_t byte_count)
{
    const struct shard *shard = &tensors->shards[tensor->shard];
    if (first_bytes > tensor->byte_count || byte_count > tensor->byte_count - first_bytes)
        return weir_fail(WEIR_ERR_ARG,
                         "\"%s\": tensor \"%s\": bytes [%" PRIu64 ", + %" PRIu64
                         ") asked, it has %" PRIu64,
                         shard->path, tensor->name, first_bytes, byte_count, tensor->byte_count);
    return bytes_read(shard->path, shard->fd, tensor->offset_bytes + first_bytes, out, byte_count,
                      tensor->name);
}
