#include "core/thread.h"

#include <sched.h>
#include <stdint.h>
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
