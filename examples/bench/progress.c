#include "examples/bench/progress.h"
#include "examples/bench/leave.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static struct {
    const char *what;
    uint32_t step, step_count;
} now;

static void line_print(const char *text)
{
    bool terminal = isatty(STDERR_FILENO);
    fprintf(stderr, terminal ? "\r\033[K[%u/%u] %s: %s" : "[%u/%u] %s: %s\n", now.step,
            now.step_count, now.what, text);
    fflush(stderr);
}

void progress_begin(const char *what, uint32_t step_count)
{
    now.what = what;
    now.step = 0;
    now.step_count = step_count;
}

void progress_step(const char *format, ...)
{
    char text[160];
    va_list arguments;
    leave_if_asked();
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    now.step++;
    line_print(text);
}

void progress_bytes(void *context, uint64_t done_bytes, uint64_t all_bytes)
{
    leave_if_asked();
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s: %.2f of %.2f GB", (const char *)context,
                (double)done_bytes * 1e-9, (double)all_bytes * 1e-9);
}

void progress_end(void)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
}
