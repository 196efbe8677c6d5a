/*
 * What the kernel itself counted: bytes that this process moved to and from storage
 * (/proc/self/io), and bytes that passed the block devices under some directories
 * (/sys/dev/block/MAJ:MIN/stat). The judge of every figure about a drive.
 *
 *     drives_find(&drives, path);               // once for each directory
 *     kernel_counters_read(&drives, &before); ... kernel_counters_read(&drives, &after);
 */
#ifndef WEIR_BENCH_KERNEL_COUNTERS_H
#define WEIR_BENCH_KERNEL_COUNTERS_H

#include "core/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DRIVES_DEVICES_MOST 64

/* Where a directory lies. */
struct drive {
    char file_system[32]; /* "ext4" */
    char device[64];      /* "vda1", what the file system is on; empty: no block device */
    char disks[256];      /* "nvme0n1, Model, nvme": what is at the bottom, with " + " between */
};

/* Block devices, each once: those that file systems are on, and those at the bottom of them, below
 * device mapper, RAID and loop devices. */
struct drives {
    dev_t tops[DRIVES_DEVICES_MOST], leaves[DRIVES_DEVICES_MOST];
    size_t top_count, leaf_count;
    bool incomplete; /* a directory has no block device, as tmpfs and overlay */
};

struct kernel_counters {
    uint64_t process_read_bytes, process_written_bytes;
    uint64_t device_read_bytes, device_written_bytes; /* on which the file systems are */
    uint64_t bottom_read_bytes, bottom_written_bytes; /* below device mapper, RAID, loop devices */
    bool process_known, device_known;
};

/* Fills *drive and adds its devices to *drives. */
enum weir_status drives_find(struct drives *drives, const char *path, struct drive *drive);
void kernel_counters_read(const struct drives *drives, struct kernel_counters *out);
/* after - before; known if both are. device: the lesser of top and bottom, what reached both. */
struct kernel_counters kernel_counters_between(const struct kernel_counters *before,
                                               const struct kernel_counters *after);
/* Whether less than nine tenths of these bytes passed the kernel's way to storage. */
bool kernel_counters_missed(const struct kernel_counters *counted, uint64_t read_bytes,
                            uint64_t written_bytes);

#endif
