#!/usr/bin/env python3
"""weir-train's checkpoints as a process: what a run saves when it ends early, what it finds and removes under --out,
and what a resumed run asks of the run that was begun.

  tests/e2e_resume.py WEIR_TRAIN folder|signal|sweep|tokenizer|numbers|ends|skips|others
"""
import glob
import json
import os
import random
import re
import shutil
import signal
import struct

from e2e import MIB, check, config, digests, fails, main, newest, newest_or_none, run, start, steps, text_data, work


def tiny(name="tiny", **other):
    """A model that takes milliseconds a step."""
    c = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False)
    path = f"{work}/{name}.json"
    json.dump(c | other, open(path, "w"))
    return path


def tokens(name, count, seed=1):
    r = random.Random(seed)
    path = f"{work}/{name}.bin"
    open(path, "wb").write(b"".join(r.randrange(257).to_bytes(2, "little") for _ in range(count)))
    return path


def base(**model):
    return ["--model", tiny(**model), "--data", tokens("data", 6000), "--seq-len", 16, "--batch", 2, "--eval-batches", 1]


def paused(step, *args):
    """A run that has done so many steps and stands still."""
    process = start(*args)
    for line in process.stdout:
        if line.startswith(f"step {step}/"):
            process.send_signal(signal.SIGSTOP)
            return process
    check(False, f"step {step} is reached")


def names(folder):
    return sorted(os.listdir(folder))


def interrupt():
    """SIGINT saves the step's beginning; --resume goes on to the same bits."""
    data = text_data(60000)
    common = ["--model", config("llama-5m"), "--data", data, "--seq-len", 64, "--batch", 4, "--steps", 12, "--eval-batches", 1, "--device-memory", 40 * MIB, "--host-memory", 40 * MIB, "--nvme", f"{work}/nvme"]
    run(*common, "--out", f"{work}/whole")
    process = start(*common, "--out", f"{work}/cut")
    for line in process.stdout:
        if line.startswith("step 4/"):
            process.send_signal(signal.SIGINT)
            break
    process.communicate()
    check(process.returncode == 130, "SIGINT ends with status 130")
    check(newest_or_none(f"{work}/cut") is not None, "the beginning of the step is saved")
    run(*common, "--out", f"{work}/cut", "--resume")
    check(digests(newest(f"{work}/cut")) == digests(newest(f"{work}/whole")), "resumed to the same bits")


def folder():
    """--out holds one run's checkpoints: a fresh run into them is refused; pruning keeps what is not the run's own."""
    common = [*base(), "--out", f"{work}/out"]
    run(*common, "--steps", 3, "--save-every", 1)
    check(names(f"{work}/out") == ["step-00000002", "step-00000003"], "the newest two are kept")
    before = digests(f"{work}/out/step-00000003")
    error = fails("step-00000003", *common, "--steps", 1, "--log", f"{work}/log")
    check("--resume" in error and "another folder" in error and f"{work}/out" in error, "a fresh run beside them is refused with both remedies")
    check(names(f"{work}/out") == ["step-00000002", "step-00000003"] and not os.path.exists(f"{work}/log"), "before anything is made")
    run(*common, "--steps", 1, "--dry-run")
    run(*common, "--steps", 3, "--resume")
    check(digests(f"{work}/out/step-00000003") == before and names(f"{work}/out") == ["step-00000002", "step-00000003"], "a dry run and one that is done leave them alone")

    foreign = ["step-1", "step-+0000001", "step-00000001x", "step-000000004"]
    for name in foreign:
        os.mkdir(f"{work}/out/{name}")
    os.symlink(f"{work}/out/step-1", f"{work}/out/step-00000000")
    open(f"{work}/out/step-1/kept", "w").close()
    process = paused(4, *common, "--steps", 8, "--save-every", 1, "--keep", 1, "--resume")
    os.mkdir(f"{work}/out/step-00000050")
    process.send_signal(signal.SIGCONT)
    out = process.communicate(timeout=60)[0]
    check(process.returncode == 0, "folders of other names do not keep a run from its end")
    check(names(f"{work}/out") == sorted([*foreign, "step-00000000", "step-00000008", "step-00000050"]), "they stay, and so does a later step than the run's own")
    check(os.path.exists(f"{work}/out/step-1/kept") and "an older checkpoint stays" in out, "nothing is removed through a link")


def sweep():
    """What a killed save left goes when the next run starts, and nothing that only looks like it."""
    common = [*base(), "--out", f"{work}/out", "--steps", 2]
    left, kept = "step-00000007.tmp", ["notes.tmp", "step-7.tmp", "step-00000001.tmp", "step-00000002.tmpx", "step-00000009.tmp"]
    for name in (left, "notes.tmp", "step-7.tmp", "step-00000002.tmpx", "elsewhere"):
        os.makedirs(f"{work}/out/{name}")
        open(f"{work}/out/{name}/model.safetensors", "w").close()
    os.symlink(f"{work}/out/elsewhere", f"{work}/out/step-00000001.tmp")
    open(f"{work}/out/step-00000009.tmp", "w").close()
    run(*common, "--dry-run")
    check(left in names(f"{work}/out"), "a dry run removes nothing")
    out = run(*common)
    check(f"removed \"{work}/out/{left}\"" in out and out.count("removed") == 1, "it says what it removes")
    check(names(f"{work}/out") == sorted([*kept, "elsewhere", "step-00000002"]), "what has another name, or is no folder, stays")
    check(all(os.listdir(f"{work}/out/{name}") for name in ("elsewhere", "notes.tmp", "step-7.tmp")), "with all that is in it")


