#!/usr/bin/env python3
"""
A step of weir-train on the real drive against what fio moves in the same mix of reads and writes.

    fio_step.py WEIR_TRAIN CONFIG DIR --device-memory 96MiB --host-memory 96MiB --rounds 3

Each round trains in memory (C is the median step), trains with the budgets (bytes and seconds of the
median step), and lets fio move a file that is written in full: io_uring, O_DIRECT, 2 MiB blocks, 32
of them in flight, huge-page buffers, the same share of reads. Floor: the larger of C and the bytes
of a step at fio's rate; the ramps of DESIGN's floor are left out, which favours nobody but the floor.
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
    with tempfile.TemporaryDirectory() as work:
        command = [a.weir_train, "--model", a.config, "--data", a.data, "--seq-len", a.length, "--batch", a.batch, "--steps", a.steps, "--eval-batches", 1, "--log", f"{work}/log", *budgets]
        subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        steps = [json.loads(line) for line in open(f"{work}/log")][2:]
    return [statistics.median(s[k] for s in steps) for k in ("step_s", "nvme_read_bytes", "nvme_written_bytes")]


def fio(*job):
    out = subprocess.run(["fio", "--name=peer", f"--filename={path}", "--bs=2m", "--iodepth=32", "--ioengine=io_uring", "--direct=1", "--mem=malloc", "--iomem_align=2m", f"--size={a.gib}g", "--thread", "--output-format=json", *job], env=os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, check=True, capture_output=True, text=True).stdout
    job = json.loads(out)["jobs"][0]
    return job["read"]["bw_bytes"] + job["write"]["bw_bytes"]


try:
    fio("--rw=write")
    ratios = []
    for i in range(a.rounds):
        compute_s, _, _ = train()
        step_s, read, written = train("--device-memory", a.device_memory, "--host-memory", a.host_memory, "--nvme", a.directory)
        rate = fio("--rw=rw", f"--rwmixread={round(100 * read / (read + written))}", "--time_based", "--runtime=3")
        floor = max(compute_s, (read + written) / rate)
        ratios.append(step_s / floor)
        print(f"round {i + 1}: step {step_s:.2f} s, in memory {compute_s:.2f} s, {read / 1e6:.0f} + {written / 1e6:.0f} MB at fio's {rate / 1e9:.2f} GB/s: {(read + written) / rate:.2f} s, IO/C {(read + written) / rate / compute_s:.2f}, step / floor {step_s / floor:.2f}", flush=True)
    print(f"median step / floor {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
finally:
    if os.path.exists(path):
        os.remove(path)
