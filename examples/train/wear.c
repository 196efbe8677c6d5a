#include "examples/train/wear.h"
#include "examples/flags.h"

#include <stdio.h>
#include <string.h>

#define LEAST_BYTES 1000000000u /* of an endurance: a unit was forgotten */

static size_t names_count(const char *list)
{
    size_t count = 1;
    for (const char *at = strchr(list, ','); at; at = strchr(at + 1, ','))
        count++;
    return count;
}

enum weir_status wear_read(struct wear *wear, const char *list, const char *nvme)
{
    *wear = (struct wear){.count = nvme ? names_count(nvme) : 0};
    if (!list)
        return WEIR_OK;
    size_t given = names_count(list);
    if (wear->count > WEIR_DRIVES_MOST || (given != 1 && given != wear->count))
        return weir_fail(WEIR_ERR_ARG,
                         "--endurance \"%s\" has %zu sizes, --nvme %zu directories; give one size "
                         "for all or one a directory (at most %d)",
                         list, given, wear->count, WEIR_DRIVES_MOST);
    for (size_t i = 0; i < given; i++) {
        size_t length = strcspn(list, ",");
        uint64_t bytes;
        WEIR_TRY(flag_bytes("--endurance", list, length, &bytes));
        if (bytes < LEAST_BYTES)
            return weir_fail(WEIR_ERR_ARG,
                             "--endurance \"%.*s\" is %llu bytes, which no drive has for a life; "
                             "give a unit, as 600TB",
                             (int)(length < 40 ? length : 40), list, (unsigned long long)bytes);
        wear->endurance_bytes[i] = (double)bytes;
        list += length + 1;
    }
    for (size_t i = given; i < wear->count; i++)
        wear->endurance_bytes[i] = wear->endurance_bytes[0];
    return WEIR_OK;
}

static enum weir_status drive_at(weir_run *run, size_t index, struct weir_drive *out)
{
    *out = (struct weir_drive){.struct_bytes = sizeof *out};
    return weir_drive_at(run, index, out);
}

static void life_print(double endurance_bytes, double written_bytes, double step_bytes,
                       double step_s)
{
    if (endurance_bytes <= 0)
        return;
    if (step_bytes <= 0) {
        printf("; a step writes nothing there");
        return;
    }
    double left = endurance_bytes > written_bytes ? endurance_bytes - written_bytes : 0;
    printf("; of %.4g TB endurance ", endurance_bytes * 1e-12);
    if (written_bytes > 0)
        printf("%.2g %% are used, ", 100 * written_bytes / endurance_bytes);
    printf("%.3g steps are left", left / step_bytes);
    if (step_s > 0)
        printf(", %.3g days without a pause", left / step_bytes * step_s / 86400);
}

enum weir_status wear_plan(const struct wear *wear, weir_run *run, const struct weir_prediction *p)
{
    for (size_t i = 0; i < wear->count; i++) {
        struct weir_drive drive;
        WEIR_TRY(drive_at(run, i, &drive));
        double step_bytes = drive.share * (double)p->step_written_bytes;
        printf("  nvme %s: needs %.2f of %.2f GB free, %.0f %% of the tier, reads %.2f and writes "
               "%.2f GB/s; a step writes %.3f GB there",
               drive.path, drive.share * (double)p->nvme_bytes * 1e-9,
               (double)(drive.free_bytes + drive.byte_count) * 1e-9, 100 * drive.share,
               drive.rate.read_bytes_per_s * 1e-9, drive.rate.write_bytes_per_s * 1e-9,
               step_bytes * 1e-9);
        life_print(wear->endurance_bytes[i], 0, step_bytes, p->step_s);
        printf("\n");
    }
    fflush(stdout);
    return WEIR_OK;
}

enum weir_status wear_summary(const struct wear *wear, weir_run *run, double written_step_bytes)
{
    for (size_t i = 0; i < wear->count; i++) {
        struct weir_drive drive;
        WEIR_TRY(drive_at(run, i, &drive));
        printf("nvme %s: read %.3f GB, written %.3f GB", drive.path,
               (double)drive.read_bytes * 1e-9, (double)drive.written_bytes * 1e-9);
        if (drive.verify_ns > 0)
            printf(", %.3f GB verified, hashing took %.3f s", (double)drive.verified_bytes * 1e-9,
                   (double)drive.verify_ns * 1e-9);
        life_print(wear->endurance_bytes[i], (double)drive.written_bytes,
                   drive.share * written_step_bytes, 0);
        printf("\n");
    }
    fflush(stdout);
    return WEIR_OK;
}

enum weir_status wear_written(weir_run *run, uint64_t *bytes)
{
    *bytes = 0;
    for (size_t i = 0; i < weir_drive_count(run); i++) {
        struct weir_drive drive;
        WEIR_TRY(drive_at(run, i, &drive));
        *bytes += drive.written_bytes;
    }
    return WEIR_OK;
}
