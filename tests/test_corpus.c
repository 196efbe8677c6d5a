/* Token files and text as one run of tokens, and the order in which sequences are taken. */
#include "core/memory.h"
#include "examples/train/corpus.h"
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct folder {
    char path[256];
};

static int folder_open(void **state)
{
    struct folder *folder = calloc(1, sizeof *folder);
    assert_non_null(folder);
    test_directory_make(folder->path);
    *state = folder;
    return 0;
}

static int folder_close(void **state)
{
    struct folder *folder = *state;
    test_directory_remove(folder->path);
    free(folder);
    return 0;
}

static const char *path_of(const struct folder *folder, const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder->path, name);
    return path;
}

static void file_write(const struct folder *folder, const char *name, const void *bytes,
                       size_t count)
{
    FILE *file = fopen(path_of(folder, name), "w");
    assert_non_null(file);
    assert_int_equal(count, fwrite(bytes, 1, count, file));
    assert_int_equal(0, fclose(file));
}

static void text_write(const struct folder *folder, const char *name, const char *text)
{
    file_write(folder, name, text, strlen(text));
}

/* Every token of the corpus that a sequence uses, read sequence by sequence, is `expected`. */
static void holds(struct corpus *c, const int32_t *expected, uint64_t count)
{
    int32_t inputs[64], targets[64];
    assert_true(c->length <= 64);
    assert_int_equal((count - 1) / c->length, c->sequence_count);
    for (uint64_t i = c->sequence_count; i-- > 0;) { /* backwards: nothing depends on the order */
        assert_ok(corpus_read(c, i, inputs, targets));
        assert_memory_equal(inputs, expected + i * c->length, c->length * sizeof *inputs);
        assert_memory_equal(targets, expected + i * c->length + 1, c->length * sizeof *targets);
    }
}

/* Files of a folder follow in bytewise order of their names, folders below in their place, with a 0
 * byte between two; links and empty files are passed over. */
static void text_folder_is_joined_in_order_of_names(void **state)
{
    struct folder *folder = *state;
    assert_int_equal(0, mkdir(path_of(folder, "t"), 0700));
    assert_int_equal(0, mkdir(path_of(folder, "t/b"), 0700));
    text_write(folder, "t/c", "\xff.");
    text_write(folder, "t/b/z", "zz");
    text_write(folder, "t/b/A", "A");
    text_write(folder, "t/a", "one");
    text_write(folder, "t/B", "two");
    text_write(folder, "t/empty", "");
    assert_int_equal(0, symlink("..", path_of(folder, "t/b/loop")));
    assert_int_equal(0, symlink("a", path_of(folder, "t/link")));
    const char expected[] = "two\0one\0A\0zz\0\xff.";
    const size_t count = sizeof expected - 1;
    int32_t tokens[sizeof expected];
    for (size_t i = 0; i < count; i++)
        tokens[i] = (unsigned char)expected[i];
    for (uint32_t length = 1; length < count; length++) {
        struct corpus c;
        assert_ok(corpus_open(&c, path_of(folder, "t"), length, 256, NULL));
        assert_int_equal(count, c.token_count);
        holds(&c, tokens, count);
        corpus_close(&c);
    }
}

/* Files given by path follow in the order given; a link given by path is its target. */
static void paths_keep_their_order(void **state)
{
    struct folder *folder = *state;
    text_write(folder, "x", "xx");
    text_write(folder, "a", "aa");
    assert_int_equal(0, symlink("a", path_of(folder, "l")));
    char paths[2048];
    snprintf(paths, sizeof paths, "%s,%s,%s", path_of(folder, "x"), path_of(folder, "a"),
             path_of(folder, "l"));
    struct corpus c;
    assert_ok(corpus_open(&c, paths, 2, 256, NULL));
    const int32_t tokens[] = {'x', 'x', 0, 'a', 'a', 0, 'a', 'a'};
    assert_int_equal(8, c.token_count);
    holds(&c, tokens, 8);
    corpus_close(&c);
}

