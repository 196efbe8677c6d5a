/*
 * What the operations compute from given inputs, into a file, and two such files compared: a GPU's
 * and the simulator's, or the simulator's and the host's.
 *
 *   kernel_outputs write DEVICE FILE
 *   kernel_outputs compare FILE FILE
 *
 * Where bits are promised (Adam, casts, reduce, clear_residual) they must be equal; else values may
 * differ by a part of the array's largest (BOUND_FP32, BOUND_BF16).
 */
#include "tests/gpu/kernel_outputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs and outputs */

static double unit_next(struct outputs *o)
{
    o->random = o->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(o->random >> 11) * 0x1p-53;
}

enum weir_status outputs_upload(struct outputs *o, const void *bytes, uint64_t byte_count,
                                void **out)
{
    const struct weir_device_table *table = o->device->table;
    if (o->memory_count == OUTPUTS_PIECES || byte_count > OUTPUTS_MOST)
        return weir_fail(WEIR_ERR_STATE, "kernel_outputs: %llu bytes in piece %u of memory",
                         (unsigned long long)byte_count, o->memory_count);
    WEIR_TRY(table->mem_alloc(o->device, byte_count, out));
    o->memory[o->memory_count++] = *out;
    memcpy(o->pinned, bytes, byte_count);
    WEIR_TRY(table->copy(o->stream, *out, o->pinned, byte_count, WEIR_COPY_TO_DEVICE));
    return table->stream_sync(o->stream);
}

enum weir_status outputs_values(struct outputs *o, uint64_t count, enum weir_dtype dtype,
                                void **out)
{
    static float values[OUTPUTS_MOST / 4];
    for (uint64_t i = 0; i < count; i++) {
        float value = (float)(2 * unit_next(o) - 1);
        if (dtype == WEIR_BF16)
            ((uint16_t *)(void *)values)[i] = weir_bf16_from_float(value);
        else
            values[i] = value;
    }
    return outputs_upload(o, values, count * (dtype == WEIR_BF16 ? 2 : 4), out);
}

enum weir_status outputs_scratch(struct outputs *o, uint64_t byte_count, void **out)
{
    if (o->memory_count == OUTPUTS_PIECES)
        return weir_fail(WEIR_ERR_STATE, "kernel_outputs: more than %d pieces", OUTPUTS_PIECES);
    WEIR_TRY(o->device->table->mem_alloc(o->device, byte_count + 64, out));
    o->memory[o->memory_count++] = *out;
    return o->device->table->fill(o->stream, *out, 0x7F, byte_count + 64);
}

enum weir_status outputs_ids(struct outputs *o, uint32_t count, uint32_t most, void **out)
{
    int32_t ids[1024];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (int32_t)(unit_next(o) * most);
    return outputs_upload(o, ids, count * sizeof *ids, out);
}

enum weir_status outputs_record(struct outputs *o, const char *name, const void *memory,
                                uint64_t count, enum outputs_form form, double bound)
{
    const struct weir_device_table *table = o->device->table;
    struct record record = {.count = count, .form = form, .bound = bound};
    uint64_t bytes = count * outputs_form_bytes(form);
    snprintf(record.name, sizeof record.name, "%s %s", name,
             o->dtype == WEIR_BF16 ? "bf16" : "fp32");
    WEIR_TRY(table->copy(o->stream, o->pinned, memory, bytes, WEIR_COPY_TO_HOST));
    WEIR_TRY(table->stream_sync(o->stream));
    if (fwrite(&record, sizeof record, 1, o->file) != 1 ||
        fwrite(o->pinned, 1, bytes, o->file) != bytes)
        return weir_fail(WEIR_ERR_IO, "kernel_outputs: the file cannot be written");
    return WEIR_OK;
}

enum weir_status outputs_return(struct outputs *o)
{
    while (o->memory_count > 0)
        WEIR_TRY(o->device->table->mem_free(o->device, o->memory[--o->memory_count]));
    return WEIR_OK;
}

static enum weir_status outputs_open(struct outputs *o, const char *device)
{
    const struct weir_device_table *table;
    WEIR_TRY(weir_device_find(device, &table));
    WEIR_TRY(table->open(
        &o->device, &(struct weir_device_options){.memory_bytes = UINT64_MAX, .thread_count = 2}));
    WEIR_TRY(table->stream_create(o->device, WEIR_ENGINE_COMPUTE, "outputs", &o->stream));
    WEIR_TRY(table->pin_alloc(o->device, OUTPUTS_MOST, &o->pinned));
    WEIR_TRY(weir_kernels_find(device, &o->math));
    return o->math->open(&o->kernels, o->device, 2, NULL, NULL);
}

static void outputs_close(struct outputs *o)
{
    if (o->kernels)
        o->math->close(o->kernels);
    if (o->stream)
        o->device->table->stream_destroy(o->stream);
    if (o->device)
        o->device->table->close(o->device); /* and frees what is left */
}

static enum weir_status outputs_write(struct outputs *o, const char *device)
{
    static enum weir_status (*const operations[])(struct outputs *) = {
        outputs_adam,  outputs_reduce, outputs_casts,    outputs_norm,
        outputs_rope,  outputs_swiglu, outputs_head,     outputs_attention,
        outputs_embed, outputs_gemm,   outputs_gemm_ones};
    WEIR_TRY(outputs_open(o, device));
    for (int dtype = WEIR_BF16; dtype <= WEIR_FP32; dtype++)
        for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
            o->dtype = (enum weir_dtype)dtype;
            o->random = 1130 + i;
            WEIR_TRY(operations[i](o));
            WEIR_TRY(outputs_return(o));
        }
    return WEIR_OK;
}

