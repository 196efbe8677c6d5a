/*
 * A step's times as a Chrome trace (Trace Event Format): one complete event an op that moved.
 */
#ifndef WEIR_OFFLOAD_TIMELINE_H
#define WEIR_OFFLOAD_TIMELINE_H

#include "offload/replay.h"

/* Of the score's latest step, between steps. pre: weir_score_time was called before it began. */
enum weir_status weir_timeline_file(const struct weir_score *score, const struct weir_model *model,
                                    const char *path);

#endif
