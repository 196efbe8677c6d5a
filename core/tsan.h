/*
 * What ThreadSanitizer is told, and what is kept from it.
 *
 * It derives happens-before from every acquire that reads a release. Bookkeeping that gives callers
 * no order (a queue's free room, a doorbell) uses the hidden orders: real ones on the hardware,
 * relaxed under ThreadSanitizer (that is x86, where the same instructions order as much), so that
 * two accesses that only the bookkeeping happens to order are still reported.
 */
#ifndef WEIR_CORE_TSAN_H
#define WEIR_CORE_TSAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#if defined(__SANITIZE_THREAD__)
#define WEIR_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEIR_TSAN 1
#endif
#endif
#ifndef WEIR_TSAN
#define WEIR_TSAN 0
#endif

#if WEIR_TSAN
#define WEIR_HIDDEN_ACQUIRE memory_order_relaxed
#define WEIR_HIDDEN_RELEASE memory_order_relaxed
#define WEIR_HIDDEN_ACQ_REL memory_order_relaxed
void __tsan_read_range(void *address, long bytes);
void __tsan_write_range(void *address, long bytes);
#else
#define WEIR_HIDDEN_ACQUIRE memory_order_acquire
#define WEIR_HIDDEN_RELEASE memory_order_release
#define WEIR_HIDDEN_ACQ_REL memory_order_acq_rel
#endif

/* A function whose plain accesses ThreadSanitizer does not see: for what hidden orders order. Use
 * volatile words in it, lest the compiler calls memcpy, which is seen. */
#define WEIR_TSAN_BLIND __attribute__((noinline, no_sanitize("thread")))

/* The calling thread reads or writes bytes[0..count), in code that is not instrumented. */
static inline void weir_tsan_range(const void *bytes, size_t count, bool written)
{
#if WEIR_TSAN
    if (written)
        __tsan_write_range((void *)bytes, (long)count);
    else
        __tsan_read_range((void *)bytes, (long)count);
#else
    (void)bytes, (void)count, (void)written;
#endif
}

#endif
