#!/usr/bin/env python3
"""weir-bench as a process: figures against the kernel's own counters, the schema, ctrl-C, full disks, other users,
kernels without io_uring.

  tests/bench.py WEIR_BENCH BUILD counters|schema|signal|cache|loop|refused|disk|turns|all
"""
import ctypes
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

BENCH, BUILD, WHAT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
work = tempfile.mkdtemp(prefix="bench-", dir=BUILD)
SHORT = ["--block", "128KiB,1MiB", "--depth", "1,4", "--bytes", "128MiB", "--seconds", "0.05", "--rounds", "2"]


def check(holds, text):
    if not holds:
        print("FAILED:", text)
        sys.exit(1)
    print("holds:", text)


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def run(*args, status=0, **more):
    done = subprocess.run([BENCH, *map(str, args)], capture_output=True, text=True, **more)
    if done.returncode != status:
        print(done.stdout, done.stderr)
        check(False, f"exit status {done.returncode}, expected {status}: {args}")
    return done


def measured(*args, **more):
    return json.loads(run(*args, "--json", "-", **more).stdout)


def fails(part, *args, status=2, **more):
    error = run(*args, status=status, **more).stderr.splitlines()
    said = [line for line in error if line.startswith("weir-bench: ")]
    check(len(said) == 1 and part in said[0], f"one line: {said}")


def block_device(path):
    """Its statistics, or None where the file system has no device of its own."""
    number = os.stat(path).st_dev
    stat = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat"
    return stat if os.path.exists(stat) else None


def device_bytes(stat):
    fields = open(stat).read().split()
    return int(fields[2]) * 512, int(fields[6]) * 512


