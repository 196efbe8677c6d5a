/*
 * Safetensors files (format: 8-byte little-endian header length, JSON header, tensor bytes): a
 * strict reader that maps nothing (pread) and a writer that lays out the file first and takes byte
 * ranges in any order.
 *
 * The reader refuses, naming file and tensor: truncated files, headers over 100 MB or not JSON,
 * unknown dtypes, offsets that overlap, leave holes, pass the end or disagree with shape and dtype,
 * duplicate names.
 */
#ifndef WEIR_IO_SAFETENSORS_H
#define WEIR_IO_SAFETENSORS_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>

enum weir_file_dtype {
    WEIR_FILE_BF16,
    WEIR_FILE_F16,
    WEIR_FILE_F32,
    WEIR_FILE_F64,
    WEIR_FILE_I16,
    WEIR_FILE_I32,
    WEIR_FILE_I64,
    WEIR_FILE_U8,
    WEIR_FILE_DTYPE_COUNT,
};
uint32_t weir_file_dtype_bytes(enum weir_file_dtype dtype);
const char *weir_file_dtype_name(enum weir_file_dtype dtype); /* "BF16" ... as in the format */

struct weir_file_tensor {
    char *name;
    enum weir_file_dtype dtype;
    uint32_t dim_count; /* at most 8 */
    uint64_t shape[8];
    uint64_t element_count;
    uint64_t offset_bytes; /* from the file's start */
    uint64_t byte_count;
    uint32_t shard; /* reader: which file of the set */
};

/* A model's tensors: one file, or shards listed by an index.
 * path: a .safetensors file, a .safetensors.index.json, or a directory that holds
 * model.safetensors or model.safetensors.index.json (missing shards are named). */
struct weir_tensors;
enum weir_status weir_tensors_open(struct weir_tensors **out, const char *path);
void weir_tensors_close(struct weir_tensors *tensors);
size_t weir_tensors_count(const struct weir_tensors *tensors);
const struct weir_file_tensor *weir_tensors_at(const struct weir_tensors *tensors, size_t index);
/* NULL: no such tensor. Looked up in a sorted table. */
const struct weir_file_tensor *weir_tensors_find(const struct weir_tensors *tensors,
                                                 const char *name);
/* Bytes [first, first + byte_count) of the tensor into out. */
enum weir_status weir_tensors_read(const struct weir_tensors *tensors,
                                   const struct weir_file_tensor *tensor, uint64_t first_bytes,
                                   void *out, uint64_t byte_count);

/* Writer. tensors[].name, dtype, dim_count, shape are in; offset_bytes, byte_count, element_count
 * are computed in place. metadata_json: the text of the "__metadata__" object, or NULL.
 * The file is created (O_EXCL), space is reserved (NOSPACE names bytes and path). */
struct weir_tensors_writer;
enum weir_status weir_tensors_create(struct weir_tensors_writer **out, const char *path,
                                     struct weir_file_tensor *tensors, size_t count,
                                     const char *metadata_json);
enum weir_status weir_tensors_write(struct weir_tensors_writer *writer,
                                    const struct weir_file_tensor *tensor, uint64_t first_bytes,
                                    const void *bytes, uint64_t byte_count);
/* fsync and close; the writer is gone whatever is returned. abandon: close without fsync. */
enum weir_status weir_tensors_commit(struct weir_tensors_writer *writer);
void weir_tensors_abandon(struct weir_tensors_writer *writer);

#endif
