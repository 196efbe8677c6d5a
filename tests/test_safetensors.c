/* Safetensors: what is written is read back, and hostile files get one clear error. */
#include "tests/support.h"

#include "core/memory.h"
#include "io/safetensors.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[256];
static char path[512];

static int setup(void **state)
{
    (void)state;
    test_directory_make(directory);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    test_directory_remove(directory);
    return 0;
}

static void file_put(const char *name, const void *bytes, size_t count)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", directory, name);
    FILE *file = fopen(full, "wb");
    assert_non_null(file);
    assert_int_equal(count, fwrite(bytes, 1, count, file));
    assert_int_equal(0, fclose(file));
}

/* A file of that header and data_bytes bytes 0, 1, 2 ... */
static void model_put(const char *name, const char *header, size_t data_bytes)
{
    unsigned char bytes[8192] = {0};
    size_t length = strlen(header);
    assert_true(8 + length + data_bytes <= sizeof bytes);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + length + i] = (unsigned char)i;
    file_put(name, bytes, 8 + length + data_bytes);
}

static void what_is_written_is_read_back(void **state)
{
    /* Every dtype, a scalar, an empty tensor and metadata; ranges written out of order; the data
     * begins at a multiple of 8, tensors lie in the order given and are found by name. */
    (void)state;
    struct weir_file_tensor tensors[] = {
        {.name = "w.10", .dtype = WEIR_FILE_BF16, .dim_count = 2, .shape = {3, 5}},
        {.name = "w.9", .dtype = WEIR_FILE_F32, .dim_count = 1, .shape = {7}},
        {.name = "a", .dtype = WEIR_FILE_F64, .dim_count = 0},
        {.name = "empty", .dtype = WEIR_FILE_I64, .dim_count = 2, .shape = {0, 4}},
        {.name = "\xc3\xa9\"\\", .dtype = WEIR_FILE_U8, .dim_count = 1, .shape = {3}},
        {.name = "h", .dtype = WEIR_FILE_F16, .dim_count = 1, .shape = {2}},
        {.name = "i", .dtype = WEIR_FILE_I16, .dim_count = 1, .shape = {2}},
        {.name = "j", .dtype = WEIR_FILE_I32, .dim_count = 1, .shape = {2}},
    };
    const uint64_t expected[] = {30, 28, 8, 0, 3, 4, 4, 8};
    const size_t count = sizeof tensors / sizeof tensors[0];
    struct weir_tensors_writer *writer;
    assert_ok(weir_tensors_create(&writer, path, tensors, count, "{\"format\":\"pt\"}"));
    unsigned char bytes[64];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 37);
    uint64_t offset = tensors[0].offset_bytes;
    assert_int_equal(0, offset % 8);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(expected[i], tensors[i].byte_count);
        assert_int_equal(offset, tensors[i].offset_bytes);
        offset += tensors[i].byte_count;
        uint64_t half = tensors[i].byte_count / 2;
        assert_ok(weir_tensors_write(writer, &tensors[i], half, bytes + i + half,
                                     tensors[i].byte_count - half));
        assert_ok(weir_tensors_write(writer, &tensors[i], 0, bytes + i, half));
    }
    assert_fails(weir_tensors_write(writer, &tensors[0], 29, bytes, 2), WEIR_ERR_ARG, "\"w.10\"");
    assert_ok(weir_tensors_commit(writer));

    struct weir_tensors *model;
    assert_ok(weir_tensors_open(&model, path));
    assert_int_equal(count, weir_tensors_count(model));
    for (size_t i = 0; i < count; i++) {
        const struct weir_file_tensor *found = weir_tensors_find(model, tensors[i].name);
        assert_non_null(found);
        assert_int_equal(tensors[i].dtype, found->dtype);
        assert_int_equal(tensors[i].dim_count, found->dim_count);
        assert_memory_equal(tensors[i].shape, found->shape, sizeof found->shape);
        assert_int_equal(tensors[i].element_count, found->element_count);
        assert_int_equal(tensors[i].offset_bytes, found->offset_bytes);
        unsigned char back[64] = {0};
        assert_ok(weir_tensors_read(model, found, 0, back, found->byte_count));
        assert_memory_equal(bytes + i, back, found->byte_count);
        if (i > 0)
            assert_true(
                strcmp(weir_tensors_at(model, i - 1)->name, weir_tensors_at(model, i)->name) < 0);
    }
    assert_null(weir_tensors_find(model, "w"));
    unsigned char back[4];
    const struct weir_file_tensor *w9 = weir_tensors_find(model, "w.9");
    assert_ok(weir_tensors_read(model, w9, 5, back, 4));
    assert_memory_equal(bytes + 1 + 5, back, 4);
    assert_fails(weir_tensors_read(model, w9, 25, back, 4), WEIR_ERR_ARG, "it has 28");
    weir_tensors_close(model);
}

