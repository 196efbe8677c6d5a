#include "examples/train/corpus.h"
#include "core/file.h"
#include "core/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define HEADER_BYTES 1024u /* llm.c's */

/* What the identity reads of a large file. */
#define PIECE_BYTES 65536u
#define PIECES      1024u

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static enum weir_status file_open(struct corpus *c, size_t index)
{
    if (c->fd >= 0 && c->open_file == index)
        return WEIR_OK;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    int error = weir_file_open(c->files[index].path, O_RDONLY, 0, &c->fd);
    c->open_file = index;
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "data \"%s\": cannot be opened",
                               c->files[index].path);
    return WEIR_OK;
}

static enum weir_status bytes_read(struct corpus *c, size_t index, uint64_t offset, void *out,
                                   uint64_t count)
{
    WEIR_TRY(file_open(c, index));
    size_t got;
    int error = weir_file_read(c->fd, out, count, offset, &got);
    if (error || got < count)
        return weir_fail(WEIR_ERR_IO, "data \"%s\": %llu bytes at %llu cannot be read (%s)",
                         c->files[index].path, (unsigned long long)(count - got),
                         (unsigned long long)(offset + got),
                         error ? strerror(error) : "the file shrank");
    return WEIR_OK;
}

/* llm.c's header, if the file has one; else a raw .bin, whose width follows from the vocabulary. */
static enum weir_status header_read(struct corpus *c, size_t index, uint64_t bytes)
{
    static const struct {
        int32_t magic, version;
        uint32_t token_bytes;
    } forms[] = {{20240520, 1, 2}, {20240801, 7, 4}};
    struct corpus_file *file = &c->files[index];
    int32_t header[3];
    size_t f = 2;
    if (bytes >= HEADER_BYTES) {
        WEIR_TRY(bytes_read(c, index, 0, header, sizeof header));
        for (f = 0; f < 2 && forms[f].magic != header[0];)
            f++;
    }
    file->token_bytes = f < 2 ? forms[f].token_bytes : c->vocab > 65536 ? 4 : 2;
    if (f == 2)
        return WEIR_OK;
    file->header_bytes = HEADER_BYTES;
    if (header[1] != forms[f].version)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "data \"%s\": llm.c header %d of version %d, version %d is read; write it "
                         "anew with llm.c's dev/data",
                         file->path, header[0], header[1], forms[f].version);
    uint64_t behind = bytes - HEADER_BYTES;
    if (header[2] < 0 || (uint64_t)header[2] * file->token_bytes != behind)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "data \"%s\": its header says %d tokens of %u bytes, %llu bytes follow; "
                         "the file is cut or damaged: fetch it again",
                         file->path, header[2], file->token_bytes, (unsigned long long)behind);
    return WEIR_OK;
}

static enum weir_status form_find(struct corpus *c, size_t index, uint64_t bytes)
{
    struct corpus_file *file = &c->files[index];
    file->token_bytes = 1;
    if (!c->text)
        WEIR_TRY(header_read(c, index, bytes));
    uint64_t own = bytes - file->header_bytes;
    if (own % file->token_bytes != 0)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "data \"%s\": %llu bytes are no whole number of %u-byte "
                         "tokens (vocabulary %u)",
                         file->path, (unsigned long long)bytes, file->token_bytes, c->vocab);
    file->count = own / file->token_bytes;
    return WEIR_OK;
}

static enum weir_status file_add(struct corpus *c, const char *path, uint64_t bytes)
{
    bool text = !ends_with(path, ".bin");
    if (c->file_count > 0 && text != c->text)
        return weir_fail(WEIR_ERR_ARG, "data \"%s\": text and .bin files do not mix; give one kind",
                         path);
    WEIR_TRY(
        weir_grow(&c->files, &c->file_capacity, c->file_count + 1, sizeof *c->files, "data files"));
    struct corpus_file *file = &c->files[c->file_count];
    *file = (struct corpus_file){0};
    WEIR_TRY(weir_strdup(&file->path, path));
    c->text = text;
    c->file_count++;
    WEIR_TRY(form_find(c, c->file_count - 1, bytes));
    if (text && c->file_count > 1)
        c->token_count++; /* the 0 byte between two texts */
    file->first = c->token_count;
    c->token_count += file->count;
    return WEIR_OK;
}

