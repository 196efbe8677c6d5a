#!/usr/bin/env python3
"""
Host Adam against DeepSpeed's CPU Adam: nanoseconds a parameter, the same threads, update by update in
turns, both processes alive.

    deepspeed_adam.py WEIR_BENCH --dtype fp32 --parameters 67108864 --threads 2 --pairs 5 --passes 20

Each pair is a new process on either side, since what pages a process gets counts as well. fp32: 28
bytes a parameter on both sides. bf16: DeepSpeed updates its fp32 master and copies it to the bf16
weight, as in its offloaded training (34 bytes); weir keeps the same master as weight and residual (28).
Needs torch and deepspeed, which builds its kernel at the first use; where they are missing it says so
and exits with 77.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("weir_bench", nargs="?")
p.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
p.add_argument("--parameters", type=int, default=1 << 26)
p.add_argument("--threads", type=int, default=os.cpu_count())
p.add_argument("--pairs", type=int, default=5)
p.add_argument("--passes", type=int, default=20)
p.add_argument("--serve", action="store_true", help="be the other side: an update for each line on stdin")
a = p.parse_args()


def serve():
    try:
        import torch
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError as error:
        sys.exit(f"{error}; pip install torch deepspeed")
    torch.set_num_threads(a.threads)
    weight = torch.nn.Parameter(torch.zeros(a.parameters))
    weight.grad = torch.full((a.parameters,), 1e-3)
    half = torch.zeros(a.parameters, dtype=torch.bfloat16) if a.dtype == "bf16" else None
    optimizer = DeepSpeedCPUAdam([weight], lr=1e-3, weight_decay=0.1)
    optimizer.step()  # makes the moments
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        optimizer.step()
        if half is not None:
            half.copy_(weight.data)
        print(f"{(time.perf_counter() - began) * 1e9 / a.parameters:.4f}", flush=True)


def start(*command):
    environment = os.environ | {"OMP_NUM_THREADS": str(a.threads), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def turn(process):
    time.sleep(0.03)  # until the other side's threads no longer spin
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def pair():
    ours = start(a.weir_bench, "adam", "--turns", "--dtype", a.dtype, "--parameters", a.parameters, "--threads", a.threads)
    theirs = start(sys.executable, __file__, "--serve", "--dtype", a.dtype, "--parameters", a.parameters, "--threads", a.threads)
    for line in theirs.stdout:  # DeepSpeed speaks first
        if line == "ready\n":
            break
    else:
        ours.stdin.close()
        print("skipped: DeepSpeed does not start")
        sys.exit(77)
    times = [(turn(ours), turn(theirs)) for _ in range(a.passes + 1)][1:]
    for process in ours, theirs:
        process.stdin.close()
        process.wait()
    return times


if a.serve:
    serve()
    sys.exit(0)
ratios = []
for i in range(a.pairs):
    times = pair()
    ratios += [theirs / ours for ours, theirs in times]
    weir, deepspeed = (statistics.median(t) for t in zip(*times))
    print(f"pair {i + 1}: weir {weir:.3f}, DeepSpeed {deepspeed:.3f} ns a parameter, ratio {statistics.median(t / o for o, t in times):.2f}", flush=True)
ratios.sort()
# The median's interval of confidence: it lies between these order statistics in 95 of 100 such runs.
n, half = len(ratios), 0.98 * len(ratios) ** 0.5
low, high = ratios[max(0, int(n / 2 - half))], ratios[min(n - 1, int(n / 2 + half))]
print(f"{a.dtype}: median of DeepSpeed's time / weir's {statistics.median(ratios):.3f}, 95 % interval {low:.3f} to {high:.3f}, all {ratios[0]:.2f} to {ratios[-1]:.2f}, {n} turns")
