#!/usr/bin/env python3
"""weir's I/O engine against fio's io_uring: O_DIRECT, same written file, same block and depth, 2 MiB-aligned
huge-page buffers on both sides, taking turns; ratios of neighbours, a first round thrown away.

  examples/bench/peers/fio.py IO_RATE DIR [--rounds 9] [--seconds 0.7] [--gib 4] [--blocks 1,8] [--depths 8,32]
"""
import argparse
import json
import os
import statistics
import subprocess

parser = argparse.ArgumentParser()
parser.add_argument("io_rate")
parser.add_argument("directory")
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--seconds", type=float, default=0.7)
parser.add_argument("--gib", type=int, default=4)
parser.add_argument("--blocks", default="1,8", help="MiB")
parser.add_argument("--depths", default="8,32")
parser.add_argument("--sides", default="uring registered", help="comma-separated: engine and registered or plain")
args = parser.parse_args()
path = os.path.join(args.directory, "weir-fio.bin")


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


def weir(side, kind, mib, depth):
    engine, memory = side.split()
    out = subprocess.run([args.io_rate, path, engine, kind, str(mib << 20), str(depth), str(args.seconds), memory],
                         capture_output=True, text=True, check=True).stdout.split()
    assert out[2] == memory or engine == "threads", f"asked for {memory} memory, got {out[2]}"
    return float(out[0]), float(out[1])


def compare(kind, mib, depth):
    sides = args.sides.split(",")
    rates = {side: [] for side in sides + ["fio"]}
    for turn in range(args.rounds + 1):
        order = sides + ["fio"]
        for side in order if turn % 2 == 0 else order[::-1]:
            rate = fio(kind, mib, depth) if side == "fio" else weir(side, kind, mib, depth)
            if turn > 0:
                rates[side].append(rate)
    for side in sides:
        ratios = [w[0] / f[0] for w, f in zip(rates[side], rates["fio"])]
        gbs, cpu = (statistics.median(r[i] for r in rates[side]) for i in (0, 1))
        peer_gbs, peer_cpu = (statistics.median(r[i] for r in rates["fio"]) for i in (0, 1))
        print(f"{kind:5} {mib} MiB x {depth:2}  {side:16} {statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})   {gbs * 1e-9:.2f} against {peer_gbs * 1e-9:.2f} GB/s   "
              f"CPU {cpu:.3f} against {peer_cpu:.3f} s/GB", flush=True)


try:
    subprocess.run(["fio", "--name=fill", f"--filename={path}", "--rw=write", "--bs=1m", "--iodepth=16", "--ioengine=io_uring",
                    "--direct=1", f"--size={args.gib}g", "--fallocate=none"], stdout=subprocess.DEVNULL, check=True)
    for kind in ("read", "write"):
        for mib in map(int, args.blocks.split(",")):
            for depth in map(int, args.depths.split(",")):
                compare(kind, mib, depth)
finally:
    if os.path.exists(path):
        os.unlink(path)
