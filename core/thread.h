/*
 * Where threads run, and how soon again after they slept.
 */
#ifndef WEIR_CORE_THREAD_H
#define WEIR_CORE_THREAD_H

#include <stddef.h>
#include <stdint.h>

/* Ask the scheduler for short slices for the calling thread: it works for microseconds and sleeps,
 * others wait for what it does next, and where a team keeps every core busy it would wait for the
 * end of a slice, three milliseconds, each time that it wakes. A wish, as it costs nobody else
 * any time: Linux before 6.12 does not know it. */
void weir_thread_prompt(void);

/* CPUs that the calling thread may run on: in a container often fewer than the machine has. */
int weir_thread_cpus(void);

#define WEIR_THREAD_PARTS 16u

/* Into how many parts to cut an amount of work that waits for memory: one a CPU, at most
 * WEIR_THREAD_PARTS, as memory is no faster by more, and none of less than `least`. */
uint32_t weir_thread_parts(uint64_t amount, uint64_t least);
/* fn(part) for each of count (at most WEIR_THREAD_PARTS) structs that follow each other, at once:
 * on threads that end before this returns, or on the caller's where one cannot be had. */
void weir_thread_each(void (*fn)(void *part), void *parts, size_t part_bytes, uint32_t count);

#endif
