#include "offload/timeline.h"
#include "zero/run.h"
#include <weir/timeline.h>

enum weir_status weir_timeline_start(weir_run *run)
{
    WEIR_TRY(weir_run_alive(run));
    if (run->laid_out)
        return weir_fail(WEIR_ERR_STATE,
                         "weir_timeline_start: the run is laid out; call it before weir_layout, "
                         "which makes room for the times");
    run->timeline = true;
    return WEIR_OK;
}

enum weir_status weir_timeline_write(weir_run *run, const char *path)
{
    WEIR_TRY(weir_run_idle(run, "weir_timeline_write"));
    if (!run->timed)
        return weir_fail(WEIR_ERR_STATE,
                         "weir_timeline_write: no step was timed; call weir_timeline_start before "
                         "weir_layout and run a step");
    return weir_timeline_file(run->timed, &run->model, path);
}
