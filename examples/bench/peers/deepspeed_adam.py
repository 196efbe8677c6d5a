#!/usr/bin/env python3
"""
Host Adam against DeepSpeed's CPU Adam: nanoseconds a parameter, fp32, the same threads, in turns.

    deepspeed_adam.py ADAM_RATE --parameters 67108864 --threads 2 --rounds 5

Needs torch and deepspeed, which builds its kernel at the first use; where they are missing it says so
and exits with 77.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import time

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("adam_rate")
p.add_argument("--parameters", type=int, default=1 << 26)
p.add_argument("--threads", type=int, default=os.cpu_count())
p.add_argument("--rounds", type=int, default=5)
a = p.parse_args()
os.environ["OMP_NUM_THREADS"] = str(a.threads)
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
try:
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam
except ImportError as error:
    print(f"skipped: {error}; pip install torch deepspeed")
    sys.exit(77)

torch.set_num_threads(a.threads)
weight = torch.nn.Parameter(torch.zeros(a.parameters))
weight.grad = torch.full((a.parameters,), 1e-3)
optimizer = DeepSpeedCPUAdam([weight], lr=1e-3, weight_decay=0.1)
optimizer.step()  # makes the moments


def theirs():
    times = []
    for _ in range(3):
        began = time.time()
        optimizer.step()
        times.append(time.time() - began)
    return min(times) * 1e9 / a.parameters


def ours():
    out = subprocess.run([a.adam_rate, "fp32", str(a.parameters), str(a.threads), "3"], check=True, capture_output=True, text=True).stdout
    return min(float(x) for x in re.findall(r"([\d.]+) ns a parameter", out))


ratios = []
for i in range(a.rounds):
    weir, deepspeed = ours(), theirs()
    ratios.append(deepspeed / weir)
    print(f"round {i + 1}: weir {weir:.3f}, DeepSpeed {deepspeed:.3f} ns a parameter, ratio {deepspeed / weir:.2f}", flush=True)
print(f"median ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
