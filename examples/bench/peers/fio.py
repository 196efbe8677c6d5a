#!/usr/bin/env python3
"""weir's I/O engine, by weir-bench, against fio's io_uring: O_DIRECT, same written file, same block and depth, 2 MiB-aligned
huge-page buffers on both sides, taking turns; ratios of neighbours, a first turn thrown away. weir's clock ends after
fdatasync, fio's before.

  examples/bench/peers/fio.py WEIR_BENCH DIR [--rounds 9] [--seconds 0.7] [--gib 4] [--blocks 1,8] [--depths 8,32]
"""
import argparse
import json
import os
import subprocess

import weir_io

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
weir_io.arguments(parser)
args = parser.parse_args()
path = weir_io.scratch(args.directory)


def fio(kind, mib, depth):
    out = subprocess.run(
        ["fio", "--name=peer", f"--filename={path}", f"--rw={kind}", f"--bs={mib}m", f"--iodepth={depth}", "--ioengine=io_uring",
         "--direct=1", "--mem=malloc", "--iomem_align=2m", f"--size={args.gib}g", "--time_based", f"--runtime={int(args.seconds * 1000)}ms", "--thread",
         "--gtod_reduce=1", "--scramble_buffers=0", "--fallocate=none", "--output-format=json"],
        env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, capture_output=True, text=True, check=True).stdout
    job = json.loads(out[out.index("{"):])["jobs"][0]
    part = job[kind]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * part["runtime"] / 1000
    return part["bw_bytes"], cpu / (part["io_bytes"] * 1e-9)


try:
    weir_io.fill(path, args.gib)
    for title, kind, mib, depth in weir_io.points(args):
        ours = {f"weir {e}": lambda e=e: weir_io.weir(args.weir_bench, path, e, kind, mib, depth, args.seconds) for e in args.engines.split(",")}
        weir_io.compare(title, ours, {"fio": lambda: fio(kind, mib, depth)}, args.rounds)
finally:
    if os.path.exists(path):
        os.unlink(path)
