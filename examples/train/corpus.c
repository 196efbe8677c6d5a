#include "examples/train/corpus.h"
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

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static enum weir_status file_add(struct corpus *c, const char *path, uint64_t bytes)
{
    bool text = !ends_with(path, ".bin");
    if (c->file_count > 0 && text != c->text)
        return weir_fail(WEIR_ERR_ARG, "data \"%s\": text and .bin files do not mix; give one kind",
                         path);
    c->text = text;
    c->token_bytes = text ? 1 : c->vocab > 65536 ? 4 : 2;
    if (bytes % c->token_bytes != 0)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "data \"%s\": %llu bytes are no whole number of %u-byte "
                         "tokens (vocabulary %u)",
                         path, (unsigned long long)bytes, c->token_bytes, c->vocab);
    WEIR_TRY(
        weir_grow(&c->files, &c->file_capacity, c->file_count + 1, sizeof *c->files, "data files"));
    struct corpus_file *file = &c->files[c->file_count];
    *file = (struct corpus_file){.first = c->token_count,
                                 .count = bytes / c->token_bytes + (text ? 1 : 0)};
    WEIR_TRY(weir_strdup(&file->path, path));
    c->file_count++;
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

static enum weir_status file_open(struct corpus *c, size_t index)
{
    if (c->fd >= 0 && c->open_file == index)
        return WEIR_OK;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = open(c->files[index].path, O_RDONLY | O_CLOEXEC);
    c->open_file = index;
    if (c->fd < 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "data \"%s\": cannot be opened",
                               c->files[index].path);
    return WEIR_OK;
}

static enum weir_status bytes_read(struct corpus *c, size_t index, uint64_t offset, void *out,
                                   uint64_t count)
{
    WEIR_TRY(file_open(c, index));
    while (count > 0) {
        ssize_t n = pread(c->fd, out, count, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return weir_fail(WEIR_ERR_IO, "data \"%s\": %llu bytes at %llu cannot be read (%s)",
                             c->files[index].path, (unsigned long long)count,
                             (unsigned long long)offset,
                             n < 0 ? strerror(errno) : "the file shrank");
        out = (char *)out + n;
        offset += (uint64_t)n;
        count -= (uint64_t)n;
    }
    return WEIR_OK;
}

static uint32_t token_at(const struct corpus *c, const unsigned char *bytes, uint64_t i)
{
    uint16_t narrow;
    uint32_t wide;
    if (c->text)
        return bytes[i];
    if (c->token_bytes == 2) {
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

/* Tokens [first, first + count) of one file. */
static enum weir_status file_tokens(struct corpus *c, size_t index, uint64_t first, uint64_t count,
                                    int32_t *out)
{
    unsigned char bytes[16384];
    const struct corpus_file *file = &c->files[index];
    uint64_t stored = file->count - (c->text ? 1 : 0);
    while (count > 0) {
        uint64_t n = sizeof bytes / c->token_bytes;
        n = n < count ? n : count;
        uint64_t here = first >= stored ? 0 : stored - first < n ? stored - first : n;
        if (here > 0)
            WEIR_TRY(bytes_read(c, index, first * c->token_bytes, bytes, here * c->token_bytes));
        for (uint64_t i = 0; i < n; i++) {
            out[i] = i < here ? (int32_t)token_at(c, bytes, i) : 0;
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
    if (c->token_bytes == 2 && file->count >= 16 && file->count % 2 == 0 && any[0] && !any[1])
        return weir_fail(WEIR_ERR_CORRUPT,
                         "data \"%s\": every second uint16 is 0, so it holds uint32; a vocabulary "
                         "of %u is read as uint16: write it anew with examples/train/tokenize.py",
                         file->path, c->vocab);
    return WEIR_OK;
}

static enum weir_status identity_find(struct corpus *c)
{
    uint64_t form[2] = {c->token_count, c->token_bytes};
    uint64_t hash = XXH3_64bits(form, sizeof form);
    for (size_t i = 0; i < c->file_count; i++) {
        int32_t sample[64] = {0};
        uint64_t n = c->files[i].count < 64 ? c->files[i].count : 64;
        WEIR_TRY(file_tokens(c, i, 0, n, sample));
        hash = XXH3_64bits_withSeed(sample, sizeof sample, hash ^ c->files[i].count);
    }
    c->identity = hash;
    return WEIR_OK;
}

static enum weir_status corpus_fill(struct corpus *c, const char *paths, const char *text_refused)
{
    WEIR_TRY(paths_add(c, paths));
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
        uint64_t in_file = first - c->files[i].first, left = c->files[i].count - in_file;
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
