#include "core/file.h"
#include "core/memory.h"
#include "io/safetensors_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct weir_tensors_writer {
    char *path;
    int fd;
};

static enum weir_status metadata_add(const char *path, json_t *header, const char *metadata_json)
{
    json_error_t error;
    json_t *metadata = json_loads(metadata_json, JSON_REJECT_DUPLICATES, &error);
    bool valid = weir_file_metadata_valid(metadata);
    if (!valid || json_object_set(header, WEIR_FILE_METADATA, metadata) != 0) {
        json_decref(metadata);
        return weir_fail(WEIR_ERR_ARG,
                         "\"%s\": " WEIR_FILE_METADATA ": not an object of strings: %s", path,
                         metadata_json);
    }
    json_decref(metadata);
    return WEIR_OK;
}

static enum weir_status tensor_check(const char *path, json_t *header,
                                     struct weir_file_tensor *tensor)
{
    if (tensor->name == NULL || strcmp(tensor->name, WEIR_FILE_METADATA) == 0 ||
        json_object_get(header, tensor->name) != NULL)
        return weir_fail(WEIR_ERR_ARG, "\"%s\": tensor name \"%s\" is taken or missing", path,
                         tensor->name != NULL ? tensor->name : "");
    if ((unsigned)tensor->dtype >= WEIR_FILE_DTYPE_COUNT ||
        tensor->dim_count > WEIR_FILE_DIMS_MOST || !weir_file_tensor_measure(tensor))
        return weir_fail(WEIR_ERR_ARG,
                         "\"%s\": tensor \"%s\": dtype %d with %u dimensions; give a known dtype, "
                         "at most %u dimensions and less than 2^63 bytes",
                         path, tensor->name, (int)tensor->dtype, tensor->dim_count,
                         WEIR_FILE_DIMS_MOST);
    return WEIR_OK;
}

/* offset_bytes is relative to the data's begin until the header's length is known. */
static enum weir_status tensor_add(const char *path, json_t *header,
                                   struct weir_file_tensor *tensor, uint64_t *data_bytes)
{
    WEIR_TRY(tensor_check(path, header, tensor));
    tensor->offset_bytes = *data_bytes;
    if (tensor->byte_count > INT64_MAX - WEIR_FILE_HEADER_MOST - WEIR_FILE_PREFIX - *data_bytes)
        return weir_fail(WEIR_ERR_ARG, "\"%s\": tensor \"%s\": the file would pass 2^63 bytes",
                         path, tensor->name);
    *data_bytes += tensor->byte_count;
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->dim_count; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    json_t *entry =
        json_pack("{s:s, s:o, s:[I, I]}", "dtype", weir_file_dtype_name(tensor->dtype), "shape",
                  shape, "data_offsets", (json_int_t)tensor->offset_bytes, (json_int_t)*data_bytes);
    if (entry == NULL || json_object_set_new(header, tensor->name, entry) != 0)
        return weir_fail(WEIR_ERR_ARG, "\"%s\": tensor \"%s\": not a UTF-8 name", path,
                         tensor->name);
    return WEIR_OK;
}

static enum weir_status bytes_write(const struct weir_tensors_writer *writer, uint64_t offset_bytes,
                                    const void *bytes, uint64_t byte_count, const char *what)
{
    int os_errno = weir_file_write(writer->fd, bytes, byte_count, offset_bytes);
    if (os_errno == 0)
        return WEIR_OK;
    return weir_fail_errno(WEIR_ERR_IO, os_errno,
                           "\"%s\": %s: write of %" PRIu64 " bytes at %" PRIu64 " failed",
                           writer->path, what, byte_count, offset_bytes);
}

/* Asked before reserving, which on some file systems fills the disk before it fails. */
static enum weir_status space_check(const struct weir_tensors_writer *writer, uint64_t byte_count)
{
    struct statvfs space;
    if (fstatvfs(writer->fd, &space) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "\"%s\": free space unknown", writer->path);
    if (byte_count / space.f_frsize < space.f_bavail)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_NOSPACE,
                     "\"%s\": need %" PRIu64 " bytes, %" PRIu64
                     " free; free some there or write elsewhere",
                     writer->path, byte_count, (uint64_t)space.f_bavail * space.f_frsize);
}

static enum weir_status file_make(struct weir_tensors_writer *writer, uint64_t byte_count)
{
    int os_errno = weir_file_open(writer->path, O_CREAT | O_EXCL | O_WRONLY, 0666, &writer->fd);
    if (os_errno != 0)
        return weir_fail_errno(WEIR_ERR_IO, os_errno, "\"%s\": cannot be made", writer->path);
    WEIR_TRY(space_check(writer, byte_count));
    os_errno = weir_file_reserve(writer->fd, byte_count);
    if (os_errno == 0)
        return WEIR_OK;
    return weir_fail_errno(WEIR_ERR_IO, os_errno,
                           "\"%s\": %" PRIu64 " bytes cannot be reserved; free some there or write "
                           "elsewhere",
                           writer->path, byte_count);
}

