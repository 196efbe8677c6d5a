#!/usr/bin/env python3
"""weir-train as a process: budgets held against the kernel's own counters, killed at any instant,
errors that come before anything is made, disks that fill up.

  tests/e2e.py WEIR_TRAIN budgets|steady|kill|errors|odd|io|drives|device|memory
  tests/e2e.py WEIR_TRAIN disk FULL_DISK_LIBRARY
  tests/e2e.py WEIR_TRAIN_SIM cuda
"""
import contextlib
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TRAIN, WHAT = os.path.abspath(sys.argv[1]), sys.argv[2]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20
work = tempfile.mkdtemp(prefix="weir-e2e-")
os.mkdir(f"{work}/nvme")


def check(holds, text):
    if not holds:
        print("FAILED:", text)
        sys.exit(1)
    print("holds:", text)


def config(name):
    return f"{ROOT}/examples/train/configs/{name}.json"


def profile(*directories):
    """Rates that are the same in every run, and with them the plan."""
    rates = {"read_bytes_per_s": 2e9, "write_bytes_per_s": 2e9, "latency_s": 1e-4}
    cost = rates | {"to_device_bytes_per_s": 1e10, "to_host_bytes_per_s": 1e10, "update_bytes_per_s": 2e10, "device_update_bytes_per_s": 2e10, "link_update_bytes_per_s": 0.0, "compute_flops_per_s": 2e11, "update_on_compute": True}
    drives = [rates | {"path": d, "device": "", "depth": 8, "piece_bytes": MIB} for d in directories]
    machine = {"cpu": "any", "cores": 2, "memory_bytes": 1 << 34, "kernel": "any"}
    path = f"{work}/profile.json"
    json.dump({"weir_profile": 1, "machine": machine, "device": "host", "cost": cost, "drives": drives}, open(path, "w"))
    return path


def text_data(count, name="text.txt", seed=3):
    r = random.Random(seed)
    words = ["".join(r.choice("etaoinshrdlu") for _ in range(r.randint(2, 8))) for _ in range(300)]
    path = f"{work}/{name}"
    with open(path, "w") as file:
        while file.tell() < count:
            file.write(" ".join(r.choice(words) for _ in range(12)) + "\n")
    return path


