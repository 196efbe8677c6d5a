#include "tests/cudasim/runner.h"

#include <cstdio>
#include <cstdlib>

namespace cudasim
{

#ifdef CUDASIM_TSAN
void *Runner::main(void *argument)
{
    auto *self = static_cast<Runner *>(argument);
    for (;;) {
        self->state_.wait(idle, std::memory_order_acquire);
        if (self->state_.load(std::memory_order_acquire) == ended)
            return nullptr;
        self->work_(self->argument_);
        self->state_.store(idle, std::memory_order_release);
        self->state_.notify_all();
    }
}

void Runner::run(void (*work)(void *), void *argument)
{
    if (!started_) {
        if (pthread_create(&thread_, nullptr, main, this) != 0) {
            perror("cudasim: no thread for a crew");
            abort();
        }
        started_ = true;
    }
    work_ = work;
    argument_ = argument;
    state_.store(asked, std::memory_order_release);
    state_.notify_all();
    state_.wait(asked, std::memory_order_acquire);
}

Runner::~Runner()
{
    if (!started_)
        return;
    state_.store(ended, std::memory_order_release);
    state_.notify_all();
    pthread_join(thread_, nullptr);
}
#else
void Runner::run(void (*work)(void *), void *argument)
{
    work(argument);
}

Runner::~Runner() = default;
#endif

} // namespace cudasim
