/*
 * What was measured, as one JSON document; tables and the page show nothing that is not in it.
 *
 *     report_open(&report, "io");
 *     report_row(&report, json_pack("{s:s, s:f}", "part", "io", "gb_per_s", 3.4));
 *     report_set(&report, "recommendation", json_pack(...));
 *     report_note(&report, "io_uring is refused");
 *     report_print(&report, stdout);
 *     WEIR_TRY(report_write(&report, json, html));
 *     report_close(&report);
 *
 * Its form is docs/weir-bench.schema.json.
 */
#ifndef WEIR_BENCH_REPORT_H
#define WEIR_BENCH_REPORT_H

#include "core/status.h"
#include "examples/replace.h"
#include <jansson.h>
#include <stdio.h>

struct report {
    json_t *root;
};

/* Names the machine. */
enum weir_status report_open(struct report *report, const char *command);
/* Takes row, one result; part, its first member, says in which table it goes. NULL, which
 * json_pack gives without memory, is NOMEM. */
enum weir_status report_row(struct report *report, json_t *row);
/* Takes value, a member of the document. */
enum weir_status report_set(struct report *report, const char *name, json_t *value);
/* Once for each different text. */
enum weir_status report_note(struct report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Tables, then what they say in words. */
void report_print(const struct report *report, FILE *out);
/* Each as a whole or not at all; NULL: not asked for. "-" as json: stdout. */
enum weir_status report_write(const struct report *report, const char *json, const char *html);
void report_close(struct report *report);

/* page.c: the page around the document's text. */
enum weir_status page_write(struct replace *file, const char *text);

#endif
