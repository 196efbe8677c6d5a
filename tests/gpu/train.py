#!/usr/bin/env python3
"""weir-train on a GPU: whether budgets change a bit, and how fast models of 1.1B and 8B parameters
train in memory, with their state on the host, and with the rest on NVMe.

  tests/gpu/train.py WEIR_TRAIN WITH_GPU WORK TABLE --seconds S [--simulated]

Adds lines to TABLE (part, what, result, by tabs). A case that cannot fit here, or that the seconds
left are too few for, is left out by name. Exit status 1: something failed."""
import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB, GIB = 1 << 20, 1 << 30
NVME_SPARE = 4 * GIB  # left free on the disk
STEPS = 4             # the first two are not like the others: nothing is pending, caches are cold
# Parameters a second of random weights, drawn on many cores and loaded by one, and seconds for the rest.
START_RATE, START_S = 120e6, 15
# Bytes a second of host memory that is touched, pinned and cleared, and of a drive. What is at home
# there is written once with zeros, read and written twice by the load, once by a step that updates.
PIN_RATE, NVME_RATE, NVME_PASSES = 3e9, 1.5e9, 1 + 4 + 2 * (STEPS - 1)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("with_gpu")
parser.add_argument("work")
parser.add_argument("table")
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--simulated", action="store_true")
a = parser.parse_args()
until = time.monotonic() + a.seconds
failed = False


def row(what, result):
    print(f"{what}: {result}", flush=True)
    with open(a.table, "a") as table:
        table.write(f"train\t{what}\t{result}\n")


def fail(what, text):
    global failed
    failed = True
    row(what, f"FAILED: {text}")


def seconds_left():
    return until - time.monotonic()


def text_make(count):
    """Words, so that there is something to learn."""
    r = random.Random(3)
    words = ["".join(r.choice("etaoinshrdlu") for _ in range(r.randint(2, 8))) for _ in range(300)]
    path = f"{a.work}/text.txt"
    with open(path, "w") as file:
        while file.tell() < count:
            file.write(" ".join(r.choice(words) for _ in range(12)) + "\n")
    return path


