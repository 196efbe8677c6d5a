#!/usr/bin/env python3
"""Compares the two runs of quickstart.sh: loss curves, memory per tier, bits. Exits non-zero if bits
differ, no byte went to NVMe, or a budget was passed.

  quickstart_report.py DIRECTORY DEVICE_BYTES HOST_BYTES
"""
import glob
import hashlib
import json
import sys

work, device, host = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = ("memory", "budget")
runs = {name: [json.loads(line) for line in open(f"{work}/{name}.jsonl")] for name in names}


def curve(name, steps):
    losses = [s["loss"] for s in steps]
    low, high = min(losses), max(losses)
    print(f"loss, {name}: {losses[0]:.4f} -> {losses[-1]:.4f}")
    height = 8
    for row in range(height, 0, -1):
        edge = low + (high - low) * (row - 0.5) / height
        print(f"  {edge:6.3f} |" + "".join(" *"[loss >= edge] * 2 for loss in losses))
    print("         +" + "--" * len(losses))


def digest(name):
    (path,) = glob.glob(f"{work}/{name}/step-*/model.safetensors")
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


for name in names:
    curve(name, runs[name])
print(f"\n{'':10}{'device MiB':>12}{'host MiB':>12}{'NVMe read':>12}{'written':>12}   (MiB a step)")
for name in names:
    last = runs[name][-1]
    row = (last["peak_device_bytes"], last["peak_host_bytes"], last["nvme_read_bytes"], last["nvme_written_bytes"])
    print(f"{name:10}" + "".join(f"{x / 2**20:12.1f}" for x in row))

hashes = {name: digest(name) for name in names}
print("\nsha256 of model.safetensors")
for name in names:
    print(f"  {name:8} {hashes[name]}")
problems = []
if hashes["memory"] != hashes["budget"]:
    problems.append("the weights differ")
if [s["loss"] for s in runs["memory"]] != [s["loss"] for s in runs["budget"]]:
    problems.append("the losses differ")
if not all(s["nvme_read_bytes"] > 0 for s in runs["budget"][1:]):
    problems.append("a step read no byte of NVMe")
last = runs["budget"][-1]
if last["peak_device_bytes"] > device or last["peak_host_bytes"] > host:
    problems.append("a budget was passed")
print("\nidentical to the bit" if not problems else "\nFAILED: " + "; ".join(problems))
sys.exit(bool(problems))
