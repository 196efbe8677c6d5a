#include "core/status.h"

#include <stdio.h>

void weir_log(struct weir_log *log, enum weir_log_level level, const char *format, ...)
{
    if (log == NULL || log->fn == NULL)
        return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&log->lock);
    log->fn(log->context, level, line);
    pthread_mutex_unlock(&log->lock);
}
