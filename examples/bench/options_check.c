/*
 * What options ask for together. Everything that can be refused is refused here, before anything is
 * measured: a flag that nothing reads, a point or a ring that does not fit, a name that no report
 * can hold.
 */
#include "examples/bench/options.h"
#include "examples/bench/replay_pattern.h"
#include "examples/bench/units.h"

#include <jansson.h>
#include <string.h>

#define FIELD(name)  offsetof(struct options, name)
#define COUNT(array) (sizeof(array) / sizeof *(array))

struct asked {
    const struct options *options;
    const struct flag_table *table;
    const bool *seen;
};

static const struct flag *seen_of(const struct asked *asked, const size_t *fields, size_t count)
{
    return flag_seen(asked->table, asked->seen, fields, count);
}

bool options_want(const struct options *o, enum part part)
{
    for (uint32_t i = 0; i < o->parts.count; i++)
        if (o->parts.values[i] == (uint64_t)part)
            return true;
    return false;
}

bool options_write(const struct options *o)
{
    for (uint32_t p = 0; p < o->patterns.count; p++)
        if (o->patterns.values[p] != PATTERN_READ)
            return true;
    return false;
}

/* ---- names */

static enum weir_status name_check(const char *flag, const char *name)
{
    json_t *text = json_string(name);
    if (!text)
        return weir_fail(WEIR_ERR_ARG,
                         "%s \"%s\": its name is not UTF-8, and reports are; give it by another "
                         "name, as that of a link",
                         flag, name);
    json_decref(text);
    return WEIR_OK;
}

static enum weir_status names_check(const struct options *o)
{
    for (uint32_t i = 0; i < o->paths.count; i++)
        WEIR_TRY(name_check("--path", o->paths.values[i]));
    for (uint32_t i = 0; i < o->configs.count; i++)
        WEIR_TRY(name_check("--config", o->configs.values[i]));
    return o->file ? name_check("--file", o->file) : WEIR_OK;
}

static enum weir_status outputs_check(const struct options *o)
{
    const struct {
        const char *flag, *path;
    } outputs[] = {{"--json", o->json}, {"--html", o->html}, {"--save", o->save}};
    for (size_t i = 0; i < COUNT(outputs); i++) {
        if (i > 0 && outputs[i].path && strcmp(outputs[i].path, "-") == 0)
            return weir_fail(WEIR_ERR_ARG,
                             "%s -: only --json goes to stdout; give the name of a file",
                             outputs[i].flag);
        for (size_t j = 0; j < i; j++)
            if (outputs[i].path && outputs[j].path && strcmp(outputs[i].path, outputs[j].path) == 0)
                return weir_fail(WEIR_ERR_ARG,
                                 "%s and %s are both \"%s\"; give each a file of its own",
                                 outputs[j].flag, outputs[i].flag, outputs[i].path);
    }
    return WEIR_OK;
}

enum weir_status options_outputs_check(const struct options *o)
{
    if (o->json && strcmp(o->json, "-") != 0)
        WEIR_TRY(flag_file_check("--json", o->json, FLAG_FILE_REPLACED));
    if (o->html)
        WEIR_TRY(flag_file_check("--html", o->html, FLAG_FILE_REPLACED));
    return o->save ? flag_file_check("--save", o->save, FLAG_FILE_REPLACED) : WEIR_OK;
}

/* ---- io */

static enum weir_status place_check(const struct options *o, bool bytes_seen)
{
    if (o->file && o->paths.count > 0)
        return weir_fail(WEIR_ERR_ARG, "--file \"%s\": measured instead of --path; leave one out",
                         o->file);
    if (!o->file && o->paths.count == 0)
        return weir_fail(WEIR_ERR_ARG, "--path is missing; name a directory on the drive");
    if (o->file && bytes_seen)
        return weir_fail(WEIR_ERR_ARG,
                         "--bytes: --file \"%s\" is measured whole; leave --bytes out", o->file);
    if (o->bytes % (1u << 20) != 0)
        return weir_fail(WEIR_ERR_ARG, "--bytes: %llu is not a multiple of 1MiB",
                         (unsigned long long)o->bytes);
    return WEIR_OK;
}

