/*
 * A front with a volume over files of its own, as long as their shares say: "drive0" and so on.
 */
#ifndef WEIR_TESTS_SUPPORT_VOLUME_H
#define WEIR_TESTS_SUPPORT_VOLUME_H

#include "io/io.h"
#include "tests/support_engine.h"

struct test_volume {
    struct weir_io *io;
    uint32_t count;
    int fds[WEIR_IO_DRIVES_MOST];
    uint32_t files[WEIR_IO_DRIVES_MOST];
    uint64_t bytes[WEIR_IO_DRIVES_MOST]; /* of each file */
    uint32_t volume;
};

struct test_volume_spec {
    struct weir_io_options options; /* drive_count 0: as many as there are files */
    const char *directory;          /* NULL: the group's */
    int flags;                      /* of open: O_DIRECT or 0 */
    uint32_t align_bytes;           /* of direct files; 0: as the system says */
    uint32_t count;
    const double *shares;
    uint64_t stripe_bytes, byte_count;
    bool verify;
};

enum weir_status test_volume_try(struct test_volume *out, const struct test_volume_spec *spec);
void test_volume_open(struct test_volume *out, const struct test_volume_spec *spec);
void test_volume_close(struct test_volume *volume);

/* Shares from 0.05 to 1; now and then a 0, never all. */
void test_shares_draw(struct test_random *random, double *shares, uint32_t count);

#endif
