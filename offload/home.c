#include "offload/home.h"

static uint64_t window_bytes(const struct weir_model *model, const struct weir_window *window)
{
    return window->element_count *
           (weir_part_bytes(model, WEIR_PART_WEIGHT) + WEIR_DEVICE_GRAD_BYTES +
            weir_part_bytes(model, WEIR_PART_STATE));
}

uint64_t weir_home_buffer_bytes(const struct weir_model *model)
{
    uint64_t most = 0;
    for (size_t i = 0; i < model->thing_count; i++)
        for (uint32_t w = 0; w < model->things[i].window_count; w++) {
            uint64_t bytes = window_bytes(model, &model->things[i].windows[w]);
            most = bytes > most ? bytes : most;
        }
    return most;
}

struct moves {
    struct weir_io_request requests[3];
    size_t count;
};

static enum weir_status part_move(struct weir_home *home, const struct weir_place *place,
                                  void *bytes, bool fetch, struct moves *moves)
{
    struct weir_device *device = home->stream->device;
    if (place->tier == WEIR_TIER_NVME) {
        moves->requests[moves->count++] = (struct weir_io_request){
            .kind = fetch ? WEIR_IO_READ : WEIR_IO_WRITE,
            .file = home->extent_file,
            .offset_bytes = place->offset,
            .bytes = bytes,
            .byte_count = place->bytes,
        };
        return WEIR_OK;
    }
    if (place->tier == WEIR_TIER_HOST)
        return WEIR_OK;
    void *at = (char *)home->slabs[WEIR_TIER_DEVICE] + place->offset;
    if (fetch)
        return device->table->copy(home->stream, bytes, at, place->bytes, WEIR_COPY_TO_HOST);
    return device->table->copy(home->stream, at, bytes, place->bytes, WEIR_COPY_TO_DEVICE);
}

static enum weir_status moves_finish(struct weir_home *home, const struct moves *moves)
{
    if (moves->count > 0)
        WEIR_TRY(weir_replay_transfer(home->replay, moves->requests, moves->count));
    return home->stream->device->table->stream_sync(home->stream);
}

enum weir_status weir_home_fetch(struct weir_home *home, uint32_t block, uint32_t window,
                                 uint32_t parts, struct weir_window_bytes *out)
{
    const struct weir_window_home *at = &home->homes->blocks[block][window];
    struct moves moves = {.count = 0};
    char *next = home->buffer;
    *out = (struct weir_window_bytes){{NULL, NULL, NULL}};
    for (uint32_t p = 0; p < 3; p++) {
        const struct weir_place *place = &at->part[p];
        if (!(parts >> p & 1) || place->bytes == 0)
            continue;
        if (place->tier == WEIR_TIER_HOST) {
            out->part[p] = (char *)home->slabs[WEIR_TIER_HOST] + place->offset;
            continue;
        }
        out->part[p] = next;
        next += place->bytes;
        WEIR_TRY(part_move(home, place, out->part[p], true, &moves));
    }
    return moves_finish(home, &moves);
}

enum weir_status weir_home_store(struct weir_home *home, uint32_t block, uint32_t window,
                                 uint32_t parts, const struct weir_window_bytes *bytes)
{
    const struct weir_window_home *at = &home->homes->blocks[block][window];
    struct moves moves = {.count = 0};
    for (uint32_t p = 0; p < 3; p++)
        if (parts >> p & 1 && at->part[p].bytes > 0 && bytes->part[p])
            WEIR_TRY(part_move(home, &at->part[p], bytes->part[p], false, &moves));
    return moves_finish(home, &moves);
}
