/*
 * A machine's profile: the rates that weir plans with, measured once by `weir-bench all --save` and
 * read by weir-train instead of measuring at each start.
 *
 *     struct profile profile;
 *     WEIR_TRY(profile_read(&profile, "machine.json"));
 *     options.cost = &profile.cost;
 *     profile_free(&profile);
 *
 * The file is JSON: {"weir_profile": 1, "machine": {"cpu", "cores", "memory_bytes", "kernel"},
 * "device": "host", "cost": {the fields of struct weir_cost}, "drives": [{"path", "device",
 * "read_bytes_per_s", "write_bytes_per_s", "latency_s", "depth", "piece_bytes"}]}. Rates are bytes,
 * operations and seconds.
 */
#ifndef WEIR_EXAMPLES_PROFILE_H
#define WEIR_EXAMPLES_PROFILE_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>
#include <weir/weir.h>

#define PROFILE_VERSION     1
#define PROFILE_DRIVES_MOST 16

struct profile_drive {
    char *path;   /* directory that was measured */
    char *device; /* block device that its file system is on; empty: it has none */
    double read_bytes_per_s, write_bytes_per_s, latency_s; /* of this drive alone */
    uint32_t depth;                                        /* transfers in flight to reach them */
    uint64_t piece_bytes;                                  /* of a transfer */
};

struct profile {
    char *cpu, *kernel; /* of the machine, for people */
    uint64_t core_count, memory_bytes;
    char *device; /* "host" or "cuda": what cost was measured on */
    struct weir_cost cost;
    struct profile_drive drives[PROFILE_DRIVES_MOST];
    size_t drive_count; /* 0: cost's rates of NVMe are not those of a drive */
};

/* Fills *profile, which profile_free empties; after a failure it is empty.
 * returns: WEIR_ERR_IO           the file cannot be read
 *          WEIR_ERR_CORRUPT      not JSON, or a field is missing, unknown, of the wrong type or not
 *                                positive; names file and field
 *          WEIR_ERR_UNSUPPORTED  a version that this program does not know */
enum weir_status profile_read(struct profile *profile, const char *path);
/* Beside its place, synced, then renamed: path holds the old file or the whole new one. A profile
 * that profile_read would refuse is refused. */
enum weir_status profile_write(const struct profile *profile, const char *path);
void profile_free(struct profile *profile);

#endif
