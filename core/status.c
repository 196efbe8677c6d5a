#include "core/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct weir_error last_error;

const struct weir_error *weir_last_error(void)
{
    return &last_error;
}

const char *weir_status_name(enum weir_status status)
{
    switch (status) {
    case WEIR_OK:
        return "WEIR_OK";
    case WEIR_ERR_ARG:
        return "WEIR_ERR_ARG";
    case WEIR_ERR_STATE:
        return "WEIR_ERR_STATE";
    case WEIR_ERR_NOMEM:
        return "WEIR_ERR_NOMEM";
    case WEIR_ERR_NOSPACE:
        return "WEIR_ERR_NOSPACE";
    case WEIR_ERR_IO:
        return "WEIR_ERR_IO";
    case WEIR_ERR_CORRUPT:
        return "WEIR_ERR_CORRUPT";
    case WEIR_ERR_DEVICE:
        return "WEIR_ERR_DEVICE";
    case WEIR_ERR_COMM:
        return "WEIR_ERR_COMM";
    case WEIR_ERR_DIVERGED:
        return "WEIR_ERR_DIVERGED";
    case WEIR_ERR_CANCELED:
        return "WEIR_ERR_CANCELED";
    case WEIR_ERR_UNSUPPORTED:
        return "WEIR_ERR_UNSUPPORTED";
    }
    return "WEIR_ERR_?";
}

/* An error is one line whatever a file name or a library's message holds. */
static void flatten(char *text)
{
    for (; *text; text++)
        if (*text == '\n' || *text == '\r')
            *text = ' ';
}

/* Formats into a copy first: the arguments may point into the last error itself. */
static enum weir_status set(enum weir_status status, int os_errno, int device_code,
                            const char *format, va_list arguments)
{
    struct weir_error error = {.status = status, .os_errno = os_errno, .device_code = device_code};
    int length = vsnprintf(error.text, sizeof error.text, format, arguments);
    if (os_errno != 0 && length >= 0 && (size_t)length < sizeof error.text) {
        char reason[128];
        snprintf(error.text + length, sizeof error.text - (size_t)length, ": %s",
                 strerror_r(os_errno, reason, sizeof reason));
    }
    flatten(error.text);
    last_error = error;
    return status;
}

void weir_error_set(enum weir_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(status, 0, 0, format, arguments);
    va_end(arguments);
}

enum weir_status weir_fail_errno(enum weir_status status, int os_errno, const char *format, ...)
{
    if (os_errno == ENOSPC || os_errno == EDQUOT)
        status = WEIR_ERR_NOSPACE;
    va_list arguments;
    va_start(arguments, format);
    set(status, os_errno, 0, format, arguments);
    va_end(arguments);
    return status;
}

enum weir_status weir_fail_device(int device_code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(WEIR_ERR_DEVICE, 0, device_code, format, arguments);
    va_end(arguments);
    return WEIR_ERR_DEVICE;
}

enum weir_status weir_fail_with(const struct weir_error *error)
{
    if (error != &last_error)
        last_error = *error;
    return last_error.status;
}

void weir_sticky_set(struct weir_sticky *sticky, const struct weir_error *error)
{
    pthread_mutex_lock(&sticky->lock);
    if (!sticky->set) {
        sticky->error = *error;
        sticky->set = true;
    }
    pthread_mutex_unlock(&sticky->lock);
}

enum weir_status weir_sticky_raise(struct weir_sticky *sticky)
{
    enum weir_status status = WEIR_OK;
    pthread_mutex_lock(&sticky->lock);
    if (sticky->set)
        status = weir_fail_with(&sticky->error);
    pthread_mutex_unlock(&sticky->lock);
    return status;
}
