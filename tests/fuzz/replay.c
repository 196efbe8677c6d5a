/* Runs a fuzz target once over each file of the folders given, for builds without libFuzzer. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static void file_run(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat st;
    assert_non_null(file);
    assert_int_equal(0, fstat(fileno(file), &st));
    size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size); /* exactly, so that AddressSanitizer sees a read beyond */
    assert_int_equal(size, fread(data, 1, size, file));
    fclose(file);
    printf("%s\n", path);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

static size_t folder_run(const char *folder)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        file_run(path);
        count++;
    }
    closedir(dir);
    return count;
}

int main(int argument_count, char **arguments)
{
    size_t count = 0;
    for (int i = 1; i < argument_count; i++)
        count += folder_run(arguments[i]);
    printf("%zu inputs\n", count);
    return count > 0 ? 0 : 1;
}
