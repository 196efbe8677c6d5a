/* Any bytes as a machine's profile: rates that are positive numbers, which are written and read
 * again the same, or an error that names the file. */
#include "core/memory.h"
#include "examples/profile.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char directory[256];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!directory[0])
        fuzz_directory(directory);
    char path[300], copy[310];
    struct profile profile, again;
    uint64_t held = weir_alloc_bytes();
    fuzz_file(directory, "machine.json", data, size, path);
    snprintf(copy, sizeof copy, "%s.copy", path);
    enum weir_status status = profile_read(&profile, path);
    fuzz_named(status, path);
    if (status == WEIR_OK) {
        assert_true(isfinite(profile.cost.read_bytes_per_s) && profile.cost.read_bytes_per_s > 0);
        assert_true(profile.cost.latency_s > 0 && profile.core_count > 0);
        assert_true(profile.drive_count <= PROFILE_DRIVES_MOST);
        assert_ok(profile_write(&profile, copy));
        assert_ok(profile_read(&again, copy));
        assert_true(profile.cost.latency_s == again.cost.latency_s);
        assert_string_equal(profile.device, again.device);
        assert_int_equal(profile.drive_count, again.drive_count);
        profile_free(&again);
    }
    profile_free(&profile);
    assert_true(weir_alloc_bytes() == held);
    return 0;
}
