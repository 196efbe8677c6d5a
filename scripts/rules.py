#!/usr/bin/env python3
"""House rules that no compiler checks: lengths, include direction, what the library may not call."""
import os
import re
import subprocess
import sys

os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RANK = {"core": 0, "alloc": 1, "io": 1, "kernels": 1, "offload": 2, "zero": 3, "examples": 4, "tests": 5}
LIBRARY = ("core", "alloc", "io", "kernels", "offload", "zero")
FORBIDDEN = re.compile(r"(?<![\w.>])(getenv|exit|abort|printf|fprintf|puts|perror|sleep|usleep|system)\s*\(")
found = []
CUDA = r"core/cuda\w*\.[ch]$|kernels/\w+\.cuh?$|zero/nccl\.c$|tests/(cudasim|gpu)/"
SOURCES = ["*.c", "*.h", "*.cpp", "*.cu", "*.cuh"]
files = subprocess.run(["git", "ls-files", *SOURCES], capture_output=True, text=True, check=True).stdout.split()
for path in files:
    lines = open(path).read().split("\n")
    top = path.split("/")[0]
    if len(lines) > 500:
        found.append(f"{path}: {len(lines)} lines, at most 500")
    if path.startswith("include/") and len(lines) > 200:
        found.append(f"{path}: {len(lines)} lines, a public header has at most 200")
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{": # of a function, not of a namespace or class
            start = None if re.match(r"(namespace|class|struct)\b", lines[number - 2]) else number
        elif line.startswith("}") and start:
            if number - start > 70:
                found.append(f"{path}:{start}: a function of {number - start} lines, at most 70")
            start = None
        include = re.match(r'\s*#\s*include "([a-z]+)/', line)
        if include and top in RANK and include[1] in RANK:
            up = RANK[include[1]] > RANK[top] or (RANK[include[1]] == RANK[top] == 1 and include[1] != top)
            if up:
                found.append(f"{path}:{number}: {top} includes {include[1]}: includes point downwards")
        if re.match(r"\s*#\s*include <(cuda|cublas|nccl)", line) and not re.match(CUDA, path):
            found.append(f"{path}:{number}: CUDA's headers are for {CUDA}")
        if top in LIBRARY and FORBIDDEN.search(line) and not re.match(r"\s*(/?\*|//)", line):
            found.append(f"{path}:{number}: the library does not call this: {line.strip()}")
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            found.append(f"{path}:{number}: unfinished: {line.strip()}")
quoted = re.search(r"<!-- examples/hello.c -->\n```c\n(.*?)```\n", open("README.md").read(), re.S)
if not quoted or quoted[1] != open("examples/hello.c").read():
    found.append("README.md: the program after <!-- examples/hello.c --> is not that file")
print("\n".join(found) or f"rules: {len(files)} files in order")
sys.exit(bool(found))
