/*
 * Who runs a crew's blocks. Static shared memory is thread-local, so under ThreadSanitizer, where
 * blocks of two crews are unordered, each crew has an OS thread and with it a copy of its own;
 * otherwise blocks of two crews would seem to race for the same bytes. In other builds: the caller.
 */
#ifndef CUDASIM_RUNNER_H
#define CUDASIM_RUNNER_H

#include <atomic>

namespace cudasim
{

class Runner
{
  public:
    /* Returns when work(argument) has. */
    void run(void (*work)(void *), void *argument);

  private:
    static void *main(void *self);

    std::atomic<int> state_ = 0; /* idle, asked; the thread lives as long as the process */
    bool started_ = false;
    void (*work_)(void *) = nullptr;
    void *argument_ = nullptr;
};

} // namespace cudasim

#endif
