/*
 * with_gpu PROGRAM [ARGUMENTS]: runs it where weir can use a GPU. Elsewhere it says why not and
 * ends with 77, which CTest counts as skipped. Without a program: says what there is.
 */
#include "core/device.h"

#include <stdio.h>
#include <unistd.h>

#define SKIPPED 77

int main(int argc, char **argv)
{
    const struct weir_device_table *table;
    struct weir_device *device;
    const struct weir_device_options options = {.memory_bytes = UINT64_MAX, .thread_count = 1};
    enum weir_status status = weir_device_find("cuda", &table);
    if (status == WEIR_OK)
        status = table->open(&device, &options);
    if (status != WEIR_OK) {
        printf("skipped: %s\n", weir_last_error()->text);
        return status == WEIR_ERR_UNSUPPORTED ? SKIPPED : 1;
    }
    struct weir_device_info info;
    table->info(device, &info);
    printf("%s\n", info.name);
    fflush(stdout);
    table->close(device);
    if (argc < 2)
        return 0;
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 1;
}
