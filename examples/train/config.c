#include "examples/train/config.h"
#include "core/file.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_TEXT_BYTES (1u << 20) /* a config.json has a few KiB */

/* Read by llama_config_parse itself. */
static const char *const used[] = {
    "architectures",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "initializer_range",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "hidden_act",
    "max_position_embeddings",
};

/* Change nothing in training: identity, special tokens, generation, storage. */
static const char *const harmless[] = {
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_bfloat16",
    "torchscript",
    "use_cache",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "decoder_start_token_id",
    "tokenizer_class",
    "prefix",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "finetuning_task",
    "task_specific_params",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "is_decoder",
    "is_llama_config",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
};

/* Would change the result with any other value; absent and null are the same as `need`. */
static const struct {
    const char *key;
    enum { NEED_FALSE, NEED_NULL, NEED_ZERO, NEED_ONE, NEED_EMPTY } need;
} fixed[] = {
    {"attention_bias", NEED_FALSE},
    {"mlp_bias", NEED_FALSE},
    {"attention_dropout", NEED_ZERO},
    {"hidden_dropout", NEED_ZERO},
    {"pretraining_tp", NEED_ONE},
    {"partial_rotary_factor", NEED_ONE},
    {"rope_interleaved", NEED_FALSE},
    {"sliding_window", NEED_NULL},
    {"use_sliding_window", NEED_FALSE},
    {"quantization_config", NEED_NULL},
    {"is_encoder_decoder", NEED_FALSE},
    {"add_cross_attention", NEED_FALSE},
    {"cross_attention_hidden_size", NEED_NULL},
    {"tie_encoder_decoder", NEED_FALSE},
    {"chunk_size_feed_forward", NEED_ZERO},
    {"pruned_heads", NEED_EMPTY},
};
static const char *const need_names[] = {"false", "null", "0", "1", "{}"};

static bool listed(const char *const *names, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], key) == 0)
            return true;
    return false;
}

#define LISTED(names, key) listed(names, sizeof(names) / sizeof *(names), key)

/* value as one short line of ASCII, whatever the file holds. */
static void show(const json_t *value, char out[static 64])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    snprintf(out, 64, "%s", text ? text : "?");
    if (text && strlen(text) > 63)
        memcpy(out + 60, "...", 4);
    free(text);
}

enum weir_status llama_config_refuse(const char *name, const char *where, const char *key,
                                     const json_t *value, const char *need)
{
    char shown[64];
    show(value, shown);
    return weir_fail(WEIR_ERR_UNSUPPORTED,
                     "config \"%s\": %s%s is %s; weir-train computes with %s only", name, where,
                     key, shown, need);
}

static enum weir_status unknown(const char *name, const char *key)
{
    char shown[64];
    json_t *text = json_string(key);
    show(text, shown);
    json_decref(text);
    return weir_fail(
        WEIR_ERR_UNSUPPORTED,
        "config \"%s\": unknown key %s; it may change the model: remove it if it does not", name,
        shown);
}

static bool has_needed_value(const json_t *value, int need)
{
    switch (need) {
    case NEED_FALSE:
        return json_is_false(value);
    case NEED_ZERO:
        return json_is_number(value) && json_number_value(value) == 0;
    case NEED_ONE:
        return json_is_number(value) && json_number_value(value) == 1;
    case NEED_EMPTY:
        return json_is_object(value) && json_object_size(value) == 0;
    default:
        return false;
    }
}

static enum weir_status keys_check(const char *name, json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (LISTED(used, key) || LISTED(harmless, key))
            continue;
        size_t i = 0;
        while (i < sizeof fixed / sizeof *fixed && strcmp(fixed[i].key, key) != 0)
            i++;
        if (i == sizeof fixed / sizeof *fixed)
            return unknown(name, key);
        if (!json_is_null(value) && !has_needed_value(value, (int)fixed[i].need))
            return llama_config_refuse(name, "", key, value, need_names[fixed[i].need]);
    }
    return WEIR_OK;
}

/* The value is `need`, or the key is absent or null. */
static enum weir_status string_check(const char *name, const json_t *root, const char *key,
                                     const char *need)
{
    const json_t *value = json_object_get(root, key);
    if (!value || json_is_null(value) ||
        (json_is_string(value) && strcmp(json_string_value(value), need) == 0))
        return WEIR_OK;
    return llama_config_refuse(name, "", key, value, need);
}

