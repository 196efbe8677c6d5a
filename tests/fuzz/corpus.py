#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets, corpus/TARGET/seed-*: small inputs of every kind that a
target tells apart, all made here. Inputs that once failed lie beside them under other names."""
import json
import os
import random
import struct

os.chdir(os.path.dirname(os.path.abspath(__file__)))


def seed(target, name, data):
    os.makedirs(f"corpus/{target}", exist_ok=True)
    with open(f"corpus/{target}/seed-{name}", "wb") as out:
        out.write(data)


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def seeds_safetensors():
    two = {"a": tensor("F32", [2, 3], 0, 24), "b": tensor("BF16", [4], 24, 32)}
    shard = "model-00001-of-00001.safetensors"
    for name, data in {
        "two": safetensors(two, bytes(32)),
        "cut": safetensors(two, bytes(31)),
        "metadata": safetensors({"__metadata__": {"format": "pt"}, "i": tensor("I64", [], 0, 8)}, bytes(8)),
        "empty-tensor": safetensors({"e": tensor("U8", [0, 7], 0, 0)}),
        "hole": safetensors({"a": tensor("U8", [1], 1, 2)}, bytes(2)),
        "terabytes": safetensors({"a": tensor("F64", [1 << 40, 1 << 20], 0, 1 << 62)}),
        "overflow": safetensors({"a": tensor("F64", [1 << 62, 1 << 62], 0, 0)}),
        "long-header": struct.pack("<Q", 1 << 63) + b"{}",
        "header-98MB": struct.pack("<Q", 98000000) + b"{}",
        "unknown-dtype": safetensors({"a": tensor("F8_E4M3", [1], 0, 1)}, bytes(1)),
        "twice": safetensors(b'{"a":{},"a":{}}'),
        "nothing": b"",
        "prefix": bytes(7),
        "index": json.dumps({"metadata": {}, "weight_map": {"a": shard}}).encode(),
        "index-missing": json.dumps({"weight_map": {"a": shard, "b": shard}}).encode(),
        "index-outside": json.dumps({"weight_map": {"a": "../outside.safetensors"}}).encode(),
    }.items():
        seed("safetensors", name, data)


def seeds_config():
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
             "max_position_embeddings": 512, "tie_word_embeddings": True, "hidden_act": "silu"}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    for name, change in {
        "plain": {},
        "llama3": {"rope_scaling": llama3},
        "parameters": {"rope_theta": None, "rope_parameters": dict(llama3, rope_theta=500000.0)},
        "head-dim": {"head_dim": 32, "tie_word_embeddings": False},
        "huge": {"hidden_size": 1 << 31, "vocab_size": 1 << 31, "num_hidden_layers": 1 << 31},
        "unknown-key": {"surprise": [1, {"a": "b"}]},
        "wrong-type": {"hidden_size": "64"},
        "nan": {"rms_norm_eps": 1e400},
        "biased": {"attention_bias": True},
    }.items():
        seed("config", name, json.dumps({**llama, **change}).encode())
    seed("config", "cut", json.dumps(llama).encode()[:90])
    seed("config", "zero-byte", b'{"model_type": "lla\\u0000ma"}')


def seeds_profile():
    drive = {"path": "/data", "device": "nvme0n1", "read_bytes_per_s": 3e9, "write_bytes_per_s": 2e9, "latency_s": 6e-5,
             "depth": 8, "piece_bytes": 1048576}
    rates = ("read", "write", "to_device", "to_host", "update", "device_update", "link_update")
    cost = {f"{name}_bytes_per_s": 1e9 for name in rates} | {"compute_flops_per_s": 1e12, "latency_s": 6e-5, "update_on_compute": True}
    profile = {"weir_profile": 1, "machine": {"cpu": "a", "cores": 2, "memory_bytes": 1 << 30, "kernel": "6"}, "device": "host",
               "cost": cost, "drives": [drive]}
    for name, change in {
        "plain": {},
        "no-drives": {"drives": []},
        "version": {"weir_profile": 2},
        "negative": {"cost": cost | {"latency_s": -1}},
        "huge": {"cost": cost | {"read_bytes_per_s": 1 << 62}},
        "unknown": {"cost": cost | {"more": 1}},
        "fraction": {"drives": [drive | {"depth": 1.5}]},
        "seventeen": {"drives": [drive] * 17},
        "no-object": {"machine": []},
    }.items():
        seed("profile", name, json.dumps(profile | change).encode())
    seed("profile", "cut", json.dumps(profile).encode()[:200])
    seed("profile", "infinite", json.dumps(profile).replace("3000000000.0", "1e999").encode())
    seed("profile", "zero-byte", json.dumps(profile).replace("/data", "/da\\u0000ta").encode())


def seeds_corpus():
    rng = random.Random(5)
    words = struct.pack("<64H", *[rng.randrange(256) for _ in range(64)])
    wide = struct.pack("<32I", *[rng.randrange(128256) for _ in range(32)])
    for name, data in {
        "bin-16": bytes([7, 3, 1]) + words,
        "bin-32": bytes([3, 6, 1]) + wide,
        "bin-32-as-16": bytes([3, 3, 1]) + struct.pack("<32I", *range(32)),
        "bin-odd": bytes([3, 3, 1]) + words[:-1],
        "bin-outside": bytes([3, 2, 1]) + b"\xff" * 64,
        "text": bytes([4, 2, 0]) + b"a river passes at a fixed height\n" * 4,
        "text-small-vocabulary": bytes([4, 0, 0]) + b"text",
        "short": bytes([31, 3, 1]) + words[:8],
        "empty": bytes([1, 3, 1]),
    }.items():
        seed("corpus", name, data)


def edits(rng):
    kinds = [lambda: bytes([0]) + rng.randbytes(2) + bytes([1, rng.randrange(48, 58)]),
             lambda: bytes([1]) + rng.randbytes(2) + b"\x03 99",
             lambda: bytes([2]) + rng.randbytes(2) + bytes([rng.randrange(1, 4)]),
             lambda: bytes([3]) + rng.randbytes(2),
             lambda: bytes([4]) + rng.randbytes(4)]
    return b"".join(rng.choice(kinds)() for _ in range(rng.randrange(1, 3)))


def seeds_edits():
    rng = random.Random(6)
    for target, bases in (("plan", 2), ("checkpoint", 3)):
        for base in range(bases):
            seed(target, f"same-{base}", bytes([base]))
            for i in range(6):
                seed(target, f"edited-{base}-{i}", bytes([base]) + edits(rng))
            seed(target, f"number-{base}", bytes([base]) + bytes([4]) + rng.randbytes(4))
            seed(target, f"cut-{base}", bytes([base, 3, 0, 40]))
    # A nan among the moments: the next update makes a master of it that rounds to a weight of 0.
    seed("checkpoint", "nan-moment", bytes([2, 0, 0x20, 0, 16]) + b"\xff" * 16)


def seeds_trace():
    rng = random.Random(7)
    for i in range(16):
        seed("trace", str(i), rng.randbytes(40 + 30 * i))


for make in (seeds_safetensors, seeds_config, seeds_profile, seeds_corpus, seeds_edits, seeds_trace):
    make()
