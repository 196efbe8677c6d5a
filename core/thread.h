/*
 * Where threads run, and how soon again after they slept.
 */
#ifndef WEIR_CORE_THREAD_H
#define WEIR_CORE_THREAD_H

/* Ask the scheduler for short slices for the calling thread: it works for microseconds and sleeps,
 * others wait for what it does next, and where a team keeps every core busy it would wait for the
 * end of a slice, three milliseconds, each time that it wakes. A wish, as it costs nobody else
 * any time: Linux before 6.12 does not know it. */
void weir_thread_prompt(void);

/* CPUs that the calling thread may run on: in a container often fewer than the machine has. */
int weir_thread_cpus(void);

#endif
