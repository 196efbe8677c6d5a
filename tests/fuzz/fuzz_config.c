/* Any bytes as a model's config.json: a model of positive size, which reads the same again, or an
 * error that names the file. */
#include "core/memory.h"
#include "examples/train/config.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

static char directory[256];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!directory[0])
        fuzz_directory(directory);
    char path[300];
    struct llama_config config, again;
    uint64_t held = weir_alloc_bytes();
    fuzz_file(directory, "config.json", data, size, path);
    enum weir_status status = llama_config_read(&config, path);
    fuzz_named(status, path);
    if (status == WEIR_OK) {
        uint64_t count = llama_config_parameter_count(&config);
        assert_true(count > 0 && config.heads % config.kv_heads == 0);
        double flops = llama_config_token_flops(&config, 1024);
        assert_true(isfinite(flops) && flops > 0);
        assert_ok(llama_config_parse(&again, "again", config.text, config.text_bytes));
        assert_true(count == llama_config_parameter_count(&again));
        llama_config_free(&again);
    }
    llama_config_free(&config);
    assert_true(weir_alloc_bytes() == held);
    return 0;
}
