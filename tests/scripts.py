#!/usr/bin/env python3
"""The scripts around the programs: scripts.py build|version|tokenize.
build     a build that fails shows the compiler's errors, one that works its last line
version   tools of another version than the form's are not taken
tokenize  examples/train/tokenize.py with a tokenizer of words: documents end, its own output is not read
"""
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
work = tempfile.mkdtemp(prefix="scripts-")

FAKE = """
class Tokenizer:
    words = ["</s>", "a", "b"]
    from_file = classmethod(lambda cls, path: cls())
    token_to_id = lambda self, text: self.words.index(text) if text in self.words else None
    get_vocab_size = lambda self: len(self.words)
    def encode(self, text, add_special_tokens):
        ids = [self.words.index(word) for word in text.split()]
        return type("Encoding", (), {"ids": ids})()
"""


def check(holds, text):
    if not holds:
        print("FAILED:", text)
        sys.exit(1)
    print("holds:", text)


def program(name, body):
    os.makedirs(f"{work}/bin", exist_ok=True)
    with open(f"{work}/bin/{name}", "w") as out:
        out.write(f"#!/bin/sh\n{body}\n")
    os.chmod(f"{work}/bin/{name}", 0o755)


def sourced(command):
    done = subprocess.run(["bash", "-c", f"set -euo pipefail; . {SOURCE}/scripts/build.sh; {command}"], cwd=work,
                          env={**os.environ, "PATH": f"{work}/bin:/usr/bin:/bin"}, capture_output=True, text=True)
    return done.returncode, done.stdout


def build():
    os.makedirs(f"{work}/build/some")
    program("cmake", 'case $1 in --build) echo "x.c:1: error: no"; echo "ninja: stopped"; exit 1;; esac')
    check(sourced("build_preset some; echo after") == (1, "x.c:1: error: no\n"), "the error is shown, and what follows is not run")
    program("cmake", 'case $1 in --build) echo "it broke"; exit 1;; esac')
    check(sourced("build_preset some") == (1, "it broke\n"), "where nothing looks like an error, all is")
    program("cmake", 'case $1 in --build) echo one; echo two;; esac')
    check(sourced("build_preset some") == (0, "two\n"), "the last line of one that works")


def version():
    program("clang-format", "echo Ubuntu clang-format version 18.1.3")
    program("clang-format-14", "exit 127")
    check(sourced("tool_14 clang-format") == (1, ""), "version 18 is not taken")
    program("clang-format-14", "echo clang-format version 14.0.6")
    check(sourced("tool_14 clang-format") == (0, "clang-format-14\n"), "the one of 14 is")
    program("clang-format-14", "exit 127")
    program("clang-format", "echo Debian clang-format version 14.0.6")
    check(sourced("tool_14 clang-format") == (0, "clang-format\n"), "by its plain name too")


def tokenize():
    modules, text = f"{work}/modules", f"{work}/text"
    os.mkdir(modules)
    os.mkdir(text)
    for name, content in (("1.txt", "a b"), ("2.txt", "b")):
        open(f"{text}/{name}", "w").write(content)

    def run(*args, path=modules):
        out = f"{text}/data.bin"
        done = subprocess.run([sys.executable, f"{SOURCE}/examples/train/tokenize.py", "--tokenizer", "x", "--out", out, *args, text],
                              env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        check("Traceback" not in done.stderr, "no traceback")
        data = open(out, "rb").read() if os.path.exists(out) else b""
        return done.returncode, done.stderr, [int.from_bytes(data[i:i + 2], "little") for i in range(0, len(data), 2)]

    open(f"{modules}/tokenizers.py", "w").write("raise ImportError\n")
    code, said, _ = run()
    check(code == 2 and "python3 -m venv" in said, "without the package it is said how to get it")
    open(f"{modules}/tokenizers.py", "w").write(FAKE)
    check(run()[2] == [1, 2, 2], "without --end-token files follow each other")
    check(run("--end-token", "</s>")[2] == [1, 2, 0, 2, 0], "each file ends; the file of before, in the same folder, is not read")
    check(sorted(os.listdir(text)) == ["1.txt", "2.txt", "data.bin"], "nothing is left beside it")
    code, said, ids = run("--end-token", "a b")
    check(code == 2 and "not one token" in said and ids == [1, 2, 0, 2, 0], "a text of two tokens is refused, and the file stands")


try:
    {"build": build, "version": version, "tokenize": tokenize}[sys.argv[1]]()
finally:
    shutil.rmtree(work, ignore_errors=True)