static void the_header_is_plain_json_padded_with_spaces(void **state)
{
    /* The bytes as another reader sees them. */
    (void)state;
    struct weir_file_tensor tensor = {
        .name = "w", .dtype = WEIR_FILE_U8, .dim_count = 1, .shape = {2}};
    struct weir_tensors_writer *writer;
    assert_ok(weir_tensors_create(&writer, path, &tensor, 1, "{\"format\": \"pt\"}"));
    assert_ok(weir_tensors_write(writer, &tensor, 0, "ab", 2));
    assert_ok(weir_tensors_commit(writer));
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    char bytes[256];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    assert_int_equal(8 + padded + 2, count);
    assert_int_equal(padded, (unsigned char)bytes[0]);
    assert_memory_equal(header, bytes + 8, length);
    for (size_t i = length; i < padded; i++)
        assert_int_equal(' ', bytes[8 + i]);
    assert_memory_equal("ab", bytes + 8 + padded, 2);
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin        \
    "," #end "]}"

static void a_hostile_header_is_one_clear_error(void **state)
{
    /* Each lie of a header is refused with file and field, and nothing is left allocated. */
    (void)state;
    const struct {
        const char *header;
        size_t data_bytes;
        enum weir_status status;
        const char *text;
    } lies[] = {
        {"", 0, WEIR_ERR_CORRUPT, "not a JSON object"},
        {"[]", 0, WEIR_ERR_CORRUPT, "not a JSON object"},
        {" {}", 0, WEIR_ERR_CORRUPT, "not a JSON object"},
        {"{\"a\":", 0, WEIR_ERR_CORRUPT, "not a JSON object"},
        {"{}x", 0, WEIR_ERR_CORRUPT, "end of file expected"},
        {"{\"a\":1}", 0, WEIR_ERR_CORRUPT, "\"a\": not an object"},
        {"{" T("a", "U8", "2", 0, 2) "," T("a", "U8", "2", 0, 2) "}", 2, WEIR_ERR_CORRUPT,
         "duplicate"},
        {"{" T("a", "F8_E4M3", "2", 0, 2) "}", 2, WEIR_ERR_UNSUPPORTED, "dtype \"F8_E4M3\""},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, WEIR_ERR_CORRUPT,
         "\"a\": dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, WEIR_ERR_CORRUPT, "\"a\": shape"},
        {"{" T("a", "U8", "-1", 0, 1) "}", 1, WEIR_ERR_CORRUPT, "shape[0]"},
        {"{" T("a", "U8", "1.0", 0, 1) "}", 1, WEIR_ERR_CORRUPT, "shape[0]"},
        {"{" T("a", "U8", "99999999999999999999", 0, 1) "}", 1, WEIR_ERR_CORRUPT, "integer"},
        {"{" T("a", "U8", "1,1,1,1,1,1,1,1,1", 0, 1) "}", 1, WEIR_ERR_UNSUPPORTED, "9 dimensions"},
        {"{" T("a", "U8", "4294967296,4294967296", 0, 0) "}", 0, WEIR_ERR_CORRUPT, "2^63"},
        {"{" T("a", "F64", "2305843009213693952", 0, 0) "}", 0, WEIR_ERR_CORRUPT, "2^63"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, WEIR_ERR_CORRUPT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, WEIR_ERR_CORRUPT,
         "data_offsets"},
        {"{" T("a", "U8", "2", 2, 0) "}", 2, WEIR_ERR_CORRUPT, "data_offsets"},
        {"{" T("a", "U8", "2", -2, 0) "}", 2, WEIR_ERR_CORRUPT, "data_offsets"},
        {"{" T("a", "U8", "2", 0, 3) "}", 3, WEIR_ERR_CORRUPT, "need 2"},
        {"{" T("a", "U8", "2", 0, 2) "}", 1, WEIR_ERR_CORRUPT, "the file's data at 1"},
        {"{" T("a", "U8", "2", 0, 2) "}", 5, WEIR_ERR_CORRUPT, "5 bytes of data"},
        {"{" T("a", "U8", "2", 1, 3) "}", 3, WEIR_ERR_CORRUPT, "leave a hole at 0"},
        {"{" T("a", "U8", "2", 0, 2) "," T("b", "U8", "2", 3, 5) "}", 5, WEIR_ERR_CORRUPT,
         "\"b\": data_offsets begin at 3 and leave a hole at 2"},
        {"{" T("a", "U8", "3", 0, 3) "," T("b", "U8", "2", 2, 4) "}", 4, WEIR_ERR_CORRUPT,
         "leave an overlap at 3"},
        {"{\"__metadata__\":{\"a\":1}}", 0, WEIR_ERR_CORRUPT, "__metadata__"},
        {"{\"__metadata__\":[]}", 0, WEIR_ERR_CORRUPT, "__metadata__"},
        {"{\"a\\u0000b\":{}}", 0, WEIR_ERR_CORRUPT, "not a JSON object"},
        {"{\"\xff\":{}}", 0, WEIR_ERR_CORRUPT, "not a JSON object"},
    };
    uint64_t held = weir_alloc_bytes();
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        model_put("model.safetensors", lies[i].header, lies[i].data_bytes);
        struct weir_tensors *model;
        assert_fails(weir_tensors_open(&model, path), lies[i].status, lies[i].text);
        assert_true(test_contains(weir_last_error()->text, "model.safetensors"));
        assert_null(strchr(weir_last_error()->text, '\n'));
        assert_int_equal(held, weir_alloc_bytes());
    }
}