def counters():
    """What the report says was moved is what the kernel counted: in the process, by a parent that looks while the process
    still is a zombie, and on the device."""
    stat = block_device(work)
    if not stat:
        skip(f"{work}: its file system has no block device")
    for attempt in range(3): # somebody else may write to the device meanwhile
        before = device_bytes(stat)
        process = subprocess.Popen([BENCH, "io", "--path", work, *SHORT, "--part", "sweep", "--json", f"{work}/report"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        own = {k: int(v) for k, v in (line.split(": ") for line in open(f"/proc/{process.pid}/io"))}
        after = device_bytes(stat)
        check(process.wait() == 0, "it ends well")
        report = json.load(open(f"{work}/report"))
        rows = report["results"]
        said = [sum(row[key] for row in rows) for key in ("read_bytes", "written_bytes")]
        seen = [sum(row["kernel"][key] for row in rows) for key in ("process_read_bytes", "process_written_bytes")]
        passed = [sum(row["kernel"][key] for row in rows) for key in ("device_read_bytes", "device_written_bytes")]
        fill = 128 << 20 # written twice before the clock, and read for a moment
        near = lambda a, b: abs(a - b) <= 0.02 * b
        quiet = all(near(a, b) for a, b in zip(passed, said)) and near(after[1] - before[1], said[1] + 2 * fill)
        if quiet:
            break
    if not quiet:
        print("left out: that the device moved no more, for others used it in each of three tries")
    for name, a, b in zip(("read", "written"), seen, said):
        check(near(a, b), f"{name}: {b} in the report, {a} counted for the process within points")
    for name, a, b in zip(("read", "written"), passed, said):
        check(a >= 0.98 * b and (a <= 1.02 * b or not quiet), f"{name}: {b} in the report, {a} passed the device within points")
    check(near(own["write_bytes"], said[1] + 2 * fill), f"/proc/PID/io: {own['write_bytes']} written, {said[1] + 2 * fill} in the report and by filling")
    written, read = after[1] - before[1], after[0] - before[0]
    check(written >= 0.98 * (said[1] + 2 * fill), f"the device: {written} written meanwhile")
    check(own["read_bytes"] >= said[0] and read >= 0.98 * said[0], f"/proc/PID/io: {own['read_bytes']} read, the device {read}, {said[0]} in the report")
    for row in rows:
        rate = (row["read_bytes"] + row["written_bytes"]) / row["seconds"] * 1e-9
        check(0.5 * row["gb_per_s_low"] <= rate <= 1.5 * row["gb_per_s_high"] and not row["from_page_cache"], f"{row['pattern']} {row['block_bytes']} x {row['depth']}: {row['gb_per_s']} GB/s")


def schema():
    """Each command's document has the committed form, the page holds the same document, and the tables the same figures."""
    try:
        import jsonschema
    except ImportError:
        skip("no python3-jsonschema")
    form = json.load(open(f"{ROOT}/docs/weir-bench.schema.json"))
    jsonschema.Draft7Validator.check_schema(form)
    validator = jsonschema.Draft7Validator(form)
    small = ["--rounds", "1"]
    commands = {
        "io": ["--path", work, *SHORT, "--ring", "2", "--parameters", "8e9", "--endurance", "1200"],
        "memory": ["--bytes", "4MiB", *small],
        "adam": ["--parameters", "1e6", *small],
        "gemm": ["--tokens", "64", "--hidden", "128", "--intermediate", "256", *small],
        "copy": ["--bytes", "4MiB", *small],
    }
    for command, args in commands.items():
        out = run(command, *args, "--json", f"{work}/json", "--html", f"{work}/html").stdout
        report = json.load(open(f"{work}/json"))
        found = [f"{e.json_path}: {e.message[:200]}" for e in validator.iter_errors(report)]
        check(not found, f"{command}: {len(report['results'])} results in the form {found}")
        page = open(f"{work}/html").read()
        data = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.S)[1]
        check(json.loads(data) == report, f"{command}: the page holds the same")
        check(not re.search(r'(src|href)="(?!#)|@import|url\((?!#)|fetch\(', page), f"{command}: the page needs no network")
        row = report["results"][-1]
        value = next(row[k] for k in ("seconds", "gb_per_s", "ms") if k in row)
        cells = [float(cell) for cell in re.findall(r"\b\d+\.\d\d\b", out)]
        # The document has six digits, so what lies between two cells may be rounded to either.
        check(any(abs(cell - value) <= 0.005 + 1e-5 * value for cell in cells), f"{command}: the table has {value}")
        if command == "io":
            steps = [r for r in report["results"] if r["part"] == "step"]
            replay = next(r for r in report["results"] if r["part"] == "replay")
            check(abs(steps[0]["seconds"] - 160 / replay["gb_per_s"]) < 0.01, "8e9 x 20 bytes at the replay's rate")
            check(steps[0]["steps_of_endurance"] == 15000, "1200 TB / 80 GB")
    wrong = dict(report, results=[dict(report["results"][0], surplus=1)])
    check(list(validator.iter_errors(wrong)), "a row with a surplus member is not in the form")


def interrupt():
    """ctrl-C while files are written, in the sweep and in the replay: status 130, nothing left."""
    for marker in ("with zeros", "sweep: ", "writing states", "replay of training: round 1"):
        process = subprocess.Popen([BENCH, "io", "--path", work, "--block", "1MiB", "--depth", "4", "--bytes", "512MiB", "--seconds", "0.2", "--json", f"{work}/report"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if marker in line:
                break
        process.send_signal(signal.SIGINT)
        process.communicate()
        check(process.returncode == 130, f"\"{marker}\": status {process.returncode}")
        check(os.listdir(work) == [], f"nothing is left: {os.listdir(work)}")


def cache():
    """Bytes that never reach storage are marked as such."""
    if not os.path.isdir("/dev/shm"):
        skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        report = measured("io", "--path", memory, *SHORT, "--pattern", "read,write", "--part", "sweep")
    check(all(row["from_page_cache"] for row in report["results"]), "every point on tmpfs is marked")
    check(report["drives"][0]["device"] == "" and report["drives"][0]["file_system"] == "tmpfs", "tmpfs has no device")
    check(any("page cache" in note for note in report["notes"]), "and it is said in words")


def loop():
    """A loop device reads out of the page cache of the file below it: only the device at the bottom can tell."""
    image, mount = f"{work}/image", f"{work}/mount"
    os.mkdir(mount)
    with open(image, "wb") as file:
        file.truncate(400 << 20)
    if os.getuid() != 0 or not block_device(work) or not shutil.which("mkfs.ext4"):
        skip("needs root, mkfs.ext4 and a build directory on a block device")
    if subprocess.run(["mkfs.ext4", "-q", image]).returncode != 0 or subprocess.run(["mount", "-o", "loop", image, mount], stderr=subprocess.DEVNULL).returncode != 0:
        skip("a loop device cannot be mounted here")
    try:
        direct = open(f"/sys/dev/block/{os.major(os.stat(mount).st_dev)}:{os.minor(os.stat(mount).st_dev)}/loop/dio").read().strip()
        report = measured("io", "--path", mount, *SHORT, "--pattern", "read", "--part", "sweep")
    finally:
        subprocess.run(["umount", mount], check=True)
    drive = report["drives"][0]
    check(drive["device"].startswith("loop") and drive["disks"] and not drive["disks"].startswith("loop"), f"{drive['device']} lies on {drive['disks']}")
    if direct != "0":
        skip("this loop device passes the page cache")
    passed = [(row["read_bytes"], row["kernel"]["device_read_bytes"]) for row in report["results"]]
    check(all(row["from_page_cache"] for row in report["results"]), f"reads that stop in the page cache below are marked: (read, passed the device) {passed}")


def deny_io_uring():
    """A seccomp filter: io_uring_setup, 425 everywhere, fails with EPERM, as in many containers."""
    program = b"".join(struct.pack("HBBI", *op) for op in ((0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)))
    buffer = ctypes.create_string_buffer(program)

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    prepared = Filter(4, ctypes.cast(buffer, ctypes.c_void_p).value)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(prepared), 0, 0) == 0, os.strerror(ctypes.get_errno())


def refused():
    """What cannot be measured is one line; what can only partly be is measured and said."""
    sub = f"{work}/sub"
    os.mkdir(sub)
    fails("are the same directory", "io", "--path", f"{work},{sub}/..", *SHORT, "--part", "sweep")
    fails("/nowhere", "io", "--path", "/nowhere", *SHORT, "--part", "sweep")
    with open(f"{work}/sparse", "wb") as file:
        file.truncate(1 << 24)
    fails("nothing was written at byte 0", "io", "--file", f"{work}/sparse")
    with open(f"{work}/given", "wb") as file:
        file.write(os.urandom(64 << 20))
    before = open(f"{work}/given", "rb").read()
    few = ["--block", "1MiB", "--depth", "4", "--seconds", "0.02", "--rounds", "1"]
    report = measured("io", "--file", f"{work}/given", "--pattern", "read", *few)
    check({row["part"] for row in report["results"]} == {"io", "layout"} and any("replay" in note for note in report["notes"]), "a file that is only read is not replayed, and it is said")
    check(open(f"{work}/given", "rb").read() == before, "and not written")
    for late in (["--block", "8MiB"], few): # blocks in flight, windows of the replay
        error = run("io", "--file", f"{work}/given", *late, status=2).stderr
        check(error.count("\n") == 1 and "MiB" in error, f"before anything is measured: {error}")
    for command, flag, much in (("adam", "--parameters", "1e12"), ("memory", "--bytes", "900TiB")):
        fails(f"available; lower {flag}", command, flag, much, status=1)
    deep = f"{work}/a-folder-with-a-long-name-that-no-column-has-room-for"
    os.mkdir(deep)
    shutil.copy(f"{ROOT}/examples/train/configs/llama-5m.json", f"{deep}/small.json")
    out = run("gemm", "--config", f"{deep}/small.json", "--tokens", 8, "--rounds", 1, "--dtype", "fp32").stdout
    check("/small.json " in out, "a long path is shown by its end")
    fails('--file "/nowhere"', "io", "--file", "/nowhere")
    fails("lower --tokens", "gemm", "--tokens", 64, "--hidden", 1 << 20, "--intermediate", 1 << 20, "--dtype", "fp32", status=1)
    for flag in ("--json", "--html"):
        error = run("memory", "--bytes", "4MiB", flag, f"{work}/no-such/report", status=1).stderr
        check(error.count("\n") == 1 and f"{flag} " in error, f"before anything is measured: {error}")
    if not os.path.exists("/dev/nvidiactl"):
        fails('device "cuda": ', "copy", "--device", "cuda", status=1)
    point = ["--block", "1MiB", "--depth", "4", "--bytes", "64MiB", "--seconds", "0.05", "--rounds", "1", "--part", "sweep", "--pattern", "read"]
    report = measured("io", "--path", work, *point, preexec_fn=deny_io_uring)
    check({row["engine"] for row in report["results"]} == {"threads"}, "without io_uring threads are measured")
    check(any("io_uring" in note or "uring" in note for note in report["notes"]), f"and it is said: {report['notes']}")
    fails("uring", "io", "--path", work, *point, "--engine", "uring", status=1, preexec_fn=deny_io_uring)
    if os.getuid() == 0:
        os.chmod(work, 0o777)
        try:
            report = measured("io", "--path", work, *point, user=65534)
            check(report["results"][0]["gb_per_s"] > 0, "an ordinary user measures too")
        except PermissionError:
            print("left out: another user cannot run the program where it lies")
    two = measured("io", "--path", f"{work},{sub}", *point)
    check(len(two["drives"]) == 2 and any("same device" in note for note in two["notes"]) == bool(two["drives"][0]["device"]), "two directories of one drive are measured, and it is said")
    check(abs(sum(drive["share"] for drive in two["drives"]) - 1) < 1e-6, "their shares make one")


def disk():
    """A full disk is one line, and nothing stays: before the file is made, and when the report is written."""
    fails("free", "io", "--path", work, "--bytes", "900TiB", status=1)
    fails("free", "io", "--path", work, "--bytes", "900TiB", "--json", f"{work}/report", status=1)
    check(os.listdir(work) == [], "nothing is left")
    if os.getuid() != 0:
        skip("mounting a small file system needs root")
    small = f"{work}/small"
    os.mkdir(small)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", small], stderr=subprocess.DEVNULL).returncode != 0:
        skip("a tmpfs cannot be mounted here")
    try:
        fails("No space left", "memory", "--bytes", "4MiB", "--rounds", "1", "--html", f"{small}/page.html", status=1)
        check(os.listdir(small) == [], "no half page stays")
        fails("free", "io", "--path", small, *SHORT, "--part", "sweep", status=1)
    finally:
        subprocess.run(["umount", small], check=True)


def turns():
    """adam --turns answers each line with one figure; OpenMP's threads spin as the user says, else briefly."""
    silent = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    for chosen, spins in (({}, "GOMP_SPINCOUNT=5000"), ({"GOMP_SPINCOUNT": "77"}, "GOMP_SPINCOUNT=77"), ({"OMP_WAIT_POLICY": "passive"}, None)):
        process = subprocess.Popen([BENCH, "adam", "--turns", "--dtype", "bf16", "--parameters", "1e6"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=silent | chosen)
        for _ in range(3):
            process.stdin.write("\n")
            process.stdin.flush()
            check(float(process.stdout.readline()) > 0, "a figure for a line")
        found = [v for v in open(f"/proc/{process.pid}/environ").read().split("\0") if v.startswith("GOMP_SPINCOUNT")]
        check(found == ([spins] if spins else []), f"{chosen}: {found}")
        name = open(f"/proc/{process.pid}/comm").read().strip()
        check(name == os.path.basename(BENCH), f"{chosen}: the process is named {name}")
        process.stdin.close()
        check(process.wait() == 0, "and it ends with its input")


def everything():
    """`all` writes a profile of this machine, and weir-train's reader takes it; with threads where io_uring is refused."""
    run("all", "--path", work, "--bytes", "1GiB", "--rounds", "1", "--seconds", "0.05", "--save", f"{work}/machine.json", preexec_fn=deny_io_uring)
    profile = json.load(open(f"{work}/machine.json"))
    check(profile["weir_profile"] == 1 and profile["drives"][0]["path"] == work, "a profile with its drive")
    numbers = {k: v for k, v in profile["cost"].items() if k not in ("update_on_compute", "link_update_bytes_per_s")}
    check(len(numbers) == 8 and all(v > 0 for v in numbers.values()), f"rates: {numbers}")
    check(sorted(os.listdir(work)) == ["machine.json"], "nothing else is left")
    error = run("all", "--path", f"{work}/no-such", status=2).stderr
    check("products of" not in error and "adam" not in error, "a drive that is not there is said before the rest is measured")


tests = {"counters": counters, "schema": schema, "signal": interrupt, "cache": cache, "loop": loop, "refused": refused, "disk": disk, "turns": turns, "all": everything}
try:
    tests[WHAT]()
finally:
    shutil.rmtree(work, ignore_errors=True)