/* prefix and header text, padded with spaces so that the data begins at a multiple of 8. */
static enum weir_status header_text(const char *path, json_t *header, char **out,
                                    uint64_t *byte_count)
{
    size_t flags = JSON_COMPACT | JSON_ENSURE_ASCII;
    size_t text_bytes = json_dumpb(header, NULL, 0, flags);
    size_t padded_bytes = (text_bytes + 7) / 8 * 8;
    if (padded_bytes > WEIR_FILE_HEADER_MOST)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "\"%s\": header of %zu bytes, at most %u are allowed", path, padded_bytes,
                         WEIR_FILE_HEADER_MOST);
    WEIR_TRY(weir_alloc(out, WEIR_FILE_PREFIX + padded_bytes, 1, "a safetensors header"));
    for (size_t i = 0; i < WEIR_FILE_PREFIX; i++)
        (*out)[i] = (char)(padded_bytes >> 8 * i & 0xff);
    memset(*out + WEIR_FILE_PREFIX, ' ', padded_bytes);
    json_dumpb(header, *out + WEIR_FILE_PREFIX, text_bytes, flags);
    *byte_count = WEIR_FILE_PREFIX + padded_bytes;
    return WEIR_OK;
}

static enum weir_status file_write(struct weir_tensors_writer *writer, json_t *header,
                                   struct weir_file_tensor *tensors, size_t count,
                                   const char *metadata_json)
{
    uint64_t data_bytes = 0, head_bytes = 0;
    if (header == NULL)
        return weir_fail(WEIR_ERR_NOMEM, "\"%s\": no memory for its header", writer->path);
    if (metadata_json != NULL)
        WEIR_TRY(metadata_add(writer->path, header, metadata_json));
    for (size_t i = 0; i < count; i++)
        WEIR_TRY(tensor_add(writer->path, header, &tensors[i], &data_bytes));
    char *text;
    WEIR_TRY(header_text(writer->path, header, &text, &head_bytes));
    for (size_t i = 0; i < count; i++)
        tensors[i].offset_bytes += head_bytes;
    enum weir_status status = file_make(writer, head_bytes + data_bytes);
    if (status == WEIR_OK)
        status = bytes_write(writer, 0, text, head_bytes, "header");
    weir_free(text);
    return status;
}

enum weir_status weir_tensors_create(struct weir_tensors_writer **out, const char *path,
                                     struct weir_file_tensor *tensors, size_t count,
                                     const char *metadata_json)
{
    struct weir_tensors_writer *writer;
    WEIR_TRY(weir_alloc(&writer, 1, sizeof *writer, "a safetensors writer"));
    writer->fd = -1;
    enum weir_status status = weir_strdup(&writer->path, path);
    json_t *header = json_object();
    if (status == WEIR_OK)
        status = file_write(writer, header, tensors, count, metadata_json);
    json_decref(header);
    if (status != WEIR_OK) {
        weir_tensors_abandon(writer);
        return status;
    }
    *out = writer;
    return WEIR_OK;
}

enum weir_status weir_tensors_write(struct weir_tensors_writer *writer,
                                    const struct weir_file_tensor *tensor, uint64_t first_bytes,
                                    const void *bytes, uint64_t byte_count)
{
    if (first_bytes > tensor->byte_count || byte_count > tensor->byte_count - first_bytes)
        return weir_fail(WEIR_ERR_ARG,
                         "\"%s\": tensor \"%s\": bytes [%" PRIu64 ", + %" PRIu64
                         ") given, it has %" PRIu64,
                         writer->path, tensor->name, first_bytes, byte_count, tensor->byte_count);
    return bytes_write(writer, tensor->offset_bytes + first_bytes, bytes, byte_count, tensor->name);
}

enum weir_status weir_tensors_commit(struct weir_tensors_writer *writer)
{
    enum weir_status status = WEIR_OK;
    int os_errno = weir_file_sync(writer->fd);
    if (os_errno != 0)
        status = weir_fail_errno(WEIR_ERR_IO, os_errno, "\"%s\": fsync failed", writer->path);
    weir_tensors_abandon(writer); /* what close can still report, fsync has reported */
    return status;
}

void weir_tensors_abandon(struct weir_tensors_writer *writer)
{
    if (writer == NULL)
        return;
    if (writer->fd >= 0)
        close(writer->fd);
    weir_free(writer->path);
    weir_free(writer);
}
