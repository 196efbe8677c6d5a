#include "examples/bench/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define DUMP_FLAGS (JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6))

static enum weir_status no_memory(void)
{
    return weir_fail(WEIR_ERR_NOMEM, "no memory for the report");
}

static void cpu_name(char out[static 128])
{
    char line[256];
    snprintf(out, 128, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, 128, "%.127s", strchr(line, ':') ? strchr(line, ':') + 2 : line);
            break;
        }
    if (file)
        fclose(file);
}

enum weir_status report_open(struct report *report, const char *command)
{
    struct utsname kernel;
    char cpu[128], now[32];
    time_t seconds = time(NULL);
    struct tm utc;
    uname(&kernel);
    cpu_name(cpu);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    json_int_t memory = (json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    report->root =
        json_pack("{s:i, s:s, s:s, s:s, s:{s:s, s:I, s:I, s:s}, s:[], s:[]}", "weir_bench", 1,
                  "version", WEIR_VERSION, "command", command, "time", now, "machine", "cpu", cpu,
                  "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "memory_bytes", memory,
                  "kernel", kernel.release, "results", "notes");
    return report->root ? WEIR_OK : no_memory();
}

enum weir_status report_row(struct report *report, json_t *row)
{
    json_t *rows = json_object_get(report->root, "results");
    return row && json_array_append_new(rows, row) == 0 ? WEIR_OK : no_memory();
}

enum weir_status report_set(struct report *report, const char *name, json_t *value)
{
    return value && json_object_set_new(report->root, name, value) == 0 ? WEIR_OK : no_memory();
}

enum weir_status report_note(struct report *report, const char *format, ...)
{
    char text[512];
    va_list arguments;
    json_t *notes = json_object_get(report->root, "notes"), *note;
    size_t i;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    json_array_foreach(notes, i, note)
    {
        if (strcmp(json_string_value(note), text) == 0)
            return WEIR_OK;
    }
    note = json_string_nocheck(text);
    return note && json_array_append_new(notes, note) == 0 ? WEIR_OK : no_memory();
}

void report_close(struct report *report)
{
    json_decref(report->root);
    report->root = NULL;
}

/* ---- files */

static enum weir_status text_print(const char *text)
{
    return fputs(text, stdout) >= 0 && fputc('\n', stdout) != EOF
               ? WEIR_OK
               : weir_fail_errno(WEIR_ERR_IO, errno, "the report is not written");
}

static enum weir_status text_write(struct replace *file, const char *text)
{
    WEIR_TRY(replace_write(file, text, strlen(text)));
    return replace_write(file, "\n", 1);
}

static enum weir_status file_write(const char *path, const char *text, bool page)
{
    struct replace file;
    WEIR_TRY(replace_begin(&file, "report", path));
    return replace_end(&file, page ? page_write(&file, text) : text_write(&file, text));
}

enum weir_status report_write(const struct report *report, const char *json, const char *html)
{
    enum weir_status status = WEIR_OK;
    char *text = json_dumps(report->root, DUMP_FLAGS | JSON_INDENT(1));
    /* The page's parser would end the script at "</script". */
    char *within = json_dumps(report->root, DUMP_FLAGS | JSON_COMPACT | JSON_ESCAPE_SLASH);
    if (!text || !within)
        status = no_memory();
    if (status == WEIR_OK && json)
        status = strcmp(json, "-") == 0 ? text_print(text) : file_write(json, text, false);
    if (status == WEIR_OK && html)
        status = file_write(html, within, true);
    free(text);
    free(within);
    return status;
}
