#!/usr/bin/env bash
# Installs what is missing, builds weir-train, then trains a model of 25M parameters on the C headers
# of this machine twice: with everything in memory, and with budgets of a fraction of its state so
# that most of it lives on NVMe. Ends with both loss curves, memory per tier, and whether the weights
# are the same to the bit. Can be run again; leaves only build/ (ignored by git).
#   WEIR_STEPS=40 ./quickstart.sh    more steps
set -euo pipefail
cd "$(dirname "$0")"
. scripts/packages.sh
. scripts/build.sh
install_packages $build_packages libc6-dev python3

echo "building"
build_preset release

work=build/quickstart
rm -rf "$work"
mkdir -p "$work/nvme"
common=(--model examples/train/configs/llama-25m.json --data /usr/include --seq-len 256
    --micro-batch 2 --batch 8 --steps "${WEIR_STEPS:-24}" --lr 1e-3 --warmup 4 --eval-batches 2)

echo
echo "1. everything in memory"
build/release/weir-train "${common[@]}" --out "$work/memory" --log "$work/memory.jsonl"
echo
echo "2. 112 MiB of device memory, 80 MiB of host memory, the rest on NVMe"
build/release/weir-train "${common[@]}" --out "$work/budget" --log "$work/budget.jsonl" \
    --device-memory 112MiB --host-memory 80MiB --nvme "$work/nvme"
echo
python3 scripts/quickstart_report.py "$work" $((112 << 20)) $((80 << 20))