static void a_hostile_prefix_is_one_clear_error(void **state)
{
    /* Files shorter than a prefix, and header lengths past the file or past the limit. */
    (void)state;
    struct weir_tensors *model;
    file_put("model.safetensors", "", 0);
    assert_fails(weir_tensors_open(&model, path), WEIR_ERR_CORRUPT, "ends at 0");
    file_put("model.safetensors", "\2\0\0\0", 4);
    assert_fails(weir_tensors_open(&model, path), WEIR_ERR_CORRUPT, "ends at 4");
    file_put("model.safetensors", "\3\0\0\0\0\0\0\0{}", 10);
    assert_fails(weir_tensors_open(&model, path), WEIR_ERR_CORRUPT, "header of 3 bytes");
    file_put("model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    assert_fails(weir_tensors_open(&model, path), WEIR_ERR_CORRUPT,
                 "header of 18446744073709551615");
    file_put("model.safetensors", "\1\xe1\xf5\5\0\0\0\0{}", 10); /* 100,000,001 */
    assert_int_equal(0, truncate(path, 200000000));
    assert_fails(weir_tensors_open(&model, path), WEIR_ERR_CORRUPT, "at most 100000000");
    assert_int_equal(0, unlink(path));
    assert_int_equal(0, mkfifo(path, 0600));
    assert_fails(weir_tensors_open(&model, path), WEIR_ERR_ARG, "not a regular file");
    assert_int_equal(0, unlink(path));
    assert_fails(weir_tensors_open(&model, path), WEIR_ERR_IO, "cannot be opened");
    assert_fails(weir_tensors_open(&model, directory), WEIR_ERR_ARG, "holds neither");
}

static void every_truncation_of_a_model_is_refused(void **state)
{
    /* However many bytes are missing at the end, open fails; the whole file opens. */
    (void)state;
    model_put("model.safetensors",
              "{" T("a", "BF16", "2,2", 0, 8) "," T("b", "F32", "3", 8, 20) "}", 20);
    struct stat stat_;
    assert_int_equal(0, stat(path, &stat_));
    struct weir_tensors *model;
    assert_ok(weir_tensors_open(&model, path));
    weir_tensors_close(model);
    for (off_t bytes = stat_.st_size - 1; bytes >= 0; bytes--) {
        assert_int_equal(0, truncate(path, bytes));
        assert_fails(weir_tensors_open(&model, path), WEIR_ERR_CORRUPT, "model.safetensors");
    }
}

