#include "examples/flags.h"
#include "examples/replace.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one value */

static enum weir_status number_read(const struct flag *flag, const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= flag->low && *out <= flag->high)) /* nan is neither */
        return weir_fail(WEIR_ERR_ARG, "%s: \"%s\" is not a number from %g to %g", flag->name, text,
                         flag->low, flag->high);
    return WEIR_OK;
}

static enum weir_status count_read(const struct flag *flag, const char *text, size_t length,
                                   uint64_t *out)
{
    uint64_t most = flag->most > 0 ? flag->most : INT64_MAX;
    char word[24], *end;
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    errno = 0;
    *out = strtoull(word, &end, 10);
    if (end == word || *end || errno || length >= sizeof word || *word == '-' ||
        *out < flag->least || *out > most)
        return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is not a whole number from %llu to %llu",
                         flag->name, (int)length, text, (unsigned long long)flag->least,
                         (unsigned long long)most);
    return WEIR_OK;
}

enum weir_status flag_bytes(const char *name, const char *text, size_t length, uint64_t *out)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1},         {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                 {"TiB", 0x1p40}, {"KB", 1e3},   {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                 {"PB", 1e15},    {"K", 0x1p10}, {"M", 0x1p20},   {"G", 0x1p30},   {"T", 0x1p40}};
    char word[32], *end;
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    double value = strtod(word, &end);
    for (size_t i = 0; end != word && i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0 && value * units[i].bytes >= 1 &&
            value * units[i].bytes < 0x1p60) {
            *out = (uint64_t)(value * units[i].bytes);
            return WEIR_OK;
        }
    return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is not a size; write 512MiB, 2GiB or 4GB", name,
                     (int)length, text);
}

static enum weir_status choice_read(const struct flag *flag, const char *text, size_t length,
                                    uint64_t *out)
{
    char known[128] = "";
    for (uint64_t i = 0; i < flag->most; i++) {
        if (strlen(flag->names[i]) == length && strncmp(flag->names[i], text, length) == 0) {
            *out = i;
            return WEIR_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ", flag->names[i]);
    }
    return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is not one of %s", flag->name, (int)length, text,
                     known);
}

static enum weir_status integer_read(const struct flag *flag, const char *text, size_t length,
                                     uint64_t *out)
{
    switch (flag->kind) {
    case FLAG_BYTES:
    case FLAG_BYTES_LIST:
        return flag_bytes(flag->name, text, length, out);
    case FLAG_CHOICE:
    case FLAG_CHOICES:
        return choice_read(flag, text, length, out);
    default:
        return count_read(flag, text, length, out);
    }
}

/* ---- lists */

static enum weir_status texts_read(const struct flag *flag, char *text, struct text_list *list)
{
    for (char *next = text; next; text = next) {
        next = strchr(text, ',');
        if (next)
            *next++ = 0;
        if (!*text || list->count == FLAG_LIST_MOST)
            return weir_fail(WEIR_ERR_ARG, "%s: %s; give 1 to %d names with commas between",
                             flag->name, *text ? "too many names" : "an empty name",
                             FLAG_LIST_MOST);
        list->values[list->count++] = text;
    }
    return WEIR_OK;
}

static enum weir_status list_read(const struct flag *flag, const char *text,
                                  struct number_list *list)
{
    for (bool more = true; more;) {
        size_t length = strcspn(text, ",");
        uint64_t value;
        WEIR_TRY(integer_read(flag, text, length, &value));
        for (uint32_t i = 0; i < list->count; i++)
            if (list->values[i] == value)
                return weir_fail(WEIR_ERR_ARG, "%s: \"%.*s\" is there twice; leave one out",
                                 flag->name, (int)length, text);
        if (list->count == FLAG_LIST_MOST)
            return weir_fail(WEIR_ERR_ARG, "%s: more than %d values; leave some out", flag->name,
                             FLAG_LIST_MOST);
        list->values[list->count++] = value;
        more = text[length] != 0;
        text += length + 1;
    }
    return WEIR_OK;
}

/* ---- one word, then the next */

static enum weir_status value_read(const struct flag *flag, char *text, void *field)
{
    uint64_t value;
    switch (flag->kind) {
    case FLAG_SWITCH:
        *(bool *)field = true;
        return WEIR_OK;
    case FLAG_TEXT:
        *(const char **)field = text;
        return WEIR_OK;
    case FLAG_TEXTS:
        return texts_read(flag, text, field);
    case FLAG_NUMBER:
        return number_read(flag, text, field);
    case FLAG_COUNTS:
    case FLAG_BYTES_LIST:
    case FLAG_CHOICES:
        return list_read(flag, text, field);
    case FLAG_COUNT:
    case FLAG_BYTES:
        return integer_read(flag, text, strlen(text), field);
    case FLAG_COUNT32:
        WEIR_TRY(integer_read(flag, text, strlen(text), &value));
        *(uint32_t *)field = (uint32_t)value;
        return WEIR_OK;
    case FLAG_CHOICE:
        WEIR_TRY(integer_read(flag, text, strlen(text), &value));
        *(int *)field = (int)value;
        return WEIR_OK;
    }
    return WEIR_OK;
}

