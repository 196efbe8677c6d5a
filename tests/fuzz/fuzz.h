/*
 * What the fuzz targets share. A target is LLVMFuzzerTestOneInput: hostile bytes in, and whatever
 * they are, either success or one error that names the file; nothing held afterwards. libFuzzer
 * drives it in the `fuzz` preset; elsewhere replay.c runs it over a folder of inputs.
 */
#ifndef WEIR_TESTS_FUZZ_H
#define WEIR_TESTS_FUZZ_H

#include "tests/support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Failed assertions abort from now on; path: a directory that goes away at exit. */
void fuzz_directory(char path[static 256]);
/* directory/name holds these bytes; path receives its name. */
void fuzz_file(const char *directory, const char *name, const void *bytes, size_t byte_count,
               char path[static 300]);
/* status is WEIR_OK, or the last error is of this status, one line, and names `name`. */
void fuzz_named(enum weir_status status, const char *name);

/*
 * A good text changed as the input says, so that what lies behind the first checks is reached too.
 * The input is a list of edits, each a byte for its kind, two for a place in the text, and:
 *     0 overwrite, 1 insert: a byte n, n bytes      2 delete: a byte n      3 cut off here
 *     4 the number here becomes the one at another place (two bytes)
 * The caller frees the result; it ends in '\0', which is not counted.
 */
char *fuzz_edit(const char *text, size_t byte_count, const uint8_t *data, size_t size,
                size_t *edited_count);

#endif