/* A file as llm.c writes it: a header of 256 int32, then the tokens. */
static void headed_write(const struct folder *folder, const char *name, int32_t magic,
                         int32_t version, int32_t said, const void *tokens, size_t byte_count)
{
    static int32_t whole[256 + 64];
    assert_true(byte_count <= 64 * sizeof(int32_t));
    memset(whole, 0, sizeof whole);
    whole[0] = magic;
    whole[1] = version;
    whole[2] = said;
    memcpy(whole + 256, tokens, byte_count);
    file_write(folder, name, whole, 256 * sizeof(int32_t) + byte_count);
}

/* llm.c's two headers say how wide tokens are, whatever the vocabulary; headed and raw files mix.
 */
static void llm_c_headers_are_read(void **state)
{
    struct folder *folder = *state;
    const uint16_t narrow[] = {1, 2, 65535, 4};
    const uint32_t wide[] = {5, 70000, 7};
    headed_write(folder, "a.bin", 20240520, 1, 4, narrow, sizeof narrow);
    headed_write(folder, "b.bin", 20240801, 7, 3, wide, sizeof wide);
    file_write(folder, "c.bin", wide, sizeof wide);
    const int32_t tokens[] = {1, 2, 65535, 4, 5, 70000, 7, 5, 70000, 7};
    for (uint32_t length = 1; length < 10; length++) {
        struct corpus c;
        assert_ok(corpus_open(&c, folder->path, length, 70001, NULL));
        assert_int_equal(10, c.token_count);
        holds(&c, tokens, 10);
        corpus_close(&c);
    }
    struct corpus c;
    const int32_t small[] = {5, 6, 7};
    headed_write(folder, "b.bin", 20240801, 7, 3, small, sizeof small);
    assert_ok(corpus_open(&c, path_of(folder, "b.bin"), 2, 8, NULL));
    holds(&c, small, 3);
    corpus_close(&c);
}

/* A header at odds with its file, or of a version nobody knows, is an error with both numbers. */
static void llm_c_headers_are_checked(void **state)
{
    struct folder *folder = *state;
    struct corpus c;
    const uint16_t tokens[] = {1, 2, 3, 9};
    headed_write(folder, "more.bin", 20240520, 1, 5, tokens, sizeof tokens);
    headed_write(folder, "less.bin", 20240520, 1, 3, tokens, sizeof tokens);
    headed_write(folder, "minus.bin", 20240520, 1, -4, tokens, sizeof tokens);
    headed_write(folder, "width.bin", 20240801, 7, 4, tokens, sizeof tokens);
    headed_write(folder, "next.bin", 20240801, 1, 4, tokens, sizeof tokens);
    headed_write(folder, "large.bin", 20240520, 1, 4, tokens, sizeof tokens);
    assert_fails(corpus_open(&c, path_of(folder, "more.bin"), 1, 10, NULL), WEIR_ERR_CORRUPT,
                 "says 5 tokens of 2 bytes, 8 bytes follow");
    assert_fails(corpus_open(&c, path_of(folder, "less.bin"), 1, 10, NULL), WEIR_ERR_CORRUPT,
                 "says 3 tokens of 2 bytes, 8 bytes follow");
    assert_fails(corpus_open(&c, path_of(folder, "minus.bin"), 1, 10, NULL), WEIR_ERR_CORRUPT,
                 "says -4 tokens");
    assert_fails(corpus_open(&c, path_of(folder, "width.bin"), 1, 10, NULL), WEIR_ERR_CORRUPT,
                 "says 4 tokens of 4 bytes, 8 bytes follow");
    assert_fails(corpus_open(&c, path_of(folder, "next.bin"), 1, 10, NULL), WEIR_ERR_UNSUPPORTED,
                 "header 20240801 of version 1, version 7 is read");
    assert_fails(corpus_open(&c, path_of(folder, "large.bin"), 1, 9, NULL), WEIR_ERR_CORRUPT,
                 "token 3 is 9, the vocabulary has 9");
}

