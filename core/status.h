/*
 * Setting errors, and keeping the first error of a worker thread until a caller can be told.
 */
#ifndef WEIR_CORE_STATUS_H
#define WEIR_CORE_STATUS_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <weir/status.h>

/* Run e; leave the function with its status unless it is WEIR_OK. */
#define WEIR_TRY(e)                                                                                \
    do {                                                                                           \
        enum weir_status weir_try_ = (e);                                                          \
        if (weir_try_ != WEIR_OK)                                                                  \
            return weir_try_;                                                                      \
    } while (0)

/* Set the calling thread's last error and return status. Call it where the failure arises, once. */
void weir_error_set(enum weir_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A macro, so that the compiler sees which status leaves. */
#define weir_fail(status, ...)                                                                     \
    __extension__({                                                                                \
        weir_error_set((status), __VA_ARGS__);                                                     \
        (enum weir_status)(status);                                                                \
    })

/* The same for a failed system call: appends ": strerror". ENOSPC and EDQUOT become NOSPACE. */
enum weir_status weir_fail_errno(enum weir_status status, int os_errno, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a device's own error code. */
enum weir_status weir_fail_device(int device_code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Replace the calling thread's last error by a copy of *error and return its status. */
enum weir_status weir_fail_with(const struct weir_error *error);

/* The first error of an object's worker threads. Zero-initialise; any thread may call. */
struct weir_sticky {
    pthread_mutex_t lock;
    bool set;
    struct weir_error error;
};
#define WEIR_STICKY_INIT                                                                           \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                          \
    }
void weir_sticky_set(struct weir_sticky *sticky, const struct weir_error *error);
/* WEIR_OK, or the kept error, copied to the calling thread's last error. */
enum weir_status weir_sticky_raise(struct weir_sticky *sticky);

/* Where a component's log lines go; fn NULL: nowhere. Serialised by the run that owns it. */
struct weir_log {
    weir_log_fn *fn;
    void *context;
    pthread_mutex_t lock;
};
void weir_log(struct weir_log *log, enum weir_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
