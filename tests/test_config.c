/* config.json: what is used, what is ignored, and that everything else is refused by name. */
#include "core/memory.h"
#include "examples/train/config.h"
#include "tests/support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SIZES                                                                                      \
    "\"model_type\": \"llama\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "                   \
    "\"num_attention_heads\": 6, \"intermediate_size\": 100, \"vocab_size\": 300"

static enum weir_status parse_text(struct llama_config *config, const char *text)
{
    return llama_config_parse(config, "config.json", text, strlen(text));
}

/* A good config with more keys. */
static enum weir_status parse_with(struct llama_config *config, const char *more)
{
    char text[4096];
    snprintf(text, sizeof text, "{" SIZES "%s%s}", *more ? ", " : "", more);
    return parse_text(config, text);
}

static void refuses(enum weir_status status, const char *more, const char *part)
{
    struct llama_config config;
    assert_fails(parse_with(&config, more), status, part);
    assert_null(config.text);
    assert_null(strchr(weir_last_error()->text, '\n'));
}

/* Absent keys take the values that transformers gives them. */
static void absent_keys_have_transformers_defaults(void **state)
{
    (void)state;
    struct llama_config c;
    assert_ok(parse_with(&c, ""));
    assert_int_equal(48, c.hidden);
    assert_int_equal(3, c.layer_count);
    assert_int_equal(6, c.heads);
    assert_int_equal(6, c.kv_heads);
    assert_int_equal(8, c.head_dim);
    assert_int_equal(100, c.intermediate);
    assert_int_equal(300, c.vocab);
    assert_int_equal(2048, c.position_count);
    assert_false(c.tied);
    assert_true(c.norm_eps == 1e-6f && c.init_deviation == 0.02f);
    assert_true(c.rope.theta == 10000 && c.rope.scaling == WEIR_ROPE_PLAIN);
    assert_null(c.directory);
    assert_int_equal(c.text_bytes, strlen(c.text));
    llama_config_free(&c);
}

/* Every key that is used reaches its field; null is the same as absent. */
static void given_keys_are_used(void **state)
{
    (void)state;
    struct llama_config c;
    assert_ok(parse_with(&c, "\"architectures\": [\"LlamaForCausalLM\"], \"hidden_act\": \"silu\", "
                             "\"num_key_value_heads\": 2, \"head_dim\": 10, "
                             "\"tie_word_embeddings\": true, \"rms_norm_eps\": 1e-5, "
                             "\"initializer_range\": 0.5, \"max_position_embeddings\": 77, "
                             "\"rope_theta\": 5e5"));
    assert_int_equal(2, c.kv_heads);
    assert_int_equal(10, c.head_dim);
    assert_int_equal(77, c.position_count);
    assert_true(c.tied && c.norm_eps == 1e-5f && c.init_deviation == 0.5f);
    assert_true(c.rope.theta == 5e5);
    llama_config_free(&c);
    assert_ok(parse_with(&c,
                         "\"num_key_value_heads\": null, \"head_dim\": null, \"architectures\": "
                         "null, \"tie_word_embeddings\": null, \"rope_scaling\": null, "
                         "\"attention_bias\": null, \"rope_theta\": null"));
    assert_int_equal(6, c.kv_heads);
    assert_int_equal(8, c.head_dim);
    llama_config_free(&c);
}

/* Special tokens, generation and storage keys change nothing and may hold anything. */
static void harmless_keys_are_ignored(void **state)
{
    (void)state;
    struct llama_config c;
    assert_ok(parse_with(&c, "\"bos_token_id\": 1, \"eos_token_id\": [2, 3], \"torch_dtype\": "
                             "\"float16\", \"dtype\": \"bfloat16\", \"use_cache\": false, "
                             "\"transformers_version\": \"5.0.0\", \"_name_or_path\": \"x\", "
                             "\"attention_bias\": false, \"mlp_bias\": false, "
                             "\"attention_dropout\": 0.0, \"pretraining_tp\": 1, "
                             "\"partial_rotary_factor\": 1.0, \"sliding_window\": null, "
                             "\"quantization_config\": null, \"pruned_heads\": {}"));
    llama_config_free(&c);
}

