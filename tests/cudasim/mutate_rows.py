#!/usr/bin/env python3
"""Proves that the tests see faults in the kernels of rows: each mutant below is compiled into the
kernels' shared object, and the test of its operation must fail on the simulated GPU.

mutate_rows.py BUILD [TEST ...]: in build/dev, all of them or those of norm, say. Those marked RACE
show under ThreadSanitizer alone: they run if BUILD is one of its builds."""
import os
import re
import subprocess
import sys

RACE = "race"
MUTANTS = [  # file, test, what is replaced, by what
    ("rows.cuh", "norm", "    __syncthreads();\n    return weir_warp_fold", "    return weir_warp_fold"),
    ("rows.cuh", "norm", "partial[first + threadIdx.x / WEIR_WARP]", "partial[threadIdx.x / WEIR_WARP]"),
    ("rows.cuh", "head", "lane < warps ?", "lane + 1 < warps ?"),
    ("rows.cuh", "norm", "at + i < width ? weir_act_widen", "at + i <= width ? weir_act_widen"),
    ("rows.cuh", "norm", "if (at + i < width)\n", "if (at + i <= width)\n"),
    ("norm.cu", "norm", "    __syncthreads();\n", ""),
    ("norm.cu", "norm", "row < a.rows ? a.width : 0;\n    const uint32_t step = blockDim.x * forward",
     "a.width;\n    const uint32_t step = blockDim.x * forward"),
    ("norm.cu", "norm", "a.fresh ? total : ", "!a.fresh ? total : "),
    ("norm.cu", "norm", "        if (width > step)\n            weir_row_load_share<whole>(x", "        if (width == 0)\n            weir_row_load_share<whole>(x"),
    ("norm.cu", "norm", "        if (width > step)\n            load(first);", ""),
    ("norm.cu", "norm", "a.residual_d + start", "a.residual_d"),
    ("norm.cu", "norm", "first += row_lanes * rows_ahead", "first += row_lanes"),
    ("norm.cu", "norm", "warp < column_warps", "warp + 1 < column_warps"),
    ("norm.cu", "norm", "thread >= columns || column >= a.width", "thread >= columns"),
    ("embed.cu", "embed", "    __syncthreads();\n", "", RACE),
    ("embed.cu", "embed", "lane >= away ?", "lane > away ?"),
    ("embed.cu", "embed", "begin = token + 1;", "begin = token;"),
    ("embed.cu", "embed", "if (__syncthreads_or(found))", "if (found)"),
    ("embed.cu", "embed", "!is_first(a.tokens, token, id)", "!is_first(a.tokens, token ? 1 : 0, id)"),
    ("embed.cu", "embed", "if (!__syncthreads_or(any != 0))\n        return 0;", "if (any == 0)\n        return 0;"),
    ("embed.cu", "embed", "if (a->fresh && bytes > 0)", "if (!a->fresh && bytes > 0)"),
    ("embed.cu", "embed", "first + j < count)\n#pragma unroll", "first + j <= count)\n#pragma unroll"),
    ("embed.cu", "embed", "if (row >= a.row_count)", "if (row > a.row_count)"),
    ("head.cu", "head", "        __syncthreads();\n", ""),
    ("head.cu", "head", "(sum, partial_sum)", "(sum, partial_max)", RACE),
    ("head.cu", "head", "a.sum[row] * expf(before - max)", "a.sum[row]"),
    ("head.cu", "head", "threadIdx.x == 0 && width > 0 && !a.first", "width > 0 && !a.first", RACE),
    ("head.cu", "head", "if (width == 0 || threadIdx.x > 0)", "if (width == 0)", RACE),
    ("head.cu", "head", "const bool counts = a.targets[row] != masked;", "const bool counts = true;"),
    ("head.cu", "head", "a.targets[row] - a.first_vocab; /*", "a.targets[row]; /*"),
    ("head.cu", "head", "if (row >= a.rows)\n        return;", ""),
    ("rope.cu", "rope", "token % a.length", "token"),
    ("rope.cu", "rope", "a.backward ? -angles", "!a.backward ? -angles"),
    ("rope.cu", "rope", "if (token >= a.sequences * a.length)\n        return;", ""),
    ("rope.cu", "rope", "first + i < a.length; i +=", "first + i <= a.length; i +="),
    ("rope.cu", "rope", "if (head >= a.heads)\n                continue;\n#pragma unroll",
     "if (head > a.heads)\n                continue;\n#pragma unroll"),
]

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f"{root}/build/dev")
tests = sys.argv[2:] or ("norm", "rope", "embed", "head")
work = f"{build}/mutants-rows/{os.getpid()}"
os.makedirs(f"{work}/kernels", exist_ok=True)
tsan = "thread" in re.search(r"WEIR_SANITIZE:STRING=(.*)", open(f"{build}/CMakeCache.txt").read())[1]
library = "tests/cudasim/libweir_cuda_sim.so"


def commands(target):
    text = subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True,
                          text=True, check=True).stdout
    return text.strip().split("\n")


def run(test, preload):
    """Whether it passes."""
    environment = dict(os.environ, LD_PRELOAD=preload) if preload else os.environ
    try:
        return subprocess.run([f"{build}/tests/cudasim/test_{test}_sim"], cwd=f"{root}/tests",
                              env=environment, capture_output=True, timeout=180).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def make(name, text, test):
    """The library with one file replaced."""
    stem = test if name == "rows.cuh" else name[:-3]
    source = f"{root}/kernels/{stem}.cu"
    mutated = f"{work}/kernels/{name}"
    open(mutated, "w").write(text)
    compile_one = next(c for c in commands(library) if c.endswith(f" -c {source}"))
    target = re.search(r" -o (\S+)", compile_one)[1]
    compile_one = re.sub(r" -M[TF] \S+| -MD", "", compile_one)
    compile_one = compile_one.replace(" -I", f" -I{work} -I", 1)
    compile_one = compile_one.replace(f" -o {target}", f" -Wno-error -o {work}/{stem}.o")
    if name != "rows.cuh":
        compile_one = compile_one.replace(f" -c {source}", f" -c {mutated}")
    link = commands(library)[-1].replace(f" {target} ", f" {work}/{stem}.o ")
    link = link.replace(f" -o {library}", f" -o {work}/libmutant.so")
    for command in (compile_one, link):
        done = subprocess.run(command, shell=True, cwd=build, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{name}: a mutant does not compile\n{done.stderr}")
    os.remove(mutated)
    return f"{work}/libmutant.so"


for test in tests:  # one that fails by itself would report every mutant
    if not run(test, None):
        sys.exit(f"test_{test}_sim fails without any mutant")
seen = missed = 0
for name, test, old, new, *race in MUTANTS:
    if race and not tsan or test not in tests:
        continue
    text = open(f"{root}/kernels/{name}").read()
    what = f"{name}: {' '.join(old.split())!r} -> {' '.join(new.split())!r}"
    if text.count(old) != 1:
        sys.exit(f"{what}: {text.count(old)} places, 1 was meant")
    if run(test, make(name, text.replace(old, new), test)):
        missed += 1
        print(f"NOT SEEN: {what}", flush=True)
    else:
        seen += 1
        print(f"seen: {what}", flush=True)
print(f"{seen} mutants seen, {missed} not")
sys.exit(missed > 0 or seen == 0)
