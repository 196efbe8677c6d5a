#!/usr/bin/env python3
"""That tests/gpu/run.sh tells success from failure, on the simulated GPU.

  tests/gpu/script_test.py BUILD SCRATCH [CASE...]

A GPU is found as CUDA orders them, or its absence told; all parts pass on a sound build; a kernel's
wrong output, weights that depend on budgets, a program that fails and one that hangs are each seen
and named in the table."""
import os
import re
import shutil
import stat
import subprocess
import sys
import time

BUILD, SCRATCH = map(os.path.abspath, sys.argv[1:3])
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.sh")
PROGRAMS = {"gpu": "tests/gpu/with_gpu_sim", "outputs": "tests/gpu/kernel_outputs_sim", "train": "tests/cudasim/weir-train-sim", "rate": "tests/gpu/device_rate_sim"}


def check(holds, text, out=""):
    if not holds:
        print(out)
        print("FAILED:", text)
        sys.exit(1)
    print("holds:", text, flush=True)


def run(build, *arguments, **environment):
    done = subprocess.run([SCRIPT, "--build", build, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment)
    return done.returncode, done.stdout


def program_write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(f"#!/bin/bash\n{text}\n")
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def machine(name, **programs):
    """A PATH on which these shell scripts come first; each writes its arguments to NAME/PROGRAM.log."""
    directory = f"{SCRATCH}/{name}"
    shutil.rmtree(directory, ignore_errors=True)
    for program, text in programs.items():
        program_write(f"{directory}/{program.replace('_', '-')}", f'echo "$@" >>{directory}/{program}.log\n{text}')
    return directory, f"{directory}:{os.environ['PATH']}"


def sham(name, text):
    """A build whose program `name` is a shell script; $REAL is the true one."""
    build = f"{SCRATCH}/{name}"
    shutil.rmtree(build, ignore_errors=True)
    for path in (*PROGRAMS.values(), "tests/gpu/kernel_outputs"):
        os.makedirs(os.path.dirname(f"{build}/{path}"), exist_ok=True)
        os.symlink(f"{BUILD}/{path}", f"{build}/{path}")
    path = f"{build}/{PROGRAMS[name]}"
    os.remove(path)
    program_write(path, f"REAL={BUILD}/{PROGRAMS[name]}\n{text}")
    return build


def table(out):
    return out[out.index("== results"):]


def without_gpu():
    status, out = run(BUILD, "--limit", "5", "tests") if not shutil.which("nvidia-smi") else (77, "")
    check(status == 77 and len(out.strip().splitlines()) <= 1, "without a GPU: one line, status 77", out)


def broken_driver():
    """nvidia-smi tells what is wrong on stdout, in two lines with commas."""
    _, path = machine("broken", nvidia_smi='echo "NVIDIA-SMI has failed, as it, could not reach, the driver."; echo; exit 9')
    status, out = run(BUILD, "--limit", "5", "tests", PATH=path)
    check(status == 77 and len(out.strip().splitlines()) == 1 and "has failed" in out, "a driver that fails: one line, status 77", out)
    _, path = machine("none", nvidia_smi='echo "No devices were found"')
    status, out = run(BUILD, "--limit", "5", "tests", PATH=path)
    check(status == 77 and "No devices" in out, "no device: status 77", out)
    status, out = run(BUILD, "--limit", "5", "tests", PATH=path, CUDA_VISIBLE_DEVICES="")
    check(status == 77 and "hides every GPU" in out, "none that is visible: status 77", out)


TWO_GPUS = """
case "$*" in
"-i 1 "*compute_cap*) echo 12.0 ;;
*compute_cap*) echo 8.0 ;;
"-i 1 "*) echo "Second, 580, 10 MiB" ;;
"-i MIG"*) echo "No devices were found"; exit 6 ;;
*) echo "First, 580, 10 MiB"; echo "Second, 580, 10 MiB" ;;
esac"""


def build_for(visible, smi, options):
    """What CMake is asked for; the build itself fails."""
    directory, path = machine("two", nvidia_smi=smi, cmake="exit 1")
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    status, out = run(f"{SCRATCH}/two-build", "--limit", "60", "build", PATH=path, **environment)
    asked = open(f"{directory}/cmake.log").read()
    check(status == 1 and all(f" {o}" in asked for o in options), f"devices {visible}: CMake is asked for {' '.join(options)}", out + asked)


def which_gpu():
    build_for(None, TWO_GPUS, ["-DWEIR_CUDA_ARCHITECTURES=80-real", "-DWEIR_WERROR= "])
    build_for("1,0", TWO_GPUS, ["-DWEIR_CUDA_ARCHITECTURES=120-real"])
    build_for("MIG-1234", TWO_GPUS, ["-DWEIR_CUDA_ARCHITECTURES=80-real"])
    build_for(None, 'case "$*" in *compute_cap*) echo "not a valid field"; exit 2 ;; esac; echo "Old, 525, 10 MiB"', ["-UWEIR_CUDA_ARCHITECTURES"])


def one_process():
    """Tests take turns where the GPU takes one process at a time."""
    for processes, at_once in (("many", "-j 4"), ("one", "-j 1")):
        build = sham("gpu", f"echo processes {processes}")
        directory, path = machine("turns", ctest='echo "100% tests passed, 0 tests failed out of 2"')
        status, out = run(build, "--simulated", "tests", PATH=path)
        asked = open(f"{directory}/ctest.log").read()
        check(status == 0 and at_once in asked, f"{processes} processes: ctest {at_once}", out + asked)


def no_facts():
    """A program that does not tell what it is asked for is a failed case, not a stack trace."""
    build = sham("gpu", "echo no CUDA here; exit 1")
    status, out = run(build, "--simulated", "train")
    check(status == 1 and "Traceback" not in out and re.search(r"^train +small +FAILED.*no CUDA here", table(out), re.M) and "same bits" in table(out),
          "unknown memory is said in the table", out)


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


cases = (without_gpu, broken_driver, which_gpu, one_process, no_facts, sound, wrong_output, bits_that_differ, failure, hanging)
names = sys.argv[3:] or [case.__name__ for case in cases]
os.makedirs(SCRATCH, exist_ok=True)
for case in cases:
    if case.__name__ in names:
        case()
shutil.rmtree(SCRATCH)
