/*
 * weir-train: trains a Llama-family model bigger than its memory budgets.
 */
#include "examples/openmp.h"
#include "examples/train/export.h"
#include "examples/train/trainer.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t stop, training;

/* The first signal ends the step; the second leaves at once. So does any while there is nothing to
 * save yet. */
static void on_signal(int number)
{
    if (stop || !training)
        _exit(128 + number);
    stop = number;
}

/* Whoever reads our lines is gone: by the same ctrl-C, perhaps, that on_signal was called for. */
static void on_pipe(int number)
{
    if (!training)
        _exit(128 + number);
    stop = stop ? stop : number;
}

static enum weir_status export_only(const struct arguments *arguments)
{
    WEIR_TRY(export_checkpoint(arguments->model, arguments->export_fp32));
    printf("exported %s\n", arguments->export_fp32);
    return WEIR_OK;
}

static enum weir_status run(struct trainer *trainer, const struct arguments *arguments)
{
    WEIR_TRY(trainer_open(trainer, arguments, &stop));
    printf("%s: %.2f M parameters, %u micro-batches of %u sequences of %u tokens a step\n",
           arguments->model, (double)llama_parameter_count(trainer->llama) * 1e-6,
           trainer->llama->spec.micro_count, arguments->micro_batch, arguments->seq_len);
    enum weir_status fits = trainer_memory_check(trainer);
    if (!arguments->dry_run) {
        WEIR_TRY(fits);
        WEIR_TRY(trainer_start(trainer));
    }
    journal_layout(&trainer->prediction, trainer->group_count);
    if (fits != WEIR_OK)
        printf("  here it would be refused: %s\n", weir_last_error()->text);
    WEIR_TRY(wear_plan(&trainer->wear, trainer->run, &trainer->prediction));
    training = !arguments->dry_run;
    return training ? trainer_train(trainer) : WEIR_OK;
}

int main(int argument_count, char **values)
{
    openmp_spin_briefly(values);
    struct arguments arguments;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (arguments_read(&arguments, argument_count, values) != WEIR_OK) {
        fprintf(stderr, "weir-train: %s\n", weir_last_error()->text);
        return 2;
    }
    if (arguments.help) {
        arguments_help();
        return 0;
    }
    if (!arguments.data) {
        enum weir_status status = export_only(&arguments);
        if (status != WEIR_OK)
            fprintf(stderr, "weir-train: %s\n", weir_last_error()->text);
        return status == WEIR_OK ? 0 : 1;
    }
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction pipe = {.sa_handler = on_pipe};
    sigaction(SIGPIPE, &pipe, NULL);
    struct trainer trainer;
    enum weir_status status = run(&trainer, &arguments);
    if (status != WEIR_OK)
        fprintf(stderr, "weir-train: %s\n", weir_last_error()->text);
    trainer_close(&trainer);
    return status == WEIR_OK ? 0 : status == WEIR_ERR_CANCELED && stop ? 128 + stop : 1;
}
