/* Any bytes as one or two token files or texts: every sequence is read and holds tokens of the
 * vocabulary, or an error names the file. The first bytes say how they are to be read. */
#include "core/memory.h"
#include "examples/train/corpus.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>

#define LENGTH_MOST 32

static char directory[256];

static void sequences_read(struct corpus *corpus)
{
    int32_t inputs[LENGTH_MOST], targets[LENGTH_MOST];
    for (uint64_t i = 0; i < corpus->sequence_count; i++) {
        uint64_t sequence = corpus_order(7, corpus->sequence_count, i);
        assert_true(sequence < corpus->sequence_count);
        assert_ok(corpus_read(corpus, sequence, inputs, targets));
        for (uint32_t t = 0; t < corpus->length; t++) {
            assert_true((uint32_t)inputs[t] < corpus->vocab);
            assert_true((uint32_t)targets[t] < corpus->vocab);
            assert_true(t == 0 || targets[t - 1] == inputs[t]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t vocabularies[] = {1, 255, 256, 32000, 65536, 65537, 128256};
    if (!directory[0])
        fuzz_directory(directory);
    if (size < 3)
        return 0;
    uint32_t length = 1 + data[0] % LENGTH_MOST, vocab = vocabularies[data[1] % 7];
    const char *ending = data[2] & 1 ? "bin" : "txt";
    data += 3;
    size -= 3;
    size_t first = size / 2 / 4 * 4;
    char names[2][16], one[300], two[300], both[620];
    snprintf(names[0], sizeof names[0], "a.%s", ending);
    snprintf(names[1], sizeof names[1], "b.%s", ending);
    fuzz_file(directory, names[0], data, first, one);
    fuzz_file(directory, names[1], data + first, size - first, two);
    snprintf(both, sizeof both, "%s,%s", one, two);
    uint64_t held = weir_alloc_bytes();
    struct corpus corpus;
    enum weir_status status = corpus_open(&corpus, both, length, vocab, NULL);
    fuzz_named(status, directory);
    if (status == WEIR_OK) {
        sequences_read(&corpus);
        corpus_close(&corpus);
    }
    assert_true(weir_alloc_bytes() == held);
    return 0;
}