def tokenizer():
    """Tokenizer files go into every checkpoint, though the directory they came from was pruned meanwhile."""
    data = base()[2:]
    run(*base(), "--out", f"{work}/out", "--steps", 1)
    model = f"{work}/out/step-00000001"
    for name in ("tokenizer.json", "generation_config.json"):
        open(f"{model}/{name}", "w").write(f'{{"of": "{name}"}}')
    run("--model", model, *data, "--out", f"{work}/out", "--steps", 4, "--save-every", 1, "--keep", 1, "--resume")
    check(names(f"{work}/out") == ["step-00000004"], "the model that it began with is gone")
    saved = f"{work}/out/step-00000004"
    check(all(open(f"{saved}/{name}").read() == f'{{"of": "{name}"}}' for name in ("tokenizer.json", "generation_config.json")), "its tokenizer is in the newest")
    check(names(saved) == ["config.json", "generation_config.json", "model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"], "and nothing that it had not")
    os.remove(f"{saved}/tokenizer.json")
    os.mkdir(f"{saved}/tokenizer.json")
    fails("tokenizer.json\": cannot be read", "--model", saved, *data, "--out", f"{work}/other", "--steps", 1)
    check(not os.path.exists(f"{work}/other"), "one that cannot be read is said before anything is made")


def numbers():
    """A resumed run says by name, with both values, what makes its bits others, and refuses another split of the data."""
    out = f"{work}/out"
    common = [*base(), "--out", out]
    begun = ["--lr", 0.0003, "--min-lr", 0.00001, "--warmup", 1, "--beta1", 0.9, "--beta2", 0.95, "--eps", 1e-8, "--weight-decay", 0.1, "--clip", 1, "--steps", 4]
    run(*common, *begun[:-1], 3)
    state = json.load(open(f"{out}/step-00000003/state.json"))
    check(state["caller"]["train_count"] == 356 and state["caller"]["training"] == {"lr": 0.0003, "schedule": "cosine", "min_lr": 0.00001, "warmup": 1, "steps": 3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}, "the numbers are in the checkpoint, to the bit")

    def said(*args):
        """From the same checkpoint each time."""
        for later in glob.glob(f"{out}/step-00000004"):
            shutil.rmtree(later)
        text = run(*common, "--resume", *args)
        return re.findall(r"warning: resumed with another (\w+), (\S+) where the checkpoint has (\S+): the bits will differ", text)

    check(said(*begun[:-1], 3) == [], "with the same numbers nothing is said")
    other = {"lr": (0.001, "0.0003"), "min_lr": (2e-5, "1e-5"), "warmup": (2, "1"), "beta1": (0.8, "0.9"), "beta2": (0.9, "0.95"), "eps": (1e-7, "1e-8"), "weight_decay": (0.0, "0.1"), "clip": (0.5, "1.0"), "steps": (4, "3")}
    for name, (value, then) in other.items():
        args = [*begun[:-1], 3]
        args[args.index("--" + name.replace("_", "-")) + 1] = value
        found = said(*args)
        check(len(found) == 1 and found[0][0] == name and float(found[0][1]) == value and found[0][2] == then, f"{name}: {found}")
    constant = [*begun[:2], *begun[4:-1], 4, "--lr-schedule", "constant"]
    check(said(*constant) == [("schedule", '"constant"', '"cosine"')], "a constant rate has no end to differ in")

    for later in glob.glob(f"{out}/step-00000004"):
        shutil.rmtree(later)
    error = fails("train_count", *common, *begun, "--resume", "--eval-data", tokens("other", 1000))
    check("356" in error and "374" in error and "--eval-data" in error, "another split of the data is refused with both")
    for name in ("training", "train_count"):
        del state["caller"][name]
    json.dump(state, open(f"{out}/step-00000003/state.json", "w"))
    check(said(*begun, "--eval-data", tokens("other", 1000)) == [], "a checkpoint of an earlier build has none of them, and is resumed")


