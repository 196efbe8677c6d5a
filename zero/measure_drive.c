/*
 * What each drive of the NVMe tier does alone, and all of them together: a scratch file in each
 * directory, written in full, gone at once.
 */
#include "core/clock.h"
#include "zero/run.h"

#define TRIES       3
#define SLICES      8u /* requests at once */
#define FILE_ROUNDS 2u
#define LEAST_BYTES ((uint64_t)4096 * SLICES)
#define GAIN        1.1 /* of a piece, to be taken before the usual one: less is a try's luck */

struct probe {
    struct weir_io *io;
    struct weir_extent extent;
    char *memory; /* sample_bytes; the file has FILE_ROUNDS times as many */
    uint64_t sample_bytes;
};

static double rate(double amount, uint64_t took_ns)
{
    return amount * 1e9 / (double)(took_ns > 0 ? took_ns : 1);
}

/* All of them, whatever becomes of one: none may be in flight when the file is closed. */
static enum weir_status requests_wait(struct weir_io *io, size_t requests)
{
    struct weir_error first = {.status = WEIR_OK};
    for (size_t done = 0, count; done < requests; done += count) {
        struct weir_io_result results[SLICES];
        WEIR_TRY(weir_io_reap(io, results, SLICES, WEIR_IO_FOREVER, &count));
        for (size_t i = 0; i < count; i++)
            if (results[i].status != WEIR_OK && first.status == WEIR_OK)
                first = results[i].error;
    }
    return first.status == WEIR_OK ? WEIR_OK : weir_fail_with(&first);
}

/* One pass over the file, each request with its own slice of the memory. */
static enum weir_status pass(struct probe *p, enum weir_io_kind kind, double *bytes_per_s)
{
    uint64_t begin = weir_now_ns(), slice = p->sample_bytes / SLICES;
    for (uint64_t round = 0; round < FILE_ROUNDS; round++) {
        struct weir_io_request requests[SLICES];
        for (uint64_t i = 0; i < SLICES; i++)
            requests[i] =
                (struct weir_io_request){.id = i,
                                         .kind = kind,
                                         .file = p->extent.file,
                                         .offset_bytes = round * p->sample_bytes + i * slice,
                                         .bytes = p->memory + i * slice,
                                         .byte_count = slice};
        WEIR_TRY(weir_io_submit(p->io, requests, SLICES));
        WEIR_TRY(requests_wait(p->io, SLICES));
    }
    *bytes_per_s = rate((double)(p->sample_bytes * FILE_ROUNDS), weir_now_ns() - begin);
    return WEIR_OK;
}

/* One small read with nothing else in flight; the fastest of a few. */
static enum weir_status latency(struct probe *p, double *latency_s)
{
    uint64_t best = UINT64_MAX;
    for (uint64_t i = 0; i < TRIES; i++) {
        struct weir_io_request request = {.id = i,
                                          .kind = WEIR_IO_READ,
                                          .file = p->extent.file,
                                          .offset_bytes = i * 4096,
                                          .bytes = p->memory,
                                          .byte_count = 4096};
        uint64_t begin = weir_now_ns();
        WEIR_TRY(weir_io_submit(p->io, &request, 1));
        WEIR_TRY(requests_wait(p->io, 1));
        uint64_t took = weir_now_ns() - begin;
        best = took < best ? took : best;
    }
    *latency_s = (double)best * 1e-9;
    return WEIR_OK;
}

/* Both ways, with pieces of so many bytes. */
static enum weir_status rates_find(struct probe *p, struct weir_drive_rate *out)
{
    WEIR_TRY(weir_drives_tune(p->io, &p->extent, out));
    WEIR_TRY(pass(p, WEIR_IO_WRITE, &out->write_bytes_per_s));
    return pass(p, WEIR_IO_READ, &out->read_bytes_per_s);
}

static double both_ways(const struct weir_drive_rate *rate)
{
    return 1 / (1 / rate->read_bytes_per_s + 1 / rate->write_bytes_per_s);
}

