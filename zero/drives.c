/*
 * The drives of the NVMe tier: their list, their shares, and what callers are told of them.
 */
#include "zero/drives.h"
#include "core/memory.h"
#include "zero/run.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* Two names of one directory would share a drive and count its rate twice. */
static enum weir_status twice_check(const struct weir_drives *drives)
{
    struct stat a, b;
    for (uint32_t i = 0; i < drives->count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (stat(drives->paths[i], &a) == 0 && stat(drives->paths[j], &b) == 0 &&
                a.st_dev == b.st_dev && a.st_ino == b.st_ino)
                return weir_fail(WEIR_ERR_ARG,
                                 "nvme: \"%s\" and \"%s\" are one directory; name each drive once",
                                 drives->paths[j], drives->paths[i]);
    return WEIR_OK;
}

enum weir_status weir_drives_open(struct weir_drives *drives, const char *list)
{
    WEIR_TRY(weir_strdup(&drives->text, list));
    for (char *at = drives->text, *end; at; at = end) {
        end = strchr(at, ',');
        if (end)
            *end++ = 0;
        if (*at == 0)
            return weir_fail(WEIR_ERR_ARG,
                             "nvme: \"%s\" has an empty name between its commas; write DIR,DIR",
                             list);
        if (drives->count == WEIR_DRIVES_MOST)
            return weir_fail(WEIR_ERR_ARG, "nvme: \"%s\" names more than %d directories", list,
                             WEIR_DRIVES_MOST);
        drives->paths[drives->count++] = at;
    }
    return twice_check(drives);
}

void weir_drives_close(struct weir_drives *drives)
{
    weir_free(drives->text);
}

enum weir_status weir_drives_given(struct weir_drives *drives, const struct weir_drive_rate *rates)
{
    for (uint32_t i = 0; i < drives->count; i++) {
        drives->rates[i] = rates ? rates[i] : (struct weir_drive_rate){1, 1, 0, 0};
        const struct weir_drive_rate *r = &drives->rates[i];
        if (!(r->read_bytes_per_s > 0 && r->write_bytes_per_s > 0 &&
              r->read_bytes_per_s + r->write_bytes_per_s < 1e300))
            return weir_fail(WEIR_ERR_ARG,
                             "weir_open: rates of drive \"%s\" are %g to read and %g to write; "
                             "give more than 0",
                             drives->paths[i], r->read_bytes_per_s, r->write_bytes_per_s);
    }
    return WEIR_OK;
}

void weir_drives_places(const struct weir_drives *drives, struct weir_extent_place *places)
{
    for (uint32_t i = 0; i < drives->count; i++) {
        const struct weir_drive_rate *r = &drives->rates[i];
        places[i].directory = drives->paths[i];
        places[i].bytes_per_s = 1 / (1 / r->read_bytes_per_s + 1 / r->write_bytes_per_s);
    }
}

enum weir_status weir_drives_tune(struct weir_io *io, const struct weir_extent *extent,
                                  const struct weir_drive_rate *rates)
{
    for (uint32_t i = 0; i < extent->drive_count; i++) {
        const struct weir_extent_drive *drive = &extent->drives[i];
        if (drive->byte_count == 0)
            continue;
        uint64_t piece = rates[i].piece_bytes ? rates[i].piece_bytes : WEIR_DRIVE_PIECE_BYTES;
        piece = piece < WEIR_DRIVE_PIECE_MOST ? piece : WEIR_DRIVE_PIECE_MOST;
        uint64_t depth = WEIR_DRIVE_FLIGHT_BYTES / piece;
        depth = depth > rates[i].depth ? depth : rates[i].depth;
        depth = depth < WEIR_DRIVE_DEPTH_MOST ? depth : WEIR_DRIVE_DEPTH_MOST;
        WEIR_TRY(weir_io_file_tune(io, drive->file, (uint32_t)depth, piece));
    }
    return WEIR_OK;
}

/* ---- weir/drive.h */

size_t weir_drive_count(const weir_run *run)
{
    return run ? run->drives.count : 0;
}

/* Before the layout: of a tier so large that no stripe counts. */
static enum weir_status share_find(const weir_run *run, size_t index, double *share)
{
    struct weir_extent_place places[WEIR_DRIVES_MOST];
    double shares[WEIR_DRIVES_MOST];
    uint64_t bytes[WEIR_DRIVES_MOST];
    weir_drives_places(&run->drives, places);
    for (uint32_t i = 0; i < run->drives.count; i++)
        shares[i] = places[i].bytes_per_s;
    WEIR_TRY(weir_io_volume_share(shares, run->drives.count, 4096, UINT64_C(1) << 50, bytes));
    *share = (double)bytes[index] * 0x1p-50;
    return WEIR_OK;
}

static enum weir_status drive_fill(const weir_run *run, size_t index, struct weir_drive *out)
{
    const struct weir_extent_drive *drive = &run->extent.drives[index];
    struct statvfs space;
    if (statvfs(out->path, &space) == 0)
        out->free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
    if (!run->have_cost)
        return WEIR_OK;
    out->rate = run->drives.rates[index];
    if (run->extent.byte_count == 0)
        return share_find(run, index, &out->share);
    out->share = drive->share;
    out->byte_count = drive->byte_count;
    if (drive->byte_count == 0)
        return WEIR_OK;
    struct weir_io_counters counters;
    weir_io_file_count(run->io, drive->file, &counters);
    out->read_bytes = counters.read_bytes;
    out->written_bytes = counters.written_bytes;
    out->verified_bytes = counters.verified_bytes;
    out->verify_ns = counters.verify_ns;
    return WEIR_OK;
}

enum weir_status weir_drive_at(weir_run *run, size_t index, struct weir_drive *out)
{
    WEIR_TRY(weir_run_alive(run));
    WEIR_TRY(weir_given_struct(out ? &out->struct_bytes : NULL, "weir_drive_at", "out"));
    if (index >= run->drives.count)
        return weir_fail(WEIR_ERR_ARG, "weir_drive_at: index %zu; the run has %u drives, from 0",
                         index, run->drives.count);
    struct weir_drive filled = {.struct_bytes = out->struct_bytes,
                                .path = run->drives.paths[index]};
    WEIR_TRY(drive_fill(run, index, &filled));
    memcpy(out, &filled, out->struct_bytes < sizeof filled ? out->struct_bytes : sizeof filled);
    return WEIR_OK;
}
