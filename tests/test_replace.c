/* Files that appear whole or not at all: behind links, into devices and pipes, and when writing
 * fails. */
#include "core/file.h"
#include "examples/replace.h"
#include "tests/support.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char paths[3][300]; /* a file, a link to it, and what lies beside it while it is written */

static void paths_make(void)
{
    snprintf(paths[0], sizeof paths[0], "%s/file", test_directory);
    snprintf(paths[1], sizeof paths[1], "%s/link", test_directory);
    snprintf(paths[2], sizeof paths[2], "%s/file" REPLACE_SUFFIX, test_directory);
    unlink(paths[0]);
    unlink(paths[1]);
}

static enum weir_status text_replace(const char *path, const char *text)
{
    struct replace file;
    WEIR_TRY(replace_begin(&file, "text", path));
    enum weir_status status = replace_write(&file, text, strlen(text));
    if (status == WEIR_OK)
        status = replace_write(&file, "\n", 1);
    return replace_end(&file, status);
}

static void assert_holds(const char *path, const char *text)
{
    char line[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    assert_string_equal(text, line);
    assert_int_equal(-1, access(paths[2], F_OK));
}

/* A new file, then another over it: with the permissions of the first. */
static void a_file_is_replaced(void **state)
{
    (void)state;
    struct stat st;
    paths_make();
    assert_ok(text_replace(paths[0], "one"));
    assert_holds(paths[0], "one");
    assert_int_equal(0, chmod(paths[0], 0640));
    FILE *left = fopen(paths[2], "w"); /* by a killed process */
    assert_non_null(left);
    fclose(left);
    assert_ok(text_replace(paths[0], "two"));
    assert_holds(paths[0], "two");
    assert_int_equal(0, stat(paths[0], &st));
    assert_int_equal(0640, st.st_mode & 0777);
}

/* A link stays a link, whether it leads to a file or will lead to one, here or elsewhere. */
static void a_link_stays_one(void **state)
{
    (void)state;
    struct stat st;
    paths_make();
    const char *const ways[] = {"file", paths[0], "./link2"};
    char second[300];
    snprintf(second, sizeof second, "%s/link2", test_directory);
    assert_int_equal(0, symlink("file", second));
    for (size_t i = 0; i < 3; i++) {
        unlink(paths[1]);
        assert_int_equal(0, symlink(ways[i], paths[1]));
        for (int there = 0; there < 2; there++) {
            if (!there)
                unlink(paths[0]);
            assert_ok(text_replace(paths[1], there ? "again" : "first"));
            assert_holds(paths[0], there ? "again" : "first");
            assert_int_equal(0, lstat(paths[1], &st));
            assert_true(S_ISLNK(st.st_mode));
        }
    }
    unlink(second);
    assert_int_equal(0, symlink("link", second));
    unlink(paths[1]);
    assert_int_equal(0, symlink("link2", paths[1]));
    assert_fails(text_replace(paths[1], "round"), WEIR_ERR_ARG, "links");
    unlink(second);
}

/* A pipe and a device are written into, and stay what they are. */
static void what_is_no_file_is_written_into(void **state)
{
    (void)state;
    struct stat st;
    char got[8] = "";
    paths_make();
    assert_int_equal(0, mkfifo(paths[0], 0600));
    int reader = open(paths[0], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    assert_ok(text_replace(paths[0], "pipe"));
    assert_int_equal(5, read(reader, got, sizeof got));
    assert_memory_equal("pipe\n", got, 5);
    close(reader);
    assert_int_equal(0, lstat(paths[0], &st));
    assert_true(S_ISFIFO(st.st_mode));
    assert_fails(text_replace("/dev/full", "device"), WEIR_ERR_NOSPACE, "/dev/full");
    assert_int_equal(0, lstat("/dev/full", &st));
    assert_true(S_ISCHR(st.st_mode));
    assert_fails(text_replace(test_directory, "folder"), WEIR_ERR_IO, "Is a directory");
}

/* Whichever call fails, and whatever the caller meets, the old file stands and nothing beside it.
 */
static void a_failure_leaves_the_old_file(void **state)
{
    (void)state;
    static const enum weir_file_call calls[] = {WEIR_FILE_OPEN, WEIR_FILE_WRITE, WEIR_FILE_SYNC,
                                                WEIR_FILE_RENAME};
    paths_make();
    assert_ok(text_replace(paths[0], "old"));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        weir_file_fail_at(calls[i], 1, ENOSPC);
        assert_fails(text_replace(paths[0], "new"), WEIR_ERR_NOSPACE, paths[0]);
        assert_true(weir_file_fail_at(calls[i], 0, 0) > 0);
        assert_holds(paths[0], "old");
    }
    struct replace file;
    assert_ok(replace_begin(&file, "text", paths[0]));
    assert_ok(replace_write(&file, "new", 3));
    enum weir_status status = weir_fail(WEIR_ERR_CORRUPT, "the caller's");
    assert_fails(replace_end(&file, status), WEIR_ERR_CORRUPT, "the caller's");
    assert_holds(paths[0], "old");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_replaced),
        cmocka_unit_test(a_link_stays_one),
        cmocka_unit_test(what_is_no_file_is_written_into),
        cmocka_unit_test(a_failure_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, test_directory_setup, test_directory_teardown);
}