def start(*args, **more):
    return subprocess.Popen([TRAIN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def run(*args, status=0, **more):
    process = start(*args, **more)
    out = process.communicate()[0]
    if process.returncode != status:
        print(out)
        check(False, f"exit status {process.returncode}, expected {status}: {args}")
    return out


def steps(path):
    return [json.loads(line) for line in open(path)]


def digests(directory):
    names = ("model.safetensors", "optimizer.safetensors")
    return [hashlib.sha256(open(f"{directory}/{n}", "rb").read()).hexdigest() for n in names]


def newest(out):
    return sorted(glob.glob(f"{out}/step-????????"))[-1]


def rss(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) * 1024


def io_counters(pid):
    return {k: int(v) for k, v in (line.split(": ") for line in open(f"/proc/{pid}/io"))}


def budgets():
    """84M parameters, 16 bytes each, in 128 MiB of device and host together."""
    device, host = 64 * MIB, 64 * MIB
    data = text_data(200000)
    common = ["--model", config("llama-84m"), "--data", data, "--seq-len", 64, "--batch", 1, "--steps", 5, "--eval-batches", 1]

    def train(name, host_bytes):
        process = start(*common, "--device-memory", device, "--host-memory", host_bytes, "--nvme", f"{work}/nvme", "--log", f"{work}/{name}.jsonl")
        counters = []
        for line in process.stdout:
            if line.startswith("step "):
                counters.append(io_counters(process.pid))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        check(process.returncode == 0, f"{name}: 5 steps in {device >> 20} + {host_bytes >> 20} MiB")
        return steps(f"{work}/{name}.jsonl"), counters, usage.ru_maxrss * 1024

    # The counters are read as each line comes: between two lines lies one whole step, give or take
    # what the parent is late by. A parent that was kept waiting once gets another try.
    for attempt in range(3):
        log, counters, peak = train("tight", host)
        moved = [(kind, counters[3][kind] - counters[1][kind], log[2][field] + log[3][field])
                 for kind, field in (("read_bytes", "nvme_read_bytes"), ("write_bytes", "nvme_written_bytes"))]
        if all(abs(kernel - said) <= 0.02 * said for _, kernel, said in moved):
            break
    check(peak <= device + host + 128 * MIB, f"peak RSS {peak >> 20} MiB <= device + host + 128 MiB")
    check(all(s["peak_device_bytes"] <= device and s["peak_host_bytes"] <= host for s in log), "the log's peaks are within the budgets")
    for kind, kernel, said in moved:
        check(abs(kernel - said) <= 0.02 * said, f"{kind}: kernel {kernel}, log {said}")
    wide, _, _ = train("wide", 2 * host)
    total = lambda s: s["nvme_read_bytes"] + s["nvme_written_bytes"]
    saved = total(log[3]) - total(wide[3])
    check(saved >= 1.5 * host, f"{host >> 20} MiB more of host memory save {saved >> 20} MiB of NVMe a step")
    check([s["loss"] for s in log] == [s["loss"] for s in wide], "the same losses to the bit")


def steady():
    """Resident memory after step 3 and after step 100 is the same."""
    data = text_data(100000)
    process = start("--model", config("llama-8m"), "--data", data, "--seq-len", 32, "--batch", 1, "--steps", 101, "--eval-batches", 1, "--device-memory", 48 * MIB, "--host-memory", 48 * MIB, "--nvme", f"{work}/nvme")
    at = {}
    for line in process.stdout:
        match = re.match(r"step (\d+)/", line)
        if match and match[1] in ("3", "100"):
            process.send_signal(signal.SIGSTOP)
            at[match[1]] = rss(process.pid)
            process.send_signal(signal.SIGCONT)
    check(process.wait() == 0, "101 steps")
    check(abs(at["100"] - at["3"]) <= 65536, f"RSS {at['3']} after step 3, {at['100']} after step 100")


def kill():
    """kill -9 at random instants, then --resume: the bits of the run never killed."""
    data = text_data(60000)
    seed = int(os.environ.get("WEIR_SEED", "11"))
    print("seed", seed)
    r = random.Random(seed)
    common = ["--model", config("llama-5m"), "--data", data, "--seq-len", 32, "--batch", 2, "--steps", 90, "--eval-batches", 1, "--save-every", 1, "--device-memory", 40 * MIB, "--host-memory", 40 * MIB, "--nvme", f"{work}/nvme"]
    run(*common, "--out", f"{work}/whole")
    kills = saves = 0
    finished = False
    while not finished:
        args = ["--resume"] if os.path.isdir(f"{work}/cut") and glob.glob(f"{work}/cut/step-????????") else []
        process = start(*common, "--out", f"{work}/cut", *args)
        in_save = r.random() < 0.4
        deadline = time.time() + r.uniform(0.05, 0.5)
        first = newest_or_none(f"{work}/cut")
        while process.poll() is None and kills < 30:
            saving = bool(glob.glob(f"{work}/cut/*.tmp"))
            moved = newest_or_none(f"{work}/cut") != first
            if (in_save and saving and (moved or not args)) or (not in_save and time.time() > deadline and (moved or r.random() < 0.02)):
                process.send_signal(signal.SIGKILL)
                kills += 1
                saves += saving
                break
            time.sleep(0.001)
        process.communicate()
        finished = process.returncode == 0
        check(os.listdir(f"{work}/nvme") == [], "nothing is left in the NVMe directory") if kills % 10 == 0 else None
        if process.returncode not in (0, -9):
            check(False, f"exit status {process.returncode}")
    print(f"{kills} kills, {saves} of them during a save")
    check(kills >= 30 and saves >= 5, "30 kills, at least 5 during a save")
    check(digests(newest(f"{work}/cut")) == digests(newest(f"{work}/whole")), "the bits of the run that was never killed")


def newest_or_none(out):
    found = glob.glob(f"{out}/step-????????")
    return max(found) if found else None


def fails(part, *args, **more):
    process = start(*args, **more)
    out = process.communicate()[0]
    errors = [line for line in out.splitlines() if line.startswith("weir-train:")]
    check(process.returncode in (1, 2) and len(errors) == 1 and part in errors[0], f"one error with \"{part}\": {errors}")
    return out


def errors():
    data = text_data(60000)
    small = ["--seq-len", 32, "--batch", 1, "--steps", 2, "--eval-batches", 1]
    base = ["--model", config("llama-5m"), "--data", data, *small]
    fails("host", *base, "--host-memory", "20MiB", "--device-memory", "20MiB")
    fails("device", *base, "--device-memory", "1MiB", "--nvme", f"{work}/nvme")
    fails("no-such", *base, "--nvme", f"{work}/no-such")
    short = text_data(20, "short.txt")
    fails("less than one sequence", "--model", config("llama-5m"), "--data", short, "--seq-len", 1500)
    bad = f"{work}/bad.bin"
    open(bad, "wb").write((7).to_bytes(2, "little") * 500 + (999).to_bytes(2, "little") + (7).to_bytes(2, "little") * 500)
    fails("token 500 is 999", "--model", config("llama-5m"), "--data", bad, *small)
    wrong = json.load(open(config("llama-5m")))
    wrong["attention_bias"] = True
    json.dump(wrong, open(f"{work}/config.json", "w"))
    fails("attention_bias", "--model", f"{work}/config.json", "--data", data, *small)
    json.dump(wrong | {"attention_bias": False, "num_hidden_layers": 300}, open(f"{work}/config.json", "w"))
    fails("16777216 micro-batches through 300 layers", "--model", f"{work}/config.json", "--data", data, "--seq-len", 8, "--batch", 1 << 24)
    fails("--batch 3", *base[:4], "--batch", 3, "--micro-batch", 2)
    fails("give a unit, as 600TB", *base, "--nvme", work, "--endurance", 1200)
    fails("is no folder", *base, "--out", data)
    fails("its folder cannot be written", *base, "--timeline", f"{work}/no-such/t.json")
    run(*base, "--out", f"{work}/out", "--timeline", f"{work}/t.json", "--export-fp32", f"{work}/a.safetensors")
    names = {e["args"]["name"] for e in json.load(open(f"{work}/t.json"))["traceEvents"] if e["name"] == "thread_name"}
    check(names >= {"read", "update", "to-device", "collective", "compute", "to-host", "write"}, f"a timeline with rows {sorted(names)}")
    model = newest(f"{work}/out")
    run("--model", model, "--export-fp32", f"{work}/b.safetensors")
    check(os.path.getsize(f"{work}/a.safetensors") == os.path.getsize(f"{work}/b.safetensors") > 4 * 5e6, "fp32 weights of the run and of its checkpoint")
    fails("--steps has no use", "--model", model, "--export-fp32", f"{work}/b.safetensors", "--steps", 2)
    tokens = f"{work}/tokens.bin"
    open(tokens, "wb").write(b"".join(random.Random(1).randrange(256).to_bytes(2, "little") for _ in range(5000)))
    run("--model", model, "--data", tokens, *small)
    fails("weir-tokenize (examples/train/tokenize.py", "--model", model, "--data", data, *small)
    full = open(f"{model}/model.safetensors", "rb").read()
    overflow = bytearray(full)
    header = int.from_bytes(full[:8], "little")
    first, last = json.loads(full[8 : 8 + header])["model.norm.weight"]["data_offsets"]
    overflow[8 + header + first : 8 + header + last] = b"\x00\x7f" * ((last - first) // 2)  # bf16 1.7e38: finite, its logits are not
    open(f"{model}/model.safetensors", "wb").write(overflow)
    fails("2 steps in a row", "--model", model, "--data", tokens, *small[:4], "--steps", 6, "--max-skips", 2)
    open(f"{model}/model.safetensors", "wb").write(full[: len(full) // 2])
    fails("model.safetensors", "--model", model, "--data", tokens, *small)
    os.remove(f"{model}/model.safetensors")
    json.dump({"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}, open(f"{model}/model.safetensors.index.json", "w"))
    fails("model-00001-of-00002", "--model", model, "--data", tokens, *small)
    check(os.listdir(f"{work}/nvme") == [], "nothing was left in the NVMe directory")


def odd():
    """Shapes that divide by nothing: the same bits in memory and on NVMe."""
    data = text_data(30000)
    for vocab, hidden, inter, layers, heads, kv, dim, length, batch, tied in (
        (257, 33, 71, 1, 3, 1, 10, 1, 2, False),
        (511, 513, 127, 2, 2, 2, 6, 17, 3, True),
        (4097, 64, 511, 1, 4, 2, 16, 33, 1, False),
    ):
        c = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=vocab, hidden_size=hidden, intermediate_size=inter, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=tied)
        path = f"{work}/odd.json"
        json.dump(c, open(path, "w"))
        for dtype in ("bf16", "fp32"):
            common = ["--model", path, "--data", data, "--seq-len", length, "--batch", batch, "--micro-batch", 1, "--steps", 3, "--eval-batches", 1, "--dtype", dtype]
            shutil.rmtree(f"{work}/a", ignore_errors=True)
            shutil.rmtree(f"{work}/b", ignore_errors=True)
            run(*common, "--out", f"{work}/a")
            run(*common, "--out", f"{work}/b", "--device-memory", "12MiB", "--host-memory", "36MiB", "--nvme", f"{work}/nvme")
            check(digests(newest(f"{work}/a")) == digests(newest(f"{work}/b")), f"{dtype} vocabulary {vocab}, hidden {hidden}, length {length}: the same bits")


def cuda():
    """On the simulated GPU: the same bits whatever the budgets and the order in which streams run;
    close to the host's losses, and the same model where both save it."""
    data = text_data(30000)
    c = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=257, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=64, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False)
    json.dump(c, open(f"{work}/tiny.json", "w"))
    tiers = (
        ("memory", []),
        ("host", ["--device-memory", "3MiB"]),
        ("nvme", ["--device-memory", "3MiB", "--host-memory", "5MiB", "--nvme", f"{work}/nvme"]),
    )
    for dtype, most in (("bf16", 2e-3), ("fp32", 1e-5)):
        common = ["--model", f"{work}/tiny.json", "--data", data, "--seq-len", 33, "--batch", 2, "--micro-batch", 1, "--steps", 3, "--eval-batches", 1, "--dtype", dtype]

        def train(name, *more, schedule="eager"):
            run(*common, *more, "--log", f"{work}/{name}.jsonl", "--out", f"{work}/{name}", env=dict(os.environ, CUDASIM_SCHEDULE=schedule))
            made = digests(newest(f"{work}/{name}")), steps(f"{work}/{name}.jsonl")
            shutil.rmtree(f"{work}/{name}")
            return made

        _, host = train("host")
        first, log = train("cuda", "--device", "cuda")
        apart = max(abs(a["loss"] - b["loss"]) for a, b in zip(host, log))
        check(len(log) >= 3 and apart <= most, f"{dtype}: losses {apart:.1e} from the host's, at most {most}")
        for name, budget in tiers:
            for schedule in ("eager", "lazy", "random:1", "random:2"):
                same, log = train("again", "--device", "cuda", *budget, schedule=schedule)
                check(same == first, f"{dtype}, {name}, {schedule}: the same bits")
            moved = sum(s["nvme_read_bytes"] for s in log)
            check((moved > 0) == (name == "nvme"), f"{dtype}, {name}: {moved} bytes read from NVMe")


@contextlib.contextmanager
def small_disk(mib):
    """A tmpfs of so many MiB; where none can be mounted the test is skipped by name."""
    path = tempfile.mkdtemp(prefix="disk-", dir=work)
    cause = "there is no mount(8)"
    if shutil.which("mount"):
        cause = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", path], capture_output=True, text=True).stderr
    if not os.path.ismount(path):
        print("SKIPPED: train_disk: no tmpfs can be mounted:", cause.strip())
        sys.exit(77)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def disk():
    """Disks that are or become full: one error with figures, and nothing is lost that stood before."""
    data = text_data(60000)
    base = ["--model", config("llama-5m"), "--data", data, "--seq-len", 32, "--batch", 1, "--eval-batches", 1]
    tight = ["--device-memory", "30MiB", "--host-memory", "40MiB", "--steps", 2]

    with small_disk(16) as nvme:
        out = fails("bytes, 16777216 free", *base, *tight, "--nvme", nvme)
        check("predicted" not in out and "step 1/" not in out, "said before anything is loaded")
        run(*base, "--host-memory", "40MiB", "--steps", 1, "--nvme", nvme, "--profile", profile(nvme))
        check(os.listdir(nvme) == [], "a drive that is hardly needed may be small, and nothing is left there")

    with small_disk(100) as nvme:
        for leave, more in ((1 << 20, {}), (9 << 20, {"FULL_DISK_RESERVE": "no"})):
            taken = dict(LD_PRELOAD=sys.argv[3], FULL_DISK=nvme, FULL_DISK_LEAVE=str(leave), **more)
            out = fails("No space left on device", *base, *tight, "--nvme", nvme, env=os.environ | taken)
            check(os.listdir(nvme) == ["somebody-else"], "nothing is left but what somebody else wrote")
            os.remove(f"{nvme}/somebody-else")

    run(*base, "--steps", 4, "--out", f"{work}/whole")
    with small_disk(100) as out:  # a checkpoint has 63 MiB
        text = fails("bytes, ", *base, "--steps", 4, "--save-every", 1, "--out", out)
        check("step 2/" in text and "NOSPACE" not in text, "the second save meets the end of the disk")
        check(os.listdir(out) == ["step-00000001"], "the older checkpoint stands alone")
        shutil.copytree(out, f"{work}/cut")
    run(*base, "--steps", 4, "--out", f"{work}/cut", "--resume")
    check(digests(newest(f"{work}/cut")) == digests(newest(f"{work}/whole")), "resumed to the bits of the run never cut")

    with small_disk(1) as log:
        with open(f"{log}/somebody-else", "wb") as file, contextlib.suppress(OSError):
            file.write(bytes(2 * MIB))
        text = fails("No space left on device, after step 1; saved, go on with --resume", *base, "--steps", 4, "--out", f"{work}/logged", "--log", f"{log}/log")
        os.remove(f"{log}/somebody-else")
        run(*base, "--steps", 4, "--out", f"{work}/logged", "--resume", "--log", f"{log}/log")
        check([s["step"] for s in steps(f"{log}/log")] == [2, 3, 4], "the log goes on after it")
    check(digests(newest(f"{work}/logged")) == digests(newest(f"{work}/whole")), "to the bits of the run never cut")


@contextlib.contextmanager
def memory_group(mib):
    """A control group of so many MiB; yields what moves a process into it."""
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = f"{base}/weir-e2e-{os.getpid()}"
        try:
            os.mkdir(group)
        except OSError:
            continue
        try:
            if os.path.exists(f"{group}/{limit}"):
                with open(f"{group}/{limit}", "w") as file:
                    file.write(str(mib * MIB))
                yield lambda: open(f"{group}/cgroup.procs", "w").write(str(os.getpid()))
                return
        finally:
            os.rmdir(group)
    print("skipped: needs root and a control group for memory")
    sys.exit(77)


def memory():
    """More than the machine, or the container, has: refused at once, where the kernel would have killed."""
    base = ["--data", text_data(60000), "--seq-len", 32, "--batch", 1, "--steps", 1, "--eval-batches", 1]
    with memory_group(256) as enter:
        began = time.time()
        out = fails("MiB available to this process; lower --device-memory and --host-memory", "--model", config("llama-84m"), *base, preexec_fn=enter)
        check("predicted" not in out and "step 1/" not in out, f"said before anything is made, {time.time() - began:.1f} s")
        out = run("--model", config("llama-84m"), *base, "--dry-run", preexec_fn=enter)
        check("predicted" in out and "here it would be refused: the plan needs" in out, "a dry run plans for another machine and says so")
        run("--model", config("llama-5m"), *base, preexec_fn=enter)
        run("--model", config("llama-84m"), *base, "--device-memory", "64MiB", "--host-memory", "64MiB", "--nvme", f"{work}/nvme", preexec_fn=enter)
        check(True, "what fits trains")


def io():
    """Each I/O engine moves the same bytes; the summary says which one did, or the log why it could not."""
    data = text_data(60000)
    common = ["--model", config("llama-5m"), "--data", data, "--seq-len", 32, "--batch", 2, "--steps", 4, "--eval-batches", 1, "--device-memory", 40 * MIB, "--host-memory", 40 * MIB, "--nvme", f"{work}/nvme"]
    fails("\"steam\": not built; choose one of:", *common, "--io-engine", "steam")
    best = run(*common, "--out", f"{work}/best")
    plain = run(*common, "--out", f"{work}/threads", "--io-engine", "threads")
    memory = run(*common[:-6], "--out", f"{work}/memory")
    used = re.search(r"MiB \((\w+), (direct|buffered), (registered|not registered)\)\n", best)
    check(used is not None, f"the summary names the engine: {used and used[0].strip()}")
    built = "uring" in start(*common, "--io-engine", "steam").communicate()[0]
    refused = "io engine \"uring\"" in best
    check(used[1] == ("uring" if built and not refused else "threads"), f"{used[1]}, and if uring was refused the cause is logged")
    check("(threads, " in plain, "threads when they are asked for")
    check("direct" not in memory and "threads" not in memory, "no engine is named when nothing lies on NVMe")
    whole = digests(newest(f"{work}/memory"))
    check(digests(newest(f"{work}/best")) == whole and digests(newest(f"{work}/threads")) == whole, "the same bits through each engine and in memory")


def bits_flip(pid, directory):
    """One bit in each 64 KiB of the process's unlinked file there, behind its back; how many."""
    flipped = 0
    for fd in glob.glob(f"/proc/{pid}/fd/*"):
        if not os.readlink(fd).startswith(directory):
            continue
        with open(fd, "r+b", buffering=0) as file:
            for at in range(0, os.fstat(file.fileno()).st_size, 65536):
                byte = os.pread(file.fileno(), 1, at)
                flipped += os.pwrite(file.fileno(), bytes([byte[0] ^ 4]), at)
            os.fsync(file.fileno())
    return flipped


def drives():
    """Several directories under --nvme: the same bits; a flipped bit is found; wear is foretold."""
    data = text_data(100000)
    places = [f"{work}/nvme{i}" for i in range(3)]
    for place in places:
        os.mkdir(place)
    budgets = ["--device-memory", 48 * MIB, "--host-memory", 48 * MIB]
    common = ["--model", config("llama-8m"), "--data", data, "--seq-len", 32, "--batch", 1, "--eval-batches", 1]
    alike = ["--profile", profile(*places)]  # measured, one that somebody else uses may get next to nothing
    run(*common, "--steps", 4, "--out", f"{work}/memory")
    for name, more in (("one", [places[0]]), ("three", [",".join(places), *alike]), ("verified", [",".join(places), *alike, "--verify"])):
        out = run(*common, *budgets, "--steps", 4, "--out", f"{work}/{name}", "--log", f"{work}/{name}.jsonl", "--nvme", *more)
        check(digests(newest(f"{work}/{name}")) == digests(newest(f"{work}/memory")), f"{name}: the bits of a run in memory")
        written = [float(x) for x in re.findall(r"^nvme .*written ([\d.]+) GB", out, re.M)]
        check(len(written) == more[0].count(",") + 1 and min(written) > 0, f"{name}: {written} GB written to its drives")
        total = steps(f"{work}/{name}.jsonl")[-1]["nvme_written_total_bytes"]
        check(sum(written) * 1e9 >= total > 4 * 50e6, f"{name}: the log's total is {total}")
        check(("verified" in out) == (name == "verified"), f"{name}: says what was verified")

    process = start(*common, *budgets, *alike, "--steps", 1000, "--nvme", ",".join(places), "--verify")
    for line in process.stdout:
        if line.startswith("step 2/"):
            break
    process.send_signal(signal.SIGSTOP)
    flipped = bits_flip(process.pid, places[1])
    process.send_signal(signal.SIGCONT)
    out = process.communicate(timeout=120)[0]
    check(flipped > 0 and process.returncode == 1, f"{flipped} flipped bits end the run")
    check(places[1] in out and re.search(r"layers\.\d+|embed|norm", out), "the error names drive and block: " + out.strip().split("\n")[-1])

    out = run(*common, *budgets, "--dry-run", "--nvme", ",".join(places))
    check(len(re.findall(r"needs [\d.]+ of [\d.]+ GB free", out)) == 3, "a dry run measures each drive")
    out = run(*common, *budgets, *alike, "--dry-run", "--nvme", ",".join(places), "--endurance", "600TB,1PB,600TB")
    lines = re.findall(r"a step writes ([\d.]+) GB there; of ([\d.]+) TB endurance ([\d.e+]+) steps", out)
    for gb, tb, left in lines:
        check(abs(float(left) * float(gb) / 1000 / float(tb) - 1) < 0.05, f"{tb} TB at {gb} GB a step: {left} steps")
    check(len(lines) == 3 and all(not os.listdir(place) for place in places), "a dry run says it of each drive and leaves nothing there")
    said = [run(*common, *budgets, "--dry-run", "--nvme", ",".join(places[:2]), "--profile", profile(*places[:2])) for _ in range(2)]
    check(said[0] == said[1] and said[0].count("50 % of the tier, reads 2.00 and writes 2.00 GB/s") == 2, "a profile's rates are taken as they are")
    fails("no drive in it is under", *common, *budgets, "--nvme", "/dev/shm", "--profile", profile(places[0]))
    json.dump(json.load(open(profile(places[0]))) | {"weir_profile": 9}, open(f"{work}/later.json", "w"))
    fails("later.json", *common, *budgets, "--nvme", places[0], "--profile", f"{work}/later.json")
    fails("are one directory", *common, "--nvme", f"{places[0]},{places[0]}/../nvme0")
    fails("no such directory", *common, *budgets, "--nvme", f"{places[0]},{work}/gone")


def device():
    """A device that cannot be had is refused in one line that says why, before anything is made."""
    base = ["--model", config("llama-5m"), "--data", text_data(60000), "--seq-len", 32, "--batch", 1, "--steps", 1, "--out", f"{work}/out"]
    out = fails("device \"abacus\": not in this build; built: host", *base, "--device", "abacus")
    if os.path.exists("/dev/nvidiactl"):
        print("skipped: an NVIDIA driver is loaded")
        sys.exit(77)
    built = ", cuda" in out
    cause = "device \"cuda\": no NVIDIA driver is loaded (CUDA runtime " if built else "device \"cuda\": not in this build"
    out = fails(cause, *base, "--device", "cuda")
    check("host" in out.splitlines()[-1], "which names what to do")
    check(not os.path.exists(f"{work}/out"), "nothing was made")


tests = {"cuda": cuda, "device": device, "disk": disk, "memory": memory, "io": io, "drives": drives, "budgets": budgets, "steady": steady, "kill": kill, "errors": errors, "odd": odd}


def main(of):
    try:
        of[WHAT]()
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main(tests)
