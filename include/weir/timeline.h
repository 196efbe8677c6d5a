/*
 * When every op of a step ran, as a Chrome trace: chrome://tracing and ui.perfetto.dev open it.
 *
 *     weir_timeline_start(run);                    // before weir_layout
 *     ... steps ...
 *     weir_timeline_write(run, "step.json");       // the step that ended last
 *
 * One row a lane: read, update, to-device, collective, compute, to-host, write; transfers of the
 * drive that were under way at once have further rows below. An op is named by what it moves and
 * carries kind, block (or kept), window, bytes and stage; compute is named by the first thing that
 * the stage wants. A gap in the compute row is a stall, or the caller's own time.
 */
#ifndef WEIR_TIMELINE_H
#define WEIR_TIMELINE_H

#include <weir/weir.h>

WEIR_API_BEGIN

/* Time every op from the layout on: 16 bytes an op, counted in the host budget.
 * pre: no layout yet */
enum weir_status weir_timeline_start(weir_run *run) WEIR_MUST_CHECK;
/* pre: outside steps, after a real step; a file of this name is replaced */
enum weir_status weir_timeline_write(weir_run *run, const char *path) WEIR_MUST_CHECK;

WEIR_API_END
#endif
