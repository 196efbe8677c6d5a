/*
 * The choice of a node on drawn maps, and what placing a thread does to its memory and to the
 * threads that it makes. Maps are given, so that a machine with one node tests the same code.
 */
#include "alloc/numa.h"
#include "alloc/pool.h"
#include "tests/support_device.h"
#include "zero/run.h"

#include <dirent.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MASK_BITS 1024

static struct weir_numa_map map; /* too large for a frame that calls others */

/* Nodes with so many CPUs each, all with memory, all equally far. */
static void map_make(int node_count, const int *cpu_counts)
{
    memset(&map, 0, sizeof map);
    map.node_count = node_count;
    for (int node = 0, cpu = 0; node < node_count; node++) {
        map.memory[node] = true;
        for (int i = 0; i < cpu_counts[node]; i++)
            CPU_SET((size_t)cpu++, &map.cpus[node]);
        for (int other = 0; other < node_count; other++)
            map.distances[node][other] = node == other ? 10 : 20;
    }
}

/* For the host itself the node with the most CPUs that has memory, the first of equals. */
static void host_takes_the_node_with_most_cpus(void **state)
{
    (void)state;
    map_make(4, (int[]){2, 8, 8, 4});
    assert_int_equal(1, weir_numa_choose(&map, WEIR_NUMA_NOWHERE));
    map.memory[1] = false;
    assert_int_equal(2, weir_numa_choose(&map, WEIR_NUMA_NOWHERE));
    memset(map.memory, 0, sizeof map.memory);
    assert_int_equal(WEIR_NUMA_NOWHERE, weir_numa_choose(&map, WEIR_NUMA_NOWHERE));
    map_make(0, NULL);
    assert_int_equal(WEIR_NUMA_NOWHERE, weir_numa_choose(&map, WEIR_NUMA_NOWHERE));
}

/* For a device its own node, however few CPUs it has; if it has none or no memory, the nearest. */
static void device_takes_its_node_or_the_nearest(void **state)
{
    (void)state;
    map_make(4, (int[]){9, 1, 3, 5});
    assert_int_equal(1, weir_numa_choose(&map, 1));
    CPU_ZERO(&map.cpus[1]);
    map.distances[1][2] = map.distances[1][3] = 12;
    assert_int_equal(3, weir_numa_choose(&map, 1));
    map.distances[1][2] = 11;
    assert_int_equal(2, weir_numa_choose(&map, 1));
}

/* On drawn maps: what is chosen can be used, and nothing that can be used is better. */
static void chosen_node_is_the_best_of_all(void **state)
{
    (void)state;
    struct test_random random = test_random_open(31);
    int chosen_count = 0;
    for (uint32_t draw = 0; draw < test_draws(2000); draw++) {
        int counts[6], usable = 0;
        for (int node = 0; node < 6; node++)
            counts[node] = (int)test_random_below(&random, 4);
        map_make(6, counts);
        int device = (int)test_random_below(&random, 7) - 1, best_distance = 0, best_cpus = 0;
        for (int node = 0; node < 6; node++) {
            map.memory[node] = test_random_below(&random, 4) > 0;
            for (int other = 0; other < 6; other++)
                map.distances[node][other] = 10 + (int)test_random_below(&random, 3);
        }
        int chosen = weir_numa_choose(&map, device);
        if (chosen >= 0) {
            assert_true(counts[chosen] > 0 && map.memory[chosen]);
            best_distance = device < 0 ? 0 : map.distances[device][chosen];
            best_cpus = counts[chosen];
            chosen_count++;
        }
        for (int node = 0; node < 6; node++) {
            if (counts[node] == 0 || !map.memory[node])
                continue;
            usable++;
            int distance = device < 0 ? 0 : map.distances[device][node];
            assert_true(distance > best_distance ||
                        (distance == best_distance && counts[node] < best_cpus) ||
                        (distance == best_distance && counts[node] == best_cpus && node >= chosen));
        }
        assert_int_equal(usable > 0, chosen >= 0);
    }
    assert_true(chosen_count > 0);
}

/* ---- the calling thread */

