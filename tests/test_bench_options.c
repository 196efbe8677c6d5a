/* weir-bench's command line: one bad option is one error that names option, value and remedy. */
#include "tests/support.h"

#include "examples/bench/options.h"
#include "examples/bench/units.h"

#include <stdio.h>
#include <string.h>

#define WORDS_MOST 24

/* Words of a line; options keep pointers into them. */
static enum weir_status read_line(struct options *options, const char *line)
{
    static char text[512], name[] = "weir-bench";
    char *words[WORDS_MOST] = {name};
    int count = 1;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        words[count++] = word;
    return options_read(options, count, words);
}

static void values_are_read(void **state)
{
    (void)state;
    struct options o;
    assert_ok(read_line(&o, "io --path /a,/b --bytes 2GiB --block=4KiB,8MiB --depth 2 --engine "
                            "threads --pattern mixed,read --seconds 0.25 --parameters 8e9 "
                            "--endurance 1200"));
    assert_int_equal(COMMAND_IO, o.command);
    assert_int_equal(2, o.paths.count);
    assert_string_equal("/b", o.paths.values[1]);
    assert_int_equal(2ll << 30, o.bytes);
    assert_int_equal(2, o.blocks.count);
    assert_int_equal(4096, o.blocks.values[0]);
    assert_int_equal(8 << 20, o.blocks.values[1]);
    assert_int_equal(1, o.depths.count);
    assert_int_equal(ENGINE_THREADS, o.engines.values[0]);
    assert_int_equal(PATTERN_MIXED, o.patterns.values[0]);
    assert_true(o.seconds == 0.25 && o.parameters == 8e9 && o.endurance == 1200);
}

static void defaults_are_filled(void **state)
{
    (void)state;
    struct options o;
    assert_ok(read_line(&o, "io --path /a"));
    assert_int_equal(4ll << 30, o.bytes);
    assert_int_equal(3, o.blocks.count);
    assert_int_equal(3, o.depths.count);
    assert_int_equal(ENGINE_COUNT, o.engines.count);
    assert_int_equal(PATTERN_COUNT, o.patterns.count);
    assert_int_equal(3, o.rounds);
    assert_ok(read_line(&o, "io --path /a --block 1MiB --depth 8"));
    assert_int_equal(4ll << 30, o.bytes);
    assert_ok(read_line(&o, "memory --threads 1"));
    assert_int_equal(1, o.threads.count);
    assert_ok(read_line(&o, "memory --threads 16,15,14,13,12,11,10,9,8,7,6,5,4,3,2,1"));
    assert_int_equal(FLAG_LIST_MOST, o.threads.count);
    assert_int_equal(256 << 20, o.bytes);
    assert_ok(read_line(&o, "memory"));
    assert_true(o.threads.count > 0);
    assert_ok(read_line(&o, "gemm --hidden 768 --intermediate 2048"));
    assert_int_equal(768, o.kv);
    assert_ok(read_line(&o, "io --help"));
    assert_true(o.help);
}

static void bad_lines_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"", "no command"},
        {"fly", "\"fly\" is not a command; give io, memory, adam, gemm, copy or all, or --help"},
        {"io", "--path is missing"},
        {"io --path", "--path needs a value"},
        {"io --path /a --path /b", "--path is given twice"},
        {"io --path /a,,/b", "--path: an empty name"},
        {"io --path /a --file f", "--file \"f\": measured instead of --path"},
        {"io --path /a --block 3x", "--block: \"3x\" is not a size"},
        {"io --path /a --block 4097", "--block: 4097 bytes is not a multiple of 4KiB"},
        {"io --path /a --block 1MiB,1024KiB", "--block: \"1024KiB\" is there twice"},
        {"io --path /a --depth 0", "--depth: \"0\" is not a whole number from 1 to 4096"},
        {"io --path /a --depth 8,8", "--depth: \"8\" is there twice"},
        {"io --path /a --engine steam", "--engine: \"steam\" is not one of uring, threads"},
        {"io --path /a --pattern write,wrong", "--pattern: \"wrong\" is not one of read, write"},
        {"io --path /a --seconds -1", "--seconds: \"-1\" is not a number from 0.001 to 86400"},
        {"io --path /a --seconds 1e30", "--seconds: \"1e30\" is not a number from 0.001 to 86400"},
        {"io --path /a --seconds 1e-9", "--seconds: \"1e-9\" is not a number from 0.001 to 86400"},
        {"all --path /a --seconds nan", "--seconds: \"nan\" is not a number"},
        {"adam --parameters 1e30", "--parameters: \"1e30\" is not a number from 1 to 1e+13"},
        {"io --path /a --endurance 1e300", "--endurance: \"1e300\" is not a number from 0.001"},
        {"io --path /a --bytes 64MiB", "--bytes 64 MiB: too few for --depth 32 of --block 1 MiB"},
        {"io --path /a --bytes 1000001KiB", "is not a multiple of 1MiB"},
        {"io --path /a --endurance 100", "--endurance 100: wears by steps; give --parameters"},
        {"io --path /a --bytes 64MiB --block 1MiB --depth 1",
         "5 windows of 12 MiB fit files of 64"},
        {"io --path /a,/\xff", "--path \"/\xff\": its name is not UTF-8"},
        {"io --file \xc3", "--file \"\xc3\": its name is not UTF-8"},
        {"all --path \xff --save f", "--path \"\xff\": its name is not UTF-8"},
        {"gemm --config a,\xff", "--config \"\xff\": its name is not UTF-8"},
        {"memory --json a --html a", "--json and --html are both \"a\""},
        {"memory --html -", "--html -: only --json goes to stdout"},
        {"io --path /a --threads 1,2", "--threads: 2 values; only memory takes more"},
        {"io --path /a --tokens 5", "--tokens: weir-bench io has no use for it"},
        {"io --path /a --wings", "\"--wings\" is not an option; weir-bench io --help"},
        {"adam --turns=1 --dtype bf16", "--turns takes no value"},
        {"gemm", "--config and --hidden are missing"},
        {"gemm --hidden 5", "--hidden and --intermediate go together"},
        {"gemm --config a --hidden 5", "--hidden: shapes come from --config already"},
        {"gemm --config a --kv 5", "--kv: shapes come from --config already"},
        {"gemm --config a --intermediate 5", "--intermediate: shapes come from --config already"},
        {"gemm --kv 5", "--kv: --hidden and --intermediate go together"},
        {"adam --turns", "--turns: of which --dtype"},
        {"adam --turns --dtype bf16 --rounds 3", "--rounds: --turns answers lines of stdin"},
        {"copy --threads 2", "--threads: weir-bench copy has no use for it"},
        {"all --save f", "--path is missing"},
    };
    struct options o;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_line(&o, cases[i].line), WEIR_ERR_ARG, cases[i].part);
}

