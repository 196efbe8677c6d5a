/*
 * The block that runs: shared by the parts of the shim. See shim.h.
 */
#ifndef CUDASIM_SHIM_BLOCK_H
#define CUDASIM_SHIM_BLOCK_H

#include "tests/cudasim/fiber.h"
#include "tests/cudasim/shim.h"

#include <array>
#include <bitset>
#include <memory>
#include <vector>

namespace cudasim
{

constexpr unsigned most_threads = 1024, lanes = 32;
/* Of shared memory: what a block may have on every architecture (8.6, 8.9 and 12.0 have no more),
 * and what it may have unasked. */
constexpr size_t most_shared_bytes = 99 << 10, plain_shared_bytes = 48 << 10;

enum class State { ready, at_barrier, in_warp, done };

struct AsyncCopy {
    void *to;
    const void *from; /* NULL: zeros */
    int group;
};

struct Thread {
    std::unique_ptr<Fiber> fiber;
    unsigned linear;
    uint3 index;
    State state;
    const char *place; /* where it waits */
    std::vector<AsyncCopy> copies;
    int committed; /* groups of them */
};

/* What the lanes named by one mask do together. Deposits alternate between two sides: a lane that
 * runs ahead cannot overwrite what others have yet to read. */
enum class Collective { none, shuffle, ballot, barrier, tile, matrices };
struct Deposit {
    uint32_t words[6];
};
struct Meeting {
    Collective what;
    unsigned mask, arrived, turn;
    std::array<std::array<Deposit, lanes>, 2> deposits;
    char order[2]; /* what ThreadSanitizer knows the barriers by */
};
struct Warp {
    std::array<Meeting, lanes> meetings; /* by the lowest lane of the mask */
    unsigned exited;
};

/* The fibers that take turns in one block. */
struct Crew {
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<std::unique_ptr<Warp>> warps;
    unsigned turn; /* counts its blocks */
    unsigned char *static_shared;
    size_t static_bytes;
    bool static_found; /* since the launch began */
    /* What ThreadSanitizer knows order by: the grid's begin; the ends of this block's threads and
     * of the last block's, lest threads of one block seem to come one after the other; barriers. */
    char begin, end[2], order[2];
};

struct Block {
    const Launch *launch;
    Crew *crew;
    Thread *thread; /* that runs; NULL: none */
    unsigned thread_count, done_count;
    std::bitset<most_threads> ready;

    unsigned waiting, turn; /* at the barrier */
    const char *barrier_place;
    int vote_sum[2];

    unsigned char *static_shared, *dynamic_shared;
    size_t static_bytes;
    unsigned char poison;
};
extern Block block;

/* One line on stderr, which names kernel, block and thread, and the end of the process. */
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Nothing that fibers of different threads touch may be allocated, moved or freed by them: the
 * library's functions for that are seen by ThreadSanitizer wherever they are called. */

/* The running thread waits until somebody puts it among the ready. */
void wait_as(State state, const char *place);
void make_ready(unsigned linear);

inline unsigned lane()
{
    return block.thread->linear % lanes;
}
inline Warp &warp()
{
    return *block.crew->warps[block.thread->linear / lanes];
}
bool in_shared(const void *bytes, size_t count);

} // namespace cudasim

#endif
