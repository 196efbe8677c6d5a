/*
 * A fiber: a stack of its own that the scheduler enters and that leaves again, within one OS thread
 * at a time. AddressSanitizer is told of every change of stacks. Under ThreadSanitizer each fiber
 * is a thread to it, and entering or leaving orders nothing.
 *
 * This file and all of the shim are compiled without ThreadSanitizer: what the simulator itself
 * reads and writes must neither be reported nor order anything.
 */
#ifndef CUDASIM_FIBER_H
#define CUDASIM_FIBER_H

#include <cstddef>

namespace cudasim
{

class Fiber
{
  public:
    /* entry must never return; it leaves instead. */
    Fiber(void (*entry)(void *), void *argument, const char *name);
    ~Fiber();
    Fiber(const Fiber &) = delete;
    Fiber &operator=(const Fiber &) = delete;

    void enter(); /* from outside, until the fiber leaves */
    void leave(); /* from inside, back to who entered */

  private:
    static void first(Fiber *self);

    void (*entry_)(void *);
    void *argument_;
    unsigned char *stack_;                        /* a guard page, then the stack */
    void *inside_ = nullptr, *outside_ = nullptr; /* stack pointers of the side that rests */
    [[maybe_unused]] void *tsan_ = nullptr, *tsan_outside_ = nullptr;
    [[maybe_unused]] void *asan_inside_ = nullptr;
    [[maybe_unused]] const void *asan_stack_ = nullptr; /* of the side outside */
    [[maybe_unused]] size_t asan_bytes_ = 0;

    friend void fiber_first(Fiber *);
};

/* What happens before a release happens before what follows an acquire of the same address: told to
 * ThreadSanitizer for the fiber that runs. Nothing in other builds. */
void happens_before(void *address);
void happens_after(void *address);
/* Bytes that the fiber is about to read or write unseen, told to the sanitizers. */
void reads(const void *bytes, size_t count);
void writes(void *bytes, size_t count);
void copy_unseen(void *to, const void *from, size_t bytes);
void fill_unseen(void *to, unsigned char value, size_t bytes);

} // namespace cudasim

#endif