struct placement {
    int policy;
    unsigned long nodes[MASK_BITS / 64];
    cpu_set_t cpus;
};

static void placement_read(struct placement *out)
{
    memset(out, 0, sizeof *out);
    if (syscall(SYS_get_mempolicy, &out->policy, out->nodes, (unsigned long)MASK_BITS, 0L, 0L) !=
        0) {
        print_message("get_mempolicy: errno %d, the kernel or a container forbids it\n", errno);
        skip();
    }
    assert_int_equal(0, sched_getaffinity(0, sizeof out->cpus, &out->cpus));
}

static void *placement_thread(void *argument)
{
    placement_read(argument);
    return NULL;
}

/* Two nodes, of which the chosen one is node 0 with one of this thread's CPUs: real everywhere. */
static void numa_on_one_cpu(struct weir_numa *numa, struct weir_log *log)
{
    struct placement now;
    placement_read(&now);
    map_make(2, (int[]){0, 0});
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &now.cpus))
        cpu++;
    CPU_SET(cpu, &map.cpus[0]);
    weir_numa_open_on(numa, &map, WEIR_NUMA_NOWHERE, log);
    assert_true(numa->bound);
    assert_int_equal(0, numa->node);
    assert_ptr_equal(&numa->cpus, weir_numa_cpus(numa));
}

/* A thread made inside has the node's CPUs and prefers its memory; the maker is as it was before,
 * also if it had a policy of its own. */
static void threads_made_inside_belong_to_the_node(void **state)
{
    (void)state;
    struct weir_numa numa;
    numa_on_one_cpu(&numa, NULL);
    for (int own = 0; own < 2; own++) {
        struct placement before, child, after;
        unsigned long node_0 = 1;
        assert_int_equal(0, syscall(SYS_set_mempolicy,
                                    own ? (long)MPOL_INTERLEAVE : (long)MPOL_DEFAULT,
                                    own ? &node_0 : NULL, own ? 64L : 0L));
        placement_read(&before);
        pthread_t thread;
        weir_numa_enter(&numa);
        assert_int_equal(0, pthread_create(&thread, NULL, placement_thread, &child));
        pthread_join(thread, NULL);
        weir_numa_leave(&numa);
        placement_read(&after);
        assert_int_equal(MPOL_PREFERRED, child.policy);
        assert_int_equal(1, child.nodes[0]);
        assert_true(CPU_EQUAL(&numa.cpus, &child.cpus));
        assert_int_equal(own ? MPOL_INTERLEAVE : MPOL_DEFAULT, before.policy);
        assert_memory_equal(&before, &after, sizeof before);
    }
    assert_int_equal(0, syscall(SYS_set_mempolicy, (long)MPOL_DEFAULT, NULL, 0L));
}

/* Every page of a slab taken inside lies on the node when the pool returns it. */
static void slabs_made_inside_lie_on_the_node(void **state)
{
    struct test_device *d = *state;
    enum { PAGES = 1024 };
    static void *pages[PAGES];
    static int nodes[PAGES];
    struct weir_numa numa;
    struct weir_pool *pool;
    void *slab;
    numa_on_one_cpu(&numa, NULL);
    assert_ok(weir_pool_open(&pool, d->device, WEIR_POOL_HOST, "host", UINT64_MAX, ""));
    weir_numa_enter(&numa);
    assert_ok(weir_pool_take(pool, "slab", PAGES * 4096, &slab));
    weir_numa_leave(&numa);
    for (int i = 0; i < PAGES; i++) {
        pages[i] = (char *)slab + i * 4096;
        nodes[i] = -1;
    }
    assert_int_equal(0, syscall(SYS_move_pages, 0L, (long)PAGES, pages, NULL, nodes, 0L));
    for (int i = 0; i < PAGES; i++)
        assert_int_equal(numa.node, nodes[i]);
    assert_ok(weir_pool_close(pool));
}

/* ---- the device's engines, and a run */

static void cpus_get(void *argument)
{
    sched_getaffinity(0, sizeof(cpu_set_t), *(cpu_set_t **)argument);
}

