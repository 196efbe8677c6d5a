/*
 * What the machine may do to the I/O engines: refuse io_uring, lock no memory, have no descriptors
 * left, interrupt without end, have no O_DIRECT, have sectors of 4 KiB. The bytes are the same, or
 * there is one clear error. Each runs in a child of its own, so that limits end with it.
 */
#include "tests/support.h"

#include "io/engine.h"
#include "io/extent.h"
#include "tests/support_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK        4096u
#define BYTES        ((uint64_t)2 << 20)
#define CHILD_SKIPS  77
#define CHILD_FAILED 1

static char directory[256];

/* ---- a child: it cannot use cmocka's asserts, which return to the parent's loop */

#define must(holds)                                                                                \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #holds,             \
                    weir_last_error()->text);                                                      \
            _exit(CHILD_FAILED);                                                                   \
        }                                                                                          \
    } while (0)

static void child_run(void (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        body();
        _exit(0);
    }
    int status;
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_SKIPS)
        skip();
    assert_int_equal(0, WEXITSTATUS(status));
}

static void child_skip(const char *cause)
{
    fprintf(stderr, "SKIPPED: %s\n", cause);
    _exit(CHILD_SKIPS);
}

/* Built, and the kernel lets it run here. */
static bool have_uring(void)
{
    return strcmp(test_engine_at(0)->name, "uring") == 0;
}

static struct {
    unsigned warnings;
    char text[1024]; /* of the last */
} logged;

static void log_keep(void *context, enum weir_log_level level, const char *line)
{
    (void)context;
    if (level != WEIR_LOG_WARNING)
        return;
    logged.warnings++;
    snprintf(logged.text, sizeof logged.text, "%s", line);
}

static struct weir_log log_to = {.fn = log_keep, .lock = PTHREAD_MUTEX_INITIALIZER};

static enum weir_status front_open(const char *engine, struct weir_io **io)
{
    return weir_io_open(io, &(struct weir_io_options){.engine = engine,
                                                      .depth = 4,
                                                      .request_count = 16,
                                                      .piece_bytes = 16 * BLOCK,
                                                      .log = &log_to});
}

static enum weir_status extent_open(struct weir_extent *extent, struct weir_io *io,
                                    const char *where, struct weir_log *log)
{
    const struct weir_extent_place place = {.directory = where};
    return weir_extent_open(
        extent, io,
        &(struct weir_extent_options){
            .places = &place, .place_count = 1, .byte_count = BYTES, .log = log});
}

static void all_reap(struct weir_io *io, size_t want)
{
    while (want > 0) {
        struct weir_io_result results[16];
        size_t count;
        must(weir_io_reap(io, results, 16, WEIR_IO_FOREVER, &count) == WEIR_OK);
        for (size_t i = 0; i < count; i++)
            if (results[i].status != WEIR_OK)
                must(weir_fail_with(&results[i].error) == WEIR_OK);
        want -= count;
    }
}

/* Sixteen odd requests there and back, at `first` of the file. */
static void bytes_travel(struct weir_io *io, uint32_t file, uint64_t first, unsigned char *memory,
                         uint64_t seed)
{
    enum { ROOM = 24 * BLOCK };
    static unsigned char model[16 * ROOM];
    struct test_random random = {.state = seed};
    struct weir_io_request requests[16];
    for (uint64_t i = 0; i < 16; i++) {
        uint64_t skew = test_random_below(&random, 2) ? test_random_below(&random, BLOCK) : 0;
        requests[i] = (struct weir_io_request){.id = i,
                                               .kind = WEIR_IO_WRITE,
                                               .file = file,
                                               .offset_bytes = first + i * ROOM + skew,
                                               .bytes = memory + i * ROOM + skew,
                                               .byte_count = ROOM - skew};
    }
    for (size_t i = 0; i < sizeof model; i++)
        memory[i] = model[i] = (unsigned char)test_random_next(&random);
    must(weir_io_submit(io, requests, 16) == WEIR_OK);
    all_reap(io, 16);
    memset(memory, 0, sizeof model);
    for (int i = 0; i < 16; i++)
        requests[i].kind = WEIR_IO_READ;
    must(weir_io_submit(io, requests, 16) == WEIR_OK);
    all_reap(io, 16);
    for (int i = 0; i < 16; i++) {
        size_t at = (size_t)((unsigned char *)requests[i].bytes - memory);
        must(memcmp(model + at, memory + at, requests[i].byte_count) == 0);
    }
}

static unsigned char *memory_make(void)
{
    unsigned char *memory = aligned_alloc(BLOCK, BYTES);
    must(memory != NULL);
    memset(memory, 0, BYTES);
    return memory;
}

