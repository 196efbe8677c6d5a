#!/usr/bin/env python3
"""weir's I/O engine, by weir-bench, against DeepSpeed's async_io (libaio): same written file, same block and depth, one
thread, O_DIRECT, in turns. DeepSpeed uses its own pinned tensor, as it comes and
in huge pages (its malloc with glibc.malloc.hugetlb=1), which is what weir's memory is. weir's clock ends after fdatasync,
theirs before.

  examples/bench/peers/async_io.py WEIR_BENCH DIR [--python PYTHON] [--rounds 9] [--seconds 0.7] ...

PYTHON has torch and deepspeed, which builds async_io at its first use (libaio-dev). Where they are missing it says so and exits
with 77. TensorNVMe is not compared: it opens its file without O_DIRECT, so its figures are the page cache's.
"""
import argparse
import os
import resource
import subprocess
import sys
import time

import weir_io

BUFFER = 512 << 20 # of a call

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
weir_io.arguments(parser)
parser.add_argument("--python", default=sys.executable)
parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
args = parser.parse_args()
path = weir_io.scratch(args.directory)


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def deepspeed_mover():
    """A function that moves one buffer at an offset."""
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder
    aio, handles = AsyncIOBuilder().load(verbose=False), {}
    tensor = aio.aio_handle().new_cpu_locked_tensor(BUFFER, torch.ones(1, dtype=torch.uint8))

    def move(kind, mib, depth, offset):
        handle = handles.setdefault((mib, depth), aio.aio_handle(mib << 20, depth, False, True, 1))
        call = handle.sync_pread if kind == "read" else handle.sync_pwrite
        assert call(tensor, path, offset) == 1

    return move


def serve():
    """A line on stdin is a turn: kind, MiB, depth; answers with bytes a second and CPU seconds per GB."""
    try:
        move = deepspeed_mover()
    except ImportError as error:
        print("missing", error, flush=True)
        return
    print("ready", flush=True)
    file_bytes, offset = os.path.getsize(path), 0
    for line in sys.stdin:
        kind, mib, depth = line.split()
        began, cpu, moved = time.perf_counter(), cpu_seconds(), 0
        while time.perf_counter() < began + args.seconds:
            move(kind, int(mib), int(depth), offset)
            offset = (offset + BUFFER) % file_bytes
            moved += BUFFER
        print("turn", moved / (time.perf_counter() - began), (cpu_seconds() - cpu) / (moved * 1e-9), flush=True)


class Peer:
    def __init__(self, huge):
        environment = os.environ | ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if huge else {})
        self.process = subprocess.Popen([args.python, __file__, args.weir_bench, args.directory, "--seconds", str(args.seconds), "--serve"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        self.error = "it does not start"
        for line in self.process.stdout: # libraries speak first
            if line == "ready\n":
                self.error = None
                break
            if line.startswith("missing"):
                self.error = line[8:].strip()

    def turn(self, kind, mib, depth):
        self.process.stdin.write(f"{kind} {mib} {depth}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("turn "):
                return tuple(map(float, line.split()[1:]))
        sys.exit("the other side ended")


if args.serve:
    serve()
    sys.exit(0)
peers = {}
try:
    weir_io.fill(path, args.gib)
    for name, huge in (("deepspeed", False), ("deepspeed huge", True)):
        peer = Peer(huge)
        if peer.error:
            print(f"left out: {name}: not installed: {peer.error}", flush=True)
        else:
            peers[name] = peer
    for title, kind, mib, depth in weir_io.points(args) if peers else []:
        ours = {f"weir {e}": lambda e=e: weir_io.weir(args.weir_bench, path, e, kind, mib, depth, args.seconds) for e in args.engines.split(",")}
        weir_io.compare(title, ours, {name: lambda p=p: p.turn(kind, mib, depth) for name, p in peers.items()}, args.rounds)
finally:
    for peer in peers.values():
        peer.process.stdin.close()
        peer.process.wait()
    if os.path.exists(path):
        os.unlink(path)
sys.exit(0 if peers else 77)