def ends():
    """What ends a run while its weights are whole saves them once, stays the error, and a resume goes on to the same bits."""
    evaluation = tokens("evaluation", 400)
    common = [*base(), "--eval-data", evaluation, "--steps", 100]
    run(*common, "--out", f"{work}/whole")
    for cut, more in ((f"{work}/data.bin", []), (evaluation, ["--eval-every", 1, "--save-every", 1])):
        out, log = f"{work}/{os.path.basename(cut)}.out", f"{work}/{os.path.basename(cut)}.jsonl"
        process = paused(3, *common, *more, "--out", out, "--log", log)
        whole = open(cut, "rb").read()
        os.truncate(cut, 10)
        process.send_signal(signal.SIGCONT)
        text = process.communicate(timeout=60)[0]
        error = text.splitlines()[-1]
        open(cut, "wb").write(whole)
        done = int(re.search(r"the file shrank\), after step (\d+); saved, go on with --resume", error)[1])
        check(process.returncode == 1 and cut in error and 3 <= done < 100, error)
        check(os.path.isdir(f"{out}/step-{done:08}") and len(re.findall(f"saved {out}/step-{done:08}\n", text)) == 1, f"step {done} is saved, once")
        check([s["step"] for s in steps(log)] == list(range(1, done + 1)), "and its line is in the log")
        run(*common, "--out", out, "--resume")
        check(digests(newest(out)) == digests(f"{work}/whole/step-00000100"), "a resume goes on to the same bits")

    process = paused(3, *common, "--out", f"{work}/again", "--save-every", 1)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    text = process.communicate(timeout=60)[0]
    check(process.returncode == 143, "SIGTERM ends with status 143")
    saved = re.findall(r"saved \S+/(step-\d+)", text)
    check("saved, go on with --resume" in text and len(saved) == len(set(saved)), "a step that is saved is not saved again")

    process = paused(3, *common, "--out", f"{work}/piped")
    process.stdout.close()
    process.send_signal(signal.SIGCONT)
    check(process.wait(timeout=60) == 141 and newest_or_none(f"{work}/piped"), "a pipe that nobody reads any more ends it, and it saves")

    process = paused(3, *common, "--out", f"{work}/gone")
    shutil.rmtree(f"{work}/gone")
    os.truncate(f"{work}/data.bin", 10)
    process.send_signal(signal.SIGCONT)
    text = process.communicate(timeout=60)[0]
    error = [line for line in text.splitlines() if line.startswith("weir-train:")]
    check(process.returncode == 1 and len(error) == 1 and "the file shrank" in error[0] and "saved" not in error[0], f"the first error stays: {error}")
    check(re.search(r"warning: step \d+ is not saved: .*gone", text), "and why nothing could be saved is said")


def skips():
    """Too many steps without an update end the run with what it had."""
    run(*base(), "--steps", 1, "--out", f"{work}/first", "--dtype", "fp32")
    model = f"{work}/first/step-00000001"
    file = bytearray(open(f"{model}/model.safetensors", "rb").read())
    header = int.from_bytes(file[:8], "little")
    first, last = json.loads(file[8 : 8 + header])["model.norm.weight"]["data_offsets"]
    file[8 + header + first : 8 + header + last] = struct.pack("<f", 3e38) * ((last - first) // 4)  # finite, its logits are not
    open(f"{model}/model.safetensors", "wb").write(file)
    error = fails("2 steps in a row", "--model", model, *base()[2:], "--steps", 9, "--max-skips", 2, "--dtype", "fp32", "--out", f"{work}/out").splitlines()[-1]
    check("after step 2; saved, go on with --resume" in error and names(f"{work}/out") == ["step-00000002"], error)
    check(open(f"{work}/out/step-00000002/model.safetensors", "rb").read() == file, "with the weights that it was given")


def others():
    """Tensors of a model that would not be read are refused by name; what follows from the rest is not."""
    made = {}
    for name, tied in (("apart", False), ("tied", True)):
        run(*base(tie_word_embeddings=tied), "--steps", 1, "--out", f"{work}/{name}")
        made[name] = f"{work}/{name}/step-00000001"

    def train(model, adds, **config):
        """From a copy of the model with further tensors of two bf16 and another config."""
        shutil.rmtree(f"{work}/copy", ignore_errors=True)
        shutil.copytree(model, f"{work}/copy")
        file = open(f"{model}/model.safetensors", "rb").read()
        length = int.from_bytes(file[:8], "little")
        header, data = json.loads(file[8 : 8 + length]), file[8 + length :]
        for add in adds:
            header[add] = {"dtype": "BF16", "shape": [2], "data_offsets": [len(data), len(data) + 4]}
            data += bytes(4)
        text = json.dumps(header).encode()
        open(f"{work}/copy/model.safetensors", "wb").write(len(text).to_bytes(8, "little") + text + data)
        json.dump(json.load(open(f"{model}/config.json")) | config, open(f"{work}/copy/config.json", "w"))
        return ["--model", f"{work}/copy", *base()[2:], "--steps", 1]

    fails('tensor "model.layers.1.', *train(made["apart"], [], num_hidden_layers=1))
    for name in ("model.layers.0.self_attn.q_proj.bias", "model.layers.00.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight", "score.weight"):
        fails(f'tensor "{name}" is none of the 2-layer model', *train(made["apart"], [name]))
    run(*train(made["apart"], ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]))
    run(*train(made["tied"], ["lm_head.weight"]))
    check(True, "rotary frequencies and a tied head are passed over")


tests = {"others": others, "ends": ends, "skips": skips, "numbers": numbers, "tokenizer": tokenizer, "sweep": sweep, "folder": folder, "signal": interrupt}
if __name__ == "__main__":
    main(tests)
