#include "core/memory.h"
#include "io/io_internal.h"

#include <math.h>
#include <string.h>

/* A longer cycle is taken if it brings at least this much. */
#define CYCLE_GAIN 0.999

static enum weir_status shares_check(const double *shares, uint32_t count, uint64_t stripe_bytes)
{
    if (count == 0 || count > WEIR_IO_DRIVES_MOST)
        return weir_fail(WEIR_ERR_ARG, "volume: %u files; give 1 to %u", count,
                         WEIR_IO_DRIVES_MOST);
    if (stripe_bytes == 0 || stripe_bytes % WEIR_IO_VERIFY_BYTES != 0 ||
        stripe_bytes > UINT64_C(1) << 40)
        return weir_fail(WEIR_ERR_ARG,
                         "volume: stripes of %llu bytes; give a multiple of %u up to 2^40",
                         (unsigned long long)stripe_bytes, WEIR_IO_VERIFY_BYTES);
    bool any = false;
    for (uint32_t d = 0; d < count; d++) {
        if (!isfinite(shares[d]) || shares[d] < 0)
            return weir_fail(WEIR_ERR_ARG, "volume: file %u has a share of %g; give 0 or more", d,
                             shares[d]);
        any = any || shares[d] > 0;
    }
    return any ? WEIR_OK
               : weir_fail(WEIR_ERR_ARG, "volume: %u files, each with a share of 0; give one more",
                           count);
}

/* The drive that would be done first with one stripe more. */
static uint32_t drive_next(const double *shares, uint32_t count, const uint8_t *counts)
{
    uint32_t best = 0;
    double best_time = INFINITY;
    for (uint32_t d = 0; d < count; d++) {
        double time = (counts[d] + 1) / shares[d]; /* infinite for a share of 0 */
        if (time < best_time) {
            best_time = time;
            best = d;
        }
    }
    return best;
}

/* Time of a cycle for each of its stripes: that of the drive that is done last. */
static double stripe_time(const double *shares, uint32_t count, const uint8_t *counts,
                          uint32_t cycle)
{
    double most = 0;
    for (uint32_t d = 0; d < count; d++)
        if (counts[d] > 0 && counts[d] / shares[d] > most)
            most = counts[d] / shares[d];
    return most / cycle;
}

/* One stripe for each drive with a share, then one by one for whoever is done with it first: of all
 * ways to give so many, none has an earlier end. The length of the best cycle is kept. */
static void counts_choose(struct weir_io_stripes *stripes, const double *shares)
{
    uint8_t counts[WEIR_IO_DRIVES_MOST] = {0};
    uint32_t drives = stripes->drive_count, cycle = 0;
    for (uint32_t d = 0; d < drives; d++)
        cycle += counts[d] = shares[d] > 0;
    double best = INFINITY;
    for (; cycle <= WEIR_IO_STRIPES_MOST; cycle++) {
        double time = stripe_time(shares, drives, counts, cycle);
        if (time < best * CYCLE_GAIN) {
            best = time;
            stripes->cycle_count = cycle;
            memcpy(stripes->counts, counts, sizeof counts);
        }
        counts[drive_next(shares, drives, counts)]++;
    }
}

/* Each drive's stripes as evenly spaced as the others allow: all gain by their count at every
 * stripe, the one with most takes it and pays a cycle. */
static void stripes_interleave(struct weir_io_stripes *stripes)
{
    int gains[WEIR_IO_DRIVES_MOST] = {0};
    uint8_t given[WEIR_IO_DRIVES_MOST] = {0};
    for (uint32_t s = 0; s < stripes->cycle_count; s++) {
        uint32_t owner = 0;
        for (uint32_t d = 0; d < stripes->drive_count; d++) {
            stripes->upto[d][s] = given[d];
            gains[d] += stripes->counts[d];
            owner = gains[d] > gains[owner] ? d : owner;
        }
        gains[owner] -= (int)stripes->cycle_count;
        stripes->drives[s] = (uint8_t)owner;
        stripes->places[owner][given[owner]++] = (uint8_t)s;
    }
}

enum weir_status weir_io_stripes_make(struct weir_io_stripes *out, const double *shares,
                                      uint32_t count, uint64_t stripe_bytes)
{
    WEIR_TRY(shares_check(shares, count, stripe_bytes));
    *out = (struct weir_io_stripes){.stripe_bytes = stripe_bytes, .drive_count = count};
    /* Scaled, so that no quotient of a tiny share overflows. */
    double most = 0, scaled[WEIR_IO_DRIVES_MOST];
    for (uint32_t d = 0; d < count; d++)
        most = shares[d] > most ? shares[d] : most;
    for (uint32_t d = 0; d < count; d++)
        scaled[d] = shares[d] == 0 ? 0 : fmax(shares[d] / most, 1e-9);
    counts_choose(out, scaled);
    stripes_interleave(out);
    return WEIR_OK;
}