/* Token files of both widths give back the tokens written, across files, whatever the sizes. */
static void token_files_give_back_what_was_written(void **state)
{
    struct folder *folder = *state;
    struct test_random random = test_random_open(11);
    uint32_t draws = test_draws(60);
    for (uint32_t draw = 0; draw < draws; draw++) {
        bool wide = draw % 2;
        uint32_t vocab = wide ? 65537 + (uint32_t)test_random_below(&random, 100000)
                              : 1 + (uint32_t)test_random_below(&random, 65536);
        static int32_t tokens[30000];
        uint64_t count = 0, files = 1 + test_random_below(&random, 4);
        char paths[2048] = "";
        for (uint64_t f = 0; f < files; f++) {
            unsigned char bytes[4 * 7000];
            uint64_t n = 1 + test_random_below(&random, draw % 3 ? 40 : 7000);
            for (uint64_t i = 0; i < n; i++) {
                uint32_t token = (uint32_t)test_random_below(&random, vocab);
                tokens[count++] = (int32_t)token;
                for (uint32_t b = 0; b < (wide ? 4u : 2u); b++)
                    bytes[i * (wide ? 4 : 2) + b] = (unsigned char)(token >> (8 * b));
            }
            char name[16];
            snprintf(name, sizeof name, "%c.bin", 'a' + (int)f);
            file_write(folder, name, bytes, n * (wide ? 4 : 2));
            snprintf(paths + strlen(paths), sizeof paths - strlen(paths), "%s%s", f ? "," : "",
                     path_of(folder, name));
        }
        uint32_t length = 1 + (uint32_t)test_random_below(&random, count < 64 ? count : 64);
        length = length < count ? length : 1;
        struct corpus c;
        if (count < 2)
            continue;
        assert_ok(corpus_open(&c, paths, length, vocab, NULL));
        assert_int_equal(count, c.token_count);
        holds(&c, tokens, count);
        corpus_close(&c);
    }
}

/* Data that cannot be what the model needs are one error that names file, place and figures. */
static void bad_data_is_refused_with_figures(void **state)
{
    struct folder *folder = *state;
    struct corpus c;
    uint64_t held = weir_alloc_bytes();
    text_write(folder, "text", "hello");
    file_write(folder, "odd.bin", "abc", 3);
    file_write(folder, "tokens.bin", "\1\0\2\0\7\0\3\0", 8);
    assert_int_equal(0, mkdir(path_of(folder, "nothing"), 0700));
    assert_fails(corpus_open(&c, path_of(folder, "absent"), 2, 256, NULL), WEIR_ERR_IO, "absent");
    assert_fails(corpus_open(&c, path_of(folder, "nothing"), 2, 256, NULL), WEIR_ERR_ARG,
                 "no file in it");
    assert_int_equal(0, symlink("../text", path_of(folder, "nothing/one")));
    assert_int_equal(0, symlink("..", path_of(folder, "nothing/two")));
    assert_fails(corpus_open(&c, path_of(folder, "nothing"), 2, 256, NULL), WEIR_ERR_ARG,
                 "no file in it; 2 symbolic links there are passed over");
    assert_fails(corpus_open(&c, "", 2, 256, NULL), WEIR_ERR_ARG, "no file in it");
    assert_fails(corpus_open(&c, path_of(folder, "odd.bin"), 1, 256, NULL), WEIR_ERR_CORRUPT,
                 "3 bytes are no whole number of 2-byte tokens");
    assert_fails(corpus_open(&c, path_of(folder, "tokens.bin"), 1, 7, NULL), WEIR_ERR_CORRUPT,
                 "token 2 is 7, the vocabulary has 7");
    assert_fails(corpus_open(&c, path_of(folder, "tokens.bin"), 4, 8, NULL), WEIR_ERR_ARG,
                 "4 tokens are less than one sequence of 4");
    assert_fails(corpus_open(&c, path_of(folder, "text"), 2, 255, NULL), WEIR_ERR_ARG,
                 "needs a vocabulary of 256, the model has 255");
    assert_fails(corpus_open(&c, path_of(folder, "text"), 2, 256, "see examples/train/tokenize.py"),
                 WEIR_ERR_ARG, "examples/train/tokenize.py");
    char paths[1100];
    snprintf(paths, sizeof paths, "%s,%s", path_of(folder, "text"), path_of(folder, "tokens.bin"));
    assert_fails(corpus_open(&c, paths, 1, 256, NULL), WEIR_ERR_ARG, "do not mix");
    assert_int_equal(held, weir_alloc_bytes());
}

