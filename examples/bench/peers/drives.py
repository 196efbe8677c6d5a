#!/usr/bin/env python3
"""Several drives as one extent, against the sum of each alone: loop devices with a file system each, throttled by
the block layer (cgroup v1 blkio.throttle or cgroup v2 io.max) to different rates, in turns within one process.

  examples/bench/peers/drives.py EXTENT_RATE DIR [--rates 200,100] [--mib 80] [--seconds 0.8] [--rounds 3]

DIR is on a drive faster than the sum. Needs root. Exits 77 where loop devices or a throttle cannot be had, 1 where
the median ratio of reading or writing is below 0.90.
"""
import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("extent_rate")
parser.add_argument("directory")
parser.add_argument("--rates", default="200,100", help="MB/s of each drive, reading and writing")
parser.add_argument("--mib", type=int, default=80)
parser.add_argument("--seconds", type=float, default=0.8)
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()
rates = [int(rate) * 10**6 for rate in args.rates.split(",")]


def skip(cause):
    print(f"SKIPPED: drives: {cause}")
    sys.exit(77)


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        skip(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def drive(folder, index):
    """A file system on a loop device over a file; yields its mount point and device number."""
    image, place = f"{folder}/drive{index}.img", f"{folder}/drive{index}"
    with open(image, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, (3 * args.mib + 64) << 20)
    os.mkdir(place)
    device = call("losetup", "--find", "--show", "--direct-io=on", image)
    try:
        call("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        call("mount", "-o", "noatime", device, place)
        try:
            with open(f"/sys/class/block/{os.path.basename(device)}/dev") as number:
                yield place, number.read().strip()
        finally:
            subprocess.run(["umount", place], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@contextlib.contextmanager
def throttle(limits):
    """A control group in which each device number has its bytes per second; yields its process list."""
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        base, lines = "/sys/fs/cgroup", [("io.max", f"{dev} rbps={bps} wbps={bps}") for dev, bps in limits]
        with contextlib.suppress(OSError), open(f"{base}/cgroup.subtree_control", "w") as file:
            file.write("+io")
    else:
        base = "/sys/fs/cgroup/blkio"
        lines = [(f"blkio.throttle.{way}_bps_device", f"{dev} {bps}") for dev, bps in limits for way in ("read", "write")]
    try:
        group = tempfile.mkdtemp(prefix="weir-drives-", dir=base)
    except OSError as cause:
        skip(f"no control group can be made: {cause}")
    try:
        for name, line in lines:
            if not os.path.exists(f"{group}/{name}"):
                skip(f"no {name} here")
            with open(f"{group}/{name}", "w") as file:
                file.write(line)
        yield f"{group}/cgroup.procs"
    finally:
        os.rmdir(group)


def measured(places, group):
    def enter():
        with open(group, "w") as file:
            file.write(str(os.getpid()))

    command = [args.extent_rate, str(args.mib), str(args.seconds), str(args.rounds), *places]
    done = subprocess.run(command, preexec_fn=enter, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit(done.returncode)
    return re.findall(r"^(read|write) .* ratio ([0-9.]+)$", done.stdout, re.M)


if os.geteuid() != 0:
    skip("needs root")
with tempfile.TemporaryDirectory(prefix="weir-drives-", dir=args.directory) as folder, contextlib.ExitStack() as stack:
    drives = [stack.enter_context(drive(folder, index)) for index in range(len(rates))]
    group = stack.enter_context(throttle([(number, bps) for (_, number), bps in zip(drives, rates)]))
    found = measured([place for place, _ in drives], group)
for kind in ("read", "write"):
    ratios = [float(ratio) for what, ratio in found if what == kind]
    print(f"{kind:5} {len(rates)} drives of {args.rates} MB/s: {statistics.median(ratios):.3f} of the sum ({min(ratios):.2f} to {max(ratios):.2f})")
sys.exit(any(statistics.median(float(r) for what, r in found if what == kind) < 0.90 for kind in ("read", "write")))
