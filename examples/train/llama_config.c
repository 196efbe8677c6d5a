#include "examples/train/llama_config.h"
#include "core/memory.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* They name, describe or serve generation; training does not read them. */
static const char *const harmless[] = {
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache",
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "_name_or_path", "_commit_hash",
    "max_position_embeddings", "return_dict", "output_attentions", "output_hidden_states",
    "attn_implementation", "_attn_implementation", "id2label", "label2id", "task_specific_params",
    "chunk_size_feed_forward", "is_encoder_decoder", "problem_type", "finetuning_task",
    "tokenizer_class", "torchscript", "model_max_length", "max_sequence_length",
};
static const char *const used[] = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "initializer_range",
    "rope_theta", "rope_scaling", "rope_parameters",
};

/* Fields that may be there with one value only. */
enum only { ONLY_FALSE, ONLY_ZERO, ONLY_ONE, ONLY_NULL, ONLY_SILU };
static const struct {
    const char *name;
    enum only only;
} fixed[] = {
    {"attention_bias", ONLY_FALSE},     {"mlp_bias", ONLY_FALSE},
    {"attention_dropout", ONLY_ZERO},   {"hidden_dropout", ONLY_ZERO},
    {"pretraining_tp", ONLY_ONE},       {"partial_rotary_factor", ONLY_ONE},
    {"sliding_window", ONLY_NULL},      {"quantization_config", ONLY_NULL},
    {"hidden_act", ONLY_SILU},          {"is_decoder", ONLY_FALSE},
    {"add_cross_attention", ONLY_FALSE},
};

static bool listed(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static bool only_holds(const json_t *value, enum only only)
{
    switch (only) {
    case ONLY_FALSE:
        return json_is_false(value) || json_is_null(value);
    case ONLY_ZERO:
        return json_is_null(value) || (json_is_number(value) && json_number_value(value) == 0);
    case ONLY_ONE:
        return json_is_null(value) || (json_is_number(value) && json_number_value(value) == 1);
    case ONLY_NULL:
        return json_is_null(value);
    case ONLY_SILU:
        return json_is_string(value) && strcmp(json_string_value(value), "silu") == 0;
    }
    return false;
}

static enum weir_status fields_known(const json_t *root, const char *path)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)root, name, value)
    {
        if (listed(harmless, sizeof harmless / sizeof *harmless, name) ||
            listed(used, sizeof used / sizeof *used, name))
            continue;
        bool known = false, holds = false;
        for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
            if (strcmp(fixed[i].name, name) == 0) {
                known = true;
                holds = only_holds(value, fixed[i].only);
            }
        if (holds)
            continue;
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        enum weir_status status = weir_fail(
            WEIR_ERR_UNSUPPORTED, "config \"%s\": field \"%s\" is %.80s, which %s", path, name,
            text ? text : "?",
            known ? "is not supported" : "is not known and might change the result");
        free(text);
        return status;
    }
    return WEIR_OK;
}

static enum weir_status kind_check(const json_t *root, const char *path)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const json_t *list = json_object_get(root, "architectures");
    const char *first = json_string_value(json_array_get(list, 0));
    if ((type && strcmp(type, "llama") != 0) || (first && strcmp(first, "LlamaForCausalLM") != 0) ||
        json_array_size(list) > 1)
        return weir_fail(WEIR_ERR_UNSUPPORTED, "config \"%s\": model_type \"%s\", architecture "
                         "\"%s\"; weir-train knows LlamaForCausalLM", path, type ? type : "",
                         first ? first : "");
    return WEIR_OK;
}

static enum weir_status count_get(const json_t *root, const char *path, const char *name,
                                  uint32_t fallback, uint32_t *out)
{
    const json_t *value = json_object_get(root, name);
    *out = fallback;
    if (fallback > 0 && (!value || json_is_null(value)))
        return WEIR_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > 1 << 24)
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": field \"%s\" is missing or not a count "
                         "from 1 to 2^24", path, name);
    *out = (uint32_t)json_integer_value(value);
    return WEIR_OK;
}

static enum weir_status number_get(const json_t *root, const char *path, const char *name,
                                   double fallback, double *out)
{
    const json_t *value = json_object_get(root, name);
    *out = fallback;
    if (!value || json_is_null(value))
        return WEIR_OK;
    if (!json_is_number(value) || json_number_value(value) <= 0)
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": field \"%s\" is not a positive number",
                         path, name);
    *out = json_number_value(value);
    return WEIR_OK;
}

static enum weir_status scaling_get(const json_t *scaling, const char *path,
                                    struct weir_rope_table_args *rope)
{
    const json_t *named = json_object_get(scaling, "rope_type");
    const char *type = json_string_value(named ? named : json_object_get(scaling, "type"));
    if (!type || strcmp(type, "default") == 0)
        return WEIR_OK;
    if (strcmp(type, "llama3") != 0)
        return weir_fail(WEIR_ERR_UNSUPPORTED, "config \"%s\": RoPE type \"%s\"; default and llama3 "
                         "are supported", path, type);
    rope->llama3 = true;
    WEIR_TRY(number_get(scaling, path, "factor", 8, &rope->factor));
    WEIR_TRY(number_get(scaling, path, "low_freq_factor", 1, &rope->low_freq_factor));
    WEIR_TRY(number_get(scaling, path, "high_freq_factor", 4, &rope->high_freq_factor));
    WEIR_TRY(number_get(scaling, path, "original_max_position_embeddings", 8192,
                        &rope->original_length));
    if (rope->high_freq_factor <= rope->low_freq_factor)
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": high_freq_factor %g is not above "
                         "low_freq_factor %g", path, rope->high_freq_factor, rope->low_freq_factor);
    return WEIR_OK;
}

