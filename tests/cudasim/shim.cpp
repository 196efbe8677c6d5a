/*
 * Launches, blocks and their barriers. See shim.h.
 */
#include "tests/cudasim/order.h"
#include "tests/cudasim/runner.h"
#include "tests/cudasim/shim_block.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <link.h>
#include <map>
#include <numeric>
#include <sched.h>
#include <span>
#include <utility>

namespace cudasim
{

uint3 thread_index, block_index;
dim3 block_size, grid_size;
Block block;

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "cudasim: kernel %s, block (%u,%u,%u)", block.launch->kernel, block_index.x,
            block_index.y, block_index.z);
    if (block.thread)
        fprintf(stderr, ", thread (%u,%u,%u)", thread_index.x, thread_index.y, thread_index.z);
    fputs(": ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _Exit(86);
}

namespace
{

/* The queueing thread's: it knows of no block. */
[[noreturn]] __attribute__((format(printf, 2, 3))) void die_at_launch(const char *kernel,
                                                                      const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "cudasim: launch of kernel %s: ", kernel);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _Exit(86);
}

#ifdef CUDASIM_TSAN
constexpr size_t crew_count = 2;
#else
constexpr size_t crew_count = 1;
#endif
#ifdef CUDASIM_ASAN
constexpr size_t guard_bytes = 0; /* AddressSanitizer has its own */
#else
constexpr size_t guard_bytes = 64; /* behind dynamic shared memory */
#endif
constexpr unsigned char guard = 0xA7;

enum cudasim_order order = CUDASIM_ORDER_FORWARD;
uint64_t random_state;
std::map<const void *, size_t> allowed_shared; /* by kernel */
std::atomic_flag allowed_turn;

/* One grid at a time, in the whole process. Not a mutex: ThreadSanitizer must see no order here. */
class Turn
{
  public:
    explicit Turn(std::atomic_flag &flag) : flag_(flag)
    {
        while (flag_.test_and_set(std::memory_order_acquire))
            sched_yield();
    }
    ~Turn()
    {
        flag_.clear(std::memory_order_release);
    }

  private:
    std::atomic_flag &flag_;
};
std::atomic_flag grid_turn;

uint64_t random_below(uint64_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % bound;
}

void arrange(std::span<unsigned> items)
{
    if (order == CUDASIM_ORDER_REVERSE)
        std::reverse(items.begin(), items.end());
    if (order == CUDASIM_ORDER_RANDOM)
        for (size_t i = items.size(); i > 1; i--)
            std::swap(items[i - 1], items[random_below(i)]);
}

/* The static shared memory of the kernel: the calling OS thread's copy of the thread-local memory
 * of the object that holds it. */
struct Object {
    const void *address;
    unsigned char *memory;
    size_t bytes, initialised_bytes;
    bool found, program;
};

int object_visit(dl_phdr_info *info, size_t, void *context)
{
    auto *object = static_cast<Object *>(context);
    Object here = {object->address, nullptr, 0, 0, false, info->dlpi_name[0] == '\0'};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        auto offset = reinterpret_cast<uintptr_t>(here.address) - info->dlpi_addr - part.p_vaddr;
        if (part.p_type == PT_LOAD && offset < part.p_memsz)
            here.found = true;
        if (part.p_type == PT_TLS) {
            here.memory = static_cast<unsigned char *>(info->dlpi_tls_data);
            here.bytes = part.p_memsz;
            here.initialised_bytes = part.p_filesz;
        }
    }
    if (here.found)
        *object = here;
    return here.found;
}

void static_shared_find()
{
    Object object = {block.launch->address, nullptr, 0, 0, false, false};
    dl_iterate_phdr(object_visit, &object);
    if (!object.found || object.program)
        die("kernels must lie in a shared object of their own: its thread-local memory is taken "
            "for static shared memory");
    if (object.initialised_bytes > 0)
        die("the kernels' object has %zu bytes of initialised thread-local memory; shared "
            "variables have no initial values, and nothing else may be thread-local",
            object.initialised_bytes);
    if (object.bytes > 0 && !object.memory)
        die("no thread-local memory of the kernels' object on this OS thread; link the object "
            "instead of loading it later");
    block.crew->static_shared = object.memory;
    block.crew->static_bytes = object.bytes;
    block.crew->static_found = true;
}

/* A fiber lives as long as its crew and runs one thread of a block each time it is entered. */
void thread_main(void *argument)
{
    auto *thread = static_cast<Thread *>(argument);
    for (;;) {
        happens_after(&block.crew->begin);
        happens_after(&block.crew->end[(block.crew->turn + 1) % 2]);
        block.launch->body(block.launch->context);
        if (!thread->copies.empty())
            die("exits with %zu asynchronous copies in flight", thread->copies.size());
        happens_before(&block.crew->end[block.crew->turn % 2]);
        thread->state = State::done;
        thread->fiber->leave();
    }
}