static enum weir_status path_add(struct corpus *c, const char *path, int depth);

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int no_dots(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static enum weir_status folder_add(struct corpus *c, const char *path, int depth)
{
    struct dirent **entries;
    int count = scandir(path, &entries, no_dots, by_name);
    if (count < 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "data \"%s\": folder cannot be read", path);
    enum weir_status status = WEIR_OK;
    for (int i = 0; i < count; i++) {
        char child[4096];
        int n = snprintf(child, sizeof child, "%s/%s", path, entries[i]->d_name);
        if (status == WEIR_OK)
            status = n < (int)sizeof child
                         ? path_add(c, child, depth + 1)
                         : weir_fail(WEIR_ERR_ARG, "data \"%s\": a path below it has %d characters",
                                     path, n);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* In folders, links and what is no file are passed over; named by the user, they count. */
static enum weir_status path_add(struct corpus *c, const char *path, int depth)
{
    struct stat st;
    if ((depth > 0 ? lstat(path, &st) : stat(path, &st)) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "data \"%s\": not found", path);
    if (S_ISDIR(st.st_mode))
        return depth < 64 ? folder_add(c, path, depth)
                          : weir_fail(WEIR_ERR_ARG, "data \"%s\": folders 64 deep", path);
    if (depth == 0 && !S_ISREG(st.st_mode))
        return weir_fail(WEIR_ERR_ARG, "data \"%s\": neither a file nor a folder", path);
    c->link_count += S_ISLNK(st.st_mode);
    if (!S_ISREG(st.st_mode) || (depth > 0 && st.st_size == 0))
        return WEIR_OK;
    return file_add(c, path, (uint64_t)st.st_size);
}

static enum weir_status paths_add(struct corpus *c, const char *paths)
{
    char *copy;
    WEIR_TRY(weir_strdup(&copy, paths));
    enum weir_status status = WEIR_OK;
    char *rest = copy, *path;
    while (status == WEIR_OK && (path = strsep(&rest, ",")) != NULL)
        if (*path)
            status = path_add(c, path, 0);
    weir_free(copy);
    return status;
}

static uint32_t token_at(const struct corpus_file *file, const unsigned char *bytes, uint64_t i)
{
    uint16_t narrow;
    uint32_t wide;
    if (file->token_bytes == 1)
        return bytes[i];
    if (file->token_bytes == 2) {
        memcpy(&narrow, bytes + 2 * i, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, bytes + 4 * i, sizeof wide);
    return wide;
}

/* The file may have changed since it was checked, and an embedding trusts its tokens. */
static enum weir_status token_check(const struct corpus *c, size_t index, uint64_t at,
                                    int32_t token)
{
    if ((uint32_t)token < c->vocab)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_CORRUPT,
                     "data \"%s\": token %llu is %u, the vocabulary has %u; tokenize it with the "
                     "model's tokenizer",
                     c->files[index].path, (unsigned long long)at, (uint32_t)token, c->vocab);
}

/* Tokens [first, first + count) of one file; what lies behind its own is the 0 byte after a text.
 */
static enum weir_status file_tokens(struct corpus *c, size_t index, uint64_t first, uint64_t count,
                                    int32_t *out)
{
    unsigned char bytes[16384];
    const struct corpus_file *file = &c->files[index];
    while (count > 0) {
        uint64_t n = sizeof bytes / file->token_bytes;
        n = n < count ? n : count;
        uint64_t left = first < file->count ? file->count - first : 0, here = left < n ? left : n;
        if (here > 0)
            WEIR_TRY(bytes_read(c, index, file->header_bytes + first * file->token_bytes, bytes,
                                here * file->token_bytes));
        for (uint64_t i = 0; i < n; i++) {
            out[i] = i < here ? (int32_t)token_at(file, bytes, i) : 0;
            WEIR_TRY(token_check(c, index, first + i, out[i]));
        }
        out += n;
        first += n;
        count -= n;
    }
    return WEIR_OK;
}

static enum weir_status tokens_check(struct corpus *c, size_t index)
{
    int32_t tokens[4096];
    const struct corpus_file *file = &c->files[index];
    int32_t any[2] = {0}; /* bits of tokens at even and at odd places */
    for (uint64_t at = 0; at < file->count; at += 4096) {
        uint64_t n = file->count - at < 4096 ? file->count - at : 4096;
        WEIR_TRY(file_tokens(c, index, at, n, tokens));
        for (uint64_t i = 0; i < n; i++)
            any[i % 2] |= tokens[i];
    }
    if (file->header_bytes == 0 && file->token_bytes == 2 && file->count >= 16 &&
        file->count % 2 == 0 && any[0] && !any[1])
        return weir_fail(WEIR_ERR_CORRUPT,
                         "data \"%s\": every second uint16 is 0, so it holds uint32; a vocabulary "
                         "of %u is read as uint16: write it anew with weir-tokenize "
                         "(examples/train/tokenize.py in the source)",
                         file->path, c->vocab);
    return WEIR_OK;
}

static enum weir_status file_hash(struct corpus *c, size_t index, uint64_t *hash)
{
    unsigned char bytes[PIECE_BYTES];
    const struct corpus_file *file = &c->files[index];
    uint64_t all = file->count * file->token_bytes;
    uint64_t count = (all + PIECE_BYTES - 1) / PIECE_BYTES;
    bool whole = count <= PIECES;
    count = whole ? count : PIECES;
    uint64_t form[2] = {all, file->token_bytes};
    *hash = XXH3_64bits_withSeed(form, sizeof form, *hash);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = whole ? i * PIECE_BYTES : (all - PIECE_BYTES) * i / (PIECES - 1);
        uint64_t n = all - at < PIECE_BYTES ? all - at : PIECE_BYTES;
        WEIR_TRY(bytes_read(c, index, file->header_bytes + at, bytes, n));
        *hash = XXH3_64bits_withSeed(bytes, n, *hash);
    }
    return WEIR_OK;
}

static enum weir_status identity_find(struct corpus *c)
{
    for (size_t i = 0; i < c->file_count; i++)
        WEIR_TRY(file_hash(c, i, &c->identity));
    return WEIR_OK;
}

static enum weir_status corpus_fill(struct corpus *c, const char *paths, const char *text_refused)
{
    WEIR_TRY(paths_add(c, paths));
    if (c->file_count == 0 && c->link_count > 0)
        return weir_fail(WEIR_ERR_ARG,
                         "data \"%s\": no file in it; %llu symbolic links there are passed over: "
                         "name what they lead to",
                         paths, (unsigned long long)c->link_count);
    if (c->file_count == 0)
        return weir_fail(WEIR_ERR_ARG, "data \"%s\": no file in it", paths);
    if (c->text && text_refused)
        return weir_fail(WEIR_ERR_ARG, "data \"%s\": text is read as bytes, but %s", paths,
                         text_refused);
    if (c->text && c->vocab < 256)
        return weir_fail(WEIR_ERR_ARG,
                         "data \"%s\": text is read as bytes and needs a vocabulary "
                         "of 256, the model has %u",
                         paths, c->vocab);
    for (size_t i = 0; !c->text && i < c->file_count; i++)
        WEIR_TRY(tokens_check(c, i));
    c->sequence_count = c->token_count > 0 ? (c->token_count - 1) / c->length : 0;
    if (c->sequence_count == 0)
        return weir_fail(WEIR_ERR_ARG,
                         "data \"%s\": %llu tokens are less than one sequence of %u "
                         "and its last target; lower --seq-len or give more data",
                         paths, (unsigned long long)c->token_count, c->length);
    return identity_find(c);
}

enum weir_status corpus_open(struct corpus *corpus, const char *paths, uint32_t length,
                             uint32_t vocab, const char *text_refused)
{
    *corpus = (struct corpus){.length = length, .vocab = vocab, .fd = -1};
    enum weir_status status = corpus_fill(corpus, paths, text_refused);
    if (status != WEIR_OK)
        corpus_close(corpus);
    return status;
}

void corpus_close(struct corpus *corpus)
{
    for (size_t i = 0; i < corpus->file_count; i++)
        weir_free(corpus->files[i].path);
    weir_free(corpus->files);
    if (corpus->fd >= 0)
        close(corpus->fd);
    *corpus = (struct corpus){.fd = -1};
}

/* The file that holds a token. */
static size_t file_find(const struct corpus *c, uint64_t token)
{
    size_t low = 0, high = c->file_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (c->files[middle].first <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static enum weir_status tokens_read(struct corpus *c, uint64_t first, uint64_t count, int32_t *out)
{
    for (size_t i = file_find(c, first); count > 0; i++) {
        uint64_t end = i + 1 < c->file_count ? c->files[i + 1].first : c->token_count;
        uint64_t in_file = first - c->files[i].first, left = end - first;
        uint64_t n = left < count ? left : count;
        WEIR_TRY(file_tokens(c, i, in_file, n, out));
        out += n;
        first += n;
        count -= n;
    }
    return WEIR_OK;
}

enum weir_status corpus_read(struct corpus *c, uint64_t sequence, int32_t *inputs, int32_t *targets)
{
    uint64_t first = sequence * c->length;
    WEIR_TRY(tokens_read(c, first, c->length, inputs));
    memcpy(targets, inputs + 1, (c->length - 1) * sizeof *targets);
    return tokens_read(c, first + c->length, 1, targets + c->length - 1);
}

uint64_t corpus_order(uint64_t seed, uint64_t count, uint64_t position)
{
    uint64_t epoch = position / count, x = position % count;
    int half = 1;
    while (half < 32 && 1ull << (2 * half) < count)
        half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t key[4] = {seed, epoch, round, right};
            uint64_t next = left ^ (XXH3_64bits(key, sizeof key) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= count);
    return x;
}
