#!/usr/bin/env bash
# Sets up what is missing, then builds and runs every test: gcc, clang, AddressSanitizer+UBSan,
# ThreadSanitizer, fuzzers, formatting and lint. Can be run again; leaves only build/.
#   ./check.sh            everything (CI)
#   ./check.sh dev asan   only these
set -euo pipefail
cd "$(dirname "$0")"
. scripts/packages.sh
. scripts/build.sh
install_packages $build_packages $test_packages

# Tests that run side by side have a team each on the same cores: who waits shall not spin.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000}

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(form lint dev clang asan tsan fuzz mutants)
started=$SECONDS
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - started)); }

run_preset() { # preset, percent of the random draws, further ctest arguments
    local preset=$1 draws=$2
    shift 2
    build_preset "$preset"
    WEIR_DRAWS=$draws ctest --preset "$preset" -j 2 "$@"
}

# FUZZ_SECONDS each (10) from the committed inputs; what is new stays in build/fuzz for the next time.
# A file that claims terabytes must be refused before memory is asked for, hence the limit.
run_fuzzers() {
    build_preset fuzz
    for corpus in tests/fuzz/corpus/*; do
        local name=${corpus##*/}
        mkdir -p "build/fuzz/corpus/$name"
        LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp "build/fuzz/tests/fuzz/fuzz_$name" \
            -max_total_time="${FUZZ_SECONDS:-10}" -len_control=0 -verbosity=0 -print_final_stats=1 \
            -timeout=60 -rss_limit_mb=1024 -malloc_limit_mb=128 -artifact_prefix="build/fuzz/$name-" \
            "build/fuzz/corpus/$name" "$corpus" 2>&1 | grep -v "^INFO" | tail -n 40 >build/fuzz/log ||
            { cat build/fuzz/log; return 1; }
        echo "$name: $(grep -o 'executed_units.*' build/fuzz/log)"
    done
}

for step in "${steps[@]}"; do
    say "$step"
    case $step in
    form)
        if format=$(tool_14 clang-format); then
            git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs "$format" --dry-run -Werror
        else
            echo "left out: clang-format 14 is not here, others format differently; install clang-format-14"
        fi
        scripts/rules.py
        ;;
    dev) run_preset dev 100 ;;
    # What a second compiler may change, not what takes long in any.
    clang) run_preset clang 10 -E "train_(kill|budgets|steady)|fault_run" ;;
    # oneDNN is not instrumented and keeps thread-local memory until exit.
    asan) LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp run_preset asan 15 ;;
    # Without two long ones in which there is but one thread.
    tsan)
        TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp history_size=4" \
            run_preset tsan 8 -E "^(test_floor|prop_mutants)$"
        ;;
    lint)
        if tidy=$(tool_14 clang-tidy); then
            cmake --preset clang >/dev/null
            scripts/lint.py build/clang | xargs -P 2 -n 4 "$tidy" -quiet -p build/clang/lint
        else
            echo "left out: clang-tidy 14 is not here, others check more; install clang-tidy-14"
        fi
        ;;
    # A part of dev for itself: all that needs a CUDA toolkit, ptxas for every architecture included.
    cuda)
        if nvcc --version >/dev/null 2>&1; then
            run_preset dev 100 -R "_sim|ptxas|cuda|cublaslt|shim|runtime|misuse|planted"
        else
            echo "left out: no CUDA toolkit here"
        fi
        ;;
    fuzz) run_fuzzers ;;
    mutants)
        tests/mutate_waits.sh
        if nvcc --version >/dev/null 2>&1; then
            tests/cudasim/mutate_waits.py build/tsan
        fi
        ;;
    *)
        echo "unknown step $step" >&2
        exit 2
        ;;
    esac
done
say "all passed"
