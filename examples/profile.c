#include "examples/profile.h"
#include "core/file.h"
#include "core/memory.h"
#include "examples/replace.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MOST (1u << 20)
#define WHOLE_MOST      0x1p53 /* of a number that counts */

/* ---- the fields that are numbers, by name */

enum kind { RATE, RATE_OR_0, COUNT32, COUNT64 };

struct field {
    const char *name;
    enum kind kind;
    size_t offset;
};

#define COST(name, kind)                                                                           \
    {                                                                                              \
#name, kind, offsetof(struct weir_cost, name)                                              \
    }
static const struct field cost_fields[] = {
    COST(read_bytes_per_s, RATE),
    COST(write_bytes_per_s, RATE),
    COST(to_device_bytes_per_s, RATE),
    COST(to_host_bytes_per_s, RATE),
    COST(update_bytes_per_s, RATE),
    COST(device_update_bytes_per_s, RATE),
    COST(link_update_bytes_per_s, RATE_OR_0),
    COST(compute_flops_per_s, RATE),
    COST(latency_s, RATE),
};
#undef COST

#define DRIVE(name, kind)                                                                          \
    {                                                                                              \
#name, kind, offsetof(struct profile_drive, name)                                          \
    }
static const struct field drive_fields[] = {
    DRIVE(read_bytes_per_s, RATE), DRIVE(write_bytes_per_s, RATE), DRIVE(latency_s, RATE),
    DRIVE(depth, COUNT32),         DRIVE(piece_bytes, COUNT64),
};
#undef DRIVE

static const struct field machine_fields[] = {
    {"cores", COUNT64, offsetof(struct profile, core_count)},
    {"memory_bytes", COUNT64, offsetof(struct profile, memory_bytes)},
};

#define FIELDS(table) table, sizeof(table) / sizeof *(table)

/* ---- reading */

static enum weir_status number_read(const char *file, const char *where, const json_t *object,
                                    const struct field *field, void *base)
{
    const json_t *value = json_object_get(object, field->name);
    double number = json_number_value(value);
    bool whole = field->kind == COUNT32 || field->kind == COUNT64;
    double most = field->kind == COUNT32 ? (double)UINT32_MAX : whole ? WHOLE_MOST : INFINITY;
    if (!value)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "profile \"%s\": %s.%s is missing; run weir-bench all --save again", file,
                         where, field->name);
    bool good = json_is_number(value) && isfinite(number) && number <= most &&
                (number > 0 || (number == 0 && field->kind == RATE_OR_0)) &&
                (!whole || json_is_integer(value));
    if (!good)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "profile \"%s\": %s.%s is %s; run weir-bench all --save again", file,
                         where, field->name,
                         !json_is_number(value) ? "not a number"
                         : whole                ? "not a positive whole number"
                                                : "not a positive number");
    void *at = (char *)base + field->offset;
    if (field->kind == COUNT32)
        *(uint32_t *)at = (uint32_t)number;
    else if (field->kind == COUNT64)
        *(uint64_t *)at = (uint64_t)number;
    else
        *(double *)at = number;
    return WEIR_OK;
}

static enum weir_status numbers_read(const char *file, const char *where, const json_t *object,
                                     const struct field *fields, size_t count, void *base)
{
    for (size_t i = 0; i < count; i++)
        WEIR_TRY(number_read(file, where, object, &fields[i], base));
    return WEIR_OK;
}

static enum weir_status text_read(const char *file, const char *where, const json_t *object,
                                  const char *name, char **out)
{
    const char *text = json_string_value(json_object_get(object, name));
    if (!text)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "profile \"%s\": %s.%s is missing or no text; run weir-bench all --save "
                         "again",
                         file, where, name);
    return weir_strdup(out, text);
}

