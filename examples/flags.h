/*
 * The command lines of the programs: a table of flags, each of which sets one field. "--name value"
 * and "--name=value"; each at most once. What is wrong is one error that names flag, value and
 * remedy.
 */
#ifndef WEIR_EXAMPLES_FLAGS_H
#define WEIR_EXAMPLES_FLAGS_H

#include "core/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLAG_LIST_MOST 16

struct text_list {
    const char *values[FLAG_LIST_MOST];
    uint32_t count;
};
struct number_list {
    uint64_t values[FLAG_LIST_MOST];
    uint32_t count;
};

/* Lists have commas between; but for texts their values differ. */
enum flag_kind {
    FLAG_SWITCH,     /* bool; takes no value */
    FLAG_TEXT,       /* const char *, into the words */
    FLAG_TEXTS,      /* struct text_list, into the words, whose commas become ends */
    FLAG_NUMBER,     /* double, from low to high */
    FLAG_COUNT,      /* uint64_t */
    FLAG_COUNT32,    /* uint32_t, or an int that `most` fits */
    FLAG_COUNTS,     /* struct number_list */
    FLAG_BYTES,      /* uint64_t, see flag_bytes */
    FLAG_BYTES_LIST, /* struct number_list */
    FLAG_CHOICE,     /* int or an enum: an index into names */
    FLAG_CHOICES     /* struct number_list of them */
};

struct flag {
    const char *name;  /* with its dashes */
    const char *value; /* in a word, for the help; NULL for a switch */
    enum flag_kind kind;
    size_t field;         /* offset in what flags_read fills */
    const char *help;     /* what it does, its unit, its default */
    uint64_t least, most; /* of counts; most 0: INT64_MAX. Of choices: `most` names */
    double low, high;     /* of numbers: what the program can work with */
    const char *const *names;
    unsigned commands; /* a bit for each that takes it; 0: all */
};
#define FLAG_NAMES(list) .names = (list), .most = sizeof(list) / sizeof *(list)

struct flag_table {
    const struct flag *flags;
    size_t count;
    const char *command; /* as the user wrote it: "weir-train", "weir-bench io" */
    unsigned bit;        /* of the command in flag.commands */
};

/* Sets the fields that words name, and seen[flag] of each; the rest stays. WEIR_ERR_ARG: some may
 * have been set. */
enum weir_status flags_read(const struct flag_table *table, void *fields, bool *seen, int count,
                            char **words);
/* The first that was seen of those that set one of the fields; NULL: none. */
const struct flag *flag_seen(const struct flag_table *table, const bool *seen, const size_t *fields,
                             size_t count);
/* Each flag of the command with its help, in lines of 100 characters, to stdout. */
void flags_print(const struct flag_table *table);
/* A size as 512MiB, 2GiB, 600TB, at least 1 byte: text[0..length). name is for the error. */
enum weir_status flag_bytes(const char *name, const char *text, size_t length, uint64_t *out);
enum flag_file {
    FLAG_FILE_APPENDED, /* written where it is; a device or pipe will do */
    FLAG_FILE_REPLACED, /* beside its place, then renamed (examples/replace.h); they will do too */
    FLAG_FILE_REGULAR,  /* the same, but no device or pipe */
};
/* The file that a flag names can be made: asked before anything that it is to hold. */
enum weir_status flag_file_check(const char *name, const char *path, enum flag_file how);

#endif