def train(*arguments):
    """Exit status and output; ended when the time is over (None)."""
    command = [a.program, "--device", "cuda", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        out = process.communicate(timeout=max(seconds_left(), 1))[0]
        return process.returncode, out
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return None, process.communicate()[0]


def reason(out):
    lines = [line for line in out.splitlines() if line.startswith("weir-train: ")]
    return lines[-1][len("weir-train: "):] if lines else (out.strip().splitlines() or ["no output"])[-1]


def digest(directory):
    whole = hashlib.sha256()
    for name in ("model.safetensors", "optimizer.safetensors"):
        with open(f"{directory}/{name}", "rb") as file:
            for block in iter(lambda: file.read(1 << 24), b""):
                whole.update(block)
    return whole.hexdigest()[:16]


# ---- the same bits


def same_bits():
    """A small model under three sets of budgets: model and optimizer files are the same."""
    if a.simulated:
        model, shape, budgets = small_config(), ["--seq-len", 24, "--batch", 2, "--micro-batch", 1], (MIB, MIB)
    else:
        model, budgets = f"{ROOT}/examples/train/configs/llama-84m.json", (256 * MIB, 256 * MIB)
        shape = ["--seq-len", 512, "--batch", 8, "--micro-batch", 2]
    common = ["--model", model, "--data", text_make(200000), *shape, "--steps", 3, "--eval-batches", 1]
    nvme = nvme_directory(2 * GIB)
    cases = {"in memory": lambda grow: [],
             "state on the host": lambda grow: ["--device-memory", int(budgets[0] * grow)]}
    if nvme:
        cases["state on NVMe"] = lambda grow: ["--device-memory", int(budgets[0] * grow), "--host-memory", int(budgets[1] * grow), "--nvme", nvme]
    digests = {}
    for name, flags in cases.items():
        digests[name] = budgeted(name, common, flags)
    if nvme:
        os.rmdir(nvme)
    if None in digests.values():
        return
    text = ", ".join(f"{name} {value}" for name, value in digests.items())
    if len(set(digests.values())) == 1 and len(digests) > 1:
        row("same bits", f"{len(digests)} sets of budgets, sha256 {digests['in memory']}")
    else:
        fail("same bits", text)


def budgeted(name, common, flags):
    """The digest, with the smallest of some growing budgets that fits."""
    out = ""
    for grow in (1, 1.5, 2.25, 3.4, 5, 7.6):
        directory = f"{a.work}/bits"
        shutil.rmtree(directory, ignore_errors=True)
        log = f"{a.work}/bits.jsonl"
        status, out = train(*common, *flags(grow), "--out", directory, "--log", log)
        if status == 0:
            read = sum(json.loads(line)["nvme_read_bytes"] for line in open(log))
            if (read > 0) != ("--nvme" in flags(1)):
                return fail(f"same bits, {name}", f"{read} bytes were read from NVMe")
            if flags(1):
                print(f"  {name}: {' '.join(map(str, flags(grow)))}", flush=True)
            value = digest(f"{directory}/step-00000003")
            shutil.rmtree(directory)
            return value
        if status is None or "--device-memory" not in out or not flags(1):
            break
    print(out)
    fail(f"same bits, {name}", "out of time" if seconds_left() <= 0 else reason(out))
    return None


def small_config():
    config = json.load(open(f"{ROOT}/examples/train/configs/llama-5m.json"))
    config |= {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 256}
    path = f"{a.work}/small.json"
    json.dump(config, open(path, "w"))
    return path


# ---- speed


def parameters(config):
    c = json.load(open(config))
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    attention = 2 * c["hidden_size"] * head_dim * (c["num_attention_heads"] + c["num_key_value_heads"])
    layer = attention + 3 * c["hidden_size"] * c["intermediate_size"] + 2 * c["hidden_size"]
    ends = (1 if c["tie_word_embeddings"] else 2) * c["vocab_size"] * c["hidden_size"]
    return c["num_hidden_layers"] * layer + ends + c["hidden_size"]


class Missing(Exception):
    """What a case needs and this machine or program does not give; the text is for the table."""


def free_device():
    """As CUDA says, of the device that weir-train uses."""
    done = subprocess.run([a.with_gpu, "--facts"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.search(r"^free_bytes (\d+)$", done.stdout, re.M)
    if done.returncode or not found:
        raise Missing(f"{os.path.basename(a.with_gpu)} --facts tells no free memory: {(done.stdout.strip().splitlines() or ['no output'])[-1]}")
    return int(found[1])


def free_host():
    """Of this machine, or of the container, which /proc/meminfo does not know."""
    free = int(re.search(r"MemAvailable:\s+(\d+)", open("/proc/meminfo").read())[1]) * 1024
    try:
        most, used = (open(f"/sys/fs/cgroup/memory.{name}").read().strip() for name in ("max", "current"))
        return free if most == "max" else min(free, int(most) - int(used))
    except OSError:
        return free


def nvme_directory(need, host_bytes=0):
    """On the disk of WORK if it has room, else in memory beside host_bytes, said aloud; None: neither has."""
    for parent in (a.work, "/dev/shm"):
        if parent == "/dev/shm" and need + host_bytes > 0.85 * free_host():
            continue
        if os.path.isdir(parent) and shutil.disk_usage(parent).free >= need + NVME_SPARE:
            path = f"{parent}/weir-gpu-nvme-{os.getpid()}"
            os.makedirs(path, exist_ok=True)
            if parent == "/dev/shm":
                print("NOT NVMe: /dev/shm, as the disk has no room; this is memory", flush=True)
            return path
    return None


def figures(out, log):
    """Of the steps after the second; predicted and floor are the plan's."""
    steps = [json.loads(line) for line in open(log)]
    steady = steps[2:] or steps[-1:]
    step_s, tok_s, stall_s = (statistics.median(s[key] for s in steady) for key in ("step_s", "tok_s", "stall_s"))
    found = re.search(r"predicted: ([\d.]+) s a step, floor of the schedule ([\d.]+) s \(compute ([\d.]+) s, NVMe ([\d.]+) s\)", out)
    if not found:
        raise Missing("weir-train has said nothing of the predicted step")
    predicted, floor, compute, io = map(float, found.groups())
    last = steps[-1]
    return (f"{tok_s:.0f} tokens/s, step {step_s:.3f} s, predicted {predicted:.3f}, floor {floor:.3f} (compute {compute:.3f}, NVMe {io:.3f}), "
            f"step/floor {step_s / floor if floor > 0 else 0:.2f}, stalled {stall_s:.3f} s, {last['bound']}-bound, device {last['peak_device_bytes'] / GIB:.2f} GiB, "
            f"host {last['peak_host_bytes'] / GIB:.2f} GiB, NVMe {last['nvme_read_bytes'] / GIB:.2f} + {last['nvme_written_bytes'] / GIB:.2f} GiB a step")


def speed(name, config, shape, device_bytes, host_bytes, nvme_bytes, needed_s):
    """One case. Budgets None: no bound."""
    if seconds_left() < needed_s:
        return row(name, f"left out: {max(seconds_left(), 0):.0f} s are left, it takes about {needed_s:.0f}; run.sh --limit gives more")
    flags = ["--device-memory", int(device_bytes)] if device_bytes else []
    flags += ["--host-memory", int(host_bytes)] if host_bytes else []
    nvme = None
    if nvme_bytes:
        nvme = nvme_directory(nvme_bytes, host_bytes)
        if not nvme:
            return row(name, f"left out: no file system has {nvme_bytes / GIB:.0f} GiB")
        flags += ["--nvme", nvme]
    log = f"{a.work}/train.jsonl"
    print(f"{name}: {' '.join(map(str, flags)) or 'no budgets'}", flush=True)
    status, out = train("--model", config, "--data", f"{a.work}/text.txt", *shape, "--steps", STEPS, "--eval-batches", 1, "--log", log, *flags)
    print(out, flush=True)
    if status == 0:
        row(name, figures(out, log))
    elif status is None:
        fail(name, "out of time")
    else:
        fail(name, reason(out))
    if nvme:
        shutil.rmtree(nvme)


def speeds_of(name, config, shape):
    """16 bytes a parameter: all on the device; 45 % of them there; 30 % there and 35 % in host
    memory. A share of what the machine has is the most that is asked for."""
    count = parameters(config)
    whole = 16 * count
    device, host = free_device(), free_host()
    needed_s = START_S + count / START_RATE
    if whole + 8 * GIB < 0.95 * device:
        speed(f"{name}, in memory", config, shape, 0.95 * device, 0.5 * host, 0, needed_s)
    else:
        row(f"{name}, in memory", f"left out: needs {(whole + 8 * GIB) / GIB:.0f} GiB of device memory")
    slots = 4 * GIB  # activations and what a step moves through
    device_share = min(0.45 * whole + slots, 0.9 * device)
    rest = 1.1 * (whole - device_share + slots)
    if rest < 0.85 * host:
        speed(f"{name}, state on the host", config, shape, device_share, rest, 0, needed_s + rest / PIN_RATE)
    else:
        row(f"{name}, state on the host", f"left out: needs {rest / GIB:.0f} GiB of host memory")
    device_share, host_share = min(0.3 * whole + slots, 0.9 * device), min(0.35 * whole, 0.6 * host)
    nvme = 1.15 * (whole - device_share + slots - host_share)
    speed(f"{name}, host and NVMe", config, shape, device_share, host_share, nvme, needed_s + host_share / PIN_RATE + NVME_PASSES * nvme / NVME_RATE)


def attempt(what, work, *arguments):
    """A case that ends early fails by name, and the next one has its turn."""
    try:
        work(*arguments)
    except (Missing, OSError, ValueError, KeyError) as problem:
        fail(what, str(problem) if isinstance(problem, Missing) else f"{type(problem).__name__}: {problem}")


def small_speeds():
    print(f"{free_device() / GIB:.1f} GiB of device memory are free")
    speed("small", small_config(), ["--seq-len", 24, "--batch", 2], None, None, 0, 1)
    speed("small, host and NVMe", small_config(), ["--seq-len", 24, "--batch", 2], 3 * MIB, 5 * MIB, 64 * MIB, 1)


attempt("same bits", same_bits)
if a.simulated:
    attempt("small", small_speeds)
else:
    configs = f"{ROOT}/examples/train/configs"
    for name, config in (("1.1B", "tinyllama-1.1b"), ("8B", "llama3-8b")):
        attempt(name, speeds_of, name, f"{configs}/{config}.json", ["--seq-len", 2048, "--micro-batch", 2, "--batch", 8])
sys.exit(failed)
