#include "io/extent_internal.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define STRIPE_BYTES_MOST  (1u << 20) /* what drives move at their full rate */
#define STRIPE_BYTES_LEAST 65536u     /* no drive's alignment is larger */
#define STRIPES_LEAST      256u /* of an extent if it can be, so that a small one is spread as well */
#define SHARE_LEAST        (1.0 / 128) /* below it a drive's stripes would be too many for it */
#define SHARE_STEP         0.97
/* Of free space that is not taken where another drive can do it: file systems slow down when full.
 */
#define MARGIN_PART 64u

static enum weir_status place_check(const struct weir_extent_place *place, uint32_t count)
{
    struct stat stat_;
    if (stat(place->directory, &stat_) != 0)
        return weir_fail_errno(WEIR_ERR_ARG, errno, "extent \"%s\": no such directory",
                               place->directory);
    if (!S_ISDIR(stat_.st_mode))
        return weir_fail(WEIR_ERR_ARG, "extent \"%s\": not a directory", place->directory);
    if (access(place->directory, W_OK | X_OK) != 0)
        return weir_fail_errno(WEIR_ERR_ARG, errno, "extent \"%s\": cannot be written",
                               place->directory);
    if (count > 1 && (!isfinite(place->bytes_per_s) || place->bytes_per_s <= 0))
        return weir_fail(WEIR_ERR_ARG, "extent \"%s\": a rate of %g bytes/s; give a positive one",
                         place->directory, place->bytes_per_s);
    return WEIR_OK;
}

static double rate_of(const struct weir_extent_place *place, uint32_t count)
{
    return count > 1 ? place->bytes_per_s : 1;
}

static bool same_system(const char *a, const char *b)
{
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev;
}

/* Directories on one file system have its free bytes together: each a part, by rate. */
static enum weir_status free_find(struct weir_extent_spread *out,
                                  const struct weir_extent_place *places, uint32_t count)
{
    for (uint32_t d = 0; d < count; d++) {
        struct statvfs space;
        double together = 0;
        if (statvfs(places[d].directory, &space) != 0)
            return weir_fail_errno(WEIR_ERR_IO, errno, "extent \"%s\": free space unknown",
                                   places[d].directory);
        for (uint32_t other = 0; other < count; other++)
            if (other == d || same_system(places[d].directory, places[other].directory))
                together += rate_of(&places[other], count);
        uint64_t free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
        double part = rate_of(&places[d], count) / together;
        out->free_bytes[d] = part < 1 ? (uint64_t)((double)free_bytes * part) : free_bytes;
    }
    return WEIR_OK;
}

static uint64_t room_of(const struct weir_extent_spread *spread, uint32_t d, uint32_t count)
{
    uint64_t free_bytes = spread->free_bytes[d];
    return count > 1 ? free_bytes - free_bytes / MARGIN_PART : free_bytes;
}

static enum weir_status space_fail(const struct weir_extent_spread *spread,
                                   const struct weir_extent_place *places, uint32_t count,
                                   uint32_t d)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += spread->free_bytes[i];
    if (count == 1)
        return weir_fail(WEIR_ERR_NOSPACE,
                         "extent \"%s\": need %llu bytes, %llu free; free some there or choose "
                         "another directory",
                         places->directory, (unsigned long long)spread->needed_bytes,
                         (unsigned long long)sum);
    return weir_fail(
        WEIR_ERR_NOSPACE,
        "extent \"%s\": need %llu bytes there, %llu free; %llu needed and %llu free in "
        "all %u directories, of which 1/%u stays free; free some or add a directory",
        places[d].directory, (unsigned long long)spread->bytes[d],
        (unsigned long long)spread->free_bytes[d], (unsigned long long)spread->needed_bytes,
        (unsigned long long)sum, count, MARGIN_PART);
}

/* A drive that lacks the space gives up a part of its share, or all of it, to those that have had
 * enough so far. False: there is nobody left. */
