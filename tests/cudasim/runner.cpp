#include "tests/cudasim/runner.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>

namespace cudasim
{

#ifdef CUDASIM_TSAN
void *Runner::main(void *argument)
{
    auto *self = static_cast<Runner *>(argument);
    for (;;) {
        self->state_.wait(0, std::memory_order_acquire);
        self->work_(self->argument_);
        self->state_.store(0, std::memory_order_release);
        self->state_.notify_all();
    }
    return nullptr;
}

void Runner::run(void (*work)(void *), void *argument)
{
    if (!started_) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, main, this) != 0 || pthread_detach(thread) != 0) {
            perror("cudasim: no thread for a crew");
            abort();
        }
        started_ = true;
    }
    work_ = work;
    argument_ = argument;
    state_.store(1, std::memory_order_release);
    state_.notify_all();
    state_.wait(1, std::memory_order_acquire);
}
#else
void Runner::run(void (*work)(void *), void *argument)
{
    work(argument);
}
#endif

} // namespace cudasim
