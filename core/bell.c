#include "core/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLEEPER 1u

uint32_t weir_bell_read(struct weir_bell *bell)
{
    return atomic_load_explicit(&bell->value, WEIR_HIDDEN_ACQUIRE);
}

/* One step forward and nobody asleep: who sleeps is woken, who is about to finds another value. */
void weir_bell_ring(struct weir_bell *bell)
{
    uint32_t old = atomic_load_explicit(&bell->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&bell->value, &old, (old + 2) & ~SLEEPER,
                                                  WEIR_HIDDEN_ACQ_REL, memory_order_relaxed))
        ;
    if (old & SLEEPER)
        syscall(SYS_futex, &bell->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Returns at the first ring since `seen` was read, or for no reason: the caller looks again. */
void weir_bell_sleep(struct weir_bell *bell, uint32_t seen)
{
    weir_bell_sleep_for(bell, seen, UINT64_MAX);
}

void weir_bell_sleep_for(struct weir_bell *bell, uint32_t seen, uint64_t most_ns)
{
    const struct timespec most = {.tv_sec = (time_t)(most_ns / 1000000000u),
                                  .tv_nsec = (long)(most_ns % 1000000000u)};
    uint32_t old = seen;
    if (atomic_compare_exchange_strong_explicit(&bell->value, &old, seen | SLEEPER,
                                                WEIR_HIDDEN_ACQ_REL, memory_order_relaxed))
        syscall(SYS_futex, &bell->value, FUTEX_WAIT_PRIVATE, seen | SLEEPER,
                most_ns == UINT64_MAX ? NULL : &most, NULL, 0);
}
