#include "tests/support_volume.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static enum weir_status files_open(struct test_volume *v, const struct test_volume_spec *spec)
{
    for (uint32_t d = 0; d < spec->count; d++) {
        char name[16];
        snprintf(name, sizeof name, "drive%u", d);
        WEIR_TRY(weir_io_file_open(v->io, name, v->fds[d], (spec->flags & O_DIRECT) != 0,
                                   spec->align_bytes, &v->files[d]));
        if (spec->verify && v->bytes[d] > 0)
            WEIR_TRY(weir_io_file_verify(v->io, v->files[d], v->bytes[d]));
    }
    return weir_io_volume_open(v->io, "volume", v->files, spec->shares, spec->count,
                               spec->stripe_bytes, &v->volume);
}

enum weir_status test_volume_try(struct test_volume *out, const struct test_volume_spec *spec)
{
    const char *directory = spec->directory != NULL ? spec->directory : test_directory;
    *out = (struct test_volume){.count = spec->count};
    struct weir_io_options options = spec->options;
    options.drive_count = options.drive_count != 0 ? options.drive_count : spec->count;
    uint64_t block = spec->align_bytes > 4096 ? spec->align_bytes : 4096;
    assert_ok(weir_io_volume_share(spec->shares, spec->count, spec->stripe_bytes, spec->byte_count,
                                   out->bytes));
    for (uint32_t d = 0; d < spec->count; d++) {
        out->bytes[d] = (out->bytes[d] + block - 1) / block * block;
        out->fds[d] = open(directory, O_TMPFILE | O_RDWR | spec->flags, 0600);
        assert_true(out->fds[d] > 0);
        assert_int_equal(0, ftruncate(out->fds[d], (off_t)out->bytes[d]));
    }
    enum weir_status status = weir_io_open(&out->io, &options);
    if (status == WEIR_OK)
        status = files_open(out, spec);
    if (status != WEIR_OK)
        test_volume_close(out);
    return status;
}

void test_volume_open(struct test_volume *out, const struct test_volume_spec *spec)
{
    assert_ok(test_volume_try(out, spec));
}

void test_volume_close(struct test_volume *volume)
{
    weir_io_close(volume->io);
    for (uint32_t d = 0; d < volume->count; d++)
        close(volume->fds[d]);
    *volume = (struct test_volume){.count = 0};
}

void test_shares_draw(struct test_random *random, double *shares, uint32_t count)
{
    for (uint32_t d = 0; d < count; d++)
        shares[d] = test_random_below(random, 8) == 0 ? 0 : 0.05 + 0.95 * test_random_unit(random);
    shares[test_random_below(random, count)] = 0.5;
}
