/*
 * The files beside a model's weights that travel with it into each checkpoint, so that a checkpoint
 * is a model: its tokenizer, and how it generates. They are read once, when the run is opened: the
 * directory may be a checkpoint that the run itself removes.
 */
#ifndef WEIR_TRAIN_COMPANIONS_H
#define WEIR_TRAIN_COMPANIONS_H

#include "core/status.h"
#include <weir/checkpoint.h>

#define COMPANIONS_MOST 5

struct companions {
    struct weir_file files[COMPANIONS_MOST];
    size_t count;
};

/* Those that directory holds. After a failure there are none. */
enum weir_status companions_read(struct companions *companions, const char *directory);
void companions_free(struct companions *companions);

#endif
