#!/usr/bin/env python3
"""
Tokens a second of weir-train against llm.c's CPU trainer on work of GPT-2's size, in turns.

    llmc.py WEIR_TRAIN LLMC_DIR --length 256 --batch 4 --threads 2 --rounds 2

LLMC_DIR holds a built train_gpt2 with the files that it reads (gpt2_124M.bin and a dataset), its B
and T set to --batch and --length. weir trains a Llama of the same size in bf16, in memory. Where
train_gpt2 is missing it says so and exits with 77.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("weir_train")
p.add_argument("llmc")
p.add_argument("--config", default=f"{HERE}/../../train/configs/llama-124m.json")
p.add_argument("--data", default="/usr/include")
p.add_argument("--length", type=int, default=256)
p.add_argument("--batch", type=int, default=4)
p.add_argument("--threads", type=int, default=os.cpu_count())
p.add_argument("--rounds", type=int, default=2)
p.add_argument("--steps", type=int, default=3, help="of a round on either side, after those that are dropped")
a = p.parse_args()
if not os.access(f"{a.llmc}/train_gpt2", os.X_OK):
    print(f"skipped: no {a.llmc}/train_gpt2; build llm.c's CPU trainer there")
    sys.exit(77)


def theirs():
    """Its loop has forty steps, evaluations and samples between: left after as many as are wanted."""
    times = []
    with subprocess.Popen(["stdbuf", "-oL", "./train_gpt2"], cwd=a.llmc, env=os.environ | {"OMP_NUM_THREADS": str(a.threads)}, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            times += [float(x) for x in re.findall(r"took ([\d.]+) ms", line)]
            if len(times) > a.steps:
                process.terminate()
                break
    if len(times) <= a.steps:
        sys.exit(f"train_gpt2 ended after {len(times)} steps; does it find its files?")
    return a.batch * a.length * 1e3 / statistics.median(times[1:])


def ours():
    with tempfile.TemporaryDirectory() as work:
        command = [a.weir_train, "--model", a.config, "--data", a.data, "--seq-len", a.length, "--batch", a.batch, "--micro-batch", a.batch, "--steps", a.steps + 2, "--eval-batches", 1, "--threads", a.threads, "--log", f"{work}/log"]
        subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return statistics.median(json.loads(line)["tok_s"] for line in list(open(f"{work}/log"))[2:])


ratios = []
for i in range(a.rounds):
    weir, llmc = ours(), theirs()
    ratios.append(weir / llmc)
    print(f"round {i + 1}: weir {weir:.0f}, llm.c {llmc:.0f} tokens/s, ratio {weir / llmc:.1f}", flush=True)
print(f"median ratio {statistics.median(ratios):.1f}")