/* A name that is not known would be a rate that is not used. */
static enum weir_status names_check(const char *file, const char *where, const json_t *object,
                                    const struct field *fields, size_t count,
                                    const char *const others[])
{
    const char *name;
    json_t *value;
    if (!json_is_object(object))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "profile \"%s\": %s is missing or no object; run weir-bench all --save "
                         "again",
                         file, where);
    json_object_foreach((json_t *)object, name, value)
    {
        bool known = false;
        for (size_t i = 0; i < count; i++)
            known = known || strcmp(fields[i].name, name) == 0;
        for (size_t i = 0; others[i]; i++)
            known = known || strcmp(others[i], name) == 0;
        if (!known)
            return weir_fail(WEIR_ERR_CORRUPT,
                             "profile \"%s\": %s.%s is not known; run weir-bench all --save again",
                             file, where, name);
    }
    return WEIR_OK;
}

static enum weir_status cost_read(struct profile *profile, const char *file, const json_t *cost)
{
    static const char *const others[] = {"update_on_compute", NULL};
    const json_t *shared = json_object_get(cost, "update_on_compute");
    WEIR_TRY(names_check(file, "cost", cost, FIELDS(cost_fields), others));
    WEIR_TRY(numbers_read(file, "cost", cost, FIELDS(cost_fields), &profile->cost));
    if (!json_is_boolean(shared))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "profile \"%s\": cost.update_on_compute is missing or neither true nor "
                         "false; run weir-bench all --save again",
                         file);
    profile->cost.update_on_compute = json_is_true(shared);
    return WEIR_OK;
}

static enum weir_status drives_read(struct profile *profile, const char *file, const json_t *drives)
{
    static const char *const others[] = {"path", "device", NULL};
    if (!json_is_array(drives) || json_array_size(drives) > PROFILE_DRIVES_MOST)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "profile \"%s\": drives is missing or no list of at most %d; run "
                         "weir-bench all --save again",
                         file, PROFILE_DRIVES_MOST);
    for (size_t i = 0; i < json_array_size(drives); i++) {
        const json_t *from = json_array_get(drives, i);
        struct profile_drive *drive = &profile->drives[profile->drive_count++];
        char where[32];
        snprintf(where, sizeof where, "drives[%zu]", i);
        WEIR_TRY(names_check(file, where, from, FIELDS(drive_fields), others));
        WEIR_TRY(numbers_read(file, where, from, FIELDS(drive_fields), drive));
        WEIR_TRY(text_read(file, where, from, "path", &drive->path));
        WEIR_TRY(text_read(file, where, from, "device", &drive->device));
    }
    return WEIR_OK;
}

static enum weir_status root_read(struct profile *profile, const char *file, const json_t *root)
{
    static const char *const tops[] = {"weir_profile", "machine", "device", "cost", "drives", NULL};
    static const char *const machines[] = {"cpu", "kernel", NULL};
    const json_t *version = json_object_get(root, "weir_profile"),
                 *machine = json_object_get(root, "machine");
    if (!json_is_integer(version))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "profile \"%s\": weir_profile is missing or no number: not a profile; "
                         "make one with weir-bench all --save",
                         file);
    if (json_integer_value(version) != PROFILE_VERSION)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "profile \"%s\": weir_profile is %lld, this program knows %d; run "
                         "weir-bench all --save again",
                         file, (long long)json_integer_value(version), PROFILE_VERSION);
    WEIR_TRY(names_check(file, "profile", root, NULL, 0, tops));
    WEIR_TRY(names_check(file, "machine", machine, FIELDS(machine_fields), machines));
    WEIR_TRY(numbers_read(file, "machine", machine, FIELDS(machine_fields), profile));
    WEIR_TRY(text_read(file, "machine", machine, "cpu", &profile->cpu));
    WEIR_TRY(text_read(file, "machine", machine, "kernel", &profile->kernel));
    WEIR_TRY(text_read(file, "profile", root, "device", &profile->device));
    WEIR_TRY(cost_read(profile, file, json_object_get(root, "cost")));
    return drives_read(profile, file, json_object_get(root, "drives"));
}