static bool share_lower(struct weir_extent_spread *spread, bool *limited, uint32_t count,
                        uint32_t d)
{
    double room = (double)room_of(spread, d, count) / (double)spread->needed_bytes;
    double lower = spread->shares[d] * SHARE_STEP;
    lower = room < lower ? room : lower;
    spread->shares[d] = lower < SHARE_LEAST ? 0 : lower;
    limited[d] = true;
    double taken = 0, wished = 0;
    for (uint32_t i = 0; i < count; i++) {
        taken += limited[i] ? spread->shares[i] : 0;
        wished += limited[i] ? 0 : spread->wishes[i];
    }
    for (uint32_t i = 0; i < count; i++)
        if (!limited[i])
            spread->shares[i] = spread->wishes[i] / wished * (1 - taken);
    return wished > 0;
}

/* The first with more bytes than room; count: all fit. */
static uint32_t short_find(const struct weir_extent_spread *spread, uint32_t count)
{
    uint32_t d = 0;
    while (d < count && spread->bytes[d] <= room_of(spread, d, count))
        d++;
    return d;
}

/* A drive too slow for one stripe of the longest cycle would slow the others by more than it moves:
 * it wishes for nothing, unless `every` byte of space is needed. The fastest never is. True: none
 * was. */
static bool wishes_make(struct weir_extent_spread *out, const struct weir_extent_place *places,
                        uint32_t count, bool every)
{
    bool all = true;
    double sum = 0, kept = 0;
    for (uint32_t d = 0; d < count; d++)
        sum += rate_of(&places[d], count);
    for (uint32_t d = 0; d < count; d++) {
        double rate = rate_of(&places[d], count);
        out->wishes[d] = rate * WEIR_IO_STRIPES_MOST < sum && !every ? 0 : rate;
        all = all && out->wishes[d] > 0;
        kept += out->wishes[d];
    }
    for (uint32_t d = 0; d < count; d++)
        out->wishes[d] = out->shares[d] = out->wishes[d] / kept;
    return all;
}

/* Shares by wish, as far as there is space. */
static enum weir_status wishes_grant(struct weir_extent_spread *out,
                                     const struct weir_extent_place *places, uint32_t count)
{
    bool limited[WEIR_IO_DRIVES_MOST] = {false};
    for (;;) {
        WEIR_TRY(weir_io_volume_share(out->shares, count, out->stripe_bytes, out->needed_bytes,
                                      out->bytes));
        uint32_t d = short_find(out, count);
        if (d == count)
            return WEIR_OK;
        struct weir_extent_spread before = *out;
        if (!share_lower(out, limited, count, d))
            return space_fail(&before, places, count, d);
    }
}

static uint64_t stripe_choose(uint64_t bytes)
{
    uint64_t stripe = STRIPE_BYTES_MOST;
    while (stripe > STRIPE_BYTES_LEAST && stripe > bytes / STRIPES_LEAST)
        stripe /= 2;
    return stripe;
}

enum weir_status weir_extent_spread(struct weir_extent_spread *out,
                                    const struct weir_extent_place *places, uint32_t count,
                                    uint64_t bytes)
{
    if (count == 0 || count > WEIR_IO_DRIVES_MOST)
        return weir_fail(WEIR_ERR_ARG, "extent: %u directories; give 1 to %u", count,
                         WEIR_IO_DRIVES_MOST);
    *out = (struct weir_extent_spread){.stripe_bytes = stripe_choose(bytes), .needed_bytes = bytes};
    for (uint32_t d = 0; d < count; d++)
        WEIR_TRY(place_check(&places[d], count));
    WEIR_TRY(free_find(out, places, count));
    bool all = wishes_make(out, places, count, false);
    enum weir_status status = wishes_grant(out, places, count);
    if (all || status != WEIR_ERR_NOSPACE)
        return status;
    (void)wishes_make(out, places, count, true);
    return wishes_grant(out, places, count);
}

enum weir_status weir_extent_preflight(const struct weir_extent_place *places, uint32_t count,
                                       uint64_t bytes)
{
    struct weir_extent_spread spread;
    return weir_extent_spread(&spread, places, count, bytes);
}
