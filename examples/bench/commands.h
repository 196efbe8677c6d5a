/*
 * What each command of weir-bench measures: rows and members are added to the report.
 */
#ifndef WEIR_BENCH_COMMANDS_H
#define WEIR_BENCH_COMMANDS_H

#include "examples/bench/options.h"
#include "examples/bench/report.h"

enum weir_status io_measure(const struct options *options, struct report *report);
enum weir_status memory_measure(const struct options *options, struct report *report);
enum weir_status adam_measure(const struct options *options, struct report *report);
enum weir_status gemm_measure(const struct options *options, struct report *report);
enum weir_status copy_measure(const struct options *options, struct report *report);
/* All of them in short, and the profile that --save names. */
enum weir_status all_measure(const struct options *options, struct report *report);

/* adam --turns: until stdin ends. */
enum weir_status adam_turns(const struct options *options);

#endif