/* What would train another model is refused, and the error names key and value. */
static void what_changes_the_model_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\"attention_bias\": true", "attention_bias is true; weir-train computes with false only"},
        {"\"mlp_bias\": true", "mlp_bias is true"},
        {"\"attention_dropout\": 0.1", "attention_dropout is 0.1"},
        {"\"hidden_dropout\": 0.5", "hidden_dropout is 0.5"},
        {"\"hidden_act\": \"gelu\"", "hidden_act is \"gelu\"; weir-train computes with silu only"},
        {"\"architectures\": [\"MistralForCausalLM\"]",
         "architectures is [\"MistralForCausalLM\"]"},
        {"\"architectures\": [\"LlamaForCausalLM\", \"X\"]", "architectures is"},
        {"\"architectures\": \"LlamaForCausalLM\"", "architectures is \"LlamaForCausalLM\""},
        {"\"architectures\": []", "architectures is []"},
        {"\"sliding_window\": 4096", "sliding_window is 4096"},
        {"\"use_sliding_window\": true", "use_sliding_window is true"},
        {"\"quantization_config\": {\"bits\": 4}", "quantization_config is {\"bits\":4}"},
        {"\"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5"},
        {"\"pretraining_tp\": 2", "pretraining_tp is 2"},
        {"\"pruned_heads\": {\"0\": [1]}", "pruned_heads is"},
        {"\"rope_interleaved\": true", "rope_interleaved is true"},
        {"\"is_encoder_decoder\": true", "is_encoder_decoder is true"},
        {"\"attention_bias\": 0", "attention_bias is 0"},
        {"\"head_dim\": 7", "head_dim 7 is odd"},
        {"\"logit_scale\": 2", "unknown key \"logit_scale\""},
        {"\"auto_map\": {}", "unknown key \"auto_map\""},
        {"\"two\\nlines\": 0", "unknown key \"two\\nlines\""},
        {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}",
         "rope_scaling.rope_type is \"yarn\""},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
         "rope_scaling.type is \"dynamic\""},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"low_freq_factor\": 1}",
         "rope_scaling.low_freq_factor is 1"},
        {"\"rope_scaling\": {\"type\": \"default\", \"factor\": 2}", "rope_scaling.factor is 2"},
        {"\"rope_parameters\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.5}",
         "rope_parameters.partial_rotary_factor is 0.5"},
        {"\"rope_parameters\": {\"beta_fast\": 32}", "rope_parameters.beta_fast is 32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(WEIR_ERR_UNSUPPORTED, cases[i][0], cases[i][1]);
    struct llama_config c;
    assert_fails(parse_text(&c, "{\"model_type\": \"mistral\"}"), WEIR_ERR_UNSUPPORTED,
                 "model_type is \"mistral\"");
}

