/*
 * Who runs a crew's blocks. Static shared memory is thread-local, so under ThreadSanitizer, where
 * blocks of two crews are unordered, each crew has an OS thread and with it a copy of its own;
 * otherwise blocks of two crews would seem to race for the same bytes. In other builds: the caller.
 */
#ifndef CUDASIM_RUNNER_H
#define CUDASIM_RUNNER_H

#include <atomic>
#include <pthread.h>

namespace cudasim
{

class Runner
{
  public:
    ~Runner();
    /* Returns when work(argument) has. */
    void run(void (*work)(void *), void *argument);

  private:
    enum State { idle, asked, ended };
    static void *main(void *self);

    std::atomic<State> state_ = idle;
    bool started_ = false;
    pthread_t thread_ = {};
    void (*work_)(void *) = nullptr;
    void *argument_ = nullptr;
};

} // namespace cudasim

#endif
