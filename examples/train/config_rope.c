/*
 * Rotary positions, in the three spellings of config.json: rope_theta beside rope_scaling with
 * "type" or "rope_type", or both in rope_parameters.
 */
#include "examples/train/config.h"

#include <stdio.h>
#include <string.h>

#define LARGEST_THETA 1e15

/* The scaling object and its name, NULL if there is none. */
static enum weir_status scaling_find(const char *name, const json_t *root, const json_t **out,
                                     const char **where)
{
    const json_t *old = json_object_get(root, "rope_scaling");
    const json_t *new = json_object_get(root, "rope_parameters");
    old = json_is_null(old) ? NULL : old;
    new = json_is_null(new) ? NULL : new;
    if (old && new && !json_equal((json_t *)(uintptr_t)old, (json_t *)(uintptr_t) new))
        return weir_fail(WEIR_ERR_CORRUPT,
                         "config \"%s\": rope_scaling and rope_parameters differ; keep one", name);
    *out = new ? new : old;
    *where = new ? "rope_parameters" : "rope_scaling";
    if (*out && !json_is_object(*out))
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %s is no JSON object", name, *where);
    return WEIR_OK;
}

static enum weir_status type_read(const char *name, const json_t *scaling, const char *prefix,
                                  bool *llama3)
{
    static const char *const keys[] = {"rope_type", "type"};
    bool said = false;
    *llama3 = false;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(scaling, keys[i]);
        if (!value)
            continue;
        const char *type = json_is_string(value) ? json_string_value(value) : "";
        bool is_llama3 = strcmp(type, "llama3") == 0;
        if (!is_llama3 && strcmp(type, "default") != 0)
            return llama_config_refuse(name, prefix, keys[i], value, "default and llama3");
        if (said && is_llama3 != *llama3)
            return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %srope_type and %stype differ", name,
                             prefix, prefix);
        said = true;
        *llama3 = is_llama3;
    }
    return WEIR_OK;
}

static enum weir_status keys_check(const char *name, const json_t *scaling, const char *prefix,
                                   bool llama3)
{
    static const char *const any[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    static const char *const llama3_only[] = {"factor", "low_freq_factor", "high_freq_factor",
                                              "original_max_position_embeddings"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)scaling, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof any / sizeof *any; i++)
            known |= strcmp(any[i], key) == 0;
        for (size_t i = 0; llama3 && i < sizeof llama3_only / sizeof *llama3_only; i++)
            known |= strcmp(llama3_only[i], key) == 0;
        if (!known)
            return llama_config_refuse(name, prefix, key, value, "a configuration without it");
    }
    value = json_object_get(scaling, "partial_rotary_factor");
    if (value && !json_is_null(value) && json_number_value(value) != 1)
        return llama_config_refuse(name, prefix, "partial_rotary_factor", value, "1");
    return WEIR_OK;
}

static enum weir_status theta_read(struct llama_config *c, const char *name, const json_t *root,
                                   const json_t *scaling)
{
    double outer, inner;
    WEIR_TRY(llama_config_number(name, root, "rope_theta", 0, 1, LARGEST_THETA, &outer));
    WEIR_TRY(llama_config_number(name, scaling, "rope_theta", 0, 1, LARGEST_THETA, &inner));
    if (outer > 0 && inner > 0 && outer != inner)
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": rope_theta is %.17g and %.17g", name,
                         outer, inner);
    c->rope.theta = inner > 0 ? inner : outer > 0 ? outer : 10000;
    return WEIR_OK;
}

static enum weir_status llama3_read(struct weir_rope_table_args *rope, const char *name,
                                    const json_t *scaling)
{
    const struct {
        const char *key;
        double least, most, *out;
    } fields[] = {
        {"factor", 1, 1e6, &rope->factor},
        {"low_freq_factor", 1e-6, 1e6, &rope->low_freq_factor},
        {"high_freq_factor", 1e-6, 1e6, &rope->high_freq_factor},
        {"original_max_position_embeddings", 1, 1e9, &rope->original_length},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        WEIR_TRY(llama_config_number(name, scaling, fields[i].key, 0, fields[i].least,
                                     fields[i].most, fields[i].out));
        if (*fields[i].out == 0)
            return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %s of llama3 rope is missing", name,
                             fields[i].key);
    }
    if (rope->high_freq_factor > rope->low_freq_factor)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_CORRUPT,
                     "config \"%s\": high_freq_factor %g must be more than low_freq_factor %g",
                     name, rope->high_freq_factor, rope->low_freq_factor);
}

enum weir_status llama_config_rope(struct llama_config *config, const char *name,
                                   const json_t *root)
{
    const json_t *scaling = NULL;
    const char *where = "";
    char prefix[32];
    WEIR_TRY(scaling_find(name, root, &scaling, &where));
    snprintf(prefix, sizeof prefix, "%s.", where);
    WEIR_TRY(type_read(name, scaling, prefix, &config->rope.llama3));
    WEIR_TRY(keys_check(name, scaling, prefix, config->rope.llama3));
    WEIR_TRY(theta_read(config, name, root, scaling));
    return config->rope.llama3 ? llama3_read(&config->rope, name, scaling) : WEIR_OK;
}
