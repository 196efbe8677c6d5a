/*
 * When operations run, and on whose thread. See runtime.h.
 */
#include "tests/cudasim/runtime_internal.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cudasim::runtime
{

/* ---- the lock */

void futex_wait(std::atomic<uint32_t> &word, uint32_t value, long timeout_ns)
{
    timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, timeout_ns < 0 ? nullptr : &timeout,
            nullptr, 0);
}

void futex_wake(std::atomic<uint32_t> &word)
{
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Monitor::lock()
{
    uint32_t free = 0;
    if (word_.compare_exchange_strong(free, 1))
        return;
    while (word_.exchange(2) != 0)
        futex_wait(word_, 2, -1);
}

void Monitor::unlock()
{
    guard_close();
    if (word_.exchange(0) == 2)
        futex_wake(word_);
}

void Monitor::wait(long timeout_ns)
{
    uint32_t seen = rings_;
    waiting_++;
    unlock();
    futex_wait(rings_, seen, timeout_ns);
    waiting_--;
    lock();
}

void Monitor::notify()
{
    rings_++;
    if (waiting_ != 0)
        futex_wake(rings_);
}

namespace
{

thread_local bool in_callback;

/* splitmix64 (Steele, Lea & Flood 2014) */
uint64_t draw(uint64_t bound)
{
    uint64_t z = state.random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % bound;
}

/* ---- running one operation */

/* On the stream's thread if ThreadSanitizer watches: the stream is that thread to it. */
void execute(CUstream_st *stream)
{
    Operation &operation = stream->current;
    order_acquire(operation.order.get());
    if (operation.kind == Kind::wait)
        order_acquire(&operation.ticket->order);
    if (operation.run)
        operation.run();
    if (operation.kind == Kind::record)
        order_release(&operation.ticket->order);
    order_release(&stream->order);
}

void complete(CUstream_st *stream)
{
    if (stream->current.kind == Kind::record)
        stream->current.ticket->done = true;
    if (stream->current.kind == Kind::callback)
        state.callback_running = false;
    stream->current = {};
    stream->running = false;
    stream->completed++;
    state.operations++;
    state.monitor.notify();
}

void *stream_main(void *argument)
{
    auto *stream = static_cast<CUstream_st *>(argument);
    for (;;) {
        while (stream->command == 0)
            futex_wait(stream->command, 0, -1);
        if (stream->command == 2)
            return nullptr;
        bool callback = stream->current.kind == Kind::callback;
        in_callback = callback;
        execute(stream);
        in_callback = false;
        stream->command = 0;
        futex_wake(stream->command);
        if (callback) {
            Unseen unseen;
            state.monitor.lock();
            complete(stream);
            state.monitor.unlock();
        }
    }
}

void command(CUstream_st *stream, uint32_t what)
{
    stream->command = what;
    futex_wake(stream->command);
}

/* A fault of the device: this operation and all later ones do nothing. */
void fault_check(Operation &operation)
{
    if (operation.kind == Kind::callback && state.fault != 0 && state.lose_callbacks)
        operation.run = nullptr;
    if (operation.kind != Kind::work)
        return;
    if (state.fault == 0 && ++state.work == state.fail_work)
        state.fault = state.work_code;
    if (state.fault != 0)
        operation.run = nullptr;
}

/* pre: runnable(stream) */
void start(CUstream_st *stream)
{
    stream->current = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->running = true;
    fault_check(stream->current);
    if (stream->current.kind == Kind::callback) {
        state.callback_running = true;
        command(stream, 1);
        return; /* its thread completes it: it may sleep */
    }
    if (stream->current.run)
        guard_open();
    if (under_tsan) {
        command(stream, 1);
        while (stream->command == 1)
            futex_wait(stream->command, 1, -1);
    } else {
        execute(stream);
    }
    complete(stream);
}

/* ---- choosing */

bool runnable(const CUstream_st *stream)
{
    if (stream->running || stream->queue.empty())
        return false;
    const Operation &front = stream->queue.front();
    if (front.kind == Kind::wait)
        return front.ticket->done;
    return front.kind != Kind::callback || !state.callback_running;
}

bool start_oldest()
{
    CUstream_st *oldest = nullptr;
    for (CUstream_st *stream : state.streams)
        if (runnable(stream) &&
            (!oldest || stream->queue.front().serial < oldest->queue.front().serial))
            oldest = stream;
    if (oldest)
        start(oldest);
    return oldest != nullptr;
}

bool start_any()
{
    std::vector<CUstream_st *> choice;
    std::copy_if(state.streams.begin(), state.streams.end(), std::back_inserter(choice), runnable);
    if (!choice.empty())
        start(choice[draw(choice.size())]);
    return !choice.empty();
}

/* One operation that the front of the stream needs, or the front itself; false: only a host
 * function that runs now can bring it nearer. A wait is queued after its record, so this ends. */
bool advance(CUstream_st *stream)
{
    while (!stream->running && !stream->queue.empty() && stream->queue.front().kind == Kind::wait &&
           !stream->queue.front().ticket->done)
        stream = stream->queue.front().ticket->stream;
    if (!runnable(stream))
        return false;
    start(stream);
    return true;
}

/* After a fault nothing is worth holding back. */
bool eager()
{
    return state.mode == CUDASIM_EAGER || state.fault != 0;
}

/* ---- what nobody forces: a host thread sleeps until its host function has run */

const long quiet_ns = 200000;
const int patience = 50; /* quiet times until what no host function needs runs as well */

bool work_left()
{
    return std::any_of(state.streams.begin(), state.streams.end(),
                       [](const CUstream_st *stream) { return !stream->queue.empty(); });
}

/* The oldest host function that can be brought nearer, and what it needs, up to its start. */
bool lazy_callback()
{
    std::vector<std::pair<uint64_t, CUstream_st *>> callbacks;
    for (CUstream_st *stream : state.streams)
        for (const Operation &operation : stream->queue)
            if (operation.kind == Kind::callback) {
                callbacks.emplace_back(operation.serial, stream);
                break;
            }
    std::sort(callbacks.begin(), callbacks.end());
    bool progress = false;
    for (auto [serial, stream] : callbacks)
        while (!state.callback_running && advance(stream))
            progress = true;
    return progress;
}

bool random_callback()
{
    bool progress = false;
    while (!state.callback_running && start_any())
        progress = true;
    return progress;
}

void *background_main(void *)
{
    Unseen unseen;
    state.monitor.lock();
    for (int quiet = 0;;) {
        uint64_t calls = state.calls;
        state.monitor.wait(work_left() ? quiet_ns : -1);
        if (eager()) {
            while (start_oldest())
                ;
        } else if (calls != state.calls || !work_left()) {
            quiet = 0;
        } else if ((state.mode == CUDASIM_LAZY ? lazy_callback() : random_callback())) {
            quiet = 0;
        } else if (++quiet > patience) {
            start_oldest();
        }
    }
    return nullptr;
}

void background_start()
{
    if (state.background)
        return;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, background_main, nullptr) != 0 ||
        pthread_detach(thread) != 0)
        violation("cannot start a thread");
    state.background = true;
}

} // namespace

