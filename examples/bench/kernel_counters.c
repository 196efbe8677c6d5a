#include "examples/bench/kernel_counters.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define SECTOR_BYTES 512u
#define LAYERS_MOST  8

/* Of /sys/dev/block/MAJ:MIN/stat: sectors, and how many fields lead to the last of them. */
enum { STAT_READ = 2, STAT_WRITTEN = 6, STAT_FIELDS };

/* ---- small files of /sys and /proc */

/* The first line, without its newline; false: no such file. */
static bool line_read(const char *path, char *line, size_t room)
{
    FILE *file = fopen(path, "re");
    bool there = file && fgets(line, (int)room, file);
    if (file)
        fclose(file);
    if (there)
        line[strcspn(line, "\n")] = 0;
    return there;
}

static void sys_path(char out[static PATH_MAX], dev_t device, const char *name)
{
    snprintf(out, PATH_MAX, "/sys/dev/block/%u:%u/%s", major(device), minor(device), name);
}

static bool sys_read(dev_t device, const char *name, char *line, size_t room)
{
    char path[PATH_MAX];
    sys_path(path, device, name);
    return line_read(path, line, room);
}

/* "254:0" */
static bool device_parse(const char *text, dev_t *device)
{
    char *colon, *end;
    unsigned long high = strtoul(text, &colon, 10);
    if (colon == text || *colon != ':')
        return false;
    unsigned long low = strtoul(colon + 1, &end, 10);
    *device = makedev((unsigned)high, (unsigned)low);
    return end != colon + 1;
}

static bool device_there(dev_t device)
{
    char path[PATH_MAX];
    sys_path(path, device, "stat");
    return access(path, R_OK) == 0;
}

/* ---- from a path to its block device */

/* Type and source of the mount that path lies in. */
static bool mount_find(const char *path, char type[static 32], char source[static PATH_MAX])
{
    struct statx st;
    char line[2 * PATH_MAX];
    if (statx(AT_FDCWD, path, 0, STATX_MNT_ID, &st) != 0 || !(st.stx_mask & STATX_MNT_ID))
        return false;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *rest = strstr(line, " - ");
        found = strtoull(line, NULL, 10) == st.stx_mnt_id && rest &&
                sscanf(rest, " - %31s %4095s", type, source) == 2;
    }
    if (file)
        fclose(file);
    return found;
}

/* A file system without a device number of its own (btrfs) names its device as the source. */
static bool path_device(const char *path, char type[static 32], dev_t *device)
{
    struct stat st;
    char source[PATH_MAX] = "";
    snprintf(type, 32, "unknown");
    bool mounted = mount_find(path, type, source);
    if (stat(path, &st) != 0)
        return false;
    *device = st.st_dev;
    if (device_there(*device))
        return true;
    if (!mounted || source[0] != '/' || stat(source, &st) != 0 || !S_ISBLK(st.st_mode))
        return false;
    *device = st.st_rdev;
    return device_there(*device);
}

/* ---- from a block device to the disks below it */

static void device_add(dev_t *devices, size_t *count, dev_t device)
{
    for (size_t i = 0; i < *count; i++)
        if (devices[i] == device)
            return;
    if (*count < DRIVES_DEVICES_MOST)
        devices[(*count)++] = device;
}

static void leaves_add(struct drives *drives, struct drive *drive, dev_t device, int layer);

/* Device mapper and RAID list what they lie on. */
static bool slaves_add(struct drives *drives, struct drive *drive, dev_t device, int layer)
{
    char path[PATH_MAX], line[64];
    dev_t below;
    bool any = false;
    sys_path(path, device, "slaves");
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char name[300];
        snprintf(name, sizeof name, "slaves/%s/dev", entry->d_name);
        if (entry->d_name[0] == '.' || !sys_read(device, name, line, sizeof line) ||
            !device_parse(line, &below))
            continue;
        leaves_add(drives, drive, below, layer + 1);
        any = true;
    }
    if (folder)
        closedir(folder);
    return any;
}

static bool loop_add(struct drives *drives, struct drive *drive, dev_t device, int layer)
{
    char file[PATH_MAX], type[32];
    dev_t below;
    if (!sys_read(device, "loop/backing_file", file, sizeof file))
        return false;
    if (path_device(file, type, &below))
        leaves_add(drives, drive, below, layer + 1);
    else
        drives->incomplete = true;
    return true;
}

static void name_read(dev_t device, char out[static 64])
{
    char path[PATH_MAX], target[PATH_MAX];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u", major(device), minor(device));
    const char *name = realpath(path, target) ? strrchr(target, '/') : NULL;
    snprintf(out, 64, "%.63s", name ? name + 1 : "unknown");
}

/* "nvme", "sd", "virtio_blk"; empty: not said. */
static void driver_read(dev_t device, char out[static 32])
{
    char path[PATH_MAX], target[PATH_MAX];
    sys_path(path, device, "device/driver");
    const char *name = realpath(path, target) ? strrchr(target, '/') : NULL;
    snprintf(out, 32, "%.31s", name ? name + 1 : "");
}

/* The whole disk of a partition: its model, driver, and whether it turns, as the kernel has it; of
 * a virtual disk it does not know. */