static enum weir_status rope_get(const json_t *root, const char *path,
                                 struct weir_rope_table_args *rope)
{
    const json_t *newer = json_object_get(root, "rope_parameters");
    const json_t *scaling = json_object_get(root, "rope_scaling");
    WEIR_TRY(number_get(root, path, "rope_theta", 10000, &rope->theta));
    if (json_is_object(newer)) {
        WEIR_TRY(number_get(newer, path, "rope_theta", rope->theta, &rope->theta));
        scaling = newer;
    }
    if (scaling && !json_is_null(scaling) && !json_is_object(scaling))
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": the RoPE scaling is not an object", path);
    return json_is_object(scaling) ? scaling_get(scaling, path, rope) : WEIR_OK;
}

static enum weir_status shape_check(const struct llama_config *c, const char *path)
{
    if (c->heads % c->kv_heads != 0 || c->head_dim % 2 != 0)
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %u heads over %u key-value heads, "
                         "head_dim %u; heads divide evenly and head_dim is even", path, c->heads,
                         c->kv_heads, c->head_dim);
    return WEIR_OK;
}

static enum weir_status fields_read(struct llama_config *c, const json_t *root, const char *path)
{
    WEIR_TRY(kind_check(root, path));
    WEIR_TRY(fields_known(root, path));
    WEIR_TRY(count_get(root, path, "vocab_size", 0, &c->vocab));
    WEIR_TRY(count_get(root, path, "hidden_size", 0, &c->hidden));
    WEIR_TRY(count_get(root, path, "intermediate_size", 0, &c->intermediate));
    WEIR_TRY(count_get(root, path, "num_hidden_layers", 0, &c->layers));
    WEIR_TRY(count_get(root, path, "num_attention_heads", 0, &c->heads));
    WEIR_TRY(count_get(root, path, "num_key_value_heads", c->heads, &c->kv_heads));
    uint32_t each = c->hidden / c->heads;
    WEIR_TRY(count_get(root, path, "head_dim", each ? each : 1, &c->head_dim));
    WEIR_TRY(count_get(root, path, "max_position_embeddings", 1 << 24, &c->most_positions));
    WEIR_TRY(number_get(root, path, "rms_norm_eps", 1e-6, &c->norm_eps));
    WEIR_TRY(number_get(root, path, "initializer_range", 0.02, &c->deviation));
    const json_t *tied = json_object_get(root, "tie_word_embeddings");
    if (tied && !json_is_boolean(tied))
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": field \"tie_word_embeddings\" is not "
                         "true or false", path);
    c->tied = json_is_true(tied);
    WEIR_TRY(rope_get(root, path, &c->rope));
    return shape_check(c, path);
}

static enum weir_status file_read(const char *path, char **text, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return weir_fail(WEIR_ERR_IO, "config \"%s\": cannot be opened; give a config.json or a "
                         "directory that holds one", path);
    enum weir_status status = weir_alloc(text, (1 << 20) + 1, 1, "config");
    if (status == WEIR_OK) {
        *bytes = fread(*text, 1, 1 << 20, file);
        if (!feof(file) && fgetc(file) != EOF)
            status = weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": more than 1 MiB", path);
    }
    fclose(file);
    return status;
}

enum weir_status llama_config_read(struct llama_config *config, const char *path)
{
    char file[4096];
    struct stat st;
    bool directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    snprintf(file, sizeof file, directory ? "%s/config.json" : "%s", path);
    *config = (struct llama_config){0};
    WEIR_TRY(file_read(file, &config->text, &config->text_bytes));
    json_error_t error;
    json_t *root = json_loadb(config->text, config->text_bytes, JSON_REJECT_DUPLICATES, &error);
    enum weir_status status =
        json_is_object(root)
            ? fields_read(config, root, file)
            : weir_fail(WEIR_ERR_CORRUPT, "config \"%s\", line %d: %s", file, error.line,
                        root ? "not an object" : error.text);
    json_decref(root);
    if (status != WEIR_OK)
        llama_config_free(config);
    return status;
}

void llama_config_free(struct llama_config *config)
{
    weir_free(config->text);
    config->text = NULL;
}

struct llama_spec llama_config_spec(const struct llama_config *c, uint32_t micro_batch,
                                    uint32_t length, uint32_t micro_count, enum weir_dtype dtype)
{
    return (struct llama_spec){
        .shape = {.sequences = micro_batch,
                  .length = length,
                  .hidden = c->hidden,
                  .heads = c->heads,
                  .kv_heads = c->kv_heads,
                  .head_dim = c->head_dim,
                  .intermediate = c->intermediate,
                  .vocab = c->vocab,
                  .tile_rows = WEIR_TILE_ROWS,
                  .chunk_tokens = WEIR_CHUNK_TOKENS,
                  .norm_eps = (float)c->norm_eps,
                  .dtype = dtype,
                  .rope = c->rope},
        .layer_count = c->layers,
        .micro_count = micro_count,
        .tied = c->tied,
        .row_elements = LLAMA_ROW_ELEMENTS};
}
