#!/usr/bin/env python3
"""That tests/gpu/run.sh tells success from failure, on the simulated GPU.

  tests/gpu/script_test.py BUILD SCRATCH [CASE...]

All parts pass on a sound build; a kernel's wrong output, weights that depend on budgets, a program
that fails and one that hangs are each seen and named in the table."""
import os
import re
import shutil
import stat
import subprocess
import sys
import time

BUILD, SCRATCH = map(os.path.abspath, sys.argv[1:3])
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.sh")
PROGRAMS = {"outputs": "tests/gpu/kernel_outputs_sim", "train": "tests/cudasim/weir-train-sim", "rate": "tests/gpu/device_rate_sim"}


def check(holds, text, out=""):
    if not holds:
        print(out)
        print("FAILED:", text)
        sys.exit(1)
    print("holds:", text, flush=True)


def run(build, *arguments):
    done = subprocess.run([SCRIPT, "--build", build, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def sham(name, text):
    """A build whose program `name` is a shell script; $REAL is the true one."""
    build = f"{SCRATCH}/{name}"
    shutil.rmtree(build, ignore_errors=True)
    for path in (*PROGRAMS.values(), "tests/gpu/kernel_outputs"):
        os.makedirs(os.path.dirname(f"{build}/{path}"), exist_ok=True)
        os.symlink(f"{BUILD}/{path}", f"{build}/{path}")
    path = f"{build}/{PROGRAMS[name]}"
    os.remove(path)
    with open(path, "w") as file:
        file.write(f"#!/bin/bash\nREAL={BUILD}/{PROGRAMS[name]}\n{text}\n")
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return build


def table(out):
    return out[out.index("== results"):]


def without_gpu():
    status, out = run(BUILD, "--limit", "5", "tests") if not shutil.which("nvidia-smi") else (77, "")
    check(status == 77 and len(out.strip().splitlines()) <= 1, "without a GPU: one line, status 77", out)


def sound():
    status, out = run(BUILD, "--simulated", "--limit", "500")
    check(status == 0, "all parts pass on the simulated GPU", out)
    lines = table(out)
    for part, least in (("build", 1), ("tests", 1), ("compare", 1), ("bench", 20), ("train", 3)):
        check(len(re.findall(rf"^{part} ", lines, re.M)) >= least, f"the table has {part}", out)
    check("FAILED" not in lines and "same bits" in lines and "tokens/s" in lines, "figures, no failure", out)


def wrong_output():
    """One float of the last array, off by its sign."""
    build = sham("outputs", '"$REAL" "$@" && [ "$1" != write ] || python3 - "$3" <<END\n'
                 "import sys\nb = bytearray(open(sys.argv[1], 'rb').read())\nb[-1] ^= 0x80\nopen(sys.argv[1], 'wb').write(b)\nEND")
    status, out = run(build, "--simulated", "compare")
    check(status == 1 and re.search(r"^compare .*FAILED.* 1 differ", table(out), re.M), "a wrong output is seen", out)


def bits_that_differ():
    """Another seed where there is a budget."""
    build = sham("train", 'case "$*" in *--device-memory*) exec "$REAL" "$@" --seed 9 ;; *) exec "$REAL" "$@" ;; esac')
    status, out = run(build, "--simulated", "train")
    check(status == 1 and re.search(r"^train +same bits +FAILED", table(out), re.M), "other bits are seen", out)


def failure():
    build = sham("rate", "exit 3")
    status, out = run(build, "--simulated", "bench")
    check(status == 1 and "FAILED: exit status 3" in table(out), "a program that fails is seen", out)


def hanging():
    build = sham("rate", "exec sleep 600")
    began = time.monotonic()
    status, out = run(build, "--simulated", "--limit", "3", "bench")
    check(status == 1 and "FAILED: out of time" in table(out) and time.monotonic() - began < 60, "one that hangs is ended", out)


cases = (without_gpu, sound, wrong_output, bits_that_differ, failure, hanging)
names = sys.argv[3:] or [case.__name__ for case in cases]
os.makedirs(SCRATCH, exist_ok=True)
for case in cases:
    if case.__name__ in names:
        case()
shutil.rmtree(SCRATCH)
