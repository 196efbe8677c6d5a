#!/usr/bin/env bash
# All that is worth knowing on a machine with a GPU: builds for it, runs the tests that need one,
# compares kernels with the simulated GPU's, measures rates, trains. One table at the end; the exit
# status is 1 if something failed, 77 if there is no GPU. Needs no network; writes only to BUILD. Of
# several GPUs it takes the first, or the first of CUDA_VISIBLE_DEVICES.
#
#   tests/gpu/run.sh [--build DIR] [--limit SECONDS] [--simulated] [PART...]
#
#   build    preset dev for this GPU's architecture alone, the programs below (at most 200 s)
#   tests    CTest's label gpu (120 s)
#   compare  outputs of every operation on the GPU and on the simulator (30 s)
#   bench    device_rate, and PyTorch beside it where torch finds the GPU (75 s)
#   train    weir-train: the same bits whatever the budgets; 1.1B and 8B parameters (what is left:
#            8B has time only alone, --limit 600 train)
#
# --build      default build/gpu
# --limit      of all parts together, default 480
# --simulated  the same parts in small on the simulated GPU, from a build that is there: a test of
#              this script
set -uo pipefail
export CUDA_DEVICE_ORDER=PCI_BUS_ID # CUDA's order of GPUs is nvidia-smi's then
gpu='' chosen=() missing=''
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build='' limit=480 simulated='' parts=()
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=${2:?--build needs a folder}; shift ;;
    --limit) limit=${2:?--limit needs seconds}; shift ;;
    --simulated) simulated=yes ;;
    build | tests | compare | bench | train) parts+=("$1") ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=(build tests compare bench train)
build=$(realpath -m "${build:-$source_dir/build/gpu}")
work=$build/gpu-run
failed=0

say() { printf '\n== %s (%d s)\n' "$*" $SECONDS; }
# part, what, result; the third word of a line of the table decides nothing: failures are counted.
row() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$work/table"; }
fail() { failed=1; row "$1" "$2" "FAILED: $3"; }
left() { local rest=$((limit - SECONDS)); echo $((rest < $1 ? rest : $1)); } # seconds, at most $1
# seconds, command: ends in time, by force if need be.
within() {
    local seconds
    seconds=$(left "$1")
    shift
    [ "$seconds" -gt 0 ] || { echo "no time is left of $limit s"; return 124; }
    timeout -k 5 "$seconds" "$@"
}
outcome() { [ "$1" = 124 ] || [ "$1" = 137 ] && echo "out of time" || echo "exit status $1"; }

# Until there is a program that asks CUDA: the first GPU that CUDA shows. A name that nvidia-smi does
# not take (a MIG instance's) leaves its first.
smi() { nvidia-smi "${chosen[@]}" --format=csv,noheader "$@"; }
choose_gpu() {
    local first
    [ -n "${CUDA_VISIBLE_DEVICES+set}" ] || return 0
    first=${CUDA_VISIBLE_DEVICES%%,*}
    case $first in
    '' | -*) missing="CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES hides every GPU"; return 1 ;;
    esac
    chosen=(-i "$first")
    smi --query-gpu=name >/dev/null 2>&1 || chosen=()
}
# Its failures are told on stdout too, so that its exit status tells a GPU from one.
find_gpu() {
    local said
    command -v nvidia-smi >/dev/null || { missing="there is no nvidia-smi"; return 1; }
    choose_gpu || return 1
    said=$(smi --query-gpu=name,driver_version,memory.total 2>&1) ||
        { missing="nvidia-smi: ${said%%$'\n'*}"; return 1; }
    gpu=${said%%$'\n'*}
    case $gpu in *,*,*) ;; *) missing="nvidia-smi: ${gpu:-no answer}"; return 1 ;; esac
}

# What CUDA itself says of the device that weir uses; empty: not known.
fact() { "$with_gpu" --facts 2>/dev/null | sed -n "s/^$1 //p"; }

describe() {
    say "machine"
    if [ -n "$simulated" ]; then
        echo "GPU: simulated"
    else
        echo "GPU: $gpu"
        nvidia-smi "${chosen[@]}" --query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,persistence_mode,compute_mode,clocks.max.sm,power.limit --format=csv
        nvidia-smi topo -m 2>/dev/null | sed -n 1,4p
        echo "toolkit: $(nvcc --version 2>/dev/null | sed -n 's/.*\(release.*\)/\1/p')"
    fi
    echo "cores: $(nproc), $(lscpu | sed -n 's/^Model name: *//p' | sed -n 1p)"
    free -g | sed -n 1,2p
    df -h "$build" /dev/shm 2>/dev/null
    uname -r
}

# The number that nvcc wants (CMake below 3.24 has no "native"); empty: not known, as of an old
# nvidia-smi.
architecture() { smi --query-gpu=compute_cap 2>/dev/null | sed -n '1s/^\([0-9]*\)\.\([0-9]*\)$/\1\2-real/p'; }