uint64_t weir_io_stripes_local(const struct weir_io_stripes *stripes, uint32_t drive,
                               uint64_t linear_bytes)
{
    uint64_t number = linear_bytes / stripes->stripe_bytes;
    uint64_t place = number % stripes->cycle_count;
    uint64_t local =
        number / stripes->cycle_count * stripes->counts[drive] + stripes->upto[drive][place];
    bool within = stripes->drives[place] == drive;
    return local * stripes->stripe_bytes + (within ? linear_bytes % stripes->stripe_bytes : 0);
}

uint64_t weir_io_stripes_linear(const struct weir_io_stripes *stripes, uint32_t drive,
                                uint64_t local_bytes)
{
    uint64_t number = local_bytes / stripes->stripe_bytes;
    uint64_t place = stripes->places[drive][number % stripes->counts[drive]];
    uint64_t linear = number / stripes->counts[drive] * stripes->cycle_count + place;
    return linear * stripes->stripe_bytes + local_bytes % stripes->stripe_bytes;
}

uint64_t weir_io_stripes_run(const struct weir_io_stripes *stripes, uint64_t linear_bytes,
                             uint64_t most_bytes)
{
    uint64_t number = linear_bytes / stripes->stripe_bytes;
    uint8_t owner = stripes->drives[number % stripes->cycle_count];
    uint64_t run = stripes->stripe_bytes - linear_bytes % stripes->stripe_bytes;
    while (run < most_bytes && stripes->drives[++number % stripes->cycle_count] == owner)
        run += stripes->stripe_bytes;
    return run;
}

enum weir_status weir_io_volume_share(const double *shares, uint32_t count, uint64_t stripe_bytes,
                                      uint64_t byte_count, uint64_t *bytes)
{
    struct weir_io_stripes stripes;
    WEIR_TRY(weir_io_stripes_make(&stripes, shares, count, stripe_bytes));
    for (uint32_t d = 0; d < count; d++)
        bytes[d] = weir_io_stripes_local(&stripes, d, byte_count);
    return WEIR_OK;
}

static enum weir_status volume_check(const struct weir_io *io, const char *name,
                                     const uint32_t *files, uint32_t count, uint64_t stripe_bytes)
{
    if (io->slot_idle_count < io->slot_count)
        return weir_fail(WEIR_ERR_STATE,
                         "volume \"%s\": opened with %u requests outstanding; reap them first",
                         name, io->slot_count - io->slot_idle_count);
    for (uint32_t d = 0; d < count; d++) {
        if (files[d] >= io->file_count || io->files[files[d]].volume != NULL)
            return weir_fail(WEIR_ERR_ARG, "volume \"%s\": its file %u is number %u, %s", name, d,
                             files[d],
                             files[d] < io->file_count ? "a volume itself" : "which is not open");
        for (uint32_t other = 0; other < d; other++)
            if (files[other] == files[d])
                return weir_fail(WEIR_ERR_ARG, "volume \"%s\": file \"%s\" is named twice", name,
                                 io->files[files[d]].name);
        if (stripe_bytes % io->files[files[d]].align_bytes != 0)
            return weir_fail(WEIR_ERR_ARG,
                             "volume \"%s\": stripes of %llu bytes, file \"%s\" needs multiples "
                             "of %u",
                             name, (unsigned long long)stripe_bytes, io->files[files[d]].name,
                             io->files[files[d]].align_bytes);
    }
    return WEIR_OK;
}

static enum weir_status volume_fill(struct weir_io *io, struct weir_io_file *added,
                                    const struct weir_io_volume *volume)
{
    WEIR_TRY(weir_io_strands_make(io, volume->stripes.drive_count));
    WEIR_TRY(weir_alloc(&added->volume, 1, sizeof *added->volume, "an I/O volume"));
    *added->volume = *volume;
    return WEIR_OK;
}

enum weir_status weir_io_volume_open(struct weir_io *io, const char *name, const uint32_t *files,
                                     const double *shares, uint32_t count, uint64_t stripe_bytes,
                                     uint32_t *volume)
{
    struct weir_io_volume made = {.files = {0}};
    WEIR_TRY(weir_io_stripes_make(&made.stripes, shares, count, stripe_bytes));
    WEIR_TRY(volume_check(io, name, files, count, stripe_bytes));
    memcpy(made.files, files, count * sizeof *files);
    struct weir_io_file *added;
    WEIR_TRY(weir_io_file_add(io, name, &added));
    enum weir_status status = volume_fill(io, added, &made);
    if (status != WEIR_OK) {
        weir_free(added->name);
        return status;
    }
    *volume = (uint32_t)io->file_count++;
    return WEIR_OK;
}