/* Through an engine and a file in `where`, with memory registered if it can be. */
static void front_travel(const char *engine, const char *where)
{
    struct weir_io *io;
    struct weir_extent extent;
    unsigned char *memory = memory_make();
    must(front_open(engine, &io) == WEIR_OK);
    must(weir_io_memory_add(io, memory, BYTES) == WEIR_OK);
    must(extent_open(&extent, io, where, &log_to) == WEIR_OK);
    bytes_travel(io, extent.file, 0, memory, 5);
    weir_io_close(io);
    weir_extent_close(&extent);
    free(memory);
}

/* ---- system calls refused */

static int refused_errno;

static void call_refuse(uint32_t call, int os_errno)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)os_errno),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        child_skip("the kernel takes no seccomp filter");
}

static void refused_child(void)
{
    call_refuse(SYS_io_uring_setup, refused_errno);
    struct weir_io *io;
    must(front_open("uring", &io) == WEIR_ERR_UNSUPPORTED);
    must(weir_last_error()->os_errno == refused_errno);
    must(test_contains(weir_last_error()->text, "io engine \"uring\""));
    must(test_contains(weir_last_error()->text, "use io engine \"threads\""));
    must(front_open(NULL, &io) == WEIR_OK);
    must(strcmp(weir_io_engine_name(io), "threads") == 0);
    weir_io_close(io);
    must(logged.warnings == 1);
    must(test_contains(logged.text, strerror(refused_errno)));
    must(test_contains(logged.text, "going on with io engine \"threads\""));
    front_travel(NULL, directory);
}

static void a_refused_io_uring_is_named_and_replaced_by_threads(void **state)
{
    /* A seccomp filter as containers have it, for each errno that a kernel gives: asked for by name
     * it is one error, else one warning with the cause, and the threads move the bytes. */
    (void)state;
    static const int causes[] = {EPERM, ENOSYS, ENOMEM, EMFILE};
    if (strcmp(weir_io_engine_at(0)->name, "uring") != 0) {
        print_message("SKIPPED: built without liburing\n");
        skip();
    }
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        refused_errno = causes[i];
        child_run(refused_child);
    }
}

static void transfers_child(void)
{
    if (!have_uring())
        child_skip("no io_uring here");
    struct weir_io *io;
    struct weir_io_result result;
    uint32_t file;
    size_t count;
    char bytes[64] = "";
    must(front_open("uring", &io) == WEIR_OK);
    int fd = open(directory, O_TMPFILE | O_RDWR, 0600);
    must(weir_io_file_open(io, "f", fd, false, 0, &file) == WEIR_OK);
    call_refuse(SYS_io_uring_enter, refused_errno);
    struct weir_io_request request = {1, WEIR_IO_WRITE, file, 0, bytes, sizeof bytes};
    must(weir_io_submit(io, &request, 1) == WEIR_OK);
    must(weir_io_reap(io, &result, 1, WEIR_IO_FOREVER, &count) == WEIR_ERR_IO);
    must(weir_last_error()->os_errno == refused_errno);
    must(test_contains(weir_last_error()->text, "takes no more transfers"));
    must(weir_io_submit(io, &request, 1) == WEIR_ERR_IO);
    weir_io_close(io);
}

static void a_ring_that_takes_no_transfer_is_an_error_in_the_end(void **state)
{
    /* io_uring_enter fails from now on: at once for what will not pass, after a bounded number of
     * tries for what might. */
    (void)state;
    static const int causes[] = {EINVAL, EAGAIN, EBUSY};
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        refused_errno = causes[i];
        child_run(transfers_child);
    }
}

/* ---- limits */

static void locked_child(void)
{
    if (!have_uring())
        child_skip("no io_uring here");
    struct rlimit limit = {65536, 65536};
    must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (geteuid() == 0)
        must(setgid(65534) == 0 && setuid(65534) == 0);
    struct weir_io *io;
    unsigned char *memory = memory_make();
    must(front_open(NULL, &io) == WEIR_OK);
    unsigned before = logged.warnings; /* 1: a kernel that counts the ring itself */
    bool uring = strcmp(weir_io_engine_name(io), "uring") == 0;
    must(uring || before == 1);
    must(weir_io_memory_add(io, memory, BYTES / 2) == WEIR_OK);
    must(weir_io_memory_add(io, memory + BYTES / 2, BYTES / 2) == WEIR_OK);
    must(!weir_io_memory_registered(io));
    must(logged.warnings == 1);
    must(test_contains(logged.text, "ulimit -l") && test_contains(logged.text, "ocate memory"));
    struct weir_extent extent;
    must(extent_open(&extent, io, directory, &log_to) == WEIR_OK);
    bytes_travel(io, extent.file, 0, memory, 6);
    weir_io_close(io);
    weir_extent_close(&extent);
}

static void little_locked_memory_is_one_warning(void **state)
{
    /* RLIMIT_MEMLOCK 64 KiB as an ordinary user: unregistered, said once with the remedy. */
    (void)state;
    child_run(locked_child);
}

