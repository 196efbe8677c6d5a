#!/usr/bin/env python3
"""
Host Adam against DeepSpeed's CPU Adam on the same memory: fp32, 28 bytes a parameter on both sides,
update by update in turns, in one process.

    adam_pages.py BUILD_DIRECTORY --parameters 67108864 --threads 2 --processes 5 --passes 20

What pages a process gets changes the rate of either side by up to a factor of two, more than anything
else; so both get the same ones, and each of several processes gets its own. Needs torch, deepspeed and
a C compiler; where they are missing it says so and exits with 77.
"""
import argparse
import ctypes
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("build")
p.add_argument("--parameters", type=int, default=1 << 26, help="a multiple of 2^20")
p.add_argument("--threads", type=int, default=os.cpu_count())
p.add_argument("--processes", type=int, default=5)
p.add_argument("--passes", type=int, default=20)
p.add_argument("--library", help="measure once with it")
a = p.parse_args()
here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(os.path.dirname(here)))


def library_make(path):
    needed = subprocess.run(["ldd", f"{a.build}/weir-bench"], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"=> (\S*lib(?:uring|numa|dnnl|jansson|xxhash|gomp)\S*)", needed)
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", f"-I{root}", f"-I{root}/include", f"{here}/adam_shim.c", f"{a.build}/libweir_bench_parts.a", f"-Wl,--whole-archive,{a.build}/libweir.a,--no-whole-archive", *needed, "-lm", "-ldl", "-lpthread", "-o", path], check=True)


def measure():
    try:
        import torch
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError as error:
        print(f"skipped: {error}; pip install torch deepspeed")
        sys.exit(77)
    n = a.parameters
    torch.set_num_threads(a.threads)
    library = ctypes.CDLL(a.library)
    library.adam_shim_step.restype = ctypes.c_double
    library.adam_shim_step.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint64]
    if library.adam_shim_open(a.threads) != 0:
        sys.exit("weir's kernels do not open")
    memory = torch.zeros(4 * n)  # weight, gradient, exp_avg and exp_avg_sq
    memory[n : 2 * n] = 1e-3
    weight = torch.nn.Parameter(memory[:n])
    weight.grad = memory[n : 2 * n]
    optimizer = DeepSpeedCPUAdam([weight], lr=1e-3, weight_decay=0.1)
    optimizer.step()  # makes the moments
    optimizer.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg_sq"] = memory[2 * n : 3 * n], memory[3 * n :]
    at = memory.data_ptr()
    for turn in range(a.passes + 2):
        time.sleep(0.03)  # until the other side's threads no longer spin
        began = time.perf_counter()
        optimizer.step()
        theirs = (time.perf_counter() - began) * 1e9
        time.sleep(0.03)
        ours = library.adam_shim_step(at + 8 * n, at, at + 4 * n, n >> 20)
        if turn > 1:
            print(f"{ours / n:.4f} {theirs / n:.4f}", flush=True)


def main():
    ratios = []
    with tempfile.TemporaryDirectory() as work:
        library = f"{work}/libadam.so"
        library_make(library)
        for i in range(a.processes):
            environment = os.environ | {"OMP_NUM_THREADS": str(a.threads), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
            done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--library", library], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if done.returncode != 0:
                print(done.stdout, end="")
                sys.exit(done.returncode)
            turns = [tuple(map(float, m)) for m in re.findall(r"^([\d.]+) ([\d.]+)$", done.stdout, re.M)]
            ratios.append(statistics.median(theirs / ours for ours, theirs in turns))
            weir, deepspeed = (statistics.median(t) for t in zip(*turns))
            print(f"process {i + 1}: weir {weir:.3f}, DeepSpeed {deepspeed:.3f} ns a parameter, DeepSpeed's time / weir's {ratios[-1]:.2f}", flush=True)
    print(f"median of {len(ratios)} processes {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


measure() if a.library else main()