static enum weir_status file_read(const char *path, char **text, size_t *got)
{
    int fd, error = weir_file_open(path, O_RDONLY, 0, &fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "profile \"%s\" cannot be opened", path);
    enum weir_status status = weir_alloc(text, FILE_BYTES_MOST, 1, "a profile");
    if (status == WEIR_OK)
        error = weir_file_read(fd, *text, FILE_BYTES_MOST, 0, got);
    close(fd);
    WEIR_TRY(status);
    if (error) {
        weir_free(*text);
        return weir_fail_errno(WEIR_ERR_IO, error, "profile \"%s\" cannot be read", path);
    }
    return WEIR_OK;
}

enum weir_status profile_read(struct profile *profile, const char *path)
{
    json_error_t error;
    char *text;
    size_t count;
    *profile = (struct profile){.cost = {.struct_bytes = sizeof profile->cost}};
    WEIR_TRY(file_read(path, &text, &count));
    json_t *root = json_loadb(text, count, JSON_REJECT_DUPLICATES, &error);
    weir_free(text);
    if (!root)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "profile \"%s\": line %d: %s; run weir-bench all --save "
                         "again",
                         path, error.line, error.text);
    enum weir_status status = root_read(profile, path, root);
    json_decref(root);
    if (status != WEIR_OK)
        profile_free(profile);
    return status;
}

/* ---- writing */

static json_t *numbers_make(const struct field *fields, size_t count, const void *base)
{
    json_t *object = json_object();
    for (size_t i = 0; object && i < count; i++) {
        const void *at = (const char *)base + fields[i].offset;
        json_t *value = fields[i].kind == COUNT32 ? json_integer(*(const uint32_t *)at)
                        : fields[i].kind == COUNT64
                            ? json_integer((json_int_t) * (const uint64_t *)at)
                            : json_real(*(const double *)at);
        (void)json_object_set_new(object, fields[i].name, value); /* NULL fails, seen by the dump */
    }
    return object;
}

static json_t *root_make(const struct profile *profile)
{
    json_t *machine = numbers_make(FIELDS(machine_fields), profile),
           *cost = numbers_make(FIELDS(cost_fields), &profile->cost), *drives = json_array();
    json_object_set_new(machine, "cpu", json_string(profile->cpu));
    json_object_set_new(machine, "kernel", json_string(profile->kernel));
    json_object_set_new(cost, "update_on_compute", json_boolean(profile->cost.update_on_compute));
    for (size_t i = 0; i < profile->drive_count; i++) {
        const struct profile_drive *drive = &profile->drives[i];
        json_t *object = numbers_make(FIELDS(drive_fields), drive);
        json_object_set_new(object, "path", json_string(drive->path));
        json_object_set_new(object, "device", json_string(drive->device));
        json_array_append_new(drives, object);
    }
    return json_pack("{s:i, s:o, s:s, s:o, s:o}", "weir_profile", PROFILE_VERSION, "machine",
                     machine, "device", profile->device, "cost", cost, "drives", drives);
}

/* What would not be read is not written. */
static enum weir_status root_check(const char *path, const json_t *root)
{
    struct profile read = {0};
    enum weir_status status = root_read(&read, path, root);
    profile_free(&read);
    return status;
}

static enum weir_status text_write(const char *path, const char *text)
{
    struct replace file;
    WEIR_TRY(replace_begin(&file, "profile", path));
    return replace_end(&file, replace_write(&file, text, strlen(text)));
}

enum weir_status profile_write(const struct profile *profile, const char *path)
{
    json_t *root = root_make(profile);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    enum weir_status status = text ? root_check(path, root) : WEIR_OK;
    json_decref(root);
    if (!text)
        return weir_fail(WEIR_ERR_NOMEM, "profile \"%s\": no memory to write it", path);
    if (status == WEIR_OK)
        status = text_write(path, text);
    free(text);
    return status;
}

void profile_free(struct profile *profile)
{
    weir_free(profile->cpu);
    weir_free(profile->kernel);
    weir_free(profile->device);
    for (size_t i = 0; i < profile->drive_count; i++) {
        weir_free(profile->drives[i].path);
        weir_free(profile->drives[i].device);
    }
    *profile = (struct profile){0};
}
