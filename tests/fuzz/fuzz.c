#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char made[256];

static void directory_remove(void)
{
    test_directory_remove(made);
}

void fuzz_directory(char path[static 256])
{
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    test_directory_make_in_memory(made);
    atexit(directory_remove);
    memcpy(path, made, sizeof made);
}

void fuzz_file(const char *directory, const char *name, const void *bytes, size_t byte_count,
               char path[static 300])
{
    snprintf(path, 300, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(byte_count, write(fd, bytes, byte_count));
    close(fd);
}

void fuzz_named(enum weir_status status, const char *name)
{
    const struct weir_error *error = weir_last_error();
    if (status == WEIR_OK)
        return;
    if (error->status != status || strchr(error->text, '\n') || !test_contains(error->text, name))
        fail_msg("%s: \"%s\" is not one line that names %s", weir_status_name(status), error->text,
                 name);
}

struct input {
    const uint8_t *at, *end;
};

static size_t take(struct input *input, int byte_count)
{
    size_t value = 0;
    for (int i = 0; i < byte_count && input->at < input->end; i++)
        value = value << 8 | *input->at++;
    return value;
}

struct text {
    char *bytes;
    size_t count;
};

/* Bytes [at, at + old_count) become `bytes`. */
static void replace(struct text *text, size_t at, size_t old_count, const void *bytes, size_t count)
{
    if (old_count > text->count - at)
        old_count = text->count - at;
    char *fresh = malloc(text->count - old_count + count + 1);
    assert_non_null(fresh);
    memcpy(fresh, text->bytes, at);
    memcpy(fresh + at, bytes, count);
    memcpy(fresh + at + count, text->bytes + at + old_count, text->count - at - old_count);
    text->count += count - old_count;
    fresh[text->count] = '\0';
    free(text->bytes);
    text->bytes = fresh;
}

static void number_find(const struct text *text, size_t *at, size_t *count)
{
    static const char digits[] = "0123456789";
    *at += strcspn(text->bytes + *at, digits);
    *count = strspn(text->bytes + *at, digits);
}

static void number_copy(struct text *text, size_t to, size_t from)
{
    char number[32];
    size_t to_count, from_count;
    number_find(text, &to, &to_count);
    number_find(text, &from, &from_count);
    if (from_count > sizeof number)
        from_count = sizeof number;
    memcpy(number, text->bytes + from, from_count);
    replace(text, to, to_count, number, from_count);
}

static void edit(struct text *text, struct input *input)
{
    size_t kind = take(input, 1) % 5, at = take(input, 2) % (text->count + 1);
    if (kind == 3) {
        replace(text, at, text->count, "", 0);
        return;
    }
    if (kind == 4) {
        number_copy(text, at, take(input, 2) % (text->count + 1));
        return;
    }
    size_t n = take(input, 1), given = (size_t)(input->end - input->at);
    size_t count = kind == 2 ? 0 : n < given ? n : given;
    replace(text, at, kind == 1 ? 0 : kind == 2 ? n : count, input->at, count);
    input->at += count;
}

char *fuzz_edit(const char *bytes, size_t byte_count, const uint8_t *data, size_t size,
                size_t *edited_count)
{
    struct input input = {data, data + size};
    struct text text = {calloc(1, 1), 0};
    assert_non_null(text.bytes);
    replace(&text, 0, 0, bytes, byte_count);
    while (input.at < input.end)
        edit(&text, &input);
    *edited_count = text.count;
    return text.bytes;
}
