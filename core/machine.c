#include "core/machine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT64_MAX

/* The number that follows key at a line's beginning; NONE without such a file, line or number. */
static uint64_t number_read(const char *path, const char *key)
{
    FILE *file = fopen(path, "re");
    uint64_t value = NONE;
    char line[256];
    size_t length = strlen(key);
    while (file && fgets(line, sizeof line, file)) {
        char *end;
        if (strncmp(line, key, length) != 0)
            continue;
        unsigned long long number = strtoull(line + length, &end, 10);
        if (end != line + length)
            value = number;
        break;
    }
    if (file)
        fclose(file);
    return value;
}

static uint64_t or_zero(uint64_t value)
{
    return value == NONE ? 0 : value;
}

static uint64_t less(uint64_t from, uint64_t by)
{
    return from > by ? from - by : 0;
}

struct group_files {
    const char *mount, *limit, *usage, *inactive, *active; /* the last two in memory.stat */
};
static const struct group_files version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                             "inactive_file ", "active_file "};
static const struct group_files version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                             "memory.usage_in_bytes", "total_inactive_file ",
                                             "total_active_file "};

static uint64_t group_number(const char *directory, const char *file, const char *key)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    return number_read(path, key);
}

static uint64_t group_available(const char *directory, const struct group_files *files)
{
    uint64_t limit = group_number(directory, files->limit, "");
    if (limit == NONE)
        return NONE;
    uint64_t caches = or_zero(group_number(directory, "memory.stat", files->inactive)) +
                      or_zero(group_number(directory, "memory.stat", files->active));
    return less(limit, less(or_zero(group_number(directory, files->usage, "")), caches));
}

/* Of the group and of all that it is in. A container may be told the path that its group has
 * outside, and see the group itself where the tree begins. */
static uint64_t groups_available(const char *root, const struct group_files *files, char *group)
{
    uint64_t available = NONE;
    for (char *cut = group; cut;) {
        char directory[PATH_MAX];
        snprintf(directory, sizeof directory, "%s%s%s", root, files->mount, group);
        uint64_t here = group_available(directory, files);
        available = here < available ? here : available;
        cut = strrchr(group, '/');
        if (cut)
            *cut = 0;
    }
    return available;
}

/* Lines of /proc/self/cgroup: "0::PATH" is version 2, "N:memory:PATH" version 1. */
static uint64_t limits_available(const char *root)
{
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    uint64_t available = NONE;
    while (file && fgets(line, sizeof line, file)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        const struct group_files *files = strcmp(names, ":memory") == 0 ? &version_1
                                          : strcmp(names, ":") == 0     ? &version_2
                                                                        : NULL;
        uint64_t here = files ? groups_available(root, files, group) : NONE;
        available = here < available ? here : available;
    }
    if (file)
        fclose(file);
    return available;
}

uint64_t weir_memory_available_bytes(const char *root)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t kib = number_read(path, "MemAvailable:"), limits = limits_available(root);
    uint64_t machine = kib == NONE ? NONE : kib * 1024;
    return machine < limits ? machine : limits;
}
