/*
 * What the reader and the writer of safetensors share; safetensors_format.c.
 */
#ifndef WEIR_IO_SAFETENSORS_INTERNAL_H
#define WEIR_IO_SAFETENSORS_INTERNAL_H

#include "io/safetensors.h"

#include <jansson.h>

#define WEIR_FILE_HEADER_MOST 100000000u /* bytes; the format's own limit */
#define WEIR_FILE_PREFIX      8u         /* the header's length, little-endian */
#define WEIR_FILE_DIMS_MOST   8u
#define WEIR_FILE_METADATA    "__metadata__"

/* element_count and byte_count from dtype and shape; false: a product passes 2^63. */
bool weir_file_tensor_measure(struct weir_file_tensor *tensor);

/* "__metadata__" is an object of strings. */
bool weir_file_metadata_valid(json_t *metadata);

#endif