/* What would be left out or read as something else is an error. */
static void nothing_is_passed_over_in_silence(void **state)
{
    struct folder *folder = *state;
    struct corpus c;
    uint32_t wide[40];
    for (uint32_t i = 0; i < 40; i++)
        wide[i] = i;
    file_write(folder, "empty.bin", "", 0);
    file_write(folder, "wide.bin", wide, sizeof wide);
    assert_int_equal(0, mkfifo(path_of(folder, "pipe"), 0600));
    assert_fails(corpus_open(&c, path_of(folder, "empty.bin"), 4, 256, NULL), WEIR_ERR_ARG,
                 "0 tokens are less than one sequence of 4");
    assert_fails(corpus_open(&c, path_of(folder, "wide.bin"), 4, 256, NULL), WEIR_ERR_CORRUPT,
                 "every second uint16 is 0");
    assert_fails(corpus_open(&c, path_of(folder, "pipe"), 4, 256, NULL), WEIR_ERR_ARG,
                 "neither a file nor a folder");
}

/* A file that changes while it is trained on never hands out a token beyond the vocabulary. */
static void a_token_written_later_is_checked_too(void **state)
{
    struct folder *folder = *state;
    struct corpus c;
    int32_t inputs[2], targets[2];
    file_write(folder, "t.bin", "\1\0\2\0\3\0", 6);
    assert_ok(corpus_open(&c, path_of(folder, "t.bin"), 2, 9, NULL));
    file_write(folder, "t.bin", "\1\0\2\0\11\0", 6);
    assert_fails(corpus_read(&c, 0, inputs, targets), WEIR_ERR_CORRUPT, "token 2 is 9");
    corpus_close(&c);
}

/* A file that shrinks while it is trained on is an error, never old or made-up tokens. */
static void a_file_that_shrinks_is_an_error(void **state)
{
    struct folder *folder = *state;
    struct corpus c;
    int32_t inputs[4], targets[4];
    text_write(folder, "text", "0123456789abcdef");
    assert_ok(corpus_open(&c, path_of(folder, "text"), 4, 256, NULL));
    assert_int_equal(0, truncate(path_of(folder, "text"), 6));
    assert_ok(corpus_read(&c, 0, inputs, targets));
    assert_fails(corpus_read(&c, 1, inputs, targets), WEIR_ERR_IO, "the file shrank");
    corpus_close(&c);
}

/* The identity that a resume compares follows contents and sizes, not where the files lie. */
static void identity_follows_the_contents(void **state)
{
    struct folder *folder = *state;
    static const char *const texts[] = {"some text", "some text", "some text.", "Some text"};
    uint64_t identities[4];
    for (int i = 0; i < 4; i++) {
        char name[8] = {(char)('a' + i), 0};
        struct corpus c;
        text_write(folder, name, texts[i]);
        assert_ok(corpus_open(&c, path_of(folder, name), 2, 256, NULL));
        identities[i] = c.identity;
        corpus_close(&c);
    }
    assert_true(identities[0] == identities[1]);
    assert_true(identities[0] != identities[2] && identities[0] != identities[3]);
}

static uint64_t identity_of(const struct folder *folder, const char *name)
{
    struct corpus c;
    assert_ok(corpus_open(&c, path_of(folder, name), 2, 256, NULL));
    uint64_t identity = c.identity;
    corpus_close(&c);
    return identity;
}

/* Any byte of a file counts, and where one file ends and the next begins. */
static void identity_covers_every_byte(void **state)
{
    struct folder *folder = *state;
    static char text[150000];
    static uint64_t identities[40];
    struct test_random random = test_random_open(17);
    memset(text, 'x', sizeof text);
    for (int i = 0; i < 38; i++) {
        size_t at = i == 0 ? 0 : i == 1 ? sizeof text - 1 : test_random_below(&random, sizeof text);
        text[at]++;
        file_write(folder, "t", text, sizeof text);
        identities[i] = identity_of(folder, "t");
    }
    file_write(folder, "t", text, sizeof text - 1);
    identities[38] = identity_of(folder, "t");
    assert_int_equal(0, mkdir(path_of(folder, "d"), 0700));
    file_write(folder, "d/a", text, 10);
    file_write(folder, "d/b", text + 11, sizeof text - 11); /* and the 0 byte between: as many */
    identities[39] = identity_of(folder, "d");
    assert_int_equal(40, test_distinct(identities, 40));
}