/* Of a file that was there, the size is not known yet. */
static enum weir_status room_check(const struct options *o)
{
    char block[24], bytes[24], least[24];
    for (uint32_t b = 0; b < o->blocks.count; b++)
        if (o->blocks.values[b] % 4096 != 0 || o->blocks.values[b] > 1u << 30)
            return weir_fail(WEIR_ERR_ARG,
                             "--block: %llu bytes is not a multiple of 4KiB up to 1GiB",
                             (unsigned long long)o->blocks.values[b]);
    for (uint32_t b = 0; b < o->blocks.count; b++)
        for (uint32_t d = 0; d < o->depths.count && !o->file; d++) {
            uint64_t need = 4 * o->blocks.values[b] * o->depths.values[d];
            if (need > o->bytes)
                return weir_fail(WEIR_ERR_ARG,
                                 "--bytes %s: too few for --depth %llu of --block %s; give at "
                                 "least %s or a lower depth",
                                 bytes_text(o->bytes, bytes),
                                 (unsigned long long)o->depths.values[d],
                                 bytes_text(o->blocks.values[b], block), bytes_text(need, least));
        }
    if (options_want(o, PART_REPLAY) && !o->file) /* at most: slow drives hold less of a volume */
        return replay_fits(o->bytes * o->paths.count, (uint32_t)o->ring, o->gradients);
    return WEIR_OK;
}

static enum weir_status replay_check(const struct asked *asked)
{
    static const size_t fields[] = {FIELD(parameters), FIELD(endurance), FIELD(gradients),
                                    FIELD(ring),       FIELD(update),    FIELD(threads)};
    const struct options *o = asked->options;
    const struct flag *flag = seen_of(asked, fields, COUNT(fields));
    if (options_want(o, PART_REPLAY) && o->file && !options_write(o))
        return weir_fail(WEIR_ERR_ARG,
                         "--part replay: writes to --file \"%s\", which --pattern read leaves as "
                         "it is; leave out replay, or add a --pattern that writes",
                         o->file);
    if (flag && o->replay_left_out)
        return weir_fail(WEIR_ERR_ARG,
                         "%s: of the replay, which writes to --file \"%s\" and is left out by "
                         "--pattern read; leave out %s, or add a --pattern that writes",
                         flag->name, o->file, flag->name);
    if (flag && !options_want(o, PART_REPLAY))
        return weir_fail(WEIR_ERR_ARG,
                         "%s: of the replay, which --part leaves out; leave out %s, or add replay",
                         flag->name, flag->name);
    if (o->endurance > 0 && o->parameters <= 0)
        return weir_fail(WEIR_ERR_ARG, "--endurance %g: wears by steps; give --parameters too",
                         o->endurance);
    return WEIR_OK;
}

/* Layouts and replay have one point: the sweep's best, or the one that is given. */
static enum weir_status point_check(const struct asked *asked)
{
    static const size_t layout[] = {FIELD(layout)};
    const struct options *o = asked->options;
    const struct {
        size_t field;
        uint32_t count;
    } lists[] = {{FIELD(blocks), o->blocks.count},
                 {FIELD(depths), o->depths.count},
                 {FIELD(engines), o->engines.count}};
    if (options_want(o, PART_SWEEP))
        return WEIR_OK;
    if (seen_of(asked, layout, 1))
        return weir_fail(WEIR_ERR_ARG, "--layout: of the sweep, which --part leaves out; leave out "
                                       "--layout, or add sweep");
    for (size_t i = 0; i < COUNT(lists); i++) {
        const struct flag *flag = seen_of(asked, &lists[i].field, 1);
        if (flag && lists[i].count > 1)
            return weir_fail(WEIR_ERR_ARG,
                             "%s: %u values, of which --part without sweep uses one; give one, or "
                             "add sweep",
                             flag->name, lists[i].count);
    }
    return WEIR_OK;
}

