/*
 * What a checkpoint of weir-train says of its run, and what a resumed one may change: what would
 * make it another run is refused, what only changes bits is said.
 */
#include "examples/train/trainer.h"
#include "zero/math.h"

#include <stdlib.h>
#include <string.h>

/* What an update is made of. A constant rate does not look at its end. */
static json_t *training_numbers(const struct arguments *a)
{
    json_t *o = json_pack("{s:f, s:s, s:I, s:f, s:f, s:f, s:f, s:f}", "lr", a->lr, "schedule",
                          arguments_schedule(a), "warmup", (json_int_t)a->warmup, "beta1", a->beta1,
                          "beta2", a->beta2, "eps", a->eps, "weight_decay", a->weight_decay, "clip",
                          a->clip);
    if (a->schedule != SCHEDULE_CONSTANT) {
        (void)json_object_set_new(o, "min_lr", json_real(a->min_lr));
        (void)json_object_set_new(o, "steps", json_integer((json_int_t)a->steps));
    }
    return o;
}

json_t *trainer_numbers(const struct trainer *t)
{
    const struct arguments *a = &t->arguments;
    const struct llama_config *c = &t->config;
    struct weir_kernels *kernels = weir_compute_kernels(t->run);
    return json_pack(
        "{s:{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:b,s:f,s:f,s:i,s:f,s:f,s:f,s:f}, s:I, s:I, s:i, s:i, "
        "s:i, s:i, s:s, s:I, s:I, s:o}",
        "model", "vocab", c->vocab, "hidden", c->hidden, "intermediate", c->intermediate, "layers",
        c->layer_count, "heads", c->heads, "kv_heads", c->kv_heads, "head_dim", c->head_dim, "tied",
        c->tied, "norm_eps", (double)c->norm_eps, "rope_theta", c->rope.theta, "rope_scaling",
        (int)c->rope.scaling, "rope_factor", c->rope.factor, "low_freq_factor",
        c->rope.low_freq_factor, "high_freq_factor", c->rope.high_freq_factor, "original_length",
        c->rope.original_length, "seed", (json_int_t)a->seed, "data",
        (json_int_t)t->corpus.identity, "seq_len", a->seq_len, "batch", a->batch, "micro_batch",
        a->micro_batch, "threads", a->threads, "kernels", kernels->table->describe(kernels),
        "position", (json_int_t)t->step * a->batch, "train_count", (json_int_t)t->train_count,
        "training", training_numbers(a));
}

static void show(const json_t *value, char out[static 64])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    snprintf(out, 64, "%s", text ? text : "nothing");
    free(text);
}

static void difference_say(const char *key, const json_t *saved, const json_t *mine)
{
    char then[64], now[64];
    if (json_equal(saved, mine))
        return;
    show(saved, then);
    show(mine, now);
    fprintf(stderr,
            "warning: resumed with another %s, %s where the checkpoint has %s: the bits will "
            "differ from the run that was begun\n",
            key, now, then);
}

/* Another split between training and evaluation puts the data in another order. */
static enum weir_status split_compare(const json_t *saved, const json_t *mine, const char *path)
{
    const json_t *then = json_object_get(saved, "train_count"),
                 *now = json_object_get(mine, "train_count");
    if (!then || json_equal(then, now)) /* absent: of an earlier build */
        return WEIR_OK;
    return weir_fail(WEIR_ERR_ARG,
                     "checkpoint \"%s\" is of another train_count: it trained on %lld sequences of "
                     "the data and left the rest for evaluation, this run would train on %lld; "
                     "resume with or without --eval-data, as it was begun",
                     path, (long long)json_integer_value(then), (long long)json_integer_value(now));
}

static enum weir_status fields_compare(const json_t *saved, const json_t *mine, const char *path)
{
    static const char *const refused[] = {"model", "seed", "data", "seq_len", "batch"};
    static const char *const said[] = {"micro_batch", "threads", "kernels"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!json_equal(json_object_get(saved, refused[i]), json_object_get(mine, refused[i])))
            return weir_fail(WEIR_ERR_ARG,
                             "checkpoint \"%s\" is of another %s; resume with the "
                             "arguments it was begun with",
                             path, refused[i]);
    WEIR_TRY(split_compare(saved, mine, path));
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        difference_say(said[i], json_object_get(saved, said[i]), json_object_get(mine, said[i]));
    const json_t *training = json_object_get(saved, "training");
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(mine, "training"), key, value)
    {
        if (json_object_get(training,
                            key)) /* absent: of an earlier build, or of no meaning there */
            difference_say(key, json_object_get(training, key), value);
    }
    return WEIR_OK;
}

enum weir_status trainer_resume_check(const struct trainer *t, const char *path)
{
    char file[4200];
    json_error_t error;
    snprintf(file, sizeof file, "%s/state.json", path);
    json_t *root = json_load_file(file, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return weir_fail(WEIR_ERR_CORRUPT, "checkpoint file \"%s\", line %d: %s", file, error.line,
                         error.text);
    json_t *mine = trainer_numbers(t);
    enum weir_status status = mine ? fields_compare(json_object_get(root, "caller"), mine, path)
                                   : weir_fail(WEIR_ERR_NOMEM, "checkpoint: no memory for JSON");
    json_decref(mine);
    json_decref(root);
    return status;
}
