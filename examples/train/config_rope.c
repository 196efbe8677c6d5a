/*
 * Rotary positions, in the spellings of config.json: rope_theta beside rope_scaling with "type" or
 * "rope_type" (transformers 4), or all in rope_parameters (transformers 5). What is said twice must
 * agree.
 */
#include "examples/train/config.h"

#include <stdio.h>
#include <string.h>

#define LARGEST_THETA 1e15

static const char *const places[] = {"rope_scaling", "rope_parameters"};
static const char *const kinds[] = {
    [WEIR_ROPE_PLAIN] = "default", [WEIR_ROPE_LINEAR] = "linear", [WEIR_ROPE_LLAMA3] = "llama3"};

/* What a kind of scaling needs: the first so many. */
static const uint32_t field_counts[] = {
    [WEIR_ROPE_PLAIN] = 0, [WEIR_ROPE_LINEAR] = 1, [WEIR_ROPE_LLAMA3] = 4};
#define FIELDS 4
static const struct {
    const char *key;
    double least, most;
    size_t offset;
} fields[FIELDS] = {
    {"factor", 1, 1e6, offsetof(struct weir_rope_table_args, factor)},
    {"low_freq_factor", 1e-6, 1e6, offsetof(struct weir_rope_table_args, low_freq_factor)},
    {"high_freq_factor", 1e-6, 1e6, offsetof(struct weir_rope_table_args, high_freq_factor)},
    {"original_max_position_embeddings", 1, 1e9,
     offsetof(struct weir_rope_table_args, original_length)},
};

static double *field_of(struct weir_rope_table_args *rope, uint32_t field)
{
    return (double *)(void *)((char *)rope + fields[field].offset);
}

static enum weir_status kind_read(const char *name, const json_t *object, const char *prefix,
                                  enum weir_rope_scaling *kind)
{
    static const char *const keys[] = {"rope_type", "type"};
    bool said = false;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(object, keys[i]);
        if (!value)
            continue;
        const char *type = json_is_string(value) ? json_string_value(value) : "";
        uint32_t found = 0;
        while (found <= WEIR_ROPE_LLAMA3 && strcmp(type, kinds[found]) != 0)
            found++;
        if (found > WEIR_ROPE_LLAMA3)
            return llama_config_refuse(name, prefix, keys[i], value, "default, linear and llama3");
        if (said && found != *kind)
            return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %srope_type and %stype differ", name,
                             prefix, prefix);
        said = true;
        *kind = (enum weir_rope_scaling)found;
    }
    return WEIR_OK;
}

static enum weir_status keys_check(const char *name, const json_t *object, const char *prefix,
                                   enum weir_rope_scaling kind)
{
    static const char *const any[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof any / sizeof *any; i++)
            known |= strcmp(any[i], key) == 0;
        for (uint32_t i = 0; i < field_counts[kind]; i++)
            known |= strcmp(fields[i].key, key) == 0;
        if (!known)
            return llama_config_refuse(name, prefix, key, value, "a configuration without it");
    }
    value = json_object_get(object, "partial_rotary_factor");
    if (value && !json_is_null(value) && json_number_value(value) != 1)
        return llama_config_refuse(name, prefix, "partial_rotary_factor", value, "1");
    return WEIR_OK;
}

static enum weir_status fields_read(const char *name, const json_t *object,
                                    struct weir_rope_table_args *rope)
{
    for (uint32_t i = 0; i < field_counts[rope->scaling]; i++) {
        double *out = field_of(rope, i);
        WEIR_TRY(llama_config_number(name, object, fields[i].key, 0, fields[i].least,
                                     fields[i].most, out));
        if (*out == 0)
            return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %s of %s rope is missing", name,
                             fields[i].key, kinds[rope->scaling]);
    }
    if (rope->scaling != WEIR_ROPE_LLAMA3 || rope->high_freq_factor > rope->low_freq_factor)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_CORRUPT,
                     "config \"%s\": high_freq_factor %g must be more than low_freq_factor %g",
                     name, rope->high_freq_factor, rope->low_freq_factor);
}

/* One of the two objects; absent or null: out->theta and out->scaling stay 0. */
static enum weir_status object_read(const char *name, const json_t *root, const char *place,
                                    struct weir_rope_table_args *out, bool *given)
{
    const json_t *object = json_object_get(root, place);
    char prefix[32];
    *given = object && !json_is_null(object);
    if (!*given)
        return WEIR_OK;
    if (!json_is_object(object))
        return weir_fail(WEIR_ERR_CORRUPT, "config \"%s\": %s is no JSON object", name, place);
    snprintf(prefix, sizeof prefix, "%s.", place);
    WEIR_TRY(kind_read(name, object, prefix, &out->scaling));
    WEIR_TRY(keys_check(name, object, prefix, out->scaling));
    WEIR_TRY(llama_config_number(name, object, "rope_theta", 0, 1, LARGEST_THETA, &out->theta));
    return fields_read(name, object, out);
}

static enum weir_status scalings_compare(const char *name, struct weir_rope_table_args both[2])
{
    if (both[0].scaling != both[1].scaling)
        return weir_fail(WEIR_ERR_CORRUPT,
                         "config \"%s\": %s.rope_type is %s, %s.rope_type is %s; keep one", name,
                         places[0], kinds[both[0].scaling], places[1], kinds[both[1].scaling]);
    for (uint32_t i = 0; i < FIELDS; i++) {
        double old = *field_of(&both[0], i), new = *field_of(&both[1], i);
        if (old != new)
            return weir_fail(WEIR_ERR_CORRUPT,
                             "config \"%s\": %s.%s is %.17g, %s.%s is %.17g; keep one", name,
                             places[0], fields[i].key, old, places[1], fields[i].key, new);
    }
    return WEIR_OK;
}

/* theta may stand in three places. */
static enum weir_status theta_find(const char *name, const json_t *root,
                                   const struct weir_rope_table_args both[2], double *out)
{
    static const char *const prefixes[] = {"", "rope_scaling.", "rope_parameters."};
    double theta[3] = {0, both[0].theta, both[1].theta};
    WEIR_TRY(llama_config_number(name, root, "rope_theta", 0, 1, LARGEST_THETA, &theta[0]));
    uint32_t said = 3;
    for (uint32_t i = 0; i < 3; i++) {
        if (theta[i] == 0)
            continue;
        if (said < 3 && theta[said] != theta[i])
            return weir_fail(WEIR_ERR_CORRUPT,
                             "config \"%s\": %srope_theta is %.17g, %srope_theta is %.17g; keep "
                             "one",
                             name, prefixes[said], theta[said], prefixes[i], theta[i]);
        said = i;
    }
    *out = said < 3 ? theta[said] : 10000;
    return WEIR_OK;
}

enum weir_status llama_config_rope(struct llama_config *config, const char *name,
                                   const json_t *root)
{
    struct weir_rope_table_args both[2] = {{0}};
    bool given[2];
    double theta;
    for (int i = 0; i < 2; i++)
        WEIR_TRY(object_read(name, root, places[i], &both[i], &given[i]));
    if (given[0] && given[1])
        WEIR_TRY(scalings_compare(name, both));
    WEIR_TRY(theta_find(name, root, both, &theta));
    config->rope = both[given[1]];
    config->rope.theta = theta;
    return WEIR_OK;
}