void crew_grow(Crew &crew, unsigned thread_count)
{
    while (crew.threads.size() < thread_count) {
        auto thread = std::make_unique<Thread>();
        char name[32];
        snprintf(name, sizeof name, "cuda thread %zu", crew.threads.size());
        thread->linear = (unsigned)crew.threads.size();
        thread->fiber = std::make_unique<Fiber>(thread_main, thread.get(), name);
        crew.threads.push_back(std::move(thread));
    }
    while (crew.warps.size() * lanes < thread_count)
        crew.warps.push_back(std::make_unique<Warp>());
}

void block_reset(unsigned index)
{
    const dim3 &grid = block.launch->grid, &size = block.launch->block;
    block_index = {index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y};
    fill_unseen(block.static_shared, block.poison, block.static_bytes);
    fill_unseen(block.dynamic_shared, block.poison, block.launch->shared_bytes);
    block.thread = nullptr;
    block.done_count = block.waiting = 0;
    block.crew->turn++;
    block.ready.reset();
    for (auto &warp : block.crew->warps)
        warp->exited = 0;
    for (unsigned i = 0; i < block.thread_count; i++) {
        Thread &thread = *block.crew->threads[i];
        thread.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
        thread.copies.clear();
        thread.committed = 0;
        make_ready(i);
    }
}

void thread_exit(Thread &thread)
{
    block.done_count++;
    if (block.waiting > 0)
        die("exits while %u threads wait in a barrier at %s", block.waiting, block.barrier_place);
    Warp &warp = *block.crew->warps[thread.linear / lanes];
    unsigned bit = 1u << thread.linear % lanes;
    warp.exited |= bit;
    for (const Meeting &meeting : warp.meetings)
        if (meeting.arrived && (meeting.mask & bit))
            die("exits while lanes %08x of its warp wait for it in an operation", meeting.arrived);
}

void stuck_report()
{
    for (unsigned i = 0; i < block.thread_count; i++) {
        const Thread &thread = *block.crew->threads[i];
        if (thread.state != State::done && (i == 0 || i % lanes == 0))
            fprintf(stderr, "cudasim: thread %u waits at %s\n", i, thread.place);
    }
    block.thread = nullptr;
    die("nothing can go on; %u of %u threads are done", block.done_count, block.thread_count);
}

void thread_run(Thread &thread)
{
    block.thread = &thread;
    thread_index = thread.index;
    thread.fiber->enter();
    if (thread.state == State::done)
        thread_exit(thread);
}

/* In waves: who becomes ready during one runs in the next. */
void block_run(unsigned index)
{
    block_reset(index);
    static std::array<unsigned, most_threads> wave;
    while (block.done_count < block.thread_count) {
        if (block.ready.none())
            stuck_report();
        size_t count = 0;
        for (unsigned i = 0; i < block.thread_count; i++)
            if (block.ready[i])
                wave[count++] = i;
        block.ready.reset();
        arrange({wave.data(), count});
        for (size_t i = 0; i < count; i++)
            thread_run(*block.crew->threads[wave[i]]);
    }
    block.thread = nullptr;
    for (size_t i = 0; i < guard_bytes; i++)
        if (block.dynamic_shared[block.launch->shared_bytes + i] != guard)
            die("wrote byte %zu behind the %zu bytes of dynamic shared memory", i,
                block.launch->shared_bytes);
}

void block_run_on(void *index)
{
    if (!block.crew->static_found)
        static_shared_find();
    block.static_shared = block.crew->static_shared;
    block.static_bytes = block.crew->static_bytes;
    happens_before(&block.crew->begin); /* this OS thread made the thread-local memory */
    block_run(*static_cast<unsigned *>(index));
}

/* Of one stream. Blocks take turns on the crews: a crew's blocks come one after the other, those of
 * different crews are unordered to ThreadSanitizer, as all blocks are on hardware. */
struct Team {
    std::array<Crew, crew_count> crews;
    std::array<Runner, crew_count> runners;
};

/* Under ThreadSanitizer a stream has an OS thread, and its team ends with it. */
Team &team_of_stream()
{
#ifdef CUDASIM_TSAN
    static thread_local Team team;
#else
    static Team team;
#endif
    return team;
}

void grid_run(Team &team, const std::array<unsigned char *, crew_count> &dynamic_shared)
{
    const dim3 &grid = block.launch->grid;
    std::vector<unsigned> sequence((size_t)grid.x * grid.y * grid.z);
    std::iota(sequence.begin(), sequence.end(), 0u);
    arrange(sequence);
    for (size_t i = 0; i < sequence.size(); i++) {
        size_t which = i % crew_count;
        block.crew = &team.crews[which];
        block.dynamic_shared = dynamic_shared[which];
        crew_grow(*block.crew, block.thread_count);
        team.runners[which].run(block_run_on, &sequence[i]);
    }
}

} // namespace