/* Of a file of 1 GiB the first byte, the last and its size count. */
static void identity_of_a_large_file_is_a_sample(void **state)
{
    struct folder *folder = *state;
    static const off_t size = 1 << 30;
    uint64_t identities[4];
    for (int i = 0; i < 4; i++) {
        text_write(folder, "t", i == 1 ? "y" : "x");
        assert_int_equal(0, truncate(path_of(folder, "t"), i == 3 ? size + 1 : size));
        if (i == 2) {
            FILE *file = fopen(path_of(folder, "t"), "r+");
            assert_non_null(file);
            assert_int_equal(0, fseeko(file, size - 1, SEEK_SET));
            assert_int_equal('z', fputc('z', file));
            assert_int_equal(0, fclose(file));
        }
        identities[i] = identity_of(folder, "t");
    }
    assert_int_equal(4, test_distinct(identities, 4));
}

/* Each epoch visits each of [0, count) once, whatever the count. */
static void order_is_a_permutation_of_any_size(void **state)
{
    (void)state;
    struct test_random random = test_random_open(13);
    for (uint32_t i = 0; i < 150 + test_draws(50); i++) {
        uint64_t count = i < 150 ? i + 1 : 1 + test_random_below(&random, 5000);
        uint64_t seed = test_random_next(&random), epoch = test_random_below(&random, 1000);
        unsigned char *seen = calloc(count, 1);
        assert_non_null(seen);
        for (uint64_t p = 0; p < count; p++) {
            uint64_t at = corpus_order(seed, count, epoch * count + p);
            assert_true(at < count);
            assert_int_equal(0, seen[at]++);
        }
        free(seen);
    }
}

/* Orders of two epochs and of two seeds agree in about as many places as chance lets them (one). */
static void order_differs_by_epoch_and_seed(void **state)
{
    (void)state;
    uint64_t count = 1000, by_epoch = 0, by_seed = 0, unmoved = 0;
    for (uint64_t p = 0; p < count; p++) {
        by_epoch += corpus_order(1, count, p) == corpus_order(1, count, count + p);
        by_seed += corpus_order(1, count, p) == corpus_order(2, count, p);
        unmoved += corpus_order(1, count, p) == p;
    }
    assert_true(by_epoch < 10 && by_seed < 10 && unmoved < 10);
    assert_true(corpus_order(1, 1ull << 62, 12345) < 1ull << 62);
}

/* A failed allocation while opening is NOMEM and leaves nothing held. */
static void failed_allocations_leave_nothing(void **state)
{
    struct folder *folder = *state;
    text_write(folder, "a", "aaaa");
    text_write(folder, "b", "bbbb");
    uint64_t before = weir_alloc_bytes();
    struct corpus c;
    weir_alloc_fail_at(0);
    assert_ok(corpus_open(&c, folder->path, 2, 256, NULL));
    corpus_close(&c);
    uint64_t made = weir_alloc_fail_at(0);
    assert_true(made > 2);
    for (uint64_t nth = 1; nth <= made; nth++) {
        weir_alloc_fail_at(nth);
        assert_int_equal(WEIR_ERR_NOMEM, corpus_open(&c, folder->path, 2, 256, NULL));
        assert_int_equal(before, weir_alloc_bytes());
    }
    weir_alloc_fail_at(0);
}

#define FOLDER_TEST(name) cmocka_unit_test_setup_teardown(name, folder_open, folder_close)
int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(text_folder_is_joined_in_order_of_names),
        FOLDER_TEST(paths_keep_their_order),
        FOLDER_TEST(token_files_give_back_what_was_written),
        FOLDER_TEST(llm_c_headers_are_read),
        FOLDER_TEST(llm_c_headers_are_checked),
        FOLDER_TEST(bad_data_is_refused_with_figures),
        FOLDER_TEST(nothing_is_passed_over_in_silence),
        FOLDER_TEST(a_token_written_later_is_checked_too),
        FOLDER_TEST(a_file_that_shrinks_is_an_error),
        FOLDER_TEST(identity_follows_the_contents),
        FOLDER_TEST(identity_covers_every_byte),
        FOLDER_TEST(identity_of_a_large_file_is_a_sample),
        cmocka_unit_test(order_is_a_permutation_of_any_size),
        cmocka_unit_test(order_differs_by_epoch_and_seed),
        FOLDER_TEST(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