/* ---- comparison */

static double value_at(const void *bytes, uint64_t form, uint64_t i)
{
    if (form == OUTPUTS_BF16)
        return weir_float_from_bf16(((const uint16_t *)bytes)[i]);
    return form == OUTPUTS_FP32 ? ((const float *)bytes)[i] : ((const double *)bytes)[i];
}

/* Whether b equals a within the bound; prints a line. */
static bool values_compare(const struct record *r, const void *a, const void *b)
{
    double largest = 0, deviation = 0;
    bool wrong = false;
    for (uint64_t i = 0; i < r->count; i++) {
        double x = value_at(a, r->form, i), y = value_at(b, r->form, i);
        wrong = wrong || !isfinite(x) || !isfinite(y);
        largest = fmax(largest, fabs(x));
        deviation = fmax(deviation, fabs(x - y));
    }
    wrong = wrong || !(deviation <= r->bound * largest) || largest == 0;
    printf("%-28s %8llu values  deviation %.2e of the largest, bound %.2e%s\n", r->name,
           (unsigned long long)r->count, largest > 0 ? deviation / largest : deviation, r->bound,
           wrong ? "  DIFFERS" : "");
    return !wrong;
}

static bool bits_compare(const struct record *r, const unsigned char *a, const unsigned char *b,
                         uint64_t bytes)
{
    uint64_t different = 0;
    for (uint64_t i = 0; i < bytes; i++)
        different += a[i] != b[i];
    printf("%-28s %8llu bytes   ", r->name, (unsigned long long)bytes);
    if (different == 0)
        printf("equal as bits\n");
    else
        printf("%llu DIFFERS, bits were promised\n", (unsigned long long)different);
    return different == 0;
}

/* The next record of both; *end: neither has one. */
static enum weir_status record_next(FILE *const files[2], struct record *r, void *const bytes[2],
                                    bool *end)
{
    struct record other;
    size_t got = fread(r, sizeof *r, 1, files[0]),
           got_other = fread(&other, sizeof other, 1, files[1]);
    *end = got == 0 && got_other == 0 && feof(files[0]) && feof(files[1]);
    if (*end)
        return WEIR_OK;
    bool same = got == 1 && got_other == 1 && memcmp(r, &other, sizeof other) == 0;
    if (!same || r->form > OUTPUTS_BYTES || r->count > OUTPUTS_MOST / outputs_form_bytes(r->form))
        return weir_fail(WEIR_ERR_CORRUPT, "the files do not hold the same operations; write both "
                                           "with the same version");
    size_t byte_count = r->count * outputs_form_bytes(r->form);
    for (int i = 0; i < 2; i++)
        if (fread(bytes[i], 1, byte_count, files[i]) != byte_count)
            return weir_fail(WEIR_ERR_CORRUPT, "a file ends within \"%.*s\"", (int)sizeof r->name,
                             r->name);
    return WEIR_OK;
}

static enum weir_status outputs_compare(FILE *const files[2], uint32_t *right, uint32_t *wrong)
{
    static double first[OUTPUTS_MOST / 8], second[OUTPUTS_MOST / 8];
    void *const bytes[2] = {first, second};
    for (;;) {
        struct record r;
        bool end;
        WEIR_TRY(record_next(files, &r, bytes, &end));
        if (end)
            return WEIR_OK;
        bool good = r.bound > 0 ? values_compare(&r, first, second)
                                : bits_compare(&r, bytes[0], bytes[1],
                                               r.count * outputs_form_bytes(r.form));
        *right += good;
        *wrong += !good;
    }
}

static int compare_main(char **paths)
{
    FILE *const files[2] = {fopen(paths[0], "rb"), fopen(paths[1], "rb")};
    uint32_t right = 0, wrong = 0;
    enum weir_status status = WEIR_OK;
    for (int i = 0; i < 2; i++)
        if (!files[i])
            status = weir_fail(WEIR_ERR_IO, "\"%s\" cannot be read", paths[i]);
    if (status == WEIR_OK)
        status = outputs_compare(files, &right, &wrong);
    for (int i = 0; i < 2; i++)
        if (files[i])
            fclose(files[i]);
    if (status != WEIR_OK)
        fprintf(stderr, "kernel_outputs: %s\n", weir_last_error()->text);
    printf("%u outputs agree, %u differ\n", right, wrong);
    return status == WEIR_OK && wrong == 0 && right > 0 ? 0 : 1;
}

static int write_main(const char *device, const char *path)
{
    struct outputs o = {.file = fopen(path, "wb")};
    if (!o.file) {
        fprintf(stderr, "kernel_outputs: \"%s\" cannot be written\n", path);
        return 1;
    }
    enum weir_status status = outputs_write(&o, device);
    if (status != WEIR_OK)
        fprintf(stderr, "kernel_outputs: %s\n", weir_last_error()->text);
    outputs_close(&o);
    return fclose(o.file) == 0 && status == WEIR_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "write") == 0)
        return write_main(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "compare") == 0)
        return compare_main(argv + 2);
    fprintf(stderr, "usage: kernel_outputs write DEVICE FILE | compare FILE FILE\n");
    return 2;
}