/* Sizes that are missing, of the wrong type, out of range or at odds are one error with figures. */
static void bad_sizes_are_refused_with_figures(void **state)
{
    (void)state;
    static const char *const keys[] = {"hidden_size", "num_hidden_layers", "num_attention_heads",
                                       "intermediate_size", "vocab_size"};
    static const char *const values[] = {"0",    "-1",  "1.5", "\"8\"",      "null",
                                         "true", "[1]", "{}",  "4294967296", "9223372036854775807"};
    for (size_t k = 0; k < 5; k++) {
        char text[1024] = "{\"model_type\": \"llama\"", part[64];
        for (size_t other = 0; other < 5; other++)
            if (other != k)
                snprintf(text + strlen(text), sizeof text - strlen(text), ", \"%s\": 8",
                         keys[other]);
        struct llama_config c;
        size_t length = strlen(text);
        strcat(text, "}");
        snprintf(part, sizeof part, "%s is missing", keys[k]);
        assert_fails(parse_text(&c, text), WEIR_ERR_CORRUPT, part);
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            snprintf(text + length, sizeof text - length, ", \"%s\": %s}", keys[k], values[v]);
            snprintf(part, sizeof part, "%s is %s;", keys[k], values[v]);
            assert_fails(parse_text(&c, text), WEIR_ERR_CORRUPT, part);
        }
    }
    refuses(WEIR_ERR_CORRUPT, "\"num_key_value_heads\": 4", "no multiple of num_key_value_heads 4");
    refuses(WEIR_ERR_CORRUPT, "\"num_key_value_heads\": 0", "num_key_value_heads is 0");
    refuses(WEIR_ERR_CORRUPT, "\"max_position_embeddings\": -4", "max_position_embeddings is -4");
    refuses(WEIR_ERR_CORRUPT, "\"rms_norm_eps\": 0", "rms_norm_eps is 0");
    refuses(WEIR_ERR_CORRUPT, "\"rms_norm_eps\": \"1e-5\"", "rms_norm_eps is \"1e-5\"");
    refuses(WEIR_ERR_CORRUPT, "\"initializer_range\": -1", "initializer_range is -1");
    refuses(WEIR_ERR_CORRUPT, "\"rope_theta\": 0", "rope_theta is 0");
    refuses(WEIR_ERR_CORRUPT, "\"tie_word_embeddings\": 1", "tie_word_embeddings");
    struct llama_config c;
    assert_fails(parse_text(&c, "{\"model_type\": \"llama\", \"hidden_size\": 50, "
                                "\"num_hidden_layers\": 1, \"num_attention_heads\": 3, "
                                "\"intermediate_size\": 8, \"vocab_size\": 8}"),
                 WEIR_ERR_CORRUPT, "hidden_size 50 is no multiple of num_attention_heads 3");
}

/* The old and the new spelling of scaled positions, alone and together, give the same numbers. */
static void rope_is_read_in_every_spelling(void **state)
{
    (void)state;
#define LLAMA3                                                                                     \
    "\"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "                      \
    "\"original_max_position_embeddings\": 8192"
    static const char *const spellings[] = {
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}",
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}",
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"llama3\", \"rope_type\": "
        "\"llama3\", " LLAMA3 "}",
        "\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"llama3\", " LLAMA3 "}",
        "\"rope_theta\": 5e5, \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": "
        "\"llama3\", " LLAMA3 "}",
    };
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        struct llama_config c;
        assert_ok(parse_with(&c, spellings[i]));
        assert_true(c.rope.scaling == WEIR_ROPE_LLAMA3 && c.rope.theta == 5e5 &&
                    c.rope.factor == 32);
        assert_true(c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
        assert_true(c.rope.original_length == 8192);
        llama_config_free(&c);
    }
#define LINEAR "{\"rope_type\": \"linear\", \"factor\": 4}"
    static const char *const linear[] = {
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
        "\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"linear\", \"factor\": 4.0}",
        "\"rope_scaling\": " LINEAR ", \"rope_theta\": 5e5, \"rope_parameters\": " LINEAR,
    };
    struct llama_config c;
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
        assert_ok(parse_with(&c, linear[i]));
        assert_true(c.rope.scaling == WEIR_ROPE_LINEAR && c.rope.theta == 5e5);
        assert_true(c.rope.factor == 4 && c.rope.low_freq_factor == 0);
        llama_config_free(&c);
    }
    assert_ok(parse_with(&c, "\"rope_parameters\": {\"rope_theta\": 123.5, \"rope_type\": "
                             "\"default\"}"));
    assert_true(c.rope.scaling == WEIR_ROPE_PLAIN && c.rope.theta == 123.5);
    llama_config_free(&c);
}