static void disk_describe(struct drive *drive, dev_t device)
{
    char line[64], name[64], model[64] = "", driver[32], text[224];
    if (sys_read(device, "partition", line, sizeof line) &&
        sys_read(device, "../dev", line, sizeof line))
        (void)device_parse(line, &device);
    name_read(device, name);
    driver_read(device, driver);
    if (sys_read(device, "device/model", model, sizeof model))
        for (size_t end = strlen(model); end > 0 && model[end - 1] == ' '; end--)
            model[end - 1] = 0;
    bool turns = strcmp(driver, "virtio_blk") != 0 &&
                 sys_read(device, "queue/rotational", line, sizeof line) && line[0] == '1';
    snprintf(text, sizeof text, "%s%s%s%s%s%s", name, *model ? ", " : "", model,
             *driver ? ", " : "", driver, turns ? ", rotational" : "");
    size_t used = strlen(drive->disks);
    if (!strstr(drive->disks, text))
        snprintf(drive->disks + used, sizeof drive->disks - used, "%s%s", used ? " + " : "", text);
}

static void leaves_add(struct drives *drives, struct drive *drive, dev_t device, int layer)
{
    if (layer < LAYERS_MOST &&
        (slaves_add(drives, drive, device, layer) || loop_add(drives, drive, device, layer)))
        return;
    device_add(drives->leaves, &drives->leaf_count, device);
    disk_describe(drive, device);
}

enum weir_status drives_find(struct drives *drives, const char *path, struct drive *drive)
{
    struct stat st;
    dev_t device;
    *drive = (struct drive){0};
    if (stat(path, &st) != 0)
        return weir_fail_errno(WEIR_ERR_ARG, errno, "\"%s\" cannot be measured", path);
    if (!path_device(path, drive->file_system, &device)) {
        drives->incomplete = true;
        return WEIR_OK;
    }
    name_read(device, drive->device);
    device_add(drives->tops, &drives->top_count, device);
    leaves_add(drives, drive, device, 0);
    return WEIR_OK;
}

/* ---- counting */

/* "read_bytes: 4096", if it is the line of that name. */
static bool counter_read(const char *line, const char *name, uint64_t *value)
{
    size_t length = strlen(name);
    if (strncmp(line, name, length) != 0)
        return false;
    *value = strtoull(line + length, NULL, 10);
    return true;
}

static bool process_read(struct kernel_counters *out)
{
    char line[128];
    int found = 0;
    FILE *file = fopen("/proc/self/io", "re");
    while (file && fgets(line, sizeof line, file))
        found += counter_read(line, "read_bytes: ", &out->process_read_bytes) ||
                 counter_read(line, "write_bytes: ", &out->process_written_bytes);
    if (file)
        fclose(file);
    return found == 2;
}

static bool devices_read(const dev_t *devices, size_t count, uint64_t *read_bytes,
                         uint64_t *written_bytes)
{
    *read_bytes = *written_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        char line[256], *at = line;
        uint64_t fields[STAT_FIELDS];
        if (!sys_read(devices[i], "stat", line, sizeof line))
            return false;
        for (int f = 0; f < STAT_FIELDS; f++)
            fields[f] = strtoull(at, &at, 10);
        *read_bytes += fields[STAT_READ] * SECTOR_BYTES;
        *written_bytes += fields[STAT_WRITTEN] * SECTOR_BYTES;
    }
    return count > 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void kernel_counters_read(const struct drives *drives, struct kernel_counters *out)
{
    *out = (struct kernel_counters){0};
    out->process_known = process_read(out);
    out->device_known = !drives->incomplete &&
                        devices_read(drives->tops, drives->top_count, &out->device_read_bytes,
                                     &out->device_written_bytes) &&
                        devices_read(drives->leaves, drives->leaf_count, &out->bottom_read_bytes,
                                     &out->bottom_written_bytes);
}

struct kernel_counters kernel_counters_between(const struct kernel_counters *before,
                                               const struct kernel_counters *after)
{
    struct kernel_counters c = {
        .process_read_bytes = after->process_read_bytes - before->process_read_bytes,
        .process_written_bytes = after->process_written_bytes - before->process_written_bytes,
        .bottom_read_bytes = after->bottom_read_bytes - before->bottom_read_bytes,
        .bottom_written_bytes = after->bottom_written_bytes - before->bottom_written_bytes,
        .process_known = before->process_known && after->process_known,
        .device_known = before->device_known && after->device_known,
    };
    c.device_read_bytes =
        least(after->device_read_bytes - before->device_read_bytes, c.bottom_read_bytes);
    c.device_written_bytes =
        least(after->device_written_bytes - before->device_written_bytes, c.bottom_written_bytes);
    return c;
}

bool kernel_counters_missed(const struct kernel_counters *counted, uint64_t read_bytes,
                            uint64_t written_bytes)
{
    uint64_t read_least = read_bytes - read_bytes / 10,
             written_least = written_bytes - written_bytes / 10;
    return (counted->process_known && (counted->process_read_bytes < read_least ||
                                       counted->process_written_bytes < written_least)) ||
           (counted->device_known && (counted->device_read_bytes < read_least ||
                                      counted->device_written_bytes < written_least));
}