static bool command_takes(const struct flag_table *table, const struct flag *flag)
{
    return flag->commands == 0 || flag->commands & table->bit;
}

static enum weir_status flag_find(const struct flag_table *table, const char *word,
                                  const bool *seen, size_t *found)
{
    size_t length = strcspn(word, "="), f = 0;
    while (f < table->count && (strlen(table->flags[f].name) != length ||
                                strncmp(table->flags[f].name, word, length) != 0))
        f++;
    if (f == table->count)
        return weir_fail(WEIR_ERR_ARG, "\"%s\" is not an option; %s --help lists them", word,
                         table->command);
    if (!command_takes(table, &table->flags[f]))
        return weir_fail(WEIR_ERR_ARG, "%s: %s has no use for it; its --help lists what it takes",
                         table->flags[f].name, table->command);
    if (seen[f])
        return weir_fail(WEIR_ERR_ARG, "\"%s\": %s is given twice; leave one out", word,
                         table->flags[f].name);
    *found = f;
    return WEIR_OK;
}

enum weir_status flags_read(const struct flag_table *table, void *fields, bool *seen, int count,
                            char **words)
{
    for (int i = 0; i < count; i++) {
        size_t f;
        WEIR_TRY(flag_find(table, words[i], seen, &f));
        const struct flag *flag = &table->flags[f];
        bool wanted = flag->kind != FLAG_SWITCH;
        char *value = strchr(words[i], '=');
        if (value && !wanted)
            return weir_fail(WEIR_ERR_ARG, "\"%s\": %s takes no value; leave it out", words[i],
                             flag->name);
        if (value)
            value++;
        else if (wanted && i + 1 < count && strncmp(words[i + 1], "--", 2) != 0)
            value = words[++i];
        if (wanted && (!value || !*value))
            return weir_fail(WEIR_ERR_ARG, "%s needs a value; %s --help explains", flag->name,
                             table->command);
        seen[f] = true;
        WEIR_TRY(value_read(flag, value, (char *)fields + flag->field));
    }
    return WEIR_OK;
}

/* ---- what the table cannot say */

const struct flag *flag_seen(const struct flag_table *table, const bool *seen, const size_t *fields,
                             size_t count)
{
    for (size_t f = 0; f < table->count; f++)
        for (size_t i = 0; seen[f] && i < count; i++)
            if (table->flags[f].field == fields[i])
                return &table->flags[f];
    return NULL;
}

enum weir_status flag_file_check(const char *name, const char *path, enum flag_file how)
{
    struct replace file;
    struct stat st;
    WEIR_TRY(replace_find(&file, name, path));
    bool exists = stat(path, &st) == 0, regular = exists && S_ISREG(st.st_mode);
    if (exists && !regular && (S_ISDIR(st.st_mode) || how == FLAG_FILE_REGULAR))
        return weir_fail(WEIR_ERR_ARG, "%s \"%s\": is no file; give the name of one", name, path);
    bool within = exists && (how == FLAG_FILE_APPENDED || !regular);
    if (within && access(path, W_OK) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "%s \"%s\": cannot be written", name, path);
    if (!within && access(dirname(file.target), W_OK | X_OK) != 0)
        return weir_fail_errno(WEIR_ERR_IO, errno,
                               "%s \"%s\": its folder cannot be written; name another", name, path);
    return WEIR_OK;
}

/* ---- help */

#define COLUMN_HELP 24
#define COLUMN_END  100

void flags_print(const struct flag_table *table)
{
    for (size_t f = 0; f < table->count; f++) {
        const struct flag *flag = &table->flags[f];
        if (!command_takes(table, flag))
            continue;
        int column = printf("  %s %s", flag->name, flag->value ? flag->value : "");
        for (const char *word = flag->help; *word;) {
            size_t length = strcspn(word, " ");
            if (column + 1 + (int)length > COLUMN_END) {
                putchar('\n');
                column = 0;
            }
            column += printf("%*s%.*s", column < COLUMN_HELP ? COLUMN_HELP - column : 1, "",
                             (int)length, word);
            word += length + strspn(word + length, " ");
        }
        putchar('\n');
    }
}