/* The usual piece, or another that is clearly faster there. */
static enum weir_status drive_rates(struct probe *p, struct weir_drive_rate *out)
{
    static const uint64_t pieces[] = {1u << 20, 4u << 20};
    *out = (struct weir_drive_rate){.piece_bytes = 0};
    WEIR_TRY(rates_find(p, out));
    double best = both_ways(out);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct weir_drive_rate kept = *out;
        out->piece_bytes = pieces[i];
        WEIR_TRY(rates_find(p, out));
        if (both_ways(out) > best * GAIN)
            best = both_ways(out);
        else
            *out = kept;
    }
    return WEIR_OK;
}

static enum weir_status probe_make(struct probe *p, const weir_run *run,
                                   const struct weir_extent_place *places, uint32_t count,
                                   uint64_t bytes)
{
    WEIR_TRY(weir_run_io_open(run, NULL, &p->io));
    WEIR_TRY(weir_io_memory_add(p->io, p->memory, bytes));
    /* A drive with room for the extent need not have it for the sample. */
    while (bytes > LEAST_BYTES &&
           weir_extent_preflight(places, count, bytes * FILE_ROUNDS) == WEIR_ERR_NOSPACE)
        bytes /= 2;
    p->sample_bytes = bytes;
    return weir_extent_open(&p->extent, p->io,
                            &(struct weir_extent_options){.places = places,
                                                          .place_count = count,
                                                          .byte_count = bytes * FILE_ROUNDS});
}

/* Returns status, with its error. */
static enum weir_status probe_end(struct probe *p, enum weir_status status)
{
    struct weir_error error = *weir_last_error();
    weir_io_close(p->io); /* waits for what is in flight; only then may a file's number be free */
    weir_extent_close(&p->extent);
    return status == WEIR_OK ? WEIR_OK : weir_fail_with(&error);
}

static enum weir_status alone(weir_run *run, uint32_t drive, void *memory, uint64_t bytes,
                              double *latency_s)
{
    struct probe p = {.memory = memory};
    struct weir_extent_place place = {.directory = run->drives.paths[drive]};
    enum weir_status status = probe_make(&p, run, &place, 1, bytes);
    if (status == WEIR_OK)
        status = drive_rates(&p, &run->drives.rates[drive]);
    if (status == WEIR_OK)
        status = latency(&p, latency_s);
    return probe_end(&p, status);
}

/* Drives may share a bus or a file system: what they do at once is not the sum. */
static enum weir_status together(weir_run *run, void *memory, uint64_t bytes,
                                 struct weir_drive_rate *out)
{
    struct probe p = {.memory = memory};
    struct weir_extent_place places[WEIR_DRIVES_MOST];
    weir_drives_places(&run->drives, places);
    enum weir_status status = probe_make(&p, run, places, run->drives.count, bytes);
    if (status == WEIR_OK)
        status = weir_drives_tune(p.io, &p.extent, run->drives.rates);
    if (status == WEIR_OK)
        status = pass(&p, WEIR_IO_WRITE, &out->write_bytes_per_s);
    if (status == WEIR_OK)
        status = pass(&p, WEIR_IO_READ, &out->read_bytes_per_s);
    return probe_end(&p, status);
}

enum weir_status weir_drives_measure(weir_run *run, void *memory, uint64_t bytes,
                                     struct weir_cost *out)
{
    /* Without drives no plan moves a byte there; the walk only divides by it. */
    struct weir_drive_rate all = {.read_bytes_per_s = 1, .write_bytes_per_s = 1};
    for (uint32_t i = 0; i < run->drives.count; i++) {
        double latency_s;
        WEIR_TRY(alone(run, i, memory, bytes, &latency_s));
        /* A transfer is complete when its part on each drive is. */
        out->latency_s = latency_s > out->latency_s ? latency_s : out->latency_s;
        all = run->drives.rates[i];
    }
    if (run->drives.count > 1)
        WEIR_TRY(together(run, memory, bytes, &all));
    out->read_bytes_per_s = all.read_bytes_per_s;
    out->write_bytes_per_s = all.write_bytes_per_s;
    return WEIR_OK;
}
