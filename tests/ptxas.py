#!/usr/bin/env python3
"""What ptxas says of each kernel on each architecture: no spills, and the table of docs/kernels.md.

  ptxas.py record NVCC ARGUMENT...    compile, keeping what ptxas says beside the object (CMake's
                                      CUDA_COMPILER_LAUNCHER, so that nothing is compiled twice)
  ptxas.py check OBJECT...            fail on a spill, or on a difference from the table
  ptxas.py write OBJECT...            make the table anew
"""
import os
import re
import subprocess
import sys

TABLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "kernels.md")
HEAD = """# Registers and shared memory of the kernels

What ptxas allots: registers by architecture; bytes of static shared memory and of stack frame, which are
the same on all. No kernel spills (a frame without a spill is a library function's). Made by
`tests/ptxas.py write`, checked by the test `ptxas`. A change here is a change of occupancy: write the table
anew if it is meant.

"""


def record(command):
    """Runs nvcc with ptxas talking; what it says goes to OBJECT.ptxas, all else where it would."""
    ran = subprocess.run(command + ["-Xptxas=-v"], stderr=subprocess.PIPE, text=True)
    said, rest = [], []
    for line in ran.stderr.splitlines():
        (said if re.match(r"ptxas info|\s+\d+ bytes stack frame", line) else rest).append(line)
    if rest:
        print("\n".join(rest), file=sys.stderr)
    if ran.returncode == 0 and "-o" in command:
        with open(command[command.index("-o") + 1] + ".ptxas", "w") as file:
            file.write("\n".join(said + [""]))
    return ran.returncode


def demangled(names):
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    result = []
    for name in out.splitlines():
        name = re.sub(r"\(anonymous namespace\)::|_INTERNAL_\w+::|^void ", "", name)
        depth, end = 0, len(name)
        for i, letter in enumerate(name):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                end = i
                break
        result.append(name[:end].replace("unsigned short", "bf16").replace("(bool)", "").replace("unsigned int", "u32"))
    return result


def parse(path):
    """{kernel: {arch: (registers, (shared bytes, frame bytes))}} of one object, and its faults."""
    if not os.path.exists(path + ".ptxas"):
        sys.exit(f"{path}.ptxas: not there; compile the object again with this script as launcher")
    kernels, faults, name, arch, frame_bytes = {}, [], None, None, 0
    for line in open(path + ".ptxas"):
        entry = re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        used = re.search(r"Used (\d+) registers", line)
        if entry:
            name, arch = entry[1], entry[2]
        elif frame and name:
            frame_bytes, *spilled = [int(n) for n in frame.groups()]
            if any(spilled):
                faults.append(f"{name} on {arch}: {frame[0]}")
        elif used and name:
            shared = re.search(r"(\d+) bytes smem", line)
            kernels.setdefault(name, {})[arch] = (int(used[1]), (int(shared[1]) if shared else 0, frame_bytes))
    readable = demangled(list(kernels))
    return dict(zip(readable, kernels.values())), faults


def compiler():
    nvcc = os.environ.get("CUDACXX") or "nvcc"
    try:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        return None
    return re.search(r"release ([\d.]+)", said)[1]


def table_make(objects, version):
    """Lines of the table, and all spills."""
    rows, faults, arches, count = [], [], set(), 0
    for path in sorted(objects, key=os.path.basename):
        kernels, spills = parse(path)
        faults += spills
        for name, by_arch in sorted(kernels.items()):
            arches |= by_arch.keys()
            memory = {memory for _, memory in by_arch.values()}
            if len(memory) != 1:
                faults.append(f"{name}: (shared, frame) bytes differ between architectures: {sorted(memory)}")
            rows.append((os.path.basename(path)[:-2], name, max(memory), by_arch))
            count += len(by_arch)
    order = sorted(arches, key=lambda arch: int(arch[3:]))
    lines = [f"nvcc {version}", "", "| source | kernel | shared | frame | " + " | ".join(order) + " |",
             "| --- | --- |" + " ---: |" * (len(order) + 2)]
    for source, name, (shared, frame), by_arch in rows:
        registers = " | ".join(str(by_arch[arch][0]) if arch in by_arch else "" for arch in order)
        lines.append(f"| {source} | `{name}` | {shared} | {frame} | {registers} |")
    return lines, faults, count


def check(objects, write):
    objects = [path for path in objects if path.endswith(".cu.o")]
    version = compiler() or "unknown"
    lines, faults, count = table_make(objects, version)
    if count == 0:
        faults.append("no kernel was found in " + " ".join(objects))
    if write and not faults:
        with open(TABLE, "w") as file:
            file.write(HEAD + "\n".join(lines) + "\n")
    written = open(TABLE).read()[len(HEAD):].splitlines() if os.path.exists(TABLE) else []
    if not written:
        faults.append("docs/kernels.md is not there: ptxas.py write makes it")
    elif written[:1] != lines[:1]:
        print(f"docs/kernels.md is of {written[:1]}, this is {lines[0]}: registers are not compared")
    else:
        faults += [f"docs/kernels.md has not: {line}" for line in lines if line not in written]
        faults += [f"docs/kernels.md has too much: {line}" for line in written if line not in lines]
    print("\n".join(faults) or f"ptxas: {count} kernels without a spill")
    return bool(faults)


if len(sys.argv) < 3 or sys.argv[1] not in ("record", "check", "write"):
    sys.exit(__doc__)
sys.exit(record(sys.argv[2:]) if sys.argv[1] == "record" else check(sys.argv[2:], sys.argv[1] == "write"))
