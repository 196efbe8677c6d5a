"""What the comparisons of I/O share: a file that is written in full, one point of weir-bench, and sides that take
turns."""
import json
import os
import statistics
import subprocess


def fill(path, gib):
    """Written in full with bytes that do not compress, so that neither side meets blocks that were never written."""
    subprocess.run(["fio", "--name=fill", f"--filename={path}", "--rw=write", "--bs=1m", "--iodepth=16", "--ioengine=io_uring", "--refill_buffers",
                    "--direct=1", f"--size={gib}g", "--fallocate=none", "--end_fsync=1"], stdout=subprocess.DEVNULL, check=True)


def weir(bench, path, engine, kind, mib, depth, seconds):
    """Bytes a second (fdatasync of writes inside the clock) and CPU seconds per GB."""
    out = subprocess.run([bench, "io", "--file", path, "--part", "sweep", "--engine", engine, "--pattern", kind, "--block", f"{mib}MiB", "--depth", str(depth),
                          "--rounds", "1", "--seconds", str(seconds), "--json", "-"], capture_output=True, text=True, check=True).stdout
    row = json.loads(out)["results"][0]
    assert row["direct"] and not row["from_page_cache"], row
    return row["gb_per_s"] * 1e9, row["cpu_s_per_gb"]


def compare(title, ours, theirs, rounds):
    """{name: function} on both sides, in turns, the order reversed from turn to turn; the first turn is thrown away. Each of
    ours is set against each of theirs: the median of the ratios of neighbours."""
    sides = ours | theirs
    rates = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            rate = sides[name]()
            if turn > 0:
                rates[name].append(rate)
    for a in ours:
        for b in theirs:
            ratios = [x[0] / y[0] for x, y in zip(rates[a], rates[b])]
            (gbs, cpu), (their_gbs, their_cpu) = ([statistics.median(r[i] for r in rates[n]) for i in (0, 1)] for n in (a, b))
            print(f"{title}  {a} / {b}: {statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})   {gbs * 1e-9:.2f}, {their_gbs * 1e-9:.2f} GB/s   "
                  f"CPU {cpu:.4f}, {their_cpu:.4f} s/GB", flush=True)


def points(args):
    for kind in ("read", "write"):
        for mib in map(int, args.blocks.split(",")):
            for depth in map(int, args.depths.split(",")):
                yield f"{kind:5} {mib} MiB x {depth:2}", kind, mib, depth


def arguments(parser):
    parser.add_argument("weir_bench")
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--blocks", default="1,8", help="MiB")
    parser.add_argument("--depths", default="8,32")
    parser.add_argument("--engines", default="uring", help="weir's, comma-separated")


def scratch(directory):
    return os.path.join(directory, "weir-peers.bin")
