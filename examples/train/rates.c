#include "examples/train/rates.h"
#include "examples/profile.h"

#include <string.h>
#include <sys/stat.h>

/* The drive that was measured on the file system of directory; NULL: none. */
static const struct profile_drive *drive_find(const struct profile *profile, const char *directory)
{
    struct stat here, there;
    if (stat(directory, &here) != 0)
        return NULL;
    for (size_t i = 0; i < profile->drive_count; i++)
        if (stat(profile->drives[i].path, &there) == 0 && here.st_dev == there.st_dev)
            return &profile->drives[i];
    return NULL;
}

static enum weir_status drive_take(struct rates *rates, uint32_t index,
                                   const struct profile *profile, const char *directory,
                                   const char *path)
{
    const struct profile_drive *drive = drive_find(profile, directory);
    if (!drive)
        return weir_fail(WEIR_ERR_ARG,
                         "--profile \"%s\": no drive in it is under \"%s\"; run weir-bench all "
                         "--path DIRS --save FILE with the directories of --nvme",
                         path, directory);
    rates->drives[index] = (struct weir_drive_rate){
        drive->read_bytes_per_s, drive->write_bytes_per_s, drive->piece_bytes, drive->depth};
    /* A transfer is complete when its part on each drive is. */
    if (index == 0 || drive->latency_s > rates->cost.latency_s)
        rates->cost.latency_s = drive->latency_s;
    return WEIR_OK;
}

static enum weir_status drives_take(struct rates *rates, const struct profile *profile,
                                    const char *nvme, const char *path)
{
    double read = 0, write = 0;
    uint32_t count = 0;
    for (const char *at = nvme; at; count++) {
        char directory[4096];
        size_t length = strcspn(at, ",");
        if (length >= sizeof directory || count == WEIR_DRIVES_MOST)
            return weir_fail(WEIR_ERR_ARG, "--nvme \"%s\": a name too long, or more than %d", nvme,
                             WEIR_DRIVES_MOST);
        memcpy(directory, at, length);
        directory[length] = 0;
        WEIR_TRY(drive_take(rates, count, profile, directory, path));
        read += rates->drives[count].read_bytes_per_s;
        write += rates->drives[count].write_bytes_per_s;
        at = at[length] ? at + length + 1 : NULL;
    }
    /* All of the profile's drives were measured at once as well: they may share a bus. */
    bool all = count == profile->drive_count;
    rates->cost.read_bytes_per_s = all ? profile->cost.read_bytes_per_s : read;
    rates->cost.write_bytes_per_s = all ? profile->cost.write_bytes_per_s : write;
    rates->cost.drives = rates->drives;
    return WEIR_OK;
}

enum weir_status rates_read(struct rates *rates, const struct arguments *a)
{
    struct profile profile;
    WEIR_TRY(profile_read(&profile, a->profile));
    enum weir_status status = WEIR_OK;
    rates->cost = profile.cost;
    rates->cost.drives = NULL;
    if (strcmp(profile.device, a->device) != 0)
        status = weir_fail(WEIR_ERR_ARG,
                           "--profile \"%s\" was measured on device \"%s\", --device is \"%s\"; "
                           "run weir-bench all --device %s --save FILE",
                           a->profile, profile.device, a->device, a->device);
    if (status == WEIR_OK && a->nvme)
        status = drives_take(rates, &profile, a->nvme, a->profile);
    struct weir_error error = *weir_last_error();
    profile_free(&profile);
    return status == WEIR_OK ? WEIR_OK : weir_fail_with(&error);
}
