/*
 * What is being measured, on stderr: one line that changes on a terminal, else a line a step.
 *
 *     progress_begin("sweep", 54);
 *     progress_step("read 1 MiB x 8 uring");
 *     progress_end();
 */
#ifndef WEIR_BENCH_PROGRESS_H
#define WEIR_BENCH_PROGRESS_H

#include <stdint.h>

void progress_begin(const char *what, uint32_t step_count);
/* The next step begins. */
void progress_step(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Bytes of a long step; said on a terminal alone. A weir_progress_fn: context is the text. */
void progress_bytes(void *context, uint64_t done_bytes, uint64_t all_bytes);
/* Clears the line; also before anything else is printed. */
void progress_end(void);

#endif