/* Positions that are half said or said twice differently are refused. */
static void contradictory_rope_is_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\"rope_scaling\": {\"rope_type\": \"llama3\", \"type\": \"default\", " LLAMA3 "}",
         "rope_scaling.rope_type and rope_scaling.type differ"},
        {"\"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 5e5}",
         ": rope_theta is 10000, rope_parameters.rope_theta is 500000; keep one"},
        {"\"rope_scaling\": {\"rope_theta\": 1e4}, \"rope_parameters\": {\"rope_theta\": 5e5}",
         "rope_scaling.rope_theta is 10000, rope_parameters.rope_theta is 500000"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": {}",
         "rope_scaling.rope_type is linear, rope_parameters.rope_type is default"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": "
         "{\"rope_type\": \"linear\", \"factor\": 4}",
         "rope_scaling.factor is 2, rope_parameters.factor is 4"},
        {"\"rope_scaling\": {\"type\": \"linear\"}", "factor of linear rope is missing"},
        {"\"rope_scaling\": 4", "rope_scaling is no JSON object"},
        {"\"rope_scaling\": {\"type\": \"llama3\"}", "factor of llama3 rope is missing"},
        {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4}",
         "original_max_position_embeddings of llama3 rope is missing"},
        {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8}",
         "high_freq_factor 4 must be more than low_freq_factor 4"},
        {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 0.5, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8}",
         "factor is 0.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(WEIR_ERR_CORRUPT, cases[i][0], cases[i][1]);
}

/* Text that is not one strict JSON object of a Llama is CORRUPT, whatever the bytes are. */
static void hostile_json_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        " ",
        "{",
        "}",
        "[]",
        "null",
        "{\"model_type\": \"llama\"} x",
        "{'model_type': 1}",
        "{\"model_type\": \"llama\",}",
        "{\"vocab_size\": 1, \"vocab_size\": 2}",
        "\xff\xfe{}",
        "{\"a\\u0000b\": 1}",
        "{\"vocab_size\": 1e999}",
        "{\"vocab_size\": 99999999999999999999}",
        "{\"vocab_size\": NaN}",
        "{\"x\": \"\xc3\x28\"}",
        "{}",
        "{\"model_type\": 3}",
    };
    struct llama_config c;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_fails(parse_text(&c, texts[i]), WEIR_ERR_CORRUPT, "config \"config.json\": ");
    assert_fails(llama_config_parse(&c, "x", "{\"a\0b\": 1}", 10), WEIR_ERR_CORRUPT, "strict JSON");
    char deep[8192];
    memset(deep, '[', sizeof deep);
    assert_fails(llama_config_parse(&c, "x", deep, sizeof deep), WEIR_ERR_CORRUPT, "strict JSON");
}

/* No byte of a config, when changed, makes the reader do anything but accept or fail. */
static void changed_bytes_never_break_the_reader(void **state)
{
    (void)state;
    const char good[] = "{" SIZES ", \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}}";
    struct test_random random = test_random_open(7);
    uint32_t refused = 0, draws = test_draws(3000);
    for (uint32_t i = 0; i < draws; i++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        for (uint64_t n = 1 + test_random_below(&random, 3); n > 0; n--)
            text[test_random_below(&random, sizeof good - 1)] = (char)test_random_next(&random);
        struct llama_config c;
        size_t bytes = sizeof good - 1 - test_random_below(&random, 2);
        if (llama_config_parse(&c, "c", text, bytes) != WEIR_OK) {
            refused++;
            assert_null(strchr(weir_last_error()->text, '\n'));
        } else
            assert_true(c.hidden > 0 && c.heads % c.kv_heads == 0 && c.head_dim % 2 == 0);
        llama_config_free(&c);
    }
    assert_true(refused > draws / 2);
}

/* A failed allocation is an error that leaves nothing held. */
static void failed_allocations_are_reported(void **state)
{
    (void)state;
    uint64_t before = weir_alloc_bytes(), made;
    const char *path = "../examples/train/configs/llama-5m.json";
    struct llama_config c;
    weir_alloc_fail_at(0);
    assert_ok(llama_config_read(&c, path));
    made = weir_alloc_fail_at(0);
    llama_config_free(&c);
    assert_true(made >= 2);
    for (uint64_t nth = 1; nth <= made; nth++) {
        weir_alloc_fail_at(nth);
        assert_int_equal(WEIR_ERR_NOMEM, llama_config_read(&c, path));
        assert_int_equal(before, weir_alloc_bytes());
    }
    weir_alloc_fail_at(0);
}

