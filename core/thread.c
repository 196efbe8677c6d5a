#include "core/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000u /* the shortest that Linux grants */

/* As the kernel has it; glibc names it from 2.41 on. */
struct attributes {
    uint32_t byte_count, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

void weir_thread_prompt(void)
{
    struct attributes now = {.byte_count = sizeof now};
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0)
        return;
    now.byte_count = sizeof now;
    now.runtime_ns = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &now, 0);
}

int weir_thread_cpus(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return CPU_COUNT(&allowed);
    return (int)sysconf(_SC_NPROCESSORS_ONLN); /* more than a cpu_set_t holds */
}

uint32_t weir_thread_parts(uint64_t amount, uint64_t least)
{
    uint64_t count = amount / least, cpus = (uint64_t)weir_thread_cpus();
    count = count < cpus ? count : cpus;
    return count < 1 ? 1 : count < WEIR_THREAD_PARTS ? (uint32_t)count : WEIR_THREAD_PARTS;
}

struct call {
    void (*fn)(void *part);
    void *part;
    pthread_t thread;
    bool started;
};

static void *call_run(void *argument)
{
    const struct call *call = argument;
    call->fn(call->part);
    return NULL;
}

void weir_thread_each(void (*fn)(void *part), void *parts, size_t part_bytes, uint32_t count)
{
    struct call calls[WEIR_THREAD_PARTS];
    for (uint32_t i = 0; i < count; i++)
        calls[i] = (struct call){.fn = fn, .part = (char *)parts + i * part_bytes};
    for (uint32_t i = 1; i < count; i++)
        calls[i].started = pthread_create(&calls[i].thread, NULL, call_run, &calls[i]) == 0;
    for (uint32_t i = 0; i < count; i++)
        if (!calls[i].started)
            call_run(&calls[i]);
    for (uint32_t i = 1; i < count; i++)
        if (calls[i].started)
            pthread_join(calls[i].thread, NULL);
}