static void descriptors_child(void)
{
    struct rlimit limit = {64, 64};
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    front_travel(NULL, directory);
    const char *best = have_uring() ? "uring" : "threads";
    int fds[64], count = 0;
    while ((fds[count] = dup(STDERR_FILENO)) >= 0)
        count++;
    must(errno == EMFILE && count > 2);
    for (int spare = 0; spare <= 2; spare++) { /* io_uring needs two: the ring and an eventfd */
        struct weir_io *io;
        must(front_open(NULL, &io) == WEIR_OK);
        must(strcmp(weir_io_engine_name(io), spare == 2 ? best : "threads") == 0);
        weir_io_close(io);
        close(fds[--count]);
    }
}

static void few_descriptors_end_in_the_thread_engine(void **state)
{
    /* 64 descriptors suffice. With none or one left, io_uring gives way to threads; nothing of the
     * failed attempts stays open. */
    (void)state;
    child_run(descriptors_child);
}

/* ---- signals */

static volatile sig_atomic_t signal_count;

static void signal_note(int number)
{
    (void)number;
    signal_count++;
}

static const char *stormed_engine;

static void storm_child(void)
{
    struct weir_io *io;
    struct weir_extent extent;
    unsigned char *memory = memory_make();
    must(front_open(stormed_engine, &io) == WEIR_OK);
    must(extent_open(&extent, io, directory, NULL) == WEIR_OK);
    struct sigaction action = {.sa_handler = signal_note}; /* no SA_RESTART */
    must(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 100}, {0, 100}};
    must(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (uint64_t seed = 0; signal_count < 200 || seed < 20; seed++)
        bytes_travel(io, extent.file, 0, memory, seed);
    struct itimerval never = {0};
    must(setitimer(ITIMER_REAL, &never, NULL) == 0);
    weir_io_close(io);
    weir_extent_close(&extent);
}

static void a_storm_of_signals_costs_no_byte(void **state)
{
    /* A timer interrupts the reaping thread every 100 us, at least 200 times. */
    (void)state;
    const struct weir_io_engine_table *table;
    for (size_t i = 0; (table = test_engine_at(i)) != NULL; i++) {
        stormed_engine = table->name;
        child_run(storm_child);
    }
}

/* ---- file systems */

static void memory_file_system_child(void)
{
    struct statfs fs;
    if (statfs("/dev/shm", &fs) != 0 || fs.f_type != TMPFS_MAGIC || access("/dev/shm", W_OK) != 0)
        child_skip("/dev/shm is no tmpfs that can be written");
    const struct weir_io_engine_table *table;
    for (size_t i = 0; (table = test_engine_at(i)) != NULL; i++)
        front_travel(table->name, "/dev/shm");
}

static void a_file_system_in_memory_works_without_o_direct(void **state)
{
    /* tmpfs takes O_DIRECT since Linux 6.6; before, the extent is buffered. */
    (void)state;
    child_run(memory_file_system_child);
}

static void sectors_child(void)
{
    char command[2048];
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0)
        child_skip("a loop device needs root");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    /* The device goes with the last mount, and that with this process. */
    snprintf(command, sizeof command,
             "cd %s && truncate -s 64M disk && mkdir mnt && mkfs.ext4 -q -b 4096 disk && "
             "device=$(losetup -f --show -b 4096 disk) && mount $device mnt; status=$?; "
             "[ -z \"$device\" ] || losetup -d $device; exit $status",
             directory);
    if (system(command) != 0)
        child_skip("no loop device with sectors of 4096 bytes here");
    char where[300];
    snprintf(where, sizeof where, "%s/mnt", directory);
    const struct weir_io_engine_table *table;
    for (size_t i = 0; (table = test_engine_at(i)) != NULL; i++)
        front_travel(table->name, where);
    must(logged.warnings == 0); /* it was direct and registered */
}

static void sectors_of_4096_bytes_give_the_same_bytes(void **state)
{
    /* A drive that refuses requests aligned to 512: the front's own alignment is enough. */
    (void)state;
    child_run(sectors_child);
}

int main(void)
{
    test_directory_make(directory);
    chmod(directory, 0777); /* for the child that is nobody */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_io_uring_is_named_and_replaced_by_threads),
        cmocka_unit_test(a_ring_that_takes_no_transfer_is_an_error_in_the_end),
        cmocka_unit_test(little_locked_memory_is_one_warning),
        cmocka_unit_test(few_descriptors_end_in_the_thread_engine),
        cmocka_unit_test(a_storm_of_signals_costs_no_byte),
        cmocka_unit_test(a_file_system_in_memory_works_without_o_direct),
        cmocka_unit_test(sectors_of_4096_bytes_give_the_same_bytes),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_directory_remove(directory);
    return failed;
}