static void file_write(const char *directory, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(0, fclose(file));
}

/* A directory brings its weights, a config.json alone brings none, anything else is one error. */
static void directory_and_file_are_told_apart(void **state)
{
    (void)state;
    char directory[256], file[512];
    struct llama_config c;
    test_directory_make(directory);
    snprintf(file, sizeof file, "%s/config.json", directory);
    assert_fails(llama_config_read(&c, file), WEIR_ERR_IO, "cannot be found");
    assert_fails(llama_config_read(&c, directory), WEIR_ERR_ARG, "no model.safetensors");
    file_write(directory, "config.json", "{" SIZES "}");
    assert_ok(llama_config_read(&c, file));
    assert_null(c.directory);
    llama_config_free(&c);
    file_write(directory, "model.safetensors.index.json", "{}");
    assert_ok(llama_config_read(&c, directory));
    assert_string_equal(directory, c.directory);
    assert_string_equal("{" SIZES "}", c.text);
    llama_config_free(&c);
    assert_int_equal(0, unlink(file));
    assert_fails(llama_config_read(&c, directory), WEIR_ERR_IO, "config.json");
    assert_fails(llama_config_read(&c, "/dev/zero"), WEIR_ERR_CORRUPT, "not a config.json");
    test_directory_remove(directory);
}

/* The shipped configs are read and have the parameters that their names say. */
static void shipped_configs_have_their_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t parameters;
    } shipped[] = {
        {"llama-5m", 5209856},          {"llama-8m", 8155200},     {"llama-25m", 25567744},
        {"llama-84m", 84462336},        {"llama-124m", 123551232}, {"llama-350m", 359794688},
        {"tinyllama-1.1b", 1100048384}, /* as published */
        {"llama3.2-1b", 1235814400},    /* as published */
        {"llama3-8b", 8030261248},      /* as published */
    };
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        char path[256];
        struct llama_config c;
        snprintf(path, sizeof path, "../examples/train/configs/%s.json", shipped[i].name);
        assert_ok(llama_config_read(&c, path));
        assert_int_equal(shipped[i].parameters, llama_config_parameter_count(&c));
        llama_config_free(&c);
    }
}

/* 6 a parameter of a product, the head once whether tied or not, and half the attention square. */
static void flops_count_products_and_half_the_square(void **state)
{
    (void)state;
    struct llama_config untied, tied;
    assert_ok(parse_with(&untied, ""));
    assert_ok(parse_with(&tied, "\"tie_word_embeddings\": true"));
    double layer = 4 * 48 * 48 + 3 * 48 * 100, head = 300 * 48;
    assert_true(llama_config_token_flops(&untied, 10) == 6 * (3 * layer + head + 3 * 48 * 10));
    assert_true(llama_config_token_flops(&tied, 10) == llama_config_token_flops(&untied, 10));
    assert_int_equal(llama_config_parameter_count(&untied),
                     llama_config_parameter_count(&tied) + 300 * 48);
    llama_config_free(&untied);
    llama_config_free(&tied);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_have_transformers_defaults),
        cmocka_unit_test(given_keys_are_used),
        cmocka_unit_test(harmless_keys_are_ignored),
        cmocka_unit_test(what_changes_the_model_is_refused_by_name),
        cmocka_unit_test(bad_sizes_are_refused_with_figures),
        cmocka_unit_test(rope_is_read_in_every_spelling),
        cmocka_unit_test(contradictory_rope_is_refused),
        cmocka_unit_test(hostile_json_is_refused),
        cmocka_unit_test(changed_bytes_never_break_the_reader),
        cmocka_unit_test(failed_allocations_are_reported),
        cmocka_unit_test(directory_and_file_are_told_apart),
        cmocka_unit_test(shipped_configs_have_their_sizes),
        cmocka_unit_test(flops_count_products_and_half_the_square),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
