#!/usr/bin/env bash
# Sets up what is missing, then builds and runs every test: gcc, clang, AddressSanitizer+UBSan,
# ThreadSanitizer, formatting and lint. Can be run again; leaves only build/.
#   ./check.sh            everything (CI)
#   ./check.sh dev asan   only these
set -euo pipefail
cd "$(dirname "$0")"
. scripts/packages.sh
install_packages $build_packages $test_packages

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(form lint dev clang asan tsan mutants)
started=$SECONDS
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - started)); }

run_preset() { # preset, percent of the random draws, further ctest arguments
    local preset=$1 draws=$2
    shift 2
    cmake --preset "$preset" >/dev/null
    cmake --build --preset "$preset" -j "$(nproc)" | tail -n 1
    WEIR_DRAWS=$draws ctest --preset "$preset" -j 2 "$@"
}

for step in "${steps[@]}"; do
    say "$step"
    case $step in
    form)
        git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror
        scripts/rules.py
        ;;
    dev) run_preset dev 100 ;;
    clang) run_preset clang 10 -E "train_(kill|budgets|steady)" ;;
    # oneDNN is not instrumented and keeps thread-local memory until exit.
    asan) LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp run_preset asan 15 ;;
    tsan) TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp history_size=4" run_preset tsan 8 ;;
    lint)
        cmake --preset clang >/dev/null
        git ls-files 'core/*.c' 'alloc/*.c' 'io/*.c' 'kernels/*.c' 'offload/*.c' 'zero/*.c' 'examples/*.c' |
            xargs -P 2 -n 4 clang-tidy -quiet -p build/clang
        ;;
    mutants) tests/mutate_waits.sh ;;
    *)
        echo "unknown step $step" >&2
        exit 2
        ;;
    esac
done
say "all passed"
