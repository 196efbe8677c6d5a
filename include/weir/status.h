/*
 * Results and errors of weir.
 *
 * Every call that can fail returns enum weir_status; values leave by out pointers. The first
 * failure is described once, where it arises, in the calling thread's last error:
 *
 *     if (weir_layout(run) != WEIR_OK)
 *         fprintf(stderr, "%s\n", weir_last_error()->text);
 *
 * The text is one line: object, numbers, cause, remedy. A failure on one of weir's own threads is
 * kept in its object and surfaces, with its text, at the next call on that object.
 */
#ifndef WEIR_STATUS_H
#define WEIR_STATUS_H

#if defined(__GNUC__) || defined(__clang__)
#define WEIR_MUST_CHECK __attribute__((warn_unused_result))
#else
#define WEIR_MUST_CHECK
#endif

#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0
#define WEIR_VERSION       "0.1.0"

/* Around what is public: C's names, exported by the shared library. */
#ifdef __cplusplus
#define WEIR_API_BEGIN                                                                             \
    extern "C" {                                                                                   \
    _Pragma("GCC visibility push(default)")
#define WEIR_API_END                                                                               \
    _Pragma("GCC visibility pop")                                                                  \
    }
#else
#define WEIR_API_BEGIN _Pragma("GCC visibility push(default)")
#define WEIR_API_END   _Pragma("GCC visibility pop")
#endif

WEIR_API_BEGIN

enum weir_status {
    WEIR_OK = 0,
    WEIR_ERR_ARG,         /* an argument is wrong; nothing was changed */
    WEIR_ERR_STATE,       /* the call does not fit here (order of calls); nothing was changed */
    WEIR_ERR_NOMEM,       /* a byte budget or the allocator is exhausted */
    WEIR_ERR_NOSPACE,     /* a file system is full */
    WEIR_ERR_IO,          /* a transfer or a file operation failed */
    WEIR_ERR_CORRUPT,     /* bytes read are not what they must be */
    WEIR_ERR_DEVICE,      /* the device reported a failure */
    WEIR_ERR_COMM,        /* a collective failed */
    WEIR_ERR_DIVERGED,    /* a step is not the one that was recorded */
    WEIR_ERR_CANCELED,    /* the caller asked to stop; for callers' own use */
    WEIR_ERR_UNSUPPORTED, /* well-formed, but weir cannot do it */
};

struct weir_error {
    enum weir_status status;
    int os_errno;    /* 0: none */
    int device_code; /* 0: none */
    char text[512];  /* one line, no newline */
};

/* The calling thread's last failure; status WEIR_OK and an empty text if there was none. A call
 * that succeeds leaves it. Borrowed: valid until the thread's next weir call. */
const struct weir_error *weir_last_error(void);

/* "WEIR_ERR_NOMEM" and so on; never NULL. */
const char *weir_status_name(enum weir_status status);

enum weir_log_level { WEIR_LOG_INFO, WEIR_LOG_WARNING };

/* Receives one line without a newline. May be called from any of weir's threads, one at a time. */
typedef void weir_log_fn(void *context, enum weir_log_level level, const char *line);

WEIR_API_END
#endif
