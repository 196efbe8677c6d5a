/* What a prompt thread asks of the scheduler, and what it leaves as it was; CPUs that are counted;
 * work in parts. */
#include "core/thread.h"
#include "tests/support.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

struct attributes { /* as the kernel has it */
    uint32_t byte_count, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

static struct attributes attributes_get(void)
{
    struct attributes now = {0};
    assert_int_equal(0, syscall(SYS_sched_getattr, 0, &now, sizeof now, 0));
    return now;
}

static void *prompt(void *argument)
{
    struct attributes *both = argument;
    both[0] = attributes_get();
    weir_thread_prompt();
    both[1] = attributes_get();
    return NULL;
}

/* Policy, priority and niceness stay, also a niceness that was lowered; the slice becomes short
 * where the kernel has slices, and only the thread that asked gets one. */
static void a_prompt_thread_changes_its_slice_alone(void **state)
{
    (void)state;
    struct attributes both[2], mine = attributes_get();
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, prompt, both));
    pthread_join(thread, NULL);
    assert_int_equal(both[0].policy, both[1].policy);
    assert_int_equal(both[0].nice, both[1].nice);
    assert_int_equal(both[0].priority, both[1].priority);
    assert_int_equal(mine.runtime_ns, attributes_get().runtime_ns);
    struct utsname kernel;
    assert_int_equal(0, uname(&kernel));
    int major = 0, minor = 0;
    assert_int_equal(2, sscanf(kernel.release, "%d.%d", &major, &minor));
    printf("slice before %llu ns, after %llu ns\n", (unsigned long long)both[0].runtime_ns,
           (unsigned long long)both[1].runtime_ns);
    if (major > 6 || (major == 6 && minor >= 12))
        assert_int_equal(100000, both[1].runtime_ns);
    else
        assert_int_equal(both[0].runtime_ns, both[1].runtime_ns);
}

static void *bound(void *argument)
{
    cpu_set_t one;
    int before = weir_thread_cpus();
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    assert_int_equal(0, sched_setaffinity(0, sizeof one, &one));
    *(int *)argument = before;
    return weir_thread_cpus() == 1 ? argument : NULL;
}

/* A container that has one CPU of many gets a team of one. */
static void cpus_are_those_that_the_thread_may_use(void **state)
{
    (void)state;
    int before = 0;
    void *counted;
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, bound, &before));
    pthread_join(thread, &counted);
    assert_ptr_equal(&before, counted);
    assert_int_equal(before, weir_thread_cpus());
}

struct count {
    uint64_t ran;
    char other[24];
};

static void count_up(void *part)
{
    ((struct count *)part)->ran++;
}

/* Each part once, before the call returns; as many as the work is worth, and never none. */
static void every_part_runs_once(void **state)
{
    (void)state;
    struct count counts[WEIR_THREAD_PARTS + 1] = {{0}};
    for (uint32_t count = 1; count <= WEIR_THREAD_PARTS; count++) {
        weir_thread_each(count_up, counts, sizeof *counts, count);
        for (uint32_t i = 0; i <= WEIR_THREAD_PARTS; i++) {
            assert_int_equal(i < count, counts[i].ran);
            counts[i].ran = 0;
        }
    }
    uint32_t cpus = (uint32_t)weir_thread_cpus();
    assert_int_equal(1, weir_thread_parts(0, 10));
    assert_int_equal(1, weir_thread_parts(19, 10));
    assert_int_equal(cpus < 2 ? cpus : 2, weir_thread_parts(29, 10));
    assert_int_equal(cpus < WEIR_THREAD_PARTS ? cpus : WEIR_THREAD_PARTS,
                     weir_thread_parts(UINT64_MAX, 10));
}

int main(void)
{
    (void)setpriority(PRIO_PROCESS, 0, 3);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_thread_changes_its_slice_alone),
        cmocka_unit_test(cpus_are_those_that_the_thread_may_use),
        cmocka_unit_test(every_part_runs_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
