#!/usr/bin/env python3
"""What clang-tidy reads: prints the sources that BUILD compiles by clang, and writes their commands to
BUILD/lint. Kernels are read as the C++ of tests/cudasim; nvcc's commands are not clang's. Without a
CUDA toolkit what belongs to CUDA is not in BUILD, and not read."""
import json
import os
import subprocess
import sys

BUILD = sys.argv[1]
WHERE = ["core/*.c", "alloc/*.c", "io/*.c", "kernels/*.c", "offload/*.c", "zero/*.c", "examples/*.c",
         "kernels/*.cu", "tests/cudasim/*.cpp"]
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
wanted = subprocess.run(["git", "ls-files", *WHERE], cwd=root, capture_output=True, text=True, check=True)
entries = {} # one command a source: two would be two readings
for entry in json.load(open(f"{BUILD}/compile_commands.json")):
    source = os.path.relpath(entry["file"], root)
    if "clang" in os.path.basename(entry["command"].split()[0]):
        entries.setdefault(source, entry)
os.makedirs(f"{BUILD}/lint", exist_ok=True)
with open(f"{BUILD}/lint/compile_commands.json", "w") as out:
    json.dump(list(entries.values()), out)
sources = [source for source in wanted.stdout.split() if source in entries]
assert len(sources) > 40, f"{BUILD}: {len(sources)} sources, run cmake first"
print("\n".join(sources))
