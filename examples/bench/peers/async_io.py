#!/usr/bin/env python3
"""weir's I/O engine, by weir-bench, against DeepSpeed's async_io (libaio), and TensorNVMe's where it is installed: same
written file, same block and depth, one thread, O_DIRECT, in turns. DeepSpeed uses its own pinned tensor, as it comes and
in huge pages (its malloc with glibc.malloc.hugetlb=1), which is what weir's memory is. weir's clock ends after fdatasync,
theirs before.

  examples/bench/peers/async_io.py WEIR_BENCH DIR [--python PYTHON] [--rounds 9] [--seconds 0.7] ...

PYTHON has torch and deepspeed, which builds async_io at its first use (libaio-dev). What is missing is left out by name; with
nothing left it exits with 77.
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
parser.add_argument("--serve", help=argparse.SUPPRESS)
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


def tensornvme_mover():
    import torch
    from tensornvme._C import Offloader
    offloaders, tensor = {}, torch.ones(BUFFER, dtype=torch.uint8)

    def move(kind, mib, depth, offset):
        offloader = offloaders.setdefault((mib, depth), Offloader(path, depth, "uring"))
        call = offloader.sync_read if kind == "read" else offloader.sync_write
        call(tensor, str(offset))

    return move


def serve(name):
    """A line on stdin is a turn: kind, MiB, depth; answers with bytes a second and CPU seconds per GB."""
    try:
        move = {"deepspeed": deepspeed_mover, "tensornvme": tensornvme_mover}[name.split()[0]]()
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
    def __init__(self, name):
        environment = os.environ | ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if name.endswith("huge") else {})
        self.process = subprocess.Popen([args.python, __file__, args.weir_bench, args.directory, "--seconds", str(args.seconds), "--serve", name],
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
    serve(args.serve)
    sys.exit(0)
peers = {}
try:
    weir_io.fill(path, args.gib)
    for name in ("deepspeed", "deepspeed huge", "tensornvme huge"):
        peer = Peer(name)
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
