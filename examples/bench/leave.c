#include "examples/bench/leave.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

static void on_signal(int number)
{
    if (asked)
        _exit(128 + number);
    asked = number;
}

void leave_on_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void leave_if_asked(void)
{
    if (asked)
        _exit(128 + (int)asked);
}
