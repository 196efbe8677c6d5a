/*
 * Events of the simulated cudart. A record makes a ticket; what waits holds on to the one that was
 * there when the wait was queued.
 */
#include "tests/cudasim/runtime_internal.h"

#include <algorithm>

using namespace cudasim::runtime;

#define API extern "C" __attribute__((visibility("default")))

static void event_check(CUevent_st *event, const char *call)
{
    if (std::find(state.events.begin(), state.events.end(), event) == state.events.end())
        violation("%s of %p, which is no living event", call, static_cast<void *>(event));
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    Call call("cudaEventCreateWithFlags");
    if (call.refused())
        return call.result();
    if ((flags & cudaEventDisableTiming) == 0)
        violation("an event that takes times, which makes every record slower");
    if ((flags & cudaEventBlockingSync) == 0)
        violation("an event for which cudaEventSynchronize keeps a core busy");
    if (flags != (cudaEventDisableTiming | cudaEventBlockingSync))
        return call.result(cudaErrorInvalidValue);
    *out = new CUevent_st;
    state.events.push_back(*out);
    return call.result();
}

API cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Call call("cudaEventDestroy", true);
    event_check(event, "cudaEventDestroy");
    state.events.erase(std::find(state.events.begin(), state.events.end(), event));
    delete event;
    return call.result();
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Call call("cudaEventRecord");
    if (call.refused())
        return call.result();
    event_check(event, "cudaEventRecord");
    stream_check(stream, "cudaEventRecord");
    event->ticket = std::make_shared<Ticket>(Ticket{stream});
    queue(stream, {.name = "record", .kind = Kind::record, .ticket = event->ticket});
    return call.result();
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    Call call("cudaStreamWaitEvent");
    if (call.refused())
        return call.result();
    event_check(event, "cudaStreamWaitEvent");
    stream_check(stream, "cudaStreamWaitEvent");
    if (flags != cudaEventWaitDefault)
        violation("cudaStreamWaitEvent with flags %u", flags);
    if (!event->ticket)
        state.unrecorded_waits++;
    else
        queue(stream, {.name = "wait", .kind = Kind::wait, .ticket = event->ticket});
    return call.result();
}

API cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Call call("cudaEventQuery");
    if (call.refused())
        return call.result();
    event_check(event, "cudaEventQuery");
    std::shared_ptr<Ticket> ticket = event->ticket;
    if (!ticket)
        return call.result();
    nudge(*ticket);
    if (!ticket->done)
        return call.result(cudaErrorNotReady);
    order_acquire(&ticket->order);
    return call.waited();
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    Call call("cudaEventSynchronize");
    if (call.refused())
        return call.result();
    event_check(event, "cudaEventSynchronize");
    std::shared_ptr<Ticket> ticket = event->ticket;
    if (!ticket)
        return call.result();
    force(ticket);
    order_acquire(&ticket->order);
    return call.waited();
}