/* Engines that copy stay on the CPUs given; compute keeps all that the process has. */
static void copies_run_on_the_cpus_given(void **state)
{
    (void)state;
    struct weir_numa numa;
    struct placement now;
    const struct weir_device_table *table;
    struct weir_device *device;
    numa_on_one_cpu(&numa, NULL);
    placement_read(&now);
    assert_ok(weir_device_find("host", &table));
    assert_ok(table->open(&device, &(struct weir_device_options){.memory_bytes = 4096,
                                                                 .thread_count = 1,
                                                                 .cpus = weir_numa_cpus(&numa)}));
    for (enum weir_engine engine = WEIR_ENGINE_COMPUTE; engine <= WEIR_ENGINE_TO_HOST; engine++) {
        struct weir_stream *stream;
        cpu_set_t cpus, *out = &cpus;
        assert_ok(table->stream_create(device, engine, "cpus", &stream));
        assert_ok(table->call(stream, cpus_get, &out, sizeof out, NULL, 0));
        assert_ok(table->stream_sync(stream));
        assert_true(CPU_EQUAL(engine == WEIR_ENGINE_COMPUTE ? &now.cpus : &numa.cpus, &cpus));
        table->stream_destroy(stream);
    }
    table->close(device);
}

struct lines {
    enum weir_log_level expected;
    int count;
    char last[256];
};

static void line_keep(void *context, enum weir_log_level level, const char *line)
{
    struct lines *lines = context;
    if (strncmp(line, "numa: ", 6) != 0)
        return;
    assert_int_equal(lines->expected, level);
    lines->count++;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

/* One line, whatever is found. With one node nothing is bound, and entering changes nothing. */
static void one_line_says_what_was_chosen(void **state)
{
    (void)state;
    struct lines lines = {.expected = WEIR_LOG_INFO};
    struct weir_log log = {line_keep, &lines, PTHREAD_MUTEX_INITIALIZER};
    struct placement before, after;
    struct weir_numa numa;
    map_make(2, (int[]){3, 4});
    weir_numa_open_on(&numa, &map, WEIR_NUMA_NOWHERE, &log);
    assert_string_equal("numa: 2 nodes, host memory and its threads on node 1 with 4 CPUs",
                        lines.last);
    map_make(1, (int[]){4});
    weir_numa_open_on(&numa, &map, WEIR_NUMA_NOWHERE, &log);
    assert_string_equal("numa: 1 node, nothing to bind", lines.last);
    assert_int_equal(2, lines.count);
    assert_null(weir_numa_cpus(&numa));
    placement_read(&before);
    weir_numa_enter(&numa);
    placement_read(&after);
    assert_memory_equal(&before, &after, sizeof before);
    weir_numa_leave(&numa);
}

/* A run says it once. */
static void a_run_says_its_node(void **state)
{
    (void)state;
    struct lines lines = {.expected = WEIR_LOG_INFO};
    weir_run *run;
    struct weir_options options = {.struct_bytes = sizeof options,
                                   .device = "host",
                                   .device_bytes = UINT64_MAX,
                                   .host_bytes = UINT64_MAX,
                                   .dtype = WEIR_FP32,
                                   .grad_dtype = WEIR_FP32,
                                   .thread_count = 1,
                                   .log = line_keep,
                                   .log_context = &lines};
    assert_ok(weir_open(&run, &options));
    weir_close(run);
    print_message("%s\n", lines.last);
    assert_int_equal(1, lines.count);
}

/* ---- a run with a layout */

/* How many threads have the CPUs, and how many have others. Not counted: the kernel's own, and
 * those that compute (which under ThreadSanitizer begin with their stream). */
static void threads_count(const cpu_set_t *cpus, int *on_them, int *elsewhere)
{
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    *on_them = *elsewhere = 0;
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (entry->d_name[0] == '.' || file == NULL)
            continue;
        assert_non_null(fgets(name, sizeof name, file));
        fclose(file);
        cpu_set_t own;
        if (strncmp(name, "iou-", 4) == 0 || strcmp(name, "weir-compute\n") == 0)
            continue;
        assert_int_equal(0, sched_getaffinity((pid_t)atoi(entry->d_name), sizeof own, &own));
        *(CPU_EQUAL(cpus, &own) ? on_them : elsewhere) += 1;
    }
    closedir(tasks);
}