static void a_file_cut_short_after_open_fails_at_read(void **state)
{
    /* The error names file, tensor and bytes. */
    (void)state;
    model_put("model.safetensors", "{" T("late", "U8", "9", 0, 9) "}", 9);
    struct weir_tensors *model;
    assert_ok(weir_tensors_open(&model, path));
    const struct weir_file_tensor *late = weir_tensors_find(model, "late");
    assert_int_equal(0, truncate(path, (off_t)late->offset_bytes + 5));
    unsigned char bytes[9];
    assert_ok(weir_tensors_read(model, late, 0, bytes, 5));
    assert_fails(weir_tensors_read(model, late, 0, bytes, 9), WEIR_ERR_CORRUPT, "late");
    assert_true(test_contains(weir_last_error()->text, path));
    weir_tensors_close(model);
}

#define INDEX "model.safetensors.index.json"

static void index_put(const char *text)
{
    file_put(INDEX, text, strlen(text));
}

static void shards_are_one_model(void **state)
{
    /* A directory with an index opens all files it lists; tensors are found whatever their file. */
    (void)state;
    model_put("m-1.safetensors", "{" T("c", "U8", "2", 0, 2) "," T("a", "U8", "1", 2, 3) "}", 3);
    model_put("m-2.safetensors", "{" T("b", "U8", "4", 0, 4) "}", 4);
    index_put("{\"metadata\":{\"total_size\":7},\"weight_map\":{\"a\":\"m-1.safetensors\","
              "\"b\":\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}}");
    struct weir_tensors *model;
    assert_ok(weir_tensors_open(&model, directory));
    assert_int_equal(3, weir_tensors_count(model));
    assert_string_equal("a", weir_tensors_at(model, 0)->name);
    assert_string_equal("b", weir_tensors_at(model, 1)->name);
    unsigned char bytes[2];
    assert_ok(weir_tensors_read(model, weir_tensors_find(model, "a"), 0, bytes, 1));
    assert_int_equal(2, bytes[0]);
    assert_ok(weir_tensors_read(model, weir_tensors_find(model, "b"), 2, bytes, 2));
    assert_memory_equal("\2\3", bytes, 2);
    weir_tensors_close(model);
}

static void a_hostile_index_is_one_clear_error(void **state)
{
    /* Names that lead elsewhere, missing files, tensors in another file or in two. */
    (void)state;
    model_put("m-1.safetensors", "{" T("a", "U8", "1", 0, 1) "}", 1);
    model_put("m-2.safetensors", "{" T("a", "U8", "1", 0, 1) "," T("b", "U8", "1", 1, 2) "}", 2);
    model_put("m-3.safetensors", "{" T("c", "U8", "1", 0, 1) "}", 1);
    const struct {
        const char *index;
        enum weir_status status;
        const char *text;
    } lies[] = {
        {"{", WEIR_ERR_CORRUPT, "not a JSON object"},
        {"{}", WEIR_ERR_CORRUPT, "weight_map"},
        {"{\"weight_map\":[]}", WEIR_ERR_CORRUPT, "weight_map"},
        {"{\"weight_map\":{\"a\":7}}", WEIR_ERR_CORRUPT, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", WEIR_ERR_CORRUPT, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", WEIR_ERR_CORRUPT, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}", WEIR_ERR_CORRUPT,
         "\"../m-1.safetensors\" is not a plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", WEIR_ERR_CORRUPT, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"m-4.safetensors\"}}", WEIR_ERR_IO,
         "m-4.safetensors\": listed in"},
        {"{\"weight_map\":{\"z\":\"m-1.safetensors\"}}", WEIR_ERR_CORRUPT,
         "\"z\" is not in \"m-1.safetensors\""},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}", WEIR_ERR_CORRUPT,
         "\"a\": in \""},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"c\":\"m-1.safetensors\","
         "\"x\":\"m-3.safetensors\"}}",
         WEIR_ERR_CORRUPT, "\"c\" is not in \"m-1.safetensors\""},
    };
    uint64_t held = weir_alloc_bytes();
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        index_put(lies[i].index);
        struct weir_tensors *model;
        assert_fails(weir_tensors_open(&model, directory), lies[i].status, lies[i].text);
        assert_int_equal(held, weir_alloc_bytes());
    }
}