static enum weir_status kind_check(const char *name, const json_t *root)
{
    const json_t *type = json_object_get(root, "model_type");
    const json_t *classes = json_object_get(root, "architectures");
    if (json_is_null(classes))
        classes = NULL;
    if (!classes && !json_is_string(type))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "config \"%s\": neither model_type nor architectures says what it is; "
                         "weir-train knows LlamaForCausalLM",
                         name);
    WEIR_TRY(string_check(name, root, "model_type", "llama"));
    const char *class = json_string_value(json_array_get(classes, 0));
    if (classes &&
        (json_array_size(classes) != 1 || !class || strcmp(class, "LlamaForCausalLM") != 0))
        return llama_config_refuse(name, "", "architectures", classes, "[\"LlamaForCausalLM\"]");
    return string_check(name, root, "hidden_act", "silu");
}

/* fallback 0: the key must be there. */
static enum weir_status count_read(const char *name, const json_t *root, const char *key,
                                   uint32_t fallback, uint32_t most, uint32_t *out)
{
    const json_t *value = json_object_get(root, key);
    *out = fallback;
    if ((!value || json_is_null(value)) && fallback > 0)
        return WEIR_OK;
    if (!value)
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %s is missing", name, key);
    json_int_t number = json_integer_value(value);
    if (json_is_integer(value) && number >= 1 && number <= (json_int_t)most) {
        *out = (uint32_t)number;
        return WEIR_OK;
    }
    char shown[64];
    show(value, shown);
    return weir_fail(WEIR_ERR_CORRUPT,
                     "config \"%s\": %s is %s; a whole number from 1 to %u is needed", name, key,
                     shown, most);
}

enum weir_status llama_config_number(const char *name, const json_t *object, const char *key,
                                     double fallback, double least, double most, double *out)
{
    const json_t *value = json_object_get(object, key);
    *out = fallback;
    if (!value || json_is_null(value))
        return WEIR_OK;
    *out = json_number_value(value);
    if (json_is_number(value) && *out >= least && *out <= most)
        return WEIR_OK;
    char shown[64];
    show(value, shown);
    return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %s is %s; a number from %g to %g is needed",
                     name, key, shown, least, most);
}

/* Limits keep every product of two sizes, and every count of elements, far below 2^63. */
static enum weir_status sizes_read(struct llama_config *c, const char *name, const json_t *root)
{
    WEIR_TRY(count_read(name, root, "hidden_size", 0, 1u << 20, &c->hidden));
    WEIR_TRY(count_read(name, root, "num_hidden_layers", 0, 1u << 14, &c->layer_count));
    WEIR_TRY(count_read(name, root, "num_attention_heads", 0, 1u << 14, &c->heads));
    WEIR_TRY(count_read(name, root, "intermediate_size", 0, 1u << 22, &c->intermediate));
    WEIR_TRY(count_read(name, root, "vocab_size", 0, 1u << 24, &c->vocab));
    WEIR_TRY(count_read(name, root, "max_position_embeddings", 2048, 1u << 30, &c->position_count));
    WEIR_TRY(count_read(name, root, "num_key_value_heads", c->heads, 1u << 14, &c->kv_heads));
    if (c->heads % c->kv_heads != 0)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "config \"%s\": num_attention_heads %u is no multiple of "
                         "num_key_value_heads %u",
                         name, c->heads, c->kv_heads);
    uint32_t head_dim = c->hidden % c->heads == 0 ? c->hidden / c->heads : 0;
    const json_t *given = json_object_get(root, "head_dim");
    if (head_dim == 0 && (!given || json_is_null(given)))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "config \"%s\": hidden_size %u is no multiple of num_attention_heads %u; "
                         "say head_dim",
                         name, c->hidden, c->heads);
    WEIR_TRY(count_read(name, root, "head_dim", head_dim, 1u << 12, &c->head_dim));
    if (c->head_dim % 2 != 0)
        return weir_fail(WEIR_ERR_UNSUPPORTED,
                         "config \"%s\": head_dim %u is odd; rotary positions turn pairs", name,
                         c->head_dim);
    return WEIR_OK;
}

static enum weir_status fields_read(struct llama_config *c, const char *name, json_t *root)
{
    if (!json_is_object(root))
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": not a JSON object", name);
    WEIR_TRY(kind_check(name, root));
    WEIR_TRY(keys_check(name, root));
    WEIR_TRY(sizes_read(c, name, root));
    double eps, deviation;
    WEIR_TRY(llama_config_number(name, root, "rms_norm_eps", 1e-6, 1e-30, 1, &eps));
    WEIR_TRY(llama_config_number(name, root, "initializer_range", 0.02, 0, 100, &deviation));
    c->norm_eps = (float)eps;
    c->init_deviation = (float)deviation;
    const json_t *tied = json_object_get(root, "tie_word_embeddings");
    if (tied && !json_is_boolean(tied) && !json_is_null(tied))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "config \"%s\": tie_word_embeddings is neither true nor false", name);
    c->tied = json_is_true(tied);
    return llama_config_rope(c, name, root);
}

