#!/usr/bin/env python3
"""
A step of weir-train on the real drive against the floor of its schedule (DESIGN 4s), at fio's rates.

    fio_step.py WEIR_TRAIN CONFIG DIR --device-memory 96MiB --host-memory 96MiB --rounds 3

Each round trains in memory, trains with the budgets, and lets fio move a file that is written in full:
io_uring, O_DIRECT, 2 MiB blocks, 32 of them in flight, huge-page buffers. Forward and backward are two
phases that cannot change places: floor = max(C_fwd, IO_fwd) + max(C_bwd, IO_bwd), where C is what the
phase computes in memory, updates included, and IO the bytes that the budgeted step moves in it at the
rate of fio in the same mix of reads and writes. Ramps are left out, which favours the floor.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("weir_train")
p.add_argument("config")
p.add_argument("directory")
p.add_argument("--data", default="/usr/include")
p.add_argument("--device-memory", default="96MiB")
p.add_argument("--host-memory", default="96MiB")
p.add_argument("--length", type=int, default=64)
p.add_argument("--batch", type=int, default=1)
p.add_argument("--steps", type=int, default=8)
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--gib", type=int, default=2)
a = p.parse_args()
path = os.path.join(a.directory, "weir-fio-step.bin")


def train(*budgets):
    """Median seconds of a step, and the operations of the third."""
    with tempfile.TemporaryDirectory() as work:
        command = [a.weir_train, "--model", a.config, "--data", a.data, "--seq-len", a.length, "--batch", a.batch, "--steps", a.steps, "--eval-batches", 1, "--log", f"{work}/log", "--timeline", f"{work}/timeline", *budgets]
        subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        steps = [json.loads(line) for line in open(f"{work}/log")][2:]
        events = json.load(open(f"{work}/timeline"))["traceEvents"]
    return statistics.median(s["step_s"] for s in steps), [e for e in events if e["ph"] == "X"]


def phases(events):
    """Of forward and backward: seconds of compute and updates, bytes read, bytes written."""
    computes = [e for e in events if ":" in e["name"]]
    turn = min(e["args"]["stage"] for e in computes if e["name"].endswith(":GRAD"))
    out = [[0, 0, 0], [0, 0, 0]]
    for e in events:
        kind = e["args"].get("kind")
        column = {"READ": 1, "WRITE": 2, "UPDATE": 0}.get(kind, 0 if e in computes else None)
        if column is not None:
            out[e["args"]["stage"] >= turn][column] += e["args"]["bytes"] if column else e["dur"] * 1e-6
    return out


def fio(*job):
    out = subprocess.run(["fio", "--name=peer", f"--filename={path}", "--bs=2m", "--iodepth=32", "--ioengine=io_uring", "--direct=1", "--mem=malloc", "--iomem_align=2m", f"--size={a.gib}g", "--thread", "--output-format=json", *job], env=os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, check=True, capture_output=True, text=True).stdout
    job = json.loads(out)["jobs"][0]
    return job["read"]["bw_bytes"] + job["write"]["bw_bytes"]


def mixed(read, written):
    return fio("--rw=rw", f"--rwmixread={round(100 * read / (read + written))}", "--time_based", "--runtime=2")


def compare(number):
    _, memory = train()
    step_s, budgeted = train("--device-memory", a.device_memory, "--host-memory", a.host_memory, "--nvme", a.directory)
    floor, text, io, compute = 0, [], 0, 0
    for name, (c, _, _), (_, read, written) in zip(("forward", "backward"), phases(memory), phases(budgeted)):
        rate = mixed(read, written)
        moved_s = (read + written) / rate
        floor += max(c, moved_s)
        io, compute = io + moved_s, compute + c
        text.append(f"{name} computes {c:.3f} s and moves {read / 1e6:.0f} + {written / 1e6:.0f} MB, at fio's {rate / 1e9:.2f} GB/s {moved_s:.3f} s")
    print(f"round {number}: {'; '.join(text)}; IO/C {io / compute:.2f}; step {step_s:.3f} s, floor {floor:.3f} s, ratio {step_s / floor:.2f}", flush=True)
    return step_s / floor


try:
    fio("--rw=write")
    ratios = [compare(i + 1) for i in range(a.rounds)]
    print(f"median step / floor {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
finally:
    if os.path.exists(path):
        os.remove(path)
