#include "core/charge.h"

void weir_charge_open(struct weir_charge *charge, const char *device, uint64_t bound_bytes)
{
    *charge = (struct weir_charge){.device = device, .bound_bytes = bound_bytes};
    pthread_mutex_init(&charge->lock, NULL);
}

void weir_charge_close(struct weir_charge *charge)
{
    pthread_mutex_destroy(&charge->lock);
}

enum weir_status weir_charge_take(struct weir_charge *charge, uint64_t bytes)
{
    pthread_mutex_lock(&charge->lock);
    uint64_t bound = charge->bound_bytes, used = charge->used_bytes;
    bool fits = bytes <= bound - used;
    if (fits) {
        charge->used_bytes += bytes;
        if (charge->used_bytes > charge->peak_bytes)
            charge->peak_bytes = charge->used_bytes;
    }
    pthread_mutex_unlock(&charge->lock);
    if (fits)
        return WEIR_OK;
    return weir_fail(WEIR_ERR_NOMEM,
                     "device \"%s\": need %llu bytes, %llu of %llu free; raise the device budget",
                     charge->device, (unsigned long long)bytes, (unsigned long long)(bound - used),
                     (unsigned long long)bound);
}

void weir_charge_give(struct weir_charge *charge, uint64_t bytes)
{
    pthread_mutex_lock(&charge->lock);
    charge->used_bytes -= bytes;
    pthread_mutex_unlock(&charge->lock);
}

void weir_charge_info(struct weir_charge *charge, struct weir_device_info *out)
{
    pthread_mutex_lock(&charge->lock);
    out->memory_used_bytes = charge->used_bytes;
    out->memory_peak_bytes = charge->peak_bytes;
    pthread_mutex_unlock(&charge->lock);
}