part_build() {
    [ -z "$simulated" ] || { row build "programs" "left out: --simulated uses those of $build"; return; }
    local arch status choice=-UWEIR_CUDA_ARCHITECTURES
    arch=$(architecture)
    [ -z "$arch" ] || choice=-DWEIR_CUDA_ARCHITECTURES=$arch
    arch=${arch:-all architectures}
    # A compiler that is newer than ours may warn.
    within 200 cmake --preset dev -S "$source_dir" -B "$build" -DWEIR_CUDA=ON -DWEIR_WERROR= \
        "$choice" >"$work/build.log" 2>&1 &&
        within 200 cmake --build "$build" -j "$(nproc)" --target gpu_programs >>"$work/build.log" 2>&1
    status=$?
    tail -n 3 "$work/build.log"
    if [ $status = 0 ]; then
        row build "$arch" "$SECONDS s"
        "$with_gpu" --facts
        return
    fi
    grep -E -m 10 "error|Error|undefined" "$work/build.log"
    fail build "$arch" "$(outcome $status), see $work/build.log"
}

part_tests() {
    local choose=(-L gpu) status at_once=4
    [ -z "$simulated" ] || choose=(-R '^(test_swiglu_sim|test_device_sim_eager)$')
    [ "$(fact processes)" = many ] || at_once=1 # a GPU for one process at a time refuses the others
    WEIR_DRAWS=${WEIR_DRAWS:-25} within 120 ctest --test-dir "$build" "${choose[@]}" -j $at_once \
        --output-on-failure --no-tests=error --timeout 100 >"$work/tests.log" 2>&1
    status=$?
    sed -n '/tests passed/,$p' "$work/tests.log"
    local summary
    summary=$(grep -E -m 1 "tests passed" "$work/tests.log")
    if grep -q "did not run" "$work/tests.log" && [ "$(fact concurrent_managed_access)" != 0 ]; then
        fail tests "CTest" "skipped, though there is a GPU: see $work/tests.log"
    elif [ $status != 0 ]; then
        grep -E -m 20 "FAILED|Failed|\*\*\*|ERROR" "$work/tests.log"
        fail tests "CTest" "${summary:-$(outcome $status)}, see $work/tests.log"
    else
        row tests "CTest" "$summary"
    fi
}

# On a GPU: it and the simulator. Simulated: the simulator and the host.
part_compare() {
    local here=$build/tests/gpu/kernel_outputs simulator=$build/tests/gpu/kernel_outputs_sim status
    local device=cuda what="GPU and simulator"
    [ -z "$simulated" ] || { device=host; what="simulator and host"; }
    { within 30 "$here" write $device "$work/outputs.here" &&
        within 30 "$simulator" write cuda "$work/outputs.simulator" &&
        within 30 "$here" compare "$work/outputs.here" "$work/outputs.simulator"; } >"$work/compare.log" 2>&1
    status=$?
    grep -E "DIFFERS|kernel_outputs:|cudasim" "$work/compare.log"
    local summary
    summary=$(tail -n 1 "$work/compare.log")
    echo "$summary"
    [ $status = 0 ] && row compare "$what" "$summary" && return
    [ $status = 124 ] && summary="out of time"
    fail compare "$what" "$summary, see $work/compare.log"
}

part_bench() {
    local program=$build/device_rate more=(--seconds 0.15) status
    [ -z "$simulated" ] || { program=$build/tests/gpu/device_rate_sim; more=(--tiny --seconds 0.01 --only copy,gemm,adam,rope); }
    within 75 "$program" --device cuda --json "$work/rates.json" "${more[@]}" | tee "$work/bench.log"
    status=${PIPESTATUS[0]}
    [ "$status" = 0 ] || { fail bench device_rate "$(outcome "$status"), see $work/bench.log"; return; }
    within 45 python3 "$source_dir/tests/gpu/torch_rate.py" "$work/rates.json" "$work/table"
    status=$?
    [ $status = 0 ] || [ $status = 77 ] || fail bench PyTorch "$(outcome $status)"
}

part_train() {
    local program=$build/weir-train more=() status
    [ -z "$simulated" ] || { program=$build/tests/cudasim/weir-train-sim; more=(--simulated); }
    local seconds
    seconds=$(left 100000)
    within 100000 python3 "$source_dir/tests/gpu/train.py" "$program" "$with_gpu" "$work" "$work/table" \
        --seconds $((seconds - 10)) "${more[@]}"
    status=$?
    [ $status = 0 ] || fail train "weir-train" "$(outcome $status)"
}

with_gpu=$build/tests/gpu/with_gpu${simulated:+_sim}
if [ -z "$simulated" ] && ! find_gpu; then
    echo "skipped: $missing; where there is a GPU this would run: ${parts[*]} (in $build, at most $limit s)"
    exit 77
fi
mkdir -p "$work" && : >"$work/table" || exit 1
cd "$work" || exit 1
describe 2>&1 | tee "$work/machine.log"
for part in "${parts[@]}"; do
    say "$part"
    "part_$part"
done
say "results"
column -t -s "$(printf '\t')" "$work/table" 2>/dev/null || cat "$work/table"
exit $failed