void launch_run(const Launch &launch)
{
    Turn turn(grid_turn);
    static const unsigned char poisons[CUDASIM_ORDER_COUNT] = {0xFF, 0x4B, 0xCB};
    block.launch = &launch;
    block.thread_count = launch.block.x * launch.block.y * launch.block.z;
    block.poison = poisons[order];
    block_size = launch.block;
    grid_size = launch.grid;
    Team &team = team_of_stream();
    std::array<unsigned char *, crew_count> dynamic_shared;
    for (size_t i = 0; i < crew_count; i++) {
        void *memory = nullptr;
        if (posix_memalign(&memory, 128, launch.shared_bytes + guard_bytes) != 0)
            die("no memory for %zu bytes of dynamic shared memory", launch.shared_bytes);
        dynamic_shared[i] = static_cast<unsigned char *>(memory);
        fill_unseen(dynamic_shared[i] + launch.shared_bytes, guard, guard_bytes);
        happens_before(&team.crews[i].begin);
        team.crews[i].static_found = false; /* another kernel's object, another OS thread */
    }
    grid_run(team, dynamic_shared);
    for (size_t i = 0; i < crew_count; i++) {
        happens_after(&team.crews[i].end[0]);
        happens_after(&team.crews[i].end[1]);
        free(dynamic_shared[i]);
    }
    block.launch = nullptr;
}

static uint64_t shared_most; /* of launches; under allowed_turn */

void launch_check(const Launch &launch)
{
    const dim3 &grid = launch.grid, &size = launch.block;
    uint64_t threads = (uint64_t)size.x * size.y * size.z;
    if (threads < 1 || threads > most_threads || size.x > 1024 || size.y > 1024 || size.z > 64)
        die_at_launch(launch.kernel, "%u x %u x %u threads in a block; 1 to %u are allowed", size.x,
                      size.y, size.z, most_threads);
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535)
        die_at_launch(launch.kernel,
                      "%u x %u x %u blocks; 1 to 2147483647 x 65535 x 65535 are allowed", grid.x,
                      grid.y, grid.z);
    Turn turn(allowed_turn);
    auto allowed = allowed_shared.find(launch.address);
    shared_most = std::max<uint64_t>(shared_most, launch.shared_bytes);
    size_t most = allowed == allowed_shared.end() ? plain_shared_bytes : allowed->second;
    if (launch.shared_bytes > most)
        die_at_launch(launch.kernel,
                      "%zu bytes of dynamic shared memory, %zu are allowed; WEIR_SHARED_ALLOW "
                      "raises that to at most %zu",
                      launch.shared_bytes, most, most_shared_bytes);
}

int shared_allow(const char *kernel, const void *address, size_t bytes)
{
    if (bytes > most_shared_bytes)
        die_at_launch(kernel,
                      "asks for %zu bytes of shared memory; some devices have %zu and no more",
                      bytes, most_shared_bytes);
    Turn turn(allowed_turn);
    size_t &allowed = allowed_shared[address];
    allowed = std::max({allowed, plain_shared_bytes, bytes});
    return 0;
}

unsigned char *dynamic_shared()
{
    return block.dynamic_shared;
}

bool in_shared(const void *bytes, size_t count)
{
    auto at = static_cast<const unsigned char *>(bytes);
    auto inside = [&](const unsigned char *memory, size_t most) {
        return at >= memory && count <= most && (size_t)(at - memory) <= most - count;
    };
    return inside(block.static_shared, block.static_bytes) ||
           inside(block.dynamic_shared, block.launch->shared_bytes);
}

void make_ready(unsigned linear)
{
    block.crew->threads[linear]->state = State::ready;
    block.ready[linear] = true;
}

void wait_as(State state, const char *place)
{
    Thread &thread = *block.thread;
    thread.state = state;
    thread.place = place;
    thread.fiber->leave();
}

int barrier(const char *place, Vote vote, int predicate)
{
    if (block.done_count > 0)
        die("waits in a barrier at %s that %u exited threads never reach", place, block.done_count);
    if (block.waiting > 0 && strcmp(place, block.barrier_place) != 0)
        die("waits in a barrier at %s while others of its block wait at %s", place,
            block.barrier_place);
    unsigned turn = block.turn % 2;
    if (block.waiting++ == 0) {
        block.barrier_place = place;
        block.vote_sum[turn] = vote == Vote::all;
    }
    int &sum = block.vote_sum[turn];
    sum = vote == Vote::all   ? sum & predicate
          : vote == Vote::any ? sum | predicate
                              : sum + predicate;
    happens_before(&block.crew->order[turn]);
    if (block.waiting == block.thread_count) {
        block.waiting = 0;
        block.turn++;
        for (unsigned i = 0; i < block.thread_count; i++)
            if (block.crew->threads[i].get() != block.thread)
                make_ready(i);
        make_ready(block.thread->linear);
        block.thread->fiber->leave();
    } else {
        wait_as(State::at_barrier, place);
    }
    happens_after(&block.crew->order[turn]);
    return block.vote_sum[turn];
}

} // namespace cudasim

void cudasim_thread_order(enum cudasim_order order, uint64_t seed)
{
    cudasim::order = order;
    cudasim::random_state = seed * 0x9E3779B97F4A7C15u + 1;
}

uint64_t cudasim_shared_most(void)
{
    cudasim::Turn turn(cudasim::allowed_turn);
    return std::exchange(cudasim::shared_most, 0);
}