/* ---- for the calls */

bool within_callback()
{
    return in_callback;
}

void stream_check(CUstream_st *stream, const char *call)
{
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        violation("%s on the default stream, which waits for others", call);
    if (std::find(state.streams.begin(), state.streams.end(), stream) == state.streams.end())
        violation("%s on %p, which is no living stream", call, static_cast<void *>(stream));
}

void stream_start(CUstream_st *stream)
{
    stream->number = ++state.stream_count;
    if (pthread_create(&stream->thread, nullptr, stream_main, stream) != 0)
        violation("cannot start a thread");
    state.streams.push_back(stream);
    background_start();
}

void stream_end(CUstream_st *stream)
{
    state.streams.erase(std::find(state.streams.begin(), state.streams.end(), stream));
    command(stream, 2);
    pthread_join(stream->thread, nullptr);
    delete stream;
}

void queue(CUstream_st *stream, Operation operation)
{
    operation.order = std::make_unique<char>();
    order_release(operation.order.get());
    operation.serial = ++state.serial;
    stream->queue.push_back(std::move(operation));
    stream->queued++;
    state.monitor.notify();
    if (eager())
        while (start_oldest())
            ;
    else if (state.mode == CUDASIM_RANDOM)
        while (draw(4) != 0 && start_any())
            ;
}

static void force_one(CUstream_st *stream)
{
    if (state.mode == CUDASIM_RANDOM && draw(2) == 0 && start_any())
        return;
    if (!advance(stream))
        state.monitor.wait();
}

void force(CUstream_st *stream, uint64_t count)
{
    while (stream->completed < count)
        force_one(stream);
}

void force(const std::shared_ptr<Ticket> &ticket)
{
    while (!ticket->done)
        force_one(ticket->stream);
}

void nudge(const Ticket &ticket)
{
    if (ticket.done || eager())
        return;
    if (state.mode == CUDASIM_RANDOM) {
        while (draw(3) == 0 && start_any())
            ;
        if (ticket.done || draw(2) == 0)
            return;
    }
    advance(ticket.stream);
}

} // namespace cudasim::runtime