/* A flag that only a part reads, which is left out, would be passed over. */
static void flags_of_parts_left_out_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"--part sweep --parameters 8e9", "--parameters: of the replay, which --part leaves out"},
        {"--part sweep --parameters 8e9 --endurance 5", "--parameters: of the replay"},
        {"--part sweep,layouts --ring 4", "--ring: of the replay, which --part leaves out"},
        {"--part sweep --update none", "--update: of the replay"},
        {"--part sweep --gradients bf16", "--gradients: of the replay"},
        {"--part sweep --threads 2", "--threads: of the replay"},
        {"--part replay --layout pages", "--layout: of the sweep, which --part leaves out"},
        {"--part replay --block 1MiB,2MiB", "--block: 2 values, of which --part without sweep"},
        {"--part layouts --depth 1,2", "--depth: 2 values, of which --part without sweep"},
        {"--part layouts --engine uring,threads", "--engine: 2 values"},
        {"--part replay --pattern read", "--pattern: of sweep and layouts"},
        {"--part layouts --pattern mixed", "--part layouts: compares reads and writes"},
    };
    struct options o;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, "io --path /a %s", cases[i].line);
        assert_fails(read_line(&o, line), WEIR_ERR_ARG, cases[i].part);
    }
    assert_ok(read_line(&o, "io --path /a --part replay --block 1MiB --depth 4 --ring 4"));
}

/* The replay writes: to a file of the user's only if a pattern does as well. */
static void a_file_that_is_only_read_is_not_replayed(void **state)
{
    (void)state;
    struct options o;
    assert_ok(read_line(&o, "io --file f --pattern read"));
    assert_true(o.replay_left_out && !options_want(&o, PART_REPLAY));
    assert_true(options_want(&o, PART_SWEEP) && options_want(&o, PART_LAYOUTS));
    assert_ok(read_line(&o, "io --file f --pattern read,mixed"));
    assert_true(!o.replay_left_out && options_want(&o, PART_REPLAY));
    assert_ok(read_line(&o, "io --path /a --pattern read"));
    assert_true(!o.replay_left_out && options_want(&o, PART_REPLAY));
    assert_ok(read_line(&o, "io --file f --pattern read --part sweep"));
    assert_false(o.replay_left_out);
    assert_fails(read_line(&o, "io --file f --pattern read --part sweep,replay"), WEIR_ERR_ARG,
                 "--part replay: writes to --file \"f\"");
    assert_fails(read_line(&o, "io --file f --pattern read --parameters 8e9"), WEIR_ERR_ARG,
                 "--parameters: of the replay, which writes to --file \"f\"");
    assert_fails(read_line(&o, "io --file f --bytes 1GiB"), WEIR_ERR_ARG, "--bytes: --file \"f\"");
}

/* A report that cannot be written is refused by its flag. */
static void outputs_are_checked_by_flag(void **state)
{
    (void)state;
    static const char *const flags[] = {"--json", "--html", "--save"};
    struct options o;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char line[128], part[32];
        snprintf(line, sizeof line, "all --path /a %s /nowhere/x", flags[i]);
        snprintf(part, sizeof part, "%s \"/nowhere/x\"", flags[i]);
        assert_ok(read_line(&o, line));
        assert_fails(options_outputs_check(&o), WEIR_ERR_IO, part);
    }
    assert_ok(read_line(&o, "memory --json -"));
    assert_ok(options_outputs_check(&o));
    assert_ok(read_line(&o, "memory --json /dev/null"));
    assert_ok(options_outputs_check(&o)); /* written into */
}

static void sizes_are_printed_as_people_write_them(void **state)
{
    (void)state;
    char text[24];
    assert_string_equal("4 KiB", bytes_text(4096, text));
    assert_string_equal("8 MiB", bytes_text(8 << 20, text));
    assert_string_equal("1.5 GiB", bytes_text(3ull << 29, text));
    assert_string_equal("100 B", bytes_text(100, text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(defaults_are_filled),
        cmocka_unit_test(bad_lines_are_refused_by_name),
        cmocka_unit_test(flags_of_parts_left_out_are_refused),
        cmocka_unit_test(a_file_that_is_only_read_is_not_replayed),
        cmocka_unit_test(outputs_are_checked_by_flag),
        cmocka_unit_test(sizes_are_printed_as_people_write_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
