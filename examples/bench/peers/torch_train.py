#!/usr/bin/env python3
"""
Tokens a second of weir-train in memory against PyTorch on the same CPU: the same config, data shape,
threads and precision, in turns.

    torch_train.py WEIR_TRAIN CONFIG --dtype bf16 --length 256 --batch 4 --threads 2 --rounds 3

PyTorch runs transformers' LlamaForCausalLM with scaled_dot_product_attention, without recomputation,
fp32 weights under bf16 autocast (or fp32), its fused AdamW, a malloc that keeps huge pages, and
ATEN_CPU_CAPABILITY=avx512 where the CPU has it. Each turn drops its first steps; the figure of a
turn is the median of the rest. Needs torch and transformers; where they are missing it says so and
exits with 77.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SKIPPED = 2  # steps at the start of a turn


def turn_of_torch(a):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(a.threads)
    config = json.load(open(a.config))
    config = LlamaConfig(**{k: v for k, v in config.items() if k not in ("architectures", "torch_dtype")})
    config._attn_implementation, config.use_cache = "sdpa", False
    model = LlamaForCausalLM(config).float().train()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, fused=True)
    for _ in range(a.steps):
        tokens = torch.randint(0, min(config.vocab_size, 256), (a.batch, a.length + 1))
        began = time.time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16"):
            logits = model(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        loss.item()
        print("rate", a.batch * a.length / (time.time() - began), flush=True)


def torch_rates(a):
    env = os.environ | {
        "OMP_NUM_THREADS": str(a.threads),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "MALLOC_TRIM_THRESHOLD_": "-1",
        "MALLOC_MMAP_THRESHOLD_": "100000000000",
        "MALLOC_TOP_PAD_": "1000000000",
    }
    if "avx512f" in open("/proc/cpuinfo").read():
        env["ATEN_CPU_CAPABILITY"] = "avx512"
    out = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--turn"], env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [float(line.split()[1]) for line in out.splitlines() if line.startswith("rate")]


def weir_rates(a):
    with tempfile.TemporaryDirectory() as work:
        command = [a.weir_train, "--model", a.config, "--data", a.data, "--seq-len", a.length, "--batch", a.batch, "--micro-batch", a.batch, "--steps", a.steps, "--eval-batches", 1, "--dtype", a.dtype, "--threads", a.threads, "--log", f"{work}/log"]
        subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line)["tok_s"] for line in open(f"{work}/log")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("weir_train")
    p.add_argument("config")
    p.add_argument("--data", default="/usr/include")
    p.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}; pip install torch transformers")
        sys.exit(77)
    if a.turn:
        return turn_of_torch(a)
    ratios = []
    for i in range(a.rounds):
        ours, theirs = (statistics.median(rates[SKIPPED:]) for rates in (weir_rates(a), torch_rates(a)))
        ratios.append(ours / theirs)
        print(f"round {i + 1}: weir {ours:.0f}, PyTorch {theirs:.0f} tokens/s, ratio {ours / theirs:.2f}", flush=True)
    print(f"{a.dtype}, {a.batch} x {a.length} tokens, {a.threads} threads, torch {torch.__version__}, transformers {transformers.__version__}: ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


main()