static enum weir_status patterns_check(const struct asked *asked)
{
    static const size_t pattern[] = {FIELD(patterns)}, part[] = {FIELD(parts)};
    const struct options *o = asked->options;
    bool mixed_alone = o->patterns.count == 1 && o->patterns.values[0] == PATTERN_MIXED;
    bool layouts = options_want(o, PART_LAYOUTS);
    if (seen_of(asked, pattern, 1) && !layouts && !options_want(o, PART_SWEEP))
        return weir_fail(WEIR_ERR_ARG, "--pattern: of sweep and layouts, which --part leaves out; "
                                       "leave out --pattern, or add one of them");
    if (seen_of(asked, part, 1) && layouts && mixed_alone)
        return weir_fail(WEIR_ERR_ARG, "--part layouts: compares reads and writes, and --pattern "
                                       "mixed is neither; add read or write, or leave out layouts");
    return WEIR_OK;
}

static enum weir_status io_check(const struct asked *asked)
{
    static const size_t bytes[] = {FIELD(bytes)};
    const struct options *o = asked->options;
    WEIR_TRY(place_check(o, seen_of(asked, bytes, 1) != NULL));
    if (o->command == COMMAND_IO) { /* all takes none of these */
        WEIR_TRY(replay_check(asked));
        WEIR_TRY(point_check(asked));
        WEIR_TRY(patterns_check(asked));
    }
    return room_check(o);
}

/* ---- the others */

static enum weir_status gemm_check(const struct asked *asked)
{
    static const size_t widths[] = {FIELD(hidden), FIELD(intermediate), FIELD(kv)};
    const struct options *o = asked->options;
    const struct flag *flag = seen_of(asked, widths, COUNT(widths));
    if (flag && o->configs.count > 0)
        return weir_fail(WEIR_ERR_ARG, "%s: shapes come from --config already; give one of the two",
                         flag->name);
    if (!flag && o->configs.count == 0)
        return weir_fail(WEIR_ERR_ARG, "--config and --hidden are missing; give one of the two");
    if (flag && (o->hidden == 0 || o->intermediate == 0))
        return weir_fail(WEIR_ERR_ARG, "%s: --hidden and --intermediate go together; give both",
                         flag->name);
    return WEIR_OK;
}

static enum weir_status turns_check(const struct asked *asked)
{
    static const size_t unused[] = {FIELD(rounds), FIELD(json), FIELD(html)};
    const struct flag *flag = seen_of(asked, unused, COUNT(unused));
    if (flag)
        return weir_fail(WEIR_ERR_ARG,
                         "%s: --turns answers lines of stdin and reports nothing; leave one out",
                         flag->name);
    return asked->options->dtypes.count == 1
               ? WEIR_OK
               : weir_fail(WEIR_ERR_ARG, "--turns: of which --dtype; give bf16 or fp32");
}

enum weir_status options_check(const struct options *o, const struct flag_table *table,
                               const bool *seen)
{
    const struct asked asked = {o, table, seen};
    if (o->command != COMMAND_MEMORY && o->threads.count > 1)
        return weir_fail(WEIR_ERR_ARG, "--threads: %u values; only memory takes more than one",
                         o->threads.count);
    WEIR_TRY(names_check(o));
    WEIR_TRY(outputs_check(o));
    switch (o->command) {
    case COMMAND_IO:
    case COMMAND_ALL:
        return io_check(&asked);
    case COMMAND_GEMM:
        return gemm_check(&asked);
    case COMMAND_ADAM:
        return o->turns ? turns_check(&asked) : WEIR_OK;
    default:
        return WEIR_OK;
    }
}
