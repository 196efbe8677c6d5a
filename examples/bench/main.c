/*
 * weir-bench: what this machine's drives, memory and cores give training.
 */
#include "examples/bench/commands.h"
#include "examples/bench/leave.h"
#include "examples/bench/progress.h"
#include "examples/openmp.h"

#include <string.h>

static enum weir_status measure(const struct options *options, struct report *report)
{
    switch (options->command) {
    case COMMAND_IO:
        return io_measure(options, report);
    case COMMAND_MEMORY:
        return memory_measure(options, report);
    case COMMAND_ADAM:
        return adam_measure(options, report);
    case COMMAND_GEMM:
        return gemm_measure(options, report);
    case COMMAND_COPY:
        return copy_measure(options, report);
    case COMMAND_ALL:
        return all_measure(options, report);
    case COMMAND_COUNT:
        break;
    }
    return weir_fail(WEIR_ERR_ARG, "no command");
}

static enum weir_status run(const struct options *options)
{
    struct report report;
    if (options->turns)
        return adam_turns(options);
    WEIR_TRY(options_outputs_check(options));
    WEIR_TRY(report_open(&report, command_names[options->command]));
    enum weir_status status = measure(options, &report);
    if (status == WEIR_OK) {
        if (!options->json || strcmp(options->json, "-") != 0)
            report_print(&report, stdout);
        status = report_write(&report, options->json, options->html);
    }
    if (status == WEIR_OK && fflush(stdout) != 0)
        status = weir_fail(WEIR_ERR_IO, "stdout: what was measured is not written");
    report_close(&report);
    return status;
}

int main(int count, char **values)
{
    openmp_spin_briefly(values);
    struct options options;
    enum weir_status status = options_read(&options, count, values);
    if (status != WEIR_OK) {
        fprintf(stderr, "weir-bench: %s\n", weir_last_error()->text);
        return 2;
    }
    if (options.help) {
        options_help(&options, options.command != COMMAND_COUNT);
        return 0;
    }
    leave_on_signals();
    status = run(&options);
    leave_if_asked();
    if (status == WEIR_OK)
        return 0;
    progress_end(); /* what failed may have left its line */
    fprintf(stderr, "weir-bench: %s\n", weir_last_error()->text);
    return status == WEIR_ERR_ARG ? 2 : 1;
}