static void the_writer_refuses_what_no_reader_would_take(void **state)
{
    /* Doubled, reserved or missing names, unknown dtypes, overflow, bad metadata, an existing file,
     * too little space; nothing is left allocated. */
    (void)state;
    struct weir_tensors_writer *writer;
    struct weir_file_tensor two[2] = {
        {.name = "a", .dtype = WEIR_FILE_U8, .dim_count = 1, .shape = {1}},
        {.name = "a", .dtype = WEIR_FILE_U8, .dim_count = 1, .shape = {1}}};
    uint64_t held = weir_alloc_bytes();
    assert_fails(weir_tensors_create(&writer, path, two, 2, NULL), WEIR_ERR_ARG, "\"a\" is taken");
    two[1].name = NULL;
    assert_fails(weir_tensors_create(&writer, path, two, 2, NULL), WEIR_ERR_ARG, "missing");
    char reserved[] = "__metadata__", latin[] = "\xe9";
    two[1].name = reserved;
    assert_fails(weir_tensors_create(&writer, path, two, 2, NULL), WEIR_ERR_ARG, "__metadata__");
    two[1].name = latin;
    assert_fails(weir_tensors_create(&writer, path, two, 2, NULL), WEIR_ERR_ARG, "UTF-8");
    two[1] = (struct weir_file_tensor){.name = latin, .dtype = WEIR_FILE_DTYPE_COUNT};
    assert_fails(weir_tensors_create(&writer, path, two, 2, NULL), WEIR_ERR_ARG, "dtype 8");
    assert_fails(weir_tensors_create(&writer, path, two, 1, "{\"a\":1}"), WEIR_ERR_ARG,
                 "not an object of strings");
    assert_fails(weir_tensors_create(&writer, path, two, 1, "{"), WEIR_ERR_ARG,
                 "not an object of strings");
    two[0].shape[0] = UINT64_C(1) << 63;
    assert_fails(weir_tensors_create(&writer, path, two, 1, NULL), WEIR_ERR_ARG, "2^63");
    assert_int_equal(-1, access(path, F_OK));
    two[0].shape[0] = UINT64_C(1) << 55;
    assert_fails(weir_tensors_create(&writer, path, two, 1, NULL), WEIR_ERR_NOSPACE,
                 "need 36028797018964");
    two[0].shape[0] = 1;
    assert_fails(weir_tensors_create(&writer, path, two, 1, NULL), WEIR_ERR_IO, "File exists");
    assert_int_equal(held, weir_alloc_bytes());
    weir_tensors_abandon(NULL);
    weir_tensors_close(NULL);
}

static enum weir_status round_trip(void)
{
    struct weir_file_tensor tensor = {
        .name = "t", .dtype = WEIR_FILE_U8, .dim_count = 1, .shape = {4}};
    struct weir_tensors_writer *writer;
    unlink(path);
    WEIR_TRY(weir_tensors_create(&writer, path, &tensor, 1, "{}"));
    enum weir_status status = weir_tensors_write(writer, &tensor, 0, "abcd", 4);
    if (status != WEIR_OK) {
        weir_tensors_abandon(writer);
        return status;
    }
    WEIR_TRY(weir_tensors_commit(writer));
    struct weir_tensors *model;
    WEIR_TRY(weir_tensors_open(&model, directory));
    weir_tensors_close(model);
    return WEIR_OK;
}

static void every_allocation_may_fail(void **state)
{
    /* The Nth allocation of writing and reading fails, for every N: NOMEM, and nothing leaks. */
    (void)state;
    uint64_t held = weir_alloc_bytes();
    uint64_t nth = 1;
    for (enum weir_status status = WEIR_ERR_NOMEM; status != WEIR_OK; nth++) {
        weir_alloc_fail_at(nth);
        status = round_trip();
        weir_alloc_fail_at(0);
        assert_true(status == WEIR_OK || status == WEIR_ERR_NOMEM);
        assert_int_equal(held, weir_alloc_bytes());
    }
    assert_true(nth > 6);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_is_read_back),
        TEST(the_header_is_plain_json_padded_with_spaces),
        TEST(a_hostile_header_is_one_clear_error),
        TEST(a_hostile_prefix_is_one_clear_error),
        TEST(every_truncation_of_a_model_is_refused),
        TEST(a_file_cut_short_after_open_fails_at_read),
        TEST(shards_are_one_model),
        TEST(a_hostile_index_is_one_clear_error),
        TEST(the_writer_refuses_what_no_reader_would_take),
        TEST(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
