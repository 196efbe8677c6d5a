/*
 * weir-bench's command line: `weir-bench COMMAND [options]`. One bad option is one error that names
 * option, value and remedy.
 */
#ifndef WEIR_BENCH_OPTIONS_H
#define WEIR_BENCH_OPTIONS_H

#include "examples/flags.h"
#include <weir/weir.h>

#define ROUNDS_MOST 99

enum command {
    COMMAND_IO,
    COMMAND_MEMORY,
    COMMAND_ADAM,
    COMMAND_GEMM,
    COMMAND_COPY,
    COMMAND_ALL,
    COMMAND_COUNT
};
extern const char *const command_names[COMMAND_COUNT];

enum pattern { PATTERN_READ, PATTERN_WRITE, PATTERN_MIXED, PATTERN_COUNT };
extern const char *const pattern_names[PATTERN_COUNT];

/* How the memory of transfers is made of pages. */
enum layout { LAYOUT_HUGE, LAYOUT_PAGES, LAYOUT_SCATTERED, LAYOUT_COUNT };
extern const char *const layout_names[LAYOUT_COUNT];

enum part { PART_SWEEP, PART_LAYOUTS, PART_REPLAY, PART_COUNT };
enum gradients { GRADIENTS_NONE, GRADIENTS_BF16, GRADIENTS_FP32 };
enum { ENGINE_URING, ENGINE_THREADS, ENGINE_COUNT };
extern const char *const engine_names[ENGINE_COUNT];

struct options {
    enum command command;
    bool help;
    struct text_list paths;
    const char *file; /* instead of paths: measured as it is; NULL: none */
    const char *save, *json, *html;
    uint64_t bytes; /* of an extent, an array or a copy */
    struct number_list blocks, depths, threads;
    struct number_list engines, patterns, parts, dtypes; /* indices into the names */
    bool replay_left_out; /* by default: it would write to a file that is only to be read */
    enum layout layout;
    enum gradients gradients;
    int device;
    enum { UPDATE_ADAM, UPDATE_NONE } update; /* of the replay */
    double seconds;                           /* of a point, in each round */
    uint64_t rounds;
    double parameters; /* 0: not given */
    double endurance;  /* terabytes (10^12) written that the drive is good for; 0: not given */
    uint64_t ring;     /* windows in flight */
    struct text_list configs;
    uint64_t tokens, hidden, intermediate, kv;
    bool turns; /* adam: an update for each line on stdin */
};

/* Keeps pointers into values. WEIR_ERR_ARG: nothing is to be measured. */
enum weir_status options_read(struct options *options, int count, char **values);
/* options_check.c: the part of options_read that sees them together, defaults among them. */
enum weir_status options_check(const struct options *options, const struct flag_table *table,
                               const bool *seen);
/* The files that are asked for can be made; before anything is measured. */
enum weir_status options_outputs_check(const struct options *options);
/* io: a part is wanted; some pattern writes. */
bool options_want(const struct options *options, enum part part);
bool options_write(const struct options *options);
void options_help(const struct options *options, bool command_known);
/* Names of --device. */
extern const char *const device_names[2];

#endif
