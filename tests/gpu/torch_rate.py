#!/usr/bin/env python3
"""PyTorch's matrix products and attention at the shapes of device_rate's rows, beside them.

  tests/gpu/torch_rate.py RATES.json TABLE

Adds lines to TABLE (part, what, result, by tabs): device_rate's rates, and PyTorch's where torch
finds a GPU. Without torch on CUDA it says so and ends with 77."""
import json
import re
import sys
import time

rates = json.load(open(sys.argv[1]))
REPETITIONS = 5


def row(r, more=""):
    parameters = f", {r['parameters_per_s'] / 1e6:.0f} M parameters/s" if "parameters_per_s" in r else ""
    with open(sys.argv[2], "a") as table:
        table.write(f"bench\t{r['name']} {r['shape']} {r['dtype']}\t{r['rate']:.4g} {r['unit']}{parameters}{more}\n")


def seconds_of(work):
    """The median of a few repetitions, each long enough for the clock."""
    work()
    torch.cuda.synchronize()
    calls, took = 1, 0.0
    times = []
    while len(times) < REPETITIONS:
        began = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        if took < 0.02 and calls < 1 << 16:
            calls *= 2
        else:
            times.append(took / calls)
    return sorted(times)[REPETITIONS // 2]


def product(name, m, n, k, dtype):
    """As device_rate: y = x W^T, dx = dy W, dW += dy^T x. PyTorch's outputs are in its dtype."""
    x, w, y = (torch.randn(s, device="cuda", dtype=dtype) for s in ((m, k), (n, k), (m, n)))
    if name == "gemm_forward":
        return seconds_of(lambda: torch.mm(x, w.t(), out=y))
    if name == "gemm_dx":
        w = torch.randn(k, n, device="cuda", dtype=dtype)
        return seconds_of(lambda: torch.mm(x, w, out=y))
    x, w = torch.randn(k, m, device="cuda", dtype=dtype), torch.randn(k, n, device="cuda", dtype=dtype)
    return seconds_of(lambda: torch.addmm(y, x.t(), w, out=y))


def attention(name, length, heads, kv_heads, head_dim, dtype):
    q, k, v = (torch.randn(1, h, length, head_dim, device="cuda", dtype=dtype, requires_grad=True) for h in (heads, kv_heads, kv_heads))
    wide = [t.repeat_interleave(heads // kv_heads, dim=1).detach().requires_grad_() for t in (k, v)]
    forward = lambda: torch.nn.functional.scaled_dot_product_attention(q, *wide, is_causal=True)
    if name == "attention_forward":
        with torch.no_grad():
            return seconds_of(forward)
    out = forward()
    d = torch.randn_like(out)
    return seconds_of(lambda: torch.autograd.grad(out, (q, *wide), d, retain_graph=True))


def theirs(r):
    """Seconds a call, or None for what is not compared."""
    dtype = torch.bfloat16 if r["dtype"] == "bf16" else torch.float32
    if r["name"].startswith("gemm"):
        return product(r["name"], *map(int, re.findall(r"\d+", r["shape"])), dtype)
    if r["name"].startswith("attention"):
        return attention(r["name"], *map(int, re.findall(r"\d+", r["shape"])), dtype)
    return None


try:
    import torch

    usable = torch.cuda.is_available()
    why = "torch finds no GPU"
except ImportError as error:
    usable, why = False, str(error)
print(f"PyTorch {torch.__version__}" if usable else f"PyTorch is left out: {why}", flush=True)
for r in rates["rows"]:
    seconds = theirs(r) if usable else None
    if seconds:
        row(r, f", PyTorch {r['rate'] * r['call_s'] / seconds:.4g}, ratio {seconds / r['call_s']:.2f}")
    else:
        row(r)
for r in rates["left_out"]:
    with open(sys.argv[2], "a") as table:
        table.write(f"bench\t{r['name']}\tleft out: {r['why']}\n")
sys.exit(0 if usable else 77)