static void step_record(weir_run *run)
{
    uint32_t block;
    struct weir_view view;
    struct weir_report report = {.struct_bytes = sizeof report};
    struct weir_update update = {.struct_bytes = sizeof update, .lr = 1};
    assert_ok(weir_block_add(run,
                             &(struct weir_tensor){.struct_bytes = sizeof(struct weir_tensor),
                                                   .name = "w",
                                                   .kind = WEIR_TRAINED,
                                                   .dim_count = 1,
                                                   .shape = {1 << 16}},
                             1, &block));
    assert_ok(weir_step_begin(run, "train", true));
    assert_ok(weir_want(run, &(struct weir_use){block, WEIR_GRAD}, 1, &view));
    assert_ok(weir_done(run, &block, 1));
    assert_ok(weir_step_end(run, &update, &report));
}

/* Every thread that a layout starts to move bytes runs on the node; those that were there stay
 * where they were.
 */
static void layout_starts_its_threads_on_the_node(void **state)
{
    (void)state;
    char directory[256];
    test_directory_make(directory);
    weir_run *run;
    assert_ok(weir_open(&run, &(struct weir_options){.struct_bytes = sizeof(struct weir_options),
                                                     .device = "host",
                                                     .device_bytes = UINT64_MAX,
                                                     .host_bytes = UINT64_MAX,
                                                     .nvme_path = directory,
                                                     .dtype = WEIR_FP32,
                                                     .grad_dtype = WEIR_FP32,
                                                     .thread_count = 1}));
    numa_on_one_cpu(&run->numa, NULL);
    step_record(run);
    int on_node, elsewhere, on_node_before, elsewhere_before;
    threads_count(&run->numa.cpus, &on_node_before, &elsewhere_before);
    assert_ok(weir_layout(run));
    threads_count(&run->numa.cpus, &on_node, &elsewhere);
    print_message("%d threads on the node, %d elsewhere\n", on_node, elsewhere);
    assert_true(on_node > on_node_before);
    assert_int_equal(elsewhere_before, elsewhere);
    weir_close(run);
    test_directory_remove(directory);
}

/* A CPU that is not there: the refusal is told once, the thread stays as it was, and so it goes on
 * without being bound. */
static void refusal_is_told_and_changes_nothing(void **state)
{
    (void)state;
    struct lines lines = {.expected = WEIR_LOG_WARNING};
    struct weir_log log = {line_keep, &lines, PTHREAD_MUTEX_INITIALIZER};
    struct placement before, after;
    struct weir_numa numa;
    numa_on_one_cpu(&numa, NULL);
    numa.log = &log;
    CPU_ZERO(&numa.cpus);
    placement_read(&before);
    for (int i = 0; i < 2; i++) {
        weir_numa_enter(&numa);
        placement_read(&after);
        assert_memory_equal(&before, &after, sizeof before);
        weir_numa_leave(&numa);
    }
    assert_int_equal(1, lines.count);
    assert_true(test_contains(lines.last, "cannot place memory and threads on node 0"));
    assert_null(weir_numa_cpus(&numa));
}

int main(void)
{
    static struct test_variant plain = {"host", false};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_takes_the_node_with_most_cpus),
        cmocka_unit_test(device_takes_its_node_or_the_nearest),
        cmocka_unit_test(chosen_node_is_the_best_of_all),
        cmocka_unit_test(threads_made_inside_belong_to_the_node),
        cmocka_unit_test_prestate_setup_teardown(slabs_made_inside_lie_on_the_node,
                                                 test_device_setup, test_device_teardown, &plain),
        cmocka_unit_test(copies_run_on_the_cpus_given),
        cmocka_unit_test(one_line_says_what_was_chosen),
        cmocka_unit_test(refusal_is_told_and_changes_nothing),
        cmocka_unit_test(a_run_says_its_node),
        cmocka_unit_test(layout_starts_its_threads_on_the_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
