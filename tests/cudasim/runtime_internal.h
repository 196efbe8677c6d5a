/*
 * Inside the simulated runtime. Compiled without ThreadSanitizer, with a lock of its own: what the
 * simulator does must neither be reported nor give host threads or streams an order. The orders
 * that CUDA promises are told by happens_before and happens_after, operation by operation.
 */
#ifndef CUDASIM_RUNTIME_INTERNAL_H
#define CUDASIM_RUNTIME_INTERNAL_H

#include "tests/cudasim/runtime.h"

#include <atomic>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <pthread.h>
#include <string>
#include <vector>

#ifdef CUDASIM_TSAN
extern "C" {
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
}
#endif

namespace cudasim::runtime
{

#ifdef CUDASIM_TSAN
constexpr bool under_tsan = true;
inline void order_release(void *address)
{
    __tsan_release(address);
}
inline void order_acquire(void *address)
{
    __tsan_acquire(address);
}
#else
constexpr bool under_tsan = false;
inline void order_release(void *)
{
}
inline void order_acquire(void *)
{
}
#endif

/* Allocations and copies of the simulator's own are no business of ThreadSanitizer's. */
class Unseen
{
  public:
    Unseen()
    {
#ifdef CUDASIM_TSAN
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
    }
    ~Unseen()
    {
#ifdef CUDASIM_TSAN
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
    }
    Unseen(const Unseen &) = delete;
    Unseen &operator=(const Unseen &) = delete;
};

[[noreturn]] __attribute__((format(printf, 1, 2))) void violation(const char *format, ...);

/* ---- the lock, and a bell that rings when an operation has run or was queued */

class Monitor
{
  public:
    void lock();
    void unlock();
    /* pre: locked; locked again on return, for any reason or none. */
    void wait(long timeout_ns = -1);
    void notify();

  private:
    std::atomic<uint32_t> word_ = 0; /* 0 free, 1 held, 2 held and waited for */
    std::atomic<uint32_t> rings_ = 0, waiting_ = 0;
};
void futex_wait(std::atomic<uint32_t> &word, uint32_t value, long timeout_ns);
void futex_wake(std::atomic<uint32_t> &word);

/* ---- operations */

/* One record of an event; waits and synchronizes hold on to the one that they are for. */
struct Ticket {
    CUstream_st *stream;
    bool done = false;
    char order = 0;
};

enum class Kind { work, callback, record, wait };

struct Operation {
    const char *name = "";
    Kind kind = Kind::work;
    std::function<void()> run = {};
    std::shared_ptr<Ticket> ticket = {}; /* record, wait */
    std::shared_ptr<void> context = {};  /* dropped with the operation */
    std::unique_ptr<char> order = {};    /* queueing happens before it */
    uint64_t serial = 0;
};

} // namespace cudasim::runtime

struct CUstream_st {
    int number = 0;
    std::deque<cudasim::runtime::Operation> queue;
    cudasim::runtime::Operation current;
    bool running = false; /* current; a callback runs without the lock */
    uint64_t queued = 0, completed = 0;
    char order = 0;                    /* its operations happen before a synchronize */
    pthread_t thread = {};             /* runs callbacks; under ThreadSanitizer all operations */
    std::atomic<uint32_t> command = 0; /* 0 rest, 1 run, 2 end */
};

struct CUevent_st {
    std::shared_ptr<cudasim::runtime::Ticket> ticket; /* NULL: never recorded */
};

namespace cudasim::runtime
{

/* ---- memory */

struct Memory {
    size_t bytes;
    bool device, freed;
    bool mapped; /* by cuMemMap */
};

struct Physical {
    size_t bytes;
    CUdeviceptr at; /* 0: not mapped */
    bool released;
};

struct Reservation {
    size_t bytes;
    Physical *held; /* mapped there */
    bool accessible;
};

/* ---- the machine and all that lives on it; under `monitor` */

struct State {
    Monitor monitor;
    int mode = CUDASIM_EAGER;
    uint64_t random = 1;

    int driver_version = 13000, device_count = 1, major = 9, minor = 0;
    uint64_t total_bytes = uint64_t{80} << 30, used_bytes = 0;
    uint64_t register_most = (uint64_t{512} << 30) - 1;
    int register_code = cudaErrorMemoryAllocation;
    bool reach_host = true;

    std::vector<CUstream_st *> streams;
    std::vector<CUevent_st *> events;
    std::map<char *, Memory> memory;
    std::vector<Physical *> physical;
    std::map<CUdeviceptr, Reservation> reservations;

    bool callback_running = false, background = false;
    int stream_count = 0; /* ever made */
    uint64_t serial = 0, operations = 0, unrecorded_waits = 0;

    uint64_t calls = 0, calls_asked = 0, fail_call = 0, work = 0, fail_work = 0;
    int call_code = 0, work_code = 0;
    uint64_t counted = 0; /* calls, of `only` */
    std::string only = {};
    bool lose_callbacks = false;
    int fault = 0; /* of the device: every call returns it */
};
extern State &state;

/* One CUDA call: the lock, the count of calls, injected failures and the device's fault. */
class Call
{
  public:
    explicit Call(const char *name, bool frees = false);
    ~Call();
    /* It shall do nothing and return result(). */
    bool refused() const;
    cudaError_t result(cudaError_t code = cudaSuccess) const;
    /* Of a call that has waited: a fault since it began as well. A call that queues and so lets
     * something fail has succeeded itself; the next one tells. */
    cudaError_t waited() const;

  private:
    Unseen unseen_;
    bool frees_;
    int code_ = 0;
};

/* runtime_schedule.cpp; pre: the lock is held */
void stream_start(CUstream_st *stream);
void stream_end(CUstream_st *stream);
void queue(CUstream_st *stream, Operation operation);
/* Runs operations until the first `count` of the stream are complete. */
void force(CUstream_st *stream, uint64_t count);
/* Until the record has run. */
void force(const std::shared_ptr<Ticket> &ticket);
/* What a query brings forward: something, not all. */
void nudge(const Ticket &ticket);
void stream_check(CUstream_st *stream, const char *call);
bool within_callback();

/* runtime_memory.cpp; pre: the lock is held */
enum class Place { device, pinned, any };
/* bytes[0..count) lies in one living allocation of that place, or the process ends. */
void range_check(const void *bytes, size_t count, Place place, const char *what);
uint64_t memory_leaks();

/* runtime_guard.cpp; pre: the lock is held. Device memory opens for an operation and closes when
 * the lock is given up. */
void guard_open();
void guard_close();
void guard_share(bool share); /* true: it stays open */
void guard_add(void *memory, size_t bytes);
void guard_remove(void *memory);   /* for ever without access */
void *guarded_alloc(size_t bytes); /* NULL: no memory */
void guarded_free(void *memory, size_t bytes);

} // namespace cudasim::runtime

#endif