enum weir_status llama_config_parse(struct llama_config *config, const char *name, const char *text,
                                    size_t text_bytes)
{
    *config = (struct llama_config){0};
    json_error_t error;
    json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": line %d: not strict JSON: %s", name,
                         error.line, error.text);
    enum weir_status status = fields_read(config, name, root);
    json_decref(root);
    if (status == WEIR_OK)
        status = weir_alloc(&config->text, text_bytes + 1, 1, "the text of config.json");
    if (status != WEIR_OK) {
        *config = (struct llama_config){0};
        return status;
    }
    memcpy(config->text, text, text_bytes);
    config->text_bytes = text_bytes;
    return WEIR_OK;
}

static enum weir_status text_read(const char *path, char *text, size_t *text_bytes)
{
    int fd, error = weir_file_open(path, O_RDONLY | O_NONBLOCK, 0, &fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "config \"%s\": cannot be opened", path);
    error = weir_file_read(fd, text, MOST_TEXT_BYTES + 1, 0, text_bytes);
    close(fd);
    if (error)
        return weir_fail_errno(WEIR_ERR_IO, error, "config \"%s\": cannot be read", path);
    if (*text_bytes > MOST_TEXT_BYTES)
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": more than %u bytes; not a config.json",
                         path, MOST_TEXT_BYTES);
    return WEIR_OK;
}

static enum weir_status file_parse(struct llama_config *config, const char *path)
{
    char *text;
    size_t text_bytes = 0;
    WEIR_TRY(weir_alloc(&text, MOST_TEXT_BYTES + 1, 1, "a config.json"));
    enum weir_status status = text_read(path, text, &text_bytes);
    if (status == WEIR_OK)
        status = llama_config_parse(config, path, text, text_bytes);
    weir_free(text);
    return status;
}

static bool file_exists(const char *directory, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < PATH_MAX &&
           access(path, F_OK) == 0;
}

enum weir_status llama_config_read(struct llama_config *config, const char *path)
{
    *config = (struct llama_config){0};
    struct stat st;
    if (stat(path, &st) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "model \"%s\": cannot be found", path);
    if (!S_ISDIR(st.st_mode))
        return file_parse(config, path);
    char file[PATH_MAX];
    if (snprintf(file, sizeof file, "%s/config.json", path) >= PATH_MAX)
        return weir_fail(WEIR_ERR_ARG, "model: a path of %zu characters is too long", strlen(path));
    if (!file_exists(path, "model.safetensors") &&
        !file_exists(path, "model.safetensors.index.json"))
        return weir_fail(WEIR_ERR_ARG,
                         "model \"%s\": no model.safetensors and no model.safetensors.index.json; "
                         "for random weights give the config.json itself",
                         path);
    WEIR_TRY(file_parse(config, file));
    enum weir_status status = weir_strdup(&config->directory, path);
    if (status != WEIR_OK)
        llama_config_free(config);
    return status;
}

void llama_config_free(struct llama_config *config)
{
    weir_free(config->directory);
    weir_free(config->text);
    *config = (struct llama_config){0};
}

/* Elements of a layer's seven matrices. */
static uint64_t layer_matrices(const struct llama_config *c)
{
    uint64_t q = (uint64_t)c->heads * c->head_dim, k = (uint64_t)c->kv_heads * c->head_dim;
    return c->hidden * (2 * q + 2 * k + 3ull * c->intermediate);
}

uint64_t llama_config_parameter_count(const struct llama_config *c)
{
    uint64_t rows = (uint64_t)c->vocab * c->hidden;
    return c->layer_count * (layer_matrices(c) + 2ull * c->hidden) + c->hidden +
           (c->tied ? rows : 2 * rows);
}

double llama_config_token_flops(const struct llama_config *c, uint32_t sequence_tokens)
{
    double matrices =
        (double)c->layer_count * (double)layer_matrices(c) + (double)c->vocab * (double)c->hidden;
    double attention = (double)c->layer_count * c->heads * c->head_dim * sequence_tokens;
    return 6 * (matrices + attention);
}
