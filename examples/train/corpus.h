/*
 * Tokens to train on: .bin files of token ids, or text files and folders read as bytes. Nothing is
 * mapped and the text is not held: files are read where a sequence needs them.
 *
 * A .bin file holds little-endian ids: uint16 if the vocabulary has at most 65536, else uint32; or
 * it begins with llm.c's header of 256 int32 {magic, version, token count}, which says itself what
 * follows: {20240520, 1} uint16, {20240801, 7} uint32. Text files are joined by one 0 byte.
 *
 * A corpus is one run of tokens; sequence i is tokens [i * length, i * length + length], its
 * targets shifted by one. What is left at the end is not used.
 */
#ifndef WEIR_TRAIN_CORPUS_H
#define WEIR_TRAIN_CORPUS_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>

struct corpus_file {
    char *path;
    uint64_t first, count;              /* tokens before it, and its own */
    uint32_t header_bytes, token_bytes; /* token_bytes: 1 text, 2 or 4 */
};
struct corpus {
    struct corpus_file *files;
    size_t file_count, file_capacity;
    uint64_t token_count, sequence_count;
    uint64_t link_count; /* symbolic links in folders, which are passed over */
    uint32_t length, vocab;
    bool text;
    /* A resume asks for the same. XXH3 over each file's size and contents, in order: all of a file
     * up to 64 MiB, of a larger one 1024 pieces of 64 KiB spread evenly from its first byte to its
     * last. Names do not count. */
    uint64_t identity;
    int fd; /* of files[open_file]; -1: none */
    size_t open_file;
};

/* paths: comma-separated files or folders. Every token of a .bin is checked. Text needs vocab >=
 * 256, and text_refused says why it may not be (NULL: it may). */
enum weir_status corpus_open(struct corpus *corpus, const char *paths, uint32_t length,
                             uint32_t vocab, const char *text_refused);
void corpus_close(struct corpus *corpus);
/* length inputs and length targets of a sequence. */
enum weir_status corpus_read(struct corpus *corpus, uint64_t sequence, int32_t *inputs,
                             int32_t *targets);

/* Position p of training, in a keyed permutation of [0, count) that differs by epoch: a Feistel
 * network with cycle walking, so that a resume needs only the position. */
uint64_t corpus_order(uint64_t seed, uint64_t count, uint64_t position);

#endif
